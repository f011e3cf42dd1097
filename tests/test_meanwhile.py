"""Curves of a running script: what of its losses is judged, when, and what is said of the rest."""

from __future__ import annotations

import math
import random

import pytest

from flatline.config import Config
from flatline.events import (
    BackwardFacts,
    LossComputed,
    LossesRead,
    OptimizerFacts,
    OptimizerStepped,
    PassEnded,
    ScalarsLogged,
    TargetFacts,
)
from flatline.meanwhile import Curves

WHOLE = BackwardFacts(whole=True, losses=("cross_entropy",))


def curves() -> Curves:
    def broken(code: str, error: Exception) -> None:
        raise error

    return Curves(Config().rules(), budget=1.0, on_broken=broken)


def noisy(shape, noise: float = 0.03, seed: int = 0) -> list[float]:
    r = random.Random(seed)
    return [value + r.gauss(0, noise) for value in shape]


def falling(n: int) -> list[float]:
    return noisy(2.3 * math.exp(-5 * i / n) + 0.2 for i in range(n))


def diverging(n: int) -> list[float]:
    return noisy(2.3 - 2 * i / n * 2 if i < n / 2 else 0.3 + 9 * (2 * i / n - 1) for i in range(n))


def read(values: list[float], key: int = 1, first: int = 1, rate: float = 0.1) -> LossesRead:
    steps = tuple(range(first, first + len(values)))
    rates = (rate,) * len(values)
    return LossesRead(optimizer=OptimizerFacts(key=key), step=steps[-1], steps=steps, losses=tuple(values), rates=rates)


def stepped(key: int = 1, **facts) -> OptimizerStepped:
    backward = BackwardFacts(**{"whole": True, "losses": ("cross_entropy",), **facts})
    return OptimizerStepped(optimizer=OptimizerFacts(key=key), backwards=(backward,))


def judged(*events) -> Curves:
    made = curves()
    for event in events:
        made.take(event)
    made.finish(1000, ended=True)
    return made


def codes(made: Curves) -> list[str]:
    return [finding.code for finding in made.findings if finding.severity != "hint"]


LABELLED = (stepped(), LossComputed(classes=10))


def test_a_loss_over_labels_is_a_training_loss():
    made = judged(*LABELLED, read(diverging(1000)))
    assert codes(made) == ["C1"]
    assert made.findings[0].message.startswith("the loss fell from")
    assert "C1" not in made.unchecked
    assert made.unchecked["C4"] == "no val loss was logged"


def test_healthy():
    made = judged(*LABELLED, read(falling(1000)))
    assert made.findings == []


def test_guessing_among_the_classes_of_the_loss():
    made = judged(*LABELLED, read(noisy([math.log(10)] * 2000, 0.02)))
    assert codes(made) == ["C2"]


def test_a_divided_loss_is_no_logarithm_of_the_classes():
    made = judged(stepped(factor=0.5), LossComputed(classes=10), read(noisy([math.log(10)] * 2000, 0.02)))
    assert made.findings == []
    assert made.unchecked["C2"] == "the number of classes is not known"


@pytest.mark.parametrize(
    "events",
    [
        (stepped(whole=False), LossComputed()),
        (stepped(), stepped(factor=0.5), LossComputed()),
        (stepped(), stepped(losses=("mse_loss",)), LossComputed()),
        (stepped(one_target=True), LossComputed()),
        (stepped(), LossComputed(classes=64, target=TargetFacts(low=0, high=63, total=64))),
        (stepped(), LossComputed(classes=4), LossComputed(classes=2)),
        (stepped(losses=("smooth_l1_loss",)), LossComputed(kind="smooth_l1_loss", classes=None)),
        (LossComputed(),),
    ],
    ids=["sum", "weighted", "two losses", "contrast with a queue", "contrast", "two tasks", "agent", "not looked at"],
)
def test_what_may_rise_is_not_judged(events):
    made = judged(*events, read(diverging(1000)))
    assert codes(made) == []
    assert made.unchecked["C1"] not in ("", "no train loss was logged")


