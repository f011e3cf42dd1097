"""W7."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import UnitsFacts, UnitsFollowed
from flatline.findings import Finding
from flatline.rules import Rule


class UnitsAlike(Rule):
    """All units of a layer are copies of each other, and training cannot tell them apart.

    Symptom
    -------
    The loss falls a little in the first steps and then stands, however wide the layers are; or only the biases of the last
    layer learn, and the model gives the same answer for every input.

    Root cause
    ----------
    The layer was initialised with one number, often 0. Units with the same weights compute the same, get the same gradient
    and take the same step: the layer stays as good as one unit. With zeros in two layers in a row the gradient of both is 0.
    The same goes for the columns of tables that are multiplied: factors of one number stay one factor.

    Fix
    ---
    Random weights: leave torch's default, or ``nn.init.kaiming_normal_`` before ReLU and ``nn.init.xavier_normal_`` before
    tanh, ``nn.init.normal_(table.weight, std=0.1)`` for tables of factors. Biases may start at 0.

    Example
    -------
    ::

        for p in model.parameters():
            nn.init.zeros_(p)

    Use instead
    -----------
    ::

        for layer in linears:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    Healthy look-alikes
    -------------------
    What begins with zeros and parts with the first steps: a head, the second matrix of LoRA, the last layer of a residual
    branch, tables of positions or of gains. Adapters that do not train yet; fixed kernels; normalisation layers; rows of a table
    that are not used.

    References
    ----------
    - Goodfellow, Bengio and Courville, Deep Learning, 2016, section 8.4, https://www.deeplearningbook.org/contents/optimization.html
    """

    code = "W7"
    severity = "error"
    consequences = ("O25", "O7", "O22", "G2", "W4", "C1", "C2", "C3", "C5")
    fix = (
        "draw the weights at random: torch's default, nn.init.kaiming_normal_ before ReLU, nn.init.xavier_normal_ before "
        "tanh; only biases may start at one number"
    )
    table = "draw the table at random, nn.init.normal_(table.weight, std=0.1): columns of one number stay one and the same factor"

    def on_units_followed(self, event: UnitsFollowed) -> Iterator[Finding]:
        """Alike from the first step on, though they train; or nothing that could part them ever gets a gradient."""
        trained = [each for each in event.layers if each.gradient > 0]
        if trained:
            yield self._tell(
                event, trained, "equal weights get equal gradients and take equal steps: nothing parts them"
            )
        elif len(event.layers) > 1 and not event.learning and all(each.zero for each in event.layers):
            yield self._tell(
                event, list(event.layers), "a layer of zeros passes no gradient on, so that no matrix gets any"
            )

    def _tell(self, event: UnitsFollowed, layers: list[UnitsFacts], cause: str) -> Finding:
        first = layers[0]
        also = f"; so have those of {', '.join(each.name for each in layers[1:])}" if len(layers) > 1 else ""
        weights = "weights of nothing but zeros" if first.zero else "the same weights"
        units, fix = ("columns", self.table) if first.columns else ("units", self.fix)
        return self.finding(
            event,
            f"after {event.steps} steps all {first.units} {units} of {first.name} have {weights}, as they had from the start{also}",
            cause=cause,
            fix=fix,
            layer=first.name,
            units=first.units,
            layers=len(layers),
            steps=event.steps,
        )
