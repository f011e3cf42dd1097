"""Calls: of functions and classes of the project here, of everything else elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from flatline.readers.rehearsal import attributes, library, modules
from flatline.readers.rehearsal.machine import DEPTH, Machine
from flatline.readers.rehearsal.values import (
    MORE,
    QUIET,
    UNKNOWN,
    Bound,
    Class,
    Env,
    Function,
    Generator,
    Library,
    Made,
    Method,
    Object,
    Partial,
    Place,
    Tensor,
    Value,
    call_at,
    parts_of,
)

TABLES = ("builtins.dict", "collections.OrderedDict", "collections.UserDict")
RESULT = "<result>"  # the name that a function's result is kept under


def call(
    m: Machine, function: Value, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """What a call gives back."""
    m.spend()
    if isinstance(function, Bound):
        return invoke(m, function.function, [function.receiver, *args], kwargs, node, env)
    if isinstance(function, Function):
        return invoke(m, function, args, kwargs, node, env)
    if isinstance(function, Partial):
        return call(m, function.function, [*function.args, *args], {**function.kwargs, **kwargs}, node, env)
    if isinstance(function, Class):
        return instantiate(m, function, args, kwargs, node, env)
    if isinstance(function, Object):
        return _object(m, function, args, kwargs, node, env)
    if isinstance(function, Library):
        return library.call(m, function.dotted, list(args), kwargs, node, env)
    if isinstance(function, Made) and function.dotted == library.CALLER and args:
        asked = attributes.get(m, args[0], str(function.args[0]), node, env)
        return call(m, asked, function.args[1:], function.kwargs, node, env)
    if isinstance(function, Made):
        return modules.called(m, function, args, kwargs, node, env)
    if isinstance(function, Method):
        return library.method(m, function.receiver, function.name, list(args), kwargs, node, env)
    m.watcher.unknown(m, function, args, node, env)
    m.escape([*args, *kwargs.values()])
    return UNKNOWN


def _object(
    m: Machine, value: Object, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    for name in ("__call__", "forward") if value.is_module else ("__call__",):
        found = value.made_of.function(name)
        if found is not None:
            return _forward(m, found, value, args, kwargs, node, env)
    if value.made_of.comes_from("torch.nn.Sequential"):
        result: Value = args[0] if args else UNKNOWN
        for _, part in parts_of(value):
            result = call(m, part, [result], {}, node, env)
        return result
    m.escape([*args, *kwargs.values(), value])
    return UNKNOWN


def _forward(
    m: Machine,
    found: Function,
    value: Object,
    args: Sequence[Value],
    kwargs: dict[str, Value],
    node: ast.Call,
    env: Env,
) -> Value:
    if value.is_module and not m.forwards:
        m.watcher.called(m, value, node, env)
    m.forwards += value.is_module
    try:
        return invoke(m, found, [value, *args], kwargs, node, env)
    finally:
        m.forwards -= value.is_module


def invoke(
    m: Machine, function: Function, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """A function of the project, gone through with these arguments."""
    if m.depth >= DEPTH:
        m.escape([*args, *kwargs.values()])
        return UNKNOWN
    inner = Env(function.env.module, function.env, scope=function.env.module.functions.get(id(function.node)))
    inner.owner, inner.receiver = function.owner, args[0] if args else None
    _bind(function, args, kwargs, inner)
    if function.generates:
        return Generator(function, inner)
    return _run(m, function, inner)


def _run(m: Machine, function: Function, inner: Env) -> Value:
    with m.inside(function):
        if isinstance(function.node, ast.Lambda):
            return m.evaluate(function.node.body, inner)
        m.block(function.node.body, inner)
        return inner.names.pop(RESULT, None)


def _bind(function: Function, args: Sequence[Value], kwargs: dict[str, Value], env: Env) -> None:
    given = function.node.args
    plain = [each.arg for each in (*given.posonlyargs, *given.args)]
    names = env.names
    vague = MORE in kwargs or MORE in args
    first = [each for each in args if not isinstance(each, str) or each != MORE]
    names.update(zip(plain, first, strict=False))
    if given.vararg is not None:
        names[given.vararg.arg] = UNKNOWN if vague else tuple(first[len(plain) :])
    rest = {name: value for name, value in kwargs.items() if name != MORE}
    for name in [*plain, *(each.arg for each in given.kwonlyargs)]:
        if name in rest:
            names[name] = rest.pop(name)
        elif name not in names:
            names[name] = UNKNOWN if vague else function.defaults.get(name, UNKNOWN)
    if given.kwarg is not None:
        names[given.kwarg.arg] = {**rest, MORE: UNKNOWN} if MORE in kwargs else rest


def spread(value: Value) -> list[Value]:
    """``*value`` in a call or a list."""
    if isinstance(value, (list, tuple, set, frozenset, range, dict)):
        return list(value)[:64]
    if isinstance(value, Made) and isinstance(value.parts, list):
        return list(value.parts)
    return [MORE]


def instantiate(
    m: Machine, made_of: Class, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """An object of a class of the project."""
    made = Object(made_of, table={} if made_of.comes_from(*TABLES) else None)
    start = made_of.function("__init__")
    if start is not None:
        invoke(m, start, [made, *args], kwargs, node, env)
    elif made_of.record:
        _fill(m, made, args, kwargs, node, env)
    elif made_of.comes_from("torch.nn.Sequential", "torch.nn.ModuleList"):
        made.attributes.update({str(at): part for at, part in enumerate(args)})
    elif made_of.comes_from("enum.Enum", "enum.IntEnum", "enum.StrEnum"):
        return _member(made_of, args)
    return made


def _member(made_of: Class, args: Sequence[Value]) -> Value:
    """``Mode("train")``."""
    wanted = args[0] if args else UNKNOWN
    members = [each for each in made_of.names.values() if isinstance(each, Object)]
    return next((each for each in members if each.attributes.get("value") == wanted), UNKNOWN)


def _fill(m: Machine, made: Object, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> None:
    """The fields of a record, as they were given or as they usually are."""
    names = list(made.made_of.fields)
    made.attributes.update(zip(names, args, strict=False))
    made.attributes.update({name: value for name, value in kwargs.items() if name != MORE})
    for name in names:
        if name not in made.attributes:
            made.attributes[name] = _usual(m, made.made_of, name, node, env) if MORE not in kwargs else UNKNOWN
    after = made.made_of.function("__post_init__")
    if after is not None:
        invoke(m, after, [made], {}, node, env)


def _usual(m: Machine, made_of: Class, name: str, node: ast.Call, env: Env) -> Value:
    try:
        found = made_of.find(name)
    except KeyError:
        return UNKNOWN
    if isinstance(found, Made) and found.dotted.endswith("field"):
        if "default_factory" in found.kwargs:
            return call(m, found.kwargs["default_factory"], [], {}, node, env)
        return found.kwargs.get("default", UNKNOWN)
    return found


# --------------------------------------------------------------------------- generators and managers


def gone_through(m: Machine, value: Object) -> Value:
    """What a loop over an object goes through."""
    found = value.made_of.function("__iter__")
    if found is None:
        return UNKNOWN
    given = invoke(m, found, [value], {}, call_at(found.node, "iter"), found.env)
    return UNKNOWN if isinstance(given, Object) else given


def generated(m: Machine, source: Generator, turn: Callable[[Value], Any]) -> None:
    """What a generator yields, one after the other; what is done with each is done before the next."""
    source.env.on_yield = turn
    function = source.function
    with m.inside(function):
        if m.depth < DEPTH and not isinstance(function.node, ast.Lambda):
            m.block(function.node.body, source.env)


def entered(m: Machine, manager: Value, node: ast.expr, env: Env) -> Value:
    """What ``with`` binds."""
    if isinstance(manager, Made) and _is_quiet(m, manager):
        m.quiet.append(Place(node, env))
    m.watcher.pass_by("half", m.where(node, env))
    if isinstance(manager, Made) and _halves(m, manager):
        m.half.append(Place(node, env))
        m.watcher.judge("half", m.where(node, env))
    if isinstance(manager, Object):
        return _asked(m, manager, "__enter__", [], node, env)
    return manager if isinstance(manager, (Made, Tensor)) else UNKNOWN


def _is_quiet(m: Machine, manager: Made) -> bool:
    """It switches gradients off."""
    off = manager.dotted == "torch.set_grad_enabled" and m.truth(manager.given("mode", 0)) is False
    return off or manager.dotted in QUIET


def _halves(m: Machine, manager: Made) -> bool:
    """Autocast to float16, switched on."""
    if manager.name != "autocast" or m.truth(manager.kwargs.get("enabled", True)) is not True:
        return False
    dtype = manager.kwargs.get("dtype")
    device = manager.given("device_type", 0)
    usual = manager.dotted == "torch.cuda.amp.autocast" or device == "cuda"
    return dtype.dotted in ("torch.float16", "torch.half") if isinstance(dtype, Library) else usual and dtype is None


def left(m: Machine, manager: Value, node: ast.expr, env: Env) -> None:
    """The end of ``with``."""
    if isinstance(manager, Made) and _is_quiet(m, manager):
        del m.quiet[-1:]
    if isinstance(manager, Made) and _halves(m, manager):
        del m.half[-1:]
    if isinstance(manager, Object):
        _asked(m, manager, "__exit__", [None, None, None], node, env)


def _asked(m: Machine, value: Object, name: str, args: Sequence[Value], node: ast.expr, env: Env) -> Value:
    found = value.made_of.function(name)
    return invoke(m, found, [value, *args], {}, call_at(node, name), env) if found is not None else UNKNOWN
