from flatline.events import LossNotFinite, ScaledLossRead, ScalerObserved, Where
from flatline.rules.numerics.loss_logged_scaled import LossLoggedScaled
from flatline.testing import play


def test_fires():
    event = ScaledLossRead(step=1, where=Where("train.py", 20), statement="total += loss.item()")
    (finding,) = play(LossLoggedScaled, event)
    assert (finding.code, finding.where) == ("N3", Where("train.py", 20))
    assert finding.message == "`total += loss.item()` reads the loss times 65536, the scale of GradScaler"


def test_near_miss_a_scaler_alone():
    assert play(LossLoggedScaled, ScalerObserved()) == []


def test_near_miss_a_loss_that_is_not_finite():
    assert play(LossLoggedScaled, LossNotFinite(scaled=True)) == []
