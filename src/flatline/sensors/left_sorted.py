"""A forward that sorts the samples of its batch, by length as a packed sequence wants them, and never puts them back."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from flatline.events import Where
from flatline.sensors.forwards import forward_of
from flatline.sensors.models import ModelSensor
from flatline.sensors.sources import called_name
from flatline.sensors.tree import modules

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
    for order in _orders(function):
        uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == order]
        stored = [n for n in uses if isinstance(n.ctx, ast.Store)]
        taken = [n for n in ast.walk(function) if isinstance(n, ast.expr) and _takes(n, order)]
        samples = [each for each in taken if _is_first_argument(each, function)]
        if samples and len(stored) == 1 and len(uses) == len(stored) + len(taken):
            return samples[0]
    return None


def _is_first_argument(taken: ast.expr, function: ast.FunctionDef) -> bool:
    """``x[order]`` of ``forward(self, x, lengths)``: the edges of a graph come later."""
    given = [each.arg for each in function.args.args[1:2]]
    whole = taken.func.value if isinstance(taken, ast.Call) and isinstance(taken.func, ast.Attribute) else None
    whole = taken.value if isinstance(taken, ast.Subscript) else whole
    return isinstance(whole, ast.Name) and whole.id in given


def _orders(function: ast.FunctionDef) -> Iterator[str]:
    """``lengths, order = lengths.sort(descending=True)``; ``order = lengths.argsort(descending=True)``; not what sorts an order."""
    known: set[str] = set()
    for made in (n for n in ast.walk(function) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)):
        target, call = made.targets[0], called_name(made.value)  # type: ignore[arg-type]
        if call == "argsort" and isinstance(target, ast.Name):
            name = target.id
        elif call == "sort" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            name = ast.unparse(target.elts[1])
        else:
            continue
        if known.isdisjoint(n.id for n in ast.walk(made.value) if isinstance(n, ast.Name)):
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
