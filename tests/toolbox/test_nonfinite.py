"""Planted nans are named; a guarded run ends finite."""

from __future__ import annotations

import inspect
import math
import warnings

import pytest
import torch
from toolbox_state import everything, loop, same
from torch import nn

from flatline.toolbox import NaNGuard, find_non_finite, supervised

cross_entropy = supervised(nn.functional.cross_entropy)


class Sick(nn.Module):
    def __init__(self, operation):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.sick = Operation(operation)
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.sick(self.body(x)))


class Operation(nn.Module):
    def __init__(self, operation):
        super().__init__()
        self.operation = operation

    def forward(self, x):
        return self.operation(x)


def mean(model, batch):
    return model(batch).mean()


def planted(operation, batch=None):
    torch.manual_seed(0)
    model = Sick(operation)
    before = everything(model)
    found = find_non_finite(model, torch.ones(3, 2) if batch is None else batch, mean)
    assert same(before, everything(model))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return found


@pytest.mark.parametrize(
    ("operation", "op", "kind"),
    [
        (lambda x: torch.log(x * 0), "log", "inf"),
        (lambda x: torch.log(x * 0 - 1), "log", "nan"),
        (lambda x: x / (x - x), "div", "inf"),
        (lambda x: (x - x) / (x - x), "div", "nan"),
        (lambda x: torch.exp(x.abs() + 1000), "exp", "inf"),
        (lambda x: torch.sqrt(-x.abs() - 1), "sqrt", "nan"),
        (lambda x: (x.abs() + 1e5).half().float(), "_to_copy", "inf"),
        (lambda x: x.abs().add(1).mul_(1e38).mul_(1e38), "mul_", "inf"),
        (lambda x: torch.softmax(torch.full_like(x, -math.inf), -1) + x, "_softmax", "nan"),
        (lambda x: x.masked_fill(x == x, -math.inf).softmax(-1), "_softmax", "nan"),
    ],
)
def test_forward(operation, op, kind):
    found = planted(operation)
    assert (found.op, found.kind, found.phase, found.module) == (op, kind, "forward", "sick")
    assert found.file == __file__
    assert found.line == inspect.getsourcelines(operation)[1]
    assert found.code.startswith("(lambda x:")
    assert found.rows == (0, 1, 2)
    assert f"made {kind} in forward of sick" in str(found)


@pytest.mark.parametrize(
    ("operation", "node"),
    [
        (lambda x: torch.sqrt(x * 0), "SqrtBackward0"),
        (lambda x: (x * 0).norm(dim=-1, keepdim=True).pow(0.5).expand(-1, 2), "PowBackward0"),
        (lambda x: torch.where(x * 0 > 0, torch.sqrt(x * 0), x), "SqrtBackward0"),
        (lambda x: (x * 0).pow(0.5), "PowBackward0"),
    ],
)
def test_backward(operation, node):
    found = planted(operation)
    assert found.op.startswith(f"{node}: ")
    assert (found.phase, found.module, found.rows) == ("backward", "sick", (0, 1, 2))
    assert (found.file, found.line) == (__file__, inspect.getsourcelines(operation)[1])


def test_names_the_samples_and_the_range():
    batch = torch.tensor([[1.0, 1.0], [1e30, 1e30], [2.0, 2.0], [-1e30, -1e30]])
    found = planted(lambda x: x * x, batch)
    assert (found.op, found.rows) == ("mul", (1, 3))
    assert found.high > 1e29
    assert found.low < -1e29


def test_a_loss_outside_of_all_modules():
    model = nn.Linear(2, 2)
    found = find_non_finite(model, torch.ones(1, 2), lambda m, x: torch.log(m(x) * 0).mean())
    assert (found.module, found.op) == ("", "log")


@pytest.mark.parametrize(
    "operation",
    [
        torch.relu,
        lambda x: x.masked_fill(torch.eye(3, 2, dtype=torch.bool), -math.inf).softmax(-1),
        lambda x: torch.where(x > x + 1, torch.tensor(math.inf), x),
        lambda x: torch.empty_like(x).copy_(x) + x,
        lambda x: torch.full((3, 2), -math.inf).triu(1).exp() + x,
    ],
)
def test_near_miss_infinity_that_is_meant(operation):
    assert planted(operation) is None


