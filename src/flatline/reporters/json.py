"""The report for programs: one JSON object, schema 1."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from flatline.findings import Finding, Report
from flatline.reporters._plain import encodable

SCHEMA = 1


def render(report: Report, **more: object) -> str:
    """Findings, what was checked and what was not, and facts about the run; ``more`` is what a command adds."""
    return dump(
        {
            "schema": SCHEMA,
            "findings": [_finding(finding) for finding in report.findings],
            "checked": report.checked,
            "not_checked": [{"code": rule.code, "reason": rule.reason} for rule in report.not_checked],
            "run": report.run,
            "notes": report.notes,
            **more,
        }
    )


def dump(value: object) -> str:
    """JSON that every parser reads, in ASCII: nan and infinities are the strings "nan", "inf" and "-inf"."""
    return json.dumps(_strict(value), indent=2, allow_nan=False) + "\n"


def _strict(value: object) -> Any:
    if isinstance(value, Mapping):
        return {encodable(str(name)): _strict(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, (bool, int)):
        return value
    return encodable(str(value))


def _finding(finding: Finding) -> dict[str, object]:
    where = finding.where
    return {
        "code": finding.code,
        "slug": finding.slug,
        "severity": finding.severity,
        "message": finding.message,
        "where": {"file": where.file, "line": where.line} if where else None,
        "step": finding.step,
        "count": finding.count,
        **({"ranks": finding.ranks} if finding.ranks else {}),
        "evidence": finding.evidence,
        "cause": finding.cause,
        "fix": finding.fix,
    }
