import random
from collections import Counter
from dataclasses import replace

import pytest

from flatline.events import LabelFacts, TargetsObserved, TargetsRanked, Where, WholeLabels
from flatline.rules.data.training_data_not_shuffled import TrainingDataNotShuffled
from flatline.testing import lint, play

CLOSE = (1, 2, 3, 4, 5, 6, 9, 13, 19, 28, 42, 63, 94)


def facts(labels):
    order = [labels[0]]
    for label in labels[1:]:
        if label != order[-1]:
            order.append(label)
    return LabelFacts(
        count=len(labels),
        histogram=tuple(sorted(Counter(labels).items())),
        runs=len(order),
        order=tuple(order) if len(order) <= 32 else (),
    )


def passes(labels, *, batch=32, steps=CLOSE, loader=1, **more):
    """The closely watched steps of a loop over these labels, taken in their order again and again."""
    length = len(labels) // batch
    events = []
    for step in steps:
        place = (step - 1) % length
        events.append(
            TargetsObserved(
                step=step,
                where=Where("train.py", 9),
                stream=1,
                labels=facts(labels[place * batch : (place + 1) * batch]),
                loader=loader,
                passes=1 + (step - 1) // length if loader else 0,
                position=place + 1 if loader else 0,
                length=length if loader else None,
                **more,
            )
        )
    return events


def sorted_labels(classes=5, each=200):
    return [label for label in range(classes) for _ in range(each)]


def test_fires_on_a_sorted_data_set():
    (finding,) = play(TrainingDataNotShuffled, *passes(sorted_labels()))
    assert (finding.severity, finding.where, finding.step) == ("warning", Where("train.py", 9), 19)
    assert finding.message == (
        "the labels come class by class: 7 of 9 batches hold one class only, and the label changes 2 times in 288 samples "
        "of 4 classes, where random order changes it 142 times"
    )
    assert "shuffle=True" in finding.fix


def test_fires_on_two_classes_and_on_short_passes():
    assert len(play(TrainingDataNotShuffled, *passes(sorted_labels(2, 1000)))) == 1
    assert len(play(TrainingDataNotShuffled, *passes(sorted_labels(2, 64)))) == 1


def test_fires_on_slices_by_hand():
    assert len(play(TrainingDataNotShuffled, *passes(sorted_labels(10), loader=0))) == 1
    whole = WholeLabels(count=1000, distinct=2, runs=2)
    assert len(play(TrainingDataNotShuffled, *passes(sorted_labels(2, 500), loader=0, whole=whole))) == 1


