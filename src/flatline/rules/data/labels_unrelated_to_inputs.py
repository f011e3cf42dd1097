"""D7."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flatline.events import (
    AugmentedApart,
    CollatedApart,
    LoadersApart,
    LossesRead,
    PairingProbed,
    PathsMispaired,
    RowsMispaired,
    RunEnded,
    TrainingBegan,
    ValidationTold,
)
from flatline.findings import Finding
from flatline.history import fmean, median
from flatline.rules import Rule


class LabelsUnrelatedToInputs(Rule):
    """Labels or targets do not belong to the inputs that they are paired with.

    Symptom
    -------
    The loss stays at ln C, or a squared error at the variance of the targets, as if the model guessed. With many epochs
    it falls, by heart, while accuracy on other data stays at chance. A batch can be overfitted, so that the model looks
    sound.

    Root cause
    ----------
    Inputs or labels were shuffled, sorted or filtered without the other, so that each input carries the label of some other
    one: ``x[perm]`` beside ``y``, two loaders that shuffle on their own, a list of files in another order than the list
    of labels. Or an image and its mask are each flipped and turned by a random number of their own.

    Fix
    ---
    Index both with the same permutation, at the same place. Draw a flip once, and apply it to the image and to its mask.
    Look at a few pairs with your own eyes.

    Example
    -------
    ::

        x = x[torch.randperm(len(x))]
        dataset = TensorDataset(x, y)

    Use instead
    -----------
    ::

        order = torch.randperm(len(x))
        dataset = TensorDataset(x[order], y[order])

    Healthy look-alikes
    -------------------
    A model that does not learn for another reason: then simple rules still tell the labels.
    One that begins to learn late. Two views of one image; a mask that is an input, and is flipped on its own. A hard
    problem, a pretext task, a smoke test on random numbers: without a statement that tears the pairs apart this is a hint
    and no more.

    References
    ----------
    - Zhang, Bengio, Hardt, Recht and Vinyals, Understanding deep learning requires rethinking generalization, 2017
    - https://karpathy.github.io/2019/04/25/recipe/
    """

    code = "D7"
    severity = "warning"
    each_training = True
    cause = "inputs or labels were put into another order without the other, so that each input carries some other one's label"
    fix = (
        "index both with the same permutation, or the same mask: "
        "`order = torch.randperm(len(x)); x, y = x[order], y[order]`"
    )
    statements = (  # what they hold, what they do, the fix
        (
            ("[sorted(", "[np.sort(", "[torch.sort("),
            "takes the rows of one side in sorted order, and those of the other as the indices stand",
            "index both sides with the same indices, sorted or not",
        ),
        (
            ("sorted(", ".sort("),
            "sorts one side alone",
            "put both into one order, by the same key; as text 10 comes before 2, so sorted(…, key=int) where keys are numbers",
        ),
        (
            ("for ",),
            "collects the inputs alone from a loader that shuffles, and the labels stay in the order of the data set",
            "collect the labels in the same loop, "
            "`feats.append(net(x)); labels.append(y)`, or make the loader without shuffle=True",
        ),
    )
    consequences = ("C2", "C3", "C4", "C5", "O22")

    deviations: float = 2.0  # above the commonest class, of a binomial (1 in 40 by chance); of a correlation
    halves: float = 1.4  # over 1/√rows, as both halves' correlations go together: measured on targets drawn anew
    rows_for_a_hint: int = 600  # measured: what 16 bits of a digit tell shows in 300
    lowest: float = 0.97  # loss over the labels' entropy; the probes' own noise is 1 or 2 %
    highest: float = 1.3  # a loss above it is broken rather than at chance
    most_common: float = 0.8  # share of one class, above which chance is hard to tell from skill

    confirmed: int = 120  # step up to which a model may make nothing of what it will learn
    window: int = 32  # steps whose mean loss says whether it does
    still: float = 0.9  # of the loss at the time of the probe: under it something was learned
    still_told: float = 0.8  # where a statement tears the pairs apart: eight passes of 1,000 rows by heart made 0.87
    by_heart: float = 0.9  # of what guessing costs: a training loss under it, which no validation loss follows
    at_first: float = 1.5  # of the same, the first validation loss; a larger one is another quantity
    worse: float = 1.05  # and at least the last ones: what is learned by heart misleads on other data
    nothing_gained: float = 0.97  # of what guessing costs, under every validation loss
    validations: int = 6  # fewer may be of a model that has not begun to learn
    alike: float = 0.25  # of the model's surprise, how far the loss may be from it to be the same quantity

    def __init__(self) -> None:
        self._rows: RowsMispaired | None = None
        self._again = False  # one of several trainings from one place: some may be controls, their labels shuffled
        self._waiting: list[PairingProbed] = []
        self._probed: PairingProbed | None = None  # the newest one that was at chance
        self._newest: deque[float] = deque(maxlen=self.window)
        self._proven = False  # another pairing was found that is the right one
        self._loaders_apart: LoadersApart | None = None
        self._left_sorted: PairingProbed | None = None
        self._unexplained: PairingProbed | None = None  # no statement tears the pairs apart
        self._validation: tuple[float, ...] = ()
        self._losses: dict[int, list[tuple[int, float]]] = {}

    def on_pairing_probed(self, event: PairingProbed) -> Iterator[Finding]:
        """Model, class means and neighbours, all at chance; in another order, the class means are not."""
        known = event.permutation or event.apart
        if self._again:
            return
        if event.left_sorted and not event.permutation:
            self._left_sorted = event
            return
        if event.order and self._nothing_tells(event):
            self._proven = True
            yield self._of_order(event)
            return
        if self._at_chance(event):
            self._probed = event
            if known or event.rows >= self.rows_for_a_hint:
                self._waiting.append(event)
        elif event.permutation and self._above(event) and self._nothing_tells(event):
            self._waiting.append(event)

    def on_paths_mispaired(self, event: PathsMispaired) -> Iterator[Finding]:
        """Their names say what belongs together."""
        yield self.finding(
            event,
            f"{event.apart} of {event.total} files are paired with the file of another number, {event.first} with {event.second}",
            cause="both lists were put into the order of text, in which the names sort differently: 10 comes before 2, and what "
            "follows the number counts, too",
            fix="pair by the number: `by_number = lambda path: int(re.search(r'\\d+', path.stem).group())`, and "
            "sorted(…, key=by_number) for both; or make the second name from the first",
            key="paths",
            apart=event.apart,
            total=event.total,
        )

    def on_training_began(self, event: TrainingBegan) -> None:
        """After another one."""
        self._again = event.again

    def on_rows_mispaired(self, event: RowsMispaired) -> None:
        """Two arrays of one length, of which an item takes other rows; the second one may hold no labels."""
        self._rows = event

    def _tell_rows(self, event: RowsMispaired) -> Iterator[Finding]:
        yield self.finding(
            event,
            f"item {event.item:,} begins at row {event.first:,} of `{event.inputs}`, and its label is row {event.second:,} of "
            f"`{event.labels}`: both have {event.rows:,} rows, and `{event.text}` never gets beyond the first {event.share:.0%}",
            cause="windows go on by their stride, and labels by one row for each item: the number of the item was taken for "
            "the number of the row",
            fix="index both from one start: `start = i * self.stride; x, y = self.x[start : start + n], self.y[start + n // 2]`",
            key="rows",
            item=event.item,
            first=event.first,
            second=event.second,
        )

    def on_collated_apart(self, event: CollatedApart) -> Iterator[Finding]:
        """The items of some batches, beside what was made of them."""
        yield self.finding(
            event,
            f"{event.wrong} of {event.rows} rows of {event.batches} batches carry the label of another item: "
            f"{event.where.function if event.where is not None else 'the collate function'}() puts the sequences into another "
            "order, and the labels stay in theirs",
            cause="what sorts the sequences, by length as pack_padded_sequence wants it, sorts them without their labels",
            fix="sort the items before they are taken apart: `batch.sort(key=lambda item: len(item[0]), reverse=True)`; or leave "
            "their order alone: pack_padded_sequence(…, enforce_sorted=False)",
            key="collated",
            wrong=event.wrong,
            rows=event.rows,
        )

    def on_loaders_apart(self, event: LoadersApart) -> None:
        """Images of one loader, masks of another: they may belong together all the same."""
        self._loaders_apart = event

    def _of_loaders(self, event: LoadersApart, loss: float) -> Finding:
        one, other = (", ".join(map(str, samples)) for samples in (event.inputs, event.targets))
        return self.finding(
            event,
            f"inputs and targets come from two loaders, which ask for other samples at all {event.looks} steps looked at: at this "
            f"one for {one} … and {other} …; the loss is {loss:.3g}, and the best constant answer costs {event.guessing:.3g}",
            cause="each loader shuffles on its own, so that each input is compared with some other one's target",
            fix="one data set that gives both, TensorDataset(images, masks), and one loader",
            key="loaders",
        )

    def on_augmented_apart(self, event: AugmentedApart) -> Iterator[Finding]:
        """The same items, seen in two passes."""
        turned = (
            f"{event.apart} of {event.compared} items that came again were turned in one way, and their masks in another: "
            f"the image of item {event.item} was {event.image}, its mask was {event.mask}"
        )
        drawn = f"`{event.statement}` draws twice: {event.apart} items came again with another image and another mask"
        yield self.finding(
            event,
            drawn if event.statement else turned,
            cause="the augmentation draws its random crops, flips and turns for the image and for the mask separately, so that "
            "the mask marks other pixels than those it was made for",
            fix="draw once and apply it to both: torchvision.transforms.v2 on tv_tensors of image and mask, albumentations with "
            "image=…, mask=…, or the same parameters for both by hand",
            key="augmented",
            apart=event.apart,
            compared=event.compared,
        )

    def on_losses_read(self, event: LossesRead) -> Iterator[Finding]:
        """Whether the model goes on to make nothing of them."""
        read = self._losses.setdefault(event.optimizer.key, [])
        self._newest.extend(event.losses)
        if len(read) < 2 * self.confirmed:
            read += zip(event.steps, event.losses, strict=True)
        for probe in [each for each in self._waiting if read and read[0][0] <= each.step]:
            late = [loss for step, loss in read if step > max(read[0][0] + self.confirmed, probe.step)][-self.window :]
            if len(late) < self.window:
                continue
            self._waiting.remove(probe)
            then = median(
                [loss for step, loss in read if step <= probe.step][-self.window :]
            )  # the first may be far above
            begun = min(then, probe.entropy) if probe.classes else then  # it may begin above chance
            if median(late) >= begun * (self.still_told if probe.permutation else self.still):
                yield from self._judge_at(probe, median(late))

    def on_validation_told(self, event: ValidationTold) -> None:
        """Whether what was learned is of use on other data."""
        self._validation = event.losses

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """A run that was over before, or in which the training data were learned by heart."""
        first, last = event.first_loss, event.loss
        learns = first is not None and last is not None and last < self.still_told * first
        if self._rows is not None and not learns:
            yield from self._tell_rows(self._rows)
        level = median(self._newest) if self._newest else math.inf
        apart = self._loaders_apart
        if apart is not None and self.still_told * apart.guessing <= level <= self.highest * apart.guessing:
            yield self._of_loaders(apart, level)
        if self._left_sorted is not None and level >= self.still * self._left_sorted.entropy:
            yield self._of_forward(self._left_sorted)
        for probe in self._waiting:
            yield from self._judge_at(probe, level)
        if (
            self._probed is not None
            and not self._proven
            and self._probed.classes
            and len(self._losses) == 1
            and len(self._validation) >= self.validations
        ):
            yield from self._by_heart(self._probed, next(iter(self._losses.values())))
        if self._unexplained is not None:
            yield self._hint(self._unexplained)

    def _by_heart(self, probe: PairingProbed, read: list[tuple[int, float]]) -> Iterator[Finding]:
        """The loss falls under what guessing costs, and no validation loss ever did."""
        before = [loss for step, loss in read if step <= probe.step][-self.window :]
        told, third = self._validation, len(self._validation) // 3
        late, guessing = fmean(self._newest), probe.entropy
        alike = bool(before) and abs(fmean(before) - probe.surprise) <= self.alike * probe.surprise
        learned = late <= self.by_heart * guessing and told[0] <= self.at_first * guessing
        if not alike or not learned or min(told) < self.nothing_gained * guessing:
            return
        if median(told[-third:]) < self.worse * guessing:
            return
        self._unexplained = None
        yield self._told(
            probe,
            f"{self._seen(probe)}; since then the loss fell to {late:.3g}, and of {len(told)} validation losses none is lower "
            f"than {min(told):.3g}: what is learned is learned by heart",
            cause="each input carries the label of some other one: inputs and labels were shuffled, sorted or filtered apart, or "
            "one of them begins a row later",
            fix="look at some pairs of input and label, the first and the last ones, too; follow both from the file to the batch",
            key="by heart",
        )

    def _judge_at(self, event: PairingProbed, loss: float) -> Iterator[Finding]:
        """With the loss that it came down to, where it was above guessing; nothing is known of one that is still above."""
        come_down = replace(event, surprise=loss) if self._above(event) else event
        if self._at_chance(come_down):
            yield from self._judge(come_down)

    def _judge(self, event: PairingProbed) -> Iterator[Finding]:
        """A warning where a statement tears the pairs apart."""
        if self._proven:
            return
        seen = self._seen(event)
        if event.apart:
            yield self._of_two_loaders(event, seen, *event.apart)
        elif event.permutation:
            does, fix = self._of_statement(event.permutation)
            message = f"{seen}; and `{event.permutation}` {does}"
            yield self._told(event, message, where=event.permuted_where, fix=fix)
        else:
            self._unexplained = event

    def _of_forward(self, event: PairingProbed) -> Finding:
        return self._told(
            event,
            f"the loss is {event.surprise:.3g}, that of guessing {event.entropy:.3g}; and `{event.left_sorted}` in the forward "
            "sorts the samples of the batch, which are never put back: the answers come in another order than the labels",
            where=event.permuted_where,
            cause="each answer is compared with the label of some other sample",
            fix="put the answers back: `answers[order.argsort()]`; or leave the order alone: "
            "pack_padded_sequence(…, enforce_sorted=False)",
            key="forward",
        )

    def _of_order(self, event: PairingProbed) -> Finding:
        then = f"{event.by_order:.0%} are right" if event.classes else f"the fit correlates {event.by_order:.2f}"
        return self._told(
            event,
            f"{self._seen(event)}. Paired again in the order of {event.order}, {then}",
            where=event.permuted_where or event.where,
            cause="inputs or labels were put into this order without the other, so that each input carries some other one's label",
            key="order",
        )

    def _of_statement(self, text: str) -> tuple[str, str]:
        """What it does to one side, and the fix."""
        for held, does, fix in self.statements:
            inside = any(each in text for each in held if each.startswith("["))
            if inside or text.startswith(held) or (held[-1] in text and "(" in held[-1]):
                return does, fix
        return "moves the rows of one side alone", self.fix

    def _hint(self, event: PairingProbed) -> Finding:
        return self._told(
            event,
            self._seen(event),
            severity="hint",
            cause="either the problem is hard, or inputs and labels were shuffled, sorted or filtered apart",
            fix="look at some pairs of input and label; follow both from the file to the batch",
            key="no statement",
        )

    def _seen(self, event: PairingProbed) -> str:
        if not event.classes:
            return self._of_regression(event)
        return (
            f"nothing tells the labels: the loss is {event.surprise:.3g}, that of guessing {event.entropy:.3g}; on "
            f"{event.rows} samples the nearest class mean is right in {event.by_means:.0%}, the nearest neighbours in "
            f"{event.by_neighbours:.0%}, the commonest class in {event.commonest:.0%}"
        )

    def _of_two_loaders(
        self, event: PairingProbed, seen: str, inputs: tuple[Any, ...], labels: tuple[Any, ...]
    ) -> Finding:
        one, other = (", ".join(map(str, indices)) for indices in (inputs, labels))
        return self._told(
            event,
            f"{seen}; inputs and labels come from two loaders, which ask for other samples: {one} … and {other} …",
            cause="each loader shuffles on its own, so that each input carries some other one's label",
            fix="one data set that gives both, TensorDataset(x, y), and one loader",
        )

    @staticmethod
    def _of_regression(event: PairingProbed) -> str:
        return (
            f"nothing tells the targets: what the model leaves has {event.surprise:.3g} times their variance; on {event.rows} "
            f"samples they correlate {event.by_line:.2f} with a linear fit to the others, {event.by_neighbours:.2f} with the "
            "nearest neighbours"
        )

    def _told(self, event: PairingProbed, message: str, **more: Any) -> Finding:
        return self.finding(
            event,
            message,
            rows=event.rows,
            surprise=event.surprise,
            entropy=event.entropy,
            means=event.by_means,
            **more,
        )

    def _at_chance(self, event: PairingProbed) -> bool:
        """The model, class means and neighbours, all of them."""
        guesses = self.lowest * event.entropy <= event.surprise <= self.highest * event.entropy
        return guesses and self._nothing_tells(event)

    def _above(self, event: PairingProbed) -> bool:
        """A head that begins with large scores loses more than by guessing, at first."""
        return event.classes > 0 and event.surprise > self.highest * event.entropy

    def _nothing_tells(self, event: PairingProbed) -> bool:
        """Class means and neighbours are at chance; a linear fit is, of a regression."""
        if not event.classes:
            limit = self.deviations * self.halves / math.sqrt(max(1, event.rows))
            return max(event.by_line, event.by_neighbours) <= limit
        share = event.commonest
        limit = share + self.deviations * math.sqrt(share * (1 - share) / max(1, event.rows))
        return share <= self.most_common and max(event.by_means, event.by_neighbours) <= limit
