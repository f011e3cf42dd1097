"""How long ``flatline lint`` takes: milliseconds of processor time per 1,000 lines, beside torchfix where it is installed.

    python benchmarks/lint.py [FOLDER]

FOLDER holds Python files; without it a training script is repeated to 1,000 lines. torchfix is run on the same files in
the same run: ``pip install --target DIR torchfix`` and ``PYTHONPATH=DIR``.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flatline.config import Config
from flatline.linting import Linter
from flatline.readers.source._files import Unparsable, find, read

SCRIPT = Path(__file__).parents[1] / "examples"


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = sys.argv[1] if len(sys.argv) > 1 else thousand(Path(scratch))
        texts = []
        for path in find([folder]).files:
            try:
                texts.append(read(path))
            except Unparsable:
                continue
        lines = sum(len(text.lines) for text in texts)
        parse = timed(lambda: [parsed("\n".join(text.lines)) for text in texts])
        rules = timed(lambda: Linter(Config()).paths([folder]))
        print(f"{len(texts)} files, {lines:,} lines")
        print(f"ast.parse       {1e6 * parse / lines:7.1f} ms per 1,000 lines   {parse:7.2f} s")
        print(f"flatline lint   {1e6 * rules / lines:7.1f} ms per 1,000 lines   {rules:7.2f} s")
        if importlib.util.find_spec("torchfix"):
            other = torchfix(folder)
            print(
                f"torchfix        {1e6 * other / lines:7.1f} ms per 1,000 lines   {other:7.2f} s   {other / rules:.0f} × as long"
            )


def thousand(folder: Path) -> str:
    """A file of about 1,000 lines: the examples, one after the other, each in a function."""
    lines: list[str] = ["import torch"]
    for path in sorted(SCRIPT.glob("*/*.py")):
        if len(lines) < 1000:
            lines += [
                f"def {path.stem}():",
                *("    " + line for line in path.read_text().splitlines() if "__future__" not in line),
                "",
            ]
    (folder / "thousand.py").write_text("\n".join(lines))
    return str(folder)


def parsed(source: str) -> object:
    """The tree, or nothing."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return None


def timed(work: object) -> float:
    """Processor time, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()  # type: ignore[operator]
        best = min(best, time.process_time() - start)
    return best


def torchfix(folder: str) -> float:
    """Processor time of its own command."""
    start = os.times()
    subprocess.run([sys.executable, "-m", "torchfix", folder], capture_output=True, check=False)
    end = os.times()
    return end.children_user + end.children_system - start.children_user - start.children_system


if __name__ == "__main__":
    main()
