"""Rates beside the rate: a constant that the loop tells, read from the source; one written where nobody reads it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from flatline.events import RateMisplaced, Where
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.sources import LOOPS, called_name, function_around, tree_of

RATE = r"(?:lr|learning[ _]rate)"
REAL = "param_groups"  # a text that tells it says what is in use
LABEL = re.compile(rf"^\W*{RATE}\W*$", re.IGNORECASE)
BEFORE = re.compile(rf"(?:^|[^\w]){RATE}\s*[=:]?\s*$", re.IGNORECASE)
TAG = re.compile(rf"(?:^|/){RATE}$", re.IGNORECASE)
KEPT = ("save", "dump", "dumps", "add_param_group", "update_config")  # what they are given is no curve
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SETTING = (ast.Name, ast.Attribute, ast.Subscript)
SYNONYM = re.compile(r"learning[ _-]?rate|LR|Lr|lrate|l_rate")
ATTRIBUTE = "optimizer"  # the place of an attribute
DEFAULTS = "optimizer.defaults"  # the place of what only groups to come are given: no other use is made of it
MOVES = 8  # looks at which the value was a new one: a schedule
SWING = 0.1  # of its highest value
ALIKE = 0.1  # relative distance of its highest value to the rate in use: it is meant to be that one


def rates_of(optimizer: Any) -> list[Any]:
    """As its groups hold them, tensors among them."""
    return [group.get("lr") for group in optimizer.param_groups]


class Told(NamedTuple):
    """A line that tells a setting as the rate."""

    where: Where
    text: str


class MisplacedRates:
    """What is named like the rate at one of torch's optimizers, and is not what it reads."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._past: dict[tuple[int, str], list[float]] = {}
        self._rates: dict[int, list[Any]] = {}
        self._told: set[int] = set()

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """On sampled steps."""
        optimizer = state.ref()
        if optimizer is None or state.key in self._told or not type(optimizer).__module__.startswith("torch.optim."):
            return
        rates = rates_of(optimizer)
        if self._rates.setdefault(state.key, rates) != rates or not all(type(rate) is float for rate in rates):
            self._told.add(state.key)  # the rates themselves move, too
            return
        for place, name, value, lr in _elsewhere(optimizer):
            self._look(state, place, name, value, lr, where)

    def _look(
        self, state: OptimizerState, place: str, name: str, value: Any, lr: list[float], where: Where | None
    ) -> None:
        if not isinstance(value, float) or state.key in self._told:
            return
        past = self._past.setdefault((state.key, f"{place} {name}"), [])
        if not past or past[-1] != value:
            past.append(value)
        highest = max(past)
        meant = next((rate for rate in lr if abs(highest - rate) <= ALIKE * rate), None)
        rising = value > (1 - SWING) * highest  # a warm-up is not yet at the rate that it is meant to be
        if len(past) <= MOVES or (place != DEFAULTS and (rising or meant is None)):
            return
        self._told.add(state.key)
        place_of = _written(where.file, place, name) if where is not None else None
        self.loop.emit(
            RateMisplaced(
                step=self.loop.step,
                where=place_of or where,
                optimizer=state.facts,
                place=f"optimizer.{name}" if place == ATTRIBUTE else f'{place}["{name}"]',
                first=past[0],
                value=value,
                highest=highest,
                lr=lr[0] if meant is None else meant,
                looks=len(past) - 1,
            )
        )


def _elsewhere(optimizer: Any) -> Iterator[tuple[str, str, Any, list[float]]]:
    """What is named like the rate: where, its name, its value, and the rates that it may be meant to be."""
    for group in optimizer.param_groups:
        for key in [k for k in group if isinstance(k, str) and SYNONYM.fullmatch(k) and k not in optimizer.defaults]:
            yield "group", key, group[key], [group["lr"]]
    rates = [group["lr"] for group in optimizer.param_groups]
    for name in [k for k in vars(optimizer) if k == "lr" or SYNONYM.fullmatch(k)]:
        yield ATTRIBUTE, name, vars(optimizer)[name], rates
    yield DEFAULTS, "lr", optimizer.defaults.get("lr"), rates


def _written(file: str, place: str, name: str) -> Where | None:
    """The line that writes there, if there is one in the file of the loop; of several, one that speaks of an optimizer."""
    tree = tree_of(file)
    nodes = [each for each in ast.walk(tree) if isinstance(each, ast.Assign)] if tree is not None else []
    lines = [(node.lineno, ast.unparse(t)) for node in nodes for t in node.targets if _is_at(t, place, name)]
    if place == ATTRIBUTE and len(lines) > 1:
        lines = [(line, text) for line, text in lines if "opt" in text.rpartition(".")[0].lower()]
    return Where(file, lines[0][0]) if lines else None


def _is_at(target: ast.expr, place: str, name: str) -> bool:
    if place == ATTRIBUTE:
        return isinstance(target, ast.Attribute) and target.attr == name
    if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
        return False
    of_defaults = isinstance(target.value, ast.Attribute) and target.value.attr == "defaults"
    return target.slice.value == name and of_defaults is (place != "group")


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
    found = [node for node in tellings(loop) if isinstance(node, SETTING) and ast.unparse(node) in settings]
    return Told(Where(file, found[0].lineno), ast.unparse(found[0])) if found else None


@lru_cache(maxsize=8)
def told_below(file: str, line: int) -> tuple[str, ...]:
    """Settings that the function around this line tells as the rate, further down."""
    function = function_around(file, line)
    if function is None:
        return ()
    return tuple(ast.unparse(node) for node in tellings(function) if isinstance(node, SETTING) and node.lineno > line)


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


def tellings(loop: ast.AST) -> Iterator[ast.expr]:
    """Values that stand behind the word for the rate, in a text, a call or a dictionary."""
    waiting: list[ast.AST] = [*ast.iter_child_nodes(loop)]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, FUNCTIONS) or _once(node) or (isinstance(node, ast.Call) and called_name(node) in KEPT):
            continue
        if isinstance(node, ast.Dict):
            yield from _of_dictionary(node)
        elif isinstance(node, ast.JoinedStr):
            yield from () if REAL in ast.unparse(node) else _of_text(node)
        elif isinstance(node, ast.Call):
            yield from _of_call(node)
        waiting += ast.iter_child_nodes(node)


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
    if called_name(node) not in ("print", "info", "add_scalar", "log_metric", "write", "log", "debug"):
        return
    for before, value in zip(node.args, node.args[1:], strict=False):
        word = before.value if isinstance(before, ast.Constant) else ""
        if isinstance(word, str) and (LABEL.search(word) or TAG.search(word) or BEFORE.search(word)):
            yield value
