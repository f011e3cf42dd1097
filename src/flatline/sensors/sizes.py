"""The length that the function of a LambdaLR was made for: a number that it reads, at which it comes to its lowest value."""

from __future__ import annotations

import builtins
import dis
import math
import types
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from flatline.sensors.callers import closure_of

PURE = ("abs", "float", "int", "len", "max", "min", "pow", "range", "round", "sum")  # of Python's own functions
NUMPY = ("cos", "sin", "exp", "sqrt", "log", "pi", "clip", "minimum", "maximum", "interp", "float32", "float64")
WRITES = (
    "STORE_GLOBAL",
    "STORE_DEREF",
    "STORE_ATTR",
    "STORE_SUBSCR",
    "STORE_NAME",
    "DELETE",
    "IMPORT",
    "YIELD",
    "RAISE",
)
FAILURES = (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
DEPTH = 3  # functions that call functions
NUMBERS = 24  # that are tried
LARGEST = 1_000_000  # a function that loops as often as it is told to is over at once
PARTS = (0.25, 0.5, 0.75)  # of the length, at which the function lies higher
LOW = 0.5  # of its highest value there: what only dips is no end


class Size(NamedTuple):
    """A length in ``step()`` calls."""

    length: int
    spelled: str  # "total=1500"
    again: bool  # behind it the function rises again: half of a cycle, or a cosine that nobody goes on with


def size_of(function: Any, batches: int | None) -> Size | None:
    """The largest of such numbers, or of their products with the batches of an epoch. Only what has no effects is called."""
    try:
        numbers = dict(list(_numbers(function, DEPTH))[NUMBERS::-1])  # the first of a name is what it was given
    except _HasEffects:
        return None
    candidates = {value: f"{name}={value}" for name, value in numbers.items()}
    if batches and batches > 1:
        for name, value in numbers.items():
            candidates.setdefault(value * batches, f"{name}={value}, {batches} batches each")
    for length in sorted((each for each in candidates if 2 < each <= LARGEST), reverse=True):
        found = _ends_at(function, length)
        if found is not None:
            return Size(length, candidates[length], found)
    return None


def reads(function: Any, number: int) -> bool:
    """It reads this very number; what may have effects may read anything."""
    try:
        return any(value == number for _, value in _numbers(function, DEPTH))
    except _HasEffects:
        return True


def _ends_at(function: Any, length: int) -> bool | None:
    """None if it does not come to its lowest value there; else whether it rises again."""
    try:
        before = [float(function(int(part * length))) for part in PARTS]
        last, end, after, late = (float(function(at)) for at in (length - 1, length, length + 1, 2 * length))
    except FAILURES:  # of the user's function, at a place that it was not made for
        return None
    falls = end < last and end <= min(before) and end < LOW * max(before)
    stays = end <= 0 or after >= end
    return max(after, late) > end if falls and stays else None


class _HasEffects(Exception):
    """Calling it may do more than to return a number."""


def _numbers(function: Any, depth: int) -> Iterator[tuple[str, int]]:
    """The integers that it reads, by name."""
    if isinstance(function, partial):
        names = list(_code(function.func).co_varnames)
        yield from _each(zip(names, function.args, strict=False), depth)
        yield from _each(function.keywords.items(), depth)
        yield from _numbers(function.func, depth)
        return
    if isinstance(function, types.MethodType):
        function, owner = function.__func__, function.__self__
    else:
        owner = None if isinstance(function, types.FunctionType) else function
    if owner is not None and not isinstance(function, types.FunctionType):
        function = vars(type(owner)).get("__call__")
    code = _code(function)
    own = ((name, value) for name, value in _fields(owner) if name in code.co_names)
    yield from _each(own, depth, told=False)
    yield from _each(_defaults(function, code), depth)
    yield from _each(closure_of(function).items(), depth)
    yield from _each(_named(function, code, owner), depth)


def _code(function: Any) -> types.CodeType:
    """Of a plain function that writes to nothing but its own names."""
    code = getattr(function, "__code__", None)
    inner = code is not None and any(isinstance(each, types.CodeType) for each in code.co_consts)
    if code is None or inner or any(each.opname.startswith(WRITES) for each in dis.get_instructions(code)):
        raise _HasEffects
    return code  # type: ignore[no-any-return]


def _defaults(function: Any, code: types.CodeType) -> Iterator[tuple[str, Any]]:
    values = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _named(function: Any, code: types.CodeType, owner: Any) -> Iterator[tuple[str, Any]]:
    """Globals, and fields of what it holds; any other name may be that of a call with effects."""
    held = [*closure_of(function).values(), *(function.__globals__.get(name) for name in code.co_names), owner]
    fields = {name for each in held for name, value in _fields(each) if not callable(value)}
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
        elif name not in fields and not _known(name):
            raise _HasEffects


def _known(name: str) -> bool:
    return (name in PURE and hasattr(builtins, name)) or name in NUMPY or hasattr(math, name)


def _fields(thing: Any) -> Iterator[tuple[str, Any]]:
    """Of a plain object; those of modules, classes and functions are none."""
    if not isinstance(thing, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
        yield from getattr(thing, "__dict__", {}).items()


def _each(named: Any, depth: int, told: bool = True) -> Iterator[tuple[str, int]]:
    """Integers, and those of what is held by these names; ``told`` is False for the fields of an object, which end there."""
    for name, value in named:
        if type(value) is int:
            yield name, value
        elif isinstance(value, (types.FunctionType, types.MethodType, partial)) and depth:
            yield from _numbers(value, depth - 1)
        elif _may_act(value):
            raise _HasEffects
        elif told:
            yield from ((key, each) for key, each in _fields(value) if type(each) is int)


def _may_act(value: Any) -> bool:
    """Something that can be called, and is not known to do nothing else than to return."""
    if isinstance(value, types.ModuleType):
        return value.__name__ not in ("math", "numpy")
    if isinstance(value, Tensor):
        return True  # whose numbers may lie on a device
    return callable(value) and getattr(value, "__module__", "") != "math" and type(value).__name__ != "ufunc"
