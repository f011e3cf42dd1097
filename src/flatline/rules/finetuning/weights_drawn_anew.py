"""F4."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import NumbersSampled, ProjectionDrawn
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule


class WeightsDrawnAnew(Rule):
    """The weights are drawn at random again before every step, so that nothing that was learned is kept.

    Symptom
    -------
    The loss swings around its first value for ever, at any learning rate; gradients, updates and data look as they should.
    Not even one batch can be learned by heart.

    Root cause
    ----------
    What initialises the model runs inside the training loop: ``model.apply(init_weights)`` in a method that prepares each
    step, a model that is built or reset for each batch. Every step improves weights that are thrown away at once.

    Fix
    ---
    Initialise once, before the loop; a method that runs for each step may call ``model.train()`` and no more.

    Example
    -------
    ::

        for inputs, targets in loader:
            model.apply(init_weights)
            ...

    Use instead
    -----------
    ::

        model.apply(init_weights)
        for inputs, targets in loader:
            ...

    Healthy look-alikes
    -------------------
    Weights that are clipped, projected, averaged or put back to earlier ones, which stay close to what the step had left;
    a new model for each fold or each task; one part that is drawn anew on purpose while the rest is kept. Noise of the
    input's own size; random rotations that only sort vectors into buckets.

    References
    ----------
    - https://karpathy.github.io/2019/04/25/recipe/
    """

    code = "F4"
    severity = "error"
    consequences = ("C1", "C2", "C3", "C4", "C5", "O7", "O22", "O28", "G1", "W1", "W2", "W4")
    cause = (
        "something in the loop initialises the model again, and each step improves weights that are thrown away at once"
    )
    fix = (
        "initialise once, before the loop; look for apply(init), reset_parameters() or nn.init in what each step calls"
    )

    unlike: float = 0.3  # median cosine; 32 elements of two independent draws stay within ±0.18
    kept: float = 0.7  # no matrix is that like itself
    in_a_row: int = 4  # pairs of steps; the five first steps make four

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def on_projection_drawn(self, event: ProjectionDrawn) -> Iterator[Finding]:
        """Random features that are others in every pass."""
        yield self.finding(
            event,
            f"{event.module} draws its random features in forward(), `{event.statement}`: they are others in every pass",
            cause="the layers above learn what these features say, and in the next pass the features say something else",
            fix="draw them once, in __init__, and keep them: self.register_buffer('B', torch.randn(…) * sigma)",
            key="features",
            module=event.module,
        )

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """Whether this step found what the one before had left."""
        found = [each.kept for each in event.layers if each.matrix and each.kept is not None]
        if not found:
            return
        key = event.optimizer.key
        anew = max(found) < self.kept and abs(median(found)) < self.unlike
        self._seen[key] = self._seen.get(key, 0) + 1 if anew else 0
        if self._seen[key] >= self.in_a_row:
            yield self.finding(
                event,
                f"the {len(found)} weight matrices of {event.optimizer.name} were others than those that the step before had "
                f"left, {self._seen[key]} times in a row: their cosine is {median(found):.2f}, where a step that goes on from "
                "the last one finds 1",
                where=event.optimizer.where or event.where,
                key=str(key),
                matrices=len(found),
                cosine=round(median(found), 4),
            )
