"""Routes an event to the rules that watch it."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from flatline.events import Event, all_events
from flatline.findings import Finding
from flatline.interruptions import of_the_scripts
from flatline.rules import Rule

Hook = Callable[[Event], Iterable[Finding] | None]


def hook_name(event: type[Event]) -> str:
    """``LossComputed`` -> ``on_loss_computed``."""
    return _hook(event.__name__)


@cache
def _hook(name: str) -> str:
    return "on_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def watched(rule: Rule | type[Rule]) -> tuple[type[Event], ...]:
    """The events a rule has a hook for."""
    kind = rule if isinstance(rule, type) else type(rule)
    if kind not in _watched:
        _watched[kind] = tuple(event for event in all_events() if hasattr(kind, hook_name(event)))
    return _watched[kind]


_watched: dict[type[Rule], tuple[type[Event], ...]] = {}


class Engine:
    """Feeds rules. A rule that raises is switched off and told about, and never seen by the user's script."""

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        on_finding: Callable[[Finding], None],
        on_broken: Callable[[str, Exception], None],
    ) -> None:
        self.rules = tuple(rules)
        self.seen: set[type[Event]] = set()
        self.broken: dict[str, str] = {}
        self._on_finding, self._on_broken = on_finding, on_broken
        self._findings: dict[tuple[str, str], Finding] = {}
        self._hooks: dict[type[Event], list[tuple[Rule, Hook]]] = defaultdict(list)
        for rule in self.rules:
            for event in watched(rule):
                self._hooks[event].append((rule, getattr(rule, hook_name(event))))

    @property
    def findings(self) -> list[Finding]:
        """All findings so far, worst and earliest first."""
        return sorted(self._findings.values(), key=lambda finding: finding.rank)

    def wants(self, event: type[Event]) -> bool:
        """Whether any rule watches this event."""
        return event in self._hooks

    def emit(self, event: Event) -> None:
        """Show an event to every rule that watches it; of what they find in it, causes are kept before consequences."""
        self.seen.add(type(event))
        found: list[Finding] = []
        for rule, hook in tuple(self._hooks.get(type(event), ())):
            self._show(event, rule, hook, found)
        for finding in sorted(found, key=lambda one: any(one.code in other.consequences for other in found)):
            self._keep(finding)

    def _show(self, event: Event, rule: Rule, hook: Hook, found: list[Finding]) -> None:
        try:
            found.extend(hook(event) or ())
        except Exception as error:
            if of_the_scripts(error):
                raise
            self._switch_off(rule, error)

    def _keep(self, finding: Finding) -> None:
        identity = finding.code, finding.key
        known = self._findings.get(identity)
        if known is None:
            self._findings[identity] = finding
            self._on_finding(finding)
        else:
            self._findings[identity] = dataclasses.replace(known, count=known.count + 1)

    def _switch_off(self, rule: Rule, error: Exception) -> None:
        self.broken[rule.code] = f"{type(error).__name__}: {error}"
        for hooks in self._hooks.values():
            hooks[:] = [entry for entry in hooks if entry[0] is not rule]
        self._on_broken(rule.code, error)
