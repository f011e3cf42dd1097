"""Numbers that terms of a loss are multiplied with, and that grow from look to look: looked at again as the run goes on."""

from __future__ import annotations

from flatline.events import TermsWeighed, Where
from flatline.sensors.annealed import AnnealedSensor
from flatline.sensors.graph import Graph, Node, children, operation, saved
from flatline.sensors.loop import Loop
from flatline.sensors.penalties import KEEPING, number_of

LOOKS = 14  # besides the usual ones, while a weight only grows
NODES = 500  # of one loss that are gone through: terms stand near its root
SUMS = ("Add", "Sub", "Rsub")


class WeighedTerms:
    """Called with the graph under every loss on closely watched steps."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.again = AnnealedSensor(loop, looks=LOOKS)

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """One loss: what its terms are multiplied with, in their order."""
        if not self.loop.wants(TermsWeighed):
            return
        weights = _weights(graph.root)
        if weights:
            self.again.note(sum(map(abs, weights)))
            self.loop.emit(TermsWeighed(step=self.loop.step, where=where, weights=tuple(weights)))


def _weights(root: Node) -> list[float]:
    """Numbers that stand before a term of a sum; one before the whole loss is none of them."""
    found, waiting, left = [], [(root, False)], NODES
    while waiting and left:
        node, in_sum = waiting.pop()
        left -= 1
        what = operation(node)
        if what in SUMS or what in KEEPING or what == "Neg":
            waiting += [(child, in_sum or what in SUMS) for child in children(node)]
        elif what == "Div" and len(children(node)) == 1:
            waiting.append((children(node)[0], in_sum))
        elif what == "Mul" and len(children(node)) == 1:
            number = number_of(saved(node, "other"))
            if in_sum and number:
                found.append(number)
            waiting.append((children(node)[0], in_sum))
    return found
