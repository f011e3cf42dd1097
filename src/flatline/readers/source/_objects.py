"""The objects that a list holds, in their order: hooks and callbacks, as they are listed and put in later."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Binding, Scope, Use, spelled
from flatline.readers.source._values import Source, chosen, comes_by, looped, sources

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Objects = Sequence[Source] | None  # None where one of them is not known
DEEP = 10
SAME = {"list", "tuple", "iter", "ModuleList", "deque", "filter"}
PUTS = {"append": 0, "extend": 0, "insert": 1, "appendleft": 0}


def objects(project: Project, node: ast.expr | None, use: Use, depth: int = 0) -> Objects:
    """What a list holds; None where one of its elements is not known."""
    if node is None or depth > DEEP:
        return None
    if isinstance(node, (ast.List, ast.Tuple)):
        return _joined([_element(project, each, use, depth) for each in node.elts])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([objects(project, part, use, depth + 1) for part in (node.left, node.right)])
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        parts = [objects(project, part, use, depth + 1) for part in node.values if not _is_none(project, part, use)]
        return next((part for part in parts if part is None or part), [])
    if isinstance(node, ast.IfExp):
        both = chosen(project, node, use)
        return objects(project, both[0], use, depth + 1) if len(both) == 1 else None
    if isinstance(node, ast.Call):
        return _of_call(project, node, use, depth)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return _of_comprehension(project, node, use, depth)
    if isinstance(node, ast.Name):
        return _of_name(project, node.id, use, depth)
    return _of_attribute(project, node, use, depth) if isinstance(node, ast.Attribute) else None


def _element(project: Project, node: ast.expr, use: Use, depth: int) -> Objects:
    if isinstance(node, ast.Starred):
        return objects(project, node.value, use, depth + 1)
    if isinstance(node, ast.IfExp):
        both = chosen(project, node, use)
        return _element(project, both[0], use, depth) if len(both) == 1 else None
    return [] if isinstance(node, ast.Constant) and node.value is None else [Source(node, use)]


def _joined(parts: Sequence[Objects]) -> Objects:
    found = [part for part in parts if part is not None]
    return [each for part in found for each in part] if len(found) == len(parts) else None


def _is_none(project: Project, node: ast.expr, use: Use) -> bool:
    found = project.constant(node, use)
    return found is not None and found.value is None


# --------------------------------------------------------------------------- calls and comprehensions


def _of_call(project: Project, node: ast.Call, use: Use, depth: int) -> Objects:
    name = spelled(node.func).rpartition(".")[2]
    if name == "reversed" and len(node.args) == 1:
        found = objects(project, node.args[0], use, depth + 1)
        return found[::-1] if found is not None else None
    if name == "values" and isinstance(node.func, ast.Attribute) and not node.args:
        return _values_of(project, node.func.value, use, depth)
    if name in SAME and node.args:
        return objects(project, node.args[-1], use, depth + 1)
    if name in ("list", "tuple"):
        return []
    function = project.callee(node, use)
    returned = project.returns(function) if function is not None and not function.yields else []
    return objects(project, *returned[0], depth + 1) if len(returned) == 1 else None


def _values_of(project: Project, table: ast.expr, use: Use, depth: int) -> Objects:
    """Of a dictionary that is written out, or is under a name."""
    if isinstance(table, ast.Dict):
        return (
            _joined([_element(project, each, use, depth) for each in table.values]) if None not in table.keys else None
        )
    bound = project.holding(table, use, 0) if isinstance(table, (ast.Name, ast.Attribute)) else []
    value = bound[0].value if len(bound) == 1 and not bound[0].index else None
    plain = isinstance(value, ast.Dict) and not project.written_to(table, use)
    return _values_of(project, value, bound[0].use, depth + 1) if plain and value is not None else None


def _of_comprehension(project: Project, node: ast.ListComp | ast.GeneratorExp, use: Use, depth: int) -> Objects:
    """``[h for h in hooks if h is not None]``."""
    (head, *more), name = node.generators, unparsed(node.generators[0].target)
    plain = all(unparsed(test) in (name, f"{name} is not None") for test in head.ifs)
    own = isinstance(node.elt, ast.Name) and node.elt.id == name and not more
    return objects(project, head.iter, use, depth + 1) if own and plain else None


# --------------------------------------------------------------------------- names and attributes


def _of_name(project: Project, name: str, use: Use, depth: int) -> Objects:
    scope: Scope | None = use.scope
    while scope is not None and name not in scope.bindings:
        scope = scope.parent
    bound = scope.bindings[name] if scope is not None else []
    if scope is None or not bound:
        return None
    grown = [b for b in bound if isinstance(b.use.statement, ast.AugAssign)]
    begun = scope.reaching(name, use) if len(bound) > 1 and not grown and scope is use.scope else bound[:1]
    if len(begun) != 1 or (grown and len(grown) + 1 != len(bound)):
        return None
    found = _begun(project, begun[0], name, depth)
    return _put_later(project, found, name, scope, use, begun[0], depth)


def _begun(project: Project, binding: Binding, name: str, depth: int) -> Objects:
    """What a name is first."""
    if binding.imported:
        other = project.elsewhere(binding.imported, binding.use)
        return objects(project, other.node, other.use, depth + 1) if other is not None else None
    if binding.parameter:
        given = project.given(name, binding.use)
        return objects(project, *given[0], depth + 1) if len(given) == 1 else None
    if binding.use.order < 0:
        return _varied(project, binding.use.scope, name, depth)
    return objects(project, binding.value, binding.use, depth + 1) if not binding.index else None


def _varied(project: Project, function: Scope, name: str, depth: int) -> Objects:
    """What the one call of a function gives for ``*hooks``."""
    extra = function.arguments.vararg
    sites = project.calls_of(function)
    if extra is None or extra.arg != name or len(sites) != 1:
        return None
    call, use = sites[0]
    own = function.owner is not None and not function.marked("staticmethod")
    size = len(function.arguments.args) - own
    return _joined([_element(project, each, use, depth) for each in call.args[size:]])


def _put_later(
    project: Project, found: Objects, name: str, scope: Scope, use: Use, begun: Binding, depth: int
) -> Objects:
    """With what statements of the same function add to it, before it is used."""
    for statement in scope.statements if found is not None else ():
        here = statement.order > begun.use.order and (scope is not use.scope or statement.order < use.order)
        for method, value in _puts(statement, name) if here else ():
            if comes_by(project, statement) is False:
                continue
            each = _each(project, method, value, statement, depth)
            plain = all(
                block in statement.scope.choices and comes_by(project, statement) for block, _ in statement.path
            )
            if not plain or method not in PUTS or each is None or found is None:
                return None
            found = [*each, *found] if method in ("insert", "appendleft") else [*found, *each]
    return found


def _each(project: Project, method: str, value: ast.expr, use: Use, depth: int) -> Objects:
    return objects(project, value, use, depth + 1) if method == "extend" else _element(project, value, use, depth)


def _puts(use: Use, name: str) -> list[tuple[str, ast.expr]]:
    """``name.append(value)``, ``name += values``, and whatever else is done to a list."""
    node = use.statement
    if isinstance(node, ast.AugAssign) and unparsed(node.target) == name:
        return [("extend", node.value)]
    call = node.value if isinstance(node, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    if not isinstance(func, ast.Attribute) or not isinstance(call, ast.Call) or unparsed(func.value) != name:
        return []
    if func.attr == "sort":
        return [("sort", call)]
    first = func.attr != "insert" or (call.args and unparsed(call.args[0]) == "0")
    return [(func.attr if first else "somewhere", call.args[-1] if call.args else call)]


def _of_attribute(project: Project, node: ast.Attribute, use: Use, depth: int) -> Objects:
    fields = sources(project, node, use, depth)
    return objects(project, fields[0].node, fields[0].use, depth + 1) if len(fields) == 1 else None


# --------------------------------------------------------------------------- loops


def in_turn(project: Project, name: str, use: Use) -> Sequence[Source]:
    """The objects that a loop or a comprehension goes through under a name, in their order."""
    head, place = _head(use, name)
    found = objects(project, head, use) if head is not None else None
    if found is None or place is None:
        return found if found is not None else looped(project, name, use)
    rows = [(s.node.elts, s.use) for s in found if isinstance(s.node, (ast.Tuple, ast.List))]
    return [Source(row[place], u) for row, u in rows if place < len(row)] if len(rows) == len(found) else []


def _head(use: Use, name: str) -> tuple[ast.expr | None, int | None]:
    """What is gone through, and which part of each element has the name."""
    around = {block for block, _ in use.path}
    loops = [b.use.statement for b in use.scope.bindings.get(name, ()) if id(b.use.statement) in around]
    heads = [(loop.target, loop.iter) for loop in loops if isinstance(loop, ast.For)]
    if name in use.scope.masked.get(id(use.statement), ()):
        comps = [n for n in walk(use.statement) if isinstance(n, ast.comprehension)]
        heads = [(c.target, c.iter) for c in comps if not c.ifs]
    found = [(t, i) for t, i in heads if any(isinstance(n, ast.Name) and n.id == name for n in walk(t))]
    return _part(*found[-1], name) if found else (None, None)


def _part(target: ast.expr, head: ast.expr, name: str) -> tuple[ast.expr | None, int | None]:
    if isinstance(target, ast.Name):
        return head, None
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    at = next((n for n, each in enumerate(parts) if isinstance(each, ast.Name) and each.id == name), None)
    func = head.func if isinstance(head, ast.Call) else None
    if isinstance(head, ast.Call) and spelled(head.func) == "enumerate" and at == 1 and len(parts) == 2:
        return head.args[0], None
    if isinstance(func, ast.Attribute) and func.attr == "items" and at == 1 and len(parts) == 2:
        return _values_call(func.value), None
    if isinstance(head, ast.Call) and spelled(head.func) == "enumerate" and len(parts) == 2:
        return _part(parts[1], head.args[0], name)
    return (head, at) if at is not None else (None, None)


@cache
def _values_call(table: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Attribute(table, "values", ast.Load()), [], []), table)
