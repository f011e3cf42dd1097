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
from flatline.rules.numerics.non_finite_gradient import NonFiniteGradient
from flatline.testing import play

BAD = GradientNotFinite(
    step=3,
    where=Where("train.py", 12),
    parameters=("fc.weight", "fc.bias"),
    bad=2,
    total=4,
    operation="sqrt",
    module="dist",
    detail="sqrt of 0",
    loss=0.25,
    optimizer="SGD",
)


def test_fires_with_the_operation():
    (finding,) = play(NonFiniteGradient, BAD)
    assert (finding.code, finding.severity, finding.where) == ("N2", "error", Where("train.py", 12))
    assert finding.message == (
        "loss 0.25 is finite at step 3, and the gradients of 2 of 4 parameters are nan, as in fc.weight; sqrt of 0 in "
        "dist has an infinite derivative"
    )
    assert "torch.sqrt(x + 1e-8)" in finding.fix


@pytest.mark.parametrize(
    ("operation", "detail", "cause"),
    [
        ("pow", "pow(0, 0.5)", "derivative is infinite"),
        ("log", "log of 0", "masked afterwards"),
        ("div", "division by 0", "masked afterwards"),
        ("pow", "pow of inf", "masked afterwards"),
        ("logsumexp", "logsumexp over -inf only", "nothing but -inf"),
        ("acos", "acos at 1 or -1", "infinite at 1 and -1"),
        ("linalgsvd", "svd with repeated singular values", "that are equal"),
        ("", "", "no finite derivative where it was used"),
    ],
)
def test_names_the_mechanism(operation, detail, cause):
    (finding,) = play(NonFiniteGradient, replace(BAD, operation=operation, detail=detail))
    assert cause in finding.cause


def test_float16():
    (finding,) = play(NonFiniteGradient, replace(BAD, operation="", detail="", dtype="float16", kind="inf"))
    assert "65504" in finding.cause


def test_near_miss_the_loss_was_first():
    assert play(NonFiniteGradient, LossNotFinite()) == []


def test_near_miss_nothing_happened():
    assert play(NonFiniteGradient) == []


AGAIN = NonFiniteReplayed(
    step=3,
    where=Where("/home/me/model.py", 31),
    operation="SqrtBackward0: div",
    phase="backward",
    module="dist",
    code="return d.sqrt()",
    low=0.0,
    high=6.25,
    rows=(5,),
    samples=8,
    indices=(77,),
    file="nonfinite-step3.pt",
)


def test_says_what_doing_it_again_has_shown():
    (finding,) = play(NonFiniteGradient, AGAIN, replace(BAD, operation="", module="", detail=""))
    assert finding.message.endswith(
        "; done again on a copy, SqrtBackward0: div made nan in the backward of dist (model.py:31 `return d.sqrt()`), "
        "inputs from 0 to 6.25, sample 5 of 8, data set index 77"
    )
    assert finding.cause.startswith("sqrt of 0: the value is fine")
    assert finding.evidence["batch_file"] == "nonfinite-step3.pt"
    assert finding.evidence["samples"] == "5"


def test_near_miss_another_step_was_done_again():
    (finding,) = play(NonFiniteGradient, replace(AGAIN, step=2), BAD)
    assert "again" not in finding.message
    assert "batch_file" not in finding.evidence


def test_near_miss_doing_it_again_has_shown_nothing():
    assert play(NonFiniteGradient, AGAIN) == []
    (finding,) = play(NonFiniteGradient, replace(AGAIN, operation="", file=""), BAD)
    (plain,) = play(NonFiniteGradient, BAD)
    assert (finding.message, finding.cause) == (plain.message, plain.cause)


AFTER = LossNotFinite(
    step=156,
    where=Where("train.py", 40),
    value="nan",
    last_finite=0.0113,
    last_finite_step=155,
    first_finite=0.9,
    largest=1.2,
    origin=Origin(kind="weights", detail="0.weight", count=16, total=16),
    gradient_note="acos, div",
    lr=2e-3,
    optimizer="AdamW",
)


def test_fires_on_weights_that_a_step_between_the_samples_broke():
    (finding,) = play(NonFiniteGradient, AFTER)
    assert finding.message == (
        "loss 0.0113 is finite at step 155, and after that step 16 of 16 parameters are not, 0.weight first; the graph has acos, "
        "div"
    )
    assert finding.cause.startswith("as far as the graph tells, the derivative of acos is infinite at 1 and -1")


def test_says_less_of_operations_that_have_an_end():
    (finding,) = play(NonFiniteGradient, replace(AFTER, gradient_note="log, div in head"))
    assert finding.cause.startswith(
        "as far as the graph tells, an operation of the forward pass has no finite derivative"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"lr": 0.5},
        {"largest": 400.0},
        {"gradient_note": ""},
        {"data_note": "X holds 1 number that is not finite, among 20,000, first in row 1203"},
        {"last_finite": None},
        {"scaled": True},
        {"origin": Origin(kind="operation", operation="log")},
    ],
)
def test_near_miss_of_weights_that_broke_otherwise(changed):
    assert play(NonFiniteGradient, replace(AFTER, **changed)) == []


def test_near_miss_gradients_that_were_sampled_and_finite():
    layer = LayerNumbers(name="0.weight", gradient_rms=0.1)
    assert play(NonFiniteGradient, NumbersSampled(step=155, layers=(layer,)), AFTER) == []


def test_the_gradient_is_told_once():
    assert len(play(NonFiniteGradient, BAD, replace(AFTER, step=4))) == 1
