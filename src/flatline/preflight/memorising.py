"""One batch, for ever: a model that cannot learn it by heart cannot learn anything."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch.nn import functional

from flatline.events import Event, LossComputed, OneBatchTrained
from flatline.meanwhile import COMPOSED
from flatline.preflight.hearing import Hearing
from flatline.preflight.serving import Loaders, Repeated
from flatline.preflight.stages import Answer, Steered, configured
from flatline.rules.optimization.batch_not_memorised import BatchNotMemorised, failure, memorised

SAID = {
    "not finite": "it is no number any more",
    "rising": "it rises, though the batch is the same; what the loss is made of may change",
    "swinging": "it swings from step to step: the steps are too large, or the model draws random numbers",
    "falling": "it falls, and was not given the time to end",
    "stuck": "it stands where it began, and the model is small for the batch, or the loss has a floor",
    "plateau": "it came to a stand; the model may be small for the batch, or the batch contradict itself",
}
DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


class Memorising(Steered):
    """Serves the first batch at every step, without dropout, weight decay and schedule, until the loss is gone."""

    name: ClassVar[str] = "memorise"
    steps: ClassVar[int] = 1000  # seed: 500 to 1000

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(Loaders(lambda: 0), *args, **kwargs)
        self.repeated, self.hearing = Repeated(), Hearing()
        self._loss: LossComputed | None = None
        self._rate, self._weights, self._whole = 0.0, 0, 0
        self._foreign: set[int] = set()  # steps, counted from 0, that took another batch
        self._at_first: list[tuple[float, float]] = []  # losses of the first step, and what they cannot fall below

    def attach(self) -> None:
        """Stand at every door through which something new comes."""
        super().attach()
        self.repeated.attach(self.hearing, self.guarded)
        self.hearing.broken = self.failed
        self.hearing.attach()
        for name in DROPOUTS:
            setattr(functional, name, _unchanged)

    def heard(self, event: Event) -> None:
        """The kind of loss decides what it can fall to."""
        super().heard(event)
        if isinstance(event, LossComputed):
            self._loss = event

    @property
    def floor(self) -> float | None:
        """Of the one loss of torch that backward was called on; None if there is another one, or more to it."""
        losses = self.losses()
        if len(self._at_first) != 1 or not losses:
            return None
        value, floor = self._at_first[0]
        return floor if math.isclose(value, losses[0], rel_tol=1e-3) else None

    def before_step(self, optimizer: Any) -> None:
        """The rate that the user set, without the schedule; no decay."""
        super().before_step(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = configured(group)
            group.update({"weight_decay": 0.0} if "weight_decay" in group else {})
        self._rate = float(optimizer.param_groups[0]["lr"])
        self._weights = sum(p.numel() for group in optimizer.param_groups for p in group["params"] if p.requires_grad)

    def after_step(self, optimizer: Any) -> None:
        """From now on the batch of this step comes again."""
        super().after_step(optimizer)
        calls, losses = self.hearing.step()
        models = {id(call.module): call.module for call in calls}
        self._whole = self._whole or sum(p.numel() for module in models.values() for p in module.parameters())
        if not self.loaders.training and not self.repeated.stepped():
            self._foreign.add(self.steps_done - 1)
        elif not self._at_first:
            with torch.no_grad():
                self._at_first = [(float(loss.again(loss.target).mean()), loss.floor()) for loss in losses]
        if self.steps_done % 10 == 0 and memorised(self._above(self.losses())):
            self.stop()

    def losses(self) -> list[float]:
        """Of the one batch: not of the rest of an epoch, which it cannot stand in for, nor of a first step of its own."""
        every = super().losses()
        return (
            [loss for at, loss in enumerate(every) if at not in self._foreign]
            if len(every) == self.steps_done
            else every
        )

    def answer(self) -> Answer:
        """The curve of the loss over one batch."""
        losses = self.losses()
        why = self.missing or self._unknown(losses)
        if why:
            return {"verdict": "not done", "why": why, "losses": losses}
        event = OneBatchTrained(
            step=len(losses),
            losses=self._above(losses),
            floor=self.floor or 0.0,
            kind=self._loss.kind if self._loss is not None else "",
            rate=self._rate,
            weights=self._weights,
            frozen=max(0, self._whole - self._weights),
            guessing=math.log(classes) if self._loss is not None and (classes := self._loss.classes or 0) > 1 else None,
            targets=self._loss.target.total or math.prod(self._loss.shape) if self._loss is not None else 0,
        )
        found, codes = self.judged([event])
        ended = f"loss {losses[0]:.4g} → {losses[-1]:.4g} in {len(losses)} steps"
        ended += f" (its targets cost {event.floor:.4g} at least)" if event.floor > 0 else ""
        if found or memorised(event.losses):
            verdict = "failed" if found else "passed"
            return {
                "verdict": verdict,
                "why": ended,
                "losses": losses,
                "findings": found,
                "checked": codes,
                "failure": failure(event.losses) if found else None,
            }
        kind = failure(event.losses)
        said = SAID[kind] if len(losses) >= BatchNotMemorised.steps_needed else "too few steps to say more"
        return {"verdict": "open", "why": f"{ended}: {said}", "losses": losses, "failure": kind}

    def _unknown(self, losses: list[float]) -> str:
        if len(losses) < 2:
            return "the script took no two optimizer steps whose loss could be read"
        alone = self.proof.spoilt == COMPOSED and self.floor is not None  # label smoothing is made of two
        return "" if alone else self.proof.spoilt

    def _above(self, losses: list[float]) -> tuple[float, ...]:
        """What is left of the loss above what its targets cost."""
        floor = self.floor or 0.0
        return tuple(loss - floor for loss in losses)


def _unchanged(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return input
