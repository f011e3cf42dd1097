"""Samples of a batch sorted by length, as packed sequences want them: their labels are not, or the answers never put back."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from flatline.events import Where
from flatline.sensors.forwards import forward_of
from flatline.sensors.models import ModelSensor
from flatline.sensors.sources import FUNCTIONS, called_name, own_nodes, tree_of
from flatline.sensors.tree import modules

DESCENDING = ("descending=True", ", True)", "(-", " -")  # longest first, as pack_padded_sequence wants them
LOSSES = ("loss", "criterion", "cross_entropy", "nll", "mse")  # in a name that is called: labels may be sorted along


def left_sorted(models: ModelSensor, batch: torch.Tensor) -> tuple[str, Where | None]:
    """``x[order]`` in the forward of a model that runs, where ``order`` sorts the batch and is used for nothing else.

    A batch that comes longest first is left as it is.
    """
    if batch.dim() < 2 or _longest_first(batch):
        return "", None
    alive = [module for model in models.known if (module := model.ref()) is not None]
    for kind in dict.fromkeys(type(part) for model in alive for part in modules(model)):
        function, file = forward_of(kind)
        found = _taken(function) if function is not None else None
        if function is not None and found is not None:
            return ast.unparse(found), Where(file, found.lineno, function.name)
    return "", None


def sorted_alone(file: str) -> tuple[str, Where | None]:
    """``x[order]`` in what makes or takes a batch, where ``order`` sorts its lengths, and the rest of it stays."""
    tree = tree_of(file)
    for scope in (n for n in ast.walk(tree) if isinstance(n, (ast.Module, *FUNCTIONS))) if tree is not None else ():
        nodes = list(own_nodes(scope))
        for order in _orders(nodes):
            taken = _only_taken(nodes, order)
            if taken and _leaves_some(nodes, order, taken):
                return ast.unparse(taken[0]), Where(file, taken[0].lineno, getattr(scope, "name", "<module>"))
    return "", None


def _leaves_some(nodes: list[ast.AST], order: str, taken: list[ast.expr]) -> bool:
    """Names that go together with what was taken in that order were not."""
    moved = {order}
    for each in (n for n in nodes if isinstance(n, ast.Assign)):
        inside = [n for n in ast.walk(each.value) if n in taken or (isinstance(n, ast.Name) and n.id in moved)]
        targets = {n.id for target in each.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        moved |= targets if inside or order in targets else set()
    for node in nodes:
        given = node.value if isinstance(node, (ast.Yield, ast.Return)) else None
        together = given if isinstance(given, ast.Tuple) else ast.Tuple([])
        if isinstance(node, ast.For) and any(n in taken for n in ast.walk(node)) and isinstance(node.target, ast.Tuple):
            together = node.target
        names = {n.id for n in together.elts if isinstance(n, ast.Name)}
        if names & moved and len(names) > len(names & moved):
            return True
    return False


def _longest_first(batch: torch.Tensor) -> bool:
    """Padded rows of (samples, positions) or (samples, positions, numbers)."""
    rows = batch.detach()
    filled = rows != rows[:, -1].mode().values if rows.dim() == 2 else rows.flatten(2).ne(0).any(-1)
    lengths = filled.sum(1)
    return bool((lengths[1:] <= lengths[:-1]).all())


def _taken(function: ast.FunctionDef) -> ast.expr | None:
    """Where rows are taken in the order that sorts them, if that is all that is done with it."""
    called = [called_name(node).lower() for node in ast.walk(function) if isinstance(node, ast.Call)]
    if any(each in name for name in called for each in LOSSES):
        return None
    nodes = list(ast.walk(function))
    for order in _orders(nodes):
        taken = _only_taken(nodes, order)
        if taken and all(_is_first_argument(each, function) for each in taken):
            return taken[0]
    return None


def _only_taken(nodes: list[ast.AST], order: str) -> list[ast.expr]:
    """What takes rows in that order, where nothing else is done with it."""
    uses = [n for n in nodes if isinstance(n, ast.Name) and n.id == order]
    taken = [n for n in nodes if isinstance(n, ast.expr) and _takes(n, order)]
    stored = sum(isinstance(n.ctx, ast.Store) for n in uses)
    return taken if stored == 1 and len(uses) == 1 + len(taken) else []


def _is_first_argument(taken: ast.expr, function: ast.FunctionDef) -> bool:
    """``x[order]`` of ``forward(self, x, lengths)``: the edges of a graph come later."""
    given = [each.arg for each in function.args.args[1:2]]
    whole = taken.func.value if isinstance(taken, ast.Call) and isinstance(taken.func, ast.Attribute) else None
    whole = taken.value if isinstance(taken, ast.Subscript) else whole
    return isinstance(whole, ast.Name) and whole.id in given


def _orders(nodes: list[ast.AST]) -> Iterator[str]:
    """``lengths, order = lengths.sort(descending=True)``; ``order = lengths.argsort(descending=True)``; not what sorts an order."""
    known: set[str] = set()
    for made in (n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)):
        target, call = made.targets[0], called_name(made.value)  # type: ignore[arg-type]
        longest_first = any(each in ast.unparse(made.value) for each in DESCENDING)
        if call == "argsort" and isinstance(target, ast.Name):
            name = target.id
        elif call == "sort" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            name = ast.unparse(target.elts[1])
        else:
            continue
        if longest_first and known.isdisjoint(n.id for n in ast.walk(made.value) if isinstance(n, ast.Name)):
            yield name
        known.add(name)


def _takes(node: ast.expr, order: str) -> bool:
    """``x[order]``, ``x[order, :]``, ``x.index_select(0, order)``."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        rows = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        return isinstance(rows, ast.Name) and rows.id == order
    if isinstance(node, ast.Call) and called_name(node) == "index_select" and node.args:
        given = [*node.args, *(each.value for each in node.keywords)]
        return ast.unparse(given[-1]) == order and any(ast.unparse(each) == "0" for each in given)
    return False
