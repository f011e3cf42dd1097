"""When the loss jumps: does the batch hold numbers that no other batch held?"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from flatline.events import AnswersBeyond, BatchStoodOut, Where
from flatline.history import median
from flatline.sensors.callers import caller
from flatline.sensors.graph import Graph, Node, operation, saved, sequence, walk
from flatline.sensors.loop import Loop
from flatline.sensors.models import readable

LOSSES = 32  # the newest ones, that a loss is compared with
FEWEST_LOSSES = 16
RENEWED = 8  # steps after which the limit is taken anew
JUMP = 4.0  # over their median
BEYOND = 3.0  # over the largest of them, those of a few other batches that stood out left aside
ASIDE = 3
SUSPICIONS = 24  # jumps that are looked into
BATCHES = 5  # that were measured, before one of them is off
REMEMBERED = 64
OFF = 3.0  # times the largest number of the other batches: worth telling
APART = 20.0  # times the largest of the others: such a batch was an outlier, too
FEW = 0.2  # of the batches looked at, at most, that were
BACK = 3.0  # times that number: a later batch is as the others again
LATER = 3  # batches as the others, that follow an outlier
EARLY_JUMP = 100.0  # over all losses before, while there are too few of them for a median
EARLY_LATER = 8  # batches as the others, that follow an outlier among the first ones
LOST = 3  # steps without a finite loss after it
ROW_OFF = 10.0  # times that number, or half of what the largest is: a row that is off
NAMED_ROWS = 3
MOST_NUMBERS = 4_000_000
FED = {"Addmm": ("mat1", 1), "Mm": ("self", 0), "Convolution": ("input", 0), "NativeBatchNorm": ("input", 0)}
FED |= {"NativeLayerNorm": ("input", 0), "MkldnnRnnLayer": ("input", 0), "Bmm": ("self", 0)}
ASKED = {"MseLoss": ("target", 1), "SmoothL1Loss": ("target", 1), "HuberLoss": ("target", 1)}
TIME_FIRST = ("MkldnnRnnLayer",)  # its rows are no samples
Key = tuple[str, int, tuple[int, ...]]


@dataclass(slots=True)
class Pending:
    """An outlier that waits for what the next batches hold."""

    key: Key
    event: BatchStoodOut
    later: int = 0
    early: bool = False  # too few batches came before; the later ones tell what is usual


class Outliers:
    """The newest losses, and how large the numbers of the batches were that were looked at closely.

    ``limit`` and ``recent`` are read and written at every step: a loss above the limit is looked into.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.recent: deque[float] = deque(maxlen=LOSSES)
        self.limit = math.inf
        self.position: Any = tuple  # of the newest batch in its pass, and the length of the pass; () without a loader
        self.look_on = False  # the coming batches are to be looked at
        self._seen: dict[Key, deque[tuple[int, float]]] = {}
        self._suspicions = 0
        self._again = 0  # step at which the limit is taken anew
        self._pending: Pending | None = None

    # ------------------------------------------------------------------ losses

    def add(self, step: int, loss: float, root: torch.Tensor | None) -> None:
        """One more loss. With its graph, if that is still there."""
        if root is None or not root.is_cpu or len(self.loop.optimizers) != 1:
            return
        if loss > self.limit:
            self._look_into(step, loss, root)
        elif 0 < len(self.recent) < FEWEST_LOSSES and loss > EARLY_JUMP * max(map(abs, self.recent)):
            self._look_early(step, loss, root)
        self.recent.append(loss)
        if loss > self.limit or step >= self._again:
            self._again = step + RENEWED
            self.limit = self._limit()

    def _limit(self) -> float:
        if len(self.recent) < FEWEST_LOSSES or self._suspicions >= SUSPICIONS:
            return math.inf
        usual = median(self.recent)
        return max(JUMP * usual, BEYOND * sorted(self.recent)[-1 - ASIDE]) if usual > 0 else math.inf

    def _look_into(self, step: int, loss: float, root: torch.Tensor) -> None:
        """The loss jumped: what did the batch hold?"""
        if root.grad_fn is None or self._pending is not None:
            return
        self._suspicions += 1
        graph = walk(root.grad_fn)
        for key, tensor in batch_of(graph):
            others = ordinary([size for at, size in self._seen.get(key, ()) if at != step and size > 0])
            size = largest(tensor)
            if len(others) >= BATCHES and math.inf > size > OFF * max(others):
                self._hold(step, loss, key, tensor, others)
                return
        for answers, targets in _asked(graph) if self.loop.wants(AnswersBeyond) else ():
            low, high = (float(each) for each in torch.aminmax(targets))
            off = float((answers - targets).square().mean().sqrt())
            if high > low and math.inf > off > high - low:
                self.loop.emit(AnswersBeyond(step=step, where=caller(), off=off, low=low, high=high, loss=loss))

    def _look_early(self, step: int, loss: float, root: torch.Tensor) -> None:
        """One of the first losses jumped: is a batch far off the few before it?"""
        if root.grad_fn is None or self._pending is not None:
            return
        for key, tensor in batch_of(walk(root.grad_fn)):
            others = [size for at, size in self._seen.get(key, ()) if at != step and size > 0]
            if others and math.inf > largest(tensor) > APART * max(others):
                self._hold(step, loss, key, tensor, others)
                if self._pending is not None:
                    self._pending.early = True
                return

    def _hold(self, step: int, loss: float, key: Key, tensor: torch.Tensor, others: list[float]) -> None:
        """An outlier; what follows tells whether it was alone."""
        at = [place for place, _ in self._seen[key]]
        if step in at:
            del self._seen[key][at.index(step)]
        size, seen = largest(tensor), [each for _, each in self._seen[key] if each > 0]
        limit = min(ROW_OFF * max(others), size / 2)
        rows = [] if key[0] in TIME_FIRST else rows_above(tensor, limit)
        told = BatchStoodOut(
            step=step,
            where=caller(),
            what="targets" if key[0] in ASKED else "inputs",
            largest=size,
            usual=max(others),
            least=min(others),
            batches=len(others),
            alike=len(seen) - len(others),
            rows=tuple(rows[:NAMED_ROWS]),
            off=len(rows),
            of=int(tensor.shape[0]) if tensor.dim() else 1,
            loss=loss,
            usual_loss=median(self.recent),
            place=self.position(),
        )
        self._pending, self.look_on = Pending(key, told), True

    # ------------------------------------------------------------------ batches looked at closely

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """Remember how large the numbers of this batch are."""
        for key, tensor in batch_of(graph):
            size = largest(tensor)
            self._seen.setdefault(key, deque(maxlen=REMEMBERED)).append((self.loop.step, size))
            if self._pending is not None and self._pending.key == key and self._pending.event.step != self.loop.step:
                self._follow(self._pending, size)

    def _follow(self, pending: Pending, size: float) -> None:
        """A later batch: as the others, or as large as the outlier, which was the first of many then."""
        if pending.early:
            self._follow_early(pending, size)
            return
        if size > BACK * pending.event.usual:
            self._pending = None
            return
        pending.later += 1
        if pending.later >= LATER:
            self.finish()

    def _follow_early(self, pending: Pending, size: float) -> None:
        """A batch after an outlier among the first ones: a few others may be as far off."""
        event, off = pending.event, size > APART * pending.event.usual
        usual, least = max(size, event.usual), min(size, event.least)
        told = replace(event, alike=event.alike + 1) if off else replace(event, usual=usual, least=least)
        pending.event, pending.later = told, pending.later + (not off)
        if event.alike > EARLY_LATER // 2 or (size > BACK * event.usual and not off):
            self._pending = None
        elif pending.later >= EARLY_LATER:
            self.finish()
        self.look_on = self._pending is not None

    def after_backward(self) -> None:
        """Look at the batches that follow an outlier."""
        if self.look_on:
            self.look_on = False
            self.loop.look_closely()

    def finish(self) -> None:
        """Tell of the outlier, if any batch followed it."""
        pending, self._pending = self._pending, None
        if pending is None or not pending.later:
            return
        lost = pending.early and self.loop.steps - self.loop.last_loss_step >= LOST
        if lost or not pending.early:
            told = replace(pending.event, later=pending.later, loss_after=self.loop.last_loss, lost=lost)
            self.loop.emit(told)
        else:
            self._seen[pending.key].append((pending.event.step, pending.event.largest))


