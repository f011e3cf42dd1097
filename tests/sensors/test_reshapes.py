"""Views that name the dimensions of their tensor in another order."""

import ast
import linecache

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import DimensionsMixed
from flatline.sensors.reshapes import cut_anew


def asked(body):
    lines = "\n".join(f"    {line}" for line in body.split("; "))
    return cut_anew(ast.parse(f"def forward(self, x):\n{lines}\n").body[0], "net.py")


@pytest.mark.parametrize(
    "body",
    [
        "b, t, c = x.shape; x = x.view(t, b, c)",
        "b, c, h, w = x.size(); s = x.reshape(w, b, c * h)",
        "n, t, d = x.shape; y = self.rnn(x.reshape((t, n, d)))",
        "b, c, h, w = f.shape; return f.view(h * w, b, c)",
    ],
)
def test_another_order(body):
    where, call, order = asked(body)
    assert call in body.replace("((", "((")
    assert order.count(",") >= 2
    assert (where.file, where.function) == ("net.py", "forward")


@pytest.mark.parametrize(
    "body",
    [
        "b, t, c = x.shape; x = x.permute(1, 0, 2).reshape(t, b, c)",
        "b, t, c = x.shape; x = x.transpose(0, 1); x = x.reshape(t, b, c)",
        "b, t, c = x.shape; x = x.view(b * t, c)",
        "b, c, h, w = x.shape; x = x.view(b, c, h * w).permute(2, 0, 1)",
        "b, c, h, w = x.shape; x = x.view(1, b * c, h, w)",
        "t, b, d = q.size(); q = q.view(t, b * self.heads, self.width).transpose(0, 1)",
        "b, t, c = x.shape; y = z.view(t, b, c)",
        "b, t = x.shape; x = x.view(t, b)",
        "b, t, c = x.shape; t, b = b, t; x = x.view(t, b, c)",
        "b, t, c = x.shape; x = x.view(-1, b, c)",
        "b, t, c = x.shape; x = x.view(self.groups, b, c)",
    ],
)
def test_near_miss(body):
    assert asked(body) is None


# --------------------------------------------------------------------------- as a forward ran


MODULE = """
STEPS = 5
class TimeFirst(nn.Module):
    def forward(self, x):
        return x.permute(1, 0, 2)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.one, self.wide = 2, 1, 4
        self.turn, self.fit = TimeFirst(), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.rnn, self.weight = nn.GRU(4, 4, 2), nn.Parameter(torch.randn(5, 4))
        self.both = nn.LSTM(4, 3, bidirectional=True, batch_first=True)
        self.attend, self.places = nn.TransformerEncoderLayer(4, 1, 8), nn.Linear(4, 6)
    def forward(self, x):
        {body}
"""


def told(tmp_path, body, shape=(6, 5, 4)):
    file = tmp_path / "net.py"
    file.write_text(MODULE.format(body="\n        ".join(body.split("; "))))
    linecache.checkcache()
    names = {"nn": nn, "torch": torch, "F": nn.functional, "__name__": "net"}
    exec(compile(file.read_text(), str(file), "exec"), names)

    def run():
        model = names["Net"]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(shape)).square().mean().backward()
            optimizer.step()

    return [(event.statement, event.order) for event in seen(run, DimensionsMixed)]


@pytest.mark.parametrize(
    ("body", "statement", "order"),
    [
        ("batch = x.size(0); x = x.view(STEPS, batch, 4); return self.rnn(x)[0]", "x.view(STEPS, batch, 4)", "6, 5, 4"),
        ("return self.rnn(x.view(5, x.size(0), -1))[0]", "x.view(5, x.size(0), -1)", "6, 5, 4"),
        ("b, t, c = x.shape; return self.fit(x.reshape(5, b, 4))", "x.reshape(5, b, 4)", "6, 5, 4"),
        ("x = x.reshape(STEPS, -1, 4); return self.rnn(x)[0]", "x.reshape(STEPS, -1, 4)", "6, 5, 4"),
        ("n = x.shape[1]; return self.fit(x.reshape((n, len(x), 4)))", "x.reshape((n, len(x), 4))", "6, 5, 4"),
        ("h = torch.tanh(self.fit(x)); return h.view(self.layers * 2, x.shape[0], 5)",
         "h.view(self.layers * 2, x.shape[0], 5)", "6, …"),
    ],
)  # fmt: skip
def test_samples_moved_from_the_first_place(tmp_path, body, statement, order):
    assert told(tmp_path, body) == [(statement, order)]


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("return self.fit(x.view(1, x.size(0), 5, 4))", (6, 5, 4)),
        ("return self.fit(x.view(self.one, x.size(0), 5, 4))", (6, 5, 4)),
        ("return self.fit(x.view(5, x.size(0), 4))", (1, 5, 4)),
        ("return self.fit(x.view(-1, x.size(0), 4))", (6, 1, 4)),
        ("n = x.shape[1]; return self.fit(x.view(n, x.size(0), 4))", (6, 1, 4)),
        ("batch = x.size(0); x = x.permute(1, 0, 2); return self.fit(x.reshape(5, batch, 4))", (6, 5, 4)),
        ("batch = x.size(0); x = self.turn(x); return self.fit(x.reshape(5, batch, 4))", (6, 5, 4)),
        ("x = x.transpose(0, 1); batch = x.size(1); return self.fit(x.reshape(STEPS, batch, 4))", (6, 5, 4)),
        ("return self.fit(x.view(x.size(0), STEPS, 2, 2).permute(2, 0, 1, 3).reshape(-1, 4))", (6, 5, 4)),
        ("return self.fit(self.weight.repeat(len(x), 1, 1).view(STEPS, len(x), 4))", (6, 5, 4)),
        ("batch = x.size(0); x = self.rnn(x)[1]; return self.fit(x.view(2, 5, 4)) * batch", (6, 5, 4)),
        ("return self.fit(x.reshape(STEPS, -1, 4))", (5, 6, 4)),
        ("return self.fit(x.reshape(4, -1, 4))", (6, 4, 4)),
        ("return self.fit(x.reshape(15, -1, 4))", (6, 5, 4)),
        ("return self.fit(x.permute(1, 0, 2).reshape(STEPS, -1, 4))", (6, 5, 4)),
        ("if x.dim() == 2:; ␣x = x.view(5, x.size(0), -1); return self.fit(x)", (6, 5, 4)),
    ],
)
def test_near_miss_samples_that_stay_or_are_one(tmp_path, body, shape):
    assert told(tmp_path, body.replace("␣", "    "), shape) == []


