from flatline.events import LayerNumbers, NumbersSampled
from flatline.rules.weights.weight_norm_runaway import WeightNormRunaway
from flatline.testing import play


def run(weights, losses, *, matrix=True):
    return [
        NumbersSampled(
            step=2 * i + 1,
            index=2 * i + 1,
            layers=(
                LayerNumbers(name="net.0", weight_rms=w, matrix=matrix),
                LayerNumbers(name="net.2", weight_rms=0.1),
            ),
            loss=loss,
            first_loss=losses[0],
        )
        for i, (w, loss) in enumerate(zip(weights, losses, strict=True))
    ]


GROWING = [0.05 * 1.1**i for i in range(40)]
STILL = [2.3] * 40


def test_fires_on_growth_without_end():
    (finding,) = play(WeightNormRunaway, *run(GROWING, STILL))
    assert finding.severity == "warning"
    assert "the weights of net.0 grew" in finding.message
    assert "1 of 2 weight matrices" in finding.message


def test_fires_when_the_loss_runs_to_minus_infinity():
    assert len(play(WeightNormRunaway, *run(GROWING, [2.0 - i for i in range(40)]))) == 1


def test_fires_on_geometric_growth_though_the_loss_falls():
    """A decay with the wrong sign: the same share at every step."""
    assert len(play(WeightNormRunaway, *run(GROWING, [2.3 * 0.9**i for i in range(40)]))) == 1


def test_near_miss_growth_that_slows_under_a_falling_loss():
    slowing = [0.01 + 0.02 * i for i in range(40)]
    assert play(WeightNormRunaway, *run(slowing, [2.3 * 0.9**i for i in range(40)])) == []


def test_near_miss_growth_that_levels_off():
    assert play(WeightNormRunaway, *run([0.05 * min(1.5**i, 12.0) for i in range(40)], STILL)) == []


def test_near_miss_zero_initialised():
    assert play(WeightNormRunaway, *run([1e-5 * 1.3**i for i in range(40)], STILL)) == []


def test_near_miss_small_logits_that_begin_to_choose():
    assert play(WeightNormRunaway, *run([0.01 * 1.1**i for i in range(40)], STILL)) == []


def test_near_miss_an_image_that_is_optimised():
    free = [
        NumbersSampled(step=i, index=i, layers=(LayerNumbers(weight_rms=0.1 * 1.2**i, depth=-1),), loss=-float(i))
        for i in range(1, 41)
    ]
    assert play(WeightNormRunaway, *free) == []


def test_near_miss_a_bias_or_little_growth():
    assert play(WeightNormRunaway, *run(GROWING, STILL, matrix=False)) == []
    assert play(WeightNormRunaway, *run([0.05 * 1.03**i for i in range(40)], STILL)) == []
