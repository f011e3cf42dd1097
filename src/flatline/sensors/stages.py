"""Stages of a training script that never came: an unfreezing under a condition on the epoch that was never true.

And a stage that throws away what it begins with: a model that is loaded, and built anew in one of the next statements.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
import types
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch

from flatline.sensors.callers import is_users
from flatline.sensors.sources import FUNCTIONS, tree_of

WRITTEN = (ast.Constant, ast.Tuple, ast.List, ast.Set)
LOOPS = (ast.For, ast.AsyncFor)
NO_SETTINGS = (
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    str,
    bytes,
    float,
    list,
    tuple,
    dict,
    set,
    torch.Tensor,
)
NEARLY = 2  # times the rounds: a stage that was meant to come
NAMES = 64  # of a function's variables and attributes that are looked at
SETTINGS = 16  # objects in objects that are looked into
Numbers = Mapping[tuple[str, str, int], Mapping[str, int]]  # file, function and its line -> what had which whole number


class Unreached(NamedTuple):
    """A statement that unfreezes, and the condition that kept it from running."""

    file: str
    line: int
    condition: str
    last: int  # value of the loop's variable in its last round
    written: bool  # nobody set the number to switch the stage off: it is written there, or one too many in a setting


def numbers_in(frame: FrameType | None) -> Numbers:
    """Whole numbers that variables of the user's functions hold right now, and attributes of them; no object is kept."""
    found = {}
    while frame is not None:
        code = frame.f_code
        if code.co_name != "<module>" and is_users(code.co_filename) and _speaks_of_freezing(code.co_filename):
            held = {name: frame.f_globals[name] for name in code.co_names[:NAMES] if name in frame.f_globals}
            held.update(list(frame.f_locals.items())[:NAMES])
            wanted = code.co_names[:NAMES]
            parts = {key: part for name, value in held.items() for key, part in _parts(name, value, wanted)}
            deeper = [(k, v) for k, v in parts.items() if not isinstance(v, (int, type(None), torch.nn.Module))][
                :SETTINGS
            ]
            parts.update((k, p) for name, value in deeper for k, p in _parts(name, value, wanted))
            numbers = {name: value for name, value in (held | parts).items() if type(value) is int}
            found[code.co_filename, code.co_name, code.co_firstlineno] = numbers
        frame = frame.f_back
    return found


