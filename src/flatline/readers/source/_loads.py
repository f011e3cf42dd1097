"""Checkpoints that are loaded loosely, and whose misses nobody looks at."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument_at
from flatline.readers.source._prefixed import prefixed_by
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, spelled
from flatline.readers.source._seen import seen_in
from flatline.readers.source._unmatched import unmatched_by

LOADED = re.compile(r"torch\.load\(|load_file\(|load_url\(|load_state_dict_from_url\(")


def loose_loads(project: Project, module: Module) -> Iterator[SourceFact]:
    """``model.load_state_dict(state, strict=False)``, and what it returns is dropped."""
    if not any(LOADED.search(line) for line in module.text.lines):
        return
    for scope in module.scopes:
        for call, receiver, use in seen_in(project, scope).methods("load_state_dict"):
            strict = argument_at(call, "strict", 1)
            loose = isinstance(strict, ast.Constant) and strict.value is False
            if loose and isinstance(use.statement, ast.Expr) and use.statement.value is call:
                state = argument_at(call, "state_dict", 0)
                shown = prefixed_by(project, state, receiver, use) if state is not None else None
                other = unmatched_by(project, state, receiver, use) if state is not None and shown is None else None
                kind = "prefixed load" if shown is not None else "loose load" if other is None else "unmatched load"
                shown = shown or other
                yield SourceFact(
                    kind=kind,
                    name=spelled(receiver), text=spelled(call), where=module.where(call, scope),
                    other=shown.use.scope.module.where(shown.node, shown.use.scope) if shown is not None else None,
                )  # fmt: skip
