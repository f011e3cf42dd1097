"""Batches made by hand that come back bit for bit in every pass, though the script draws an order for each."""

from __future__ import annotations

from math import gcd

from flatline.events import OrderDealtAgain
from flatline.sensors.callers import caller, users_frame
from flatline.sensors.loop import Loop
from flatline.sensors.seeds import seeded_order

KEPT = 4096  # batches that are remembered
APART = 3  # steps of a pass, at least: a batch that is used twice in a row is none
DIFFERENT = 2  # batches that came back
RETURNS = 3  # looks at one of them


class DealtAgain:
    """Called with what a model in training was given, at closely watched steps."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._asked = False
        self._begin(())

    def _begin(self, optimizers: tuple[int, ...]) -> None:
        self._optimizers = optimizers
        self._first: dict[int, int] = {}  # content -> step
        self._again: set[int] = set()
        self._returns = self._period = 0

    def called(self, model: str, step: int, content: int) -> None:
        """A batch; 0 where it is not known whether it is another one's like."""
        optimizers = tuple(state.key for state in self.loop.states)
        if optimizers != self._optimizers:  # another training may take the same order
            self._begin(optimizers)
        if self._asked or not content or not self.loop.wants(OrderDealtAgain):
            return
        if content not in self._first:
            if len(self._first) < KEPT:
                self._first[content] = step
            return
        self._again.add(content)
        self._returns += 1
        self._period = gcd(self._period, step - self._first[content])
        if self._returns >= RETURNS and len(self._again) >= DIFFERENT and self._period >= APART:
            self._ask(model, step)

    def _ask(self, model: str, step: int) -> None:
        self._asked = True
        seeding, place = seeded_order(users_frame())
        if seeding:
            self.loop.emit(
                OrderDealtAgain(
                    step=step,
                    where=place or caller(),
                    model=model,
                    seeding=seeding,
                    returns=self._returns,
                    period=self._period,
                )
            )
