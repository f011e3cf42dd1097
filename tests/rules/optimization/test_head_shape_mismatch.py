from dataclasses import replace

import pytest

from flatline.events import CheckpointFiltered, CheckpointLoaded, HeadLeftOut, LayersLeftBehind, ScriptCrashed, Where
from flatline.rules.optimization.head_shape_mismatch import HeadShapeMismatch
from flatline.testing import lint, play

KEYS = tuple(f"body.{i}.weight" for i in range(10))
LOADED = CheckpointLoaded(where=Where("train.py", 9), model="ResNet", strict=False, tensors=10)
CRASH = ScriptCrashed(
    where=Where("train.py", 9),
    message="Error(s) in loading state_dict for ResNet:\n\tsize mismatch for fc.weight: copying a param with shape …",
    functions=("<module>", "load_state_dict"),
    checkpoint_keys=("fc.weight", "fc.bias"),
)


def loaded(missing, unexpected, **facts):
    return replace(LOADED, missing=tuple(missing), unexpected=tuple(unexpected), **facts)


def test_fires_on_a_prefix_that_keeps_every_key_from_fitting():
    (finding,) = play(HeadShapeMismatch, loaded(KEYS, (f"module.{key}" for key in KEYS), prefix="-module."))
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 9)
    assert finding.message == (
        "0 of the 10 tensors of ResNet were loaded; 10 keep their random values (first body.0.weight; the checkpoint has "
        "module.body.0.weight)"
    )
    assert finding.cause == "strict=False hides that the names do not fit: the checkpoint's keys begin with 'module.'"
    assert finding.fix == "{k.removeprefix('module.'): v for k, v in checkpoint.items()}"
    assert finding.evidence == {"missing": 10, "unexpected": 10, "tensors": 10}


def test_fires_on_a_prefix_of_the_model():
    (finding,) = play(HeadShapeMismatch, loaded(KEYS, KEYS, prefix="+model."))
    assert finding.fix == "{'model.' + k: v for k, v in checkpoint.items()}"


def test_fires_on_names_that_have_nothing_in_common():
    (finding,) = play(HeadShapeMismatch, loaded(KEYS, ["conv1.weight"]))
    assert "rename the checkpoint's keys" in finding.fix


def test_fires_on_weights_one_level_deeper():
    (finding,) = play(HeadShapeMismatch, loaded(KEYS, ["model", "epoch"], nested="model"))
    assert finding.cause == "strict=False hides that the weights lie one level deeper, under 'model'"
    assert finding.fix == "model.load_state_dict(checkpoint['model'])"


def test_fires_on_a_part_under_a_prefix():
    (finding,) = play(HeadShapeMismatch, loaded(KEYS[:6], [f"encoder.{key}" for key in KEYS[:6]], prefix="-encoder."))
    assert finding.message.startswith("4 of the 10 tensors of ResNet were loaded; 6 keep their random values")


def test_near_miss_everything_fits():
    assert play(HeadShapeMismatch, loaded([], []), loaded([], ["ema.decay"])) == []


def test_near_miss_only_the_head_is_missing():
    assert play(HeadShapeMismatch, loaded(["fc.weight", "fc.bias"], ["old.weight", "old.bias"])) == []
    assert play(HeadShapeMismatch, loaded(KEYS[:4], KEYS[:4], prefix="-module.")) == []
    assert play(HeadShapeMismatch, loaded(KEYS[:6], KEYS[:6], prefix="-module.", tensors=60)) == []


def test_near_miss_adapters_alone():
    assert play(HeadShapeMismatch, loaded(KEYS[:8], [])) == []
    assert play(HeadShapeMismatch, loaded(KEYS, [])) == []


def test_near_miss_a_larger_new_part_without_a_prefix():
    assert play(HeadShapeMismatch, loaded(KEYS[:6], ["fc.weight"])) == []


def test_near_miss_strict():
    assert play(HeadShapeMismatch, loaded(KEYS, KEYS, prefix="-module.", strict=True)) == []


