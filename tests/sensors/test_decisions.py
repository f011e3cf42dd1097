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
        "def hits(out, y):\n    p = out > 0\n    return (p == y).sum()\nhits(net(v).squeeze(1), y)",
        "def inner(p):\n    return p.argmax(1)\ndef outer(logits, y):\n    return inner(logits)\nouter(y=y, logits=net(v))",
        "def predict(v):\n    out = []\n    out.append(net(v))\n    return torch.cat(out)\nhit = predict(v) > 0",
        "p, t = torch.cat([net(a) for a, _ in test]), torch.cat([b for _, b in test])\nhit = p >= 0.5",
        "def preprocess(x):\n    return x\np = net(preprocess(v)).argmax(1)",
        "hit = net(v) > 0\nacc = net(v).argmax(1).eq(y).float().mean().item()\nbest = 0.0\nif acc > best:\n    best = acc",
        "CUT = 0.5\nhit = net(v).sigmoid() > CUT\nplain = net(v) > 0",
        "def hits(out, cut=0.5):\n    return out > cut\nplain = net(v) > 0\nhits(net(v))",
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
        "def hits(out, y):\n    return out > 0\nhits(v, y)",
        "def hits(out, cut):\n    return out > 0\nhits(cut=net(v), out=v)",
        "p = net(v).sigmoid()\nhit = p > 0.05\nplain = p > 0.5",
        "class Options:\n    cut: float = 0.08\nhit = net(v).sigmoid() >= Options().cut\nplain = net(v) > 0",
        "parser.add_argument('--cut-off', type=float, default=0.1)\nhit = net(v).sigmoid() > args.cut_off\nplain = net(v) > 0",
        "def hits(p, cut):\n    return p > cut\nplain = net(v) > 0\nhits(net(v).sigmoid(), chosen)",
        "def hits(p, *, cut=0.08):\n    return p > cut\nplain = net(v) > 0\nhits(net(v).sigmoid())",
        "CUT, SIZE = 0.2, 9\nplain = net(v) > 0\nhit = net(v).sigmoid() > CUT",
        "def log(value):\n    return value > 0\nloss = criterion(net(v), y)\nloss.backward()\nlog(loss)",
        "def simulate(n):\n    return torch.rand(n)\ny = simulate(9) > 0.5",
        "if len(v) > 0:\n    pass",
        "class Data:\n    pass\nlarge = Data(v).x > 0",
        "def roc_curve(s):\n    return s\nhit = net(v) > 0",
    ],
)
def test_decides_not(line, text):
    assert line(LOOP + text) is None


def test_no_source():
    assert decides("<string>") is None
