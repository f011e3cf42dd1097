from flatline.events import LossComputed, TargetFacts
from flatline.rules.llm.labels_not_shifted import LabelsNotShifted
from flatline.testing import play


def losses(*equal, causal=True, kind="cross_entropy"):
    return [
        LossComputed(step=step, kind=kind, causal=causal, target=TargetFacts(total=640, equals_input=same))
        for step, same in enumerate(equal, 1)
    ]


def test_fires_on_labels_that_are_the_input():
    (finding,) = play(LabelsNotShifted, *losses(True, True, True))
    assert finding.severity == "warning"
    assert finding.message == (
        "the 640 labels equal the input tokens, position by position, in all 3 steps looked at, under a causal mask"
    )
    assert "logits[:, :-1]" in finding.fix


def test_only_a_hint_without_a_causal_mask():
    (finding,) = play(LabelsNotShifted, *losses(True, True, True, causal=False))
    assert finding.severity == "hint"


def test_near_miss_shifted():
    assert play(LabelsNotShifted, *losses(False, False, False, False)) == []


def test_near_miss_equal_by_chance():
    assert play(LabelsNotShifted, *losses(True, True, False, True, True)) == []


def test_near_miss_several_losses_of_one_step():
    assert play(LabelsNotShifted, *losses(True)[:1] * 5) == []


def test_near_miss_another_loss():
    assert play(LabelsNotShifted, *losses(True, True, True, kind="mse_loss")) == []
