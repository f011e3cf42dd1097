"""Modes that a phase sets: ``model.train(phase != "test")`` leaves the training mode on in the validation, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._rounds import around, is_left_out, truth
from flatline.readers.source._scopes import Module, Use
from flatline.readers.source._seen import Seen, seen_in


def left_on(project: Project, module: Module, lines: Sequence[int]) -> set[int]:
    """Of the lines that set a mode, those that set the training mode in a phase without a backward."""
    return {n for scope in module.scopes if lines for n in _lines(seen_in(project, scope), lines)}


def _lines(seen: Seen, lines: Sequence[int]) -> Iterator[int]:
    for call, _, use in seen.methods("train"):
        if call.lineno in lines and len(call.args) == 1 and not isinstance(call.args[0], ast.Constant):
            if not use.path and _stays(seen, call.args[0], use):
                yield call.lineno


def _stays(seen: Seen, given: ast.expr, use: Use) -> bool:
    """It is true in a phase that switches gradients off, and comes by no backward of the function."""
    backs = [place for _, _, place in seen.methods("backward")]
    switches = [c.args[0] for c, _ in seen.scope.calls if c.args and unparsed(c.func).endswith("set_grad_enabled")]
    return bool(backs) and any(
        truth(given, known, use) is True
        and any(truth(each, known, use) is False for each in switches)
        and all(is_left_out(back, known) for back in backs)
        for known in around(seen.project, use)
        if known
    )
