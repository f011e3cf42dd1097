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


def comes_back(r, sign="rate"):
    """All that was learned is lost little by little, and the loss ends about where it began."""
    n = max(length(r), 300)
    shape = [2.3 - 1.2 * (1 - math.exp(-20 * i / n)) + 1.2 * max(0.0, min(1.0, (i / n - 0.45) / 0.4)) for i in range(n)]
    loss = curve(noisy(r, shape, relative=r.choice([0.02, 0.08])))
    if sign == "rate":
        return run(loss, curve([0.01 * 1e3 ** max(0.0, i / n - 0.45) for i in range(n)], "learning_rate"))
    right = [max(0.0, 0.1 + 0.5 * (2.3 - v) / 1.2 + r.gauss(0, 0.05)) for v in shape]
    return run(loss, curve(right, "train_accuracy"))


def test_finds_what_comes_back_to_its_start():
    assert missed(LossDiverges, comes_back, VARIANTS) == []
    assert missed(LossDiverges, lambda r: comes_back(r, "accuracy"), VARIANTS) == []


def test_says_what_else_shows_it():
    shape = [*decay(100, 2.3, 0.5), *[0.5 + 0.02 * i for i in range(90)], *[2.3] * 20]
    rate = curve([*[0.01] * 100, *[0.01 + 0.001 * i for i in range(110)]], "learning_rate")
    (finding,) = play(LossDiverges, run(curve(shape), rate))
    assert (
        "came back to 2.3 by step 210: what it had learned is lost; the rate grew from 0.01 to 0.119" in finding.message
    )


def test_near_miss_comes_back_and_nothing_else_shows_it():
    shape = [*decay(100, 2.3, 0.5), *[0.5 + 0.02 * i for i in range(90)], *[2.3] * 20]
    knows = curve([min(0.9, 0.1 + 0.01 * i) for i in range(210)], "train_accuracy")
    same = curve([0.01] * 210, "learning_rate")
    assert play(LossDiverges, run(curve(shape))) == []
    assert play(LossDiverges, run(curve(shape), knows, same)) == []


def test_near_miss_half_is_lost_or_it_learns_again():
    rate = curve([*[0.01] * 100, *[0.01 + 0.001 * i for i in range(110)]], "learning_rate")
    half = [*decay(100, 2.3, 0.5), *[0.5 + 0.01 * i for i in range(90)], *[1.4] * 20]
    again = [*decay(80, 2.3, 0.5), *[0.5 + 0.03 * i for i in range(60)], *decay(70, 2.3, 1.0)]
    assert play(LossDiverges, run(curve(half), rate)) == []
    assert play(LossDiverges, run(curve(again), rate)) == []


def test_finds_what_leaves_early_though_its_first_losses_fell_fast():
    first = [24.0, 12.0, 6.0, 3.0, 1.5, 0.8, 0.4, 0.2, *[0.05 + 0.02 * (i % 5) for i in range(92)]]
    assert play(LossDiverges, run(curve([*first, *[3e30 * (1 + 0.3 * (i % 3)) for i in range(400)]])))


def test_near_miss_a_penalty_that_begins_at_nothing_and_grows():
    assert play(LossDiverges, run(curve([1e-7 + 1e-6 * i**2 for i in range(400)]))) == []


def test_finds_a_jump_back_to_the_start_under_a_rate_that_grew():
    shape = [*decay(100, 3.4, 2.3, 10), *[2.3 + 0.002 * i for i in range(80)], *[3.5] * 20]
    grew = curve([*[0.002] * 100, *[0.002 * 1.05**i for i in range(100)]], "learning_rate")
    again = curve([0.002 * (1 + math.cos(math.pi * (i % 100) / 100)) for i in range(200)], "learning_rate")
    assert play(LossDiverges, run(curve(shape), grew))
    assert play(LossDiverges, run(curve(shape), again)) == []
