"""Does the model look where it must not, and everywhere that it should? Asked on one batch, after a few steps."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, TypeGuard

import torch

from flatline.events import (
    Event,
    FutureProbed,
    InfluenceProbed,
    OutputsUnused,
    PaddingProbed,
    SamplesProbed,
    Spread,
    WeightsSevered,
)
from flatline.preflight.drawn import Drawn
from flatline.preflight.hearing import Call, Hearing, Loss, paths
from flatline.preflight.probes import Known, Probes, labels_permuted
from flatline.preflight.reached import Weights
from flatline.preflight.stages import Answer, Stage
from flatline.preflight.trials import SAME, MadeNan, input_kind

MODELS = 3  # of one step, at most


class Probing(Stage):
    """Lets the script train for a few steps, as what is zero at the start hides what would come through it; then asks."""

    name: ClassVar[str] = "probe"
    steps: ClassVar[int] = 24

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hearing = Hearing()
        self.drawn = Drawn(lambda: self.hearing.outside)
        self.weights = Weights()
        self.newest: tuple[list[Call], list[Loss]] = [], []  # of the last step that was fed with data
        self.known = Known()
        self._lengths: dict[tuple[int, int], set[int]] = {}
        self._called_last = 0
        self._asked: dict[int, set[int]] = {}  # model -> of what it returned, what ever had a gradient
        self._asked_for = False  # the gradient of something that a model returned, by a backward of this step
        self._idle = 0  # steps in a row with a backward, and without that
        self._fed = 0  # the optimizer that stepped after a model was called with data

    def attach(self) -> None:
        """Hear what the loop does."""
        super().attach()
        self.hearing.called, self.hearing.returned = self.guarded(self._called), self.guarded(self._returned)
        self.hearing.broken = self.failed
        self.hearing.attach()
        self.drawn.attach()
        self.weights.attach()

    def _called(self, call: Call) -> None:
        self._called_last = id(call.module)
        self.weights.follow(call.module)
        for at, tensor in enumerate(call.inputs):
            if input_kind(tensor) == "tokens":
                self._lengths.setdefault((id(call.module), at), set()).add(tensor.shape[1])

    def _returned(self, output: Any) -> None:
        asked = self._asked.setdefault(self._called_last, set())
        made = [(at, tensor) for at, (_, tensor) in enumerate(paths(output)) if tensor.requires_grad]
        for at, tensor in made:
            tensor.register_hook(functools.partial(self._reached, asked, at))  # type: ignore[no-untyped-call]
        self._asked_for = self._asked_for or not made  # a class of the user's own, which cannot be looked into

    def _reached(self, asked: set[int], at: int, gradient: torch.Tensor) -> None:
        self._asked_for = True
        asked.add(at)

    def after_step(self, optimizer: Any) -> None:
        """Only the newest step is asked about. Where several optimizers take it, one alone is fed with data."""
        calls, losses = self.hearing.step()
        ran = self.weights.stepped(optimizer)
        if any(call.of_data for call in calls):
            self.newest = calls, losses
            self.known = Known(gathered=self.drawn.gathered)
            self._fed = id(optimizer)
        elif not calls and self._fed not in (0, id(optimizer)):
            self.limit += 1  # the same step of the loop
        if calls:
            self.drawn.gathered = []
        self._idle = 0 if self._asked_for or not calls or not ran else self._idle + 1
        self._asked_for = False

    def answer(self) -> Answer:
        """What the rules make of it, and a line for every question."""
        calls, losses = self.newest
        unused = self._unused(calls)
        known = self._known()
        said = [each for call in _of_data(calls) for each in Probes(call, losses, self.steps_done, known).ask()]
        events, reasons = (
            [*unused, *(e for e in said if isinstance(e, Event))],
            [why for why in said if isinstance(why, str)],
        )
        found, codes = self.judged(events)
        lines = [*map(_told, events), *_permuted(losses)]
        if not events or self.missing:
            why = self.missing or "; ".join(dict.fromkeys(reasons)) or "no model of the script was called with a batch"
            return {"verdict": "not done", "why": why if self.steps_done else "the script took no optimizer step"}
        asked = [e for e in events if isinstance(e, (SamplesProbed, PaddingProbed)) or _foretells(e)]
        changed = [e for e in asked if e.spread.effect > SAME] or any(why.endswith(MadeNan.said) for why in reasons)
        loud = any(each["severity"] != "hint" for each in found)
        return {
            "verdict": "failed" if loud else "open" if changed else "passed",
            "why": f"{len(events)} question{'s' if len(events) > 1 else ''} put to the model after {self.steps_done} steps",
            "lines": [*lines, *([("not asked", "; ".join(dict.fromkeys(reasons)))] if reasons else [])],
            "findings": found,
            "checked": codes,
        }

    def _known(self) -> Known:
        known = self.known
        known.sizes, known.padded, known.lengths = self.drawn.sizes, self.drawn.padded, self._lengths
        known.asked = self._asked
        known.waiting, known.reached = self.weights.waiting(), self.weights.reached
        known.severed = self.weights.severed()
        return known

    def _unused(self, calls: list[Call]) -> list[Event]:
        """Nothing came back to any model at the last steps."""
        if not self._idle:
            return []
        names = tuple(dict.fromkeys(type(call.module).__name__ for call in calls))
        return [OutputsUnused(step=self.steps_done, where=calls[-1].where, models=names, steps=self._idle)]


def _permuted(losses: list[Loss]) -> list[tuple[str, str]]:
    both = labels_permuted(losses, torch.Generator().manual_seed(0))
    if both is None:
        return []
    return [("labels", f"the batch's loss is {both[0]:.4g}; with its labels in another order {both[1]:.4g}")]


def _of_data(calls: list[Call]) -> list[Call]:
    """Each model once, if what it was given comes from no other model."""
    known = {id(call.module): call for call in calls if call.of_data}
    return list(known.values())[:MODELS]


def _foretells(event: Event) -> TypeGuard[FutureProbed]:
    return isinstance(event, FutureProbed) and event.next_token


def _told(event: Event) -> tuple[str, str]:
    """One answer, for people."""
    if isinstance(event, InfluenceProbed):
        return "inputs", "; ".join(
            f"{each.name} ({each.kind}, {' × '.join(map(str, each.shape))}) {_moves(each.effect)}"
            for each in event.inputs
        )
    if isinstance(event, SamplesProbed):
        return "samples", f"exchanging the others {_leaves_alone(event.spread, 'one')}"
    if isinstance(event, FutureProbed):
        asked = f"exchanging positions {event.begin} to {event.length - 1}"
        return "future", f"{asked} {_leaves_alone(event.spread, 'those before')}"
    if isinstance(event, PaddingProbed):
        return (
            "padding",
            f"{'overwriting' if event.overwritten else 'cutting off'} {event.padded} of {event.length} positions "
            + _leaves_alone(event.spread, "the rest"),
        )
    if isinstance(event, WeightsSevered):
        return "weights", f"{', '.join(event.parts)}: the output hangs on them, and no gradient comes to them"
    return "outputs", "reach the loss nowhere"


def _moves(effect: float) -> str:
    return (
        f"moves the output by up to {effect:.2g} standard deviations" if effect > SAME else "does not reach the output"
    )


def _leaves_alone(spread: Spread, rest: str) -> str:
    """What became of what had to stay the same."""
    if spread.effect <= SAME:
        return f"leaves {rest} as {'they are' if rest == 'those before' else 'it is'}"
    return f"changes {rest} by up to {spread.effect:.2g} standard deviations, first in {spread.place}"
