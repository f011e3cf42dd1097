"""Runs judged from their logs: the readers' curves through the engine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatline.config import Config
from flatline.engine import Engine, watched
from flatline.events import Curve, CurvesUpdated, Event, RunsCompared, SeedGroup
from flatline.findings import Finding, Report, Unchecked, Value, causes
from flatline.history import median
from flatline.readers._finding import Source, find
from flatline.readers._log import Log
from flatline.readers._settings import classes_in
from flatline.rules import Rule
from flatline.trends import interval, iqm

# in the name of a run, where its seed stands: said so, as CleanRL writes it before a time, or last
SEEDS = (
    r"(?i)(?<![a-z])(seeds?[-_= ]?|s)\d+",
    r"(__)\d+(?=__\d{9,}$)",
    r"((?:^|[-_/ ])(?:run|rep|trial|ppo|sac|td3|dqn|a2c)[-_ ]?)\d+$",
)
FEWEST = 10  # points of a reward
LAST = 10  # the last tenth of them
OUTCOMES = (
    "reward",
    "val_accuracy",
    "val_loss",
    "train_loss",
)  # what groups of seeds are compared by, the first that is there


@dataclass(frozen=True, slots=True)
class Judged:
    """One run: what was read of it, and what was found."""

    event: CurvesUpdated
    format: str
    findings: tuple[Finding, ...]
    hidden_hints: int
    checked: tuple[str, ...]
    not_checked: tuple[Unchecked, ...]

    @property
    def steps(self) -> int:
        """The last step that was logged."""
        return self.event.step

    def curve(self, role: str) -> Curve | None:
        """The curve that was taken for this."""
        return next((curve for curve in self.event.curves if curve.role == role), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the runs of one group of seeds came to: the interquartile mean of their last levels, and its interval."""

    name: str
    runs: int
    quantity: str
    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All runs under some paths."""

    runs: tuple[Judged, ...]
    notes: tuple[str, ...]
    missing: tuple[str, ...]
    compared: Judged | None = None  # what was found of all of them together
    outcomes: tuple[Outcome, ...] = ()  # of runs that differ in their seed, the best first


def diagnose(
    paths: Sequence[str], config: Config, *, chosen: Mapping[str, str] | None = None, running: bool = False
) -> Diagnosis:
    """Find the logs, read them, judge every run; as one that goes on, if it is running."""
    found = find(paths)
    notes = found.notes
    runs: list[Judged] = []
    by_run: dict[Path, list[Source]] = {}
    for source in found.sources:
        by_run.setdefault(source.run, []).append(source)
    for sources in by_run.values():
        count = classes_in((file for source in sources for file in source.files), paths)
        for read, form in _events(sources, chosen, notes):
            event = dataclasses.replace(read, classes=count or read.classes)
            so_far = dataclasses.replace(event, ended=False) if running else event
            runs.append(judge(so_far, config, form=form, notes=notes))
    told = [run for run in runs if any(curve.count > 1 for curve in run.event.curves)] or runs
    compared = _compared(told, config, notes)
    return Diagnosis(tuple(told), tuple(notes), tuple(found.missing), compared, _outcomes(told))


def _events(
    sources: Iterable[Source], chosen: Mapping[str, str] | None, notes: list[str]
) -> list[tuple[CurvesUpdated, str]]:
    """The curves of a run; where several logs tell of it, those of the richest."""
    read: dict[str, list[tuple[CurvesUpdated, str]]] = {}
    for source in sources:
        log = Log()
        source.reader.read_all(source.files, log)
        notes += log.notes
        named = {name: run for name, run in log.runs.items() if run.curves}
        if not named and not log.notes:
            notes.append(f"{source.files[0]}: no curves in it ({source.reader.name})")
        for name, run in named.items():
            run.name = f"{source.run}:{name}" if name else str(source.run)
            event = run.event(source=str(source.files[0]), chosen=chosen)
            read.setdefault(run.name, []).append((event, source.reader.name))
    return [max(told, key=lambda pair: _richness(pair[0])) for told in read.values()]


def _richness(event: CurvesUpdated) -> tuple[int, int]:
    return sum(bool(curve.role) for curve in event.curves), max((curve.count for curve in event.curves), default=0)


def judge(event: CurvesUpdated, config: Config, *, form: str = "", notes: list[str]) -> Judged:
    """Show one run's curves to the rules that watch curves."""
    rules = [rule for rule in config.rules() if CurvesUpdated in watched(rule)]
    known = any(curve.role not in ("", "epoch") for curve in event.curves)
    unknown = "no curve was recognised; --map ROLE=NAME names one"
    unchecked = {rule.code: why for rule in rules if (why := rule.lacks(event) if known else unknown)}
    return _judge(event, event, rules, unchecked, config, form=form, notes=notes)


