"""scripts/new_rule.py starts a rule that runs at once, and refuses what exists. Tried in a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRATCH = shutil.ignore_patterns("__pycache__")


@pytest.fixture
def tree(tmp_path):
    for folder in ("scripts", "src/flatline", "tests/rules"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=SCRATCH)
    return tmp_path


def run(tree, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def new_rule(tree, *words):
    return run(tree, "scripts/new_rule.py", *words)


RULE, TEST = "src/flatline/rules/optimization/quite_new_defect.py", "tests/rules/optimization/test_quite_new_defect.py"


def test_writes_a_rule_and_its_test(tree):
    done = new_rule(tree, "optimization", "QuiteNewDefect", "O901")
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", [RULE, TEST])
    listed = run(tree, "-m", "flatline", "rules")
    assert "O901 quite-new-defect" in listed.stdout
    assert run(tree, "-m", "flatline", "explain", "quite-new-defect").returncode == 0
    tested = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST)
    assert "3 passed" in tested.stdout, tested.stdout


def test_what_it_writes_is_in_style(tree):
    ruff = shutil.which("ruff", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if ruff is None:
        pytest.skip("ruff is not installed")
    shutil.copy(ROOT / "pyproject.toml", tree)
    new_rule(tree, "optimization", "QuiteNewDefect", "O901")
    for check in (["format", "--check"], ["check", "--no-cache"]):
        done = subprocess.run([ruff, *check, RULE, TEST], cwd=tree, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_begins_a_family(tree):
    done = new_rule(tree, "weather", "SunInTheEyes", "WX1")
    assert done.returncode == 0, done.stderr
    assert "WX1" in run(tree, "-m", "flatline", "rules").stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("optimization", "QuiteNewDefect", "O12"),
            "O12 is taken by src/flatline/rules/optimization/double_softmax.py",
        ),
        (("data", "DoubleSoftmax", "D901"), "src/flatline/rules/optimization/double_softmax.py exists"),
        (("optimization", "QuiteNewDefect", "12"), "a code is one or two letters and a number"),
        (("optimization", "quite-new-defect", "O901"), "two or more words in CamelCase"),
        (("../optimization", "QuiteNewDefect", "O901"), "the family is the name of a folder"),
    ],
)
def test_refuses_in_one_line(tree, words, why):
    before = sorted(tree.rglob("*.py"))
    done = new_rule(tree, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert why in done.stderr
    assert sorted(tree.rglob("*.py")) == before


def test_refuses_a_rule_twice(tree):
    new_rule(tree, "optimization", "QuiteNewDefect", "O901")
    done = new_rule(tree, "optimization", "QuiteNewDefect", "O902")
    assert done.returncode == 2
    assert done.stderr == f"new_rule: {RULE} exists\n"
