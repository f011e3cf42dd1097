"""Sums of squares that overflow float16, and that a division turns into 0: neither loss nor gradient tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from flatline.events import OverflowHidden, Where
from flatline.sensors.activations import is_plain
from flatline.sensors.callers import caller
from flatline.sensors.forensics import finite, owner
from flatline.sensors.graph import SHAPE_ONLY, Graph, Node, children, operation, saved
from flatline.sensors.loop import Loop
from flatline.sensors.models import FIRST_LAYERS, Call, Model, ModelSensor, has_matrix, tensors_in

Tensor = torch.Tensor
HALF = torch.float16
MOST = float(torch.finfo(HALF).max)  # 65504
NEARLY_ALL = 0.9  # of the samples: a script may leave out the loudest few by a mask, on purpose
ROWS = 4  # samples; fewer say nothing of the others
NODES = 64  # roots of one loss that are looked at
DEPTH = 8  # operations from a root down to the square
ELEMENTS = 4_000_000  # of one tensor that is gone through
ROOTS = ("Rsqrt", "Sqrt", "LinalgVectorNorm", "Norm")
BETWEEN = {"Add", "Mean", "Sum", "Clamp", "ClampMin", *SHAPE_ONLY}


class HiddenOverflows:
    """Called for every module of a pass under close look, and with the graph under every loss."""

    def __init__(self, loop: Loop, models: ModelSensor) -> None:
        self.loop, self.models = loop, models
        self._searching = False  # for the first layer of this pass

    # ------------------------------------------------------------------ where a loss reaches

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """Roots of a sum of squares that was infinite, though what was squared is not."""
        if not self.loop.wants(OverflowHidden):
            return
        divisors = set(_divisors(graph))
        for node in list(graph.named(*ROOTS))[:NODES]:
            divides = operation(node) == "Rsqrt" or node in divisors
            squared = _squared(node) if divides else None
            share = _overflowed(node) if squared is not None else 0.0
            if squared is not None and share and finite(squared):
                place = owner(node, self.models, graph.first_sequence - self.models.first_sequence)
                self._tell(place or operation(node).lower(), squared, share=share, where=where)
                return

    # ------------------------------------------------------------------ before the first layer, where no loss reaches

    def after_module(self, model: Model, call: Call, args: Any, outputs: list[Tensor]) -> None:
        """The first layer reads zeros where the model was given numbers whose squares float16 cannot hold."""
        if len(model.calls) == 1:
            self._searching = True
        if not self._searching or not (call.leaf and has_matrix(call.module)):
            return
        self._searching = False
        entered, given = next(tensors_in(args), None), [ref() for ref in model.given]
        if not call.grad_enabled or not isinstance(call.module, FIRST_LAYERS) or not self.loop.wants(OverflowHidden):
            return
        if entered is None or len(given) != 1 or given[0] is None or entered.grad_fn is not None:
            return
        share = _emptied(given[0].detach(), entered.detach()) if _in_half(entered) else 0.0
        if share:
            self._tell(f"before {call.path or model.label}", given[0].detach(), share=share, where=caller())

    def _tell(self, place: str, squared: Tensor, *, share: float, where: Where | None) -> None:
        largest = float(squared.detach().abs().max())
        self.loop.emit(OverflowHidden(step=self.loop.step, where=where, place=place, largest=largest, share=share))


def _divisors(graph: Graph) -> Iterator[Node]:
    """Roots that something is divided by, with an eps added or a least value set or without."""
    for division in list(graph.named("Div", "Reciprocal"))[:NODES]:
        inputs = [node for node, _ in division.next_functions]
        node = inputs[-1] if inputs else None
        for _ in range(DEPTH):
            if node is None or operation(node) not in BETWEEN:
                break
            node = next(iter(children(node)), None)
        if node is not None:
            yield node


def _squared(node: Node) -> Tensor | None:
    """The float16 numbers under a root, whose squares were summed up."""
    for _ in range(DEPTH):
        what = operation(node)
        kept: Tensor | None = _factor(node) if what == "Mul" else saved(node, "self") if what not in BETWEEN else None
        square = what in ("Mul", "Var", "LinalgVectorNorm", "Norm") or (what == "Pow" and saved(node, "exponent") == 2)
        if kept is not None and is_plain(kept) and square:
            return kept if kept.dtype == HALF and kept.numel() <= ELEMENTS else None
        below = set(children(node))
        if len(below) != 1 or (what not in BETWEEN and what not in ROOTS):
            return None
        node = below.pop()
    return None


def _factor(node: Node) -> Tensor | None:
    """Of a product of a tensor with itself, that tensor."""
    one, other = saved(node, "self"), saved(node, "other")
    same = is_plain(one) and is_plain(other) and one.data_ptr() == other.data_ptr() and one.shape == other.shape
    return one if same else None


def _overflowed(node: Node) -> float:
    """Share of the roots that are infinite, or the inverse of infinity; no other number of float16 has an inverse of 0."""
    result = saved(node, "result")
    if not is_plain(result) or result.numel() > ELEMENTS:
        return 0.0
    lost = result == 0 if operation(node) == "Rsqrt" else torch.isinf(result)
    return float(lost.detach().float().mean())


def _emptied(given: Tensor, entered: Tensor) -> float:
    """Share of the samples that are 0 at the layer: the loudest, of whose squares float16 cannot hold the sum.

    What was divided by infinity keeps its sign; an empty state that somebody made has none, and a mask hits quiet samples, too.
    """
    rows = given.shape[0] if given.dim() > 1 else 0
    if rows < ROWS or not ROWS <= given.numel() == entered.numel() <= ELEMENTS or given.is_complex():
        return 0.0
    empty = entered.reshape(rows, -1).eq(0).all(dim=1) if entered.shape[0] == rows else entered.eq(0).all().expand(rows)
    if int(empty.sum()) < ROWS or not bool((torch.signbit(entered) & entered.eq(0)).any()):
        return 0.0
    loudness = given.reshape(rows, -1).double().square().sum(dim=1).to(empty.device)
    quietest, others = loudness[empty].min(), loudness[~empty]
    hidden = bool(quietest > MOST) and not bool((others > quietest).any())
    share = float(empty.float().mean())
    return share if hidden and share >= NEARLY_ALL else 0.0


def _in_half(tensor: Tensor) -> bool:
    """It is of float16, or made under autocast to it."""
    device = tensor.device.type
    told = getattr(torch, "get_autocast_dtype", None)  # since torch 2.4
    lowered = told is not None and torch.is_autocast_enabled(device) and told(device) == HALF
    return tensor.dtype == HALF or lowered
