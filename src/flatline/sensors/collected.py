"""Features that are collected from a shuffled loader, beside labels that stay in the order of the data set."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.events import Where
from flatline.sensors.sources import FUNCTIONS, called_name, own_nodes, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef

ZIPPING = ("zip", "TensorDataset")
JOINING = (
    "cat",
    "concatenate",
    "concat",
    "stack",
    "vstack",
    "hstack",
    "array",
    "asarray",
    "as_tensor",
    "tensor",
    "from_numpy",
)
OF_OTHERS = ("sampler", "batch_sampler")  # an order that may be any


def collected_shuffled(file: str) -> tuple[str, Where | None]:
    """``for x, _ in loader`` of a loader that shuffles, whose features are joined and paired with other labels; '' if none."""
    tree = tree_of(file)
    if tree is None:
        return "", None
    for loop, scope in _loops(tree):
        made = _made_in(loop)
        if made and _torn(scope, loop, made, tree):
            return _told(loop), Where(file, loop.lineno, getattr(scope, "name", "<module>"))
    return "", None


def _torn(scope: ast.AST, loop: ast.For, made: str, tree: ast.Module) -> bool:
    if _shuffles(loop.iter, tree):
        return _paired_alone(made, tree, loop)
    return isinstance(scope, FUNCTIONS) and _given_shuffled(scope, loop, made, tree)


def _told(loop: ast.For) -> str:
    return f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}".replace("(", "", 1).replace(")", "", 1)


def _loops(tree: ast.Module) -> Iterator[tuple[ast.For, ast.AST]]:
    """``for x, _ in loader``: of a batch, only the first part has a use."""
    for scope in (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *FUNCTIONS))):
        for loop in (node for node in own_nodes(scope) if isinstance(node, ast.For)):
            if isinstance(loop.target, ast.Tuple) and len(loop.target.elts) > 1 and _leaves_the_rest(loop):
                yield loop, scope


def _leaves_the_rest(loop: ast.For) -> bool:
    """The loop reads the inputs, and nothing else of the batch."""
    first, *others = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    read = {
        n.id for each in loop.body for n in ast.walk(each) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
    names = {n.id for each in others for n in ast.walk(each) if isinstance(n, ast.Name)}
    return isinstance(first, ast.Name) and first.id in read and not names & read


def _made_in(loop: ast.For) -> str:
    """The one list that the loop fills: ``feats`` of ``feats.append(net(x))``; '' where there are more, or weights that learn."""
    calls = [
        n for each in loop.body for n in ast.walk(each) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    ]
    filled = {ast.unparse(call.func.value) for call in calls if call.func.attr in ("append", "extend")}  # type: ignore[attr-defined]
    learns = any(called_name(call) in ("backward", "step") for call in calls)
    return next(iter(filled)) if len(filled) == 1 and not learns else ""


def _shuffles(loader: ast.expr, tree: ast.Module) -> bool:
    """A name for one loader, made with ``shuffle=True``."""
    name = ast.unparse(loader)
    made = [n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and name in map(ast.unparse, n.targets)]
    call = made[0] if len(made) == 1 else None
    if not isinstance(call, ast.Call) or any(each.arg in OF_OTHERS for each in call.keywords):
        return False
    given = [each.value for each in call.keywords if each.arg == "shuffle"]
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is True


def _paired_alone(name: str, tree: ast.AST, behind: ast.stmt) -> bool:
    """``TensorDataset(torch.cat(feats), labels)``, or ``f[i]`` beside ``y[i]``: labels that no loop has collected."""
    names = _followed(name, tree)
    for node, sides in _pairs(tree):
        own = [side for side in sides if side in names]
        others = [side for side in sides if side and side not in names]
        if node.lineno > behind.lineno and len(own) == 1 and len(others) == len(sides) - 1 == 1:
            return not _filled(others[0], tree)
    return False


def _pairs(tree: ast.AST) -> Iterator[tuple[ast.expr, list[str]]]:
    """What goes into one data set; or what one statement indexes with the same rows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in ZIPPING:
            yield node, [_whole(each) for each in node.args]
        elif isinstance(node, ast.Assign):
            taken = [n for n in ast.walk(node) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name)]
            if len(taken) == 2 and ast.unparse(taken[0].slice) == ast.unparse(taken[1].slice):
                yield node.value, [_whole(each.value) for each in taken]


def _followed(name: str, tree: ast.AST) -> set[str]:
    """The list, what it is joined to, and what is worked out from that alone, row by row: ``(f - f.mean(0)) / f.std(0)``."""
    names = {name}
    for node in sorted((n for n in ast.walk(tree) if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
        called = {id(inner) for n in ast.walk(node.value) if isinstance(n, ast.Call) for inner in _roots(n.func)}
        read = {
            n.id for n in ast.walk(node.value) if isinstance(n, ast.Name) and (id(n) not in called or n.id in names)
        }
        indexed = any(isinstance(n, ast.Subscript) and ast.unparse(n.value) in names for n in ast.walk(node.value))
        if read and read <= names and not indexed:
            names |= {ast.unparse(each) for each in node.targets}
    return names


def _roots(called: ast.expr) -> Iterator[ast.Name]:
    """``torch`` of ``torch.cat``, ``f`` of ``f(x)``."""
    while isinstance(called, ast.Attribute):
        called = called.value
    if isinstance(called, ast.Name):
        yield called


def _whole(value: ast.expr) -> str:
    """The name of an array that is given whole, maybe joined and converted; '' for a part of it."""
    while isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and called_name(value) not in JOINING and not value.args:
            value = value.func.value
        elif called_name(value) in JOINING and value.args:
            value = value.args[0]
        else:
            return ""
    return ast.unparse(value) if isinstance(value, (ast.Name, ast.Attribute)) else ""


def _filled(name: str, tree: ast.AST) -> bool:
    """In a loop, element by element, or from what was."""
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in ("append", "extend")
        and ast.unparse(n.func.value) in _sources(name, tree)
        for n in ast.walk(tree)
    )  # fmt: skip


def _sources(name: str, tree: ast.AST) -> set[str]:
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and name in map(ast.unparse, n.targets)]
    return {name} | {ast.unparse(n) for each in made for n in ast.walk(each.value) if isinstance(n, ast.Name)}


def _given_shuffled(scope: Function, loop: ast.For, made: str, tree: ast.Module) -> bool:
    """The function returns what it collects, and every call of it gives it a loader that shuffles, or is not paired alone."""
    given = [arg.arg for arg in scope.args.args]
    returned = [n.value for n in own_nodes(scope) if isinstance(n, ast.Return) and n.value is not None]
    names = _followed(made, scope)
    if len(returned) != 1 or _whole(returned[0]) not in names or ast.unparse(loop.iter) not in given:
        return False
    place = given.index(ast.unparse(loop.iter))
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)):
        call: ast.Call = node.value  # type: ignore[assignment]
        if called_name(call) == scope.name and len(call.args) > place and _shuffles(call.args[place], tree):
            if _paired_alone(ast.unparse(node.targets[0]), tree, node):
                return True
    return False
