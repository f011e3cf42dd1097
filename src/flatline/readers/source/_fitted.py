"""Preprocessing whose numbers were taken from all rows, before some of them were put aside for validation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from flatline.events import SourceFact, Where
from flatline.readers.source._arguments import argument_at
from flatline.readers.source._nodes import walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, spelled
from flatline.readers.source._tensors import SHAPES
from flatline.readers.source._values import Source, origins

SPLIT = "sklearn.model_selection.train_test_split"
RANDOM_SPLIT = "torch.utils.data.random_split"
TENSORS = {"torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.FloatTensor", "torch.Tensor",
           "numpy.array", "numpy.asarray"}  # fmt: skip
KEEPS = SHAPES | {"astype", "to_numpy", "copy"}
ENCODERS = re.compile(r"\.(Label|OneHot|Ordinal)Encoder$|Binarizer$")  # a number for each name: nothing is estimated
JOINED = re.compile(
    r"numpy\.(hstack|column_stack|concatenate|c_)|torch\.(cat|hstack)|pandas\.concat"
)  # columns beside others
STATISTICS = {"mean", "std", "min", "max", "median", "var"}
LIKELY = re.compile(r"fit|\.(mean|max)\(")
DEEP = 8


def fitted_before_split(project: Project, files: Sequence[Module]) -> Iterator[SourceFact]:
    """One fact a split."""
    likely = [each for each in files if any(LIKELY.search(line) for line in each.text.lines)]
    for scope in (scope for each in likely for scope in each.scopes):
        told: set[int] = set()
        for place, data, use in _splits(project, scope):
            fit = next(_fits(project, data, use, 0), None) if id(place) not in told else None
            if fit is not None:
                told.add(id(place))
                yield _fact(fit, place, scope.module.where(place, scope))


def _fact(fit: tuple[ast.expr, Use], place: ast.expr, other: Where) -> SourceFact:
    node, use = fit
    where = use.scope.module.where(node, use.scope)
    return SourceFact(kind="fitted before split", name=spelled(node), text=spelled(place), where=where, other=other)


def _splits(project: Project, scope: Scope) -> Iterator[tuple[ast.expr, ast.expr, Use]]:
    """Where rows are divided, and what they are rows of."""
    for call, use in scope.calls:
        dotted = project.dotted(call.func, use)
        if dotted == SPLIT:
            yield from ((call, data, use) for data in call.args)
        elif dotted == RANDOM_SPLIT and call.args:
            wholes = [t for t in project.things(call.args[0], use) if t.name == "torch.utils.data.TensorDataset"]
            yield from ((call, data, t.use) for t in wholes if t.call is not None for data in t.call.args)
    yield from _cut_in_two(scope)


def _cut_in_two(scope: Scope) -> Iterator[tuple[ast.expr, ast.expr, Use]]:
    """``x[:n]`` and ``x[n:]``."""
    cuts = [(node, use) for use in scope.statements for node in _slices(use.statement)]
    for (first, use), (second, _) in combinations(cuts[:64], 2):
        one, other = first.slice, second.slice
        if isinstance(one, ast.Slice) and isinstance(other, ast.Slice) and one.upper is not None:
            same = ast.dump(first.value) == ast.dump(second.value)
            if (
                same
                and one.lower is other.upper is None
                and other.lower
                and ast.dump(one.upper) == ast.dump(other.lower)
            ):
                yield first, first.value, use


def _slices(statement: ast.stmt) -> list[ast.Subscript]:
    """Parts of names that a statement gives to other names."""
    if not isinstance(statement, ast.Assign):
        return []
    parts = [node for node in walk(statement.value) if isinstance(node, ast.Subscript)]
    return [part for part in parts if isinstance(part.value, ast.Name) and isinstance(part.slice, ast.Slice)]


def _fits(project: Project, node: ast.expr, use: Use, depth: int) -> Iterator[tuple[ast.expr, Use]]:
    """The estimate that went into these rows."""
    found = origins(project, node, use) if depth < DEEP else []
    for each in found if len(found) == 1 else ():
        value = each.node
        if isinstance(value, ast.Call):
            yield from _by_call(project, value, each, depth)
        elif isinstance(value, ast.BinOp):
            yield from ((value, each.use) for estimate in _estimates(project, value, each.use) if estimate)


def _by_call(project: Project, call: ast.Call, source: Source, depth: int) -> Iterator[tuple[ast.expr, Use]]:
    func = call.func
    dotted = project.dotted(func, source.use)
    if dotted in TENSORS and call.args:
        yield from _fits(project, call.args[0], source.use, depth + 1)
    elif JOINED.fullmatch(dotted) and call.args:
        for part in getattr(call.args[0], "elts", ()):
            yield from _fits(project, part, source.use, depth + 1)
    elif isinstance(func, ast.Attribute) and func.attr == "fit_transform":
        made = project.things(func.value, source.use)
        if made and all(t.name.startswith("sklearn.") and not ENCODERS.search(t.name) for t in made):
            yield call, source.use
    elif isinstance(func, ast.Attribute) and func.attr in KEEPS:
        yield from _fits(project, func.value, source.use, depth + 1)


def _estimates(project: Project, node: ast.BinOp, use: Use) -> Iterator[bool]:
    """``(x - x.mean(0)) / x.std(0)``, the statistics perhaps behind names."""
    scaled = node.left if isinstance(node.op, ast.Div) else node
    rows = scaled.left if isinstance(scaled, ast.BinOp) and isinstance(scaled.op, ast.Sub) else None
    if not isinstance(scaled, ast.BinOp) or not isinstance(rows, (ast.Name, ast.Attribute)):
        return
    found = origins(project, scaled.right, use) or [Source(scaled.right, use)]
    yield any(_over_rows(each.node, ast.dump(rows)) for each in found)


def _over_rows(node: ast.expr, rows: str) -> bool:
    """A statistic of these very rows, over all of them."""
    while isinstance(node, ast.Subscript):  # of ``x.min(0)[0]``
        node = node.value
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in STATISTICS:
        return False
    named = {k.arg: k.value for k in node.keywords}
    axis = named.get("dim", named.get("axis", argument_at(node, "dim", 0)))
    over = axis.elts if isinstance(axis, (ast.Tuple, ast.List)) else [axis] if axis is not None else []
    first = not over or any(isinstance(each, ast.Constant) and each.value == 0 for each in over)
    return first and ast.dump(node.func.value) == rows
