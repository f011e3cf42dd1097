import pytest

from flatline.events import LossComputed, Where
from flatline.rules.optimization.double_softmax import DoubleSoftmax
from flatline.testing import lint, play


def test_fires_on_softmax_under_cross_entropy():
    event = LossComputed(
        step=1, where=Where("train.py", 48), fed_by="softmax", feed_where="classifier.3", gradient_ratio=14.2
    )
    (finding,) = play(DoubleSoftmax, event)
    assert finding.code == "O12"
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 48)
    assert finding.message == "the input of cross_entropy is already a softmax (classifier.3)"
    assert "14.2 × smaller" in finding.cause
    assert "drop classifier.3" in finding.fix


def test_fires_on_a_mixture_of_softmaxes():
    (finding,) = play(DoubleSoftmax, LossComputed(fed_by="mixture of softmaxes"))
    assert finding.severity == "error"
    assert "nll_loss" in finding.fix


def test_log_softmax_is_only_a_warning():
    (finding,) = play(DoubleSoftmax, LossComputed(fed_by="log_softmax"))
    assert finding.severity == "warning"


def test_is_reported_once_with_its_count():
    (finding,) = play(DoubleSoftmax, *[LossComputed(step=n, fed_by="softmax") for n in (1, 2, 3)])
    assert finding.count == 3
    assert finding.step == 1


def test_near_miss_raw_scores():
    assert play(DoubleSoftmax, LossComputed(fed_by="linear")) == []


def test_near_miss_log_softmax_with_nll():
    assert play(DoubleSoftmax, LossComputed(kind="nll", fed_by="log_softmax")) == []


def test_near_miss_unknown_feed():
    assert play(DoubleSoftmax, LossComputed(fed_by="")) == []


def test_source_softmax_at_the_end_of_forward():
    """Seen as a SourceParsed, through the model's class and the criterion."""
    (finding,) = lint(
        DoubleSoftmax,
        """
        from torch import nn
        import torch.nn.functional as F
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 4)
            def forward(self, x):
                return F.softmax(self.fc(x), dim=1)
        model, criterion = Net().to("cuda"), nn.CrossEntropyLoss()
        for x, y in loader:
            loss = criterion(model(x), y)
        """,
    )
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 11)
    assert "F.softmax(self.fc(x), dim=1) (line 8)" in finding.message


def test_source_model_of_another_file():
    (finding,) = lint(
        DoubleSoftmax,
        """
        import torch.nn.functional as F
        from model import build
        net = build()
        loss = F.cross_entropy(net(x).view(-1, 4), y)
        """,
        model="""
        import torch.nn as n
        def build():
            return n.Sequential(n.Linear(3, 4), n.Softmax(dim=1))
        """,
    )
    assert "(model.py:3)" in finding.message


@pytest.mark.parametrize(
    "code",
    [
        "probs = F.softmax(out, dim=1)\nloss = F.cross_entropy(out, y)",
        "out = F.softmax(out, dim=1) if evaluate else out\nloss = F.cross_entropy(out, y)",
        "if not training:\n    out = F.softmax(out, dim=1)\nloss = F.cross_entropy(out, y)",
        "loss = F.nll_loss(F.log_softmax(out, dim=1), y)",
        "loss = F.kl_div(F.log_softmax(out, 1), F.softmax(teacher, 1))",
        "from mine import softmax\nloss = F.cross_entropy(softmax(out), y)",
    ],
)
def test_near_miss_source_not_the_input_on_every_way(code):
    assert lint(DoubleSoftmax, f"import torch.nn.functional as F\nout = net(x)\n{code}") == []


GROWN = """
    from torch import nn
    layers = [nn.Linear(3, 3)]
    for _ in range(3):
        layers.append(nn.ReLU())
    {}
    net = nn.Sequential(*layers)
    loss = nn.functional.cross_entropy(net(x), y)
    """