def test_fires_on_shapes_that_do_not_fit():
    (finding,) = play(HeadShapeMismatch, CRASH)
    assert finding.severity == "error"
    assert finding.key == "crash"
    assert finding.message == ("2 tensors of the checkpoint have another shape than the model's (fc.weight, fc.bias)")
    assert "never shapes" in finding.cause
    assert finding.fix.endswith("if not k.startswith('fc.')}")


def test_the_fix_names_a_parameter_without_a_module():
    (finding,) = play(HeadShapeMismatch, replace(CRASH, checkpoint_keys=("pos_embed",)))
    assert "'pos_embed'" in finding.fix


def test_near_miss_keys_that_are_missing():
    assert play(HeadShapeMismatch, replace(CRASH, message="Missing key(s) in state_dict: 'fc.weight'.")) == []


def test_near_miss_sizes_in_the_forward_pass():
    functions = ("<module>", "forward", "linear")
    assert play(HeadShapeMismatch, replace(CRASH, message="size mismatch, m1: [32 x 10]", functions=functions)) == []
    assert play(HeadShapeMismatch, replace(CRASH, functions=functions)) == []


FROM_FILE = """
import torch
state = torch.load("best.pt")
{}
"""


@pytest.mark.parametrize("line", ["net.load_state_dict(state, strict=False)", "net.load_state_dict(state, False)"])
def test_source_loose_load_is_a_hint(line):
    """Seen as a SourceParsed."""
    (finding,) = lint(HeadShapeMismatch, FROM_FILE.format(line))
    assert finding.severity == "hint"


@pytest.mark.parametrize(
    "line",
    [
        "net.load_state_dict(state)",
        "missing, unexpected = net.load_state_dict(state, strict=False)",
        "print(net.load_state_dict(state, strict=False))",
        "net.load_state_dict(state, strict=strict)",
    ],
)
def test_near_miss_source(line):
    assert lint(HeadShapeMismatch, FROM_FILE.format(line)) == []


TASKS = """import torch
from torch import nn
class Task(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.width = 8
        self.{first} = nn.Linear(8, 8)
        self.{second} = nn.Linear(8, 4)
"""
PRETRAINED = (
    TASKS.format(first="encoder", second="rotate")
    + """net = Task()
torch.save({"state": net.state_dict(), "epoch": 3}, "rotate.pt")
"""
)
FINETUNED = """net = Task()
state = torch.load("rotate.pt")["state"]
{more}
net.load_state_dict(state, strict=False)
"""


def test_fires_source_no_name_of_the_checkpoint_fits():
    code = TASKS.format(first="body", second="head") + FINETUNED.format(more="")
    (finding,) = lint(HeadShapeMismatch, code, pretrain=PRETRAINED)
    assert (finding.severity, finding.where.line) == ("warning", 12)
    assert finding.message.startswith("no name fits: the model that was saved (pretrain.py:10)")


@pytest.mark.parametrize(
    ("first", "more", "saved"),
    [
        ("encoder", "", PRETRAINED),
        ("body", "state = {k.replace('encoder', 'body'): v for k, v in state.items()}", PRETRAINED),
        ("body", "state['body.weight'] = state.pop('encoder.weight')", PRETRAINED),
        ("body", "", PRETRAINED.replace("rotate.pt", "other.pt")),
        ("body", "", PRETRAINED + "torch.save({'state': other.state_dict()}, 'rotate.pt')"),
        ("body", "", PRETRAINED.replace("self.width = 8", "setattr(self, name, layer)")),
        ("body", "", PRETRAINED + "net.body = net.encoder"),
    ],
)
def test_near_miss_source_names_that_may_fit(first, more, saved):
    code = TASKS.format(first=first, second="head") + FINETUNED.format(more=more)
    assert {f.severity for f in lint(HeadShapeMismatch, code, pretrain=saved)} == {"hint"}


