"""Annotations on the lines of a pull request, by the workflow commands of GitHub Actions."""

from __future__ import annotations

import os

from flatline.findings import Finding, Report
from flatline.reporters._plain import clean, nearby, one_line
from flatline.reporters.text import closing

COMMANDS = {"error": "error", "warning": "warning", "hint": "notice"}


def render(report: Report) -> str:
    """One command a finding, worst first, and the closing line for the log."""
    worst_first = sorted(report.findings, key=lambda finding: finding.rank)
    return "".join(f"{line}\n" for line in [*map(_command, worst_first), closing(report)])


def _command(finding: Finding) -> str:
    properties = _place(finding) | {"title": f"{finding.code} {finding.slug}"}
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{COMMANDS[finding.severity]} {listed}::{_data(_message(finding))}"


def _place(finding: Finding) -> dict[str, str]:
    """Relative to the checkout, which is where GitHub looks for the file."""
    if finding.where is None:
        return {}
    file = nearby(finding.where.file, base=os.environ.get("GITHUB_WORKSPACE", ""))
    return {"file": one_line(file), "line": str(max(1, finding.where.line))}


def _message(finding: Finding) -> str:
    labelled = {"Cause": finding.cause, "Fix": finding.fix, "More": f"flatline explain {finding.code}"}
    lines = [finding.message, *(f"{label}: {text}" for label, text in labelled.items() if text)]
    return clean("\n".join(lines), limit=4000)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
