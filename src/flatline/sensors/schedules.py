"""Sees learning-rate schedulers advance beside their optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from flatline.events import ScheduleObserved, Where
from flatline.sensors.callers import caller
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.patching import Patches

FLOOR = 1e-3  # of the peak rate: from here on the weights practically stand still
HORIZONS = ("T_max", "total_steps", "total_iters")
LAMBDA_HORIZONS = ("num_training_steps", "total_steps", "training_steps", "max_steps", "t_total", "num_steps")


class Schedule:
    """One scheduler under watch."""

    def __init__(self, scheduler: Any, state: OptimizerState, where: Where | None) -> None:
        self.ref = weakref.ref(scheduler)
        self.name = type(scheduler).__name__
        self.state, self.built, self.stepped_at = state, where, where
        self.calls = 0
        self.calls_before_first_step = 0
        self.first_lr = self.peak_lr = state.lr
        self.lr = state.lr
        self.floor_since: int | None = None
        self.horizon = horizon_of(scheduler)
        self.gamma = _number(scheduler, "gamma")
        size = getattr(scheduler, "step_size", 1 if self.name == "ExponentialLR" else None)
        self.period: int | None = size if isinstance(size, int) else None


def _number(scheduler: Any, name: str) -> float | None:
    value = getattr(scheduler, name, None)
    return float(value) if isinstance(value, (int, float)) else None


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


def _bound(function: Any) -> dict[str, Any]:
    """Values that a partial or a closure carries, by name."""
    keywords = dict(getattr(function, "keywords", {}))
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, cells, strict=False):
        try:
            keywords[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return keywords


class ScheduleSensor:
    """Patches ``step`` of every scheduler class that defines one."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self.schedules: dict[int, Schedule] = {}
        self.retired: list[Schedule] = []
        self.epoch_length: Callable[[], int | None] = lambda: None
        self.epochs: Callable[[], int] = lambda: 0
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
        if cls not in self._patched and "step" in vars(cls):
            self._patched.add(cls)
            self.patches.around(cls, "step", before=self._entering, after=self._stepped, failed=self._left)

    def _built(self, result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer is None:
            return
        for cls in type(scheduler).__mro__:
            if "step" in vars(cls):
                self._patch(cls)
        state = self.loop.optimizer(optimizer, caller())
        if id(scheduler) not in self.schedules or self.schedules[id(scheduler)].ref() is not scheduler:
            self.schedules[id(scheduler)] = Schedule(scheduler, state, caller())
            weakref.finalize(scheduler, self._retire, id(scheduler)).atexit = False

    def _retire(self, identity: int) -> None:
        schedule = self.schedules.pop(identity, None)
        if schedule is not None:
            self.retired.append(schedule)

    # ------------------------------------------------------------------ stepping

    def _entering(self, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        self._depth += 1

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
        schedule.calls += 1
        if not state.steps and not state.skipped:
            schedule.calls_before_first_step += 1
        if schedule.calls <= 3:
            schedule.stepped_at = caller() or schedule.stepped_at
        self._follow_rate(schedule, state)

    def _learn(self, schedule: Schedule, scheduler: Any) -> None:
        """What its own ``__init__`` sets after the base class's is only there now."""
        fresh = Schedule(scheduler, schedule.state, schedule.built)
        schedule.horizon, schedule.gamma, schedule.period = fresh.horizon, fresh.gamma, fresh.period

    def _follow_rate(self, schedule: Schedule, state: OptimizerState) -> None:
        schedule.lr = state.lr
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

    def tell(self, *, ended: str, only: OptimizerState | None = None) -> None:
        """Tell of every schedule, or of one optimizer's."""
        everyone = [*self.schedules.values(), *self.retired]
        for schedule in everyone:
            if only is None or schedule.state is only:
                self.loop.emit(self._facts(schedule, everyone, ended))

    def _facts(self, schedule: Schedule, everyone: list[Schedule], ended: str) -> ScheduleObserved:
        state = schedule.state
        scheduler = schedule.ref()
        if scheduler is not None and schedule.calls == 0:
            self._learn(schedule, scheduler)
        floor = schedule.floor_since
        return ScheduleObserved(
            step=self.loop.steps,
            where=schedule.stepped_at or schedule.built,
            built_where=schedule.built,
            name=schedule.name,
            optimizer=state.key,
            calls=schedule.calls,
            optimizer_steps=state.steps,
            backwards=state.backwards,
            calls_before_first_step=schedule.calls_before_first_step,
            skipped_steps=state.skipped,
            horizon=schedule.horizon,
            gamma=schedule.gamma,
            period=schedule.period,
            epoch_length=self.epoch_length(),
            epochs=self.epochs(),
            first_lr=schedule.first_lr,
            peak_lr=schedule.peak_lr,
            lr=schedule.lr,
            steps_at_floor=state.steps - floor if floor is not None else 0,
            ended=ended,
            others_stepped=any(o is not schedule and o.state is state and o.calls for o in everyone),
        )
