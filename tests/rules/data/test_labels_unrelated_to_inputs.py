import pytest

from flatline.events import (
    AugmentedApart,
    CollatedApart,
    LoadersApart,
    LossesRead,
    OptimizerFacts,
    PairingProbed,
    PathsMispaired,
    RowsMispaired,
    RunEnded,
    ValidationTold,
    Where,
)
from flatline.rules.data.labels_unrelated_to_inputs import LabelsUnrelatedToInputs
from flatline.testing import play as played


def play(rule, *events):
    return played(rule, *events, RunEnded(step=100))


def probed(**facts):
    defaults = {
        "step": 60,
        "where": Where("train.py", 30),
        "rows": 640,
        "classes": 4,
        "by_means": 0.26,
        "by_neighbours": 0.24,
        "commonest": 0.27,
        "surprise": 1.39,
        "entropy": 1.38,
        "permutation": "x[torch.randperm(n)]",
        "permuted_where": Where("train.py", 8),
    }
    return PairingProbed(**{**defaults, **facts})


def test_warns_of_one_side_permuted():
    (finding,) = play(LabelsUnrelatedToInputs, probed())
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 8))
    assert finding.message == (
        "nothing tells the labels: the loss is 1.39, that of guessing 1.38; on 640 samples the nearest class mean is right "
        "in 26%, the nearest neighbours in 24%, the commonest class in 27%; and `x[torch.randperm(n)]` moves the rows of one "
        "side alone"
    )


def test_warns_of_two_loaders_that_ask_for_other_samples():
    (finding,) = play(LabelsUnrelatedToInputs, probed(permutation="", apart=((17, 2, 40), (3, 91, 8)), rows=300))
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 30))
    assert finding.message.endswith("come from two loaders, which ask for other samples: 17, 2, 40 … and 3, 91, 8 …")
    assert finding.fix.endswith("and one loader")


def test_near_miss_two_loaders_where_the_model_learns():
    assert play(LabelsUnrelatedToInputs, probed(permutation="", apart=((17,), (3,)), surprise=1.2)) == []


def test_warns_of_a_forward_that_leaves_its_rows_sorted():
    told = probed(permutation="", left_sorted="x[order]", by_means=0.9)
    (finding,) = play(LabelsUnrelatedToInputs, told)
    assert finding.where == Where("train.py", 8)
    assert finding.message == (
        "the loss is 1.39, that of guessing 1.38; and `x[order]` in the forward sorts the samples of the batch, which are never "
        "put back: the answers come in another order than the labels"
    )
    falling = LossesRead(
        steps=tuple(range(400)), losses=tuple(1.4 - step / 400 for step in range(400)), rates=(0.1,) * 400
    )
    assert play(LabelsUnrelatedToInputs, told, falling) == []


def test_says_how_to_sort():
    (finding,) = play(LabelsUnrelatedToInputs, probed(permutation="sorted(rows)"))
    assert "key=int" in finding.fix


def test_says_what_a_loop_leaves_behind():
    (finding,) = play(LabelsUnrelatedToInputs, probed(permutation="for x, _ in loader"))
    assert finding.message.endswith("; and `for x, _ in loader` collects the inputs alone from a loader that shuffles, and the "
                                    "labels stay in the order of the data set")  # fmt: skip
    assert "collect the labels in the same loop" in finding.fix


def test_hints_where_no_statement_is_found():
    (finding,) = play(LabelsUnrelatedToInputs, probed(permutation=""))
    assert (finding.severity, finding.where) == ("hint", Where("train.py", 30))


def test_near_miss_simple_rules_tell_the_labels():
    assert play(LabelsUnrelatedToInputs, probed(by_means=0.34)) == []
    assert play(LabelsUnrelatedToInputs, probed(by_neighbours=0.5)) == []


def test_near_miss_the_model_learns():
    assert play(LabelsUnrelatedToInputs, probed(surprise=1.2)) == []


def test_near_miss_the_model_is_broken():
    assert play(LabelsUnrelatedToInputs, probed(surprise=9.0)) == []


