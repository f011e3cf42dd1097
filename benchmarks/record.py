"""What the record of a run costs: time for a step, size of the file, time to read it. No torch."""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from flatline.record import open_record
from flatline.record.writing import Writer

GOAL, LONGEST = 50.0, 50.0  # microseconds for a step, on average; milliseconds for a flush


def measure(scalars: int, steps: int, flush_every: int) -> bool:
    """Print a line; whether both are within."""
    names = tuple(f"scalar {at}" for at in range(scalars))
    rows = [[random.random() for _ in names] for _ in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.sqlite"
        writer = Writer(lambda: file, on_note=print)
        wall, taken = [], []
        for step in range(steps):
            started, computed = time.perf_counter(), time.thread_time()
            writer.row("scalars", names, step, rows[step % 64])
            if step % flush_every == 0:  # as often as once a second would be
                writer.flush()
            taken.append((time.thread_time() - computed) * 1e6)
            wall.append((time.perf_counter() - started) * 1e6)
        writer.close()
        size = file.stat().st_size / 1e6
        started = time.perf_counter()
        with open_record(folder) as record:
            points = sum(len(series.steps) for series in record.series())
        read = time.perf_counter() - started
    mean, worst = statistics.fmean(taken), max(taken) / 1e3
    within = mean <= GOAL and worst <= LONGEST
    print(
        f"{scalars:4} scalars x {steps:,} steps: {mean:.1f} us computed a step on average ({statistics.fmean(wall):.1f} us "
        f"passed, median {statistics.median(wall):.2f}), longest flush {worst:.0f} ms ({max(wall) / 1e3:.0f} ms passed)"
        f"{'' if within else ' ABOVE'}\n     {size:.1f} MB; read in {read:.2f} s ({points:,} points)"
    )
    return within


def main() -> int:
    """1 if a bar is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=100_000)
    steps = options.parse_args().steps
    within = [measure(scalars, steps, 1_000) for scalars in (2, 20, 200)]
    return int(not all(within))


if __name__ == "__main__":
    raise SystemExit(main())
