"""Copies of an optimizer's groups that the script keeps: lists of dictionaries with the very same parameters."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch

from flatline.events import Where
from flatline.sensors.callers import is_users, variables_of
from flatline.sensors.sources import tree_of

FRAMES = 4  # of the user's, from the step outwards
NAMES = 64  # of a function's variables that are looked at
DEPTH = 2  # objects in objects
GROUPS = "param_groups"


class Copied(NamedTuple):
    """What writes to a copy, and the rate in it."""

    text: str
    where: Where
    rate: float


def rate_in_copy(frame: FrameType | None, optimizer: Any) -> Copied | None:
    """Of the first copy that variables of the user's functions lead to; nothing of it is kept."""
    left = FRAMES
    while frame is not None and left:
        file = frame.f_code.co_filename
        if is_users(file):
            left -= 1
            held = list(variables_of(frame).values())[:NAMES] + list(frame.f_globals.values())[:NAMES]
            found = next(_copies(held, optimizer, DEPTH), None) if _speaks_of_groups(file) else None
            statement = _writes(file) if found is not None else None
            if found is not None and statement is not None:
                return Copied(statement[1], Where(file, statement[0], frame.f_code.co_name), found)
        frame = frame.f_back
    return None


def _speaks_of_groups(file: str) -> bool:
    return any(GROUPS in line for line in linecache.getlines(file))


def _copies(held: list[Any], optimizer: Any, deep: int) -> Iterator[float]:
    groups = optimizer.param_groups
    for value in held:
        if type(value) is list and value and value is not groups and type(value[0]) is dict:
            first = value[0]
            same = any(first.get("params") is group["params"] for group in groups)
            if same and not any(first is group for group in groups) and type(first.get("lr")) is float:
                yield first["lr"]
        elif deep and not isinstance(value, torch.optim.Optimizer) and is_users(_file_of(type(value))):
            yield from _copies(list(getattr(value, "__dict__", {}).values())[:NAMES], optimizer, deep - 1)


def _file_of(kind: type) -> str:
    """Where the methods of a class were written."""
    methods = (value for value in vars(kind).values() if isinstance(value, FunctionType))
    return next((method.__code__.co_filename for method in methods), "<none>")


def _writes(file: str) -> tuple[int, str] | None:
    """The line that writes a rate to a group, which is the copy's where the optimizer's own stands still."""
    for node in ast.walk(tree_of(file) or ast.Pass()):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        key = target.slice if isinstance(target, ast.Subscript) else None
        if isinstance(node, (ast.Assign, ast.AugAssign)) and isinstance(key, ast.Constant) and key.value == "lr":
            return node.lineno, ast.unparse(node)
    return None