def test_near_miss_one_class_nearly_always():
    assert play(LabelsUnrelatedToInputs, probed(commonest=0.95, by_means=0.95, surprise=0.2, entropy=0.2)) == []


def test_near_miss_few_samples_and_no_statement():
    assert play(LabelsUnrelatedToInputs, probed(permutation="", rows=300)) == []


def measured(**facts):
    return probed(
        **{
            "classes": 0,
            "rows": 400,
            "by_line": 0.03,
            "by_neighbours": -0.02,
            "surprise": 1.01,
            "entropy": 1.0,
            **facts,
        }
    )


def test_warns_of_measured_targets_permuted():
    (finding,) = play(LabelsUnrelatedToInputs, measured())
    assert finding.message == (
        "nothing tells the targets: what the model leaves has 1.01 times their variance; on 400 samples they correlate 0.03 "
        "with a linear fit to the others, -0.02 with the nearest neighbours; and `x[torch.randperm(n)]` moves the rows of one "
        "side alone"
    )


def test_warns_of_measured_targets_that_correlate_as_much_by_chance():
    assert len(play(LabelsUnrelatedToInputs, measured(by_line=0.13))) == 1


def test_near_miss_simple_rules_tell_the_targets():
    assert play(LabelsUnrelatedToInputs, measured(by_line=0.15)) == []
    assert play(LabelsUnrelatedToInputs, measured(by_neighbours=0.2)) == []


def test_near_miss_a_regression_that_learns_or_is_broken():
    assert play(LabelsUnrelatedToInputs, measured(surprise=0.9)) == []
    assert play(LabelsUnrelatedToInputs, measured(surprise=4.0)) == []


def test_near_miss_targets_without_a_statement_and_few_samples():
    assert play(LabelsUnrelatedToInputs, measured(permutation="")) == []


def losses(first, count, loss, key=1):
    steps = tuple(range(first, first + count))
    return LossesRead(optimizer=OptimizerFacts(key=key), steps=steps, losses=(loss,) * count, rates=(0.1,) * count)


def test_is_told_as_soon_as_it_is_sure():
    early = [losses(1, 60, 1.39), probed(), losses(61, 60, 1.39)]
    assert played(LabelsUnrelatedToInputs, *early) == []
    assert len(played(LabelsUnrelatedToInputs, *early, losses(121, 40, 1.35))) == 1


def test_is_told_of_a_loss_that_came_down_to_chance_first():
    early = [losses(1, 60, 1.9), probed(), losses(61, 60, 1.4)]
    assert len(played(LabelsUnrelatedToInputs, *early, losses(121, 40, 1.35))) == 1
    assert played(LabelsUnrelatedToInputs, *early, losses(121, 40, 1.1)) == []


def from_above(late, **facts):
    """The first scores are large, and the loss is far above guessing when it is probed; then it is ``late``."""
    return played(LabelsUnrelatedToInputs, losses(1, 60, 2.6), probed(surprise=2.3, **facts), losses(61, 100, late))


def test_warns_of_a_loss_that_comes_down_to_guessing_and_stays():
    (finding,) = from_above(1.4)
    assert finding.severity == "warning"
    assert finding.message.startswith("nothing tells the labels: the loss is 1.4, that of guessing 1.38;")
    (short,) = play(LabelsUnrelatedToInputs, losses(1, 60, 2.6), probed(surprise=2.3), losses(61, 40, 1.37))
    assert short.message.startswith("nothing tells the labels: the loss is 1.37")


def test_near_miss_a_loss_from_above():
    assert from_above(1.0) == []
    assert from_above(2.2) == []
    assert from_above(1.4, by_means=0.4) == []
    assert from_above(1.4, permutation="") == []
    assert play(LabelsUnrelatedToInputs, losses(1, 60, 2.6), probed(surprise=2.3)) == []


