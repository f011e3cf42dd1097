"""Does a model take the last state of a recurrent layer, which has read on through padding and forgotten what it read?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from flatline.events import PaddedStateTaken
from flatline.sensors.activations import is_plain
from flatline.sensors.callers import caller
from flatline.sensors.loop import Loop
from flatline.sensors.models import Call, Model
from flatline.sensors.patching import Patches
from flatline.sensors.tails import MOST_NUMBERS, behind, filled_up, trailing

Tensor = torch.Tensor
LEAST_TAIL = 4  # positions of padding
PADDED_ROWS = 0.5  # of the rows end in so many
ROWS = 8  # of them, between which the states may differ
TAILS = 3  # different ones
DEAD = 0.01  # of the spread between samples at their own ends is left behind the padding
UNREACHED = (
    1e-3  # of the gradient at the padding comes to what is real; dropout makes states differ that have forgotten
)
PASSES = 16  # that wait for one backward
LOOKS = 3  # that agree, without one that does not
STEPS = 20  # between the first and the last of them: a gate may learn to hold its state
AGAIN = 2  # times as many steps until the next look is asked for
LATE = 3  # times as many, at most, has the run at its end
JUST = 1.2  # the same, where the loss fell under that share of the first one
STILL = 0.5


@dataclass(slots=True)
class Looks:
    """At one layer, so far."""

    first: int = 0
    dead: int = 0
    alive: bool = False
    newest: PaddedStateTaken | None = None


@dataclass(slots=True)
class Pending:
    """One pass of a layer, whose backward tells which positions are taken."""

    key: int
    event: PaddedStateTaken
    tails: Tensor
    last: bool = False
    others: bool = False
    reached: float = math.inf  # gradient at what is real, in that at the padding

    @property
    def forgotten(self) -> bool:
        """Samples do not differ there, or what they held does not count."""
        return self.event.left < DEAD or self.reached < UNREACHED


class PaddedStates:
    """Called for every module of a pass under close look, and after the backward."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self._looks: dict[int, Looks] = {}
        self._pending: list[Pending] = []
        self._handles: list[Any] = []
        self._asked = 0

    def after_module(self, model: Model, call: Call, args: Any, outputs: list[Tensor]) -> None:
        """Compare the states at the last position with those at the rows' own ends."""
        layer = call.module
        if not isinstance(layer, nn.RNNBase) or not call.grad_enabled or not call.out_grad:
            return
        looks = self._looks.setdefault(id(layer), Looks())
        if looks.alive or not self.loop.wants(PaddedStateTaken) or layer.proj_size or len(outputs) < 2:
            return
        pending = _compare(layer, args, outputs[0], tokens=model.integer_input() if model.integer_input else None)
        if pending is None or len(self._pending) >= PASSES:
            return
        label = call.path or model.label
        pending.event = replace(pending.event, step=self.loop.step, where=caller(), layer=label)
        self._pending.append(pending)
        axis = 1 if layer.batch_first else 0
        self._listen(args[0], partial(_of_inputs, pending, axis))
        self._listen(outputs[0], partial(_of_positions, pending, axis))
        if not layer.bidirectional:  # else the way back ends where the text begins
            self._listen(outputs[1], partial(_of_last, pending))

    def _listen(self, tensor: Tensor, note: Any) -> None:
        if not tensor.requires_grad:
            return
        note = self.patches.guard(note)

        def hook(gradient: Any) -> None:
            note(gradient)

        self._handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]

    def after_backward(self) -> None:
        """Which of these states did the loss ask for?"""
        pending, self._pending = self._pending, []
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for each in pending:
            self._judge(each, self._looks[each.key])

    def after_step(self, *_: Any) -> None:
        """What was so early in the run may have been learned since."""
        newest = max((each.newest.step for each in self._looks.values() if each.newest is not None), default=None)
        if newest is not None and self.loop.steps >= AGAIN * max(newest, self._asked):
            self._asked = self.loop.steps
            self.loop.look_closely()

    def _judge(self, pending: Pending, looks: Looks) -> None:
        if pending.others or (pending.last and not pending.forgotten):
            looks.alive, looks.newest = True, None
        elif pending.last:
            looks.first = looks.first or self.loop.step
            looks.dead, looks.newest = looks.dead + 1, replace(pending.event, reached=pending.reached)

    def finish(self) -> None:
        """Tell of the layers whose states were so whenever they were looked at."""
        for looks in self._looks.values():
            event = looks.newest
            if event is not None and looks.dead >= LOOKS and self._lasts(looks.first, event.step):
                self.loop.emit(event)

    def _lasts(self, first: int, newest: int) -> bool:
        """It was so for long, and since the newest look little can have been learned."""
        steps, begun, ended = self.loop.steps, self.loop.first_loss, self.loop.last_loss
        learned = begun is not None and ended is not None and ended < STILL * begun
        return newest - first >= STEPS and (LATE * newest >= steps if not learned else JUST * newest >= steps)


