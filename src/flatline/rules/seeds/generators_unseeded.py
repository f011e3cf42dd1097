"""S1."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import SeedsObserved
from flatline.findings import Finding
from flatline.rules import Rule


class GeneratorsUnseeded(Rule):
    """The run draws random numbers that nobody seeded.

    Symptom
    -------
    Two runs of one script end differently, and nobody can tell a change that helped from luck.

    Root cause
    ----------
    ``torch``, ``random`` and ``numpy`` each have a generator of their own, which begins anywhere. Initial weights,
    dropout, the order of the data and augmentation come from them.

    Fix
    ---
    Seed those that are used, before the model and the loaders are built.

    Example
    -------
    ::

        model = Net()

    Use instead
    -----------
    ::

        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        model = Net()

    Healthy look-alikes
    -------------------
    A generator that is never drawn from; runs that are meant to differ, for which this is a hint only; a script that had
    begun before flatline was asked to watch.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/randomness.html
    """

    code = "S1"
    severity = "hint"
    cause = "each of these generators begins anywhere, so that no two runs are the same"

    steps_needed: int = 1  # without a step there was no training to repeat

    def on_seeds_observed(self, event: SeedsObserved) -> Iterator[Finding]:
        """Generators that were drawn from, and were not seeded."""
        if not event.unseeded or event.step < self.steps_needed:
            return
        calls = {"torch": "torch.manual_seed(seed)", "random": "random.seed(seed)", "numpy": "np.random.seed(seed)"}
        some = f", though {' and '.join(event.seeded)} was seeded" if event.seeded else ""
        yield self.finding(
            event,
            f"the run drew from {' and '.join(event.unseeded)} without a seed{some}",
            fix="at the top of the script: " + "; ".join(calls[name] for name in event.unseeded),
            unseeded=", ".join(event.unseeded),
        )
