"""One live run: sensors on, engine fed, findings told."""

from __future__ import annotations

import linecache
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flatline.config import Config, Keeping, silenced
from flatline.engine import Engine, watched
from flatline.events import CurvesUpdated, Event, LinePrinted
from flatline.findings import Finding, Report, Unchecked, Value, causes
from flatline.interruptions import of_the_scripts
from flatline.rules import Rule

if TYPE_CHECKING:
    from flatline.meanwhile import Curves
    from flatline.record.recorder import Recorder
    from flatline.sensors.live import LiveSensors

How = Literal["finished", "crashed", "interrupted", "max-steps", "non-finite"]
Teller = Callable[[Finding], None]


@dataclass(frozen=True, slots=True)
class OnNan:
    """What --on-nan asks for: ``end`` ends the script, ``say`` tells a line at once."""

    mode: Literal["stop", "replay"]
    end: Callable[[], None]
    say: Callable[[str], None]


class Session:
    """Watches this process. ``tell`` is called once for every new finding, the moment it is certain.

    Nothing here raises while the script runs: what goes wrong is a note of the report.
    """

    def __init__(
        self, config: Config, *, budget: float = 0.01, tell: Teller | None = None, keeping: Keeping | None = None
    ) -> None:
        self.config, self.budget = config, budget
        self.engine = Engine(config.rules(), on_finding=self._found, on_broken=self._broken)
        self.notes: list[str] = []
        self.sensors: LiveSensors | None = None
        self.how: How = "finished"
        self.pid = os.getpid()
        self.script: str | None = None
        self.command: Sequence[str] = ()
        self._tell = tell
        self._tried = False
        self.on_nan: OnNan | None = None
        self._max_steps: tuple[int, Callable[[], None]] | None = None
        self._started = time.perf_counter()
        self._seconds: float | None = None
        self._here = os.getcwd() if keeping is not None else ""
        self.recorder = self._recorder(keeping) if keeping is not None else None
        self._told_of_curves: set[tuple[str, str]] = set()
        self.curves = self._curves()

    # ------------------------------------------------------------------ while it runs

    def attach(self) -> None:
        """Put the sensors on. Call when torch is imported."""
        if not self._tried:
            self._tried = True
            self._safely("the sensors could not be put on", self._attach)

    def _attach(self) -> None:
        from flatline.sensors.live import LiveSensors

        self.sensors = LiveSensors(self._emit, wants=self._wants, budget=self.budget, on_broken=self._broken)
        if self._max_steps is not None:
            self.sensors.stop_after(*self._max_steps)
        if self.on_nan is not None:
            self._safely("--on-nan", self._watch_for_nan)
        self.sensors.attach()
        if self.recorder is not None:
            self._record(lambda recorder: recorder.begin(self._first_facts()))
        if self.recorder is not None or (self.curves is not None and self.curves.rules):
            self.sensors.hand_on(self._handed_on)

    def _watch_for_nan(self) -> None:
        from flatline.sensors.replay.watching import NonFiniteWatch

        asked = self.on_nan
        assert asked is not None
        assert self.sensors is not None

        def tell(line: str) -> None:
            self.notes.append(line)
            asked.say(line)

        NonFiniteWatch(self.sensors, asked.mode, end=asked.end, tell=tell, folder=self._claim).attach()

    def _claim(self) -> Path | None:
        """The folder of the record, made if it is not there yet."""
        return self.recorder.place.claim() if self.recorder is not None else None

    def _safely(self, failed: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong with us, the script goes on
            self.notes.append(f"{failed}: {type(error).__name__}: {error}")

    def introduce(self, objects: Sequence[object]) -> None:
        """Models and optimizers that existed before the sensors."""
        if (sensors := self.sensors) is not None:
            self._safely("the given objects could not be read", lambda: sensors.introduce(objects))

    def stop_after(self, steps: int, action: Callable[[], None]) -> None:
        """Call ``action`` after so many optimizer steps."""
        self._max_steps = steps, action

    def finish(self, how: How = "finished", error: BaseException | None = None) -> None:
        """The run is over: the last facts are told, the sensors are taken off."""
        if self._seconds is not None:
            return
        self.how = how
        self._seconds = time.perf_counter() - self._started
        if (sensors := self.sensors) is not None:
            self._judge(lambda curves: self._tell_validation(curves, sensors.loop.steps))
            self._safely("the end of the run was not seen", lambda: sensors.finish(how, error))
            self._judge(lambda curves: curves.finish(sensors.loop.steps, ended=how == "finished"))
            self._safely("the sensors could not be taken off", sensors.detach)
            self._safely("the patches could not be taken off", sensors.patches.undo)
            if (curves := self.curves) is not None:
                self._record(lambda recorder: recorder.loss_is(curves.unproven))
            self._record(lambda recorder: recorder.finish(self.report()))

    def rank(self) -> int | None:
        """This process's rank, as its group says when there is or was one, or its launcher."""
        told = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or ""
        known = self.sensors.rank() if self.sensors is not None else None
        return known if known is not None else int(told) if told.isdigit() else None

    def silence(self) -> None:
        """Tell nothing while the script runs."""
        self._tell = None

    def abandon(self) -> None:
        """This process is somebody else's now: see nothing, say nothing."""
        self._tell = self.recorder = self.curves = None
        if self.sensors is not None:
            self.sensors.patches.active = False

    def _emit(self, event: Event) -> None:
        if isinstance(event, LinePrinted):
            self._judge(lambda curves: self._told(curves, event))
            return
        self.engine.emit(event)
        if self.recorder is not None:
            self._record(lambda recorder: recorder.take(event))
        self._judge(lambda curves: curves.take(event))

    def _told(self, curves: Curves, line: LinePrinted) -> None:
        """Numbers that were printed count as logged."""
        if (told := curves.scalars_in(line)) is not None:
            self._emit(told)

    def _found(self, finding: Finding) -> None:
        with suppress(Exception):  # a line that could not be told is no fault of the rule
            if self._tell is not None and any((f.code, f.key) == (finding.code, finding.key) for f in self.findings):
                self._tell(finding)
        if self.recorder is not None:
            self._record(lambda recorder: recorder.found(finding))
            self._tick()

    def _broken(self, what: str, error: Exception) -> None:
        self.notes.append(f"{what} was switched off: {type(error).__name__}: {error}")

    # ------------------------------------------------------------------ its curves

    def _curves(self) -> Curves | None:
        """Loaded before the script is, like the recorder."""
        try:
            from flatline.meanwhile import Curves
        except ImportError as error:  # a Python without sqlite3
            self.notes.append(f"the curves are not judged: {error}")
            return None
        return Curves(self.engine.rules, budget=self.budget, on_broken=self._broken)

    def _judge(self, action: Callable[[Curves], object]) -> None:
        """Curves that cannot be judged are left alone."""
        if self.curves is not None:
            try:
                action(self.curves)
            except Exception as error:
                if of_the_scripts(error):
                    raise
                self.curves = None
                self._broken("the judgement of curves", error)

    def _handed_on(self) -> float:
        """After the journal was read: write, look at the curves; when to do so again."""
        due = self._tick()
        self._judge(self._look)
        return due if self.curves is None else min(due, self.curves.due)

    def _tell_validation(self, curves: Curves, steps: int) -> None:
        if (told := curves.validation(steps)) is not None:
            self.engine.emit(told)

    def _look(self, curves: Curves) -> None:
        found = curves.look(self.sensors.loop.steps if self.sensors is not None else 0)
        self._record(lambda recorder: recorder.loss_is(curves.unproven))
        for finding in found:
            if (finding.code, finding.key) not in self._told_of_curves:
                self._told_of_curves.add((finding.code, finding.key))
                self._found(finding)

    # ------------------------------------------------------------------ what is kept

    def _recorder(self, keeping: Keeping) -> Recorder | None:
        """Loaded before the script is: its folder may hold a module of the same name as one of the standard library."""
        try:
            from flatline.record.place import Place
            from flatline.record.recorder import Recorder
        except ImportError as error:  # a Python without sqlite3
            self.notes.append(f"the run is not recorded: {error}")
            return None
        place = Place(keeping.folder, keeping.token, shelf=keeping.shelf)
        return Recorder(
            place, on_note=self.notes.append, limit=keeping.limit, rank=self.rank, tensorboard=keeping.tensorboard
        )

    def _wants(self, event: type[Event]) -> bool:
        keepers = (self.engine, self.curves, self.recorder)
        return any(keeper is not None and keeper.wants(event) for keeper in keepers)

    def _record(self, action: Callable[[Recorder], object]) -> None:
        """A recorder that fails is left off."""
        recorder = self.recorder
        if recorder is not None:
            try:
                action(recorder)
            except Exception as error:
                if of_the_scripts(error):
                    raise
                self.recorder = None
                self._broken("the record of the run", error)

    def _tick(self) -> float:
        """Write what waits; when to do so again."""
        steps = self.sensors.loop.steps if self.sensors is not None else 0
        if steps:
            self._record(lambda recorder: recorder.tick(steps))
        return self.recorder.due if self.recorder is not None else math.inf

    def _first_facts(self) -> dict[str, Value]:
        from flatline.record.facts import commit, without_secrets

        known = self._facts()
        facts: dict[str, Value] = {name: known[name] for name in ("script", "python", "torch", "platform")}
        facts["command"] = without_secrets(self.command) or None
        return {**facts, "git_commit": commit(Path(self._here))}

    def forked(self) -> None:
        """In a child after a fork: nothing is told while it runs, and nothing is written to its parent's record."""
        self.silence()
        self.curves = self._curves() if self.curves is not None else None
        if self.recorder is not None:
            self.recorder.forked()

    # ------------------------------------------------------------------ what was found

    @property
    def findings(self) -> list[Finding]:
        """Findings to show, worst first: no consequences of others, none silenced, hints only when asked for."""
        return [f for f in self._relevant() if self.config.shows(f)]

    def _relevant(self) -> list[Finding]:
        found = [*self.engine.findings, *(self.curves.findings if self.curves is not None else ())]
        loud = [f for f in found if not silenced(f, _source(f))]
        return causes(loud)

    def report(self) -> Report:
        """Everything a reporter needs."""
        shown = self.findings
        hidden = sum(f.severity == "hint" for f in self._relevant()) - sum(f.severity == "hint" for f in shown)
        checked, unchecked = self._coverage()
        return Report(
            findings=tuple(shown),
            checked=tuple(checked),
            not_checked=tuple(unchecked),
            run=self._facts(),
            notes=tuple(self.notes),
            hidden_hints=hidden,
        )

    def _coverage(self) -> tuple[list[str], list[Unchecked]]:
        checked, unchecked = [], []
        for rule in self.engine.rules:
            if not any(event.live for event in watched(rule)):
                continue
            if why := self._unchecked(rule):
                unchecked.append(Unchecked(rule.code, why))
            else:
                checked.append(rule.code)
        return checked, unchecked

    def _unchecked(self, rule: Rule) -> str:
        """Why a rule could not judge, or nothing. Those that watch more than curves are not shown curves."""
        events = [event for event in watched(rule) if event.live and event is not CurvesUpdated]
        missing = [event for event in events if event not in self.engine.seen]
        if rule.code in self.engine.broken:
            return f"the rule failed: {self.engine.broken[rule.code]}"
        if self.sensors is None:
            return "the sensors could not be put on" if self._tried else "the script never imported torch"
        if not events:
            return self.curves.unchecked.get(rule.code, "") if self.curves is not None else "the curves are not judged"
        if len(missing) == len(events) and not self._watching_for_nothing(missing):
            return missing[0].absent
        return ""

    def _watching_for_nothing(self, missing: list[type[Event]]) -> bool:
        """Events that only a defect makes: their absence, while the loop ran, is the check."""
        assert self.sensors is not None
        return all(event.defect for event in missing) and self.sensors.loop.steps > 0

    def _facts(self) -> dict[str, Value]:
        torch = sys.modules.get("torch")
        seconds = self._seconds if self._seconds is not None else time.perf_counter() - self._started
        loop = self.sensors.loop if self.sensors is not None else None
        spent = loop.spent / 1e9 if loop is not None else 0.0
        return {
            "steps": loop.steps if loop is not None else 0,
            "seconds": round(seconds, 3),
            "overhead": round(spent / seconds, 5) if seconds > 0 else 0.0,
            "sampled_steps": loop.sampled if loop is not None else 0,
            "measured_steps": loop.measured if loop is not None else 0,
            "how": self.how,
            "script": self.script,
            "python": platform.python_version(),
            "torch": str(getattr(torch, "__version__", "")) or None,
            "platform": platform.platform(),
            **({"record": str(folder)} if (folder := self.recorder and self.recorder.folder) else {}),
            **(self.sensors.seeds.facts() if self.sensors is not None else {}),
        }


def _source(finding: Finding) -> str:
    return linecache.getline(finding.where.file, finding.where.line) if finding.where else ""