def test_a_regression_over_a_data_set_is_judged():
    fitted = stepped(losses=("mse_loss",)), LossComputed(kind="mse_loss", classes=None)
    assert codes(judged(*fitted, PassEnded(step=20, batches=20, length=20), read(diverging(1000)))) == ["C1"]


def test_two_optimizers_with_losses_of_their_own():
    both = stepped(), stepped(2), LossComputed()
    made = judged(*both, read(diverging(1000)), read(falling(1000), 2))
    assert codes(made) == []
    assert made.unchecked["C1"] == "several optimizers trained, each on losses of its own"


def test_two_optimizers_that_share_a_loss():
    both = stepped(), stepped(2), LossComputed()
    assert codes(judged(*both, read(diverging(1000)), read(diverging(1000), 2))) == ["C1"]


def test_a_reward_is_logged():
    rewards = [ScalarsLogged(step=i, values=(("episode_reward", i / 10),)) for i in range(100)]
    made = judged(*LABELLED, read(diverging(1000)), *rewards)
    assert codes(made) == []
    assert made.unchecked["C1"] == "there is a reward"


def test_what_the_script_logs_itself():
    loss, r = falling(1000), random.Random(1)
    own = [
        ScalarsLogged(step=i, values=(("val/loss", 2 - i / 500 if i < 400 else i / 300 + r.gauss(0, 0.01)),))
        for i in range(0, 1000, 20)
    ]
    made = judged(*LABELLED, read(loss), *own)
    assert codes(made) == ["C4"]


def test_the_scripts_own_training_loss_is_told_once():
    values = diverging(1000)
    own = [ScalarsLogged(step=i + 1, values=(("train/loss", value),)) for i, value in enumerate(values)]
    made = judged(*LABELLED, read(values), *own)
    assert [(finding.code, finding.key) for finding in made.findings] == [("C1", "train/loss")]


def test_names_of_adversaries_are_remembered():
    own = [ScalarsLogged(step=i, values=(("disc_loss", 0.7), ("junk", 1.0))) for i in range(600)]
    made = judged(*LABELLED, read(diverging(1000)), *own)
    assert codes(made) == []
    assert made.unchecked["C1"] == "a loss of adversaries or agents need not fall"


def test_too_short():
    made = judged(*LABELLED, read(diverging(12)))
    assert made.findings == []
    assert made.unchecked["C1"] == "too short: 12 points of the train loss, 20 are needed"


def test_nothing_was_read():
    made = curves()
    made.finish(0, ended=True)
    assert set(made.unchecked.values()) == {"no loss was read"}


def test_looks_are_sparse_and_two_of_them_agree():
    made, values = curves(), diverging(1500) + noisy([9.3] * 2500)
    for event in LABELLED:
        made.take(event)
    made._started -= 1000
    told, looks = [], 0
    for first in range(0, 4000, 100):
        made.take(read(values[first : first + 100], first=first + 1))
        before = made._next
        told.append([finding.code for finding in made.look(first + 100)])
        looks += made._next != before
    assert looks <= 9
    assert {code for found in told for code in found} == {"C1"}


def test_looks_stay_within_the_budget():
    made = curves()
    made._budget = 0.0
    for event in LABELLED:
        made.take(event)
    made.take(read(diverging(1000)))
    assert made.look(1000) == []
    assert made.findings == []


def test_the_newest_look_is_what_counts():
    """What has won back what it lost is well."""
    values = diverging(1000) + falling(3000)
    made = curves()
    made._started -= 1000
    for event in (*LABELLED, read(values[:1000])):
        made.take(event)
    made.look(1000)
    assert codes(made) == ["C1"]
    made.take(read(values[1000:], first=1001))
    made.finish(4000, ended=True)
    assert codes(made) == []


def test_no_rule_no_work():
    made = Curves([], budget=0.01, on_broken=lambda code, error: None)
    assert not made.wants(LossesRead)
    assert made.due == math.inf
