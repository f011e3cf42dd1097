from dataclasses import replace

import pytest

from flatline.events import LossComputed, TargetFacts, Where
from flatline.rules.optimization.padding_in_loss import PaddingInLoss
from flatline.testing import lint, play


def losses(*, padding=0.0, masked=0.0, reduction="mean", count=3):
    target = TargetFacts(padding_share=padding, padding_id=0 if padding else None)
    return [
        LossComputed(step=n, where=Where("train.py", 33), target=target, masked_mean=masked, reduction=reduction)
        for n in range(1, count + 1)
    ]


def test_fires_on_padding_among_the_targets():
    (finding,) = play(PaddingInLoss, *losses(padding=0.4))
    assert finding.severity == "warning"
    assert finding.step == 2
    assert finding.count == 2
    assert finding.where == Where("train.py", 33)
    assert finding.key == "targets"
    assert finding.message == (
        "40% of the scored targets are id 0, in the rows' tails where the inputs are padding, too"
    )
    assert finding.fix == "ignore_index=0 in the loss"
    assert finding.evidence == {"share": 0.4, "pad_id": 0}


def test_fires_on_a_plain_mean_of_a_masked_loss():
    (finding,) = play(PaddingInLoss, *losses(masked=0.25, reduction="none"))
    assert finding.key == "mask"
    assert finding.message == (
        "the mean of the masked loss divides by all positions, though the mask is 0 on 25% of them"
    )
    assert finding.fix == "(loss * mask).sum() / mask.sum().clamp(min=1)"


def test_fires_on_a_plain_mean_of_an_unreduced_loss():
    """``ignore_index`` would set the padding's losses to 0, and the mean would go on counting them."""
    events = [replace(event, averaged=True) for event in losses(padding=0.4, reduction="none")]
    (finding,) = play(PaddingInLoss, *events)
    assert finding.key == "targets"
    assert finding.fix == "mask = targets != 0; (loss * mask).sum() / mask.sum()"


def measured(share, count=3, reduction="mean"):
    target = TargetFacts(padding_share=share, padding_value=-2.5)
    return [LossComputed(step=n, kind="mse_loss", target=target, reduction=reduction) for n in range(1, count + 1)]


def test_fires_on_padded_steps_of_measured_targets():
    (finding,) = play(PaddingInLoss, *measured(0.4))
    assert (finding.severity, finding.key, finding.step) == ("warning", "targets", 2)
    assert finding.message.startswith("40% of the measured targets are -2.5 in the rows' tails, and nothing else")
    assert finding.evidence == {"share": 0.4, "value": -2.5}


def test_near_miss_measured_targets():
    assert play(PaddingInLoss, *measured(0.05)) == []
    assert play(PaddingInLoss, *measured(0.4, count=1)) == []
    assert play(PaddingInLoss, *measured(0.4, reduction="sum")) == []


def test_near_miss_no_padding():
    assert play(PaddingInLoss, *losses()) == []


def test_near_miss_a_few_positions():
    assert play(PaddingInLoss, *losses(padding=0.04, masked=0.04)) == []


def test_near_miss_sum():
    assert play(PaddingInLoss, *losses(padding=0.4, reduction="sum")) == []


def test_near_miss_masked_afterwards():
    assert play(PaddingInLoss, *losses(padding=0.4, reduction="none")) == []


def test_near_miss_one_batch():
    assert play(PaddingInLoss, *losses(padding=0.4, masked=0.4, count=1), *losses()) == []


COLLATED = """
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
PAD = 0
def collate(batch):
    ids, tags = zip(*batch)
    ids = pad_sequence([torch.tensor(i) for i in ids], batch_first=True)
    tags = pad_sequence([torch.tensor(t) for t in tags], batch_first=True, padding_value=PAD)
    return ids, tags
net = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 5))
opt = torch.optim.Adam(net.parameters())
crit = nn.CrossEntropyLoss()
for step, (ids, tags) in enumerate(DataLoader(data, 8, collate_fn=collate)):
    ids, tags = ids.cuda(), tags.cuda()
    opt.zero_grad()
    loss = crit(net(ids).view(-1, 5), tags.view(-1))
    loss.backward()
    opt.step()
"""
FILLED = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
PAD, LONGEST = 1, 32
class Pairs(Dataset):
    def __getitem__(self, i):
        source, target = self.rows[i]
        target = target + [PAD] * (LONGEST - len(target))
        return {"source": torch.tensor(source), "target": torch.tensor(target)}
