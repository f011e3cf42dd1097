"""Curves of runs that are well and of runs that are not, with noise: each family is a function of a random generator."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from statistics import median

from flatline.events import Curve, CurvesUpdated
from flatline.rules import Rule
from flatline.testing import play

Family = Callable[[random.Random], CurvesUpdated]
HEALTHY: dict[str, Family] = {}


def healthy(family: Family) -> Family:
    """Remember a family in which no rule may find more than a hint."""
    HEALTHY[family.__name__] = family
    return family


def curve(
    values: Sequence[float], role: str = "train_loss", name: str = "", *, every: float = 1, start: float = 1
) -> Curve:
    steps = [start + i * every for i in range(len(values))]
    kept = [(s, v) for s, v in zip(steps, values, strict=True) if math.isfinite(v)]
    return Curve(
        name=name or role,
        role=role,
        steps=tuple(s for s, _ in kept),
        values=tuple(v for _, v in kept),
        not_finite=tuple(s for s, v in zip(steps, values, strict=True) if not math.isfinite(v)),
        count=len(values),
    )


def run(*curves: Curve, **facts) -> CurvesUpdated:
    return CurvesUpdated(curves=curves, **facts)


def length(r: random.Random) -> int:
    return r.choice([40, 120, 300, 1000, 2500])


def noisy(
    r: random.Random, shape: Sequence[float], noise: float = 0.0, *, relative: float = 0.0, heavy: bool = False
) -> list[float]:
    """A shape with independent noise, absolute or relative to the value."""
    draw = (lambda: r.expovariate(1) - 1) if heavy else (lambda: r.gauss(0, 1))
    return [v + draw() * math.hypot(noise, relative * v) for v in shape]


def decay(n: int, top: float, floor: float, sharp: float = 6.0) -> list[float]:
    return [floor + (top - floor) * math.exp(-sharp * i / n) for i in range(n)]


def power(n: int, top: float, floor: float, exponent: float = 0.3) -> list[float]:
    return [floor + (top - floor) * (1 + 30 * i / n) ** -exponent for i in range(n)]


def validation(
    r: random.Random, shape: Sequence[float], noise: float, points: int | None = None, gap: float = 0.05
) -> Curve:
    """Every so often, over the same steps."""
    points = points or r.choice([8, 12, 20, 40, 100])
    points = min(points, len(shape))
    every = len(shape) / points
    values = [shape[min(int((i + 1) * every), len(shape) - 1)] * (1 + gap) + r.gauss(0, noise) for i in range(points)]
    return curve(values, "val_loss", every=every, start=every)


# --------------------------------------------------------------------------- variants that change nothing


def smoothed(event: CurvesUpdated) -> CurvesUpdated:
    """As a logger with an exponential average of 0.9 shows the training curves."""
    return replace(
        event,
        curves=tuple(
            _ema(c) if c.role not in ("val_loss", "val_accuracy", "learning_rate") else c for c in event.curves
        ),
    )


def _ema(curve: Curve) -> Curve:
    values, average, weight = [], 0.0, 0.0
    for value in curve.values:
        average, weight = 0.9 * average + 0.1 * value, 0.9 * weight + 0.1
        values.append(average / weight)
    return replace(curve, values=tuple(values))


def rescaled(event: CurvesUpdated) -> CurvesUpdated:
    """Steps counted in tens."""
    return replace(
        event,
        curves=tuple(
            replace(c, steps=tuple(10 * s for s in c.steps), not_finite=tuple(10 * s for s in c.not_finite))
            for c in event.curves
        ),
    )


def in_epochs(event: CurvesUpdated) -> CurvesUpdated:
    """Steps counted in epochs, with a fraction."""
    return replace(
        event,
        curves=tuple(
            replace(c, steps=tuple(s / 97 for s in c.steps), not_finite=tuple(s / 97 for s in c.not_finite))
            for c in event.curves
        ),
    )


def thinned(event: CurvesUpdated) -> CurvesUpdated:
    """As a reader thins a long curve."""
    return replace(event, curves=tuple(_thin(c) for c in event.curves))


def _thin(curve: Curve, by: int = 4) -> Curve:
    if len(curve.values) < 1000:
        return curve
    parts = [curve.values[i : i + by] for i in range(0, len(curve.values), by)]
    return replace(
        curve,
        steps=tuple(curve.steps[min(i + by, len(curve.steps)) - 1] for i in range(0, len(curve.steps), by)),
        values=tuple(median(p) for p in parts),
        lows=tuple(min(p) for p in parts),
        highs=tuple(max(p) for p in parts),
    )


def stopped(event: CurvesUpdated) -> CurvesUpdated:
    """Stopped at two thirds."""
    end = max((c.steps[-1] for c in event.curves if c.steps), default=0.0) * 0.66
    return replace(event, curves=tuple(_until(c, end) for c in event.curves), ended=False)


def _until(curve: Curve, end: float) -> Curve:
    count = sum(s <= end for s in curve.steps)
    return replace(curve, steps=curve.steps[:count], values=curve.values[:count], count=count)


def larger(event: CurvesUpdated) -> CurvesUpdated:
    """The loss as a sum over a thousand elements."""
    return replace(
        event,
        classes=None,
        curves=tuple(
            replace(
                c,
                values=tuple(1000 * v for v in c.values),
                lows=tuple(1000 * v for v in c.lows),
                highs=tuple(1000 * v for v in c.highs),
            )
            if c.role.endswith("loss")
            else c
            for c in event.curves
        ),
    )


SAME = {"as it is": lambda e: e, "x10": rescaled, "epochs": in_epochs, "ema": smoothed, "thin": thinned}
VARIANTS = {**SAME, "sum": larger}


# --------------------------------------------------------------------------- runs that are well


@healthy
def classifier(r):
    n = length(r)
    shape = decay(n, 2.303, r.uniform(0.05, 1.2), r.uniform(3, 12))
    return run(
        curve(noisy(r, shape, relative=r.choice([0.02, 0.1, 0.3]))),
        validation(r, shape, r.choice([0.005, 0.03])),
        classes=10,
    )


@healthy
def language_model(r):
    n = length(r)
    shape = power(n, 10.8, 1.9, r.uniform(0.2, 0.8))
    return run(curve(noisy(r, shape, r.choice([0.02, 0.1]))), validation(r, shape, 0.02, gap=0.01), classes=50257)


@healthy
def heavy_tails(r):
    n = length(r)
    return run(curve(noisy(r, decay(n, 2.3, 0.5), relative=0.5, heavy=True)), classes=10)


@healthy
def warm_up(r):
    n = length(r)
    shape = [2.303 - 0.003 * r.random() if i < n / 10 else v for i, v in enumerate(decay(n, 2.4, 0.4))]
    rate = [min(1.0, (i + 1) / (n / 10)) * 1e-3 for i in range(n)]
    return run(curve(noisy(r, shape, 0.03)), curve(rate, "learning_rate"), classes=10)


@healthy
def one_cycle(r):
    """The loss rises a little in the middle, where the rate is highest."""
    n = length(r)
    shape = [v + 0.25 * math.exp(-(((i / n) - 0.4) ** 2) / 0.01) for i, v in enumerate(decay(n, 2.3, 0.3, 4))]
    rate = [1e-4 + 1e-2 * math.sin(math.pi * i / n) for i in range(n)]
    return run(
        curve(noisy(r, shape, relative=0.05)), validation(r, shape, 0.02), curve(rate, "learning_rate"), classes=10
    )


@healthy
def cosine_restarts(r):
    """A saw: the loss jumps up at each restart, and ends lower each time."""
    n, cycles = length(r), r.choice([2, 3, 5, 8])
    phase = [i * cycles / n % 1 for i in range(n)]
    shape = [
        0.2 + 2 * math.exp(-5 * i / n) * (0.5 + 0.5 * math.cos(math.pi * p)) ** 1.5 * 0.6 + 0.4 * math.exp(-2 * i / n)
        for i, p in enumerate(phase)
    ]
    rate = [1e-3 * 0.5 * (1 + math.cos(math.pi * p)) for p in phase]
    parts = [curve(noisy(r, shape, relative=0.05)), validation(r, shape, 0.02)]
    return run(*parts, *([curve(rate, "learning_rate")] if r.random() < 0.5 else []), classes=10)


@healthy
def rate_steps(r):
    """Cliffs downwards where the rate is divided by ten."""
    n = length(r)
    shape = [v * (1.0 if i < n / 3 else 0.5 if i < 2 * n / 3 else 0.4) for i, v in enumerate(decay(n, 6.9, 2.2, 8))]
    rate = [0.1 if i < n / 3 else 0.01 if i < 2 * n / 3 else 0.001 for i in range(n)]
    return run(
        curve(noisy(r, shape, relative=0.05)), validation(r, shape, 0.05), curve(rate, "learning_rate"), classes=1000
    )


@healthy
def label_smoothing(r):
    n = length(r)
    shape = decay(n, 2.303, r.uniform(0.5, 0.8), 8)
    return run(curve(noisy(r, shape, 0.02)), validation(r, shape, 0.01), classes=10)


@healthy
def contrastive(r):
    """Begins at ln B."""
    n = length(r)
    shape = power(n, math.log(r.choice([256, 4096])), 1.0, 0.4)
    return run(curve(noisy(r, shape, 0.05)))


@healthy
def curriculum(r):
    """Harder data at each stage: the loss jumps up, and falls again."""
    n, stages = max(length(r), 120), r.choice([2, 3, 4])
    shape = [
        0.5 + 0.35 * (k := i * stages // n) + (1.5 + 0.4 * k) * math.exp(-6 * (i * stages / n % 1)) for i in range(n)
    ]
    return run(curve(noisy(r, shape, 0.05)), validation(r, decay(n, 2.2, 0.6), 0.03))


@healthy
def small_validation_set(r):
    n = length(r)
    shape = decay(n, 0.69, 0.3, 5)
    return run(curve(noisy(r, shape, 0.03)), validation(r, shape, r.choice([0.05, 0.1, 0.2])), classes=2)


@healthy
def over_parametrised(r):
    """The loss ends near 0, and the validation loss stands still."""
    n = length(r)
    shape = decay(n, 2.3, 1e-4, 14)
    val = decay(n, 2.3, 0.4, 20)
    return run(curve(noisy(r, shape, relative=0.3)), validation(r, val, 0.02), classes=10)


@healthy
def annealed_kl(r):
    """The weight of the KL term grows: the loss turns and rises, on both curves."""
    n = max(length(r), 120)
    shape = [150 + 400 * math.exp(-15 * i / n) + 40 * min(1.0, 2 * i / n) for i in range(n)]
    kl = [80 * math.exp(-3 * i / n) + 10 for i in range(n)]
    return run(curve(noisy(r, shape, 3.0)), validation(r, shape, 1.0), curve(kl, "kl"))


@healthy
def negative(r):
    """A log-likelihood of a density: below 0."""
    n = length(r)
    shape = decay(n, 3.0, -r.uniform(2, 40), 4)
    return run(curve(noisy(r, shape, 0.3)), validation(r, shape, 0.3, gap=0.0))


@healthy
def fine_tuning(r):
    """Begins low and hardly falls."""
    n = length(r)
    shape = decay(n, 1.35, r.uniform(1.1, 1.3), 3)
    return run(curve(noisy(r, shape, r.choice([0.02, 0.15]))), validation(r, shape, 0.004, gap=0.02), classes=32000)


@healthy
def fine_tuning_flat(r):
    n = length(r)
    return run(
        curve(noisy(r, decay(n, 1.22, 1.2, 3), r.choice([0.05, 0.15]))),
        validation(r, decay(n, 1.22, 1.2, 3), 0.004, gap=0.02),
        classes=r.choice([None, 32000]),
    )


@healthy
def dropout_gap(r):
    """Training with dropout: the validation loss lies below."""
    n = length(r)
    shape = decay(n, 2.3, 0.6, 6)
    return run(curve(noisy(r, shape, 0.05)), validation(r, shape, 0.01, gap=-0.3), classes=10)


@healthy
def dpo(r):
    """Both log-probabilities fall, and the margin grows."""
    n = length(r)
    loss = noisy(r, decay(n, 0.693, r.uniform(0.35, 0.6), 3), 0.06)
    chosen = noisy(r, [-120 - 60 * i / n for i in range(n)], 8)
    rejected = noisy(r, [-130 - 120 * i / n for i in range(n)], 8)
    margin = noisy(r, [2 * i / n for i in range(n)], 0.3)
    accuracy = [min(1.0, max(0.0, 0.5 + 0.3 * i / n + r.gauss(0, 0.1))) for i in range(n)]
    names = ("logps/chosen", "logps/rejected")
    parts = [curve(v, "", k) for k, v in zip(names, (chosen, rejected), strict=True)]
    return run(
        curve(loss),
        *parts,
        curve(margin, "reward", "rewards/margins"),
        curve(accuracy, "train_accuracy", "rewards/accuracies"),
    )


@healthy
def critic(r):
    """The critic's loss never falls, as the returns that it is to predict grow."""
    n = length(r)
    loss = noisy(r, [1 + 20 * (i / n) ** 2 for i in range(n)], relative=0.4)
    reward = noisy(r, [-200 + 400 * i / n for i in range(n)], 40)
    return run(
        curve(loss, "train_loss", r.choice(["train/value_loss", "critic_loss", "loss"])),
        curve(reward, "reward", "rollout/ep_rew_mean"),
    )


