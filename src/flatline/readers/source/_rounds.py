"""Turns over what is written out, as in ``for phase in ["train", "val"]``: what names are in each, and what conditions come to."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from flatline.readers.source._arguments import argument, default
from flatline.readers.source._members import Member, alike, beside, member
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope, Use
from flatline.readers.source._values import is_object, origins

TURNS = 4  # of a loop; one with more is not about phases
CALLS = 2  # functions that hand a phase on
BACK = 4  # steps behind names
TRAINS = re.compile(r"tr(ai)?n|fit|learn", re.IGNORECASE)
PURE = {"startswith", "endswith", "lower", "upper", "strip"}
UNKNOWN = object()
OBJECT = object()  # something else than None, and as good as true
Known: TypeAlias = Mapping[str, object]


def turns(project: Project, loop: ast.AST, use: Use) -> list[dict[str, object]]:
    """What its names are in each turn of a loop over phases; nothing for another loop."""
    if not isinstance(loop, ast.For):
        return []
    found = [_bound(loop.target, each) for each in _elements(project, loop.iter, use, 0)]
    if not 2 <= len(found) <= TURNS or not all(found) or not _about_phases(found):
        return []
    names = {name for each in found for name in each}
    return found if _builds_nothing(project, loop, use) and not _set_within(names, loop, use) else []


def around(project: Project, use: Use, depth: int = 0) -> list[Known]:
    """What names are in each turn of the loops over phases around a place, and in each call of its function."""
    found = _called_with(project, use.scope, depth)
    for block, part in use.path:
        outer = next((u for u in use.scope.statements if id(u.statement) == block), None)
        each = turns(project, outer.statement, outer) if outer is not None and part == "body" else []
        found = [{**known, **turn} for known in found for turn in each] if each else found
    return found


def _called_with(project: Project, function: Scope, depth: int) -> list[Known]:
    """What the parameters of a function are in its calls; one call that tells nothing if there are none, or too many."""
    found: list[Known] = []
    sites = project.sites_of(function) if function.params and depth < CALLS else []
    for call, site in sites if len(sites) <= TURNS else ():
        for known in around(project, site, depth + 1):
            each = told(project, function, call, site, known)
            found += [each] if each not in found else []
    return found if 0 < len(found) <= TURNS else [{}]


def told(project: Project, function: Scope, call: ast.Call, use: Use, known: Known) -> dict[str, object]:
    """What the parameters of a function are in a call, where that is a constant, or an object for one that may be None."""
    spread = any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)
    found: dict[str, object] = {}
    for name in function.params if not spread else ():
        if len(function.bindings.get(name, ())) == 1 and name not in function.own:
            made = _given(project, argument(call, function, name), default(function, name), use, known)
            if made is OBJECT or made is None or isinstance(made, (str, bool, Member)):
                found[name] = made
    return found


def _given(project: Project, given: ast.expr | None, usual: ast.expr | None, use: Use, known: Known) -> object:
    if given is None:
        return usual.value if isinstance(usual, ast.Constant) else UNKNOWN
    made = value(given, known, use)
    if made is UNKNOWN and (found := member(project, given, use)) is not None:
        return found
    may_be_none = isinstance(usual, ast.Constant) and usual.value is None
    return OBJECT if made is UNKNOWN and may_be_none and is_object(project, given, use, plain=True) else made


def truth(test: ast.expr, known: Known, use: Use | None) -> bool | None:
    """What a condition comes to; None where that is not known."""
    found = value(test, known, use) if known and use is not None else UNKNOWN
    return None if found is UNKNOWN or isinstance(found, Member) else bool(found)


def chosen_in(node: ast.expr, known: Known, use: Use, depth: int = 0) -> ast.expr:
    """``torch.no_grad()`` of ``torch.enable_grad() if train else torch.no_grad()``, also behind a name."""
    found = use.scope.bindings.get(node.id, ()) if isinstance(node, ast.Name) else ()
    if len(found) == 1 and found[0].value is not None and not found[0].index and depth < BACK:
        return chosen_in(found[0].value, known, found[0].use, depth + 1)
    test = truth(node.test, known, use) if isinstance(node, ast.IfExp) else None
    if isinstance(node, ast.IfExp) and test is not None:
        return chosen_in(node.body if test else node.orelse, known, use, depth + 1)
    return node


def is_left_out(use: Use, known: Known) -> bool:
    """Whether a branch around a place is not taken in a turn."""
    for block, part in use.path:
        choice = use.scope.choices.get(block)
        taken = truth(choice.test, known, use) if choice is not None else None
        if taken is not None and taken != (part == "body"):
            return True
    return False


# --------------------------------------------------------------------------- elements


def _elements(project: Project, node: ast.expr, use: Use, depth: int) -> Sequence[ast.expr]:
    """The expressions that a loop goes through."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts
    if isinstance(node, ast.Dict):
        return [key for key in node.keys if key is not None]
    if isinstance(node, ast.DictComp):
        (head, *more), plain = node.generators, isinstance(node.key, ast.Name)
        same = plain and not more and not head.ifs and unparsed(head.target) == unparsed(node.key)
        return _elements(project, head.iter, use, depth + 1) if same and depth < BACK else ()
    if isinstance(node, ast.Call) and depth < BACK:
        return _called(project, node, use, depth)
    made = origins(project, node, use) if isinstance(node, (ast.Name, ast.Attribute)) and depth < BACK else ()
    if len(made) != 1 or made[0].node is node or _changes(project, node, use):
        return ()
    return _elements(project, made[0].node, made[0].use, depth + 1)


