"""O21."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations

from flatline.events import (
    AdaptersNotMade,
    AdaptersUnused,
    NumbersSampled,
    ParameterFacts,
    ParametersAudited,
    RandomFrozen,
    RunEnded,
)
from flatline.findings import Finding
from flatline.rules import Rule

LAYERS = ("Linear", "Bilinear", "Conv", "LSTM", "GRU", "RNN", "MultiheadAttention")  # what no prompt is a weight of


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

    Where the parameters that are to train are picked by names, adapters with other names are frozen with the rest.
    Names that are looked for and match no layer leave the model without any adapter, and so does a
    ``forward`` that never calls them, a hook that returns nothing, or a loop that gives a wrapped layer to its own
    variable and not to the model: then only the head learns. A soft prompt that
    the attention mask hides changes nothing, and its gradient is zero.

    Fix
    ---
    Assert that adapters were put in. Let hooks return what they made, and set the mask to one for prompt tokens.
    Start one of the matrices at random and the other at zero, with a scale that is
    not zero. Unfreeze new layers after the base was frozen; with PEFT, name them in ``modules_to_save``.

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
    Adapters of several tasks that take turns; one of the two matrices at zero, as LoRA starts; a gate that opens in
    the first steps; frozen towers that came from another file; linear probing; several adapters of which one is in use;
    adapters that join in a later stage; random targets and fixed projections without a checkpoint; a pool of prompts
    of which one is chosen; adapters that are frozen in one stage, or in one of several runs.

    References
    ----------
    - https://arxiv.org/abs/2106.09685
    - https://huggingface.co/docs/peft/developer_guides/troubleshooting
    """

    code = "O21"
    severity = "warning"
    consequences = ("O7", "G2", "O22", "W7")
    mostly: float = 0.5  # share of the elements that are frozen: the model is left to its adapters
    settled: int = 4  # steps after which a gate or a warm-up from zero has let gradients through
    several: int = 2  # adapters: one pair of matrices may be anything
    long: int = 20  # steps of an optimizer, through which something that never gets a gradient is shut off for good

    def __init__(self) -> None:
        self._unreached: Finding | None = None
        self._frozen: tuple[int, Finding] | None = None  # the step at which that was seen first, what to tell
        self._learned = False  # adapters were in an optimizer, at any time: they had their turn, or will have it
        self._shut: tuple[int, int, Finding] | None = None  # optimizer, its matrices that are shut off, what to tell
        self._zeros: dict[
            int, tuple[int, int]
        ] = {}  # optimizer -> its fewest matrices without gradient, its newest step

    def on_parameters_audited(self, event: ParametersAudited) -> Iterator[Finding]:
        """Pairs of low-rank matrices beside a frozen weight, and no gradient in either."""
        if event.step < self.settled or event.opaque:
            return
        families, astray = _families(event.parameters), _families(event.astray)
        self._unreached = next(self._not_reached(event, [*families, *astray]), None)
        self._learned = self._learned or any(_bottleneck(family) is not None for family in families)
        found = next(self._frozen_too(event, families), None)
        self._frozen = (self._frozen[0] if self._frozen else event.step, found) if found is not None else None
        zeros = list(self._no_gradient(event, families))
        self._shut = next(self._shut_off(event), None) if not zeros else None
        yield from zeros

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """Adapters that no loss had reached when they were last looked at: one stage without them is no defect."""
        if self._unreached is not None:
            yield self._unreached
        if self._frozen is not None and event.how == "finished" and not self._learned:
            began, finding = self._frozen
            yield from [finding] if event.step >= began + self.long else []
        if self._shut is not None:
            key, tensors, finding = self._shut
            fewest, step = self._zeros.get(key, (0, 0))
            if fewest >= tensors and step >= self.long:
                yield finding

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """How many matrices got no gradient, long after the last look at all of them."""
        zeros = sum(layer.matrix and layer.gradient_rms == 0.0 for layer in event.layers)
        fewest, _ = self._zeros.get(event.optimizer.key, (zeros, 0))
        self._zeros[event.optimizer.key] = min(fewest, zeros), event.index
        yield from ()

    def _not_reached(self, event: ParametersAudited, families: list[list[ParameterFacts]]) -> Iterator[Finding]:
        """All adapters of a frozen model wait in an optimizer, and no loss comes by any of them."""
        found = [pair for family in families if (pair := _bottleneck(family)) is not None]
        pairs = {first.name: (first, second) for first, second in found}
        waiting = [pair for pair in pairs.values() if not any(p.reached or p.has_gradient for p in pair)]
        frozen = sum(p.numel for p in event.parameters if not p.trainable)
        trains = any(p.trainable and p.reached and p.optimizers for p in event.parameters)
        if not waiting or len(waiting) < len(pairs) or not trains or frozen < self.mostly * _elements(event):
            return
        first, second = waiting[0]
        ran = "is not part of what their module returns" if first.ran or second.ran else "never runs"
        finding = self.finding(
            event,
            f"no loss reaches any of the {len(waiting)} adapters, which are in the optimizer (first {first.name} and "
            f"{second.name}): their product {ran}; {frozen / _elements(event):.1%} of the weights are frozen",
            cause="the adapters were built and given to the optimizer, but forward() does not use them: only the rest trains",
            fix="call them in forward() and add what they return to the frozen layer's output; a hook has to return the sum",
            where=event.backward_where,
            key="unreached",
            adapters=len(waiting),
        )
        cut = any(p.cut and p.cut_proven for pair in waiting for p in pair)
        yield finding if cut else replace(finding, consequences=(*self.consequences, "O3"))

    def _frozen_too(self, event: ParametersAudited, families: list[list[ParameterFacts]]) -> Iterator[Finding]:
        """All adapters are frozen with the model that they were made for, before the first of their steps."""
        found = [pair for family in families if (pair := _without_effect(family)) is not None]
        pairs = {min(first.name, second.name): (first, second) for first, second in found}
        learns = [p for p in event.parameters if p.trainable and p.reached and p.optimizers]
        frozen = sum(p.numel for p in event.parameters if not p.trainable)
        if len(pairs) < self.several or not learns or frozen < self.mostly * _elements(event):
            return
        first, second = next(iter(pairs.values()))
        zero = first.name if first.zero else second.name
        yield self.finding(
            event,
            f"all {len(pairs)} adapters (first {first.name} and {second.name}) are frozen and in no optimizer, and as "
            f"{zero} is exactly zero they change nothing: only {_list(tuple(p.name for p in learns))} train",
            cause="what freezes the model took its adapters along: the names that are to train are others, or the adapters "
            "were made before all was frozen",
            fix="unfreeze the adapters, and compare the names that are looked for with [n for n, _ in model.named_parameters()]",
            key="frozen",
            adapters=len(pairs),
            frozen=frozen,
        )

    def _shut_off(self, event: ParametersAudited) -> Iterator[tuple[int, int, Finding]]:
        """All that learns in a frozen model, but for one layer, takes part and has never got a gradient that is not zero."""
        learns = [p for p in event.parameters if p.trainable and p.optimizers and p.reached and p.has_gradient]
        shut = [p for p in learns if p.gradient_zero and len(p.shape) > 1 and p.dtype != "float16"]
        with_bias = {_place(p.name) for p in learns if len(p.shape) == 1}
        prompts = [p for p in shut if not p.kind.startswith(LAYERS) and _place(p.name) not in with_bias]
        others = {_place(p.name) for p in learns if not p.gradient_zero}
        frozen = sum(p.numel for p in event.parameters if not p.trainable)
        if not prompts or len(others) > 1 or any(_place(p.name) in others for p in shut):
            return
        if len({key for p in learns for key in p.optimizers}) > 1 or frozen < self.mostly * _elements(event):
            return
        name, more = prompts[0].name, f" and {len(shut) - 1} more tensors" if len(shut) > 1 else ""
        finding = self.finding(
            event,
            f"{name} {prompts[0].shape}{more} got a gradient of exactly zero at every step that was looked at, though the loss "
            f"reaches it; {frozen / _elements(event):.1%} of the weights are frozen",
            cause="the loss does not depend on it: a mask hides what comes from it, or a factor of zero follows",
            fix=f"let {name} through: prompt tokens need a one in the attention mask, a gate a start above zero",
            where=event.backward_where,
            key="shut off",
            tensors=len(shut),
        )
        yield shut[0].optimizers[0], len(shut), finding

    def _no_gradient(self, event: ParametersAudited, families: list[list[ParameterFacts]]) -> Iterator[Finding]:
        found = [pair for family in families if (pair := _pair(family)) is not None]
        pairs = {first.name: (first, second) for first, second in found}
        dead = [pair for pair in pairs.values() if all(p.gradient_zero for p in pair)]
        if not pairs:
            dead = self._dead_bottlenecks(event, families)
            pairs = {first.name: (first, second) for first, second in dead}
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

    def _dead_bottlenecks(
        self, event: ParametersAudited, families: list[list[ParameterFacts]]
    ) -> list[tuple[ParameterFacts, ParameterFacts]]:
        """Adapters that stand in the stream alone, if most is frozen and none of them all gets a gradient anywhere."""
        found = {p[0].name: (p, family) for family in families if (p := _bottleneck(family)) is not None}
        parts = [p for _, family in found.values() for p in family if p.trainable]
        frozen = sum(p.numel for p in event.parameters if not p.trainable)
        trains = sum(p.numel for p in event.parameters if p.trainable and p.optimizers)
        reached = all(p.ran and p.reached and p.gradient_zero for p in parts)
        if len(found) < 2 or not reached or frozen < self.mostly * (frozen + trains):
            return []
        return [pair for pair, _ in found.values()]

    def on_adapters_not_made(self, event: AdaptersNotMade) -> Iterator[Finding]:
        """A loop over the layers that chose none of them, in a model that is frozen for its adapters."""
        total = event.frozen + event.trainable
        if event.frozen < self.mostly * total:
            return
        asked = f"named {_list(event.targets)}" if event.targets else "of another type"
        there = f"; the model has {_list(event.layers)}" if event.layers else ""
        yield self.finding(
            event,
            f"no {event.adapter} was ever made: {event.function or 'the loop'} looks for layers {asked}, and came to none"
            f"{there}. {event.frozen / total:.1%} of {total:,} weights are frozen, and {event.trainable:,} train",
            cause="the condition on the layers is true for none of them, so the frozen model has no adapter that could learn",
            fix="print the names in model.named_modules(), correct those that are looked for, and assert that some were found",
            key="none",
            trainable=event.trainable,
            frozen=event.frozen,
        )

    def on_adapters_unused(self, event: AdaptersUnused) -> Iterator[Finding]:
        """Wrappers that hold a layer of the model, which is called without them from the first step to the last."""
        total = event.frozen + event.trainable
        if event.steps < self.long or event.frozen < self.mostly * total:
            return
        self._unreached = None
        if event.statement:
            yield self._dropped(event)
            return
        where = (
            "are kept outside of what the model calls" if event.kept else "are gone, and only their tensors are left"
        )
        yield self.finding(
            event,
            f"{event.tensors} of the {event.held} tensors in the optimizer got no gradient in {event.steps} steps: those of "
            f"{event.adapters} {event.adapter}, built for {_list(event.layers)}, which the model calls without them",
            severity="error",
            cause=f"the adapters were made and given to the optimizer, but never put in the place of the layers: they {where}",
            fix="setattr(parent, name, adapter) on the module that holds the layer; a new value of a loop's variable, or an "
            "entry of dict(model.named_modules()), changes no model",
            key="unused",
            adapters=event.adapters,
            tensors=event.tensors,
            held=event.held,
        )

    def _dropped(self, event: AdaptersUnused) -> Finding:
        total = event.frozen + event.trainable
        return self.finding(
            event,
            f"{event.adapters} {event.adapter} were built for {_list(event.layers)}, and the model calls those layers without "
            f"them: only {event.held} other tensors are in the optimizer; {event.frozen / total:.1%} of the weights are frozen",
            severity="error",
            cause=f"`{event.statement}` gives the adapter to nothing that is part of the model: a new value of a loop's variable "
            "changes no model, nor does what a function returns to nobody",
            fix="setattr(parent, name, adapter) on the module that holds the layer, and count the adapters in model.modules()",
            key="unused",
            adapters=event.adapters,
            held=event.held,
        )

    def on_random_frozen(self, event: RandomFrozen) -> Iterator[Finding]:
        """A head that was not in the checkpoint, or that was put on a trained body, frozen with the rest."""
        rest = "the checkpoint filled" if event.source == "checkpoint" else "an earlier optimizer trained"
        yield self.finding(
            event,
            f"{', '.join(event.layers[:3])} of {event.model} {'is' if len(event.layers) == 1 else 'are'} frozen with fresh "
            f"random weights: {rest} the other {event.loaded} tensors, and {event.trains} tensors train",
            cause="freezing the base model also froze the layers that are new in it",
            fix=f"unfreeze {event.layers[0]} after the freezing loop (PEFT: modules_to_save), and give it to the optimizer",
            key="head",
            layers=len(event.layers),
        )


