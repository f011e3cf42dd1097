"""What is there is documented, and what the documents speak of is there."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import pytest

import flatline
from flatline.cli import parser
from flatline.rules import all_rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
    if path.is_file()
)
SHELL = re.compile(r"^```(?:sh|bash|console|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


def commands() -> dict[str, argparse.ArgumentParser]:
    """Every command of the command line and its parser."""
    (choices,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(choices.choices)


def options(command: str) -> list[str]:
    """The options of a command, but for --help."""
    actions = commands()[command]._actions
    return [name for action in actions for name in action.option_strings if action.dest != "help"]


def words(shell: str) -> list[list[str]]:
    """The words of every line of a shell block that is a command, without comments and output."""
    console = any(line.startswith("$ ") for line in shell.splitlines())
    lines = [line[2:] if console else line for line in shell.splitlines() if line.startswith("$ ") or not console]
    return [line.partition(" #")[0].split() for line in lines if line.strip() and not line.startswith("#")]


def typed(text: str) -> list[list[str]]:
    """All commands of a document's shell blocks."""
    return [line for block in SHELL.findall(text) for line in words(block)]


# --------------------------------------------------------------------------- what is there is documented


@pytest.mark.parametrize("command", commands())
def test_command_is_in_the_readme(command):
    assert f"flatline {command}" in README


@pytest.mark.parametrize("option", options("run"))
def test_option_is_in_the_readme(option):
    assert re.search(rf"`{option}\b", README)


@pytest.mark.parametrize("command", commands())
def test_command_and_its_options_have_help(command):
    listed = parser().format_help()
    assert re.search(rf"^\s+{command}\s+\w", listed, re.MULTILINE)
    if command == "run":
        assert [action.option_strings for action in commands()[command]._actions if not action.help] == []


@pytest.mark.parametrize("name", flatline.__all__)
def test_public_name_is_documented(name):
    assert re.search(rf"flatline\.{name}\b", README)
    if not name.startswith("__"):
        assert (getattr(flatline, name).__doc__ or "").strip()


def test_few_names_are_public():
    assert len(flatline.__all__) <= 10


# --------------------------------------------------------------------------- what is documented is there


@each_document
def test_commands_name_files_that_exist(document):
    """A path with a folder in it is one of ours; a bare ``train.py`` is the reader's."""
    paths = [word.strip("\"'") for line in typed(document.read_text(encoding="utf-8")) for word in line if "/" in word]
    ours = [path for path in paths if "://" not in path and not path.startswith(("~", "/", "$"))]
    assert [path for path in ours if not (ROOT / path).exists()] == []


@each_document
def test_commands_are_spelt_right(document):
    for line in typed(document.read_text(encoding="utf-8")):
        if "flatline" not in line or line.index("flatline") + 1 == len(line):
            continue
        command, *rest = line[line.index("flatline") + 1 :]
        if command in commands():
            own = rest[: next((at for at, word in enumerate(rest) if word.endswith((".py", "torchrun"))), len(rest))]
            assert [word for word in own if word.startswith("--") and word not in options(command)] == []
        else:
            assert command.startswith("-"), f"there is no `flatline {command}`"


@each_document
def test_links_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []
    headings = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)
    }
    assert [anchor for anchor in re.findall(r"\]\(#([^)]*)\)", text) if anchor not in headings] == []


def test_files_named_in_the_documents_exist():
    named = re.compile(r"`((?:src|tests|scripts|benchmarks|examples|docs|\.ci)/[\w./-]+)`")
    found = {name for document in DOCUMENTS for name in named.findall(document.read_text(encoding="utf-8"))}
    assert sorted(name for name in found if not (ROOT / name).exists()) == []


def test_codes_in_the_readme_are_rules():
    known = {rule.code for rule in all_rules()}
    listed = README.partition("## What it finds")[2].partition("\n## ")[0]
    assert set(re.findall(r"\b[A-Z]{1,2}[1-9][0-9]*\b", listed)) <= known


# --------------------------------------------------------------------------- the tree and the tools


def test_every_source_file_is_in_the_architecture():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "flatline"
    names = [p.name if p.is_file() else f"{p.name}/" for p in source.iterdir() if not p.name.startswith("__pycache__")]
    names += [path.name for path in (source / "sensors").glob("*.py") if path.name != "__init__.py"]
    names += [path.parent.name + "/" for path in (source / "rules").glob("*/__init__.py")]
    assert sorted(name for name in names if name not in text and name != "py.typed") == []


def test_ci_installs_every_tool():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["dev"]
    assert [tool for tool in tools if f'"{tool}"' not in script] == []
    assert "python -m pytest" in script
    assert "python -m pytest" in README


def test_this_version_is_in_the_changes():
    assert f"## {flatline.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_reads_shell_blocks():
    text = "```console\n$ flatline run a/b.py --x  # why\nout/put\n```\n\n```sh\n# note\npip install .\n```\n"
    assert typed(text) == [["flatline", "run", "a/b.py", "--x"], ["pip", "install", "."]]
