import json
import re
from dataclasses import replace
from urllib.parse import urlsplit

import jsonschema
import pytest

from flatline.catalogue import pages
from flatline.events import Where
from flatline.findings import Report
from flatline.reporters import sarif

LEVEL = {"enum": ["none", "note", "warning", "error"]}
MESSAGE = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
ARTIFACT = {
    "type": "object",
    "required": ["uri"],
    "additionalProperties": False,
    "properties": {"uri": {"type": "string", "minLength": 1}, "uriBaseId": {"type": "string"}},
}
PHYSICAL = {
    "type": "object",
    "required": ["artifactLocation"],
    "additionalProperties": False,
    "properties": {
        "artifactLocation": ARTIFACT,
        "region": {
            "type": "object",
            "required": ["startLine"],
            "properties": {"startLine": {"type": "integer", "minimum": 1}},
        },
    },
}
LOCATION = {"type": "object", "additionalProperties": False, "properties": {"physicalLocation": PHYSICAL}}
RESULT = {
    "type": "object",
    "required": ["ruleId", "level", "message", "locations"],
    "additionalProperties": False,
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": LEVEL,
        "message": MESSAGE,
        "locations": {"type": "array", "uniqueItems": False, "items": LOCATION},
        "occurrenceCount": {"type": "integer", "minimum": 1},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
        "properties": {"type": "object"},
    },
}
RULE = {
    "type": "object",
    "required": ["id", "name", "shortDescription", "fullDescription", "help", "defaultConfiguration"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string", "pattern": "^[A-Z][A-Za-z0-9]+$"},
        "shortDescription": MESSAGE,
        "fullDescription": MESSAGE,
        "help": MESSAGE,
        "defaultConfiguration": {"type": "object", "properties": {"level": LEVEL}},
        "properties": {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}},
    },
}
DRIVER = {
    "type": "object",
    "required": ["name", "rules"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "version": {"type": "string"},
        "rules": {"type": "array", "uniqueItems": True, "items": RULE},
    },
}
INVOCATION = {
    "type": "object",
    "required": ["executionSuccessful"],
    "additionalProperties": False,
    "properties": {
        "executionSuccessful": {"type": "boolean"},
        "toolExecutionNotifications": {
            "type": "array",
            "items": {"type": "object", "required": ["message"], "properties": {"level": LEVEL, "message": MESSAGE}},
        },
    },
}
RUN = {
    "type": "object",
    "required": ["tool", "results"],
    "additionalProperties": False,
    "properties": {
        "tool": {"type": "object", "required": ["driver"], "properties": {"driver": DRIVER}},
        "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        "originalUriBaseIds": {"type": "object", "additionalProperties": {"properties": {"description": MESSAGE}}},
        "invocations": {"type": "array", "items": INVOCATION},
        "results": {"type": "array", "items": RESULT},
        "properties": {"type": "object"},
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {"type": "array", "items": RUN},
    },
}


def run_of(report):
    log = json.loads(sarif.render(report), parse_constant=pytest.fail)
    jsonschema.validate(log, SARIF)
    json.dumps(log, ensure_ascii=False).encode("utf-8")
    return log["runs"][0]


def test_golden(full, golden):
    run = run_of(full)
    del run["tool"]
    for result in run["results"]:
        result.pop("ruleIndex", None)
    golden("results.sarif", json.dumps(run, indent=2, ensure_ascii=False) + "\n")


def test_the_table_holds_every_rule(clean):
    rules = run_of(clean)["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [page.code for page in pages()]
    assert all(rule["shortDescription"]["text"] for rule in rules)


def test_results_point_into_the_table(full):
    run = run_of(full)
    result = run["results"][2]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "O12"
    assert [result["level"] for result in run["results"]] == ["note", "warning", "error"]


def test_an_unknown_rule_has_no_index(full):
    (result,) = run_of(Report(findings=(replace(full.findings[2], code="Z99"),)))["results"]
    assert "ruleIndex" not in result


def test_uris_are_relative_inside_and_absolute_outside(full, project):
    places = [Where(str(project / "my src" / "a#b.py"), 1), Where("/elsewhere/é.py", 2)]
    results = run_of(Report(findings=tuple(replace(full.findings[2], where=where) for where in places)))["results"]
    inside, outside = (result["locations"][0]["physicalLocation"]["artifactLocation"] for result in results)
    assert inside == {"uri": "my%20src/a%23b.py", "uriBaseId": "%SRCROOT%"}
    assert outside == {"uri": "file:///elsewhere/%C3%A9.py"}


def test_a_finding_without_a_place_points_at_the_script(full):
    assert run_of(full)["results"][0]["locations"] == []
    located = run_of(replace(full, run={"script": "train.py"}))["results"][0]["locations"]
    assert located[0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"


def test_a_crash_is_told(full):
    assert run_of(full)["invocations"][0]["executionSuccessful"] is True
    assert run_of(replace(full, run={"how": "crashed"}))["invocations"][0]["executionSuccessful"] is False
    assert run_of(Report())["invocations"][0]["executionSuccessful"] is True


def test_fingerprints_outlive_a_moved_line(full):
    finding = full.findings[2]
    others = [
        replace(finding, where=Where("train.py", 90)),
        replace(finding, key="other"),
        replace(finding, code="O13"),
    ]
    prints = [r["partialFingerprints"]["flatline/v1"] for r in run_of(Report(findings=(finding, *others)))["results"]]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_hostile_report(hostile):
    results = run_of(hostile)["results"]
    assert len(results) == len(hostile.findings)
    for result in results:
        assert result["message"]["text"].replace("\n", "").isprintable()
        for location in result["locations"]:
            uri = location["physicalLocation"]["artifactLocation"]["uri"]
            assert re.fullmatch(r"[A-Za-z0-9._~%/:@!$&'()*+,;=-]+", uri)
            assert urlsplit(uri).scheme in ("", "file")