def test_follows_it_to_the_loss():
    """Two operations make infinity, and one of them is thrown away."""
    found = planted(lambda x: torch.exp(x.abs() + 999) - torch.exp(x.abs() + 999) + 0 * torch.log(x * 0).isinf())
    assert found.op == "exp"
    found = planted(lambda x: torch.where(x == x, (x.abs() + 1e30) * 1e30, torch.log(x * 0)))
    assert found.op == "mul"


def test_what_was_there_before():
    model, x = nn.Linear(2, 1), torch.ones(3, 2)
    x[1] = math.nan
    assert (find_non_finite(model, x, mean).op, find_non_finite(model, x, mean).rows) == ("batch", (1,))
    model.weight.data[0, 1] = math.nan
    assert str(find_non_finite(model, torch.ones(3, 2), mean)) == "parameter weight holds nan, rows 0"


@pytest.mark.parametrize(
    ("loss_fn", "op"),
    [
        (lambda m, x: nn.functional.cross_entropy(m(x), torch.tensor([-100, -100])), "nll_loss_forward"),
        (lambda m, x: m(x)[:1].std(0).mean(), "std"),
        (lambda m, x: m(x)[[]].mean(), "mean"),
        (lambda m, x: nn.functional.layer_norm(m(x) * 1e30, (3,)).sum(), "native_layer_norm"),
        (lambda m, x: (m(x).half() * 60_000 * 60_000).float().mean(), "mul"),
        (lambda m, x: torch.acos(torch.clamp(m(x) * 100, -1, 1)).mean(), None),
        (lambda m, x: nn.functional.cosine_similarity(m(x) * 0, x).mean(), None),
        (lambda m, x: (m(x) * 0).std(0).mean(), None),
        (lambda m, x: torch.linalg.norm(m(x) * 0), None),
    ],
)
def test_agrees_with_a_plain_backward(loss_fn, op):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # std of one sample
        found = find_non_finite(model, x, loss_fn)
        loss = loss_fn(model, x)
    loss.backward()
    sound = math.isfinite(loss.item()) and all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    assert (found is None) == sound == (op is None)
    assert found is None or found.op == op


def ctc(model, x):
    scores = model(x).log_softmax(-1)
    return nn.functional.ctc_loss(scores, torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2]))


def masked_attention(model, x):
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    rows = x.transpose(0, 1)
    return nn.functional.scaled_dot_product_attention(rows, model(rows), rows, attn_mask=mask).sum()


@pytest.mark.parametrize(
    "loss_fn",
    [
        ctc,
        masked_attention,
        lambda m, x: nn.functional.scaled_dot_product_attention(*[m(x).transpose(0, 1)] * 3, is_causal=True).sum(),
        lambda m, x: nn.functional.kl_div(m(x).log_softmax(-1), torch.eye(6, 8)[:, None], reduction="batchmean"),
        lambda m, x: (
            torch.distributions.Categorical(logits=m(x).masked_fill(x > 0, -math.inf)).log_prob(x.argmin(-1)).mean()
        ),
        lambda m, x: torch.where(x > 0, m(x), torch.log(x * 0)).masked_fill(x <= 0, 0).sum(),
        lambda m, x: nn.functional.max_pool1d(m(x), 2, padding=1).sum(),
        lambda m, x: nn.functional.binary_cross_entropy(torch.sigmoid(100 * m(x)), (x > 0).float()),
        lambda m, x: torch.logsumexp(torch.cat([m(x), torch.full((6, 1, 1), -math.inf)], -1), -1).sum(),
        lambda m, x: m(x).topk(2).values.sum() + m(x).cumsum(0).mean() + torch.linalg.norm(m(x)),
    ],
)
def test_near_miss_infinity_inside_that_never_comes_out(loss_fn):
    torch.manual_seed(0)
    assert find_non_finite(nn.Linear(8, 8), torch.randn(6, 1, 8), loss_fn) is None


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_near_miss_recurrent_networks(kind):
    assert find_non_finite(kind(3, 4, num_layers=2), torch.randn(5, 2, 3), lambda m, x: m(x)[0].sum()) is None


