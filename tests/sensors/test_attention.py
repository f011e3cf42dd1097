"""Entropies of attention against a second, naive computation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flatline.events import AttentionSampled
from flatline.sensors.live import LiveSensors


def observed(*runs):
    """The attentions that the sensor saw under each loss."""
    events, broken = [], []
    sensors = LiveSensors(
        events.append, wants=lambda event: True, budget=1.0, on_broken=lambda *what: broken.append(what)
    )
    sensors.attach()
    try:
        for run in runs:
            run().square().mean().backward()
    finally:
        sensors.detach()
    assert broken == []
    return [event.layers for event in events if isinstance(event, AttentionSampled)]


def naive(query, key, allowed=None, scale=None):
    """Mean over samples and rows of entropy / ln(keys), head by head, in plain loops."""
    query, key = query.detach(), key.detach()
    batch, heads, rows, width = query.shape
    found = []
    for head in range(heads):
        values = []
        for sample in range(min(batch, 2)):
            for row in range(rows):
                open_to = [k for k in range(key.shape[2]) if allowed is None or bool(allowed[row, k])]
                if len(open_to) < 4:
                    continue
                scores = torch.stack([query[sample, head, row] @ key[sample, head, k] for k in open_to])
                weights = (scores * (scale or 1 / math.sqrt(width))).double().softmax(0)
                values.append(float(-(weights * weights.log()).sum() / math.log(len(open_to))))
        found.append(sum(values) / len(values))
    return found


def tensors(rows=20, heads=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, heads, rows, 8, generator=generator).requires_grad_() for _ in range(3)]


CAUSAL = torch.ones(20, 20, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, None),
        ({"is_causal": True}, CAUSAL),
        ({"attn_mask": CAUSAL}, CAUSAL),
        ({"attn_mask": torch.zeros(20, 20).masked_fill(~CAUSAL, -math.inf)}, CAUSAL),
        ({"scale": 2.0}, None),
    ],
    ids=["full", "causal", "mask", "added mask", "scale"],
)
def test_fused_attention(options, allowed):
    query, key, value = tensors()
    ((facts,),) = observed(lambda: F.scaled_dot_product_attention(query, key, value, **options))
    assert facts.heads == pytest.approx(naive(query, key, allowed, options.get("scale")), rel=1e-3)
    assert facts.rows == 2 * (17 if allowed is not None else 20)
    assert facts.width == query.shape[-1]


@pytest.mark.parametrize("dropout", [False, True])
def test_softmax_and_product(dropout):
    query, key, value = tensors()

    def run():
        weights = (query @ key.transpose(-1, -2) / math.sqrt(8)).masked_fill(~CAUSAL, -math.inf).softmax(-1)
        return (F.dropout(weights, 0.2) if dropout else weights) @ value

    ((facts,),) = observed(run)
    assert facts.heads == pytest.approx(naive(query, key, CAUSAL), rel=1e-3)
    assert facts.spread is None


def test_multihead_attention_and_its_name():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.attn = nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(16, 16))

        def forward(self, x):
            x = self.norm(x)
            return self.mlp(self.attn(x, x, x)[0])

    torch.manual_seed(0)
    block, x = Block(), torch.randn(3, 12, 16)
    with torch.no_grad():
        z = block.norm(x)
        query, key, _ = (F.linear(z, block.attn.in_proj_weight) + block.attn.in_proj_bias).chunk(3, -1)
        query, key = (t.view(3, 12, 2, 8).transpose(1, 2).reshape(1, 6, 12, 8) for t in (query, key))
    ((facts,),) = observed(lambda: block(x))
    assert sorted(facts.heads) == pytest.approx(sorted(naive(query, key)), rel=1e-3)


def test_collapsed_attention_has_no_entropy():
    query, key, value = tensors()
    ((facts,),) = observed(lambda: F.scaled_dot_product_attention(query * 200, key, value))
    assert max(facts.heads) < 0.05
    ((first,), (second,)) = observed(*[lambda s=s: (query * s @ key.mT).softmax(-1) @ value for s in (0.1, 1000.0)])
    assert first.keys == second.keys == 20
    assert max(second.heads) < 0.01


def test_scores_of_projections_and_others():
    x = torch.randn(4, 20, 8)
    one, other = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    hidden = torch.ones(20, 20, dtype=torch.bool).triu(1)

    def by_hand(query, key):
        scores = (query @ key.transpose(1, 2) / 3).masked_fill(hidden, -1e9)
        return scores.softmax(-1) @ key

    scale = nn.Parameter(torch.tensor(3.0))
    rms = lambda q: q * (q.square().mean(-1, keepdim=True) + 1e-6).rsqrt()  # noqa: E731
    found = observed(
        lambda: by_hand(one(x), other(x)),
        lambda: attention(x, x, x, need_weights=False)[0],
        lambda: attention(x, x, x)[0],
        lambda: by_hand(F.normalize(one(x), dim=-1), F.normalize(other(x), dim=-1) * scale.exp()),
        lambda: by_hand((q := one(x)) / q.norm(dim=-1, keepdim=True), other(x)),
        lambda: by_hand(rms(one(x)), nn.LayerNorm(8)(other(x))),
        lambda: by_hand(F.normalize(one(x) + other(x), dim=-1), F.normalize(other(x), dim=-1)),
        lambda: (-torch.cdist(one(x), other(x))).softmax(-1) @ other(x),
    )
    assert [layers[0].projected for layers in found] == [True, True, True, True, True, True, False, False]
    assert [layers[0].normalised for layers in found] == [False, False, False, True, True, True, False, False]
    assert found[3][0].scale is None


def test_what_the_products_are_without_a_bias():
    x = torch.randn(4, 20, 8)
    query, key = nn.Linear(8, 8), nn.Linear(8, 8)
    places = torch.arange(20.0)
    near = -8 * (places[:, None] - places).abs()
    scores = lambda: query(x) @ key(x).mT / 2  # noqa: E731
    heads = lambda t: t.view(4, 20, 2, 4).transpose(1, 2)  # noqa: E731
    fused = lambda **mask: F.scaled_dot_product_attention(heads(query(x)), heads(key(x)), heads(x), **mask)  # noqa: E731
    found = observed(
        lambda: scores().softmax(-1) @ x,
        lambda: scores().masked_fill(near < -40, -math.inf).softmax(-1) @ x,
        lambda: (scores() + near).softmax(-1) @ x,
        fused,
        lambda: fused(attn_mask=near),
        lambda: fused(attn_mask=near > -40),
    )
    plain, hidden, biased, free, local, window = [layers[0].alone for layers in found]
    assert (plain, hidden, free) == (None,) * 3
    assert window == local  # torch makes numbers of it
    assert biased == pytest.approx(scores().std(-1).mean().item(), rel=0.05)
    assert local == pytest.approx((heads(query(x)) @ heads(key(x)).mT / 2).std(-1).mean().item(), rel=0.05)


def test_other_softmaxes_are_no_attention():
    query, key, value = tensors()
    gate = torch.randn(6, 20, requires_grad=True)
    assert observed(
        lambda: gate.softmax(-1) @ value[0, 0],
        lambda: (query[:, :, :1] @ key.mT).softmax(-1) @ value,
        lambda: (query @ key.mT).softmax(-2) @ value,
        lambda: (query @ key.mT).softmax(-1) * 2,
        lambda: F.scaled_dot_product_attention(query[:, :, :4], key[:, :, :4], value[:, :, :4]),
    ) == []  # fmt: skip


def test_numbers_of_heads_may_differ_and_rows_are_bounded():
    query, key, value = tensors(rows=300, heads=4)
    ((facts,),) = observed(
        lambda: F.scaled_dot_product_attention(query, key[:, :2], value[:, :2], enable_gqa=True, is_causal=True)
    )
    assert len(facts.heads) == 4
    assert facts.rows <= 2 * 24


def test_hooked_tensors_are_left_alone():
    query, key, value = tensors()
    unpacked = []

    def run():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(1) or t):
            out = F.scaled_dot_product_attention(query, key, value)
        before = len(unpacked)
        assert before == 0
        return out

    assert observed(run) == []


def test_one_query_by_hand():
    torch.manual_seed(0)
    x, values = torch.randn(30, 12, 8), torch.randn(30, 12, 5)
    query, key, temperature = nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(torch.tensor(2.0))

    def by_hand(factor, to_scores):
        scores = to_scores(query(x[:, 0]).unsqueeze(1), key(x)) * factor
        return (scores.softmax(-1).unsqueeze(-1) * values).sum(1)

    def batched(factor):
        return ((query(x[:, :1]) * factor) @ key(x).mT / 4).softmax(-1) @ values

    found = observed(
        lambda: by_hand(8, lambda q, k: (q * k).sum(-1)),
        lambda: by_hand(0.5, lambda q, k: (k @ q.mT).squeeze(-1)),
        lambda: by_hand(0.5, lambda q, k: torch.einsum("bqd,bld->bl", q, k)),
        lambda: by_hand(temperature, lambda q, k: (q * k).sum(-1)),
        lambda: batched(2),
    )
    facts = [layers[0] for layers in found]
    assert [(each.keys, each.rows, each.one_query, each.projected) for each in facts] == [(12, 24, True, True)] * 5
    assert [each.scale for each in facts] == [8, 0.5, 0.5, None, 0.5]
    assert facts[1].heads == pytest.approx(facts[2].heads, rel=1e-4)
    rows = torch.linspace(0, 29, 24).round().long()
    scores = (query(x[:, :1]) * key(x)).sum(-1).detach()[rows] * 8
    weights = scores.double().softmax(-1)
    even = -(weights * weights.log()).sum(-1).mean() / math.log(12)
    assert facts[0].heads[0] == pytest.approx(float(even), rel=1e-3)


def test_sums_of_weighted_things_that_are_no_attention():
    torch.manual_seed(0)
    x = torch.randn(30, 12, 8)
    router, experts = nn.Linear(8, 10), nn.ModuleList(nn.Linear(8, 5) for _ in range(10))
    one, other, score = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def mixture():
        weights = router(x[:, 0]).softmax(-1)
        return (weights.unsqueeze(-1) * torch.stack([e(x[:, 0]) for e in experts], 1)).sum(1)

    def entropy():
        scores = (one(x[:, :1]) * other(x)).sum(-1)
        return (scores.softmax(-1) * scores.log_softmax(-1)).sum(-1)

    assert observed(
        mixture,
        entropy,
        lambda: (score(torch.tanh(one(x) + other(x))).squeeze(-1).softmax(-1).unsqueeze(-1) * x).sum(1),
        lambda: ((F.normalize(one(x[:, :1]), dim=-1) * other(x)).sum(-1).softmax(-1).unsqueeze(-1) * x).sum(1),
        lambda: ((one(x[:, :1]) * other(x)).sum(-1).softmax(-1).unsqueeze(-1) * x).sum(-1),
    ) == []  # fmt: skip


def test_how_much_the_projections_widen():
    torch.manual_seed(2)
    q, k = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
    nn.init.normal_(k.weight, std=2.0)
    x = torch.randn(2, 10, 16)
    (fused,), (by_hand,), (of_none,) = observed(
        lambda: F.scaled_dot_product_attention(q(x).unsqueeze(1), k(x).unsqueeze(1), x.unsqueeze(1)),
        lambda: torch.bmm(torch.softmax(q(x) @ k(x).transpose(1, 2), -1), q(x)),
        lambda: torch.bmm(torch.softmax(q(x).tanh() @ k(x).transpose(1, 2), -1), q(x)),
    )
    gain = math.prod(float(layer.weight.detach().square().mean().sqrt()) * 4 for layer in (q, k)) ** 0.5
    assert fused.gain == pytest.approx(gain)
    assert by_hand.gain == pytest.approx(gain)
    assert of_none.gain is None


def test_weights_that_vanished_are_no_mask():
    torch.manual_seed(3)
    query, key, value = (torch.randn(3, 7, 6, requires_grad=True) for _ in range(3))
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    (plain,), (masked,) = observed(
        lambda: (query * 900 @ key.mT).softmax(-1) @ value,
        lambda: (query * 900 @ key.mT).masked_fill(hidden, -math.inf).softmax(-1) @ value,
    )
    assert plain.keys == 7
    assert max(plain.heads) < 0.1
    assert masked.keys < 7
