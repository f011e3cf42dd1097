from flatline.events import (
    InputsObserved,
    LossComputed,
    LossesRead,
    LossNotFinite,
    RunEnded,
    ScaledLossRead,
    ScalerObserved,
    Where,
)
from flatline.rules.numerics.loss_logged_scaled import LossLoggedScaled
from flatline.testing import play


def test_fires():
    event = ScaledLossRead(step=1, where=Where("train.py", 20), statement="total += loss.item()")
    (finding,) = play(LossLoggedScaled, event)
    assert (finding.code, finding.where) == ("N3", Where("train.py", 20))
    assert finding.message == "`total += loss.item()` reads the loss times 65536, the scale of GradScaler"


def test_fires_on_the_share_of_an_accumulated_step():
    event = ScaledLossRead(step=1, where=Where("train.py", 63), statement="mean = total / n", scale=0.25, backwards=4)
    (finding,) = play(LossLoggedScaled, event)
    assert (finding.severity, finding.key) == ("warning", "divided")
    assert finding.message == (
        "`mean = total / n` takes the loss times 0.25 for the loss: its share in one of the 4 backwards of a step"
    )
    assert "(loss / steps).backward()" in finding.fix


def test_near_miss_a_scaler_alone():
    assert play(LossLoggedScaled, ScalerObserved()) == []


def test_near_miss_a_loss_that_is_not_finite():
    assert play(LossLoggedScaled, LossNotFinite(scaled=True)) == []


def by_samples(*, reduction="mean", rows=128, loss=1.25, level=0.05):
    """A sum of means over batches, divided by the number of samples, at the end of the run."""
    told = ScaledLossRead(
        step=1, statement="total / len(loader.dataset)", scale=1.0, stops="mean < TARGET", level=level
    )
    read = LossesRead(step=200, steps=tuple(range(1, 201)), losses=(loss,) * 200, rates=(0.1,) * 200)
    return play(LossLoggedScaled, LossComputed(reduction=reduction, shape=(rows, 1)), told, read, RunEnded(step=200))


def test_fires_on_a_stop_by_a_sum_of_means_over_samples():
    (finding,) = by_samples()
    assert finding.severity == "warning"
    assert finding.message == (
        "`total / len(loader.dataset)` divides means over batches of 128 by the number of samples once more, and `if mean < "
        "TARGET` ends the training by it: at a loss of 1.25, where 0.05 was asked for"
    )


def test_near_miss_a_stop_that_is_right():
    assert by_samples(reduction="sum") == []
    assert by_samples(rows=1) == []


def test_near_miss_a_stop_that_was_not_reached_or_is_none():
    assert by_samples(loss=0.04) == []
    assert by_samples(loss=20.0) == []
    assert play(LossLoggedScaled, LossComputed(shape=(128, 1)), RunEnded(step=200)) == []


def by_a_margin(*, margin=1e-3, loss=0.9, rows=448, samples=64):
    """The same, where it has to come down by ``margin`` from pass to pass."""
    told = ScaledLossRead(step=1, statement="total / len(loader.dataset)", stops="value < best - delta", margin=margin)
    read = LossesRead(step=200, steps=tuple(range(1, 201)), losses=(loss,) * 200, rates=(0.1,) * 200)
    inputs = InputsObserved(rows=samples)
    return play(LossLoggedScaled, LossComputed(shape=(rows, 6)), inputs, told, read, RunEnded(step=200))


def test_fires_on_a_least_improvement_of_a_sum_of_means_over_samples():
    (finding,) = by_a_margin()
    assert finding.message == (
        "`total / len(loader.dataset)` divides means over batches of 64 by the number of samples once more, and `value < best - "
        "delta` asks it to come down by 0.001: that is 0.064 of the loss itself, which is 0.9"
    )


def test_near_miss_a_least_improvement_that_stays_small_or_was_large_anyway():
    assert by_a_margin(margin=1e-5) == []
    assert by_a_margin(loss=0.01) == []
    assert by_a_margin(samples=4) == []
