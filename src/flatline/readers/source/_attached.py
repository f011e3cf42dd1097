"""Methods of other objects that an object made its own with ``hook.learn = self``, and that change a part of it later."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache

from flatline.readers.source._handed_later import callers_of, runs_in_start
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Module, Scope, Use
from flatline.readers.source._seen import Seen, seen_in


def attached(seen: Seen, name: str, part: str) -> Iterator[tuple[Seen, Use]]:
    """Where they give ``self.model``, of the object whose ``__init__`` this is, another layer."""
    owner, project = seen.scope.owner, seen.project
    if owner is None or owner.methods.get("__init__") is not seen.scope or not part.startswith("self."):
        return
    own, attribute = part.removeprefix("self."), name.removeprefix("self.")
    modules = [m for m in project.modules.values() if m is not None and _writers(m, own)]
    if any(project.set_from_outside(attribute, m) for m in modules):
        return
    for method, use, link in (each for m in modules for each in _writers(m, own)):
        if method.owner is not owner and _runs_later(project, seen.scope, method, owner):
            if link.attr in _links(owner) or project.class_of(link, use) is owner:
                yield seen_in(project, method), use


@cache
def _links(owner: Class) -> Sequence[str]:
    """``learn`` of ``hook.learn = self`` in one of its methods."""
    found = set()
    for method in owner.methods.values():
        for use in method.statements:
            node = use.statement
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            value = node.value.id if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) else ""
            if isinstance(target, ast.Attribute) and (value,) == method.own:
                found.add(target.attr)
    return sorted(found)


@cache
def _writers(module: Module, part: str) -> Sequence[tuple[Scope, Use, ast.Attribute]]:
    """``self.learn.model.head = ...``, perhaps with a name for ``self.learn``, in a method; and what it is a part of."""
    if f".{part}." not in module.whole:
        return []
    uses = [(s, use) for s in module.scopes if s.owner is not None and s.own for use in s.statements]
    return [(scope, use, link) for scope, use in uses if (link := _link(scope, use, part)) is not None]


def _runs_later(project: Project, start: Scope, method: Scope, owner: Class) -> bool:
    """Only methods of the object call it, and not before its ``__init__`` is over."""
    calls = project.calls_of(method) if method.owner is not None and project.calls.under(method.owner.node.name) else []
    scopes = [place.scope for call, use in calls for place in callers_of(project, method, call, use)]
    inside = all(use.scope.owner is owner for _, use in calls)
    return bool(scopes) and inside and not any(runs_in_start(start, scope) for scope in scopes)


def _link(scope: Scope, use: Use, part: str) -> ast.Attribute | None:
    """``self.learn``."""
    node = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
    node = node.value if isinstance(node, ast.Attribute) else None
    while isinstance(node, ast.Attribute) and node.attr != part:
        node = node.value
    root: ast.expr | None = node.value if isinstance(node, ast.Attribute) else None
    found = scope.bindings.get(root.id, []) if isinstance(root, ast.Name) else []
    root = found[0].value if len(found) == 1 and not found[0].index else root
    own = isinstance(root, ast.Attribute) and isinstance(root.value, ast.Name) and scope.own == (root.value.id,)
    return root if own and isinstance(root, ast.Attribute) else None