def test_near_miss_a_whole_pass_for_one_step():
    """The gradient of all classes, in parts."""
    events = passes(sorted_labels(), steps=range(1, 31))
    assert play(TrainingDataNotShuffled, *(replace(event, step=1) for event in events)) == []
    assert len(play(TrainingDataNotShuffled, *(replace(event, step=event.step // 4) for event in events))) == 1


def test_near_miss_mixed_labels():
    labels = sorted_labels()
    random.Random(0).shuffle(labels)
    assert play(TrainingDataNotShuffled, *passes(labels)) == []
    assert play(TrainingDataNotShuffled, *passes(labels, loader=0)) == []


def test_near_miss_a_few_classes_in_each_batch():
    draw = random.Random(0)
    labels = [label for _ in range(60) for label in draw.sample(range(100), 8) for _ in range(4)]
    assert play(TrainingDataNotShuffled, *passes(labels)) == []


def test_near_miss_tasks_one_after_the_other():
    draw = random.Random(0)
    labels = [draw.choice((task, task + 1)) for task in (0, 2, 4) for _ in range(320)]
    assert play(TrainingDataNotShuffled, *passes(labels)) == []


def test_near_miss_states_that_come_again():
    draw = random.Random(1)
    labels = [state for _ in range(60) for state in [draw.randrange(2)] * draw.randint(20, 90)]
    assert play(TrainingDataNotShuffled, *passes(labels)) == []
    assert play(TrainingDataNotShuffled, *passes(labels, loader=0)) == []


def test_near_miss_real_and_fake_in_turn():
    assert play(TrainingDataNotShuffled, *passes(([1] * 32 + [0] * 32) * 50, loader=0)) == []
    assert play(TrainingDataNotShuffled, *passes(([1] * 32 + [0] * 32) * 50)) == []


def test_near_miss_one_class_for_good():
    assert play(TrainingDataNotShuffled, *passes([0] * 3200)) == []


def test_near_miss_another_order_in_the_next_pass():
    first, second = passes(sorted_labels(), steps=(1, 2, 3, 4, 5)), passes(sorted_labels()[::-1], steps=(1, 2, 3, 4, 5))
    later = passes(sorted_labels(), steps=CLOSE)
    assert play(TrainingDataNotShuffled, *first, *second, *later) == []


def test_near_miss_single_samples():
    assert play(TrainingDataNotShuffled, *passes(sorted_labels(), batch=1)) == []


def test_fires_early_where_the_data_set_keeps_its_labels():
    whole = WholeLabels(count=4000, distinct=5, runs=5)
    (finding,) = play(TrainingDataNotShuffled, *passes(sorted_labels(5, 800), whole=whole))
    assert finding.step <= 28


def test_near_miss_a_class_comes_back_later_in_the_data_set():
    whole = WholeLabels(count=4000, distinct=5, runs=40)
    assert play(TrainingDataNotShuffled, *passes(sorted_labels(5, 800), whole=whole)) == []


def test_near_miss_a_series_of_which_the_beginning_was_seen():
    assert play(TrainingDataNotShuffled, *passes(sorted_labels(40, 100), steps=CLOSE[:11])) == []


def ranked(answers=(2.1, 2.9), *, length=40, looked=(1, 2, 3, 5, 9, 14, 20, 30, 40), **more):
    """A first pass over targets from -2 to 2, and what the model answers as the next ones begin."""

    def target(position):
        return -2 + 4 * (position - 1) / (length - 1)

    first = [(1, position, target(position)) for position in looked]
    later = [(2 + at, 1, answer) for at, answer in enumerate(answers)]
    return [
        TargetsRanked(
            step=(passes - 1) * length + position,
            where=Where("train.py", 9),
            passes=passes,
            position=position,
            length=length,
            target=target(position),
            answer=answer,
            **more,
        )
        for passes, position, answer in first + later
    ]


def test_fires_on_rows_sorted_by_a_measured_target():
    (finding,) = play(TrainingDataNotShuffled, *ranked((2.1, 2.9, 1.4)))
    assert (finding.severity, finding.where, finding.step) == ("warning", Where("train.py", 9), 81)
    assert finding.message == (
        "the targets rise from row to row, from -2 in the first batches to 2 in the last ones, and no input does; as passes "
        "2 and 3 begin, the targets are near -2, and the model still answers 2.1 and 2.9"
    )
    assert "shuffle=True" in finding.fix


def test_fires_on_targets_that_fall():
    down = [replace(event, rising=False, target=-event.target, answer=-event.answer) for event in ranked()]
    (finding,) = play(TrainingDataNotShuffled, *down)
    assert finding.message.startswith("the targets fall from row to row, from 2 ")


def test_near_miss_an_input_rises_as_the_targets_do():
    assert play(TrainingDataNotShuffled, *ranked(alone=False)) == []


@pytest.mark.parametrize("answers", [(-1.9, -2.0), (0.0, 0.1), (2.1, -0.9), (2.1,), ()])
def test_near_miss_a_model_that_answers_for_the_first_rows(answers):
    """As it should, or with the mean of all, or from the second time on."""
    assert play(TrainingDataNotShuffled, *ranked(answers)) == []


def test_near_miss_the_end_of_a_pass_was_not_seen():
    assert play(TrainingDataNotShuffled, *ranked(looked=(1, 2, 3, 5, 9, 14, 20))) == []


def test_near_miss_few_steps_in_a_pass():
    assert play(TrainingDataNotShuffled, *(replace(event, step=event.step // 10) for event in ranked())) == []


FOLDERS = """
import torch
from torchvision import datasets
data = {}
loader = torch.utils.data.DataLoader(data, batch_size=8{})
for i, {} in enumerate(loader):
    loss = criterion(net(x), y)
    loss.backward()
    opt.step()
"""


def test_source_folders_in_order():
    """Seen as a SourceParsed."""
    (finding,) = lint(TrainingDataNotShuffled, FOLDERS.format("datasets.ImageFolder('train')", "", "(x, y)"))
    assert finding.where.line == 4


@pytest.mark.parametrize(
    ("data", "more", "target"),
    [
        ("datasets.ImageFolder('train')", ", shuffle=True", "(x, y)"),
        ("datasets.ImageFolder('train')", ", sampler=s", "(x, y)"),
        ("datasets.ImageFolder('train')", ", **options", "(x, y)"),
        ("datasets.ImageFolder('train')", "", "(x, _)"),
        ("datasets.MNIST('train')", "", "(x, y)"),
        ("torch.utils.data.random_split(datasets.ImageFolder('train'), [8, 2])[0]", "", "(x, y)"),
    ],
)
def test_near_miss_source_shuffled_or_unknown(data, more, target):
    assert lint(TrainingDataNotShuffled, FOLDERS.format(data, more, target)) == []
