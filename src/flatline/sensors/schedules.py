"""Sees learning-rate schedulers advance beside their optimizers."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from flatline.events import OptimizerFacts, RateRead, ScheduleObserved, Where
from flatline.sensors.callers import PACKAGE, caller, closure_of, is_users
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.patching import NO_FRAME, Patches
from flatline.sensors.sizes import size_of
from flatline.sensors.told_rates import constant_told, rates_of

FLOOR = 1e-3  # of the peak rate: from here on the weights practically stand still
ABANDONED = 50  # steps of others since an optimizer's last one: nobody will step it again
IDLE_CALLS = 2  # of its schedule since then, which may be called once an epoch
HORIZONS = ("T_max", "total_steps", "total_iters")
READS = 200  # wrong rates that are told of each scheduler
LAMBDA_HORIZONS = ("num_training_steps", "total_steps", "training_steps", "max_steps", "t_total", "num_steps")


class Schedule:
    """One scheduler under watch."""

    def __init__(self, scheduler: Any, state: OptimizerState, where: Where | None) -> None:
        self.ref = weakref.ref(scheduler)
        self.name = type(scheduler).__name__
        self.state, self.built, self.stepped_at = state, where, where
        self.calls = self.position = 0
        self.idle_calls = self._steps_then = 0  # calls since its optimizer stepped last
        self.calls_before_first_step = 0
        self.total_steps = 0  # of all optimizers, at the newest call
        self.next_look = 2  # call at which an optimizer that never stepped is compared with the others
        # that trains in its place; both rates then; whether it trains a copy
        self.trainer: tuple[OptimizerFacts, float, float, bool] | None = None
        self.first_lr = self.peak_lr = state.lr
        self.lr = self.highest = state.lr  # since there is a schedule
        self.base = base_of(scheduler)
        self.floor_since: int | None = None
        self.read: tuple[list[float], list[float], Where | None] | None = None  # from get_lr(), and the rates then
        self.reads = 0  # that were wrong
        self.horizon, self.spelled = horizon_of(scheduler), ""
        self.milestone = max(getattr(scheduler, "milestones", None) or (0,)) or None
        self.again = False  # behind its horizon the rate rises again
        self.gamma = _number(scheduler, "gamma")
        size = getattr(scheduler, "step_size", 1 if self.name == "ExponentialLR" else None)
        self.period: int | None = size if isinstance(size, int) else None

    def begins(self) -> bool:
        """It was not stepped yet, and stands at its first step."""
        return self.calls == 0 and getattr(self.ref(), "last_epoch", None) == 0

    def called(self) -> None:
        """One step of the schedule."""
        self.calls += 1
        self.idle_calls = self.idle_calls + 1 if self.state.steps == self._steps_then else 0
        self._steps_then = self.state.steps


def _number(scheduler: Any, name: str) -> float | None:
    value = getattr(scheduler, name, None)
    return float(value) if isinstance(value, (int, float)) else None


def _rates(values: Any) -> list[float]:
    """Plain numbers; none if any is a tensor, which may live on a device."""
    found = list(values) if isinstance(values, (list, tuple)) else []
    return [float(v) for v in found] if all(isinstance(v, (int, float)) for v in found) else []


def _groups(optimizer: Any) -> list[float]:
    return _rates(rates_of(optimizer)) if optimizer is not None else []


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1e-30)


def _asked_by_user() -> bool:
    """Whether the user's own code made this call, and not as a part of a get_lr of its own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((PACKAGE, NO_FRAME)):
        frame = frame.f_back
    return is_users(frame.f_code.co_filename) and frame.f_code.co_name != "get_lr"


def horizon_of(scheduler: Any) -> int | None:
    """Number of ``step()`` calls after which the schedule has run its course."""
    for name in HORIZONS:
        value = getattr(scheduler, name, None)
        if isinstance(value, int) and value > 0:
            return value
    for function in getattr(scheduler, "lr_lambdas", ()):
        known = _bound(function)
        for name in LAMBDA_HORIZONS:
            if isinstance(known.get(name), int) and known[name] > 1:
                return int(known[name])
    return None


def base_of(scheduler: Any) -> float | None:
    """What a LambdaLR multiplies the results of its function with."""
    rates = _rates(getattr(scheduler, "base_lrs", None))
    functions = getattr(scheduler, "lr_lambdas", None)
    return (
        rates[0] if functions and rates and "LambdaLR" in (each.__name__ for each in type(scheduler).__mro__) else None
    )


def _bound(function: Any) -> dict[str, Any]:
    """Values that a partial or a closure carries, by name."""
    return {**getattr(function, "keywords", {}), **closure_of(function)}


