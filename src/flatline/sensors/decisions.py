"""Does the script decide by the highest score, and by nothing else? Read from the source where its model is trained."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import lru_cache

from flatline.events import Where
from flatline.sensors.sources import FUNCTIONS, called_name, option_names, parameter_names, tree_of, value_pairs

CHOOSING = ("argmax", "max", "topk", "round")
RANKING = re.compile(
    r"auc|roc(?!e)|average_?precision|precision_?recall|quantile|percentile|argsort|brier|calibrat|topk|log_?loss|thresh"
    r"|recall_?at|precision_?at|_at_?k|ndcg|cumsum|lift_|gini|spearman|youden|ranking",
    re.IGNORECASE,
)  # not of process
HALVES = (0, 0.5)
HANDED_ON = 2  # from a function to the next one that decides
LIBRARIES = ("torch", "nn", "F", "np", "numpy", "functional", "math", "random")
Function = ast.FunctionDef | ast.AsyncFunctionDef
SPEAKING = (ast.Name, ast.Attribute, ast.FunctionDef, ast.alias)


@lru_cache(maxsize=8)
def decides(file: str) -> Where | None:
    """The first line that takes the class with the highest score from what a model returned; None if scores are ranked, too."""
    tree = tree_of(file)
    if tree is None:
        return None
    if any(RANKING.search(_spelled(node)) for node in ast.walk(tree) if isinstance(node, SPEAKING)):
        return None
    models, scopes = set(_trained(tree)), list(_scopes(tree))
    models |= {name for scope in scopes for name in _gives_scores(scope, models)}
    given = _given(scopes, models)
    known = [(scope, _names_of_scores(scope, models, given[scope])) for scope in scopes]
    numbers = _numbers(tree)
    if any(_chooses(scope, scores, models, numbers) for scope, scores in known):
        return None
    lines = [node.lineno for scope, scores in known for node in _decisions(scope, scores, models)]
    return Where(file, min(lines)) if lines else None


def _spelled(node: ast.AST) -> str:
    return str(getattr(node, "id", "") or getattr(node, "attr", "") or getattr(node, "name", ""))


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    yield tree
    yield from (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def _trained(tree: ast.Module) -> Iterator[str]:
    """What is called where a backward is, and parameters of functions: the source of models; of no class or function here."""
    here = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, *FUNCTIONS))} | set(dir(builtins))
    yield from (name for name in _called(tree) if name not in here)


def _called(tree: ast.Module) -> Iterator[str]:
    for scope in _scopes(tree):
        if any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(scope)):
            losses = _losses(scope)
            calls = (n for n in ast.walk(scope) if isinstance(n, ast.Call) and n not in losses and _own(n))
            yield from (ast.unparse(call.func) for call in calls)
        if isinstance(scope, FUNCTIONS):
            yield from parameter_names(scope)


def _losses(scope: ast.AST) -> list[ast.expr]:
    """``criterion(out, y)`` of ``loss = criterion(out, y)``, of which a backward is taken."""
    names = _backward_of(scope)
    return [n.value for n in ast.walk(scope) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) in names]


def _backward_of(scope: ast.AST) -> set[str]:
    return {ast.unparse(n.value) for n in ast.walk(scope) if isinstance(n, ast.Attribute) and n.attr == "backward"}


def _own(call: ast.Call) -> bool:
    """Not a function of a library, nor a method of a tensor."""
    func: ast.expr = call.func
    if isinstance(func, ast.Attribute) and ast.unparse(func.value) != "self":
        return False
    return ast.unparse(func).partition(".")[0] not in LIBRARIES


def _gives_scores(scope: ast.AST, models: set[str]) -> tuple[str, ...]:
    """The name of a function, and of a method, that returns what a model returned."""
    if not isinstance(scope, FUNCTIONS):
        return ()
    scores = _names_of_scores(scope, models, set())
    returns = [n.value for n in ast.walk(scope) if isinstance(n, ast.Return) and n.value is not None]
    return (scope.name, f".{scope.name}") if any(_holds(value, scores, models) for value in returns) else ()


def _given(scopes: list[ast.AST], models: set[str]) -> dict[ast.AST, set[str]]:
    """For each function the parameters that calls of it by name give scores for."""
    given: dict[ast.AST, set[str]] = {scope: set() for scope in scopes}
    functions = {scope.name: scope for scope in scopes if isinstance(scope, FUNCTIONS)}
    for _ in range(HANDED_ON):
        for scope in scopes:
            scores = _names_of_scores(scope, models, given[scope])
            for call in (n for n in ast.walk(scope) if isinstance(n, ast.Call)):
                function = functions.get(called_name(call))
                if function is not None:
                    given[function] |= {name for name, value in _bound(function, call) if _holds(value, scores, models)}
    return given


def _bound(function: Function, call: ast.Call) -> list[tuple[str, ast.expr]]:
    """Parameters, and what a call gives for them."""
    names = parameter_names(function)
    method = names[:1] == ["self"] and isinstance(call.func, ast.Attribute)
    by_name = [(k.arg, k.value) for k in call.keywords if k.arg]
    return [*zip(names[1:] if method else names, call.args, strict=False), *by_name]


def _chooses(scope: ast.AST, scores: set[str], models: set[str], numbers: dict[str, list[object]]) -> bool:
    """Scores are compared with a probability that is not one half: somebody chose it."""
    compared = (n for n in ast.walk(scope) if isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.Gt, ast.GtE)))
    for node in compared:
        limit = node.comparators[0]
        values = [limit.value] if isinstance(limit, ast.Constant) else numbers.get(_spelled(limit), [])
        chosen = any(isinstance(each, float) and 0 < each < 1 and each not in HALVES for each in values)
        if (chosen or (not values and _is_given(limit, scope))) and _holds(node.left, scores, models):
            return True
    return False


def _is_given(limit: ast.expr, scope: ast.AST) -> bool:
    """A parameter of the function: its callers choose."""
    arguments = scope.args if isinstance(scope, FUNCTIONS) else None
    known = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs] if arguments is not None else []
    return isinstance(limit, ast.Name) and limit.id in [a.arg for a in known]


def _numbers(tree: ast.Module) -> dict[str, list[object]]:
    """Constants, by the last names of what they are given to: variables, attributes, fields, options, defaults."""
    found: dict[str, list[object]] = {}
    for node in ast.walk(tree):
        for name, value in _pairs(node):
            if name and isinstance(value, ast.Constant):
                found.setdefault(name, []).append(value.value)
    return found


def _pairs(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        yield from ((_spelled(to), value) for target in node.targets for to, value in value_pairs(target, node.value))
    elif isinstance(node, ast.AnnAssign):
        yield _spelled(node.target), node.value
    elif isinstance(node, ast.arguments):
        names = [a.arg for a in (*node.posonlyargs, *node.args)]
        yield from zip(names[::-1], node.defaults[::-1], strict=False)
        yield from zip([a.arg for a in node.kwonlyargs], node.kw_defaults, strict=True)
    elif isinstance(node, ast.Call):
        given = [(k.arg, k.value) for k in node.keywords if k.arg]
        yield from given
        yield from ((name, value) for name in option_names(node) for key, value in given if key == "default")


def _decisions(scope: ast.AST, scores: set[str], models: set[str]) -> Iterator[ast.expr]:
    """Comparisons with 0 or one half, and the place of the largest, of scores."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHOOSING:
            if _holds(node, scores, models) and (node.args or node.keywords or node.func.attr == "round"):
                yield node
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Gt, ast.GtE)) and len(node.ops) == 1:
            half = node.comparators[0]
            if isinstance(half, ast.Constant) and half.value in HALVES and _holds(node.left, scores, models):
                yield node


