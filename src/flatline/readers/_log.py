"""What a reader fills: the curves of the runs that it finds in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from flatline.events import Curve, CurvesUpdated, Role
from flatline.readers._numbers import is_clock
from flatline.readers._roles import role_of, roles
from flatline.readers._thinning import MOST, Stretch, Thinner

MOST_CURVES = 5000  # of a run; the rest is left out
MOST_UNKNOWN = 256  # stretches of a curve of which nobody knows what it is
PLACEHOLDER = 0.9  # nans for each number from which on they stand for "not measured"


class RunLog:
    """The curves of one run, while they are read."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.curves: dict[str, Thinner] = {}
        self.ended = True
        self.row = 0.0
        self.left_out = 0

    def extend(self, name: str, steps: Sequence[float], rows: Sequence[float], values: Sequence[float]) -> None:
        """Points of one curve, in the order in which they were logged."""
        thinner = self.curves.get(name)
        if thinner is None:
            if len(self.curves) >= MOST_CURVES or is_clock(name):
                self.left_out += 1
                return
            thinner = self.curves[name] = Thinner(MOST if role_of(name) else MOST_UNKNOWN)
        thinner.extend(steps, rows, values)

    def add(self, name: str, step: float, value: float) -> None:
        """One point, of the current row."""
        self.extend(name, (step,), (self.row,), (value,))

    def event(self, *, source: str = "", chosen: Mapping[str, str] | None = None) -> CurvesUpdated:
        """All that was read, with the role of each curve."""
        known = roles({name: len_of(thinner) for name, thinner in self.curves.items()}, chosen)
        parts = {name: thinner.finished() for name, thinner in self.curves.items()}
        telling = [name for name in self.curves if name in known] or list(self.curves)
        by_row = any(self._is_uncounted(name, parts[name]) for name in telling)
        made = [_curve(name, thinner, known.get(name, ""), by_row=by_row) for name, thinner in self.curves.items()]
        made.sort(key=lambda curve: not curve.role)
        return CurvesUpdated(
            run=self.name,
            curves=tuple(curve for curve in made if curve.values or curve.not_finite),
            ended=self.ended,
            source=source,
            step=int(max((self._last_step(curve, by_row=by_row) for curve in made if curve.steps), default=0)),
        )

    def _is_uncounted(self, name: str, parts: list[list[Stretch]]) -> bool:
        """Whether the steps of a curve do not tell where the run was."""
        return self.curves[name].disordered or _counts_within(parts) or _stands_still(parts)

    def _last_step(self, curve: Curve, *, by_row: bool) -> float:
        return curve.steps[-1] if by_row else self.curves[curve.name].last


class Log:
    """All runs of one source."""

    def __init__(self) -> None:
        self.runs: dict[str, RunLog] = {}
        self.notes: list[str] = []

    def run(self, name: str = "") -> RunLog:
        """A run of that name; a file that holds one only has no name for it."""
        if name not in self.runs:
            self.runs[name] = RunLog(name)
        return self.runs[name]


def len_of(thinner: Thinner) -> int:
    """Finite points."""
    return thinner.count - thinner.nans - thinner.infinities


# --------------------------------------------------------------------------- steps that went back


def _counts_within(parts: list[list[Stretch]]) -> bool:
    """Whether the step is a counter that begins again with each epoch, while the curve goes on where it was."""
    parts = [part for part in parts if part]
    if len(parts) < 2 or any(part[0].step > _second(parts[0]) for part in parts):
        return False
    start = parts[0][0].median
    goes_on = [abs(b[0].median - a[-1].median) < abs(b[0].median - start) for a, b in pairwise(parts)]
    return sum(goes_on) * 2 > len(goes_on)


def _stands_still(parts: list[list[Stretch]]) -> bool:
    """Whether most points share their step with the one before, as with epochs that are logged for each batch."""
    steps = [stretch.step for part in parts for stretch in part]
    return len(steps) > 4 and sum(a == b for a, b in pairwise(steps)) * 2 > len(steps)


def _second(part: list[Stretch]) -> float:
    return part[1].step if len(part) > 1 else part[0].step


def _kept(parts: list[list[Stretch]]) -> tuple[list[Stretch], list[float]]:
    """A run that was resumed overrules what it had logged beyond that step; and where each part began."""
    kept: list[Stretch] = []
    starts = []
    for part in parts:
        starts.append(part[0].step if part else float("-inf"))
        while part and kept and kept[-1].step >= part[0].step:
            kept.pop()
        kept += part
    return kept, starts


def _curve(name: str, thinner: Thinner, role: Role, *, by_row: bool) -> Curve:
    parts = thinner.finished()
    kept, starts = _kept(parts) if not by_row else ([stretch for part in parts for stretch in part], [])
    kept.sort(key=lambda stretch: stretch.row if by_row else stretch.step)
    thinned = any(stretch.count > 1 for stretch in kept)
    return Curve(
        name=name,
        role=role,
        steps=tuple(stretch.row if by_row else stretch.step for stretch in kept),
        values=tuple(stretch.median for stretch in kept),
        lows=tuple(stretch.low for stretch in kept) if thinned else (),
        highs=tuple(stretch.high for stretch in kept) if thinned else (),
        not_finite=_not_finite(thinner, starts, by_row=by_row),
        count=thinner.count,
    )


def _not_finite(thinner: Thinner, starts: list[float], *, by_row: bool) -> tuple[float, ...]:
    if _is_placeholder(thinner):
        return ()
    if by_row:
        return tuple(bad.row for bad in thinner.bad)
    return tuple(bad.step for bad in thinner.bad if not any(start <= bad.step for start in starts[bad.part + 1 :]))


def _is_placeholder(thinner: Thinner) -> bool:
    """nan between numbers again and again, or before the first one, means that nothing was measured there."""
    numbers = len_of(thinner)
    first = min((part[0].row for part in thinner.parts if part), default=float("inf"))
    leading = sum(bad.row < first for bad in thinner.bad)
    between = thinner.recoveries >= 2 and thinner.nans >= PLACEHOLDER * numbers
    return not thinner.infinities and numbers > 0 and (between or leading == len(thinner.bad))
