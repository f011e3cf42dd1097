from dataclasses import replace

import pytest

from flatline.events import NormLayerFacts, ParameterFacts, ParametersAudited, Where
from flatline.rules.optimization.frozen_norm_drifts import FrozenNormDrifts
from flatline.testing import lint, play

NORM = NormLayerFacts(name="body.bn1", frozen=True, drifted=0.31)
HEAD = ParameterFacts(name="head.weight", optimizers=(0,))


def audit(*norms, parameters=(HEAD,)):
    return ParametersAudited(
        step=3,
        where=Where("train.py", 30),
        backward_where=Where("train.py", 29),
        parameters=parameters,
        norms=norms,
    )


def test_fires_on_frozen_layers_in_train_mode():
    (finding,) = play(FrozenNormDrifts, audit(replace(NORM, name="body.bn0", drifted=0.1), NORM))
    assert finding.severity == "warning"
    assert finding.where == Where("train.py", 29)
    assert finding.message == (
        "2 frozen BatchNorm layers run in train mode; running_mean of body.bn1 moved by 31% in 3 steps"
    )
    assert finding.evidence == {"layers": 2, "drift": 0.31, "layer": "body.bn1"}


def test_near_miss_eval_mode():
    assert play(FrozenNormDrifts, audit(replace(NORM, training=False))) == []


def test_near_miss_statistics_stand_still():
    assert play(FrozenNormDrifts, audit(replace(NORM, drifted=0.0))) == []
    assert play(FrozenNormDrifts, audit(replace(NORM, drifted=1e-4))) == []


def test_near_miss_not_frozen_or_only_for_the_generators_step():
    assert play(FrozenNormDrifts, audit(replace(NORM, frozen=False))) == []


def test_near_miss_averaged_copy():
    assert play(FrozenNormDrifts, audit(replace(NORM, copied=True))) == []


def test_near_miss_did_not_run():
    assert play(FrozenNormDrifts, audit(replace(NORM, ran=False))) == []


def test_near_miss_nothing_learns():
    frozen = replace(HEAD, trainable=False)
    assert play(FrozenNormDrifts, audit(NORM, parameters=(frozen,))) == []
    assert play(FrozenNormDrifts, audit(NORM, parameters=(replace(HEAD, optimizers=()),))) == []
    assert play(FrozenNormDrifts, audit(NORM, parameters=(replace(HEAD, reached=False),))) == []


def test_near_miss_only_norms_learn():
    assert play(FrozenNormDrifts, audit(NORM, parameters=(replace(HEAD, norm=True),))) == []


FROZEN = """
import torch, torchvision
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = torchvision.models.resnet18()
        self.head = nn.Linear(1000, 3)
    def forward(self, x):
        return self.head(self.trunk(x))
def freeze(module):
    for p in module.parameters():
        p.requires_grad = False
net = Net()
freeze(net.trunk)
opt = torch.optim.Adam(net.head.parameters())
for epoch in range(9):
    net.train()
    for x, y in data:
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
    net.eval()
"""


def test_source_frozen_trunk_in_train_mode():
    """Seen as a SourceParsed."""
    (finding,) = lint(FrozenNormDrifts, FROZEN)
    assert (
        finding.message
        == "net.train() puts the BatchNorm layers of net.trunk into train mode, whose parameters are frozen (line 14)"
    )


@pytest.mark.parametrize(
    ("name", "found"), [("'resnet34', num_classes=0", 1), ("'vit_small_patch16_224'", 0), ("chosen", 0)]
)
def test_source_frozen_trunk_of_timm(name, found):
    code = FROZEN.replace("import torch, torchvision", "import torch, timm")
    code = code.replace("torchvision.models.resnet18()", f"timm.create_model({name})")
    assert len(lint(FrozenNormDrifts, code)) == found


def test_source_layers_that_are_written_out():
    own = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))"
    assert len(lint(FrozenNormDrifts, FROZEN.replace("torchvision.models.resnet18()", own))) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    net.train()", "    net.train()\n    net.trunk.eval()"),
        ("    net.train()", "    pass"),
        ("torchvision.models.resnet18()", "torchvision.models.vit_b_16()"),
        ("freeze(net.trunk)", "freeze(net.head)"),
        (
            "net = Net()",
            "net = Net()\nfor m in net.modules():\n    if isinstance(m, nn.BatchNorm2d):\n        m.eval()",
        ),
        ("    net.eval()", "    net.trunk.requires_grad_(True)"),
        ("    def forward", "    def train(self, mode=True):\n        self.head.train(mode)\n    def forward"),
        ("net = Net()", "import copy\nnet = copy.deepcopy(Net())"),
    ],
)
def test_near_miss_source(old, new):
    assert lint(FrozenNormDrifts, FROZEN.replace(old, new)) == []


CUT = """
import torch
from torch import nn
from torchvision.models import resnet50
class Net(nn.Module):
    def __init__(self, freezes={default}):
        super().__init__()
        r = resnet50()
        self.stem = nn.Sequential({stem})
        self.rest = r.layer2
        self.head = nn.Conv2d(512, 3, 1)
        {start}
    def freeze(self):
        for part in {parts}:
            for p in part.parameters():
                p.requires_grad = False
    def forward(self, x):
        return self.head(self.rest(self.stem(x)))
def build():
    body = nn.Sequential({stem})
    body.requires_grad_(False)
    return nn.Sequential(body, nn.Linear(64, 3))
"""
LOOP = """
import torch
from nets import Net
def main():
    net = Net({given})
    opt = torch.optim.Adam(net.head.parameters())
    for epoch in range(9):
        net.train()
        {more}
        for x, y in data:
            opt.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            opt.step()
if __name__ == "__main__":
    main()
"""
WHOLE = {
    "default": "True", "stem": "r.conv1, r.bn1, r.relu, r.layer1", "start": "self.freeze()", "parts": "(self.stem, self.rest)",
    "given": "", "more": "pass",
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"start": "if freezes:\n            self.freeze()"},
        {"start": "for p in self.stem.parameters():\n            p.requires_grad = False"},
        {"parts": "[self.stem]"},
        {"default": "False", "given": "freezes=True", "start": "if freezes:\n            self.freeze()"},
    ],
)
def test_source_trunk_of_parts_in_another_file(changed):
    """Each part is one that has norms, and the freeze is come by."""
    options = {**WHOLE, **changed}
    (finding,) = lint(FrozenNormDrifts, LOOP.format(**options), nets=CUT.format(**options))
    assert (finding.where.file, finding.where.line) == ("train.py", 7)


