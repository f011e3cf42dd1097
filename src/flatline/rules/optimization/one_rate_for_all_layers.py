"""O19."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from flatline.events import LayerNumbers, LossComputed, LossesRead, NumbersSampled, ParametersAudited, RunEnded, Where
from flatline.findings import Finding
from flatline.history import Course, median
from flatline.rules import Rule


class OneRateForAllLayers(Rule):
    """Pretrained layers and a fresh head share one learning rate: it rewrites the ones, or leaves the other as drawn.

    Symptom
    -------
    Fine-tuning the whole model is worse than training the head on frozen features; the loss jumps up in the first
    steps and never comes below that of a fresh model. Or it falls from far above guessing, and is not below it at the end.

    Root cause
    ----------
    The head is random and needs large steps. The gradients that it sends down in its first steps are noise, and at
    the same rate they overwrite features that were learned on far more data. A rate that suits these moves the head too little.

    Fix
    ---
    Two parameter groups, the pretrained one at a tenth of the head's rate or less, and a warm-up; or train the head
    alone first.

    Example
    -------
    ::

        model.load_state_dict(pretrained, strict=False)   # the head is new
        optimizer = AdamW(model.parameters(), lr=1e-2)

    Use instead
    -----------
    ::

        optimizer = AdamW([
            {"params": model.body.parameters(), "lr": 1e-5},
            {"params": model.head.parameters(), "lr": 1e-3},
        ])

    Healthy look-alikes
    -------------------
    Groups with rates of their own; a body that moves less than half of its own size (a hint; a fifth is a warning at twice
    the rate that it was trained at, or more), or as far under BatchNorm; one small rate for all layers, as for BERT; training
    from scratch, or on from a checkpoint that has every layer; a frozen body.

    References
    ----------
    - https://arxiv.org/abs/1801.06146
    """

    code = "O19"
    severity = "warning"
    each_training = True
    trial_dependent = True
    cause = "the fresh head's first gradients are noise, and the body follows them at the head's rate"
    early: int = 5  # steps in which a pretrained layer should hardly move
    far: float = 0.4  # sizes of its own that a body layer travels in them: measured, docs/thresholds.md
    far_normed: float = 1.0  # the same under BatchNorm, which gives back the size of what it is given
    far_raised: float = 0.2  # the same where the rate is above that at which the body was trained in this run
    raised: float = 2.0  # times that rate, at least
    trained: int = 100  # sampled step of a training, from which on it counts as one
    noticeable: float = 0.1  # the same, told as a hint; usual fine-tuning is at 1e-3 to 1e-2 a step (CS231n)
    leap: float = 1.5  # highest loss of those steps over the first one
    all_too_fast: float = 3.0  # from here on the rate is too high for any layer, which is O28
    body: float = 0.6  # share of the elements that came from the checkpoint
    stuck: float = 0.3  # sizes of its own that a fresh head travels in a whole run; at 2e-5, 1,000 steps make about 1
    guessing: float = 0.6  # of what guessing costs: a loss above it has learned next to nothing
    falling: float = 0.15  # of the whole fall, that belongs to the second half of the run
    steps_needed: int = 200  # of the run; fewer are a try
    slower: float = 10.0  # times the rate, at which the body was trained in this run: a tenth is usual for tuning it
    falling_slowly: float = 0.05  # of it, above guessing and after a far higher rate: heads may begin far above
    straight: float = 0.3  # of it, below guessing; at an even pace it is 0.5
    far_from: float = 0.4  # of what guessing costs, the lowest of these

    def __init__(self) -> None:
        self._loaded: dict[str, bool] = {}  # name of each trained matrix -> from a checkpoint
        self._worst: dict[int, float] = defaultdict(float)  # loss in the first steps of an optimizer
        self._path: dict[tuple[int, str], float] = defaultdict(float)
        self._heads: dict[int, _Head] = {}
        self._newest: dict[int, NumbersSampled] = {}  # of each optimizer
        self._courses: dict[int, Course] = {}
        self._adaptive: dict[int, bool] = {}  # of each optimizer with a course
        self._chance = 0.0  # what guessing costs

    def on_parameters_audited(self, event: ParametersAudited) -> None:
        """Which weights came from a checkpoint, or from training before."""
        for p in event.parameters:
            if p.trainable and p.optimizers and len(p.shape) >= 2 and not p.norm:
                self._loaded[p.name] = p.loaded or p.trained_before

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """How far the pretrained weights travelled in the first steps, and the fresh ones in all."""
        self._newest[event.optimizer.key] = event
        matrices = [layer for layer in event.layers if layer.matrix and layer.name in self._loaded]
        body = [layer for layer in matrices if self._loaded[layer.name]]
        head = [layer for layer in matrices if not self._loaded[layer.name]]
        elements = sum(layer.elements for layer in matrices)
        one_rate = len(body) > 1 and head and len({m.learning_rate for m in matrices}) == 1
        if event.index <= self.early:
            self._travel(event)
        if not one_rate or sum(layer.elements for layer in body) < self.body * elements:
            self._heads.pop(event.optimizer.key, None)
            return
        self._heads.setdefault(event.optimizer.key, _Head()).add(event, head)
        if event.index == self.early:
            yield from self._rewritten(event, body, head)

    def _travel(self, event: NumbersSampled) -> None:
        key = event.optimizer.key
        self._worst[key] = max(self._worst[key], event.loss or 0.0)
        for layer in event.layers:
            self._path[key, layer.name] += layer.update_ratio or 0.0

    def _rewritten(
        self, event: NumbersSampled, body: list[LayerNumbers], head: list[LayerNumbers]
    ) -> Iterator[Finding]:
        key = event.optimizer.key
        path = median(self._path[key, layer.name] for layer in body)
        if not self.noticeable <= path < self.all_too_fast:
            return
        normed = any("BatchNorm" in layer.kind for layer in event.layers)
        before = self._trained_at(event)
        raised = 0 < self.raised * before <= head[0].learning_rate
        far = self.far_normed if normed else self.far_raised if raised else self.far
        rate, first = head[0].learning_rate, event.first_loss or 0.0
        leapt = 0 < self.leap * first <= self._worst[key]
        jump = f"; the loss leapt from {first:.3g} to {self._worst[key]:.3g}" if leapt else ""
        higher = f"; they were trained at {before:g}" if raised else ""
        yield self.finding(
            event,
            f"{len(body)} pretrained weight matrices moved by {path:.0%} of their own size in {self.early} steps, at the "
            f"rate of {rate:g} that they share with the fresh {head[0].name}{higher}{jump}",
            severity="warning" if path >= far else "hint",
            fix=f"give the pretrained layers a group of their own, with lr={rate / 10:g} or less",
            where=event.optimizer.where,
            key=str(key),
            moved=path,
            lr=rate,
        )

    def _trained_at(self, event: NumbersSampled) -> float:
        """The highest rate of optimizers of the same kind before this one; 0 if there was none."""
        earlier = [each for key, each in self._newest.items() if key < event.optimizer.key]
        alike = [each for each in earlier if each.optimizer.adaptive is event.optimizer.adaptive]
        return max((each.peak_lr for each in alike if each.index >= self.trained), default=0.0)

    def on_loss_computed(self, event: LossComputed) -> None:
        """What guessing costs."""
        if event.kind == "cross_entropy" and event.reduction == "mean" and event.classes:
            self._chance = math.log(event.classes)

    def on_losses_read(self, event: LossesRead) -> None:
        """The loss of every step."""
        self._courses.setdefault(event.optimizer.key, Course()).extend(event.losses, event.rates)
        self._adaptive[event.optimizer.key] = event.optimizer.adaptive

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """A fresh head that hardly moved, and a loss that is on its way down from above what guessing costs."""
        for key, head in self._heads.items():
            course = self._courses.get(key, Course())
            path = head.path(course)
            if event.how != "finished" or course.steps < self.steps_needed or path > self.stuck:
                continue
            last = course.level(0.9, 1.0)
            if self._on_its_way(course, last, slowed=self._slowed(key, course)):
                yield self._left_behind(event, head, last=last, path=path)

    def _on_its_way(self, course: Course, last: float, *, slowed: bool) -> bool:
        """The loss still falls, from not far below what guessing costs."""
        first, middle = course.level(0.0, 0.1), course.level(0.45, 0.55)
        if not first > last >= self.far_from * self._chance > 0:
            return False
        late = (middle - last) / (first - last)
        if late >= self.falling and last >= self.guessing * self._chance:
            return True
        return slowed and late >= (self.straight if last < self._chance else self.falling_slowly)

    def _slowed(self, key: int, course: Course) -> bool:
        """An optimizer of the same kind before this one had a rate many times as high."""
        earlier = [other for other in self._courses if other < key and self._adaptive[other] is self._adaptive[key]]
        before = [self._courses[other] for other in earlier if self._courses[other].steps >= self.steps_needed]
        return any(each.peak >= self.slower * course.peak > 0 for each in before)

    def _left_behind(self, event: RunEnded, head: _Head, *, last: float, path: float) -> Finding:
        rate = head.rate
        return self.finding(
            event,
            f"the fresh {head.name} moved by {path:.0%} of its own size in the whole run, at the rate of {rate:g} that "
            f"it shares with the pretrained layers; the loss is {last:.3g} and still falls (guessing: {self._chance:.3g})",
            cause="the rate suits the pretrained layers; the head is random and needs far larger steps",
            fix=f"give the head a group of its own, with lr={100 * rate:.2g} or so, and keep {rate:g} for the pretrained layers",
            where=head.where,
            key="left behind",
            moved=path,
            lr=rate,
        )


class _Head:
    """The fresh layers under one optimizer."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.where: Where | None = None
        self.name = ""
        self._steps: list[float] = []  # changes at a rate of 1
        self._path = 0.0
        self._index = 0

    def add(self, event: NumbersSampled, layers: list[LayerNumbers]) -> None:
        """Their steps since the sample before were like this one."""
        self.name, self.where = layers[0].name, event.optimizer.where
        self.rate = max(self.rate, layers[0].learning_rate)  # a schedule may end near 0
        step = median(layer.update_ratio or 0.0 for layer in layers)
        self._path += (event.index - self._index) * step
        self._index = event.index
        if layers[0].learning_rate:
            self._steps.append(step / layers[0].learning_rate)

    def path(self, course: Course) -> float:
        """Sizes of their own that they travelled, also after the newest sample: a step is in proportion to its rate."""
        left, rest = course.steps - self._index, 0.0
        for each in reversed(course.stretches):
            rest += max(0, min(each.steps, left)) * each.rate
            left -= each.steps
        return self._path + (rest * median(self._steps) if self._steps else 0.0)
