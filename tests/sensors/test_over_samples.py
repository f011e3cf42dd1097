"""A sum of means over batches, divided by the number of samples: does a stop depend on it?"""

from __future__ import annotations

import linecache

import pytest

from flatline.events import Where
from flatline.sensors.over_samples import NOTHING, stop_by_samples

TRAIN = """
TARGET = 0.05
loader = DataLoader(train_set, batch_size=64, shuffle=True)
for epoch in range(30):
    total = seen = 0.0
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        {add}
        {count}
    mean = {division}
    print(mean)
    if {condition}:
        {end}
"""
FUNCTION = """
def run(model, loader):
    total = 0.0
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    n = len(loader.dataset)
    {more}
    return total / n, n
def main(args):
    parser.add_argument("--stop-at", type=float, default=0.01)
    for epoch in range(args.epochs):
        train_loss, _ = run(model, loader)
        {scale}
        if args.stop_at >= train_loss:
            return
"""


def found(tmp_path, text):
    file = tmp_path / "train.py"
    file.write_text(text, encoding="utf-8")
    linecache.checkcache()
    line = 1 + text[: text.index("loss.backward")].count("\n")
    return stop_by_samples(Where(str(file), line, "run"))


def in_line(**parts):
    usual = {
        "add": "total += loss.item()", "count": "seen += len(x)", "division": "total / len(loader.dataset)",
        "condition": "mean < TARGET", "end": "break",
    }  # fmt: skip
    return TRAIN.format(**{**usual, **parts})


@pytest.mark.parametrize(
    "parts",
    [{}, {"division": "total / len(train_set)"}, {"division": "total / seen"}, {"condition": "epoch > 3 and 0.05 > mean"},
     {"end": "sys.exit()"}],
)  # fmt: skip
def test_a_stop_by_samples(tmp_path, parts):
    told = found(tmp_path, in_line(**parts))
    assert told.level == 0.05
    assert told.where.line == 11


def test_of_what_a_function_returns(tmp_path):
    told = found(tmp_path, FUNCTION.format(more="pass", scale="pass"))
    assert told[:3] == ("total / n", "args.stop_at >= train_loss", 0.01)


@pytest.mark.parametrize(
    "parts",
    [
        {"add": "total += loss.item() * len(x)"},
        {"division": "total / len(loader)"},
        {"count": "loss = (model(x) - y).square().mean(1).sum() + 0.1 * criterion(model(x), y)"},
        {"division": "64 * (total / len(loader.dataset))"},
        {"condition": "mean < best"},
        {"condition": "mean > TARGET"},
        {"condition": "epoch < 5"},
        {"end": "save(model)"},
        {"count": "total = 0.0"},
        {"count": "TARGET = TARGET / 2"},
        {"count": "mean = 64 * loss"},
    ],
)
def test_near_misses(tmp_path, parts):
    assert found(tmp_path, in_line(**parts)) == NOTHING


@pytest.mark.parametrize("parts", [{"more": "n = len(loader)"}, {"scale": "train_loss *= 64"}])
def test_near_misses_of_a_function(tmp_path, parts):
    assert found(tmp_path, FUNCTION.format(**{"more": "pass", "scale": "pass", **parts})) == NOTHING


@pytest.mark.parametrize("by", ["len(x)", "x.size(0)", "SIZE"])
def test_shares_of_means(tmp_path, by):
    parts = {"add": f"total += loss.item() / {by}", "division": "total / len(loader)"}
    told = found(tmp_path, in_line(**parts).replace("batch_size=64", "batch_size=SIZE"))
    assert (told.division, told.level, told.where.line) == (f"total += loss.item() / {by}", 0.05, 9)


@pytest.mark.parametrize(
    "parts",
    [
        {"add": "total += loss.item() / len(loader)"},
        {"add": "total += loss.item() / steps"},
        {"add": "total += loss.item() / len(words)"},
        {"add": "total += loss.item() * len(x) / len(x)"},
        {"division": "64 * (total / len(loader))"},
        {"count": "total += penalty.item()"},
    ],
)
def test_near_misses_of_shares(tmp_path, parts):
    parts = {"add": "total += loss.item() / len(x)", "division": "total / len(loader)", **parts}
    assert found(tmp_path, in_line(**parts)) == NOTHING


STOPPER = """
class Stopper:
    def __init__(self, patience=4, min_delta=1e-3):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad = float("inf"), 0
    def step(self, value, model):
        if {asks}:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience
def train(model, loader):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
def validate(model, loader):
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            {add}
    return total / {by}, 1
{stopper}
for epoch in range(50):
    train(model, loader)
    val_loss, _ = validate(model, held_out)
    if stopper.step(val_loss, model):
        break
"""


def by_a_stopper(tmp_path, **parts):
    usual = {
        "asks": "value < self.best - self.min_delta", "add": "total += criterion(model(x), y).item()",
        "by": "len(loader.dataset)", "stopper": "stopper = Stopper()",
    }  # fmt: skip
    return found(tmp_path, STOPPER.format(**{**usual, **parts}))


@pytest.mark.parametrize(
    ("parts", "margin"),
    [
        ({}, 1e-3),
        ({"asks": "self.best - value > self.min_delta"}, 1e-3),
        ({"asks": "value + 0.01 < self.best"}, 0.01),
        ({"stopper": "stopper = Stopper(5, 0.02)"}, 0.02),
        ({"stopper": "stopper = Stopper(min_delta=0.02)"}, 0.02),
        ({"add": "loss = criterion(model(x), y); total += float(loss)"}, 1e-3),
    ],
)
def test_a_least_improvement_of_what_a_stopper_is_given(tmp_path, parts, margin):
    told = by_a_stopper(tmp_path, **parts)
    assert (told.division, told.level, told.margin) == ("total / len(loader.dataset)", 0.0, margin)
    assert told.where.function == "validate"


@pytest.mark.parametrize(
    "parts",
    [
        {"by": "len(loader)"},
        {"asks": "value < self.best"},
        {"asks": "self.patience > self.min_delta"},
        {"asks": "value < self.best * (1 - self.min_delta)"},
        {"add": "total += criterion(model(x), y).item() * len(x)"},
        {"add": "total += other(model(x), y).item()"},
        {"stopper": "stopper = Stopper(min_delta=args.delta)"},
        {"stopper": "stopper = Stopper(min_delta=0.0)"},
        {"stopper": "stopper, summed = Stopper(), nn.MSELoss(reduction='sum')"},
    ],
)
def test_near_misses_of_a_stopper(tmp_path, parts):
    assert by_a_stopper(tmp_path, **parts) == NOTHING
