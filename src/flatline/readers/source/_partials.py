"""Functions of which ``partial()`` gave some arguments, and the calls that give the rest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Module, Scope, Use
from flatline.readers.source._spread import UNKNOWN

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project
    from flatline.readers.source._things import Thing


CALLS_LATER = re.compile(r"\.(backward|step|eval|train)\(|_grad\b|inference_mode")


def made_in(module: Module) -> Iterator[tuple[str, tuple[ast.Call, Use]]]:
    """The calls of ``partial()``, by the name of the function that they take."""
    if "partial(" not in module.whole:
        return
    for scope in module.scopes:
        for call, use in scope.calls:
            if call.args and unparsed(call.func).rpartition(".")[2] == "partial":
                yield unparsed(call.args[0]).rpartition(".")[2], (call, use)


def name_of(call: ast.Call, use: Use) -> str:
    """``make`` of ``make = partial(loader, split="train")``, and of ``self.make = ...``."""
    node = use.statement
    made = isinstance(node, ast.Assign) and node.value is call
    return unparsed(node.targets[0]).rpartition(".")[2] if made and isinstance(node, ast.Assign) else ""


def calls(
    project: Project, function: Scope, mine: list[tuple[ast.Call, Use]], known: list[tuple[ast.Call, Use]]
) -> Iterator[tuple[ast.Call, Use]]:
    """The calls of what ``partial()`` made of a function, as they would be written without it."""
    told = set[int]()
    for call, use in known:
        for thing in project.things(call.func, use):
            if thing.given is not None and _runs(project, thing, function):
                told.add(id(thing.given))
                yield project.merged(thing.given, call, use)
    near = [(call, use) for call, use in mine if id(call) not in told]
    for call, use in near if near and CALLS_LATER.search(unparsed(function.node)) is None else ():
        if any(_runs(project, t, function) for t in project.things(call.args[0], use)):
            yield project.merged(call, None, use)


def _runs(project: Project, thing: Thing, function: Scope) -> bool:
    """A call of it is one of the function, or makes an object whose ``__init__`` that is."""
    made = thing.made_of if thing.call is None else None
    return thing.function is function or (made is not None and project.method(made, "__init__") is function)


def is_plain(given: ast.Call) -> bool:
    """What it gives is written out one by one."""
    return all(k.arg is not None for k in given.keywords) and not any(isinstance(a, ast.Starred) for a in given.args)


def taken(project: Project, node: ast.Call, use: Use, depth: int) -> tuple[Thing, ...]:
    """A class, or a function, of which some arguments are known before it is called."""
    things = project.things(node.args[0], use, depth + 1)
    kept = is_plain(node)
    project.bound_at[id(node)] = use
    plain = all(
        t.call is None and (t.name.startswith("torch.") or t.made_of or (kept and t.function)) and t.given is None
        for t in things
    )
    return tuple(replace(thing, given=node) for thing in things) if plain else ()


def with_rest(project: Project, given: ast.Call, node: ast.Call | None, use: Use) -> ast.Call:
    """The call that a call of what ``partial()`` made comes to."""
    key = id(given), id(node)
    if key not in project.rewritten:
        args, named = (node.args, node.keywords) if node is not None else ([], [])
        later = {k.arg for k in named}
        first = [_from_there(project, each, given, use) for each in given.args[1:]]
        kept = [k for k in given.keywords if k.arg not in later]
        kept = [ast.keyword(k.arg, _from_there(project, k.value, given, use)) for k in kept]
        made = ast.Call(given.args[0], [*first, *args], [*kept, *named])
        project.rewritten[key] = ast.copy_location(made, node or given)
    return project.rewritten[key]


def _from_there(project: Project, node: ast.expr, given: ast.Call, use: Use) -> ast.expr:
    """What ``partial()`` was given, as far as it means the same where the rest is given."""
    near = project.bound_at.get(id(given))
    if near is None or near.scope is use.scope or isinstance(node, ast.Constant):
        return node
    return project.constant(node, near) or UNKNOWN


def merged(project: Project, given: ast.Call, node: ast.Call | None, use: Use) -> tuple[ast.Call, Use]:
    """The same, as one of the calls of a function."""
    made = with_rest(project, given, node, use)
    return project.turned.setdefault(id(made), (made, use))
