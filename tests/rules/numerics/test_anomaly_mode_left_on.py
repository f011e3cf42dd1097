from flatline.events import GradientNotFinite, LossNotFinite, PrecisionObserved
from flatline.rules.numerics.anomaly_mode_left_on import AnomalyModeLeftOn
from flatline.testing import play

EARLY = PrecisionObserved(step=5, anomaly_mode=True)
LATE = PrecisionObserved(step=135, anomaly_mode=True)


def test_fires():
    (finding,) = play(AnomalyModeLeftOn, EARLY, LATE)
    assert (finding.code, finding.severity) == ("N4", "warning")
    assert finding.message == "anomaly mode is on since the start, 135 steps, and found nothing"


def test_near_miss_a_short_run():
    assert play(AnomalyModeLeftOn, EARLY, PrecisionObserved(step=90, anomaly_mode=True)) == []


def test_near_miss_it_found_something():
    assert play(AnomalyModeLeftOn, EARLY, LossNotFinite(), LATE) == []
    assert play(AnomalyModeLeftOn, EARLY, GradientNotFinite(), LATE) == []


def test_near_miss_around_single_batches():
    assert play(AnomalyModeLeftOn, PrecisionObserved(step=5), LATE) == []
