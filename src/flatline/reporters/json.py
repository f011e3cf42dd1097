"""The report for programs: one JSON object, schema 1."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from flatline.findings import Finding, Report
from flatline.reporters._plain import encodable

SCHEMA = 1


def render(report: Report) -> str:
    """Strict JSON: nan and infinities are the strings "nan", "inf" and "-inf"."""
    return json.dumps(as_mapping(report), indent=2, allow_nan=False) + "\n"


def as_mapping(report: Report) -> dict[str, Any]:
    """The report as plain JSON values."""
    return {
        "schema": SCHEMA,
        "findings": [_finding(finding) for finding in report.findings],
        "checked": list(report.checked),
        "not_checked": [{"code": rule.code, "reason": encodable(rule.reason)} for rule in report.not_checked],
        "run": values(report.run),
        "notes": [encodable(note) for note in report.notes],
    }


def values(mapping: Mapping[str, object]) -> dict[str, Any]:
    """A mapping that every JSON parser can read."""
    return {encodable(str(name)): _value(value) for name, value in mapping.items()}


def _value(value: object) -> str | int | float | bool | None:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, (bool, int)):
        return value
    return encodable(str(value))


def _finding(finding: Finding) -> dict[str, Any]:
    where = finding.where
    return {
        "code": finding.code,
        "slug": finding.slug,
        "severity": finding.severity,
        "message": encodable(finding.message),
        "where": {"file": encodable(where.file), "line": where.line} if where else None,
        "step": finding.step,
        "count": finding.count,
        **({"ranks": list(finding.ranks)} if finding.ranks else {}),
        "evidence": values(finding.evidence),
        "cause": encodable(finding.cause),
        "fix": encodable(finding.fix),
    }
