"""Lines about validation that the script prints."""

from __future__ import annotations

import contextlib
import io
import sys
import weakref

import pytest
from watching import seen

from flatline.events import LinePrinted


@pytest.fixture
def stdout():
    """What is printed while a test runs; pytest puts a stream of its own into each phase."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def told(stdout, act):
    with contextlib.redirect_stdout(stdout):
        return [event.text for event in seen(act, LinePrinted)]


class Words(str):
    """A class of the script's."""

    def __contains__(self, other):
        raise LookupError


def test_words_of_a_class_of_the_scripts(stdout):
    kept = []

    def act():
        words = Words("val acc 0.5\n")
        kept.append(weakref.ref(words))
        sys.stdout.write(words)

    assert told(stdout, act) == ["val acc 0.5"]
    assert kept[0]() is None


def test_whole_lines_about_validation(stdout):
    def act():
        print("epoch 1 train loss 0.50", "val loss", 0.75)
        print("Test: ", end="")
        print("accuracy 0.9")

    assert told(stdout, act) == ["epoch 1 train loss 0.50 val loss 0.75", "Test: accuracy 0.9"]
    assert stdout.buffer.getvalue() == b"epoch 1 train loss 0.50 val loss 0.75\nTest: accuracy 0.9\n"


def test_a_bar_is_what_it_came_to(stdout):
    def act():
        sys.stdout.write("\rval_loss 3.0")
        sys.stdout.write("\rval_loss 2.0")
        sys.stdout.write("\n")

    assert told(stdout, act) == ["val_loss 2.0"]


@pytest.mark.parametrize(
    "line", ["loss 0.5", "interval 3", "validation begins", "flatline: C4 · val loss 3", "devices 2"]
)
def test_other_lines(stdout, line):
    assert told(stdout, lambda: print(line)) == []


def test_the_stream_is_as_before(stdout):
    told(stdout, lambda: print("val loss 1.0"))
    assert "write" not in vars(stdout)
    stdout.write("after\n")
    assert stdout.buffer.getvalue() == b"val loss 1.0\nafter\n"


def test_a_write_that_was_taken_goes_on_writing(stdout):
    """As the script's own tee does."""
    taken = []
    told(stdout, lambda: taken.append(sys.stdout.write))
    taken[0]("val loss 2.0\n")
    assert stdout.buffer.getvalue() == b"val loss 2.0\n"


def test_an_error_of_the_stream_is_the_scripts(stdout):
    def act():
        with pytest.raises(TypeError):
            sys.stdout.write(3)
        print("val loss 1.0")

    assert told(stdout, act) == ["val loss 1.0"]
