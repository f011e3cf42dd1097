import math
from dataclasses import replace

import pytest

from flatline.events import Curve, CurvesUpdated, OptimizerFacts, ScheduleObserved, Where
from flatline.rules.optimization.scheduler_out_of_step import SchedulerOutOfStep
from flatline.testing import lint, play

HEALTHY = ScheduleObserved(
    step=100, where=Where("train.py", 30), built_where=Where("train.py", 12), name="StepLR", calls=100,
    optimizer_steps=100, backwards=100, gamma=0.1, period=1000, epoch_length=50, epochs=2, first_lr=0.1, peak_lr=0.1,
    lr=0.1,
)  # fmt: skip
COSINE = replace(HEALTHY, name="CosineAnnealingLR", gamma=None, period=None, horizon=100, lr=0.0)


def found(event):
    (finding,) = play(SchedulerOutOfStep, event)
    assert finding.severity == "warning"
    assert finding.where in (Where("train.py", 30), Where("train.py", 12))
    return finding


def quiet(event, **facts):
    return play(SchedulerOutOfStep, replace(event, **facts)) == []


def test_near_miss_one_step_per_batch():
    assert quiet(HEALTHY)
    assert quiet(COSINE, ended="finished")


def test_near_miss_another_optimizer_took_over():
    outrun = replace(HEALTHY, calls=280, optimizer_steps=70, backwards=280, epochs=0)
    assert play(SchedulerOutOfStep, outrun)
    assert quiet(outrun, trainer=OptimizerFacts(key=2, steps=560), trainer_lr=0.5)


# --------------------------------------------------------------------------- before the first step


def test_fires_before_the_first_optimizer_step():
    finding = found(replace(HEALTHY, calls_before_first_step=1))
    assert finding.key == "order"
    assert finding.where == Where("train.py", 30)
    assert finding.message == "StepLR.step() ran 1 × before the first optimizer.step()"
    assert finding.fix == "call optimizer.step() first, then scheduler.step()"
    assert finding.evidence == {"before": 1}


def test_near_miss_first_step_skipped_by_the_scaler():
    assert quiet(HEALTHY, calls_before_first_step=1, skipped_steps=1)


def test_near_miss_fast_forwarded_before_any_training():
    assert quiet(HEALTHY, calls=7, calls_before_first_step=7, optimizer_steps=0, backwards=0)


def test_near_miss_moved_on_to_where_the_run_was_interrupted():
    assert quiet(COSINE, calls=3, calls_before_first_step=3, optimizer_steps=3, horizon=8)


# --------------------------------------------------------------------------- per micro-batch


def test_fires_per_micro_batch():
    finding = found(replace(HEALTHY, calls=400, backwards=400))
    assert finding.key == "pace"
    assert finding.message == "StepLR steps 4 × for every optimizer step: once per micro-batch"
    assert finding.cause == "with 4 backwards per step the schedule runs 4 times too fast"


def test_near_miss_accumulation_with_one_call_per_step():
    assert quiet(HEALTHY, backwards=400)


def test_near_miss_two_losses_with_one_backward_each():
    assert quiet(HEALTHY, backwards=200)


def test_near_miss_twice_as_many_calls_without_accumulation():
    assert quiet(HEALTHY, calls=200)


def test_near_miss_two_steps_prove_no_pace():
    assert quiet(HEALTHY, calls=8, optimizer_steps=2, backwards=8)


def test_near_miss_most_steps_skipped_by_the_scaler():
    assert quiet(HEALTHY, optimizer_steps=40, skipped_steps=60)


def test_skipped_steps_had_their_backwards_too():
    assert found(replace(HEALTHY, calls=400, backwards=400, optimizer_steps=60, skipped_steps=40)).key == "pace"


# --------------------------------------------------------------------------- sized in epochs, stepped per batch


def test_fires_on_a_horizon_of_epochs():
    finding = found(replace(COSINE, calls=13, optimizer_steps=13, horizon=10, lr=0.09))
    assert finding.key == "epochs"
    assert (
        finding.message == "CosineAnnealingLR steps after every batch, and its 10 steps are over after 20% of an epoch"
    )
    assert finding.cause == "its sizes are counted in epochs of 50 batches, but it advances once per batch"
    assert finding.fix.startswith("move scheduler.step() out of the batch loop")


def test_fires_on_a_linear_decay_that_is_over():
    assert found(replace(COSINE, name="PolynomialLR", horizon=10)).key == "epochs"


