"""What a call gives back, and the function that it runs."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from flatline.readers.source import _values
from flatline.readers.source._lineage import filled_in, is_abstract
from flatline.readers.source._names import imported
from flatline.readers.source._owners import class_itself
from flatline.readers.source._partials import taken, with_rest
from flatline.readers.source._scopes import SAME, Class, Scope, Use
from flatline.readers.source._things import Thing, plain_name, through

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project


WRAPPERS = re.compile(
    r"torch\.(nn\.(DataParallel|parallel\.(DataParallel|DistributedDataParallel)|SyncBatchNorm\.convert_sync_batchnorm)"
    r"|compile|jit\.script|distributed\.fsdp\.FullyShardedDataParallel)|copy\.deepcopy"
)


def called(project: Project, node: ast.Call, use: Use, depth: int, index: tuple[int, ...]) -> tuple[Thing, ...]:
    func = node.func
    dotted = project.dotted(func, use)
    if WRAPPERS.fullmatch(dotted) and node.args:
        inner = project.things(node.args[0], use, depth + 1, index)
        return through(node, inner) if dotted == "copy.deepcopy" else inner
    if isinstance(func, ast.Name) and func.id == "getattr" and not index:
        return _named(project, node, use)
    if dotted == "functools.partial" and node.args and not index:
        return taken(project, node, use, depth)
    if isinstance(func, ast.Attribute) and not dotted:
        if func.attr in SAME and not _gives_another(project, func, use, depth):
            return project.things(func.value, use, depth + 1, index)
        if func.attr in ("prepare", "setup") and node.args and (index or len(node.args) == 1):
            return (
                project.things(node.args[index[0] if index else 0], use, depth + 1)
                if (index or (0,))[0] < len(node.args)
                else ()
            )
    if isinstance(func, ast.Attribute) and (function := project.callee(node, use, depth)) is not None:
        return _by_method(project, function, node, use, depth, index)
    found: list[Thing] = []
    for thing in project.things(func, use, depth + 1):
        if thing.call is not None:
            function = project.callee(node, use, depth) if thing.made_of is not None else None
            return through(node, returned(project, function, depth, index)) if function is not None else ()
        if thing.function is not None:
            inner = _by_function(project, thing, node, use, depth, index)
            if not inner:
                return ()
            found += inner
        elif not index:
            made = with_rest(project, thing.given, node, use) if thing.given is not None else node
            found.append(Thing(thing.name, use, made, thing.made_of))
    return tuple(found) or (project.things_of(_values.sources(project, node, use, depth), depth) if not index else ())


def _gives_another(project: Project, func: ast.Attribute, use: Use, depth: int) -> bool:
    """``data.train()``, a method of the project that gives back something else than its object, and is none of torch's."""
    owner = project.class_behind(func.value, use, depth)
    method = project.method(owner, func.attr) if owner is not None else None
    if method is None or owner is None or not method.returns or _is_fluent(method):
        return False
    return all(
        not project.dotted(b, each.use).startswith("torch.") for each in project.bases(owner) for b in each.node.bases
    )


def _is_fluent(function: Scope) -> bool:
    """A method that returns its own object, and nothing else."""
    values = [value for value, _ in function.returns]
    return bool(values) and all(isinstance(v, ast.Name) and function.own == (v.id,) for v in values)


def _by_function(
    project: Project, thing: Thing, node: ast.Call, use: Use, depth: int, index: tuple[int, ...]
) -> tuple[Thing, ...]:
    """What a function gives back."""
    assert thing.function is not None
    site = project.merged(thing.given, node, use)[0] if thing.given is not None else node
    return through(site, returned(project, thing.function, depth, index))


def _by_method(
    project: Project, function: Scope, node: ast.Call, use: Use, depth: int, index: tuple[int, ...]
) -> tuple[Thing, ...]:
    """What a method gives back: its own object, or what it made."""
    if not index and _is_fluent(function) and isinstance(node.func, ast.Attribute):
        return project.things(node.func.value, use, depth + 1)
    return through(node, returned(project, function, depth, index))


def _named(project: Project, node: ast.Call, use: Use) -> tuple[Thing, ...]:
    """``getattr(nn, "CrossEntropyLoss")``, ``getattr(torch, "float16")``."""
    name = project.constant(node.args[1], use) if len(node.args) > 1 else None
    dotted = project.dotted(node.args[0], use) if name is not None else ""
    known = f"{dotted}.".startswith("torch.") and not project.is_local(node.args[0], use)
    if dotted and not known and name is not None and project.module_of(dotted, use.scope.module) is not None:
        return imported(project, f"{dotted}.{name.value!s}", use, 0)
    return (Thing(plain_name(f"{dotted}.{name.value!s}"), use),) if known and name is not None else ()


def called_function(project: Project, node: ast.Call, use: Use, depth: int) -> Scope | None:
    func = node.func
    outside = isinstance(func, ast.Attribute) and project.dotted(func, use).startswith("torch.")
    if isinstance(func, ast.Attribute) and not (outside and not project.is_local(func, use)):
        if _values.is_super(func.value) and use.scope.owner is not None:
            above = (each.methods.get(func.attr) for each in [*project.bases(use.scope.owner)][1:])
            return next((method for method in above if method is not None), None)
        owner = project.class_behind(func.value, use, depth + 1) or class_itself(project, func.value, use, depth)
        if owner is not None and (method := project.method(owner, func.attr)) is not None:
            return filled_in(project, owner, method) if use.scope.owner is owner else method
        for heir in project.heirs(owner) if owner is not None and owner is use.scope.owner else ():
            if (method := project.method(heir, func.attr)) is not None:
                return method
    if isinstance(func, ast.Name) and use.scope.owner is not None and use.scope.own == (func.id,):
        return project.method(use.scope.owner, "__call__") or _own_forward(project, use.scope.owner)
    found = project.things(func, use, depth + 1)
    if len({id(t.made_of) for t in found}) == 1 and found[0].call is not None and found[0].made_of is not None:
        return project.method(found[0].made_of, "forward") or project.method(found[0].made_of, "__call__")
    functions = {id(t.function): t.function if t.given is None else None for t in found}
    return next(iter(functions.values())) if len(functions) == 1 else None


def _own_forward(project: Project, owner: Class) -> Scope | None:
    """What ``project(x)`` runs in a module: the one forward that it and the classes below it have."""
    above = project.method(owner, "forward")
    known = [] if above is None or is_abstract(above) else [above]
    found = {id(m): m for m in (*known, *(h.methods.get("forward") for h in project.heirs(owner))) if m is not None}
    return next(iter(found.values())) if len(found) == 1 else None


def returned(
    project: Project,
    function: Scope,
    depth: int,
    index: tuple[int, ...],
) -> tuple[Thing, ...]:
    found: list[Thing] = []
    for value, use in project.returns(function):
        if value is not None:
            inner = project.things(value, use, depth + 1, index)
            if not inner:
                return ()
            found += inner
    return tuple(found)
