import pytest

from flatline.events import ModesObserved, Where
from flatline.rules.optimization.training_in_eval_mode import TrainingInEvalMode
from flatline.testing import lint, play


def modes(*, count=3, **facts):
    known = {"training": False, "sensitive": 4, "in_eval": 4, "examples": ("drop", "bn")} | facts
    return [ModesObserved(step=n, where=Where("train.py", 30), **known) for n in range(1, count + 1)]


def test_fires_on_updates_in_eval_mode():
    (finding,) = play(TrainingInEvalMode, *modes(eval_where=Where("train.py", 11)))
    assert finding.severity == "error"
    assert finding.step == 2
    assert finding.count == 2
    assert finding.where == Where("train.py", 30)
    assert finding.message == (
        "model is updated in eval mode: 4 of 4 Dropout and BatchNorm layers are off (drop, bn); eval() was called at "
        "line 11"
    )
    assert finding.evidence == {"in_eval": 4, "layers": 4, "eval_line": 11}


def test_fires_without_the_line_of_eval():
    (finding,) = play(TrainingInEvalMode, *modes(model="bert"))
    assert finding.message == "bert is updated in eval mode: 4 of 4 Dropout and BatchNorm layers are off (drop, bn)"


def test_near_miss_train_mode():
    assert play(TrainingInEvalMode, *modes(training=True, in_eval=0)) == []


def test_near_miss_frozen_batchnorm_in_train_mode():
    assert play(TrainingInEvalMode, *modes(training=True)) == []
    assert play(TrainingInEvalMode, *modes(in_eval=3)) == []


def test_near_miss_backbone_that_does_not_learn():
    assert play(TrainingInEvalMode, *modes(trainable=0)) == []


def test_near_miss_no_dropout_and_no_batchnorm():
    assert play(TrainingInEvalMode, *modes(sensitive=0, in_eval=0)) == []


def test_near_miss_after_a_validation_is_another_rule():
    assert play(TrainingInEvalMode, *modes(trained_before=True)) == []


def test_near_miss_one_step_each_of_two_models():
    assert play(TrainingInEvalMode, *modes(count=1), *modes(count=1, model="critic")) == []


PROGRAM = """
import torch
from torch import nn
def main():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    opt = torch.optim.Adam({}.parameters())
    net.eval()
    print(net(first))
    {}
    for x, y in data:
        opt.zero_grad()
        loss(net(x), y).backward()
        opt.step()
"""


def test_source_eval_before_the_loop():
    """Seen as a SourceParsed."""
    (finding,) = lint(TrainingInEvalMode, PROGRAM.format("net", "pass"))
    assert "its BatchNorm1d is off" in finding.message


@pytest.mark.parametrize(
    ("trained", "then"), [("net", "net.train()"), ("student", "pass"), ("net", "prepare_training(net)")]
)
def test_near_miss_source_eval(trained, then):
    assert lint(TrainingInEvalMode, PROGRAM.format(trained, then)) == []


LOADED = """
import torch
from torch import nn
def load(path):
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    net.load_state_dict(torch.load(path))
    net.eval()
    return net
def main():
    net{} = load("a.pt"){}
    opt = torch.optim.Adam(net.parameters())
    {}
    for x, y in data:
        opt.zero_grad()
        loss(net(x), y).backward()
        opt.step()
"""


def test_source_eval_where_the_model_is_loaded():
    (finding,) = lint(TrainingInEvalMode, LOADED.format("", "", "pass"))
    assert finding.where.line == 6


@pytest.mark.parametrize(
    ("other", "more", "then"),
    [
        ("", "", "net.train()"),
        (", teacher", ", load('b.pt')", "net.train()"),
        ("", "", "teacher = load('b.pt')\n    net.train()"),
        ("", "", "fit(net)\n    prepare_training(net)"),
    ],
)
def test_near_miss_source_eval_where_a_model_is_loaded(other, more, then):
    assert lint(TrainingInEvalMode, LOADED.format(other, more, then)) == []


def test_near_miss_source_only_the_teacher_is_in_eval_mode():
    code = LOADED.format("", "", "pass").replace('net = load("a.pt")', 'teacher, net = load("a.pt"), nn.BatchNorm1d(3)')
    assert lint(TrainingInEvalMode, code) == []
