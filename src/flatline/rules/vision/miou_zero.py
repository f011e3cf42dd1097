"""V5."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import all_named, lacking, main, named, short, trend


class MiouZero(Rule):
    """The mean overlap of a segmentation is exactly 0 or nan at every validation although the loss fell.

    Symptom
    -------
    The loss trains, mIoU is 0 or nan. Even a map of random classes would overlap a little.

    Root cause
    ----------
    Loss and metric number the classes differently: a void label such as 255 that only one of them ignores, labels that begin
    at 1, or ``reduce_labels`` on one side only.

    Fix
    ---
    The same ``ignore_index`` in both: ``CrossEntropyLoss(ignore_index=255)`` and a mask ``label != 255`` before the metric.
    Check that ``label.max()`` is under the number of classes after every shift.

    Example
    -------
    ::

        loss = F.cross_entropy(logits, labels - 1, ignore_index=254)
        miou.update(logits.argmax(1), labels)

    Use instead
    -----------
    ::

        labels = labels - 1
        loss = F.cross_entropy(logits, labels, ignore_index=254)
        miou.update(logits.argmax(1)[labels != 254], labels[labels != 254])

    Healthy look-alikes
    -------------------
    A small overlap that grows; nan at the first validation only; the overlap of one rare class, which may well be 0.

    References
    ----------
    - https://github.com/Lightning-AI/torchmetrics/issues/2747
    - https://discuss.huggingface.co/t/understanding-ignore-index-and-reduce-labels/64587
    """

    code = "V5"
    severity = "warning"
    cause = "loss and metric number the classes differently: a void label that one of them counts, or labels from 1 on"
    fix = "the same ignore_index in loss and metric; label.max() must be under the number of classes after every shift"

    points_needed: int = 5  # validations
    fallen: float = 0.7  # of its first value, that the training loss is under

    def lacks(self, event: CurvesUpdated) -> str:
        """An overlap and a loss."""
        overlap = short("mean overlap", named(event, "overlap"), self.points_needed)
        return overlap or lacking(event, train_loss=8)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """Every one of these metrics."""
        metrics, loss = all_named(event, "overlap"), trend(main(event, "train_loss"))
        if loss is None or not metrics or any(set(curve.values) - {0.0} for curve in metrics):
            return
        curve, fell = metrics[0], loss.falls() and 0 < loss.last < self.fallen * loss.start
        count = len(curve.values) + len(curve.not_finite)
        if fell and count >= self.points_needed:
            yield self.finding(
                event,
                f"{curve.name} is {'exactly 0' if curve.values else 'nan'} at all {count} validations, while the training loss "
                f"fell from {loss.start:.4g} to {loss.last:.4g}",
                validations=count,
                first=loss.start,
                last=loss.last,
            )
