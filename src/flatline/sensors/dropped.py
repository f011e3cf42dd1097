"""What becomes of the result of a call: is it given to nobody but to a name that nothing reads?"""

from __future__ import annotations

import ast

from flatline.events import Where
from flatline.sensors.sources import called_name, function_around, own_nodes, tree_of

DEEPEST = 3  # functions that hand the result on
WALKS = ("named_modules", "modules", "named_children", "children", "named_parameters")
COPIES = ("dict", "list", "OrderedDict", "tuple")
SIMPLE = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)


def dropped_statement(where: Where | None, kind: str) -> str:
    """The statement at a line that builds an object of this class which goes nowhere; '' where that cannot be said."""
    tree = tree_of(where.file) if where is not None else None
    scope = function_around(where.file, where.line) if where is not None else None
    if tree is None or scope is None or where is None:
        return ""
    found = [n for n in own_nodes(scope) if isinstance(n, SIMPLE) and n.lineno <= where.line <= (n.end_lineno or 0)]
    statement = found[0] if len(found) == 1 else None
    value = getattr(statement, "value", None)
    whole = _alternatives(value) if value is not None else []
    if statement is None or not any(isinstance(n, ast.Call) and called_name(n) == kind for n in whole):
        return ""
    return ast.unparse(statement) if _is_dropped(statement, scope, tree, DEEPEST) else ""


def _alternatives(value: ast.expr) -> list[ast.expr]:
    """``adapter(x) if wanted else x`` is one of two."""
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]


def _is_dropped(statement: ast.stmt, scope: ast.AST, tree: ast.AST, deep: int) -> bool:
    if isinstance(statement, ast.Expr):
        return True
    if isinstance(statement, ast.Return):
        return deep > 0 and isinstance(scope, ast.FunctionDef) and _result_is_dropped(scope, tree, deep - 1)
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return len(targets) == 1 and _leads_nowhere(targets[0], statement, scope)


def _leads_nowhere(target: ast.expr | None, statement: ast.stmt, scope: ast.AST) -> bool:
    """A name that is not read any more, or a place in a copy of the model's own table that is not."""
    if isinstance(target, ast.Name):
        return not _read_after(target.id, statement, scope)
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        name = target.value.id
        return _is_copy(name, scope) and not _read_after(name, statement, scope)
    return False


def _is_copy(name: str, scope: ast.AST) -> bool:
    """``layers = dict(model.named_modules())``, and never another value."""
    given = [n.value for n in own_nodes(scope) if isinstance(n, ast.Assign) and name in map(ast.unparse, n.targets)]
    calls = [value for value in given if isinstance(value, ast.Call) and called_name(value) in COPIES]
    inner = [each.args[0] for each in calls if each.args]
    walked = [each for each in inner if isinstance(each, ast.Call) and called_name(each) in WALKS]
    return len(given) == len(walked) == 1


def _read_after(name: str, statement: ast.stmt, scope: ast.AST) -> bool:
    """In a later line, or in the next turn of the loop around it, unless that begins with a new value."""
    if any(isinstance(n, (ast.Global, ast.Nonlocal)) and name in n.names for n in ast.walk(scope)):
        return True
    own = set(map(id, ast.walk(statement)))
    reads = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    loops = [n for n in own_nodes(scope) if isinstance(n, (ast.For, ast.While)) and _covers(n, statement)]
    inner = max(loops, key=lambda n: n.lineno, default=None)
    fresh = isinstance(inner, ast.For) and name in {n.id for n in ast.walk(inner.target) if isinstance(n, ast.Name)}
    own |= _instead_of(statement, scope) if fresh or not loops else set()
    first = statement.lineno if fresh or not loops else min(n.lineno for n in loops) + 1
    return any(n.lineno >= first for n in reads if id(n) not in own and not _places_only(n, scope))


def _instead_of(statement: ast.stmt, scope: ast.AST) -> set[int]:
    """What runs only where the statement does not: the other branch of a condition."""
    branches = [(n.body, n.orelse) for n in ast.walk(scope) if isinstance(n, ast.If)]
    pairs = [pair for one, two in branches for pair in ((one, two), (two, one))]
    others = [two for one, two in pairs if any(n is statement for each in one for n in ast.walk(each))]
    return {id(n) for other in others for each in other for n in ast.walk(each)}


def _covers(loop: ast.stmt, statement: ast.stmt) -> bool:
    return loop.lineno < statement.lineno <= (loop.end_lineno or loop.lineno)


def _places_only(name: ast.Name, scope: ast.AST) -> bool:
    """``layers[path] = …`` writes to what it names."""
    return any(
        isinstance(n, ast.Subscript) and n.value is name and isinstance(n.ctx, ast.Store) for n in ast.walk(scope)
    )


def _result_is_dropped(function: ast.FunctionDef, tree: ast.AST, deep: int) -> bool:
    """All who call it drop what it returns; ``apply`` does so by itself."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    applied = {id(n) for call in calls if called_name(call) == "apply" for n in call.args}
    called = {id(call.func): call for call in calls}
    mentions = [n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute)) and _named(n, function.name)]
    statements = [
        (n, function_of) for function_of in _scopes(tree) for n in own_nodes(function_of) if isinstance(n, SIMPLE)
    ]
    for each in mentions:
        if id(each) in applied:
            continue
        around = [(n, s) for n, s in statements if n.value is not None and n.value is called.get(id(each))]
        if len(around) != 1 or not _is_dropped(*around[0], tree, deep):
            return False
    return bool(mentions)


def _named(node: ast.expr, name: str) -> bool:
    return (node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else "") == name


def _scopes(tree: ast.AST) -> list[ast.AST]:
    return [tree, *(n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))]
