"""Graphs that outlive their step: somebody keeps a tensor that hangs on to them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Literal

from flatline.events import LossesKept, Where
from flatline.sensors.callers import caller, callers_above
from flatline.sensors.graph import Graph, Node, children, is_leaf, sequence, walk
from flatline.sensors.loop import Loop
from flatline.sensors.sources import keeping_statement

KEPT_GRAPHS = 8  # graphs of this many earlier steps, all alive
PLACES = 64  # lines of the user's code that are followed
CALLERS = 2  # functions above the one that calls the model: one function may serve training and a monitor
LONG = 400  # operations of a pass that are gone through

What = Literal["losses", "outputs"]


class _Sentinel:
    """Lives exactly as long as the graph node it is tied to."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True)
class _Graph:
    step: int
    sentinel: weakref.ref[_Sentinel]
    where: Where | None


class Kept:
    """Follows the graphs of losses, and of what models returned, from one close look to the next."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._graphs: dict[tuple[What, int], list[_Graph]] = {}
        self._told = False

    def loss(self, graph: Graph, where: Where | None) -> None:
        """A loss's graph, right before its backward."""
        nodes = [n for n in graph.nodes[:50] if not is_leaf(n)]
        self._follow("losses", 0, nodes[min(1, len(nodes) - 1)], where)

    def after_module(self, model: Any, call: Any, args: Any, outputs: list[Any]) -> None:
        """What a model returned with gradients on: it need not come to a backward."""
        if call.depth == 0 and call.grad_enabled:
            self.evaluated(model, call.module, outputs)

    def evaluated(self, model: Any, module: Any, outputs: list[Any]) -> None:
        """The first pass of a step from each place: one stands for those that follow."""
        node = outputs[0].grad_fn if outputs else None
        if node is None or self._told:
            return
        where = caller()
        place = hash((model.label, where, *callers_above(CALLERS), module.training))
        graphs = self._graphs.get(("outputs", place))
        if not graphs or graphs[-1].step != self.loop.step:
            self._follow("outputs", place, _middle(node), where)

    def _follow(self, what: What, place: int, node: Node, where: Where | None) -> None:
        """Tie a sentinel to the node: it dies with the graph."""
        if self._told or ((what, place) not in self._graphs and len(self._graphs) >= PLACES):
            return
        sentinel = _Sentinel()
        node.metadata[f"flatline {what}"] = sentinel
        graphs = self._graphs.setdefault((what, place), [])
        del graphs[: -2 * KEPT_GRAPHS]
        graphs.append(_Graph(self.loop.step, weakref.ref(sentinel), where))
        alive = [graph for graph in graphs if graph.sentinel() is not None]
        lasting = len(graphs) >= KEPT_GRAPHS and len(alive) == len(graphs)
        if what == "outputs" and not self._losses_die():
            return  # a loss that is kept keeps its outputs, too
        if lasting and len({graph.step for graph in alive}) >= KEPT_GRAPHS:  # backwards of one step may share a life
            self._tell(what, node, alive)

    def _losses_die(self) -> bool:
        return any(graph.sentinel() is None for graph in self._graphs.get(("losses", 0), ()))

    def _tell(self, what: What, node: Node, alive: list[_Graph]) -> None:
        self._told = True
        where = alive[-1].where
        statement, place = keeping_statement(where) if what == "losses" else ("", None)
        self.loop.emit(
            LossesKept(
                step=self.loop.step,
                where=place or where,
                what=what,
                alive=len(alive),
                seen=len(alive),
                nodes=len(walk(node).nodes),
                holder=statement,
            )
        )


def _middle(node: Node) -> Node:
    """A node halfway down a pass: derivatives by the inputs hold the inner ones alone, and what is kept holds it, too."""
    chain = [node]
    while len(chain) < LONG:
        below = [each for each in children(chain[-1]) if not all(is_leaf(leaf) for leaf in children(each))]
        if not below:
            break
        chain.append(max(below, key=sequence))
    return chain[len(chain) // 2]
