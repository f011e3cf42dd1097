"""Items that a data set makes of other rows of one array than of another, though both hold a row for the same things."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import torch

from flatline.events import Where
from flatline.sensors.callers import is_users
from flatline.sensors.lengths import length_of
from flatline.sensors.models import readable
from flatline.sensors.sources import called_name, function_around, value_pairs

FEWEST = 32  # items, and rows
LOOKED_AT = 17  # items, evenly spread
WHOLE = 0.9  # of the rows: what one side goes through
LEFT_OUT = 0.6  # of them: more is never asked of the other side
ELSEWHERE = 0.75  # of the items that are looked at, made of rows that lie apart
PLAIN = (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)
OPERATIONS = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.FloorDiv: int.__floordiv__,
    ast.Mod: int.__mod__,
}
FUNCTIONS: dict[str, Any] = {"int": int, "len": len, "min": min, "max": max, "divmod": divmod}


class ItemRows(NamedTuple):
    """An item that is made of rows which do not belong together."""

    text: str  # the index that leads astray
    inputs: str
    labels: str
    item: int
    first: int  # row of the inputs
    second: int  # and of the labels
    rows: int  # of each
    share: float  # of the labels that is ever asked for
    certain: bool  # one side goes through all windows, the other one stops early
    where: Where


class Taken(NamedTuple):
    """The rows that one subscript takes for one item."""

    array: int  # identity
    node: ast.Subscript
    first: int
    end: int
    rows: int


class _UnknownError(Exception):
    """It cannot be worked out without running the user's code."""


