"""Does the model look where it must not, and everywhere that it should? Asked on one batch, after a few steps."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from flatline.events import Event, FutureProbed, InfluenceProbed, OutputsUnused, PaddingProbed, SamplesProbed, Spread
from flatline.preflight.hearing import Call, Hearing, Loss, paths
from flatline.preflight.probes import Probes, labels_permuted
from flatline.preflight.stages import Answer, Stage
from flatline.preflight.trials import SAME

MODELS = 3  # of one step, at most


class Probing(Stage):
    """Lets the script train for a few steps, as what is zero at the start hides what would come through it; then asks."""

    name: ClassVar[str] = "probe"
    steps: ClassVar[int] = 24

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hearing = Hearing()
        self.newest: tuple[list[Call], list[Loss]] = [], []  # of the last step
        self._asked_for = False  # the gradient of something that a model returned, by a backward of this step
        self._idle = 0  # steps in a row without that

    def attach(self) -> None:
        """Hear what the loop does."""
        super().attach()
        self.hearing.called = self._called
        self.hearing.attach()

    def _called(self, call: Call) -> None:
        made = [tensor for _, tensor in paths(call.output) if tensor.requires_grad]
        for tensor in made:
            tensor.register_hook(self._reached)  # type: ignore[no-untyped-call]
        self._asked_for = self._asked_for or not made  # a class of the user's own, which cannot be looked into

    def _reached(self, gradient: torch.Tensor) -> None:
        self._asked_for = True

    def after_step(self, optimizer: Any) -> None:
        """Only the newest step is asked about."""
        self.newest = self.hearing.step()
        self._idle = 0 if self._asked_for or not self.newest[0] else self._idle + 1
        self._asked_for = False

    def answer(self) -> Answer:
        """What the rules make of it, and a line for every question."""
        calls, losses = self.newest
        unused = self._unused(calls)
        said = [each for call in _of_data(calls) for each in Probes(call, losses, self.steps_done).ask()]
        events, reasons = (
            [*unused, *(e for e in said if isinstance(e, Event))],
            [why for why in said if isinstance(why, str)],
        )
        found, codes = self.judged(events)
        lines = [*map(_told, events), *_permuted(losses)]
        if not events:
            why = "; ".join(dict.fromkeys(reasons)) or "no model of the script was called with a batch"
            return {"verdict": "not done", "why": why if self.steps_done else "the script took no optimizer step"}
        changed = [e for e in events if isinstance(e, (SamplesProbed, PaddingProbed)) and e.spread.effect > SAME]
        return {
            "verdict": "failed" if found else "open" if changed else "passed",
            "why": f"{len(events)} question{'s' if len(events) > 1 else ''} put to the model after {self.steps_done} steps",
            "lines": [*lines, *([("not asked", "; ".join(dict.fromkeys(reasons)))] if reasons else [])],
            "findings": found,
            "checked": codes,
        }

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
            f"cutting {event.padded} of {event.length} positions off {_leaves_alone(event.spread, 'the rest')}",
        )
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
