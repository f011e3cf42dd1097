from flatline.events import (
    ForwardObserved,
    InputsObserved,
    LayerInput,
    LossComputed,
    LossesRead,
    OptimizerFacts,
    RunEnded,
    SamplesAlike,
    TargetFacts,
)
from flatline.rules.data.constant_inputs import ConstantInputs
from flatline.testing import play


def steps(count=7, *, start=1, model="net", low=0.0, high=4.0, reduction="mean", content=5, **facts):
    events = []
    for step in range(start, start + count):
        seen = {"rows": 32, "features": 12, "equal_rows": True, **facts}
        events.append(InputsObserved(step=step, model=model, content=content, **seen))
        events.append(LossComputed(step=step, target=TargetFacts(low=low, high=high, total=32), reduction=reduction))
    return events


def test_fires_on_a_buffer_never_filled():
    (finding,) = play(ConstantInputs, *steps())
    assert (finding.severity, finding.step) == ("warning", 6)
    assert finding.message == (
        "net was given the same numbers in all 6 steps looked at, every one of the 32 samples of a batch equal to the others, "
        "while its targets range from 0 to 4"
    )


def test_near_miss_samples_differ():
    assert play(ConstantInputs, *steps(equal_rows=False)) == []


def test_near_miss_the_data_come_through_another_model():
    assert play(ConstantInputs, *steps(1, model="encoder", equal_rows=False), *steps()) == []


def test_near_miss_numbers_change_with_the_step():
    assert play(ConstantInputs, *steps(3), *steps(9, content=6)) == []


def test_near_miss_one_sample_or_tokens():
    assert play(ConstantInputs, *steps(rows=1, equal_rows=False)) == []
    assert play(ConstantInputs, *steps(floating=False)) == []


def test_near_miss_targets_are_constant_too():
    assert play(ConstantInputs, *steps(low=1.0, high=1.0)) == []


def test_near_miss_policy_with_one_state():
    assert play(ConstantInputs, *steps(reduction="none")) == []


def test_near_miss_too_large_to_compare():
    assert play(ConstantInputs, *steps(content=0)) == []


def test_fires_on_one_buffer_for_all_samples_of_a_batch():
    (finding,) = play(ConstantInputs, *steps(3, own_items=True), *steps(3, start=4, content=6, own_items=True))
    assert finding.severity == "error"
    assert finding.message == (
        "in all 6 steps looked at, the loader gave net one sample many times over: every one of the 32 samples of a batch "
        "equal to the others, while its targets range from 0 to 4"
    )


def test_near_miss_repeated_by_hand_or_once_by_a_loader():
    assert play(ConstantInputs, *steps(3), *steps(9, content=6)) == []
    assert (
        play(ConstantInputs, *steps(3, loader=True), *steps(9, start=4, content=6, loader=True)) == []
    )  # by a sampler
    mixed = [*steps(3, own_items=True), *steps(9, start=4, content=6, own_items=True, equal_rows=False)]
    assert play(ConstantInputs, *mixed) == []


def words(*ids, count=7, vocabulary=2000, **facts):
    return steps(count, floating=False, ids=ids, vocabulary=vocabulary, equal_rows=False, **facts)


def test_fires_where_every_word_is_the_same_id():
    (finding,) = play(ConstantInputs, *words(1))
    assert finding.severity == "warning"
    assert finding.message == (
        "of the 2,000 rows of its embedding, net was asked for 1 in all 6 steps looked at, 32 sequences of 12 each, while the "
        "targets range from 0 to 4"
    )


def test_fires_where_texts_are_filled_up():
    (finding,) = play(ConstantInputs, *words(1, 0))
    assert "was asked for 0 and 1 in all 6 steps" in finding.message


def test_near_miss_other_words_come():
    assert play(ConstantInputs, *words(1, count=3), *words(7, 8, count=3, start=4)) == []
    assert play(ConstantInputs, *words(1, count=3), *words(count=3, start=4)) == []


def test_near_miss_few_rows_first_tokens_and_lengths():
    assert play(ConstantInputs, *words(1, vocabulary=4)) == []
    assert play(ConstantInputs, *words(1, features=1)) == []
    assert play(ConstantInputs, *words(1, 0, vocabulary=64)) == []


def alike(*, loss=1.0, then=1.0, steps=300, normalised=False, rms=2.25, kept=2.25, **facts):
    optimizer = OptimizerFacts()
    early = LossesRead(optimizer=optimizer, steps=tuple(range(1, 31)), losses=(then,) * 30, rates=(0.1,) * 30)
    late = range(31, steps + 1)
    return [
        ForwardObserved(first_layer=LayerInput(layer="0", rms=kept, normalised_next=normalised)),
        InputsObserved(step=1, model="net", rows=40, features=64, content=1),
        InputsObserved(step=2, model="net", rows=40, features=64, content=2),
        early,
        SamplesAlike(step=30, rows=600, width=64, batches=15, rms=rms, **facts),
        LossesRead(optimizer=optimizer, steps=tuple(late), losses=(loss,) * len(late), rates=(0.1,) * len(late)),
        RunEnded(step=steps),
    ]


SMALL = {"spread": 0.004, "common": 2.25, "probed": 600, "told": 0.7, "commonest": 0.26}
CAST = {"equal": 0.97, "left": 0.9, "value": -1.0}


def test_fires_on_inputs_that_are_all_but_constant():
    (finding,) = play(ConstantInputs, *alike(**SMALL))
    assert finding.severity == "warning"
    assert finding.message == (
        "no number that net is given varies between samples by more than 0.4 % of what it is in all of them (their rms is 2.25), "
        "and no normalisation follows; once they are standardised, a simple rule is right in 70%, where the commonest class is 26%; "
        "the loss is 1 after 300 steps, as at the beginning"
    )
    (finding,) = play(ConstantInputs, *alike(**{**SMALL, "labels": False, "commonest": 0.0, "common": 0.1}))
    assert "by more than 0.4 % of one" in finding.message
    assert "correlated 0.70 with the targets" in finding.message


def test_near_miss_small_differences_that_a_normalisation_or_a_centring_makes_large():
    assert play(ConstantInputs, *alike(**SMALL, normalised=True)) == []
    assert play(ConstantInputs, *alike(**SMALL, kept=1.0)) == []


def test_near_miss_small_differences_of_which_no_rule_makes_anything():
    assert play(ConstantInputs, *alike(**{**SMALL, "told": 0.28})) == []
    assert play(ConstantInputs, *alike(**{**SMALL, "probed": 80})) == []


def test_fires_where_most_samples_are_one_row():
    (finding,) = play(ConstantInputs, *alike(**CAST))
    assert finding.message == (
        "97% of the 600 samples looked at are one and the same row of 64 numbers, all -1, and hold 90% of what the targets vary "
        "by, which no model can tell; the loss is 1 after 300 steps, as at the beginning"
    )


def test_near_miss_a_default_row_or_one_with_one_target():
    assert play(ConstantInputs, *alike(**{**CAST, "left": 0.72})) == []
    assert play(ConstantInputs, *alike(**{**CAST, "left": 0.4})) == []


def test_near_miss_a_model_that_learns_or_may_yet():
    assert play(ConstantInputs, *alike(**CAST, loss=0.8)) == []
    assert play(ConstantInputs, *alike(**SMALL, loss=0.8)) == []
    assert play(ConstantInputs, *alike(**CAST, steps=90)) == []


def test_near_miss_another_model_was_given_something():
    other = InputsObserved(step=2, model="encoder", rows=40, content=3)
    assert play(ConstantInputs, other, *alike(**CAST)) == []
