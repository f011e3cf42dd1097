from dataclasses import replace

import pytest

from flatline.events import (
    GradientNotFinite,
    LayerNumbers,
    LossNotFinite,
    NonFiniteReplayed,
    NumbersSampled,
    Origin,
    Where,
)
from flatline.findings import Finding
from flatline.rules.numerics.non_finite_loss import NonFiniteLoss
from flatline.testing import play

BROKEN = LossNotFinite(
    step=412,
    where=Where("train.py", 50),
    last_finite=3.1,
    first_finite=4.0,
    largest=4.2,
    last_finite_step=411,
    lr=1e-3,
    optimizer="AdamW",
)


def found(kind="unknown", operation="", detail="", module="", **facts) -> Finding:
    origin = Origin(kind=kind, operation=operation, detail=detail, module=module)
    (finding,) = play(NonFiniteLoss, replace(BROKEN, origin=origin, **facts))
    return finding


def test_fires_with_step_history_and_first_tensor():
    finding = found("operation", "log", "log of 0", "head")
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 50)
    assert finding.message == (
        "loss is nan at step 412 (last finite 3.1 at step 411); first non-finite tensor: log of 0, in head"
    )
    assert "log(0) is -inf" in finding.cause
    assert "binary_cross_entropy_with_logits" in finding.fix


@pytest.mark.parametrize(
    ("operation", "detail", "cause"),
    [
        ("log", "log of -0.3", "negative number"),
        ("div", "division by 0", "a denominator is exactly 0"),
        ("sqrt", "nan in the result of sqrt (float32, no finite value)", "square root of a negative"),
        ("exp", "inf in the result of exp (float32, finite values 1 to 3e+38)", "exp overflows"),
        (
            "mseloss",
            "inf in the input of mseloss (float32, finite values -5.36e+04 to 4.7e+04)",
            "float16 ends at 65504",
        ),
        ("addmm", "inf in the input of addmm (float16, finite values 1 to 6e+04)", "float16 ends at 65504"),
        (
            "relu",
            "nan in the input of relu (float32, no finite value)",
            "what reaches relu is not finite though batch and weights are",
        ),
    ],
)
def test_names_the_operation(operation, detail, cause):
    assert cause in found("operation", operation, detail).cause


def test_names_the_batch():
    finding = found("inputs", module="net", detail="3 of 100 values of the batch")
    assert "first non-finite tensor: the input of net, 3 of 100 values of the batch" in finding.message
    assert "fault is in the data" in finding.cause


def test_weights_after_growth_mean_a_high_learning_rate():
    finding = found("weights", detail="fc.weight", largest=4e5, optimizer="SGD", lr=0.5)
    assert "the learning rate of SGD (0.5) is too high" in finding.cause
    assert finding.fix.startswith("lower it to 0.05 or less")


def test_a_schedule_that_still_rises_is_told():
    finding = found("weights", detail="fc.weight", largest=4e5, optimizer="SGD", lr=0.24, built_with=0.02)
    assert "SGD (0.24, raised from 0.02 and never as high before) is too high" in finding.cause
    assert "min(1.0, step / warm-up steps)" in finding.fix


def test_an_absurd_rate_needs_no_history():
    cause = found("weights", detail="fc.weight", first_finite=2.0, largest=2.0, optimizer="SGD", lr=1e4).cause
    assert "the learning rate of SGD (10000) is too high" in cause


def test_weights_without_growth_mean_a_backward_at_zero():
    finding = found("weights", detail="fc.weight")
    assert "the loss of step 411 was finite, but its backward made non-finite gradients" in finding.cause
    assert "torch.sqrt(x + 1e-8)" in finding.fix


def test_weights_that_data_within_reach_have_broken():
    note = "X holds 1 number that is not finite, among 20,000, first in row 1203"
    finding = found("weights", detail="fc.weight", data_note=note)
    assert finding.cause.startswith(note)
    assert "torch.isfinite" in finding.fix


def test_weights_that_were_never_finite():
    finding = found(
        "weights", detail="fc.weight", last_finite=None, first_finite=None, largest=None, last_finite_step=0
    )
    assert "loss is nan at step 412, the first one" in finding.message
    assert "uninitialised (torch.empty)" in finding.cause


def test_near_miss_a_high_rate_is_not_blamed_for_a_plain_log_of_zero():
    assert "learning rate" not in found("operation", "log", "log of 0", lr=10.0).cause


def test_near_miss_a_moderate_rate_is_not_blamed():
    assert "learning rate" not in found("weights", detail="fc.weight", optimizer="SGD", lr=1.0).cause
    assert "learning rate" not in found("unknown").cause


def test_suggests_a_usual_rate_where_a_tenth_is_still_absurd():
    assert found("weights", detail="fc.weight", optimizer="SGD", lr=1e4).fix.startswith("lower it to 0.1 or less")


