"""What a function gives back for the constants of one call: ``get_activation("softmax")``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from flatline.readers.source._arguments import argument, default
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Scope, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Words: TypeAlias = "Mapping[str, object]"
FOLDS: Mapping[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper, "strip": str.strip}
UNKNOWN = object()


def returned(
    project: Project, function: Scope, call: ast.Call, use: Use
) -> Sequence[tuple[ast.expr | None, Use]] | None:
    """The results that a call may come by; None where its constants leave none of them out."""
    every = function.returns if function.choices and function.params else []
    if len(every) < 2 or any(k.arg is None for k in call.keywords) or not _asks(function):
        return None
    words = _words(project, function, call, use)
    found: list[tuple[ast.expr | None, Use]] = []
    for value, place in every if words else ():
        taken = _comes_by(place, words)
        if taken is not False:
            found.append((value, place))
        if taken is True:
            break
    return found if words and 0 < len(found) < len(every) else None


def _asks(function: Scope) -> bool:
    """A condition is about a parameter."""
    names = {n.id for c in function.choices.values() for n in walk(c.test) if isinstance(n, ast.Name)}
    return bool(names & {*function.params})


def _words(project: Project, function: Scope, call: ast.Call, use: Use) -> dict[str, object]:
    """The parameters that are constants in a call."""
    found: dict[str, object] = {}
    for name in function.params[len(function.own) :]:
        fold = _folded(function, name)
        if fold is None or any(isinstance(each, ast.Starred) for each in call.args):
            continue
        given, usual = argument(call, function, name), default(function, name)
        known = project.constant(given, use, strict=True) if given is not None else usual
        if isinstance(known, ast.Constant):
            folds = FOLDS[fold] if fold and isinstance(known.value, str) else None
            found[name] = folds(known.value) if folds is not None and isinstance(known.value, str) else known.value
    return found


def _folded(function: Scope, name: str) -> str | None:
    """``lower`` of ``name = name.lower()``; nothing for a parameter that stays, None for one that is changed."""
    bound = function.bindings.get(name, [])
    if len(bound) == 1:
        return "" if bound[0].parameter else None
    value = bound[1].value if len(bound) == 2 and not bound[1].use.path else None
    func = value.func if isinstance(value, ast.Call) and not value.args else None
    own = isinstance(func, ast.Attribute) and unparsed(func.value) == name and func.attr in FOLDS
    return func.attr if own and isinstance(func, ast.Attribute) else None


def _comes_by(place: Use, words: Words) -> bool | None:
    """Whether the conditions around a place are met; None where that is not known."""
    found: list[bool | None] = []
    for block, part in place.path:
        choice = place.scope.choices.get(block)
        truth = _truth(choice.test, words) if choice is not None else None
        found.append(truth if truth is None else truth == (part == "body"))
    return False if False in found else None if None in found else True


def _truth(test: ast.expr, words: Words) -> bool | None:
    """What a condition is, where it is about the constants alone."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, words)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts, decisive = [_truth(each, words) for each in test.values], isinstance(test.op, ast.Or)
        return decisive if decisive in parts else None if None in parts else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(_value(test.left, words), test.ops[0], _value(test.comparators[0], words))
    found = _value(test, words)
    return None if found is UNKNOWN else bool(found)


def _compared(left: object, by: ast.cmpop, right: object) -> bool | None:
    if left is UNKNOWN or right is UNKNOWN:
        return None
    if isinstance(by, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        return (left == right) == isinstance(by, (ast.Eq, ast.Is))
    if isinstance(by, (ast.In, ast.NotIn)) and isinstance(right, tuple):
        return (left in right) == isinstance(by, ast.In)
    return None


def _value(node: ast.expr, words: Words) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return words.get(node.id, UNKNOWN)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        each = tuple(_value(part, words) for part in node.elts)
        return UNKNOWN if UNKNOWN in each else each
    func = node.func if isinstance(node, ast.Call) and not node.args else None
    inner = _value(func.value, words) if isinstance(func, ast.Attribute) and func.attr in FOLDS else UNKNOWN
    return FOLDS[func.attr](inner) if isinstance(inner, str) and isinstance(func, ast.Attribute) else UNKNOWN
