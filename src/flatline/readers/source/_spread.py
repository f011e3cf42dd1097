"""What ``**options`` gives a call by name: of a dictionary, of several that are joined, of the fields of a record."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Scope, Use
from flatline.readers.source._values import field_of, origins

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Named: TypeAlias = "dict[str, ast.expr]"
Given: TypeAlias = "Mapping[str, Named]"  # what a call hands to a function: its own object, and what is spread into it
DEEP = 8
UNKNOWN = ast.Name("", ast.Load())  # a value that is given, and not known
OF_RECORDS = ("dataclasses.asdict", "asdict", "vars")


def spread(project: Project, node: ast.expr, use: Use) -> Named | None:
    """The names, and what they are; None if there may be others."""
    return _Spread(project, use.scope).named(node, use, {}, 0)


def keywords(project: Project, call: ast.Call, use: Use) -> dict[str | None, ast.expr]:
    """What a call is given by name, also by ``**options`` of a dictionary that is written out; None if there are others."""
    found: dict[str | None, ast.expr] = {k.arg: k.value for k in call.keywords if k.arg is not None}
    for table in (k.value for k in call.keywords if k.arg is None):
        inner = spread(project, table, use)
        if inner is None:
            return {**found, None: table}
        found.update(inner)
    return found


def is_of_record(node: ast.Call) -> bool:
    """``asdict(config)``."""
    return unparsed(node.func) in OF_RECORDS and len(node.args) == 1


class _Spread:
    """Followed from one place."""

    def __init__(self, project: Project, home: Scope) -> None:
        self.project, self.home = project, home

    def named(self, node: ast.expr | None, use: Use, given: Given, depth: int) -> Named | None:
        """The names in a table."""
        if depth > DEEP or node is None:
            return None
        if isinstance(node, ast.Name) and node.id in given:
            return given[node.id]
        if isinstance(node, ast.Dict):
            keys = [_word(key) for key in node.keys]
            return self._joined([*zip(keys, node.values, strict=True)], use, given, depth) if "" not in keys else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self._joined([(None, node.left), (None, node.right)], use, given, depth)
        if isinstance(node, ast.DictComp):
            return self._record(_of_fields(node), use, given)
        if isinstance(node, ast.Call):
            return self._called(node, use, given, depth)
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return self._record(node.value, use, given)
        made = origins(self.project, node, use) if not self.project.written_to(node, use) else []
        behind = made[0] if len(made) == 1 and made[0].node is not node else None
        return self.named(behind.node, behind.use, {}, depth + 1) if behind is not None else None

    def _joined(self, parts: Sequence[tuple[str | None, ast.expr]], use: Use, given: Given, depth: int) -> Named | None:
        """Names with their values, and tables that are spread between them."""
        found: Named = {}
        for name, value in parts:
            inner = {name: self._value(value, use)} if name is not None else self.named(value, use, given, depth + 1)
            if inner is None:
                return None
            found |= inner
        return found

    def _called(self, node: ast.Call, use: Use, given: Given, depth: int) -> Named | None:
        """What ``dict(base, lr=0.1)``, ``asdict(config)`` or a function of the project gives back."""
        own = [(k.arg, k.value) for k in node.keywords]
        if isinstance(node.func, ast.Name) and node.func.id == "dict":
            return self._joined([*((None, each) for each in node.args), *own], use, given, depth)
        if is_of_record(node):
            return self._record(node.args[0], use, given)
        function = self.project.callee(node, use)
        returns = self.project.returns(function) if function is not None else []
        rest = self._joined(own, use, given, depth)
        if function is None or len(returns) != 1 or rest is None or isinstance(function.node, ast.Module):
            return None
        handed = {}
        if (taken := function.node.args.kwarg) is not None:
            handed[taken.arg] = {name: value for name, value in rest.items() if name not in function.params}
        if function.own and isinstance(node.func, ast.Attribute):
            handed |= {function.own[0]: whole} if (whole := self._record(node.func.value, use, given)) else {}
        return self.named(*returns[0], handed, depth + 1)

    def _record(self, node: ast.expr | None, use: Use, given: Given) -> Named | None:
        """All fields of an object that one call made of a record's class."""
        if node is None or (isinstance(node, ast.Name) and node.id in given):
            return given[node.id] if isinstance(node, ast.Name) else None
        things = self.project.things(node, use) if not _is_changed(node, use) else ()
        thing = things[0] if len(things) == 1 else None
        owner, call = (thing.made_of, thing.call) if thing is not None else (None, None)
        if (
            thing is None
            or owner is None
            or call is None
            or not owner.is_record
            or None in {k.arg for k in call.keywords}
        ):
            return None
        found: Named = {}
        for name in owner.fields:
            made = field_of(self.project, thing, name) if not self._is_set(name, use) else []
            found[name] = self._value(made[0].node, made[0].use) if len(made) == 1 else UNKNOWN
        return found

    def _is_set(self, name: str, use: Use) -> bool:
        return self.project.set_from_outside(name, use.scope.module)

    def _value(self, node: ast.expr, use: Use) -> ast.expr:
        """As it is where it is read: a constant, or what the same function has."""
        if use.scope is self.home:
            return node
        return self.project.constant(node, use, strict=True) or UNKNOWN


def _is_changed(node: ast.expr, use: Use) -> bool:
    """``config.shuffle = True`` is in the file."""
    name = re.escape(unparsed(node))
    changed = re.compile(rf"\b{name}\.\w+\s*=(?!=)|setattr\({name}\b|\b{name}\.(update|__dict__)")
    return any(changed.search(line) for line in use.scope.module.text.lines)


def _word(key: ast.expr | None) -> str | None:
    """A name; None for a table that is spread, and nothing for what is neither."""
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None if key is None else ""


def _of_fields(node: ast.DictComp) -> ast.expr | None:
    """``self`` of ``{f.name: getattr(self, f.name) for f in fields(self)}``."""
    head, value = node.generators[0], node.value
    name = f"{unparsed(head.target)}.name"
    whole = value.args[0] if isinstance(value, ast.Call) and len(value.args) == 2 else None
    if whole is None or head.ifs or len(node.generators) > 1:
        return None
    shown = unparsed(whole)
    over = unparsed(head.iter) in (f"fields({shown})", f"dataclasses.fields({shown})")
    return whole if over and unparsed(node.key) == name and unparsed(value) == f"getattr({shown}, {name})" else None
