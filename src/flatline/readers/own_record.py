"""Records of flatline's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._lines import Unreadable
from flatline.readers._log import Log
from flatline.record.ranks import rank_of
from flatline.record.reading import FILE, RecordError, Series, open_record
from flatline.record.writing import APPLICATION

MAGIC = b"SQLite format 3\0"
NAMES = {"loss": "train_loss"}  # what backward was called on
UNPROVEN = {"loss": "loss under backward"}  # where nothing shows that it ought to fall


class OwnRecord(Reader):
    """What ``flatline run`` keeps: scalars of flatline's, and those that the script logged."""

    name = "flatline"
    known_as = r"^record(-[\w]+)?\.sqlite$"
    stands_for_folder = r"^record(-[\w]+)?\.sqlite$"

    def claims(self, head: Head) -> int:
        """By the number in its header."""
        return 2 if head.start.startswith(MAGIC) and head.start[68:72] == APPLICATION.to_bytes(4, "big") else 0

    def read_all(self, paths: Sequence[Path], log: Log) -> None:
        """The first process first: its file is the one without a number."""
        super().read_all(sorted(paths, key=lambda path: (path.name != FILE, rank_of(path) or 0, path.name)), log)

    def read(self, path: Path, log: Log) -> None:
        """Series by series. Of several ranks the first that has a curve tells it."""
        try:
            with open_record(path) as record:
                run = log.run()
                run.ended = run.ended and record.ended
                known = UNPROVEN if record.facts.get("loss_unproven") else NAMES
                for series in record.series():
                    name = known.get(series.name, series.name.removeprefix("logged/"))
                    if name not in run.curves:
                        run.extend(name, *_points(series))
        except RecordError as error:
            raise Unreadable(str(error).removeprefix(f"{path}: ")) from None


def _points(series: Series) -> tuple[list[float], list[float], list[float]]:
    """Steps, rows and values; nan where nothing finite was recorded."""
    points = sorted(_pairs(series), key=lambda point: point[0])
    return [step for step, _ in points], [float(row) for row in range(len(points))], [value for _, value in points]


def _pairs(series: Series) -> Iterable[tuple[float, float]]:
    """A stretch gives its extremes, too, at steps within it."""
    steps = series.steps
    for at, (step, value) in enumerate(zip(steps, series.values, strict=True)):
        if series.lows and series.lows[at] < series.highs[at] and at + 1 < len(steps):
            third = (steps[at + 1] - step) / 3
            yield from ((step, value), (step + third, series.lows[at]), (step + 2 * third, series.highs[at]))
        elif not math.isnan(value):
            yield step, value
    yield from ((step, math.nan) for step in series.not_finite)