@healthy
def policy_gradient(r):
    """Around 0 without a direction."""
    n = length(r)
    reward = noisy(r, decay(n, 20, 200), 30)
    return run(curve(noisy(r, [0.0] * n, 0.1), "train_loss", "train/loss"), curve(reward, "reward", "episode_reward"))


@healthy
def grpo(r):
    """Begins at 0 and rises with the distance to the reference."""
    n = length(r)
    return run(
        curve(noisy(r, [0.04 * 2 * i / n for i in range(n)], 0.002)),
        curve(noisy(r, [2 * i / n for i in range(n)], 0.05), "kl"),
        curve(noisy(r, decay(n, 0.2, 0.8), 0.1), "reward"),
    )


@healthy
def gan(r):
    n = length(r)
    generator = noisy(r, [0.7 + 4 * (1 - math.exp(-3 * i / n)) for i in range(n)], 0.6)
    discriminator = noisy(r, [0.2 + 1.18 * math.exp(-3 * i / n) for i in range(n)], 0.15)
    names = r.choice(
        [
            ("loss_G", "loss_D"),
            ("g_loss", "d_loss"),
            ("train/loss_gen", "train/loss_disc"),
            ("Generator Loss", "Discriminator Loss"),
            ("lossG", "lossD"),
        ]
    )
    return run(curve(generator, "train_loss", names[0]), curve(discriminator, "train_loss", names[1]))


