"""V6."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import Curve, CurvesUpdated
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule
from flatline.trends import all_named, main, named, short


class MajorityOnly(Rule):
    """Validation shows that one class only is predicted: recall or F1 is exactly 0, or the balanced accuracy is 1 / C.

    Symptom
    -------
    An accuracy of 0.9 or more that looks well, beside an F1 of 0, or a balanced accuracy of exactly 0.5, at every validation.

    Root cause
    ----------
    One class is so frequent that always naming it is the easy solution, and nothing in the loss makes the others count. A
    threshold that no score passes looks the same.

    Fix
    ---
    Weight the classes, ``CrossEntropyLoss(weight=1 / frequency)`` or ``BCEWithLogitsLoss(pos_weight=…)``, or draw them equally
    often with a ``WeightedRandomSampler``. Report recall for each class.

    Example
    -------
    ::

        loss = F.cross_entropy(logits, labels)

    Use instead
    -----------
    ::

        loss = F.cross_entropy(logits, labels, weight=1 / class_frequency)

    Healthy look-alikes
    -------------------
    An F1 that is 0 at first and rises; a balanced accuracy that is near 1 / C, but moves; a low accuracy, which is no collapse
    to the majority.

    References
    ----------
    - Buda et al., A systematic study of the class imbalance problem, 2017, https://arxiv.org/abs/1710.05381
    """

    code = "V6"
    severity = "warning"
    cause = "one class is so frequent that always naming it is the easy solution, or no score passes the threshold"
    fix = "weight the classes or draw them equally often, look at the threshold, and report recall for each class"

    points_needed: int = 8  # validations; in the first ones it is the rule
    frequent: float = 0.6  # an accuracy that comes from a majority
    exact: float = 1e-4  # metrics are often rounded to four digits

    def lacks(self, event: CurvesUpdated) -> str:
        """An accuracy, and a metric that sees rare classes."""
        other = named(event, "balanced") or named(event, "rare")
        few = short("F1, recall or balanced accuracy", other, self.points_needed)
        return few or ("no accuracy was logged" if self._accuracy(event) is None else "")

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The metrics beside the accuracy."""
        accuracy = self._accuracy(event)
        for what in ("rare", "balanced") if accuracy is not None and accuracy >= self.frequent else ():
            found = all_named(event, what)
            if found and all(self._says_one_class(what, curve) for curve in found):
                count, value = len(found[0].values), found[0].values[-1]
                yield self.finding(
                    event,
                    f"{found[0].name} is {value:.4g} at all {count} validations, beside an accuracy of {accuracy:.3g}",
                    value=value,
                    accuracy=accuracy,
                    validations=count,
                )
                return

    def _says_one_class(self, what: str, curve: Curve) -> bool:
        low, high = min(curve.values, default=1.0), max(curve.values, default=1.0)
        if len(curve.values) < self.points_needed or high - low > self.exact:
            return False
        classes = round(1 / high) if high > 0 else 0
        return high == 0 if what == "rare" else 2 <= classes <= 100 and abs(high - 1 / classes) <= self.exact

    def _accuracy(self, event: CurvesUpdated) -> float | None:
        curve = main(event, "val_accuracy") or main(event, "train_accuracy")
        if curve is None or len(curve.values) < self.points_needed:
            return None
        level = median(curve.values)
        return level / 100 if level > 1 else level
