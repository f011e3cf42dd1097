"""Random numbers: where the user's code seeds them again, and what was seeded at all."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType

from flatline.events import Where
from flatline.sensors.callers import is_users

SEEDING = (
    "manual_seed",
    "manual_seed_all",
    "seed",
    "default_rng",
    "RandomState",
    "Random",
    "set_seed",
    "seed_everything",
)
DRAWING = (
    "randint", "randperm", "choice", "choices", "sample", "permutation", "shuffle", "integers", "multinomial", "randrange"
)  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef
LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEPTH = 3  # functions called by functions called in the loop


@lru_cache(maxsize=8)
def tree_of(file: str) -> ast.Module | None:
    """The syntax tree of a file of the user's."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def seeded_draw(frame: FrameType | None) -> tuple[str, Where | None]:
    """The call that seeds anew, in a loop around ``frame``, before samples are drawn; '' if there is none."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            for seeding, function in _in_loop(frame.f_code.co_filename, frame.f_lineno):
                return ast.unparse(seeding), Where(frame.f_code.co_filename, seeding.lineno, function)
        frame = frame.f_back
    return "", None


def _in_loop(file: str, line: int) -> Iterator[tuple[ast.Call, str]]:
    """Seeding calls that come before a draw, in the innermost loop around a line or in a function called there."""
    tree = tree_of(file)
    loop = _loop_around(tree, line) if tree is not None else None
    if tree is None or loop is None:
        return
    functions = {key: node for key, node in _functions(tree) if not node.lineno <= line <= (node.end_lineno or 0)}
    scopes: dict[str, ast.AST] = {"": loop}
    for _ in range(DEPTH):
        called = [_key(call) for scope in scopes.values() for call in _calls(scope)]
        scopes.update({key: functions[key] for key in called if key in functions})
    for name, scope in reversed(list(scopes.items())):
        seeding = _seeds_then_draws(scope, functions)
        if seeding is not None:
            yield seeding, name.removeprefix(".")


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Functions by name, methods by their name with a dot."""
    methods = {id(f) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            yield ("." if id(node) in methods else "") + node.name, node


def _loop_around(tree: ast.Module, line: int) -> ast.AST | None:
    """The innermost loop around a line, within the function that the line stands in."""
    best: ast.AST | None = None
    for node in ast.walk(tree):
        if isinstance(node, (*LOOPS, *FUNCTIONS)) and node.lineno <= line <= (node.end_lineno or node.lineno):
            if best is None or node.lineno >= getattr(best, "lineno", 0):
                best = node
    return best if isinstance(best, LOOPS) else None


def _seeds_then_draws(scope: ast.AST, functions: dict[str, Function]) -> ast.Call | None:
    """The seeding call of a scope that draws samples after it, itself or in a function that it calls."""
    calls = sorted(_calls(scope), key=lambda call: (call.lineno, call.col_offset))
    seeding = [call for call in calls if _does(call, SEEDING, functions) and (call.args or call.keywords)]
    drawing = [call for call in calls if _does(call, DRAWING, functions)]
    return seeding[0] if seeding and drawing and drawing[-1].lineno >= seeding[0].lineno else None


def _does(call: ast.Call, what: tuple[str, ...], functions: dict[str, Function]) -> bool:
    own = functions.get(_key(call))
    return any(_name(inner) in what for inner in _calls(own)) if own is not None else _name(call) in what


def _calls(scope: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(scope) if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _key(call: ast.Call) -> str:
    return ("." if isinstance(call.func, ast.Attribute) else "") + _name(call)
