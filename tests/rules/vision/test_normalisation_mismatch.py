from dataclasses import replace

import pytest

from flatline.events import ImagesCompared, ImageSpread, RunEnded, ScaledApart, ValidationTold
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


RAW = ImageSpread(means=(0.48, 0.45, 0.4), deviations=(0.23, 0.22, 0.22), low=0.0, high=1.0)
NORMAL = ImageSpread(means=(0.1, 0.0, -0.1), deviations=(1.0, 1.1, 0.9), low=-2.1, high=2.6)
BYTES = ImageSpread(means=(120.0, 110.0, 104.0), deviations=(60.0, 58.0, 57.0), low=0.0, high=255.0)
HALVES = ImageSpread(means=(-0.04, -0.1, -0.2), deviations=(0.44, 0.43, 0.45), low=-1.0, high=1.0)


def images(train, *shown):
    return [ImagesCompared(step=40 * n, train=(train, train), validation=each) for n, each in enumerate(shown, 1)]


@pytest.mark.parametrize(
    ("train", "shown"), [(NORMAL, RAW), (RAW, NORMAL), (RAW, BYTES), (NORMAL, BYTES), (HALVES, RAW)]
)
def test_fires_on_images_in_two_ranges(train, shown):
    (finding,) = play(NormalisationMismatch, *images(train, shown, shown, shown))
    assert (finding.severity, finding.step) == ("warning", 80)


def test_says_the_numbers_of_images_that_are_validated_on_once():
    (finding,) = play(NormalisationMismatch, *images(NORMAL, RAW), RunEnded(step=100))
    assert finding.message == (
        "model learns from images from -2.1 to 2.6 (mean 0, deviation 1), and is validated on images from 0 to 1 (mean 0.44, "
        "deviation 0.22)"
    )


NOISY = replace(RAW, deviations=(0.6, 0.6, 0.6), low=-1.5, high=2.5)
DARK = replace(RAW, means=(0.1, 0.1, 0.1), deviations=(0.05, 0.05, 0.05), high=0.4)
ONE_CHANNEL = replace(NORMAL, means=(0.48, 0.0, -0.1))


@pytest.mark.parametrize(("train", "shown"), [(NORMAL, NORMAL), (NOISY, RAW), (RAW, DARK), (ONE_CHANNEL, RAW)])
def test_near_miss_of_on_images_compared_one_range(train, shown):
    assert play(NormalisationMismatch, *images(train, shown, shown), RunEnded(step=100)) == []


def test_near_miss_of_on_images_compared_a_second_validation_is_in_the_range():
    assert play(NormalisationMismatch, *images(NORMAL, RAW, NORMAL), RunEnded(step=100)) == []
