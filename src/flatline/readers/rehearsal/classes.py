"""Classes of the project, and what decorators make of classes and functions."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from flatline.readers.rehearsal.machine import Machine
from flatline.readers.rehearsal.values import (
    QUIET,
    SETTER,
    UNKNOWN,
    Class,
    Env,
    Function,
    Library,
    Object,
    Place,
    Super,
    Value,
    call_at,
)

KINDS = {
    "builtins.staticmethod": "static",
    "builtins.classmethod": "class",
    "builtins.property": "property",
    "functools.cached_property": "property",
    "contextlib.contextmanager": "manager",
}
RECORDS = ("dataclasses.dataclass", "dataclass")
HARMLESS = (
    "functools.",
    "typing.",
    "abc.",
    "torch.jit.",
    "torch.compile",
    "torch.amp.",
    "torch.cuda.amp.",
    "typing_extensions.",
)


def built(m: Machine, node: ast.ClassDef, inside: Env, env: Env) -> Class:
    """A class, from what its body has bound."""
    bases = tuple(m.evaluate(base, env) for base in node.bases)
    names = inside.names
    made = Class(node.name, env.module, bases, names)
    made.order = (made, *_above(bases))
    for each in made.order[:0:-1]:
        made.fields.update(each.fields if isinstance(each, Class) else {})
    made.fields.update(dict.fromkeys(names.pop("<fields>", {})))
    made.record = any(isinstance(b, Library) and b.dotted.endswith("NamedTuple") for b in bases) or any(
        isinstance(b, Class) and b.record for b in bases
    )
    for value in names.values():
        if isinstance(value, Function) and value.owner is None:
            value.owner = made
    if made.comes_from("enum.Enum", "enum.IntEnum", "enum.StrEnum"):
        _members(made)
    for each in made.order[1:]:
        if isinstance(each, Class) and isinstance(hook := each.names.get("__init_subclass__"), Function):
            given = {k.arg: m.evaluate(k.value, env) for k in node.keywords if k.arg and k.arg != "metaclass"}
            m.call(hook, [made], given, call_at(node, node.name), env)
            break
    return made


def _above(bases: Sequence[Value]) -> list[Value]:
    """What stands above a class, each after all that stand below it."""
    found: list[Value] = []
    for base in bases:
        for each in base.order if isinstance(base, Class) else (base,):
            if each in found:
                found.remove(each)
            found.append(each)
    return found


def _members(made: Class) -> None:
    """``Mode.train``, with its name and value."""
    for name, value in list(made.names.items()):
        if isinstance(value, (str, int, float)) and not name.startswith("_"):
            made.names[name] = Object(made, {"value": value, "name": name})


def decorated(m: Machine, head: ast.expr, thing: Value, env: Env) -> Value:
    """What stands under a name after a decorator."""
    decorator = m.evaluate(head, env)
    dotted = _dotted(decorator)
    if isinstance(thing, Class) and dotted in RECORDS:
        thing.record = True
        return thing
    if isinstance(thing, Function):
        if dotted in KINDS:
            thing.kind = KINDS[dotted]
            return thing
        if dotted in QUIET:
            thing.quiet = Place(head, env)
            return thing
        if isinstance(head, ast.Attribute) and head.attr in ("setter", "getter", "deleter"):
            return _with_setter(head.attr, thing, env)
    if dotted.startswith(HARMLESS):
        return thing
    at = head if isinstance(head, ast.Call) else ast.copy_location(ast.Call(head, [], []), head)
    if isinstance(decorator, Library) or decorator is UNKNOWN:
        m.escape([thing])
        return UNKNOWN
    return m.call(decorator, [thing], {}, at, env)


def _with_setter(which: str, thing: Function, env: Env) -> Value:
    """``@rate.setter``: the property that is there already, and what setting it does."""
    known = env.names.get(getattr(thing.node, "name", ""))
    if not isinstance(known, Function):
        return thing
    if which == "setter":
        known.attributes[SETTER] = thing
    return known


def _dotted(decorator: Value) -> str:
    return str(getattr(decorator, "dotted", ""))


def above(env: Env) -> Value:
    """``super()``."""
    owner, receiver = env.owner, env.receiver
    outer: Env | None = env
    while owner is None and outer is not None:
        owner, receiver, outer = outer.owner, outer.receiver, outer.outer
    if owner is None:
        return UNKNOWN
    made_of = receiver.made_of if isinstance(receiver, Object) else receiver if isinstance(receiver, Class) else owner
    order = made_of.order
    return Super(order[order.index(owner) + 1 :] if owner in order else owner.order[1:], receiver)
