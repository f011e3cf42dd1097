"""What is said of a loss that is not gone, and why that may be."""

from __future__ import annotations

import pytest

from flatline.preflight.likely import likely
from flatline.preflight.memorising import SAID
from flatline.preflight.sweeping import depends_on_steps_alone, highest_factor
from flatline.rules.optimization.batch_not_memorised import Failure

OPEN = {"verdict": "open", "why": "loss 1 → 0.5 in 300 steps"}
RATES = {"configured": 1e-6, "steepest": 0.03, "diverges": 2.0}


def test_every_failure_is_said_in_words():
    assert set(SAID) == set(Failure.__args__)


def test_the_likeliest_cause_comes_first():
    found = [
        {"code": "D3", "slug": "input-not-normalised", "severity": "warning"},
        {"code": "O3", "slug": "loss-detached", "severity": "error"},
        {"code": "S1", "slug": "unseeded", "severity": "hint"},
    ]
    rows = [
        {"shape": (40, 10), "trainable": False, "optimizers": []},
        {"shape": (4, 10), "trainable": True, "optimizers": ["Adam"]},
    ]
    probe = {"lines": [("inputs", "x (numbers, 64 × 14) does not reach the output")]}
    answers = {"look": {"findings": found, "parameters": rows}, "memorise": OPEN, "rates": RATES, "probe": probe}
    assert likely(answers) == [
        "O3 loss-detached",
        "D3 input-not-normalised",
        "the rate: the loss falls fastest at 3.0e-02, and 1.0e-06 is set",
        "only 9.1% of the weights train",
    ]
    assert likely({"memorise": OPEN, "probe": probe}) == [
        "what the model is given: x (numbers, 64 × 14) does not reach the output"
    ]


def test_a_rate_beyond_what_diverges():
    assert likely({"memorise": OPEN, "rates": {**RATES, "configured": 3.0}}) == [
        "the rate: the loss diverges from 2.0e+00 on, and 3.0e+00 is set"
    ]


def test_nothing_where_nothing_stands_out_or_the_batch_was_learned():
    assert likely({"memorise": OPEN, "rates": {"configured": 0.01, "steepest": 0.03}}) == []
    assert likely({"memorise": {"verdict": "passed"}, "rates": RATES}) == []
    assert likely({"look": {"findings": []}}) == []


def test_the_highest_factor_of_a_schedule():
    assert highest_factor([]) is None
    assert highest_factor([lambda step: min(1.0, (step + 1) / 4000)]) == 1.0
    warm = [lambda step: 64**-0.5 * min(max(step, 1) ** -0.5, max(step, 1) * 4000**-1.5)]
    assert highest_factor(warm) == pytest.approx(64**-0.5 * 4000**-0.5, rel=0.15)
    assert highest_factor([lambda step: [1.0, 0.5][step]]) is None


def test_functions_of_more_than_the_step_are_not_asked(tmp_path):
    code = """
rate = 0.1
state = {"epoch": 0}
def fixed(step):
    return rate * step
def of_state(step):
    return 1.0 if state["epoch"] > 1 else 0.001
def of_count(step):
    return 1.0 if epoch > 1 else 0.001
for epoch in range(3):
    state["epoch"] = epoch
"""
    (tmp_path / "train.py").write_text(code)
    names: dict = {}
    exec(compile(code, str(tmp_path / "train.py"), "exec"), names)
    assert depends_on_steps_alone(names["fixed"])
    assert not depends_on_steps_alone(names["of_state"])
    assert not depends_on_steps_alone(names["of_count"])
    assert not depends_on_steps_alone(max)
