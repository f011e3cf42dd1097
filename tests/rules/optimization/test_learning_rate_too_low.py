from dataclasses import replace

import pytest

from flatline.events import (
    BackwardFacts,
    Curve,
    CurvesUpdated,
    FirstCrossEntropy,
    LayerNumbers,
    LossesRead,
    NumbersSampled,
    OptimizerFacts,
    OptimizerStepped,
    PairingProbed,
    ParameterFacts,
    ParametersAudited,
    RatesSwept,
    RunEnded,
    Where,
)
from flatline.rules.optimization.learning_rate_too_low import LearningRateTooLow
from flatline.testing import play

ADAM = OptimizerFacts(name="Adam", adaptive=True, where=Where("train.py", 17))
SGD = OptimizerFacts(name="SGD", where=Where("train.py", 17))
INDICES = (1, 2, 3, 4, 5, 8, 12)


def samples(*, update=2e-7, gradient=1e-3, lr=1e-8, peak=1e-8, loss=2.31, weight=0.05, indices=INDICES):
    rates = lr if isinstance(lr, tuple) else (lr,) * len(indices)
    layer = LayerNumbers(name="fc.weight", update_ratio=update, gradient_rms=gradient, weight_rms=weight)
    return [
        NumbersSampled(
            step=i, index=i, lr=rate, peak_lr=peak, layers=(layer,) * 3, loss=loss, first_loss=2.32, optimizer=ADAM
        )
        for i, rate in zip(indices, rates, strict=True)
    ]


def test_fires_on_updates_lost_to_rounding():
    (finding,) = play(LearningRateTooLow, *samples())
    assert finding.severity == "warning"
    assert finding.step == 12
    assert finding.where == Where("train.py", 17)
    assert finding.message == (
        "at lr=1e-08 a step of Adam changes the weights by 2.0e-07 of their size (healthy: about 1e-3), over 7 sampled "
        "steps; the loss went from 2.32 to 2.31 in 12 steps"
    )
    assert "float32 rounding" in finding.cause
    assert finding.fix == "raise lr from 1e-08 to about 1e-3 for Adam, or find it with a learning-rate range test"


def test_fires_on_a_rate_of_zero():
    (finding,) = play(LearningRateTooLow, *samples(update=0.0, lr=0.0, peak=0.0))
    assert "a rate of 0 moves nothing" in finding.cause


def test_near_miss_too_early():
    assert play(LearningRateTooLow, *samples(indices=INDICES[:-1])) == []


def test_near_miss_one_step_was_large_enough():
    assert play(LearningRateTooLow, *samples(update=1e-3)[:1], *samples()[1:]) == []


def test_near_miss_warm_up():
    assert play(LearningRateTooLow, *samples(lr=(0.0, 1e-9, 2e-9, 3e-9, 4e-9, 7e-9, 1.1e-8), peak=1.1e-8)) == []


def warmed(rates):
    """AdamW with rates of 1e-6, whose loss stands still."""
    adam = OptimizerFacts(name="AdamW", adaptive=True)
    for number, rate in enumerate(rates, 1):
        layer = LayerNumbers(weight_rms=0.1, gradient_rms=1e-2, update_ratio=10 * rate)
        yield NumbersSampled(
            step=number,
            index=number,
            lr=rate,
            peak_lr=1.2e-6,
            optimizer=adam,
            layers=(layer,),
            loss=3.2,
            first_loss=3.2,
        )


def test_fires_when_the_warm_up_is_over():
    assert play(LearningRateTooLow, *warmed([min(1.2e-6, 6e-8 * i) for i in range(1, 121)]))


def test_near_miss_a_warm_up_that_goes_on():
    assert play(LearningRateTooLow, *warmed([1e-8 * i for i in range(1, 121)])) == []


def test_near_miss_end_of_a_decay():
    assert play(LearningRateTooLow, *samples(peak=1e-3)) == []


def test_near_miss_falling_loss():
    assert play(LearningRateTooLow, *samples(loss=2.0)) == []


def test_near_miss_gradients_are_the_defect():
    assert play(LearningRateTooLow, *samples(gradient=1e-9)) == []
    assert play(LearningRateTooLow, *samples(gradient=1e-7)) == []
    assert play(LearningRateTooLow, *samples(gradient=0.0)) == []


GUESSES = FirstCrossEntropy(classes=10, value=2.32)


