import pytest

from flatline.rules.numerics.log_of_softmax import LogOfSoftmax
from flatline.testing import lint

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
TAIL = "\nF.nll_loss(z, y).backward()"


@pytest.mark.parametrize(
    "code",
    [
        "z = torch.log(F.softmax(x, dim=1))",
        "z = x.softmax(1).log()",
        "p = torch.softmax(x, -1)\nz = torch.log(p)",
        "s = nn.Softmax(dim=1)\nz = s(x).log()",
        "def probs(v):\n    return F.softmax(v, 1)\nz = torch.log(probs(x))",
    ],
)
def test_source(code):
    """Seen as a SourceParsed."""
    (finding,) = lint(LogOfSoftmax, HEAD + code + TAIL)
    assert finding.code == "N5"
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "code",
    [
        "z = F.log_softmax(x, dim=1)",
        "z = torch.log(F.softmax(x, dim=1) + 1e-8)",
        "z = F.softmax(x, dim=1).clamp(min=1e-8).log()",
        "z = torch.log(torch.sigmoid(x))",
        "p = F.softmax(x, 1) if a else other(x)\nz = p.log()",
        "z = F.softmax(x, 1)\nlogger.log(z)",
        "import math\nz = math.log(3)",
        "y = F.normalize(x, dim=1)\nz = torch.log(torch.softmax(y, 1))",
        "z = x.clamp(-10, 10).softmax(1).log()",
        "y = 5 * torch.tanh(x / 5)\nz = F.softmax(y, 1).log()",
    ],
)
def test_near_miss_source(code):
    assert lint(LogOfSoftmax, HEAD + code + TAIL) == []


def test_near_miss_source_actions_that_were_drawn():
    """What was drawn from these probabilities is hardly ever improbable."""
    picked = "pi = F.softmax(x, 1)\n{}z = torch.log(pi.gather(1, a))"
    assert lint(LogOfSoftmax, HEAD + picked.format("a = torch.distributions.Categorical(pi).sample()\n") + TAIL) == []
    assert len(lint(LogOfSoftmax, HEAD + picked.format("") + TAIL)) == 1


def test_near_miss_source_nothing_is_trained():
    assert lint(LogOfSoftmax, HEAD + "z = torch.log(F.softmax(x, dim=1))") == []


DISTILLED = """
def distance(a, b):
    p, q = F.softmax(a, 1), F.softmax(b, 1)
    d = q * torch.log(p)
    return -d.mean()
"""


def test_source_in_a_function_whose_result_goes_backward():
    code = HEAD + DISTILLED + "def fit():\n    loss = distance(net(x), y)\n    loss.backward()"
    assert len(lint(LogOfSoftmax, code)) == 1


@pytest.mark.parametrize("line", ["score = distance(net(x), y)\n    loss = z.mean()", "loss = z.mean()"])
def test_near_miss_source_in_a_function_that_only_scores(line):
    assert lint(LogOfSoftmax, HEAD + DISTILLED + f"def fit():\n    {line}\n    loss.backward()") == []
