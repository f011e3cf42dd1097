import json
from pathlib import PurePosixPath

import jsonschema

from flatline.findings import Report
from flatline.reporters import json as reporter

SCALAR = {"type": ["string", "integer", "number", "boolean", "null"]}
WHERE = {
    "type": "object",
    "required": ["file", "line"],
    "properties": {"file": {"type": "string"}, "line": {"type": "integer"}},
}
FINDING = {
    "type": "object",
    "required": ["code", "slug", "severity", "message", "where", "step", "evidence", "cause", "fix", "count"],
    "additionalProperties": False,
    "properties": {
        "code": {"type": "string"},
        "slug": {"type": "string"},
        "severity": {"enum": ["error", "warning", "hint"]},
        "message": {"type": "string"},
        "where": {"anyOf": [WHERE, {"type": "null"}]},
        "step": {"type": "integer"},
        "count": {"type": "integer", "minimum": 1},
        "ranks": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        "evidence": {"type": "object", "additionalProperties": SCALAR},
        "cause": {"type": "string"},
        "fix": {"type": "string"},
    },
}
UNCHECKED = {"type": "object", "required": ["code", "reason"], "additionalProperties": {"type": "string"}}
CONTRACT = {
    "type": "object",
    "required": ["schema", "findings", "checked", "not_checked", "run", "notes"],
    "additionalProperties": False,
    "properties": {
        "schema": {"const": 1},
        "findings": {"type": "array", "items": FINDING},
        "checked": {"type": "array", "items": {"type": "string"}},
        "not_checked": {"type": "array", "items": UNCHECKED},
        "run": {"type": "object", "additionalProperties": SCALAR},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
}


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    parsed = json.loads(text, parse_constant=refuse)
    jsonschema.validate(parsed, CONTRACT)
    json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    return parsed


def test_golden(full, golden):
    golden("report.json", reporter.render(full))


def test_contract(full):
    parsed = strict(reporter.render(full))
    assert [finding["code"] for finding in parsed["findings"]] == ["O19", "O4", "O12"]
    assert parsed["findings"][2]["where"] == {"file": "train.py", "line": 9}
    assert parsed["findings"][0]["where"] is None
    assert parsed["not_checked"][0] == {"code": "O8", "reason": "no learning-rate scheduler was built"}


def test_ranks_only_where_they_are_known(full):
    parsed = strict(reporter.render(full))
    assert [finding.get("ranks") for finding in parsed["findings"]] == [None, [0, 1], None]


def test_an_empty_report():
    empty = {"schema": 1, "findings": [], "checked": [], "not_checked": [], "run": {}, "notes": []}
    assert strict(reporter.render(Report())) == empty


def test_hostile_text_and_numbers(hostile):
    parsed = strict(reporter.render(hostile))
    evidence = parsed["findings"][0]["evidence"]
    assert "nan" in evidence.values()
    assert (evidence["high"], evidence["low"]) == ("inf", "-inf")
    assert parsed["run"]["overhead"] == "nan"
    assert parsed["findings"][0]["message"].startswith("\x1b[31mred")


def test_values_of_other_types_become_text():
    assert json.loads(reporter.dump({"path": PurePosixPath("a"), 3: True})) == {"path": "a", "3": True}
