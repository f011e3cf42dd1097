from dataclasses import replace

import pytest

from flatline.events import ModesObserved, Where
from flatline.rules.modes.train_mode_not_restored import TrainModeNotRestored
from flatline.testing import lint, play

ASLEEP = ModesObserved(
    step=21,
    where=Where("train.py", 48),
    model="net",
    training=False,
    sensitive=3,
    in_eval=3,
    examples=("bn1", "bn2", "drop"),
    trained_before=True,
    eval_where=Where("train.py", 31),
    trainable=12,
)
NEXT = replace(ASLEEP, step=22)


def test_fires_on_steps_in_eval_mode_after_steps_in_train_mode():
    (finding,) = play(TrainModeNotRestored, ASLEEP, NEXT)
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 48)
    assert finding.message == (
        "net trains in eval mode since step 21, after steps in train mode: 3 of 3 Dropout and BatchNorm layers are off "
        "(bn1, bn2, drop); eval() was called at train.py:31"
    )
    assert "net.train()" in finding.fix


def test_names_the_last_training_line_known():
    awake = replace(ASLEEP, step=5, training=True, in_eval=0)
    (finding,) = play(TrainModeNotRestored, awake, replace(ASLEEP, where=None), replace(NEXT, where=None))
    assert finding.where == Where("train.py", 48)


def test_near_miss_one_single_step():
    assert play(TrainModeNotRestored, ASLEEP, replace(NEXT, training=True), replace(ASLEEP, step=40)) == []


def test_near_miss_eval_from_the_start():
    first = replace(ASLEEP, trained_before=False)
    assert play(TrainModeNotRestored, first, replace(first, step=22)) == []


def test_near_miss_frozen_norms_in_a_training_model():
    event = replace(ASLEEP, training=True, in_eval=2)
    assert play(TrainModeNotRestored, event, replace(event, step=22)) == []


def test_near_miss_nothing_in_eval_or_nothing_trained():
    for event in (replace(ASLEEP, in_eval=0), replace(ASLEEP, trainable=0)):
        assert play(TrainModeNotRestored, event, replace(event, step=22)) == []


EPOCHS = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(3, 3), {})
opt = torch.optim.Adam(net.parameters())
def validate(model):
    model.eval()
def train(model):
    {}
    for x, y in data:
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()
net.train()
for epoch in range(9):
    train(net)
    validate(net)
    {}
"""


def test_source_never_back_to_train():
    """Seen as a SourceParsed."""
    (finding,) = lint(TrainModeNotRestored, EPOCHS.format("nn.Dropout(0.1)", "pass", "pass"))
    assert finding.where.line == 6
    assert "its Dropout is off" in finding.message


@pytest.mark.parametrize(
    ("layer", "first", "last"),
    [
        ("nn.Dropout(0.1)", "model.train()", "pass"),
        ("nn.Dropout(0.1)", "pass", "net.train(True)"),
        ("nn.ReLU()", "pass", "pass"),
        ("nn.Dropout(0.1)", "pass", "trainer.restore_training_state(net)"),
    ],
)
def test_near_miss_source_modes(layer, first, last):
    assert lint(TrainModeNotRestored, EPOCHS.format(layer, first, last)) == []