@pytest.mark.parametrize("line", ["layers += [nn.Linear(3, 4), nn.Softmax(1)]", "layers.append(nn.Softmax(1))"])
def test_source_layers_in_a_list_that_grew(line):
    assert len(lint(DoubleSoftmax, GROWN.format(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "layers += [nn.Softmax(1)]\n    layers.pop()",
        "if a: layers.append(nn.Softmax(1))",
        "layers.insert(0, nn.Softmax(1))",
    ],
)
def test_near_miss_source_layers_in_a_list(line):
    assert lint(DoubleSoftmax, GROWN.format(line)) == []


PREDICTED = """
    import torch
    import torch.nn.functional as F
    def predict(x):
        scores = net(x)
        return torch.softmax(scores, dim=-1){}
    out = predict(x)
    loss = F.cross_entropy({}, y[mask])
    """


@pytest.mark.parametrize("rows", ["out[mask]", "out[:8]", "out[y > 0]"])
def test_source_rows_of_probabilities(rows):
    assert len(lint(DoubleSoftmax, PREDICTED.format("", rows))) == 1


@pytest.mark.parametrize(("more", "rows"), [(", scores", "out[mask]"), ("", "parts[mask]"), (" @ cost", "out[mask]")])
def test_near_miss_source_rows_of_something_else(more, rows):
    assert lint(DoubleSoftmax, PREDICTED.format(more, rows)) == []


SWAPPED = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(8, 3), nn.Softmax(dim=1)
    def forward(self, x):
        return self.act(self.fc(x))
{below}
net = {made}
{then}
loss = nn.functional.cross_entropy(net(x), y)
"""
BELOW = "class Raw(Net):\n    def __init__(self):\n        super().__init__()\n        self.act = nn.Identity()"


def test_source_the_softmax_that_the_class_makes():
    assert len(lint(DoubleSoftmax, SWAPPED.format(below="", made="Net()", then="net.name = 'a'"))) == 1
    assert len(lint(DoubleSoftmax, SWAPPED.format(below="", made="Net()", then="setattr(args, 'act', 1)"))) == 1


@pytest.mark.parametrize(
    ("below", "made", "then"),
    [
        ("", "Net()", "net.act = nn.Identity()"),
        ("", "Net()", "setattr(net, 'act', nn.Identity())"),
        ("", "Net()", "net._modules['act'] = nn.Identity()"),
        ("", "Net()", "net.forward = lambda x: nn.Identity()(net.fc(x))"),
        (BELOW, "Raw()", ""),
    ],
)
def test_near_miss_source_a_softmax_that_is_replaced(below, made, then):
    assert lint(DoubleSoftmax, SWAPPED.format(below=below, made=made, then=then)) == []


LISTED = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 3), nn.Softmax(dim=1))
{then}
loss = nn.functional.cross_entropy(net(x), y)
"""


@pytest.mark.parametrize(
    ("then", "found"),
    [
        ("", 1),
        ("history = [1]\nhistory.pop(0)", 1),
        ("net.pop(1)", 0),
        ("del net[-1]", 0),
        ("net[1] = nn.Identity()", 0),
    ],
)
def test_source_a_sequence_that_loses_its_last_layer(then, found):
    assert len(lint(DoubleSoftmax, LISTED.format(then=then))) == found


OTHER_SCRIPT = "from torch import nn\nfrom torchvision.models import vgg16\nnet = vgg16()\nnet.act = nn.Identity()\n"


@pytest.mark.parametrize(("imports", "found"), [("", 1), ("import train\n", 0)])
def test_source_a_script_beside_it_has_nothing_to_do_with_it(imports, found):
    mine = SWAPPED.format(below="", made="Net()", then="")
    assert len(lint(DoubleSoftmax, mine, other=imports + OTHER_SCRIPT)) == found


SWITCHED = """
import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)
    def forward(self, x):
        return F.softmax(self.fc(x), dim=1)
class Loss(nn.Module):
    def __init__(self, from_probs=False, weight=None):
        super().__init__()
        self.from_probs, self.weight = from_probs, weight
    def forward(self, out, y):
        {loss}
net, criterion = Net(), {made}
loss = criterion(net(x), y)
"""
SWITCH = "if self.from_probs:\n            return F.nll_loss(out.log(), y)\n        return F.cross_entropy(out, y)"


@pytest.mark.parametrize(
    ("loss", "made", "found"),
    [
        (SWITCH, "Loss()", 1),
        (SWITCH, "Loss(from_probs=False)", 1),
        (SWITCH, "Loss(from_probs=True)", 0),
        (SWITCH, "Loss(options.from_probs)", 0),
        (SWITCH, "Loss()\ncriterion.from_probs = True", 0),
        (SWITCH.replace("self.from_probs", "self.training"), "Loss()", 1),
        (SWITCH.replace("self.from_probs", "self.weight is not None"), "Loss(weight=options.weight)", 0),
        (SWITCH.replace("out.log()", "out").replace("nll_loss", "huber_loss").replace("from_probs", "weight"),
         "Loss(weight=options.weight)", 1),
        ("if y is None:\n            return out\n        return F.cross_entropy(out, y)", "Loss()", 1),
        ("return F.nll_loss(out.log(), y) if self.from_probs else F.cross_entropy(out, y)", "Loss(True)", 0),
        ("return F.nll_loss(out.log(), y) if self.from_probs else F.cross_entropy(out, y)", "Loss()", 1),
    ],
)  # fmt: skip
def test_source_loss_behind_a_switch(loss, made, found):
    assert len(lint(DoubleSoftmax, SWITCHED.format(loss=loss, made=made))) == found


PARAMETER = """
import torch.nn.functional as F
from torch import nn
def loss_of(out, y, from_probs=False):
    if from_probs:
        return F.nll_loss(out.log(), y)
    return F.cross_entropy(out, y)
net = nn.Sequential(nn.Linear(8, 3), nn.Softmax(dim=1))
loss = loss_of(net(x), y{given})
"""


@pytest.mark.parametrize(("given", "found"), [("", 1), (", True", 0), (", from_probs=options.probs", 0)])
def test_source_loss_behind_a_parameter(given, found):
    assert len(lint(DoubleSoftmax, PARAMETER.format(given=given))) == found