def _called(project: Project, node: ast.Call, use: Use, depth: int) -> Sequence[ast.expr]:
    """What ``table.items()``, ``enumerate(...)`` and ``zip(...)`` go through."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else unparsed(node.func)
    if isinstance(node.func, ast.Attribute) and not node.args and name in ("items", "keys"):
        keys = _elements(project, node.func.value, use, depth + 1)
        return keys if name == "keys" else [_pair(key, node) for key in keys]
    if name == "enumerate" and node.args:
        return [_pair(node, each) for each in _elements(project, node.args[0], use, depth + 1)]
    if name == "zip" and node.args:
        columns = [_elements(project, each, use, depth + 1) for each in node.args]
        size = max(map(len, columns))
        rows = [[c[at] if at < len(c) else node for c in columns] for at in range(size)]
        return [ast.copy_location(ast.Tuple(row, ast.Load()), node) for row in rows]
    wraps = name in ("tqdm", "list", "tuple") and len(node.args) == 1
    return _elements(project, node.args[0], use, depth + 1) if wraps else ()


def _pair(first: ast.expr, second: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Tuple([first, second], ast.Load()), first)


def _changes(project: Project, node: ast.expr, use: Use) -> bool:
    """Whether anything is put into a list or a table, or taken out of it."""
    grown = f"{unparsed(node)}."
    calls = (c.func for scope in use.scope.module.scopes for c, _ in scope.calls if isinstance(c.func, ast.Attribute))
    listed = any(f.attr in ("append", "remove", "insert", "extend") and unparsed(f).startswith(grown) for f in calls)
    return listed or project.written_to(node, use)


def _bound(target: ast.expr, element: ast.expr) -> dict[str, object]:
    """The constants that the names of a loop are given in a turn."""
    if isinstance(target, ast.Name):
        return {target.id: element.value} if isinstance(element, ast.Constant) else {}
    both = isinstance(target, (ast.Tuple, ast.List)) and isinstance(element, (ast.Tuple, ast.List))
    if not both or len(target.elts) != len(element.elts):  # type: ignore[attr-defined]
        return {}
    pairs = zip(target.elts, element.elts, strict=True)  # type: ignore[attr-defined]
    return {name: found for each in pairs for name, found in _bound(*each).items()}


def _about_phases(found: Sequence[Known]) -> bool:
    """One of the turns trains, or is told to, and another does not."""
    for name in found[0]:
        each = [turn.get(name) for turn in found]
        if {*map(type, each)} == {bool} and len({*each}) == 2:
            return True
        trains = [isinstance(word, str) and TRAINS.search(word) is not None for word in each]
        if any(trains) and not all(trains):
            return True
    return False


def _builds_nothing(project: Project, loop: ast.For, use: Use) -> bool:
    """No optimizer is made in it: what the turns share is what was there before."""
    within = [(c, u) for c, u in use.scope.calls if loop.lineno <= c.lineno <= (loop.end_lineno or 0)]
    return not any(thing.call is c and thing.is_optimizer for c, u in within for thing in project.things(c, u))


def _set_within(names: set[str], loop: ast.For, use: Use) -> bool:
    """Whether one of the names is given another value in the loop."""
    found = [b.use.statement for name in names for b in use.scope.bindings.get(name, ())]
    return any(loop.lineno < node.lineno <= (loop.end_lineno or 0) for node in found)


# --------------------------------------------------------------------------- values


def value(node: ast.expr | None, known: Known, use: Use, depth: int = 0) -> object:
    """What an expression is, if what is known of names decides it."""
    read = _READERS.get(type(node)) if depth <= BACK else None
    return read(node, known, use, depth) if read is not None else UNKNOWN


def _constant(node: ast.Constant, known: Known, use: Use, depth: int) -> object:
    return node.value


def _name(node: ast.Name, known: Known, use: Use, depth: int) -> object:
    """What is known of it, or of what it was given by one plain assignment."""
    if node.id in known:
        return known[node.id]
    found = use.scope.bindings.get(node.id, [])
    plain = len(found) == 1 and isinstance(found[0].use.statement, (ast.Assign, ast.AnnAssign)) and not found[0].index
    return value(found[0].value, known, found[0].use, depth + 1) if plain and known else UNKNOWN


def _attribute(node: ast.Attribute, known: Known, use: Use, depth: int) -> object:
    """A member of an enumeration, and what one that is known says of itself."""
    held = known.get(node.value.id, UNKNOWN) if isinstance(node.value, ast.Name) else UNKNOWN
    if not isinstance(held, Member):
        return beside(known.values(), node) or UNKNOWN
    if node.attr in ("name", "value"):
        return held.name if node.attr == "name" else held.written or UNKNOWN
    found = held.answer(node.attr)
    return value(found[0], {found[2]: held}, found[1], depth + 1) if found is not None else UNKNOWN


def _listed(node: ast.List | ast.Tuple | ast.Set, known: Known, use: Use, depth: int) -> object:
    found = [value(each, known, use, depth + 1) for each in node.elts]
    return UNKNOWN if UNKNOWN in found else tuple(found)


def _not(node: ast.UnaryOp, known: Known, use: Use, depth: int) -> object:
    found = value(node.operand, known, use, depth + 1) if isinstance(node.op, ast.Not) else UNKNOWN
    return UNKNOWN if found is UNKNOWN else not found


def _both(node: ast.BoolOp, known: Known, use: Use, depth: int) -> object:
    parts = [value(each, known, use, depth + 1) for each in node.values]
    decisive = isinstance(node.op, ast.Or)
    if any(part is not UNKNOWN and bool(part) == decisive for part in parts):
        return decisive
    return UNKNOWN if UNKNOWN in parts else not decisive


def _either(node: ast.IfExp, known: Known, use: Use, depth: int) -> object:
    test = value(node.test, known, use, depth + 1)
    return UNKNOWN if test is UNKNOWN else value(node.body if test else node.orelse, known, use, depth + 1)


def _compared(node: ast.Compare, known: Known, use: Use, depth: int) -> object:
    left: Any = value(node.left, known, use, depth + 1)
    right: Any = value(node.comparators[0], known, use, depth + 1)
    asked = type(node.ops[0])
    if UNKNOWN in (left, right) or len(node.ops) > 1 or not alike(left, right):
        return UNKNOWN
    if asked in (ast.Is, ast.IsNot, ast.Eq, ast.NotEq):
        known_apart = OBJECT not in (left, right) or None in (left, right)
        return (left == right) == (asked in (ast.Is, ast.Eq)) if known_apart else UNKNOWN
    fits = isinstance(right, tuple) or (isinstance(left, str) and isinstance(right, str))
    if asked not in (ast.In, ast.NotIn) or not fits or left is OBJECT:
        return UNKNOWN
    return (left in right) == (asked is ast.In)


def _method(node: ast.Call, known: Known, use: Use, depth: int) -> object:
    """``phase.startswith("train")``."""
    func = node.func
    if isinstance(func, ast.Name) and func.id == "bool" and len(node.args) == 1:
        found = value(node.args[0], known, use, depth + 1)
        return UNKNOWN if found is UNKNOWN else bool(found)
    if not isinstance(func, ast.Attribute) or func.attr not in PURE or node.keywords:
        return UNKNOWN
    text, given = value(func.value, known, use, depth + 1), [value(a, known, use, depth + 1) for a in node.args]
    plain = isinstance(text, str) and all(isinstance(each, str) for each in given)
    return getattr(text, func.attr)(*given) if plain else UNKNOWN


_READERS: dict[type[ast.expr] | type[None], Callable[[Any, Known, Use, int], object]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.List: _listed,
    ast.Tuple: _listed,
    ast.Set: _listed,
    ast.UnaryOp: _not,
    ast.BoolOp: _both,
    ast.IfExp: _either,
    ast.Compare: _compared,
    ast.Call: _method,
}
