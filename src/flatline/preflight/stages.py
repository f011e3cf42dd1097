"""What a stage does to the script's loop, and what it answers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from flatline.engine import Engine, watched
from flatline.events import Event, LossComputed, LossesRead, OptimizerStepped
from flatline.meanwhile import Proof
from flatline.preflight.serving import Loaders
from flatline.session import Session

if TYPE_CHECKING:
    from flatline.sensors.live import LiveSensors

Answer = dict[str, Any]


class Watched(Session):
    """A session that lets a stage hear its events."""

    def broken(self, what: str, error: Exception) -> None:
        """A note for the report."""
        self._broken(what, error)

    heard: Callable[[Event], None] = staticmethod(lambda event: None)

    def _emit(self, event: Event) -> None:
        self.heard(event)
        super()._emit(event)

    def _wants(self, event: type[Event]) -> bool:
        return event in (LossComputed, LossesRead, OptimizerStepped) or super()._wants(event)


class Stage:
    """One run of the script. ``stop`` ends it from inside an optimizer's step.

    Whatever of ours is called by the script's loop is ``guarded``: what it raises is told, and never the script's.
    """

    name: ClassVar[str]
    steps: ClassVar[int]  # at most, unless asked otherwise

    def __init__(self, session: Watched, *, steps: int, seconds: float, stop: Callable[[], None]) -> None:
        self.session, self.limit, self._stop = session, steps, stop
        self._stops = 0
        self._stepped: Callable[[Any], object] = self.after_step
        self.leave: Callable[[], object] = lambda: None  # writes the answer, and ends the process
        self._began = time.monotonic()
        self.ends = self._began + seconds
        self.steps_done = 0
        self.proof = Proof()
        self.on_first_step: Callable[[], object] = lambda: None
        self.closure = False  # the optimizer computes the loss itself, several times a step
        self._inside: int | None = None  # losses that were computed since a step began
        self.missing = ""  # why the stage could not be done
        self.notes: list[str] = []
        self._losses: dict[int, float] = {}
        session.heard = self.guarded(self.heard)

    @property
    def sensors(self) -> LiveSensors:
        """Those of the session, once torch is there."""
        assert self.session.sensors is not None
        return self.session.sensors

    def attach(self) -> None:
        """Torch is imported, and the sensors are on."""
        from torch.optim import optimizer

        _never_too_often()
        optimizer.register_optimizer_step_pre_hook(self.guarded(self._before))
        self._stepped = self.guarded(self.after_step)
        optimizer.register_optimizer_step_post_hook(self._after)

    def heard(self, event: Event) -> None:
        """An event of the loop."""
        if isinstance(event, LossComputed):
            self.proof.computed(event)
            if self._inside is not None:
                self._inside += 1
                self.closure = self.closure or self._inside > 1
        elif isinstance(event, OptimizerStepped):
            self.proof.stepped(event)
        elif isinstance(event, LossesRead):
            self._losses.update(zip(event.steps, event.losses, strict=True))

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._inside = 0
        self.before_step(optimizer)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps_done += 1
        self._inside = None
        if self.steps_done == 1:
            self.ends += time.monotonic() - self._began  # imports and data are not its time
            self.on_first_step()
        self._stepped(optimizer)
        if self.missing or self.steps_done >= self.limit or time.monotonic() > self.ends:
            self.stop()

    def stop(self) -> None:
        """End the script; a second time it has caught that, and goes on: end the process."""
        self._stops += 1
        if self._stops > 1:
            self.leave()
        self._stop()

    def guarded(self, hook: Callable[..., Any], otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """A hook that never raises. ``otherwise`` makes what it returns where it cannot, and once it could not."""
        whole = True

        @functools.wraps(hook)
        def safe(*args: Any, **kwargs: Any) -> Any:
            nonlocal whole
            if whole:
                try:
                    return hook(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - it would be taken for the script's
                    whole = False
                    self.failed(_name(hook), error)
            return otherwise(*args, **kwargs) if otherwise is not None else None

        return safe

    def failed(self, what: str, error: Exception) -> None:
        """Something of ours did not work: the stage cannot be relied on."""
        self.notes.append(f"{self.name}: {what} was switched off: {type(error).__name__}: {error}")
        self.missing = self.missing or f"flatline itself failed here ({what}: {type(error).__name__}: {error})"

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""

    def after_step(self, optimizer: Any) -> None:
        """It stepped."""

    @property
    def over_early(self) -> bool:
        """The script came to its end before the stage did."""
        return self.steps_done < self.limit and time.monotonic() <= self.ends

    def losses(self) -> list[float]:
        """The mean loss of every step so far."""
        self.sensors.recording.hand_on()
        return [self._losses[step] for step in sorted(self._losses)]

    def judged(self, events: Sequence[Event]) -> tuple[list[Answer], list[str]]:
        """What the rules make of a stage's own events alone, as plain values, and the codes of those rules."""
        engine = Engine(self.session.config.rules(), on_finding=lambda finding: None, on_broken=self.session.broken)
        for event in events:
            engine.emit(event)
        kinds = {type(event) for event in events}
        return [asdict(found) for found in engine.findings], [
            r.code for r in engine.rules if kinds.intersection(watched(r))
        ]

    def answer(self) -> Answer:
        """What was found; called when the script is over, in whatever way."""
        raise NotImplementedError

    def told(self) -> Answer:
        """The answer, whatever becomes of it; what failed is told with it."""
        answer = self.guarded(self.answer)() or {"verdict": "not done", "why": self.missing}
        if self.missing and not answer.get("findings"):
            answer |= {"verdict": "not done", "why": self.missing}
        return {**answer, "notes": self.notes} if self.notes else answer


class Steered(Stage):
    """A stage that feeds the loop and sets the rate of its one optimizer."""

    def __init__(self, loaders: Loaders, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loaders = loaders
        self._optimizers: set[int] = set()

    def attach(self) -> None:
        """Stand before the loaders."""
        super().attach()
        self.loaders.attach()

    def before_step(self, optimizer: Any) -> None:
        """What a stage does to one optimizer says nothing about several."""
        self._optimizers.add(id(optimizer))
        if len(self._optimizers) > 1:
            self.missing = "several optimizers train against or beside each other"

    def after_step(self, optimizer: Any) -> None:
        """The batches so far were learned from."""
        self.loaders.learned()


def _name(hook: Any) -> str:
    """In words."""
    return str(getattr(getattr(hook, "func", hook), "__name__", "a hook")).strip("_").replace("_", " ")


def configured(group: Mapping[str, Any]) -> Any:
    """The rate that the user set, whatever a schedule made of it since."""
    return group.get("max_lr", group.get("initial_lr", group["lr"]))


def _never_too_often() -> None:
    """Loaders that never end drive schedules beyond the steps that they were built for."""
    from torch.optim import lr_scheduler

    kinds = [kind for kind in vars(lr_scheduler).values() if isinstance(kind, type) and "step" in vars(kind)]
    for kind in kinds:
        setattr(kind, "step", _forgiving(vars(kind)["step"]))  # noqa: B010


def _forgiving(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except ValueError as error:
            if "Tried to step" not in str(error):
                raise

    return stepped