def test_near_miss_attention_with_a_causal_mask():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    assert find_non_finite(layer, torch.randn(5, 1, 8), lambda m, x: m(x, src_mask=mask).mean()) is None


# --------------------------------------------------------------------------- the guard


def run(action, bad_steps, steps=12, **settings):
    model, optimizer, batch = loop()
    model.drop.p = 0.0
    guard = NaNGuard(model, optimizer, action=action, **settings)
    states = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model, batch) * (math.nan if step in bad_steps else 1.0)
        loss.backward()
        if guard.check(loss, batch):
            optimizer.step()
        states.append([p.detach().clone() for p in model.parameters()])
    return guard, states


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_weights_stay_finite(action):
    guard, states = run(action, {3, 4, 9}, every=2)
    assert (guard.good, guard.bad) == (9, 3)
    assert all(bool(torch.isfinite(p).all()) for state in states for p in state)


def test_skip_leaves_the_weights():
    _, states = run("skip", {3})
    assert same(states[2], states[3])
    assert not same(states[3], states[4])


def test_rollback_takes_the_newest_good_weights():
    """States are kept before the steps 0, 4 and 8: those after 3 are what step 4 began with."""
    _, states = run("rollback", {6}, every=4)
    assert same(states[6], states[3])


def test_rollback_goes_further_back_when_it_fails_again_at_once():
    _, states = run("rollback", {10, 11}, every=4, keep=3)
    assert same(states[10], states[7])
    assert same(states[11], states[3])


def test_rollback_turns_the_optimizer_back_but_not_its_rate():
    model, optimizer, batch = loop()
    guard = NaNGuard(model, optimizer, action="rollback", every=100)
    before = [{n: v.clone() for n, v in entry.items()} for entry in optimizer.state.values()]
    for step in range(4):
        optimizer.zero_grad()
        loss = cross_entropy(model, batch) * (math.inf if step == 3 else 1.0)
        loss.backward()
        if guard.check(loss):
            optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
    assert same(before, list(optimizer.state.values()))
    assert optimizer.param_groups[0]["lr"] == 1e-2 / 16


def test_gradients_alone_are_enough():
    weight = torch.zeros(1, requires_grad=True)
    guard = NaNGuard(nn.Identity(), torch.optim.SGD([weight], lr=0.1))
    loss = weight.sqrt().sum()
    loss.backward()
    assert math.isfinite(loss.item())
    assert not guard.check(loss)
    assert weight.grad is None


def test_the_cause_is_replayed_before_the_weights_change():
    model = Sick(torch.log)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = NaNGuard(model, optimizer, action="rollback", loss_fn=mean, patience=1)
    batch = torch.full((2, 2), -1e9)
    for expected in (False, None):
        loss = mean(model, batch)
        loss.backward()
        if expected is None:
            with pytest.raises(FloatingPointError, match="2 steps in a row were not finite: log made nan"):
                guard.check(loss, batch)
        else:
            assert guard.check(loss, batch) is expected
    assert guard.cause.module == "sick"


def test_near_miss_sparse_gradients_and_none():
    table = nn.Embedding(4, 2, sparse=True)
    guard = NaNGuard(table, torch.optim.SGD([*table.parameters(), torch.zeros(1, requires_grad=True)], lr=0.1))
    loss = table(torch.tensor([1, 1])).sum()
    loss.backward()
    assert guard.check(loss)


@pytest.mark.parametrize("bad", [{"action": "stop"}, {"keep": 0}, {"every": 0}, {"patience": 0}])
def test_bad_settings(bad):
    with pytest.raises(ValueError, match="'skip' or 'rollback'"):
        NaNGuard(nn.Identity(), torch.optim.SGD([torch.zeros(1)], lr=0.1), **bad)
