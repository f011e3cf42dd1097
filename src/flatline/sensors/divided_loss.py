"""A loss divided by the number of backwards in a step, whose number is averaged over those backwards once more, or told."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import torch

from flatline.events import BackwardFacts, ScaledLossRead, Where
from flatline.sensors.callers import users_frame, variables_of
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.lost_rates import TELLERS
from flatline.sensors.over_samples import stop_by_samples
from flatline.sensors.scaled_loss import THROUGH, later_statements, paths, statements
from flatline.sensors.sources import LOOPS, backward_name, called_name, function_around, tree_of

CLOSE = 0.01  # of the constant before the loss to one over the backwards
MEANS = ("mean", "fmean", "average")
COUNTED = (".size(0)", ".shape[0]")  # ends of what tells how many samples a batch has
LOGS = (*TELLERS, "log", "set_postfix_str")
Around = tuple[ast.AST, ...]


class Divided(NamedTuple):
    """``loss = loss / steps`` in a loop over batches."""

    scope: ast.AST
    loop: ast.For
    made: ast.stmt
    name: str
    by: str


class DividedLosses:
    """Once, when a step is seen that was accumulated from backwards of which each had its share."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._read = False
        self._read_whole = False

    def after_step(self, state: OptimizerState, _: Where | None) -> None:
        """On steps under close look."""
        backwards = state.window.backwards
        if (len(backwards) == 1 and abs(backwards[0].factor - 1) < CLOSE) or _shares(backwards):
            self._whole(backwards[0].where)
        if self._read or not self.loop.wants(ScaledLossRead) or not _shares(backwards):
            return
        self._read = True
        statement, where = divided_loss_read(backwards[0].where)
        if statement:
            scale, count = backwards[0].factor, len(backwards)
            self.loop.emit(
                ScaledLossRead(step=self.loop.step, where=where, statement=statement, scale=scale, backwards=count)
            )

    def _whole(self, where: Where | None) -> None:
        """Of a step whose backwards add up to the mean of a batch."""
        if self._read_whole or not self.loop.wants(ScaledLossRead):
            return
        self._read_whole = True
        found = stop_by_samples(where)
        if found.condition and not _one_by_one():
            self.loop.emit(
                ScaledLossRead(
                    step=self.loop.step,
                    where=found.where,
                    statement=found.division,
                    scale=1.0,
                    stops=found.condition,
                    level=found.level,
                    margin=found.margin,
                )
            )


def _one_by_one() -> bool:
    """A loader in reach gives single samples, sentences or graphs: as many batches as samples."""
    frame = users_frame()
    known = variables_of(frame) if frame is not None else {}
    things = [*known.values(), *getattr(known.get("self"), "__dict__", {}).values()]
    things += frame.f_globals.values() if frame is not None else []
    loaders = [each for each in things if isinstance(each, torch.utils.data.DataLoader)]
    return any(each.batch_size == 1 or (each.batch_size is None and each.batch_sampler is None) for each in loaders)


def _shares(backwards: list[BackwardFacts]) -> bool:
    """All from one line, each with one over their number before its loss."""
    count = len(backwards)
    return count > 1 and all(
        each.where == backwards[0].where and abs(each.factor * count - 1) < CLOSE for each in backwards
    )


def divided_loss_read(where: Where | None) -> tuple[str, Where | None]:
    """The statement that takes the number for the loss, of the backward at ``where``."""
    divided = _divided(where) if where is not None else None
    if divided is None or where is None:
        return "", None
    tree = tree_of(where.file)
    for node in later_statements(divided.scope, divided.name, divided.made):
        if not _within(node, divided.loop) or _mentions(node, divided.by):
            continue
        found = node if _tells(node, divided.name) else _averaged(node, divided)
        if found is not None and tree is not None and not _restored(tree, divided, found, node):
            return ast.unparse(found), Where(where.file, found.lineno, where.function)
    return "", None


