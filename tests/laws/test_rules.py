"""A rule is one defect, one file, one class, one page and one test."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from flatline.catalogue import SECTIONS, page_of
from flatline.engine import hook_name, watched
from flatline.events import Event, all_events
from flatline.findings import SEVERITIES
from flatline.rules import Rule, all_rules

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "src" / "flatline" / "rules"
CODE = re.compile(r"[A-Z]{1,2}[1-9][0-9]*")
UNDONE = re.compile(r"\b(TODO|FIXME|XXX)\b")
NEAR_MISSES = 2  # for each hook that can find something

FILES = sorted(path for path in RULES.rglob("*.py") if path.name != "__init__.py")
EVERY = all_rules()
each_rule = pytest.mark.parametrize("rule", EVERY, ids=[f"{rule.code} {rule.slug()}" for rule in EVERY])


def file_of(rule: type[Rule]) -> Path:
    """The rule's file in the source tree."""
    return RULES.joinpath(*rule.__module__.split(".")[2:]).with_suffix(".py")


def the_test_of(rule: type[Rule]) -> Path:
    """The test file that belongs to a rule."""
    file = file_of(rule)
    return ROOT / "tests" / "rules" / file.parent.relative_to(RULES) / f"test_{file.name}"


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def class_of(rule: type[Rule]) -> ast.ClassDef:
    """The rule's class in its file."""
    return next(
        node for node in tree(file_of(rule)).body if isinstance(node, ast.ClassDef) and node.name == rule.__name__
    )


def judging(rule: type[Rule]) -> list[type[Event]]:
    """The events whose hooks can find something; a hook that only keeps notes is annotated ``-> None``."""
    silent = {n.name for n in class_of(rule).body if isinstance(n, ast.FunctionDef) and _is_none(n.returns)}
    return [event for event in watched(rule) if hook_name(event) not in silent]


def _is_none(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Constant) and annotation.value is None


# --------------------------------------------------------------------------- one idea, one file, one name


def test_one_rule_in_a_file():
    homes = Counter(file_of(rule) for rule in EVERY)
    assert {path: homes[path] for path in FILES} == dict.fromkeys(FILES, 1)


def test_codes_and_names_are_unique():
    for names in ([rule.code for rule in EVERY], [rule.slug() for rule in EVERY]):
        assert [name for name, count in Counter(names).items() if count > 1] == []


@each_rule
def test_is_named_like_its_file(rule):
    assert rule.slug().replace("-", "_") == file_of(rule).stem
    assert re.fullmatch(r"([A-Z][a-z0-9]+)+", rule.__name__), "CamelCase, abbreviations too: NllLoss"


@each_rule
def test_code_severity_and_version(rule):
    assert CODE.fullmatch(rule.code)
    assert rule.severity in SEVERITIES
    assert re.fullmatch(r"[0-9]+\.[0-9]+", rule.since)


@each_rule
def test_is_final(rule):
    assert rule.__bases__ == (Rule,)
    assert rule.__subclasses__() == []


@each_rule
def test_file_opens_with_its_code(rule):
    assert ast.get_docstring(tree(file_of(rule))) == f"{rule.code}."


# --------------------------------------------------------------------------- its page


@each_rule
def test_page_is_complete(rule):
    page = page_of(rule)
    assert tuple(page.sections) == SECTIONS
    assert [title for title, text in page.sections.items() if not text.strip()] == []
    assert page.summary.endswith(".")
    assert UNDONE.search(file_of(rule).read_text(encoding="utf-8")) is None


@each_rule
def test_examples_are_code(rule):
    sections = page_of(rule).sections
    assert sections["Example"].startswith("::")
    assert sections["Use instead"].startswith("::")
    assert "http" in sections["References"]


# --------------------------------------------------------------------------- what it watches, what it explains


@each_rule
def test_hooks_are_spelt_after_events(rule):
    known = {hook_name(event) for event in all_events()}
    assert {name for name in vars(rule) if name.startswith("on_")} <= known
    assert judging(rule), "no hook of this rule can find anything"


@each_rule
def test_hooks_take_their_event(rule):
    annotated = {
        n.name: n.args.args[1].annotation
        for n in class_of(rule).body
        if isinstance(n, ast.FunctionDef) and n.name.startswith("on_")
    }
    expected = {hook_name(event): event.__name__ for event in watched(rule)}
    assert {name: ast.unparse(a) for name, a in annotated.items() if a is not None} == expected


@each_rule
def test_consequences_are_other_codes(rule):
    assert isinstance(rule.consequences, tuple)
    assert [code for code in rule.consequences if not CODE.fullmatch(code)] == []
    assert len(set(rule.consequences)) == len(rule.consequences)
    assert rule.code not in rule.consequences


def test_no_rule_is_a_consequence_of_its_consequences():
    """Two that explained each other would both vanish from the report."""
    direct = {rule.code: set(rule.consequences) for rule in EVERY}
    assert [code for code in direct if code in _all_consequences(code, direct)] == []


def _all_consequences(code: str, direct: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [code]
    while waiting:
        new = direct.get(waiting.pop(), set()) - found
        found |= new
        waiting.extend(new)
    return found


# --------------------------------------------------------------------------- its numbers


@each_rule
def test_numbers_are_options_that_say_where_they_come_from(rule):
    lines = file_of(rule).read_text(encoding="utf-8").splitlines()
    for node in class_of(rule).body:
        value = getattr(node, "value", None)
        if not (isinstance(value, ast.Constant) and type(value.value) in (int, float)):
            continue
        assert isinstance(node, ast.AnnAssign), f"{lines[node.lineno - 1].strip()}: annotate it, and it is an option"
        assert re.search(r"\S\s+# \w+", lines[node.lineno - 1]), f"{lines[node.lineno - 1].strip()}: why this number?"


# --------------------------------------------------------------------------- its test


def counted_in(path: Path) -> tuple[int, int]:
    """Firing tests and near misses of a test file; every set of parameters counts as one."""
    firing = near = 0
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            count = _cases(node)
            near += count if node.name.startswith("test_near_miss") else 0
            firing += 0 if node.name.startswith("test_near_miss") else count
    return firing, near


def _cases(function: ast.FunctionDef) -> int:
    count = 1
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize":
            values = decorator.args[1]
            count *= len(values.elts) if isinstance(values, (ast.List, ast.Tuple)) else 1
    return count


@each_rule
def test_has_a_test(rule):
    assert the_test_of(rule).is_file(), f"write {the_test_of(rule).relative_to(ROOT)}"


@each_rule
def test_every_hook_fires_and_is_nearly_fooled(rule):
    path = the_test_of(rule)
    if not path.is_file():
        pytest.skip("has no test")
    firing, near = counted_in(path)
    hooks = judging(rule)
    assert firing >= len(hooks)
    assert near >= NEAR_MISSES * len(hooks), "tests named test_near_miss…"
    text = path.read_text(encoding="utf-8")
    assert [event.__name__ for event in hooks if not re.search(rf"\b{event.__name__}\b", text)] == []


def test_every_test_belongs_to_a_rule():
    known = {the_test_of(rule) for rule in EVERY}
    assert sorted(set((ROOT / "tests" / "rules").rglob("test_*.py")) - known) == []
