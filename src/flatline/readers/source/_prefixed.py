"""Checkpoints whose names begin with ``module.``, for a model whose names do not."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use, plain_call
from flatline.readers.source._values import Source, held, origins

PARALLEL = re.compile(r"torch\.nn\.(DataParallel|parallel\.(DataParallel|DistributedDataParallel))")
PREFIX = re.compile(r"'module\.?'")


def prefixed_by(project: Project, state: ast.expr, receiver: ast.expr, use: Use) -> Source | None:
    """What shows that all names begin so: the choice of them, or the model that was saved."""
    found = origins(project, state, use) if _is_plain(project, receiver, use) else []
    if len(found) != 1:
        return None
    if isinstance(found[0].node, ast.DictComp):
        return found[0] if _keeps_prefix(found[0].node) else None
    saved = list(saved_where(project, found[0]))
    wrapped = [each for each in saved if _is_wrapped(project, each)]
    return wrapped[0] if wrapped and len(wrapped) == len(saved) else None


def _is_plain(project: Project, node: ast.expr, use: Use) -> bool:
    """A model that nothing was put around, and that has no part of this name."""
    found, things = origins(project, node, use), project.things(node, use)
    owners = [t.made_of for t in things if t.made_of is not None and t.call is not None]
    parts = [b for owner in owners for b in project.attributes(owner, "module")]
    named = bool(things) and len(owners) == len(things) and not parts
    made = all(isinstance(s.node, ast.Call) and not _around(project, s.node, s.use) for s in found)
    return named and bool(found) and made


def _around(project: Project, node: ast.expr, use: Use) -> bool:
    """Wrapped, also behind ``.cuda()`` and the like."""
    calls = [inner for inner in walk(node) if isinstance(inner, ast.Call)]
    return any(PARALLEL.fullmatch(project.dotted(inner.func, use)) for inner in calls)


def _is_wrapped(project: Project, source: Source) -> bool:
    """The model whose state was saved."""
    func = source.node.func if isinstance(source.node, ast.Call) else None
    model = func.value if isinstance(func, ast.Attribute) and func.attr == "state_dict" else None
    found = origins(project, model, source.use) if model is not None else []
    return bool(found) and all(
        isinstance(s.node, ast.Call) and PARALLEL.fullmatch(project.dotted(plain_call(s.node).func, s.use))
        for s in found
    )


def _keeps_prefix(node: ast.DictComp) -> bool:
    """``{k: v for k, v in state.items() if k.startswith("module.")}``."""
    head = node.generators[0]
    target = head.target.elts[0] if isinstance(head.target, ast.Tuple) else None
    if len(node.generators) > 1 or target is None or unparsed(node.key) != unparsed(target):
        return False
    wanted = f"{unparsed(target)}.startswith"
    asked = [t for t in head.ifs if isinstance(t, ast.Call) and unparsed(t.func) == wanted and len(t.args) == 1]
    return any(PREFIX.match(unparsed(t.args[0])) or _longer(t.args[0]) for t in asked)


def _longer(node: ast.expr) -> bool:
    """``"module.encoder."``."""
    return isinstance(node, ast.Constant) and str(node.value).startswith("module.")


def saved_where(project: Project, loaded: Source) -> Iterator[Source]:
    """The states that the project saves where these are loaded from; a table of them, under the same key."""
    node, key = loaded.node, None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        inner = origins(project, node.value, loaded.use)
        node, loaded, key = (inner[0].node, inner[0], node.slice) if len(inner) == 1 else (node, loaded, None)
    if not isinstance(node, ast.Call) or project.dotted(node.func, loaded.use) != "torch.load" or not node.args:
        return
    path, usual = _paths(project, node.args[0], loaded.use), _usual(project, node.args[0], loaded.use)
    for call, use in _saves(project) if path else ():
        near = usual if _are_beside(use, loaded.use) else set()
        if (path | near) & _paths(project, call.args[1], use):
            made = held(project, call.args[0], key, use, 0) if key is not None else ()
            yield from made or origins(project, call.args[0], use) or [Source(call.args[0], use)]


def _usual(project: Project, node: ast.expr, use: Use) -> set[str]:
    """What an option is if nobody says otherwise."""
    known = project.constant(node, use) if isinstance(node, (ast.Name, ast.Attribute)) else None
    return {unparsed(known)} if known is not None and _is_text(known) and known.value else set()


def _are_beside(one: Use, other: Use) -> bool:
    """Two files of one folder."""
    return os.path.dirname(one.scope.module.text.path) == os.path.dirname(other.scope.module.text.path)


def _saves(project: Project) -> Iterator[tuple[ast.Call, Use]]:
    scopes = [scope for module in project.modules.values() if module is not None for scope in module.scopes]
    for call, use in [pair for scope in scopes for pair in scope.calls]:
        if len(call.args) == 2 and project.dotted(call.func, use) == "torch.save":
            yield call, use


def _paths(project: Project, node: ast.expr, use: Use) -> set[str]:
    """Where a file lies: as it is written out, or the name of an option."""
    found = {
        unparsed(s.node) for s in origins(project, node, use)
        if isinstance(s.node, (ast.Attribute, ast.JoinedStr)) or _is_text(s.node) or _joins(project, s)
    }  # fmt: skip
    return {text.removeprefix("self.") for text in found if "self." not in text.removeprefix("self.args.")}


def _joins(project: Project, source: Source) -> bool:
    """``os.path.join("out", "model.pt")``."""
    node = source.node
    return isinstance(node, ast.Call) and project.dotted(node.func, source.use) == "os.path.join"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
