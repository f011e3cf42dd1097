"""V3."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import Trend, all_named, lacking, main, named, short, trend

VALIDATION = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|test)(?:$|[^a-z])")


class MapZero(Rule):
    """The detection metric is exactly 0 at every validation although the loss fell by half.

    Symptom
    -------
    The loss of the detector looks well, mAP is 0.000 from the first epoch to the last.

    Root cause
    ----------
    Boxes or labels mean something else to the metric than to the loss: ``cxcywh`` or ``xywh`` where corners are meant, 0 to 1
    where pixels are, labels that begin at 0 against labels that begin at 1, boxes of the resized image against those of the
    original, or a score threshold that nothing passes.

    Fix
    ---
    Convert with ``torchvision.ops.box_convert`` and scale to the size of the original image right before the metric. Print
    two predicted boxes beside two true ones, with their labels and scores.

    Example
    -------
    ::

        metric.update([{"boxes": cxcywh, "scores": s, "labels": l}], targets)

    Use instead
    -----------
    ::

        boxes = torchvision.ops.box_convert(cxcywh, "cxcywh", "xyxy") * scale
        metric.update([{"boxes": boxes, "scores": s, "labels": l}], targets)

    Healthy look-alikes
    -------------------
    The first epochs of a detector from scratch; a metric that is tiny, but not 0; a loss that did not fall, which is another
    defect.

    References
    ----------
    - https://docs.pytorch.org/vision/stable/generated/torchvision.ops.box_convert.html
    - https://github.com/tensorflow/models/issues/10778
    """

    code = "V3"
    severity = "warning"
    cause = "boxes or labels mean something else to the metric than to the loss: format, scale, or the first label"
    fix = "box_convert and rescale right before the metric; print two predicted boxes beside two true ones, with labels"

    points_needed: int = 10  # validations; detectors from scratch need some epochs for a first hit
    fallen: float = 0.5  # of its first value, that the training loss is under

    def lacks(self, event: CurvesUpdated) -> str:
        """A detection metric and a loss."""
        metric = short("detection metric", named(event, "precision"), self.points_needed)
        return metric or ("" if self._parts(event) else lacking(event, train_loss=8))

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """Every one of these metrics."""
        metrics, loss = all_named(event, "precision"), self._fell(event)
        if loss is None or not metrics or any(set(curve.values) != {0.0} for curve in metrics):
            return
        count = len(metrics[0].values)
        if count >= self.points_needed:
            yield self.finding(
                event,
                f"{metrics[0].name} is exactly 0 at all {count} validations, while the training loss fell from "
                f"{loss.start:.4g} to {loss.last:.4g}",
                validations=count,
                first=loss.start,
                last=loss.last,
            )

    def _fell(self, event: CurvesUpdated) -> Trend | None:
        """The training loss, or the part of it that fell most, if all of them fell; None if it did not fall by half."""
        whole = trend(main(event, "train_loss"))
        found = [whole] if whole is not None else self._parts(event)
        least = min(found, key=lambda t: t.last / t.start if t.start > 0 else 1.0, default=None)
        fell = least is not None and 0 < least.last < self.fallen * least.start and all(t.falls() for t in found)
        return least if fell else None

    def _parts(self, event: CurvesUpdated) -> list[Trend]:
        """Losses of boxes, classes and objects, where no sum of them was logged."""
        logged = [c for c in all_named(event, "part") if not VALIDATION.search(c.name.lower())]
        return [t for t in map(trend, logged) if t is not None]
