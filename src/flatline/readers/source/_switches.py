"""The switches of cudnn: set by a constant, by a setting, or from a table of settings."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use
from flatline.readers.source._seen import Seen
from flatline.readers.source._values import Source, held, origins

CUDNN = "torch.backends.cudnn"
FLAGS = ("deterministic", "benchmark")


def switches(seen: Seen) -> Iterator[tuple[str, object, Use]]:
    """The name of each, what it is set to, and where."""
    for use in seen.scope.statements:
        node = use.statement
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        name = seen.project.dotted(target, use) if isinstance(target, ast.Attribute) else ""
        if isinstance(node, ast.Assign) and name.rpartition(".")[0] == CUDNN:
            value = seen.project.constant(node.value, use, strict=True)
            yield name.rpartition(".")[2], value.value if value is not None else None, use
    for call, use in seen.scope.calls:
        table = _table(seen.project, call, use)
        for name in FLAGS if table is not None else ():
            found = [each for source in _tables(seen, table, use) for each in _under(seen, source, name)]  # type: ignore[arg-type]
            values = {value for value in found if isinstance(value, bool)} if None not in found else set()
            yield name, values.pop() if len(values) == 1 else None, use


def _table(project: Project, call: ast.Call, use: Use) -> ast.expr | None:
    """``flags`` of ``setattr(cudnn, name, on)`` in ``for name, on in flags.items()``."""
    named = isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3
    if not named or project.dotted(call.args[0], use) != CUDNN:
        return None
    loops = {id(u.statement): u.statement for u in use.scope.statements if isinstance(u.statement, ast.For)}
    loop = loops.get(use.path[-1][0]) if use.path and use.path[-1][1] == "body" else None
    head = loop.iter if loop is not None else None
    asked = head.func if isinstance(head, ast.Call) and not head.args else None
    drawn = isinstance(loop, ast.For) and unparsed(loop.target) in (
        f"({call.args[1].id}, {call.args[2].id})" if _are_names(call) else "",  # type: ignore[attr-defined]
        f"{call.args[1].id}, {call.args[2].id}" if _are_names(call) else "",  # type: ignore[attr-defined]
    )
    return asked.value if drawn and isinstance(asked, ast.Attribute) and asked.attr == "items" else None


def _are_names(call: ast.Call) -> bool:
    return all(isinstance(each, ast.Name) for each in call.args[1:])


def _tables(seen: Seen, node: ast.expr, use: Use) -> Sequence[Source]:
    """What the table is; of a field of a record whose makers are not known, what the field begins with."""
    found = origins(seen.project, node, use)
    owner = seen.scope.owner
    own = isinstance(node, ast.Attribute) and seen.scope.own == (unparsed(node.value),)
    if not own or owner is None or not isinstance(node, ast.Attribute) or not owner.is_record:
        return found
    plain = not seen.project.set_from_outside(node.attr, seen.module) and not seen.project.attributes(owner, node.attr)
    given = [call for call, _ in seen.project.calls.under(owner.node.name) if call.args or call.keywords]
    usual = owner.fields.get(node.attr)
    factory = (
        next((k.value for k in usual.keywords if k.arg == "default_factory"), None)
        if isinstance(usual, ast.Call)
        else None
    )
    made = factory.body if isinstance(factory, ast.Lambda) and plain and not given else None
    return [Source(made, owner.use)] if made is not None else found


def _under(seen: Seen, table: Source, name: str) -> Iterator[object]:
    """What a table has under the name of a switch."""
    for each in held(seen.project, table.node, ast.Constant(name), table.use, 0):
        value = seen.project.constant(each.node, each.use, strict=True)
        yield value.value if value is not None else None
