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

GOAL = 50.0  # microseconds for a step


def measure(scalars: int, steps: int, flush_every: int) -> None:
    names = tuple(f"scalar {at}" for at in range(scalars))
    rows = [[random.random() for _ in names] for _ in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.sqlite"
        writer = Writer(lambda: file, on_note=print)
        taken = []
        for step in range(steps):
            started = time.perf_counter()
            writer.row("scalars", names, step, rows[step % 64])
            if step % flush_every == 0:  # as often as once a second would be
                writer.flush()
            taken.append((time.perf_counter() - started) * 1e6)
        writer.close()
        size = file.stat().st_size / 1e6
        started = time.perf_counter()
        with open_record(folder) as record:
            points = sum(len(series.steps) for series in record.series())
        read = time.perf_counter() - started
    middle, mean, worst = statistics.median(taken), statistics.fmean(taken), max(taken) / 1e3
    told = "within" if middle <= GOAL else "ABOVE"
    print(
        f"{scalars:4} scalars x {steps:,} steps: median {middle:.2f} us a step ({told} {GOAL:g}), mean {mean:.1f} us, ",
        end="",
    )
    print(f"longest flush {worst:.0f} ms; {size:.1f} MB; read in {read:.2f} s ({points:,} points)")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=100_000)
    steps = options.parse_args().steps
    for scalars in (2, 20, 200):
        measure(scalars, steps, 1_000)


if __name__ == "__main__":
    main()