def _divided(where: Where) -> Divided | None:
    """In the innermost loop around the backward."""
    scope = function_around(where.file, where.line)
    name = backward_name(scope, where.line) if scope is not None else ""
    loops = [n for n in ast.walk(scope) if isinstance(n, LOOPS) and _covers(n, where.line)] if scope is not None else []
    loop = max(loops, key=lambda n: n.lineno, default=None)
    if scope is None or not name or not isinstance(loop, ast.For):
        return None
    made = [n for n in statements(loop) if n.lineno <= where.line and name in _targets(n)]
    by = _divisor(made[-1], name) if made else None
    return Divided(scope, loop, made[-1], name, ast.unparse(by)) if by is not None and not _over_parts(loop) else None


def _over_parts(loop: ast.For) -> bool:
    """Over tasks or members, each with a module of its own: ``for task in heads: … heads[task](x)``."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    called = [n.func for n in ast.walk(loop) if isinstance(n, ast.Call) and not isinstance(n.func, ast.Attribute)]
    return any(isinstance(n, ast.Name) and n.id in names for func in called for n in ast.walk(func))


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno < line <= (node.end_lineno or node.lineno)


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return [ast.unparse(each) for each in targets]


def _divisor(node: ast.stmt, name: str) -> ast.expr | None:
    """``steps`` of ``loss = criterion(…) / steps`` and of ``loss /= steps``."""
    if isinstance(node, ast.AugAssign):
        return node.value if isinstance(node.op, ast.Div) else None
    value = node.value if isinstance(node, ast.Assign) else None
    return value.right if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div) else None


def _within(node: ast.AST, other: ast.AST) -> bool:
    return any(node is each for each in ast.walk(other))


def _mentions(node: ast.AST, text: str) -> bool:
    return any(isinstance(n, ast.expr) and ast.unparse(n) == text for n in ast.walk(node))


# --------------------------------------------------------------------------- told, or averaged


def _tells(node: ast.stmt, name: str) -> bool:
    """``print(f"{loss.item():.4f}")``, and nothing that reckons."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call) or called_name(node.value) not in LOGS:
        return False
    return any(_is_number(path[1:]) for path in paths(node.value, name))


def _is_number(around: Around) -> bool:
    """``.item()`` and the like stand around it, and no reckoning."""
    calls = [called_name(each) for each in around if isinstance(each, ast.Call)]
    reckons = any(isinstance(each, (ast.BinOp, ast.Compare, ast.IfExp, ast.Subscript)) for each in around)
    return not reckons and all(each in THROUGH for each in calls) and (bool(calls) or _is_shown(around))


def _is_shown(around: Around) -> bool:
    return any(isinstance(each, ast.FormattedValue) for each in around)


def _averaged(node: ast.stmt, divided: Divided) -> ast.stmt | None:
    """Where what ``node`` adds it to, or puts it into, becomes a mean over the batches of the loop."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        kept, samples = ast.unparse(node.target), _samples(node.value, divided.name)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called_name(node.value) == "append":
        kept, samples = ast.unparse(node.value.func.value), None  # type: ignore[attr-defined]
        kept = kept if any(_is_number(path[1:]) for path in paths(node.value, divided.name)) else ""
    else:
        return None
    listed = isinstance(node, ast.Expr)
    if not kept or (samples is None and not listed) or _is_reset(kept, divided.loop, node):
        return None
    for each in _uses(divided.scope):
        if listed and _made_anew(divided.scope, kept, node, each):
            return None
        for inner in _expressions(each):
            mean = _is_mean(inner, kept) if listed else _over_batches(inner, kept, samples or "", divided)
            if mean and not _reckoned_on(each, inner) and not _mentions(each, divided.by):
                return each
    return None


def _made_anew(scope: ast.AST, kept: str, adding: ast.stmt, reading: ast.stmt) -> bool:
    """Between the two: the list may hold sums of its shares by then."""
    return any(kept in _targets(n) and adding.lineno < n.lineno < reading.lineno for n in statements(scope))


def _uses(scope: ast.AST) -> Iterator[ast.stmt]:
    kinds = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.AnnAssign)
    yield from (node for node in ast.walk(scope) if isinstance(node, kinds))


def _expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """All within a statement; ``running /= n`` is ``running / n``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.target, (ast.Name, ast.Attribute)):
        yield ast.BinOp(node.target, node.op, node.value)
    yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.expr))


