"""What a stage does to the script's loop, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from flatline.events import Event, LossComputed, LossesRead, OptimizerStepped
from flatline.meanwhile import Proof
from flatline.session import Session

if TYPE_CHECKING:
    from flatline.sensors.live import LiveSensors

Answer = dict[str, Any]


class Watched(Session):
    """A session that lets a stage hear its events."""

    heard: Callable[[Event], None] = staticmethod(lambda event: None)

    def _emit(self, event: Event) -> None:
        self.heard(event)
        super()._emit(event)

    def _wants(self, event: type[Event]) -> bool:
        return event in (LossComputed, LossesRead, OptimizerStepped) or super()._wants(event)


class Stage:
    """One run of the script. ``stop`` ends it from inside an optimizer's step."""

    name: ClassVar[str]
    steps: ClassVar[int]  # at most, unless asked otherwise
    title: ClassVar[str]

    def __init__(self, session: Watched, *, steps: int, seconds: float, stop: Callable[[], None]) -> None:
        self.session, self.limit, self.stop = session, steps, stop
        self.ends = time.monotonic() + seconds
        self.steps_done = 0
        self.proof = Proof()
        self.missing = ""  # why the stage could not be done
        self._losses: dict[int, float] = {}
        session.heard = self.heard

    @property
    def sensors(self) -> LiveSensors:
        """Those of the session, once torch is there."""
        assert self.session.sensors is not None
        return self.session.sensors

    def attach(self) -> None:
        """Torch is imported, and the sensors are on."""
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(self._before)
        optimizer.register_optimizer_step_post_hook(self._after)

    def heard(self, event: Event) -> None:
        """An event of the loop."""
        if isinstance(event, LossComputed):
            self.proof.computed(event)
        elif isinstance(event, OptimizerStepped):
            self.proof.stepped(event)
        elif isinstance(event, LossesRead):
            self._losses.update(zip(event.steps, event.losses, strict=True))

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.before_step(optimizer)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps_done += 1
        self.after_step(optimizer)
        if self.missing or self.steps_done >= self.limit or time.monotonic() > self.ends:
            self.stop()

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""

    def after_step(self, optimizer: Any) -> None:
        """It stepped."""

    def losses(self) -> list[float]:
        """The mean loss of every step so far."""
        self.sensors.recording.hand_on()
        return [self._losses[step] for step in sorted(self._losses)]

    def answer(self) -> Answer:
        """What was found; called when the script is over, in whatever way."""
        raise NotImplementedError


def facts(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines of an answer that people read: a name, and words."""
    return [(str(name), str(words)) for name, words in answer.get("lines", ())]
