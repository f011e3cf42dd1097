"""W2."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LayerNumbers, NumbersSampled
from flatline.findings import Finding
from flatline.history import History, median
from flatline.rules import Rule

TIMES_RATE = "multiply the decay by the learning rate, `p.mul_(1 - lr * weight_decay)`: lr × weight_decay near 1e-5"


class WeightNormCollapse(Rule):
    """Weight decay, a penalty in the loss, or a threshold behind the step shrinks the weights to nothing.

    Symptom
    -------
    The loss moves to that of a constant prediction and stays there. Outputs hardly depend on inputs any more.

    Root cause
    ----------
    At each step decay takes the share ``lr * weight_decay`` of every weight. When that is more than the gradient gives back,
    the weights fall geometrically and the model forgets whatever it learned. A sum of absolute values in the loss pulls at each
    weight with the same force, down to 0. A proximal step (soft threshold) behind the optimizer's takes one amount off each
    weight: where that is the penalty's factor itself, and not the rate times the factor, it is more than a step gives back.

    Fix
    ---
    Lower the penalty's factor, take the rate times it in a proximal step, or lower ``weight_decay``: 0.01 to 0.1 with AdamW,
    1e-4 to 5e-4 with SGD, so that ``lr * weight_decay`` is about 1e-5.

    Example
    -------
    ::

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1.0)

    Use instead
    -----------
    ::

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5e-4)

    Healthy look-alikes
    -------------------
    Weights that shrink while the loss falls; a penalty that leaves some layer its weights; pruning; a layer or an
    expert that is not used any more; the moderate shrinking of weights that were initialised too large; sparse
    autoencoders with a penalty; thresholds that leave some weights, or that rise along a path.

    References
    ----------
    - Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2017, https://arxiv.org/abs/1711.05101
    """

    code = "W2"
    severity = "warning"
    each_training = True
    trial_dependent = True
    consequences = ("O28", "O7", "O22", "G2", "O25", "D9", "C2", "C3", "C5")

    collapsed: float = 0.1  # weight now over weight when first seen, for the typical matrix
    decayed: float = 1.0  # lr * weight_decay summed over the steps: decay alone leaves 1/e
    forgetful: float = 0.05  # taken at every step: a weight is made of the last 20 steps; grokking runs use 1e-3
    halved: float = 0.5  # weight now over weight when first seen, where that is so
    alike: float = 1.2  # largest over smallest share that a step takes of a matrix: gradients differ tenfold and more
    pairs: int = 3  # of steps, between which the weights were multiplied by one and the same number
    same: float = 0.9999  # cosine of what was found with what was left: multiplied, and not changed in another way
    one_size: float = 1.02  # largest over smallest gradient of the matrices: those of data differ manifold
    least_pull: float = 1e-3  # gradient over weight; decay by 1e-4 in the gradient is usual
    as_a_step: float = 0.1  # change of one step over the weights, that are then about as small as a step
    in_a_row: int = 3  # samples
    samples_needed: int = 15  # fewer say nothing about a trend
    one_amount: float = 1.05  # largest over smallest amount that a threshold took, of all matrices and samples
    learned: float = 0.7  # a loss under this share of the first one was worth it

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], float] = {}
        self._losses: dict[int, History] = {}
        self._scales: dict[tuple[int, str], list[float]] = {}
        self._only_penalty: dict[int, int] = {}  # samples in a row
        self._penalised: set[int] = set()  # optimizers for which that was told
        self._amounts: dict[int, dict[str, History]] = {}  # taken off every weight between two steps, of each matrix
        self._pulls: dict[int, list[float]] = {}  # gradient over weight, of samples in a row

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """Every weight matrix that is decayed, beside its beginning."""
        yield from self._by_penalty(event)
        yield from self._by_squares(event)
        hand, own = event.optimizer.by_hand, event.optimizer.own
        between = self._between(event)
        decayed = [each for each in event.layers if hand or each.weight_decay > 0 or each.name in between]
        layers = [each for each in decayed if each.matrix and each.weight_rms > 0]
        losses = self._losses.setdefault(event.optimizer.key, History())
        if event.loss is None:
            return
        losses.add(event.index, event.loss)
        yield from self._by_threshold(event, losses) if not hand else ()
        if not layers:
            return
        shares = [self._share(event, layer) for layer in layers]
        if hand:
            yield from self._by_hand(event, layers, shares, losses)
            return
        outside = median(between.get(each.name, 0.0) for each in layers)
        rate = max(median(map(_taken, layers)), outside)
        collapsed = self.halved if rate >= self.forgetful else self.collapsed
        small = median(shares) <= collapsed and rate * event.index >= self.decayed
        if small and self._for_nothing(event, losses):
            tell = self._tell_between if outside == rate else self._tell
            yield tell(event, layers[0], median(shares), rate, losses)
        elif own and len(shares) > 1 and max(shares) <= self.collapsed and self._for_nothing(event, losses):
            yield self._told(event, shares, layers[0].weight_decay, losses)

    def _by_penalty(self, event: NumbersSampled) -> Iterator[Finding]:
        """All matrices near 0, and one and the same gradient on every weight: that of a penalty on their absolute values."""
        layers, shares, small = self._shrunk(event)
        sizes = [each.gradient_rms for each in layers]
        flicker = min((each.update_ratio or 0.0 for each in layers), default=0.0) >= self.as_a_step
        only = small and flicker and 0 < max(sizes) <= self.one_size * min(sizes)
        key = event.optimizer.key
        self._only_penalty[key] = self._only_penalty.get(key, 0) + 1 if only else 0
        if self._only_penalty[key] >= self.in_a_row:
            self._penalised.add(key)
            yield self.finding(
                event,
                f"{_all_of(layers, event)} shrank to under {max(shares):.1%} of their first size in {event.index} steps, "
                f"and all that is left of their gradients is {median(sizes):.3g} on every weight, the same in each matrix",
                cause=f"the loss adds {median(sizes):.3g} times the sum of the weights' absolute values, which pulls at a weight "
                "with the same force however small it is: more than the data give back",
                fix=f"lower that factor a hundredfold, to {median(sizes) / 100:.1g}, until the loss without it falls; leave biases "
                "and norms out of it",
                where=event.where,
                key="penalty",
                share=max(shares),
                gradient=median(sizes),
            )

    def _shrunk(self, event: NumbersSampled) -> tuple[list[LayerNumbers], list[float], bool]:
        """The matrices, what is left of each, and whether that is next to nothing of all, by no decay of the optimizer's.

        Embeddings begin so large that the same steps take far longer; where there are other matrices, these tell.
        """
        every = [each for each in event.layers if each.matrix and each.weight_rms > 0]
        others = [each for each in every if "Embedding" not in each.kind]
        layers = others if len(others) > 1 else every
        shares = [self._share(event, each) for each in layers]
        decays = max(map(_taken, layers), default=0.0) * event.index >= self.decayed
        return layers, shares, len(layers) > 1 and max(shares) <= self.collapsed and not decays

    def _by_squares(self, event: NumbersSampled) -> Iterator[Finding]:
        """All matrices near 0, and gradients that are one and the same multiple of the weights: those of a sum of squares."""
        layers, shares, small = self._shrunk(event)
        ratios = [each.gradient_rms / each.weight_rms for each in layers]
        only = (
            small
            and not event.optimizer.by_hand
            and event.optimizer.key not in self._penalised
            and self.least_pull <= min(ratios)
            and max(ratios) <= self.alike * min(ratios)
        )
        key = event.optimizer.key
        self._pulls[key] = [*self._pulls.get(key, []), median(ratios)][-self.in_a_row :] if only else []
        pulls = self._pulls[key]
        if len(pulls) == self.in_a_row and max(pulls) <= self.alike * min(pulls):
            factor = median(pulls) / 2
            yield self.finding(
                event,
                f"{_all_of(layers, event)} shrank to under {max(shares):.1%} of their first size in {event.index} steps, "
                f"and all that is left of their gradients is {2 * factor:.3g} times the weights, in each matrix",
                cause=f"the loss adds about {factor:.1g} times the sum of the squared weights: more than the data give back",
                fix=f"lower that factor a thousandfold, to {factor / 1000:.1g}, or leave it to AdamW(weight_decay=0.01)",
                where=event.where,
                key="squares",
                share=max(shares),
                gradient=2 * factor,
            )

    def _between(self, event: NumbersSampled) -> dict[str, float]:
        """The share that something takes of a matrix after every step: what each finds is what the last left, times a number."""
        found: dict[str, float] = {}
        for each in event.layers if not event.optimizer.by_hand else ():
            scales = self._scales.setdefault((event.optimizer.key, each.name), [])
            if each.matrix and each.scaled is not None:
                scales.append(each.scaled if each.kept is not None and each.kept >= self.same else 1.0)
            taken = [1 - scale for scale in scales]
            if len(taken) >= self.pairs and min(taken) > 0 and max(taken) <= self.alike * min(taken):
                found[each.name] = median(taken)
        return found

    def _by_threshold(self, event: NumbersSampled, losses: History) -> Iterator[Finding]:
        """One amount is taken off every weight after each step, and what a step leaves of all of them is less than that."""
        amounts = self._amounts.setdefault(event.optimizer.key, {})
        for each in event.layers:
            self._share(event, each)
            if each.matrix and each.taken is not None:
                amounts.setdefault(each.name, History()).add(event.index, each.taken)
        cut = [each for each in event.layers if each.name in amounts and min(amounts[each.name].values) > 0]
        told = [amount for each in cut for amount in amounts[each.name].values]
        if len(told) < self.pairs or max(told) > self.one_amount * min(told):
            return
        amount, first = median(told), event.first_loss or losses.first
        shares = [self._share(event, each) for each in cut]
        gone = max(shares) <= self.collapsed and max(each.weight_rms for each in cut) < amount
        if gone and event.index >= self.samples_needed and self._never_learned(event, losses, first):
            yield self._tell_threshold(event, cut, amount, first)

    def _tell_threshold(self, event: NumbersSampled, cut: list[LayerNumbers], amount: float, first: float) -> Finding:
        rate = max(each.learning_rate for each in cut)
        matrices = f"all {len(cut)} matrices" if len(cut) > 1 else cut[0].name
        return self.finding(
            event,
            f"something takes {amount:.3g} off every weight between each step of {event.optimizer.name} and the next: of "
            f"{matrices} nothing is left after {event.index} steps, and the loss stands at {event.loss:.4g} "
            f"({first:.4g} at first)",
            cause="a threshold behind the step takes more than a step gives back, which is about the rate times the gradient",
            fix=f"take the rate times that, {rate:g} × {amount:.3g} = {rate * amount:.2g}, in a proximal step; or lower it",
            where=event.optimizer.where or event.where,
            key="threshold",
            taken=amount,
            lr=rate,
        )

    def _never_learned(self, event: NumbersSampled, losses: History, first: float) -> bool:
        return first > 0 and self._for_nothing(event, losses) and losses.location >= self.learned * first

    def _tell_between(
        self, event: NumbersSampled, layer: LayerNumbers, share: float, rate: float, losses: History
    ) -> Finding:
        """By a decay of the user's own, behind the step."""
        return self.finding(
            event,
            f"the weights shrank to {share:.1%} of their first size in {event.index} steps; something multiplies "
            f"{layer.name} and the others by {1 - rate:.4g} between each step of {event.optimizer.name} and the next, and the "
            f"loss stands at {losses.last:.4g} ({event.first_loss or losses.first:.4g} at first)",
            cause="a decay outside of the optimizer takes more than the gradient gives back: the model is pulled to zero",
            fix=TIMES_RATE,
            where=event.optimizer.where or event.where,
            share=share,
            taken=rate,
        )

    def _for_nothing(self, event: NumbersSampled, losses: History) -> bool:
        return losses.count >= self.samples_needed and losses.last >= self.learned * (event.first_loss or losses.first)

    def _by_hand(
        self, event: NumbersSampled, layers: list[LayerNumbers], shares: list[float], losses: History
    ) -> Iterator[Finding]:
        """No setting tells of a decay: all matrices shrink by one and the same share, at every step."""
        taken = [each.update_ratio for each in layers if each.update_ratio is not None]
        alike = len(taken) > 1 and max(taken) <= self.alike * min(taken)
        if not alike or max(shares) > self.collapsed or not self._for_nothing(event, losses):
            return
        yield self.finding(
            event,
            f"the weights shrank to {median(shares):.1%} of their first size in {event.index} steps; a step takes "
            f"{median(taken):.2%} of every one of the {len(taken)} matrices, and the loss stands at {losses.last:.4g} "
            f"({event.first_loss or losses.first:.4g} at first)",
            cause="the decay in the step takes more than the gradient gives back: the model is pulled to zero",
            fix=TIMES_RATE,
            share=median(shares),
        )

    def _told(self, event: NumbersSampled, shares: list[float], decay: float, losses: History) -> Finding:
        """By an optimizer that is not torch's, whose decay takes more than its setting says."""
        return self.finding(
            event,
            f"the weights shrank to {median(shares):.1%} of their first size in {event.index} steps of "
            f"{event.optimizer.name}(weight_decay={decay:g}), all {len(shares)} matrices to under {max(shares):.1%}, and the "
            f"loss stands at {losses.last:.4g} ({event.first_loss or losses.first:.4g} at first)",
            cause="the decay in its step takes more than the gradient gives back: the model is pulled to zero",
            fix=TIMES_RATE,
            where=event.optimizer.where or event.where,
            share=median(shares),
            weight_decay=decay,
        )

    def _share(self, event: NumbersSampled, layer: LayerNumbers) -> float:
        first = self._first.setdefault((event.optimizer.key, layer.name), layer.weight_rms)
        return layer.weight_rms / first if first else 1.0  # what begins at 0 shrinks from nothing

    def _tell(self, event: NumbersSampled, layer: LayerNumbers, share: float, rate: float, losses: History) -> Finding:
        better = 1e-5 / max(layer.learning_rate, 1e-12)
        return self.finding(
            event,
            f"the weights shrank to {share:.1%} of their first size in {event.index} steps; decay takes {rate:.2%} of them at "
            f"every step (lr {layer.learning_rate:g} × weight_decay {layer.weight_decay:g}"
            f"{f', which momentum {layer.momentum:g} adds up' if layer.momentum else ''}), and the loss stands at "
            f"{losses.last:.4g} ({event.first_loss or losses.first:.4g} at first)",
            cause="weight decay takes more than the gradient gives back: the model is pulled to zero",
            fix=f"lower weight_decay from {layer.weight_decay:g} to about {min(better, 0.1):.1g}: lr × weight_decay near 1e-5",
            where=event.optimizer.where or event.where,
            share=share,
            weight_decay=layer.weight_decay,
            lr=layer.learning_rate,
        )


def _taken(layer: LayerNumbers) -> float:
    """The share of the weights that decay takes for each step; momentum adds it up as it does the gradient."""
    lasting = 1 - layer.momentum if 0 <= layer.momentum < 1 else 1.0
    return layer.learning_rate * layer.weight_decay / lasting


def _all_of(layers: list[LayerNumbers], event: NumbersSampled) -> str:
    """How many they are, and that tables are not counted."""
    aside = (
        " besides embeddings" if any("Embedding" in each.kind for each in event.layers if each not in layers) else ""
    )
    return f"all {len(layers)} weight matrices{aside}"