@healthy
def gan_at_equilibrium(r):
    n = length(r)
    return run(
        curve(noisy(r, [math.log(2)] * n, 0.03), "train_loss", "d_loss"),
        curve(noisy(r, [math.log(2)] * n, 0.05), "train_loss", "g_loss"),
        curve([0.5 + r.gauss(0, 0.02) for _ in range(n)], "train_accuracy", "d_acc"),
    )


@healthy
def generator_alone(r):
    """Only one side was logged, without a telling name."""
    n = length(r)
    return run(curve(noisy(r, [0.7 + 4 * (1 - math.exp(-3 * i / n)) for i in range(n)], 0.4)))


@healthy
def stopped_early(r):
    """A run that ended while it fell."""
    n = r.choice([9, 14, 25, 60])
    return run(curve(noisy(r, power(40 * n, 6.92, 2.0)[:n], 0.05)), classes=1000)


@healthy
def barely_begun(r):
    """The first hundred steps of a large classifier: still at ln C."""
    n = r.choice([10, 30, 100])
    return run(curve(noisy(r, [6.908 - 0.02 * i / n for i in range(n)], 0.03)), classes=1000)


@healthy
def plateau_then_fall(r):
    """An induction bump, or grokking of the training loss: a long plateau at the start, then it falls."""
    n = length(r)
    at = r.uniform(0.3, 0.7)
    shape = [2.303 if i < at * n else 0.2 + 2.1 * math.exp(-12 * (i / n - at)) for i in range(n)]
    return run(curve(noisy(r, shape, 0.03)), validation(r, shape, 0.01), classes=10)


