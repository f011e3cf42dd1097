"""Training without an optimizer of torch: weights that changed in place between two backwards were stepped by hand."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from flatline.events import OptimizerStepped, Tick, Where
from flatline.sensors.audit import AuditSensor
from flatline.sensors.backward import BackwardSensor
from flatline.sensors.callers import caller
from flatline.sensors.data import DataSensor
from flatline.sensors.graph import Graph
from flatline.sensors.loop import Loop, OptimizerState, StandIn, Window
from flatline.sensors.models import ModelSensor
from flatline.sensors.numbers import Elements, NumbersSensor, gradient_norms, local, spread
from flatline.sensors.optimizers import OptimizerSensor, probe_norm
from flatline.sensors.recording import RecordingSensor
from flatline.sensors.tree import parameters

Tensor = torch.Tensor
PARAMETERS_CHANGED = 2  # backwards after which parameters had changed: from then on it is training
TENSORS_CHANGED = 3  # the same in a row for plain tensors, which may be inputs or samples
LOOKS = 100  # backwards without a change, after which nobody looks any more
PROBES = 4  # leaves that tell of a step
MODELS = 4  # trained one after another
ALONG = 0.99  # cosine of an update and the gradient that it was made with; one rate for all gives 1
EQUAL = 1e-6  # relative distance of norms of gradients that nobody touched
APPLIED: tuple[Tick, ...] = ("backward", "clip", "unscale")  # what follows the last of them belongs to the next step


class _Marks:
    """Some leaves as a backward left them."""

    def __init__(self, leaves: list[Any], *, values: bool) -> None:
        self.refs = [weakref.ref(p) for p in leaves]
        self.places = [(p._version, p.data_ptr()) for p in leaves]
        self.values = [spread(_part(p)).clone() for p in leaves] if values else []

    def replaced(self) -> list[Any]:
        """Those whose version or storage is another."""
        pairs = zip(self.refs, self.places, strict=True)
        return [p for ref, was in pairs if (p := ref()) is not None and (p._version, p.data_ptr()) != was]

    def moved(self) -> list[Any]:
        """Those with other numbers."""
        pairs = zip(self.refs, self.values, strict=True)
        return [p for ref, was in pairs if (p := ref()) is not None and _other(p, was)]


def _part(p: Any) -> Tensor:
    part = local(p)
    assert part is not None
    return part


def _other(p: Any, was: Tensor) -> bool:
    part = local(p)
    if part is None or part.device != was.device:
        return True
    now = spread(part)
    return now.shape != was.shape or not torch.equal(now, was)


class HandStepSensor:
    """Called at the begin and at the end of every backward, until an optimizer of torch is built."""

    def __init__(
        self,
        loop: Loop,
        backward: BackwardSensor,
        models: ModelSensor,
        optimizers: OptimizerSensor,
        numbers: NumbersSensor,
        audit: AuditSensor,
        data: DataSensor,
        recording: RecordingSensor,
    ) -> None:
        self.loop, self.backward, self.models, self.optimizers = loop, backward, models, optimizers
        self.numbers, self.audit, self.data, self.recording = numbers, audit, data, recording
        self._over = False
        self._stand_in: StandIn | None = None
        self._state: OptimizerState | None = None
        self._marks: _Marks | None = None
        self._others: _Marks | None = None  # of leaves that no step has changed yet
        self._by_value = False  # neither versions nor storages tell of a step
        self._quiet = self._models = 0
        self._anew = False  # a model that was trained is gone
        self._needed = PARAMETERS_CHANGED
        self._changed: list[frozenset[int]] = []  # ids, after each of the newest backwards
        self._first_loss: float | None = None
        self._advanced = False  # a step was seen when the backward in progress began
        self._held: list[tuple[Any, list[Any], Tensor, list[Tensor]]] = []  # weights and norms of gradients of a sample
        self._gradients: tuple[list[tuple[int, int]], float | None] = [], None  # of the probes, after the backward

    # ------------------------------------------------------------------ around a backward

    def begins(self) -> None:
        """Did the weights change since the backward before?"""
        marks, self._marks = self._marks, None
        others, self._others = self._others, None
        if not self._at_work() or marks is None:
            return
        if self._state is None:
            self._consider(marks)
        elif self._several(marks, others):
            self._give_up()
        else:
            self._state.touched = self._were_touched(self._state) or not self._went_along()
            if self._steps(marks):
                self._stepped(self._state)
            self._stop()

    def ended(self, graph: Graph | None) -> None:
        """Note the weights; the coming update is measured from here."""
        state, loop = self._state, self.loop
        if self._over or loop.built:
            return
        if state is None:
            if self._anew:
                self._anew = False
                loop.look_closely()  # not between a forward and its backward
            self._marks = self._candidates(graph)
            return
        if self._advanced:
            self._advanced = False
            loop.look_ahead(state)
            self.models.forget_step()
        self._hold(state)
        self.audit.before_step(state)
        held = state.parameters
        if held:
            self._marks = _Marks(held[:: max(1, len(held) // PROBES)][:PROBES], values=self._by_value)
        if loop.dense:
            self._gradients = _signatures(state), probe_norm(state)
            rest = [p for p in self._eligible(graph) if id(p) not in state.ids]
            self._others = _Marks(rest, values=True) if rest else None

    def finish(self) -> None:
        """The last step is followed by no backward: it is counted, and no more."""
        marks, self._marks = self._marks, None
        self._held = []
        if self._state is not None and marks is not None and self._at_work() and self._steps(marks):
            self._state.steps += 1
            self.loop.steps += 1

    def _at_work(self) -> bool:
        """Not beside an optimizer of torch, nor a GradScaler, whose gradients are not what they look like."""
        if not self._over and (self.loop.built or self.backward.raw_losses):
            self._give_up()
        if self._stand_in is not None and self._stand_in.gone:
            self._begin_anew()
        return not self._over

    def _give_up(self) -> None:
        self._over, self._stand_in, self._state, self._held = True, None, None, []
        self.loop.drop_stand_in()
        self.backward.begins = self.backward.ended = None

    def _begin_anew(self) -> None:
        """What it trained is gone: another model may come."""
        self._state, self._held, self._changed, self._quiet = None, [], [], 0
        self._models += 1
        self._over, self._anew = self._models >= MODELS, True
        self._stand_in = None

    # ------------------------------------------------------------------ is it training?

    def _candidates(self, graph: Graph | None) -> _Marks | None:
        leaves = self._eligible(graph)
        if not leaves or self._quiet >= LOOKS:
            return None
        if self._first_loss is None:
            self._first_loss = self.backward._newest
        return _Marks(leaves, values=True)

    def _eligible(self, graph: Graph | None) -> list[Any]:
        """Leaves with a gradient: parameters of modules, and any others only where no module has some."""
        if graph is None:
            return []
        leaves = [p for p in graph.leaves.values() if p.grad is not None and local(p) is not None]
        owned = {id(p) for module in self.models.alive() for p in parameters(module)}
        chosen = [p for p in leaves if (id(p) in owned if owned else isinstance(p, nn.Parameter))]
        self._needed = PARAMETERS_CHANGED if chosen else TENSORS_CHANGED
        return chosen or ([] if owned else leaves)

    def _consider(self, marks: _Marks) -> None:
        replaced, moved = marks.replaced(), marks.moved()
        if not moved:
            self._quiet += 1
            if self._needed == TENSORS_CHANGED:
                self._changed = []
            return
        by_value = not replaced
        changed = replaced or [p for p in moved if p.device.type == "cpu"]
        ids = frozenset(id(p) for p in changed)
        if 2 * len(ids) < len(marks.refs) or any(ids.isdisjoint(earlier) for earlier in self._changed):
            self._changed = []  # one part of a model, or one model after the other
        if 2 * len(ids) >= len(marks.refs):
            self._changed.append(ids)
        if len(self._changed) >= self._needed:
            self._register(changed, by_value=by_value)

    def _register(self, changed: list[Any], *, by_value: bool) -> None:
        loop, count = self.loop, len(self._changed)
        loop.steps += count
        self._stand_in, self._by_value = StandIn(changed), by_value
        state = self._state = loop.optimizer(self._stand_in)
        state.steps = state.backwards = count
        state.last_step = loop.steps
        state.first_loss, state.last_loss = self._first_loss, self.backward._newest
        loop.lead, loop.beside, loop.audited, loop.last_loss_step = state, 0, True, loop.steps
        self._changed, self._advanced = [], True

    def _several(self, marks: _Marks, others: _Marks | None) -> bool:
        """Weights change that did not before, and ours do not: there are several models."""
        new = others.moved() if others is not None else []
        if not new or self._stand_in is None:
            return False
        if not self._steps(marks):
            return True
        self._stand_in.add(new)
        return False

    # ------------------------------------------------------------------ a step

    def _steps(self, marks: _Marks) -> bool:
        changed = marks.moved() if self._by_value else marks.replaced()
        return 2 * len(changed) >= len(marks.refs) > 0

    def _were_touched(self, state: OptimizerState) -> bool:
        """Somebody changed gradients since the backward: scaled by a momentum they are not left over."""
        before, norm = self._gradients
        if not self.loop.dense or before != _signatures(state):
            return "clip" not in state.window.tape
        now = probe_norm(state)
        same = now is not None and norm is not None and abs(now - norm) <= EQUAL * norm
        return not same and "clip" not in state.window.tape

    def _went_along(self) -> bool:
        """The weights moved along their gradients: dual averaging writes them from an anchor, with the sum of all gradients."""
        for device, refs, values, _ in self._held:
            now = _still(device, refs, values)
            slopes = [local(p.grad) for p in now[0] if p.grad is not None] if now is not None else []
            if now is None or len(slopes) < len(refs) or any(slope is None for slope in slopes):
                return False
            moved, slope = now[1].values - values, Elements([slope for slope in slopes if slope is not None]).values
            if slope.shape != moved.shape or float(moved @ slope) > -ALONG * float(moved.norm() * slope.norm()):
                return False
        return bool(self._held)

    def _stepped(self, state: OptimizerState) -> None:
        loop, window = self.loop, state.window
        last = max(window.last(what) for what in APPLIED)
        where = caller() if loop.sampling else None
        state.steps += 1
        state.last_step = loop.steps
        if loop.dense:
            self._tell(state, tuple(window.tape[: last + 1]), where)
        if loop.sampling:
            self._measure(state, where)
        if loop.dense:
            self.recording.after_step(state, where)
            self.data.after_step(state, where)
        state.window = Window(tape=window.tape[last + 1 :])
        loop.steps += 1
        self._advanced = True

    def _stop(self) -> None:
        optimizers = self.optimizers
        if optimizers.on_stop and optimizers.stop_after is not None and self.loop.steps >= optimizers.stop_after:
            optimizers.on_stop()

    def _tell(self, state: OptimizerState, tape: tuple[Tick, ...], where: Where | None) -> None:
        window = state.window
        self.loop.emit(
            OptimizerStepped(
                step=self.loop.step,
                where=where,
                optimizer=state.facts,
                index=state.steps,
                tape=tape,
                backwards=tuple(window.backwards),
                clips=tuple(window.clips),
                leftover=window.leftover,
                backward_ever=True,
            )
        )

    # ------------------------------------------------------------------ numbers

    def _hold(self, state: OptimizerState) -> None:
        """Weights before the update, and gradients, which may be gone when it is seen. No tensor is kept alive."""
        self._held = []
        if not self.loop.sampling:
            return
        self.numbers.before_step(state)
        before, state.before = state.before, {}
        for device, (held, elements) in before.items():
            sizes = gradient_norms(held, elements.values)
            self._held.append((device, [weakref.ref(p) for p in held], elements.values, sizes))

    def _measure(self, state: OptimizerState, where: Where | None) -> None:
        held, self._held = self._held, []
        for device, refs, values, sizes in held:
            now = _still(device, refs, values)
            if now is None:
                return
            there, elements = now
            elements.values = values
            state.before[device] = there, elements
            state.norms[device] = sizes
        self.numbers.after_step(state, where)
        state.norms = {}


def _still(device: str, refs: list[Any], values: Tensor) -> tuple[list[Any], Elements] | None:
    """The weights that some elements were taken of, and these elements now; None if one is gone, or of another size."""
    there = [p for ref in refs if (p := ref()) is not None]
    parts = [part for p in there if (part := local(p)) is not None and str(part.device) == device]
    elements = Elements(parts) if len(parts) == len(refs) else None
    return (there, elements) if elements is not None and elements.values.shape == values.shape else None


def _signatures(state: OptimizerState) -> list[tuple[int, int]]:
    return [(id(p.grad), p.grad._version) if p.grad is not None else (0, 0) for p in state.probes]
