"""JUnit XML for the test reports of CI servers: a failure a finding."""

from __future__ import annotations

from xml.etree import ElementTree

from flatline.findings import Finding, Report
from flatline.reporters._plain import clean, nearby, one_line


def render(report: Report) -> str:
    """One suite, with a case for each finding; without findings one case that passed."""
    counted = [finding for finding in report.findings if finding.severity != "hint"]
    cases = max(1, len(report.findings))
    suite = ElementTree.Element("testsuite", name="flatline", tests=str(cases), failures=str(len(counted)), errors="0")
    for finding in report.findings:
        _case(suite, finding)
    if not report.findings:
        ElementTree.SubElement(suite, "testcase", classname="flatline", name=f"{len(report.checked)} rules checked")
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _case(suite: ElementTree.Element, finding: Finding) -> None:
    file = one_line(nearby(finding.where.file, base="")) if finding.where else "flatline"
    place = f":{finding.where.line}" if finding.where else ""
    case = ElementTree.SubElement(suite, "testcase", classname=file, name=f"{finding.code} {finding.slug}{place}")
    told = clean(f"{file}{place}\n{finding.message}\nCause: {finding.cause}\nFix: {finding.fix}", limit=4000)
    if finding.severity == "hint":
        ElementTree.SubElement(case, "system-out").text = told
    else:
        ElementTree.SubElement(case, "failure", type=finding.severity, message=one_line(finding.message)).text = told
