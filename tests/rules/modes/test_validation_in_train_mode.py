from dataclasses import replace

import pytest

from flatline.events import ValidationObserved, Where
from flatline.rules.modes.validation_in_train_mode import ValidationInTrainMode
from flatline.testing import lint, play

SEEN = ValidationObserved(
    step=20, where=Where("train.py", 60, "accuracy"), model="net", sensitive=5, examples=("bn", "drop", "b1")
)
FOREIGN = replace(SEEN, other_loader=True)


def passes(event, *steps, forwards=1):
    return [replace(event, step=step, forwards=n) for step in steps for n in range(1, forwards + 1)]


def test_fires_on_a_pass_over_another_loader():
    (finding,) = play(ValidationInTrainMode, *passes(FOREIGN, 20, forwards=3))
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 60, "accuracy")
    assert finding.message == (
        "net ran 3 forwards in a row in train mode and without gradients, on batches of a loader that it never trains on, "
        "after step 20: 5 Dropout and BatchNorm layers active (bn, drop, b1, …)"
    )
    assert "model.eval()" in finding.fix


def test_fires_on_hand_made_batches():
    (finding,) = play(ValidationInTrainMode, *passes(SEEN, 20, forwards=2))
    assert finding.severity == "error"


def test_fires_on_one_foreign_batch_seen_twice():
    (finding,) = play(ValidationInTrainMode, *passes(FOREIGN, 20, 40))
    assert finding.severity == "error"
    assert finding.step == 40


def test_warns_of_a_validation_set_in_one_tensor():
    (finding,) = play(
        ValidationInTrainMode,
        replace(SEEN, step=1),
        *[replace(SEEN, step=step, same_input=True) for step in (2, 3)],
    )
    assert finding.severity == "warning"


def test_warns_of_single_forwards_in_a_fixed_rhythm():
    (finding,) = play(ValidationInTrainMode, *passes(SEEN, 50, 100, 150, 200))
    assert finding.severity == "warning"


def test_warns_where_gradients_are_on():
    events = passes(replace(FOREIGN, grad_enabled=True), 20, 40, forwards=4)
    (finding,) = play(ValidationInTrainMode, *events)
    assert finding.severity == "warning"
    assert "without gradients" not in finding.message


def test_near_miss_a_look_at_its_own_training_data():
    assert play(ValidationInTrainMode, *passes(replace(SEEN, own_data=True), *range(20, 320, 30))) == []


def test_near_miss_eval_mode():
    assert play(ValidationInTrainMode, *passes(replace(FOREIGN, training=False), 20, 40, forwards=4)) == []


def test_near_miss_nothing_minds_the_mode():
    assert play(ValidationInTrainMode, *passes(replace(FOREIGN, sensitive=0), 20, 40, forwards=4)) == []


def test_near_miss_monte_carlo_dropout():
    first, *again = passes(SEEN, 20, forwards=4)
    events = [first, *[replace(event, same_input=True) for event in again]]
    assert play(ValidationInTrainMode, *events, *[replace(e, step=40, same_input=True) for e in events]) == []


def test_near_miss_monte_carlo_dropout_moving_to_the_next_input():
    first, second, third, fourth = passes(SEEN, 20, forwards=4)
    assert play(ValidationInTrainMode, first, replace(second, same_input=True), third, fourth) == []


def test_near_miss_averaged_copy_and_generator():
    assert play(ValidationInTrainMode, *passes(replace(FOREIGN, averaged=True), 20, 40, forwards=4)) == []
    assert play(ValidationInTrainMode, *passes(replace(FOREIGN, recalibrated=True), 20, 40, forwards=4)) == []
    assert play(ValidationInTrainMode, *passes(replace(SEEN, adversarial=True), 20, 40, forwards=4)) == []


def test_near_miss_pseudo_labels_at_every_step():
    assert play(ValidationInTrainMode, *passes(SEEN, *range(1, 30), forwards=2)) == []


def test_near_miss_self_conditioning_at_random_steps():
    assert play(ValidationInTrainMode, *passes(SEEN, 2, 3, 5, 6, 9, 11, 12, 14)) == []


