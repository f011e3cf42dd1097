"""One weight applied to its own result, position after position: does the state grow by the same factor each time?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from flatline.events import RecurrenceSampled, RecurrentGradientsSampled, Where
from flatline.sensors.activations import INPUTS, is_plain, rms, spread
from flatline.sensors.graph import Graph, Node, children, leaf_of, operation, saved, sequence
from flatline.sensors.loop import Loop
from flatline.sensors.models import ModelSensor
from flatline.sensors.patching import Patches
from flatline.sensors.tree import named_parameters

FEWEST = 8  # applications
POINTS = 9  # of them that are looked at
NEAR = 24  # nodes between one application and the next
WEIGHTS = 16  # of a graph
TURNED = ("T", "Transpose", "Permute", "ToCopy")


class RecurrenceSensor:
    """Called with the graph under every loss on closely watched steps, and after its backward."""

    def __init__(self, loop: Loop, patches: Patches, models: ModelSensor) -> None:
        self.loop, self.patches, self.models = loop, patches, models
        self._handles: list[Any] = []
        self._coming: list[tuple[RecurrentGradientsSampled, dict[int, Any]]] = []  # and the gradients, by position

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """Tell of the sizes of the state, first to last, for each weight that is applied again and again."""
        self._let_go()
        if not (self.loop.wants(RecurrenceSampled) or self.loop.wants(RecurrentGradientsSampled)):
            return
        for weight, products in list(_applied(graph))[:WEIGHTS]:
            if len(products) >= FEWEST and _feeds_itself(products):
                self._follow(weight, products, where)
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

    def _follow(self, weight: Any, products: list[Node], where: Where | None) -> None:
        """Listen to the gradients that will come to some positions."""
        event = RecurrentGradientsSampled(
            step=self.loop.step,
            where=where,
            weight=self._name(weight),
            shape=tuple(weight.shape),
            positions=len(products),
        )
        found: dict[int, Any] = {}
        self._coming.append((event, found))
        for place in _spread_over(len(products)):
            self._handles.append(products[place].register_prehook(self._listening(found, place)))

    def _listening(self, found: dict[int, Any], place: int) -> Any:
        def keep(gradients: Any) -> None:
            (gradient,) = gradients
            if is_plain(gradient):
                found[place] = spread(gradient).float().square().mean().sqrt()

        keep = self.patches.guard(keep)

        def hook(gradients: Any) -> None:
            keep(gradients)

        return hook

    def after_backward(self) -> None:
        """Tell of the sizes of the gradients, first position to last."""
        coming = self._coming
        self._let_go()
        for event, found in coming:
            sizes = [found[place] for place in sorted(found)]
            if len(sizes) == POINTS and len({each.device for each in sizes}) == 1:
                self.loop.emit(replace(event, gradients=tuple(torch.stack(sizes).tolist())))

    def _let_go(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._coming = [], []

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
    return leaf_of(node)


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
    found = tuple(rms(inputs[place]) for place in _spread_over(len(inputs)))
    return found if all(0.0 < size < math.inf for size in found) else ()


def _spread_over(positions: int) -> list[int]:
    """Some of them, evenly spread, with the first and the last."""
    return [round(at * (positions - 1) / (POINTS - 1)) for at in range(POINTS)]
