import pytest

from flatline.events import (
    Curve,
    CurvesUpdated,
    LayerNumbers,
    LossesRead,
    NumbersSampled,
    OptimizerFacts,
    RecurrenceSampled,
    RecurrentGradientsSampled,
    RunEnded,
)
from flatline.rules.gradients.exploding_gradient import ExplodingGradient
from flatline.testing import play

SGD = OptimizerFacts(key=1, name="SGD")
ADAM = OptimizerFacts(key=1, name="Adam", adaptive=True)


def sample(step, gradients, *, loss=1.0, first_loss=1.0, update=1e-3, weight=0.1, optimizer=SGD, lr=0.01):
    layers = tuple(
        LayerNumbers(name=f"net.{i}", depth=i, gradient_rms=g, weight_rms=weight, update_ratio=update)
        for i, g in enumerate(gradients)
    )
    return NumbersSampled(
        step=step, index=step, layers=layers, loss=loss, first_loss=first_loss, optimizer=optimizer, lr=lr
    )


DEEP = [1e3 * 0.1**i for i in range(8)]


def test_fires_over_depth():
    (finding,) = play(ExplodingGradient, *(sample(step, DEEP) for step in range(1, 4)))
    assert finding.severity == "warning"
    assert finding.message == (
        "the gradient grows with depth: rms 1e+03 at net.0 against 0.0001 at net.7, over 8 weight matrices"
    )
    assert "kaiming" in finding.fix


def test_fires_on_a_jump_that_nothing_tames():
    calm = [sample(step, [1e-3, 1e-3]) for step in range(1, 21)]
    (finding,) = play(ExplodingGradient, *calm, sample(21, [50.0, 50.0], loss=300.0, update=4.0))
    assert "jumped to 50000 times its usual size" in finding.message
    assert "clip_grad_norm_" in finding.fix


def test_fires_on_plain_sgd_with_gradients_larger_than_the_weights():
    wild = [sample(step, [9.0, 9.0], loss=50.0 * step, first_loss=2.0, update=0.9) for step in range(2, 6)]
    (finding,) = play(ExplodingGradient, *wild)
    assert "90 times as large as the weights" in finding.message


def test_near_miss_two_samples():
    assert play(ExplodingGradient, *(sample(step, DEEP) for step in range(1, 3))) == []


def test_near_miss_one_layer_apart_or_few_layers():
    assert play(ExplodingGradient, *(sample(step, [1e4, 1e-2, 1e-2, 1e-2, 1e-2, 1e-2]) for step in range(1, 5))) == []
    assert play(ExplodingGradient, *(sample(step, [1e4, 1e1, 1e-2]) for step in range(1, 5))) == []


def test_near_miss_a_jump_under_clipping():
    calm = [sample(step, [1e-3, 1e-3]) for step in range(1, 21)]
    assert play(ExplodingGradient, *calm, sample(21, [50.0, 50.0], loss=300.0, update=0.02)) == []


def test_near_miss_a_jump_that_the_loss_does_not_show():
    calm = [sample(step, [1e-3, 1e-3]) for step in range(1, 21)]
    assert play(ExplodingGradient, *calm, sample(21, [50.0, 50.0], loss=1.0, update=4.0)) == []


def test_near_miss_large_first_loss_that_falls():
    falling = [sample(step, [9.0, 9.0], loss=5e4 / step, first_loss=5e4, update=0.9) for step in range(2, 30)]
    assert play(ExplodingGradient, *falling) == []


def test_near_miss_adam():
    wild = [sample(step, [9.0, 9.0], loss=50.0, first_loss=2.0, update=0.9, optimizer=ADAM) for step in range(2, 6)]
    assert play(ExplodingGradient, *wild) == []


def logged(name, role, values):
    steps = tuple(float(i + 1) for i in range(len(values)))
    return Curve(name=name, role=role, steps=steps, values=tuple(values), count=len(values))


EXPLODES = [1.0 + 0.1 * (i % 3) for i in range(90)] + [4.0**i for i in range(1, 11)]
RISES = logged("loss", "train_loss", [2.3 - 0.01 * i for i in range(90)] + [3.0 * i for i in range(1, 11)])
FALLS = logged("loss", "train_loss", [2.3 * 0.98**i for i in range(100)])


