"""Numbers and words that are written out, here or where a name got them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flatline.readers.source import _values
from flatline.readers.source._arguments import argument, default, is_spread
from flatline.readers.source._given import from_table
from flatline.readers.source._scopes import Binding, Module, Use
from flatline.readers.source._values import DEPTH, SHORT

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project


SITES = 12  # calls of a function that are looked at


def constant(
    project: Project, node: ast.expr | None, use: Use, depth: int = 0, *, strict: bool = False
) -> ast.Constant | None:
    """What is written out, here or where a name got it; strictly, if it is never counted up, or set elsewhere."""
    if isinstance(node, ast.Constant):
        return node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and depth < SHORT:
        inner = project.constant(node.operand, use, depth + 1, strict=strict)
        return ast.copy_location(ast.Constant(not inner.value), node) if inner is not None else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and depth < SHORT:
        listed = [
            project.constant(s.node, s.use, depth + 1, strict=strict) for s in _values.sources(project, node, use, 0)
        ]
        return _only(listed)
    if not isinstance(node, (ast.Name, ast.Attribute)) or depth >= SHORT:
        return None
    bindings = project.holding(node, use, DEPTH - 6)
    known = [b for b in bindings if not isinstance(b.use.statement, ast.AugAssign)]
    outside = isinstance(node, ast.Attribute) and project.set_from_outside(node.attr, use.scope.module)
    if strict and (outside or len(known) != len(bindings) or len(known) > SHORT):
        return None
    found = [c for b in known[:SHORT] for c in _constants(project, node, b, depth, strict)]
    if not known and isinstance(node, ast.Attribute):
        fields = _values.sources(project, node, use, DEPTH - 6)
        found = [project.constant(each.node, each.use, depth + 1, strict=strict) for each in fields] or [
            project.constant(value, place, depth + 1, strict=strict)
            for value, place in project.defaults(node.attr, use.scope.module)
        ]
    return _only(found)


def _constants(
    project: Project, node: ast.Name | ast.Attribute, binding: Binding, depth: int, strict: bool
) -> Iterator[ast.Constant | None]:
    if not binding.parameter or not isinstance(node, ast.Name):
        yield project.constant(binding.value, binding.use, depth + 1, strict=strict) if not binding.index else None
        return
    usual = default(binding.use.scope, node.id)
    sites: list[tuple[ast.Call | None, Use]] = [*project.sites_of(binding.use.scope)[:SITES]]
    for call, site in sites or ([] if strict else [(None, binding.use)]):
        given = argument(call, binding.use.scope, node.id) if call is not None else None
        if call is None or given is not None or not is_spread(call):
            yield project.constant(given or usual, site, depth + 1, strict=strict)
            continue
        inner = from_table(project, call, site, node.id)
        if not inner:
            yield project.constant(usual, site, depth + 1, strict=strict) if inner is not None else None
        for value, place in inner or ():
            yield project.constant(value, place, depth + 1, strict=strict)


def _only(found: Sequence[ast.Constant | None]) -> ast.Constant | None:
    """The value that all of them are."""
    values = {(type(each.value), each.value) if each is not None else None for each in found}
    return found[0] if len(values) == 1 else None


def defaults(project: Project, name: str, module: Module) -> list[tuple[ast.expr, Use]]:
    """``default`` of ``add_argument("--name", ...)``."""
    if id(module) not in project.options:
        known: dict[str, list[tuple[ast.expr, Use]]] = {}
        for call, use in _arguments_added(module):
            given = [k.value for k in call.keywords if k.arg == "default"] or _unset(call)
            names = [k.value for k in call.keywords if k.arg == "dest"] or call.args
            for option in map(_option, names):
                known.setdefault(option, []).extend((each, use) for each in given)
        project.options[id(module)] = known
    return project.options[id(module)].get(name, [])


def _arguments_added(module: Module) -> Iterator[tuple[ast.Call, Use]]:
    for scope in module.scopes:
        for call, use in scope.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                yield call, use


def _unset(call: ast.Call) -> list[ast.expr]:
    """What a switch is that nobody turns."""
    actions = [k.value.value for k in call.keywords if k.arg == "action" and isinstance(k.value, ast.Constant)]
    known = {"store_true": False, "store_false": True}
    return [ast.copy_location(ast.Constant(known[each]), call) for each in actions if each in known]


def _option(node: ast.expr) -> str:
    return (
        node.value.lstrip("-").replace("-", "_")
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        else ""
    )
