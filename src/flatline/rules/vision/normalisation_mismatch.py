"""V1."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import ImagesCompared, ImageSpread, RunEnded, ScaledApart, ValidationTold
from flatline.findings import Finding
from flatline.history import fmean
from flatline.rules import Rule

ENOUGH = 2  # validations


class NormalisationMismatch(Rule):
    """Training and validation inputs are scaled in two ways.

    Symptom
    -------
    Training learns well, and validation is bad from its first pass, maybe worse than guessing. It looks like overfitting,
    and no regularisation helps.

    Root cause
    ----------
    The scaler was fitted anew to the validation data, or a normalisation of images stands on one side only, so that one and
    the same measurement is another number there than it was in training.

    Fix
    ---
    Fit on the training rows alone, and apply what was fitted to all others: validation, test, and what is served later.

    Example
    -------
    ::

        x_train = scaler.fit_transform(x_train)
        x_val = scaler.fit_transform(x_val)

    Use instead
    -----------
    ::

        x_train = scaler.fit_transform(x_train)
        x_val = scaler.transform(x_val)

    Healthy look-alikes
    -------------------
    Validation data under the scale of the training data, whose own mean is near 0 and never exactly there. Domains, persons
    and sessions that are each scaled by themselves on purpose: unless validation is worse than guessing this is a hint.

    References
    ----------
    - https://scikit-learn.org/stable/common_pitfalls.html#inconsistent-preprocessing
    """

    code = "V1"
    severity = "warning"
    each_training = True
    cause = "the scaler was fitted anew to the validation data: the same measurement is another number there than in training"
    fix = "fit on the training rows alone, and scale the others by the same numbers: x_val = scaler.transform(x_val)"
    consequences = ("C4",)

    learned: float = 0.7  # of the first loss, under which training must have come
    useless: float = 1.1  # of the first loss, above which every validation loss is; labels of pure noise leave it at 1
    signed: float = -0.05  # lowest number of images that a mean was taken off
    bytes: float = 10.0  # highest number of images that were not divided by 255
    filled: float = 0.02  # share of pixels that are the one lowest number; masks of training fill a tenth and more
    wider: float = 1.6  # deviations of a channel, one over the other: Normalize(0.5, 0.5) doubles them
    shifted: float = 0.1  # between its means; noise that is added leaves them

    def __init__(self) -> None:
        self._seen: ScaledApart | None = None
        self._validation: tuple[float, ...] = ()
        self._images: dict[str, list[ImagesCompared]] = {}  # of each model

    def on_scaled_apart(self, event: ScaledApart) -> None:
        """Both have a mean of 0 and a deviation of 1."""
        self._seen = event

    def on_images_compared(self, event: ImagesCompared) -> Iterator[Finding]:
        """The first images of one validation; those of two validations tell."""
        seen = self._images.setdefault(event.model, [])
        seen.append(event)
        if len(seen) == ENOUGH and all(self._apart(each) for each in seen):
            yield self._tell_ranges(event)

    def on_validation_told(self, event: ValidationTold) -> None:
        """Whether what was learned is of use on these data."""
        self._validation = event.losses

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """A warning where training learned, and validation never left chance; images that were validated on once."""
        once = [seen[0] for seen in self._images.values() if len(seen) < ENOUGH and self._apart(seen[0])]
        yield from (self._tell_ranges(each) for each in once)
        seen, first, last = self._seen, event.first_loss, event.loss
        if seen is None:
            return
        best = min(self._validation, default=None)
        known = best is not None and first is not None and last is not None and first > 0
        harmed = known and best >= self.useless * first and last <= self.learned * first  # type: ignore[operator]
        told = (
            f"; the best validation loss was {best:.3g}, where training went from {first:.3g} to {last:.3g}"
            if harmed
            else ""
        )
        yield self.finding(
            seen,
            f"{seen.train} ({seen.rows:,} rows) and {seen.validation} ({seen.validation_rows:,} rows) each have a mean of exactly "
            f"0 and a deviation of exactly 1 in {seen.groups} columns, which one scale does not make of two sets{told}",
            severity="warning" if harmed else "hint",
            groups=seen.groups,
            rows=seen.validation_rows,
        )

    def _apart(self, event: ImagesCompared) -> bool:
        """One side is in the range of files, the other is not, and every channel has another mean and another deviation."""
        train, shown = _together(event.train), event.validation
        ranges = {self._range(train), self._range(shown)}
        least, most = sorted((train.lowest, shown.lowest))
        filled = most >= self.filled > 2 * least  # a mask, on one side
        if len(ranges) == 1 or "" in ranges or filled or not min(*train.deviations, *shown.deviations) > 0:
            return False
        pairs = zip(train.deviations, shown.deviations, strict=True)
        wider = all(max(a / b, b / a) >= self.wider for a, b in pairs)
        return wider and all(abs(a - b) >= self.shifted for a, b in zip(train.means, shown.means, strict=True))

    def _range(self, images: ImageSpread) -> str:
        if images.low < self.signed:
            return "a mean was taken off"
        return "0 to 255" if images.high > self.bytes else "0 to 1" if images.high <= 1 else ""

    def _tell_ranges(self, event: ImagesCompared) -> Finding:
        train, shown = _together(event.train), event.validation
        return self.finding(
            event,
            f"{event.model} learns from images {_numbers(train)}, and is validated on images {_numbers(shown)}",
            cause="the images are scaled, or their mean is taken off, on one side only",
            fix="give both sides the same ToTensor and the same Normalize(mean, std); only random augmentation is for training "
            "alone",
            key=event.model,
            train_deviation=fmean(train.deviations),
            validation_deviation=fmean(shown.deviations),
        )


def _together(batches: tuple[ImageSpread, ...]) -> ImageSpread:
    """Several as one; the mean of the deviations does for all of them."""
    return ImageSpread(
        means=tuple(fmean(channel) for channel in zip(*(each.means for each in batches), strict=True)),
        deviations=tuple(fmean(channel) for channel in zip(*(each.deviations for each in batches), strict=True)),
        low=min(each.low for each in batches),
        high=max(each.high for each in batches),
        lowest=fmean(each.lowest for each in batches),
    )


def _numbers(images: ImageSpread) -> str:
    mean, deviation = fmean(images.means), fmean(images.deviations)
    return f"from {images.low:.3g} to {images.high:.3g} (mean {mean:.2g}, deviation {deviation:.2g})"
