"""One weight applied to its own result, position after position: does the state grow by the same factor each time?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from flatline.events import RecurrenceSampled, Where
from flatline.sensors.activations import INPUTS, is_plain, rms
from flatline.sensors.graph import Graph, Node, children, operation, saved, sequence
from flatline.sensors.loop import Loop
from flatline.sensors.models import ModelSensor
from flatline.sensors.tree import named_parameters

FEWEST = 8  # applications
POINTS = 9  # of them that are looked at
NEAR = 24  # nodes between one application and the next
WEIGHTS = 16  # of a graph
TURNED = ("T", "Transpose", "Permute", "ToCopy")


class RecurrenceSensor:
    """Called with the graph under every loss on closely watched steps."""

    def __init__(self, loop: Loop, models: ModelSensor) -> None:
        self.loop, self.models = loop, models

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """Tell of the sizes of the state, first to last, for each weight that is applied again and again."""
        if not self.loop.wants(RecurrenceSampled):
            return
        for weight, products in list(_applied(graph))[:WEIGHTS]:
            if len(products) >= FEWEST and _feeds_itself(products):
                sizes = _sizes(products)
                if sizes:
                    self.loop.emit(
                        RecurrenceSampled(
                            step=self.loop.step,
                            where=where,
                            weight=self._name(weight),
                            shape=tuple(weight.shape),
                            positions=len(products),
                            sizes=sizes,
                            loss=self.loop.first_loss,
                        )
                    )

    def _name(self, weight: Any) -> str:
        for model in self.models.alive():
            for name, parameter in named_parameters(model):
                if parameter is weight:
                    return name
        return ""


def _applied(graph: Graph) -> Iterator[tuple[Any, list[Node]]]:
    """Weights, and the products of something with them, in the order of the forward pass."""
    found: dict[int, tuple[Any, list[Node]]] = {}
    for node in graph.named(*INPUTS):
        if operation(node) == "Convolution":
            continue
        weight = _leaf(node.next_functions[-1][0])
        if weight is not None and weight.dim() == 2:
            found.setdefault(id(weight), (weight, []))[1].append(node)
    for weight, products in found.values():
        yield weight, sorted(products, key=sequence)


def _leaf(node: Node | None) -> Any:
    while node is not None and operation(node) in TURNED:
        node = next(iter(children(node)), None)
    return getattr(node, "variable", None)


def _feeds_itself(products: list[Node]) -> bool:
    """The result of one application is in the input of the next: looked at in the middle and at the end."""
    middle = len(products) // 2
    return all(_reaches(_input(products[at]), products[at - 1]) for at in (middle, -1))


def _input(node: Node) -> Node | None:
    return node.next_functions[-2][0]


def _reaches(node: Node | None, goal: Node) -> bool:
    waiting, seen = [node] if node is not None else [], 0
    while waiting and seen < NEAR:
        node = waiting.pop(0)
        if node is goal:
            return True
        seen += 1
        waiting += [child for child in children(node) if sequence(child) >= sequence(goal)]
    return False


def _sizes(products: list[Node]) -> tuple[float, ...]:
    """Of the state, at positions spread evenly from the first that is not zero to the last."""
    inputs = [saved(node, INPUTS[operation(node)]) for node in products[1:]]
    if not all(is_plain(each) for each in inputs):
        return ()
    places = torch.linspace(0, len(inputs) - 1, POINTS).round().long().tolist()
    found = tuple(rms(inputs[place]) for place in places)
    return found if all(0.0 < size < math.inf for size in found) else ()
