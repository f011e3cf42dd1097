"""Each against torch's own functions, the published formula, or the sum written out."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch import nn

from flatline.toolbox import TokenAccumulation, masked_mean, min_snr_weights, whiten, z_loss

# --------------------------------------------------------------------------- masked_mean


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8])
def test_masked_mean_is_the_mean_of_what_is_chosen(kind):
    torch.manual_seed(0)
    values, mask = torch.randn(4, 6, dtype=torch.float64), torch.rand(4, 6) < 0.5
    assert torch.allclose(masked_mean(values, mask.to(kind)), values[mask].mean())
    rows = torch.stack([row[chosen].mean() for row, chosen in zip(values, mask, strict=True)])
    assert torch.allclose(masked_mean(values, mask, dim=1, keepdim=True), rows[:, None])
    assert torch.allclose(masked_mean(values, mask, dim=(0, 1)), values[mask].mean())


def test_masked_mean_agrees_with_ignore_index():
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
    labels[0, 2:] = -100
    flat = logits.flatten(0, 1), labels.flatten()
    each = nn.functional.cross_entropy(*flat, reduction="none")
    assert torch.allclose(masked_mean(each, labels.flatten() != -100), nn.functional.cross_entropy(*flat))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_masked_mean_is_not_harmed_by_what_is_hidden(bad):
    values = torch.tensor([1.0, 2.0, bad], requires_grad=True)
    mean = masked_mean(values, torch.tensor([True, True, False]))
    mean.backward()
    assert mean.item() == 1.5
    assert values.grad.tolist() == [0.5, 0.5, 0.0]


def test_near_miss_nothing_is_chosen():
    values = torch.ones(3, requires_grad=True)
    mean = masked_mean(values, torch.zeros(3, dtype=torch.bool))
    mean.backward()
    assert (mean.item(), values.grad.tolist()) == (0.0, [0.0] * 3)


def test_near_miss_long_rows_of_half_precision():
    values = torch.full((100_000,), 3.0, dtype=torch.float16)
    mean = masked_mean(values, torch.ones(1, dtype=torch.bool))
    assert (mean.item(), mean.dtype) == (3.0, torch.float16)


@pytest.mark.parametrize(
    ("mask", "way_out"), [(torch.zeros(2, 3), "additive"), (torch.ones(2, dtype=torch.bool), "unsqueeze")]
)
def test_bad_masks(mask, way_out):
    with pytest.raises(ValueError, match=way_out):
        masked_mean(torch.zeros(2, 3), mask)
    with pytest.raises(ValueError, match=way_out):
        whiten(torch.zeros(2, 3), mask)


# --------------------------------------------------------------------------- tokens


def micro_batches():
    torch.manual_seed(0)
    return [(torch.randn(n, 4), torch.arange(n) % 3) for n in (7, 1, 3)]


def test_accumulated_gradients_are_those_of_one_large_batch():
    model = nn.Linear(4, 3)
    accumulation = TokenAccumulation(model.parameters())
    for inputs, targets in micro_batches():
        summed = nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
        accumulation.backward(summed, torch.tensor(len(targets)))
    mean = accumulation.divide()
    inputs, targets = (torch.cat(parts) for parts in zip(*micro_batches(), strict=True))
    whole = nn.functional.cross_entropy(model(inputs), targets)
    expected = torch.autograd.grad(whole, list(model.parameters()))
    assert mean.item() == pytest.approx(whole.item())
    assert all(torch.allclose(p.grad, g, atol=1e-6) for p, g in zip(model.parameters(), expected, strict=True))
    means = [nn.functional.cross_entropy(model(x), y) for x, y in micro_batches()]
    biased = torch.autograd.grad(sum(means) / 3, list(model.parameters()))
    assert not torch.allclose(biased[0], expected[0], atol=1e-3)


def test_each_window_counts_anew():
    weight = torch.ones(1, requires_grad=True)
    accumulation = TokenAccumulation([weight, torch.ones(1, requires_grad=True)])
    for tokens in (2, 4):
        weight.grad = None
        accumulation.backward((8 * weight).sum(), tokens)
        assert accumulation.divide().item() == weight.grad.item() == 8 / tokens


def test_near_miss_no_tokens_at_all():
    weight = torch.ones(1, requires_grad=True)
    accumulation = TokenAccumulation([weight])
    accumulation.backward((weight * 0).sum(), 0)
    assert (accumulation.divide().item(), weight.grad.item()) == (0.0, 0.0)


def test_nothing_accumulated():
    with pytest.raises(RuntimeError, match="for each micro-batch first"):
        TokenAccumulation([]).divide()


# --------------------------------------------------------------------------- z_loss


def test_z_loss_by_hand():
    logits = torch.log(torch.tensor([[1.0, 2.0, 3.0], [0.25, 0.25, 0.5]]))
    assert z_loss(logits, 1.0, reduction="none").tolist() == pytest.approx([math.log(6) ** 2, 0.0], abs=1e-6)
    assert z_loss(logits).item() == pytest.approx(1e-4 * math.log(6) ** 2 / 2)
    assert z_loss(logits, 1.0, reduction="sum").item() == pytest.approx(math.log(6) ** 2)
    assert z_loss(logits.T, 1.0, dim=0).item() == pytest.approx(math.log(6) ** 2 / 2)


def test_z_loss_gradient_is_two_log_z_times_softmax():
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    z_loss(logits, 0.3).backward()
    expected = 0.3 * 2 / 5 * torch.logsumexp(logits, -1, keepdim=True) * torch.softmax(logits, -1)
    assert torch.allclose(logits.grad, expected.detach())


def test_near_miss_z_loss_of_half_precision_does_not_overflow():
    assert z_loss(torch.full((1, 4), 300.0, dtype=torch.float16)).item() == pytest.approx(1e-4 * 301.386**2, rel=1e-3)


def test_z_loss_bad_reduction():
    with pytest.raises(ValueError, match="'none', 'mean' or 'sum'"):
        z_loss(torch.zeros(1, 2), reduction="batchmean")


# --------------------------------------------------------------------------- min-SNR


def test_min_snr_follows_the_formula():
    snr = torch.tensor([0.01, 1.0, 4.9, 5.0, 5.1, 100.0], dtype=torch.float64)
    cut = numpy.minimum(snr.numpy(), 5.0)
    for prediction, expected in {"epsilon": cut / snr, "v": cut / (snr + 1), "sample": torch.tensor(cut)}.items():
        assert torch.allclose(min_snr_weights(snr, prediction=prediction), expected)
    assert min_snr_weights(snr, gamma=1.0)[-1].item() == 0.01


def test_the_three_weights_are_the_same_loss():
    """Errors of x, of epsilon and of v differ by snr and by snr + 1."""
    snr = torch.logspace(-3, 3, 30, dtype=torch.float64)
    sample = min_snr_weights(snr, prediction="sample")
    assert torch.allclose(min_snr_weights(snr) * snr, sample)
    assert torch.allclose(min_snr_weights(snr, prediction="v") * (snr + 1), sample)


def test_near_miss_zero_and_infinite_ratios_stay_finite():
    ends = torch.tensor([0.0, math.inf])
    assert min_snr_weights(ends).tolist() == [1.0, 0.0]
    assert min_snr_weights(ends, prediction="v").tolist() == [0.0, 0.0]
    assert min_snr_weights(ends, prediction="sample").tolist() == [0.0, 5.0]


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        ((torch.tensor([3]),), "not t itself"),
        ((torch.ones(1), 0.0), "gamma > 0"),
    ],
)
def test_min_snr_bad_input(arguments, way_out):
    with pytest.raises(ValueError, match=way_out):
        min_snr_weights(*arguments)
    with pytest.raises(ValueError, match="'epsilon', 'v' or 'sample'"):
        min_snr_weights(torch.ones(1), prediction="noise")


# --------------------------------------------------------------------------- whiten


def test_whiten_against_numpy():
    values = numpy.random.RandomState(0).randn(3, 9) * 7 + 4
    expected = (values - values.mean()) / values.std(ddof=1)
    assert whiten(torch.tensor(values)).numpy() == pytest.approx(expected, abs=1e-6)
    kept = whiten(torch.tensor(values), shift_mean=False)
    assert kept.mean().item() == pytest.approx(values.mean())


def test_whiten_sees_only_what_is_chosen():
    values = torch.tensor([1.0, 2.0, 3.0, math.nan, 1e9])
    mask = torch.tensor([1, 1, 1, 0, 0])
    assert whiten(values, mask).tolist() == pytest.approx([-1.0, 0.0, 1.0, 0.0, 0.0])
    assert whiten(values, mask, shift_mean=False).tolist() == pytest.approx([1.0, 2.0, 3.0, 0.0, 0.0])


def test_near_miss_equal_single_and_no_values():
    assert whiten(torch.full((3,), 5.0)).tolist() == [0.0] * 3
    assert whiten(torch.tensor([5.0])).tolist() == [0.0]
    assert whiten(torch.ones(2), torch.zeros(2, dtype=torch.bool)).tolist() == [0.0, 0.0]