def _judge(
    shown_event: Event,
    event: CurvesUpdated,
    rules: Sequence[Rule],
    lacking: Mapping[str, str],
    config: Config,
    *,
    form: str,
    notes: list[str],
) -> Judged:
    def broken(code: str, error: Exception) -> None:
        notes.append(f"{code} was switched off: {type(error).__name__}: {error}")

    engine = Engine(rules, on_finding=lambda finding: None, on_broken=broken)
    engine.emit(shown_event)
    unchecked = {**lacking, **{code: f"the rule failed: {why}" for code, why in engine.broken.items()}}
    relevant = causes(engine.findings)
    shown = tuple(finding for finding in relevant if config.shows(finding))
    return Judged(
        event=event,
        format=form,
        findings=shown,
        hidden_hints=len(relevant) - len(shown),
        checked=tuple(rule.code for rule in rules if rule.code not in unchecked),
        not_checked=tuple(Unchecked(code, why) for code, why in unchecked.items()),
    )


# --------------------------------------------------------------------------- several runs


def _compared(runs: Sequence[Judged], config: Config, notes: list[str]) -> Judged | None:
    """Runs that differ in their seed, together; None if there is one run only."""
    rules = [rule for rule in config.rules() if RunsCompared in watched(rule)]
    groups = seed_groups(runs)
    if len(runs) < 2 or not rules:
        return None
    absent = {} if groups else {rule.code: RunsCompared.absent for rule in rules}
    event = RunsCompared(step=max(run.steps for run in runs), groups=groups)
    return _judge(event, CurvesUpdated(step=event.step), rules, absent, config, form="", notes=notes)


def seed_groups(runs: Sequence[Judged], role: str = "reward") -> tuple[SeedGroup, ...]:
    """Runs with a reward, or another outcome, whose names are the same but for the seed."""
    named: dict[str, list[tuple[str, float]]] = {}
    for run in runs:
        curve = run.curve(role)
        if curve is not None and len(curve.values) >= FEWEST:
            final = median(curve.values[-max(1, len(curve.values) // LAST) :])
            named.setdefault(_without_seed(run.event.run), []).append((run.event.run, final))
    if max(map(len, named.values()), default=0) < 2:
        return ()
    return tuple(
        SeedGroup(
            name=name,
            runs=tuple(run for run, _ in pairs),
            quantity=role.replace("_", " "),
            finals=tuple(final for _, final in pairs),
        )
        for name, pairs in named.items()
    )


def _outcomes(runs: Sequence[Judged]) -> tuple[Outcome, ...]:
    groups = next((groups for role in OUTCOMES if (groups := seed_groups(runs, role))), ())
    made = [
        Outcome(group.name, len(group.finals), group.quantity, iqm(group.finals), *interval(group.finals))
        for group in groups
    ]
    return tuple(sorted(made, key=lambda one: one.middle if one.quantity.endswith("loss") else -one.middle))


def _without_seed(name: str) -> str:
    for pattern in SEEDS:
        without, count = re.subn(pattern, r"\1*", name)
        if count:
            return re.sub(r"(?<=__)\d{9,}$", "*", without)
    return name


# --------------------------------------------------------------------------- as a report


def report(diagnosis: Diagnosis) -> Report:
    """One run as it is; of several, every finding names its run."""
    runs = diagnosis.runs
    several = len(runs) > 1
    findings = [named(run, finding) if several else finding for run in runs for finding in run.findings]
    runs = (*runs, diagnosis.compared) if diagnosis.compared is not None else runs
    findings += diagnosis.compared.findings if diagnosis.compared is not None else ()
    checked = dict.fromkeys(code for run in runs for code in run.checked)
    unchecked = {rule.code: rule for run in runs for rule in run.not_checked if rule.code not in checked}
    return Report(
        findings=tuple(sorted(findings, key=lambda finding: finding.rank)),
        checked=tuple(checked),
        not_checked=tuple(unchecked.values()),
        run=_facts(diagnosis.runs),
        notes=diagnosis.notes,
        hidden_hints=sum(run.hidden_hints for run in runs),
    )


def named(run: Judged, finding: Finding) -> Finding:
    """With the name of its run."""
    evidence = {"run": run.event.run, **finding.evidence}
    message, key = f"{run.event.run}: {finding.message}", f"{run.event.run}\0{finding.key}"
    return dataclasses.replace(finding, message=message, key=key, evidence=evidence)


def _facts(runs: Sequence[Judged]) -> dict[str, Value]:
    facts: dict[str, Value] = {"steps": sum(run.steps for run in runs), "runs": len(runs), "command": "diagnose"}
    if len(runs) == 1:
        (run,) = runs
        facts |= {"name": run.event.run, "source": run.event.source, "format": run.format}
        facts |= {curve.role: curve.name for curve in run.event.curves if curve.role}
    return facts
