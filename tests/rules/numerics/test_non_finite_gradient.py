from dataclasses import replace

import pytest

from flatline.events import GradientNotFinite, LossNotFinite, Where
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
