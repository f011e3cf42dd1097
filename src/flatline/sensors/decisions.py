"""Does the script decide by the highest score, and by nothing else? Read from the source where its model is trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from flatline.events import Where
from flatline.sensors.sources import FUNCTIONS, tree_of

CHOOSING = ("argmax", "max", "topk", "round")
RANKING = re.compile(
    r"auroc|auc|roc|average_?precision|precision_recall|quantile|percentile|argsort|brier|calibrat|topk|log_?loss|threshold",
    re.IGNORECASE,
)
HALVES = (0, 0.5)
LIBRARIES = ("torch", "nn", "F", "np", "numpy", "functional", "math", "random")
SPEAKING = (ast.Name, ast.Attribute, ast.FunctionDef, ast.alias)


@lru_cache(maxsize=8)
def decides(file: str) -> Where | None:
    """The first line that takes the class with the highest score from what a model returned; None if scores are ranked, too."""
    tree = tree_of(file)
    if tree is None:
        return None
    if any(RANKING.search(_spelled(node)) for node in ast.walk(tree) if isinstance(node, SPEAKING)):
        return None
    models = set(_trained(tree))
    lines = [node.lineno for scope in _scopes(tree) for node in _decisions(scope, models)]
    return Where(file, min(lines)) if lines else None


def _spelled(node: ast.AST) -> str:
    return str(getattr(node, "id", "") or getattr(node, "attr", "") or getattr(node, "name", ""))


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    yield tree
    yield from (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def _trained(tree: ast.Module) -> Iterator[str]:
    """What is called where a backward is: the source of models, losses and helpers; and parameters of functions."""
    for scope in _scopes(tree):
        if any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(scope)):
            yield from (ast.unparse(n.func) for n in ast.walk(scope) if isinstance(n, ast.Call) and _own(n))
        if isinstance(scope, FUNCTIONS):
            yield from (a.arg for a in (*scope.args.posonlyargs, *scope.args.args))


def _own(call: ast.Call) -> bool:
    """Not a function of a library, nor a method of a tensor."""
    func: ast.expr = call.func
    if isinstance(func, ast.Attribute) and ast.unparse(func.value) != "self":
        return False
    return ast.unparse(func).partition(".")[0] not in LIBRARIES


def _decisions(scope: ast.AST, models: set[str]) -> Iterator[ast.expr]:
    """Comparisons with 0 or one half, and the place of the largest, of scores."""
    scores = _names_of_scores(scope, models)
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHOOSING:
            if _holds(node, scores, models) and (node.args or node.keywords or node.func.attr == "round"):
                yield node
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Gt, ast.GtE)) and len(node.ops) == 1:
            half = node.comparators[0]
            if isinstance(half, ast.Constant) and half.value in HALVES and _holds(node.left, scores, models):
                yield node


def _names_of_scores(scope: ast.AST, models: set[str]) -> set[str]:
    """Variables that hold what a model returned, or what was made of it by methods and torch's functions."""
    found: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            if _holds(node.value, found, models):
                found.add(node.targets[0].id)
    return found


def _holds(node: ast.expr, scores: set[str], models: set[str]) -> bool:
    """An expression over scores, straight: a chain of methods, or torch's functions around it."""
    if isinstance(node, ast.Name):
        return node.id in scores
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        return _holds(node.value, scores, models)
    if not isinstance(node, ast.Call):
        return False
    if ast.unparse(node.func) in models:
        return True
    inner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(inner, (ast.Name, ast.Attribute)) and ast.unparse(inner).partition(".")[0] in LIBRARIES:
        return bool(node.args) and _holds(node.args[0], scores, models)
    return inner is not None and _holds(inner, scores, models)
