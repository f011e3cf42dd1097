"""What is done to a table of losses, or to the losses in it, so that their graphs may be gone."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from flatline.readers.source._arguments import argument
from flatline.readers.source._dispatch import each_of
from flatline.readers.source._nodes import names_in, root_of, unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope, Use

WRITES = ("update", "pop", "popitem", "clear")  # methods of dictionaries
# what is done with losses by functions that leave them as they are
TELLS = re.compile(
    r"log|record|report|track|writ|metric|print|emit|show|plot|save|send|postfix|add|append|extend|"
    r"backward|step|scale|\bon_|call|hook|trigger|fire|notify",
    re.IGNORECASE,
)
CALLS = 3  # functions within functions


@dataclass(frozen=True, slots=True)
class Kept:
    """A loss, or a table of losses, under some names; and the keys under which losses are in it."""

    names: Collection[str]
    keys: Collection[object] = ()

    def may_be(self, key: ast.expr | None) -> bool:
        """One of the keys, or one that is not known."""
        return not self.keys or not isinstance(key, ast.Constant) or key.value in self.keys


def put_right(project: Project, scope: Scope, loss: Kept, but: ast.stmt | None = None, depth: int = 0) -> bool:
    """Something in a function may change what a table has under one of the keys, or cut it off from its graph."""
    loss = replace(loss, names={*loss.names, *(each for u in scope.statements for each in _drawn(u, loss.names))})
    return any(_stores(u, loss) for u in scope.statements if u.statement is not but) or any(
        _changes(project, call, u, loss, depth) for call, u in scope.calls if u.statement is not but
    )


def entry_put_right(project: Project, entry: ast.expr, use: Use) -> bool:
    """The same of ``logs["loss"]`` or ``out.loss``, as it is spelled somewhere in the function."""
    key = entry.slice if isinstance(entry, ast.Subscript) else ast.Constant(getattr(entry, "attr", None))
    table = entry.value if isinstance(entry, (ast.Subscript, ast.Attribute)) else None
    keys = [key.value] if isinstance(key, ast.Constant) else []
    return isinstance(table, ast.Name) and put_right(project, use.scope, Kept({table.id}, keys), use.statement)


def _drawn(use: Use, names: Collection[str]) -> Iterator[str]:
    """``key`` and ``value`` of ``for key, value in logs.items()``."""
    node = use.statement
    if isinstance(node, ast.For) and names_in(node.iter) & {*names}:
        yield from names_in(node.target)


def _stores(use: Use, loss: Kept) -> bool:
    """``logs["loss"] = ...``, ``del logs["loss"]`` and ``value.data = ...``."""
    node = use.statement
    targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [getattr(node, "target", None)]
    for target in targets:
        if isinstance(target, ast.Subscript) and root_of(target) in loss.names and loss.may_be(target.slice):
            return True
        if isinstance(target, ast.Attribute) and root_of(target) in loss.names:
            return target.attr == "data" or loss.may_be(ast.Constant(target.attr))
    return False


def _changes(project: Project, call: ast.Call, use: Use, loss: Kept, depth: int) -> bool:
    """``logs.update(...)``, ``value.detach_()``, and functions that may do it, or of which nothing is known."""
    func, receiver = call.func, call.func.value if isinstance(call.func, ast.Attribute) else None
    receiver = receiver.func if isinstance(receiver, ast.Call) else receiver  # logs.get("loss")
    if isinstance(func, ast.Attribute) and receiver is not None and root_of(receiver) in loss.names:
        return func.attr.endswith("_") or (func.attr in WRITES and _writes(call, loss))
    given = [a for a in (*call.args, *(k.value for k in call.keywords)) if root_of(a) in loss.names]
    function = project.callee(call, use) if given else None
    runs = each_of(project, call, use, {}) if given and function is None else ()
    if known := [function] if function is not None else [run.function for run in runs]:
        return depth < CALLS and any(changed_by(project, each, call, given, loss, depth) for each in known)
    last = unparsed(func).rpartition(".")[2]
    alone = isinstance(use.statement, ast.Expr) and use.statement.value is call
    return bool(given) and alone and not hasattr(builtins, last) and TELLS.search(unparsed(func)) is None


def changed_by(
    project: Project, function: Scope, call: ast.Call, given: Collection[ast.expr], loss: Kept, depth: int = 0
) -> bool:
    """A function changes what it is given."""
    names = {name for name in function.params if any(argument(call, function, name) is each for each in given)}
    return bool(names) and put_right(project, function, replace(loss, names=names), None, depth + 1)


def _writes(call: ast.Call, loss: Kept) -> bool:
    """``pop("loss")``, ``update(loss=...)``, ``update({"loss": ...})``, ``clear()``."""
    keys: list[ast.expr | None] = [ast.Constant(k.arg) if k.arg else k.value for k in call.keywords]
    for each in call.args[:1]:
        keys += each.keys if isinstance(each, ast.Dict) else [each]
    return not keys or any(loss.may_be(key) for key in keys)
