"""Short functions, shallow nesting, no error swallowed, no registry but the folder."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "flatline"
MEDIAN, LONG, LONG_SHARE, LONGEST, DEEPEST = 7, 50, 0.04, 60, 4  # lines, lines, share, lines, levels
BROAD = (  # where a broad except may stand: around all that is ours, and around the script
    "engine.py",
    "sensors/patching.py",
    "sensors/replay/running.py",
    "session.py",
    "launch.py",
    "commands/run.py",
    "preflight/probes.py",
    "preflight/stages.py",
    "preflight/texts.py",
)
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TREES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(SOURCE.rglob("*.py"))
}


@dataclass(frozen=True)
class Measured:
    """One function."""

    place: str
    lines: int  # of its body, without the docstring
    depth: int


def measured(tree: ast.Module, file: str = "") -> list[Measured]:
    """Every function of a module, those inside others, too."""
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    return [Measured(f"{file}:{f.lineno} {f.name}", _lines(f), _depth(f.body)) for f in functions]


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _depth(statements: Sequence[ast.stmt]) -> int:
    """Levels of nested blocks; an elif is on the level of its if."""
    return max((1 + _inside(s) if isinstance(s, BLOCKS) else 0 for s in statements), default=0)


def _inside(block: ast.stmt) -> int:
    return max((_depth(body) - (1 if elif_ else 0) for body, elif_ in _bodies(block)), default=0)


def _bodies(block: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(block, name, [])
        elif_ = name == "orelse" and isinstance(block, ast.If) and len(body) == 1 and isinstance(body[0], ast.If)
        yield body, elif_
    for part in (*getattr(block, "handlers", ()), *getattr(block, "cases", ())):
        yield part.body, False


ALL = [function for file, tree in TREES.items() for function in measured(tree, file)]


def test_half_of_the_functions_are_short():
    assert statistics.median(function.lines for function in ALL) <= MEDIAN


def test_few_functions_are_long():
    long = [f"{function.place}: {function.lines} lines" for function in ALL if function.lines > LONG]
    assert len(long) <= LONG_SHARE * len(ALL), long


def test_no_function_is_very_long():
    assert [f"{function.place}: {function.lines} lines" for function in ALL if function.lines > LONGEST] == []


def test_nothing_is_nested_deeply():
    assert [f"{function.place}: {function.depth} levels" for function in ALL if function.depth > DEEPEST] == []


def test_measures():
    text = (
        'def f():\n    """Doc."""\n    for a in b:\n        if a:\n            pass\n        elif b:\n'
        "            with c:\n                pass\n    return 1\n"
    )
    (function,) = measured(ast.parse(text))
    assert (function.lines, function.depth) == (7, 3)


# --------------------------------------------------------------------------- errors


def broad(tree: ast.Module) -> list[ast.ExceptHandler]:
    """Handlers of everything."""
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return [
        handler for handler in handlers if handler.type is None or _names(handler.type) & {"Exception", "BaseException"}
    ]


def _names(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def swallowed(tree: ast.Module) -> list[int]:
    """Lines of broad handlers that do nothing at all."""
    return [handler.lineno for handler in broad(tree) if all(_idle(statement) for statement in handler.body)]


def _idle(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, (ast.Pass, ast.Continue))


@pytest.mark.parametrize("file", TREES)
def test_broad_except_stands_only_where_it_must(file):
    lines = [] if file in BROAD else [handler.lineno for handler in broad(TREES[file])]
    assert lines == []


@pytest.mark.parametrize("file", TREES)
def test_no_error_is_swallowed(file):
    assert swallowed(TREES[file]) == []


@pytest.mark.parametrize("what", ["", " Exception", " BaseException as e", " (ValueError, Exception)"])
def test_catches_a_swallowed_error(what):
    assert swallowed(ast.parse(f"try:\n    f()\nexcept{what}:\n    pass")) == [3]


# --------------------------------------------------------------------------- the folder is the registry


def registries(tree: ast.Module) -> list[str]:
    """Constants of a module that list its rules."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(name for name in stored if name.isupper() and name.endswith(("RULES", "REGISTRY", "RULE_CLASSES")))


@pytest.mark.parametrize("file", TREES)
def test_no_list_of_rules(file):
    assert registries(TREES[file]) == []


def test_catches_a_list_of_rules():
    assert registries(ast.parse("ALL_RULES = [A, B]")) != []
