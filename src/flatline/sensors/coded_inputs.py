"""A number that stands for a missing one, in a column of what the first layer is given: all others in it lie close together."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from flatline.events import MissingFed, Where
from flatline.sensors.bad_data import in_reach
from flatline.sensors.callers import is_users, users_frame, variables_of
from flatline.sensors.graph import Graph
from flatline.sensors.loop import Loop
from flatline.sensors.outliers import Key, batch_of
from flatline.sensors.sentinels import DISTINCT, FAR, is_code
from flatline.sensors.sources import called_name, tree_of

LAYERS = ("Addmm", "Mm", "NativeBatchNorm")
ROWS, NUMBERS = 16, 262_144  # least and most, of a table's batch
LOOKS = 64  # at batches
RARE = 0.5  # of the rows, at most
BATCHES, SIGHTS = 3, 6  # that one and the same number was seen in, and how often in all
FRAMES = 6  # of the user's, that may hold the means and deviations
ARRAYS = 24  # of a number for each column
WHOLE = 1e-5  # of it, by which a number that was scaled and scaled back may miss a whole one; float32 keeps 1e-7
ASKING = ("replace", "isin", "read_csv", "masked_equal", "masked_values", "eq", "ne", "isclose")
FILLING = ("where", "fillna", "nan_to_num", "putmask", "place")
LARGE = 9_999.0  # above zero, smaller codes are also usual numbers
TABLES = 8  # that are searched for a code


@dataclass(slots=True)
class Column:
    """The number that stands apart in it, and the ends of all others."""

    value: float
    low: float
    high: float
    batches: int = 0
    sights: int = 0
    rows: int = 0


class CodedInputs:
    """On closely watched steps: columns whose numbers lie close together, but for one that returns."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._columns: dict[Key, dict[int, Column]] = {}
        self._looks = 0
        self._done = False

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """The batch as the first layer was given it."""
        if self._done or not self.loop.wants(MissingFed):
            return
        for key, batch in batch_of(graph):
            if key[0] in LAYERS and batch.dim() == 2 and len(batch) >= ROWS and batch.numel() <= NUMBERS:
                self._looks += 1
                self._done = self._looks >= LOOKS
                self._look(self._columns.setdefault(key, {}), key, batch, where)
                return

    def _look(self, columns: dict[int, Column], key: Key, batch: torch.Tensor, where: Where | None) -> None:
        for at, value in _apart(batch):
            columns.setdefault(at, Column(value, math.inf, -math.inf))
        for at, column in list(columns.items()):
            if not _still(column, batch[:, at]):
                columns[at] = Column(math.nan, 0.0, 0.0)  # never again
        sure = {at: c for at, c in columns.items() if c.batches >= BATCHES and c.sights >= SIGHTS}
        if sure:
            self._done = True
            self._tell(sure, batch.shape[1], where)

    def _tell(self, columns: dict[int, Column], width: int, where: Where | None) -> None:
        known = {at: code for at, column in columns.items() if (code := _known(column, at, width)) is not None}
        if not known:
            return
        at, code = next(iter(known.items()))
        column = columns[at]
        told = MissingFed(
            step=self.loop.step,
            where=where,
            code=code,
            columns=tuple(known),
            value=column.value,
            low=column.low,
            high=column.high,
            share=column.sights / column.rows,
        )
        self.loop.emit(told)


def _apart(batch: torch.Tensor) -> Iterator[tuple[int, float]]:
    """Columns where the least or the largest number is far from all others, which differ among each other."""
    for sign in (1.0, -1.0):
        values = batch * sign
        least = values.amin(0)
        same = values == least
        low, high = values.masked_fill(same, math.inf).amin(0), values.masked_fill(same, -math.inf).amax(0)
        apart = (low - least >= FAR * (high - low)) & (high > low) & (same.sum(0) <= RARE * len(batch))
        for at in apart.nonzero().reshape(-1).tolist():
            yield at, float(least[at]) * sign


def _still(column: Column, values: torch.Tensor) -> bool:
    """One more batch: the number is the same as ever, and the others are measured, and lie far from it."""
    same = values == column.value
    times, others = int(same.sum()), values[~same]
    if not len(others) or math.isnan(column.value) or len(torch.unique(others)) < DISTINCT * len(others):
        return False
    low, high = map(float, torch.aminmax(others))
    column.low, column.high = min(column.low, low), max(column.high, high)
    column.batches, column.sights, column.rows = (
        column.batches + (times > 0),
        column.sights + times,
        column.rows + len(values),
    )
    gap = max(column.low - column.value, column.value - column.high)
    return column.sights <= RARE * column.rows and gap >= FAR * (column.high - column.low)


