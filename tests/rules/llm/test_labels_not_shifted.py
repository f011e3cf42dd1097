from dataclasses import replace

from flatline.events import FutureProbed, LossComputed, Spread, TargetFacts
from flatline.rules.llm.labels_not_shifted import LabelsNotShifted
from flatline.testing import play


def losses(*equal, causal=True, kind="cross_entropy", in_place=True):
    targets = [TargetFacts(total=640, equals_input=same, in_place=in_place) for same in equal]
    return [LossComputed(step=step, kind=kind, causal=causal, target=each) for step, each in enumerate(targets, 1)]


def test_fires_on_labels_that_are_the_input():
    (finding,) = play(LabelsNotShifted, *losses(True, True, True))
    assert finding.severity == "warning"
    assert finding.message == (
        "the 640 labels equal the input tokens, position by position, in all 3 steps looked at, under a causal mask"
    )
    assert "logits[:, :-1]" in finding.fix


def test_labels_that_are_ignored_are_not_counted():
    told = [replace(loss, target=replace(loss.target, ignored=140)) for loss in losses(True, True, True)]
    assert play(LabelsNotShifted, *told)[0].message.startswith("the 500 labels equal")


def test_only_a_hint_without_a_causal_mask():
    (finding,) = play(LabelsNotShifted, *losses(True, True, True, causal=False))
    assert finding.severity == "hint"


def test_only_a_hint_where_the_model_may_shift_inside():
    (finding,) = play(LabelsNotShifted, *losses(True, True, True, in_place=False))
    assert finding.severity == "hint"


def test_near_miss_shifted():
    assert play(LabelsNotShifted, *losses(False, False, False, False)) == []


def test_near_miss_equal_by_chance():
    assert play(LabelsNotShifted, *losses(True, True, False, True, True)) == []


def test_near_miss_several_losses_of_one_step():
    assert play(LabelsNotShifted, *losses(True)[:1] * 5) == []


def test_near_miss_another_loss():
    assert play(LabelsNotShifted, *losses(True, True, True, kind="mse_loss")) == []


def probed(effect, *, own=True, compared=96):
    return FutureProbed(
        step=24, model="Decoder", length=24, begin=12, own_token=own, spread=Spread(compared=compared, effect=effect)
    )


def test_fires_where_a_probe_shows_that_no_later_position_is_seen():
    (finding,) = play(LabelsNotShifted, probed(0.0))
    assert (finding.severity, finding.evidence["causal"]) == ("warning", True)
    assert finding.message.endswith("exchanging positions 12 to 23 changes nothing before them")


def test_near_miss_an_autoencoder_that_sees_both_sides():
    assert play(LabelsNotShifted, probed(0.4)) == []


def test_near_miss_labels_that_are_the_next_token():
    assert play(LabelsNotShifted, probed(0.0, own=False)) == []


def test_near_miss_a_probe_that_compared_nothing():
    assert play(LabelsNotShifted, probed(0.0, compared=0)) == []
