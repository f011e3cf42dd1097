"""D4."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from flatline.events import SourceParsed, TargetsObserved, TargetsRanked
from flatline.findings import Finding
from flatline.rules import Rule


class TrainingDataNotShuffled(Rule):
    """The training data come sorted by class, or by the number that is to be told.

    Symptom
    -------
    The loss is almost 0 for a while, jumps when the next class begins, and falls again. Accuracy on held-out data stays
    near chance: the model answers with whatever class it saw last. In a regression the loss jumps where a pass begins.

    Root cause
    ----------
    The files or rows of most data sets are stored class by class. Taken in that order, a batch holds one class only, and
    for many steps in a row the best answer is that class whatever the input. Rows sorted by a measured target, as a split
    along the target leaves them, do the same: the model follows the targets up, and answers for the first rows as for the
    last ones.

    Fix
    ---
    ``DataLoader(..., shuffle=True)``; by hand, a new ``torch.randperm(len(y))`` in every epoch; for a stream, a shuffle
    buffer that is larger than one class.

    Example
    -------
    ::

        loader = DataLoader(ImageFolder("train"), batch_size=64)

    Use instead
    -----------
    ::

        loader = DataLoader(ImageFolder("train"), batch_size=64, shuffle=True)

    Healthy look-alikes
    -------------------
    A sequential loader over rows that were mixed once; batches of a few classes each, drawn for a triplet loss; tasks learned
    one after the other, each with its classes mixed; a series in time, whose states come again and again; real and fake
    batches in turn; a stream in one class for good; one step for the added gradients of all classes. In a regression: a
    grid, where an input rises as the targets do, and a model that answers for the first rows as it should.

    References
    ----------
    - Bengio, Practical recommendations for gradient-based training of deep architectures, 2012
    - https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
    """

    code = "D4"
    severity = "warning"
    each_training = True
    cause = "the data are stored class by class and are taken in that order, so that a batch holds one class only"
    fix = (
        "shuffle the training data anew in every epoch: DataLoader(..., shuffle=True), or by hand "
        "`i = torch.randperm(len(y))` and batches of `x[i], y[i]`"
    )
    consequences = ("D6", "C6", "C9", "G8", "W1", "O25", "O28")

    batches_needed: int = 6  # places in the order that were looked at
    share_seen: float = 0.5  # of a pass, where the data set's labels are not known: a state may yet come back
    two_classes_need: int = 10  # two states of a series could be told apart by chance in fewer
    changes_expected: float = 40.0  # changes of label in random order; then e**-30 is the chance to see a tenth of them
    changes_share: float = 0.1  # of the expected changes that may be seen: one class ends in a batch, the next begins

    whole_pass: float = 0.9  # of a pass whose targets were looked at: else their mean is not known
    beginning: float = 0.05  # of a pass, in which the model still answers as at the end of the last one
    passes_needed: int = 2  # that began so: once, the model may still be finding its level
    steps_apart: int = 6  # of two beginnings: fewer steps learn from most of the data at once
    carried: float = 0.4  # deviations beyond the mean, once: who knows nothing at all answers the mean, and no more
    coped: float = 0.25  # deviations on the right side of the mean: the first rows are learned, whatever the order

    def __init__(self) -> None:
        self._ranked: dict[int, list[TargetsRanked]] = {}
        self._told: set[int] = set()
        self._streams: dict[int, dict[int, TargetsObserved]] = {}
        self._spoilt: set[int] = set()

    def on_targets_observed(self, event: TargetsObserved) -> Iterator[Finding]:
        """The labels of the batches, put in the order of a pass."""
        if event.stream in self._spoilt or event.labels.count < 2:
            return
        if not event.labels.order or not event.labels.histogram or _stored_mixed(event):
            self._spoil(event.stream)
            return
        seen = self._streams.setdefault(event.stream, {})
        place = event.position if event.loader else event.step
        known = seen.setdefault(place, event)
        if event.loader and known.labels.order != event.labels.order:
            self._spoil(event.stream)
            return
        places = [seen[at] for at in sorted(seen)]
        if _together(places):
            return
        if self._improbable(places) and (_sliced_from_sorted(event) or self._one_run_each(places)):
            yield self._found(event, places)

    def on_targets_ranked(self, event: TargetsRanked) -> Iterator[Finding]:
        """Rows in the order of a measured target, and a model that answers for the first ones as for the last."""
        seen = self._ranked.setdefault(event.stream, [])
        seen.append(event)
        places = {each.position: each.target for each in seen}
        if (
            event.stream in self._told
            or not event.alone
            or len(places) < self.batches_needed
            or max(places) < self.whole_pass * event.length
        ):
            return
        begun = self._beginnings(seen)
        gaps = [later.step - earlier.step for earlier, later in pairwise(begun)]
        if len(begun) < self.passes_needed or min(gaps) < self.steps_apart:
            return
        middle, deviation = _level(places)
        sign = 1 if event.rising else -1
        over = [sign * (each.answer - middle) / (deviation or math.inf) for each in begun]
        if max(over) >= self.carried and min(over) >= -self.coped:
            self._told.add(event.stream)
            yield self._found_ranked(event, begun, places)

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A loader over classes in their order, of folders or of sorted labels, in a loop that trains."""
        for fact in event.of("unshuffled"):
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.text} serves its {fact.name} in the stored order, which is class by class",
            )

    def _spoil(self, stream: int) -> None:
        """Mixed labels, or another order in another pass: never sorted."""
        self._spoilt.add(stream)
        self._streams.pop(stream, None)

    def _improbable(self, places: list[TargetsObserved]) -> bool:
        """So few changes of label within the batches that their order cannot be random."""
        expected = _expected_changes(places)
        changes = sum(each.labels.runs - 1 for each in places)
        return expected >= self.changes_expected and changes <= self.changes_share * expected

    def _one_run_each(self, places: list[TargetsObserved]) -> bool:
        """Every class comes once in the pass, and never again."""
        order = _compressed(label for each in places for label in each.labels.order)
        classes = len(set(order))
        if classes < 2 or len(order) > classes:
            return False
        if places[0].loader == 0:
            rising = order == sorted(order) or order == sorted(order, reverse=True)
            return classes > 2 and rising and len(places) >= self.batches_needed
        needed, length = self.batches_needed if classes > 2 else self.two_classes_need, places[0].length
        far = length is None or places[-1].position >= self.share_seen * length
        return far and len(places) >= min(needed, length or needed)

    def _beginnings(self, seen: list[TargetsRanked]) -> list[TargetsRanked]:
        """The first batch looked at of every later pass, where it stands near the beginning."""
        first: dict[int, TargetsRanked] = {}
        for each in seen:
            first.setdefault(each.passes, each)
        near = [each for each in first.values() if each.position <= max(1, self.beginning * each.length)]
        return [each for each in near if each.passes > 1]

    def _found_ranked(self, event: TargetsRanked, begun: list[TargetsRanked], places: dict[int, float]) -> Finding:
        moves, first, last = "rise" if event.rising else "fall", places[min(places)], places[max(places)]
        passes = " and ".join(str(each.passes) for each in begun)
        answers = " and ".join(f"{each.answer:.3g}" for each in begun)
        return self.finding(
            event,
            f"the targets {moves} from row to row, from {first:.3g} in the first batches to {last:.3g} in the last ones, and no "
            f"input does; as passes {passes} begin, the targets are near {begun[0].target:.3g}, and the model still answers "
            f"{answers}",
            cause="the rows are stored in the order of the target and are taken in that order: the model follows the targets, and "
            "has lost the first ones when the pass ends",
            key="ranked",
            first=first,
            last=last,
            batches=len(places),
        )

    def _found(self, event: TargetsObserved, places: list[TargetsObserved]) -> Finding:
        expected, changes = _expected_changes(places), sum(each.labels.runs - 1 for each in places)
        pure = sum(each.labels.runs == 1 for each in places)
        count = sum(each.labels.count for each in places)
        classes = len({label for each in places for label, _ in each.labels.histogram})
        return self.finding(
            event,
            f"the labels come class by class: {pure} of {len(places)} batches hold one class only, and the label changes "
            f"{changes} times in {count} samples of {classes} classes, where random order changes it {expected:.0f} times",
            changes=changes,
            expected=round(expected, 1),
            batches=len(places),
            classes=classes,
        )


