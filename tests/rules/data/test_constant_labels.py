from dataclasses import replace

from flatline.events import LabelFacts, TargetsObserved, Where, WholeLabels
from flatline.rules.data.constant_labels import ConstantLabels
from flatline.testing import play

STEPS = (1, 2, 3, 4, 5, 6, 9, 13, 19, 28, 101)


def targets(*, label=0, steps=STEPS, loader=0, length=None, falls=True, **facts):
    return [
        TargetsObserved(
            step=step,
            where=Where("train.py", 12),
            stream=1,
            classes=3,
            labels=LabelFacts(count=32, histogram=((label, 32),), runs=1, order=(label,)),
            surprise=1.1 / step if falls else 1.1,
            loader=loader,
            position=step if loader else 0,
            length=length,
            **facts,
        )
        for step in steps
    ]


def mixed(step=2):
    return TargetsObserved(
        step=step, stream=1, labels=LabelFacts(count=4, histogram=((0, 2), (1, 2)), runs=4, order=(0, 1, 0, 1))
    )


def test_fires_on_one_label():
    (finding,) = play(ConstantLabels, *targets())
    assert (finding.severity, finding.where, finding.step) == ("warning", Where("train.py", 12), 101)
    assert finding.message == (
        "all 352 labels of the 11 batches looked at are 0, of 3 classes; the loss went from 1.1 to 0.0109"
    )


def test_fires_with_a_loader_seen_nearly_to_its_end():
    assert len(play(ConstantLabels, *targets(steps=STEPS[:-1], loader=1, length=32))) == 1


def test_fires_on_slices_of_a_constant_tensor():
    assert len(play(ConstantLabels, *targets(steps=STEPS[:-1], whole=WholeLabels(count=800, distinct=1)))) == 1


def test_near_miss_the_first_class_of_sorted_data():
    assert play(ConstantLabels, *targets(steps=STEPS[:-1], loader=1, length=300)) == []
    assert play(ConstantLabels, *targets(steps=STEPS[:-1])) == []
    assert play(ConstantLabels, *targets(whole=WholeLabels(count=800, distinct=2, runs=2))) == []


def test_near_miss_another_label_somewhere():
    assert play(ConstantLabels, mixed(), *targets()) == []
    assert play(ConstantLabels, *targets(), mixed(102))[1:] == []


def test_near_miss_real_and_fake():
    pairs = zip(targets(label=1), targets(label=0), strict=True)
    assert play(ConstantLabels, *[event for pair in pairs for event in pair]) == []


def test_near_miss_positive_always_first():
    assert play(ConstantLabels, *targets(fed_by="")) == []


def test_near_miss_loss_stays():
    assert play(ConstantLabels, *targets(falls=False)) == []


def test_fires_on_one_target_of_a_regression():
    events = targets(loader=1, length=100)
    (finding,) = play(ConstantLabels, *(replace(each, kind="mse_loss", classes=0) for each in events))
    assert "all 352 targets of the 11 batches looked at are 0; the loss went" in finding.message
    assert "bias" in finding.cause


def test_near_miss_targets_of_a_regression_that_vary():
    varied = TargetsObserved(step=5, stream=1, kind="mse_loss", classes=0, labels=LabelFacts(count=32, runs=2))
    events = [replace(each, kind="mse_loss", classes=0) for each in targets(loader=1, length=100)]
    assert play(ConstantLabels, *events[:4], varied, *events[4:]) == []


def test_near_miss_a_rare_label_that_nobody_looked_at():
    """One object in five hundred: no batch under a close look holds one, but a loss between them stands out."""
    seen = targets()
    seen[6] = replace(seen[6], jump=30.0)
    assert play(ConstantLabels, *seen) == []


def test_fires_on_masks_of_one_class_and_near_miss_few_of_them():
    seen = targets(loader=1, length=100)
    many = [replace(each, dense=True, labels=replace(each.labels, count=40)) for each in seen]
    (finding,) = play(ConstantLabels, *many)
    assert finding.message.startswith("all 440 masks, pixel by pixel, of the 11 batches looked at are 0")
    few = [replace(each, dense=True, labels=replace(each.labels, count=8)) for each in seen]
    assert play(ConstantLabels, *few) == []
