from dataclasses import replace

from flatline.events import OptimizerFacts, OptimizerStateSampled, Where
from flatline.rules.optimization.epsilon_vanishes import EpsilonVanishes
from flatline.testing import play

ADAM = OptimizerFacts(name="Adam", adaptive=True, where=Where("train.py", 5))
GONE = OptimizerStateSampled(optimizer=ADAM, parameters="float16", state="float16", eps=1e-8, eps_stored=0.0)


def test_fires():
    (finding,) = play(EpsilonVanishes, GONE)
    assert (finding.code, finding.severity, finding.where) == ("O10", "warning", Where("train.py", 5))
    assert finding.message == "eps=1e-08 of Adam is 0 in float16, in which it keeps its state"


def test_error_where_the_squares_are_zero_too():
    (finding,) = play(EpsilonVanishes, replace(GONE, squares=100, squares_zero=90))
    assert finding.severity == "error"
    assert finding.message.endswith("v is exactly 0 for 90 of 100 sampled gradients that are not 0")


def test_near_miss_float32_and_bfloat16():
    for dtype in ("float32", "bfloat16"):
        assert play(EpsilonVanishes, replace(GONE, state=dtype, eps_stored=1e-8)) == []


def test_near_miss_an_eps_that_fits():
    assert play(EpsilonVanishes, replace(GONE, eps=1e-4, eps_stored=1e-4)) == []


def test_near_miss_fused_or_not_of_torch():
    assert play(EpsilonVanishes, replace(GONE, fused=True)) == []
    assert play(EpsilonVanishes, replace(GONE, stock=False)) == []


def test_near_miss_no_state():
    assert play(EpsilonVanishes, OptimizerStateSampled(eps=None, eps_stored=None)) == []
    assert play(EpsilonVanishes, OptimizerStateSampled(eps=0.0, eps_stored=0.0, state="float32")) == []
