from flatline.events import LossComputed, Where
from flatline.rules.optimization.loss_broadcast import LossBroadcast
from flatline.testing import play


def loss(before, after, broadcast, kind="mse_loss", step=1):
    return LossComputed(
        step=step, where=Where("train.py", 22), kind=kind, feed_shape=before, shape=after, broadcast=broadcast
    )


def test_fires_on_a_column_against_a_row():
    (finding,) = play(LossBroadcast, *[loss((32, 1), (32, 32), True, step=n) for n in (1, 2)])
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 22)
    assert finding.count == 2
    assert finding.message == (
        "mse_loss compares predictions [32, 1] with targets as [32, 32]: every prediction with every target"
    )
    assert finding.fix == "give both the same shape: pred.squeeze(-1), or target.unsqueeze(-1)"
    assert finding.evidence == {"predictions": "[32, 1]", "compared": "[32, 32]"}


def test_near_miss_the_same_shape():
    assert play(LossBroadcast, loss((32, 1), (32, 1), False), loss((32,), (32,), False, kind="l1_loss")) == []


def test_near_miss_ensemble_against_one_target():
    assert play(LossBroadcast, loss((5, 32), (5, 32), False)) == []


def test_near_miss_pairwise_on_purpose():
    assert play(LossBroadcast, loss((32, 1), (32, 32), False)) == []