def rows_apart(dataset: Any) -> ItemRows | None:
    """Works the indices of ``__getitem__`` out for some items, by arithmetic alone; none of its code is run."""
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):  # a part of one
        dataset = dataset.dataset
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    if code is None or not is_users(code.co_filename) or not hasattr(dataset, "__dict__"):
        return None
    function, length = function_around(code.co_filename, code.co_firstlineno), length_of(dataset)
    if not isinstance(function, ast.FunctionDef) or function.name != "__getitem__" or not length or length < FEWEST:
        return None
    items = sorted({at * (length - 1) // (LOOKED_AT - 1) for at in range(LOOKED_AT)})
    known = [_Item(function, dataset, item, type(dataset).__getitem__.__globals__).taken() for item in items]
    where = Where(code.co_filename, function.lineno, function.name)
    return next((found for found in _compared(known, items, where)), None)


def _compared(known: list[dict[ast.Subscript, Taken]], items: list[int], where: Where) -> Iterator[ItemRows]:
    """Pairs of arrays with as many rows as each other."""
    nodes = [node for node in known[0] if all(node in each for each in known)]
    groups: dict[int, list[list[Taken]]] = {}
    for node in nodes:
        groups.setdefault(known[0][node].array, []).append([each[node] for each in known])
    for one, other in combinations(groups.values(), 2):
        if len({taken.rows for series in (*one, *other) for taken in series}) == 1:
            pairs = [_apart(a, b, items, where) for a in one for b in other]
            if all(pairs):
                yield pairs[0]  # type: ignore[misc]


def _apart(one: list[Taken], other: list[Taken], items: list[int], where: Where) -> ItemRows | None:
    """Both as one subscript takes them; the one that stops early, or that goes with the number of the item, is second."""
    evenly = _steady(one, items) and _steady(other, items)
    if (evenly and _reach(other) > _reach(one)) or (not evenly and _steady(one, items)):
        one, other = other, one
    away = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if b.first >= a.end or a.first >= b.end]
    if one[0].rows < FEWEST or not _steady(other, items) or len(away) < ELSEWHERE * len(items):
        return None
    windows = all(a.first < b.first for a, b in pairwise(one)) and one[0].end - one[0].first > 1
    certain = windows and _reach(one) >= WHOLE and _reach(other) <= LEFT_OUT
    if not certain and (evenly or len({taken.first for taken in one}) < len(items)):
        return None  # some rows apart, as a forecast is; or rows that come again, as those of a small table do
    a, b = one[away[-1]], other[away[-1]]
    named = Where(where.file, b.node.lineno, where.function)
    return ItemRows(
        ast.unparse((b if certain else a).node),
        ast.unparse(a.node.value),
        ast.unparse(b.node.value),
        items[away[-1]],
        a.first,
        b.first,
        rows=a.rows,
        share=_reach(other),
        certain=certain,
        where=named,
    )


def _steady(series: Sequence[Taken], items: Sequence[int]) -> bool:
    """As many rows further for each item."""
    rows, passed = series[-1].first - series[0].first, items[-1] - items[0]
    expected = [rows * (item - items[0]) for item in items]
    return rows > 0 and [(each.first - series[0].first) * passed for each in series] == expected


def _reach(series: Sequence[Taken]) -> float:
    """The share of the rows up to the last one that is taken."""
    return max(each.end for each in series) / series[0].rows


class _Item:
    """What ``__getitem__`` takes for one item, as far as it is arithmetic of the item, of attributes and of constants."""

    def __init__(self, function: ast.FunctionDef, dataset: Any, item: int, outside: Mapping[str, Any]) -> None:
        parameters = [arg.arg for arg in function.args.args]
        self._function, self._outside = function, outside
        self._names: dict[str, Any] = {}
        if len(parameters) == 2:
            self._names = dict(zip(parameters, (dataset, item), strict=True))
        for statement in function.body:
            if not isinstance(statement, PLAIN):  # what a branch or a loop sets is not known
                for node in (
                    n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                ):
                    self._names.pop(node.id, None)
        self._set_elsewhere = _stored(s for s in function.body if not isinstance(s, PLAIN))
        self._indices = _index_names(function)

    def taken(self) -> dict[ast.Subscript, Taken]:
        """Of every subscript whose rows are known; none of an array of which some are not."""
        found: dict[ast.Subscript, Taken] = {}
        unknown: set[int] = set()
        for statement in self._function.body:
            if isinstance(statement, PLAIN):
                for node in self._contents(statement):
                    self._take(node, found, unknown)
                self._bind(statement)
            else:
                unknown |= {id(array) for node in _subscripts(statement) if (array := self._array(node)) is not None}
        return {node: taken for node, taken in found.items() if taken.array not in unknown}

    def _contents(self, statement: ast.stmt) -> Iterator[ast.Subscript]:
        """Subscripts of arrays, except for those that only say where others look."""
        if isinstance(statement, ast.Assign) and _stored([statement]) & self._indices:
            return
        inside = {id(n) for node in _subscripts(statement) for n in ast.walk(node.slice)}
        yield from (node for node in _subscripts(statement) if id(node) not in inside)

    def _take(self, node: ast.Subscript, found: dict[ast.Subscript, Taken], unknown: set[int]) -> None:
        array = self._array(node)
        if array is None:
            return
        try:
            found[node] = self._rows(node, array)
        except (_UnknownError, ArithmeticError, TypeError, ValueError, LookupError):
            unknown.add(id(array))

    def _array(self, node: ast.Subscript) -> Any:
        try:
            array = self._value(node.value)
        except (_UnknownError, ArithmeticError, TypeError, ValueError, LookupError):
            return None
        return array if _is_array(array) else None

    def _rows(self, node: ast.Subscript, array: Any) -> Taken:
        """Along the first axis of which not everything is taken."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        axis = next((at for at, part in enumerate(parts) if ast.unparse(part) != ":"), None)
        if axis is None:
            raise _UnknownError
        rows, part = _length(array, axis), parts[axis]
        if not isinstance(part, ast.Slice):
            first = self._whole(part)
            return Taken(id(array), node, first, first + 1, rows)
        if part.lower is None or part.upper is None or part.step is not None:
            raise _UnknownError
        return Taken(id(array), node, self._whole(part.lower), self._whole(part.upper), rows)

    def _bind(self, statement: ast.stmt) -> None:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            return
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target, value in (pair for each in targets for pair in value_pairs(each, statement.value)):
            try:
                self._set(target, self._value(value) if value is not None else None)
            except (_UnknownError, ArithmeticError, TypeError, ValueError, LookupError):
                for name in _stored([target]):
                    self._names.pop(name, None)

    def _set(self, target: ast.expr, value: Any) -> None:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = list(value) if isinstance(target, ast.Tuple) and isinstance(value, (list, tuple)) else [value]
        for name, each in zip(names, values, strict=True):
            if isinstance(name, ast.Name) and name.id not in self._set_elsewhere:
                self._names[name.id] = each

    def _whole(self, node: ast.expr) -> int:
        value = self._value(node)
        if type(value) is not int or value < 0:
            raise _UnknownError
        return value

    def _value(self, node: ast.expr) -> Any:
        """Of names, attributes, sums and places in lists; nothing of the user's is called."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Attribute):
            return _attribute(self._value(node.value), node.attr)
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.Subscript):
            return _element(self._value(node.value), self._value(node.slice))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node)
        raise _UnknownError

    def _named(self, name: str) -> Any:
        if name in self._names:
            return self._names[name]
        value = self._outside.get(name) if name not in self._set_elsewhere else None
        if type(value) is not int:
            raise _UnknownError
        return value

    def _operation(self, node: ast.BinOp) -> int:
        operation = OPERATIONS.get(type(node.op))
        left, right = self._value(node.left), self._value(node.right)
        if operation is None or type(left) is not int or type(right) is not int:
            raise _UnknownError
        return operation(left, right)

    def _call(self, node: ast.Call) -> Any:
        values = [self._value(arg) for arg in node.args]
        own = called_name(node) == "len" and len(values) == 1 and _is_array(values[0])
        if called_name(node) not in FUNCTIONS or called_name(node) in self._outside:
            raise _UnknownError
        if not own and any(type(each) is not int for each in values):
            raise _UnknownError
        return FUNCTIONS[called_name(node)](*values)


