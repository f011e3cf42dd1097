"""When one class is far more frequent than the others: does the model ever answer another, do its scores tell them apart?"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from flatline.events import MinorityObserved, Where
from flatline.sensors import batches
from flatline.sensors.callers import caller
from flatline.sensors.decisions import decides
from flatline.sensors.graph import Node, children, operation, saved
from flatline.sensors.loop import Loop
from flatline.sensors.models import readable
from flatline.sensors.outliers import FED, TIME_FIRST

KINDS = {
    "NllLoss": "cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "BinaryCrossEntropy": "binary_cross_entropy",
}
NEAR = 12  # nodes under the root in which the loss is looked for
LOPSIDED = 10 / 11  # share of the commonest class: ten to one
MOST_CLASSES = 32
FEWEST_LABELS = 64  # before looks between the close ones are worth it
ROWS = 256  # of one batch that are kept
MOST_SCORES = 65_536
KEPT = 512  # batches
WAITING = 8  # batches that are read at once
GAP = 2  # steps between two looks, at first
SPREAD = 128  # later, looks in each doubling of the steps or so
FIRST_TOLD = 2048  # steps, then at every doubling; and at the end
COMPARED = 2_000  # scores on each side of a ranking

FEATURES = 128  # numbers of an input that are kept
DEEP = 200  # operations from the loss to the first layer
GRANT = 60_000_000  # nanoseconds that are always granted
BUDGET = 0.005  # share of the time
BOTH_HALVES = 30  # rare samples, of which half teach and half are asked


@dataclass(slots=True)
class Look:
    """Some batches, as far as they were kept."""

    step: int  # of the first, and of the last of them
    last: int
    batches: int
    labels: torch.Tensor
    scores: torch.Tensor
    answers: torch.Tensor  # the class with the highest score
    inputs: torch.Tensor | None  # some numbers of each sample


@dataclass(slots=True)
class Kept:
    """What is kept of a backward, on the device that it ran on."""

    step: int
    kind: str
    ignore: Any
    scores: torch.Tensor
    target: torch.Tensor
    inputs: torch.Tensor | None

    def alike(self) -> tuple[object, ...]:
        """The same for batches that can be put together."""
        shape = None if self.inputs is None else self.inputs.shape[1]
        return self.kind, self.ignore, self.scores.shape[1:], self.target.shape[1:], self.target.dtype, shape


class Imbalance:
    """Labels and scores of a loss over classes, on close steps, and between them once they are seen to be lopsided."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._spent = 0  # nanoseconds
        loop.begins.append(self._another)
        self._begin()

    def _another(self) -> None:
        self.finish()
        self._begin()

    def _begin(self) -> None:
        self._begun = self.loop.steps
        self.due = math.inf  # the step from which on a light step is looked at, too
        self._off = False
        self._where: Where | None = None
        self._waiting: list[Kept] = []
        self._looks: deque[Look] = deque(maxlen=KEPT)
        self._taken = 0
        self._read_now = self._only = False  # the newest batches were read; all their answers are the commonest class
        self._counts: Counter[int] = Counter()
        self._width = 0  # columns of the scores
        self._kind = ""
        self._tell_at = FIRST_TOLD

    def look(self, root: torch.Tensor) -> None:
        """A backward is about to begin."""
        started = time.thread_time_ns()  # on a busy machine another process's turn is none of our cost
        self._look(root)
        self._spent += time.thread_time_ns() - started
        if self._spent > GRANT + BUDGET * self.loop.elapsed:
            self.due += self.loop.step  # as many steps again

    def _look(self, root: torch.Tensor) -> None:
        if self._off or root.grad_fn is None or not self.loop.wants(MinorityObserved):
            return
        if len(self.loop.optimizers) != 1 or not self._take(root.grad_fn):
            self.due = math.inf
            return
        self._where = caller() if self.loop.dense else self._where
        if self.loop.dense or len(self._waiting) >= WAITING:
            self._read()
        self._plan()
        if self.loop.step - self._begun >= self._tell_at:
            self._tell_at *= 2
            self.tell()

    def _take(self, root: Node) -> bool:
        """Keep labels and scores of the one loss, for later."""
        node = loss_under(root)
        if node is None:
            return False
        if weighted(node):
            self._off = True
            return False
        scores, target = saved(node, "self"), saved(node, "target")
        if not isinstance(scores, torch.Tensor) or not isinstance(target, torch.Tensor):
            return False
        if not 0 < scores.numel() <= MOST_SCORES or target.numel() > MOST_SCORES:
            return False
        ignore = saved(node, "ignore_index")
        rows = target.shape[0] if target.dim() else 0
        with_inputs = self._taken // WAITING % 2 == 0
        kept = (
            scores.detach()[:ROWS].clone(),
            target.detach()[:ROWS].clone(),
            _inputs(node, rows) if with_inputs else None,
        )
        self._waiting.append(Kept(self.loop.step, KINDS[operation(node)], ignore, *kept))
        self._taken += 1
        return True

    def _read(self) -> None:
        """Put what was kept into the window, all that is alike at once."""
        waiting, self._waiting, self._read_now = self._waiting, [], True
        for _, some in groupby(waiting, key=Kept.alike):
            group = list(some)
            first, target = group[0], torch.cat([each.target for each in group])
            found = batches.class_labels(first.kind, torch.cat([each.scores for each in group]), target, first.ignore)
            if found is None:
                continue
            rows, labels = (part.cpu() for part in found)
            parts = [each.inputs for each in group if each.inputs is not None]
            inputs = torch.cat(parts).float().cpu() if parts and labels.numel() == target.numel() else None
            self._kind, self._width = self._kind or first.kind, self._width or rows.shape[1]
            self._off = self._off or first.kind != self._kind or rows.shape[1] != self._width
            self._off = self._off or self._width > MOST_CLASSES
            self._counts.update(labels.tolist())
            self._looks.append(
                Look(
                    first.step,
                    group[-1].step,
                    len(group),
                    labels,
                    rows.float(),
                    batches.chosen(first.kind, rows),
                    inputs,
                )
            )

    def _plan(self) -> None:
        """Look more often while the labels are lopsided, and the model answers with the commonest one only."""
        total, (common, often) = sum(self._counts.values()), _commonest(self._counts)
        if self._off or total < FEWEST_LABELS or often < LOPSIDED * total:
            self.due = math.inf
            return
        if self._read_now:
            self._read_now, self._only = False, bool((self._looks[-1].answers == common).all())
        gap = GAP if self._taken < SPREAD else max(GAP, (self.loop.steps - self._begun) // SPREAD)
        self.due = self.loop.steps + (gap if self._only else 4 * gap)

    def finish(self) -> None:
        """The run is over."""
        self.tell(ended=True)

    def tell(self, ended: bool = False) -> None:
        """What was seen in the last three quarters of the steps."""
        self._read()
        early = self._begun + (self.loop.steps - self._begun) / 4
        looks = [look for look in self._looks if look.step > early]
        total, (common, often) = sum(self._counts.values()), _commonest(self._counts)
        if self._off or not looks or often < LOPSIDED * total or len({look.scores.shape[1] for look in looks}) > 1:
            return
        labels, scores = torch.cat([look.labels for look in looks]), torch.cat([look.scores for look in looks])
        rare = labels != common
        if not bool(rare.any()):
            return
        self.loop.emit(
            MinorityObserved(
                step=self.loop.steps,
                where=self._where,
                classes=max(2, self._width),
                common=common,
                labels=labels.numel(),
                rare=int(rare.sum()),
                answered=sum(int((look.answers != common).sum()) for look in looks),
                looks=sum(look.batches for look in looks),
                first=looks[0].step,
                ranking=ranking_of(looks, common),
                surprise=batches.surprise(self._kind, scores, labels),
                entropy=_entropy(labels),
                ended=ended,
                decides=decides(self._where.file) if ended and self._where is not None else None,
                by_means=by_means([look for look in self._looks if look.inputs is not None], common),
            )
        )


def loss_under(root: Node) -> Node | None:
    """The one mean or sum of a loss over classes right under a root, if there is one."""
    found, waiting, passed = [], [root], 0
    while waiting and passed < NEAR:
        node = waiting.pop(0)
        passed += 1
        if operation(node) in KINDS:
            found.append(node)
        else:
            waiting += children(node)
    return found[0] if len(found) == 1 and saved(found[0], "reduction") in (1, 2) else None


def _inputs(node: Node, rows: int) -> torch.Tensor | None:
    """Some numbers of each sample, as the first layer kept them: straight down from the loss."""
    for _ in range(DEEP):
        below = [child for child in children(node) if operation(child) not in ("AccumulateGrad", "T")]
        name, entry = operation(node), FED.get(operation(node))
        if entry is not None and node.next_functions[entry[1]][0] is None and name not in TIME_FIRST:
            tensor = saved(node, entry[0])
            if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2 or len(tensor) != rows or not readable(tensor):
                return None
            flat = tensor.detach()[:ROWS].reshape(min(rows, ROWS), -1)
            return flat[:, :: -(-flat.shape[1] // FEATURES)].clone() if flat.is_floating_point() else None
        if not below:
            return None
        node = below[0]
    return None


def weighted(node: Node) -> bool:
    """The loss weighs classes or samples."""
    return saved(node, "weight") is not None or saved(node, "pos_weight") is not None


def _commonest(counts: Counter[int]) -> tuple[int, int]:
    return counts.most_common(1)[0] if counts else (0, 0)


def _against(scores: torch.Tensor, common: int) -> torch.Tensor:
    """How much the scores speak for any other class than the commonest."""
    if scores.shape[1] == 1:
        return -scores[:, 0] if common else scores[:, 0]
    return -scores[:, common]


def ranking_of(looks: list[Look], common: int) -> float:
    """The ranking by the scores, each against those of about the same step: they drift while the model learns."""
    found = [(int(rare.sum()), look, rare) for look in looks if bool((rare := look.labels != common).any())]
    total = sum(count for count, _, _ in found)
    return sum(count * ranking(_against(look.scores, common), rare) for count, look, rare in found) / max(1, total)


def ranking(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """The chance that a positive has the higher score (AUC): 0.5 says nothing, 1 is perfect."""
    sides = [_thinned(scores[side]) for side in (positive, ~positive)]
    if not all(len(side) for side in sides):
        return 0.5
    gap = sides[0][:, None] - sides[1]
    return float(((gap > 0).float() + 0.5 * (gap == 0).float()).mean())


def _thinned(values: torch.Tensor) -> torch.Tensor:
    return values[:: -(-len(values) // COMPARED)] if len(values) else values


def _entropy(labels: torch.Tensor) -> float:
    """Of the labels, in nats: the loss of a model that knows only how frequent they are."""
    shares = torch.unique(labels, return_counts=True)[1].double() / labels.numel()
    return float(-(shares * shares.log()).sum())


def by_means(looks: list[Look], common: int) -> float | None:
    """How well the difference of two means ranks samples that it was not made from; None if too few rare ones are there."""
    shapes = Counter(look.inputs.shape[1] for look in looks if look.inputs is not None)
    if not shapes:
        return None
    mine = [look for look in looks if look.inputs is not None and look.inputs.shape[1] == shapes.most_common(1)[0][0]]
    inputs = torch.cat([look.inputs for look in mine if look.inputs is not None])
    rare = torch.cat([look.labels for look in mine]) != common
    new = _first_of_each(inputs)
    inputs, rare = inputs[new], rare[new]
    if int(rare.sum()) < BOTH_HALVES or int((~rare).sum()) < BOTH_HALVES or not bool(torch.isfinite(inputs).all()):
        return None
    inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-12)
    even = torch.where(rare, rare.long().cumsum(0), (~rare).long().cumsum(0)) % 2 == 0
    return (_told_by(inputs, rare, even) + _told_by(inputs, rare, ~even)) / 2


def _told_by(inputs: torch.Tensor, rare: torch.Tensor, half: torch.Tensor) -> float:
    """One half gives the means, the other is asked."""
    teach, ask = inputs[half], inputs[~half]
    direction = teach[rare[half]].mean(0) - teach[~rare[half]].mean(0)
    return ranking(ask @ direction, rare[~half])


def _first_of_each(inputs: torch.Tensor) -> list[int]:
    """The rows that were not there before."""
    keys = (inputs.double() * torch.arange(1, inputs.shape[1] + 1)).sum(1).tolist()
    first: dict[float, int] = {}
    for at, key in enumerate(keys):
        first.setdefault(key, at)
    return list(first.values())