@pytest.mark.parametrize("first", [1, 700])
def test_near_miss_a_model_that_begins_to_learn_late(first):
    probe = probed(step=first + 59)
    late = [losses(1, 300, 0.2, key=9), losses(first, 60, 1.39), probe, losses(first + 60, 70, 1.39)]
    assert play(LabelsUnrelatedToInputs, *late, losses(first + 130, 40, 0.9)) == []
    assert len(play(LabelsUnrelatedToInputs, *late, losses(first + 130, 40, 1.39))) == 1


VALIDATION = (1.39, 1.41, 1.4, 1.44, 1.47, 1.5)


def by_heart(*, late=1.1, validation=VALIDATION, others=1, **facts):
    """At chance when it is probed, then the loss falls; the validation losses do not."""
    read = [losses(1, 60, 1.39), probed(permutation="", rows=320, **facts), losses(61, 300, late)]
    read += [losses(1, 60, 1.0, key=2 + i) for i in range(others - 1)]
    return play(LabelsUnrelatedToInputs, *read, ValidationTold(step=360, losses=validation), RunEnded(step=360))


def test_warns_of_what_is_learned_by_heart():
    (finding,) = by_heart()
    assert (finding.severity, finding.key) == ("warning", "by heart")
    assert finding.message == (
        "nothing tells the labels: the loss is 1.39, that of guessing 1.38; on 320 samples the nearest class mean is right "
        "in 26%, the nearest neighbours in 24%, the commonest class in 27%; since then the loss fell to 1.1, and of 6 "
        "validation losses none is lower than 1.39: what is learned is learned by heart"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"validation": (1.39, 1.35, 1.3, 1.31, 1.35, 1.4)},
        {"validation": VALIDATION[:5]},
        {"validation": (9.0, 8.0, 7.0, 3.0, 2.0, 1.5)},
        {"late": 1.3},
        {"validation": (1.39, 1.4, 1.4, 1.41, 1.42, 1.42)},
        {"validation": tuple(3 * each for each in VALIDATION)},
        {"by_neighbours": 0.5},
        {"surprise": 1.2},
        {"others": 2},
    ],
    ids=[
        "some use",
        "few validations",
        "still falling",
        "hardly learned",
        "no worse",
        "a sum",
        "neighbours tell",
        "learned at once",
        "adversaries",
    ],
)
def test_near_miss_learned_by_heart(changed):
    assert [finding for finding in by_heart(**changed) if finding.severity != "hint"] == []


def test_near_miss_a_regression_whose_signal_may_be_weak():
    told = {"classes": 0, "by_line": 0.01, "by_neighbours": -0.02, "surprise": 1.01, "entropy": 1.0}
    assert [finding for finding in by_heart(late=1.0, **told) if finding.severity != "hint"] == []


def test_warns_of_files_that_are_paired_by_place():
    told = PathsMispaired(
        step=1, where=Where("data.py", 4), first="case1.npy", second="case10_mask.npy", apart=33, total=40
    )
    (finding,) = play(LabelsUnrelatedToInputs, told)
    assert (finding.severity, finding.where) == ("warning", Where("data.py", 4))
    assert finding.message == (
        "33 of 40 files are paired with the file of another number, case1.npy with case10_mask.npy"
    )
    assert r"re.search(r'\d+', path.stem)" in finding.fix


def test_warns_of_labels_by_the_number_of_the_item():
    told = RowsMispaired(
        step=1, where=Where("data.py", 9, "__getitem__"), text="self.y[i]", inputs="self.x", labels="self.y",
        item=3979, first=39790, second=3979, rows=39834, share=0.1,
    )  # fmt: skip
    (finding,) = play(LabelsUnrelatedToInputs, told)
    assert (finding.severity, finding.where.line) == ("warning", 9)
    assert finding.message == (
        "item 3,979 begins at row 39,790 of `self.x`, and its label is row 3,979 of `self.y`: both have 39,834 rows, and "
        "`self.y[i]` never gets beyond the first 10%"
    )


