"""What becomes of tensors: the operation that made them, the weights behind them, and what was done on the way."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flatline.readers.rehearsal.machine import Machine
from flatline.readers.rehearsal.values import OWN, UNKNOWN, Env, Made, Mark, Place, Tensor, Value, Weight
from flatline.readers.source._tensors import LAYERS, MAKES, SHAPES, THROUGH

PLAIN = (bool, int, float, str, type(None))


def within(value: Value) -> Iterator[Value]:
    """What a value is made of, as far as it holds others; what it holds twice is gone through once."""
    waiting, seen = [value], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, (list, tuple, dict)):
            if id(value) not in seen:
                seen.add(id(value))
                waiting += [*(value.values() if isinstance(value, dict) else value)][::-1]
        else:
            yield value


def combined(values: Sequence[Value]) -> Tensor:
    """What is computed from several values: all weights behind them are behind it."""
    parts = [each for value in values for each in within(value)]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    weights = frozenset(part for part in parts if isinstance(part, Weight))
    return Tensor(
        reach=weights.union(*(t.reach for t in tensors)),
        marks=frozenset().union(*(t.marks for t in tensors)),
        bounded=bool(tensors) and all(t.bounded for t in tensors) and not weights,
        known=all(t.known for t in tensors) and all(isinstance(p, (Tensor, Weight, *PLAIN)) for p in parts),
    )


def same(value: Tensor, *, picked: bool = False) -> Tensor:
    """A tensor with the same numbers in another shape, or some of them."""
    return replace(value, done=False, picked=value.picked or picked)


def made(m: Machine, by: str, value: Value, node: ast.AST, env: Env) -> Tensor:
    """What an operation makes of a value."""
    found = combined([value])
    if m.quiet:
        found.reach = frozenset()
    found.by, found.place = by, Place(node, env)
    found.picked, found.bounded = by == "softmax" and found.bounded, by in ("sigmoid", "softmax")
    return found


def by_function(
    m: Machine, name: str, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """``torch.softmax(x)``, and every other function of tensors."""
    first = args[0] if args else kwargs.get("input", UNKNOWN)
    if name in CHOOSES:
        m.watcher.scored(m)
    if name in MAKES:
        return cut(m, first, name) if MAKES[name] in ("detach", "item") else made(m, MAKES[name], first, node, env)
    if name in SHAPES and isinstance(first, Tensor):
        return same(first, picked=name in PICKS)
    found = combined([*args, *kwargs.values()])
    found.bounded, found.by = name in BOUNDS, "mean" if name in MEANS else found.by
    if name in ("log", "log2", "log10") and isinstance(first, Tensor) and first.by == "softmax" and not first.picked:
        found.marks |= {Mark("logged softmax", Place(node, env), first.place)}
    if name in JOINS:
        kinds = {each.by if isinstance(each, Tensor) else "" for each in within(first)}
        parts = [each for each in within(first) if isinstance(each, Tensor)]
        if len(kinds) == 1 and parts:
            found.by, found.place = parts[0].by, parts[0].place
    if m.quiet:
        found.reach = frozenset()
    return found


JOINS = ("cat", "concat", "stack", "hstack")


def cut(m: Machine, value: Value, name: str) -> Value:
    """Its numbers without the graph; for item() and its like not even a tensor."""
    if name in ("item", "tolist", "numpy"):
        return UNKNOWN
    if isinstance(value, Tensor):
        return replace(value, reach=frozenset(), marks=frozenset(), done=False)
    return Tensor(known=value is not UNKNOWN)


def method(m: Machine, value: Tensor, name: str, args: Sequence[Value], node: ast.Call, env: Env) -> Value:
    """A method of a tensor."""
    if name == "backward":
        m.watcher.backward(m, value, node, env)
        return None
    if name in NO_TENSOR:
        return UNKNOWN
    if name == "detach_":
        value.reach, value.marks = frozenset(), frozenset()
        return value
    return by_function(m, name, [value, *args], {}, node, env)


MEANS = ("mean", "sum", "norm")
BOUNDS = ("clamp", "clip", "tanh", "normalize", "cosine_similarity")
PICKS = ("gather", "index_select", "masked_select", "take_along_dim", "diagonal", "diag")
CHOOSES = ("argmax", "topk", "eq", "max")
NO_TENSOR = ("size", "dim", "numel", "item", "tolist", "numpy", "nelement", "element_size", "is_cuda", "type_as_string")


def through_layer(m: Machine, layer: Made, args: Sequence[Value], node: ast.Call, env: Env) -> Value:
    """What a layer of torch makes."""
    first = args[0] if args else UNKNOWN
    if layer.name in THROUGH:
        return same(first) if isinstance(first, Tensor) else first
    found = made(m, LAYERS.get(layer.name, ""), list(args), node, env)
    weight = layer.attributes.get(OWN)
    if isinstance(weight, Weight):
        found.reach |= set() if m.quiet else {weight}
        found.marks |= {Mark("cut layer", m.quiet[-1], weight)} if m.quiet else set()
        found.marks |= {Mark("half", m.half[-1])} if m.half and not m.quiet else set()
    if layer.name in RECURRENT:
        return found, (same(found), same(found)) if layer.name == "LSTM" else same(found)
    return (found, same(found)) if layer.name == "MultiheadAttention" else found


RECURRENT = ("LSTM", "GRU", "RNN")
