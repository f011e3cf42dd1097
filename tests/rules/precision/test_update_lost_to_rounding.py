from dataclasses import replace

from flatline.events import NumbersSampled, OptimizerFacts, OptimizerStateSampled
from flatline.rules.precision.update_lost_to_rounding import UpdateLostToRounding
from flatline.testing import play

LOST = OptimizerStateSampled(
    optimizer=OptimizerFacts(name="AdamW"),
    index=12,
    lr=1e-5,
    peak_lr=1e-5,
    parameters="bfloat16",
    state="bfloat16",
    wanted=1000,
    lost=900,
)


def test_fires():
    (finding,) = play(UpdateLostToRounding, *[LOST] * 5)
    assert (finding.code, finding.severity) == ("FP3", "warning")
    assert finding.message.startswith("90% of the weights in bfloat16 that AdamW wants to change stay bit for bit")
    assert "autocast" in finding.fix


def test_near_miss_most_updates_arrive():
    assert play(UpdateLostToRounding, *[replace(LOST, lost=300)] * 9) == []


def test_near_miss_float32_has_nothing_to_lose():
    assert play(UpdateLostToRounding, *[replace(LOST, parameters="float32", wanted=0, lost=0)] * 9) == []


def test_fires_where_a_warm_up_has_ended():
    rising = [replace(LOST, index=n, lr=1e-5 + n * 1e-7, peak_lr=1e-5) for n in range(10, 20)]
    (finding,) = play(UpdateLostToRounding, *rising, *[replace(LOST, index=30, lr=2e-5)] * 4)
    assert finding.evidence["lr"] == 2e-5
    assert play(UpdateLostToRounding, *rising, *[replace(LOST, index=30, lr=2e-5)] * 3) == []


def test_near_miss_warm_up():
    rising = [replace(LOST, index=n, lr=n * 1e-7, peak_lr=n * 1e-7) for n in range(1, 30)]
    assert play(UpdateLostToRounding, *rising) == []
    assert play(UpdateLostToRounding, *[replace(LOST, index=5)] * 9) == []


def test_near_miss_end_of_a_schedule_or_rate_zero():
    assert play(UpdateLostToRounding, *[replace(LOST, peak_lr=1e-3)] * 9) == []
    assert play(UpdateLostToRounding, *[replace(LOST, lr=0.0, peak_lr=0.0)] * 9) == []


def test_near_miss_an_optimizer_of_unknown_arithmetic():
    assert play(UpdateLostToRounding, *[replace(LOST, stock=False)] * 9) == []


ADAM = OptimizerFacts(key=2, name="AdamW", adaptive=True)
FIRST = [replace(LOST, optimizer=ADAM, index=n) for n in range(1, 6)]  # of a later stage: no other step is looked at
LATER = NumbersSampled(optimizer=ADAM, index=60, lr=1e-5, peak_lr=1e-5)


def test_fires_where_only_the_first_steps_of_a_stage_were_looked_at():
    (finding,) = play(UpdateLostToRounding, *FIRST, LATER, LATER)
    assert (finding.code, finding.severity, finding.evidence["lost"]) == ("FP3", "warning", 900)
    (finding,) = play(UpdateLostToRounding, *FIRST, replace(LATER, index=7), LATER)
    assert finding.evidence["lr"] == 1e-5


def test_near_miss_the_rate_moved_since_the_first_steps():
    assert play(UpdateLostToRounding, *FIRST, replace(LATER, lr=1e-3, peak_lr=1e-3)) == []
    assert play(UpdateLostToRounding, *FIRST, replace(LATER, index=6, lr=2e-5), LATER) == []
    assert play(UpdateLostToRounding, *FIRST, replace(LATER, peak_lr=1e-3)) == []


def test_near_miss_numbers_of_the_first_steps_or_of_another_optimizer():
    assert play(UpdateLostToRounding, *FIRST, replace(LATER, index=9)) == []
    assert play(UpdateLostToRounding, *FIRST, replace(LATER, optimizer=OptimizerFacts(key=1))) == []
    assert play(UpdateLostToRounding, *FIRST[:4], LATER) == []


def test_near_miss_velocity_of_sgd_still_grows():
    sgd = OptimizerFacts(key=2, name="SGD")
    first = [replace(event, optimizer=sgd) for event in FIRST]
    assert play(UpdateLostToRounding, *first, replace(LATER, optimizer=sgd)) == []


def test_near_miss_a_later_look_finds_updates_that_arrive():
    assert play(UpdateLostToRounding, *FIRST, replace(FIRST[-1], index=8, lost=100), LATER) == []
