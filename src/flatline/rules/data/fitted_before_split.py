"""D10."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule


class FittedBeforeSplit(Rule):
    """Preprocessing is fitted to all rows, and some of them are held out only afterwards.

    Symptom
    -------
    Validation is a little better than the model deserves, and what it promises does not hold on new data. With few rows,
    heavy tails or selected features the difference is large.

    Root cause
    ----------
    The mean, the range or the components that scale the inputs were worked out over all rows, so that the training data
    already know something of the rows that are meant to be unseen.

    Fix
    ---
    Split first. Fit on the training part alone, and apply what was fitted to the other parts.

    Example
    -------
    ::

        x = StandardScaler().fit_transform(x)
        x_train, x_val = train_test_split(x)

    Use instead
    -----------
    ::

        x_train, x_val = train_test_split(x)
        scaler = StandardScaler().fit(x_train)
        x_train, x_val = scaler.transform(x_train), scaler.transform(x_val)

    Healthy look-alikes
    -------------------
    A split before the fit; statistics of the training rows alone; each sample scaled by its own mean; numbers that stand
    for names, which estimate nothing.

    References
    ----------
    - Kapoor and Narayanan, Leakage and the reproducibility crisis in machine-learning-based science, 2023
    - https://scikit-learn.org/stable/common_pitfalls.html#data-leakage
    """

    code = "D10"
    severity = "hint"
    cause = "what scales the inputs was worked out over all rows, those that are held out among them"
    fix = "split first, fit on the training rows alone, and apply it to the others"

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Rows that are divided after something was fitted to them."""
        for fact in event.of("fitted before split"):
            yield self.finding_at(
                event,
                fact.where,
                f"`{fact.name}` is fitted to all rows before `{fact.text}`{beside(fact.other, fact.where)} holds some out",
            )
