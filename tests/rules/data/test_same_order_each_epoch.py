from flatline.events import OrderDealtAgain, PassEnded, Where
from flatline.rules.data.same_order_each_epoch import SameOrderEachEpoch
from flatline.testing import play


def ended(*same, sampler="RandomSampler", batches=20, **facts):
    return [
        PassEnded(
            step=20 * n,
            where=Where("train.py", 7),
            batches=batches,
            length=batches,
            sampler=sampler,
            sequential=sampler == "SequentialSampler",
            same_order=count,
            **facts,
        )
        for n, count in enumerate(same, 1)
    ]


def test_warns_of_a_generator_seeded_in_each_epoch():
    (finding,) = play(SameOrderEachEpoch, *ended(1, 2, 3, 4))
    assert (finding.severity, finding.where, finding.step) == ("warning", Where("train.py", 7), 60)
    assert finding.message == (
        "the loader shuffles, yet 3 epochs in a row took the same samples in the same order, all 20 batches of them"
    )


def test_hints_at_a_loader_that_does_not_shuffle():
    (finding,) = play(SameOrderEachEpoch, *ended(1, 2, 3, sampler="SequentialSampler"))
    assert (finding.severity, finding.step) == ("hint", 40)
    assert finding.message == "2 epochs took their 20 batches in the order of the data set"


def test_near_miss_shuffled_anew():
    assert play(SameOrderEachEpoch, *ended(1, 1, 1, 1)) == []


def test_near_miss_two_runs_on_one_loader():
    assert play(SameOrderEachEpoch, *ended(1, 2)) == []
    assert play(SameOrderEachEpoch, *ended(1, 2, 3, 4, new_optimizers=1)) == []


def test_near_miss_short_passes():
    assert play(SameOrderEachEpoch, *ended(1, 2, 3, 4, batches=2)) == []
    assert play(SameOrderEachEpoch, *ended(1, 2, 3, 4, batches=1, sampler="SequentialSampler")) == []


def test_near_miss_a_sampler_of_the_users():
    assert play(SameOrderEachEpoch, *ended(1, 2, 3, 4, sampler="BucketSampler")) == []
    assert play(SameOrderEachEpoch, *ended(1, 2, 3, 4, sampler="DistributedSampler")) == []


def test_warns_of_batches_by_hand_whose_order_is_dealt_again():
    event = OrderDealtAgain(step=19, where=Where("t.py", 36), model="net", seeding="rng.seed(0)", returns=3, period=6)
    (finding,) = play(SameOrderEachEpoch, event)
    assert (finding.severity, finding.where) == ("warning", Where("t.py", 36))
    assert finding.message == (
        "net was given the same batches again, bit for bit, each time a multiple of 6 steps later (3 looks); `rng.seed(0)` "
        "seeds the generator before the order of a pass is drawn"
    )
