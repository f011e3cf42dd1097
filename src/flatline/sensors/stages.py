"""Stages of a training script that never came: an unfreezing under a condition on the epoch that was never true."""

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

from flatline.sensors.callers import is_users, variables_of
from flatline.sensors.sources import FUNCTIONS, given_names, option_names, tree_of, value_pairs

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
NEVER = 99  # rounds that nobody means
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
        if code.co_name != "<module>" and is_users(code.co_filename) and speaks_of_freezing(code.co_filename):
            held = {name: frame.f_globals[name] for name in code.co_names[:NAMES] if name in frame.f_globals}
            held.update(list(variables_of(frame).items())[:NAMES])
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


def speaks_of_freezing(file: str) -> bool:
    """Whether anything in a file may freeze or unfreeze."""
    return any("requires_grad" in line for line in linecache.getlines(file))


def _attribute(value: Any, name: str) -> Any:
    """As it is stored: no property and no method of the user's runs."""
    return inspect.getattr_static(value, name, None)


def unreached_unfreezing(file: str, locals_of: Numbers | None = None, steps: int = 0) -> Unreached | None:
    """The first one in a file; ``locals_of`` is what was known inside its functions, ``steps`` those of the run."""
    tree = tree_of(file)
    if tree is None:
        return None
    names, helpers = _globals(file), unfreezing_functions(tree)
    for loop in ast.walk(tree):
        known = _known(tree, loop, file, names, locals_of or {}) if isinstance(loop, LOOPS) else {}
        last = _last_round(loop, known) if isinstance(loop, LOOPS) else None
        if last is None:
            continue
        for inner in ast.walk(loop):
            if isinstance(inner, ast.If) and (found := _never(inner, loop, last, known, helpers)) is not None:
                edge = isinstance(inner.test, ast.Compare) and _set_to(tree, inner.test.comparators[0], last + 1, steps)
                return found._replace(file=file, written=found.written or edge)
        for function, round_ in _told_the_round(loop, tree):
            if (asked := _never_asked(function, round_, last, tree, steps, helpers)) is not None:
                return asked._replace(file=file)
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


def unfreezes(node: ast.AST, helpers: Mapping[str, bool] = {}) -> bool:
    """``p.requires_grad = True``, ``module.requires_grad_()``, and a call of one of these functions."""
    if isinstance(node, ast.Assign):
        targets = [t for t in node.targets if isinstance(t, ast.Attribute) and t.attr == "requires_grad"]
        return bool(targets) and isinstance(node.value, ast.Constant) and node.value.value is True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    given = [*node.args, *(k.value for k in node.keywords)]
    true = any(isinstance(each, ast.Constant) and each.value is True for each in given)
    if name in helpers:
        return true or (not helpers[name] and (isinstance(node.func, ast.Name) or not given))
    return isinstance(node.func, ast.Attribute) and name == "requires_grad_" and (not given or true)


def unfreezing_functions(tree: ast.AST) -> Mapping[str, bool]:
    """Functions that unfreeze, and whether an argument tells them to."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    told = {f.name: True for f in functions if any(_sets_as_told(inner, f) for inner in ast.walk(f))}
    return told | {f.name: False for f in functions if any(unfreezes(inner) for inner in ast.walk(f))}


def _sets_as_told(node: ast.AST, function: ast.FunctionDef) -> bool:
    """``p.requires_grad_(flag)`` or ``p.requires_grad = flag`` with an argument of the function."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        value = node.args[0] if node.args else None
    elif isinstance(node, ast.Assign) and any(ast.unparse(t).endswith(".requires_grad") for t in node.targets):
        value = node.value
    else:
        return False
    return isinstance(value, ast.Name) and value.id in {a.arg for a in function.args.args}


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
    """Of ``for epoch in range(n)``."""
    end = _end_of_range(loop, names) if isinstance(loop.target, ast.Name) else None
    return end - 1 if end is not None else None


def _end_of_range(loop: Any, names: Mapping[str, Any]) -> int | None:
    """``n`` of ``range(n)`` or ``range(m, n)``; a wrapper around it, like tqdm, is looked through."""
    call = loop.iter
    while isinstance(call, ast.Call) and not _is_range(call) and call.args:
        call = call.args[0]
    if not _is_range(call) or len(call.args) > 2 or call.keywords:
        return None
    end = _number(call.args[-1], names)
    return end if end is not None and end > 0 else None


def rounds_of(tree: ast.AST, loop: ast.For, file: str, numbers: Numbers) -> int:
    """Where a loop over a range ends; 0 where that is not known."""
    return _end_of_range(loop, _known(tree, loop, file, _globals(file), numbers)) or 0