def _subscripts(statement: ast.AST) -> list[ast.Subscript]:
    return [n for n in ast.walk(statement) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load)]


def _stored(nodes: Any) -> set[str]:
    """Names that are assigned in them."""
    inner = (n for node in nodes for n in ast.walk(node))
    return {n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _index_names(function: ast.FunctionDef) -> set[str]:
    """Names that indices are made of."""
    names = {n.id for s in _subscripts(function) for n in ast.walk(s.slice) if isinstance(n, ast.Name)}
    for made in reversed([n for n in ast.walk(function) if isinstance(n, ast.Assign)]):
        if _stored([made]) & names:
            names |= {n.id for n in ast.walk(made.value) if isinstance(n, ast.Name)}
    return names


def _is_array(value: Any) -> bool:
    """A list, an array, a tensor; nothing of a class of the user's."""
    known = type(value) in (list, tuple) or (type(value).__module__ == "numpy" and type(value).__name__ == "ndarray")
    return known or (type(value) is torch.Tensor and readable(value))


def _length(array: Any, axis: int) -> int:
    return int(array.shape[axis]) if hasattr(array, "shape") else len(array)


def _attribute(value: Any, name: str) -> Any:
    """Of an object that keeps it as it is: a property would be the user's code."""
    held = getattr(value, "__dict__", {})
    if name not in held or isinstance(getattr(type(value), name, None), property):
        raise _UnknownError
    return held[name]


def _element(array: Any, index: Any) -> Any:
    """A list in a list, a whole number in an array of them."""
    if not _is_array(array) or type(index) is not int:
        raise _UnknownError
    on_card = isinstance(array, torch.Tensor) and array.device.type != "cpu"
    if on_card or not -_length(array, 0) <= index < _length(array, 0):
        raise _UnknownError
    value = array[index]
    if not hasattr(array, "shape"):
        return value
    if value.shape != () or not str(value.dtype).rpartition(".")[2].startswith(("int", "uint")):
        raise _UnknownError  # a view, made anew each time
    return int(value)
