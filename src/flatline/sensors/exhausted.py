"""An unfreezing that goes over an iterator of parameters that was used up before: read from the source when the script is over."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flatline.sensors.sources import FUNCTIONS, called_name, own_nodes, tree_of
from flatline.sensors.stages import unfreezes, unfreezing_functions

OF_MODULES = ("parameters", "named_parameters", "modules", "named_modules", "children", "named_children")
OF_PYTHON = ("filter", "map", "zip", "enumerate", "iter", "reversed", "chain")
TAKING = ("list", "tuple", "set", "sorted", "sum", "dict")  # all that they are given
THROUGH = ("enumerate", "tqdm")  # as much as is taken from them
LEAVING = (ast.Break, ast.Return, ast.Raise)


class Exhausted(NamedTuple):
    """The statement that unfreezes nothing, and what it goes over."""

    file: str
    line: int
    name: str
    made: str  # what the name stands for
    used_up: int  # line


def exhausted_unfreezing(file: str) -> Exhausted | None:
    """The first one in a file: the name is bound once, and the statement behind that, or a later one beside it, takes all."""
    tree = tree_of(file)
    if tree is None:
        return None
    helpers = unfreezing_functions(tree)
    takers = {f.name: place for f in ast.walk(tree) if isinstance(f, FUNCTIONS) for place in _taken_whole(f)}
    for scope in (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *FUNCTIONS))):
        for name, made, later in _iterators(scope, tree):
            first = next((each for each in later if _uses_up(each, name, takers)), None)
            second = first and _unfreezing(_behind(scope, first, name, tree), name, takers, helpers)
            if first and second:
                return Exhausted(file, second.lineno, name, ast.unparse(made), first.lineno)
    return None


def _iterators(scope: ast.AST, tree: ast.AST) -> Iterator[tuple[str, ast.expr, list[ast.stmt]]]:
    """Names of a scope that one statement binds, to an iterator; and the statements behind it in the same block."""
    own = {f.name for f in ast.walk(tree) if isinstance(f, FUNCTIONS)}
    nodes = [scope, *own_nodes(scope)]
    bound = [n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
    kept = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load)]
    bound += [ast.unparse(n) for n in kept] if getattr(scope, "name", "") == "__init__" else []
    parts = [getattr(node, part, None) for node in nodes for part in ("body", "orelse")]
    for block in (part for part in parts if isinstance(part, list)):
        for place, statement in enumerate(block):
            if isinstance(statement, ast.Assign) and _is_iterator(statement.value, own):
                name = ast.unparse(statement.targets[0])
                if bound.count(name) == 1:
                    yield name, statement.value, block[place + 1 :]


def _behind(scope: ast.AST, first: ast.stmt, name: str, tree: ast.AST) -> Iterator[ast.AST]:
    """What runs later: the rest of the scope; all other methods, and of the script's functions those that have no such name."""
    end = first.end_lineno or first.lineno
    yield from (node for node in own_nodes(scope) if getattr(node, "lineno", 0) > end)
    for function in (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS) and node is not scope):
        its = [n for n in own_nodes(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
        names = {n.id for n in its} | {each.arg for each in function.args.args + function.args.kwonlyargs}
        if "." in name or (isinstance(scope, ast.Module) and name not in names):
            yield from own_nodes(function)


def _is_iterator(value: ast.expr, own: set[str]) -> bool:
    """What is gone through once; a method of the user's with such a name may return anything."""
    if isinstance(value, ast.GeneratorExp):
        return True
    name = called_name(value) if isinstance(value, ast.Call) else ""
    of_module = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and name in OF_MODULES
    return name not in own and (of_module or name in OF_PYTHON)


def _uses_up(statement: ast.stmt, name: str, takers: Mapping[str, int]) -> bool:
    """It runs in any case, and goes through all of it."""
    if isinstance(statement, ast.For):
        return _goes_over(statement, name) and not any(isinstance(n, LEAVING) for n in ast.walk(statement))
    if not isinstance(statement, (ast.Assign, ast.Expr, ast.AnnAssign)):
        return False
    return any(_takes(node, name, takers) for node in ast.walk(statement))


def _goes_over(loop: ast.For, name: str) -> bool:
    over = loop.iter
    if isinstance(over, ast.Call) and called_name(over) in THROUGH and over.args:
        over = over.args[0]
    return ast.unparse(over) == name


def _takes(node: ast.AST, name: str, takers: Mapping[str, int]) -> bool:
    """``list(body)``, ``sum(p.numel() for p in body)``, ``[p for p in body]``, and a call of a function that loops over it."""
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)):
        return ast.unparse(node.generators[0].iter) == name
    if not isinstance(node, ast.Call) or not node.args:
        return False
    called = called_name(node)
    if called in TAKING:
        first = node.args[0]
        return ast.unparse(first.generators[0].iter if isinstance(first, ast.GeneratorExp) else first) == name
    place = takers.get(called, len(node.args))
    return isinstance(node.func, ast.Name) and place < len(node.args) and ast.unparse(node.args[place]) == name


def _taken_whole(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """Places of arguments that are used for nothing but a loop over all of them, which always runs."""
    for place, argument in enumerate(function.args.args):
        loops = [n for n in function.body if isinstance(n, ast.For) and _goes_over(n, argument.arg)]
        used = [n for n in own_nodes(function) if isinstance(n, ast.Name) and n.id == argument.arg]
        if len(loops) == len(used) == 1 and not any(isinstance(n, LEAVING) for n in own_nodes(function)):
            yield place


def _unfreezing(
    behind: Iterator[ast.AST], name: str, takers: Mapping[str, int], helpers: Mapping[str, bool]
) -> ast.stmt | ast.expr | None:
    """A loop over the name that unfreezes, or a call of a function that does so with what it is given."""
    for node in behind:
        if isinstance(node, ast.For) and _goes_over(node, name) and any(map(unfreezes, ast.walk(node))):
            return node
        if isinstance(node, ast.Call) and called_name(node) in helpers and _takes(node, name, takers):
            if unfreezes(node, helpers):
                return node
    return None