def filtered(missing=26, tensors=30, renamed="layers.>blocks."):
    return CheckpointFiltered(
        step=0,
        model="Classifier",
        tensors=tensors,
        missing=tuple(f"blocks.{n}.weight" for n in range(missing)),
        left=("layers.0.weight",),
        renamed=renamed,
    )


def test_fires_on_a_filter_that_keeps_a_body_out():
    (finding,) = play(HeadShapeMismatch, filtered())
    assert finding.message == (
        "4 of the 30 tensors of Classifier came from the file; 26 keep their random values (first blocks.0.weight), and 1 of the "
        "file went nowhere (first layers.0.weight)"
    )
    assert finding.cause.endswith("what the model calls 'blocks.' is 'layers.' in the checkpoint")
    assert finding.fix == "{k.replace('layers.', 'blocks.', 1): v for k, v in checkpoint.items()}"


def test_near_miss_of_a_filter():
    """A head that is new, and a part that is small beside the rest."""
    assert play(HeadShapeMismatch, filtered(missing=2)) == []
    assert play(HeadShapeMismatch, filtered(missing=5, tensors=60)) == []
    assert play(HeadShapeMismatch, filtered(renamed="")) == []


def test_fires_on_layers_of_other_sizes():
    names = tuple(f"blocks.{n}.weight" for n in range(26))
    event = replace(filtered(renamed=""), reshaped=names, shapes=((48, 16), (64, 16)))
    (finding,) = play(HeadShapeMismatch, event)
    assert finding.cause == (
        "the filter that keeps what fits hides that 26 tensors have another shape there: blocks.0.weight is [48, 16] here, "
        "[64, 16] in the file"
    )


RENAMED = HeadLeftOut(
    step=204,
    where=Where("train.py", 97),
    model="RouterV2",
    head="heads.dept",
    stored="classifier",
    tensors=4,
    samples=192,
    commonest=0.15,
    agrees=0.62,
    agrees_now=0.12,
    loss=1.1,
    loss_now=2.08,
)


def test_fires_on_a_head_that_the_checkpoint_has_under_another_name():
    (finding,) = play(HeadShapeMismatch, RENAMED)
    assert (finding.severity, finding.where) == ("error", Where("train.py", 97))
    assert finding.message == (
        "heads.dept of RouterV2 keeps its random values, and the checkpoint has them under another name: with the 4 tensors of "
        "classifier in it, it answers 62% of the first 192 targets (loss 1.1), as it is 12% (loss 2.08)"
    )
    assert finding.fix.startswith("{k.replace('classifier', 'heads.dept', 1): v")


@pytest.mark.parametrize(
    "change",
    [
        {"agrees": 0.2},  # as good as guessing: of another task
        {"commonest": 0.6},
        {"agrees_now": 0.6},  # put in since
        {"samples": 16},
        {"loss": 2.2},
        {"agrees": 1.0, "commonest": 1.0},
    ],
)
def test_near_miss_a_head_that_fits_by_its_shapes_alone(change):
    assert play(HeadShapeMismatch, replace(RENAMED, **change)) == []


def test_near_miss_a_load_with_more_holes_is_told_once():
    holes = loaded(KEYS, (f"module.{key}" for key in KEYS), prefix="-module.")
    assert len(play(HeadShapeMismatch, holes, RENAMED)) == 1


def test_fires_on_layers_left_behind():
    layers = ("blocks.0.fc_out", "blocks.1.fc_out")
    facts = {"model": "Net", "giver": "Net", "layers": layers, "tensors": 24, "missing": 4}
    (finding,) = play(HeadShapeMismatch, LayersLeftBehind(step=501, where=Where("train.py", 91), **facts))
    assert (finding.severity, finding.where, finding.key) == ("warning", Where("train.py", 91), "left behind")
    assert finding.message == (
        "2 layers of Net (blocks.0.fc_out, blocks.1.fc_out) are frozen with fresh random weights: the load left out 4 of its 24 "
        "tensors that Net has under the same names, in the same shapes"
    )
