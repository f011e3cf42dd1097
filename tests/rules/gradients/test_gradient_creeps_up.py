from flatline.events import LayerNumbers, NumbersSampled
from flatline.rules.gradients.gradient_creeps_up import GradientCreepsUp
from flatline.testing import play


def run(gradients, losses, *, lr=lambda i: 1e-3):
    return [
        NumbersSampled(
            step=4 * i + 1,
            index=4 * i + 1,
            lr=lr(i),
            layers=(LayerNumbers(name="a", gradient_rms=g), LayerNumbers(name="b", gradient_rms=g)),
            loss=loss,
        )
        for i, (g, loss) in enumerate(zip(gradients, losses, strict=True))
    ]


RISING = [1e-3 * 1.1**i for i in range(60)]
STILL = [2.0 + 0.001 * i for i in range(60)]


def test_fires_on_a_steady_rise_without_learning():
    (finding,) = play(GradientCreepsUp, *run(RISING, STILL))
    assert finding.severity == "warning"
    assert finding.message.startswith("the gradient grew ")
    assert finding.evidence["rising"] == 1.0


def test_near_miss_the_loss_falls():
    assert play(GradientCreepsUp, *run(RISING, [2.0 - 0.02 * i for i in range(60)])) == []


def test_near_miss_warm_up():
    assert play(GradientCreepsUp, *run(RISING, STILL, lr=lambda i: 1e-5 * (i + 1))) == []


def test_near_miss_noise_or_little_growth():
    noise = [1e-3 * (30 if i % 2 else 1) for i in range(60)]
    assert play(GradientCreepsUp, *run(noise, STILL)) == []
    assert play(GradientCreepsUp, *run([1e-3 * 1.02**i for i in range(60)], STILL)) == []


def test_near_miss_it_began_at_nothing():
    assert play(GradientCreepsUp, *run([1e-9 * 1.1**i for i in range(60)], STILL)) == []


def test_near_miss_short_run():
    assert play(GradientCreepsUp, *run(RISING[:20], STILL[:20])) == []
