from flatline.events import LossNotFinite, ScaledLossRead, ScalerObserved, Where
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
