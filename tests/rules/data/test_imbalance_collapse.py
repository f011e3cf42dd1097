from dataclasses import replace

import pytest

from flatline.events import ClassesWeighed, MinorityObserved, Where
from flatline.rules.data.imbalance_collapse import ImbalanceCollapse
from flatline.testing import play

SICK = MinorityObserved(
    step=400,
    where=Where("train.py", 9),
    labels=4336,
    rare=142,
    looks=68,
    first=101,
    ranking=0.51,
    surprise=0.15,
    entropy=0.144,
    by_means=0.74,
)


def test_fires_where_a_simple_rule_tells_more():
    (finding,) = play(ImbalanceCollapse, SICK)
    assert (finding.severity, finding.where, finding.key) == ("warning", Where("train.py", 9), "")
    assert finding.message == (
        "class 0 is the answer to all 4336 samples of the 68 batches looked at since step 101, 142 of which (3.3%) are of "
        "the other class; its scores rank them no better than chance (AUC 0.51), where the difference of the classes' "
        "means has 0.74 on held-out samples"
    )
    assert "pos_weight=torch.tensor(30.)" in finding.fix


def test_fires_with_many_classes():
    (finding,) = play(ImbalanceCollapse, replace(SICK, classes=4, common=2))
    assert "class 2 is the answer" in finding.message
    assert "of other classes" in finding.message
    assert "weight=" in finding.fix


@pytest.mark.parametrize("means", [None, 0.55])
def test_near_miss_inputs_that_may_tell_nothing(means):
    (finding,) = play(ImbalanceCollapse, replace(SICK, by_means=means))
    assert (finding.severity, finding.key) == ("hint", "chance")


def test_near_miss_scores_that_rank():
    (finding,) = play(ImbalanceCollapse, replace(SICK, ranking=0.82, surprise=0.12))
    assert (finding.severity, finding.key) == ("hint", "threshold")


def test_near_miss_a_slow_start():
    (finding,) = play(ImbalanceCollapse, replace(SICK, ranking=0.58))
    assert finding.severity == "hint"


@pytest.mark.parametrize(
    "facts",
    [
        {"answered": 20},
        {"rare": 12},
        {"rare": 800},
        {"step": 60},
        {"looks": 5},
        {"surprise": 0.1},
    ],
)
def test_near_miss_not_lopsided_not_long_not_collapsed(facts):
    assert play(ImbalanceCollapse, replace(SICK, **facts)) == []


def test_fires_where_the_script_decides_by_the_highest_score():
    decided = replace(SICK, ranking=0.88, by_means=None, surprise=0.05, ended=True, decides=Where("train.py", 30))
    (finding,) = play(ImbalanceCollapse, decided)
    assert (finding.severity, finding.key) == ("warning", "decided")
    assert finding.message.endswith(
        "though its scores rank them with AUC 0.88; the script decides by the highest score (line 30) and finds none"
    )


def test_an_answer_now_and_then_is_dropout():
    decided = replace(SICK, answered=1, ended=True, decides=Where("train.py", 30))
    (finding,) = play(ImbalanceCollapse, decided)
    assert f"is the answer to all but 1 of {SICK.labels} samples" in finding.message
    assert finding.message.endswith("and finds almost none")


def test_near_miss_it_may_begin_to_answer_yet():
    going_on = replace(SICK, ranking=0.88, by_means=None, decides=Where("train.py", 30))
    assert [finding.severity for finding in play(ImbalanceCollapse, going_on)] == ["hint"]


@pytest.mark.parametrize(("answered", "found"), [(13, 1), (16, 0)])
def test_a_script_that_decides_so_and_finds_a_few(answered, found):
    decided = replace(SICK, answered=answered, ranking=0.88, ended=True, decides=Where("train.py", 30))
    assert len(play(ImbalanceCollapse, decided)) == found
    assert play(ImbalanceCollapse, replace(decided, ended=False)) == []


WEIGHED = ClassesWeighed(step=9, where=Where("train.py", 30), weights=(1.0, 0.031), counts=(620, 20))


def test_fires_on_weights_that_are_turned_over():
    (finding,) = play(ImbalanceCollapse, WEIGHED)
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 30))
    assert finding.message == (
        "class 1 has 3.1% of 640 labels and the weight 0.031, class 0 has 97% and 1: the weights go with the frequencies"
    )
    assert finding.fix == (
        "weigh class 1 31 times as much as class 0: divide by the counts, pos_weight=negatives / positives"
    )
    (finding,) = play(ImbalanceCollapse, replace(WEIGHED, weights=(0.7, 0.2, 0.1), counts=(700, 210, 90)))
    assert "class 2 has 9.0% of 1,000 labels and the weight 0.1" in finding.message


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ((1.0, 31.0), (620, 20)),  # as it should be
        ((1.0, 0.2), (620, 20)),  # a cost that was chosen: false alarms are dear
        ((1.0, 0.5), (60, 30)),  # hardly skewed
        ((1.0, 0.031), (620, 2)),  # too few to know
        ((1.0, 0.1), (20, 620)),  # the common class is the positive one
        ((0.5, 0.2, 0.3), (700, 210, 90)),  # no line
        ((1.0, 1.0, 1.0), (700, 210, 90)),
    ],
)
def test_near_miss_weights_of_classes(weights, counts):
    assert play(ImbalanceCollapse, replace(WEIGHED, weights=weights, counts=counts)) == []
