"""The reference loop against a plain one, written with torch alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flatline.toolbox import fit, supervised, warmup_cosine

cross_entropy = supervised(nn.functional.cross_entropy)


def task(norm=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16) if norm else nn.Identity(), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(50, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    data = list(zip(x.split(10), y.split(10), strict=True))
    return model, data[:4], data[4:]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_weights_are_those_of_a_plain_loop(accumulate):
    model, train, _ = task(norm=False)
    fit(model, train, cross_entropy, epochs=3, lr=0.01, weight_decay=0.1, warmup=0.25, accumulate=accumulate)
    plain, train, _ = task(norm=False)
    decay = [p for p in plain.parameters() if p.dim() >= 2]
    rest = [p for p in plain.parameters() if p.dim() < 2]
    groups = [{"params": rest, "weight_decay": 0.0}, {"params": decay, "weight_decay": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    windows = [train[i : i + accumulate] for i in range(0, 4, accumulate)]
    total = 3 * len(windows)
    warm, step = round(0.25 * total), 0
    for _ in range(3):
        for window in windows:
            share = (
                (step + 1) / (warm + 1) if step < warm else (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2
            )
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * share
            optimizer.zero_grad()
            for x, y in window:
                (nn.functional.cross_entropy(plain(x), y) / len(window)).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            step += 1
    for ours, theirs in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_schedule():
    shares = [warmup_cosine(step, warm=3, total=11) for step in range(12)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[7] == pytest.approx(0.5)
    assert shares[11] == warmup_cosine(99, warm=3, total=11) == pytest.approx(0)
    assert warmup_cosine(0, warm=0, total=1) == 1.0


def test_learns_and_keeps_the_best_weights():
    model, train, valid = task()
    result = fit(model, train, cross_entropy, valid=valid, epochs=30, lr=0.03)
    assert result.train[-1] < 0.3 * result.train[0]
    assert result.best == result.valid.index(min(result.valid))
    model.eval()
    assert cross_entropy(model, valid[0]).item() == pytest.approx(min(result.valid))
    assert (result.skipped, result.cause, result.reason) == (0, None, "all epochs are over")
    assert 0 <= result.clip_rate <= 1
    assert len(result.lrs) == 30


def test_stops_when_validation_gets_worse():
    model, train, _ = task()
    noise = [(torch.randn(40, 4), torch.randint(0, 3, (40,)))]
    result = fit(model, train, cross_entropy, valid=noise, epochs=100, lr=0.05, patience=3)
    assert len(result.valid) == result.best + 4 < 100
    assert "no improvement" in result.reason


def test_validation_counts_samples_not_batches():
    model, train, _ = task(norm=False)
    valid = [(torch.randn(n, 4), torch.zeros(n, dtype=torch.long)) for n in (9, 1)]
    result = fit(model, train, cross_entropy, valid=valid, epochs=1)
    x, y = (torch.cat(part) for part in zip(*valid, strict=True))
    assert result.valid[0] == pytest.approx(cross_entropy(model, (x, y)).item(), rel=1e-5)


def test_a_bad_batch_is_skipped_and_named():
    model, train, _ = task(norm=False)
    train[2][0][3] = math.nan
    result = fit(model, train, cross_entropy, epochs=2)
    assert result.skipped == 2
    assert str(result.cause) == "batch holds nan, rows 3"
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert all(map(math.isfinite, result.train))


def test_an_operation_that_fails_is_named():
    model, train, _ = task(norm=False)
    result = fit(model, train, lambda m, b: torch.log(-cross_entropy(m, b)), epochs=1)
    assert result.cause.op == "log"
    assert (result.skipped, math.isnan(result.train[0])) == (4, True)


def test_autocast_and_an_optimizer_of_your_own():
    model, train, valid = task()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    result = fit(model, train, cross_entropy, valid=valid, optimizer=optimizer, epochs=20, dtype=torch.bfloat16)
    assert result.train[-1] < result.train[0]
    assert model[0].weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "way_out"),
    [
        ({"train": iter([1])}, "pass a DataLoader or a list"),
        ({"train": []}, "not empty"),
        ({"epochs": 0}, "epochs, accumulate"),
        ({"warmup": 1.0}, "warmup < 1"),
        ({"dtype": torch.float16}, "other than float16"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)}, "add them, or freeze them"),
        ({"valid": []}, "pass None"),
    ],
)
def test_bad_input(change, way_out):
    model, train, _ = task()
    with pytest.raises(ValueError, match=way_out):
        fit(**{"model": model, "train": train, "loss_fn": cross_entropy, "epochs": 1, **change})
