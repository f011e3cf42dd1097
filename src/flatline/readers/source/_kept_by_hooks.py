"""Losses that a hook keeps with their graphs: ``self.losses.append(logs["loss"])`` of what the loop hands it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument
from flatline.readers.source._dispatch import each_of
from flatline.readers.source._edits import after
from flatline.readers.source._kept import bounded, gone_through_by, keeps_all, kept_by, never_emptied
from flatline.readers.source._outlive import has_graph
from flatline.readers.source._put_right import Kept, changed_by, left_out, put_right
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, spelled
from flatline.readers.source._seen import Seen, seen_in

TABLE = re.compile(r"\[|\.setdefault\(")  # what stands before it holds the lists
KEEPS = ("append(", "+=")
Handed = tuple[ast.Call, Use, ast.expr, Sequence[Scope]]  # a call, what it gives, and all that it runs
Keys = Sequence[ast.Constant | None]


def kept_by_hooks(project: Project, files: Sequence[Module]) -> Iterator[SourceFact]:
    """One fact a statement that keeps."""
    keeping = (each for each in files if any(word in each.whole for word in KEEPS))
    methods = (m for module in keeping for owner in module.classes.values() for m in owner.methods.values())
    for method in methods:
        for use in method.statements:
            yield from _keeps(project, method, use)


def _keeps(project: Project, method: Scope, use: Use) -> Iterator[SourceFact]:
    keeper, value = kept_by(use.statement)
    whole = gone_through_by(use, value)
    name, key = (whole, None) if whole else _entry(value)
    own = keeper.startswith(f"{''.join(method.own)}.") and name in method.params[1:]
    if value is None or not own or not all(b.parameter for b in method.bindings[name]):
        return
    seen, table = seen_in(project, method), TABLE.split(keeper)[0]
    lasting = keeps_all if table != keeper else never_emptied
    lasts = not bounded(method, keeper) and lasting(project, method, table) and not seen.without_grad(use)
    lasts = lasts and not left_out(use, spelled(value))
    for call, site in project.calls_of(method) if lasts else ():
        given, direct = argument(call, method, name), project.callee(call, site) is method
        if given is None or (direct and key is None and not whole):
            continue
        runs = [run.function for run in each_of(project, call, site, {})]
        if not direct and not any(each is method for each in runs):
            continue
        place = site if direct else _in_front(site)
        keys = _keys_of(project, given, place) if whole else [key]
        keys = [each for each in keys if _is_loss(project, given, each, place)]
        if keys and not _is_put_right(project, method, name, use, (call, site, given, runs), keys):
            yield seen.fact("kept", use.statement, name=spelled(value), text=keeper, edit=after(value, ".detach()"))
            return


def _is_put_right(project: Project, method: Scope, name: str, use: Use, handed: Handed, keys: Keys) -> bool:
    """What a hook is handed may be changed by the hook, by another of them, or where the table is made."""
    call, site, given, runs = handed
    loss = Kept({name}, [each.value for each in keys if each is not None])
    if put_right(project, method, loss, use.statement):
        return True
    others = {id(each): each for each in runs if each is not method}
    if any(changed_by(project, other, call, [given], loss) for other in others.values()):
        return True
    return isinstance(given, ast.Name) and put_right(
        project, site.scope, replace(loss, names={given.id}), site.statement
    )


def _in_front(site: Use) -> Use:
    """The loop over the hooks itself, as a statement of the turn that it is in."""
    loops = [site.scope.loops[block] for block, _ in site.path if block in site.scope.loops]
    return next((use for use in site.scope.statements if loops and use.statement is loops[-1]), site)


def _keys_of(project: Project, given: ast.expr, use: Use) -> list[ast.Constant | None]:
    """Of the table that is given, or that a function of the project gave back."""
    node, place = seen_in(project, use.scope).sole(given, use)
    function = project.callee(node, place) if isinstance(node, ast.Call) else None
    tables = [value for value, _ in function.returns] if function is not None else [node]
    return [
        key for table in tables if isinstance(table, ast.Dict) for key in table.keys if isinstance(key, ast.Constant)
    ]


def _entry(value: ast.expr | None) -> tuple[str, ast.Constant | None]:
    """``logs`` and its key in ``logs["loss"]`` and ``logs.get("loss")``; ``loss`` without a key."""
    if isinstance(value, ast.Name):
        return value.id, None
    table: ast.expr | None = None
    key: ast.expr | None = None
    if isinstance(value, ast.Subscript):
        table, key = value.value, value.slice
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
        table, key = value.func.value, next(iter(value.args), None)
    return (table.id, key) if isinstance(table, ast.Name) and isinstance(key, ast.Constant) else ("", None)


def _is_loss(project: Project, given: ast.expr, key: ast.Constant | None, site: Use) -> bool:
    """Sent backward in this turn, or what a function sent backward and returned."""
    seen = seen_in(project, site.scope)
    if (seen.loop_of(site) is None and not seen.called_again) or seen.without_grad(site):
        return False
    node, use = _under(seen, given, key, site)
    if node is None or not seen.same_turn(use, site):
        asked = ast.copy_location(ast.Subscript(given, key, ast.Load()), given) if key is not None else given
        return has_graph(seen, asked, site)
    backs = [back for name, _, back in seen.backwards() if isinstance(node, ast.Name) and name == node.id]
    plain = isinstance(node, ast.Name) and not seen.freed(node.id)
    reaches = [seen.scope.reaching(getattr(node, "id", ""), place) for place in (use, *backs)]
    return has_graph(seen, node, use) or (
        plain
        and any(seen.same_turn(back, use) and each == reaches[0] for back, each in zip(backs, reaches[1:], strict=True))
    )


def _under(seen: Seen, node: ast.expr, key: ast.Constant | None, use: Use) -> tuple[ast.expr | None, Use]:
    """What a table that is written out, here or behind a name, has under a key."""
    if key is None:
        return node, use
    node, use = seen.sole(node, use)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return next((v for k, v in pairs if isinstance(k, ast.Constant) and k.value == key.value), None), use
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return next((k.value for k in node.keywords if k.arg == key.value), None), use
    return None, use
