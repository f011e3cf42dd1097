from dataclasses import replace

import pytest

from flatline.events import (
    BodyNeverTrained,
    FlagOnModule,
    LossesRead,
    OptimizerFacts,
    RunEnded,
    StageNotReached,
    UnfrozenNotHeld,
    Where,
)
from flatline.rules.finetuning.frozen_layers_forgotten import FrozenLayersForgotten
from flatline.testing import lint, play

STAGE = StageNotReached(
    step=80, where=Where("train.py", 22), frozen=900, trainable=100, condition="epoch == 10", last=9
)


def test_fires_on_a_stage_after_the_last_epoch():
    (finding,) = play(FrozenLayersForgotten, STAGE)
    assert (finding.code, finding.severity, finding.where) == ("F1", "warning", Where("train.py", 22))
    assert finding.message == (
        "90.0% of 1,000 weights are still frozen at the end: the unfreezing waits for epoch == 10, and the loop ended "
        "at 9"
    )


def test_a_setting_may_have_switched_it_off():
    (finding,) = play(FrozenLayersForgotten, replace(STAGE, written=False))
    assert finding.severity == "hint"


def test_fires_on_names_that_no_parameter_has():
    event = replace(STAGE, condition="name.startswith(prefix)", words=("backbone.",), parts=("stem", "head"))
    (finding,) = play(FrozenLayersForgotten, event)
    assert finding.severity == "warning"
    assert finding.message == (
        "90.0% of 1,000 weights are still frozen at the end: the unfreezing asks for name.startswith(prefix), with "
        "'backbone.', and no parameter has such a name: the parts are stem, head"
    )
    assert "in place of 'backbone.'" in finding.fix


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("percent", "waits for acc >= 30, where 0.2 to 0.6 was seen"),
        ("samples", "waits for acc >= 30, where 0 to 1 was counted, one for each step"),
        ("uncalled", "stands in acc >= 30, which nothing calls"),
    ],
)
def test_fires_on_a_number_in_another_unit_and_a_method_nobody_calls(why, said):
    (finding,) = play(FrozenLayersForgotten, replace(STAGE, condition="acc >= 30", why=why, low=0.2, high=0.6))
    assert (finding.severity, finding.message.partition("the unfreezing ")[2]) == ("warning", said)


def test_fires_on_rounds_that_are_not_counted():
    event = replace(STAGE, condition="epoch == 3", why="rounds", low=9, high=0, counted="step // 1000")
    (finding,) = play(FrozenLayersForgotten, event)
    assert finding.message.partition("the unfreezing ")[2] == (
        "waits for epoch == 3, and step // 1000 came to 0, while the loop went round 9 times"
    )


def test_fires_on_an_iterator_that_was_used_up():
    event = replace(STAGE, condition="body", why="exhausted", counted="net.body.parameters()", last=12)
    (finding,) = play(FrozenLayersForgotten, event)
    assert finding.message.partition("the unfreezing ")[2] == (
        "goes over body, which is net.body.parameters(), made once and gone through in line 12: nothing is left in it"
    )
    assert "body = list(net.body.parameters())" in finding.fix


def test_near_miss_rounds_of_a_model_that_trains():
    assert play(FrozenLayersForgotten, replace(STAGE, why="rounds", frozen=10)) == []


def test_near_miss_a_share_of_a_model_that_trains():
    assert play(FrozenLayersForgotten, replace(STAGE, why="percent", frozen=10)) == []


def test_near_miss_most_of_the_model_trains():
    assert play(FrozenLayersForgotten, replace(STAGE, frozen=100, trainable=900)) == []


def test_near_miss_no_stage():
    assert play(FrozenLayersForgotten) == []


def test_near_miss_nothing_to_train():
    assert play(FrozenLayersForgotten, replace(STAGE, frozen=0, trainable=0)) == []


FLAG = FlagOnModule(step=80, where=Where("train.py", 30), module="body", flag=True, tensors=4, elements=1200)


def test_fires_on_an_attribute_of_a_module():
    (finding,) = play(FrozenLayersForgotten, FLAG)
    assert (finding.code, finding.severity, finding.where) == ("F1", "warning", Where("train.py", 30))
    assert finding.message == (
        "body.requires_grad = True makes an attribute of the module, and changes no parameter: its 4 tensors "
        "(1,200 weights) stay frozen"
    )
    assert finding.fix == "body.requires_grad_(True), with the underscore"


def test_fires_on_a_freeze_that_froze_nothing():
    (finding,) = play(FrozenLayersForgotten, replace(FLAG, flag=False))
    assert finding.message.endswith("go on training")


def test_near_miss_one_module_is_told_once():
    assert len(play(FrozenLayersForgotten, FLAG, FLAG)) == 1


