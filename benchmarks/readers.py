"""How fast and in how much memory long logs are judged, beside TensorBoard's own loader of the same file.

python benchmarks/readers.py [--scalars N] [--rows N] [--rounds N]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import os
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
sys.path.insert(0, str(SOURCE))

PEER = "tensorboard"
SHARE, MEGABYTES, STREAMED = 0.2, 300.0, 1000.0  # of the peer's time; at most; at most for the CSV
TAGS = ("Loss/train", "Loss/val", "lr", "grad_norm", "acc/val", "a/b", "a/c", "a/d", "a/e", "a/f")


# --------------------------------------------------------------------------- the files


def events(path: Path, scalars: int) -> None:
    """As torch writes them: ten tags, a record for each scalar."""
    from flatline.record.checksum import masked

    def record(content: bytes) -> bytes:
        length = struct.pack("<Q", len(content))
        return length + struct.pack("<I", masked(length)) + content + struct.pack("<I", masked(content))

    def varint(number: int) -> bytes:
        parts = bytearray()
        while number > 0x7F:
            parts.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*parts, number])

    def field(number: int, content: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(content)) + content

    start = b"\x09" + struct.pack("<d", 1.7e9)
    with path.open("wb") as file:
        file.write(record(start + field(3, b"brain.Event:2")))
        for at in range(scalars):
            step, tag = divmod(at, len(TAGS))
            value = struct.pack("<f", _value(step, tag, scalars // len(TAGS)))
            inner = field(1, field(1, TAGS[tag].encode()) + b"\x15" + value)
            when = b"\x09" + struct.pack("<d", 1.7e9 + step / 100)
            file.write(record(when + b"\x10" + varint(step) + field(5, inner)))


def table(path: Path, rows: int) -> None:
    """A step and five numbers in a row; the same 10,000 rows of noise over and over around falling curves."""
    draw = random.Random(1)
    noise = [[draw.gauss(1, 0.1) for _ in range(4)] for _ in range(10_000)]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("step,train_loss,val_loss,lr,grad_norm,accuracy\n")
        for start in range(0, rows, 10_000):
            level = 0.5 + 2 * math.exp(-4 * start / rows)
            file.writelines(
                f"{start + at},{a * level:.6f},{b * level:.6f},0.001,{c:.5f},{d - level / 9:.5f}\n"
                for at, (a, b, c, d) in enumerate(noise[: rows - start])
            )


def _value(step: int, tag: int, steps: int) -> float:
    noise = 1 + 0.1 * random.gauss(0, 1)
    if tag == 2:
        return 1e-3 * (1 - step / steps)
    return (0.5 + 2 * math.exp(-4 * step / steps)) * noise if tag < 2 else noise


# --------------------------------------------------------------------------- the sides, each in a process of its own


def ours(path: str) -> str:
    """What ``flatline diagnose`` does, up to the finished report."""
    from flatline.afterwards import diagnose, report
    from flatline.config import Config

    result = diagnose([path], Config())
    report(result)
    (run,) = result.runs
    return f"{sum(curve.count for curve in run.event.curves):,} points, {len(run.findings)} findings"


def theirs(path: str) -> str:
    """All scalars, as its own reader loads them."""
    module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    accumulator = module.EventAccumulator(path, size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return f"{sum(len(accumulator.Scalars(tag)) for tag in accumulator.Tags()['scalars']):,} points"


def side(name: str, path: str) -> None:
    """Called in the process: seconds without the imports, megabytes with all."""
    if name == "ours":
        for module in ("flatline.afterwards", "flatline.config", "flatline.readers.tensorboard"):
            importlib.import_module(module)
    else:
        importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    started, computed = time.perf_counter(), time.process_time()
    told = {"ours": ours, "theirs": theirs}[name](path)
    wall, cpu = time.perf_counter() - started, time.process_time() - computed
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e3 if sys.platform == "linux" else 1e6)
    print(f"{wall}\t{cpu}\t{memory}\t{told}")


def measured(name: str, path: Path, peer: str = "") -> tuple[float, float, float, str]:
    """Wall, CPU seconds, peak megabytes, and what was read."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(SOURCE), peer)))}
    command = [sys.executable, __file__, "--side", name, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    wall, cpu, memory, told = ended.stdout.strip().splitlines()[-1].split("\t")
    return float(wall), float(cpu), float(memory), told


def find_peer(folder: str) -> str | None:
    """Where it is: installed already, or put into a folder that is thrown away."""
    if importlib.util.find_spec(PEER):
        return ""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, PEER]
    return None if subprocess.run(command, capture_output=True, check=False).returncode else folder


# --------------------------------------------------------------------------- the table


def lines(folder: Path, options: argparse.Namespace, missed: list[str]) -> Iterator[str]:
    """As it becomes known; the bars that were missed are added to the list."""
    path = folder / "events.out.tfevents.1700000000.host.1.0"
    events(path, options.scalars)
    yield f"TensorBoard file, {options.scalars:,} scalars, {path.stat().st_size / 1e6:.0f} MB"
    peer = find_peer(str(folder / "peer"))
    mine, others = [], []
    for _ in range(options.rounds):  # in turn, so that a busy machine is busy for both
        mine.append(measured("ours", path))
        others += [measured("theirs", path, peer)] if peer is not None else []
    yield from (_line("flatline", mine), *((_line(PEER, others),) if others else (f"  {PEER}: not there",)))
    if others:
        shares = [one[1] / other[1] for one, other in zip(mine, others, strict=True)]
        share = statistics.median(shares)
        yield f"  {share:.3f} of its time (CPU; {min(shares):.3f} to {max(shares):.3f}; at most {SHARE:g})"
        missed += ["time"] * (share > SHARE)
    missed += ["memory"] * (max(memory for _, _, memory, _ in mine) > MEGABYTES)
    path.unlink()
    path = folder / "metrics.csv"
    table(path, options.rows)
    yield f"CSV, {options.rows:,} rows, {path.stat().st_size / 1e6:.0f} MB"
    streamed = measured("ours", path)
    yield _line("flatline", [streamed])
    missed += ["memory of the CSV"] * (streamed[2] > STREAMED)


def _line(name: str, rounds: list[tuple[float, float, float, str]]) -> str:
    wall, cpu, memory = (statistics.median(each[at] for each in rounds) for at in (0, 1, 2))  # type: ignore[misc]
    return f"  {name:<12} {wall:6.2f} s ({cpu:6.2f} s computed), {memory:5.0f} MB   {rounds[0][3]}"


def main() -> int:
    """Print the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scalars", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(*options.side)
        return 0
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(Path(folder), options, missed):
            print(line, flush=True)
    if missed:
        print(f"MISSED: {', '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