def test_fires_on_a_logged_norm():
    event = CurvesUpdated(curves=(RISES, logged("grad_norm", "gradient_norm", EXPLODES)))
    (finding,) = play(ExplodingGradient, event)
    assert finding.severity == "warning"
    assert finding.message.startswith("grad_norm grew from 1.1, its median over the first half, to ")


def test_near_miss_logged_and_the_loss_falls():
    event = CurvesUpdated(curves=(FALLS, logged("grad_norm", "gradient_norm", EXPLODES)))
    assert play(ExplodingGradient, event) == []


def test_near_miss_logged_one_outlier_or_no_loss():
    outlier = [*EXPLODES[:99], 1e6]
    one = logged("grad_norm", "gradient_norm", [1.0] * 99 + [1e6])
    assert play(ExplodingGradient, CurvesUpdated(curves=(RISES, one))) == []
    assert play(ExplodingGradient, CurvesUpdated(curves=(logged("grad_norm", "gradient_norm", outlier),))) == []


def recurrence(sizes, positions=60):
    return RecurrenceSampled(step=1, shape=(96, 96), positions=positions, sizes=tuple(sizes))


def test_fires_on_a_state_that_grows_at_every_position():
    (finding,) = play(ExplodingGradient, recurrence([0.2 * 5.0**i for i in range(9)]))
    assert finding.severity == "warning"
    assert finding.message == (
        "a weight of 96 × 96 is applied to its own result at 60 positions, and the state grows from rms 0.2 to 7.8e+04, "
        "1.24 × at each: so does the gradient on its way back"
    )
    assert "orthogonal_" in finding.fix


def test_near_miss_a_state_that_adds_up():
    assert play(ExplodingGradient, recurrence([0.1 + 12.0 * i for i in range(9)])) == []


def test_near_miss_a_state_that_settles_or_grows_little():
    assert play(ExplodingGradient, recurrence([0.001, 1.0, 5.0, 6.0, 6.1, 6.1, 6.1, 6.1, 6.1])) == []
    assert play(ExplodingGradient, recurrence([2.0**i for i in range(9)])) == []
    assert play(ExplodingGradient, recurrence([])) == []


def test_near_miss_a_state_that_leaps_once():
    assert play(ExplodingGradient, recurrence([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1e5])) == []


BACKWARD = tuple(4.0 * 0.3**i for i in range(9))  # 0.00026 at the last position


def recurrent_run(gradients=BACKWARD, *, looks=3, losses=(1.1, 1.1), until=1.0, steps=600):
    """Some looks at the gradients of the positions, and a loss that goes evenly from one number to another, and stays."""
    seen = [
        RecurrentGradientsSampled(step=step, weight="cell.w", shape=(96, 96), positions=24, gradients=tuple(gradients))
        for step in range(1, looks + 1)
    ]
    fall = losses[1] - losses[0]
    course = [losses[0] + fall * min(1.0, at / steps / until) for at in range(steps)]
    read = LossesRead(optimizer=ADAM, steps=tuple(range(steps)), losses=tuple(course), rates=(1e-3,) * steps)
    return [*seen, read, RunEnded(step=steps)]


def test_fires_on_gradients_that_grow_over_the_positions():
    (finding,) = play(ExplodingGradient, *recurrent_run())
    assert finding.severity == "warning"
    assert finding.message == (
        "cell.w is applied to its own result at 24 positions, and the gradient grows on its way back from rms 0.00026 at "
        "the last to 4 at the first, 1.52 × at each; the loss stands at 1.1"
    )
    assert "C2" in ExplodingGradient.consequences
    assert len(play(ExplodingGradient, *recurrent_run(losses=(1.1, 0.88), until=0.2))) == 1


def test_near_miss_gradients_that_grow_over_the_positions_and_a_loss_that_falls():
    assert play(ExplodingGradient, *recurrent_run(losses=(1.1, 0.9))) == []
    assert play(ExplodingGradient, *recurrent_run(losses=(1.1, 0.6), until=0.2)) == []


