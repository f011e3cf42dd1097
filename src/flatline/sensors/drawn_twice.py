"""One random transform, called for the image and again for the mask: it draws another window for each."""

from __future__ import annotations

import ast
import dis
import inspect
from itertools import combinations
from types import CodeType
from typing import Any, NamedTuple

from flatline.events import Where
from flatline.sensors.callers import is_users
from flatline.sensors.revisited import DEEP, base, code_of, draws, nested
from flatline.sensors.sources import function_around

SEEDING = {
    "seed", "manual_seed", "set_rng_state", "setstate", "set_state", "fork_rng", "default_rng", "RandomState", "Generator",
    "Random", "PRNGKey",
}  # fmt: skip


class Statement(NamedTuple):
    """Two calls of one transform."""

    where: Where
    text: str


def drawn_twice(dataset: Any) -> Statement | None:
    """``self.crop(image), self.crop(mask)`` in its ``__getitem__``, with nothing that makes both draw the same."""
    dataset = base(dataset)
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    function = function_around(code.co_filename, code.co_firstlineno) if code and is_users(code.co_filename) else None
    if code is None or function is None or not SEEDING.isdisjoint(code.co_names):
        return None
    plain = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _takes_one(node)]
    for one, other in combinations(sorted(plain, key=lambda call: (call.lineno, call.col_offset)), 2):
        same = ast.unparse(one.func) == ast.unparse(other.func) and ast.unparse(one) != ast.unparse(other)
        if same and _draws_anew(_called(dataset, one.func)):
            where = Where(code.co_filename, other.lineno, getattr(function, "name", ""))
            return Statement(where, f"{ast.unparse(one)}, {ast.unparse(other)}")
    return None


def _takes_one(call: ast.Call) -> bool:
    """It is given a tensor and nothing that two calls may share."""
    return (
        len(call.args) == 1 and not call.keywords and isinstance(call.args[0], (ast.Name, ast.Attribute, ast.Subscript))
    )


def _called(dataset: Any, function: ast.expr) -> Any:
    """What stands behind ``self.crop`` or the name of a function."""
    if isinstance(function, ast.Name):
        return getattr(type(dataset).__getitem__, "__globals__", {}).get(function.id)
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) == "self":
        return inspect.getattr_static(dataset, function.attr, None)
    return None


def _draws_anew(transform: Any) -> bool:
    """By its code, at each call, and with nothing that it keeps of the call before."""
    code = code_of(transform)
    if code is None or not draws(transform, DEEP):
        return False
    return not any(_is_seeded(each) or _keeps(each) for each in nested(code))


def _is_seeded(code: CodeType) -> bool:
    return not SEEDING.isdisjoint(code.co_names)


def _keeps(code: CodeType) -> bool:
    return any(step.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF") for step in dis.get_instructions(code))