def test_near_miss_another_line_is_another_finding():
    assert len(play(FrozenLayersForgotten, FLAG, replace(FLAG, module="neck", where=Where("train.py", 44)))) == 2
    assert len(play(FrozenLayersForgotten, replace(FLAG, where=None), replace(FLAG, module="neck", where=None))) == 2


def test_one_line_in_a_loop_over_modules_is_one_finding():
    assert len(play(FrozenLayersForgotten, FLAG, replace(FLAG, module="neck"))) == 1


FLAGGED = """
import torch, torchvision, timm
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 3)
net, vgg, vit = Net(), torchvision.models.vgg16(weights="DEFAULT"), timm.create_model("vit_base")
{}
"""


@pytest.mark.parametrize(
    "line",
    [
        "net.requires_grad = False",
        "net.body.requires_grad = True",
        "vgg.features.requires_grad = False",
        "vit.requires_grad = False",
        "for layer in anything.children(): layer.requires_grad = False",
        "for name, layer in list(vgg.named_children())[:3]: layer.requires_grad = False",
    ],
)
def test_source_a_flag_on_a_module(line):
    """Seen as a SourceParsed."""
    (finding,) = lint(FrozenLayersForgotten, FLAGGED.format(line))
    assert (finding.severity, finding.where.line) == ("warning", 8)
    assert "with the underscore" in finding.fix


@pytest.mark.parametrize(
    "line",
    [
        "for p in net.parameters(): p.requires_grad = False",
        "for name, p in net.named_parameters(): p.requires_grad = False",
        "net.head.weight.requires_grad = False",
        "vgg.features[0].bias.requires_grad = False",
        "net.requires_grad_(False)",
        "images.requires_grad = True",
        "for layer in net.children():\n    for p in layer.parameters(): p.requires_grad = False",
    ],
)
def test_near_miss_source_a_flag_on_a_tensor(line):
    assert lint(FrozenLayersForgotten, FLAGGED.format(line)) == []


def test_near_miss_source_a_class_with_such_a_setting():
    own = "self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 3)\n        self.requires_grad = True"
    code = FLAGGED.format("net.requires_grad = False").replace(
        "self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 3)", own
    )
    assert lint(FrozenLayersForgotten, code) == []


# --------------------------------------------------------------------------- unfrozen, and in no optimizer

NOT_HELD = UnfrozenNotHeld(
    step=200,
    where=Where("train.py", 30),
    names=("body.0.weight", "body.0.bias"),
    elements=900,
    held=100,
    frozen_for=90,
    steps=95,
)


def test_fires_on_layers_that_no_optimizer_was_given():
    (finding,) = play(FrozenLayersForgotten, NOT_HELD)
    assert (finding.code, finding.severity, finding.where) == ("F1", "error", Where("train.py", 30))
    assert finding.message == (
        "2 tensors (900 elements) were unfrozen 95 steps ago, after 90 frozen ones, and no optimizer holds them: gradients "
        "arrive, and they are what they were (body.0.weight, body.0.bias)"
    )
    assert "add_param_group" in finding.fix


def test_a_small_part_that_is_left_out_is_a_warning():
    (finding,) = play(FrozenLayersForgotten, replace(NOT_HELD, elements=90))
    assert finding.severity == "warning"


# --------------------------------------------------------------------------- a body that nobody trained

RANDOM = BodyNeverTrained(
    step=1, where=Where("train.py", 81), model="Net", matrices=9, frozen=14_264, trainable=100, norms=9,
    optimizer=OptimizerFacts(key=0),
)  # fmt: skip


def judged(event, last, steps=240, how="finished"):
    losses = tuple(1.4 + (last - 1.4) * at / steps for at in range(steps))
    read = LossesRead(
        step=steps, steps=tuple(range(steps)), losses=losses, rates=(0.1,) * steps, optimizer=event.optimizer
    )
    return play(FrozenLayersForgotten, read, event, RunEnded(step=steps, how=how))


def test_fires_on_a_frozen_body_of_random_weights():
    (finding,) = judged(RANDOM, 1.1)
    assert (finding.severity, finding.step, finding.where) == ("error", 1, Where("train.py", 81))
    assert (
        "99.3% of Net is frozen with the random weights it was built with (9 matrices, 14,264 elements)"
        in finding.message
    )
    assert "O18" in finding.consequences
    (plain,) = judged(replace(RANDOM, norms=0), 1.3)
    assert plain.severity == "hint"
    assert judged(replace(RANDOM, norms=0, replaced=True), 1.1)


def test_near_miss_random_features_that_are_good_enough():
    assert judged(RANDOM, 0.3) == []
    assert judged(replace(RANDOM, norms=0), 0.9) == []


def test_near_miss_a_run_that_was_short_or_stopped():
    assert judged(RANDOM, 1.1, steps=60) == []
    assert judged(RANDOM, 1.1, how="interrupted") == []
