from dataclasses import replace

from flatline.events import OverflowHidden
from flatline.rules.precision.squares_overflow import SquaresOverflow
from flatline.testing import play

HIDDEN = OverflowHidden(step=1, place="norm", largest=9600.0, share=1.0)


def steps(event, count):
    return [replace(event, step=step) for step in range(1, count + 1)]


def test_fires():
    (finding,) = play(SquaresOverflow, *steps(HIDDEN, 3))
    assert (finding.code, finding.severity) == ("FP5", "error")
    assert "numbers up to 9600 is inf in float16, and 100% of what is divided by it became 0" in finding.message


def test_some_samples_are_a_warning():
    (finding,) = play(SquaresOverflow, *steps(replace(HIDDEN, share=0.4), 3))
    assert finding.severity == "warning"


def test_near_miss_few_steps():
    assert play(SquaresOverflow, *steps(HIDDEN, 2)) == []
    assert play(SquaresOverflow, *[HIDDEN] * 5) == []


def test_near_miss_outliers():
    assert play(SquaresOverflow, *steps(replace(HIDDEN, share=0.05), 8)) == []


def test_near_miss_other_places():
    assert play(SquaresOverflow, HIDDEN, replace(HIDDEN, step=2, place="a"), replace(HIDDEN, step=3, place="b")) == []
