"""All places at which a name, or an attribute of self, is read."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache

from flatline.readers.source._nodes import children, unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Module, Use


@dataclass(slots=True)
class Index:
    """Of one file: where each name is read, what each node is a part of, and what is imported."""

    reads: dict[str, list[ast.expr]] = field(default_factory=dict)  # attributes with a dot before
    above: dict[int, ast.AST] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)


@cache
def index(module: Module) -> Index:
    """One walk over the file."""
    made, waiting = Index(), [module.tree]  # type: tuple[Index, list[ast.AST]]
    above, reads = made.above, made.reads
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Store):
                reads.setdefault(node.id, []).append(node)
            continue
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
            reads.setdefault(f".{node.attr}", []).append(node)
        below = children(node)
        above.update((id(child), node) for child in below)
        waiting += below
    for scope in module.scopes:
        made.imported |= {b.imported.rpartition(".")[2] for each in scope.bindings.values() for b in each if b.imported}
    return made


class Mentions:
    """Of the names that one file binds."""

    def __init__(self, project: Project, module: Module) -> None:
        self.project, self.module = project, module
        self._known: dict[tuple[str, int, frozenset[str], int], bool] = {}

    def binding(self, node: ast.expr, use: Use) -> Binding | None:
        """The one assignment to it."""
        found: list[Binding] = []
        if isinstance(node, ast.Name):
            scope = use.scope if node.id in use.scope.bindings else self.module.top
            found = scope.bindings.get(node.id, [])
        elif isinstance(node, ast.Attribute) and use.scope.owner is not None and unparsed(node.value) == "self":
            inherited = [b for b in use.scope.owner.node.bases if unparsed(b) != "object"]
            found = use.scope.owner.attributes.get(node.attr, []) if not inherited else []
        made = [binding for binding in found if isinstance(binding.use.statement, (ast.Assign, ast.AnnAssign))]
        return made[0] if len(found) == len(made) == 1 else None

    def only(self, node: ast.expr, binding: Binding, methods: frozenset[str], taker: ast.Call | None = None) -> bool:
        """Whether it is called, asked for one of these methods, returned, given to one taker, and nothing else."""
        key = unparsed(node), id(binding), methods, id(taker)
        if key not in self._known:
            reads = self.reads(node, binding)
            self._known[key] = reads is not None and all(
                self._is_plain(read, methods) or self._is_given(read, taker) for read in reads
            )
        return self._known[key]

    def reads(self, node: ast.expr, binding: Binding) -> list[ast.expr] | None:
        """Where it is read; None if that cannot be known."""
        if isinstance(node, ast.Attribute):
            modules = [each for each in self.project.modules.values() if each is not None]
            return [read for each in modules for read in index(each).reads.get(f".{node.attr}", ())]
        name, place, home = getattr(node, "id", ""), binding.use.scope.node, binding.use.scope.module
        found = sorted(index(home).reads.get(name, ()), key=lambda read: (read.lineno, read.col_offset))
        if not isinstance(place, ast.Module):
            return [read for read in found if place.lineno <= read.lineno <= (place.end_lineno or 0)]
        others = (each for each in self.project.modules.values() if each is not None and each is not home)
        return None if any(name in index(each).imported for each in others) else found

    def parent(self, node: ast.AST) -> ast.AST:
        """What it is a part of."""
        return index(self.module).above.get(id(node)) or next(
            above
            for each in self.project.modules.values()
            if each is not None and (above := index(each).above.get(id(node)))
        )

    def asked(self, node: ast.AST) -> str:
        """The method that is called on it."""
        parent = self.parent(node)
        call = self.parent(parent) if isinstance(parent, ast.Attribute) else None
        return (
            parent.attr
            if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and call.func is parent
            else ""
        )

    def _is_given(self, node: ast.AST, taker: ast.Call | None) -> bool:
        parent = self.parent(node)
        holder = self.parent(parent) if isinstance(parent, ast.keyword) else parent
        return taker is not None and holder is taker

    def _is_plain(self, node: ast.AST, methods: frozenset[str]) -> bool:
        parent = self.parent(node)
        if isinstance(parent, ast.Attribute):
            return self.asked(node) in methods
        holder = self.parent(parent) if isinstance(parent, ast.Tuple) else parent
        return isinstance(holder, ast.Return) or (isinstance(parent, ast.Call) and parent.func is node)