def crawling(*, turn=0.999, optimizer=ADAM, update=4e-5, loss=2.31, last=220):
    found = samples(update=update, lr=3e-6, peak=3e-6, loss=loss, indices=tuple(range(1, last, 5)))
    return [replace(each, turn=turn, optimizer=optimizer) for each in found]


def test_fires_on_small_steps_in_a_straight_line():
    (finding,) = play(LearningRateTooLow, GUESSES, *crawling())
    assert finding.step >= 200
    assert "a step of Adam changes the weights by 4.0e-05 of their size" in finding.message
    assert "step by step hardly gets anywhere" in finding.cause


def test_near_miss_small_steps_that_turn():
    assert play(LearningRateTooLow, GUESSES, *crawling(turn=0.96)) == []
    assert play(LearningRateTooLow, GUESSES, *crawling(turn=None)) == []


def test_near_miss_small_steps_of_a_model_that_knows_something():
    assert play(LearningRateTooLow, *crawling()) == []
    assert play(LearningRateTooLow, FirstCrossEntropy(classes=10, value=0.9), *crawling()) == []


def test_near_miss_small_steps_that_add_up_or_are_few():
    assert play(LearningRateTooLow, GUESSES, *crawling(loss=2.2)) == []
    assert play(LearningRateTooLow, GUESSES, *crawling(last=190)) == []
    assert play(LearningRateTooLow, GUESSES, *crawling(update=2e-4)) == []
    assert play(LearningRateTooLow, GUESSES, *crawling(optimizer=replace(ADAM, adaptive=False))) == []


LINE = PairingProbed(step=90, rows=800, by_line=0.96, by_neighbours=0.9, surprise=1.0, entropy=1.0, classes=0)
MEANS = PairingProbed(step=90, rows=800, by_means=0.62, commonest=0.3, surprise=1.8, entropy=1.8, classes=6)


def lagging(probe, **options):
    first, *others = crawling(**{"turn": None, "update": 1.2e-4, **options})
    return play(LearningRateTooLow, first, *others[:20], probe, *others[20:])


def test_fires_on_small_steps_where_a_simple_rule_tells_the_targets():
    (finding,) = lagging(LINE)
    assert finding.message.endswith("where a linear fit to the same batches correlates 0.96 with held-out targets")
    (finding,) = lagging(MEANS)
    assert (
        "the nearest class mean of the same batches tells 62% of held-out labels (the commonest class: 30%)"
        in finding.message
    )


def test_near_miss_small_steps_where_no_simple_rule_tells_the_targets():
    assert lagging(replace(LINE, by_line=0.5)) == []
    assert lagging(replace(MEANS, by_means=0.4)) == []


def test_near_miss_steps_that_lag_less_or_only_for_now():
    assert lagging(LINE, update=2.5e-4) == []
    assert lagging(LINE, loss=2.0) == []
    assert lagging(LINE, last=190) == []
    assert lagging(LINE, optimizer=replace(ADAM, adaptive=False)) == []


@pytest.mark.parametrize(("update", "gradient", "told"), [(1.5e-5, 1.0, 1), (4e-5, 1.0, 0), (1.5e-5, 0.01, 0)])
def test_steps_of_sgd_that_make_nothing_of_large_gradients(update, gradient, told):
    seen = [
        replace(each, layers=tuple(replace(layer, gradient_rms=gradient * layer.gradient_rms) for layer in each.layers))
        for each in crawling(optimizer=PLAIN, update=update, turn=None)
    ]
    assert len(play(LearningRateTooLow, seen[0], LINE, *seen[1:])) == told


PLAIN = replace(ADAM, name="SGD", adaptive=False)


def whole(*, how="finished", step=240, last=2.2, guesses=GUESSES, gradient=1.0, **options):
    """A run of SGD with large gradients, to its end."""
    seen = [
        replace(each, layers=tuple(replace(layer, gradient_rms=gradient * layer.gradient_rms) for layer in each.layers))
        for each in crawling(optimizer=PLAIN, **{"update": 1.5e-5, "turn": None, **options})
    ]
    return play(LearningRateTooLow, guesses, *seen, RunEnded(step=step, how=how, loss=last, first_loss=2.32))


def test_fires_on_a_run_that_leaves_nothing_of_large_gradients():
    (finding,) = whole()
    assert "changes the weights by 1.5e-05 of their size" in finding.message
    assert finding.cause.endswith("but the whole run moves the weights by 0.36% of their size")
    assert "about 1e-2 for SGD" in finding.fix


