"""Which planted bugs are named, and which healthy programs are alarmed.

    python benchmarks/detection.py [--json FILE] [WORDS…]

The programs are `programs/planted`, one defect each, and `programs/healthy`, which look guilty. Each runs unchanged under
`flatline run`; the first finding must carry the expected code. The bugs are those that ../README.md compares the peers on,
written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
SOURCE = HERE.parent / "src"
SECONDS = 120

# What each planted bug is, by the number in its file's name. "-" needs a probe, which a run does not make.
EXPECTED = [
    "O4",
    "O4",
    "O4",
    "O2",
    "O18",
    "O12",
    "O8",
    "O9",
    "O17",
    "O25",
    "G2",
    "O28",
    "N1",
    "O3",
    "D7",
    "O27",
    "E2",
    "O7",
    "D5",
    "D3",
    "G3",
    "L11",
    "-",
    "L12",
    "O6",
]


@dataclass(frozen=True)
class Outcome:
    """What was said about one program."""

    program: str
    expected: str
    loud: tuple[str, ...] = ()  # codes at warning or error, first one first
    hints: tuple[str, ...] = ()
    status: int = 0

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.status:
            return f"ended with {self.status}"
        if self.program.startswith("healthy"):
            return "alarmed" if self.loud else "quiet"
        if self.loud[:1] == (self.expected,):
            return "named"
        if self.expected in self.loud:
            return "named, not first"
        if self.expected in self.hints:
            return "named as a hint"
        return "other cause" if self.loud else "needs a probe" if self.expected == "-" else "missed"


def watched(program: Path, expected: str) -> Outcome:
    """One program under ``flatline run``."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "flatline", "run", "--hints", "--format", "json", "--output", str(report)]
        ended = subprocess.run(
            [*command, str(program)], cwd=folder, env=settings(), capture_output=True, timeout=SECONDS, check=False
        )
        found = json.loads(report.read_text())["findings"]
    hints = tuple(finding["code"] for finding in found if finding["severity"] == "hint")
    loud = tuple(finding["code"] for finding in found if finding["severity"] != "hint")
    return Outcome(f"{program.parent.name}/{program.stem}", expected, loud, hints, ended.returncode)


def settings() -> dict[str, str]:
    """One thread, this tree's flatline, and the programs' data."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{SOURCE}{os.pathsep}{PROGRAMS}"}


def programs() -> Iterator[tuple[Path, str]]:
    """Every program, with the code that its first finding must carry."""
    yield from zip(sorted(PROGRAMS.glob("planted/*.py")), EXPECTED, strict=True)
    yield from ((program, "") for program in sorted(PROGRAMS.glob("healthy/*.py")))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("words", nargs="*", metavar="WORDS")
    options.add_argument("--json", metavar="FILE")
    given = options.parse_args()
    seen = []
    for program, expected in programs():
        if given.words and not any(word in str(program) for word in given.words):
            continue
        outcome = watched(program, expected)
        seen.append(outcome)
        said = " ".join((*outcome.loud, *(f"({code})" for code in outcome.hints)))
        print(f"{outcome.program:<44} {outcome.expected:<4} {outcome.verdict:<17} {said}", flush=True)
    planted = [outcome for outcome in seen if outcome.program.startswith("planted")]
    healthy = [outcome for outcome in seen if outcome.program.startswith("healthy")]
    named = sum(outcome.verdict == "named" for outcome in planted)
    alarmed = sum(outcome.verdict == "alarmed" for outcome in healthy)
    print(f"named first: {named} of {len(planted)} · healthy programs alarmed: {alarmed} of {len(healthy)}")
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(outcome) for outcome in seen], indent=2))


if __name__ == "__main__":
    main()
