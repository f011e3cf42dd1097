from flatline.events import LayerNumbers, NumbersSampled, OptimizerFacts
from flatline.rules.gradients.layer_scales_apart import LayerScalesApart
from flatline.testing import play

ADAM = OptimizerFacts(key=1, name="Adam", adaptive=True)


def run(low, high, *, count=12, optimizer=None, kind="Linear"):
    layers = (LayerNumbers(name="a", gradient_rms=low, kind=kind), LayerNumbers(name="b", gradient_rms=high))
    facts = optimizer or OptimizerFacts()
    return [NumbersSampled(step=i + 1, index=i + 1, layers=layers, optimizer=facts) for i in range(count)]


def test_fires_as_a_hint():
    (finding,) = play(LayerScalesApart, *run(1e-7, 1e-2))
    assert finding.severity == "hint"
    assert finding.message == "gradients lie 1.0e+05-fold apart: rms 0.01 at b, 1e-07 at a"


def test_near_miss_adam_embeddings_or_frozen():
    assert play(LayerScalesApart, *run(1e-7, 1e-2, optimizer=ADAM)) == []
    assert play(LayerScalesApart, *run(1e-7, 1e-2, kind="Embedding")) == []
    assert play(LayerScalesApart, *run(0.0, 1e-2)) == []


def test_near_miss_a_thousandfold_or_for_a_moment():
    assert play(LayerScalesApart, *run(1e-5, 1e-2)) == []
    assert play(LayerScalesApart, *run(1e-7, 1e-2, count=5)) == []


def test_near_miss_step_by_hand_that_may_be_adaptive():
    assert not play(LayerScalesApart, *run(1e-9, 1e-2, optimizer=OptimizerFacts(name="a step by hand", by_hand=True)))