def test_finite_gradients_leave_the_update():
    sampled = NumbersSampled(step=411, layers=(LayerNumbers(gradient_rms=1e-3),))
    event = replace(BROKEN, origin=Origin(kind="weights", detail="fc.weight"))
    (finding,) = play(NonFiniteLoss, sampled, event)
    assert "loss and gradients of step 411 were finite, the update of AdamW was not" in finding.cause


def test_near_miss_gradients_of_another_step_or_not_finite():
    event = replace(BROKEN, origin=Origin(kind="weights", detail="fc.weight"))
    for step, rms in ((400, 1e-3), (411, float("nan"))):
        (finding,) = play(NonFiniteLoss, NumbersSampled(step=step, layers=(LayerNumbers(gradient_rms=rms),)), event)
        assert "its backward made non-finite gradients" in finding.cause
    assert play(NonFiniteLoss, NumbersSampled(step=1, layers=(LayerNumbers(gradient_rms=float("inf")),))) == []


def test_a_scaler_that_skips_again_and_again():
    finding = found(
        "operation", "addmm", "inf in the input of addmm (float16, finite values 1 to 6e+04)", scaled=True, in_a_row=5
    )
    assert "float16 ends at 65504" in finding.cause
    assert found("weights", detail="fc.weight", scaled=True).severity == "error"


def test_near_miss_a_scaler_skips_one_step():
    for kind in ("operation", "unknown"):
        assert play(NonFiniteLoss, replace(BROKEN, origin=Origin(kind=kind), scaled=True, in_a_row=2)) == []


def test_fires_where_a_scaler_skips_every_other_step():
    often = replace(BROKEN, origin=Origin(kind="operation", operation="div"), scaled=True, step=12, in_all=8)
    assert play(NonFiniteLoss, often)
    assert play(NonFiniteLoss, replace(often, step=25)) == []
    assert play(NonFiniteLoss, replace(often, in_all=7)) == []


def test_says_that_the_gradient_was_first():
    event = replace(BROKEN, origin=Origin(kind="weights", detail="fc.weight"))
    (finding,) = play(NonFiniteLoss, GradientNotFinite(step=411, detail="sqrt of 0", module="dist"), event)
    assert "sqrt of 0 in dist was first" in finding.cause


AGAIN = NonFiniteReplayed(
    step=412,
    where=Where("/home/me/model.py", 31),
    operation="div",
    module="3",
    code="s / n",
    low=0.0,
    high=7.5,
    samples=8,
)


def after(again, kind="unknown", **facts) -> Finding:
    (finding,) = play(NonFiniteLoss, again, replace(BROKEN, origin=Origin(kind=kind), **facts))
    return finding


def test_says_what_doing_the_step_again_has_shown():
    finding = after(replace(AGAIN, rows=(2, 5), indices=(40, 17), file="nonfinite-step412.pt", exact=False))
    assert finding.message == (
        "loss is nan at step 412 (last finite 3.1 at step 411); weights and inputs are finite; done again on a copy, with "
        "another loss than the first time, div made nan in layer 3 (model.py:31 `s / n`), inputs from 0 to 7.5, samples 2, 5 "
        "of 8, data set index 40, 17"
    )
    assert "a denominator is exactly 0" in finding.cause
    assert finding.evidence["replayed_line"] == "/home/me/model.py:31"
    assert finding.evidence["data_set_indices"] == "40, 17"


@pytest.mark.parametrize(
    ("again", "cause"),
    [
        ({"operation": "log", "low": -2.0}, "negative number"),
        ({"operation": "exp", "kind": "inf", "low": 1.0, "high": 99.0}, "exp overflows"),
        ({"operation": "sqrt", "low": -1.0}, "square root of a negative"),
        ({"operation": "addmm", "low": 1.0}, "an operation between the model's output and the loss"),
    ],
)
def test_doing_it_again_finds_the_cause_that_the_graph_does_not_show(again, cause):
    assert cause in after(replace(AGAIN, **again)).cause


def test_names_samples_of_a_bad_batch():
    finding = after(replace(AGAIN, operation="batch", where=None, rows=(1,), indices=(93,)), kind="inputs")
    assert finding.message.endswith("the batch held nan from the start, sample 1 of 8, data set index 93")
    assert finding.cause.startswith("nan or inf in the batch already")


def test_near_miss_a_high_rate_is_the_cause_of_an_overflow_that_was_done_again():
    finding = after(replace(AGAIN, operation="div"), lr=50.0)
    assert "too high" in finding.cause


def test_near_miss_another_step_was_done_again():
    finding = after(replace(AGAIN, step=9))
    assert finding.message == "loss is nan at step 412 (last finite 3.1 at step 411); weights and inputs are finite"
    assert "replayed_operation" not in finding.evidence


def test_near_miss_a_replay_alone_is_nothing():
    assert play(NonFiniteLoss, AGAIN) == []
