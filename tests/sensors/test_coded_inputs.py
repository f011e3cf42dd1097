"""A code for a missing number, in a column of the inputs."""

from __future__ import annotations

import linecache

import pytest
from watching import seen

from flatline.events import MissingFed

SCRIPT = """
import torch
torch.manual_seed(0)
n = 640
a, b = 20 + 5 * torch.randn(n), 5 + torch.randn(n)
y, gone = a + b, torch.rand(n) < 0.08
def table():
    {make}
x = table()
net = torch.nn.Linear(x.shape[1], 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
for rows in torch.arange(n).split(32):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net({fed})[:, 0], y[rows]).backward()
    optimizer.step()
"""
SCALED = "return (x - x.mean(0)) / x.std(0)"
CODED = "x = torch.stack([a, torch.where(gone, {code}, b)], 1)"


@pytest.fixture
def told(tmp_path):
    def run(*lines, fed="x[rows]", head=""):
        file = tmp_path / "train.py"
        file.write_text(head + SCRIPT.format(make="\n    ".join(lines), fed=fed))
        linecache.checkcache()
        code, variables = compile(file.read_text(), str(file), "exec"), {"__name__": "train"}
        return seen(lambda: exec(code, variables), MissingFed)

    return run


def test_a_code_that_the_script_writes(told):
    (event,) = told(CODED.format(code="-9999.0"), SCALED)
    assert (str(event.code), event.columns) == ("-9999.0", (1,))  # this file, too, would be one that writes it
    assert event.value < -2 < event.low < event.high < 1


@pytest.mark.parametrize("code", ["9999.0", "-999.0 * 1", "1.0 - 100"])
def test_a_code_that_means_and_deviations_of_the_script_lead_to(told, code):
    (event,) = told(
        CODED.format(code=f"1.0 * {code}").replace("b)", "b / 50)"), "global mean, std", "mean, std = x.mean(0), x.std(0)",
        "return (x - mean) / std",
    )  # fmt: skip
    assert event.code == eval(code)


def test_a_code_that_the_first_layer_is_given_and_one_that_the_raw_table_holds(told):
    assert told(CODED.format(code="-9999.0"), "return x")[0].value == float("-9999")
    raw = CODED.format(code="1.0 * 9999")
    assert told("global raw", raw.replace("x =", "raw = x ="), SCALED)[0].code == 9999


@pytest.mark.parametrize(
    "lines",
    [
        ("x = torch.stack([a, torch.where(gone, 0.0, 230 + b)], 1)", SCALED),  # a machine that is off
        ("x = torch.stack([a, torch.where(gone, 0.0, 230 + b)], 1)", "best = -999.0", SCALED),  # a start
        (
            "x = torch.stack([a, torch.where(gone, 0.0, 230 + b)], 1)",
            "s = y.masked_fill(gone, -9999.0)",
            SCALED,
        ),  # scores
        ("global raw", "raw = x = torch.stack([a, torch.where(gone, 99.0, b)], 1)", SCALED),  # all of a hundred but one
        (CODED.format(code="-9999.0"), "x[x == -9999.0] = 0", SCALED),
        ("x = torch.stack([a, torch.where(gone, 0.0, 230 + b)], 1)", "known = x != -999", SCALED),
        ("x = torch.stack([a, gone.float() * -9999.0], 1)", SCALED),  # a flag
        ("x = torch.stack([a, torch.where(gone, -99.0, b.round())], 1)", SCALED),  # counts
        ("x = torch.stack([a, torch.where(gone, b, -9999.0)], 1)", SCALED),  # most rows hold it
        ("x = torch.stack([a, (b / 2).exp().clamp(max=999.0).clamp(min=5)], 1)", SCALED),  # cut off
        ("x = torch.stack([a, torch.where(gone, -1.0, (b - b.min()) / (b.max() - b.min()))], 1)", "return x"),
        ("x = torch.stack([a, b], 1)", SCALED),
    ],
)
def test_near_misses(told, lines):
    assert told(*lines) == []


def test_numbers_of_the_script_that_are_not_finite_do_not_hurt(told):
    lines = CODED.format(code="1.0 * 9999"), "global mean, std, low", "mean, std = x.mean(0), x.std(0)"
    (event,) = told(*lines, "low = torch.tensor([float('inf'), float('nan')])", "return (x - mean) / std")
    assert event.code == 9999


def test_near_miss_a_code_that_is_replaced_on_the_way_to_the_first_layer(told):
    fed = "torch.where(x[rows] < -900, torch.zeros(()), x[rows])"
    assert told(CODED.format(code="-9999.0"), "return x", fed=fed) == []
