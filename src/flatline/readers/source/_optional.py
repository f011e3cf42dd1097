"""Losses behind a switch: ``if self.from_probs: return nll_loss(...)`` before ``return cross_entropy(...)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.readers.source._imported import beside
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Use
from flatline.readers.source._values import truth_of

ABOUT_INPUT = re.compile(r"prob|logit|softmax|sigmoid|activ|raw|log|nll|bce", re.IGNORECASE)  # in a condition
OTHER_INPUT = re.compile(r"softmax|sigmoid|\blog\(|nll|bce|binary_cross|_with_logits", re.IGNORECASE)


def may_be_left_out(project: Project, call: ast.Call, use: Use) -> bool:
    """A switch keeps a place from running; or it may, is given from outside, and is about what the loss takes."""
    return any(
        truth != wanted
        if (truth := _truth(project, test, use)) is not None
        else _is_switch(project, test, use, names_in(call), other)
        for test, wanted, other in _conditions(call, use)
    )


def _conditions(call: ast.Call, use: Use) -> Iterator[tuple[ast.expr, bool, str]]:
    """What must be so for a call to run, and what runs where it is not."""
    scope = use.scope
    around = dict(use.path)
    for place in scope.statements:
        node = place.statement
        if not isinstance(node, ast.If):
            continue
        if (part := around.get(id(node))) is not None:
            yield node.test, part == "body", _text(node.orelse if part == "body" else node.body)
        elif _comes_by(place, use):
            ends = [part for part in ("body", "orelse") if (id(node), part) in scope.ended]
            given = node.body if ends == ["body"] else node.orelse if ends == ["orelse"] else []
            if any(isinstance(inner, ast.Return) for each in given for inner in walk(each)):
                yield node.test, ends != ["body"], _text(given)
    for choice in (n for n in walk(use.statement) if isinstance(n, ast.IfExp)):
        for this, instead in ((choice.body, choice.orelse), (choice.orelse, choice.body)):
            if any(inner is call for inner in walk(this)):
                yield choice.test, this is choice.body, unparsed(instead)


def _comes_by(place: Use, use: Use) -> bool:
    """One place is before another, perhaps as the ``elif`` of a branch that ends."""
    later = [block for block in place.path if block not in use.path]
    ended = all(part == "orelse" and (block, "body") in place.scope.ended for block, part in later)
    return place.order < use.order and ended


def _text(body: list[ast.stmt]) -> str:
    return "\n".join(map(unparsed, body))


def _truth(project: Project, test: ast.expr, use: Use) -> bool | None:
    """What a condition about what was given always is; None where it may be something else for some object."""
    owner, names = use.scope.owner, _plain(test, _asked(test, use))
    files = beside(project, use.scope.module) if names else ()
    heirs = [*project.heirs(owner)] if owner is not None else []
    other = any(project.set_from_outside(name, each) for name in names for each in files)
    below = any(name in heir.attributes or name in heir.methods for name in names for heir in heirs)
    known = names or _plain(test, _parameters(test, use))
    return truth_of(project, test, use) if known and not other and not below else None


def _is_switch(project: Project, test: ast.expr, use: Use, used: frozenset[str], other: str) -> bool:
    """A condition that is about what a loss takes, and that an object or a call was given."""
    named, asked, given = ABOUT_INPUT.search(unparsed(test)) is not None, _asked(test, use), _parameters(test, use)
    switches = [*asked] if named else _plain(test, asked)
    about = named or OTHER_INPUT.search(other) is not None
    kept = any(_is_given(project, use.scope.owner, name) for name in switches)
    return about and (kept or bool(_plain(test, given) - used))


def _asked(test: ast.expr, use: Use) -> dict[str, ast.expr]:
    """``from_probs`` of ``self.from_probs``."""
    attributes = [n for n in walk(test) if isinstance(n, ast.Attribute)]
    return {n.attr: n for n in attributes if isinstance(n.value, ast.Name) and use.scope.own == (n.value.id,)}


def _parameters(test: ast.expr, use: Use) -> dict[str, ast.expr]:
    """Those of the function itself."""
    names = [n for n in walk(test) if isinstance(n, ast.Name)]
    return {n.id: n for n in names if n.id in use.scope.params and n.id not in use.scope.own}


def _plain(test: ast.expr, asked: dict[str, ast.expr]) -> set[str]:
    """Those that are not asked for a part of them: ``self.flag``, and not ``self.options.flag``."""
    within = {id(n.value) for n in walk(test) if isinstance(n, ast.Attribute)}
    return {name for name, node in asked.items() if id(node) not in within}


def _is_given(project: Project, owner: Class | None, name: str) -> bool:
    """By whoever makes the object, or by a class below."""
    if owner is None or name in owner.fields:
        return owner is not None
    bound = project.attributes(owner, name)
    heirs = [*project.heirs(owner)]
    values = [(b.value, {*b.use.scope.params}) for b in bound if b.value is not None]
    given = any(isinstance(n, ast.Name) and n.id in params for value, params in values for n in walk(value))
    return given or (bool(bound) and any(name in heir.attributes for heir in heirs))
