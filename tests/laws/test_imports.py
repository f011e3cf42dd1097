"""The arrow: which part of flatline may import which, and what the light commands never load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "flatline"
VALUES = "events.Where"  # the one value of events that a finding carries

# Every part, and what it may import of the others. A part covers the modules under it.
ARROW: dict[str, tuple[str, ...]] = {
    "events": (),
    "findings": (VALUES,),
    "importing": (),
    "interruptions": (),
    "launch": (),
    "sensors": ("events", "history", "interruptions", "sensors", "toolbox"),
    "toolbox": ("toolbox",),
    "history": (),
    "trends": ("events", "history"),
    "rules": ("events", "findings", "history", "trends", "rules."),
    "trials": ("findings",),
    "engine": ("events", "findings", "interruptions", "rules", "trials"),
    "record": ("events", "findings", "record"),
    "readers": ("events", "readers", "record"),
    "afterwards": ("config", "engine", "events", "findings", "history", "readers", "rules", "trends"),
    "meanwhile": ("engine", "events", "findings", "readers", "rules", "trends"),
    "flake8": ("__version__", "config", "linting"),
    "linting": ("config", "engine", "events", "findings", "readers.source", "rules"),
    "catalogue": ("engine", "findings", "rules"),
    "config": ("findings", "rules"),
    "testing": ("engine", "events", "findings", "readers.source", "rules"),
    "reporters": ("catalogue", "findings", "record", "reporters", "__version__", VALUES),
    "session": ("config", "engine", "events", "findings", "interruptions", "meanwhile", "record", "rules", "sensors"),
    "preflight": ("engine", "events", "history", "meanwhile", "preflight", "rules", "sensors", "session", "toolbox"),
    "api": ("config", "findings", "reporters", "session"),
    "telling": ("findings", "reporters"),
    "children": ("config", "events", "findings", "importing", "launch", "session", "telling"),
    "commands": (
        "afterwards",
        "catalogue",
        "children",
        "cli",
        "commands.live",
        "commands.report",
        "commands.run",
        "config",
        "findings",
        "importing",
        "launch",
        "linting",
        "preflight",
        "readers",
        "record",
        "reporters",
        "session",
        "telling",
    ),
    "cli": ("commands", "__version__"),
    "__main__": ("cli",),
    "__init__": ("api", "findings"),
    "_site": ("children",),
}
THIRD_PARTIES = {
    "torch": ("sensors", "api", "preflight", "toolbox"),
    "rich": ("reporters",),
    "tomli": ("config",),
    "jinja2": ("reporters.html",),
    "markupsafe": ("reporters.html",),
}
SERVER = "commands.live"  # answers on the loopback address; opens no connection either
NETWORK = ("socket", "ssl", "http", "urllib.request", "smtplib", "ftplib", "asyncio", "xmlrpc")
DOORS = (
    "cli",
    "__main__",
    "__init__",
    "commands.run",
    "commands.explain",
    "commands.rules",
    "commands.diagnose",
    "commands.lint",
    "commands.preflight",
    "commands.report",
    "children",
    "api",
)


@dataclass(frozen=True)
class Import:
    """One imported name: ``events.LossComputed`` or ``torch.nn``, and where it stands."""

    name: str
    ours: bool
    line: int
    early: bool  # executed when the module is imported


def imports(text: str) -> list[Import]:
    """Everything a module imports, in its functions, too."""
    return list(_imports(ast.parse(text), early=True))


def _imports(node: ast.AST, *, early: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            names = [f"{'.' * child.level}{child.module or ''}.{alias.name}" for alias in child.names]
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _imports(child, early=early and not inside and not typing)
            continue
        for name in names:
            ours = name.split(".")[0] in ("flatline", "")
            yield Import(name.removeprefix("flatline."), ours, child.lineno, early)


def module_of(path: Path) -> str:
    """``sensors/loop.py`` -> ``sensors.loop``; a package is named like its folder."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts)


