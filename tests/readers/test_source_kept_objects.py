"""Losses that a trainer is handed and keeps, and what they average."""

import pytest
from parsed import kinds_in

from flatline.config import Config
from flatline.linting import Linter

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
"""

OBJECTIVE = """
class TagLoss{base}:
    def {name}(self, scores, tags):
        each = F.cross_entropy(scores.transpose(1, 2), tags, reduction="none"{more})
        {between}
        return {mean}
"""
ENGINE = """
class Engine:
    def __init__(self, net, objective):
        self.net, self.objective = net, objective
        self.optimizer = torch.optim.Adam(net.parameters())
    def run(self, batches):
        for words, tags in batches:
            self.optimizer.zero_grad()
            cost = self.objective(self.net(words), {targets})
            cost.backward()
            self.optimizer.step()
"""
MAIN = """from engine import Engine
from objective import TagLoss
def collate(rows):
    words, tags = zip(*rows)
    return pad_sequence(words, True), pad_sequence(tags, True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Embedding(99, 7)
    def forward(self, words):
        return self.out(words)
engine = Engine(Net(), TagLoss())
{other}
engine.run(DataLoader(data, 16, collate_fn=collate))
"""
USUAL = {"base": "", "name": "__call__", "more": "", "between": "pass", "mean": "each.mean(dim=1).mean()"}


def of_one_file(targets="tags", other="pass", **changed):
    main = MAIN.format(other=other).replace("from engine import Engine\nfrom objective import TagLoss\n", "")
    return kinds_in(HEAD, OBJECTIVE.format(**{**USUAL, **changed}) + ENGINE.format(targets=targets) + main)


FIRES = [
    {},
    {"base": "(nn.Module)", "name": "forward"},
    {"mean": "each.mean(-1).mean()"},
    {"mean": "each.mean()"},
    {"targets": "tags.to('cuda')"},
]


@pytest.mark.parametrize("changed", FIRES)
def test_a_loss_that_a_trainer_keeps_averages_over_the_filling(changed):
    assert "padded target" in of_one_file(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"mean": "each.mean(dim=1)"},
        {"mean": "each.sum(dim=1).mean()"},
        {"more": ", ignore_index=0"},
        {"between": "each = each * (tags != 0)"},
        {"targets": "words.new_zeros(4, 4)"},
        {"other": "more = Engine(Net(), nn.CrossEntropyLoss())"},
    ],
)
def test_near_miss_a_loss_that_a_trainer_keeps_averages_over_the_filling(changed):
    assert "padded target" not in of_one_file(**changed)


@pytest.mark.parametrize(("engine", "expected"), [("engine", True), ("nothing", False)])
def test_the_loss_in_a_file_of_its_own(tmp_path, engine, expected):
    objective, runs = OBJECTIVE.format(**USUAL), ENGINE.format(targets="tags")
    main = MAIN.format(other="pass").replace("engine import", f"{engine} import")
    for name, source in (("objective", objective), ("engine", runs), ("main", main)):
        (tmp_path / f"{name}.py").write_text(f"{HEAD}{source}")
    codes = [found.code for found in Linter(Config()).paths([str(tmp_path)]).findings]
    assert ("O15" in codes) is expected
