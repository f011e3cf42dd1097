"""Losses that are written out by hand: what is broadcast, what is masked, in small graphs."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import LossComputed, TargetsObserved


def computed(loss, steps=2):
    def loop():
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model, torch.randn(6, 4), torch.randn(6)).backward()
            optimizer.step()

    return seen(loop, LossComputed)


def penalty(model):
    return 1e-4 * sum(p.square().sum() for p in model.parameters())


def huber(model, x, y):
    gap = model(x) - y
    return torch.where(gap.abs() < 1, 0.5 * gap * gap, gap.abs() - 0.5).mean()


BROADCAST = {
    "squares": lambda model, x, y: ((model(x) - y) ** 2).mean(),
    "with a penalty": lambda model, x, y: ((model(x) - y) ** 2).mean() + penalty(model),
    "target first": lambda model, x, y: torch.square(y - model(x)).mean() + penalty(model),
    "root": lambda model, x, y: torch.sqrt(((model(x) - y) ** 2).mean()),
    "huber": huber,
    "log cosh": lambda model, x, y: torch.log(torch.cosh(model(x) - y)).sum() / 36,
}


@pytest.mark.parametrize("name", BROADCAST)
def test_broadcast_in_a_loss_by_hand(name):
    found = [event for event in computed(BROADCAST[name]) if event.broadcast]
    assert found
    assert (found[0].feed_shape, found[0].shape) == ((6, 1), (6, 6))


def pairs(model, x, y):
    scores = model(x)[:, 0]
    return torch.relu(1 - (scores[:, None] - scores[None]) * (y[:, None] - y[None]).sign()).mean()


def quantiles(model, x, y):
    levels = torch.linspace(0.1, 0.9, 6)
    gap = y[:, None] - model(x).expand(6, 6)
    return torch.where(gap > 0, levels * gap, (levels - 1) * gap).mean()


HEALTHY = {
    "one shape": lambda model, x, y: ((model(x)[:, 0] - y) ** 2).mean() + penalty(model),
    "asked for": lambda model, x, y: ((model(x)[:, 0].unsqueeze(1) - y) ** 2).mean(),
    "pairs": pairs,
    "quantiles": quantiles,
    "distance to centres": lambda model, x, y: ((model(x) - torch.linspace(-1, 1, 3)) ** 2).min(1).values.mean(),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_near_miss_no_broadcast_by_mistake(name):
    assert not [event for event in computed(HEALTHY[name]) if event.broadcast]


LENGTHS = torch.tensor([2, 3, 4, 5, 6, 6])
PADDED = (torch.arange(6)[None] < LENGTHS[:, None]).float()
MASKS = {
    "padding": (PADDED, lambda total, mask: total.mean(), True),
    "sum over the mask": (PADDED, lambda total, mask: total.sum() / mask.sum(), False),
    "no padding": (torch.ones(6, 6), lambda total, mask: total.mean(), False),
    "one action each": (torch.eye(6), lambda total, mask: total.mean(), False),
    "at random": ((torch.arange(36) * 7 % 5 > 1).float().view(6, 6), lambda total, mask: total.mean(), False),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_of_sequences_under_a_plain_mean(name):
    mask, reduce, told = MASKS[name]

    def loss(model, x, y):
        return reduce((model(x).expand(6, 6) * torch.ones(6, 6) - y[:, None].expand(6, 6)) ** 2 * mask, mask)

    def picked(model, x, y):
        scores = model[:2](x).unsqueeze(1).expand(6, 6, -1).log_softmax(-1)
        labels = y.gt(0).long()[:, None, None].expand(6, 6, 1)
        return reduce(-scores.gather(-1, labels).squeeze(-1) * mask, mask)

    found = [event.masked_mean for each in (loss, picked) for event in computed(each) if event.masked_mean]
    assert len(found) == 4 * told  # at two steps
    if told:
        assert found[0] == pytest.approx(float((mask == 0).float().mean()))


TEXTS = torch.arange(8)[None] % 5 + 1 + torch.arange(6)[:, None] % 2
ENDS = torch.arange(8)[None] >= torch.tensor([3, 4, 5, 6, 7, 8])[:, None]
TOKENS = {
    "padding": (TEXTS.masked_fill(ENDS, 0), True),
    "the same token ahead": (TEXTS.masked_fill(ENDS | (torch.arange(8)[None] == 1), 0), False),
    "regimes": (torch.where(ENDS, torch.tensor([0, 1, 0, 1, 0, 1])[:, None], torch.tensor([1, 0, 2, 0, 1, 2])[:, None]), False),
    "sorted": (torch.where(ENDS, 7, torch.arange(8)[None] // 2), False),
    "full": (TEXTS, False),
}  # fmt: skip


LABELS = {
    "the class of the padding stands elsewhere, too": ((TEXTS % 3).masked_fill(ENDS, 0), True),
    "labels of their own in the padding": (TEXTS % 3, False),
}


@pytest.mark.parametrize("name", LABELS)
def test_padding_whose_label_is_a_class(name):
    tags, told = LABELS[name]
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3))

    def run():
        functional.cross_entropy(model((TEXTS + 1).masked_fill(ENDS, 0)).flatten(0, 1), tags.flatten()).backward()

    (event,) = seen(run, LossComputed)
    assert bool(event.target.padding_share) is told
    assert event.target.padding_id == (0 if told else None)


@pytest.mark.parametrize("name", TOKENS)
def test_padding_among_scored_tokens(name):
    tokens, told = TOKENS[name]
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8))

    def run():
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

    (event,) = seen(run, LossComputed)
    assert bool(event.target.padding_share) is told
    if told:
        assert event.target.padding_share == pytest.approx(float(ENDS.float().mean()))


UNREDUCED = {
    "one mean": (lambda each: each.mean(), True),
    "a mean of each row": (lambda each: each.mean(1).mean(), True),
    "flat": (lambda each: each.flatten().mean() / 4, True),
    "masked": (lambda each: (each * (TEXTS > 2)).mean(), False),
    "summed": (lambda each: each.sum() / 40, False),
    "chosen": (lambda each: each[TEXTS > 2].mean(), False),
}


@pytest.mark.parametrize("name", UNREDUCED)
def test_a_plain_mean_of_an_unreduced_loss(name):
    reduce, told = UNREDUCED[name]
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8))

    def run():
        scores = model(TEXTS).transpose(1, 2)
        reduce(functional.cross_entropy(scores, TEXTS, reduction="none")).backward()

    (event,) = seen(run, LossComputed)
    assert (event.reduction, event.averaged) == ("none", told)


OWN = torch.arange(1, 7)[:, None] + torch.arange(8)[None]
LONE = {
    "the first token": (OWN, [0] * 6, 0),
    "behind what all rows share": (torch.cat([torch.full((6, 1), 9), OWN], 1)[:, :8], [1] * 6, 1),
    "one that all rows share": (torch.cat([torch.full((6, 1), 9), OWN], 1)[:, :8], [0] * 6, None),
    "later": (OWN, [3] * 6, None),
    "here and there": (OWN, [0, 1, 0, 0, 0, 0], None),
    "the last": (OWN, [7] * 6, None),
}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", LONE)
def test_one_label_a_row(name, named):
    tokens, places, lone = LONE[name]
    labels = torch.full_like(tokens, -100)
    labels[torch.arange(6), torch.tensor(places)] = torch.arange(6) % 3

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(16, 4), nn.Linear(4, 3)

        def forward(self, ids):
            return self.head(self.words(ids))

    def run():
        scores = model(ids=tokens) if named else model(tokens)
        functional.cross_entropy(scores.flatten(0, 1), labels.flatten()).backward()

    model = Tagger()
    (event,) = seen(run, LossComputed)
    assert event.target.lone == lone


class NextToken(nn.Module):
    """An embedding and a head."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 8), nn.Linear(8, 40)

    def forward(self, ids):
        return self.head(self.embed(ids))


