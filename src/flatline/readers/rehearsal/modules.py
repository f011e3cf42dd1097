"""Layers, optimizers, schedules and loss functions of torch, once they are made."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from flatline.readers.rehearsal import tensors
from flatline.readers.rehearsal.machine import Machine
from flatline.readers.rehearsal.values import (
    MORE,
    OWN,
    UNKNOWN,
    Env,
    Made,
    Tensor,
    Value,
    Weight,
    is_layer,
    is_module,
    modules_of,
    parts_of,
    weights_of,
)
from flatline.readers.source._losses import CLASSES, DISTANCES
from flatline.readers.source._scopes import SAME

WEIGHTED = ("Linear", "Bilinear", "LazyLinear", "Embedding", "EmbeddingBag", "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell",
            "MultiheadAttention", "PReLU")  # fmt: skip
WEIGHTED_KINDS = (
    "Conv",
    "BatchNorm",
    "LayerNorm",
    "GroupNorm",
    "InstanceNorm",
    "RMSNorm",
    "Transformer",
    "SyncBatchNorm",
)
METHODS = {*SAME, "parameters", "named_parameters", "children", "modules", "named_modules", "named_children", "train", "eval",
           "state_dict", "load_state_dict", "zero_grad", "register_buffer", "add_module", "forward",
           "register_forward_hook", "get_submodule", "buffers"}  # fmt: skip


def layer(m: Machine, dotted: str, args: Sequence[Value], kwargs: dict[str, Value], made: Made) -> Made:
    """A layer that was just built: what it holds."""
    name = made.name
    if name in ("Sequential", "ModuleList", "ParameterList"):
        first = args[0] if args and name != "Sequential" else list(args)
        if name == "Sequential" and len(args) == 1 and isinstance(args[0], dict):
            made.parts = dict(args[0])
        else:
            made.parts = list(first) if isinstance(first, (list, tuple)) else []
            vague = not isinstance(first, (list, tuple)) or MORE in made.parts
            if vague:
                m.escape([made])
    elif name in ("ModuleDict", "ParameterDict"):
        made.parts = dict(args[0]) if args and isinstance(args[0], dict) else {}
    elif name in WEIGHTED or name.startswith(WEIGHTED_KINDS) or not dotted.startswith("torch.nn."):
        made.attributes[OWN] = Weight(made)
    return made


def called(m: Machine, value: Made, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    """A layer, a loss function or anything else that a library made is called."""
    if value.dotted in CLASSES or value.dotted in DISTANCES or (value.name.endswith("Loss") and is_layer(value.dotted)):
        return m.watcher.loss(m, CLASSES.get(value.dotted, ""), args, kwargs, value, node, env)
    if is_layer(value.dotted) and not m.forwards:
        m.watcher.called(m, value, node, env)
    if value.name == "Sequential":
        return _through(m, value, args, node, env)
    if is_layer(value.dotted):
        return _library_model(m, value, args, node, env)
    if value.dotted.startswith(("torchvision.transforms.", "albumentations.")):
        m.transforms.append((value, not m.unsure))
        return Tensor(known=False)
    m.watcher.unknown(m, value, args, node, env)
    m.escape([*args, *kwargs.values()])
    return UNKNOWN


def _library_model(m: Machine, value: Made, args: Sequence[Value], node: ast.Call, env: Env) -> Value:
    found = tensors.through_layer(m, value, args, node, env)
    if not value.dotted.startswith("torch.nn.") and isinstance(found, Tensor) and not m.quiet:
        found.reach |= {weight for _, weight in weights_of(value)}
        heads = [part for part in value.attributes.values() if is_module(part)]
        found.known = found.known and not heads
    return found


def _through(m: Machine, value: Made, args: Sequence[Value], node: ast.Call, env: Env) -> Value:
    found: Value = args[0] if args else UNKNOWN
    for part in value.parts.values() if isinstance(value.parts, dict) else value.parts or ():
        found = m.call(part, [found], {}, node, env)
    return found


# --------------------------------------------------------------------------- methods of modules


def method(
    m: Machine, value: Value, name: str, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """A method that every module has."""
    if name in ("train", "eval"):
        wanted = args[0] if args else kwargs.get("mode", True)
        on = m.truth(wanted) if name == "train" else False
        m.watcher.mode(m, value, on, node, env)
        return value
    if name == "apply" and args:
        for _, part in list(modules_of(value)):
            m.call(args[0], [part], {}, node, env)
        return value
    if name in SAME:
        if name == "requires_grad_":
            _free(value, m.truth(args[0]) if args else True)
        return value
    does = DOES.get(name)
    if does is not None:
        return does(m, value, args, kwargs)
    if name == "zero_grad":
        m.watcher.zeroed(m, value, node, env)
        return None
    if name == "forward":
        return m.call(value, args, kwargs, node, env)
    m.escape([value, *args, *kwargs.values()])
    return UNKNOWN


def set_modes(value: Value, on: bool | None) -> None:
    """All modules below, too."""
    for _, part in modules_of(value):
        part.attributes["training"] = UNKNOWN if on is None else on


def _free(value: Value, on: bool | None) -> None:
    for _, weight in weights_of(value):
        weight.attributes["requires_grad"] = UNKNOWN if on is None else on


def _parameters(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    found: list[Value] = [weight for _, weight in weights_of(value)]
    return [*found, UNKNOWN] if _is_vague(m, value) else found


def _named(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    found: list[Value] = list(weights_of(value))
    return [*found, (UNKNOWN, UNKNOWN)] if _is_vague(m, value) else found


def _is_vague(m: Machine, value: Value) -> bool:
    return any(id(part) in m.escaped for _, part in modules_of(value))


def _children(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    return [part for _, part in _below(value)]


def _named_children(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    return _below(value)


def _below(value: Value) -> list[tuple[str, Value]]:
    return [(name, part) for name, part in parts_of(value) if not isinstance(part, Weight)]


def _modules(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    return [part for _, part in modules_of(value)]


def _named_modules(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    return list(modules_of(value))


def _buffer(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    if args and isinstance(args[0], str):
        value.attributes[args[0]] = Tensor()
    return None


def _add(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1 and isinstance(args[0], str):
        value.attributes[args[0]] = args[1]
    return None


def _nothing(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    return UNKNOWN


def _loaded(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    m.watcher.loaded |= {weight for _, weight in weights_of(value)}
    return UNKNOWN


def _appended(m: Machine, value: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(value, Made) and isinstance(value.parts, list):
        value.parts += args
    return value


DOES: dict[str, Callable[[Machine, Any, Sequence[Value], dict[str, Value]], Value]] = {
    "parameters": _parameters,
    "named_parameters": _named,
    "children": _children,
    "named_children": _named_children,
    "modules": _modules,
    "named_modules": _named_modules,
    "register_buffer": _buffer,
    "add_module": _add,
    "register_module": _add,
    "state_dict": _nothing,
    "load_state_dict": _loaded,
    "buffers": _nothing,
    "append": _appended,
    "__init__": _nothing,
}


# --------------------------------------------------------------------------- optimizers


def groups(value: Value) -> list[Value]:
    """The groups of an optimizer that was given something."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, dict) for each in value):
        return [{"lr": UNKNOWN, **each} for each in value]
    return [{"params": value, "lr": UNKNOWN}]


def held(value: Value) -> tuple[frozenset[Weight], bool]:
    """The weights that an optimizer is given, and whether all of them are known."""
    found, whole, seen = set[Weight](), True, set[int]()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Weight):
            found.add(value)
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            waiting += [] if id(value) in seen else _given(value)
            seen.add(id(value))
        elif not isinstance(value, (bool, int, float, str, type(None))):
            whole = False
    return frozenset(found), whole


def _given(value: Value) -> list[Value]:
    """The members of a list, and the parameters of a group."""
    if isinstance(value, dict):
        return [value["params"]] if "params" in value else list(value.values())
    return list(value)
