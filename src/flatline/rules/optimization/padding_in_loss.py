"""O15."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LossComputed, SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule


class PaddingInLoss(Rule):
    """The loss is averaged over padding.

    Symptom
    -------
    The loss is suspiciously small and gets smaller with more padding; the model predicts padding well and little
    else; the numbers change with the batch size or the maximum length.

    Root cause
    ----------
    A mean over all positions counts those that only fill up the rows. Padded targets also give a real gradient,
    which teaches the model to predict padding.

    Fix
    ---
    ``cross_entropy(…, ignore_index=PAD)``, or divide the masked sum by ``mask.sum()``.

    Example
    -------
    ::

        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        loss = (per_token * mask).mean()

    Use instead
    -----------
    ::

        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        loss = (per_token * mask).sum() / mask.sum()

    Healthy look-alikes
    -------------------
    ``ignore_index``; a class weight of 0 for the padding; sums divided by the mask's sum; rows that end at rest, at a value
    that inputs or targets have elsewhere, too, where no lengths and no mask came with the batch.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    code = "O15"
    severity = "warning"
    share: float = 0.05  # of the positions, by a mask: less is lost in the noise of the batch
    unnamed: float = 0.1  # by what stands there alone: a word that ends with a mark or two has as much
    certain_after: int = 2  # losses that agree

    def __init__(self) -> None:
        self._seen = {"targets": 0, "numbers": 0, "mask": 0}

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """Padding among the scored targets; a masked loss under a plain mean."""
        pad, masked = event.target.padding_share, event.masked_mean
        mean = event.reduction == "mean" or event.averaged
        if event.target.padding_value is not None:
            if mean and self._certain("numbers", pad >= self.unnamed):
                yield self._of_numbers(event)
        elif mean and self._certain("targets", pad >= self.unnamed):
            yield self.finding(
                event,
                f"{pad:.0%} of the scored targets are id {event.target.padding_id}, in the rows' tails where the inputs "
                "are padding, too",
                cause="the mean counts padded positions: it is diluted, and the model learns to predict padding",
                fix=f"mask = targets != {event.target.padding_id}; (loss * mask).sum() / mask.sum()"
                if event.averaged
                else f"ignore_index={event.target.padding_id} in the loss",
                key="targets",
                share=pad,
                pad_id=event.target.padding_id,
            )
        if self._certain("mask", masked >= self.share):
            yield self.finding(
                event,
                f"the mean of the masked loss divides by all positions, though the mask is 0 on {masked:.0%} of them",
                cause="mean() divides by mask.numel(), so the loss and its gradient shrink with the share of padding",
                fix="(loss * mask).sum() / mask.sum().clamp(min=1)",
                key="mask",
                share=masked,
            )

    def _of_numbers(self, event: LossComputed) -> Finding:
        share, value = event.target.padding_share, event.target.padding_value
        return self.finding(
            event,
            f"{share:.0%} of the measured targets are {value:.4g} in the rows' tails, and nothing else: they only fill the rows "
            "up to one length",
            cause="the mean counts padded steps: it is diluted, and the model learns to foretell the padding",
            fix="score the real steps alone: loss_fn(prediction[mask], target[mask]), or (loss * mask).sum() / mask.sum()",
            key="targets",
            share=share,
            value=value,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Targets that are filled up with a number, under a loss that leaves another one out."""
        for fact in event.of("padded target of model"):
            yield self.finding_at(
                event,
                fact.where,
                f"the labels are filled up with {fact.name} by {fact.text}{beside(fact.other, fact.where)}, and the "
                "model's own loss averages over them: it leaves out -100 alone",
                cause="the mean counts padded positions: it is diluted, and the model learns to predict padding",
                fix="fill the labels up with -100",
                pad_id=fact.name,
            )
        for fact in event.of("padded target"):
            yield self.finding_at(
                event,
                fact.where,
                f"the targets are filled up with {fact.name} by {fact.text}{beside(fact.other, fact.where)}, and this "
                "loss averages over them",
                cause="the mean counts padded positions: it is diluted, and the model learns to predict padding",
                fix=f"ignore_index={fact.name} in the loss",
                pad_id=fact.name,
            )

        for fact in event.of("padded labels"):
            yield self.finding_at(
                event,
                fact.where,
                f"the labels are {fact.name}, ids that {fact.text} fills up to one length{beside(fact.other, fact.where)}, "
                "and nothing sets those to -100",
                cause="the model's loss leaves out -100 alone: it averages over the padding, and teaches the model to predict it",
                fix="labels[attention_mask == 0] = -100",
            )

        for fact in event.of("masked mean"):
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.text} divides the loss by all positions, also by those that the mask {fact.name} leaves out",
                cause="mean() divides by mask.numel(), so the loss and its gradient shrink with the share of padding",
                fix="(loss * mask).sum() / mask.sum().clamp(min=1)",
            )

    def _certain(self, what: str, seen: bool) -> bool:
        self._seen[what] += seen
        return seen and self._seen[what] >= self.certain_after