# --------------------------------------------------------------------------- is it a code?


def _known(column: Column, at: int, width: int) -> float | None:
    """As it stands; scaled back by means and deviations that the script holds; in a table of as many columns; in the source."""
    if _is_sure(column.value):
        return column.value
    frame = users_frame()
    scaled = next(_scaled_back(frame, column.value, at, width), None)
    if scaled is not None:
        return scaled
    return _written_below(frame) if column.value < column.low else None


def _scaled_back(frame: FrameType | None, value: float, at: int, width: int) -> Iterator[float]:
    """``value * std + mean`` of any two arrays with a number for each column, and what a table of so many columns holds."""
    arrays = [float(each[at]) for each in _arrays(frame, width)]
    for shift in arrays:
        for scale in arrays:
            back = value * scale + shift
            code = float(round(back)) if math.isfinite(back) else math.nan
            if abs(back - code) <= WHOLE * abs(code) and _is_sure(code):
                yield code
    tables = [table for _, table in in_reach(frame) if table.dim() == 2 and table.shape[1] == width]
    for table in tables[:TABLES]:
        ends = map(float, torch.aminmax(table[:, at]))
        yield from (end for end in ends if _is_sure(end) and (end < 0) == (value < 0))


def _arrays(frame: FrameType | None, width: int) -> list[Any]:
    """Those that variables hold, or attributes of objects in variables: a scaler's, a data set's."""
    held = [value for variables in _variables(frame) for value in variables.values()]
    inner = [each for value in held for each in _attributes(value)]
    found = [each for each in (*held, *inner) if _is_row(each, width)]
    return [each.reshape(-1) for each in found[:ARRAYS]]


def _variables(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    left, last = FRAMES, frame
    while frame is not None and left:
        if is_users(frame.f_code.co_filename):
            left -= 1
            yield variables_of(frame)
        frame = frame.f_back
    if last is not None:
        yield dict(last.f_globals)


def _attributes(value: Any) -> list[Any]:
    known = getattr(value, "__dict__", None)
    return list(known.values()) if type(known) is dict and not isinstance(value, (type, torch.nn.Module)) else []


def _is_row(value: Any, width: int) -> bool:
    """One number for each column."""
    array = type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
    if not array and not isinstance(value, torch.Tensor):
        return False
    shape = tuple(value.shape)
    floating = value.dtype.kind == "f" if array else value.is_floating_point() and value.device.type == "cpu"
    return bool(floating) and shape in ((width,), (1, width))


def _written_below(frame: FrameType | None) -> float | None:
    """The one negative code that the source of the running functions writes, ``-9999.0``, and nowhere asks for."""
    files, codes = set[str](), set[float]()
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    for tree in (tree for file in files if is_users(file) and (tree := tree_of(file)) is not None):
        written = {id(n): code for n in ast.walk(tree) if (code := _code_of(n)) is not None}
        if written and _asked_for(tree, written):
            return None
        codes |= _put_in(tree, written)
    return codes.pop() if len(codes) == 1 else None


def _is_sure(value: float) -> bool:
    """A number above zero like 99 or 999 is also a limit, or a count."""
    return is_code(value) and (value < 0 or value >= LARGE)


def _put_in(tree: ast.AST, written: Mapping[int, float]) -> set[float]:
    """``table[lost] = -999``, ``np.where(lost, -999, x)``: in the place of numbers, and not a start or a mask of scores."""
    given = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)]
    named = {ast.unparse(t): written[id(n.value)] for n in given if id(n.value) in written for t in n.targets}
    places = [n.value for n in given if any(isinstance(t, ast.Subscript) for t in n.targets)]
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and called_name(n) in FILLING]
    places += [each for n in calls for each in (*n.args, *(keyword.value for keyword in n.keywords))]
    found = [written.get(id(place), named.get(ast.unparse(place))) for place in places]
    return {code for code in found if code is not None}


def _code_of(node: ast.AST) -> float | None:
    """``-9999.0``, as a negative number is written."""
    value = getattr(node.operand, "value", None) if isinstance(node, ast.UnaryOp) else None
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return -float(value) if negative and isinstance(value, (int, float)) and is_code(float(value)) else None


def _asked_for(tree: ast.AST, written: Mapping[int, float]) -> bool:
    """``x == -9999``, ``table.replace(MISSING, nan)``: the script knows what it is."""
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and id(n.value) in written]
    names = {ast.unparse(target) for n in made for target in n.targets}
    asking = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Compare) or (isinstance(n, ast.Call) and called_name(n) in ASKING)
    ]
    inner = [n for node in asking for n in ast.walk(node)]
    return any(
        id(n) in written or (isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) in names) for n in inner
    )
