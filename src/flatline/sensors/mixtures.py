"""Probabilities that several softmaxes were mixed into, worked out again from what the graph has saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from flatline.sensors.graph import HOOKED, VIEWS, Node, operation, saved, shape_of

Tensor = torch.Tensor
FEW_NODES = 64  # between the softmaxes and the loss
MOST_NUMBERS = 4_000_000  # of one tensor
FEW_ROWS, FEW_CLASSES = 8, 3  # under these, numbers may add up to one by accident
EXACT = {torch.float32: 1e-4, torch.float64: 1e-6}  # rounding of a sum
COARSE = 1e-2  # of half precision
HALF = (torch.float16, torch.bfloat16)
UNCHANGED = ("Clone", "ToCopy", "Contiguous", "Alias")


def mixed(log_softmax: Node) -> Node | None:
    """A softmax over the classes, if all rows that a log-softmax was given are probabilities made of such ones."""
    result, dim = saved(log_softmax, "result"), saved(log_softmax, "dim")
    edge = log_softmax.next_functions[0]
    if not isinstance(result, Tensor) or not _worth(result) or edge[0] is None:
        return None
    classes = result.shape[dim]
    over = next((node for node in _softmaxes(edge[0]) if _width(node) == classes), None)
    if over is None or classes < FEW_CLASSES or result.numel() < FEW_ROWS * classes:
        return None
    given = _value(*edge)
    return over if given is not None and _is_spread(given, result.detach(), dim) else None


def _worth(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.is_floating_point() and 0 < tensor.numel() <= MOST_NUMBERS


def _is_spread(given: Tensor, result: Tensor, dim: int) -> bool:
    """It is what the log-softmax was given, nothing in it is negative, and every row adds up to one."""
    exact = EXACT.get(result.dtype, COARSE)
    if given.shape != result.shape:
        return False
    proven = torch.allclose(torch.log_softmax(given.to(result.dtype), dim), result, rtol=exact, atol=exact)
    return proven and bool(given.min() >= 0) and bool(((given.sum(dim) - 1).abs() <= exact).all())


def _softmaxes(node: Node) -> Iterator[Node]:
    """Those that only sums, products and changes of shape lie above."""
    waiting, seen = [node], {node}
    while waiting and len(seen) < FEW_NODES:
        node = waiting.pop()
        if operation(node) == "Softmax":
            yield node
        elif operation(node) in WORKED_OUT:
            below = {child for child, _ in node.next_functions if child is not None} - seen
            seen |= below
            waiting += below


def _width(softmax: Node) -> int:
    result, dim = saved(softmax, "result"), saved(softmax, "dim")
    return int(result.shape[dim]) if isinstance(result, Tensor) and result.dim() else 0


# --------------------------------------------------------------------------- what a node made


def _value(node: Node | None, place: int = 0, depth: int = 0) -> Tensor | None:
    """What the node made, from tensors that the graph keeps; None where they do not tell."""
    if node is None or node in HOOKED or depth > FEW_NODES:
        return None
    name = operation(node)
    work = WORKED_OUT.get(name)
    if work is not None:
        below = [_operand(node, at, depth + 1) for at in range(len(node.next_functions))]
        made = None if any(each is None for each in below) else work(node, below)
        made = made.unbind(saved(node, "dim"))[place] if name == "Unbind" and made is not None else made
    else:
        made = saved(node, "result") if name in ("Softmax", "Sigmoid") else None
    fits = isinstance(made, Tensor) and _worth(made)
    return _whole(made) if fits and isinstance(made, Tensor) else None


def _whole(tensor: Tensor) -> Tensor:
    """Not in half precision, so that autocast does not matter."""
    return tensor.detach().float() if tensor.dtype in HALF else tensor.detach()


def _operand(node: Node, at: int, depth: int) -> Any:
    """One of the things that a node was made of: a number, a saved tensor, or what another node made."""
    keys = SAVED.get(operation(node), ())
    kept = saved(node, keys[at]) if at < len(keys) else None
    if isinstance(kept, (int, float)):
        return kept
    if isinstance(kept, Tensor):
        return _whole(kept)
    below = node.next_functions[at]
    if below[0] is None and operation(node) == "Add":
        return 0  # what is not kept: ``sum()`` begins at it, and log-softmax is the same for any number
    return _value(below[0], below[1], depth)


SAVED = {"Mul": ("self", "other"), "Div": ("self", "other"), "Bmm": ("self", "mat2"), "Mm": ("self", "mat2")}


def _added(node: Node, below: list[Any]) -> Tensor:
    total: Tensor = below[0] + saved(node, "alpha") * below[1]
    return total


def _from_one(node: Node, below: list[Any]) -> Tensor | None:
    """``1 - gate``: which number it was is not kept, and the check of what comes out tells whether it was one."""
    return 1 - below[0] if saved(node, "alpha") == 1 else None


def _reduced(node: Node, below: list[Any]) -> Tensor | None:
    dims = saved(node, "dim")
    if not isinstance(dims, tuple) or not dims:
        return None
    how = torch.sum if operation(node) == "Sum" else torch.mean
    made: Tensor = how(below[0], dim=dims, keepdim=saved(node, "keepdim"))
    return made


def _sliced(node: Node, below: list[Any]) -> Tensor | None:
    dim, start, end, step = (saved(node, key) for key in ("dim", "start", "end", "step"))
    places = range(*slice(start, end, step).indices(below[0].shape[dim]))
    return torch.index_select(below[0], dim, torch.tensor(list(places), device=below[0].device)) if places else None


def _swapped(node: Node, below: list[Any]) -> Tensor:
    swapped: Tensor = below[0].transpose(saved(node, "dim0"), saved(node, "dim1"))
    return swapped


def _shaped(node: Node, below: list[Any]) -> Tensor | None:
    shape = shape_of(node)
    return below[0].reshape(shape) if shape and below[0].numel() == torch.Size(shape).numel() else None


WORKED_OUT: dict[str, Callable[[Node, list[Any]], Tensor | None]] = {
    "Mul": lambda node, below: below[0] * below[1],
    "Div": lambda node, below: below[0] / below[1],
    "Add": _added,
    "Rsub": _from_one,
    "Bmm": lambda node, below: below[0] @ below[1],
    "Mm": lambda node, below: below[0] @ below[1],
    "Sum": _reduced,
    "Mean": _reduced,
    "Stack": lambda node, below: torch.stack(below, saved(node, "dim")),
    "Unbind": lambda node, below: below[0],
    "Slice": _sliced,
    "Transpose": _swapped,
    "T": lambda node, below: below[0].t(),
    "Permute": lambda node, below: below[0].permute(saved(node, "dims")),
    "Expand": lambda node, below: below[0].expand(shape_of(node)),
    **dict.fromkeys(VIEWS, _shaped),
    **dict.fromkeys(UNCHANGED, lambda node, below: below[0]),
}
