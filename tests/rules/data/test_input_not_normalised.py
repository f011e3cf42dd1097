from flatline.events import ForwardObserved, LayerInput
from flatline.rules.data.input_not_normalised import InputNotNormalised
from flatline.testing import play


def forwards(rms, *, steps=3, low=-600.0, high=4800.0, **facts):
    layer = LayerInput(layer="c1", kind="Conv2d", rms=rms, low=low, high=high, **facts)
    return [ForwardObserved(step=step, first_layer=layer) for step in range(1, steps + 1)]


def test_fires_on_raw_scans():
    (finding,) = play(InputNotNormalised, *forwards(1730.0))
    assert finding.severity == "warning"
    assert finding.message == (
        "the input of c1 (Conv2d), the first layer, ranges from -600 to 4800, rms 1.73e+03, and no normalisation follows"
    )
    assert "(x - mean) / std" in finding.fix


def test_near_miss_images_of_0_to_255():
    assert play(InputNotNormalised, *forwards(147.0, steps=9, low=0.0, high=255.0)) == []


def test_near_miss_normalised_next():
    assert play(InputNotNormalised, *forwards(1730.0, steps=9, normalised_next=True)) == []


def test_near_miss_outlier_batches():
    assert play(InputNotNormalised, *forwards(1730.0, steps=2), *forwards(1.0), *forwards(900.0, steps=2)) == []


def test_near_miss_not_finite_or_unknown():
    assert play(InputNotNormalised, *forwards(float("inf"), steps=9), *forwards(float("nan"), steps=9)) == []
    assert play(InputNotNormalised, *[ForwardObserved(step=step) for step in range(9)]) == []
