"""A view that puts the samples first, though they stand behind another dimension: time, as torch's recurrent layers give it."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from flatline.events import Where
from flatline.sensors.reshapes import BLOCKS, ELEMENTWISE, LIBRARIES, VIEWS, Reading, listed, size_of
from flatline.sensors.tree import entry

SEQUENCES = (
    "RNN", "LSTM", "GRU", "MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder",
    "TransformerEncoderLayer", "TransformerDecoderLayer",
)  # fmt: skip
POINTWISE = ("Linear", "LayerNorm", "Dropout", "ReLU", "GELU", "ELU", "SiLU", "LeakyReLU", "Tanh", "Sigmoid")
INNER = ("encoder", "decoder", "layers", "0", "self_attn")  # where a Transformer keeps what knows how its samples lie


class Lying(NamedTuple):
    """A tensor of the forward's: its sizes, and which of them is the number of samples."""

    shape: tuple[int, ...]
    place: int


def put_first(reading: Reading, file: str) -> tuple[Where, str, str] | None:
    """``h.reshape(x.size(0), -1)`` of (time, samples, hidden): where, the call, and the sizes of what is viewed."""
    for statement in reading.function.body:
        if isinstance(statement, BLOCKS):  # it may not have run
            continue
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            lying = _viewed(reading, call)
            if lying is not None and math.prod(lying.shape[: lying.place]) > 1 and _first(reading, call, lying):
                where = Where(file, call.lineno, reading.function.name)
                return where, ast.unparse(call), ", ".join(map(str, lying.shape))
    return None


def _viewed(reading: Reading, call: ast.Call) -> Lying | None:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in VIEWS:
        return None
    return _lies(reading, call.func.value)


def _first(reading: Reading, call: ast.Call, lying: Lying) -> bool:
    """The number of samples, alone, is the first of the new sizes."""
    first, *others = [*listed(call), None]
    if first is None or not others[:-1]:
        return False
    if ast.unparse(first) != "-1":
        return _counts(reading, first)
    sizes = [reading.number(size) if size is not None else 1 for size in others]
    known = math.prod(size for size in sizes if size is not None)
    return None not in sizes and known * reading.batch == math.prod(lying.shape)


def _counts(reading: Reading, size: ast.expr) -> bool:
    """``x.size(0)`` or ``out.shape[1]``, where these are the samples, or a name for it."""
    tensor, place = size_of(size)
    if isinstance(size, ast.Name):
        tensor, place = reading.made(size)
        if tensor is not None and place is None:
            return _counts(reading, tensor)
    elif tensor is None and isinstance(size, ast.Call) and ast.unparse(size.func) == "len" and size.args:
        tensor, place = size.args[0], 0
    lying = _lies(reading, tensor) if tensor is not None else None
    return lying is not None and place is not None and place % len(lying.shape) == lying.place


# --------------------------------------------------------------------------- where the samples are


def _lies(reading: Reading, node: ast.expr) -> Lying | None:
    if isinstance(node, ast.Name):
        return _named(reading, node)
    if isinstance(node, ast.Subscript):  # the first of several outputs
        several = isinstance(node.value, ast.Call) and len(_outputs(reading, node.value)) > 1
        return _made_by(reading, node.value, 0) if several and ast.unparse(node.slice) == "0" else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    owner, name, arguments = node.func.value, node.func.attr, list(node.args)
    if ast.unparse(owner) == "self":
        return _made_by(reading, node, 0)
    tensor = arguments.pop(0) if ast.unparse(owner) in LIBRARIES and arguments else owner
    if name in ("permute", "transpose"):
        return _turned(name, _lies(reading, tensor), arguments)
    return _lies(reading, tensor) if name in ELEMENTWISE else None


def _named(reading: Reading, node: ast.Name) -> Lying | None:
    """The first argument, or what the name was given last."""
    if reading.is_given(node):
        return Lying(reading.shape, 0) if reading.shape[0] == reading.batch else None
    made = reading.assigned(node)
    if made is None or len(made.targets) != 1:
        return None
    if isinstance(made.targets[0], ast.Name):
        return _lies(reading, made.value)
    names = list(_leaves(made.targets[0]))
    exact = len(names) == len(_outputs(reading, made.value))
    return _made_by(reading, made.value, names.index(node.id)) if exact or names[0] == node.id else None


def _leaves(target: ast.expr) -> Iterator[str]:
    """The names of ``out, (h, c) = …``, in order."""
    for each in target.elts if isinstance(target, (ast.Tuple, ast.List)) else []:
        if isinstance(each, (ast.Tuple, ast.List)):
            yield from _leaves(each)
        else:
            yield ast.unparse(each)


def _turned(name: str, lying: Lying | None, dimensions: list[ast.expr]) -> Lying | None:
    """After ``permute(2, 0, 1)`` or ``transpose(0, 1)``, if these are constants."""
    try:
        numbers = ast.literal_eval(f"[{', '.join(map(ast.unparse, dimensions))}]")
        if lying is None:
            return None
        order = list(range(len(lying.shape)))
        if name == "transpose":
            one, other = numbers
            order[one], order[other] = order[other], order[one]
        else:
            order = [order[each] for each in (numbers[0] if len(numbers) == 1 else numbers)]
        return Lying(tuple(lying.shape[each] for each in order), order.index(lying.place))
    except (ValueError, TypeError, IndexError):
        return None


def _outputs(reading: Reading, call: ast.expr) -> tuple[tuple[int, ...], ...]:
    return reading.outputs.get(id(_layer(reading, call)), ())


def _layer(reading: Reading, call: ast.expr) -> Any:
    """The module of ``self.rnn(…)``."""
    function = call.func if isinstance(call, ast.Call) else None
    owned = isinstance(function, ast.Attribute) and ast.unparse(function.value) == "self"
    return entry(reading.module._modules, function.attr) if owned else None  # type: ignore[union-attr]


def _made_by(reading: Reading, call: ast.expr, number: int) -> Lying | None:
    """One output of a layer that ran once; of the samples if its argument is."""
    layer, outputs = _layer(reading, call), _outputs(reading, call)
    if not isinstance(call, ast.Call) or len(outputs) <= number or not _of_samples(reading, call):
        return None
    shape, batch = outputs[number], reading.batch
    if _time_first(layer) and len(shape) == 3:
        return Lying(shape, 1) if shape[1] == batch != shape[0] else None
    if type(layer).__name__ in POINTWISE and call.args and (known := _lies(reading, call.args[0])) is not None:
        return Lying(shape, known.place)
    if shape and shape[0] == batch:
        return Lying(shape, 0)
    return Lying(shape, shape.index(batch)) if shape.count(batch) == 1 and shape[0] % batch else None


def _time_first(layer: Any) -> bool:
    """A layer of torch's that takes the second dimension for the samples."""
    if not type(layer).__module__.startswith("torch.nn.modules.") or type(layer).__name__ not in SEQUENCES:
        return False
    inner = layer
    while (part := next((inner._modules[name] for name in INNER if name in inner._modules), None)) is not None:
        inner = part
    return getattr(inner, "batch_first", True) is False


def _of_samples(reading: Reading, call: ast.Call) -> bool:
    """An argument of the call comes from the forward's first one."""
    known = {each.arg for each in reading.function.args.args[1:2]}
    for made in (n for n in reading.function.body if isinstance(n, ast.Assign) and n.lineno < call.lineno):
        if known & _names(made.value):
            known |= {name for target in made.targets for name in _names(target)}
    return any(known & _names(each) for each in call.args)


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