def _parts(name: str, value: Any, wanted: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Attributes of an object, entries of a dictionary, as the source spells them."""
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", part) for key, part in list(value.items())[:NAMES] if type(key) is str)
    elif name.partition(".")[0].isidentifier() and not isinstance(value, (int, type(None), *NO_SETTINGS)):
        yield from ((f"{name}.{each}", _attribute(value, each)) for each in wanted)


def _speaks_of_freezing(file: str) -> bool:
    return any("requires_grad" in line for line in linecache.getlines(file))


def _attribute(value: Any, name: str) -> Any:
    """As it is stored: no property and no method of the user's runs."""
    return inspect.getattr_static(value, name, None)


def unreached_unfreezing(file: str, locals_of: Numbers | None = None, steps: int = 0) -> Unreached | None:
    """The first one in a file; ``locals_of`` is what was known inside its functions, ``steps`` those of the run."""
    tree = tree_of(file)
    if tree is None:
        return None
    names, helpers = _globals(file), _unfreezing_functions(tree)
    for loop in ast.walk(tree):
        known = _known(tree, loop, file, names, locals_of or {}) if isinstance(loop, LOOPS) else {}
        last = _last_round(loop, known) if isinstance(loop, LOOPS) else None
        if last is None:
            continue
        for inner in ast.walk(loop):
            if isinstance(inner, ast.If) and (found := _never(inner, loop, last, known, helpers)) is not None:
                edge = isinstance(inner.test, ast.Compare) and _set_to(tree, inner.test.comparators[0], last + 1, steps)
                return found._replace(file=file, written=found.written or edge)
    return None


def _globals(file: str) -> Mapping[str, Any]:
    main = sys.modules.get("__main__")
    same = os.path.abspath(getattr(main, "__file__", "") or "") == os.path.abspath(file)
    return dict(vars(main)) if same and main is not None else {}


def _known(tree: ast.AST, loop: ast.AST, file: str, names: Mapping[str, Any], inside: Numbers) -> Mapping[str, Any]:
    """In a function a name may be anything: known are numbers written there, and those it was seen with and keeps."""
    around = [f for f in ast.walk(tree) if isinstance(f, FUNCTIONS) and any(n is loop for n in ast.walk(f))]
    if not around:
        return names
    function = max(around, key=lambda f: f.lineno)
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    changed = {ast.unparse(t) for n in ast.walk(loop) for t in _targets(n)}
    return {k: v for k, v in inside.get((file, function.name, first), {}).items() if k not in changed}


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []


def unfreezes(node: ast.AST, helpers: frozenset[str] = frozenset()) -> bool:
    """``p.requires_grad = True``, ``module.requires_grad_()``, and a call of one of these functions."""
    if isinstance(node, ast.Assign):
        targets = [t for t in node.targets if isinstance(t, ast.Attribute) and t.attr == "requires_grad"]
        return bool(targets) and isinstance(node.value, ast.Constant) and node.value.value is True
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in helpers
    given = [*node.args, *(k.value for k in node.keywords)]
    true = not given or (isinstance(given[0], ast.Constant) and given[0].value is True)
    return isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_" and true


def _unfreezing_functions(tree: ast.AST) -> frozenset[str]:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(f.name for f in functions if any(unfreezes(inner) for inner in ast.walk(f)))


def _number(node: ast.expr | None, names: Mapping[str, Any]) -> int | None:
    value = _held(node, names) if node is not None else None
    return value if type(value) is int else None


def _held(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name, an attribute or an entry of a dictionary is, as far as is known."""
    if isinstance(node, ast.Constant):
        return node.value
    known = names.get(ast.unparse(node))
    if known is not None or isinstance(node, ast.Name):
        return known
    if isinstance(node, ast.Attribute):
        space = _held(node.value, names)
        return _attribute(space, node.attr) if space is not None else None
    key = node.slice if isinstance(node, ast.Subscript) else None
    space = _held(node.value, names) if isinstance(node, ast.Subscript) and isinstance(key, ast.Constant) else None
    return space.get(key.value) if type(space) is dict and isinstance(key, ast.Constant) else None


def _last_round(loop: Any, names: Mapping[str, Any]) -> int | None:
    """Of ``for epoch in range(n)`` or ``range(m, n)``; a wrapper around it, like tqdm, is looked through."""
    call = loop.iter
    while isinstance(call, ast.Call) and not _is_range(call) and call.args:
        call = call.args[0]
    if not _is_range(call) or not isinstance(loop.target, ast.Name) or len(call.args) > 2 or call.keywords:
        return None
    end = _number(call.args[-1], names)
    return end - 1 if end is not None and end > 0 else None


def _is_range(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("range", "trange")


def _never(branch: ast.If, loop: Any, last: int, names: Mapping[str, Any], helpers: frozenset[str]) -> Unreached | None:
    test = branch.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.left, ast.Name):
        return None
    first = _first_round(test, names)
    if test.left.id != loop.target.id or first is None or first <= max(0, last):
        return None
    lines = [node.lineno for node in _inside(branch) if unfreezes(node, helpers)]
    written = isinstance(test.comparators[0], WRITTEN)
    condition = ast.unparse(test) + ("" if written else f", which is {_number(test.comparators[0], names)}")
    return Unreached("", min(lines), condition, last, written) if lines else None


def _first_round(test: ast.Compare, names: Mapping[str, Any]) -> int | None:
    """In which ``epoch == 5``, ``epoch >= 5``, ``epoch > 4`` or ``epoch in (5, 8)`` is true."""
    other, op = test.comparators[0], test.ops[0]
    if isinstance(op, ast.In) and isinstance(other, (ast.Tuple, ast.List, ast.Set)):
        all_of_them = [_number(each, names) for each in other.elts]
        return min((n for n in all_of_them if n is not None), default=None) if None not in all_of_them else None
    wanted = _number(other, names) if isinstance(op, (ast.Eq, ast.GtE, ast.Gt)) else None
    return None if wanted is None or wanted <= 0 else wanted + isinstance(op, ast.Gt)


def _set_to(tree: ast.AST, name: ast.expr, rounds: int, steps: int) -> bool:
    """A name, an attribute or a key is given a number somewhere, as a literal, that a loop of as many rounds nearly comes to.

    In a statement, a call, a dictionary or as a default. One that is far beyond is a way to say never, unless the run
    has as many steps, which are what it counts then.
    """
    last = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
    if isinstance(name, ast.Subscript) and isinstance(name.slice, ast.Constant):
        last = str(name.slice.value)
    given: list[tuple[str, ast.expr | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            pairs = [pair for target in _targets(node) for pair in _pairs(target, node.value)]
            given += [(ast.unparse(target).rpartition(".")[2], value) for target, value in pairs]
        elif isinstance(node, ast.arguments):
            given += [(a.arg, d) for a, d in zip(node.args[::-1], node.defaults[::-1], strict=False)]
        elif isinstance(node, ast.Call):
            options = [str(a.value).lstrip("-").replace("-", "_") for a in node.args if isinstance(a, ast.Constant)]
            given += [(k.arg or "", k.value) for k in node.keywords]
            given += [(option, k.value) for option in options for k in node.keywords if k.arg == "default"]
        elif isinstance(node, ast.Dict):
            given += [
                (str(k.value), v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)
            ]
    numbers = [v.value for n, v in given if n == last and isinstance(v, ast.Constant) and type(v.value) is int]
    return any(rounds <= n <= NEARLY * rounds or (rounds <= n < steps and not _is_round(n)) for n in numbers)


def _is_round(number: int) -> bool:
    """100, 999 or 10,000: a way to say never."""
    return any(len(str(each).rstrip("0")) == 1 for each in (number, number + 1))


def _pairs(target: ast.expr, value: ast.expr | None) -> list[tuple[ast.expr, ast.expr | None]]:
    """``a, b = 1, 2`` is two assignments."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _inside(branch: ast.If) -> Iterator[Any]:
    for statement in branch.body:
        yield from ast.walk(statement)


# --------------------------------------------------------------------------- loaded, and built anew


def built_anew(file: str, line: int) -> bool:
    """Whether the model that ``load_state_dict`` fills in this line gets another value before anything else is done with it."""
    tree = tree_of(file)
    if tree is None:
        return False
    for block in _blocks(tree):
        for at, statement in enumerate(block):
            loaded = _loaded_in(statement) if statement.lineno <= line <= (statement.end_lineno or 0) else ""
            if loaded:
                return _replaced(loaded, block[at + 1 :], tree)
    return False


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _loaded_in(statement: ast.stmt) -> str:
    """``model`` of a statement that is ``model.load_state_dict(...)`` and no more."""
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr != "load_state_dict"
    ):
        return ""
    return ast.unparse(call.func.value) if isinstance(call.func.value, (ast.Name, ast.Attribute)) else ""


def _replaced(name: str, following: list[ast.stmt], tree: ast.AST) -> bool:
    owner, _, attribute = name.rpartition(".")
    own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    for statement in following:
        if isinstance(statement, ast.Assign) and not _mentioned(statement.value, name):
            targets = [t for each in statement.targets for t in (each.elts if isinstance(each, ast.Tuple) else [each])]
            if name in map(ast.unparse, targets):
                return isinstance(statement.value, ast.Call)
        call = statement.value if isinstance(statement, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
        if owner and method is not None and ast.unparse(method.value) == owner:
            return _rebuilds(tree, method.attr, attribute)
        called = any(isinstance(n, ast.Call) and getattr(n.func, "id", "") in own for n in ast.walk(statement))
        if called or _mentioned(statement, name) or (owner and _mentioned(statement, owner)):
            return False
    return False


def _mentioned(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) == name for n in ast.walk(node))


def _rebuilds(tree: ast.AST, method: str, attribute: str) -> bool:
    """Whether every method of this name gives ``self.attribute`` another value first of all that it does with it."""
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == method and n.args.args]
    return bool(found) and all(_replaced_in(f, f"{f.args.args[0].arg}.{attribute}") for f in found)


def _replaced_in(function: ast.FunctionDef, name: str) -> bool:
    for statement in function.body:
        if isinstance(statement, ast.Assign) and name in map(ast.unparse, statement.targets):
            return isinstance(statement.value, ast.Call) and not _mentioned(statement.value, name)
        if _mentioned(statement, name):
            return False
    return False