@healthy
def late_generalisation(r):
    """Grokking: training is done early, the validation loss stays high for long, and falls in the end."""
    n = length(r)
    train = decay(n, 4.6, 1e-4, 60)
    val = [4.6 if i < 0.7 * n else 0.05 + 4.5 * math.exp(-25 * (i / n - 0.7)) for i in range(n)]
    return run(curve(noisy(r, train, relative=0.2)), validation(r, val, 0.02, points=min(40, n)), classes=97)


@healthy
def validation_plateau(r):
    """The validation loss stands still for most of the run while training goes on."""
    n = length(r)
    return run(curve(noisy(r, decay(n, 2.3, 0.1, 4), 0.03)), validation(r, decay(n, 2.3, 0.5, 20), 0.01), classes=10)


@healthy
def wandering(r):
    """A noise that is slow: the level wanders a little, and returns."""
    n = length(r)
    walk, level = [], 0.0
    for _ in range(n):
        level = 0.97 * level + r.gauss(0, 0.02)
        walk.append(level)
    shape = [a + b for a, b in zip(decay(n, 2.3, 0.8, 6), walk, strict=True)]
    return run(curve(noisy(r, shape, 0.03)), validation(r, shape, 0.01), classes=10)


@healthy
def bad_batches(r):
    """Single large losses that are forgotten at once."""
    n = max(length(r), 120)
    values = noisy(r, decay(n, 2.3, 0.4), 0.03)
    for _ in range(2):
        values[r.randrange(n // 4, n)] += r.uniform(0.1, 0.25)
    return run(curve(values), classes=10)


@healthy
def multi_epoch(r):
    """Fine-tuning for some epochs: steps downwards at the boundaries."""
    n, epochs = max(length(r), 120), 3
    shape = [1.6 - 0.35 * (i * epochs // n) for i in range(n)]
    epoch = [i * epochs / n for i in range(n)]
    return run(curve(noisy(r, shape, 0.06)), curve(epoch, "epoch"))


@healthy
def harder_stage(r):
    """A second stage or task whose loss lies above all of the first."""
    n = max(length(r), 120)
    first = decay(n // 2, 1.0, 0.1, 6)
    second = decay(n - n // 2, r.uniform(3, 6), r.uniform(1.2, 1.8), r.choice([4, 10]))
    return run(curve(noisy(r, [*first, *second], 0.04)))


@healthy
def momentum_contrast(r):
    """A queue of negatives: the loss begins low, rises while the queue fills, and falls."""
    n = length(r)
    shape = [7 + 2 * math.exp(-4 * i / n) - 6 * math.exp(-60 * i / n) for i in range(n)]
    return run(curve(noisy(r, shape, 0.05)))


@healthy
def ramped_term(r):
    """A second term of the loss is switched on slowly."""
    n = length(r)
    shape = [
        0.2 + 2.1 * math.exp(-12 * i / n) + 1.5 * math.exp(-5 * (1 - min(1.0, i / n / 0.4)) ** 2) for i in range(n)
    ]
    return run(curve(noisy(r, shape, relative=0.05)))


@healthy
def logged_by_epoch(r):
    """A mean per epoch: few points, little noise."""
    n = r.choice([10, 15, 30])
    shape = decay(n, r.choice([0.7, 2.0, 5.0]), r.uniform(0.1, 0.4), r.uniform(2, 8))
    val = [v * 1.1 + r.gauss(0, 0.01) for v in shape]
    return run(curve(noisy(r, shape, relative=0.01)), curve(val, "val_loss"), classes=10)


@healthy
def frozen_backbone(r):
    """Only a head is trained: it is done after a tenth of the run."""
    n = length(r)
    shape = decay(n, 2.4, r.uniform(0.3, 0.9), 60)
    return run(curve(noisy(r, shape, relative=r.choice([0.02, 0.2]))), validation(r, shape, 0.003), classes=10)


@healthy
def range_test(r):
    """The rate grows all along, until the loss leaves: that is what the test is for."""
    n = r.choice([60, 100, 300])
    shape = [
        2.3 if i < 0.3 * n else 0.9 + 1.4 * (1 - i / n) if i < 0.8 * n else 0.9 * 1e3 ** (i / n - 0.7) for i in range(n)
    ]
    rate = [1e-7 * 10 ** (8 * i / n) for i in range(n)]
    return run(curve(noisy(r, shape, relative=0.05)), curve(rate, "learning_rate"), classes=10)


@healthy
def one_task_after_another(r):
    """Continual learning: with each task loss and accuracy begin anew."""
    n, tasks = max(length(r), 120), r.choice([3, 5])
    shape = [0.3 + 2.2 * math.exp(-8 * (i * tasks / n % 1)) for i in range(n)]
    right = [min(1.0, max(0.0, 0.9 - 0.8 * math.exp(-8 * (i * tasks / n % 1)) + r.gauss(0, 0.05))) for i in range(n)]
    return run(curve(noisy(r, shape, 0.1)), curve(right, "train_accuracy"))


@healthy
def noisier_inputs(r):
    """A curriculum without steps: the data get harder all along, and some of what was right is right no more."""
    n = max(length(r), 120)
    shape = [0.4 + 1.9 * math.exp(-12 * i / n) + 0.8 * i / n for i in range(n)]
    right = [min(1.0, max(0.0, 0.85 - 0.75 * math.exp(-12 * i / n) - 0.3 * i / n + r.gauss(0, 0.05))) for i in range(n)]
    return run(curve(noisy(r, shape, 0.1)), curve(right, "train_accuracy"))


@healthy
def knows_half_of_the_tokens(r):
    """A fine-tuned language model: the loss is that of guessing among seven, the accuracy is not."""
    n = length(r)
    right = [0.55 + r.gauss(0, 0.03) for _ in range(n)]
    return run(curve(noisy(r, [1.95] * n, 0.04)), curve(right, "train_accuracy", "mean_token_accuracy"))


# --------------------------------------------------------------------------- trying a rule


SEEDS = 3


@cache
def healthy_runs() -> tuple[tuple[str, CurvesUpdated], ...]:
    """Every family with a few seeds, in every variant."""
    return tuple(
        (f"{name} {seed} {variant}", change(family(random.Random(f"{name} {seed}"))))
        for name, family in HEALTHY.items()
        for seed in range(SEEDS)
        for variant, change in {**VARIANTS, "stopped": stopped}.items()
    )


def alarms(rule: type[Rule], *, hints: bool = True) -> list[str]:
    """Healthy runs in which a rule finds something."""
    return [
        f"{name}: {finding.message}"
        for name, event in healthy_runs()
        for finding in play(rule, event)
        if hints or finding.severity != "hint"
    ]


def sick_runs(family: Family, variants=None, *, seeds: int = 40) -> Iterator[tuple[str, CurvesUpdated]]:
    """A family with many seeds, in every variant that changes nothing."""
    for seed in range(seeds):
        event = family(random.Random(f"{family.__name__} {seed}"))
        for variant, change in (variants or SAME).items():
            yield f"{family.__name__} {seed} {variant}", change(event)


def missed(rule: type[Rule], family: Family, variants=None, *, seeds: int = 40) -> list[str]:
    """Sick runs in which a rule finds nothing."""
    return [name for name, event in sick_runs(family, variants, seeds=seeds) if not play(rule, event)]
