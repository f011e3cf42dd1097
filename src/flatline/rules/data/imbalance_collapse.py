"""D9."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from flatline.events import ClassesWeighed, MinorityObserved, Where
from flatline.findings import Finding
from flatline.history import fmean
from flatline.rules import Rule


class ImbalanceCollapse(Rule):
    """One class is far more frequent than the others, and the model answers nothing else.

    Symptom
    -------
    Accuracy is 98 or 99 % from the first epoch and never changes. Recall and F1 of the rare class are 0; every prediction
    is the same.

    Root cause
    ----------
    With ten or a hundred samples of one class for one of the others, answering that class always is a good start, and
    the few rare samples of a batch hardly move the gradient. The output's bias learns how frequent the classes are, and the
    weights learn nothing.

    Fix
    ---
    Let the rare class weigh more, in the loss or in the batch; measure recall, F1 or the area under the precision-recall
    curve, not accuracy.

    Example
    -------
    ::

        loss = F.binary_cross_entropy_with_logits(out, y)         # 1 % of y is 1

    Use instead
    -----------
    ::

        weight = (y_train == 0).sum() / (y_train == 1).sum()
        loss = F.binary_cross_entropy_with_logits(out, y, pos_weight=weight)

    Healthy look-alikes
    -------------------
    Rare events whose probabilities never reach one half and yet rank well, or whose inputs tell nothing, which are hints
    where the script does not decide by the highest score; the first steps; a slow start, in which the scores begin to
    rank; classes that are weighed already, also by costs that were chosen.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
    - https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html (ClassImbalance)
    """

    code = "D9"
    severity = "warning"
    each_training = True
    cause = (
        "to answer the commonest class always is cheap, and the few rare samples of a batch hardly move the gradient: the "
        "model learned how frequent the classes are and nothing about the inputs"
    )
    consequences = ("C2", "C3", "C5", "D7", "O22")

    times: float = 10.0  # the commonest class over all others together (SageMaker Debugger: over any other)
    answered: float = 0.05  # answers other than the commonest, over rare samples: dropout makes one now and then
    found_few: float = 0.1  # the same where the script itself decides so, at the end of the run
    rare_needed: int = 30  # rare samples; fewer leave the ranking open by more than 0.1
    steps_needed: int = 200  # before that a model may not have begun to learn
    looks_needed: int = 16  # batches
    deviations: float = 2.0  # of a ranking by chance, above which the model has begun to learn
    told_by_means: float = 0.65  # AUC of a simple rule; by chance it lies three deviations lower
    better: float = 0.1  # the simple rule's AUC over the model's
    seen: int = 5  # labels of a class, before its share is known
    skewed: float = 3.0  # the commonest class over the rarest, and their weights: less is no one's concern
    near_one: float = 0.1  # of a slope of 1, log weight over log count, which counts make; chosen costs lie anywhere
    straight: float = 0.95  # correlation of the two, where there are more than two classes
    gentlest: float = 0.4  # slope there: square roots make 0.5
    learned: float = 0.97  # of the labels' entropy, as for D7

    def on_classes_weighed(self, event: ClassesWeighed) -> Iterator[Finding]:
        """Weights that go with the frequencies, where they should go against them."""
        seen = [
            (count, weight) for count, weight in zip(event.counts, event.weights, strict=True) if count >= self.seen
        ]
        if len(seen) < 2:
            return
        (often, heavy), (seldom, light) = max(seen), min(seen)
        slope, fit = _line([(math.log(count), math.log(weight)) for count, weight in seen])
        lined = fit >= self.straight and slope >= (1 - self.near_one if len(seen) == 2 else self.gentlest)
        if often < self.skewed * seldom or heavy < self.skewed * light or not lined or slope > 1 + self.near_one:
            return
        common, rare = event.counts.index(often), event.counts.index(seldom)
        yield self.finding(
            event,
            f"class {rare} has {seldom / sum(event.counts):.1%} of {sum(event.counts):,} labels and the weight {light:.3g}, class "
            f"{common} has {often / sum(event.counts):.0%} and {heavy:.3g}: the weights go with the frequencies",
            cause="the fraction is turned over: the loss makes the rare class rarer still, and to answer the common one pays",
            fix=f"weigh class {rare} {often / seldom:.3g} times as much as class {common}: divide by the counts, "
            + ("pos_weight=negatives / positives" if len(event.weights) == 2 else "weight=total / (classes * counts)"),
            key="weights",
            slope=slope,
        )

    def on_minority_observed(self, event: MinorityObserved) -> Iterator[Finding]:
        """No answer but the commonest, for most of the run."""
        decided = event.ended and event.decides is not None
        if (
            event.answered > (self.found_few if decided else self.answered) * event.rare
            or event.rare < self.rare_needed
            or event.step < self.steps_needed
        ):
            return
        if event.looks < self.looks_needed or event.labels - event.rare < self.times * event.rare:
            return
        if event.ended and event.decides is not None:
            yield self._decided(event, event.decides)
        elif event.ranking > 0.5 + self.deviations * math.sqrt(1 / 12 / event.rare):
            yield self._thresholded(event)
        elif event.surprise >= self.learned * event.entropy:
            yield self._collapsed(event)

    def _decided(self, event: MinorityObserved, where: Where) -> Finding:
        """The script itself decides by the highest score, and so it never finds a rare one."""
        ranks = "though" if event.ranking > 0.5 + self.deviations * math.sqrt(1 / 12 / event.rare) else "and"
        return self._told(
            event,
            f"{_seen(event)}, {ranks} its scores rank them with AUC {event.ranking:.2f}; the script decides by the highest "
            f"score (line {where.line}) and finds {'almost ' if event.answered else ''}none",
            cause=self.cause
            if ranks == "and"
            else "so few samples seldom bring a rare class above one half, though they rank",
            fix=f"weigh the rare ones: {_weight(event)}; or draw them more often with WeightedRandomSampler; or choose the "
            "threshold on validation data. Measure recall or average precision, not accuracy",
            key="decided",
        )

    def _collapsed(self, event: MinorityObserved) -> Finding:
        """Proven where a simple rule tells what the model does not; else the inputs may tell nothing."""
        simple = event.by_means or 0.0
        proven = simple >= max(self.told_by_means, event.ranking + self.better)
        told = f", where the difference of the classes' means has {simple:.2f} on held-out samples" if proven else ""
        return self._told(
            event,
            f"{_seen(event)}; its scores rank them no better than chance (AUC {event.ranking:.2f}){told}",
            severity="warning" if proven else "hint",
            cause=self.cause
            if proven
            else "either the inputs tell nothing of the rare classes, or their few samples are drowned",
            fix=f"weigh the rare ones: {_weight(event)}; or draw them more often with WeightedRandomSampler. Measure recall "
            "or average precision, not accuracy",
            key="" if proven else "chance",
        )

    def _thresholded(self, event: MinorityObserved) -> Finding:
        return self._told(
            event,
            f"{_seen(event)}, though its scores rank them higher (AUC {event.ranking:.2f})",
            severity="hint",
            cause="rare classes seldom reach the highest probability; accuracy says nothing here",
            fix="choose the threshold on validation data, and measure average precision or recall, not accuracy",
            key="threshold",
        )

    def _told(self, event: MinorityObserved, message: str, **more: Any) -> Finding:
        return self.finding(
            event, message, rare=event.rare, labels=event.labels, ranking=event.ranking, surprise=event.surprise, **more
        )


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Slope of the straight line through some points, and their correlation."""
    x, y = fmean(a for a, _ in points), fmean(b for _, b in points)
    xx = sum((a - x) ** 2 for a, _ in points)
    yy, xy = sum((b - y) ** 2 for _, b in points), sum((a - x) * (b - y) for a, b in points)
    return (xy / xx, xy / math.sqrt(xx * yy)) if xx > 0 and yy > 0 else (0.0, 0.0)


def _seen(event: MinorityObserved) -> str:
    share = event.rare / event.labels
    return (
        f"class {event.common} is the answer to {_all(event)} samples of the {event.looks} batches looked at since step "
        f"{event.first}, {event.rare} of which ({share:.1%}) are of {'the other class' if event.classes == 2 else 'other classes'}"
    )


def _all(event: MinorityObserved) -> str:
    return f"all but {event.answered} of {event.labels}" if event.answered else f"all {event.labels}"


def _weight(event: MinorityObserved) -> str:
    if event.classes == 2 and event.common == 0:
        return (
            f"pos_weight=torch.tensor({(event.labels - event.rare) / event.rare:.0f}.) (or weight=… of cross_entropy)"
        )
    return "weight=… of the loss, one over each class's share"