def test_near_miss_runs_that_move_far_or_learn_or_stop_early():
    assert whole(step=900) == []
    assert whole(last=2.0) == []
    assert whole(how="interrupted") == []
    assert whole(last=None) == []


def test_near_miss_runs_with_small_gradients_or_few_steps_or_of_a_model_that_knows_something():
    assert whole(gradient=0.01) == []
    assert play(LearningRateTooLow, GUESSES, *crawling(optimizer=PLAIN, update=1.5e-5, turn=None)) == []
    assert whole(guesses=FirstCrossEntropy(classes=10, value=0.9)) == []


def steady(*, update=1.3e-4, turn=0.995, how="finished", optimizer=ADAM, loaded=False, last=7.0, slows=1.0, rate=8e-6):
    """A student at eight millionths: the loss falls in a straight line from 9.9, all steps go one way, and the run is over."""
    yield ParametersAudited(parameters=(ParameterFacts(optimizers=(optimizer.key,), loaded=loaded),))
    layer = LayerNumbers(weight_rms=0.05, gradient_rms=1e-2, update_ratio=update)
    for i in range(1, 1001, 20):
        share = min(1.0, i / 1000 / slows)
        loss = 9.9 - (9.9 - last) * share
        yield NumbersSampled(
            step=i, index=i, lr=rate, layers=(layer,) * 3, loss=loss, first_loss=9.9, turn=turn, optimizer=optimizer
        )
        yield read(range(i, i + 20), [loss] * 20, [rate] * 20, optimizer)
    yield RunEnded(step=1000, how=how, loss=last, first_loss=9.9)


def read(steps, losses, rates, optimizer=ADAM):
    return LossesRead(optimizer=optimizer, steps=tuple(steps), losses=tuple(losses), rates=tuple(rates))


def test_fires_where_the_run_ends_in_the_middle_of_a_straight_fall():
    (finding,) = play(LearningRateTooLow, *steady())
    assert finding.cause.endswith(
        "but each step goes where the last one went, and the run ends while the loss falls as fast as in its middle"
    )
    assert finding.message.startswith("at lr=8e-06 a step of Adam changes the weights by 1.3e-04 of their size")


def test_fires_where_all_steps_of_plain_sgd_are_one_percent():
    (finding,) = play(LearningRateTooLow, *steady(optimizer=PLAIN, update=8e-6, turn=None, slows=0.7))
    assert finding.cause.endswith(
        "but all steps together move the weights by 0.8% of their size, and the loss still falls"
    )


def test_fires_where_all_steps_of_adam_are_two_percent_from_guessing():
    guesses = FirstCrossEntropy(classes=20_000, value=9.9)
    events = [*steady(update=2e-5, turn=0.97, last=9.0)]
    (finding,) = play(LearningRateTooLow, guesses, *events)
    assert finding.cause.endswith(
        "but all steps together move the weights by 2.0% of their size, and the loss still falls"
    )
    assert play(LearningRateTooLow, *events) == []  # it knew something
    assert play(LearningRateTooLow, guesses, *steady(update=2e-5, turn=0.97, last=9.0, slows=0.6)) == []
    assert play(LearningRateTooLow, guesses, *steady(update=4e-5, turn=0.97, last=9.0)) == []


def test_fires_where_all_steps_of_sgd_at_a_low_rate_lead_a_little_away_from_guessing():
    guesses = FirstCrossEntropy(classes=20_000, value=9.9)
    away = {"optimizer": PLAIN, "update": 2e-5, "turn": None, "last": 9.2, "rate": 1e-5}
    (finding,) = play(LearningRateTooLow, guesses, *steady(**away))
    assert finding.cause.endswith(
        "but all steps together move the weights by 2.0% of their size, and the loss still falls"
    )
    assert play(LearningRateTooLow, *steady(**away)) == []  # it knew something
    for changed in ({"rate": 1e-3}, {"last": 8.0}, {"update": 4e-5}, {"slows": 0.6}, {"loaded": True}):
        assert play(LearningRateTooLow, guesses, *steady(**{**away, **changed})) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"update": 2e-5, "slows": 0.7},  # 2 % of their size
        {"update": 8e-6, "slows": 0.3},  # what is left is noise
        {"update": 8e-6, "loaded": True},
        {"update": 8e-6, "last": 5.0},
    ],
)
def test_near_miss_small_steps_of_plain_sgd(changed):
    assert play(LearningRateTooLow, *steady(**{"optimizer": PLAIN, "turn": None, **changed})) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"update": 9e-4},  # the lowest of the healthy scripts
        {"turn": 0.95},  # noise decides where a step goes
        {"how": "interrupted"},
        {"loaded": True},  # fine-tuning
        {"last": 2.0},  # learns well
        {"last": 9.85},  # stands
        {"slows": 0.3},  # what is left is noise
        {"optimizer": replace(ADAM, adaptive=False)},
        {"turn": None},
    ],
)
def test_near_miss_small_steps_of_a_run_that_goes_on(changed):
    assert play(LearningRateTooLow, *steady(**changed)) == []


