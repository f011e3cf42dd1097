"""Sees optimizers being built, zeroed and stepped, and keeps each one's tape."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from flatline.events import ClipFacts, Gradients, OptimizerCreated, OptimizerStepped, StepMissing, Where
from flatline.sensors.callers import caller
from flatline.sensors.graph import HOOKED
from flatline.sensors.kept_gradients import keeps_gradients
from flatline.sensors.loop import Loop, OptimizerState, norm_of
from flatline.sensors.models import readable
from flatline.sensors.patching import Patches, asks_dynamo, unseen_by_dynamo
from flatline.sensors.trainings import Trainings
from flatline.sensors.tree import parameters

LASTING = 20  # of them, that are thrown away because they are not finite; a loss scale of the script's own falls faster
ONE_FACTOR = 0.01  # by which the shares that layers were shrunk to may differ
SAME_NORM = 1e-3  # relative distance of two norms that were shrunk to one
SEVERAL = 2  # runs of a closure within one step, as LBFGS counts them
IDLE_CYCLES = 3  # zero_grad, backward, zero_grad, backward … without a step


class OptimizerSensor:
    """Official step hooks, and patches on ``zero_grad`` and ``__init__``."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self.before_step: list[Callable[[OptimizerState], None]] = []
        self.after_step: list[Callable[[OptimizerState, Where | None], None]] = []
        self.before_sample: list[Callable[[OptimizerState], None]] = []
        self.after_sample: list[Callable[[OptimizerState, Where | None], None]] = []
        self.stop_after: int | None = None
        self.on_stop: Callable[[], None] | None = None
        self.in_backward: Callable[[], bool] = lambda: False  # a step taken by a gradient hook
        self.compiled = False  # some step is part of a compiled function
        self._told: set[int] = set()
        self.trainings = Trainings(loop)

    def attach(self) -> None:
        """Register the hooks."""
        from torch.optim import optimizer as module

        before, after = self.patches.guard(self._stepping), self.patches.guard(self._stepped)

        loop, known = self.loop, self.loop.optimizers

        traced, light, clock = self._traced(), self.patches.quick(self._lightly()), time.monotonic
        compiling = asks_dynamo()

        def pre(optimizer: Any, args: Any, kwargs: Any) -> None:
            if compiling():
                traced()
                return
            loop.stepping = True
            if loop.sampling or id(optimizer) not in known or len(args) > 1 or kwargs:
                before(optimizer, args, kwargs)

        def post(optimizer: Any, args: Any, kwargs: Any) -> None:
            if compiling():
                traced()
                return
            loop.stepping = False
            if not light(optimizer):
                after(optimizer)
                if clock() > loop.due:
                    self.hand_on()
            if self.on_stop and self.stop_after is not None and self.loop.steps >= self.stop_after:
                self.on_stop()

        unseen_by_dynamo(pre, post)
        for handle in (module.register_optimizer_step_pre_hook(pre), module.register_optimizer_step_post_hook(post)):
            self.patches.on_undo(handle.remove)
        self.patches.around(torch.optim.Optimizer, "__init__", after=self._built)
        self.patches.around(torch.optim.Optimizer, "zero_grad", before=self._zeroed, light=self._zeroed_light)
        self.patches.around(torch.nn.Module, "zero_grad", before=self._module_zeroed)

    def _traced(self) -> Callable[[], bool]:
        """For dynamo, which calls it once while it compiles a step: from then on steps go by unseen."""

        def traced() -> bool:
            self.compiled = True
            return True

        traced._dynamo_marked_constant = True  # type: ignore[attr-defined]
        return traced

    def _lightly(self) -> Callable[[Any], bool]:
        """An ordinary step of the optimizer that leads: counted, no more."""
        loop, known, rates, spans = self.loop, self.loop.optimizers, self.loop.rates, HOOKED.spans

        def light(optimizer: Any) -> bool:
            state = loop.lead
            if not loop.light or state is None or known.get(id(optimizer)) is not state:
                return False
            if loop.steps + 1 >= loop.next_look or loop.unsettled or spans:
                return False
            rate = optimizer.param_groups[0].get("lr") if rates is not None else None
            loop.steps += 1
            loop.beside = 0
            state.last_step = loop.steps
            state.steps += 1
            state.idle_cycles = 0
            state.window = state.window.next()
            if rates is not None and rate is not state.rate:
                state.rate = rate
                rates.append((loop.steps, rate, state.key))
            return True

        unseen_by_dynamo(light)
        return light

    # ------------------------------------------------------------------ built and zeroed

    def _built(self, result: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self._state(optimizer)

    def _state(self, optimizer: Any) -> OptimizerState:
        known = self.loop.optimizers.get(id(optimizer))
        if known is not None and known.ref() is optimizer:
            return known
        state = self.loop.optimizer(optimizer, caller())
        self.trainings.built(state)
        return state

    def _tell_built(self, state: OptimizerState) -> None:
        """Told at the first step: the groups are complete then."""
        if state.key not in self._told:
            self._told.add(state.key)
            self.loop.emit(OptimizerCreated(step=self.loop.step, where=state.where, optimizer=state.facts))

    def _zeroed_light(self, optimizer: Any, *args: Any, **kwargs: Any) -> bool:
        """Zeroed right after a step: the tape is empty."""
        state = self.loop.optimizers.get(id(optimizer))
        if not self.loop.light or state is None or state.window.tape:
            return False
        state.window.tape.append("zero")
        state.window.leftover = False
        return True

    def _zeroed(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self._zero(self._state(optimizer))

    def _module_zeroed(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        mine = {id(p) for p in parameters(module)}
        for state in self.loop.states:
            if state.ids <= mine:
                self._zero(state)

    def _zero(self, state: OptimizerState) -> None:
        window = state.window
        threw_away = "backward" in window.tape and not window.fresh
        window.tick("zero")
        window.leftover = False
        if self.loop.dense:
            window.zero_where = caller()
        if threw_away:
            window.forget(state.key)
        if threw_away and not state.closure and not self.compiled:
            self._threw_away(state)

    def _threw_away(self, state: OptimizerState) -> None:
        """Gradients were zeroed unread. Beside another optimizer's steps that is normal: a critic trains more often."""
        steps = sum(other.steps for other in self.loop.states)
        state.idle_cycles = state.idle_cycles + 1 if steps == state.others_steps else 0
        state.others_steps = steps
        if state.idle_cycles == LASTING and not state.by_hand:
            self.thrown_away(state)
        zeroed = state.window.zero_where
        if state.idle_cycles != IDLE_CYCLES or state.by_hand or self.thrown_away(state):
            return
        if not keeps_gradients(zeroed, state.where):
            self.loop.emit(StepMissing(step=self.loop.steps, where=zeroed, optimizer=state.facts, cycles=IDLE_CYCLES))

    # ------------------------------------------------------------------ stepped

    def _stepping(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        state = self._state(optimizer)
        self._tell_built(state)
        state.closure = len(args) > 1 or kwargs.get("closure") is not None or self.in_backward()
        if not state.closure:
            self._judge(state)
        if self.loop.dense:
            state.stepped_with = [signature(p) for p in state.probes]
        for callback in (*self.before_step, *self.before_sample) if self.loop.dense else self.before_sample:
            callback(state)

    def _judge(self, state: OptimizerState) -> None:
        """Look at the gradients as the step finds them; told when the step is over."""
        self._gradients = gradients_of(state) if self.loop.dense else "present"
        if self._gradients != "present" and wiped(state):
            state.window.tick("zero")
            state.window.wiped = True

    _gradients: Gradients = "present"

    def _stepped(self, optimizer: Any) -> None:
        state = self._state(optimizer)
        state.steps += 1
        state.idle_cycles = 0
        state.last_step = self.loop.steps
        if self.loop.dense:
            state.peak_lr = max(state.peak_lr, state.lr)
            self.trainings.stepped(state)
            where = caller()
            self._tell_stepped(state, where)
            for callback in (*self.after_sample, *self.after_step):
                callback(state, where)
        elif self.loop.sampling:
            where = caller()
            for callback in self.after_sample:
                callback(state, where)
        if self.light_step is not None:
            self.light_step(state)
        state.window = state.window.next()
        self.loop.note_rate(state, self.loop.step)
        self.loop.stepped(state)

    thrown_away: Callable[[OptimizerState], bool] = staticmethod(lambda state: False)  # for a reason that was told
    hand_on: Callable[[], None] = staticmethod(lambda: None)  # what was read at every step, when it is due
    light_step: Callable[[OptimizerState], None] | None = None

    def _tell_stepped(self, state: OptimizerState, where: Where | None) -> None:
        window, changed = state.window, rescaled(state)
        self.loop.emit(
            OptimizerStepped(
                step=self.loop.step,
                where=where,
                optimizer=state.facts,
                index=state.steps,
                tape=tuple(window.tape),
                backwards=tuple(window.backwards),
                clips=tuple(window.clips),
                gradients="present" if state.closure else self._gradients,
                leftover=window.leftover or _piled_up(state),
                closure=state.closure,
                scaled=window.scaled,
                rescaled_by_hand=changed,
                clip_by_hand=window.hand_clip or (clip_by_hand(state, where) if changed else None),
                zero_where=window.zero_where,
                wiped_by_hand=window.wiped,
                backward_ever=state.backwards > 0,
            )
        )


def gradients_of(state: OptimizerState) -> Gradients:
    """Whether an optimizer finds gradients: any, only zeros, or none at all."""
    found = [p.grad for p in state.parameters if p.grad is not None]
    if not found:
        return "none"
    probes = [p.grad for p in state.probes if p.grad is not None] or found[:4]
    return "present" if any(is_nonzero(g) for g in probes) or any(is_nonzero(g) for g in found) else "zero"


def is_nonzero(gradient: torch.Tensor) -> bool:
    """Whether a gradient, dense or sparse, holds anything but zeros."""
    if not readable(gradient):
        return True
    gradient = gradient.detach()
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(values.count_nonzero().item()) if values.numel() else False


def signature(parameter: torch.Tensor) -> tuple[int, int]:
    """Changes whenever a gradient is made, added to or written to."""
    gradient = parameter.grad
    return (id(gradient), gradient._version) if gradient is not None else (0, 0)


def probe_norm(state: OptimizerState) -> float | None:
    """Norm of the gradients of a few parameters."""
    return norm_of(probe_norms(state))


def probe_norms(state: OptimizerState) -> list[float]:
    """The norm of each of them."""
    held = [p.grad for p in state.probes if p.grad is not None]
    found = [g.detach() for g in held if readable(g) and g.is_floating_point() and not g.is_sparse]
    return torch.stack([g.float().norm() for g in found]).tolist() if found else []


def _by_one_factor(before: list[float], now: list[float]) -> bool:
    """A clip by norm keeps the direction: no layer is shrunk more than another."""
    pairs = [(a, b) for a, b in zip(before, now, strict=False) if a > 0]
    factors = [b / a for a, b in pairs]
    return len(before) == len(now) and len(factors) > 1 and max(factors) <= (1 + ONE_FACTOR) * min(factors)


def wiped(state: OptimizerState) -> bool:
    """Gradients that the last backward left are gone or zero, and nobody called ``zero_grad`` or clipped."""
    before, last = state.window.norm_after_backward, state.window.last("backward")
    if not before or before - before != 0.0 or last < 0:
        return False
    if any(what in ("zero", "clip") for what in state.window.tape[last:]):
        return False
    return not any(is_nonzero(p.grad) for p in state.probes if p.grad is not None)


def rescaled(state: OptimizerState) -> bool:
    """Gradients changed between the last backward and the step, though nothing clipped or unscaled them."""
    before, last = state.window.norm_after_backward, max(state.window.last("backward"), 0)
    if before is None or any(what in ("clip", "unscale", "zero") for what in state.window.tape[last:]):
        return False
    now = probe_norm(state)
    return now is not None and abs(now - before) > 1e-3 * max(before, 1e-12)


def clip_by_hand(state: OptimizerState, where: Where | None) -> ClipFacts | None:
    """Shrunk gradients whose norm is, over all of them, what it was when they were shrunk before."""
    norms = probe_norms(state)
    before, now = state.window.norm_after_backward, norm_of(norms)
    found = [p.grad.detach().float().norm() for p in state.parameters if p.grad is not None and readable(p.grad)]
    known, state.shrunk_to = state.shrunk_to, float(torch.stack(found).norm()) if found else 0.0
    alike = abs(state.shrunk_to - known) <= SAME_NORM * known
    one = _by_one_factor(state.window.norms_after_backward, norms)
    if not before or not now or now >= before or not alike or not one:
        return None
    return ClipFacts(kind="norm", threshold=state.shrunk_to, norm=state.shrunk_to * before / now, where=where)


def _piled_up(state: OptimizerState) -> bool:
    """The closure ran several times within this step, and gradients were last zeroed before the first of them."""
    optimizer, tape = state.ref(), state.window.tape
    if not state.closure or optimizer is None or "backward" not in tape:
        return False
    runs = sum(kept.get("func_evals", 0) for kept in optimizer.state.values() if isinstance(kept, dict))
    before, state.closure_runs = state.closure_runs, (state.steps, runs)
    once_before = before[0] == state.steps - 1 and runs - before[1] >= SEVERAL
    return once_before and "zero" not in tape[tape.index("backward") :]
