"""A view that names the dimensions of its tensor in another order: it cuts the numbers anew, and turns nothing."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flatline.events import Where
from flatline.sensors.sources import called_name
from flatline.sensors.tree import entry

VIEWS = ("view", "reshape")
FEWEST = 3  # dimensions of the tensor
ELEMENTWISE = (
    "relu", "gelu", "elu", "silu", "leaky_relu", "tanh", "sigmoid", "dropout", "float", "half", "contiguous", "clone", "to"
)  # fmt: skip
KEEPING = (
    "Linear", "Conv1d", "Conv2d", "Conv3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm", "Dropout",
    "ReLU", "GELU", "ELU", "SiLU", "LeakyReLU", "Tanh", "Sigmoid", "Embedding", "MaxPool1d", "MaxPool2d", "AvgPool2d",
)  # fmt: skip
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.FunctionDef)
LIBRARIES = ("torch", "F", "nn.functional", "torch.nn.functional")


class Unpacked(NamedTuple):
    """``b, t, c = x.shape``."""

    line: int
    tensor: str
    names: tuple[str, ...]


def cut_anew(function: ast.AST, file: str) -> tuple[Where, str, str] | None:
    """``x.view(t, b, c)`` behind ``b, t, c = x.shape``: where, the call, and the order that the tensor has."""
    for known in _unpacked(function):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and node.lineno > known.line):
            sizes = _sizes(call, known.tensor)
            if sizes and _moves_first(sizes, known.names) and not _made_anew(function, known, call):
                where = Where(file, call.lineno, getattr(function, "name", ""))
                return where, ast.unparse(call), ", ".join(known.names)
    return None


def first_moved(reading: Reading, file: str) -> tuple[Where, str, str] | None:
    """``x.view(T, x.size(0), C)``: the samples do not come first any more; where, the call, and what the tensor's sizes are."""
    for statement in reading.function.body:
        if isinstance(statement, BLOCKS):  # it may not have run
            continue
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            if _moves(reading, call):
                where = Where(file, call.lineno, reading.function.name)
                return where, ast.unparse(call), reading.told(call)
    return None


def _moves(reading: Reading, call: ast.Call) -> bool:
    """The number of samples stands behind others that are more than 1 together."""
    tensor = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in VIEWS else None
    if tensor is None or not reading.begins_with_samples(tensor):
        return False
    ahead: int | None = 1
    for size in listed(call):
        if reading.counts_samples(size) or reading.leaves_samples(call, size):
            return ahead is not None and ahead > 1
        number = reading.number(size)
        ahead = ahead * number if ahead is not None and number is not None else None
    return False