def _samples(value: ast.expr, name: str) -> str | None:
    """'' for ``loss.item()``, ``len(x)`` for ``loss.item() * len(x)``; None for anything else."""
    if not isinstance(value, ast.BinOp):
        return "" if any(_is_number(path) for path in paths(value, name)) else None
    for one, other in ((value.left, value.right), (value.right, value.left)):
        count = ast.unparse(other)
        if count.endswith(COUNTED) or (isinstance(other, ast.Call) and called_name(other) == "len"):
            known = isinstance(value.op, ast.Mult) and any(_is_number(path) for path in paths(one, name))
            return count if known else None
    return None


def _is_reset(kept: str, loop: ast.For, adding: ast.stmt) -> bool:
    """Within the loop: what is summed up there is no longer the whole pass."""
    emptied = (n for n in ast.walk(loop) if isinstance(n, ast.Call) and called_name(n) == "clear")
    return any(kept in _targets(n) for n in statements(loop) if n is not adding) or any(
        ast.unparse(n.func).startswith(f"{kept}.") for n in emptied
    )


def _is_mean(node: ast.expr, kept: str) -> bool:
    """``np.mean(losses)``, ``sum(losses) / len(losses)``."""
    if isinstance(node, ast.Call):
        return called_name(node) in MEANS and len(node.args) == 1 and ast.unparse(node.args[0]) == kept
    return ast.unparse(node) == f"sum({kept}) / len({kept})"


def _over_batches(node: ast.expr, kept: str, samples: str, divided: Divided) -> bool:
    """``running / len(loader)``, with the batches of the loop as they are counted: all of them, or so far."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or ast.unparse(node.left) != kept:
        return False
    divisor, loop = ast.unparse(node.right), divided.loop
    given = [
        ast.unparse(n.value) for n in statements(divided.scope) if isinstance(n, ast.Assign) and divisor in _targets(n)
    ]
    divisor = given[0] if len(given) == 1 and given[0].startswith("len(") else divisor
    sources = [ast.unparse(each) for each in ast.walk(loop.iter) if isinstance(each, (ast.Name, ast.Attribute))]
    counters = [ast.unparse(n.target) for n in loop.body if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)
                and ast.unparse(n.value) == (samples or "1")]  # fmt: skip
    place = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and _enumerates(loop.iter) else None
    known = [f"len({each}.dataset)" if samples else f"len({each})" for each in sources] + counters
    if place is not None and not samples:
        known += [f"{ast.unparse(place)} + 1", f"({ast.unparse(place)} + 1)"]
    return divisor in known or divisor.removeprefix("max(1, ").removesuffix(")") in counters


def _enumerates(node: ast.expr) -> bool:
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and called_name(each) == "enumerate"]
    return any(len(each.args) == 1 and not each.keywords for each in calls)


def _reckoned_on(statement: ast.stmt, mean: ast.expr) -> bool:
    """``running / len(loader) * steps``."""
    return any(isinstance(each, ast.BinOp) for path in paths(statement, ast.unparse(mean)) for each in path)


def _restored(tree: ast.AST, divided: Divided, found: ast.stmt, node: ast.stmt) -> bool:
    """Something that came from it is multiplied by the same number elsewhere in the file."""
    last = divided.by.rpartition(".")[2]
    function = getattr(divided.scope, "name", "")
    names = {*_targets(found), *_targets(node), divided.name}
    names |= {
        name for n in ast.walk(tree) if isinstance(n, ast.Assign) and _calls(n.value, function) for name in _parts(n)
    }
    for each in ast.walk(tree):
        if isinstance(each, (ast.BinOp, ast.AugAssign)) and isinstance(each.op, ast.Mult):
            texts = {ast.unparse(n) for n in ast.walk(each) if isinstance(n, ast.expr)}
            own = not names.isdisjoint(texts) or _calls(each, function)
            if own and any(text.rpartition(".")[2] == last for text in texts):
                return True
    return False


def _calls(node: ast.AST, function: str) -> bool:
    return any(isinstance(n, ast.Call) and called_name(n) == function for n in ast.walk(node)) if function else False


def _parts(node: ast.Assign) -> Iterator[str]:
    yield from (ast.unparse(n) for each in node.targets for n in ast.walk(each) if isinstance(n, ast.expr))
