"""docs/toolbox.md: every name is there, every example runs; and the toolbox is loaded when it is asked for."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flatline import toolbox

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "toolbox.md").read_text(encoding="utf-8")
SETUP, *EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
RETURNED = {
    name
    for name in toolbox.__all__
    if isinstance(getattr(toolbox, name), type) and name.endswith(("Result", "Audit", "Health", "Curve", "Finite"))
}


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.splitlines()[0] for example in EXAMPLES])
def test_example_runs(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    exec(compile(SETUP, "setup", "exec"), names)
    exec(compile(example, "example", "exec"), names)


@pytest.mark.parametrize("name", sorted(set(toolbox.__all__) - RETURNED))
def test_name_is_on_the_page_with_an_example(name):
    assert any(f"toolbox.{name}(" in example or f"toolbox.{name}" in example for example in (SETUP, *EXAMPLES))


@pytest.mark.parametrize("name", toolbox.__all__)
def test_docstrings_name_arguments_and_source(name):
    thing = getattr(toolbox, name)
    doc = inspect.getdoc(thing) or ""
    assert doc
    if not inspect.isfunction(thing):
        return
    arguments = [argument.lstrip("*") for argument in inspect.signature(thing).parameters]
    assert [argument for argument in arguments if not re.search(rf"^ +{argument}\b.*: ", doc, re.MULTILINE)] == []


def test_every_public_name_is_exported_once():
    public = {name for name, value in vars(toolbox).items() if name[0] != "_" and hasattr(value, "__module__")}
    assert len(set(toolbox.__all__)) == len(toolbox.__all__)
    assert set(toolbox.__all__) == public - {"annotations"}


def test_flatline_itself_does_not_load_it():
    code = "import flatline, sys; assert not {'torch', 'flatline.toolbox'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