@dataclass(frozen=True, slots=True)
class Reading:
    """A forward, as it ran once: what its names hold, as far as the shape of its first argument and its module tell."""

    function: ast.FunctionDef
    module: Any
    shape: tuple[int, ...]
    names: dict[str, Any]  # of the file
    batch: int = 0  # the samples that the whole model was given
    outputs: Mapping[int, tuple[tuple[int, ...], ...]] = field(
        default_factory=dict
    )  # shapes; of modules that ran once, by id

    def told(self, call: ast.Call) -> str:
        """The sizes of the tensor that is viewed; of all but the first one if it was worked out."""
        tensor: ast.expr = call.func.value  # type: ignore[attr-defined]
        sizes = self.shape if self.is_given(tensor) else self.shape[:1]
        return ", ".join(map(str, sizes)) + ("" if sizes == self.shape else ", …")

    def begins_with_samples(self, node: ast.expr) -> bool:
        """The first argument, or what elementwise functions and layers made of it; more than one sample."""
        if isinstance(node, ast.Name):
            value, place = self.made(node)
            return self.is_given(node) or (place is None and value is not None and self.begins_with_samples(value))
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        owner, name = node.func.value, node.func.attr
        if ast.unparse(owner) == "self":
            return (
                bool(node.args) and _keeps(entry(self.module._modules, name)) and self.begins_with_samples(node.args[0])
            )
        if ast.unparse(owner) in LIBRARIES:
            return name in ELEMENTWISE and bool(node.args) and self.begins_with_samples(node.args[0])
        return name in ELEMENTWISE and self.begins_with_samples(owner)

    def counts_samples(self, node: ast.expr) -> bool:
        """``x.size(0)``, ``x.shape[0]``, ``len(x)``, or a name for it."""
        if isinstance(node, ast.Name):
            value, place = self.made(node)
            if place is not None:
                return place == 0 and value is not None and self.begins_with_samples(value)
            return value is not None and self.counts_samples(value)
        if isinstance(node, ast.Call) and called_name(node) == "len" and node.args:
            return self.begins_with_samples(node.args[0])
        tensor, place = size_of(node)
        return place == 0 and tensor is not None and self.begins_with_samples(tensor)

    def leaves_samples(self, call: ast.Call, size: ast.expr) -> bool:
        """``-1``, beside all other sizes of the first argument, which it has once each."""
        if ast.unparse(size) != "-1" or not self.is_given(call.func.value):  # type: ignore[attr-defined]
            return False
        others = [self.number(each) for each in listed(call) if each is not size]
        return len({*self.shape}) == len(self.shape) and sorted(filter(None, others)) == sorted(self.shape[1:])

    def number(self, node: ast.expr) -> int | None:
        """A constant, a number of the module's or of the file's, a size of the first argument; products of them."""
        if isinstance(node, ast.Constant):
            return node.value if type(node.value) is int else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = self.number(node.left), self.number(node.right)
            return None if None in sides else sides[0] * sides[1]  # type: ignore[operator]
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            found = inspect.getattr_static(self.module, node.attr, None)
            return found if type(found) is int else None
        if isinstance(node, ast.Name):
            return self._of_name(node)
        tensor, place = size_of(node)
        return self._of_shape(tensor, place)

    def _of_name(self, node: ast.Name) -> int | None:
        value, place = self.made(node)
        if value is None:
            found = None if self._stores(node) else self.names.get(node.id)
            return found if type(found) is int else None
        return self.number(value) if place is None else self._of_shape(value, place)

    def _of_shape(self, tensor: ast.expr | None, place: int | None) -> int | None:
        given = tensor is not None and place is not None and self.is_given(tensor)
        return self.shape[place] if given and -len(self.shape) <= place < len(self.shape) else None  # type: ignore[operator,index]

    def is_given(self, node: ast.expr) -> bool:
        """The first argument itself, of several samples."""
        arguments = [each.arg for each in self.function.args.args]
        first = isinstance(node, ast.Name) and arguments[1:2] == [node.id]
        return first and not self._stores(node) and len(self.shape) > 1 < self.shape[0]  # type: ignore[arg-type]

    def _stores(self, node: ast.Name) -> list[ast.Name]:
        """The places above at which the name is given something."""
        names = (n for n in ast.walk(self.function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        return [n for n in names if n.id == node.id and n.lineno < node.lineno]

    def made(self, node: ast.Name) -> tuple[ast.expr | None, int | None]:
        """What a name was given last, in no block; and its place where a shape was unpacked: then the value is the tensor."""
        found: list[tuple[ast.expr | None, int | None]] = []
        for made in self._assignments(node):
            target = made.targets[0]
            if isinstance(target, ast.Name) and target.id == node.id:
                found.append((made.value, None))
            elif isinstance(target, ast.Tuple):
                places = [at for at, each in enumerate(target.elts) if ast.unparse(each) == node.id]
                found += [(_shape_of(made.value), at) for at in places]
        return found[-1] if found and len(found) == len(self._stores(node)) else (None, None)

    def assigned(self, node: ast.Name) -> ast.Assign | None:
        """The statement, in no block, that gave a name what it holds."""
        found = [made for made in self._assignments(node) if node.id in _bound(made)]
        return found[-1] if found and len(found) == len(self._stores(node)) else None

    def _assignments(self, node: ast.Name) -> Iterator[ast.Assign]:
        """Those that are over where the name stands."""
        for made in self.function.body:
            if isinstance(made, ast.Assign) and (made.end_lineno or made.lineno) < node.lineno:
                yield made


def _bound(made: ast.Assign) -> set[str]:
    """The names that a statement gives something."""
    names = (node for target in made.targets for node in ast.walk(target) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def _keeps(layer: Any) -> bool:
    """A layer of torch's that leaves the samples ahead."""
    if type(layer).__name__ == "Sequential":
        return all(map(_keeps, layer._modules.values()))
    return type(layer).__module__.startswith("torch.nn.modules.") and type(layer).__name__ in KEEPING


def size_of(node: ast.expr) -> tuple[ast.expr | None, int | None]:
    """The tensor, and which size of it is asked for: ``x.size(0)``, ``x.shape[0]``."""
    if isinstance(node, ast.Subscript):
        tensor, place = _shape_of(node.value), node.slice
    elif isinstance(node, ast.Call) and len(node.args) == 1 and called_name(node) == "size":
        tensor, place = getattr(node.func, "value", None), node.args[0]
    else:
        return None, None
    number = ast.literal_eval(place) if isinstance(place, (ast.Constant, ast.UnaryOp)) else None
    return tensor, number if type(number) is int else None


def _shape_of(node: ast.expr) -> ast.expr | None:
    """The tensor of ``x.shape`` or ``x.size()``."""
    if isinstance(node, ast.Call) and not node.args and called_name(node) == "size":
        return getattr(node.func, "value", None)
    return node.value if isinstance(node, ast.Attribute) and node.attr == "shape" else None


def _unpacked(function: ast.AST) -> Iterator[Unpacked]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
            continue
        tensor, names = _shape_of(node.value), [each.id for each in node.targets[0].elts if isinstance(each, ast.Name)]
        if isinstance(tensor, ast.Name) and len(set(names)) == len(node.targets[0].elts) >= FEWEST:
            yield Unpacked(node.lineno, tensor.id, tuple(names))


def _sizes(call: ast.Call, tensor: str) -> list[ast.expr]:
    """What the very tensor is viewed as."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in VIEWS or ast.unparse(function.value) != tensor:
        return []
    return listed(call)


def listed(call: ast.Call) -> list[ast.expr]:
    """Sizes one by one, or in a tuple."""
    one = len(call.args) == 1 and isinstance(call.args[0], (ast.Tuple, ast.List))
    return list(call.args[0].elts) if one else call.args  # type: ignore[attr-defined]


def _moves_first(sizes: list[ast.expr], names: tuple[str, ...]) -> bool:
    """Its first dimension stands alone behind another one of its own."""
    first, *others = names
    if not any(isinstance(each, ast.Name) and each.id == first for each in sizes[1:]):
        return False
    ahead = {node.id for node in ast.walk(sizes[0]) if isinstance(node, ast.Name)}
    plain = all(isinstance(node, (ast.Name, ast.BinOp, ast.Mult, ast.Load)) for node in ast.walk(sizes[0]))
    return plain and bool(ahead) and ahead <= set(others)


def _made_anew(function: ast.AST, known: Unpacked, call: ast.Call) -> bool:
    """One of the names is bound again in between."""
    bound = {known.tensor, *known.names}
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in bound
        and known.line < node.lineno < call.lineno
        for node in ast.walk(function)
    )
