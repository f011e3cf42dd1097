"""What a rule concludes: a value that reporters print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from flatline.events import Where

Severity = Literal["error", "warning", "hint"]
Value = str | int | float | bool | None

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One defect, reported once."""

    code: str
    slug: str
    severity: Severity
    message: str  # what was seen, in one sentence
    cause: str  # why, in one sentence
    fix: str  # the exact code or knob
    where: Where | None = None
    step: int = 0
    evidence: Mapping[str, Value] = field(default_factory=dict)
    key: str = ""  # tells two findings of one rule apart
    count: int = 1
    ranks: tuple[int, ...] = ()
    consequences: tuple[str, ...] = ()  # codes that this finding explains

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: errors first, then the earliest."""
        return SEVERITIES.index(self.severity), self.step

    def _repr_markdown_(self) -> str:
        """What IPython and Jupyter show."""
        place = f" · `{self.where.file}:{self.where.line}`" if self.where else ""
        return (
            f"**{self.code} {self.slug}** · {self.severity}{place} · step {self.step}\n\n"
            f"- **Seen** {self.message}\n- **Cause** {self.cause}\n- **Fix** {self.fix}\n"
        )


def explains(cause: Finding, other: Finding) -> bool:
    """Whether one finding is the cause of another. A hint is advice, and explains no defect.

    Where each may bring about the other, the one that was seen first did.
    """
    advice = cause.severity == "hint" and other.severity != "hint"
    came_after = cause.code in other.consequences and (other.step, other.code) < (cause.step, cause.code)
    return cause is not other and other.code in cause.consequences and not advice and not came_after


def causes(findings: list[Finding]) -> list[Finding]:
    """Findings that no other explains, each as severe as the worst that it brought about; worst and earliest first."""
    found = []
    for finding in findings:
        if not any(explains(other, finding) for other in findings):
            worst = min([finding, *(f for f in findings if explains(finding, f))], key=lambda f: f.rank[0])
            found.append(replace(finding, severity=worst.severity))
    return sorted(found, key=lambda finding: finding.rank)


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A rule that could not judge, and why."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that reporters see of a run."""

    findings: tuple[Finding, ...] = ()  # worst and earliest first; consequences of another finding left out
    checked: tuple[str, ...] = ()
    not_checked: tuple[Unchecked, ...] = ()
    run: Mapping[str, Value] = field(default_factory=dict)  # steps, seconds, overhead, python, torch, …
    notes: tuple[str, ...] = ()  # sensors and rules that were switched off
    hidden_hints: int = 0

    def reaches(self, level: str) -> bool:
        """Whether some finding is of this level or worse; ``never`` is reached by none."""
        worst = SEVERITIES.index(level) if level in SEVERITIES else -1
        return any(SEVERITIES.index(finding.severity) <= worst for finding in self.findings)
