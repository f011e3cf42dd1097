"""What the models of torchvision and timm put out: what the head makes that took the place of theirs, else raw scores.

So do the layers of torch_geometric that end in a linear map.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._made import Made
from flatline.readers.source._scopes import Module, Use
from flatline.readers.source._surgery import ADDS, FAMILIES, is_operated_on, last
from flatline.readers.source._values import Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project
    from flatline.readers.source._things import Thing

TIMM = "timm.create_model"
GRAPHS = re.compile(  # a linear map of each node and of its neighbours, and nothing behind it
    r"torch_geometric\.nn\.(?:conv\.(?:\w+\.)?)?(GCN|SAGE|GAT|GATv2|Graph|Cheb|Transformer|TAG|SG|ClusterGCN|LE|ResGatedGraph)Conv"
)
NORMALIZED = 3  # the place of normalize among the arguments of SAGEConv


def put_out(project: Project, things: tuple[Thing, ...], depth: int) -> tuple[Made, ...]:
    """The operations that may have made the scores of such models; nothing if one of them is unknown."""
    found: list[Made] = []
    for thing in things:
        inner = _of(project, thing, _places(thing), depth)
        if not inner:
            return ()
        found += inner
    return tuple(found)


def _places(thing: Thing) -> list[str]:
    """The attributes that may be the last layers of a model."""
    if thing.call is None:
        return []
    named = {k.arg: k.value for k in thing.call.keywords}
    if thing.name == TIMM and "num_classes" in named and not {None, "features_only"} & named.keys():
        given = named["num_classes"]
        return [*FAMILIES] if not isinstance(given, ast.Constant) or given.value else []
    return [name for name, pattern in FAMILIES.items() if pattern.fullmatch(thing.name)]


def _of(project: Project, thing: Thing, places: list[str], depth: int) -> tuple[Made, ...]:
    if thing.call is not None and _is_graph_layer(thing.name, thing.call):
        return (Made("linear", thing.call, thing.use),)
    if not places or thing.call is None or is_operated_on(project, thing, places):
        return ()
    heads = _replaced(project, thing, places)
    own = (Made("linear", thing.call, thing.use),)
    if not heads:
        return own if heads is not None else ()
    each = [project.made(_applied(head.node), head.use, depth + 1) for head in heads]
    certain = any(head.use.path == thing.use.path[: len(head.use.path)] for head in heads)
    return (*(made for inner in each for made in inner), *(() if certain else own)) if all(each) else ()


def _is_graph_layer(name: str, call: ast.Call) -> bool:
    """``GCNConv(16, 7)``, and ``SAGEConv(16, 7)`` that does not bring its results to length 1."""
    found = GRAPHS.fullmatch(name)
    scaled = [k for k in call.keywords if k.arg in ("normalize", None)] or call.args[NORMALIZED:]
    return found is not None and not (found[1] == "SAGE" and scaled)


def _replaced(project: Project, thing: Thing, places: list[str]) -> list[Source] | None:
    """The heads that a model was given; None where one may be on another model, or on this."""
    found: list[Source] = []
    for name, receiver, head in _heads(thing.use.scope.module):
        if name not in places or (isinstance(receiver, ast.Name) and head.use.scope.own == (receiver.id,)):
            continue
        things = project.things(receiver, head.use)
        if not things:
            return None
        if any(t.call is thing.call for t in things):
            final = _is_added(head) and head.use.path == thing.use.path
            found = [head] if final else [*found, head]
    return found


def _is_added(head: Source) -> bool:
    """Put behind the other layers, and not in the place of one."""
    return isinstance(head.use.statement, ast.Expr)


@cache
def _heads(module: Module) -> tuple[tuple[str, ast.expr, Source], ...]:
    """``model.fc = ...``, ``model.classifier[6] = ...`` and ``model.classifier.append(...)`` of a file."""
    return tuple(
        (part.attr, part.value, Source(value, use))
        for target, value, use in _set(module)
        if (part := last(target)) is not None
    )


def _set(module: Module) -> Iterator[tuple[ast.expr, ast.expr, Use]]:
    for scope in module.scopes:
        for use in scope.statements:
            node = use.statement
            for target in node.targets if isinstance(node, ast.Assign) else ():
                yield target, node.value, use  # type: ignore[attr-defined]
        for call, use in scope.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in ADDS and call.args:
                yield call.func.value, call.args[-1], use


@cache
def _applied(head: ast.expr) -> ast.Call:
    """The call of a head."""
    return ast.copy_location(ast.Call(head, [], []), head)
