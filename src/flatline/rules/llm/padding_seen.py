"""L14."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import PaddedStateTaken, PaddingProbed
from flatline.findings import Finding
from flatline.rules import Rule


class PaddingSeen(Rule):
    """What the model makes of a sequence depends on how much padding follows it.

    Symptom
    -------
    Scores of one and the same text change with the longest text of its batch. Short texts are learned worse than long
    ones, and predictions differ between batch sizes, and between training and serving.

    Root cause
    ----------
    The padding takes part: attention without a padding mask, a mean over all positions, the last state of a recurrent
    layer that has read on through the padding.

    Fix
    ---
    Hand the mask to every layer that mixes positions: ``key_padding_mask`` for attention, a sum over real tokens divided
    by their number for the mean, ``pack_padded_sequence`` or the state at the last real token for recurrent layers.

    Example
    -------
    ::

        score = head(encoder(embed(ids)).mean(1))

    Use instead
    -----------
    ::

        real = (ids != pad).unsqueeze(-1)
        hidden = encoder(embed(ids), src_key_padding_mask=~real.squeeze(-1))
        score = head((hidden * real).sum(1) / real.sum(1))

    Healthy look-alikes
    -------------------
    Padding that only stands behind a causal mask, where no loss is taken. Convolutions pooled by their maximum feel the
    edge between text and padding, and not how much of it there is: half of the padding must matter, too. Blanks that mean
    something: it is padding by a ``padding_idx``, by lengths or a mask, or where every batch is as long as its longest row;
    else it is a hint. While a script trains only states are told that have forgotten: those of sequences that end in padding
    hardly differ any more, whenever they were looked at, and no other state is taken. A gate may learn to hold its state.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pack_padded_sequence.html
    """

    code = "L14"
    severity = "warning"
    consequences = ("C2", "C3", "C5", "D7")
    fix = (
        "mask it: key_padding_mask for attention, a sum over real tokens divided by their number, "
        "pack_padded_sequence for recurrent layers"
    )

    least: float = 0.1  # of the spread between samples (measured: 1e-6 where masked, 0.9 and more where not)

    share: float = 0.05  # of that change with half of the padding (measured: 0 at an edge, 0.09 of a mean over 4 of 40)

    def on_padding_probed(self, event: PaddingProbed) -> Iterator[Finding]:
        """The output without its padding is another, and with half of it, too: that is no matter of the edge."""
        spread = event.spread
        if spread.effect <= self.least or not (event.recurrent or event.half > self.share * spread.effect):
            return
        changed = "with other vectors in" if event.overwritten else "without"
        yield self.finding(
            event,
            f"{changed} the {event.padded} positions of padding at its end, a sequence of {event.length} gets another output, "
            f"by {spread.effect:.2g} times the spread between samples",
            severity="warning" if event.proven else "hint",
            cause=f"{spread.place} is the first to mix padding into what is real"
            + ("" if event.proven else ", if it is padding: nothing but its place says so"),
            layer=spread.layer,
            padded=event.padded,
            effect=spread.effect,
            effect_of_half=event.half,
        )

    def on_padded_state_taken(self, event: PaddedStateTaken) -> Iterator[Finding]:
        """What is taken of a recurrent layer stands behind the padding, and is the same for all."""
        alike = f"between samples it differs {event.left:.1g} times as much as the states at their last real positions"
        unreached = f"to the inputs at real positions comes {event.reached:.1g} of the gradient at the padding"
        yield self.finding(
            event,
            f"the model takes the state of {event.layer} ({event.kind}) at position {event.length}, behind {event.padded} "
            f"positions of padding (the median of {event.rows} rows of {event.of}): "
            + (alike if event.left <= event.reached else unreached),
            cause="the layer reads on through the padding and forgets the sequence: all samples look alike to what follows",
            fix="take the state at the last real position, out[torch.arange(len(out)), lengths - 1], or "
            "pack_padded_sequence(x, lengths, enforce_sorted=False) and h_n",
            key="state",
            layer=event.layer,
            padded=event.padded,
            left=event.left,
        )
