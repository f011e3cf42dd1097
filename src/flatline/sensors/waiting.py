"""How long a training loop waits for its batches, on the steps whose time is taken anyway."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from flatline.events import LoaderWaited
from flatline.sensors.loop import Loop
from flatline.sensors.patching import Patches


class Waiting:
    """A batch is asked for, served, and the next one is asked for: the wait, and the rest of the step.

    On an accelerator the wait hurts only if it has nothing to do: steps at whose end it was still busy are left out.
    """

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self.steps = 0
        self.waited = 0  # nanoseconds
        self.worked = 0
        self._asked = 0
        self._served = 0
        self._wait = 0
        # the iterator that is timed: weak, as its workers and data are the user's to end
        self._of: Callable[[], Any] = _nobody

    def asked(self, iterator: Any, *args: Any) -> bool:
        """The next batch is asked for: nothing to do on most steps."""
        if self._served or self.patches.timed:
            self._note(iterator)
        return False

    def _note(self, iterator: Any) -> None:
        now = time.perf_counter_ns()
        if self._served and self._of() is iterator and _idle():
            self.steps += 1
            self.waited += self._wait
            self.worked += now - self._served
        self._served, self._of = 0, weakref.ref(iterator)
        order = getattr(iterator, "_flatline_order", None)
        first = order is None or not order.served  # workers are being started
        self._asked = now if self.patches.timed and not self.loop.dense and not first else 0

    def served(self, iterator: Any) -> None:
        """It has come."""
        if self._asked and self._of() is iterator:
            self._served = time.perf_counter_ns()
            self._wait = self._served - self._asked
        self._asked = 0

    def tell(self, workers: int) -> None:
        """The run is over."""
        if self.steps:
            self.loop.emit(
                LoaderWaited(
                    step=self.loop.steps,
                    steps=self.steps,
                    wait=self.waited / self.steps / 1e9,
                    share=self.waited / max(1, self.waited + self.worked),
                    workers=workers,
                )
            )


def _nobody() -> None:
    return None


def _idle() -> bool:
    """The accelerator, if there is one, has done all that it was given. Asked without waiting for it."""
    return not torch.cuda.is_initialized() or torch.cuda.current_stream().query()  # type: ignore[no-untyped-call]
