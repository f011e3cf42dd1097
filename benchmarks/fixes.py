"""Whether the fix that a finding names does away with the defect.

    PYTHONPATH=src python benchmarks/fixes.py [--json FILE] [WORDS…]

For every folder of ../examples the sick script, the healthy one and the sick one with `fix.diff` applied run under
`flatline run`. `fix.diff` is what the finding says under "Fix", done to the letter in the smallest edit. Told is whether the
finding is gone, and how much of the way from the sick loss to the healthy one the fix goes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from flatline import catalogue
from flatline.record import open_record

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SECONDS = 120
LEAST_GAP = 0.05  # of the healthy loss: a smaller difference is that of one batch to the next
ENOUGH = 0.9  # of the gap
LEAST_ERROR = 0.01  # the same for an error that is nearly 0
LAST = 0.1  # of the steps: their median is the final loss
HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
PRINTED = re.compile(r"\b([a-z_]+):? (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b")
NO_METRIC = {"epoch", "step", "loss", "lr"}

# Where the defect is in the loss itself, or in what it is averaged over, losses say nothing. After such a script, all three
# times, the trained model is asked for its error on the training data.
ERROR = {
    "accumulation_not_averaged": "F.cross_entropy(model(x), y)",
    "double_softmax": "(model(x).argmax(1) != y).float().mean()",
    "loss_broadcast": "(model(x).squeeze(1) - y).pow(2).mean()",
    "padding_in_loss": "torch.cat([model(w[None])[0].argmax(1) != t for w, t in zip(sentences, tags)]).float().mean()",
    "training_data_not_shuffled": "(model(images).argmax(1) != labels).float().mean()",
    "weight_norm_runaway": "F.mse_loss(model(x), y)",
}
ASKED = """
with torch.no_grad():
    print(f"error {float(%s):.6f}")
