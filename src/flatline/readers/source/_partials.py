"""Functions of which ``partial()`` gave some arguments, and the calls that give the rest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Module, Scope, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project, Thing


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