def _expected_changes(places: list[TargetsObserved]) -> float:
    """Neighbours with different labels, if all these labels were dealt out anew."""
    total: Counter[int] = Counter()
    for each in places:
        total.update(dict(each.labels.histogram))
    count = sum(total.values())
    same = math.fsum((n / count) ** 2 for n in total.values())
    return sum(each.labels.count - 1 for each in places) * (1 - same)


def _compressed(labels: Iterator[int]) -> list[int]:
    """Stretches of equal labels, each once."""
    found = list(labels)
    return found[:1] + [later for earlier, later in pairwise(found) if later != earlier]


def _together(places: list[TargetsObserved]) -> bool:
    """One step learns from batches of all classes that were seen so far: their gradients add up."""
    classes: dict[int, set[int]] = {}
    count = Counter(each.step for each in places)
    for each in places:
        classes.setdefault(each.step, set()).update(label for label, _ in each.labels.histogram)
    every = set().union(*classes.values())
    return len(every) > 1 and any(count[step] > 1 and found == every for step, found in classes.items())


def _stored_mixed(event: TargetsObserved) -> bool:
    """Some class comes back later, as the data set's own labels show."""
    return event.whole is not None and event.whole.runs > event.whole.distinct


def _sliced_from_sorted(event: TargetsObserved) -> bool:
    """The batch is a slice of the data set's labels, in which every class is one stretch."""
    whole = event.whole
    return whole is not None and whole.runs == whole.distinct > 1


def _level(places: dict[int, float]) -> tuple[float, float]:
    """Mean and deviation of a pass's targets, from those of some batches: each stands for the places about it."""
    at = sorted(places)
    total = max(1, at[-1] - at[0])
    between = [(later - earlier, (places[earlier] + places[later]) / 2) for earlier, later in pairwise(at)]
    mean = math.fsum(width * value for width, value in between) / total
    return mean, math.sqrt(math.fsum(width * (value - mean) ** 2 for width, value in between) / total)