def _is_range(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("range", "trange")


def _never(
    branch: ast.If, loop: Any, last: int, names: Mapping[str, Any], helpers: Mapping[str, bool]
) -> Unreached | None:
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

    One that is far beyond is a way to say never, unless the run has as many steps, which are what it counts then.
    """
    numbers = [v.value for v in given_to(tree, name) if isinstance(v, ast.Constant) and type(v.value) is int]
    return any(rounds <= n and _is_meant(n, rounds, steps) for n in numbers)


def _is_meant(number: int, rounds: int, steps: int) -> bool:
    """A loop of as many rounds nearly comes to it, or it counts steps."""
    return number <= NEARLY * rounds or (number < steps and not _is_round(number))


def given_to(tree: ast.AST, name: ast.expr) -> list[ast.expr | None]:
    """What a name, an attribute or a key is given anywhere: in a statement, a call, a dictionary or as a default."""
    last = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
    if isinstance(name, ast.Subscript) and isinstance(name.slice, ast.Constant):
        last = str(name.slice.value)
    given: list[tuple[str, ast.expr | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            pairs = [pair for target in _targets(node) for pair in value_pairs(target, node.value)]
            given += [(ast.unparse(target).rpartition(".")[2], value) for target, value in pairs]
        elif isinstance(node, ast.arguments):
            given += [(a.arg, d) for a, d in zip(node.args[::-1], node.defaults[::-1], strict=False)]
        elif isinstance(node, ast.Call):
            given += [(k.arg or "", k.value) for k in node.keywords]
            given += [(option, k.value) for option in option_names(node) for k in node.keywords if k.arg == "default"]
        elif isinstance(node, ast.Dict):
            keyed = zip(node.keys, node.values, strict=True)
            given += [(str(k.value), v) for k, v in keyed if isinstance(k, ast.Constant)]
    return [value for each, value in given if each == last]


def _is_round(number: int) -> bool:
    """100, 999 or 10,000: a way to say never."""
    return number >= NEVER and any(len(str(each).rstrip("0")) == 1 for each in (number, number + 1))


def _inside(branch: ast.If) -> Iterator[Any]:
    for statement in branch.body:
        yield from ast.walk(statement)


# --------------------------------------------------------------------------- functions that each round asks


def _told_the_round(loop: Any, tree: ast.AST) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions and methods that a loop calls with its variable, as ``callback.on_epoch_begin(epoch)``, and their name for it."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for call in (node for node in ast.walk(loop) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for function in (f for f in functions if f.name == name):
            given = dict(zip(given_names(function), call.args, strict=False))
            given |= {k.arg: k.value for k in call.keywords if k.arg}
            rounds = [n for n, v in given.items() if isinstance(v, ast.Name) and v.id == loop.target.id]
            yield from ((function, each) for each in rounds)


def _never_asked(
    function: ast.FunctionDef, round_: str, last: int, tree: ast.AST, steps: int, helpers: Mapping[str, bool]
) -> Unreached | None:
    """A condition on the round that stands alone, with numbers that are all written in the file and all beyond the last."""
    for branch in (node for node in ast.walk(function) if isinstance(node, ast.If)):
        lines = [node.lineno for node in _inside(branch) if unfreezes(node, helpers)]
        test = branch.test
        if not lines or not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Eq, ast.GtE, ast.In)):
            continue
        sides = [test.left, test.comparators[0]]
        asked = [each for each in sides if not (isinstance(each, ast.Name) and each.id == round_)]
        numbers = _numbers_of(asked[0], function, tree) if len(asked) == 1 else []
        if numbers and min(numbers) > max(0, last):
            in_steps = len(set(numbers)) > 1 and min(numbers) < steps  # nobody says never twice
            near = in_steps or any(_is_meant(n, last + 1, steps) for n in numbers)
            told = f"{ast.unparse(test)}, which is {', '.join(map(str, sorted(numbers)))}"
            return Unreached("", min(lines), told, last, near)
    return None


def _numbers_of(node: ast.expr, function: ast.FunctionDef, tree: ast.AST) -> list[int]:
    """All whole numbers that an expression of a function may be; none where one is not known."""
    if isinstance(node, ast.Name):
        node = _gone_through(node.id, function) or node
    if isinstance(node, (ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict)):
        return _whole_numbers(node)
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return []
    last = node.attr if isinstance(node, ast.Attribute) else node.id
    values = [v for v in given_to(tree, node) if v is not None and ast.unparse(v).rpartition(".")[2] != last]
    found = [_whole_numbers(value) for value in values]
    return [number for each in found for number in each] if all(found) else []


def _gone_through(name: str, function: ast.FunctionDef) -> ast.expr | None:
    """What a loop of the function takes this name from: ``for at, stage in zip(self.at, self.stages)``."""
    for loop in (node for node in ast.walk(function) if isinstance(node, LOOPS)):
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        places = [place for place, each in enumerate(targets) if isinstance(each, ast.Name) and each.id == name]
        if not places:
            continue
        call = loop.iter if isinstance(loop.iter, ast.Call) else None
        if call is None:
            return loop.iter if len(targets) == 1 else None
        if isinstance(call.func, ast.Name) and call.func.id == "zip" and places[0] < len(call.args):
            return call.args[places[0]]
        keyed = isinstance(call.func, ast.Attribute) and call.func.attr == "items" and places[0] == 0
        return call.func.value if keyed and isinstance(call.func, ast.Attribute) else None
    return None


def _whole_numbers(node: ast.expr) -> list[int]:
    """Of a literal: itself, its elements or its keys."""
    parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [node])
    numbers = [part.value for part in parts if isinstance(part, ast.Constant) and type(part.value) is int]
    return numbers if len(numbers) == len(parts) else []
