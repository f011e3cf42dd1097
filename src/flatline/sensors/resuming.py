"""A run that is resumed: its count goes on from a checkpoint, but does its optimizer?"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, optim, uint8

from flatline.events import OptimizerBeganAnew, ScheduleBeganAnew, Where
from flatline.sensors.callers import looked_up
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.patching import Patches
from flatline.sensors.schedules import Schedule
from flatline.sensors.sizes import reads
from flatline.sensors.sources import FUNCTIONS, called_name, own_nodes, tree_of, value_pairs

FILES = 8
WHOLE = 0.9  # of a schedule: one that came so far had its run
NEAR = 0.05  # by which a rate that follows the count differs from one step or epoch to the next
TIMES = 3  # changes from which on it is no chance that they lead to the rate of the file
EXACT = 1e-6  # of their number
RNG = 1_000  # bytes; the generator of the CPU has 5,056, that of CUDA 16
RESTORING = ("set_state", "set_rng_state", "set_rng_state_all")
BOTH = ("state", "param_groups")


@dataclass(frozen=True, slots=True)
class Saved:
    """The states of optimizers in a file, the counts beside them, and what else only a run that goes on has a use for."""

    where: Where
    states: tuple[tuple[str, int, int, frozenset[str]], ...]  # key, groups' tensors, tensors with a state, its names
    rates: frozenset[float]  # those that its optimizers began with, and had
    counts: Mapping[str, int]
    others: tuple[str, ...] = ()  # keys of generators' and schedules' states
    weights: tuple[str, ...] = ()  # keys of tables of tensors
    step: int = 0  # optimizer steps of this run when it was read


def saved_in(result: Any, where: Where | None, step: int = 0) -> Saved | None:
    """What ``torch.load`` returned, if it holds the state of an optimizer and a count."""
    if not isinstance(result, Mapping) or where is None:
        return None
    counts = {key: value for key, value in result.items() if type(key) is str and type(value) is int and value > 0}
    states, others = tuple(_states(result)), tuple(_others(result))
    rates = frozenset(rate for value in result.values() for rate in _rates(value))
    weights = tuple(key for key, value in result.items() if type(key) is str and _is_table(value))
    return (
        Saved(where, states, rates, counts, others, weights, step) if counts and (states or others or weights) else None
    )


def _is_table(value: Any) -> bool:
    """Of tensors by name, as ``state_dict()`` of a model returns it."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(each, Tensor) for each in value.values())


def _states(result: Mapping[Any, Any]) -> Iterator[tuple[str, int, int, frozenset[str]]]:
    for key, value in result.items():
        if type(key) is not str or not isinstance(value, Mapping) or set(value) != set(BOTH):
            continue
        state, groups = value["state"], value["param_groups"]
        if isinstance(state, Mapping) and isinstance(groups, list):
            names = {n for each in state.values() if isinstance(each, Mapping) for n, v in each.items() if _running(v)}
            tensors = sum(len(group.get("params", ())) for group in groups if isinstance(group, Mapping))
            if names:
                yield key, tensors, len(state), frozenset(names)


def _rates(value: Any) -> Iterator[float]:
    """Of the groups of an optimizer, or of its state."""
    groups = value.get("param_groups", ()) if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for group in groups if isinstance(groups, list) else ():
        found = (group.get(name) for name in ("lr", "initial_lr")) if isinstance(group, Mapping) else ()
        yield from (rate for rate in found if isinstance(rate, float))


def _others(result: Mapping[Any, Any]) -> Iterator[str]:
    """Of a generator, as torch.get_rng_state() returns it, and of a schedule."""
    for key, value in result.items():
        generator = isinstance(value, Tensor) and value.dtype is uint8 and value.dim() == 1 and value.numel() >= RNG
        if type(key) is str and (generator or (isinstance(value, Mapping) and "last_epoch" in value)):
            yield key


