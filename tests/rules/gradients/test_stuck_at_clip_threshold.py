from flatline.events import (
    ClipFacts,
    Curve,
    CurvesUpdated,
    LayerNumbers,
    LossesRead,
    NumbersSampled,
    OptimizerFacts,
    OptimizerStepped,
    RunEnded,
    Where,
)
from flatline.rules.gradients.stuck_at_clip_threshold import StuckAtClipThreshold
from flatline.testing import play

SGD = OptimizerFacts(name="SGD")
ADAM = OptimizerFacts(name="Adam", adaptive=True)


def steps(*norms, threshold=1e-5, update=1e-7, optimizer=SGD, every=1, **facts):
    for number, norm in enumerate(norms):
        index = 1 + number * every
        clip = ClipFacts(threshold=threshold, norm=norm, where=Where("train.py", 20), **facts)
        yield OptimizerStepped(step=index, index=index, clips=(clip,), optimizer=optimizer)
        layer = LayerNumbers(update_ratio=update)
        yield NumbersSampled(step=index, index=index, layers=(layer,), optimizer=optimizer)


def test_fires_on_a_tiny_threshold():
    (finding,) = play(StuckAtClipThreshold, *steps(1.0, 0.8, 1.2, 0.9))
    assert finding.severity == "warning"
    assert finding.where == Where("train.py", 20)
    assert finding.message == (
        "all 4 gradient norms seen were clipped to 1e-05: they are 0.8 to 1.2, median 9.5e+04 × the threshold"
    )
    assert finding.fix == "raise max_norm from 1e-05 to about 1.2, the 95th percentile of the norms seen"


def test_fires_late_on_an_ordinary_threshold_far_under_the_norms():
    (finding,) = play(StuckAtClipThreshold, *steps(*[5e4] * 9, threshold=1.0, update=1e-6, every=6))
    assert finding.step == 43


def test_near_miss_all_early_steps_clipped_moderately():
    assert play(StuckAtClipThreshold, *steps(*[25.0] * 12, threshold=1.0, update=1e-6, every=6)) == []


def test_near_miss_one_step_under_the_threshold():
    assert play(StuckAtClipThreshold, *steps(1.0, 1.0, 5e-6, 1.0, 1.0, 1.0)) == []


def test_near_miss_adam_steps_are_ordinary_all_the_same():
    assert play(StuckAtClipThreshold, *steps(1.0, 1.0, 1.0, 1.0, 1.0, update=2e-3, optimizer=ADAM)) == []


def test_near_miss_scaled_gradients_and_clipping_by_value():
    assert play(StuckAtClipThreshold, *steps(*[1e5] * 6, scaled=True, scale=65536.0)) == []
    assert play(StuckAtClipThreshold, *steps(*[None] * 6, kind="value")) == []
    assert play(StuckAtClipThreshold, *steps(*[float("inf")] * 6)) == []


def logged(name, role, values):
    steps = tuple(float(i + 1) for i in range(len(values)))
    return Curve(name=name, role=role, steps=steps, values=tuple(values), count=len(values))


NORMS = [2.0 + 0.1 * (i % 30) for i in range(300)]


def test_a_logged_norm_that_is_a_flat_line_is_a_hint():
    (finding,) = play(StuckAtClipThreshold, CurvesUpdated(curves=(logged("gn", "gradient_norm", [1.0] * 99 + [0.7]),)))
    assert finding.severity == "hint"
    assert (
        finding.message
        == "gn is 1 at nearly all of 100 points: it was logged after clipping, and every step is clipped"
    )


def test_a_logged_clip_rate_suggests_a_threshold():
    rate = logged("clip_rate", "clip_rate", [0.98] * 300)
    (finding,) = play(StuckAtClipThreshold, CurvesUpdated(curves=(rate, logged("gn", "gradient_norm", NORMS))))
    assert finding.message == "clip_rate is 98% in the median: nearly every step is clipped"
    assert "raise max_norm to about 4.8, the 95th percentile of those logged" in finding.fix


def test_near_miss_logged_norms_that_vary():
    assert play(StuckAtClipThreshold, CurvesUpdated(curves=(logged("gn", "gradient_norm", NORMS),))) == []


def test_near_miss_logged_clip_rate_of_a_tenth_or_few_points():
    rate, few = logged("clip_rate", "clip_rate", [0.1] * 300), logged("gn", "gradient_norm", [1.0] * 20)
    assert play(StuckAtClipThreshold, CurvesUpdated(curves=(rate, few))) == []
    assert play(StuckAtClipThreshold, CurvesUpdated(curves=(logged("gn", "gradient_norm", [0.0] * 300),))) == []


