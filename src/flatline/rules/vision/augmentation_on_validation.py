"""V2."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import ItemsRedrawn, SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule


class AugmentationOnValidation(Rule):
    """Random augmentation is applied to the data that the model is validated on.

    Symptom
    -------
    The validation score is lower than it should be, and differs from pass to pass with the same weights. The best
    checkpoint is the one that was lucky.

    Root cause
    ----------
    Crops, flips and colour changes are drawn anew for every item. They are meant to make training harder; on
    validation data they add noise to the score and take it down. Often one data set with one transform was split
    in two, so that both parts have it.

    Fix
    ---
    Give the validation data a transform without chance: resize, centre crop, normalise. After ``random_split``, build the data set
    twice, with both transforms, and take the same indices with ``Subset``.

    Example
    -------
    ::

        data = ImageFolder(root, Compose([RandomResizedCrop(224), ToTensor()]))
        train, valid = random_split(data, [0.8, 0.2])

    Use instead
    -----------
    ::

        train = Subset(ImageFolder(root, augmented), indices[:n])
        valid = Subset(ImageFolder(root, plain), indices[n:])

    Healthy look-alikes
    -------------------
    Test-time augmentation, which averages over several views; the score on the training data; transforms that are replaced
    after the split; ``p=0``; items spoiled on purpose beside the same items as they are, to see what the model bears;
    validation data that are made anew, labels and all.

    References
    ----------
    - https://docs.pytorch.org/vision/stable/transforms.html
    """

    code = "V2"
    severity = "warning"
    cause = "the score then depends on chance, and is lower than on the images as they are"
    fix = "give the validation data a transform without random steps"

    def on_items_redrawn(self, event: ItemsRedrawn) -> Iterator[Finding]:
        """The same validation items, with the same targets, and other inputs in every pass."""
        yield self.finding(
            event,
            f"{event.changed} of the first {event.rows} items of {event.dataset}, which nothing is learned from, change from pass "
            "to pass, and their targets do not",
            passes=event.passes,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A loop that scores without training, over data with a random transform."""
        for fact in event.of("augmented"):
            yield self.finding_at(
                event,
                fact.other,
                f"{fact.name} is scored after {fact.text}{beside(fact.where, fact.other)}, which is drawn anew for every item",
            )
