"""Whether a source decides by the highest score, and by nothing else."""

from __future__ import annotations

import linecache

import pytest

from flatline.sensors.decisions import decides

LOOP = """
for x, y in loader:
    loss = F.cross_entropy(net(x), y)
    loss.backward()
"""


@pytest.fixture
def line(tmp_path):
    def find(text):
        file = tmp_path / "train.py"
        file.write_text(text)
        linecache.checkcache()
        decides.cache_clear()
        found = decides(str(file))
        return found and found.line

    return find


@pytest.mark.parametrize(
    "text",
    [
        "p = net(v).argmax(1)",
        "out = net(v)\np = out.max(1)[1]",
        "p = torch.argmax(net(v), dim=1)",
        "hit = net(v).squeeze(1) > 0",
        "hit = torch.sigmoid(net(v))[:, 0] >= 0.5",
        "def score(model, v):\n    return torch.softmax(model(v), 1).argmax(-1)",
    ],
)
def test_decides(line, text):
    assert line(LOOP + text) is not None


def test_in_a_class(line):
    method = "class T:\n    def fit(self):\n        self.model(x).backward()\n    def test(self):\n        return self.model(v).argmax(1)"
    assert line(method) == 5


@pytest.mark.parametrize(
    "text",
    [
        "y = (x @ w).argmax(1)",
        "y = torch.stack([a, b]).argmax(1)",
        "clipped = x[:, 0] > 0",
        "p = torch.sigmoid(net(v))",
        "ap = average_precision_score(t, s)\np = net(v).argmax(1)",
        "order = s.argsort()\np = net(v) > 0",
        "p = net(v) > threshold",
        "largest = net(v).max()",
    ],
)
def test_decides_not(line, text):
    assert line(LOOP + text) is None


def test_no_source():
    assert decides("<string>") is None
