"""The last layers of ``nn.Sequential(*layers)``, as the last statement that is come by put them into the list."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, TypeAlias

from flatline.readers.source._arguments import argument, default
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Use
from flatline.readers.source._values import comes_by, is_object

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Site: TypeAlias = "tuple[ast.Call, Use] | None"  # the call of the function that made the sequence
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try)


def starred(project: Project, call: ast.Call, use: Use, site: Site) -> list[ast.expr]:
    """The layers; nothing if they cannot be known."""
    given = call.args[0] if len(call.args) == 1 else None
    if not isinstance(given, ast.Starred) or not isinstance(given.value, ast.Name):
        return []
    name = given.value.id
    for other in reversed(use.scope.statements[: use.order]):
        if isinstance(other.statement, BLOCKS) and not _is_in_head(other.statement, name):
            continue  # what is in it was looked at before
        if any(isinstance(n, ast.Name) and n.id == name for n in walk(other.statement)):
            taken = True if other.before(use) else _taken(project, other, use, site)
            if taken is not False:
                return _put_last(other.statement, name) if taken else []
    return []


def as_given(project: Project, layer: ast.expr, use: Use, site: Site) -> tuple[ast.expr, Use]:
    """``nn.Tanh`` of ``last()``, or ``nn.Tanh()`` of ``last``, where that is a parameter which one call gave it."""
    named = layer.func if isinstance(layer, ast.Call) and not layer.args else layer
    given = _argument(project, named, use, site)
    return (given, site[1]) if given is not None and site is not None else (layer, use)


def _is_in_head(node: ast.stmt, name: str) -> bool:
    heads = [getattr(node, part, None) for part in ("test", "iter", "target")]
    heads += [item.context_expr for item in getattr(node, "items", ())]
    return any(isinstance(n, ast.Name) and n.id == name for h in heads if h is not None for n in walk(h))


def _put_last(node: ast.stmt, name: str) -> list[ast.expr]:
    """What a statement puts at the end of a list."""
    value = getattr(node, "value", None)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and isinstance(value, (ast.List, ast.Tuple)):
        return value.elts if [unparsed(t) for t in targets if t is not None] == [name] else []
    if isinstance(node, ast.Expr) and isinstance(value, ast.Call) and unparsed(value.func) == f"{name}.append":
        return value.args
    if isinstance(node, ast.Expr) and isinstance(value, ast.Call) and unparsed(value.func) == f"{name}.extend":
        return value.args[0].elts if value.args and isinstance(value.args[0], (ast.List, ast.Tuple)) else []
    return []


def _taken(project: Project, other: Use, use: Use, site: Site) -> bool | None:
    """Whether a branch in front of a place is taken, always or in the one call; None where that is not known."""
    inner = other.path[len(use.path) :]
    if other.path[: len(use.path)] != use.path or not all(block in use.scope.choices for block, _ in inner):
        return None
    each = [
        truth == (part == "body")
        if (truth := _truth(project, use.scope.choices[block].test, use, site)) is not None
        else None
        for block, part in inner
    ]
    sure = comes_by(project, other)
    return sure if sure is not None else False if False in each else None if None in each else True


def _truth(project: Project, test: ast.expr, use: Use, site: Site) -> bool | None:
    """What ``act is not None``, ``act`` or ``act == "tanh"`` comes to in one call."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(project, test.operand, use, site)
        return None if inner is None else not inner
    plain = isinstance(test, ast.Compare) and len(test.ops) == 1
    given = _argument(project, test.left if isinstance(test, ast.Compare) and plain else test, use, site)
    if given is None or site is None:
        return None
    known = project.constant(given, site[1], strict=True)
    if not isinstance(test, ast.Compare):
        return bool(known.value) if known is not None else _is_object(project, given, site[1]) or None
    other, same = test.comparators[0], isinstance(test.ops[0], (ast.Eq, ast.Is))
    if not isinstance(other, ast.Constant) or not isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        return None
    if known is None:
        return not same if other.value is None and _is_object(project, given, site[1]) else None
    return (known.value == other.value) == same


def _is_object(project: Project, node: ast.expr, use: Use) -> bool:
    """A class of torch, or a layer."""
    things = project.things(node, use)
    torch = bool(things) and all(t.name.startswith("torch.nn.") or t.made_of is not None for t in things)
    return torch or is_object(project, node, use, plain=True)


def _argument(project: Project, node: ast.expr, use: Use, site: Site) -> ast.expr | None:
    """What the one call gives for a parameter that is never given another value, or what it is without."""
    known = use.scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    if site is None or len(known) != 1 or not known[0].parameter or not isinstance(node, ast.Name):
        return None
    if any(isinstance(each, ast.Starred) for each in site[0].args) or any(k.arg is None for k in site[0].keywords):
        return None
    return argument(site[0], use.scope, node.id) or default(use.scope, node.id)
