"""For tests of rules: play events to one rule and read what it finds."""

from __future__ import annotations

from flatline.engine import Engine
from flatline.events import Event
from flatline.findings import Finding
from flatline.rules import Rule


def play(rule: type[Rule] | Rule, *events: Event) -> list[Finding]:
    """Findings of a rule that sees these events, in order. An exception in the rule is raised."""

    def broken(code: str, error: Exception) -> None:
        raise error

    engine = Engine([rule() if isinstance(rule, type) else rule], on_finding=lambda finding: None, on_broken=broken)
    for event in events:
        engine.emit(event)
    return engine.findings