def slowly(loss=0.95, optimizer=SGD, threshold=3e-3, norm=0.16, samples=14, every=10, update=1e-3):
    clip = ClipFacts(threshold=threshold, norm=norm, where=Where("train.py", 20))
    for number in range(1, samples + 1):
        at = number * every
        layer = LayerNumbers(update_ratio=update)
        yield NumbersSampled(
            step=at, index=at, layers=(layer,), optimizer=optimizer, clips=(clip,), first_loss=3.2, loss=3.2 * loss
        )


def test_fires_where_nothing_but_a_tiny_threshold_sets_the_pace():
    (finding,) = play(StuckAtClipThreshold, *slowly())
    assert finding.step == 120
    assert "median 53.3 × the threshold" in finding.message


def test_fires_where_an_ordinary_threshold_leaves_tiny_steps():
    """The learning rate was passed as the threshold."""
    (finding,) = play(StuckAtClipThreshold, *slowly(threshold=0.02, norm=1.0, update=9e-5))
    assert "median 50 × the threshold" in finding.message
    assert play(StuckAtClipThreshold, *slowly(threshold=0.02, norm=1.0, update=9e-4)) == []
    assert play(StuckAtClipThreshold, *slowly(threshold=0.02, norm=1.0, update=9e-5, loss=0.6)) == []


def test_near_miss_the_loss_falls():
    assert play(StuckAtClipThreshold, *slowly(loss=0.7)) == []


def test_near_miss_adam_an_ordinary_threshold_few_samples():
    assert play(StuckAtClipThreshold, *slowly(optimizer=ADAM)) == []
    assert play(StuckAtClipThreshold, *slowly(threshold=0.1, norm=6.0)) == []
    assert play(StuckAtClipThreshold, *slowly(norm=0.03)) == []
    assert play(StuckAtClipThreshold, *slowly(samples=9)) == []


def whole(
    *, norm=4.0, first=4.4, last=4.1, momentum=0.0, count=40, optimizer=SGD, how="finished", threshold=0.25, bend=1.0
):
    """Samples of a run of 400 steps with a threshold of 0.25, and its end."""
    for number in range(count):
        index, loss = 1 + 10 * number, first + (last - first) * (number / count) ** bend
        clips = (ClipFacts(threshold=threshold, norm=norm, where=Where("train.py", 20)),)
        layers = (LayerNumbers(update_ratio=5e-4, momentum=momentum),)
        yield NumbersSampled(
            step=index, index=index, layers=layers, optimizer=optimizer, clips=clips, loss=loss, first_loss=first
        )
    losses = tuple(first + (last - first) * (step / 400) ** bend for step in range(400))
    yield LossesRead(optimizer=optimizer, losses=losses, rates=(0.1,) * 400)
    yield RunEnded(step=400, how=how, loss=last, first_loss=first)


def test_fires_at_the_end_of_a_run_that_was_clipped_all_along():
    (finding,) = play(StuckAtClipThreshold, *whole())
    assert finding.message == (
        "all 40 gradient norms seen were clipped to 0.25: they are 4 to 4, median 16 × the threshold"
    )


def test_fires_where_momentum_makes_up_for_some_of_a_tiny_threshold_and_the_loss_gains_speed():
    held = {"momentum": 0.9, "threshold": 0.01, "norm": 0.16}
    (finding,) = play(StuckAtClipThreshold, *whole(bend=1.5, **held))
    assert "median 16 × the threshold" in finding.message
    assert play(StuckAtClipThreshold, *whole(bend=0.5, **held)) == []
    assert play(StuckAtClipThreshold, *whole(bend=1.5, **(held | {"norm": 0.05}))) == []


def test_near_miss_clipped_all_along_and_well():
    assert play(StuckAtClipThreshold, *whole(last=3.0)) == []
    assert play(StuckAtClipThreshold, *whole(norm=1.0)) == []
    assert play(StuckAtClipThreshold, *whole(momentum=0.9)) == []
    assert play(StuckAtClipThreshold, *whole(optimizer=ADAM)) == []
    assert play(StuckAtClipThreshold, *whole(count=20)) == []
    assert play(StuckAtClipThreshold, *whole(how="interrupted")) == []


def by_hand(*norms, threshold=1e-3):
    for event in steps(*norms, threshold=threshold):
        clips = event.clips
        yield (
            OptimizerStepped(
                step=event.step, index=event.index, optimizer=SGD, rescaled_by_hand=True, clip_by_hand=clips[0]
            )
            if isinstance(event, OptimizerStepped)
            else event
        )


def test_fires_on_a_tiny_threshold_of_a_clipping_by_hand():
    (finding,) = play(StuckAtClipThreshold, *by_hand(0.8, 0.7, 0.75, 0.6))
    assert finding.message.startswith("all 4 gradient norms seen were clipped to 0.001")


def test_near_miss_clipping_by_hand_at_an_ordinary_threshold():
    assert play(StuckAtClipThreshold, *by_hand(2.0, 3.0, 2.5, 2.2, threshold=1.0)) == []
