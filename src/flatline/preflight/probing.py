"""Does the model look where it must not, and everywhere that it should? Asked on one batch, after a few steps."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from flatline.engine import watched
from flatline.events import Event, FutureProbed, InfluenceProbed, PaddingProbed, SamplesProbed, Spread
from flatline.preflight.hearing import Call, Hearing, Loss
from flatline.preflight.probes import Probes, labels_permuted
from flatline.preflight.stages import Answer, Stage
from flatline.preflight.trials import SAME, leaves

MODELS = 3  # of one step, at most


class Probing(Stage):
    """Lets the script train for a few steps, as what is zero at the start hides what would come through it; then asks."""

    name: ClassVar[str] = "probe"
    steps: ClassVar[int] = 24

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[Call] = []
        self.computed: list[Loss] = []
        self.newest: tuple[list[Call], list[Loss]] = [], []  # of the last step

    def attach(self) -> None:
        """Hear what the loop does."""
        super().attach()
        hearing = Hearing()
        hearing.called = self._called
        hearing.computed = self._computed
        hearing.attach()

    def _called(self, call: Call) -> None:
        self.calls.append(call)

    def _computed(self, loss: Loss) -> None:
        self.computed.append(loss)

    def after_step(self, optimizer: Any) -> None:
        """Only the newest step is asked about."""
        self.newest = self.calls, self.computed
        self.calls, self.computed = [], []

    def answer(self) -> Answer:
        """What the rules make of it, and a line for every question."""
        calls, losses = self.newest
        said = [each for call in _of_data(calls) for each in Probes(call, losses, self.steps_done).ask()]
        events, reasons = [e for e in said if isinstance(e, Event)], [why for why in said if isinstance(why, str)]
        judging = {r.code for r in self.session.engine.rules if any(kind in watched(r) for kind in map(type, events))}
        for event in events:
            self.session.engine.emit(event)
        found = [dataclasses.asdict(each) for each in self.session.findings if each.code in judging]
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
            "checked": sorted(judging),
        }


def _permuted(losses: list[Loss]) -> list[tuple[str, str]]:
    both = labels_permuted(losses, torch.Generator().manual_seed(0))
    if both is None:
        return []
    return [("labels", f"the batch's loss is {both[0]:.4g}; with its labels in another order {both[1]:.4g}")]


def _of_data(calls: list[Call]) -> list[Call]:
    """Each model once, if what it was given comes from no other model."""
    known = {
        id(call.module): call for call in calls if all(t.grad_fn is None for t in leaves((call.args, call.kwargs)))
    }
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
    return type(event).__name__, ""


def _moves(effect: float) -> str:
    return (
        f"moves the output by up to {effect:.2g} standard deviations" if effect > SAME else "does not reach the output"
    )


def _leaves_alone(spread: Spread, rest: str) -> str:
    """What became of what had to stay the same."""
    if spread.effect <= SAME:
        return f"leaves {rest} as {'they are' if rest == 'those before' else 'it is'}"
    return f"changes {rest} by up to {spread.effect:.2g} standard deviations, first in {spread.place}"
