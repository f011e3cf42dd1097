from flatline.events import HistogramFacts, HistogramsTaken
from flatline.rules.optimization.distribution_collapsed import DistributionCollapsed
from flatline.testing import play

WIDE = HistogramFacts(name="fc.weight", low=-0.1, high=0.1, counts=(10,) * 10)
SPIKE = HistogramFacts(name="fc.weight", low=-0.2, high=9.0, counts=(95, *[0] * 8, 5))
ONE = HistogramFacts(name="fc.weight", low=1.0, high=1.0, counts=(100, *[0] * 9))


def taken(*histograms, what="weights", steps=(1, 50, 120, 180, 260, 400)):
    shown = [*histograms, *[histograms[-1]] * len(steps)]
    return [HistogramsTaken(step=step, what=what, histograms=(each,)) for step, each in zip(steps, shown, strict=False)]


def test_hints_at_weights_that_ran_away():
    (finding,) = play(DistributionCollapsed, *taken(WIDE, SPIKE))
    assert (finding.severity, finding.step) == ("hint", 260)
    assert finding.message == (
        "95% of the weights of fc.weight lie in one 10th of their range (-0.2 to 9); at the start 10% of -0.1 to 0.1"
    )


def test_hints_at_a_layer_that_makes_one_number():
    (finding,) = play(DistributionCollapsed, *taken(WIDE, ONE, what="activations"))
    assert finding.message == "what fc.weight makes is 1 everywhere, where it went from -0.1 to 0.1"


def test_near_miss_a_spike_from_the_start():
    assert play(DistributionCollapsed, *taken(SPIKE)) == []


def test_near_miss_a_shape_that_comes_and_goes():
    assert play(DistributionCollapsed, *taken(WIDE, WIDE, SPIKE, SPIKE, WIDE, SPIKE)) == []


def test_near_miss_a_layer_of_zeros_by_half():
    half = HistogramFacts(name="relu", low=0.0, high=3.0, counts=(95, *[1] * 5))
    assert play(DistributionCollapsed, *taken(WIDE, half, what="activations")) == []
    assert play(DistributionCollapsed, *taken(WIDE)) == []
