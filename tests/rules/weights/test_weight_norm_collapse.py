from flatline.events import LayerNumbers, NumbersSampled
from flatline.rules.weights.weight_norm_collapse import WeightNormCollapse
from flatline.testing import play


def run(shrink, losses, *, decay=1.0, lr=0.1):
    return [
        NumbersSampled(
            step=i + 1,
            index=i + 1,
            layers=tuple(
                LayerNumbers(name=n, weight_rms=0.1 * shrink**i, weight_decay=decay, learning_rate=lr) for n in "ab"
            ),
            loss=loss,
            first_loss=losses[0],
        )
        for i, loss in enumerate(losses)
    ]


def test_fires_when_decay_takes_everything():
    (finding,) = play(WeightNormCollapse, *run(0.9, [2.3] * 40))
    assert finding.severity == "warning"
    assert "decay takes 10.00% of them at every step (lr 0.1 × weight_decay 1)" in finding.message
    assert finding.fix.startswith("lower weight_decay from 1 to about 0.0001")


def test_near_miss_the_loss_falls():
    assert play(WeightNormCollapse, *run(0.9, [2.3 * 0.95**i for i in range(40)])) == []


def test_near_miss_shrinking_without_decay_to_blame():
    assert play(WeightNormCollapse, *run(0.9, [2.3] * 40, decay=1e-4)) == []
    assert play(WeightNormCollapse, *run(0.9, [2.3] * 40, decay=0.0)) == []


def test_near_miss_ordinary_decay():
    assert play(WeightNormCollapse, *run(0.999, [2.3] * 40)) == []
