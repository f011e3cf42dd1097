"""L13."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import FutureProbed
from flatline.findings import Finding
from flatline.rules import Rule


class FutureSeen(Rule):
    """A model that has to predict the next token is shown it.

    Symptom
    -------
    The loss falls far below what text of this kind allows, sometimes to almost 0. Generated text is noise, as nothing
    stands behind the position that is written.

    Root cause
    ----------
    The scores of position t depend on token t + 1, which is its label: no causal mask, one that is turned or comes after
    the softmax, a convolution padded on both sides, a recurrent layer in both directions, or a norm over positions.

    Fix
    ---
    Close the way at the layer named: ``is_causal=True``, a mask that keeps the lower triangle and is added before the
    softmax, padding on the left only, one direction.

    Example
    -------
    ::

        y = F.scaled_dot_product_attention(q, k, v)

    Use instead
    -----------
    ::

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)

    Healthy look-alikes
    -------------------
    Masked language models, encoders and classifiers see both sides on purpose: it is told only where the labels are the
    inputs one position on. A prefix without labels may be seen as a whole. An autoencoder of sentences shows its decoder
    one vector of all that it shall say: what comes by such a vector is a hint and no more.

    References
    ----------
    - Vaswani et al., Attention Is All You Need, 2017, https://arxiv.org/abs/1706.03762
    """

    code = "L13"
    severity = "error"
    fix = (
        "attend with is_causal=True, or add a mask before the softmax that leaves only positions up to t; "
        "pad convolutions on the left"
    )
    consequences = ("C4",)

    least: float = 1e-3  # standard deviations of the output: above rounding in half precision

    def on_future_probed(self, event: FutureProbed) -> Iterator[Finding]:
        """Earlier positions changed with later ones."""
        spread = event.spread
        if not event.next_token or spread.effect <= self.least:
            return
        yield self.finding(
            event,
            f"with the tokens from position {event.begin} on exchanged, {spread.changed} of {spread.compared} scores "
            f"before it change, by up to {spread.effect:.2g} standard deviations",
            severity="hint" if event.summary else "error",
            cause=f"one vector of the whole sequence reaches every position, through {spread.place}: fine for an "
            "autoencoder, a leak for a language model"
            if event.summary
            else f"{spread.place} is the first to mix later positions into earlier ones, "
            "and the label of a position is the next token",
            layer=spread.layer,
            positions=spread.compared,
            positions_changed=spread.changed,
            effect=spread.effect,
        )