def _families(parameters: Iterable[ParameterFacts]) -> list[list[ParameterFacts]]:
    """Parameters that lie in the same module."""
    families: dict[str, list[ParameterFacts]] = defaultdict(list)
    for parameter in parameters:
        for module in _places(parameter.name):
            families[module].append(parameter)
    return list(families.values())


def _place(name: str) -> str:
    """The module of a parameter."""
    return name.rpartition(".")[0]


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _places(name: str) -> Iterator[str]:
    """The modules that a parameter lies in, up to three levels above it: PEFT puts a module around each matrix."""
    module = name
    for _ in range(min(3, name.count(".") + 1)):
        module = _place(module)
        yield module


def _elements(event: ParametersAudited) -> int:
    return max(1, sum(p.numel for p in event.parameters))


def _bottleneck(family: list[ParameterFacts]) -> tuple[ParameterFacts, ParameterFacts] | None:
    """Two matrices that train, into few dimensions and back: beside a frozen weight of their product's shape, or alone."""
    trainable = [p for p in family if p.trainable and p.optimizers and len(p.shape) >= 2]
    frozen = [p for p in family if not p.trainable and len(p.shape) == 2]
    if len(trainable) != 2 or len(frozen) > 1:
        return None
    (one, other) = trainable
    if len(one.shape) > 2 or len(other.shape) > 2:
        return (one, other) if not frozen and _back(one.shape, other.shape) else None
    return (one, other) if _of_low_rank(one, other, frozen) else None


