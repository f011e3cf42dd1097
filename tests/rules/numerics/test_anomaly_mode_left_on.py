import pytest

from flatline.events import GradientNotFinite, LossNotFinite, PrecisionObserved
from flatline.rules.numerics.anomaly_mode_left_on import AnomalyModeLeftOn
from flatline.testing import lint, play

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


@pytest.mark.parametrize(
    "code",
    [
        "torch.autograd.set_detect_anomaly(True)",
        "def main():\n    torch.autograd.set_detect_anomaly(mode=True)",
        "for x in data:\n    with torch.autograd.detect_anomaly():\n        loss.backward()",
    ],
)
def test_source_always_on(code):
    """Seen as a SourceParsed."""
    assert len(lint(AnomalyModeLeftOn, f"import torch\n{code}")) == 1


@pytest.mark.parametrize(
    "code",
    [
        "torch.autograd.set_detect_anomaly(args.debug)",
        "torch.autograd.set_detect_anomaly(False)",
        "if debug:\n    torch.autograd.set_detect_anomaly(True)",
        "with torch.autograd.set_detect_anomaly(True):\n    pass",
    ],
)
def test_near_miss_source_on_demand(code):
    assert lint(AnomalyModeLeftOn, f"import torch\n{code}") == []