def scheduled(rate, update, loss, optimizer=PLAIN, steps=800):
    """A finished run; rate, update and loss are functions of the share of it that is over."""
    for i in range(1, steps + 1):
        at = i / steps
        yield read([i], [loss(at)], [rate(at)], optimizer)
        if i % 20 == 1:
            layer = LayerNumbers(weight_rms=0.05, gradient_rms=1e-2, update_ratio=update(at))
            yield NumbersSampled(
                step=i,
                index=i,
                lr=rate(at),
                layers=(layer,) * 3,
                loss=loss(at),
                first_loss=loss(0),
                optimizer=optimizer,
            )
    yield RunEnded(step=steps, how="finished", loss=loss(1.0), first_loss=loss(0))


def polynomial(end, floor=1e-5):
    return lambda at: max(floor, 0.05 * max(0.0, 1 - at / end) ** 0.9)


def fast_then(slow, end):
    return lambda at: 5e-3 if at < end else slow


def test_fires_where_the_schedule_is_over_long_before_the_run():
    (finding,) = play(
        LearningRateTooLow,
        *scheduled(polynomial(0.03), fast_then(3.5e-6, 0.03), lambda at: 0.66 if at < 0.02 else 0.24),
    )
    assert finding.message == (
        "lr came from 0.048 down to 1e-05 in the first 32 steps, and stays there for the other 96% of the run: those steps move "
        "the weights by 0.27% of their size in all, and the loss goes from 0.24 to 0.24"
    )
    assert finding.fix == "give the schedule the number of optimizer steps of the whole run, about 800"


@pytest.mark.parametrize(
    ("rate", "update", "loss"),
    [
        (polynomial(0.5), fast_then(3.5e-6, 0.5), lambda at: 0.24),  # half of the run was taken
        (polynomial(0.03, floor=2e-3), fast_then(3.5e-6, 0.03), lambda at: 0.24),  # the floor is 4 % of the peak
        (polynomial(0.03), fast_then(2e-4, 0.03), lambda at: 0.24),  # which moves the weights
        (polynomial(0.03), fast_then(3.5e-6, 0.03), lambda at: 0.66 if at < 0.02 else 0.01),  # all was learned by then
        (lambda at: 0.05, fast_then(3.5e-6, 0.03), lambda at: 0.24),  # no schedule
    ],
)
def test_near_miss_a_schedule_that_comes_to_its_floor(rate, update, loss):
    assert play(LearningRateTooLow, *scheduled(rate, update, loss)) == []


def rises(to=1.8e-5):
    return lambda at: to * at


def falls(at):
    return 3.8 - 1.6 * at


def test_fires_where_the_warm_up_outlasts_the_run():
    (finding,) = play(LearningRateTooLow, *scheduled(rises(), lambda at: 7e-5 * at, falls, ADAM))
    assert "the warm-up is longer than the run: the rate rises to the last step" in finding.cause
    assert finding.fix.startswith("let the warm-up take a tenth")


@pytest.mark.parametrize(
    ("rate", "update", "loss"),
    [
        (lambda at: 1.8e-5 * min(1.0, 2 * at), lambda at: 7e-5 * at, falls),  # over after half of the run
        (rises(1.8e-3), lambda at: 7e-3 * at, falls),  # large steps at last
        (lambda at: 1e-8 * 1000**at, lambda at: 7e-5 * at, falls),  # a search for the rate, in powers
        (rises(), lambda at: 7e-5 * at, lambda at: max(2.4, 3.8 - 2.8 * at)),  # the loss has come to stand
    ],
)
def test_near_miss_a_rate_that_rises(rate, update, loss):
    assert play(LearningRateTooLow, *scheduled(rate, update, loss, ADAM)) == []