"""


class DoesNotFit(Exception):
    """A diff was made for another text."""


@dataclass(frozen=True)
class Run:
    """What one script came to under `flatline run`."""

    loud: tuple[str, ...]  # codes at warning or error
    hints: tuple[str, ...]
    watched: bool  # it ran to its end, and nothing of flatline was switched off
    first: float | None  # loss
    loss: float | None  # the median over the last steps; nan if it is, None if there is none
    printed: dict[str, float]  # metrics as they were printed last


@dataclass(frozen=True)
class Outcome:
    """What the fix of one example does."""

    example: str
    code: str
    sick: Run
    fixed: Run
    healthy: Run
    measure: str  # by what they are compared; "" if by nothing
    closed: float | None  # share of the gap
    reason: str  # why they cannot be compared

    @property
    def cleared(self) -> bool:
        """Whether the finding is gone from a run that was watched to its end."""
        return (
            self.code in self.sick.loud and self.fixed.watched and self.code not in self.fixed.loud + self.fixed.hints
        )

    @property
    def enough(self) -> bool:
        """Whether it closes the gap."""
        return self.closed is not None and self.closed >= ENOUGH


# --------------------------------------------------------------------------- the fix


def patched(text: str, diff: str) -> str:
    """The text with a unified diff applied."""
    lines, made, at = text.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True):
        if line.startswith(("--- ", "+++ ")):
            continue
        if begun := HUNK.match(line):
            start = int(begun[1]) - 1
            made += lines[at:start]
            at = start
        elif line.startswith("+"):
            made.append(line[1:])
        else:
            if lines[at : at + 1] != [line[1:]]:
                raise DoesNotFit(f"line {at + 1} is not {line[1:].rstrip()!r}")
            made += [line[1:]] if line.startswith(" ") else []
            at += 1
    return "".join(made + lines[at:])


def fixed_text(example: Path) -> str:
    """The sick script with its fix."""
    try:
        return patched((example / "sick.py").read_text(), (example / "fix.diff").read_text())
    except DoesNotFit as error:
        raise DoesNotFit(f"{example.name}/fix.diff does not fit sick.py: {error}") from None


# --------------------------------------------------------------------------- a run


def watched(text: str) -> Run:
    """One script, in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(text)
        options = ["--hints", "--format", "json", "--output", "report.json", "--record", "record"]
        command = [sys.executable, "-m", "flatline", "run", *options, "script.py"]
        ended = subprocess.run(
            command, cwd=folder, env=settings(), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        report = json.loads((folder / "report.json").read_text())
        first, final = losses(folder / "record")
    codes = [(finding["severity"] == "hint", finding["code"]) for finding in report["findings"]]
    return Run(
        loud=tuple(code for hint, code in codes if not hint),
        hints=tuple(code for hint, code in codes if hint),
        watched=ended.returncode == 0 and report["run"]["steps"] > 0 and not report["notes"],
        first=first,
        loss=final,
        printed={name: float(value) for name, value in PRINTED.findall(ended.stdout) if name not in NO_METRIC},
    )


def settings() -> dict[str, str]:
    """One thread, and this tree's flatline."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def losses(record: Path) -> tuple[float | None, float | None]:
    """The first loss, and the median of the last ones; none if the script ended before its first step."""
    if not record.exists():
        return None, None
    with open_record(record) as opened:
        curve = next((series for series in opened.series() if series.name.split("/")[0] == "loss"), None)
    if curve is None or not curve.values:
        return None, None
    last = curve.values[-max(1, round(len(curve.values) * LAST)) :]
    return curve.values[0], math.nan if any(math.isnan(value) for value in last) else statistics.median(last)


# --------------------------------------------------------------------------- the comparison


def compared(sick: Run, fixed: Run, healthy: Run) -> tuple[str, float | None, str]:
    """By what, the share of the gap that is closed, and why there is none."""
    if fixed.loss is None or healthy.loss is None or not math.isfinite(fixed.loss) or not math.isfinite(healthy.loss):
        return "loss", 0.0, ""
    if "error" in sick.printed:
        return judged(sick.printed["error"], fixed.printed["error"], healthy.printed["error"])
    if sick.loss is None or not math.isfinite(sick.loss):
        start = healthy.first
        return "from the first loss", None if start is None else share(start, fixed.loss, healthy.loss), ""
    if sick.loss - healthy.loss >= LEAST_GAP * abs(healthy.loss):
        return "loss", share(sick.loss, fixed.loss, healthy.loss), ""
    for name in sorted(sick.printed.keys() & fixed.printed.keys() & healthy.printed.keys()):
        ends = sick.printed[name], fixed.printed[name], healthy.printed[name]
        if ends[0] != ends[2]:
            return name, share(*ends), ""
    lower = healthy.loss - sick.loss >= LEAST_GAP * abs(healthy.loss)
    return "", None, "the sick loss is lower" if lower else "sick and healthy end alike"


def judged(sick: float, fixed: float, healthy: float) -> tuple[str, float | None, str]:
    """By the errors of the trained models."""
    if sick - healthy < max(LEAST_ERROR, LEAST_GAP * healthy):
        return "error", None, f"the sick error is {'lower' if sick < healthy else 'hardly higher'}"
    return "error", share(sick, fixed, healthy), ""


def share(sick: float, fixed: float, healthy: float) -> float:
    """Of the gap."""
    return (sick - fixed) / (sick - healthy)


def outcome(example: Path) -> Outcome:
    """One example, its fix and its healthy twin."""
    page = catalogue.find(example.name)
    if page is None:
        raise LookupError(f"no rule is called {example.name}")
    after = ASKED % ERROR[example.name] if example.name in ERROR else ""
    sick, healthy = (watched((example / f"{kind}.py").read_text() + after) for kind in ("sick", "healthy"))
    fixed = watched(fixed_text(example) + after)
    return Outcome(example.name, page.code, sick, fixed, healthy, *compared(sick, fixed, healthy))


# --------------------------------------------------------------------------- the table

HEAD = """\
| example | code | sick loss | fixed loss | healthy loss | gap closed | finding cleared | other findings |
|---|---|---|---|---|---|---|---|"""


def row(found: Outcome) -> str:
    """Of the table."""
    ends = [number(run.loss) for run in (found.sick, found.fixed, found.healthy)]
    others = [*found.fixed.loud, *(f"({code})" for code in found.fixed.hints)]
    said = " ".join(code for code in others if code.strip("()") != found.code)
    return f"| {' | '.join([found.example, found.code, *ends, gap(found), yes(found.cleared), said or '–'])} |"


def gap(found: Outcome) -> str:
    """The share in words, and what it is a share of."""
    if found.closed is None:
        by = f" ({measured(found)})" if found.measure else ""
        return f"not comparable: {found.reason}{by}{alike(found)}"
    told = f"{found.closed:.0%}".replace("%", " %") + ("" if found.enough else " ✗")
    return told if found.measure == "loss" else f"{told} ({measured(found)})"


def alike(found: Outcome) -> str:
    """Where the fixed script ends, if nothing else can be said."""
    fixed, healthy = found.fixed.loss, found.healthy.loss
    same = fixed is not None and healthy is not None and abs(fixed - healthy) <= LEAST_GAP * abs(healthy)
    return "; fixed ends as healthy" if same else "; fixed ends elsewhere"


def measured(found: Outcome) -> str:
    """What else than the loss they are compared by, with its numbers."""
    name, runs = found.measure, (found.sick, found.fixed, found.healthy)
    if any(name not in run.printed for run in runs):
        return name
    return f"{name} {' → '.join(f'{run.printed[name]:.4g}' for run in runs)}"


def number(loss: float | None) -> str:
    """Four digits."""
    return "none" if loss is None else f"{loss:.4g}"


def yes(is_so: bool) -> str:
    """Or no."""
    return "yes" if is_so else "no"


def examples(words: list[str]) -> Iterator[Path]:
    """The folders whose names contain one of the words; all without words."""
    for script in sorted(EXAMPLES.glob("*/sick.py")):
        if not words or any(word in script.parent.name for word in words):
            yield script.parent


def summary(seen: list[Outcome]) -> str:
    """The counts."""
    comparable = [found for found in seen if found.closed is not None]
    return (
        f"finding cleared: {sum(found.cleared for found in seen)} of {len(seen)} · "
        f"at least {ENOUGH:.0%} of the gap closed: {sum(found.enough for found in comparable)} of {len(comparable)} "
        f"that can be compared"
    ).replace("0%", "0 %")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("words", nargs="*", metavar="WORDS")
    options.add_argument("--json", metavar="FILE")
    given = options.parse_args()
    seen = []
    print(HEAD)
    for example in examples(given.words):
        seen.append(outcome(example))
        print(row(seen[-1]), flush=True)
    print(f"\n{summary(seen)}")
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(found) for found in seen], indent=2))


if __name__ == "__main__":
    main()
