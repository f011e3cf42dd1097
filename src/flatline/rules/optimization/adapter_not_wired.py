"""O21."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from flatline.events import ParameterFacts, ParametersAudited, RandomFrozen
from flatline.findings import Finding
from flatline.rules import Rule


class AdapterNotWired(Rule):
    """Adapters that cannot learn, or a new head that is frozen at random beside them.

    Symptom
    -------
    LoRA trains without an error and the loss hardly moves; a fine-tuned classifier stays near chance although the
    adapters receive gradients.

    Root cause
    ----------
    The update of a low-rank adapter is the product of two matrices and a scale. The gradient of each is multiplied by
    the other: if both start at zero, or the scale is zero, neither ever gets one. And freezing the whole base model
    also freezes a head that the checkpoint does not have: its random weights then stay what they are.

    Fix
    ---
    Start one of the matrices at random and the other at zero, with a scale that is not zero. Unfreeze new layers
    after the base was frozen; with PEFT, name them in ``modules_to_save``.

    Example
    -------
    ::

        self.lora_a = nn.Parameter(torch.zeros(r, in_features))
        self.lora_b = nn.Parameter(torch.zeros(out_features, r))

    Use instead
    -----------
    ::

        self.lora_a = nn.Parameter(torch.randn(r, in_features) / r)
        self.lora_b = nn.Parameter(torch.zeros(out_features, r))

    Healthy look-alikes
    -------------------
    One of the two matrices at zero, as LoRA starts; a gate that opens in the first steps; frozen towers that came
    from another file; linear probing; random targets and fixed projections without a checkpoint.

    References
    ----------
    - https://arxiv.org/abs/2106.09685
    - https://huggingface.co/docs/peft/developer_guides/troubleshooting
    """

    code = "O21"
    severity = "warning"
    consequences = ("O7", "G2", "O22")
    settled: int = 4  # steps after which a gate or a warm-up from zero has let gradients through

    def on_parameters_audited(self, event: ParametersAudited) -> Iterator[Finding]:
        """Pairs of low-rank matrices beside a frozen weight, and no gradient in either."""
        if event.step < self.settled or event.opaque:
            return
        families: dict[str, list[ParameterFacts]] = defaultdict(list)
        for parameter in event.parameters:
            for place in _places(parameter.name):
                families[place].append(parameter)
        found = [pair for family in families.values() if (pair := _pair(family)) is not None]
        pairs = {first.name: (first, second) for first, second in found}
        dead = [pair for pair in pairs.values() if all(p.gradient_zero for p in pair)]
        if not dead:
            return
        first, second = dead[0]
        yield self.finding(
            event,
            f"{len(dead)} of {len(pairs)} adapters got a gradient of exactly zero in both of their matrices at every step "
            f"(first {first.name} and {second.name})",
            severity="error" if len(dead) == len(pairs) else "warning",
            cause="each matrix's gradient is multiplied by the other and by the scale: both are zero, or the scale is",
            fix="start one of the two at random (nn.init.kaiming_uniform_), the other at zero, and the scale above zero",
            where=event.backward_where,
            key="zero",
            dead=len(dead),
            adapters=len(pairs),
        )

    def on_random_frozen(self, event: RandomFrozen) -> Iterator[Finding]:
        """A head that was not in the checkpoint, frozen with the rest."""
        yield self.finding(
            event,
            f"{', '.join(event.layers[:3])} of {event.model} {'is' if len(event.layers) == 1 else 'are'} frozen with fresh "
            f"random weights: the checkpoint filled the other {event.loaded} tensors, and {event.trains} tensors train",
            cause="freezing the base model also froze the layers that the checkpoint does not have",
            fix=f"unfreeze {event.layers[0]} after the freezing loop (PEFT: modules_to_save), and give it to the optimizer",
            key="head",
            layers=len(event.layers),
        )


def _places(name: str) -> Iterator[str]:
    """The modules that a parameter lies in, up to three levels above it: PEFT puts a module around each matrix."""
    place = name
    for _ in range(3):
        place = place.rpartition(".")[0]
        yield place


def _pair(family: list[ParameterFacts]) -> tuple[ParameterFacts, ParameterFacts] | None:
    """Two low-rank matrices whose product has the shape of a frozen weight beside them, with nothing else that trains."""
    trainable = [p for p in family if p.trainable and p.ran and p.reached and p.optimizers]
    frozen = [p for p in family if not p.trainable and len(p.shape) == 2]
    if len(trainable) != 2 or len(frozen) != 1 or any(len(p.shape) != 2 for p in trainable):
        return None
    (one, other), (out, into) = trainable, frozen[0].shape
    ranks = set(one.shape) & set(other.shape)
    for rank in ranks:
        sizes = [p.numel // rank for p in (one, other)]
        if sorted(sizes) == sorted((out, into)) and 0 < rank < min(out, into):
            return one, other
    return None