def test_fires_on_decays_within_the_first_epoch():
    finding = found(replace(HEALTHY, calls=60, optimizer_steps=60, period=10))
    assert finding.key == "epochs"
    assert finding.message == (
        "StepLR steps after every batch, and the rate is 1e-05 of its first value at the end of the first epoch"
    )
    early = found(replace(HEALTHY, calls=40, optimizer_steps=40, period=10))
    assert early.message.endswith("the rate is 0.0001 of its first value after 40 steps")
    assert (finding.evidence["gamma"], finding.evidence["period"]) == (0.1, 10)


def test_fires_on_decays_without_a_data_loader():
    finding = found(replace(HEALTHY, name="ExponentialLR", gamma=0.9, period=1, epoch_length=None))
    assert finding.message.endswith("the rate is 3e-05 of its first value after 100 steps")


def test_near_miss_once_per_epoch():
    assert quiet(HEALTHY, calls=2, period=10)
    assert quiet(COSINE, calls=2, horizon=10)


def test_near_miss_fewer_steps_than_an_epoch_has():
    assert quiet(COSINE, calls=20, optimizer_steps=20, horizon=20, lr=0.0)
    assert quiet(COSINE, name="PolynomialLR", calls=21, optimizer_steps=21, horizon=20, lr=0.0, ended="finished")
    assert quiet(HEALTHY, calls=25, optimizer_steps=25, period=10, ended="finished")


def test_near_miss_slow_decay_per_batch():
    assert quiet(HEALTHY, name="ExponentialLR", gamma=0.999, period=1)


def test_near_miss_warm_up_per_batch():
    warm = {"name": "LinearLR", "gamma": None, "period": None, "horizon": 20, "first_lr": 0.01}
    assert quiet(HEALTHY, **warm, calls=10, optimizer_steps=10, lr=0.05, peak_lr=0.05)
    assert quiet(HEALTHY, **warm, calls=40, optimizer_steps=40)


def test_near_miss_one_cycle_per_batch():
    assert quiet(COSINE, name="OneCycleLR", ended="finished")
    assert quiet(COSINE, name="OneCycleLR", calls=10, optimizer_steps=10, horizon=40)


@pytest.mark.parametrize("name", ["CosineAnnealingWarmRestarts", "CyclicLR", "ReduceLROnPlateau"])
def test_near_miss_restarts_and_plateaus(name):
    assert quiet(COSINE, name=name, horizon=10, steps_at_floor=60, ended="finished")


# --------------------------------------------------------------------------- at the end


def test_fires_on_a_schedule_that_never_stepped():
    finding = found(replace(HEALTHY, calls=0, ended="finished"))
    assert finding.key == "never"
    assert finding.where == Where("train.py", 12)
    assert finding.message == "StepLR was built and never stepped in 100 optimizer steps: the rate stayed at 0.1"


def test_near_miss_not_stepped_in_less_than_an_epoch():
    assert quiet(HEALTHY, calls=0, epochs=0, epoch_length=500, ended="finished")


def test_near_miss_applied_by_hand():
    assert quiet(HEALTHY, calls=0, lr=0.03, ended="finished")


def test_near_miss_warm_up_chained_to_a_decay():
    warm = {"name": "LinearLR", "gamma": None, "period": None, "horizon": 20, "first_lr": 0.01, "peak_lr": 0.08}
    assert quiet(HEALTHY, **warm, calls=40, optimizer_steps=40, lr=0.06, others_stepped=True)


def test_near_miss_not_stepped_yet():
    assert quiet(HEALTHY, calls=0)
    assert quiet(HEALTHY, calls=0, ended="interrupted")


def test_near_miss_another_one_steps():
    assert quiet(HEALTHY, calls=0, ended="finished", others_stepped=True)


def test_near_miss_averaging_that_did_not_start():
    assert quiet(HEALTHY, name="SWALR", calls=0, ended="finished")


def test_fires_on_a_schedule_in_steps_moved_per_epoch():
    finding = found(replace(COSINE, calls=2, lr=0.0999, ended="finished"))
    assert finding.key == "slow"
    assert finding.message == (
        "CosineAnnealingLR was sized for 100 steps and made 2, while the optimizer made 100: the rate only got from 0.1 "
        "to 0.0999"
    )


WARMED = replace(
    COSINE, name="LambdaLR", spelled="total=1500", horizon=1500, calls=12, position=12, optimizer_steps=1500, epochs=12,
    backwards=1500, first_lr=0.0, peak_lr=1.6e-4, lr=1.6e-4, ended="finished",
)  # fmt: skip


