import math

from families import SAME, alarms, curve, decay, missed, noisy, run

from flatline.events import CurvesUpdated
from flatline.rules.curves.epoch_boundary_jump import EpochBoundaryJump
from flatline.testing import play


def saw(r, rate=False):
    """The loss falls within each epoch, and is up again at the next."""
    epochs, per = r.choice([4, 6, 10]), r.choice([40, 60, 100])
    n = epochs * per
    shape = [v + 0.5 * (1 - i % per / per) for i, v in enumerate(decay(n, 2.0, 0.6, 3))]
    parts = [curve(noisy(r, shape, r.choice([0.01, 0.05]))), curve([i / per for i in range(n)], "epoch")]
    if rate:
        parts.append(curve([1 + math.cos(math.pi * (i % per / per)) for i in range(n)], "learning_rate"))
    return run(*parts)


def test_finds_the_sick():
    variants = {name: change for name, change in SAME.items() if name not in ("ema", "thin")}  # which hide teeth
    assert missed(EpochBoundaryJump, saw, variants) == []


def test_says_how_far():
    shape = [2 + 0.5 * (1 - i % 50 / 50) for i in range(300)]
    (finding,) = play(EpochBoundaryJump, run(curve(shape), curve([i // 50 for i in range(300)], "epoch")))
    assert finding.severity == "hint"
    assert finding.message == (
        "train_loss jumps up by 0.44 at the start of the epochs (5 boundaries seen, the first at step 51); "
        "elsewhere it moves by 0.089"
    )


def test_near_miss_the_healthy():
    assert alarms(EpochBoundaryJump) == []
    assert play(EpochBoundaryJump, CurvesUpdated()) == []


def test_near_miss_the_schedule_restarts_there():
    import random

    assert [play(EpochBoundaryJump, saw(random.Random(seed), rate=True)) for seed in range(20)] == [[]] * 20


def test_near_miss_epochs_unknown_or_jumps_downwards():
    down = [2 - 0.3 * (i // 50) for i in range(300)]
    assert play(EpochBoundaryJump, run(curve(down), curve([i // 50 for i in range(300)], "epoch"))) == []
    assert play(EpochBoundaryJump, run(curve([2 + 0.5 * (1 - i % 50 / 50) for i in range(300)]))) == []