def test_near_miss_validated_in_eval_mode_elsewhere():
    events = passes(replace(SEEN, training=False), 20, forwards=4)
    assert play(ValidationInTrainMode, *events, *passes(SEEN, 50, 100, 150, 200)) == []


def test_near_miss_statistics_recomputed_on_purpose():
    event = replace(FOREIGN, where=Where("swa.py", 9, "update_bn"))
    assert play(ValidationInTrainMode, *passes(event, 20, 40, forwards=4)) == []


def test_near_miss_first_batch_of_a_new_training_loader():
    assert play(ValidationInTrainMode, *passes(replace(FOREIGN, grad_enabled=True), 20, 40, forwards=3)) == []
    assert play(ValidationInTrainMode, replace(FOREIGN, grad_enabled=True, forwards=4)) == []


SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), {})
    def forward(self, x):
        return self.body(x)
def validate(model, loader):
    {}
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum() for x, y in loader), [score(model, x) for x in loader]
@torch.no_grad()
def test(model, loader):
    right = 0
    for x, y in loader:
        right += (model(x).argmax(1) == y).sum()
net = Net()
opt = torch.optim.Adam(net.parameters())
test(net, val)
"""


def test_source_scored_in_train_mode():
    """Seen as a SourceParsed."""
    (finding,) = lint(ValidationInTrainMode, SCRIPT.format("nn.Dropout(0.3)", "pass"))
    assert "has a Dropout" in finding.message


def test_source_eval_is_not_called():
    findings = lint(ValidationInTrainMode, SCRIPT.format("nn.ReLU()", "model.eval"))
    assert ["without parentheses" in f.message for f in findings] == [True]


@pytest.mark.parametrize("layer", ["nn.ReLU()", "nn.Dropout(0)", "nn.LayerNorm(3)"])
def test_near_miss_source_nothing_depends_on_the_mode(layer):
    assert lint(ValidationInTrainMode, SCRIPT.format(layer, "pass")) == []


@pytest.mark.parametrize("switch", ["model.eval()", "model.train(False)", "model.train(mode)"])
def test_near_miss_source_switched_somewhere(switch):
    assert lint(ValidationInTrainMode, SCRIPT.format("nn.Dropout(0.3)", switch)) == []


def test_source_layers_that_a_function_makes():
    block = "def block(n): return nn.Sequential(nn.Linear(n, n), {})\nclass Net"
    code = SCRIPT.format("block(3)", "pass").replace("class Net", block, 1)
    (finding,) = lint(ValidationInTrainMode, code.replace("{}", "nn.BatchNorm1d(n)"))
    assert "has a BatchNorm1d" in finding.message
    assert lint(ValidationInTrainMode, code.replace("{}", "nn.LayerNorm(n)")) == []


def test_near_miss_source_a_block_that_is_not_the_models():
    block = "def block(n): return nn.Sequential(nn.Linear(n, n), nn.BatchNorm1d(n))\nclass Net"
    assert lint(ValidationInTrainMode, SCRIPT.format("nn.ReLU()", "block(3)").replace("class Net", block, 1)) == []


TWO = """
import torch
from torch import nn
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(8, 5)
    def forward(self, h):
        return self.out(self.drop(h))
def loss_of(encoder, decoder, batch):
    x, y = batch
    return nn.functional.cross_entropy(decoder(encoder(x)), y)
