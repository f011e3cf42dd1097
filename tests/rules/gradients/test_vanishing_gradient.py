from flatline.events import LayerNumbers, NumbersSampled
from flatline.rules.gradients.vanishing_gradient import VanishingGradient
from flatline.testing import play


def sampled(*gradients, steps=3, matrix=True, depth=0):
    layers = tuple(
        LayerNumbers(name=f"net.{i}", depth=i + depth, gradient_rms=g, weight_rms=0.1, matrix=matrix)
        for i, g in enumerate(gradients)
    )
    return [NumbersSampled(step=step, index=step, layers=layers) for step in range(1, steps + 1)]


def test_fires_on_ten_sigmoids():
    (finding,) = play(VanishingGradient, *sampled(*[1e-3 * 0.1 ** (9 - i) for i in range(10)]))
    assert finding.severity == "warning"
    assert finding.message == (
        "the gradient fades with depth: rms 1e-12 at net.0 against 0.001 at net.9, over 10 weight matrices (0.1 × per layer)"
    )
    assert "ReLU" in finding.fix


def test_fires_past_layers_that_underflowed():
    gradients = [0.0, 0.0] + [1e-3 * 0.1 ** (7 - i) for i in range(8)]
    assert len(play(VanishingGradient, *sampled(*gradients))) == 1


def test_near_miss_two_samples():
    assert play(VanishingGradient, *sampled(*[1e-3 * 0.1 ** (9 - i) for i in range(10)], steps=2)) == []


def test_near_miss_healthy_depth():
    assert play(VanishingGradient, *sampled(2e-3, 1e-3, 3e-3, 2e-3, 4e-3, 5e-3)) == []


def test_near_miss_frozen_or_dead_layers():
    assert play(VanishingGradient, *sampled(0.0, 0.0, 0.0, 1e-3, 2e-3, 3e-3)) == []


def test_near_miss_one_small_embedding():
    assert play(VanishingGradient, *sampled(1e-9, 1e-3, 2e-3, 1e-3, 3e-3, 2e-3)) == []


def test_near_miss_few_layers_or_biases():
    assert play(VanishingGradient, *sampled(1e-12, 1e-9, 1e-6, 1e-3)) == []
    assert play(VanishingGradient, *sampled(*[0.1 ** (9 - i) for i in range(10)], matrix=False)) == []


def test_near_miss_order_unknown():
    assert play(VanishingGradient, *sampled(*[0.1 ** (9 - i) for i in range(10)], depth=-20)) == []
