from flatline.events import DeadFacts, ForwardObserved, LayerNumbers, NumbersSampled, Where
from flatline.rules.optimization.dead_units import DeadUnits
from flatline.testing import play

LEARNING = NumbersSampled(layers=(LayerNumbers(gradient_rms=0.0), LayerNumbers(gradient_rms=1e-3)))


def seen(*dead, layer="1", units=64, samples=100):
    return [
        ForwardObserved(
            step=step,
            where=Where("train.py", 30),
            dead=(DeadFacts(layer=layer, units=units, dead=count, samples=samples),),
        )
        for step, count in enumerate(dead, 1)
    ]


def test_fires_on_a_layer_that_is_dead():
    (finding,) = play(DeadUnits, *seen(64, 64, 64))
    assert finding.severity == "error"
    assert finding.message == "64 of 64 units of the ReLU 1 are zero on all 100 samples at step 3, in 3 steps looked at"
    assert "dead when first seen" in finding.cause
    assert "start biases at 0" in finding.fix


def test_warns_of_a_layer_that_dies():
    (finding,) = play(DeadUnits, *seen(5, 58, 60, 62))
    assert finding.severity == "warning"
    assert "died in training" in finding.cause
    assert "learning rate" in finding.fix


def test_layers_that_are_dead_together_are_one_finding():
    facts = tuple(DeadFacts(layer=name, units=64, dead=64, samples=100) for name in ("1", "3"))
    (finding,) = play(DeadUnits, *[ForwardObserved(step=step, dead=facts) for step in (1, 2, 3)])
    assert finding.message.endswith("; the same in the ReLU 3")


def test_fires_without_a_module_where_something_still_learns():
    (finding,) = play(DeadUnits, LEARNING, *seen(64, 64, 64, layer=""))
    assert "the ReLU number 1 of the graph" in finding.message


def test_near_miss_hinge_loss_satisfied():
    silent = NumbersSampled(layers=(LayerNumbers(gradient_rms=0.0),))
    assert play(DeadUnits, silent, *seen(64, 64, 64, layer="")) == []
    assert play(DeadUnits, LEARNING, *seen(60, 61, 62, layer="")) == []


def test_near_miss_ordinary_sparsity():
    assert play(DeadUnits, *seen(*[32] * 9)) == []
    assert play(DeadUnits, *seen(*[57] * 9)) == []


def test_near_miss_small_batch_or_few_units():
    assert play(DeadUnits, *seen(*[64] * 9, samples=16)) == []
    assert play(DeadUnits, *seen(*[4] * 9, units=4)) == []


def test_near_miss_wide_sparse_dictionary():
    assert play(DeadUnits, *seen(*[3900] * 9, units=4096, samples=512)) == []


def test_near_miss_recovering():
    assert play(DeadUnits, *seen(64, 62, 60)) == []


def test_near_miss_numbers_alone():
    assert play(DeadUnits, LEARNING, LEARNING, LEARNING) == []
