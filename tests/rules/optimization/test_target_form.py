from dataclasses import replace

import pytest

from flatline.events import CrashTensor, LossComputed, ScriptCrashed, SignsMissing, TargetFacts, Where
from flatline.rules.optimization.target_form import TargetForm
from flatline.testing import play

LINE = Where("train.py", 27)
BCE = "binary_cross_entropy_with_logits"
SCORES = CrashTensor(shape=(32, 10), dtype="float32")
LABELS = CrashTensor(shape=(32,), dtype="int64", low=0, high=9)


def sums(low, high, kind="cross_entropy", count=2):
    target = TargetFacts(row_sum_low=low, row_sum_high=high)
    return [LossComputed(step=n, where=LINE, kind=kind, classes=10, target=target) for n in range(1, count + 1)]


def spans(low, high, kind=BCE, count=2):
    target = TargetFacts(low=low, high=high)
    return [LossComputed(step=n, where=LINE, kind=kind, target=target) for n in range(1, count + 1)]


def crash(scores=SCORES, function="cross_entropy", ignore_index=-100, error="IndexError", **target):
    return ScriptCrashed(
        where=LINE,
        error=error,
        functions=("<module>", function),
        tensors={"input": scores, "target": replace(LABELS, **target)},
        ignore_index=ignore_index,
    )


# --------------------------------------------------------------------------- losses that run


def test_fires_on_float_targets_that_are_no_distribution():
    (finding,) = play(TargetForm, *sums(0.0, 4.0, count=3))
    assert finding.severity == "error"
    assert finding.step == 2
    assert finding.count == 2
    assert finding.where == LINE
    assert finding.key == "sum"
    assert finding.message == "float targets of cross_entropy sum to 0 … 4 over the 10 classes, not to 1"
    assert "binary_cross_entropy_with_logits" in finding.fix
    assert finding.evidence == {"low": 0.0, "high": 4.0}


def test_fires_on_targets_outside_of_the_unit_interval():
    (finding,) = play(TargetForm, *spans(-1.0, 1.0))
    assert finding.key == "range"
    assert finding.message == "targets of binary_cross_entropy_with_logits reach from -1 to 1"
    assert finding.fix == "map the labels to 0 and 1"


def test_near_miss_soft_targets():
    assert play(TargetForm, *sums(1.0, 1.0), *sums(0.98, 1.02)) == []


def test_near_miss_class_indices():
    assert play(TargetForm, *spans(0.0, 9.0, kind="cross_entropy"), *spans(-100.0, 9.0, kind="nll")) == []


def test_near_miss_labels_of_bce():
    assert play(TargetForm, *spans(0.0, 1.0), *spans(0.1, 0.9, kind="binary_cross_entropy"), *spans(None, None)) == []


def test_near_miss_seen_once():
    assert play(TargetForm, *sums(0.0, 4.0, count=1), *sums(1.0, 1.0), *sums(0.0, 4.0, count=1)) == []
    assert play(TargetForm, *spans(-1.0, 1.0, count=1), *spans(0.0, 1.0), *spans(-1.0, 1.0, count=1)) == []


# --------------------------------------------------------------------------- losses that crash


def test_fires_on_labels_that_count_from_one():
    (finding,) = play(TargetForm, crash(low=1, high=10, bad="10 at position 3"))
    assert finding.severity == "error"
    assert finding.where == LINE
    assert finding.key == "crash"
    assert finding.message == "labels outside [0, 10): 10 at position 3 (labels seem to count from 1)"
    assert finding.fix == "subtract 1 from the labels"
    assert finding.evidence == {
        "classes": 10,
        "target_shape": "[32]",
        "target_dtype": "int64",
        "low": 1,
        "high": 10,
    }


@pytest.mark.parametrize(
    ("target", "message", "fix"),
    [
        (
            {"high": 12, "bad": "12 at position 3"},
            "labels outside [0, 10): 12 at position 3",
            "the last layer needs 13 outputs",
        ),
        (
            {"low": -1, "bad": "-1 at position 0"},
            "labels outside [0, 10): -1 at position 0",
            "pass ignore_index=-1 if it marks what shall not count, or renumber the classes from 0",
        ),
        (
            {"shape": (32, 10)},
            "one-hot integers: target [32, 10] int64 for scores [32, 10]",
            "pass y.argmax(1) of shape [N], or y.float()",
        ),
        (
            {"shape": (32, 1)},
            "one dimension too many: target [32, 1] int64 for scores [32, 10]",
            "pass y.squeeze(1)",
        ),
        (
            {"dtype": "float32"},
            "float labels where indices are meant: target [32] float32 for scores [32, 10]",
            "pass y.long()",
        ),
        (
            {"shape": (16,)},
            "targets do not fit the scores: target [16] int64 for scores [32, 10]",
            "give class indices: y.long(), of shape [N], counted from 0",
        ),
        (
            {"dtype": "int32"},
            "targets do not fit the scores: target [32] int32 for scores [32, 10]",
            "give class indices: y.long(), of shape [N], counted from 0",
        ),
    ],
    ids=[
        "too few outputs",
        "negative",
        "one-hot",
        "one dimension too many",
        "float labels",
        "another length",
        "short integers",
    ],
)
def test_fires_on_a_crash(target, message, fix):
    for function in ("cross_entropy", "nll_loss"):
        (finding,) = play(TargetForm, crash(function=function, **target))
        assert (finding.message, finding.fix) == (message, fix)


def test_images_with_one_channel_of_labels():
    (finding,) = play(TargetForm, crash(replace(SCORES, shape=(4, 10, 8, 8)), shape=(4, 1, 8, 8)))
    assert finding.message.startswith("one dimension too many")


def test_ignored_labels_are_not_to_blame():
    (finding,) = play(TargetForm, crash(low=-100, high=12, bad="12 at position 3"))
    assert finding.fix == "the last layer needs 13 outputs"


def test_near_miss_crash_in_another_loss():
    assert play(TargetForm, crash(function="binary_cross_entropy", shape=(32, 1))) == []
    assert play(TargetForm, crash(function="mse_loss", dtype="float32")) == []


def test_near_miss_crash_in_the_forward_pass():
    assert play(TargetForm, ScriptCrashed(message="mat1 and mat2 shapes cannot be multiplied")) == []


def test_near_miss_crash_with_good_targets():
    assert play(TargetForm, crash(error="OutOfMemoryError")) == []
    assert play(TargetForm, crash(error="RuntimeError")) == []  # weights of another length, another device


def signs(zeros, count=2):
    return [SignsMissing(step=n, loss="CosineEmbeddingLoss", zeros=zeros, targets=64) for n in range(1, count + 1)]


def test_fires_on_zero_where_minus_one_is_meant():
    (finding,) = play(TargetForm, *signs(30))
    assert (finding.severity, finding.step) == ("error", 2)
    assert finding.message == "30 of 64 targets of CosineEmbeddingLoss are 0, and the others are 1"


def test_near_miss_signs():
    assert play(TargetForm, *signs(0)) == []
    assert play(TargetForm, *signs(30, count=1)) == []