def batch_of(graph: Graph) -> Iterator[tuple[Key, torch.Tensor]]:
    """The numbers of the batch, as the first layers and the losses kept them for the backward: nothing made them."""
    found: list[tuple[Node, str, torch.Tensor]] = []
    for node in graph.nodes:
        name = operation(node)
        entry = FED.get(name) or ASKED.get(name)
        tensor = _given(node, *entry) if entry is not None else None
        if tensor is not None:
            found.append((node, name, tensor))
    found.sort(key=lambda each: sequence(each[0]))
    for at, (_, name, tensor) in enumerate(found):
        yield (name, at, tuple(tensor.shape[1:])), tensor


def _asked(graph: Graph) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What a model answered, and the targets that were given with the batch."""
    for node in graph.nodes:
        entry = ASKED.get(operation(node))
        targets = _given(node, *entry) if entry is not None else None
        answers = _kept(node, "self") if targets is not None else None
        if targets is not None and answers is not None and answers.shape == targets.shape:
            yield answers, targets


def _given(node: Node, name: str, place: int) -> torch.Tensor | None:
    """What a node kept of an input that nothing made."""
    made = len(node.next_functions) <= place or node.next_functions[place][0] is not None
    return None if made else _kept(node, name)


def _kept(node: Node, name: str) -> torch.Tensor | None:
    tensor = saved(node, name)
    return tensor.detach() if isinstance(tensor, torch.Tensor) and _measurable(tensor) else None


def ordinary(sizes: list[float]) -> list[float]:
    """Without a few that lie far above all the others."""
    sizes = sorted(sizes)
    for aside in range(int(FEW * len(sizes)), 0, -1):
        if sizes[-aside] > APART * sizes[-aside - 1]:
            return sizes[:-aside]
    return sizes


def _measurable(tensor: torch.Tensor) -> bool:
    return readable(tensor) and tensor.is_floating_point() and 0 < tensor.numel() <= MOST_NUMBERS


def largest(tensor: torch.Tensor) -> float:
    """The largest absolute value; nan if one is nan."""
    low, high = torch.aminmax(tensor)
    return max(-float(low), float(high))


def rows_above(tensor: torch.Tensor, limit: float) -> list[int]:
    """The rows that hold a number above the limit."""
    rows = tensor.reshape(tensor.shape[0], -1) if tensor.dim() else tensor.reshape(1, 1)
    return [int(row) for row in (rows.abs().amax(1) > limit).nonzero().reshape(-1).tolist()]
