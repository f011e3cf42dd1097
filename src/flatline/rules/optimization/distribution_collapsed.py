"""O26."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import HistogramFacts, HistogramsTaken
from flatline.findings import Finding
from flatline.rules import Rule


class DistributionCollapsed(Rule):
    """The histogram of a weight matrix becomes a spike with a few numbers far out, or a layer makes one number only.

    Symptom
    -------
    Norms and means look as ever, and the model is worse than its size: most of a layer carries nothing, a handful of its
    weights everything.

    Root cause
    ----------
    A norm cannot tell a wide distribution from a spike with outliers. Some weights ran away, by a rate that is too high for
    their rows, by rare features without a bound, or by decay that takes all the others to zero; or a layer saturated, and
    answers everything alike.

    Fix
    ---
    Look at the pictures in the report, from the step on where the shape changed; clip the gradient, lower the rate of this
    layer or its weight decay, and normalise what feeds it.

    Example
    -------
    ::

        logger.log(weight_norm=model.fc.weight.norm())

    Use instead
    -----------
    ::

        writer.add_histogram("fc.weight", model.fc.weight, step)

    Healthy look-alikes
    -------------------
    What begins as a spike, as matrices of zeros do; sparse training and pruning, which mean it; outputs of ReLU, which are
    zero by half.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/tensorboard.html
    - Rauschmayr et al., Amazon SageMaker Debugger, MLSys 2021, rule TensorVariance
    """

    code = "O26"
    severity = "hint"
    fix = "look at its histograms in the report; clip the gradient, lower the rate or the weight decay of this layer"

    spike: float = 0.9  # of the weights in one bin of the range; a normal distribution has under 0.1 of 32
    spread: float = 0.5  # and at most this at first
    not_before: int = 100  # step: embeddings and heads of zeros have grown
    looks_needed: int = 3  # in a row

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], HistogramFacts] = {}
        self._looks: dict[tuple[str, str], int] = {}

    def on_histograms_taken(self, event: HistogramsTaken) -> Iterator[Finding]:
        """Each tensor beside its first histogram."""
        for now in event.histograms:
            key = event.what, now.name
            first = self._first.setdefault(key, now)
            gone = self._collapsed(event.what, first, now) and event.step >= self.not_before
            self._looks[key] = self._looks.get(key, 0) + 1 if gone else 0
            if self._looks[key] == self.looks_needed:
                yield self._tell(event, first, now)

    def _collapsed(self, what: str, first: HistogramFacts, now: HistogramFacts) -> bool:
        if what == "activations":
            return now.low == now.high and first.low < first.high
        return _peak(now) >= self.spike and now.low < now.high and _peak(first) <= self.spread

    def _tell(self, event: HistogramsTaken, first: HistogramFacts, now: HistogramFacts) -> Finding:
        if event.what == "activations":
            seen = f"what {now.name} makes is {now.low:.3g} everywhere, where it went from {first.low:.3g} to {first.high:.3g}"
            cause = "it saturated, or died: it answers everything alike"
        else:
            seen = (
                f"{_peak(now):.0%} of the weights of {now.name} lie in one {len(now.counts)}th of their range ({now.low:.3g} to "
                f"{now.high:.3g}); at the start {_peak(first):.0%} of {first.low:.3g} to {first.high:.3g}"
            )
            cause = "a few of its weights ran far away from all the others"
        return self.finding(event, seen, cause=cause, key=f"{event.what} {now.name}", low=now.low, high=now.high)


def _peak(facts: HistogramFacts) -> float:
    """The share of the fullest bin."""
    return max(facts.counts, default=0) / max(1, sum(facts.counts))
