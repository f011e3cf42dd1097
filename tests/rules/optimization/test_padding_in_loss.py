from flatline.events import LossComputed, TargetFacts, Where
from flatline.rules.optimization.padding_in_loss import PaddingInLoss
from flatline.testing import play


def losses(*, padding=0.0, masked=0.0, reduction="mean", count=3):
    target = TargetFacts(padding_share=padding, padding_id=0 if padding else None)
    return [
        LossComputed(step=n, where=Where("train.py", 33), target=target, masked_mean=masked, reduction=reduction)
        for n in range(1, count + 1)
    ]


def test_fires_on_padding_among_the_targets():
    (finding,) = play(PaddingInLoss, *losses(padding=0.4))
    assert finding.severity == "warning"
    assert finding.step == 2
    assert finding.count == 2
    assert finding.where == Where("train.py", 33)
    assert finding.key == "targets"
    assert finding.message == (
        "40% of the scored targets are id 0, in the rows' tails where the inputs are padding, too"
    )
    assert finding.fix == "ignore_index=0 in the loss"
    assert finding.evidence == {"share": 0.4, "pad_id": 0}


def test_fires_on_a_plain_mean_of_a_masked_loss():
    (finding,) = play(PaddingInLoss, *losses(masked=0.25, reduction="none"))
    assert finding.key == "mask"
    assert finding.message == (
        "the mean of the masked loss divides by all positions, though the mask is 0 on 25% of them"
    )
    assert finding.fix == "(loss * mask).sum() / mask.sum().clamp(min=1)"


def test_near_miss_no_padding():
    assert play(PaddingInLoss, *losses()) == []


def test_near_miss_a_few_positions():
    assert play(PaddingInLoss, *losses(padding=0.04, masked=0.04)) == []


def test_near_miss_sum():
    assert play(PaddingInLoss, *losses(padding=0.4, reduction="sum")) == []


def test_near_miss_masked_afterwards():
    assert play(PaddingInLoss, *losses(padding=0.4, reduction="none")) == []


def test_near_miss_one_batch():
    assert play(PaddingInLoss, *losses(padding=0.4, masked=0.4, count=1), *losses()) == []
