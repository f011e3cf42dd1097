"""``flatline diagnose``: judge finished or running jobs from their logs."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import sleep

from flatline import config, telling
from flatline.afterwards import Diagnosis, Judged, Outcome, diagnose, named, report
from flatline.cli import fail, writable
from flatline.findings import Finding, Report
from flatline.readers._roles import ROLES
from flatline.reporters._plain import one_line
from flatline.reporters.text import line

INTERVAL = 5.0  # seconds between two looks at a running job
PATIENCE = 20  # times as long as a look took: 5 % of one core
SHOWN_NAME = 48  # characters of a run's name in the table


def run(options: argparse.Namespace) -> int:
    """Exit status 1 for --fail-on, 2 when there was nothing to judge."""
    try:
        settings, level = _settings(options)
        chosen = _chosen(options.map)
    except config.ConfigError as error:
        return fail(str(error))
    if options.output is not None and (why := writable(options.output)):
        return fail(why)

    def look() -> Diagnosis:
        return diagnose(options.paths, settings, chosen=chosen, running=options.follow)

    diagnosis = _follow(look) if options.follow else look()
    if diagnosis.missing or not diagnosis.runs:
        return fail("; ".join(diagnosis.missing) or _nothing(diagnosis, options.paths))
    if unknown := _unknown(diagnosis, chosen):
        return fail(unknown)
    made = report(diagnosis)
    telling.put(_rendered(diagnosis, made, options), options.output)
    return int(made.reaches(level))


def _follow(look: Callable[[], Diagnosis]) -> Diagnosis:
    """Look again and again until Ctrl-C, and tell every finding once."""
    told: set[tuple[str, str, str]] = set()
    diagnosis = Diagnosis((), (), ())
    try:
        while True:
            started = time.monotonic()
            diagnosis = look()
            if diagnosis.missing:
                return diagnosis
            for run in diagnosis.runs:
                for finding in run.findings:
                    _tell(run, finding, told)
            sleep(max(INTERVAL, PATIENCE * (time.monotonic() - started)))
    except KeyboardInterrupt:
        return diagnosis


def _tell(run: Judged, finding: Finding, told: set[tuple[str, str, str]]) -> None:
    identity = run.event.run, finding.code, finding.key
    if identity not in told:
        told.add(identity)
        print(line(named(run, finding)), file=sys.stderr, flush=True)


def _settings(options: argparse.Namespace) -> tuple[config.Config, str]:
    """The command line over pyproject.toml."""
    try:
        table = config.load(Path.cwd())
    except OSError:  # the directory was removed
        table = {}
    select, ignore = config.codes(options.select, "--select"), config.codes(options.ignore, "--ignore")
    settings = config.build(table, select=select, ignore=ignore, hints=options.hints)
    return settings, str(options.fail_on or table.get("fail-on", "never"))


def _nothing(diagnosis: Diagnosis, paths: Sequence[str]) -> str:
    why = f" ({'; '.join(diagnosis.notes[:3])})" if diagnosis.notes else ""
    return f"no log was found in {', '.join(paths)}{why}"


def _chosen(given: Sequence[str]) -> dict[str, str]:
    """``["loss=train/ce"]`` -> ``{"train_loss": "train/ce"}``."""
    short = {"loss": "train_loss", "lr": "learning_rate", "grad_norm": "gradient_norm", "accuracy": "val_accuracy"}
    chosen: dict[str, str] = {}
    for text in given:
        role, equals, name = text.partition("=")
        role = short.get(role, role).replace("-", "_")
        if not equals or not name or role not in ROLES:
            raise config.ConfigError(f"--map must be ROLE=NAME, with one of {', '.join(ROLES)}; it is {text!r}")
        chosen[role] = name
    return chosen


def _unknown(diagnosis: Diagnosis, chosen: Mapping[str, str]) -> str:
    """A chosen name that no run has."""
    names = {curve.name for run in diagnosis.runs for curve in run.event.curves}
    lost = [name for name in chosen.values() if name not in names]
    return (
        one_line(f"--map: no curve is named {lost[0]!r}; there are {', '.join(sorted(names))}", limit=400)
        if lost
        else ""
    )


# --------------------------------------------------------------------------- as text


def _rendered(diagnosis: Diagnosis, made: Report, options: argparse.Namespace) -> str:
    if options.format != "text":
        return str(import_module(f"flatline.reporters.{options.format}").render(made))
    from flatline.reporters import text

    opening = _one(diagnosis.runs[0], verbose=options.verbose) if len(diagnosis.runs) == 1 else _table(diagnosis.runs)
    body = text.render(made, verbose=options.verbose, width=telling.width(), colour=telling.colour(options.output))
    return "\n".join([*opening, *_outcomes(diagnosis.outcomes), body])


def _one(run: Judged, *, verbose: bool) -> Iterator[str]:
    """What was read, and what each curve was taken for."""
    yield one_line(f"{run.event.run} · {run.format} · {len(run.event.curves)} curves to step {run.steps:,}")
    taken = [f"{curve.role.replace('_', ' ')} = {curve.name}" for curve in run.event.curves if curve.role]
    yield "  " + one_line(" · ".join(taken) or "no curve was recognised; --map loss=NAME says which is the loss")
    rest = [curve.name for curve in run.event.curves if not curve.role]
    if rest and (verbose or not taken):
        yield "  " + one_line(f"not recognised: {', '.join(rest)}", limit=2000 if verbose else 300)


def _table(runs: Sequence[Judged]) -> Iterator[str]:
    yield from _aligned([("run", "steps", "train loss", "val loss", "findings"), *map(_row, runs)])


def _outcomes(told: Sequence[Outcome]) -> Iterator[str]:
    """What runs of the same settings and other seeds came to; few seeds say little, and it shows."""
    if told:
        rows = [
            (
                _shortened(one_line(one.name)),
                f"{one.runs:,}",
                f"{one.middle:.4g}",
                f"{one.low:.4g} to {one.high:.4g}" if one.runs > 1 else "one seed has none",
            )
            for one in told
        ]
        head = ("same but for the seed", "runs", f"final {told[0].quantity}, IQM", "95 % interval")
        yield from ("", *_aligned([head, *rows]), "")


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first and the last column to the left, numbers between them to the right."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *between, last in rows:
        cells = (f"{cell:>{wide[at]}}" for at, cell in enumerate(between, 1))
        yield "  ".join((f"{first:<{wide[0]}}", *cells, last)).rstrip()


def _row(run: Judged) -> tuple[str, str, str, str, str]:
    codes = ", ".join(dict.fromkeys(finding.code for finding in run.findings))
    return (
        _shortened(one_line(run.event.run)),
        f"{run.steps:,}",
        _last(run, "train_loss"),
        _last(run, "val_loss"),
        codes or "none",
    )


def _shortened(name: str) -> str:
    return name if len(name) <= SHOWN_NAME else "…" + name[1 - SHOWN_NAME :]


def _last(run: Judged, role: str) -> str:
    """The newest value, or that it is not a number any more."""
    curve = run.curve(role)
    if curve is None or not (curve.values or curve.not_finite):
        return "-"
    if curve.not_finite and curve.not_finite[-1] >= (curve.steps[-1] if curve.steps else -math.inf):
        return "not finite"
    return f"{curve.values[-1]:.4g}"
