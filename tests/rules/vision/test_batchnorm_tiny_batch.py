from flatline.events import ActivationsSampled, LayerActivations
from flatline.rules.vision.batchnorm_tiny_batch import BatchnormTinyBatch
from flatline.testing import play


def norm(values=2, items=2, layer="1", kind="BatchNorm1d"):
    return LayerActivations(layer=layer, kind=kind, values=values, items=items)


def sampled(*layers, steps=4, start=1):
    linear = LayerActivations(layer="0", weighted=True)
    return [ActivationsSampled(step=step, layers=(linear, *layers)) for step in range(start, start + steps)]


def test_fires_on_pairs():
    (finding,) = play(BatchnormTinyBatch, *sampled(norm(), norm(layer="4")))
    assert finding.severity == "warning"
    assert finding.message == (
        "1 (BatchNorm1d) normalises each channel by 2 numbers from 2 samples, in 4 steps looked at (2 such layers)"
    )


def test_hints_on_two_images():
    (finding,) = play(BatchnormTinyBatch, *sampled(norm(2 * 64, 2, kind="BatchNorm2d")))
    assert finding.severity == "hint"


def test_near_miss_one_pooled_branch():
    layers = [norm(2 * 4096, 2, layer=str(i)) for i in range(9)]
    (finding,) = play(BatchnormTinyBatch, *sampled(*layers, norm(layer="pool")))
    assert finding.severity == "hint"


def test_near_miss_ordinary_batch():
    assert play(BatchnormTinyBatch, *sampled(norm(3, 3), steps=9)) == []
    assert play(BatchnormTinyBatch, *sampled(norm(32 * 49, 32), steps=9)) == []


def test_near_miss_last_batch_of_an_epoch():
    ordinary, ragged = sampled(norm(32, 32), steps=1), sampled(norm(), steps=1, start=2)
    assert play(BatchnormTinyBatch, *(ordinary + ragged) * 5) == []


def test_near_miss_eval_mode_or_other_norms():
    assert play(BatchnormTinyBatch, *sampled(norm(None, 0), steps=9)) == []
    assert play(BatchnormTinyBatch, *sampled(LayerActivations(layer="1", kind="GroupNorm"), steps=9)) == []


def test_near_miss_few_steps():
    assert play(BatchnormTinyBatch, *sampled(norm(), steps=3)) == []
