from flatline.events import LossNotFinite, Origin, ScalerObserved, Where
from flatline.rules.optimization.loss_scale_collapse import LossScaleCollapse
from flatline.testing import play

FALLEN = ScalerObserved(step=3, where=Where("train.py", 60), scale=0.5, updates=19, skipped=17, in_a_row=17, newer=17)


def test_fires_below_one():
    (finding,) = play(LossScaleCollapse, FALLEN)
    assert finding.code == "O24"
    assert finding.severity == "warning"
    assert finding.message == "the loss scale fell from 65536 to 0.5: 17 of 19 steps were skipped"
    assert "not finite at any scale though the loss is" in finding.cause


def test_fires_on_skips_that_go_on():
    event = ScalerObserved(scale=64.0, updates=60, skipped=15, in_a_row=1, older=5, newer=5)
    assert len(play(LossScaleCollapse, event)) == 1


def test_names_the_forward_that_overflows():
    origin = Origin(kind="operation", operation="addmm", detail="inf in the input of addmm", module="fc2")
    (finding,) = play(LossScaleCollapse, LossNotFinite(scaled=True, origin=origin, in_a_row=4), FALLEN)
    assert "not finite before it is scaled (inf in the input of addmm in fc2)" in finding.cause


def test_fires_on_a_scaler_that_is_made_anew_in_each_step():
    event = ScalerObserved(where=Where("train.py", 49), scale=32768.0, skipped=1, in_a_row=1, begun=20, lately=20)
    (finding,) = play(LossScaleCollapse, event)
    assert finding.severity == "error"
    assert finding.message == (
        "20 of the optimizer's last steps were skipped: 20 GradScalers were made for them, and each begins at a scale of 65536"
    )
    assert "make the GradScaler once" in finding.fix


def test_near_miss_a_scaler_for_each_epoch_that_soon_finds_its_scale():
    assert play(LossScaleCollapse, ScalerObserved(scale=8192.0, skipped=3, newer=3, begun=5, lately=15)) == []


def test_near_miss_scalers_of_several_losses_that_calibrate_beside_each_other():
    assert play(LossScaleCollapse, ScalerObserved(scale=2048.0, skipped=7, newer=7, begun=3, lately=21)) == []


def test_near_miss_calibration():
    calm = ScalerObserved(scale=256.0, updates=40, skipped=8, in_a_row=0, older=8, newer=0)
    assert play(LossScaleCollapse, calm, ScalerObserved(scale=256.0, updates=8, skipped=8, in_a_row=8, newer=8)) == []


def test_near_miss_calibration_of_a_large_first_scale():
    event = ScalerObserved(scale=2.0**8, first_scale=2.0**32, updates=40, skipped=24, older=20, newer=4)
    assert play(LossScaleCollapse, event) == []


def test_near_miss_short_growth_interval():
    event = ScalerObserved(
        scale=1024.0, first_scale=2048.0, updates=200, skipped=50, older=6, newer=6, growth_interval=3
    )
    assert play(LossScaleCollapse, event) == []


def test_near_miss_a_scale_that_began_at_one():
    event = ScalerObserved(scale=0.5, first_scale=1.0, updates=4000, skipped=2, in_a_row=1, newer=1)
    assert play(LossScaleCollapse, event) == []


def test_near_miss_another_fault_than_the_range():
    for event in (
        LossNotFinite(scaled=True, origin=Origin(kind="weights")),
        LossNotFinite(scaled=True, origin=Origin(kind="inputs")),
        LossNotFinite(scaled=True, first_finite=1.0, largest=1e4),
        LossNotFinite(scaled=True, origin=Origin(kind="operation", operation="log", detail="log of 0")),
    ):
        assert play(LossScaleCollapse, event, FALLEN) == []
