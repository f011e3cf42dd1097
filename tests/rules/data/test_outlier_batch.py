from dataclasses import replace

from flatline.events import BatchStoodOut, MissingFed, MissingTaught, Where
from flatline.rules.data.outlier_batch import OutlierBatch
from flatline.testing import play

SICK = BatchStoodOut(
    step=76,
    where=Where("train.py", 12),
    largest=31_000.0,
    usual=4.2,
    least=3.1,
    batches=9,
    later=3,
    rows=(7,),
    off=1,
    of=32,
    loss=2100.0,
    usual_loss=0.4,
    place=(13, 63),
)


def test_fires_on_one_row():
    (finding,) = play(OutlierBatch, SICK)
    assert (finding.severity, finding.where, finding.step) == ("warning", Where("train.py", 12), 76)
    assert finding.message == (
        "the batch of step 76 (13 of 63 of its pass) holds inputs of up to 3.1e+04, where the 12 other batches looked at "
        "end at 4.2; row 7 of 32; at this step the loss jumped from 0.4 to 2.1e+03"
    )
    assert "row 7 of 32" in finding.fix


def test_fires_on_a_whole_batch_of_targets():
    (finding,) = play(OutlierBatch, replace(SICK, what="targets", off=32, rows=(0, 1, 2), place=()))
    assert finding.message.startswith("the batch of step 76 holds targets of up to 3.1e+04")
    assert "row" not in finding.message
    assert "this batch" in finding.fix


def test_an_error_where_it_came_early_and_nothing_was_left():
    early = replace(SICK, batches=2, later=8, alike=1, lost=True)
    (finding,) = play(OutlierBatch, early)
    assert finding.severity == "error"
    assert "; 1 more were as far off; at this step" in finding.message
    assert finding.message.endswith("and soon after it none was finite")
    assert "O28" in finding.consequences
    assert play(OutlierBatch, replace(early, lost=False)) == []
    assert play(OutlierBatch, replace(early, least=0.1)) == []


def test_several_rows_are_counted():
    (finding,) = play(OutlierBatch, replace(SICK, off=9, rows=(0, 4, 5)))
    assert "rows 0, 4, 5 and 6 more of 32" in finding.message


def test_near_miss_heavy_tails():
    assert play(OutlierBatch, replace(SICK, least=0.1)) == []


def test_near_miss_ordinary_numbers():
    assert play(OutlierBatch, replace(SICK, largest=20.0)) == []


def test_near_miss_loss_hardly_jumped():
    assert play(OutlierBatch, replace(SICK, loss=1.5)) == []
    assert play(OutlierBatch, replace(SICK, largest=24.0, loss=2.0)) == []


def test_near_miss_first_batches():
    assert play(OutlierBatch, replace(SICK, batches=3)) == []


def test_near_miss_nothing_followed():
    assert play(OutlierBatch, replace(SICK, later=0)) == []


def test_near_miss_zeros_before():
    assert play(OutlierBatch, replace(SICK, least=0.0)) == []


def test_fires_on_a_few_times_where_none_else_was_off():
    (finding,) = play(OutlierBatch, replace(SICK, largest=24.0, off=20))
    assert "holds inputs of up to 24," in finding.message


def test_fires_on_one_of_several():
    (finding,) = play(OutlierBatch, replace(SICK, alike=2))
    assert "; 2 earlier ones were as far off; at this step" in finding.message


def test_near_miss_a_few_times_as_others_before():
    assert play(OutlierBatch, replace(SICK, largest=24.0, alike=1)) == []
    assert play(OutlierBatch, replace(SICK, largest=24.0, later=2)) == []


def test_near_miss_rare_rewards():
    assert play(OutlierBatch, replace(SICK, what="targets", largest=40.0)) == []


def test_fires_on_a_code_among_the_targets():
    event = MissingTaught(
        step=7, where=Where("train.py", 9), kind="mse_loss", code=-999.0, times=3, low=-1.6, high=2.9, loss=3e4
    )
    (finding,) = play(OutlierBatch, event)
    assert (finding.severity, finding.where, finding.key) == ("warning", Where("train.py", 9), "code")
    assert finding.message == (
        "-999 stood 3 times among the targets of mse_loss that were looked at, where all others lie between -1.6 and 2.9; the "
        "loss was 3e+04 with it"
    )
    assert "targets != -999" in finding.fix


def test_a_code_in_columns_of_the_inputs():
    event = MissingFed(step=5, code=-9999.0, columns=(1, 2), value=-4.3, low=0.21, high=0.25, share=0.057)
    (finding,) = play(OutlierBatch(), event)
    assert finding.severity == "warning"
    assert "-9999 stands for what is missing in columns 1, 2 of the inputs: in column 1, 5.7% of the" in finding.message
