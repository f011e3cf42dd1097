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
    modules = [m for m in project.modules.values() if m is not None]
    if any(project.set_from_outside(name.removeprefix("self."), m) for m in modules):
        return
    for link in _links(owner):
        for method in (m for each in modules for m in _methods(each, link)):
            if method.owner is not owner and _runs_later(project, seen.scope, method, owner):
                own = part.removeprefix("self.")
                yield from ((seen_in(project, method), u) for u in method.statements if _writes(u, link, own))


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
def _methods(module: Module, link: str) -> Sequence[Scope]:
    """Those that mention what they were linked to."""
    if f".{link}" not in "\n".join(module.text.lines):
        return []
    return [s for s in module.scopes if s.owner is not None and s.own and f"{s.own[0]}.{link}" in ast.unparse(s.node)]


def _runs_later(project: Project, start: Scope, method: Scope, owner: Class) -> bool:
    """Only methods of the object call it, and not before its ``__init__`` is over."""
    calls = project.calls_of(method) if method.owner is not None and project.calls_by(method.owner.node.name) else []
    scopes = [scope for call, use in calls for scope in callers_of(project, method, call, use)]
    inside = all(use.scope.owner is owner for _, use in calls)
    return bool(scopes) and inside and not any(runs_in_start(start, scope) for scope in scopes)


def _writes(use: Use, link: str, part: str) -> bool:
    """``self.learn.model.head = ...``, perhaps with a name for ``self.learn``."""
    target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
    if not isinstance(target, ast.Attribute):
        return False
    text, scope = ast.unparse(target), use.scope
    names = [
        n for n, b in scope.bindings.items() if len(b) == 1 and _is_link(b[0].value, scope, link) and not b[0].index
    ]
    return any(text.startswith(f"{root}.{part}.") for root in (*names, f"{scope.own[0]}.{link}"))


def _is_link(node: ast.expr | None, scope: Scope, link: str) -> bool:
    return node is not None and ast.unparse(node) == f"{scope.own[0]}.{link}"
