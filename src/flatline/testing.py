"""For tests of rules: play events to one rule and read what it finds."""

from __future__ import annotations

import inspect

from flatline.engine import Engine
from flatline.events import Event
from flatline.findings import Finding
from flatline.readers.source import _project
from flatline.readers.source._files import Text, parse
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module
from flatline.rules import Rule


def play(rule: type[Rule] | Rule, *events: Event) -> list[Finding]:
    """Findings of a rule that sees these events, in order. An exception in the rule is raised."""

    def broken(code: str, error: Exception) -> None:
        raise error

    engine = Engine([rule() if isinstance(rule, type) else rule], on_finding=lambda finding: None, on_broken=broken)
    for event in events:
        engine.emit(event)
    return engine.findings


def lint(rule: type[Rule], source: str, **others: str) -> list[Finding]:
    """Findings of a rule that sees the ``SourceParsed`` of this source. ``others`` are modules that it may import."""
    project = Project()
    for name, code in {**others, "train": source}.items():
        text = Text(f"{name}.py", tuple(inspect.cleandoc(code).split("\n")))
        project.add(Module(text, parse(text)), text.path)
    return play(rule, _project.event(project, text))