class ScheduleSensor:
    """Patches ``step`` of every scheduler class that defines one."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self.schedules: dict[int, Schedule] = {}
        self.retired: list[Schedule] = []
        self.epoch_length: Callable[[], int | None] = lambda: None
        self.epochs: Callable[[], int] = lambda: 0
        self.samples: Callable[[int], int | None] = lambda backwards: None
        self._patched: set[type] = set()
        self._depth = 0

    def attach(self) -> None:
        """Patch torch's schedulers; those of users are patched when they are built."""
        from torch.optim import lr_scheduler

        for value in list(vars(lr_scheduler).values()):
            if isinstance(value, type) and hasattr(value, "step") and value.__module__ == lr_scheduler.__name__:
                self._patch(value)
        base = getattr(lr_scheduler, "LRScheduler", None) or lr_scheduler._LRScheduler
        for cls in (base, lr_scheduler.ReduceLROnPlateau, lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler):
            if "__init__" in vars(cls):
                self.patches.around(cls, "__init__", after=self._built)

    def _patch(self, cls: type) -> None:
        if cls in self._patched:
            return
        self._patched.add(cls)
        if "step" in vars(cls):
            self.patches.around(cls, "step", before=self._entering, after=self._stepped, failed=self._left)
        if "get_lr" in vars(cls):
            self.patches.around(cls, "get_lr", after=self._read, light=_within_step)

    def _built(self, result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer is None:
            return
        for cls in type(scheduler).__mro__:
            if "step" in vars(cls) or "get_lr" in vars(cls):
                self._patch(cls)
        state = self.loop.optimizer(optimizer, caller())
        if id(scheduler) not in self.schedules or self.schedules[id(scheduler)].ref() is not scheduler:
            schedule = self.schedules[id(scheduler)] = Schedule(scheduler, state, caller())
            schedule.total_steps = self._total_steps()
            weakref.finalize(scheduler, self._retire, id(scheduler)).atexit = False

    def _total_steps(self) -> int:
        return sum(each.steps for each in self.loop.states)

    def _retire(self, identity: int) -> None:
        schedule = self.schedules.pop(identity, None)
        if schedule is not None:
            self.retired.append(schedule)

    # ------------------------------------------------------------------ stepping

    def _entering(self, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        self._depth += 1
        schedule = self.schedules.get(id(scheduler))
        if schedule is not None and schedule.read is not None:
            self._judge_read(schedule)

    def _left(self) -> None:
        self._depth = 0

    def _stepped(self, result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        self._depth = max(0, self._depth - 1)
        schedule = self.schedules.get(id(scheduler))
        if schedule is None or schedule.ref() is not scheduler or getattr(scheduler, "_is_initial", False):
            return
        if schedule.horizon is None and schedule.calls == 0:
            self._learn(schedule, scheduler)
        state = schedule.state
        schedule.called()
        schedule.position = getattr(scheduler, "last_epoch", 0)
        if not state.steps and not state.skipped:
            total = self._total_steps()
            schedule.calls_before_first_step += total <= schedule.total_steps  # or another one of several had its turn
            schedule.total_steps = total
        if schedule.calls <= 3:
            schedule.stepped_at = caller() or schedule.stepped_at
        self._follow_rate(schedule, state)
        if (not state.steps or schedule.idle_calls >= IDLE_CALLS) and schedule.calls >= schedule.next_look:
            schedule.next_look = schedule.calls + max(1, schedule.calls // 4)
            self._look_beside(schedule)

    # ------------------------------------------------------------------ read

    def _read(self, result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        """``get_lr()`` outside of ``step()``: what it returns, and what the optimizer uses."""
        schedule = self.schedules.get(id(scheduler))
        if schedule is None or schedule.ref() is not scheduler or self._depth or _within_step(scheduler):
            return
        if not _asked_by_user():
            return
        self._judge_read(schedule)
        values, rates = _rates(result), _groups(schedule.state.ref())
        if len(values) == len(rates) and values != rates:
            schedule.read = values, rates, caller()

    def _judge_read(self, schedule: Schedule) -> None:
        """Told when nobody has put the value into the optimizer before the schedule moves on."""
        if schedule.read is None:
            return
        (values, rates, where), schedule.read = schedule.read, None
        if _groups(schedule.state.ref()) == values or schedule.reads >= READS:
            return
        schedule.reads += 1
        value, rate = max(zip(values, rates, strict=True), key=lambda pair: _apart(*pair))
        self.loop.emit(RateRead(step=self.loop.steps, where=where, name=schedule.name, value=value, rate=rate))

    def _learn(self, schedule: Schedule, scheduler: Any) -> None:
        """What its own ``__init__`` sets after the base class's is only there now."""
        fresh = Schedule(scheduler, schedule.state, schedule.built)
        schedule.horizon, schedule.gamma, schedule.period = fresh.horizon, fresh.gamma, fresh.period
        if schedule.horizon is None:
            self._size(schedule, scheduler)

    def _size(self, schedule: Schedule, scheduler: Any) -> None:
        """The length that all functions of a LambdaLR come to their end at."""
        sizes = [size_of(each, self.epoch_length()) for each in getattr(scheduler, "lr_lambdas", ())]
        found = sizes[0] if sizes else None
        if found is not None and all(each == found for each in sizes):
            schedule.horizon, schedule.spelled, schedule.again = found

    def _follow_rate(self, schedule: Schedule, state: OptimizerState) -> None:
        schedule.lr = state.lr
        schedule.highest = max(schedule.highest, schedule.lr)
        schedule.peak_lr = max(schedule.peak_lr, schedule.lr, state.peak_lr)
        if schedule.lr > FLOOR * schedule.peak_lr:
            schedule.floor_since = None
        elif schedule.floor_since is None:
            schedule.floor_since = state.steps

    # ------------------------------------------------------------------ telling

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """On closely watched steps, tell how the schedulers of this optimizer stand."""
        if self.loop.dense:
            self.tell(ended="", only=state)

    def known(self) -> list[Schedule]:
        """All there were, with their lengths."""
        everyone = [*self.schedules.values(), *self.retired]
        for schedule in everyone:
            self._learn_late(schedule)
        return everyone

    def _learn_late(self, schedule: Schedule) -> None:
        """Of one that was not stepped yet."""
        scheduler = schedule.ref()
        if scheduler is not None and schedule.calls == 0:
            self._learn(schedule, scheduler)

    def tell(self, *, ended: str, only: OptimizerState | None = None) -> None:
        """Tell of every schedule, or of one optimizer's."""
        everyone = [*self.schedules.values(), *self.retired]
        for schedule in everyone:
            if only is None:
                self._judge_read(schedule)
            if only is None or schedule.state is only:
                self.loop.emit(self._facts(schedule, everyone, ended))

    def _facts(self, schedule: Schedule, everyone: list[Schedule], ended: str) -> ScheduleObserved:
        state = schedule.state
        self._learn_late(schedule)
        floor, length = schedule.floor_since, self.epoch_length()
        self._look_beside(schedule)
        trainer, trainer_lr, lr, copied = schedule.trainer or (None, 0.0, _present(schedule), False)
        at = schedule.stepped_at if ended and schedule.calls else None
        told = constant_told(at.file, at.line) if at is not None else None
        return ScheduleObserved(
            step=self.loop.steps,
            where=schedule.stepped_at or schedule.built,
            built_where=schedule.built,
            name=schedule.name,
            optimizer=state.key,
            calls=schedule.calls,
            position=schedule.position if isinstance(schedule.position, int) else 0,
            optimizer_steps=state.steps,
            backwards=state.backwards,
            calls_before_first_step=schedule.calls_before_first_step,
            skipped_steps=state.skipped,
            horizon=None if schedule.again and (schedule.horizon or 0) < (length or 0) else schedule.horizon,
            milestone=schedule.milestone,
            spelled=schedule.spelled,
            gamma=schedule.gamma,
            period=schedule.period,
            epoch_length=length,
            epochs=self.epochs(),
            samples=self.samples(state.backwards) if ended else None,
            first_lr=schedule.first_lr,
            peak_lr=schedule.peak_lr,
            base_lr=schedule.base,
            highest_lr=schedule.highest,
            lr=lr,
            steps_at_floor=state.steps - floor if floor is not None else 0,
            ended=ended,
            others_stepped=any(o is not schedule and o.state is state and o.calls for o in everyone),
            trainer=trainer,
            copied=copied,
            trainer_lr=trainer_lr,
            told=told.text if told is not None else "",
            told_where=told.where if told is not None else None,
        )

    def _look_beside(self, schedule: Schedule) -> None:
        """Both optimizers may be gone at the end: what was seen last counts."""
        state = schedule.state
        trainer = self._trainer(state, schedule.idle_calls)
        if trainer is not None:
            schedule.trainer = trainer.facts, trainer.lr, _present(schedule), not state.ids <= trainer.ids
        elif state.ref() is not None and (state.steps or state.skipped):
            schedule.trainer = None

    def _trainer(self, state: OptimizerState, idle_calls: int) -> OptimizerState | None:
        """Another optimizer that trains the parameters of this one, or of a copy of its model: this one never stepped, or
        no longer does, while its schedule goes on. Wrappers share the groups."""
        own = state.ref()
        left = self.loop.steps - state.last_step >= ABANDONED and idle_calls >= IDLE_CALLS
        if own is None or ((state.steps or state.skipped) and not left):
            return None
        groups = {id(group) for group in own.param_groups}
        for other in self.loop.states:
            theirs = other.ref()
            if theirs is None or other.steps < 2 or other.last_step <= state.last_step:
                continue
            if not (state.ids <= other.ids or _alike(own, theirs)):
                continue
            if any(each.state is other and each.calls for each in list(self.schedules.values())):
                continue
            if not any(id(group) in groups for group in theirs.param_groups):
                return other
        return None


def _alike(one: Any, other: Any) -> bool:
    """Optimizers of one kind, for tensors of the same shapes: those of a model and of the one that took its place."""
    return type(one) is type(other) and _shapes(one) == _shapes(other)


def _shapes(optimizer: Any) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for group in optimizer.param_groups for each in group["params"]]


def _present(schedule: Schedule) -> float:
    return schedule.lr if schedule.calls or schedule.state.ref() is None else schedule.state.lr


def _within_step(scheduler: Any, *args: Any, **kwargs: Any) -> bool:
    """A scheduler asks itself while it steps; anybody else gets a value that is often not the rate in use."""
    return bool(getattr(scheduler, "_get_lr_called_within_step", True))
