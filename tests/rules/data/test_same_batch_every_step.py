from dataclasses import replace

from flatline.events import BatchesServed, BatchRepeated, ForwardObserved, InputFacts, LayerInput, OneBatchTaken, Where
from flatline.rules.data.same_batch_every_step import SameBatchEveryStep
from flatline.testing import play


def served(prints, indices, restarts, *, length=20, every=1):
    """What the sensor tells after each step: all that it remembers so far."""
    return [
        BatchesServed(
            step=1 + (n - 1) * every,
            where=Where("train.py", 20),
            fingerprints=tuple(prints[:n]),
            indices=tuple(indices[:n]),
            restarts=restarts[n - 1],
            loader_length=length,
        )
        for n in range(1, len(prints) + 1)
    ]


def forwards(count=5, *, rms=1.0, measured=True, **facts):
    events = []
    for step in range(1, count + 1):
        seen = InputFacts(shape=(32, 8), fingerprint=7, **facts)
        layer = LayerInput(layer="0", rms=rms if isinstance(rms, float) else rms[step - 1])
        events.append(ForwardObserved(step=step, model="net", inputs=seen, first_layer=layer if measured else None))
    return events


def test_fires_on_an_iterator_made_anew_for_each_step():
    (finding,) = play(SameBatchEveryStep, *served([5] * 4, [9] * 4, [1, 2, 3, 4]))
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 20)
    assert finding.message == (
        "the last 4 batches looked at are one and the same of 20, and the loader was restarted 4 times in 4 steps"
    )
    assert "for x, y in loader" in finding.fix


def test_fires_on_a_dataset_that_ignores_its_index():
    (finding,) = play(SameBatchEveryStep, *forwards(4), *served([5] * 4, [1, 2, 3, 4], [1] * 4))
    assert finding.severity == "error"
    assert "__getitem__" in finding.cause


def test_fires_with_workers_where_the_input_is_the_same():
    assert len(play(SameBatchEveryStep, *forwards(4), *served([5] * 4, [0] * 4, [1, 2, 3, 4]))) == 1


def test_near_miss_one_batch_beside_others():
    """An anchor that stays, and new samples at each step."""
    both = forwards(4, rms=(1.0, 1.1, 1.0, 1.2))
    assert play(SameBatchEveryStep, *both, *served([5] * 4, [9] * 4, [1, 2, 3, 4])) == []
    assert len(play(SameBatchEveryStep, *forwards(4), *served([5] * 4, [9] * 4, [1, 2, 3, 4]))) == 1


def test_fires_on_noise_that_is_added_to_the_same_batch():
    noisy = forwards(4, rms=(1.0, 1.1, 1.2, 1.3))
    batches = [replace(each, altered=True) for each in served([5] * 4, [9] * 4, [1, 2, 3, 4])]
    (finding,) = play(SameBatchEveryStep, *noisy, *batches)
    assert finding.severity == "error"
    once = [*batches[:2], replace(batches[2], altered=False), batches[3]]
    assert play(SameBatchEveryStep, *noisy, *once) == []


def test_near_miss_shuffled_loader_made_anew():
    assert play(SameBatchEveryStep, *served([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4])) == []


def test_near_miss_samples_of_the_batches_agree_but_the_inputs_differ():
    corner_pixels = served([5] * 4, [1, 2, 3, 4], [1] * 4)
    assert play(SameBatchEveryStep, *forwards(4, rms=(1.0, 1.1, 1.2, 1.3)), *corner_pixels) == []
    assert play(SameBatchEveryStep, *forwards(4, measured=False), *corner_pixels) == []


def test_near_miss_loader_of_one_batch():
    assert play(SameBatchEveryStep, *served([5] * 4, [9] * 4, [1, 2, 3, 4], length=1)) == []


def test_near_miss_the_same_place_of_a_short_unshuffled_epoch():
    assert play(SameBatchEveryStep, *served([5] * 6, [9] * 6, [1, 2, 3, 4, 5, 6], length=2, every=2)) == []


def test_warns_of_a_slice_that_does_not_move():
    (finding,) = play(SameBatchEveryStep, *forwards(base_rows=800))
    assert finding.severity == "warning"
    assert finding.message == "net was given the same 32 of 800 rows in 5 steps in a row, cut anew each time"


def test_near_miss_one_batch_kept():
    assert play(SameBatchEveryStep, *forwards(9, base_rows=800, same_object=True)) == []


def test_near_miss_split_of_the_data():
    assert play(SameBatchEveryStep, *forwards(9, base_rows=40)) == []


def test_near_miss_slices_that_move():
    assert play(SameBatchEveryStep, *forwards(5, base_rows=800, rms=(1.0, 1.1, 1.2, 1.3, 1.4))) == []


def test_near_miss_event_without_inputs():
    assert play(SameBatchEveryStep, *[ForwardObserved(step=step) for step in range(1, 9)]) == []


def repeated(**facts):
    return BatchRepeated(**{"step": 5, "model": "net", "rows": 32, "times": 5, **facts})


def test_warns_of_a_draw_that_is_seeded_at_each_call():
    place = Where("train.py", 4, "get_batch")
    (finding,) = play(SameBatchEveryStep, repeated(seeding="torch.manual_seed(0)", statement=place))
    assert (finding.severity, finding.where) == ("warning", place)
    assert finding.message == (
        "net was given the same 32 samples in 5 steps in a row, drawn anew each time: `torch.manual_seed(0)` comes before "
        "the draw in every step"
    )


def test_a_window_that_stands_still():
    place = Where("train.py", 39, "draw")
    (finding,) = play(SameBatchEveryStep, repeated(lost="at += self.size", statement=place))
    assert (finding.severity, finding.where) == ("warning", place)
    assert finding.message == (
        "net was given the same 32 samples in 5 steps in a row, in a new tensor each time: `at += self.size` changes a "
        "variable of one call, and nothing reads it after that"
    )


def test_near_miss_full_batch_cut_out_anew():
    assert play(SameBatchEveryStep, repeated()) == []


def test_near_miss_single_sample():
    assert play(SameBatchEveryStep, repeated(rows=1, seeding="torch.manual_seed(0)")) == []


def test_near_miss_repeated_too_few_times():
    assert play(SameBatchEveryStep, repeated(times=3, seeding="torch.manual_seed(0)")) == []


def test_fires_on_a_loader_built_anew_for_each_step():
    events = [replace(event, rebuilt=True) for event in served([5] * 4, [9] * 4, [1, 2, 3, 4])]
    (finding,) = play(SameBatchEveryStep, *events)
    assert finding.message.endswith("of 20, and the loader was built anew 4 times in 4 steps")
    assert finding.fix.startswith("build the loader once, before the loop")


def taken(**facts):
    known = {"step": 900, "where": Where("train.py", 25), "model": "net", "rows": 32, "length": 125, "validations": 3}
    return OneBatchTaken(**(known | facts))


def test_warns_of_one_batch_taken_before_the_loop():
    (finding,) = play(SameBatchEveryStep, taken())
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 25))
    assert finding.message == (
        "net was given the same 32 samples at every step looked at, 900 steps long: the loader gave one batch of 125, before "
        "the loop"
    )
    assert len(play(SameBatchEveryStep, taken(length=None))) == 1


def test_near_miss_one_batch_learned_by_heart_on_purpose():
    assert play(SameBatchEveryStep, taken(validations=0)) == []
    assert play(SameBatchEveryStep, taken(step=60)) == []
    assert play(SameBatchEveryStep, taken(length=1)) == []
