from flatline.events import InputsObserved, LossComputed, TargetFacts
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