def test_fires_on_a_function_that_is_made_for_steps():
    finding = found(WARMED)
    assert finding.key == "slow"
    assert finding.message == (
        "LambdaLR was sized for 1500 steps (total=1500 of its function) and made 12, while the optimizer made 1500: the rate "
        "only got from 0 to 0.00016"
    )
    assert "O7" in finding.consequences
    assert " in 1500 batches:" in found(replace(WARMED, optimizer_steps=375)).message


def test_near_miss_a_function_that_is_made_for_steps():
    assert quiet(WARMED, position=1500)  # it was told the step
    assert quiet(WARMED, calls=375, position=375, optimizer_steps=375)  # batches were counted: slow, but at every step
    assert quiet(WARMED, horizon=15000)


def test_near_miss_sized_in_epochs():
    assert quiet(COSINE, calls=2, horizon=2, ended="finished")


def test_near_miss_stopped_early():
    assert quiet(COSINE, horizon=1000, ended="finished")
    assert quiet(COSINE, calls=2, ended="crashed")


def test_fires_on_a_schedule_that_was_over_early():
    finding = found(replace(COSINE, horizon=60, calls=100, lr=0.0, steps_at_floor=40, ended="finished"))
    assert finding.key == "early"
    assert finding.message == ("the rate was under a thousandth of its peak 0.1 for the last 40 of 100 steps (40%)")
    assert finding.cause == "CosineAnnealingLR had run its course long before the run was over"


def test_near_miss_the_tail_of_a_decay():
    assert quiet(COSINE, steps_at_floor=20, ended="finished")
    assert quiet(COSINE, calls=20, optimizer_steps=20, horizon=60, steps_at_floor=9, ended="finished")


def test_near_miss_at_the_floor_while_it_runs():
    assert quiet(COSINE, horizon=60, steps_at_floor=40)


def test_is_reported_once_with_its_count():
    (finding,) = play(SchedulerOutOfStep, *[replace(HEALTHY, step=n, calls=400, backwards=400) for n in (3, 4, 5)])
    assert (finding.step, finding.count) == (3, 3)


def logged(name, role, values):
    steps = tuple(float(i + 1) for i in range(len(values)))
    return Curve(name=name, role=role, steps=steps, values=tuple(values), count=len(values))


def cosine(steps, horizon, peak=1e-3):
    return [peak * 0.5 * (1 + math.cos(math.pi * min(i / horizon, 1))) for i in range(steps)]


def test_fires_on_a_logged_rate_that_is_over_early():
    (finding,) = play(SchedulerOutOfStep, CurvesUpdated(curves=(logged("lr", "learning_rate", cosine(200, 100)),)))
    assert (finding.severity, finding.key) == ("warning", "early")
    assert finding.message == (
        "lr fell from 0.001 to its floor of 0 by step 101, and stayed there for the last 50% of the run, until step 200"
    )


def test_a_logged_leap_without_a_warm_up_is_a_hint():
    rate = logged("lr", "learning_rate", cosine(400, 400))
    loss = logged("loss", "train_loss", [2.3, 2.31, 3.5, 6.0, 7.5, 6.0, 4.0, 3.0, *[2.2 * 0.99**i for i in range(392)]])
    (finding,) = play(SchedulerOutOfStep, CurvesUpdated(curves=(rate, loss)))
    assert finding.severity == "hint"
    assert finding.message == "lr begins at its peak of 0.001, and loss leapt from 2.3 to 7.5 at step 5 before it fell"


def test_near_miss_logged_rates_that_fit_the_run():
    stairs = [0.1] * 60 + [0.01] * 60 + [0.001] * 60 + [0.00005] * 120
    rounded = [round(0.001 * 0.97**i, 4) for i in range(300)]
    floor = [max(value, 1e-4) for value in cosine(300, 100)]
    for rates in (cosine(200, 200), cosine(200, 150), stairs, rounded, floor, [1e-3] * 200):
        assert play(SchedulerOutOfStep, CurvesUpdated(curves=(logged("lr", "learning_rate", rates),))) == []


def test_near_miss_logged_warm_up_or_no_leap():
    warm = logged("lr", "learning_rate", [min(1.0, i / 40) * value for i, value in enumerate(cosine(400, 400))])
    leap = logged("loss", "train_loss", [2.3, 2.31, 3.5, 6.0, 7.5, 6.0, 4.0, 3.0, *[2.2 * 0.99**i for i in range(392)]])
    calm = logged("loss", "train_loss", [2.3 * 0.99**i for i in range(400)])
    assert play(SchedulerOutOfStep, CurvesUpdated(curves=(warm, leap))) == []
    assert play(SchedulerOutOfStep, CurvesUpdated(curves=(logged("lr", "learning_rate", cosine(400, 400)), calm))) == []


