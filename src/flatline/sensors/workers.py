"""A ``worker_init_fn`` that gives every worker one and the same seed, and a data set that draws from it."""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from flatline.events import Where
from flatline.sensors.callers import is_users
from flatline.sensors.sources import tree_of

DRAWS = {
    "rand", "randn", "randint", "random", "uniform", "normal", "choice", "choices", "sample", "shuffle", "permutation",
    "randperm", "random_sample", "standard_normal", "gauss", "betavariate", "randrange", "bernoulli", "multinomial",
    "rand_like", "randn_like", "integers",
}  # fmt: skip
SEEDS = ("seed", "manual_seed")
DEPTH = 2  # functions called by functions of the data set


def seeded_alike(init: Any, dataset: Any) -> tuple[str, str, Where] | None:
    """(the call, the generator, its line) of a seed that is the same in every worker, of a generator the data set draws from."""
    if not isinstance(init, FunctionType) or not is_users(init.__code__.co_filename):
        return None
    for call in _seeding_calls(init):
        name = _generator(call, init)
        if name and _same_everywhere(call, init) and any(_draws(each, name) for each in _functions(dataset)):
            return ast.unparse(call), name, Where(init.__code__.co_filename, call.lineno, init.__name__)
    return None


def _seeding_calls(function: FunctionType) -> Iterator[ast.Call]:
    """Calls of ``seed(…)`` in the function's own lines."""
    code, tree = function.__code__, tree_of(function.__code__.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.FunctionDef, ast.Lambda)) and node.lineno == code.co_firstlineno:
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in SEEDS:
                    yield call


def _generator(call: ast.Call, function: FunctionType) -> str:
    """Which global generator a call seeds."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    names: list[str] = []
    while isinstance(owner, ast.Attribute):
        names.insert(0, owner.attr)
        owner = owner.value
    found = function.__globals__.get(owner.id) if isinstance(owner, ast.Name) else None
    for name in names:
        found = getattr(found, name, None)
    return next((name for name, module in _modules().items() if found is module), "")


def _modules() -> dict[str, Any]:
    known = {"random": random, "torch": torch, "numpy.random": sys.modules.get("numpy.random")}
    return {name: module for name, module in known.items() if module is not None}


def _same_everywhere(call: ast.Call, function: FunctionType) -> bool:
    """Its argument is made of constants and of globals: nothing in it knows the worker."""
    local = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
    parts = [node for value in call.args for node in ast.walk(value)]
    plain = all(isinstance(p, (ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.operator)) for p in parts)
    names = [p.id for p in parts if isinstance(p, ast.Name)]
    return bool(parts) and plain and not any(n in local or type(function.__globals__.get(n)) is not int for n in names)


def _functions(dataset: Any) -> list[FunctionType]:
    """The user's functions that a sample is made with: methods of the data set and of its transforms, and what they call."""
    parts = [dataset, *getattr(dataset, "__dict__", {}).values()]
    found = [part for part in parts if isinstance(part, FunctionType)]
    for part in parts:
        found += [m for m in vars(type(part)).values() if isinstance(m, FunctionType) and m.__name__ != "__init__"]
    found = [each for each in found if is_users(each.__code__.co_filename)]
    for _ in range(DEPTH):
        called = [each.__globals__.get(name) for each in found for name in _names(each.__code__)]
        found += [
            c for c in called if isinstance(c, FunctionType) and is_users(c.__code__.co_filename) and c not in found
        ]
    return found


def _draws(function: FunctionType, generator: str) -> bool:
    """It names the generator's module, and something that draws from it; and seeds nothing."""
    names, module = _names(function.__code__), _modules()[generator]
    if names & {*SEEDS, "default_rng", "RandomState", "Generator"} or not names & DRAWS:
        return False
    held = [value for name, value in function.__globals__.items() if name in names]
    if generator == "numpy.random" and "random" in names:
        return any(value is sys.modules.get("numpy") for value in held) or any(value is module for value in held)
    return any(value is module for value in held)


def _names(code: CodeType) -> set[str]:
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return {*code.co_names, *(name for part in inner for name in _names(part))}
