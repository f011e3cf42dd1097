"""Sees gradients being clipped, scaled and unscaled, and where that stands in the loop."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from flatline.events import ClipFacts, ScaledLossRead, ScalerObserved
from flatline.sensors.backward import BackwardSensor
from flatline.sensors.callers import caller, callers_above
from flatline.sensors.loop import Loop, OptimizerState, Window
from flatline.sensors.optimizers import clip_by_hand, rescaled
from flatline.sensors.patching import Patches
from flatline.sensors.scaled_loss import scaled_loss_read

HALF_WINDOW = 20  # updates
CALLERS = 3  # functions that the scaled loss may be returned through
DEFERRED = 32  # scales on a device are read this many at a time


class Scaler:
    """One GradScaler under watch: a scale that fell is a step that was skipped, fused optimizer or not."""

    def __init__(self, first: float) -> None:
        self.first = self.scale = first
        self.updates = self.skipped = self.in_a_row = 0
        self.recent: deque[bool] = deque(maxlen=2 * HALF_WINDOW)
        self.waiting: list[Any] = []

    def read(self) -> bool:
        """Take in the scales that were kept on the device; whether a step was skipped."""
        waiting, self.waiting = self.waiting, []
        values = torch.stack(waiting).tolist() if isinstance(waiting[0], torch.Tensor) else waiting
        fell = [self._updated(value) for value in values]
        return any(fell)

    def _updated(self, scale: float) -> bool:
        fell = scale < self.scale
        self.scale = scale
        self.updates += 1
        self.skipped += fell
        self.in_a_row = self.in_a_row + 1 if fell else 0
        self.recent.append(fell)
        return fell


class Succession:
    """The GradScalers that one optimizer is stepped with, one after the other, and what became of its last steps."""

    def __init__(self) -> None:
        self._begun: deque[bool] = deque(maxlen=2 * HALF_WINDOW)  # with this update a scaler came that was new
        self._skipped: deque[bool] = deque(maxlen=2 * HALF_WINDOW)

    def note(self, skipped: bool, *, new: bool) -> None:
        """One more update."""
        self._begun.append(new)
        self._skipped.append(skipped)

    def lately(self) -> tuple[int, int]:
        """How many scalers began within the last updates, and how many of these were skipped, whichever scaler it was."""
        return sum(self._begun), sum(self._skipped)


class ClipSensor:
    """Patches the public clipping functions and GradScaler."""

    def __init__(self, loop: Loop, patches: Patches, backward: BackwardSensor) -> None:
        self.loop, self.patches, self.backward = loop, patches, backward
        self.scalers: weakref.WeakKeyDictionary[Any, Scaler] = weakref.WeakKeyDictionary()
        self._successions: dict[int, Succession] = {}  # by the key of the optimizer

    def attach(self) -> None:
        """Patch ``clip_grad_norm_``, ``clip_grad_value_`` and the methods of GradScaler."""
        inner, public = torch.nn.utils.clip_grad, torch.nn.utils
        for name, callback in (("clip_grad_norm_", self._norm_clipped), ("clip_grad_value_", self._value_clipped)):
            self.patches.around(inner, name, after=callback, also=public)
        scaler = torch.amp.grad_scaler.GradScaler
        around = partial(self.patches.around, scaler, light=_passes_through)
        around("scale", after=self._scaled)
        around("unscale_", before=self._unscaling, after=self._unscaled)
        around("step", before=self._scaler_stepping, after=self._scaler_stepped, failed=self._scaler_left)
        if self.loop.wants(ScalerObserved):
            around("update", after=self._updated)

    # ------------------------------------------------------------------ clipping

    def _norm_clipped(self, norm: Any, parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> None:
        self._clipped(parameters, "norm", float(max_norm), norm)

    def _value_clipped(self, result: Any, parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> None:
        self._clipped(parameters, "value", float(clip_value), None)

    def _clipped(self, parameters: Any, kind: str, threshold: float, norm: Any) -> None:
        held = _parameters(parameters)
        for state in self.loop.states:
            if (held is not None and held.isdisjoint(state.ids)) or threshold == float("inf"):
                continue
            state.window.tick("clip")
            if self.loop.sampling and len(state.window.clips) < 64:
                later = isinstance(norm, torch.Tensor) and not norm.is_cpu and not self.loop.dense
                state.window.clips.append(self._facts(state, kind, threshold, None if later else norm))
                state.window.norm = norm.detach() if later else None

    def _facts(self, state: OptimizerState, kind: Any, threshold: float, norm: Any) -> ClipFacts:
        after_unscale = state.window.last("unscale") > state.window.last("backward")
        return ClipFacts(
            kind=kind,
            threshold=threshold,
            norm=float(norm) if isinstance(norm, (torch.Tensor, float)) else None,
            scaled=state.window.scaled and not after_unscale,
            scale=self.scale,
            where=caller(),
        )

    # ------------------------------------------------------------------ loss scaling

    scale = 1.0

    def _scaled(self, result: Any, scaler: Any, outputs: Any) -> None:
        if not scaler.is_enabled() or not isinstance(result, torch.Tensor):
            return
        if self.loop.dense:
            self.scale = float(scaler.get_scale())
        self.backward.note_scaled(result, outputs, self.scale)
        for state in self.loop.states:
            state.window.scaled = True
        if not self._source_read and self.scale > 1:
            self._source_read = True
            statement, where = scaled_loss_read(caller(), callers_above(CALLERS))
            if statement:
                self.loop.emit(ScaledLossRead(step=self.loop.step, where=where, statement=statement, scale=self.scale))

    _source_read = False

    def _unscaling(self, scaler: Any, optimizer: Any) -> None:
        """Were the gradients shrunk by hand, and still carry the scale?"""
        state = self.loop.optimizers.get(id(optimizer))
        if state is None or not self.loop.dense or not scaler.is_enabled() or not rescaled(state):
            return
        clip = clip_by_hand(state, caller())
        state.window.hand_clip = replace(clip, scaled=True, scale=self.scale) if clip is not None else None

    def _unscaled(self, result: Any, scaler: Any, optimizer: Any) -> None:
        state = self.loop.optimizers.get(id(optimizer))
        if state is not None and scaler.is_enabled():
            state.window.tick("unscale")

    def _scaler_stepping(self, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        state = self.loop.optimizers.get(id(optimizer))
        self._steps_before = state.steps if state is not None else -1
        self.loop.stepping = True  # its no_grad is no validation

    def _scaler_left(self) -> None:
        self.loop.stepping = False

    _steps_before = _stepped = -1
    _skipped = False

    def _scaler_stepped(self, result: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self.loop.stepping = False
        state = self.loop.optimizers.get(id(optimizer))
        self._stepped = state.key if state is not None else -1
        self._skipped = state is not None and state.steps == self._steps_before
        if state is not None and self._skipped:
            state.skipped += 1
            state.idle_cycles = 0
            state.window = Window()

    def _updated(self, result: Any, scaler: Any, new_scale: Any = None) -> None:
        scale = getattr(scaler, "_scale", None)
        if not scaler.is_enabled() or not isinstance(scale, torch.Tensor) or _capturing(scale):
            return
        known = self.scalers.get(scaler)
        new = known is None
        if known is None:
            known = self.scalers[scaler] = Scaler(float(getattr(scaler, "_init_scale", 0.0)))
        if new_scale is not None:
            known.waiting, known.scale = [], 0.0  # set by hand: the next one is not compared with it
            return
        known.waiting.append(scale.item() if scale.is_cpu else scale.detach().clone())
        looked = scale.is_cpu or self.loop.dense or len(known.waiting) >= DEFERRED
        skipped = known.read() if looked else self._skipped
        self._successions.setdefault(self._stepped, Succession()).note(skipped, new=new)
        if looked and (skipped or self.loop.dense):
            self._tell_scale(known, scaler)

    def _tell_scale(self, known: Scaler, scaler: Any) -> None:
        recent = list(known.recent)
        begun, lately = self._successions[self._stepped].lately()
        self.loop.emit(
            ScalerObserved(
                step=self.loop.steps,
                where=caller(),
                scale=known.scale,
                first_scale=known.first,
                updates=known.updates,
                skipped=known.skipped,
                in_a_row=known.in_a_row,
                older=sum(recent[:-HALF_WINDOW]),
                newer=sum(recent[-HALF_WINDOW:]),
                growth_interval=int(scaler.get_growth_interval()),
                begun=begun,
                lately=lately,
            )
        )


def _passes_through(scaler: Any, *args: Any, **kwargs: Any) -> bool:
    """One that is switched off: scripts keep it in their loop for a machine without half precision."""
    return not getattr(scaler, "_enabled", True)


def _capturing(scale: torch.Tensor) -> bool:
    """Inside a CUDA graph: nothing may be added to it."""
    return scale.is_cuda and torch.cuda.is_current_stream_capturing()


def _parameters(parameters: Any) -> set[int] | None:
    """Identities of what was clipped; None when a generator was used up, which is taken as everything."""
    if isinstance(parameters, torch.Tensor):
        return {id(parameters)}
    return {id(p) for p in parameters} if isinstance(parameters, Iterable) and _reusable(parameters) else None


def _reusable(parameters: Any) -> bool:
    return iter(parameters) is not parameters