def test_near_miss_logged_and_the_run_goes_on():
    rate = logged("lr", "learning_rate", cosine(200, 100))
    assert play(SchedulerOutOfStep, CurvesUpdated(curves=(rate,), ended=False)) == []


SCHEDULED = """
import torch
from torch.optim.lr_scheduler import StepLR, CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau
opt = torch.optim.SGD(net.parameters(), 0.1)
sched = {}
for epoch in range(epochs):
    {}
"""
STEP = "for x in data: opt.zero_grad(); net(x).backward(); opt.step()"


@pytest.mark.parametrize(
    ("made", "lines", "said"),
    [
        ("StepLR(opt, 3)", ("sched.step()", STEP), "before the optimizer's step"),
        ("StepLR(opt, 3)", (STEP, "sched.step"), "without parentheses"),
        ("StepLR(opt, 3)", (STEP, "print(epoch)"), "never used"),
        ("CosineAnnealingLR(opt, T_max=epochs)", (f"{STEP}; sched.step()",), "sized in epochs"),
        ("OneCycleLR(opt, 1.0, epochs=epochs, steps_per_epoch=len(data))", (STEP, "sched.step()"), "sized in batches"),
    ],
)
def test_source_schedule(made, lines, said):
    """Seen as a SourceParsed."""
    (finding,) = lint(SchedulerOutOfStep, SCHEDULED.format(made, "\n    ".join(lines)))
    assert said in finding.message


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        ("StepLR(opt, 3)", (STEP, "sched.step()")),
        ("StepLR(opt, 3)", ("if epoch > 0: sched.step()", STEP)),
        ("StepLR(opt, 3)", ("sched.step(epoch)", STEP)),
        ("ReduceLROnPlateau(opt)", ("sched.step(loss)", STEP)),
        ("StepLR(opt, 3)", (STEP, "callbacks(sched)")),
        ("CosineAnnealingLR(opt, T_max=epochs)", (STEP, "sched.step()")),
        ("OneCycleLR(opt, 1.0, epochs * len(data))", (f"{STEP}; sched.step()",)),
    ],
)
def test_near_miss_source_schedule(made, lines):
    assert lint(SchedulerOutOfStep, SCHEDULED.format(made, "\n    ".join(lines))) == []


@pytest.mark.parametrize(
    "rates",
    [
        [max(0.0, 1e-3 * (1 - i / 6)) for i in range(60)],
        [1e-3 * (1 + math.cos(math.pi * min(1.0, i / 5))) / 2 for i in range(30)],
        [1e-2 * 0.3**i for i in range(80)],
    ],
)
def test_fires_on_a_logged_rate_of_few_grades_that_ends_at_nothing(rates):
    (finding,) = play(SchedulerOutOfStep, CurvesUpdated(curves=(logged("lr", "learning_rate", rates),)))
    assert finding.key == "early"