def test_near_miss_gradients_that_fade_or_hardly_grow_over_the_positions():
    assert play(ExplodingGradient, *recurrent_run(BACKWARD[::-1])) == []
    assert play(ExplodingGradient, *recurrent_run([1.5**-i for i in range(9)])) == []
    assert play(ExplodingGradient, *recurrent_run([1e5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])) == []


def test_near_miss_gradients_over_the_positions_seen_twice_or_in_a_short_run():
    assert play(ExplodingGradient, *recurrent_run(looks=2)) == []
    assert play(ExplodingGradient, *recurrent_run(steps=250)) == []
    assert play(ExplodingGradient, *recurrent_run()[:-1]) == []


def noisy(*, gradients=(300.0, 90.0, 0.01), weight=0.2, losses=(0.4, 0.2), samples=60, optimizers=1):
    """Adam on a recurrence whose gradient is multiplied at every position: the loss falls, and stands from half on."""
    for i in range(1, samples + 1):
        for key in range(1, optimizers + 1):
            loss = losses[0] if i < samples // 3 else losses[1]
            yield sample(10 * i, gradients, loss=loss, weight=weight, optimizer=OptimizerFacts(key=key, adaptive=True))


def test_fires_on_gradients_out_of_all_proportion_under_any_optimizer():
    finding = play(ExplodingGradient, *noisy())[0]
    assert finding.message == (
        "the gradient is typically 450 times as large as the weights (healthy: under 8), most of all at net.0 (rms 3e+02, "
        "weights 0.2), at a loss that stands at 0.4"
    )
    assert "divides by its size" in finding.cause


def test_near_miss_large_gradients():
    assert play(ExplodingGradient, *noisy(gradients=(3.0, 2.0, 0.01))) == []
    assert play(ExplodingGradient, *noisy(losses=(9e4, 8e4))) == []  # a sum, or targets in the thousands
    assert play(ExplodingGradient, *noisy(losses=(-0.2, -0.2))) == []
    assert play(ExplodingGradient, *noisy(weight=1e-4)) == []  # weights that begin at zero
    assert play(ExplodingGradient, *noisy(samples=15)) == []
    assert play(ExplodingGradient, *noisy(optimizers=2)) == []  # adversaries


def test_near_miss_large_gradients_of_a_loss_that_falls():
    falls = [sample(10 * i, (300.0, 90.0), loss=0.4 * 0.95**i, weight=0.2, optimizer=ADAM) for i in range(1, 60)]
    assert play(ExplodingGradient, *falls) == []


LEAP = (5.0, 4.4, 3.2, 2.2, 1.4, 0.8, 0.5, 0.25, 0.035)
RUNAWAY = (0.84, 0.92, 1.2, 1.7, 2.6, 3.9, 6.0, 9.2, 14.0)