def _running(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


class Waiting(NamedTuple):
    """An optimizer that began anew at another rate than the file's: that of another stage, or one that is lowered by hand."""

    event: OptimizerBeganAnew
    saved: frozenset[float]
    rates: list[float]  # as it began
    state: OptimizerState


class Resuming:
    """The files that were read before the first step of an optimizer; any state that is loaded by anyone ends the question."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self.files: list[Saved] = []
        self.loaded = False
        self._waiting: Waiting | None = None

    schedules: Callable[[], list[Schedule]] = staticmethod(list)  # of all optimizers, also those that are gone

    def attach(self) -> None:
        """Patch ``Optimizer.load_state_dict``."""
        self.patches.around(optim.Optimizer, "load_state_dict", after=self._state_loaded)

    def _state_loaded(self, *_: Any, **__: Any) -> None:
        self.loaded = True

    def read(self, result: Any, where: Where | None) -> None:
        """``torch.load`` returned."""
        saved = saved_in(result, where, self.loop.steps) if len(self.files) < FILES else None
        if saved is not None:
            self.files.append(saved)

    def first_step(self, state: OptimizerState) -> None:
        """Of an optimizer, right before it."""
        files, self.files = self.files, []
        if self.loaded or not self.loop.wants(OptimizerBeganAnew):
            self._schedule_alone(files, state)
            return
        optimizer: Any = state.ref()
        for file in files:
            counter = _goes_on(file)
            if not counter or not _is_fresh(optimizer) or not self._alone(state, file):
                continue
            left = _left_in(file, optimizer, len(state.parameters))
            if left is None:
                continue
            event = self._event(file, left, counter, state)
            if not file.states and not file.others:
                self._with_its_schedule(event, file, state)
            elif not file.rates or _same_rate(file, optimizer) or _restores_generator(file):
                self.loop.emit(event)
                return
            else:
                self._waiting = Waiting(event, file.rates, _rates_of(optimizer), state)

    def _with_its_schedule(self, event: OptimizerBeganAnew, file: Saved, state: OptimizerState) -> None:
        """Weights and a count may be the begin of another stage; not where a schedule of the whole run begins again, too."""
        for name, horizon in self._begin_again(file, state):
            self.loop.emit(replace(event, others=file.weights, schedule=name, length=horizon))
            return

    def _schedule_alone(self, files: list[Saved], state: OptimizerState) -> None:
        """The state of the optimizer came back, and the schedule of the whole run is at its first step."""
        for file in files if self.loop.wants(ScheduleBeganAnew) else ():
            counter = _goes_on(file) if file.states and self._alone(state, file) else ""
            for name, horizon in self._begin_again(file, state) if counter else ():
                told = ScheduleBeganAnew(
                    step=self.loop.step,
                    where=file.where,
                    counter=counter,
                    count=file.counts[counter],
                    schedule=name,
                    length=horizon,
                    saved=any("sched" in key for key in file.others),
                )
                self.loop.emit(told)
                return

    def _begin_again(self, file: Saved, state: OptimizerState) -> Iterator[tuple[str, int]]:
        """Schedules at their first step, and their lengths: of the whole run, or of one that was broken off in this process."""
        known = self.schedules()
        for schedule in (each for each in known if each.state is state and each.begins()):
            functions = getattr(schedule.ref(), "lr_lambdas", ())
            if any(reads(function, count) for function in functions for count in file.counts.values()):
                continue  # it is made for what is left, or counts on by itself
            horizon = schedule.horizon
            earlier = [each for each in known if each.state is not state and each.name == schedule.name]
            broken_off = any(
                each.horizon == horizon and 0 < each.calls < WHOLE * each.horizon for each in earlier if horizon
            )
            if horizon is not None and (broken_off or horizon in self._whole(file)):
                yield schedule.name, horizon

    def _whole(self, file: Saved) -> set[int]:
        """The lengths that the run has from a count of 0 on: in the unit of the count, and in batches."""
        ends = {end for end in _ends(file) if end > max(file.counts.values())}
        return ends | {end * batches for end in ends if (batches := self.batches())}

    batches: Callable[[], int | None] = staticmethod(lambda: None)  # of an epoch

    def look(self) -> None:
        """Has a rate that the loop lowers by hand moved, and was it lowered just so from here to that of the file?"""
        waiting = self._waiting
        optimizer: Any = waiting.state.ref() if waiting is not None else None
        if waiting is None or optimizer is None or (now := _rates_of(optimizer)) == waiting.rates:
            return
        self._waiting = None
        if not self.loaded and any(_is_ahead(waiting, each) for each in zip(waiting.rates, now, strict=False)):
            self.loop.emit(waiting.event)

    def _alone(self, state: OptimizerState, file: Saved) -> bool:
        """No other optimizer trains on: those of an earlier leg in this process took their last step before the file was read."""
        others = [each for each in self.loop.states if each is not state]
        return all(other.steps and other.last_step <= file.step for other in others)

    def _event(self, file: Saved, left: tuple[str, int], counter: str, state: OptimizerState) -> OptimizerBeganAnew:
        key, tensors = left
        return OptimizerBeganAnew(
            step=self.loop.step,
            where=file.where,
            key=key,
            counter=counter,
            count=file.counts[counter],
            tensors=tensors,
            others=file.others,
            optimizer=state.facts.name,
        )


def _left_in(file: Saved, optimizer: Any, parameters: int) -> tuple[str, int] | None:
    """(key, tensors) of the state for such an optimizer; no key where the file has everything but that."""
    for key, tensors, kept, names in file.states:
        if tensors == parameters and names <= _running_names(optimizer):
            return key, kept
    return ("", parameters) if not file.states and _keeps_means(optimizer) else None


# --------------------------------------------------------------------------- is it the same stage, by its rate?


def _rates_of(optimizer: Any) -> list[float]:
    return list(_rates(optimizer.param_groups))


def _same_rate(file: Saved, optimizer: Any) -> bool:
    """Another stage has a rate of its own; one that was written since the optimizer was built may have moved on a little."""
    rates, built = _rates_of(optimizer), optimizer.defaults.get("lr")
    if file.rates & set(rates):
        return True
    written = [rate for rate in rates if rate != built]
    return any(math.isclose(one, other, rel_tol=NEAR) for one in written for other in file.rates)


def _restores_generator(file: Saved) -> bool:
    """``generator.set_state(checkpoint["rng"])``: another stage has no use for the very numbers of this one."""
    tree = tree_of(file.where.file)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    restoring = [call for call in calls if called_name(call) in RESTORING]
    return any(_key_in(each, file.others) for call in restoring for each in call.args)


def _is_ahead(waiting: Waiting, rate: tuple[float, float]) -> bool:
    """As often as the file counts, the change that was seen leads from this run's first rate to that of the file."""
    first, now = rate
    count = waiting.event.count
    for saved in waiting.saved if min(rate) > 0 and first != now else ():
        times = math.log(saved / first) / math.log(now / first) if saved > 0 else 0.0
        if times >= TIMES and any(math.isclose(times, count + more, rel_tol=EXACT) for more in (-1, 0, 1)):
            return True
    return False


def _running_names(optimizer: Any) -> frozenset[str]:
    """What torch's own optimizers of this class keep for a parameter."""
    known = {
        "SGD": ("momentum_buffer",),
        "RMSprop": ("square_avg", "momentum_buffer", "grad_avg"),
        "Adagrad": ("sum",),
        "Adadelta": ("square_avg", "acc_delta"),
        "Adamax": ("exp_avg", "exp_inf"),
        **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam"), ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
    }
    return frozenset(known.get(type(optimizer).__name__, ()))


def _is_fresh(optimizer: Any) -> bool:
    """It has no state, or that of Adagrad before its first step."""
    made_at_once = type(optimizer).__name__ == "Adagrad"
    return not optimizer.state or (made_at_once and not any(float(s["step"]) for s in optimizer.state.values()))


def _keeps_means(optimizer: Any) -> bool:
    """It will, with these settings."""
    name = type(optimizer).__name__
    return bool(_running_names(optimizer)) and (name != "SGD" or bool(optimizer.defaults.get("momentum")))


def _goes_on(file: Saved) -> str:
    """The count of the file from which a loop goes on: ``range(checkpoint["epoch"] + 1, epochs)``, ``while self.step < steps``."""
    tree = tree_of(file.where.file)
    if tree is None:
        return ""
    names = _names_of(tree, file.counts)
    found = next((key for key, _ in _ranges(tree, names, file.counts)), "")
    return found or next((names[n] for n in _counted_by_while(tree, names, file.counts) if n in names), "")


def _names_of(tree: ast.AST, counts: Mapping[str, int]) -> dict[str, str]:
    """What holds a count of the file."""
    pairs = [(ast.unparse(target), value) for target, value in _assigned(tree)]
    names = {name: key for name, value in pairs if (key := _key_in(value, counts))} | dict(_handed(tree, counts))
    return names | dict(_returned(tree, names, counts))


def _assigned(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Target and value; ``a, b = 1, 2`` is two of them."""
    for node in (each for each in ast.walk(scope) if isinstance(each, ast.Assign)):
        pairs = [pair for target in node.targets for pair in value_pairs(target, node.value)]
        yield from ((target, value) for target, value in pairs if value is not None)


def _returned(tree: ast.AST, names: Mapping[str, str], counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """``start`` of ``net, start = load(path)``, where that function returns a count, and ``start`` stands at it."""
    given = {
        (function.name, place): key
        for function in ast.walk(tree) if isinstance(function, FUNCTIONS)
        for node in own_nodes(function) if isinstance(node, ast.Return) and node.value is not None
        for place, part in enumerate(_parts(node.value))
        if (key := _key_in(part, counts) or names.get(ast.unparse(part), ""))
    }  # fmt: skip
    for target, value in _assigned(tree) if given else ():
        called = called_name(value) if isinstance(value, ast.Call) else ""
        for place, part in enumerate(_parts(target)):
            key = given.get((called, place), "")
            if key and _stands_at(ast.unparse(part), counts[key]):
                yield ast.unparse(part), key


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _stands_at(name: str, count: int) -> bool:
    """At this moment; 1 is no count to tell it by, as another one may have come there by itself."""
    value = looked_up(name)
    return type(value) is int and value > 1 and value in (count, count + 1)


def _ranges(tree: ast.AST, names: Mapping[str, str], counts: Mapping[str, int]) -> Iterator[tuple[str, ast.expr]]:
    """(the count that it begins with, where it ends) of ``range(checkpoint["epoch"] + 1, epochs)``."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id in ("range", "trange") and len(call.args) > 1:
            spelled = [ast.unparse(n) for n in ast.walk(call.args[0]) if isinstance(n, (ast.Name, ast.Attribute))]
            found = _key_in(call.args[0], counts) or next((names[n] for n in spelled if n in names), "")
            if found:
                yield found, call.args[1]


def _ends(file: Saved) -> Iterator[int]:
    """The counts at which such a loop is over, as they are in the functions that run."""
    tree = tree_of(file.where.file)
    names = _names_of(tree, file.counts) if tree is not None else {}
    stops = [stop for _, stop in _ranges(tree, names, file.counts)] if tree is not None else []
    stops += (
        list(_stops_of_while(tree, set(_counted_by_while(tree, names, file.counts)) & set(names)))
        if tree is not None
        else []
    )
    for stop in stops:
        yield from _values(stop, names, file.counts)


def _stops_of_while(tree: ast.AST, counters: set[str]) -> Iterator[ast.expr]:
    """``epochs`` of ``while self.epoch < epochs``."""
    for loop in (node for node in ast.walk(tree) if isinstance(node, ast.While) and isinstance(node.test, ast.Compare)):
        if ast.unparse(loop.test.left) in counters:  # type: ignore[attr-defined]
            yield loop.test.comparators[0]  # type: ignore[attr-defined]


def _values(node: ast.AST, names: Mapping[str, str], counts: Mapping[str, int]) -> Iterator[int]:
    """The integers that it is made of; ``start + more`` is the end of another stage."""
    if isinstance(node, ast.BinOp) and (_key_in(node, counts) or any(ast.unparse(n) in names for n in ast.walk(node))):
        return
    path = _is_path(node)
    value = node.value if isinstance(node, ast.Constant) else looked_up(ast.unparse(node)) if path else None
    if type(value) is int:
        yield value
    for child in ast.iter_child_nodes(node) if not path else ():
        yield from _values(child, names, counts)


def _is_path(node: ast.AST) -> bool:
    """``a.b.c``."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_path(node.value))


def _handed(tree: ast.AST, counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """``first`` of ``def run(model, first)``, where that is called as ``run(model, checkpoint["step"])``."""
    functions = {node.name: node.args.args for node in ast.walk(tree) if isinstance(node, FUNCTIONS)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        names = [each.arg for each in functions.get(ast.unparse(call.func).rpartition(".")[2], [])]
        names = names[1:] if names[:1] == ["self"] else names
        given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        yield from ((name, key) for name, value in given if name in names and (key := _key_in(value, counts)))


def _counted_by_while(tree: ast.AST, names: Mapping[str, str], counts: Mapping[str, int]) -> Iterator[str]:
    """What conditions compare: an attribute; a name of the very scope that read it from the file, and sets it nowhere else,
    as to 0 for a run that begins, or that is seen to stand at the count."""
    for scope in (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *FUNCTIONS))):
        nodes = list(own_nodes(scope))
        made = [(ast.unparse(t), n.value) for n in nodes if isinstance(n, ast.Assign) for t in n.targets]
        for loop in (n for n in nodes if isinstance(n, ast.While) and isinstance(n.test, ast.Compare)):
            name = ast.unparse(loop.test.left)  # type: ignore[attr-defined]
            values = [value for target, value in made if target == name]
            alone = len(values) == 1 and _key_in(values[0], counts)
            if "." in name or alone or (name in names and _stands_at(name, counts[names[name]])):
                yield name


def _key_in(node: ast.expr, keys: Collection[str]) -> str:
    """``checkpoint["epoch"]``, ``checkpoint.get("epoch", 0)``."""
    for inner in ast.walk(node):
        key = inner.slice if isinstance(inner, ast.Subscript) else None
        if (
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Attribute)
            and inner.func.attr == "get"
            and inner.args
        ):
            key = inner.args[0]
        if isinstance(key, ast.Constant) and key.value in keys:
            return str(key.value)
    return ""
