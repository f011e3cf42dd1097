from flatline.events import RunEnded, ScaledApart, ValidationTold
from flatline.rules.vision.normalisation_mismatch import NormalisationMismatch
from flatline.testing import play

SEEN = ScaledApart(step=79, train="x_train", validation="x_val", rows=5000, validation_rows=1000, groups=8)


def ended(*, validation=(4.3, 5.6), last=0.25):
    return ValidationTold(step=790, losses=validation), RunEnded(step=790, loss=last, first_loss=1.4)


def test_fires_where_validation_is_worse_than_guessing():
    (finding,) = play(NormalisationMismatch, SEEN, *ended())
    assert (finding.severity, finding.step, finding.evidence["groups"]) == ("warning", 79, 8)
    assert finding.message == (
        "x_train (5,000 rows) and x_val (1,000 rows) each have a mean of exactly 0 and a deviation of exactly 1 in 8 columns, "
        "which one scale does not make of two sets; the best validation loss was 4.3, where training went from 1.4 to 0.25"
    )


def test_near_miss_of_on_validation_told_something_is_learned():
    (hint,) = play(NormalisationMismatch, SEEN, *ended(validation=(1.2, 0.5, 0.9)))
    assert hint.severity == "hint"


def test_near_miss_of_on_scaled_apart_nothing_is_told_of_validation():
    (hint,) = play(NormalisationMismatch, SEEN, RunEnded(step=790, loss=0.25, first_loss=1.4))
    assert hint.severity == "hint"


def test_near_miss_of_on_run_ended_training_learns_nothing_either():
    (hint,) = play(NormalisationMismatch, SEEN, *ended(last=1.3))
    assert hint.severity == "hint"


def test_near_miss_one_scale():
    assert play(NormalisationMismatch, *ended()) == []
