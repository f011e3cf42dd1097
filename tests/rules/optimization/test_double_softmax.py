from flatline.events import LossComputed, Where
from flatline.rules.optimization.double_softmax import DoubleSoftmax
from flatline.testing import play


def test_fires_on_softmax_under_cross_entropy():
    event = LossComputed(
        step=1, where=Where("train.py", 48), fed_by="softmax", feed_where="classifier.3", gradient_ratio=14.2
    )
    (finding,) = play(DoubleSoftmax, event)
    assert finding.code == "O12"
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 48)
    assert finding.message == "the input of cross_entropy is already a softmax (classifier.3)"
    assert "14.2 × smaller" in finding.cause
    assert "drop classifier.3" in finding.fix


def test_log_softmax_is_only_a_warning():
    (finding,) = play(DoubleSoftmax, LossComputed(fed_by="log_softmax"))
    assert finding.severity == "warning"


def test_is_reported_once_with_its_count():
    (finding,) = play(DoubleSoftmax, *[LossComputed(step=n, fed_by="softmax") for n in (1, 2, 3)])
    assert finding.count == 3
    assert finding.step == 1


def test_near_miss_raw_scores():
    assert play(DoubleSoftmax, LossComputed(fed_by="linear")) == []


def test_near_miss_log_softmax_with_nll():
    assert play(DoubleSoftmax, LossComputed(kind="nll", fed_by="log_softmax")) == []


def test_near_miss_unknown_feed():
    assert play(DoubleSoftmax, LossComputed(fed_by="")) == []
