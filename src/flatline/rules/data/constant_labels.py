"""D2."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import TargetsObserved
from flatline.findings import Finding
from flatline.rules import Rule


class ConstantLabels(Rule):
    """Every label is the same.

    Symptom
    -------
    The loss falls to 0 within a few hundred steps and accuracy is 100 %, on the first try. The model answers one class to
    everything.

    Root cause
    ----------
    The labels were lost on the way: a column of another name, a mask or a comparison that is never true, a folder taken
    for a class, integer division, a default that stands in for what was not found.

    Fix
    ---
    Count the labels where they are made: ``torch.bincount(y)`` or ``collections.Counter(y)``, and follow them back to the file.

    Example
    -------
    ::

        y = (scores > 10).long()        # scores lie between 0 and 1

    Use instead
    -----------
    ::

        y = (scores > 0.5).long()
        assert y.unique().numel() > 1

    Healthy look-alikes
    -------------------
    A discriminator, which learns from real and fake batches in turn; contrastive losses, whose positive always stands in the
    first column; data sorted by class, of which only the first class was seen yet; a residual that is driven to zero, whose
    target no data set serves; inputs that are sought for the answer of a model which is not trained.

    References
    ----------
    - https://karpathy.github.io/2019/04/25/recipe/
    """

    code = "D2"
    severity = "warning"
    each_training = True
    cause = "with one label only, the loss falls to 0 by raising that class's bias: nothing about the inputs is learned"
    fix = "count the labels where they are made, `torch.bincount(y)`, and follow them back to the file"
    consequences = ("D4", "D6")

    batches_needed: int = 8  # close looks; four of them would do for two classes in random order
    labels_needed: int = 100  # of one class, where a share of 5 % of another would show in 99 of 100 cases
    samples_needed: int = 300  # of masks, where a share of 1.5 % that holds another would show in 99 of 100 cases
    share_seen: float = 0.7  # of a pass: a class that is stored last begins before in all but very lopsided data
    steps_needed: int = 100  # without a DataLoader nobody knows where a pass ends
    surprise: float = 0.5  # of its first value: the model has noticed
    jump: float = 5.0  # from one loss to the next: a batch with a rare label costs some fifty times as much

    def __init__(self) -> None:
        self._seen: list[TargetsObserved] = []
        self._spoilt = False

    def on_targets_observed(self, event: TargetsObserved) -> Iterator[Finding]:
        """The labels of all losses over classes."""
        facts = event.labels
        first = self._seen[0].labels.order if self._seen else facts.order
        if (
            self._spoilt
            or event.jump > self.jump
            or facts.runs != 1
            or facts.order != first
            or event.fed_by != "linear"
        ):
            self._spoilt = True
            self._seen.clear()
            return
        self._seen.append(event)
        if self._enough() and self._far_enough(event) and self._falls():
            yield self._found(event)

    def _enough(self) -> bool:
        labels = sum(each.labels.count for each in self._seen)
        needed = self.samples_needed if self._seen[0].dense else self.labels_needed
        return len(self._seen) >= self.batches_needed and labels >= needed

    def _far_enough(self, event: TargetsObserved) -> bool:
        """The data were seen far enough to know that no other class follows."""
        if event.whole is not None:
            return event.whole.distinct == 1
        if not event.loader:
            return event.step >= self.steps_needed
        return event.length is not None and max(each.position for each in self._seen) >= self.share_seen * event.length

    def _falls(self) -> bool:
        first, last = self._seen[0].surprise, self._seen[-1].surprise
        return first is not None and last is not None and last <= self.surprise * first

    def _found(self, event: TargetsObserved) -> Finding:
        label = event.labels.order[0]
        count = sum(each.labels.count for each in self._seen)
        what, classes = ("labels", f", of {event.classes} classes") if event.classes else ("targets", "")
        what = "masks, pixel by pixel," if event.dense else what
        return self.finding(
            event,
            f"all {count} {what} of the {len(self._seen)} batches looked at are {label}{classes}; the loss "
            f"went from {self._seen[0].surprise:.3g} to {event.surprise:.3g}",
            cause="" if event.classes else "with one target only, the output's bias is all there is to learn",
            fix=""
            if event.classes
            else "look at the targets where they are made, `y.std()`, and follow them back to the file",
            label=label,
            labels=count,
            batches=len(self._seen),
            classes=event.classes,
        )
