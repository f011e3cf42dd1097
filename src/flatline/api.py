"""The Python door: ``with flatline.watch() as run: …`` in a script or a notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from flatline import config
from flatline.findings import Finding, Report
from flatline.session import Session


class Run:
    """One watched stretch of training. ``findings`` may be read at any time."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, worst first."""
        return self._session.findings

    @property
    def report(self) -> Report:
        """Findings, what was checked, what was not and why."""
        return self._session.report()

    def close(self) -> None:
        """Take the sensors off and conclude."""
        self._session.finish()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        how = "finished" if error is None else "crashed" if isinstance(error, Exception) else "interrupted"
        self._session.finish(how, error)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        from flatline.reporters import text

        return text.render(self.report, verbose=False, width=100, colour=False)

    def _repr_markdown_(self) -> str:
        found = "\n\n".join(finding._repr_markdown_() for finding in self.findings)
        return found or f"**flatline** · no findings · {len(self.report.checked)} rules checked"


def watch(
    *objects: Any,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    hints: bool = False,
    budget: float = 0.01,
    record: str | os.PathLike[str] | None = None,
) -> Run:
    """Watch everything that trains in this process until ``close()`` or the end of the ``with`` block.

    Args:
        *objects: models and optimizers that exist already, so that their names and settings are known from the start.
        select: codes, slugs or families to check, as a list or as one text with commas; everything by default.
        ignore: codes, slugs or families to leave out.
        hints: include hints in ``findings``.
        budget: share of the time that flatline may use, as a fraction.
        record: keep a record of the run in this folder; none is kept without.

    Raises:
        TypeError: an object is neither a module nor an optimizer.
        ValueError: ``select`` or ``ignore`` names no rule.
    """
    import torch

    for thing in objects:
        if not isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)):
            raise TypeError(
                f"watch() got a {type(thing).__name__}. Pass modules and optimizers one by one, as in "
                "watch(model, optimizer), or nothing at all."
            )
    try:
        settings = config.build({}, select=_codes(select, "select"), ignore=_codes(ignore, "ignore"), hints=hints)
    except config.ConfigError as error:
        raise ValueError(str(error)) from None
    keeping = config.kept_in(os.fspath(record)) if record is not None else None
    session = Session(settings, budget=budget, tell=_tell if sys.stderr.isatty() else None, keeping=keeping)
    session.attach()
    session.introduce(objects)
    return Run(session)


def _codes(given: str | Sequence[str], name: str) -> list[str]:
    return config.codes([given] if isinstance(given, str) else given, name)


def _tell(finding: Finding) -> None:
    from flatline.reporters import text

    print(text.line(finding), file=sys.stderr, flush=True)