def bare_rows(labels, ids):
    """What is told of a next-token loss over these."""
    net = NextToken()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def run():
        scores = net(ids)[:, :-1].flatten(0, 1)
        functional.cross_entropy(scores, labels[:, 1:].flatten(), ignore_index=-100).backward()
        optimizer.step()

    (event,) = seen(run, LossComputed)
    return event.target.bare_rows, event.target.rows, event.target.late


def test_rows_that_have_no_label():
    ids = torch.randint(3, 40, (12, 10), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:9] = -100
    labels[9:, :6] = -100
    assert bare_rows(labels, ids) == (9, 12, False)
    labels[9, :8] = -100
    assert bare_rows(labels, ids) == (9, 12, True)


def test_near_miss_rows_that_are_left_out_as_a_whole():
    ids = torch.randint(3, 40, (12, 10), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:9] = -100
    labels[9, :2] = labels[10, :3] = -100
    assert bare_rows(labels, ids) == (9, 12, False)


def test_near_miss_labels_that_are_other_tokens():
    ids = torch.randint(3, 40, (12, 10), generator=torch.Generator().manual_seed(0))
    labels = (ids + 1) % 40
    labels[:9] = -100
    assert bare_rows(labels, ids) == (None, 0, False)


class Named(torch.autograd.Function):
    """What it puts on its context shadows what torch has there."""

    @staticmethod
    def forward(ctx, x):
        ctx.name, ctx.variable = "mine", [1]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        assert (ctx.name, ctx.variable) == ("mine", [1])
        return gradient


def test_a_function_of_the_users_with_names_of_its_own():
    found = computed(lambda model, x, y: Named.apply(functional.mse_loss(Named.apply(model(x)), y[:, None])))
    assert [loss.kind for loss in found] == ["mse_loss", "mse_loss"]


@pytest.mark.parametrize(
    ("frozen", "ends", "criterion", "told"),
    [
        (False, [nn.Sigmoid()], nn.BCELoss(), "linear"),
        (False, [], nn.BCEWithLogitsLoss(), "linear"),
        (False, [nn.ReLU(), nn.Sigmoid()], nn.BCELoss(), "relu"),
        (True, [nn.Sigmoid()], nn.BCELoss(), ""),  # inputs are sought that this model takes for real
        (True, [], nn.BCEWithLogitsLoss(), ""),
    ],
)
def test_raw_scores_of_labels(frozen, ends, criterion, told):
    """Probabilities come from scores, too; those of a layer that nobody trains are no answers that are learned."""

    def run():
        body, head = nn.Linear(6, 6), nn.Linear(6, 1).requires_grad_(not frozen)
        optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            criterion(nn.Sequential(body, head, *ends)(torch.randn(8, 6)), torch.ones(8, 1)).backward()
            optimizer.step()

    assert {event.fed_by for event in seen(run, TargetsObserved)} == {told}