def train(net):
    opt = torch.optim.Adam(net.parameters())
    for batch in DataLoader(Pairs(), batch_size=8):
        target = batch["target"]
        loss = F.cross_entropy(net(target[:, :-1]).transpose(1, 2), target[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


def test_source_targets_filled_up_by_the_collate_function():
    """Seen as a SourceParsed."""
    (finding,) = lint(PaddingInLoss, COLLATED)
    assert finding.fix == "ignore_index=0 in the loss"
    assert "filled up with 0 by pad_sequence" in finding.message


def test_source_targets_filled_up_by_the_data_set():
    (finding,) = lint(PaddingInLoss, FILLED)
    assert finding.fix == "ignore_index=1 in the loss"


def test_source_another_number_is_left_out():
    assert len(lint(PaddingInLoss, COLLATED.replace("Loss()", "Loss(ignore_index=2)"))) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CrossEntropyLoss()", "CrossEntropyLoss(ignore_index=PAD)"),
        ("CrossEntropyLoss()", "CrossEntropyLoss(weight=weights)"),
        ("CrossEntropyLoss()", "CrossEntropyLoss(reduction='none')"),
        ("padding_value=PAD", "padding_value=-100"),
        ("padding_value=PAD", "padding_value=pad_of(batch)"),
        ("    opt.zero_grad()", "    tags = tags.masked_fill(tags == PAD, -100)"),
        ("tags.view(-1))", "tags[ids != PAD])"),
        ("collate_fn=collate", "collate_fn=other"),
    ],
)
def test_near_miss_source(old, new):
    assert lint(PaddingInLoss, COLLATED.replace(old, new)) == []


COPIED = """
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2")
opt = torch.optim.AdamW(model.parameters())


def collate(rows):
    batch = tokenizer([r["text"] for r in rows], padding=True)
    batch["labels"] = batch["input_ids"].clone()
    return batch


for batch in torch.utils.data.DataLoader(rows, collate_fn=collate):
    model(**batch).loss.backward()
    opt.step()
    opt.zero_grad()
"""


def test_labels_that_copy_padded_input():
    (finding,) = lint(PaddingInLoss, COPIED)
    assert finding.fix == "labels[attention_mask == 0] = -100"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return batch", "    batch['labels'][batch['attention_mask'] == 0] = -100\n    return batch"),
        ("padding=True", "truncation=True"),
    ],
)
def test_near_miss_in_source_of_labels_that_copy_input(old, new):
    assert lint(PaddingInLoss, COPIED.replace(old, new)) == []


WRITTEN = """
import torch
from torch import nn
from torch.utils.data import DataLoader
PAD = 0
def collate(batch):
    longest = max(len(t) for _, t in batch)
    ids = torch.full((len(batch), longest), PAD)
    tags = torch.zeros(len(batch), longest).long()
    mask = torch.zeros(len(batch), longest)
    for row, (i, t) in enumerate(batch):
        ids[row, :len(i)] = torch.tensor(i)
        tags[row, :len(t)] = torch.tensor(t)
        mask[row, :len(t)] = 1
    return {"ids": ids, "tags": tags, "mask": mask}
net = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 5))
opt = torch.optim.Adam(net.parameters())
crit = nn.CrossEntropyLoss()
for batch in DataLoader(data, 8, collate_fn=collate):
    loss = crit(net(batch["ids"]).view(-1, 5), batch["tags"].view(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
GROWN = WRITTEN.replace(
    "    tags = torch.zeros(len(batch), longest).long()",
    "    tags = []\n    for _, t in batch:\n        tags.append(t + [PAD] * (longest - len(t)))\n    tags = torch.tensor(tags)",
).replace("        tags[row, :len(t)] = torch.tensor(t)\n", "")
MASKED = WRITTEN.replace("Loss()", "Loss(reduction='none')").replace(
    "    opt.zero_grad()", "    loss = loss * batch['mask'].view(-1)\n    loss = loss.mean()\n    opt.zero_grad()"
)


def test_source_rows_written_into_a_tensor_of_one_number():
    (finding,) = lint(PaddingInLoss, WRITTEN)
    assert "filled up with 0 by torch.zeros" in finding.message


def test_source_filled_rows_in_a_list():
    (finding,) = lint(PaddingInLoss, GROWN)
    assert "filled up with 0 by t + [PAD]" in finding.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.zeros(len(batch), longest).long()", "torch.full((len(batch), longest), -100)"),
        ("        mask[row", "        tags[row, len(t):] = other\n        mask[row"),
        ("tags[row, :len(t)]", "tags[row, 3]"),
        ("tags[row, :len(t)] = torch.tensor(t)", "tags[row, :len(t)] = 1"),
        ("tags[row, :len(t)]", "tags[row, t.begins:]"),
        ("torch.zeros(len(batch), longest).long()", "torch.zeros(len(batch), 100).long()"),
        ("Loss()", "Loss(ignore_index=PAD)"),
    ],
)
def test_near_miss_source_of_rows_in_a_tensor(old, new):
    assert old in WRITTEN
    assert lint(PaddingInLoss, WRITTEN.replace(old, new)) == []


def test_near_miss_source_of_rows_in_a_list():
    assert (
        lint(PaddingInLoss, GROWN.replace("    tags = torch.tensor", "    tags.sort()\n    tags = torch.tensor")) == []
    )


def test_source_mask_of_the_batch_under_a_plain_mean():
    (finding,) = lint(PaddingInLoss, MASKED)
    assert finding.message.startswith("loss.mean() divides the loss by all positions")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("loss = loss.mean()", "loss = loss.sum() / batch['mask'].sum()"),
        ("mask[row, :len(t)] = 1", "mask[row, :len(t)] = weight"),
        ('"mask": mask', '"mask": weights'),
    ],
)
def test_near_miss_source_of_a_mask_of_the_batch(old, new):
    assert old in MASKED
    assert lint(PaddingInLoss, MASKED.replace(old, new)) == []
