"""Weights of classes in a loss, beside how frequent the classes are."""

from __future__ import annotations

import math
from collections import Counter

import torch

from flatline.events import ClassesWeighed, Where
from flatline.sensors.graph import Graph, Node, name_of, saved
from flatline.sensors.loop import Loop
from flatline.sensors.models import readable

LOSSES = ("NllLoss", "NllLoss2D", "BinaryCrossEntropyWithLogits")
MOST_CLASSES = 64
MOST_LABELS = 65_536  # of one batch
LOOKS = 6  # batches
MANY = 9  # batches after which a class that is hardly there is told, too: ten are looked at by step 30
ENOUGH = 20  # labels of each class, to know its share


class ClassWeights:
    """Counts the labels of a loss that weighs its classes, on steps that are looked at closely."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._counts: Counter[int] = Counter()
        self._weights: tuple[float, ...] = ()
        self._looks = 0
        self._over = False

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """One loss with weights: read them and the labels."""
        if self._over or not self.loop.wants(ClassesWeighed):
            return
        losses = list(graph.named(*LOSSES))
        weights = _weights(losses[0]) if len(losses) == 1 else ()
        labels = _labels(losses[0]) if weights else None
        if labels is None or (self._weights and weights != self._weights):
            self._over = bool(self._weights)  # none, or others at each step
            return
        self._weights, self._looks = weights, self._looks + 1
        self._counts.update(labels.tolist())
        counts = tuple(self._counts[label] for label in range(len(weights)))
        if self._looks < LOOKS or (min(counts) < ENOUGH and self._looks < MANY):
            return
        self._over = True
        self.loop.emit(ClassesWeighed(step=self.loop.step, where=where, weights=weights, counts=counts))


def _weights(node: Node) -> tuple[float, ...]:
    """Of each class; of two for a loss over one score, whose other class weighs 1."""
    positive, each = saved(node, "pos_weight"), saved(node, "weight")
    weight = positive if positive is not None else each
    if not isinstance(weight, torch.Tensor) or not readable(weight) or not 0 < weight.numel() <= MOST_CLASSES:
        return ()
    if positive is None:
        found = weight.flatten().tolist() if weight.numel() > 1 and name_of(node).startswith("Nll") else []
    else:
        found = [1.0, float(weight)] if weight.numel() == 1 else []
    return tuple(found) if all(value > 0 and math.isfinite(value) for value in found) else ()


def _labels(node: Node) -> torch.Tensor | None:
    target = saved(node, "target")
    if not isinstance(target, torch.Tensor) or not readable(target) or not 0 < target.numel() <= MOST_LABELS:
        return None
    target = target.detach().flatten()
    return target.long() if not target.is_floating_point() or bool(((target == 0) | (target == 1)).all()) else None
