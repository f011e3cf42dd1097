"""O22."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flatline.events import (
    ActivationsSampled,
    HookFacts,
    InputsObserved,
    LayerNumbers,
    NumbersSampled,
    ParametersAudited,
    RunEnded,
)
from flatline.findings import Finding
from flatline.history import HARDLY, History, fmean, median
from flatline.rules import Rule


class UpdateRatioOff(Rule):
    """One layer moves thousands of times faster or slower than all the others.

    Symptom
    -------
    The loss falls slowly or is jittery, while the learning rate looks right for most of the model.

    Root cause
    ----------
    What matters is a step's size beside the weight's own. A parameter group with a mistaken rate, or plain SGD on layers of very
    different gradients, leaves one layer where it began or throws it about, and the global gradient norm does not show it.
    So does a hook that multiplies one gradient by next to nothing.
    So do weights that are far too large, under a normalisation that hides it.
    So does plain SGD on an embedding, whose rows get little from each batch.
    Under plain SGD so does a constant that multiplies what some layers make with next to nothing: a residual scale of 1e-3.

    Fix
    ---
    Give that layer's parameter group a rate of its own such that its updates are about a thousandth of its weights, or use Adam,
    which scales every element.

    Example
    -------
    ::

        optimizer = torch.optim.Adam([{"params": body, "lr": 1e-9}, {"params": head, "lr": 1e-3}])

    Use instead
    -----------
    ::

        optimizer = torch.optim.Adam([{"params": body, "lr": 1e-4}, {"params": head, "lr": 1e-3}])

    Healthy look-alikes
    -------------------
    Lower rates for a pretrained body by a factor of ten or a hundred; tensors that begin at zero; embeddings of which few rows
    are used; biases and norms; the first steps; a layer that waits for its unfreezing; rates that fall from layer to layer
    by a factor that leaves every layer some speed; hooks that clip, or that leave some rows alone; large weights under a sine or
    with a rate of their own to match; pretrained vectors at a rate that leaves them as they are;
    branches that begin at zero and grow; layers with small gradients while the loss falls to less than half.

    References
    ----------
    - https://cs231n.github.io/neural-networks-3/#ratio
    """

    code = "O22"
    severity = "warning"
    each_training = True
    trial_dependent = True
    consequences = ("C3", "C5")
    thrown_far = (
        "O28",
        "N1",
        "N2",
        "G1",
        "G8",
        "W1",
        "W5",
        "O25",
        "C1",
        "C2",
        "C6",
        "C11",
    )  # besides, by too high a rate of its own

    slow: float = 1e-4  # of the median of the other layers
    slowest: float = 1e-6  # change in one step; nothing arrives in any run of usual length
    slow_rate: float = 1e-3  # of the highest rate; layer-wise decay (0.65 a layer, BEiT) ends at 1/200 after 12 layers
    fast: float = 100.0  # times the median of the other layers
    fastest: float = 0.1  # change in one step; the upper end of the band that CS231n calls high
    samples_needed: int = 12  # fewer say nothing about a trend
    first_index: int = 20  # step from which on samples count: zero-initialised tensors have grown
    thrown: float = 5.0  # own sizes travelled in the first steps, by a group whose rate is ``fast`` times the others'
    early: int = 5  # steps that count as the first
    farther: float = 5.0  # times the others' step in numbers; Adam's steps are all of one size
    epsilon: float = 1e-8  # gradients above Adam's usual eps take a step of the size of the rate
    uneven: float = 100.0  # times what was read from a few elements is what the whole gradient makes of them at most
    left_slowest: float = 1e-5  # change in one step of fresh weights whose rate is under ``slow_rate`` of the highest
    drawn_slowest: float = 2.5e-5  # the same where they still look as they were drawn; O7 calls 3e-5 slow
    left_slow: float = 1e-3  # of the fastest layer's change, the same
    others: int = 2  # layers to compare with
    few: int = 64  # elements; the size of a smaller matrix may be near zero by chance
    learned: float = 0.95  # a loss under this share of the first one falls, whatever one layer does
    smallest: float = 1e-4  # weights under this are still near zero
    inflated: float = 20.0  # rms × √fan_in of fresh weights right under a normalisation; 14 times Kaiming's 1.4
    crawls: float = 1e-2  # of the median of the other layers, for those
    crawl: float = 1e-4  # their change in one step; a tenth of the healthy 1e-3 (CS231n)
    well: float = 0.5  # of the first loss: one that falls so far does without that layer, or it was trained elsewhere
    out_of_reach: float = 1.5e-4  # of the highest rate, for one group alone: its fresh weights stay random (BEiT: 5e-3)
    near: float = 1e-2  # of the highest rate, for the others
    well_at_rest: float = 0.2  # the same where half of the matrices stay at random: the others make do
    set_apart: float = 5e-3  # of the highest rate, for one group alone of weights that are still as they were drawn
    late_index: int = 300  # step from which on those are judged
    whole_path: float = 0.01  # of their size, that weights move in a whole run: they stay what they were drawn as
    oversized: float = 100.0  # times the rms of the typical matrix; StyleGAN's mapping network has exactly that
    loud: float = 10.0  # standard deviation of outputs, usually 1: no factor made random features smaller
    small_table: int = 1 << 17  # elements of an embedding whose rows are all used in a run of that length
    starved: float = 1 / 300  # of the others' pull; 95 % of healthy scripts keep all gradients within that (see G10)
    starved_path: float = 0.05  # of their size: all that gradients of one direction could move them by in the whole run
    fed_path: float = 0.25  # the same, that the others exceed: a stem behind unfed blocks has a third of its size
    weighty: float = 0.4  # share of the elements that they have, of all that moved: not a side branch
    falls: float = 0.015  # of the first loss, in the last quarter of the looks beside the quarter before
    starved_layers: int = 2  # of them, at least; one may be a layer that its task does not need
    sampled: float = 0.25  # of the run; a rate may rise, and gradients grow, after the last sample
    chain_index: int = 100  # step from which on a chain of rates, or one rate for all, is judged: a warm-up is over

    def __init__(self) -> None:
        self._ratios: dict[tuple[int, str], History] = {}
        self._paths: dict[tuple[int, str], float] = {}
        self._pulls: dict[tuple[int, str], History] = {}  # what a gradient comes to, momentum included, over the weight
        self._losses = History()
        self._fresh: set[str] = set()  # weights that begin at random numbers
        self._drawn: set[str] = set()  # those that a group of far too low a rate holds
        self._shares: dict[tuple[int, str], float] = {}  # of the highest rate, as it was first seen
        self._highest: dict[int, float] = {}  # rate of any group so far
        self._typical: dict[int, tuple[NumbersSampled, History]] = {}  # change in one step, of each optimizer
        self._loud: set[str] = set()  # fresh layers whose outputs are as large as such weights make them
        self._newest: dict[int, tuple[list[LayerNumbers], dict[str, float]]] = {}  # layers that moved, and how much
        self._ids_alone = False  # the model is called with nothing else
        self._gains: dict[str, float] = {}  # of fresh layers with far too large weights, right under a normalisation

    def on_activations_sampled(self, event: ActivationsSampled) -> None:
        """Weights whose size a normalisation takes out again: it only divides their updates."""
        under = {each.under for each in event.layers if each.under} if event.untrained else set()
        large = [each for each in event.layers if each.weighted and (each.gain or 0.0) >= self.inflated]
        self._gains.update((each.layer, each.gain or 0.0) for each in large if each.layer in under)
        self._loud |= {each.layer for each in event.layers if event.untrained and each.std >= self.loud}

    def on_inputs_observed(self, event: InputsObserved) -> None:
        """All that a model learns from goes through a table, or it has numbers besides."""
        self._ids_alone = event.ids_alone

    def on_parameters_audited(self, event: ParametersAudited) -> None:
        """Which weights come from no checkpoint, and from no training before."""
        for p in event.parameters:
            known = p.loaded or p.trained_before or not p.trainable
            (self._fresh.discard if known else self._fresh.add)(p.name)
            (self._drawn.add if p.drawn and not known else self._drawn.discard)(p.name)

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """The update ratio of each weight matrix, beside the others'."""
        self._note_rates(event)
        self._note_pulls(event)
        if event.loss is not None:
            self._losses.add(event.index, event.loss)
        if event.index <= self.early:
            yield from self._first_steps(event, [each for each in event.layers if self._moves(each)])
        moving = [each for each in event.layers if self._moves(each)]
        if moving and event.index >= self.first_index and not event.optimizer.by_hand:
            _, past = self._typical.get(event.optimizer.key, (event, History()))
            past.add(event.index, median(each.update_ratio or 0.0 for each in moving))
            self._typical[event.optimizer.key] = event, past
        layers = [each for each in moving if self._comparable(each, event)]
        if event.index < self.first_index or not layers:
            return
        for layer in moving:
            self._ratios.setdefault((event.optimizer.key, layer.name), History(32)).add(
                event.index, layer.update_ratio or 0.0
            )
        typical = {layer.name: self._ratios[event.optimizer.key, layer.name] for layer in layers}
        if min(past.count for past in typical.values()) >= self.samples_needed:
            ratios = {name: past.location for name, past in typical.items()}
            if len(layers) > self.others:
                yield from self._compare(event, layers, ratios)
            self._newest[event.optimizer.key] = moving, ratios
            if event.index >= self.late_index:
                yield from self._as_drawn(event, moving, ratios)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """Fresh weights that plain SGD hardly moved in a whole run, beside others that Adam moves."""
        known = [each for each in self._typical.values() if each[1].count >= self.samples_needed]
        yield from (found for newest, _ in known if event.how == "finished" for found in self._unfed(event, newest))
        late = [each for each, _ in known if event.step >= self.late_index and each.optimizer.key in self._newest]
        yield from (found for each in late for found in self._as_drawn(each, *self._newest[each.optimizer.key]))
        fast = [past.location for newest, past in known if newest.optimizer.adaptive]
        if (
            event.how != "finished"
            or event.loss is None
            or event.first_loss is None
            or not fast
            or max(fast) < self.crawl
        ):
            return
        for newest, past in known if event.loss >= self.well_at_rest * event.first_loss else ():
            moving = [each for each in newest.layers if self._moves(each)]
            if newest.optimizer.adaptive and newest.index >= self.late_index and past.location >= self.crawl:
                yield from self._oversized(newest, moving, past.location)
            if event.loss < self.well * event.first_loss:
                continue
            fresh = bool(moving) and all(each.name in self._fresh and self._used(each) for each in moving)
            path = newest.index * past.location
            if not newest.optimizer.adaptive and fresh and newest.index >= self.late_index and path < self.whole_path:
                yield self._tell_left(newest, moving, path, max(fast))

    def _note_pulls(self, event: NumbersSampled) -> None:
        """How far plain SGD follows each gradient: weight decay moves weights, too, and teaches them nothing."""
        if event.optimizer.adaptive or event.optimizer.by_hand:
            return
        for layer in event.layers:
            if self._moves(layer):
                step = layer.learning_rate * layer.gradient_rms / max(1 - layer.momentum, 0.01)
                past = self._pulls.setdefault((event.optimizer.key, layer.name), History())
                past.add(event.index, step / layer.weight_rms)

    def _unfed(self, event: RunEnded, newest: NumbersSampled) -> Iterator[Finding]:
        """Fresh layers whose gradients could not have moved them in the whole run, beside others that learned."""
        steps = event.step if len(self._typical) == 1 else newest.index  # samples grow rare
        done = event.loss is None or event.first_loss is None or event.loss < self.well * event.first_loss
        known = self._known_pulls(newest)
        tables = {layer: past.location * steps for layer, past in known.items() if "Embedding" in layer.kind}
        pulls = {layer: past.location * steps for layer, past in known.items() if layer not in tables}
        early = steps < self.late_index or newest.index < self.sampled * steps
        if early or len({layer.learning_rate for layer in (*pulls, *tables)}) != 1:
            return
        yield from self._outweighed(event, newest, pulls)
        if done:
            return
        if (event.loss or 0.0) >= HARDLY * (event.first_loss or 0.0) and self._still_falls():
            yield from self._table_as_drawn(newest, tables, pulls, steps)
        fed = [layer for layer, path in pulls.items() if path >= self.fed_path]
        still = event.loss is not None and event.loss >= self.learned * (event.first_loss or 0.0)  # then one is enough
        most = median(pulls[layer] for layer in fed) if len(fed) >= (1 if still else self.others) else 0.0
        least = min((known[layer].first for layer in fed), default=0.0)  # a scale may grow; a head of zeros starves all
        unfed = [
            layer
            for layer, path in pulls.items()
            if path < min(self.starved_path, self.starved * most) and known[layer].first < self.starved * least
        ]
        most_of_them = sum(each.elements for each in unfed) >= self.weighty * sum(each.elements for each in pulls)
        if len(unfed) >= self.starved_layers and most_of_them and all(self._is_fresh(layer) for layer in unfed):
            layer = max(unfed, key=lambda each: each.elements)
            counts = {"unfed": len(unfed), "matrices": len(pulls), "steps": steps}
            yield self._tell_unfed(newest, layer, pulls[layer], most, **counts)

    def _still_falls(self) -> bool:
        """To the end: what random rows are good for is not used up, as where clicks are nearly random."""
        values = list(self._losses.values)
        part = len(values) // 4
        middle, end = (fmean(values[at : at + part]) if part else 0.0 for at in (len(values) // 2, len(values) - part))
        return part > 0 and middle - end >= self.falls * abs(self._losses.first)

    def _table_as_drawn(
        self, event: NumbersSampled, tables: dict[LayerNumbers, float], pulls: dict[LayerNumbers, float], steps: int
    ) -> Iterator[Finding]:
        """An embedding that is most of the model, whose rows plain SGD leaves where they were drawn."""
        fed = [path for path in pulls.values() if path >= self.fed_path]
        elements = sum(each.elements for each in (*tables, *pulls))
        for layer, path in tables.items() if fed and self._ids_alone else ():
            unlearned = path < min(self.starved_path, self.starved * median(fed)) and self._used(layer)
            if unlearned and layer.elements >= self.weighty * elements and self._is_fresh(layer):
                yield self.finding(
                    event,
                    f"all that {layer.name} got in {steps:,} steps, if it had pointed one way, moves it by {path:.1%} of its size, "
                    f"and the other weight matrices by {median(fed):.3g} times theirs: its rows stay what they were drawn as",
                    cause="a row gets a gradient from the few samples of a batch that hold it, and that is divided by all of them; "
                    "the rate of the other layers is far too low for it under plain SGD",
                    fix="use Adam (or SparseAdam), which scales every element; or give the table a group with a far higher lr",
                    where=event.optimizer.where or event.where,
                    key="table",
                    layer=layer.name,
                    path=path,
                    others=median(fed),
                )

    def _known_pulls(self, newest: NumbersSampled) -> dict[LayerNumbers, History]:
        return {
            layer: past
            for layer in newest.layers
            if (past := self._pulls.get((newest.optimizer.key, layer.name))) and past.count >= self.samples_needed
        }

    def _outweighed(
        self, event: RunEnded, newest: NumbersSampled, pulls: dict[LayerNumbers, float]
    ) -> Iterator[Finding]:
        """Fresh weights so large, with a factor that takes it back, that plain SGD leaves most of the network as drawn."""
        fed = [layer for layer, path in pulls.items() if path >= self.fed_path]
        done = event.loss is None or not self._losses.count or event.loss < self.well_at_rest * self._losses.first
        if done or not fed:
            return
        usual = median(each.weight_rms for each in fed)
        large = [each for each, path in pulls.items() if path < self.whole_path and self._is_fresh(each)]
        large = [each for each in large if each.name.rpartition(".")[0] not in self._loud]
        large = [each for each in large if each.weight_rms >= self.oversized * max(usual, 1.0)]
        if 2 * sum(each.elements for each in large) < sum(each.elements for each in pulls):
            return
        layer = max(large, key=lambda each: each.elements)
        found = self.finding(
            newest,
            f"the weights of {len(large)} of {len(pulls)} matrices are stored far too large for one rate: {layer.name} has rms "
            f"{layer.weight_rms:.3g}, {fed[0].name} {fed[0].weight_rms:.2g}; in {event.step:,} steps of {newest.optimizer.name} "
            f"its gradients move it by {pulls[layer]:.1e} of its size: it stays what it was drawn as",
            cause="a factor in the forward pass takes the size of these weights back; it makes their gradients as much smaller, so "
            "that beside its size a weight moves by the square of that factor less",
            fix="draw the weights at the size that they act with, without a factor in the forward pass (lr_mul=1)",
            where=newest.optimizer.where or newest.where,
            key="outweighed",
            layer=layer.name,
            path=pulls[layer],
            weight_rms=layer.weight_rms,
            others=usual,
        )
        yield replace(found, consequences=(*self.consequences, "C2", "G10"))

    def _is_fresh(self, layer: LayerNumbers) -> bool:
        return layer.name in self._fresh and layer.elements >= self.few

    def _tell_unfed(
        self,
        event: NumbersSampled,
        layer: LayerNumbers,
        path: float,
        most: float,
        *,
        unfed: int,
        matrices: int,
        steps: int,
    ) -> Finding:
        found = self.finding(
            event,
            f"{unfed} of {matrices} weight matrices got next to no gradient in {steps:,} steps: all that {layer.name} got, "
            f"if it had pointed one way, moves it by {path:.1%} of its size, and the others typically by {most:.3g} times theirs",
            cause="what these layers make is multiplied by next to nothing on its way to the loss (a residual scale, a gain, the "
            "weight of a term), or little comes back through what lies between; plain SGD has one rate for all",
            fix="begin such a scale at 0.1 to 1, or let it be learned; or use AdamW, which scales every element",
            where=event.optimizer.where or event.where,
            key="unfed",
            layer=layer.name,
            path=path,
            others=most,
            layers=unfed,
        )
        return replace(found, consequences=(*self.consequences, "C2", "G10"))

    def _oversized(self, event: NumbersSampled, moving: list[LayerNumbers], others: float) -> Iterator[Finding]:
        """Fresh weights so large beside the others that the same steps of Adam, at the same rate, leave them as drawn."""
        usual = median(each.weight_rms for each in moving)
        for layer in moving:
            past = self._ratios.get((event.optimizer.key, layer.name))
            if past is None or layer.name not in self._fresh or "Embedding" in layer.kind or layer.elements < self.few:
                continue
            alike = layer.learning_rate == max(each.learning_rate for each in moving)
            path = event.index * past.location
            if alike and layer.weight_rms >= self.oversized * usual and path < self.whole_path:
                yield self._tell_oversized(event, layer, past.location, path, others, usual)
                return

    def _tell_oversized(
        self, event: NumbersSampled, layer: LayerNumbers, mine: float, path: float, others: float, usual: float
    ) -> Finding:
        return self.finding(
            event,
            f"the weights of {layer.name} have rms {layer.weight_rms:.3g}, the other matrices {usual:.2g}: a step of "
            f"{event.optimizer.name} at lr={layer.learning_rate:g} changes them by {mine:.1e} of their size, {path:.2%} in "
            f"{event.index:,} steps, the others by {others:.1e}: they stay what they were drawn as",
            cause="a step of an adaptive optimizer has the size of its rate, however large the weight is",
            fix="draw these weights at the size of the others and scale what the layer makes, or give them a group with a rate "
            f"of about {layer.learning_rate * layer.weight_rms / usual:.2g}",
            where=event.optimizer.where or event.where,
            key="oversized",
            layer=layer.name,
            update_ratio=mine,
            others=others,
            path=path,
        )

    def _used(self, layer: LayerNumbers) -> bool:
        """All of it, as far as can be said: of a large embedding most rows may never be."""
        return self.few <= layer.elements and ("Embedding" not in layer.kind or layer.elements <= self.small_table)

    def _tell_left(self, event: NumbersSampled, moving: list[LayerNumbers], path: float, fast: float) -> Finding:
        layer, name = max(moving, key=lambda each: each.elements), event.optimizer.name
        more = f" and {len(moving) - 1} more" if len(moving) > 1 else ""
        return self.finding(
            event,
            f"{name} at lr={event.lr:g} moves {layer.name}{more} by {path:.2%} of their size in {event.index:,} steps, where the "
            f"other optimizer changes its weights by {fast:.1e} at each: they stay what they were drawn as",
            cause="the rate is a usual one, but the gradient is small: of a mean over the batch, each row of an embedding gets "
            "a few samples' part"
            if "Embedding" in layer.kind
            else "the rate is far too low for gradients of this size",
            fix=f"{'SparseAdam or Adagrad scale' if 'Embedding' in layer.kind else 'Adam scales'} every element; or raise lr to "
            f"about {event.lr * self.whole_path / max(path, 1e-12) * 10:.1g}",
            where=event.optimizer.where or event.where,
            key="left",
            layer=layer.name,
            path=path,
            others=fast,
            lr=event.lr,
        )

    def _note_rates(self, event: NumbersSampled) -> None:
        key, highest = event.optimizer.key, max((each.learning_rate for each in event.layers), default=0.0)
        self._highest[key] = max(highest, self._highest.get(key, 0.0))
        for layer in event.layers if highest else ():
            self._shares.setdefault((key, layer.name), layer.learning_rate / highest)

    def _comparable(self, layer: LayerNumbers, event: NumbersSampled) -> bool:
        """Most rows of an embedding rest at any one step, which says nothing; a rate of its own does."""
        highest = max(each.learning_rate for each in event.layers)
        return "Embedding" not in layer.kind or _rate(layer) < self.slow_rate * highest

    def _stuck(self, event: NumbersSampled, layer: LayerNumbers) -> bool:
        if layer.elements < self.few or event.loss is None or event.first_loss is None:
            return layer.elements >= self.few
        return event.loss >= event.first_loss - (1 - self.learned) * abs(event.first_loss)

    def _moves(self, layer: LayerNumbers) -> bool:
        known = layer.update_ratio is not None and layer.gradient_rms > 0 and layer.learning_rate > 0
        return layer.matrix and known and layer.weight_rms > self.smallest

    def _first_steps(self, event: NumbersSampled, layers: list[LayerNumbers]) -> Iterator[Finding]:
        """A group whose mistaken rate carries its weights far away at once; Adam's later steps are small beside them."""
        for layer in layers:
            key = event.optimizer.key, layer.name
            self._paths[key] = self._paths.get(key, 0.0) + (layer.update_ratio or 0.0)
        paths = {layer.name: self._paths[event.optimizer.key, layer.name] for layer in layers}
        for layer in layers if event.index == self.early and len(layers) > self.others else ():
            others = median(path for name, path in paths.items() if name != layer.name)
            rates = median(each.learning_rate for each in layers if each.name != layer.name)
            wild = paths[layer.name] >= self.thrown and others < 1.0 and layer.learning_rate >= self.fast * rates
            if wild:
                yield self._tell(event, layer, paths[layer.name] / self.early, others / self.early, layers)
                return

    def _compare(
        self, event: NumbersSampled, layers: list[LayerNumbers], ratios: dict[str, float]
    ) -> Iterator[Finding]:
        for layer in sorted(layers, key=lambda each: ratios[each.name]):
            others = median(ratio for name, ratio in ratios.items() if name != layer.name)
            mine = ratios[layer.name]
            if mine == 0 and not self._slower(layer, layers):
                continue  # unused rows, dead units: nothing moves, and the rate is not to blame
            slow = mine < self.slow * others and mine < self.slowest and self._speaks_for_all(event, layer, layers)
            if slow and self._steady(event, layer):
                yield self._tell(event, layer, mine, others, layers)
                return
            gain = self._gains.get(layer.name.removesuffix(".weight"), 0.0)
            small = mine < min(self.crawl, self.crawls * others) and layer.elements >= self.few
            if gain and small and event.index >= self.chain_index and layer.name in self._fresh:
                yield self._tell_inflated(event, layer, mine, others, gain)
                return
            if mine < self.left_slowest and event.index >= self.chain_index and self._left_behind(event, layer, ratios):
                yield self._tell(event, layer, mine, max(ratios.values()), layers, chain=True)
                return
            wild = mine > self.fast * others and mine > self.fastest and self._goes_far(layer, layers)
            own = any(_rate(layer) > _rate(each) for each in layers)
            if wild and self._stuck(event, layer) and (own or event.index >= self.chain_index):
                yield self._tell(event, layer, mine, others, layers)
                return

    def _speaks_for_all(self, event: NumbersSampled, layer: LayerNumbers, layers: list[LayerNumbers]) -> bool:
        """What was read from a few elements fits the gradient of all; else a part of the layer rests, and the others move."""
        if layer.learning_rate != max(each.learning_rate for each in layers):
            return True
        if event.optimizer.adaptive:
            return layer.gradient_rms <= self.epsilon
        return layer.learning_rate * layer.gradient_rms <= self.uneven * _step(layer)

    def _as_drawn(
        self, event: NumbersSampled, moving: list[LayerNumbers], ratios: dict[str, float]
    ) -> Iterator[Finding]:
        """Weights that stay as they were drawn, as their own rate is so low, and not as few of their rows are used."""
        highest = max(each.learning_rate for each in event.layers)
        for layer in moving:
            past, share = self._ratios[event.optimizer.key, layer.name], layer.learning_rate / highest
            if layer.name not in self._drawn or share >= self.set_apart or past.count < self.samples_needed:
                continue
            mine, others = past.location, median(ratio for name, ratio in ratios.items() if name != layer.name)
            to_blame = self.crawls * others * share <= mine < min(self.drawn_slowest, self.crawls * others)
            rates = [each.learning_rate for each in event.layers if each.learning_rate != layer.learning_rate]
            apart = min(rates) > self.near * highest and self._steady(event, layer)
            if to_blame and apart and not self._does_without(event, ratios):
                yield self._tell(event, layer, mine, others, moving)
                return

    def _goes_far(self, layer: LayerNumbers, layers: list[LayerNumbers]) -> bool:
        """By itself, too, and not only beside its own size: a head of zeros is small until a warm-up ends."""
        steps = [_step(each) for each in layers if each.name != layer.name]
        return _step(layer) > self.farther * median(steps)

    def _tell_inflated(
        self, event: NumbersSampled, layer: LayerNumbers, mine: float, others: float, gain: float
    ) -> Finding:
        return self.finding(
            event,
            f"{layer.name} changes by {mine:.1e} of its size at a step, the other weight matrices by {others:.1e}: its rms is "
            f"{layer.weight_rms:.3g} (× √fan_in {gain:.3g}, where Kaiming's is 1.4), right under a normalisation",
            cause="the normalisation takes the size of these weights out again, so that nothing blows up; but a step is as "
            "much smaller beside them, and they stay what they were drawn as",
            fix="keep the layer's own initialisation, or nn.init.kaiming_normal_",
            where=event.optimizer.where or event.where,
            layer=layer.name,
            update_ratio=mine,
            others=others,
            gain=gain,
        )

    def _left_behind(self, event: NumbersSampled, layer: LayerNumbers, ratios: dict[str, float]) -> bool:
        """Random weights at the low end of a chain of rates, where the median of the others is slow, too."""
        key, highest = event.optimizer.key, max(each.learning_rate for each in event.layers)
        share, steady = _rate(layer) / highest, self._steady(event, layer) and 2 * highest >= self._highest[key]
        slow = ratios[layer.name] < self.left_slow * max(ratios.values()) and share < self.slow_rate
        rates = [_rate(each) for each in event.layers if _rate(each) != _rate(layer)]
        alone = share < self.out_of_reach and min(rates) > self.near * highest
        random = layer.name in self._fresh and layer.elements >= self.few
        return random and slow and steady and (alone or not self._does_without(event, ratios))

    def _does_without(self, event: NumbersSampled, ratios: dict[str, float]) -> bool:
        """The loss falls far, whatever stays at random; farther, where half of the matrices do."""
        half = 2 * sum(ratio < self.crawl for ratio in ratios.values()) >= len(ratios)
        enough = self.well_at_rest if half else self.well
        return event.loss is not None and event.first_loss is not None and event.loss < enough * event.first_loss

    def _steady(self, event: NumbersSampled, layer: LayerNumbers) -> bool:
        """Its rate does not rise towards the others': no warm-up of one group, no stage that is to come."""
        highest = max(each.learning_rate for each in event.layers)
        first = self._shares[event.optimizer.key, layer.name]
        return highest > 0 and abs(layer.learning_rate / highest - first) <= 0.01 * first

    def _slower(self, layer: LayerNumbers, layers: list[LayerNumbers]) -> bool:
        return layer.learning_rate < self.slow * max(each.learning_rate for each in layers)

    def _tell(
        self,
        event: NumbersSampled,
        layer: LayerNumbers,
        mine: float,
        others: float,
        layers: list[LayerNumbers],
        chain: bool = False,
    ) -> Finding:
        slower = mine < others
        usual = (max if slower else min)(each.learning_rate for each in layers)
        own = layer.learning_rate != usual
        beside = "the fastest weight matrix" if chain else "the other weight matrices"
        rate = "the highest" if chain else "that of the others"
        found = self.finding(
            event,
            f"{layer.name or 'one layer'} changes by {mine:.1e} of its size at a step, {beside} by {others:.1e}"
            + (f"; its group's lr is {layer.learning_rate:g}, {rate} {usual:g}" if own else ""),
            cause=(
                f"the learning rate of its parameter group is far too {'low' if slower else 'high'}"
                if own
                else f"its gradient is far {'smaller' if slower else 'larger'} than the others', and one rate serves all"
            ),
            fix=(
                f"set the lr of its group to about {layer.learning_rate * 1e-3 / mine if mine else usual:.1g}"
                if own
                else "give it a parameter group with a rate of its own, or use AdamW, which scales every element"
            ),
            where=event.optimizer.where or event.where,
            layer=layer.name,
            update_ratio=mine,
            others=others,
            lr=layer.learning_rate,
        )
        if layer.hook is not None and slower and not own:
            found = replace(found, **_of_hook(layer.name, layer.hook))
        return replace(found, consequences=self.consequences + self.thrown_far) if own and not slower else found


def _rate(layer: LayerNumbers) -> float:
    """With what a hook leaves of the gradient."""
    return layer.learning_rate * (layer.hook.factor if layer.hook is not None else 1.0)


def _of_hook(name: str, hook: HookFacts) -> dict[str, Any]:
    return {
        **({"where": hook.where} if hook.where is not None else {}),
        "cause": f"a hook on its gradient, {hook.name}, multiplies all of it by {hook.factor:.1e}",
        "fix": f"take the hook off {name}, or let it clip what is too large; a rate of its own says the same openly",
    }


def _step(layer: LayerNumbers) -> float:
    """Root mean square of an update."""
    return (layer.update_ratio or 0.0) * layer.weight_rms
