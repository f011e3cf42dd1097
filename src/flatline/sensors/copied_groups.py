"""Copies of an optimizer's groups that the script keeps: lists of dictionaries with the very same parameters."""

from __future__ import annotations

import ast
import linecache
import weakref
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch

from flatline.events import Where
from flatline.sensors.callers import is_users, variables_of
from flatline.sensors.sources import FUNCTIONS, called_name, own_nodes, tree_of

FRAMES = 4  # of the user's, from the step outwards
NAMES = 64  # of a function's variables that are looked at
DEPTH = 2  # objects in objects
GROUPS = "param_groups"
HANDED = 2  # times that a rate is given on before it is told: returned by a method, and kept by a name
TOLD = ("print", "info", "debug", "log", "add_scalar", "set_postfix", "append")  # where a rate is only told


class Copied(NamedTuple):
    """What writes to a copy, and the rate in it."""

    text: str
    where: Where
    rate: float
    holder: weakref.ref[Any] | None  # the object of the user's that keeps the copy


def rate_now(holder: weakref.ref[Any] | None, optimizer: Any) -> float | None:
    """What such an object's copy says by now, if both of them still live."""
    kept = holder() if holder is not None else None
    found = next(_copies([kept], optimizer, 1), None) if kept is not None and optimizer is not None else None
    return found[0] if found is not None else None


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
                return Copied(statement[1], Where(file, statement[0], frame.f_code.co_name), *found)
        frame = frame.f_back
    return None


def _speaks_of_groups(file: str) -> bool:
    return any(GROUPS in line for line in linecache.getlines(file))


def _copies(
    held: list[Any], optimizer: Any, deep: int, holder: weakref.ref[Any] | None = None
) -> Iterator[tuple[float, weakref.ref[Any] | None]]:
    groups = optimizer.param_groups
    for value in held:
        if type(value) is list and value and value is not groups and type(value[0]) is dict:
            first = value[0]
            same = any(first.get("params") is group["params"] for group in groups)
            if same and not any(first is group for group in groups) and type(first.get("lr")) is float:
                yield first["lr"], holder
        elif deep and not isinstance(value, torch.optim.Optimizer) and is_users(_file_of(type(value))):
            inside = list(getattr(value, "__dict__", {}).values())[:NAMES]
            yield from _copies(inside, optimizer, deep - 1, weakref.ref(value) if inside else None)


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
            return None if _applied(file, target) else (node.lineno, ast.unparse(node))
    return None


def _applied(file: str, target: ast.expr | None) -> bool:
    """The rate of the copy is read elsewhere, but to be told, or to write it anew: its groups may rule the steps."""
    tree = tree_of(file) or ast.Pass()
    loops = [n for n in ast.walk(tree) if isinstance(n, ast.For) and _root(target) in _paths(n.target)]
    names = {_root(target)} | {held for n in loops for held in _paths(n.iter) if not held.endswith(GROUPS)}
    aside = {id(inner) for node in ast.walk(tree) if _tells_or_writes(node, names) for inner in ast.walk(node)}
    for _ in range(HANDED):
        aside |= {id(inner) for given in _given_on(tree, aside) for inner in ast.walk(given)}
    return any(_reads(node, names) and id(node) not in aside for node in ast.walk(tree))


def _paths(node: ast.expr) -> set[str]:
    """Names and attributes in it: ``g`` and ``base`` of ``for g, base in``, ``self.groups`` of ``zip(self.groups, rates)``."""
    return {ast.unparse(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))}


def _given_on(tree: ast.AST, aside: set[int]) -> Iterator[ast.expr]:
    """What a function returns, or a name is given, where whatever reads the one or the other is aside itself."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and _read_only_in(aside, tree, node.name):
            yield from (n.value for n in own_nodes(node) if isinstance(n, ast.Return) and n.value is not None)
        elif isinstance(node, ast.Assign) and all(
            isinstance(target, (ast.Name, ast.Attribute)) for target in node.targets
        ):
            if all(_read_only_in(aside, tree, ast.unparse(target).rpartition(".")[2]) for target in node.targets):
                yield node.value


def _read_only_in(places: set[int], tree: ast.AST, name: str) -> bool:
    """A name, or an attribute of this name, is read there and nowhere else."""
    reads = [n for n in ast.walk(tree) if name in (getattr(n, "id", None), getattr(n, "attr", None))]
    loads = [n for n in reads if isinstance(n.ctx, ast.Load)]  # type: ignore[attr-defined]
    return bool(loads) and all(id(n) in places for n in loads)


def _root(node: ast.expr | None) -> str:
    """``self.groups`` of ``self.groups[0]["lr"]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node) if node is not None else ""


def _tells_or_writes(node: ast.AST, names: set[str]) -> bool:
    """``print(g["lr"])``, or ``g["lr"] = 0.9 * g["lr"]``, or a loop that does nothing else."""
    if isinstance(node, ast.For):
        return all(isinstance(each, ast.Assign) and _tells_or_writes(each, names) for each in node.body)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Subscript) and _root(node.targets[0]) in names
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and called_name(node) in TOLD)


def _reads(node: ast.AST, names: set[str]) -> bool:
    """``g["lr"]``, but where it is written."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load) or _root(node) not in names:
        return False
    return isinstance(node.slice, ast.Constant) and node.slice.value == "lr"
