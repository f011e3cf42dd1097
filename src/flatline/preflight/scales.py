"""How large things are at the start, layer by layer: what goes forward, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatline.events import ActivationsSampled, Event, FirstCrossEntropy, NumbersSampled

Line = tuple[str, str]


class Scales:
    """Of the first forward pass and the first step."""

    def __init__(self) -> None:
        self.activations: ActivationsSampled | None = None
        self.numbers: NumbersSampled | None = None
        self.first: FirstCrossEntropy | None = None

    def heard(self, event: Event) -> None:
        """The first of each kind is the one of the start."""
        if isinstance(event, ActivationsSampled):
            self.activations = self.activations or event
        elif isinstance(event, NumbersSampled):
            self.numbers = self.numbers or event
        elif isinstance(event, FirstCrossEntropy):
            self.first = self.first or event

    def lines(self) -> Iterator[Line]:
        """For people."""
        if self.first is not None:
            yield "scores", f"standard deviation {self.first.spread:.3g} within a row, at the start"
        if self.activations is not None:
            weighted = [layer for layer in self.activations.layers if layer.weighted]
            yield from _ends(
                "forward", "deviation of what a layer makes", [(layer.layer, layer.std) for layer in weighted]
            )
        if self.numbers is not None:
            deep = sorted((layer for layer in self.numbers.layers if layer.matrix), key=lambda layer: layer.depth)
            yield from _ends("backward", "root mean square of the gradient", [(n.name, n.gradient_rms) for n in deep])


def _ends(label: str, what: str, layers: Sequence[tuple[str, float]]) -> Iterator[Line]:
    """The first layer, the last one, and those that stand out."""
    if len(layers) < 2:
        return
    low, high = min(layers, key=lambda pair: pair[1]), max(layers, key=lambda pair: pair[1])
    (first, begin), (last, end) = layers[0], layers[-1]
    words = f"{what}: {begin:.2g} in {first} … {end:.2g} in {last}"
    inner = [pair for pair in (low, high) if pair[0] not in (first, last)]
    told = "; ".join(f"{value:.2g} in {name}" for name, value in inner)
    yield label, words + (f" (between {told})" if len(inner) > 1 else f" ({told} between)" if inner else "")