def test_warns_of_pairs_that_another_order_mends():
    again = probed(permutation="", order="`order`", by_order=0.93)
    (finding,) = played(LabelsUnrelatedToInputs, again)
    assert (finding.severity, finding.key) == ("warning", "order")
    assert finding.message.endswith("the commonest class in 27%. Paired again in the order of `order`, 93% are right")
    assert len(play(LabelsUnrelatedToInputs, probed(order="`order`", by_order=0.93), probed())) == 1
    (of_regression,) = play(LabelsUnrelatedToInputs, measured(permutation="", order="`order`", by_order=0.81))
    assert of_regression.message.endswith("Paired again in the order of `order`, the fit correlates 0.81")


def test_near_miss_another_order_where_the_labels_are_told_as_they_are():
    assert play(LabelsUnrelatedToInputs, probed(order="`order`", by_order=0.93, by_means=0.6)) == []


def measured_run(later, first=9.0):
    """A regression that begins far above guessing, and what becomes of it."""
    probe = probed(
        classes=0, by_line=-0.02, by_neighbours=0.03, surprise=1.0, entropy=1.0, step=28, permutation="y[:len(x)]"
    )
    losses = [first, first / 2, *[1.0] * 26, *[later] * 200]
    read = LossesRead(step=228, steps=tuple(range(1, 229)), losses=tuple(losses), rates=(0.1,) * 228)
    return [probe, read]


def test_warns_of_a_regression_that_began_far_above_guessing():
    (finding,) = play(LabelsUnrelatedToInputs, *measured_run(1.0))
    assert "`y[:len(x)]` moves the rows of one side alone" in finding.message


def test_near_miss_a_regression_that_learns_late():
    assert play(LabelsUnrelatedToInputs, *measured_run(0.5)) == []


def test_warns_of_images_and_masks_that_are_turned_apart():
    """Two near misses stand with the sensor: what is turned together, and two views of one image, make no AugmentedApart."""
    told = AugmentedApart(
        step=45,
        where=Where("train.py", 7),
        item=17,
        image="flipped left to right",
        mask="left as it was",
        apart=5,
        compared=8,
    )
    (finding,) = play(LabelsUnrelatedToInputs, told)
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 7))
    assert finding.message == (
        "5 of 8 items that came again were turned in one way, and their masks in another: the image of item 17 was flipped "
        "left to right, its mask was left as it was"
    )
    assert finding.fix.startswith("draw once and apply it to both")


def test_fires_on_sequences_that_are_sorted_without_their_labels():
    event = CollatedApart(step=3, where=Where("train.py", 15, "collate"), batches=2, rows=64, wrong=28)
    (finding,) = play(LabelsUnrelatedToInputs, event)
    assert (finding.severity, finding.where.line) == ("warning", 15)
    assert finding.message == (
        "28 of 64 rows of 2 batches carry the label of another item: collate() puts the sequences into another order, and the "
        "labels stay in theirs"
    )


def test_fires_on_masks_of_another_loader():
    event = LoadersApart(step=4, where=Where("train.py", 20), inputs=(5, 2), targets=(7, 0), guessing=0.47)
    (finding,) = play(LabelsUnrelatedToInputs, event, losses(1, 60, 0.42))
    assert (
        play(LabelsUnrelatedToInputs, event, losses(1, 60, 0.1)) == []
    )  # whatever their numbers, they belong together
    assert (finding.severity, finding.where.line) == ("warning", 20)
    assert finding.message == (
        "inputs and targets come from two loaders, which ask for other samples at all 4 steps looked at: at this one for 5, 2 … "
        "and 7, 0 …; the loss is 0.42, and the best constant answer costs 0.47"
    )


def test_fires_on_one_transform_called_for_image_and_mask():
    told = AugmentedApart(
        step=45, where=Where("train.py", 7), statement="self.crop(x), self.crop(y)", apart=4, compared=4
    )
    (finding,) = play(LabelsUnrelatedToInputs, told)
    assert finding.message == (
        "`self.crop(x), self.crop(y)` draws twice: 4 items came again with another image and another mask"
    )
