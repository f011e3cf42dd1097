from dataclasses import replace

from flatline.events import CheckpointLoaded, CheckpointLost, StateAliased, Where
from flatline.rules.finetuning.checkpoint_changed_nothing import CheckpointChangedNothing
from flatline.testing import play

LOST = CheckpointLost(
    step=1, where=Where("train.py", 9), model="Net", tensors=8, in_file=8, read_where=Where("train.py", 7)
)


def found(event):
    (finding,) = play(CheckpointChangedNothing, event)
    assert (finding.code, finding.where) == ("F2", Where("train.py", 9))
    return finding


def test_fires_on_a_models_own_weights():
    finding = found(LOST)
    assert finding.severity == "error"
    assert finding.message == (
        "Net was given its own weights: none of the 8 tensors of the checkpoint (read in line 7) was loaded"
    )


def test_fires_on_an_empty_state_dict():
    finding = found(replace(LOST, kind="empty", read_where=None))
    assert finding.message == "Net was given an empty state dict: none of the 8 tensors of the checkpoint was loaded"


def test_fires_on_overwritten_weights():
    finding = found(replace(LOST, kind="overwritten", in_file=0))
    assert finding.severity == "warning"
    assert finding.message == (
        "the weights loaded into Net were overwritten before it ran: nothing of them is left in it"
    )
    assert finding.fix == "initialise first, then load"


def test_fires_on_a_model_that_was_dropped():
    finding = found(replace(LOST, kind="dropped", in_file=0))
    assert finding.message == "the Net that was loaded was dropped before it ran; a new one with other weights trains"


def test_near_miss_nothing_was_lost():
    assert play(CheckpointChangedNothing) == []


def test_near_miss_is_told_once_for_each_kind():
    assert len(play(CheckpointChangedNothing, LOST, LOST)) == 1


def test_fires_on_a_dictionary_that_is_loaded_nowhere():
    (finding,) = play(CheckpointChangedNothing, replace(LOST, kind="merged", in_file=6))
    assert finding.severity == "error"
    assert "is loaded nowhere: none of its 6 tensors is in the model that trains" in finding.message


ALIASED = StateAliased(
    step=501, where=Where("train.py", 20), model="Net", tensors=8, taken=300, steps=200, loaded=Where("train.py", 31)
)


def test_fires_on_a_state_dict_without_a_copy():
    (finding,) = play(CheckpointChangedNothing, ALIASED)
    assert (finding.severity, finding.where) == ("error", Where("train.py", 20))
    assert finding.message == (
        "the state dict that was taken at step 300 is given back to Net (line 31) 200 steps later, and changes nothing: all 8 "
        "tensors in it are the model's own, as they are now"
    )


def test_near_miss_of_no_state_at_all():
    assert play(CheckpointChangedNothing) == []


def test_near_miss_of_loads_that_went_well():
    assert play(CheckpointChangedNothing, CheckpointLoaded(step=3), CheckpointLoaded(step=40)) == []
