"""Rules: one defect, one file, one page. The folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from flatline.events import CurvesUpdated, Event, Where, line_of
from flatline.findings import Finding, Severity, Value


class Rule:
    """Judges events. A subclass's docstring is its page; its hooks are named after the events they watch."""

    code: ClassVar[str]
    severity: ClassVar[Severity]
    since: ClassVar[str] = "0.1"
    cause: ClassVar[str] = ""
    fix: ClassVar[str] = ""
    consequences: ClassVar[tuple[str, ...]] = ()
    each_training: ClassVar[bool] = False  # of several trainings in a script each has an instance of its own
    trial_dependent: ClassVar[bool] = False  # hangs on rate, decay or depth: in a search over them some trials show it

    @classmethod
    def slug(cls) -> str:
        """``DoubleSoftmax`` -> ``double-softmax``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def family(cls) -> str:
        """The folder that the rule stands in."""
        return cls.__module__.split(".")[-2]

    @classmethod
    def options(cls) -> dict[str, int | float]:
        """The numbers that ``[tool.flatline.rules.CODE]`` may set, with their defaults."""
        names = [name for name in cls.__annotations__ if not name.startswith("_")]
        return {name: value for name in names if isinstance(value := getattr(cls, name, None), (int, float))}

    def anew(self) -> Rule:
        """Another instance with the same options, that has seen nothing."""
        other = type(self)()
        for name in self.options():
            setattr(other, name, getattr(self, name))
        return other

    def hangs_on_settings(self, finding: Finding) -> bool:
        """Whether another trial of a search may be free of it."""
        return self.trial_dependent

    def lacks(self, event: CurvesUpdated) -> str:
        """Why these curves are not enough to judge by, or nothing."""
        return ""

    def finding(
        self,
        event: Event,
        message: str,
        *,
        severity: Severity | None = None,
        cause: str = "",
        fix: str = "",
        where: Where | None = None,
        key: str = "",
        **evidence: Value,
    ) -> Finding:
        """A finding of this rule at this event, with its evidence."""
        return Finding(
            code=self.code,
            slug=self.slug(),
            severity=severity or self.severity,
            message=message,
            cause=cause or self.cause,
            fix=fix or self.fix,
            where=where or event.where,
            step=event.step,
            evidence=evidence,
            key=key,
            consequences=self.consequences,
        )

    def finding_at(self, event: Event, place: Where | None, message: str, **told: Any) -> Finding:
        """A finding at a line of source, which tells it apart from others of this rule."""
        return self.finding(event, message, where=place, key=line_of(place), **told)


def _modules() -> Iterator[str]:
    for found in pkgutil.walk_packages(__path__, f"{__name__}."):
        if not found.ispkg:
            yield found.name


def sort_key(code: str) -> tuple[str, int]:
    """O2 before O12."""
    letters = code.rstrip("0123456789")
    return letters, int(code[len(letters) :] or 0)


def all_rules() -> list[type[Rule]]:
    """Every rule in the folder, by code."""
    found = []
    for name in _modules():
        members = vars(importlib.import_module(name)).values()
        found += [m for m in members if isinstance(m, type) and issubclass(m, Rule) and m.__module__ == name]
    return sorted(found, key=lambda rule: sort_key(rule.code))
