from flatline.events import ClipFacts, OptimizerStepped, Where
from flatline.rules.gradients.value_clipping import ValueClipping
from flatline.testing import play

LINE = Where("train.py", 9)


def steps(count, *clips):
    return [OptimizerStepped(step=step, index=step, clips=clips) for step in range(1, count + 1)]


def test_fires_as_a_hint():
    (finding,) = play(ValueClipping, *steps(3, ClipFacts(kind="value", threshold=0.5, where=LINE)))
    assert finding.severity == "hint"
    assert finding.message == "gradients are clipped by value, to 0.5, before every step"
    assert finding.where == LINE


def test_near_miss_by_norm():
    assert play(ValueClipping, *steps(5, ClipFacts(kind="norm", threshold=0.5))) == []


def test_near_miss_once():
    assert play(ValueClipping, *steps(2, ClipFacts(kind="value", threshold=0.5))) == []
