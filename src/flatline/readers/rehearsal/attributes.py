"""Attributes: what they stand for, and what setting one does."""

from __future__ import annotations

import ast

from flatline.readers.rehearsal import tensors
from flatline.readers.rehearsal.machine import Machine
from flatline.readers.rehearsal.modules import METHODS
from flatline.readers.rehearsal.values import (
    OWN,
    SETTER,
    UNKNOWN,
    Bound,
    Class,
    Env,
    File,
    Function,
    Library,
    Made,
    Method,
    Object,
    Super,
    Tensor,
    Value,
    Weight,
    call_at,
    is_module,
)

MAYBE = (Method, Tensor)  # which may be anything, nothing at all among it
SERVED = {"dataset": 0, "batch_size": 1, "sampler": 3, "batch_sampler": 4}
NAMED = ("__name__", "__qualname__")
MODELS = ("torchvision.models.", "timm.create_model")


def get(m: Machine, value: Value, name: str, node: ast.AST, env: Env) -> Value:
    """What an attribute stands for."""
    if isinstance(value, Object):
        return _of_object(m, value, name, node, env)
    if isinstance(value, Class):
        return _of_class(value, name)
    if isinstance(value, File):
        found = value.env.names.get(name)
        return found if name in value.env.names else m.imported(f"{value.env.names['__name__']}.{name}", env)
    if isinstance(value, Library):
        return Library(f"{value.dotted}.{name}")
    if isinstance(value, Super):
        return _above(value, name)
    if isinstance(value, Tensor):
        return _of_tensor(value, name)
    if isinstance(value, (Made, Weight, Function)) and name in value.attributes:
        return value.attributes[name]
    if isinstance(value, Made):
        return _of_made(m, value, name, node, env)
    if isinstance(value, Function) and name in NAMED:
        return getattr(value.node, "name", UNKNOWN)
    if value is UNKNOWN or value is None:
        return UNKNOWN
    return Method(value, name)


def _of_made(m: Machine, value: Made, name: str, node: ast.AST, env: Env) -> Value:
    if name in ("weight", "bias") and OWN in value.attributes:
        return value.attributes[OWN]
    if value.dotted.startswith("torch.utils.data.") and name in SERVED:
        return value.given(name, SERVED[name])
    if value.dotted.startswith(MODELS) and not name.startswith("_"):
        return _part(m, value, name, node, env)
    return UNKNOWN if value.name == "Sequential" and name.isdigit() else Method(value, name)


def _of_tensor(value: Tensor, name: str) -> Value:
    if name == "data":
        return Tensor(value.by, value.place)
    if name in ("T", "mT"):
        return tensors.same(value)
    if name in ("shape", "device", "dtype", "ndim", "grad", "is_cuda", "requires_grad", "grad_fn"):
        return UNKNOWN
    return Method(value, name)


def _part(m: Machine, value: Made, name: str, node: ast.AST, env: Env) -> Value:
    """``net.fc`` of a model of a library; its methods are those of every module."""
    if name in METHODS:
        return Method(value, name)
    made = Made(f"{value.dotted}.{name}", place=value.place)
    whole = value.attributes.get(OWN)
    made.attributes[OWN] = whole if whole is not None else Weight(made)
    value.attributes[name] = made
    return made


def _of_object(m: Machine, value: Object, name: str, node: ast.AST, env: Env) -> Value:
    if name in value.attributes:
        return value.attributes[name]
    if name == "__class__":
        return value.made_of
    if name == "__dict__":
        return value.attributes
    try:
        found = value.made_of.find(name)
    except KeyError:
        return _missing(m, value, name, node, env)
    return _bound(m, found, value, node, env)


def _bound(m: Machine, found: Value, value: Value, node: ast.AST, env: Env) -> Value:
    if not isinstance(found, Function) or found.kind == "static":
        return found
    if found.kind == "property":
        return invoked(m, found, value, node, env)
    return Bound(found, value.made_of if found.kind == "class" and isinstance(value, Object) else value)


def invoked(m: Machine, found: Function, value: Value, node: ast.AST, env: Env) -> Value:
    """What a property gives."""
    return m.call(Bound(found, value), [], {}, call_at(node, getattr(found.node, "name", "")), env)


def _missing(m: Machine, value: Object, name: str, node: ast.AST, env: Env) -> Value:
    above = [each for each in value.made_of.order if isinstance(each, Library)]
    asked = any(isinstance(each, Class) and "__getattr__" in each.names for each in value.made_of.order)
    if value.made_of.open or asked:
        return UNKNOWN
    if value.is_module and name in ("training", "module"):
        return True if name == "training" else value
    return Method(value, name) if above else UNKNOWN


def _of_class(value: Class, name: str) -> Value:
    if name in NAMED:
        return value.name
    try:
        found = value.find(name)
    except KeyError:
        return Method(value, name)
    return Bound(found, value) if isinstance(found, Function) and found.kind == "class" else found


def _above(value: Super, name: str) -> Value:
    for each in value.above:
        if isinstance(each, Class) and name in each.names:
            found = each.names[name]
            plain = not isinstance(found, Function) or found.kind == "static"
            return found if plain else Bound(found, value.receiver)
        if each is UNKNOWN:
            return UNKNOWN
    return Method(value, name)


def put(m: Machine, value: Value, name: str, given: Value, node: ast.AST, env: Env) -> None:
    """An attribute is set."""
    setter = _setter(value, name) if isinstance(value, Object) else None
    if setter is not None:
        m.call(Bound(setter, value), [given], {}, call_at(node, name), env)
    elif isinstance(value, (Object, Made)):
        old = value.attributes.get(name)
        if is_module(value) and is_module(given) and is_module(old) and old is not given:
            m.watcher.replaced(m, value, name, old, given, node, env)
        own = name == "weight" and isinstance(given, Weight) and isinstance(value, Made)
        value.attributes[OWN if own else name] = given  # two layers that share a weight
        if name == "grad":
            m.escape([value])
        if name in ("epoch", "seed") and isinstance(value, Made):
            m.watcher.passes.told.add(id(value))
    elif isinstance(value, (Weight, Function)):
        value.attributes[name] = given
        if name == "grad":
            m.watcher.graded(m, given, node, env)
    elif isinstance(value, Class):
        value.names[name] = given
    elif isinstance(value, File):
        value.env.names[name] = given
    elif isinstance(value, Tensor) and name == "grad":
        m.watcher.graded(m, given, node, env)


def _setter(value: Object, name: str) -> Function | None:
    found = value.made_of.function(name)
    setter = found.attributes.get(SETTER) if found is not None and found.kind == "property" else None
    return setter if isinstance(setter, Function) else None


def by_key(m: Machine, value: Value, key: Value) -> Value:
    """``config["lr"]`` of an object that is no dict."""
    if isinstance(value, Object) and isinstance(key, str):
        return value.attributes.get(key, UNKNOWN)
    return UNKNOWN


def put_key(m: Machine, value: Value, key: Value, given: Value) -> None:
    """The same, set."""
    if isinstance(value, Object):
        m.escape([value])
