"""L12."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LossComputed, SourceParsed, TargetFacts, beside
from flatline.findings import Finding, Severity
from flatline.rules import Rule


class AlmostAllLabelsIgnored(Rule):
    """The label mask leaves next to nothing to learn from.

    Symptom
    -------
    The loss falls at once, or jumps about, and the model's answers do not improve.

    Root cause
    ----------
    Labels of the prompt and of padding are set to the ignore index, and the mask reaches too far: it covers the
    answers too, and one token, often the end-of-text, is all that is scored.

    Fix
    ---
    Mask the prompt only, ``labels[:, :prompt_length] = -100``, and decode one row of labels to look at it.

    Example
    -------
    ::

        labels[:, : ids.size(1) - 1] = -100

    Use instead
    -----------
    ::

        labels[:, : prompt.size(1)] = -100

    Healthy look-alikes
    -------------------
    Masked language models score 15 % of the tokens; long prompts with short answers score a few per cent. One label
    per row is right for classification by a single token, so that it is only a hint.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html (ignore_index)
    """

    code = "L12"
    severity = "warning"
    cause = "the mask that hides the prompt covers the answers too, so hardly any label is left to learn from"
    fix = "mask the prompt and the padding only: labels[:, :prompt_length] = -100; decode one row of labels to check"
    consequences = ("C2", "C3", "C5")

    labels_needed: int = 32  # in the batch; fewer say nothing about a share
    steps_needed: int = 3  # losses in a row: one batch may hold short answers
    bare: float = 0.5  # share of rows without a label; rows that are cut behind their prompts
    rows_needed: int = 8  # in the batch
    sparse: float = 0.0625  # share of labels that is scored; masked language models have 0.15

    def __init__(self) -> None:
        self._seen: dict[int, TargetFacts] = {}
        self._bare: list[float] = []  # shares of rows without a label, in losses one after another
        self._lone: list[int] = []  # places of the only label of a row, in losses one after another

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """How many labels are scored, over some steps."""
        target = event.target
        if target.lone is not None and (not self._lone or self._lone[-1] == target.lone):
            self._lone.append(target.lone)
            if len(self._lone) >= self.steps_needed:
                yield self._one_a_row(event)
                return
        else:
            self._lone.clear()
        yield from self._without_labels(event)
        if self._bare:
            return
        if event.kind not in ("cross_entropy", "nll") or not self._sparse(target):
            self._seen.clear()
            return
        self._seen[event.step] = target
        severity = self._verdict(list(self._seen.values()))
        if severity is None:
            return
        scored = target.total - target.ignored
        yield self.finding(
            event,
            f"{target.ignored} of {target.total} labels are ignored, {scored} scored ({scored / target.total:.1%}), "
            f"in all {len(self._seen)} steps looked at",
            severity=severity,
            total=target.total,
            ignored=target.ignored,
            scored=scored,
        )

    def _without_labels(self, event: LossComputed) -> Iterator[Finding]:
        """Most rows of a next-token loss have nothing to tell."""
        target = event.target
        share = (target.bare_rows or 0) / max(1, target.rows)
        self._bare = (
            [*self._bare, share] if share >= self.bare and target.late and target.rows >= self.rows_needed else []
        )
        if len(self._bare) == self.steps_needed:
            yield self.finding(
                event,
                f"{target.bare_rows} of {target.rows} rows have no label at all, {min(self._bare):.0%} or more of the rows in "
                f"{len(self._bare)} losses one after another",
                cause="the rows are cut before their answers begin, as by a max_length that the prompts fill, or the mask covers "
                "the answers, too",
                fix="raise max_length, or cut the prompt on its left and keep the whole answer; decode the labels of one row to "
                "check",
                key="bare",
                bare=target.bare_rows or 0,
                rows=target.rows,
            )

    def _one_a_row(self, event: LossComputed) -> Finding:
        """The labels of all tokens but the first are gone: a loop that aligns them never goes on."""
        target = event.target
        rows = target.total - target.ignored
        return self.finding(
            event,
            f"each of the {rows} rows has one label, that of token {target.lone}, where the rows' own tokens begin; all "
            f"others ({target.ignored / target.total:.1%}) are ignored, in all {len(self._lone)} losses looked at",
            severity="hint",
            cause="either only that token is to be told, or what gives labels to the tokens stops behind the first one of a row",
            fix="decode one row beside its labels; if words have several pieces, compare each word id with the one before it",
            total=target.total,
            ignored=target.ignored,
            scored=rows,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A mask over the whole row, or over all tokens but one."""
        for fact in (*event.of("no label left"), *event.of("one label left")):
            left = "leaves no label" if fact.kind == "no label left" else "leaves labels of one token only"
            yield self.finding_at(event, fact.where, f"{fact.text} {left} in {fact.name}")
        for fact in event.of("only padding left"):
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.text} leaves out every token of {fact.name} but the padding",
                cause="the mask is the wrong way round: what is attended to is ignored, and what is padding is learned",
                fix="turn the mask round: labels[attention_mask == 0] = -100",
            )
        for fact in event.of("measured in characters"):
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.name} counts the characters of a text, and as many tokens are masked{beside(fact.other, fact.where)}: "
                "there are fewer tokens, and few labels are left",
                severity="warning",
                cause="a token stands for several characters, so the mask reaches far into the answer, or over all of it",
                fix="encode the text, and mask as many tokens as that gives",
            )

    def _sparse(self, target: TargetFacts) -> bool:
        scored = target.total - target.ignored
        few = scored <= max(1, self.sparse * target.total)
        return few and target.ignored > 0 and target.total >= self.labels_needed

    def _verdict(self, seen: list[TargetFacts]) -> Severity | None:
        """One label, or one token again and again: a warning. The same few at every step: a hint."""
        scored = {target.total - target.ignored for target in seen}
        tokens = {(target.low, target.high) for target in seen}
        if len(seen) < self.steps_needed:
            return None
        if max(scored) <= 1 or (len(tokens) == 1 and seen[0].low is not None and seen[0].low == seen[0].high):
            return "warning"
        return "hint" if len(scored) == 1 else None