def inverse_root(at):
    """A warm-up over a half, and a slow decay."""
    return 6e-7 * min(2 * at, (max(at, 0.5) * 2) ** -0.5)


def stood(*, update=3e-6, last=2.29, guesses=GUESSES, gradient=1e-2):
    """Looked at closely while the rate rises, and then now and then: no twenty samples lie behind the warm-up."""
    played = [guesses]
    for i in range(1, 801):
        rate, loss = inverse_root(i / 800), 2.3 + (last - 2.3) * i / 800
        played.append(read([i], [loss], [rate]))
        if i <= 100 or i in (284, 455, 616):
            layer = LayerNumbers(weight_rms=0.05, gradient_rms=gradient, update_ratio=update * rate / 6e-7)
            numbers = {"step": i, "index": i, "lr": rate, "layers": (layer,) * 3, "loss": 2.29, "first_loss": 2.3}
            played.append(NumbersSampled(optimizer=ADAM, **numbers))
    return play(LearningRateTooLow, *played, RunEnded(step=800, how="finished", loss=last, first_loss=2.3))


def test_fires_where_a_warm_up_hides_that_a_whole_run_moves_nothing():
    (finding,) = stood()
    assert finding.step == 616
    assert "changes the weights by 2.3e-06 of their size (healthy: about 1e-3), over 4 sampled steps" in finding.message
    assert finding.cause.endswith("but the whole run moves the weights by 0.16% of their size")


@pytest.mark.parametrize(
    "changed",
    [{"last": 1.0}, {"update": 2e-4}, {"guesses": FirstCrossEntropy(classes=10, value=0.5)}, {"gradient": 1e-5}],
)
def test_near_miss_of_a_run_that_stood(changed):
    assert stood(**changed) == []


def logged(name, role, values):
    steps = tuple(float(i + 1) for i in range(len(values)))
    return Curve(name=name, role=role, steps=steps, values=tuple(values), count=len(values))


FLAT = logged("loss", "train_loss", [2.31 + 0.01 * (i % 3) for i in range(90)])
FALLS = logged("loss", "train_loss", [2.31 * 0.99**i for i in range(90)])
TINY = logged("lr", "learning_rate", [1e-9] * 90)


def test_fires_on_a_logged_rate():
    (finding,) = play(LearningRateTooLow, CurvesUpdated(curves=(FLAT, TINY)))
    assert finding.severity == "warning"
    assert finding.message == "lr is at most 1e-09 at all 90 points, and loss stands at 2.32"


def test_a_logged_rate_of_0_may_be_rounded():
    zero = logged("lr", "learning_rate", [0.0] * 90)
    assert [finding.severity for finding in play(LearningRateTooLow, CurvesUpdated(curves=(FLAT, zero)))] == ["hint"]


def test_near_miss_logged_and_the_loss_falls():
    assert play(LearningRateTooLow, CurvesUpdated(curves=(FALLS, TINY))) == []


def test_near_miss_logged_warm_up_or_an_ordinary_rate():
    rising = logged("lr", "learning_rate", [1e-10 * i for i in range(90)])
    usual = logged("lr", "learning_rate", [1e-6] * 90)
    assert play(LearningRateTooLow, CurvesUpdated(curves=(FLAT, rising))) == []
    assert play(LearningRateTooLow, CurvesUpdated(curves=(FLAT, usual))) == []
    assert play(LearningRateTooLow, CurvesUpdated(curves=(FLAT,))) == []


def test_near_miss_step_by_hand_whose_rate_is_not_known():
    by_hand = OptimizerFacts(name="a step by hand", by_hand=True)
    assert not play(LearningRateTooLow, *(replace(event, optimizer=by_hand) for event in samples()))


def swept(**facts):
    return RatesSwept(
        **{"step": 110, "optimizer": "Adam", "configured": 1e-4, "steepest": 5.9e-3, "factor": 1.9e-3, **facts}
    )


def test_fires_on_a_schedule_that_returns_rates_for_factors():
    (finding,) = play(LearningRateTooLow, swept())
    assert finding.message == (
        "LambdaLR multiplies lr=0.0001 with at most 0.0019 at any step, so the rate of Adam never exceeds 1.9e-07; raised "
        "step by step, the loss falls fastest at 5.9e-03"
    )


def test_near_miss_factors_and_rates_that_fit():
    assert play(LearningRateTooLow, swept(factor=1.0)) == []
    assert play(LearningRateTooLow, swept(factor=None)) == []
    assert play(LearningRateTooLow, swept(configured=1.0)) == []  # the original recipe
    assert play(LearningRateTooLow, swept(factor=0.05, configured=1e-2)) == []


