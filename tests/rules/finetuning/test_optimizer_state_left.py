from dataclasses import replace

import pytest

from flatline.events import OptimizerBeganAnew, ScheduleBeganAnew, Where
from flatline.rules.finetuning.optimizer_state_left import OptimizerStateLeft
from flatline.testing import play

LEFT = OptimizerBeganAnew(
    step=1, where=Where("train.py", 20), key="optim", counter="epoch", count=12, tensors=8, optimizer="AdamW"
)


def test_fires():
    (finding,) = play(OptimizerStateLeft, LEFT)
    assert (finding.code, finding.severity, finding.where) == ("F3", "warning", Where("train.py", 20))
    assert finding.message == (
        "training goes on from epoch = 12 of the checkpoint, and AdamW took its first step without the state for 8 tensors that "
        "lies there under 'optim'"
    )
    assert finding.fix == "optimizer.load_state_dict(checkpoint['optim']) after the optimizer is built"


def test_fires_where_the_file_holds_all_but_that():
    (finding,) = play(OptimizerStateLeft, replace(LEFT, key="", others=("rng",)))
    assert finding.message == (
        "training goes on from epoch = 12 of the checkpoint, which holds 'rng' and no state of AdamW: its first step had none "
        "for 8 tensors"
    )
    assert finding.fix.startswith("save optimizer.state_dict()")


def test_fires_where_a_schedule_of_the_whole_run_begins_again():
    (finding,) = play(OptimizerStateLeft, replace(LEFT, key="", others=("model",), schedule="LambdaLR", length=7200))
    assert finding.message.endswith("for 8 tensors; LambdaLR, of 7,200 steps for the whole run, begins again at 0")
    assert finding.fix.startswith("save optimizer.state_dict() and scheduler.state_dict()")


def test_near_miss_a_checkpoint_from_before_the_first_epoch():
    assert play(OptimizerStateLeft, replace(LEFT, count=0)) == []


def test_near_miss_a_file_without_any_state():
    assert play(OptimizerStateLeft, replace(LEFT, tensors=0)) == []


def test_fires_where_the_schedule_alone_begins_again():
    told = ScheduleBeganAnew(
        step=900, where=Where("train.py", 30), counter="epoch", count=10, schedule="LambdaLR", length=3000
    )
    (finding,) = play(OptimizerStateLeft, told)
    assert (finding.severity, finding.key) == ("warning", "schedule")
    assert finding.message == (
        "training goes on from epoch = 10 of the checkpoint, which holds no state of the schedule: LambdaLR, of 3,000 steps for "
        "the whole run, begins again at 0"
    )
    (finding,) = play(OptimizerStateLeft, replace(told, saved=True))
    assert "which holds the schedule's state, too" in finding.message


@pytest.mark.parametrize("saved", [False, True])
def test_near_miss_a_schedule_of_a_run_that_had_not_begun(saved):
    assert play(OptimizerStateLeft, ScheduleBeganAnew(count=0, length=3000, saved=saved)) == []