@pytest.mark.parametrize(
    "changed",
    [
        {"start": "pass"},
        {"default": "False", "start": "if freezes:\n            self.freeze()"},
        {"start": "if freezes:\n            self.freeze()", "given": "given.freezes"},
        {"default": "False", "start": "if not freezes:\n            return\n        self.freeze()"},
        {"stem": "r.conv1, r.relu, r.maxpool", "parts": "[self.stem]"},
        {"more": "net.stem.eval()"},
        {"parts": "self.parts"},
    ],
)
def test_near_miss_source_trunk_of_parts(changed):
    options = {**WHOLE, **changed}
    assert lint(FrozenNormDrifts, LOOP.format(**options), nets=CUT.format(**options)) == []


def test_source_sequence_around_a_frozen_trunk():
    built = CUT.format(**WHOLE).replace("def build():", "def build():\n    r = resnet50()")
    loop = LOOP.format(**WHOLE).replace("Net", "build").replace("net.head", "net[1]")
    assert len(lint(FrozenNormDrifts, loop, nets=built)) == 1
    assert lint(FrozenNormDrifts, loop, nets=built.replace("r.bn1, r.relu, r.layer1", "r.relu")) == []


HOOK = """
import torch
from torch import nn
from torchvision.models.video import r3d_18
class Clips(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = r3d_18()
        self.head = nn.Linear(512, 27)
    def forward(self, clip):
        return self.head(self.trunk(clip))
class Freeze:
    def __init__(self, attr="trunk"):
        self.attr = attr
    def begin(self, trainer):
        part = {part}
        for p in part.parameters():
            p.requires_grad = False
class Save:
    def begin(self, trainer):
        pass
class Trainer:
    def __init__(self, model, hooks):
        self.model, self.hooks = model, hooks
    def fit(self, loader):
        for hook in self.hooks:
            hook.begin(self)
        opt = torch.optim.Adam(self.model.head.parameters())
        for epoch in range(3):
            self.model.train()
            {more}
            for x, y in loader:
                opt.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                opt.step()
Trainer(Clips(), {hooks}).fit(loader)
"""
NAMED = {"part": "getattr(trainer.model, self.attr)", "more": "pass", "hooks": "[Save(), Freeze()]"}


@pytest.mark.parametrize(
    "changed",
    [{}, {"part": "trainer.model.trunk"}, {"hooks": "[Freeze('trunk')]"}, {"hooks": "[Freeze(attr='trunk')]"}],
)
def test_source_a_part_that_got_a_name_in_a_hook(changed):
    assert len(lint(FrozenNormDrifts, HOOK.format(**{**NAMED, **changed}))) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"part": "trainer.model.head"},
        {"more": "self.model.trunk.eval()"},
        {"more": "getattr(self.model, name).eval()"},
        {"hooks": "[Save()]"},
        {"hooks": "read()"},
        {"hooks": "[Freeze('head')]"},
        {"hooks": "[Freeze(name)]"},
    ],
)
def test_near_miss_source_a_part_that_got_a_name_in_a_hook(changed):
    assert lint(FrozenNormDrifts, HOOK.format(**{**NAMED, **changed})) == []


@pytest.mark.parametrize(
    "more", ["self.model.head.train()", "self.model.train(True)", "wandb.watch(self.model)", "self.model.apply(init)"]
)
def test_source_what_leaves_the_norms_in_train_mode(more):
    assert len(lint(FrozenNormDrifts, HOOK.format(**{**NAMED, "more": more}))) == 1


@pytest.mark.parametrize(
    "more",
    [
        "self.model.eval(); self.model.head.train()",
        "for n, m in self.model.named_children(): m.train(n == 'head')",
        "self.model.trunk.train(False)",
        "self.model.trunk.register_forward_pre_hook(keep_eval)",
        "setattr(self.model, 'trunk', Frozen(self.model.trunk))",
        "set_bn_eval(self.model)",
        "self.model.apply(bn_eval)",
    ],
)
def test_near_miss_source_modes_that_are_put_back(more):
    options = {**NAMED, "more": more}
    known = "from ourtools.freezing import set_bn_eval, bn_eval\n" + HOOK.format(**options)
    assert lint(FrozenNormDrifts, known) == []


@pytest.mark.parametrize(
    ("trunk", "count"),
    [
        ("resnet18()", 1),
        ("resnet18(norm_layer=nn.BatchNorm2d)", 1),
        ("resnet18(norm_layer=lambda c: nn.GroupNorm(8, c))", 0),
        ("resnet18(norm_layer=partial(nn.GroupNorm, 8))", 0),
        ("resnet18()\n        swap_norms(self.trunk)", 0),
    ],
)
def test_source_trunks_with_other_norms(trunk, count):
    head = "from functools import partial\nfrom torchvision.models import resnet18\n"
    text = HOOK.format(**NAMED).replace("r3d_18()", trunk, 1)
    assert len(lint(FrozenNormDrifts, head + text)) == count