# --------------------------------------------------------------------------- samples that stand behind


@pytest.mark.parametrize(
    ("body", "statement", "order"),
    [
        ("h, _ = self.rnn(x.permute(1, 0, 2)); return h.reshape(x.size(0), -1)", "h.reshape(x.size(0), -1)", "5, 6, 4"),
        ("b = len(x); h = self.rnn(x.transpose(0, 1))[0]; return h.relu().reshape((b, 20))",
         "h.relu().reshape((b, 20))", "5, 6, 4"),
        ("x = x.repeat(1, 12, 1)[:, :12]; h, s = self.rnn(x.transpose(0, 1)); return torch.tanh(h).reshape(-1, 12 * 4)",
         "torch.tanh(h).reshape(-1, 12 * 4)", "12, 6, 4"),  # twice as many steps as samples
        ("_, (h, c) = self.both(x); return h.view(x.shape[0], -1)", "h.view(x.shape[0], -1)", "2, 6, 3"),
        ("z = self.turn(x); z = self.fit(self.attend(z)); t, n, c = z.shape; return z.reshape(n, t * c)",
         "z.reshape(n, t * c)", "5, 6, 4"),
        ("x = x.transpose(0, 1); return x.reshape(x.size(1), -1) * self.weight.sum()", "x.reshape(x.size(1), -1)", "5, 6, 4"),
    ],
)  # fmt: skip
def test_samples_brought_from_behind_time(tmp_path, body, statement, order):
    assert told(tmp_path, body) == [(statement, order)]


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("h, _ = self.rnn(x.permute(1, 0, 2)); return h.transpose(0, 1).reshape(x.size(0), -1)", (6, 5, 4)),
        ("h, _ = self.rnn(x.permute(1, 0, 2)); h = self.turn(h); return h.reshape(x.size(0), -1)", (6, 5, 4)),
        ("h, _ = self.rnn(x.permute(1, 0, 2)); return self.fit(h.reshape(-1, 4)).view(5, x.size(0), 4)", (6, 5, 4)),
        ("h, _ = self.both(x); return h.reshape(x.size(0), -1)", (6, 5, 4)),
        ("_, (h, c) = self.both(x); return h[0].reshape(x.size(0), -1)", (6, 5, 4)),
        ("h, _ = self.rnn(x.permute(1, 0, 2)); return h.reshape(x.size(0), -1)", (6, 1, 4)),  # one step
        ("h, _ = self.rnn(x.permute(1, 0, 2)); return h.reshape(x.size(0), -1)", (1, 5, 4)),  # one sample
        ("h, _ = self.rnn(x); return h.reshape(x.size(0), -1)", (6, 5, 4)),  # time comes first in the data
        ("p = self.places(self.weight).reshape(x.size(0), -1); return p.sum() * self.fit(x)", (6, 5, 4)),  # six of its own
        ("h, _ = self.rnn(x.permute(1, 0, 2)); if x.dim():; ␣h = h.transpose(0, 1); return h.reshape(x.size(0), -1)",
         (6, 5, 4)),
    ],
)  # fmt: skip
def test_near_miss_samples_that_are_ahead_again(tmp_path, body, shape):
    assert told(tmp_path, body.replace("␣", "    "), shape) == []


def test_a_statement_over_several_lines(tmp_path):
    """The name within it is not what it makes."""
    assert told(tmp_path, "x = torch.relu(; ␣x); return self.fit(x).view(x.size(0), 5, 4)".replace("␣", "    ")) == []