def _names_of_scores(scope: ast.AST, models: set[str], given: set[str]) -> set[str]:
    """Variables that hold what a model returned, or what was made of it by methods and torch's functions."""
    found = set(given)
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            pairs = value_pairs(node.targets[0], node.value)
            found |= {
                to.id for to, value in pairs if value and isinstance(to, ast.Name) and _holds(value, found, models)
            }
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            if node.args and isinstance(node.func.value, ast.Name) and _holds(node.args[0], found, models):
                found.add(node.func.value.id)  # torch.cat(scores)
    return found - _backward_of(scope)


def _holds(node: ast.expr, scores: set[str], models: set[str]) -> bool:
    """An expression over scores, straight: a chain of methods, or torch's functions around it."""
    if isinstance(node, ast.Name):
        return node.id in scores
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        return _holds(node.value, scores, models)
    if isinstance(node, ast.ListComp):
        over = {
            n.target.id for n in node.generators if isinstance(n.target, ast.Name) and _holds(n.iter, scores, models)
        }
        return _holds(node.elt, scores | over, models)
    if not isinstance(node, ast.Call):
        return False
    if ast.unparse(node.func) in models or (isinstance(node.func, ast.Attribute) and f".{node.func.attr}" in models):
        return True
    inner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(inner, (ast.Name, ast.Attribute)) and ast.unparse(inner).partition(".")[0] in LIBRARIES:
        return bool(node.args) and _holds(node.args[0], scores, models)
    return inner is not None and _holds(inner, scores, models)
