from flatline.events import LossesKept, OptimizerStepped, Where
from flatline.rules.memory.loss_graph_kept import LossGraphKept
from flatline.testing import play


def test_fires_with_the_statement():
    event = LossesKept(step=8, where=Where("train.py", 41), alive=8, seen=8, nodes=900, holder="total += loss")
    (finding,) = play(LossGraphKept, event)
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 41)
    assert finding.message == (
        "the graphs of 8 of the last 8 losses are still alive, 900 nodes each; `total += loss` keeps them"
    )
    assert finding.fix == "write .item() (or .detach()) after the loss in `total += loss`"


def test_small_graphs_are_a_warning():
    (finding,) = play(LossGraphKept, LossesKept(alive=8, seen=8, nodes=20))
    assert finding.severity == "warning"
    assert "a meter" in finding.fix


def test_near_miss_nothing_kept():
    assert play(LossGraphKept) == []


def test_near_miss_ordinary_steps():
    assert play(LossGraphKept, *[OptimizerStepped(step=step, index=step) for step in range(1, 9)]) == []