def thrown(sizes=RUNAWAY, gradients=LEAP, **facts):
    """A loop whose first pass ran away, and what an optimizer made of it."""
    given = {"first": 8e3, "later": 0.1, "start": 2800.0, "early": 5.0, "end": 1.0, "moved": 1e-5, "steps": 400} | facts
    facts = {"weight": "f.4.weight", "shape": (2, 64), "positions": 50}
    optimizer, steps = given.get("optimizer", ADAM), given["steps"]
    losses = [given["start"], *[given["early"]] * (steps // 4), *[given["end"]] * (steps - 1 - steps // 4)]
    common = {"optimizer": optimizer, "lr": 1e-3, "update": given["moved"] / 0.1}
    return [
        RecurrenceSampled(step=1, sizes=sizes, **facts),
        RecurrentGradientsSampled(step=1, gradients=gradients, **facts),
        sample(1, [given["first"]] * 3, loss=given["start"], first_loss=given["start"], **common),
        *(
            sample(step, [given["later"]] * 3, loss=losses[step - 1], first_loss=given["start"], **common)
            for step in range(2, steps, 9)
        ),
        LossesRead(optimizer=optimizer, steps=tuple(range(steps)), losses=tuple(losses), rates=(1e-3,) * steps),
        RunEnded(step=steps, how=given.get("how", "finished")),
    ]


def test_fires_on_a_first_gradient_that_an_adaptive_optimizer_does_not_get_over():
    (finding,) = play(ExplodingGradient, *thrown())
    assert finding.message == (
        "f.4.weight is applied to its own result 50 times in a loop, and the first gradient grew on its way back 143-fold: rms "
        "8e+03 at a loss of 2800, against 0.1 at the end, with a loss of 1. The optimizer still divides by it, and moves the "
        "weights by 1.0% of its rate"
    )
    assert (finding.severity, finding.consequences) == ("hint", ())  # at the noise of its targets a loss looks the same


@pytest.mark.parametrize(
    "facts",
    [
        {"sizes": (0.84, 0.85, 0.86, 0.87, 0.88, 0.9, 0.92, 0.95, 1.0)},
        {"gradients": tuple(1e-3 * (9 - at) for at in range(9))},
        {"first": 8.0},
        {"start": 60.0},
        {"end": 0.01},
        {"moved": 1e-4},
        {"optimizer": SGD, "first": 0.01, "later": 1e-8},
        {"steps": 150},
        {"how": "interrupted"},
    ],
    ids=[
        "bounded",
        "adds up",
        "falls as the loss does",
        "ordinary loss",
        "it learns",
        "it moves",
        "SGD",
        "short",
        "stopped",
    ],
)
def test_near_miss_a_large_first_gradient(facts):
    assert play(ExplodingGradient, *thrown(**facts)) == []


def test_near_miss_told_at_once():
    grown = tuple(0.5 * 10**at for at in range(9))
    (finding,) = play(ExplodingGradient, *thrown(grown))
    assert "the state grows" in finding.message


def test_near_miss_a_rate_that_is_raised_until_this_happens():
    calm = [sample(step, [1e-3, 1e-3], lr=1e-5 * 1.9**step) for step in range(1, 21)]
    burst = sample(21, [50.0, 50.0], loss=300.0, update=4.0, lr=1e-5 * 1.9**21)
    assert play(ExplodingGradient, *calm, burst) == []
    held = sample(21, [50.0, 50.0], loss=300.0, update=4.0, lr=1e-5 * 1.9**20)
    assert len(play(ExplodingGradient, *calm, held)) == 1


# --------------------------------------------------------------------------- weights that the first steps threw away


def flung(*, sizes=(4.0, 3e3, 3e6), losses=(3.2, 2.3), gradients=BACKWARD, optimizer=SGD, steps=400):
    """A first look at gradients over positions, the sizes of a weight after the first steps, and the losses of the run."""
    first, *_, last = sizes
    after = [first, *sizes[1:-1], *[last] * 20]
    begun, stands = [losses[0]] * (steps // 10), [losses[1]] * (steps - steps // 10)
    taken = [
        sample(step, [1e-5], weight=size, update=20.0 if step == 1 else 0.01, loss=losses[1], optimizer=optimizer)
        for step, size in enumerate(after, 1)
    ]
    return play(
        ExplodingGradient,
        RecurrentGradientsSampled(step=1, weight="w", shape=(96, 96), positions=64, gradients=tuple(gradients)),
        *taken,
        LossesRead(
            step=steps, steps=tuple(range(steps)), losses=(*begun, *stands), rates=(0.1,) * steps, optimizer=optimizer
        ),
        RunEnded(step=steps),
    )


def test_fires_on_weights_that_the_first_steps_threw_far_away():
    (finding,) = flung()
    assert (finding.key, "O22" in finding.consequences, "O25" in finding.consequences) == ("flung", True, True)
    assert "the first 20 steps threw net.0 from rms 0.2 to 3e+06" in finding.message
    assert "it never came back, and the loss stands at 2.3" in finding.message


def test_near_miss_weights_that_grow_or_come_back_or_learn_all_the_same():
    assert flung(sizes=(4.0, 4.5, 5.0)) == []
    assert flung(sizes=(4.0, 2e3, 0.5)) == []
    assert flung(losses=(3.2, 0.4)) == []
    assert flung(steps=100) == []


def test_near_miss_weights_thrown_far_by_other_gradients_or_adam():
    assert flung(gradients=[1.0] * 9) == []
    assert flung(optimizer=ADAM) == []