def _of_low_rank(one: ParameterFacts, other: ParameterFacts, beside: list[ParameterFacts]) -> bool:
    """Into few dimensions, and back to those of a weight beside them, or to as many as before."""
    rank = min(one.shape)
    ends = sorted(p.numel // max(1, rank) for p in (one, other))
    if rank not in one.shape or rank not in other.shape or rank >= ends[0]:
        return False
    return ends == sorted(beside[0].shape) if beside else one.shape == other.shape[::-1]


def _without_effect(family: list[ParameterFacts]) -> tuple[ParameterFacts, ParameterFacts] | None:
    """Two frozen matrices of low rank, as they were made, one of which is zero: nothing comes of them, and nothing can."""
    matrices = [p for p in family if len(p.shape) == 2]
    if any(p.trainable for p in family) or len(matrices) > 3:
        return None
    for one, other in combinations(matrices, 2):
        beside = [p for p in matrices if p is not one and p is not other]
        as_made = not any(p.loaded or p.moved or p.has_gradient or p.optimizers for p in (one, other))
        if as_made and one.zero is not other.zero and (one.ran or other.ran) and _of_low_rank(one, other, beside):
            return one, other
    return None


def _back(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Two convolutions into few channels, and back to as many as before."""
    return len(one) == len(other) and one[0] == other[1] and other[0] == one[1] and one[0] != one[1]


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
