"""How many batches a DataLoader has, asked for only where asking runs no code that could do more than count."""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

COUNTING = {"len", "int", "min", "max", "sum", "abs", "round", "range", "math", "super", "self"}
METHODS = {"__len__", "ceil", "floor", "size", "numel", "values", "keys", "dim"}
INNER = ("dataset", "sampler", "batch_sampler", "data_source")  # what torch's own classes ask in turn
DEEP = 6


def length_of(loader: Any) -> int | None:
    """Batches in a pass; None where it is not known, or where a ``__len__`` of the user's might have effects."""
    if not _harmless(loader, DEEP):
        return None
    try:
        return len(loader)
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RuntimeError):
        return None  # it has none, or the user's own says so


def _harmless(thing: Any, depth: int) -> bool:
    length = getattr(type(thing), "__len__", None)
    if not isinstance(length, FunctionType):
        return True  # built in, or none
    if not length.__module__.startswith("torch."):
        return only_counts(length.__code__)
    inner = (vars(thing).get(name) for name in INNER) if hasattr(thing, "__dict__") else ()
    return depth > 0 and all(part is None or _harmless(part, depth - 1) for part in inner)


@lru_cache(maxsize=64)
def only_counts(code: CodeType) -> bool:
    """Reads attributes, calls ``len`` and arithmetic, stores nothing but local names."""
    return not any(_acts(instruction) for instruction in dis.get_instructions(code))


def _acts(step: dis.Instruction) -> bool:
    name, what = step.opname, str(step.argval)
    if name.startswith(
        ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF", "DELETE", "IMPORT", "YIELD", "RAISE")
    ):
        return True
    if name in ("LOAD_GLOBAL", "LOAD_NAME"):
        return what not in COUNTING
    method = name == "LOAD_METHOD" or (name == "LOAD_ATTR" and "NULL" in step.argrepr)
    return method and what not in METHODS
