import math

from families import VARIANTS, alarms, curve, decay, length, missed, noisy, run

from flatline.events import CurvesUpdated
from flatline.rules.curves.loss_diverges import LossDiverges
from flatline.testing import play


def relapse(r):
    """Learned, then climbed far over its start, and stayed there."""
    n, at = max(length(r), 120), r.uniform(0.4, 0.8)
    top = r.uniform(5, 12)
    shape = [
        v if i < at * n else top - (top - v) * math.exp(-20 * (i / n - at)) for i, v in enumerate(decay(n, 2.3, 0.6))
    ]
    return run(curve(noisy(r, shape, relative=r.choice([0.02, 0.1]))), classes=10)


def explosion(r):
    """Grows by orders of magnitude from the first steps on."""
    n = max(length(r), 40)
    shape = [2.3 * math.exp(8 * (i / n) ** 2) for i in range(n)]
    return run(curve(noisy(r, shape, relative=0.1)))


def explosion_at_the_end(r):
    n = max(length(r), 120)
    shape = [v if i < 0.9 * n else v * math.exp(80 * (i / n - 0.9)) for i, v in enumerate(decay(n, 2.3, 0.4))]
    return run(curve(noisy(r, shape, relative=0.05)), classes=10)


def blown_up_at_once(r):
    """SGD at a rate of 6: some steps like the first, then 1e26."""
    n = max(length(r), 120)
    values = [2.3 + r.gauss(0, 0.1) if i < 7 else 4.0 * 10 ** min(26, i - 6) * r.uniform(0.5, 2) for i in range(n)]
    return run(curve(values))


def test_finds_the_sick():
    for family in (relapse, explosion, explosion_at_the_end):
        assert missed(LossDiverges, family, VARIANTS) == []
    fine = {name: change for name, change in VARIANTS.items() if name != "thin"}  # which hides the first steps
    assert missed(LossDiverges, blown_up_at_once, fine) == []


def test_says_from_where_to_where():
    shape = [*decay(100, 2.3, 0.5), *[9.7] * 40]
    (finding,) = play(LossDiverges, run(curve(shape)))
    assert (finding.code, finding.severity) == ("C1", "warning")
    assert finding.message == (
        "train_loss fell from 2.096 to 0.5053 by step 101, then rose to 9.7 at step 140, far above its first value 2.096"
    )


def test_near_miss_the_healthy():
    assert alarms(LossDiverges) == []


def test_near_miss_adversaries_by_name_and_by_shape():
    rises = [0.7 * math.exp(4 * i / 200) for i in range(200)]
    assert play(LossDiverges, run(curve(rises, name="generator_loss"))) == []
    assert play(LossDiverges, run(curve(rises), curve(decay(200, 1.4, 0.1), name="other"))) == []


def test_near_miss_too_short_and_one_last_bad_batch():
    assert play(LossDiverges, run(curve([2.3, 1.0, 5.0, 400.0]))) == []
    assert play(LossDiverges, CurvesUpdated()) == []
    assert play(LossDiverges, run(curve([*decay(200, 2.3, 0.5), 90.0]))) == []