TREE = {module_of(path): imports(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def allowed(module: str, imported: Import) -> bool:
    """Whether the arrow lets this module have that name."""
    return any(_covers(right, imported.name) for right in ARROW[module.partition(".")[0]])


def _covers(right: str, name: str) -> bool:
    if right.endswith("."):  # names of the package itself, and none of the modules under it
        return name.rpartition(".")[0] == right[:-1] and name not in TREE
    return name == right or name.startswith(f"{right}.")


def against_the_arrow(module: str, found: list[Import]) -> list[str]:
    """The imports that the arrow forbids."""
    return [f"{module}:{i.line} imports {i.name}" for i in found if i.ours and not allowed(module, i)]


def foreign(module: str, found: list[Import]) -> list[str]:
    """Imports of other people's packages where they are not wanted."""
    return [
        f"{module}:{i.line} imports {i.name}"
        for i in found
        if not i.ours
        and (top := i.name.split(".")[0]) not in sys.stdlib_module_names | {"__future__"}
        and not any(f"{module}.".startswith(f"{place}.") for place in THIRD_PARTIES.get(top, ()))
    ]


def test_every_module_has_a_place():
    assert {module.split(".")[0] for module in TREE} == set(ARROW)


@pytest.mark.parametrize("module", TREE)
def test_imports_follow_the_arrow(module):
    assert against_the_arrow(module, TREE[module]) == []


@pytest.mark.parametrize("module", TREE)
def test_only_the_standard_library_and_what_is_declared(module):
    assert foreign(module, TREE[module]) == []


@pytest.mark.parametrize("module", [module for module in TREE if module != SERVER])
def test_nothing_opens_a_connection(module):
    assert [i.name for i in TREE[module] if any(f"{i.name}.".startswith(f"{name}.") for name in NETWORK)] == []


@pytest.mark.parametrize(
    "module", [module for module in TREE if not module.startswith(("sensors", "toolbox", "preflight"))]
)
def test_torch_and_rich_are_imported_late(module):
    late = ("torch", "rich", "jinja2", "markupsafe")
    assert [f"{module}:{i.line}" for i in TREE[module] if i.early and i.name.split(".")[0] in late] == []


@pytest.mark.parametrize("module", [module for module in TREE if not module.startswith(("sensors", "preflight"))])
def test_sensors_are_imported_late(module):
    assert [f"{module}:{i.line}" for i in TREE[module] if i.early and i.name.startswith("sensors")] == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("events", "from flatline.findings import Finding"),
        ("findings", "from flatline.events import LossComputed"),
        ("rules.data.input_not_normalised", "from flatline.sensors.graph import walk"),
        ("rules.data.input_not_normalised", "from flatline.rules.data.same_batch_every_step import SameBatchEveryStep"),
        ("rules.data.input_not_normalised", "def f():\n    import flatline.engine"),
        ("reporters.text", "from flatline.events import LossComputed"),
        ("reporters.text", "from flatline import session"),
        ("engine", "from flatline import config"),
        ("sensors.loop", "from flatline.findings import Finding"),
        ("sensors.loop", "from . import loop"),
    ],
)
def test_catches_an_import_against_the_arrow(module, line):
    assert len(against_the_arrow(module, imports(line))) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("events", "import torch"),
        ("rules.data.input_not_normalised", "def f():\n    import torch"),
        ("reporters.text", "import jinja2"),
        ("sensors.loop", "import numpy as np"),
        ("session", "from torch import nn"),
    ],
)
def test_catches_a_foreign_import(module, line):
    assert len(foreign(module, imports(line))) == 1


def test_sees_what_is_imported_late():
    late = "if TYPE_CHECKING:\n    import torch\ndef f():\n    import torch\nclass A:\n    def f(self):\n        import torch"
    assert [i.early for i in imports(late)] == [False, False, False]
    assert [i.early for i in imports("if True:\n    import torch\nclass A:\n    import torch")] == [True, True]


LIGHT = """
import runpy, sys
sys.argv = ["flatline", *{arguments!r}]
try:
    runpy.run_module("flatline", run_name="__main__", alter_sys=True)
except SystemExit as leaving:
    assert not leaving.code, leaving.code
heavy = sorted({{"torch", "numpy", "rich", "jinja2", "http.server", "flatline.sensors"}} & set(sys.modules))
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["rules"],
        ["explain", "O12"],
        ["run", "--help"],
        ["diagnose", "--help"],
        ["lint", "--help"],
        ["report", "--help"],
    ],
)
def test_light_commands_load_nothing_heavy(arguments):
    code = LIGHT.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("door", DOORS)
def test_doors_load_nothing_heavy(door):
    name = "flatline" if door == "__init__" else f"flatline.{door}"
    code = f"import {name}, sys; assert not {{'torch', 'numpy', 'rich', 'flatline.sensors'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
