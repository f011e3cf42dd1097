"""Sees gradients being clipped, scaled and unscaled, and where that stands in the loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from flatline.events import ClipFacts
from flatline.sensors.backward import BackwardSensor
from flatline.sensors.callers import caller
from flatline.sensors.loop import Loop, OptimizerState, Window
from flatline.sensors.patching import Patches


class ClipSensor:
    """Patches the public clipping functions and GradScaler."""

    def __init__(self, loop: Loop, patches: Patches, backward: BackwardSensor) -> None:
        self.loop, self.patches, self.backward = loop, patches, backward

    def attach(self) -> None:
        """Patch ``clip_grad_norm_``, ``clip_grad_value_`` and the methods of GradScaler."""
        inner, public = torch.nn.utils.clip_grad, torch.nn.utils
        for name, callback in (("clip_grad_norm_", self._norm_clipped), ("clip_grad_value_", self._value_clipped)):
            if self.patches.around(inner, name, after=callback):
                self._share(public, name, getattr(inner, name))
        scaler = torch.amp.grad_scaler.GradScaler
        self.patches.around(scaler, "scale", after=self._scaled)
        self.patches.around(scaler, "unscale_", after=self._unscaled)
        self.patches.around(scaler, "step", before=self._scaler_stepping, after=self._scaler_stepped)

    def _share(self, owner: Any, name: str, patched: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, patched)
        self.patches.on_undo(lambda: setattr(owner, name, original))

    # ------------------------------------------------------------------ clipping

    def _norm_clipped(self, norm: Any, parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> None:
        self._clipped(parameters, "norm", float(max_norm), norm)

    def _value_clipped(self, result: Any, parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> None:
        self._clipped(parameters, "value", float(clip_value), None)

    def _clipped(self, parameters: Any, kind: str, threshold: float, norm: Any) -> None:
        held = _parameters(parameters)
        for state in list(self.loop.optimizers.values()):
            if (held is not None and held.isdisjoint(state.ids)) or threshold == float("inf"):
                continue
            state.window.tick("clip")
            if self.loop.dense and len(state.window.clips) < 64:
                state.window.clips.append(self._facts(state, kind, threshold, norm))

    def _facts(self, state: OptimizerState, kind: Any, threshold: float, norm: Any) -> ClipFacts:
        tape = state.window.tape
        after_unscale = "unscale" in tape and (
            "backward" not in tape or _last(tape, "unscale") > _last(tape, "backward")
        )
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
        self.backward.raw_losses[id(result)] = outputs, self.scale
        for state in list(self.loop.optimizers.values()):
            state.window.scaled = True

    def _unscaled(self, result: Any, scaler: Any, optimizer: Any) -> None:
        state = self.loop.optimizers.get(id(optimizer))
        if state is not None and scaler.is_enabled():
            state.window.tick("unscale")

    def _scaler_stepping(self, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        state = self.loop.optimizers.get(id(optimizer))
        self._steps_before = state.steps if state is not None else -1

    _steps_before = -1

    def _scaler_stepped(self, result: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        state = self.loop.optimizers.get(id(optimizer))
        if state is not None and state.steps == self._steps_before:
            state.skipped += 1
            state.idle_cycles = 0
            state.window = Window()


def _last(tape: list[Any], what: str) -> int:
    return len(tape) - 1 - tape[::-1].index(what)


def _parameters(parameters: Any) -> set[int] | None:
    """Identities of what was clipped; None when a generator was used up, which is taken as everything."""
    if isinstance(parameters, torch.Tensor):
        return {id(parameters)}
    return {id(p) for p in parameters} if isinstance(parameters, Iterable) and _reusable(parameters) else None


def _reusable(parameters: Any) -> bool:
    return iter(parameters) is not parameters
