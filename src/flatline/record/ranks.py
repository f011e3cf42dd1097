"""The records of all processes of a run, read as one: every finding once, with the ranks that saw it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path

from flatline.findings import Finding, Unchecked, Value
from flatline.record.reading import (
    DAMAGE,
    Grid,
    Happening,
    Histogram,
    Parameter,
    RecordError,
    Recording,
    Series,
    reason_of,
)

OTHERS = "record-*.sqlite"  # beside record.sqlite
MOST = 256  # processes that are read
DRAWN = 7  # further processes whose losses are shown


def files_of(folder: Path, first: Path) -> list[Path]:
    """That of the first process, and the others': ranks in their order, then processes without one."""
    found = {path for path in folder.glob(OTHERS) if path.is_file() and not path.is_symlink()}
    return [first, *sorted(found - {first}, key=lambda path: (rank_of(path) is None, rank_of(path) or 0, path.name))]


def rank_of(path: Path) -> int | None:
    """``record-rank3.sqlite`` -> 3."""
    known = re.fullmatch(r"record-rank(\d{1,9})\.sqlite", path.name)
    return int(known.group(1)) if known else None


class Ranks(Recording):
    """The first process tells of the run; of the others come findings, losses, and what only they have."""

    def __init__(self, folder: Path, first: Path) -> None:
        self.folder, self.first = folder, first
        self.parts: list[Recording] = []
        self._unread: dict[Path, str] = {}
        self._known: set[Path] = set()
        self._join()
        if not self.parts:
            raise RecordError(next(iter(self._unread.values())))
        self.file, self.name = self.parts[0].file, self.parts[0].name

    def _join(self) -> None:
        """Open what is there by now: a rank may come late."""
        for path in files_of(self.folder, self.first)[:MOST]:
            if path in self._known:
                continue
            try:
                self.parts.append(Recording(path))
                self._known.add(path)
                self._unread.pop(path, None)
            except (RecordError, *DAMAGE) as error:  # a damaged part leaves the others readable
                self._unread[path] = str(error) if isinstance(error, RecordError) else f"{path}: {reason_of(error)}"

    def close(self) -> None:
        """Let go of all files."""
        for part in self.parts:
            part.close()

    def version(self) -> int:
        """Another number when one of them wrote something, or joined."""
        self._join()
        return sum(part.version() for part in self.parts)

    def _label(self, part: Recording) -> str:
        rank = self._rank(part)
        return f"rank {rank}" if rank is not None else part.file.stem.replace("record-", "process ")

    def _rank(self, part: Recording) -> int | None:
        ranked = any(rank_of(other.file) is not None for other in self.parts)
        return 0 if ranked and part.file == self.first else rank_of(part.file)

    @property
    def facts(self) -> Mapping[str, Value]:
        """Those of the first; the longest steps and time; an end only if all have ended."""
        known = [part.facts for part in self.parts]
        merged: dict[str, Value] = dict(known[0])
        for name in ("steps", "seconds"):
            numbers = [value for facts in known if isinstance(value := facts.get(name), (int, float))]
            merged |= {name: max(numbers)} if numbers else {}
        if any(facts.get("ended") is None for facts in known):
            merged.pop("ended", None)
        if any(facts.get("how") == "crashed" for facts in known):
            merged["how"] = "crashed"
        return merged | ({"processes": len(known)} if len(known) > 1 else {})

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Each once; its count is that of the process that saw it first."""
        found: dict[tuple[str, str], Finding] = {}
        for part in self.parts:
            rank = self._rank(part)
            for finding in part.findings:
                known = found.get((finding.code, finding.key), finding)
                ranks = known.ranks if rank is None else tuple(sorted({*known.ranks, rank}))
                found[finding.code, finding.key] = dataclasses.replace(known, ranks=ranks)
        return tuple(sorted(found.values(), key=lambda finding: finding.rank))

    @property
    def checked(self) -> tuple[str, ...]:
        """By any of them."""
        return tuple(dict.fromkeys(code for part in self.parts for code in part.checked))

    @property
    def not_checked(self) -> tuple[Unchecked, ...]:
        """By none of them."""
        checked = set(self.checked)
        reasons = {rule.code: rule for part in reversed(self.parts) for rule in part.not_checked}
        return tuple(rule for code, rule in reasons.items() if code not in checked)

    @property
    def notes(self) -> tuple[str, ...]:
        """Each once, and what could not be read."""
        said = dict.fromkeys(note for part in self.parts for note in part.notes)
        more = len(files_of(self.folder, self.first)) - MOST
        return (*said, *self._unread.values(), *([f"{more:,} more processes were not read"] if more > 0 else []))

    def series(self) -> tuple[Series, ...]:
        """All of the first process; of the others their losses, and what no process before them has."""
        found = {series.name: series for series in self.parts[0].series()}
        for at, part in enumerate(self.parts[1:]):
            for series in part.series():
                if series.name not in found:
                    found[series.name] = series
                elif series.name.partition("/")[0] == "loss" and at < DRAWN:
                    name = f"{series.name}/{self._label(part)}"
                    found[name] = dataclasses.replace(series, name=name)
        return tuple(sorted(found.values(), key=lambda series: series.name.startswith("logged/")))

    def quantities(self) -> tuple[str, ...]:
        """Of any of them."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.quantities()))

    def grid(self, quantity: str) -> Grid | None:
        """Layers that only a later process has, as in a pipeline, come behind those of the first."""
        grids = [grid for part in self.parts if (grid := part.grid(quantity)) is not None]
        if not grids:
            return None
        names: dict[str, int] = {}
        rows: dict[int, dict[int, float]] = {}
        for grid in grids:
            new = [(at, names.setdefault(name, len(names))) for at, name in enumerate(grid.names) if name not in names]
            for step, row in zip(grid.steps, grid.values, strict=True):
                rows.setdefault(step, {}).update({place: row[at] for at, place in new})
        steps = sorted(rows)
        wide = range(len(names))
        values = tuple(tuple(rows[step].get(place, math.nan) for place in wide) for step in steps)
        return Grid(quantity=quantity, names=tuple(names), steps=tuple(steps), values=values)

    def histograms(self) -> tuple[Histogram, ...]:
        """Of tensors that no process before has."""
        found: list[Histogram] = []
        for part in self.parts:
            known = {histogram.name for histogram in found}
            found += [histogram for histogram in part.histograms() if histogram.name not in known]
        return tuple(found)

    def parameters(self) -> tuple[Parameter, ...]:
        """By name, of the first process that has it."""
        found: dict[tuple[str, str], Parameter] = {}
        for part in self.parts:
            for one in part.parameters():
                found.setdefault((one.model, one.name), one)
        return tuple(found.values())

    def happenings(self) -> tuple[Happening, ...]:
        """In the order of their steps; the same in several processes once."""
        if len(self.parts) == 1:
            return self.parts[0].happenings()
        found: dict[tuple[int, str, str], Happening] = {}
        for part in self.parts:
            for one in part.happenings():
                found.setdefault((one.step, one.kind, one.text), one)
        return tuple(sorted(found.values(), key=lambda one: one.step))
