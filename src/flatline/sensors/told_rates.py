"""Rates beside the rate: a constant that the loop tells, read from the source; one written under a key that nobody reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from flatline.events import RateMisplaced, Where
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.sources import tree_of

RATE = r"(?:lr|learning[ _]rate)"
LABEL = re.compile(rf"^\W*{RATE}\W*$", re.IGNORECASE)
BEFORE = re.compile(rf"(?:^|[^\w]){RATE}\s*[=:]?\s*$", re.IGNORECASE)
TAG = re.compile(rf"(?:^|/){RATE}$", re.IGNORECASE)
KEPT = ("save", "dump", "dumps", "add_param_group", "update_config")  # what they are given is no curve
LOOPS = (ast.For, ast.While, ast.AsyncFor)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SETTING = (ast.Name, ast.Attribute, ast.Subscript)
SYNONYM = re.compile(r"learning[ _-]?rate|LR|Lr|lrate|l_rate")
MOVES = 8  # looks at which the value was a new one: a schedule
SWING = 0.1  # of its highest value
ALIKE = 0.1  # relative distance of its highest value to the rate in use: it is meant to be that one


class Told(NamedTuple):
    """A line that tells a setting as the rate."""

    where: Where
    text: str


class MisplacedRates:
    """Keys of parameter groups that are named like the rate, and that torch's optimizers do not know."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._past: dict[tuple[int, int, str], list[float]] = {}
        self._rates: dict[tuple[int, int], float] = {}
        self._told: set[int] = set()

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """On sampled steps."""
        optimizer = state.ref()
        if optimizer is None or state.key in self._told or not type(optimizer).__module__.startswith("torch.optim."):
            return
        for place, group in enumerate(optimizer.param_groups):
            for key in [
                k for k in group if isinstance(k, str) and SYNONYM.fullmatch(k) and k not in optimizer.defaults
            ]:
                self._look(state, place, key, group, where)

    def _look(self, state: OptimizerState, place: int, key: str, group: dict[str, Any], where: Where | None) -> None:
        value, lr = group[key], group["lr"]
        if not isinstance(value, float) or not isinstance(lr, float) or state.key in self._told:
            return
        if self._rates.setdefault((state.key, place), lr) != lr:
            self._told.add(state.key)  # the rate itself moves, too
            return
        past = self._past.setdefault((state.key, place, key), [])
        if not past or past[-1] != value:
            past.append(value)
        highest = max(past)
        if len(past) <= MOVES or min(past) > (1 - SWING) * highest or abs(highest - lr) > ALIKE * lr:
            return
        self._told.add(state.key)
        place_of = _written(where.file, key) if where is not None else None
        self.loop.emit(
            RateMisplaced(
                step=self.loop.step,
                where=place_of or where,
                optimizer=state.facts,
                key=key,
                first=past[0],
                value=value,
                highest=highest,
                lr=lr,
                looks=len(past) - 1,
            )
        )


def _written(file: str, key: str) -> Where | None:
    """The line that writes under the key, if there is one in the file of the loop."""
    tree = tree_of(file)
    if tree is None:
        return None
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.Assign)):
        for target in node.targets:
            if (
                isinstance(target, ast.Subscript)
                and isinstance(target.slice, ast.Constant)
                and target.slice.value == key
            ):
                return Where(file, node.lineno)
    return None


@lru_cache(maxsize=8)
def constant_told(file: str, line: int) -> Told | None:
    """In the innermost loop around the line that steps the schedule."""
    tree = tree_of(file)
    if tree is None:
        return None
    around = [n for n in ast.walk(tree) if isinstance(n, LOOPS) and n.lineno < line <= (n.end_lineno or 0)]
    if not around:
        return None
    loop = max(around, key=lambda n: n.lineno)
    function = _function_of(tree, loop)
    settings = {ast.unparse(each) for each in _settings(tree, function)} - set(_assigned(loop))
    found = [node for node in _told(loop) if isinstance(node, SETTING) and ast.unparse(node) in settings]
    return Told(Where(file, found[0].lineno), ast.unparse(found[0])) if found else None


def _function_of(tree: ast.AST, node: ast.AST) -> ast.AST:
    around = [f for f in ast.walk(tree) if isinstance(f, FUNCTIONS[:2]) and any(n is node for n in ast.walk(f))]
    return max(around, key=lambda f: f.lineno) if around else tree


def _settings(tree: ast.AST, function: ast.AST) -> Iterator[ast.expr]:
    """What optimizers are built with: a plain name counts in its own function only."""
    here = {id(node) for node in ast.walk(function)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [k.value for k in call.keywords if k.arg == "lr"]
        if ".optim." in f".{ast.unparse(call.func)}" and len(call.args) > 1:
            given.append(call.args[1])
        for value in given:
            if isinstance(value, SETTING) and (not isinstance(value, ast.Name) or id(value) in here):
                yield value


def _assigned(loop: ast.AST) -> Iterator[str]:
    """Names and their owners that the loop changes, or counts with."""
    for node in ast.walk(loop):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.expr):
                yield from (ast.unparse(each) for each in ast.walk(target) if isinstance(each, SETTING))


def _told(loop: ast.AST) -> Iterator[ast.expr]:
    """Values that stand behind the word for the rate, in a text, a call or a dictionary."""
    waiting: list[ast.AST] = [*ast.iter_child_nodes(loop)]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, FUNCTIONS) or _once(node) or (isinstance(node, ast.Call) and _name(node) in KEPT):
            continue
        if isinstance(node, ast.Dict):
            yield from _of_dictionary(node)
        elif isinstance(node, ast.JoinedStr):
            yield from _of_text(node)
        elif isinstance(node, ast.Call):
            yield from _of_call(node)
        waiting += ast.iter_child_nodes(node)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _once(node: ast.AST) -> bool:
    """``if epoch == 0``: what is told there is told once."""
    test = node.test if isinstance(node, ast.If) else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return isinstance(test.operand, SETTING)
    if not isinstance(test, ast.Compare) or not isinstance(test.left, SETTING):
        return False
    return isinstance(test.ops[0], ast.Eq) and isinstance(test.comparators[0], ast.Constant)


def _of_dictionary(node: ast.Dict) -> Iterator[ast.expr]:
    keys = [key.value if isinstance(key, ast.Constant) else "" for key in node.keys]
    if "params" not in keys:
        yield from (v for k, v in zip(keys, node.values, strict=True) if isinstance(k, str) and TAG.search(k))


def _of_text(node: ast.JoinedStr) -> Iterator[ast.expr]:
    for before, value in zip(node.values, node.values[1:], strict=False):
        word = before.value if isinstance(before, ast.Constant) else ""
        if isinstance(value, ast.FormattedValue) and isinstance(word, str) and BEFORE.search(word):
            yield value.value


def _of_call(node: ast.Call) -> Iterator[ast.expr]:
    if _name(node) not in ("print", "info", "add_scalar", "log_metric", "write", "log", "debug"):
        return
    for before, value in zip(node.args, node.args[1:], strict=False):
        word = before.value if isinstance(before, ast.Constant) else ""
        if isinstance(word, str) and (LABEL.search(word) or TAG.search(word) or BEFORE.search(word)):
            yield value
