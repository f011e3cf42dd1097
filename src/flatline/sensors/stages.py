"""Stages of a training script that never came: an unfreezing under a condition on the epoch that was never true."""

from __future__ import annotations

import argparse
import ast
import linecache
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

LOOPS = (ast.For, ast.AsyncFor)
SPACES = (argparse.Namespace, types.SimpleNamespace)  # whose attributes are plain values


class Unreached(NamedTuple):
    """A statement that unfreezes, and the condition that kept it from running."""

    file: str
    line: int
    condition: str
    last: int  # value of the loop's variable in its last round
    written: bool  # the number in the condition is written there: nobody set it to switch the stage off


def unreached_unfreezing(file: str) -> Unreached | None:
    """The first one in a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    names, helpers = _globals(file), _unfreezing_functions(tree)
    for loop in ast.walk(tree):
        last = _last_round(loop, _hide_locals(tree, loop, names)) if isinstance(loop, LOOPS) else None
        if last is None:
            continue
        for inner in ast.walk(loop):
            if isinstance(inner, ast.If) and (found := _never(inner, loop, last, names, helpers)) is not None:
                return found._replace(file=file)
    return None


def _globals(file: str) -> Mapping[str, Any]:
    main = sys.modules.get("__main__")
    same = os.path.abspath(getattr(main, "__file__", "") or "") == os.path.abspath(file)
    return dict(vars(main)) if same and main is not None else {}


def _hide_locals(tree: ast.AST, loop: ast.AST, names: Mapping[str, Any]) -> Mapping[str, Any]:
    """In a function a name may be anything: only the numbers that are written there are known."""
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {} if any(loop in ast.walk(function) for function in functions) else names


def _unfreezes(node: ast.AST, helpers: frozenset[str] = frozenset()) -> bool:
    if isinstance(node, ast.Assign):
        targets = [t for t in node.targets if isinstance(t, ast.Attribute) and t.attr == "requires_grad"]
        return bool(targets) and isinstance(node.value, ast.Constant) and node.value.value is True
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in helpers
    given = [*node.args, *(k.value for k in node.keywords)]
    true = not given or (isinstance(given[0], ast.Constant) and given[0].value is True)
    return isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_" and true


def _unfreezing_functions(tree: ast.AST) -> frozenset[str]:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(f.name for f in functions if any(_unfreezes(inner) for inner in ast.walk(f)))


def _number(node: ast.AST | None, names: Mapping[str, Any]) -> int | None:
    value: Any = None
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Name):
        value = names.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        space = names.get(node.value.id)
        value = vars(space).get(node.attr) if isinstance(space, SPACES) else None
    return value if type(value) is int else None


def _last_round(loop: Any, names: Mapping[str, Any]) -> int | None:
    """Of ``for epoch in range(n)`` or ``range(m, n)``; a wrapper around it, like tqdm, is looked through."""
    call = loop.iter
    while isinstance(call, ast.Call) and not _is_range(call) and call.args:
        call = call.args[0]
    if not _is_range(call) or not isinstance(loop.target, ast.Name) or len(call.args) > 2 or call.keywords:
        return None
    end = _number(call.args[-1], names)
    return end - 1 if end is not None and end > 0 else None


def _is_range(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("range", "trange")


def _never(branch: ast.If, loop: Any, last: int, names: Mapping[str, Any], helpers: frozenset[str]) -> Unreached | None:
    test = branch.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.left, ast.Name):
        return None
    wanted = _number(test.comparators[0], names)
    if test.left.id != loop.target.id or wanted is None or wanted <= 0:
        return None
    first = wanted + isinstance(test.ops[0], ast.Gt)
    if not isinstance(test.ops[0], (ast.Eq, ast.GtE, ast.Gt)) or first <= last:
        return None
    lines = [node.lineno for node in _inside(branch) if _unfreezes(node, helpers)]
    written = isinstance(test.comparators[0], ast.Constant)
    return Unreached("", min(lines), ast.unparse(test), last, written) if lines else None


def _inside(branch: ast.If) -> Iterator[Any]:
    for statement in branch.body:
        yield from ast.walk(statement)
