"""Routes an event to the rules that watch it."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from flatline.events import (
    Event,
    OptimizerFacts,
    ParametersAudited,
    RunEnded,
    TrainingBegan,
    TrainingsMixed,
    all_events,
)
from flatline.findings import Finding
from flatline.interruptions import of_the_scripts
from flatline.rules import Rule
from flatline.trials import Trials

Hook = Callable[[Event], Iterable[Finding] | None]
Hooks = dict[type[Event], list[tuple[Rule, Hook]]]


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


def _hooks(rules: Iterable[Rule]) -> Hooks:
    found: Hooks = defaultdict(list)
    for rule in rules:
        for event in watched(rule):
            found[event].append((rule, getattr(rule, hook_name(event))))
    return found


class Training:
    """Rules that judge one training of a run, and where it lies in it. To them the run begins with it."""

    def __init__(self, rules: Iterable[Rule], began: TrainingBegan) -> None:
        self.rules, self.key, self.began = tuple(rules), began.key, began.step
        self.hooks = _hooks(self.rules)
        self.over: TrainingBegan | None = None  # what followed

    def local(self, event: Event) -> Event:
        """The event as this training sees it: steps count from its beginning, and it is over where the next one begins."""
        over = self.over
        if isinstance(event, RunEnded) and over is not None:
            known = {"first_loss": over.first_loss, "loss": over.last_loss, "how": "finished"}
            event = dataclasses.replace(event, step=over.step, **known)  # type: ignore[arg-type]
        return dataclasses.replace(event, step=event.step - self.began) if self.began else event


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
        self._trials = Trials()
        self._hooks = _hooks(rule for rule in self.rules if not rule.each_training)
        self._trainings = [Training((rule for rule in self.rules if rule.each_training), TrainingBegan())]

    @property
    def findings(self) -> list[Finding]:
        """All findings so far, worst and earliest first."""
        return sorted(self._trials.weighed(self._findings.values()), key=lambda finding: finding.rank)

    def wants(self, event: type[Event]) -> bool:
        """Whether any rule watches this event."""
        return event in self._hooks or any(event in training.hooks for training in self._trainings)

    def emit(self, event: Event) -> None:
        """Show an event to every rule that watches it; of what they find in it, causes are kept before consequences."""
        kind = type(event)
        self.seen.add(kind)
        found: list[Finding] = []
        if isinstance(event, TrainingBegan):
            self._begin(event)
        elif isinstance(event, TrainingsMixed) and len(self._trainings) > 1:
            self._trainings.pop()
            self._trainings[-1].over = None
        concerned = self._concerned(event)
        for rule, hook in tuple(self._hooks.get(kind, ())):
            self._show(event, rule, hook, found, within=concerned[0].key if len(concerned) == 1 else 0)
        for training in concerned:
            if kind in training.hooks:
                self._tell(training, training.local(event), found)
        for finding in sorted(found, key=lambda one: any(one.code in other.consequences for other in found)):
            self._keep(finding)

    def _tell(self, training: Training, event: Event, found: list[Finding]) -> None:
        for rule, hook in tuple(training.hooks[type(event)]):
            self._show(event, rule, hook, found, within=training.key, since=training.began)

    def _begin(self, event: TrainingBegan) -> None:
        newest = self._trainings[-1]
        newest.over = event
        keys = [event.key, *(each.key for each in reversed(self._trainings))]
        first = next((key for key in keys if key <= event.search), event.key)
        self._trials.began(event.key, first, varied=event.varied)
        self._trainings.append(Training((rule.anew() for rule in newest.rules), event))

    def _concerned(self, event: Event) -> Sequence[Training]:
        """All trainings at the end of the run; the one that an optimizer belongs to; the newest."""
        if len(self._trainings) == 1 or isinstance(event, (RunEnded, ParametersAudited)):
            return self._trainings
        optimizer = getattr(event, "optimizer", None)
        key = optimizer.key if isinstance(optimizer, OptimizerFacts) else None
        known = [training for training in self._trainings if key is None or training.key <= key]
        return known[-1:] or self._trainings[:1]

    def _show(self, event: Event, rule: Rule, hook: Hook, found: list[Finding], *, within: int, since: int = 0) -> None:
        try:
            for each in hook(event) or ():
                found.append(dataclasses.replace(each, step=each.step + since) if since else each)
                self._trials.found(rule.code, within, hangs_on_settings=rule.hangs_on_settings(each))
        except Exception as error:
            if of_the_scripts(error):
                raise
            self._switch_off(rule, error)

    def _keep(self, finding: Finding) -> None:
        identity = finding.code, finding.key
        known = self._findings.get(identity)
        if known is None or self._trials.is_new(finding.code):
            self._findings[identity] = finding
            self._on_finding(finding)
        else:
            self._findings[identity] = dataclasses.replace(known, count=known.count + 1)

    def _switch_off(self, rule: Rule, error: Exception) -> None:
        self.broken[rule.code] = f"{type(error).__name__}: {error}"
        for every in (self._hooks, *(training.hooks for training in self._trainings)):
            for hooks in every.values():
                hooks[:] = [entry for entry in hooks if entry[0].code != rule.code]
        self._on_broken(rule.code, error)
