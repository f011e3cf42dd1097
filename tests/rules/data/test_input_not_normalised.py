from flatline.events import DeadFacts, ForwardObserved, LayerInput
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


DEAD = {"layer": "1", "units": 8, "dead": 8, "looks": 3, "lasting": 8, "total": 400, "first_bias": -0.02}


def died(rms=150.0, *, normalised_next=False, **facts):
    raw = forwards(rms, low=0.0, high=255.0, normalised_next=normalised_next)
    return [*raw, ForwardObserved(step=3, dead=(DeadFacts(**{**DEAD, **facts}),))]


def test_fires_on_pictures_that_killed_a_layer():
    (finding,) = play(InputNotNormalised, *died())
    assert finding.message == (
        "the input of c1 (Conv2d), the first layer, ranges from 0 to 255, rms 150, and no normalisation follows; "
        "8 of 8 units of the ReLU 1 are zero on the 400 newest samples"
    )


def test_near_miss_dead_units_under_ordinary_inputs():
    assert play(InputNotNormalised, *died(1.0)) == []
    assert play(InputNotNormalised, *died(normalised_next=True)) == []
    assert play(InputNotNormalised, ForwardObserved(step=3, dead=(DeadFacts(**DEAD),))) == []


def test_near_miss_pictures_and_units_that_live():
    assert play(InputNotNormalised, *died(lasting=7)) == []
    assert play(InputNotNormalised, *died(dead=7, lasting=7)) == []
    assert play(InputNotNormalised, *died(lasting=None, looks=1, total=40)) == []
    assert play(InputNotNormalised, *died(units=4, dead=4, lasting=4)) == []
    assert play(InputNotNormalised, *died(layer="")) == []


def test_near_miss_biases_that_kill_at_any_input():
    assert play(InputNotNormalised, *died(first_bias=-20.0)) == []


def test_near_miss_two_models():
    other = ForwardObserved(step=1, model="other", first_layer=LayerInput(layer="c1", rms=1.0))
    assert play(InputNotNormalised, other, *died()) == []