def test_near_miss_an_embedding_under_plain_sgd_of_which_few_rows_move_at_a_step():
    layer = LayerNumbers(weight_rms=0.5, gradient_rms=1e-3, update_ratio=2e-7, kind="Embedding")
    events = [
        NumbersSampled(step=i, index=i, lr=0.02, layers=(layer,), optimizer=PLAIN, loss=1.0, first_loss=1.0)
        for i in range(1, 40)
    ]
    assert play(LearningRateTooLow, *events) == []
    dense = [replace(each, layers=(replace(layer, kind="Linear"),)) for each in events]
    assert len(play(LearningRateTooLow, *dense)) == 1


def test_the_rate_to_try_is_larger_than_the_one_that_is_too_low():
    (finding,) = play(LearningRateTooLow, *[replace(each, lr=0.02, optimizer=PLAIN) for each in samples()])
    assert "raise lr from 0.02 to about 0.2 for SGD" in finding.fix


def divided(*, factor=1 / 3200, backwards=1, update=2e-5, loss=(6.48e-4, 6.4e-4), optimizer=SGD, **more):
    """A whole run of small steps, after backwards of a loss that was multiplied with something."""
    told = (BackwardFacts(where=Where("train.py", 9), factor=factor),) * backwards
    yield OptimizerStepped(index=1, optimizer=optimizer, backwards=told, **more)
    layer = LayerNumbers(weight_rms=0.05, gradient_rms=3e-6, update_ratio=update)
    for index in range(1, 401, 10):
        now = loss[0] + (loss[1] - loss[0]) * index / 400
        yield NumbersSampled(
            step=index,
            index=index,
            lr=0.05,
            peak_lr=0.05,
            layers=(layer,),
            loss=now,
            first_loss=loss[0],
            optimizer=optimizer,
        )
    yield RunEnded(how="finished", step=400, loss=loss[1], first_loss=loss[0])


def test_fires_on_a_loss_that_is_divided_by_the_number_of_samples():
    """OptimizerStepped tells what stands before the loss."""
    (finding,) = play(LearningRateTooLow, *divided())
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 17))
    assert finding.message.endswith("; the loss is divided by 3,200 before backward")
    assert "in effect lr is 1.6e-05" in finding.cause


@pytest.mark.parametrize(
    "change",
    [
        {"factor": 1 / 64, "backwards": 64},  # accumulation
        {"factor": 0.5},
        {"update": 2e-3},  # the rate makes up for it
        {"loss": (6.48e-4, 1e-4)},  # it learns
        {"optimizer": ADAM},
        {"rescaled_by_hand": True},
    ],
)
def test_near_miss_of_a_divided_loss(change):
    assert play(LearningRateTooLow, *divided(**change)) == []


def test_near_miss_groups_with_a_rate_of_their_own():
    """Most matrices are slow by their own rate, which O22 tells."""
    events = []
    for event in samples(lr=1e-3, peak=1e-3):
        slow = tuple(replace(each, learning_rate=1e-7) for each in event.layers)
        usual = replace(event.layers[0], name="out.weight", update_ratio=2e-3, learning_rate=1e-3)
        events.append(replace(event, layers=(*slow, usual)))
    assert play(LearningRateTooLow, *samples(lr=1e-3, peak=1e-3)) != []
    assert play(LearningRateTooLow, *events) == []


def test_near_miss_a_model_that_was_trained_before_stands_at_its_best():
    slowly = samples(update=5e-6, indices=tuple(range(60, 90)))
    assert play(LearningRateTooLow, *slowly)
    parts = (ParameterFacts(name="fc.weight", trained_before=True, optimizers=(ADAM.key,)),)
    assert play(LearningRateTooLow, ParametersAudited(parameters=parts), *slowly) == []


def test_near_miss_one_rate_that_is_enough_for_a_layer_the_gradient_arrives_at():
    fed = LayerNumbers(name="head.weight", weight_rms=0.05, elements=2304, gradient_rms=1e-2, update_ratio=2e-3)
    few = replace(fed, elements=32)
    assert play(LearningRateTooLow, *(replace(event, layers=(*event.layers, fed)) for event in samples())) == []
    assert len(play(LearningRateTooLow, *(replace(event, layers=(*event.layers, few)) for event in samples()))) == 1
