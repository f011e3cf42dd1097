"""S4."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import SeedsObserved, SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule


class BenchmarkBesideDeterministic(Rule):
    """cuDNN is told to be deterministic and to try out algorithms at once.

    Symptom
    -------
    Seeded runs on a GPU still differ in the last digits, although ``cudnn.deterministic`` is set.

    Root cause
    ----------
    With ``cudnn.benchmark`` the fastest of several algorithms is chosen by a stopwatch in each run. Each of them may be
    deterministic, and yet they round differently.

    Fix
    ---
    ``torch.backends.cudnn.benchmark = False`` where runs have to be repeated.

    Example
    -------
    ::

        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = True

    Use instead
    -----------
    ::

        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False

    Healthy look-alikes
    -------------------
    ``benchmark`` alone, for speed; a run without a GPU, where neither of them does anything.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/randomness.html#cuda-convolution-benchmarking
    """

    code = "S4"
    severity = "hint"
    cause = "with cudnn.benchmark a stopwatch chooses the algorithm, and another run may choose another one"
    fix = "torch.backends.cudnn.benchmark = False"

    def on_seeds_observed(self, event: SeedsObserved) -> Iterator[Finding]:
        """The flags as they stood at the end of the run."""
        if event.cuda and event.benchmark and (event.deterministic or event.strict):
            asked = "cudnn.deterministic" if event.deterministic else "use_deterministic_algorithms"
            yield self.finding(event, f"{asked} is set, and cudnn.benchmark beside it")

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Both are switched on in one place."""
        for fact in event.of("stopwatch"):
            yield self.finding_at(
                event,
                fact.where,
                f"cudnn.deterministic is set{beside(fact.other, fact.where)}, and cudnn.benchmark beside it",
            )
