"""When to stop; which is better."""

from __future__ import annotations

import math

import pytest
import torch

from flatline.toolbox import EarlyStopping, interquartile_mean, parameter_norm


def plain(metrics, patience, min_delta, mode):
    """A second implementation: where an ordinary one would stop."""
    metrics = metrics if mode == "min" else [-m for m in metrics]
    best, at = metrics[0], 0
    for step, metric in enumerate(metrics):
        if metric < best - min_delta:
            best, at = metric, step
        if step - at >= patience:
            return step
    return None


def stops(stopping, metrics, **more):
    columns = [dict(zip(more, row, strict=True)) for row in zip(*more.values(), strict=True)] or [{}] * len(metrics)
    return next((i for i, (m, c) in enumerate(zip(metrics, columns, strict=True)) if stopping.step(m, **c)), None)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("patience", [1, 3, 10])
@pytest.mark.parametrize("min_delta", [0.0, 0.3])
def test_without_more_it_is_ordinary(mode, patience, min_delta):
    torch.manual_seed(patience)
    for _ in range(20):
        metrics = (torch.randn(40).cumsum(0) / 5).tolist()
        found = stops(EarlyStopping(patience, min_delta=min_delta, mode=mode), metrics)
        assert found == plain(metrics, patience, min_delta, mode)


FLAT = [2.0, 1.5] + [2.5] * 200
SHRINKING = [100 * 0.99**i for i in range(202)]


def test_waits_while_memorised_weights_shrink():
    late = [*FLAT[:120], *[0.1] * 82]
    stopping = EarlyStopping(5, grokking=150)
    assert stops(stopping, late[:121], train=[1e-4] * 121, norm=SHRINKING[:121]) is None
    assert stopping.improved
    assert stopping.best == 0.1


def test_waits_no_longer_than_it_was_told():
    stopping = EarlyStopping(5, grokking=50)
    assert stops(stopping, FLAT, train=[1e-4] * 202, norm=SHRINKING) == 51
    assert stopping.reason == "no improvement on 1.5 in 50 checks"


def test_says_why_it_waits():
    stopping = EarlyStopping(2)
    reasons = [
        (stopping.step(m, train=0.0, norm=n), stopping.reason)[1] for m, n in zip([1.0] * 3, [9, 8, 7.0], strict=True)
    ]
    assert reasons[0] == "improved"
    assert reasons[1] == "no improvement on 1 in 1 checks"
    assert reasons[2].endswith("put off, as the data is memorised and the weights shrink (7)")


@pytest.mark.parametrize(
    ("train", "norm"),
    [
        ([0.5] * 202, SHRINKING),  # ordinary: not memorised
        ([1e-4] * 202, [100.0] * 202),  # memorised, but nothing moves
        ([1e-4] * 202, [100 * 1.01**i for i in range(202)]),  # weights grow: overfitting
        ([math.nan] * 202, SHRINKING),
    ],
)
def test_near_miss_is_not_about_to_grok(train, norm):
    assert stops(EarlyStopping(5), FLAT, train=train, norm=norm) == 6


def test_near_miss_nan_is_no_improvement():
    stopping = EarlyStopping(2)
    assert [stopping.step(m) for m in (math.nan, 1.0, math.nan, math.nan)] == [False, False, False, True]
    assert stopping.best == 1.0


def test_goes_on_from_a_checkpoint():
    first, second = EarlyStopping(5), EarlyStopping(5)
    for metric in FLAT[:4]:
        first.step(metric, train=0.0, norm=1.0)
    second.load_state_dict(first.state_dict())
    assert [first.step(3.0), first.reason] == [second.step(3.0), second.reason]


@pytest.mark.parametrize("bad", [{"patience": 0}, {"patience": 1, "min_delta": -1.0}, {"patience": 1, "mode": "low"}])
def test_bad_settings(bad):
    with pytest.raises(ValueError, match="need patience >= 1"):
        EarlyStopping(**bad)


def test_weight_norm():
    assert parameter_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]) == 5.0
    assert parameter_norm([]) == 0.0


# --------------------------------------------------------------------------- interquartile mean


@pytest.mark.parametrize("runs", [2, 3, 4, 7, 8, 25])
@pytest.mark.parametrize("tasks", [(), (1,), (6,)])
def test_mean_is_that_of_scipy(runs, tasks):
    stats = pytest.importorskip("scipy.stats")
    scores = torch.randn(runs, *tasks, generator=torch.Generator().manual_seed(runs), dtype=torch.float64)
    expected = stats.trim_mean(scores.numpy(), 0.25, axis=None)
    assert interquartile_mean(scores, resamples=10).mean == pytest.approx(float(expected))


def test_mean_by_hand():
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -100.0]).mean == 3.5


def test_interval_is_that_of_scipys_bootstrap():
    stats = pytest.importorskip("scipy.stats")
    scores = torch.randn(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = interquartile_mean(scores, resamples=8000, confidence=0.9)
    theirs = stats.bootstrap(
        (scores.numpy(),),
        lambda x, axis: stats.trim_mean(x, 0.25, axis=axis),
        confidence_level=0.9,
        n_resamples=8000,
        method="percentile",
        rng=0,
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.05 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.05 * width)
    assert str(ours).endswith("at 90%")


def test_runs_are_drawn_within_their_task():
    """Tasks whose runs agree leave nothing to chance, however far apart the tasks are."""
    result = interquartile_mean(torch.tensor([[0.0, 100.0], [0.0, 100.0], [0.0, 100.0]]))
    assert result.low == result.high == result.mean == 50.0


def test_near_miss_global_generators_are_not_touched():
    before = torch.get_rng_state()
    assert interquartile_mean([1.0, 2.0, 4.0], seed=1) == interquartile_mean(iter([1.0, 2.0, 4.0]), seed=1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("scores", [[1.0], [1.0, math.nan], torch.tensor(1.0), []])
def test_bad_scores(scores):
    with pytest.raises(ValueError, match="at least two runs"):
        interquartile_mean(scores)
