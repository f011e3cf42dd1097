"""What healthy training looks like in numbers: the distributions behind the rules' thresholds.

    python benchmarks/thresholds.py record FOLDER SCRIPT [ARGS…]     # run one script, keep its numbers in FOLDER
    python benchmarks/thresholds.py table FOLDER                     # quantiles over all scripts in FOLDER

``record`` runs the script as ``flatline run`` would, with one rule that judges nothing and writes a line of JSON for
every sample. ``docs/thresholds.md`` holds the table that the thresholds were chosen by.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flatline import launch
from flatline.config import Config
from flatline.engine import Engine
from flatline.events import LayerNumbers, NumbersSampled
from flatline.importing import after_import
from flatline.rules import Rule
from flatline.session import Session


class Recorder(Rule):
    """Writes down what it sees."""

    code = "Z1"
    severity = "hint"

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8")
        self.first: dict[tuple[int, str], float] = {}

    def on_numbers_sampled(self, event: NumbersSampled) -> None:
        """One line for each sample."""
        self.file.write(json.dumps(self._line(event)) + "\n")
        self.file.flush()

    def _line(self, event: NumbersSampled) -> dict[str, Any]:
        layers = [each for each in event.layers if each.matrix]
        for each in layers:
            self.first.setdefault((event.optimizer.key, each.name), each.weight_rms)
        growth = [
            each.weight_rms / first
            for each in layers
            if (first := self.first[event.optimizer.key, each.name]) > 1e-6 and math.isfinite(each.weight_rms)
        ]
        return {
            "optimizer": f"{event.optimizer.name} {event.optimizer.key}",
            "step": event.step,
            "index": event.index,
            "lr": event.lr,
            "loss": event.loss,
            "first_loss": event.first_loss,
            "turn": event.turn,
            "update": _spread([each.update_ratio for each in layers if each.update_ratio]),
            "gradient": _spread([each.gradient_rms for each in layers if each.gradient_rms > 0]),
            "ratio": _spread([each.gradient_rms / each.weight_rms for each in layers if _both(each)]),
            "growth": _spread(growth),
            "layers": len(layers),
        }


def _both(layer: LayerNumbers) -> bool:
    return layer.gradient_rms > 0 and layer.weight_rms > 0


def _spread(values: list[float | None]) -> list[float] | None:
    """Smallest, median, largest."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    return [min(found), statistics.median(found), max(found)] if found else None


def record(folder: str, command: list[str]) -> None:
    """Run a script and keep its numbers."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    script = Path(command[0]).resolve()
    path = Path(folder).resolve() / f"{script.parent.name}-{script.stem}.jsonl"
    session = Session(Config())
    session.engine = Engine([Recorder(path)], on_finding=lambda finding: None, on_broken=lambda what, error: None)
    program = launch.script(command[0], command[1:])
    after_import("torch", session.attach)
    sys.argv = list(program.argv)
    try:
        program.run()
    finally:
        session.finish()


# --------------------------------------------------------------------------- the table


def samples(path: Path) -> list[dict[str, Any]]:
    """All samples of one script."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def quantities(lines: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """One number of each kind for one script; but for the first, its first ten steps are left out."""
    first = [line["update"][1] for line in lines if line["index"] <= 5 and line["update"]]
    if first:
        yield "update over weight, median layer, sum of the first 5 steps", sum(first)
    lines = [line for line in lines if line["index"] > 10]
    for name, what, at in (
        ("update over weight, median layer, typical step", "update", 1),
        ("update over weight, largest layer, typical step", "update", 2),
        ("gradient over weight, median layer, typical step", "ratio", 1),
    ):
        found = [line[what][at] for line in lines if line[what]]
        if found:
            yield name, statistics.median(found)
    growth = [line["growth"] for line in lines if line["growth"]]
    if growth:
        yield "weight growth, largest layer, at the end", growth[-1][2]
        yield "weight growth, smallest layer, at the end", growth[-1][0]
    gradients = [line["gradient"] for line in lines if line["gradient"]]
    if gradients:
        yield "gradient, largest over smallest layer", statistics.median(g[2] / g[0] for g in gradients)
        yield "gradient, last over first", gradients[-1][1] / gradients[0][1]
    turns = [line["turn"] for line in lines if line["turn"] is not None]
    if turns:
        yield "cosine of one update and the next", statistics.median(turns)


def table(folder: str) -> None:
    """Quantiles over scripts, as a table in Markdown."""
    found: dict[str, list[float]] = {}
    paths = sorted(Path(folder).glob("*.jsonl"))
    for path in paths:
        lines = samples(path)
        for optimizer in dict.fromkeys(line["optimizer"] for line in lines):
            for name, value in quantities([line for line in lines if line["optimizer"] == optimizer]):
                found.setdefault(name, []).append(value)
    print(
        f"{len(paths)} scripts\n\n| quantity | n | least | 5 % | median | 95 % | most |\n|---|---|---|---|---|---|---|"
    )
    for name, values in found.items():
        values.sort()
        marks = [values[round(q * (len(values) - 1))] for q in (0, 0.05, 0.5, 0.95, 1)]
        print(f"| {name} | {len(values)} | " + " | ".join(f"{mark:.3g}" for mark in marks) + " |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:2] == ["record"] and len(sys.argv) > 3:
        record(sys.argv[2], sys.argv[3:])
    elif sys.argv[1:2] == ["table"] and len(sys.argv) == 3:
        table(sys.argv[2])
    else:
        sys.exit(__doc__)
