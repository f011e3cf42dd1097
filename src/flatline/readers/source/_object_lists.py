"""Lists of objects that an object keeps, and that its methods, or others, put more into."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatline.readers.source._arguments import argument
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._objects import MANY, Objects, given_many, in_order, objects, puts
from flatline.readers.source._scopes import Binding, Class, Scope, Use
from flatline.readers.source._values import Source, comes_by, gone_through

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Put = tuple[tuple[int, int], str, Objects]  # when, how, and what


def held_by(project: Project, owner: Class, name: str, depth: int) -> Objects:
    """What the list holds in the end; None where that is not known."""
    key = id(owner), f"list {name}"
    known = project.registries.get(key)
    if known is None:
        project.registries[key] = [None]  # while it is asked
        known = project.registries[key] = [_held_by(project, owner, name, depth)]
    return known[0]  # type: ignore[no-any-return]


def _held_by(project: Project, owner: Class, name: str, depth: int) -> Objects:
    bound = project.attributes(owner, name)
    again = [b for b in bound if _grows(b, name)]
    begun = [b for b in bound if b not in again]
    if len(begun) != 1 or begun[0].index or begun[0].value is None:
        return None
    found = objects(project, begun[0].value, begun[0].use, depth + 1)
    later = [
        *_by_methods(project, owner, name, depth),
        *_again(project, again, name, depth),
        *_outside(project, owner, name),
    ]
    if len(later) > MANY or len({when[0] for when, _, _ in later if when[0] > 0}) > 1:
        return None
    sorts = [call for scope in _methods(project, owner) for call in _sorts(scope, name)]
    for _, how, each in sorted(later, key=lambda put: put[0]):
        if found is None or each is None or how not in ("append", "extend", "insert", "appendleft", "in order"):
            return None
        found = [*each, *found] if how in ("insert", "appendleft") else [*found, *each]
    sorts += [v for b in again if (v := _sorted(b.value)) is not None]
    return in_order(project, found, sorts[0]) if sorts else found


def _methods(project: Project, owner: Class) -> list[Scope]:
    return list({id(m): m for each in project.bases(owner) for m in each.methods.values()}.values())


def _grows(binding: Binding, name: str) -> bool:
    """``self.hooks = [*self.hooks, *hooks]``."""
    value, own = binding.value, f"{binding.use.scope.own[0] if binding.use.scope.own else ''}.{name}"
    return isinstance(binding.use.statement, ast.AugAssign) or (value is not None and own in unparsed(value))


def _sorts(scope: Scope, name: str) -> Iterator[ast.Call]:
    """``self.hooks.sort(key=...)``."""
    for call, _ in scope.calls:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "sort" and scope.own:
            if unparsed(func.value) == f"{scope.own[0]}.{name}":
                yield call


def _sorted(node: ast.expr | None) -> ast.Call | None:
    plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sorted"
    return node if plain and isinstance(node, ast.Call) else None


def _by_methods(project: Project, owner: Class, name: str, depth: int) -> Iterator[Put]:
    """``self.hooks.append(hook)``, for each call of the method."""
    for method in _methods(project, owner):
        for use in method.statements if method.own else ():
            for how, value in puts(use, f"{method.own[0]}.{name}"):
                if isinstance(use.statement, ast.AugAssign) or how == "sort":
                    continue
                yield from _put(project, method, use, how, value, depth)


def _again(project: Project, bindings: list[Binding], name: str, depth: int) -> Iterator[Put]:
    """``self.hooks += hooks``, and a list of what was there and of more."""
    for binding in bindings:
        method, value = binding.use.scope, binding.value
        own = f"{method.own[0]}.{name}" if method.own else ""
        if isinstance(binding.use.statement, ast.AugAssign):
            yield from _put(project, method, binding.use, "extend", binding.use.statement.value, depth)
            continue
        inner = value.args[0] if (call := _sorted(value)) is not None and call.args else value  # type: ignore[union-attr]
        parts = inner.elts if isinstance(inner, (ast.List, ast.Tuple)) else []
        parts = [inner.left, ast.Starred(inner.right)] if isinstance(inner, ast.BinOp) else parts
        first = unparsed(parts[0]).lstrip("*") if parts else ""
        for part in parts[1:] if first == own else [None]:
            spread = isinstance(part, ast.Starred)
            node = part.value if isinstance(part, ast.Starred) else part
            how = "extend" if spread else "append"
            yield from (
                _put(project, method, binding.use, how, node, depth) if node is not None else [((9, 0), "", None)]
            )


def _put(project: Project, method: Scope, use: Use, how: str, value: ast.expr, depth: int) -> Iterator[Put]:
    """What one statement of a method puts in, in each of its calls."""
    if getattr(method.node, "name", "") == "__init__":
        taken = comes_by(project, use)
        if taken is not False:
            plain = not use.path or taken is True
            yield (0, use.order), how, _value(project, how, value, use, depth) if plain else None
        return
    named = value.id if isinstance(value, ast.Name) else ""
    extra = method.arguments.vararg
    through = _loop_over(use, named)
    for number, (call, site) in enumerate(project.calls_of(method)):
        init = getattr(site.scope.node, "name", "") == "__init__" and site.scope.owner is not None
        when = (0 if init else id(site.scope), site.order * 100 + number)
        asked = through if through is not None else value
        if isinstance(asked, ast.Name) and extra is not None and asked.id == extra.arg:
            yield when, "extend", given_many(project, method, call, site, depth)
        elif isinstance(asked, ast.Name) and asked.id in method.params:
            given = argument(call, method, asked.id)
            many = "extend" if through is not None else how
            yield when, many, _given(project, many, given, site, depth)
        else:
            yield when, how, _value(project, how, value, use, depth)


def _loop_over(use: Use, name: str) -> ast.expr | None:
    """``hooks`` of ``for hook in hooks: self.hooks.append(hook)``."""
    return gone_through(use, name) if name and use.path and name not in use.scope.params else None


def _given(project: Project, how: str, node: ast.expr | None, site: Use, depth: int) -> Objects:
    """What a call gives; where a loop goes through a list with it, all of that."""
    if node is None or (comes_by(project, site) is None and any(block in site.scope.choices for block, _ in site.path)):
        return None
    if comes_by(project, site) is False:
        return []
    listed = gone_through(site, node.id) if isinstance(node, ast.Name) else None
    return objects(project, listed, site, depth + 1) if listed is not None else _value(project, how, node, site, depth)


def _value(project: Project, how: str, node: ast.expr, use: Use, depth: int) -> Objects:
    return objects(project, node, use, depth + 1) if how == "extend" else [Source(node, use)]


def _outside(project: Project, owner: Class, name: str) -> Iterator[Put]:
    """``trainer.hooks.append(Hook())``."""
    for how in ("append", "extend", "insert"):
        for call, use in project.calls.of_method(how):
            held = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(held, ast.Attribute) and held.attr == name and not _is_own(held, use):
                if project.class_of(held.value, use) is owner and call.args:
                    yield (id(use.scope), use.order * 100), how, _given(project, how, call.args[-1], use, 0)


def _is_own(node: ast.Attribute, use: Use) -> bool:
    return isinstance(node.value, ast.Name) and use.scope.own == (node.value.id,)
