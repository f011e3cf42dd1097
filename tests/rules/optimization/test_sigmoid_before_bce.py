import pytest

from flatline.events import CrashTensor, LossComputed, ScriptCrashed, Where
from flatline.rules.optimization.sigmoid_before_bce import SigmoidBeforeBce
from flatline.testing import lint, play

RANGE = "all elements of input should be between 0 and 1"
LINE = Where("train.py", 21)


def double(fed_by="sigmoid", feed_where=""):
    return LossComputed(
        step=1, where=LINE, kind="binary_cross_entropy_with_logits", fed_by=fed_by, feed_where=feed_where
    )


def single(*wrong, fed_by="sigmoid"):
    return [
        LossComputed(step=n, where=LINE, kind="binary_cross_entropy", fed_by=fed_by, wrong_and_saturated=share)
        for n, share in enumerate(wrong, 1)
    ]


def test_fires_on_a_double_sigmoid():
    (finding,) = play(SigmoidBeforeBce, double(feed_where="net.3"))
    assert finding.severity == "error"
    assert finding.where == LINE
    assert finding.key == "double"
    assert finding.message == "the input of binary_cross_entropy_with_logits is already a sigmoid (net.3)"
    assert "between 0.5 and 0.73" in finding.cause
    assert finding.evidence == {"module": "net.3"}


def test_hints_at_a_single_sigmoid():
    (finding,) = play(SigmoidBeforeBce, *single(0.0, 0.0))
    assert finding.severity == "hint"
    assert finding.key == "plain"
    assert finding.count == 2
    assert finding.message == "sigmoid and binary_cross_entropy are two steps where one is stable"


def test_warns_of_a_saturated_sigmoid():
    finding, hint = play(SigmoidBeforeBce, *single(0.2, 0.2, 0.25))
    assert finding.severity == "warning"
    assert finding.step == 3
    assert finding.key == "saturated"
    assert finding.message == ("25% of the probabilities given to binary_cross_entropy are exactly 0 or 1 and wrong")
    assert hint.key == "plain"


def test_near_miss_raw_scores():
    assert play(SigmoidBeforeBce, double("linear"), double("")) == []


def test_near_miss_no_sigmoid_of_torch():
    assert play(SigmoidBeforeBce, *single(0.2, 0.2, 0.2, fed_by="clamp")) == []


def test_near_miss_sigmoid_before_another_loss():
    assert play(SigmoidBeforeBce, LossComputed(kind="mse_loss", fed_by="sigmoid")) == []


def test_near_miss_saturated_now_and_then_is_only_a_hint():
    (finding,) = play(SigmoidBeforeBce, *single(0.2, 0.2, 0.0, 0.2, 0.2))
    assert finding.severity == "hint"
    (finding,) = play(SigmoidBeforeBce, *single(*[0.005] * 5))
    assert finding.severity == "hint"


def test_fires_on_scores_that_bce_refuses():
    scores = CrashTensor(shape=(32, 1), low=-2.314, high=3.1)
    (finding,) = play(SigmoidBeforeBce, ScriptCrashed(where=LINE, message=RANGE, tensors={"input": scores}))
    assert finding.severity == "error"
    assert finding.where == LINE
    assert finding.key == "crash"
    assert finding.message == "binary_cross_entropy was given raw scores (-2.31 to 3.1); it takes probabilities"


def test_fires_without_the_tensors():
    (finding,) = play(SigmoidBeforeBce, ScriptCrashed(message=RANGE))
    assert finding.message == "binary_cross_entropy was given raw scores; it takes probabilities"


def test_near_miss_targets_that_bce_refuses():
    assert play(SigmoidBeforeBce, ScriptCrashed(message="all elements of target should be between 0 and 1")) == []


def test_near_miss_other_crashes():
    functions = ("<module>", "binary_cross_entropy")
    message = "Found dtype Long but expected Float"
    assert play(SigmoidBeforeBce, ScriptCrashed(message=message, functions=functions)) == []


@pytest.mark.parametrize(
    "code",
    [
        "loss = F.binary_cross_entropy_with_logits(torch.sigmoid(net(x)), y)",
        "p = net(x).sigmoid().squeeze(1)\nloss = nn.BCEWithLogitsLoss()(p, y)",
        "head = nn.Linear(3, 1)\nloss = nn.BCELoss()(head(x), y)",
    ],
)
def test_source_wrong_pair(code):
    """Seen as a SourceParsed."""
    (finding,) = lint(SigmoidBeforeBce, f"import torch\nfrom torch import nn\nimport torch.nn.functional as F\n{code}")
    assert finding.severity == "error"


@pytest.mark.parametrize(
    "code",
    [
        "loss = F.binary_cross_entropy(net(x), y)",
        "loss = F.binary_cross_entropy_with_logits(net(x), torch.sigmoid(z))",
        "p = torch.sigmoid(out)\nloss = F.binary_cross_entropy_with_logits(out, y)",
    ],
)
def test_near_miss_source_right_pair(code):
    assert lint(SigmoidBeforeBce, f"import torch\nimport torch.nn.functional as F\nout = net(x)\n{code}") == []


PLAIN = """import torch
from torch import nn
import torch.nn.functional as F
model = nn.Sequential(nn.Linear(8, 1), {})
criterion = nn.BCELoss()
for x, y in data:
    loss = criterion(model(x).squeeze(1), y)
    other = criterion(model(x), y)
"""


def test_hints_at_a_single_sigmoid_in_source():
    """Once for each place that makes the probabilities."""
    (finding,) = lint(SigmoidBeforeBce, PLAIN.format("nn.Sigmoid()"))
    assert (finding.severity, finding.where.line) == ("hint", 7)
    assert (
        finding.message == "sigmoid and binary_cross_entropy are two steps where one is stable: nn.Sigmoid() (line 4)"
    )


@pytest.mark.parametrize("last", ["nn.Softmax(1)", "head", "nn.ReLU()"])
def test_near_miss_source_no_plain_sigmoid(last):
    assert lint(SigmoidBeforeBce, PLAIN.format(last)) == []


WRAPPED = """import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        return {out}
class Weighted(nn.Module):
    def forward(self, out, target):
        return F.binary_cross_entropy_with_logits(out, target)
class Runner:
    def __init__(self, model, device):
        self.model = model.to(device)
        self.loss = Weighted(){moved}
        {more}
    def fit(self, loader):
        for x, y in loader:
            self.loss(self.model(x), y).backward()
Runner(Net(), "cuda").fit(loader)
"""


@pytest.mark.parametrize("moved", ["", ".to(device)", ".cuda().float()"])
def test_fires_source_criterion_that_is_moved(moved):
    code = WRAPPED.format(out="torch.sigmoid(self.head(x))", moved=moved, more="")
    (finding,) = lint(SigmoidBeforeBce, code)
    assert (finding.severity, finding.where.line) == ("error", 12)


@pytest.mark.parametrize(
    ("out", "more", "told"),
    [
        ("self.head(x)", "", 0),
        ("torch.sigmoid(self.head(x))", "use(Weighted())", 1),
        ("torch.sigmoid(self.head(x))", "self.others = [Weighted()]", 1),
    ],
)
def test_near_miss_source_criterion_that_others_may_call(out, more, told):
    """What this trainer hands it is seen, whoever else may."""
    assert len(lint(SigmoidBeforeBce, WRAPPED.format(out=out, moved=".to(device)", more=more))) == told