def _compare(layer: Any, args: Any, states: Tensor, *, tokens: Tensor | None) -> Pending | None:
    """What is left of the spread between samples; None where no padding is certain, or packing has left it out."""
    given: Any = args[0] if args else None
    if not is_plain(given) or not is_plain(states) or given.dim() != 3 or given.numel() > MOST_NUMBERS:
        return None
    given, states = given.detach(), states.detach()
    if not layer.batch_first:
        given, states = given.transpose(0, 1), states.transpose(0, 1)
        tokens = tokens.t() if tokens is not None and tokens.dim() == 2 and tokens.shape != given.shape[:2] else tokens
    tails = _tails(given, tokens)
    rows = ((tails >= LEAST_TAIL) & (tails < given.shape[1])).nonzero().reshape(-1) if tails is not None else ()
    if tails is None or len(rows) < max(ROWS, PADDED_ROWS * len(given)):
        return None
    mine = tails[rows]
    if len(torch.unique(mine)) < TAILS:
        return None
    own, last = states[rows, given.shape[1] - 1 - mine], states[rows, -1]
    before = _spread(own)
    event = PaddedStateTaken(
        step=0,
        kind=type(layer).__name__,
        length=int(given.shape[1]),
        padded=int(mine.float().median()),
        rows=len(rows),
        of=len(given),
        left=_spread(last) / before if before > 0 else 1.0,
    )
    return Pending(id(layer), event, tails)


def _tails(given: Tensor, tokens: Tensor | None) -> Tensor | None:
    """How many positions of padding each row ends with, by its tokens or its vectors."""
    if tokens is not None and tokens.shape == given.shape[:2] and tokens.device == given.device:
        run, fill = trailing(tokens)
        return run.sum(1) if fill is not None else None
    same, vector = filled_up(given)
    return same.sum(1) if vector is not None else None


def _spread(states: Tensor) -> float:
    return float(states.float().var(0).mean().sqrt())


def _of_positions(pending: Pending, axis: int, gradient: Tensor) -> None:
    """The gradient of all states: zero wherever nobody took one."""
    asked = (gradient.detach().movedim(axis, 0).flatten(1) != 0).any(1)
    pending.last = pending.last or bool(asked[-1])
    pending.others = pending.others or bool(asked[:-1].any())


def _of_inputs(pending: Pending, axis: int, gradient: Tensor) -> None:
    """The gradient of what the layer reads, at what is real and at the padding of the rows that have enough of it."""
    sizes = gradient.detach().movedim(axis, 1).float().square().mean(2)
    rows = pending.tails >= LEAST_TAIL
    padding = behind(sizes.shape[1] - pending.tails, sizes.shape[1])[rows]
    there, real = (float(sizes[rows][each].mean().sqrt()) for each in (padding, ~padding))
    pending.reached = real / there if there > 0 else math.inf


def _of_last(pending: Pending, gradient: Tensor) -> None:
    pending.last = pending.last or bool((gradient.detach() != 0).any())
