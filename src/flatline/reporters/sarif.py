"""SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flatline import __version__
from flatline.catalogue import Page, pages
from flatline.findings import Finding, Report
from flatline.reporters._plain import clean, encodable, nearby
from flatline.reporters.json import dump

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
LEVELS = {"error": "error", "warning": "warning", "hint": "note"}


def render(report: Report) -> str:
    """One SARIF run, with the table of all rules."""
    return dump({"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report)]})


def _run(report: Report) -> dict[str, Any]:
    places = {page.code: place for place, page in enumerate(pages())}
    script = report.run.get("script") or report.run.get("source")
    fallback = script if isinstance(script, str) else ""
    return {
        "tool": {"driver": {"name": "flatline", "version": __version__, "rules": [_rule(page) for page in pages()]}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "The directory in which flatline was started."}}},
        "invocations": [_invocation(report)],
        "results": [_result(finding, places=places, fallback=fallback) for finding in report.findings],
        "properties": {
            "run": report.run,
            "checked": report.checked,
            "notChecked": {rule.code: rule.reason for rule in report.not_checked},
        },
    }


def _invocation(report: Report) -> dict[str, Any]:
    notes = [{"level": "warning", "message": {"text": clean(note)}} for note in report.notes]
    succeeded = report.run.get("how", "finished") in ("finished", "max-steps", "non-finite")
    return {"executionSuccessful": succeeded, "toolExecutionNotifications": notes}


def _rule(page: Page) -> dict[str, Any]:
    return {
        "id": page.code,
        "name": page.name,
        "shortDescription": {"text": page.summary},
        "fullDescription": {"text": page.sections.get("Root cause", page.summary)},
        "help": {"text": page.text or page.summary},
        "defaultConfiguration": {"level": LEVELS[page.severity]},
        "properties": {"slug": page.slug, "since": page.since, "tags": [page.family, *page.doors]},
    }


def _result(finding: Finding, *, places: dict[str, int], fallback: str) -> dict[str, Any]:
    details = {"step": finding.step, "ranks": finding.ranks, "evidence": finding.evidence}
    return {
        "ruleId": finding.code,
        **({"ruleIndex": places[finding.code]} if finding.code in places else {}),
        "level": LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": _locations(finding, fallback=fallback),
        "occurrenceCount": max(1, finding.count),
        "partialFingerprints": {"flatline/v1": _fingerprint(finding)},
        "properties": {**details, "cause": clean(finding.cause), "fix": clean(finding.fix)},
    }


def _message(finding: Finding) -> str:
    parts = (finding.message, finding.cause and f"Cause: {finding.cause}", finding.fix and f"Fix: {finding.fix}")
    return clean("\n".join(part for part in parts if part))


def _locations(finding: Finding, *, fallback: str) -> list[dict[str, Any]]:
    """The user's line, or else the script, since code hosts refuse a result without a place."""
    if finding.where is None:
        return [{"physicalLocation": {"artifactLocation": _artifact(fallback)}}] if fallback else []
    physical: dict[str, Any] = {"artifactLocation": _artifact(finding.where.file)}
    if finding.where.line >= 1:
        physical["region"] = {"startLine": finding.where.line}
    return [{"physicalLocation": physical}]


def _artifact(path: str) -> dict[str, str]:
    near = nearby(path)
    if os.path.isabs(near):
        return {"uri": Path(encodable(near)).as_uri()}
    return {"uri": quote(encodable(Path(near).as_posix())), "uriBaseId": ROOT}


def _fingerprint(finding: Finding) -> str:
    """The same for the same defect after the lines above it have changed."""
    file = nearby(finding.where.file) if finding.where else ""
    identity = "\0".join((finding.code, file, finding.key))
    return hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()[:32]
