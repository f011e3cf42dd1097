"""W5."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatline.events import ActivationsSampled, AttentionFacts, AttentionSampled, RunEnded
from flatline.findings import Finding
from flatline.history import fmean
from flatline.rules import Rule


class AttentionEntropyCollapse(Rule):
    """The heads attend to one key each: they have come to it, or all layers were made so, and the loss is no better for it.

    Symptom
    -------
    A transformer's loss stalls or climbs after a good start; it often ends in spikes. Attention maps show one bright
    column or diagonal in every head.

    Root cause
    ----------
    The scores q·k grow with the weights of both projections. When they are spread over tens, softmax puts all weight
    on one key and its derivative vanishes, so nothing can bring the others back. Learning rates that are too high,
    without warm-up or normalisation of q and k, drive the scores there; without 1/√d, or with projections drawn too
    widely, they are there before the first step; so they are under a learned scale that begins at 100 instead of 10.

    Fix
    ---
    Normalise queries and keys (qk-norm: a LayerNorm or RMSNorm over each head), lower the peak learning rate or warm
    up longer, weight decay on the projections, scale by 1/√d.

    Example
    -------
    ::

        scores = q @ k.transpose(-1, -2)                  # without 1/√d, at a high learning rate

    Use instead
    -----------
    ::

        q, k = self.q_norm(q), self.k_norm(k)
        out = F.scaled_dot_product_attention(q, k, v)

    Healthy look-alikes
    -------------------
    A few sharp heads, as induction heads are; sharp attention and a falling loss, as in retrieval and pointing;
    a first layer alone that large embeddings make sharp; a bias on the scores that makes attention local; a low
    temperature over distances or similarities; rows that may attend to few keys: the first rows under a causal mask,
    padded rows, windows.

    References
    ----------
    - Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse, https://arxiv.org/abs/2303.06296
    - Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, https://arxiv.org/abs/2302.05442
    """

    code = "W5"
    severity = "warning"
    each_training = True
    trial_dependent = True
    cause = (
        "the scores q·k are spread so widely that softmax gives all weight to one key, and there its derivative is 0: "
        "the layer cannot learn to look elsewhere"
    )
    fix = (
        "normalise queries and keys before their product (qk-norm), warm the learning rate up longer or lower its peak; "
        "check that scores are scaled by 1/√d"
    )
    fix_born = (
        "scale the scores by 1/√d (F.scaled_dot_product_attention does), keep nn.Linear's own initialisation for the "
        "projections, or normalise queries and keys before their product (qk-norm)"
    )
    fix_cosine = (
        "queries and keys are normalised, so only what their product is multiplied by spreads the scores: begin at 10, as "
        "cosine attention in Swin v2 does, and let it be learned"
    )
    consequences = ("W1", "O7", "C2", "C3", "C5")

    low: float = 0.05  # of ln(keys): at 64 keys, 97 % of the weight on one of them
    open_at: float = 0.3  # of ln(keys), median of the heads when first seen; fresh projections give 0.9 and more
    heads_share: float = 0.9  # of the layer: some sharp heads are normal
    keys_needed: int = 8  # fewer are soon decided
    keys_wide: int = 6  # of a layer that was made so by wide projections and a scale above 1 together
    steps_needed: int = 3  # in a row
    born: float = 0.1  # of ln(keys), mean of the heads of an untrained layer; a ninth of what fresh projections give
    layers_needed: int = 2  # all of them: embeddings times √d make a first layer sharp, and no harm comes of it
    enlarged: float = 1.0  # constant times q·k above which one layer is enough: 1/√d and muP's 1/d are below
    widened: float = 3.0  # rms × √fan_in of projections, from which on one layer is enough; nn.Linear 0.6, Kaiming 1.4
    born_wide: float = 0.2  # of ln(keys), for those
    born_upside_down: float = 0.4  # the same where q·k is multiplied by √d; measured: 0.1 to 0.3, with 1/√d 0.9
    widely: float = 2.5  # deviation of q·k within a row; a bias that is added may mean to be sharp (ALiBi, windows)
    wavers: float = 1.5  # times that bound, at later looks: batches differ; measured: 0.3 to 0.44
    looks_needed: int = 5  # at those
    solved: float = 0.2  # of the first loss: it trains all the same; measured: 0.34 and 0.88 without 1/√d
    solved_upside_down: float = 0.005  # the same for q·k times √d, a slip and no choice; measured: 0.01 to 0.1
    fallen: float = 0.5  # of the first loss: training works, whatever attention does
    better: float = 0.95  # of the best loss with open attention: it pays to be sharp

    def __init__(self) -> None:
        self._layers: dict[tuple[int, str, int], _Past] = {}
        self._first_loss: float | None = None
        self._untrained = False
        self._born: tuple[AttentionSampled, list[AttentionFacts]] | None = None
        self._looks = 0  # at layers that were born so; -1: they are not

    def on_activations_sampled(self, event: ActivationsSampled) -> None:
        """Whether what follows is the attention of a model that no step has touched and no checkpoint filled."""
        self._untrained = event.untrained

    def on_attention_sampled(self, event: AttentionSampled) -> Iterator[Finding]:
        """The entropy of every head against its own past, and the loss beside it."""
        known = event.loss is not None and math.isfinite(event.loss)
        loss = event.loss if event.loss is not None and known else math.inf  # not known before the first
        if known and self._first_loss is None:
            self._first_loss = loss
        self._look(event)
        bad = []
        for place, facts in enumerate(event.layers):
            if not facts.heads or facts.keys < self.keys_needed or not all(map(math.isfinite, facts.heads)):
                continue
            if facts.one_query:  # pointing at one key is what many of these are for
                continue
            past = self._layers.setdefault((place, facts.layer, len(facts.heads)), _Past(facts))
            if self._collapsed(past, facts, event.step, loss) and known:
                bad.append((facts, past))
        if bad:
            yield self._tell(event, *bad[0], others=len(bad) - 1)

    def _look(self, event: AttentionSampled) -> None:
        """Whether all layers were made to attend to one key each, and still do."""
        layers = [each for each in event.layers if each.heads and each.keys >= self._keys_needed(each)]
        if not layers or self._looks < 0:
            return
        wide = all((each.gain or 0.0) >= self.widened and each.projected for each in layers)
        upside_down = all(map(_multiplied_by_root, layers))
        born = self.born_upside_down if upside_down else self.born_wide if wide else self.born
        bound = born if self._born is None else max(self.wavers * born, self.open_at)
        several = len(layers) >= self.layers_needed and not any(each.one_query for each in layers)
        enough = several or wide or all((each.scale or 0.0) > self.enlarged for each in layers)
        of_products = all(each.alone is None or each.alone >= self.widely for each in layers)
        made = enough and of_products and all(each.projected and _mean(each) < bound for each in layers)
        if not made or (self._born is None and not self._untrained):
            self._looks = -1
            return
        self._born = self._born or (event, layers)
        self._looks += 1

    def _keys_needed(self, facts: AttentionFacts) -> int:
        """Where projections and scale say the same, fewer keys are enough."""
        wide = facts.projected and (facts.gain or 0.0) >= self.widened and (facts.scale or 0.0) > self.enlarged
        return self.keys_wide if wide else self.keys_needed

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """Made so, so to the end, and the task is not solved in spite of it."""
        if self._born is None or self._looks < self.looks_needed or event.loss is None or event.first_loss is None:
            return
        upside_down = all(map(_multiplied_by_root, self._born[1]))
        solved = self.solved_upside_down if upside_down else self.solved
        if event.loss > solved * event.first_loss > 0:
            yield self._tell_born(event, *self._born)

    def _collapsed(self, past: _Past, facts: AttentionFacts, step: int, loss: float) -> bool:
        shut = sum(entropy < self.low for entropy in facts.heads) >= self.heads_share * len(facts.heads)
        if not shut or step == past.open_step + 1:  # the loss is that of the step before
            past.best = min(past.best, loss)
        if not shut:
            past.open_step = step
            past.steps.clear()
            return False
        past.steps.add(step)
        was_open = past.first >= self.open_at and past.best < math.inf
        gained = loss < self.better * past.best or loss < self.fallen * (self._first_loss or 0.0)
        return was_open and len(past.steps) >= self.steps_needed and not gained

    def _tell(self, event: AttentionSampled, facts: AttentionFacts, past: _Past, others: int) -> Finding:
        now = _middle(facts)
        more = f"; the same in {others} other layers" if others else ""
        spread = f", scores of a row have std {facts.spread:.3g}" if facts.spread is not None else ""
        return self.finding(
            event,
            f"the attention of {facts.layer or 'a layer'} has collapsed: entropy {now:.2g} of ln({facts.keys} keys) in "
            f"its {len(facts.heads)} heads, {past.first:.2g} when first seen{spread}; loss {event.loss:.3g}, "
            f"{past.best:.3g} before{more}",
            layer=facts.layer,
            entropy=now,
            first_entropy=past.first,
            keys=facts.keys,
            scores_std=facts.spread,
            loss=event.loss,
            best_loss_before=past.best,
        )

    def _tell_born(self, event: RunEnded, seen: AttentionSampled, layers: list[AttentionFacts]) -> Finding:
        worst = min(layers, key=_mean)
        spread = f", scores of a row have std {worst.spread:.3g}" if worst.spread is not None else ""
        many = "both" if len(layers) == 2 else f"all {len(layers)}"
        several = f"{many} attention layers attend" if len(layers) > 1 else "the attention attends"
        times = f", q·k is multiplied by {worst.scale:.3g}" if (worst.scale or 0.0) > self.enlarged else ""
        times += f", which is √{worst.width}" if _multiplied_by_root(worst) else ""
        if (worst.gain or 0.0) >= self.widened:
            times += f", its projections have rms × √fan_in of {worst.gain:.2g}, where nn.Linear begins at 0.58"
        which = worst.layer or ("one of them" if len(layers) > 1 else "it")
        return self.finding(
            event,
            f"{several} to one key each since before the first step: the entropy of {which} was {_mean(worst):.2g} of "
            f"ln({worst.keys} keys), where fresh projections give 0.9{spread}{times}, and it stayed so; "
            f"loss {event.first_loss:.3g} at first, {event.loss:.3g} at the end",
            where=seen.where,
            fix=self.fix_cosine if worst.normalised else self.fix_born,
            key="born",
            layer=worst.layer,
            entropy=_mean(worst),
            keys=worst.keys,
            layers=len(layers),
            loss=event.loss,
            first_loss=event.first_loss,
        )


def _multiplied_by_root(facts: AttentionFacts) -> bool:
    """Of the width of a query, by which it is meant to be divided."""
    return facts.width > 1 and math.isclose(facts.scale or 0.0, math.sqrt(facts.width), rel_tol=1e-3)


def _middle(facts: AttentionFacts) -> float:
    return sorted(facts.heads)[len(facts.heads) // 2]


def _mean(facts: AttentionFacts) -> float:
    """Of the heads; infinite if some is not a number."""
    return fmean(facts.heads) if all(map(math.isfinite, facts.heads)) else math.inf


class _Past:
    """One attention over the steps."""

    def __init__(self, facts: AttentionFacts) -> None:
        self.first = _middle(facts)
        self.best = math.inf  # loss while it was open
        self.open_step = -1  # the newest at which it was
        self.steps: set[int] = set()  # collapsed, in a row
