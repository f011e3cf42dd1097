"""Reads a crash: which torch function raised, with which tensors."""

from __future__ import annotations

import re
import traceback
from types import FrameType
from typing import Any

import torch

from flatline.events import CrashTensor, ScriptCrashed
from flatline.sensors.callers import users_line
from flatline.sensors.loop import Loop
from flatline.sensors.models import ModelSensor
from flatline.sensors.sources import severing_call
from flatline.sensors.tree import parameters

FUNCTIONS = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss")
SHOWN = 5


class CrashSensor:
    """Turns the exception that ended the script into facts. No patch: a traceback keeps its frames' locals."""

    def __init__(self, loop: Loop, models: ModelSensor) -> None:
        self.loop, self.models = loop, models

    def read(self, error: BaseException) -> ScriptCrashed:
        """The facts of a crash."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        names = tuple(frame.f_code.co_name for frame in frames)
        where = users_line(error.__traceback__)
        failing = next((frame for frame in reversed(frames) if frame.f_code.co_name in FUNCTIONS), None)
        ignore = failing.f_locals.get("ignore_index") if failing is not None else None
        hint, place = severing_call(where) if "backward" in names else ("", None)
        return ScriptCrashed(
            step=self.loop.step,
            where=where,
            error=type(error).__name__,
            message=str(error),
            functions=names,
            tensors=_tensors(failing),
            ignore_index=ignore if isinstance(ignore, int) else None,
            forward_without_grad=self.models.grad_forward_without,
            all_frozen=self._all_frozen(),
            source_hint=hint,
            hint_where=place,
            in_backward="backward" in names,
            checkpoint_keys=tuple(re.findall(r"size mismatch for ([\w.]+):", str(error))),
        )

    def _all_frozen(self) -> bool:
        alive = [m for m in (model.ref() for model in self.models.known) if m is not None]
        found = [p for module in alive for p in parameters(module)]
        return bool(found) and not any(p.requires_grad for p in found)


def _tensors(frame: FrameType | None) -> dict[str, CrashTensor]:
    if frame is None:
        return {}
    found = {name: frame.f_locals.get(name) for name in ("input", "target")}
    ignored = frame.f_locals.get("ignore_index", -100)
    tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    return {name: _describe(value, found.get("input"), ignored) for name, value in tensors.items()}


def _describe(tensor: torch.Tensor, scores: Any, ignored: Any) -> CrashTensor:
    try:
        low, high = (float(v) for v in torch.aminmax(tensor.detach())) if tensor.numel() else (None, None)
    except RuntimeError:  # a device that failed, or a dtype without an order
        low = high = None
    return CrashTensor(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        low=low,
        high=high,
        bad=_out_of_range(tensor, scores, ignored),
        requires_grad=tensor.requires_grad,
    )


def _out_of_range(target: torch.Tensor, scores: Any, ignored: Any) -> str:
    """Class indices outside [0, C), with their positions."""
    if target is scores or not isinstance(scores, torch.Tensor) or target.is_floating_point() or scores.dim() < 1:
        return ""
    classes = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
    flat = target.detach().reshape(-1)
    bad = ((flat < 0) | (flat >= classes)) & (flat != ignored)
    places = bad.nonzero().reshape(-1)[:SHOWN].tolist()
    return ", ".join(f"{int(flat[place])} at position {place}" for place in places)
