from dataclasses import replace

from flatline.events import LayerNumbers, NumbersSampled, OptimizerFacts, OptimizerStateSampled
from flatline.rules.precision.second_moment_underflow import SecondMomentUnderflow
from flatline.testing import play

ADAM = OptimizerFacts(name="Adam", adaptive=True)
GONE = OptimizerStateSampled(
    optimizer=ADAM, parameters="float16", state="float16", eps=1e-4, squares=1000, squares_zero=900
)


def test_fires():
    (finding,) = play(SecondMomentUnderflow, GONE, GONE, GONE)
    assert (finding.code, finding.severity) == ("FP2", "warning")
    assert "exactly 0 for 90% of the gradients that are not 0" in finding.message


def test_near_miss_some_are_zero():
    assert play(SecondMomentUnderflow, *[replace(GONE, squares_zero=100)] * 5) == []


def test_fires_in_float32_where_nearly_all_is_gone():
    wide = replace(GONE, state="float32", parameters="float32", eps=1e-8, squares_zero=970)
    (finding,) = play(SecondMomentUnderflow, wide, wide, wide)
    assert "below 1e-21" in finding.cause
    assert "eps=1e-08" in finding.cause
    assert "factor" in finding.fix


def test_near_miss_other_dtypes():
    for dtype in ("float32", "bfloat16", ""):
        assert play(SecondMomentUnderflow, *[replace(GONE, state=dtype, squares_zero=890)] * 5) == []
    for dtype in ("float64", "uint8", ""):
        assert play(SecondMomentUnderflow, *[replace(GONE, state=dtype, squares_zero=1000)] * 5) == []


def test_near_miss_an_optimizer_with_rules_of_its_own():
    assert play(SecondMomentUnderflow, *[replace(GONE, state="float32", squares_zero=1000, stock=False)] * 5) == []


def test_near_miss_filling_up():
    fuller = replace(GONE, squares_zero=100)
    assert play(SecondMomentUnderflow, GONE, GONE, fuller, GONE, GONE, fuller) == []
    assert play(SecondMomentUnderflow, *[replace(GONE, squares=10, squares_zero=10)] * 5) == []


def step(index, loss, update=40.0):
    layers = (LayerNumbers(name="a", update_ratio=update), LayerNumbers(name="b", update_ratio=update))
    return NumbersSampled(optimizer=ADAM, index=index, layers=layers, loss=loss, first_loss=0.7)


FULL = replace(GONE, squares_zero=10, index=2)


def test_fires_after_one_step_that_threw_the_weights():
    for begin in ([GONE, step(1, 0.7)], [step(1, 0.7), GONE]):
        (finding,) = play(SecondMomentUnderflow, *begin, FULL, step(2, 3e6))
        assert "at step 1 it was exactly 0 for 90%" in finding.message
        assert "40 times their size" in finding.message


def test_fires_where_the_next_loss_is_no_number_and_explains_it():
    (finding,) = play(SecondMomentUnderflow, GONE, step(1, 0.7), FULL, step(2, float("nan")))
    assert {"N1", "N2", "O28", "C11"} <= set(finding.consequences)


def test_near_miss_the_first_step_was_of_usual_size():
    assert play(SecondMomentUnderflow, GONE, step(1, 0.7, update=0.01), FULL, step(2, 3e6)) == []


def test_near_miss_the_loss_stayed_in_bounds():
    assert play(SecondMomentUnderflow, GONE, step(1, 0.7), FULL, step(2, 1.4)) == []


def test_near_miss_the_mean_squares_were_there_when_the_weights_leapt():
    assert play(SecondMomentUnderflow, replace(GONE, squares_zero=150), step(1, 0.7), FULL, step(2, 3e6)) == []
    wide = replace(GONE, state="float32")
    assert play(SecondMomentUnderflow, wide, step(1, 0.7), FULL, step(2, 3e6)) == []
    assert play(SecondMomentUnderflow, GONE, step(1, 0.7, update=0.01), FULL, step(2, 3e6), step(3, 3e6)) == []
