"""``flatline lint`` as a plug-in of flake8, which is never imported: ``FLO12`` is the rule O12."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatline import __version__, config
from flatline.linting import Linter


class Plugin:
    """What the entry point ``flake8.extension`` names."""

    name = "flatline"
    version = __version__

    def __init__(self, tree: ast.AST, filename: str, lines: Sequence[str]) -> None:
        self.filename, self.lines = filename, lines

    def run(self) -> Iterator[tuple[int, int, str, type[object]]]:
        """Line, column and text of each finding in the file itself."""
        table = config.load(Path.cwd())
        linter = Linter(config.build(table), config.per_file(table))
        typed = self.filename in ("-", "stdin")
        done = linter.standard_input("".join(self.lines).encode()) if typed else linter.paths([self.filename])
        for found in done.findings:
            if found.where is not None and (typed or Path(found.where.file) == Path(self.filename)):
                yield found.where.line, 0, f"FL{found.code} {found.message}", type(self)
