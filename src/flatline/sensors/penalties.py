"""Penalties that a loss subtracts: a square or a norm has no upper bound, so such a loss has no minimum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import torch

from flatline.events import PenaltySubtracted, Where
from flatline.sensors.forensics import parameter_names
from flatline.sensors.graph import SHAPE_ONLY, Graph, Node, children, leaf_of, operation, saved
from flatline.sensors.loop import Loop
from flatline.sensors.models import ModelSensor

Kind = Literal["weights", "normaliser"]
LOOKS = 12  # losses that are looked at
SURE = 3  # of them, that subtract the same: adversaries take turns
NODES = 2_000  # of one loss that are gone through: terms stand near its root
KEEPING = SHAPE_ONLY | {"Sum", "Mean", "Sqrt"}  # the sign of what they are given


class Penalties:
    """Goes down from a loss to its terms, on steps that are looked at closely."""

    def __init__(self, loop: Loop, models: ModelSensor) -> None:
        self.loop, self.models = loop, models
        loop.begins.append(self._begin)
        self._begin()

    def _begin(self) -> None:
        self._looks = 0
        self._negative: Counter[Kind] = Counter()

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """One loss: does it subtract squares of weights, or of the softmax normaliser?"""
        if self._looks >= LOOKS or not self.loop.wants(PenaltySubtracted):
            return
        self._looks += 1
        trained = {key for state in self.loop.states if not _maximises(state.ref()) for key in state.ids}
        found: dict[Kind, list[Any]] = {}
        for kind, leaf, sign in _penalties(graph.root, trained):
            found.setdefault(kind, []).append((leaf, sign))
        for kind, terms in found.items():
            negative = all(sign < 0 for _, sign in terms)
            self._negative[kind] += negative
            if negative and self._negative[kind] == SURE:
                self._tell(kind, where, [leaf for leaf, _ in terms])

    def _tell(self, kind: Kind, where: Where | None, leaves: list[Any]) -> None:
        names = parameter_names(self.models)
        told = tuple(dict.fromkeys(names[id(leaf)] for leaf in leaves if id(leaf) in names))
        self.loop.emit(
            PenaltySubtracted(step=self.loop.step, where=where, kind=kind, names=told, tensors=len({*map(id, leaves)}))
        )


def _maximises(optimizer: Any) -> bool:
    return any(group.get("maximize") for group in getattr(optimizer, "param_groups", ()))


def _penalties(root: Node, trained: set[int]) -> Iterator[tuple[Kind, Any, int]]:
    """Squares and norms among the terms of a loss, and the sign that each stands with."""
    waiting, left = [(root, 1)], NODES
    while waiting and left:
        node, sign = waiting.pop()
        left -= 1
        inner = _squared(node)
        if inner is not None:
            leaf = leaf_of(inner)
            if operation(inner) == "Logsumexp":
                yield "normaliser", None, sign
            elif leaf is not None and leaf.dim() > 1 and id(leaf) in trained:
                yield "weights", leaf, sign
            if operation(node) != "Mul":
                continue
        waiting += _terms(node, sign)


def _squared(node: Node) -> Node | None:
    """What an even power, a norm, or a product with itself is made from."""
    what, below = operation(node), children(node)
    if what == "Pow":
        exponent = saved(node, "exponent")
        even = isinstance(exponent, (int, float)) and exponent > 0 and exponent % 2 == 0
        return _below(below[0]) if even and len(below) == 1 else None
    if what in ("LinalgVectorNorm", "Norm", "Abs"):
        return _below(below[0]) if len(below) == 1 else None
    same = what == "Mul" and len(below) == 2 and below[0] is below[1]
    return _below(below[0]) if same else None


def _below(node: Node) -> Node:
    """Past changes of shape."""
    while operation(node) in SHAPE_ONLY and len(children(node)) == 1:
        node = children(node)[0]
    return node


def _terms(node: Node, sign: int) -> list[tuple[Node, int]]:
    """The terms of a sum, a difference, a mean or a product with a number; of anything else none."""
    what, below = operation(node), children(node)
    if what in KEEPING:
        return [(child, sign) for child in below]
    if what == "Neg":
        return [(child, -sign) for child in below]
    if what in ("Mul", "Div"):
        factor = _sign_of(saved(node, "other"))
        return [(below[0], sign * factor)] if len(below) == 1 and factor else []
    if what not in ("Add", "Sub", "Rsub"):
        return []
    second = _sign_of(saved(node, "alpha")) * (1 if what == "Add" else -1)
    return [
        (child, sign * turn) for child, turn in zip(_operands(node), (1, second), strict=False) if child is not None
    ]


def _operands(node: Node) -> list[Node | None]:
    """Both sides, of which a number has no node; ``1 - x`` is told as x and its number, the other way round."""
    sides = [child for child, _ in node.next_functions]
    return [None, *sides[:1]] if operation(node) == "Rsub" else sides


def _sign_of(factor: Any) -> int:
    """Of a number; 0 where it is not known."""
    number = number_of(factor)
    return (number > 0) - (number < 0)


def number_of(factor: Any) -> float:
    """That a graph saved; 0 where it is not known, or lies on a device, or is learned."""
    if isinstance(factor, torch.Tensor):
        if factor.dim() or not factor.is_cpu or factor.requires_grad:
            return 0.0
        factor = factor.item()
    return float(factor) if isinstance(factor, (int, float)) else 0.0