@pytest.mark.parametrize(
    "rates",
    [
        [round(0.1 * 0.1 ** (i // 10), 2) for i in range(60)],  # stairs, printed with two digits
        [round(1e-3 * 0.9**i, 4) for i in range(60)],  # divided again and again, printed with four
        [1e-3 * 0.1 ** min(3, i // 10) for i in range(60)],
        [0.1 if i < 20 else 0.0 for i in range(60)],  # nobody knows how it came there
    ],
)
def test_near_miss_logged_stairs_and_rounded_rates(rates):
    assert play(SchedulerOutOfStep, CurvesUpdated(curves=(logged("lr", "learning_rate", rates),))) == []


def test_near_miss_a_loss_that_goes_on_falling_at_a_rate_of_0():
    rate = logged("lr", "learning_rate", [max(0.0, 1e-3 * (1 - i / 6)) for i in range(60)])
    loss = logged("loss", "train_loss", [2.3 * 0.97**i for i in range(60)])
    assert play(SchedulerOutOfStep, CurvesUpdated(curves=(rate, loss))) == []


EPOCHS = SCHEDULED.replace("range(epochs)", "range(1, 90 + 1)").replace(
    "StepLR,", "StepLR, ExponentialLR, MultiStepLR,"
)
FAST = f"{STEP}; sched.step()"


@pytest.mark.parametrize(
    "made",
    [
        "StepLR(opt, step_size=30)",
        "MultiStepLR(opt, [30, 60])",
        "ExponentialLR(opt, 0.95)",
        "CosineAnnealingLR(opt, 90)",
    ],
)
def test_source_epochs_stepped_per_batch(made):
    (finding,) = lint(SchedulerOutOfStep, EPOCHS.format(made, FAST))
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "made",
    [
        "StepLR(opt, step_size=3000)",
        "StepLR(opt, step_size=30, gamma=0.999)",
        "StepLR(opt, step_size=size)",
        "MultiStepLR(opt, [3000, 6000])",
        "ExponentialLR(opt, 0.9999)",
        "CosineAnnealingLR(opt, 9000)",
    ],
)
def test_near_miss_source_batches_stepped_per_batch(made):
    assert lint(SchedulerOutOfStep, EPOCHS.format(made, FAST)) == []


@pytest.mark.parametrize("line", [FAST.replace("in data", "in range(3)"), f"{STEP}\n    if epoch > 3: sched.step()"])
def test_near_miss_source_not_every_batch(line):
    assert lint(SchedulerOutOfStep, EPOCHS.format("StepLR(opt, 30)", line)) == []


def test_source_numbers_are_followed():
    code = """
    import argparse, torch
    parser = argparse.ArgumentParser()
    parser.add_argument("--n-epochs", default=60, type=int)
    args = parser.parse_args()
    def fit(data, size=20):
        opt = torch.optim.SGD(net.parameters(), 0.1)
        sched = torch.optim.lr_scheduler.StepLR(opt, size)
        for epoch in range(args.n_epochs):
            for x in data:
                opt.zero_grad(); net(x).backward(); opt.step()
                sched.step()
    fit(load())
    """
    assert len(lint(SchedulerOutOfStep, code)) == 1
    assert lint(SchedulerOutOfStep, code.replace("fit(load())", "fit(load(), 2000)")) == []


WHOLE = "loader = torch.utils.data.DataLoader(rows, batch_size={})\nfor epoch"


@pytest.mark.parametrize(("size", "found"), [("32", 1), ("len(others)", 1), ("len(rows)", 0)])
def test_source_one_batch_is_an_epoch(size, found):
    """Full-batch training: a step per batch is a step per epoch."""
    lines = f"{STEP.replace('in data', 'in loader')}; sched.step()"
    code = SCHEDULED.replace("for epoch", WHOLE.format(size))
    assert len(lint(SchedulerOutOfStep, code.format("CosineAnnealingLR(opt, T_max=epochs)", lines))) == found


# --------------------------------------------------------------------------- milestones

STAIRS = replace(
    HEALTHY, name="MultiStepLR", calls=800, optimizer_steps=800, backwards=800, epochs=15, milestone=14, gamma=0.1, period=None,
    lr=0.001, ended="finished",
)  # fmt: skip


def test_fires_on_milestones_in_epochs_that_are_stepped_per_batch():
    assert found(STAIRS).message == (
        "MultiStepLR steps after every batch, and its last milestone, 14, was passed in the first of 16 epochs"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"milestone": 30},  # no epoch of this run
        {"milestone": 2},  # a warm-up of a step or two
        {"epochs": 2, "calls": 140, "optimizer_steps": 140},
        {"calls": 16},  # once an epoch
        {"lr": 0.1},  # the rate went up
        {"milestone": None},
        {"ended": ""},
    ],
)
def test_near_miss_of_milestones(changed):
    assert quiet(STAIRS, **changed)


# --------------------------------------------------------------------------- a length in samples

SAMPLES = replace(
    HEALTHY, name="OneCycleLR", calls=192, optimizer_steps=192, backwards=192, epoch_length=32, horizon=12288, samples=12288,
    gamma=None, period=None, first_lr=0.001, peak_lr=0.01, lr=0.01, ended="finished",
)  # fmt: skip


def test_fires_on_a_length_in_samples():
    finding = found(SAMPLES)
    assert finding.key == "samples"
    assert finding.message == (
        "OneCycleLR was sized for 12288 steps, exactly the number of samples of this run, and the run was over after 192: "
        "the rate only got from 0.001 to 0.01"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"samples": 12224},  # a run of another length
        {"samples": None},  # that is not known
        {"lr": 0.004},  # its function multiplies its steps with the batch size
        {"position": 12288},  # told the sample
        {"calls": 12288},  # stepped for each sample
        {"calls": 6},  # once an epoch
        {"calls": 12, "optimizer_steps": 12, "horizon": 768, "samples": 768},
        {"horizon": 384, "samples": 384},  # two samples a batch
        {"others_stepped": True},
        {"ended": "interrupted"},
        {"ended": ""},
    ],
)
def test_near_miss_of_a_length_in_samples(changed):
    assert not any(finding.key == "samples" for finding in play(SchedulerOutOfStep, replace(SAMPLES, **changed)))