def train(encoder, decoder, loader, opt):
    encoder.train()
    decoder.train()
    for batch in loader:
        loss = loss_of(encoder, decoder, batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
@torch.no_grad()
def evaluate(encoder, decoder, loader):
    encoder.eval()
    total = 0.0
    for batch in loader:
        total += loss_of(encoder, decoder, batch).item()
    return total / len(loader)
def main():
    encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    decoder = Decoder()
    opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for epoch in range(9):
        train(encoder, decoder, train_loader, opt)
        print(evaluate(encoder, decoder, val_loader))
"""


def test_source_one_of_two_models_is_put_in_eval_mode():
    (finding,) = lint(ValidationInTrainMode, TWO)
    assert "has a Dropout" in finding.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    total = 0.0", "    decoder.eval()\n    total = 0.0"),
        ("    encoder.eval()", "    for each in (encoder, decoder):\n        each.eval()"),
        ("    encoder.eval()", "    quiet(encoder, decoder, eval_mode=True)"),
        ("nn.Dropout(0.3)", "nn.Identity()"),
        ("Decoder()\n", "Decoder()\n    encoder = nn.Sequential(encoder, decoder)\n"),
        ("    total = 0.0", "    total = 0.0  # Monte Carlo dropout"),
        ("encoder.eval()", "decoder.eval()\n    encoder.train(False)"),
    ],
)
def test_near_miss_source_of_two_models(old, new):
    assert old in TWO
    assert lint(ValidationInTrainMode, TWO.replace(old, new)) == []


ERRORS = SCRIPT.format("nn.Dropout(0.3)", "pass").replace(
    "right += (model(x).argmax(1) == y).sum()", "right += (model(x) - y).abs().sum().item()"
).replace(
    "return sum((model(x).argmax(1) == y).sum() for x, y in loader), [score(model, x) for x in loader]", "return 0"
)  # fmt: skip


def test_source_errors_that_are_added_up():
    (finding,) = lint(ValidationInTrainMode, ERRORS)
    assert "has a Dropout" in finding.message


@pytest.mark.parametrize("new", ["(model(x) - mean)", "(model(x) * y)", "(model(x) - 1)"])
def test_near_miss_source_no_errors(new):
    assert "(model(x) - y)" in ERRORS
    assert lint(ValidationInTrainMode, ERRORS.replace("(model(x) - y)", new)) == []


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("model(x) - model(x)", 0),
        ("model(x) - model(x.flip(0))", 0),
        ("model(x) - other(x)", 1),
        ("model(x) - scaled(y)", 1),
        ("both[0] - both[1]", 1),
    ],
)
def test_source_differences_between_outputs_of_one_model(new, expected):
    code = ERRORS.replace("        right +=", "        both = pair(model, x, y)\n        right +=")
    code = code.replace("net = Net()", "other, scaled = nn.Linear(3, 3), nn.BatchNorm1d(3)\nnet = Net()")
    code = code.replace("def validate", "def pair(model, x, y):\n    return [model(x), y]\ndef validate")
    assert len(lint(ValidationInTrainMode, code.replace("model(x) - y", new))) == expected


@pytest.mark.parametrize(
    ("first", "second", "score", "expected"),
    [
        ("model(x)", "model(x)", "nn.functional.mse_loss(first, second).item()", 0),
        ("model(x)", "model(x + 0.1)", "(first - again).abs().mean()", 0),
        ("model(x)", "y", "nn.functional.mse_loss(first, second).item()", 1),
        ("model(x)", "model(x)", "(first.argmax(1) == second.argmax(1)).sum()", 0),
        ("model(x)", "model(x)", "(first.argmax(1) == y).sum()", 1),
        ("model(x)", "model(x)", "(first - second).abs().mean()", 0),
        ("model(x)", "y + 1", "(first - second).abs().mean()", 1),
    ],
)
def test_source_two_outputs_of_one_model(first, second, score, expected):
    error = "        right += (model(x) - y).abs().sum().item()"
    assert error in ERRORS
    code = ERRORS.replace(
        error, f"        first, second = {first}, {second}\n        again = second\n        right += {score}"
    )
    assert len(lint(ValidationInTrainMode, code)) == expected


METHOD = """
import torch
from torch import nn
from modes import plain, timed, quiet
class System:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3))
        self.opt = torch.optim.Adam(self.net.parameters())
    @timed
    @{head}
    def check(self, loader):
        with torch.no_grad():
            for x, y in loader:
                right = (self.net(x).argmax(1) == y).sum()
System().check(val)
"""
MODES = """
def plain(method):
    def inner(self, *args):
        return method(self, *args)
    return inner
def timed(method):
    def inner(self, *args):
        print(clock())
        return method(self, *args)
    return inner
def quiet(method):
    def inner(self, *args):
        self.net.eval()
        found = method(self, *args)
        self.net.train()
        return found
    return inner
"""


@pytest.mark.parametrize(("head", "expected"), [("plain", 1), ("quiet", 0)])
def test_source_decorator_of_another_file_above_a_method(head, expected):
    assert len(lint(ValidationInTrainMode, METHOD.format(head=head), modes=MODES)) == expected
