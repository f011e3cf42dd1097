from dataclasses import replace

import pytest

from flatline.events import LayerNumbers, NumbersSampled, OptimizerFacts
from flatline.rules.weights.weight_norm_collapse import WeightNormCollapse
from flatline.testing import play


def run(shrink, losses, *, decay=1.0, lr=0.1, momentum=0.0):
    return [
        NumbersSampled(
            step=i + 1,
            index=i + 1,
            layers=tuple(
                LayerNumbers(
                    name=n, weight_rms=0.1 * shrink**i, weight_decay=decay, learning_rate=lr, momentum=momentum
                )
                for n in "ab"
            ),
            loss=loss,
            first_loss=losses[0],
        )
        for i, loss in enumerate(losses)
    ]


def test_fires_when_decay_takes_everything():
    (finding,) = play(WeightNormCollapse, *run(0.9, [2.3] * 40))
    assert finding.severity == "warning"
    assert "decay takes 10.00% of them at every step (lr 0.1 × weight_decay 1)" in finding.message
    assert finding.fix.startswith("lower weight_decay from 1 to about 0.0001")


def test_fires_when_every_step_forgets_most_of_the_last_twenty():
    """The gradient holds the weights up, at a size that decay leaves them."""
    shares = [max(0.82**i, 0.2) for i in range(40)]
    events = [replace(event, layers=tuple(replace(each, weight_rms=0.1 * share) for each in event.layers))
              for event, share in zip(run(1.0, [2.3] * 40, decay=60.0, lr=0.005), shares, strict=True)]  # fmt: skip
    finding, *_ = play(WeightNormCollapse, *events)
    assert "decay takes 30.00% of them at every step (lr 0.005 × weight_decay 60)" in finding.message


def test_fires_where_momentum_adds_up_what_decay_takes():
    events = [replace(event, layers=tuple(replace(each, weight_rms=0.1 * max(0.9**i, 0.2)) for each in event.layers))
              for i, event in enumerate(run(1.0, [2.3] * 40, decay=0.08, momentum=0.9))]  # fmt: skip
    finding, *_ = play(WeightNormCollapse, *events)
    assert (
        "decay takes 8.00% of them at every step (lr 0.1 × weight_decay 0.08, which momentum 0.9 adds up)"
        in finding.message
    )


def test_near_miss_a_fifth_of_the_size_by_decay_that_remembers():
    assert play(WeightNormCollapse, *run(0.96, [2.3] * 40, decay=4.0, lr=0.01)) == []


def test_near_miss_the_loss_falls():
    assert play(WeightNormCollapse, *run(0.9, [2.3 * 0.95**i for i in range(40)])) == []


def multiplied(scales, **facts):
    """No decay in the optimizer, and the first steps find less than what the ones before had left."""
    return [
        replace(event, layers=tuple(replace(each, scaled=scale, **{"kept": 1.0, **facts}) for each in event.layers))
        for event, scale in zip(run(0.9, [2.3] * 40, decay=0.0), [None, *scales, *[None] * 40], strict=False)
    ]


def test_fires_on_a_decay_behind_the_step():
    (finding,) = play(WeightNormCollapse, *multiplied([0.92] * 4))
    assert "multiplies a and the others by 0.92 between each step" in finding.message


def test_near_miss_weights_that_something_else_changes_between_steps():
    assert play(WeightNormCollapse, *multiplied([1.0] * 4)) == []
    assert play(WeightNormCollapse, *multiplied([0.92, 0.5, 0.99, 0.9])) == []
    assert play(WeightNormCollapse, *multiplied([0.92] * 4, kept=0.9)) == []


def test_near_miss_shrinking_without_decay_to_blame():
    assert play(WeightNormCollapse, *run(0.9, [2.3] * 40, decay=1e-4)) == []
    assert play(WeightNormCollapse, *run(0.9, [2.3] * 40, decay=0.0)) == []


def test_near_miss_ordinary_decay():
    assert play(WeightNormCollapse, *run(0.999, [2.3] * 40)) == []


def by_hand(shrink, losses, *, ratios=(0.05, 0.051)):
    hand = OptimizerFacts(name="a step by hand", by_hand=True)
    events = run(shrink, losses, decay=0.0, lr=0.0)
    return [
        replace(
            event,
            optimizer=hand,
            layers=tuple(replace(each, update_ratio=r) for each, r in zip(event.layers, ratios, strict=True)),
        )
        for event in events
    ]


def test_fires_where_a_step_by_hand_takes_one_share_of_everything():
    (finding,) = play(WeightNormCollapse, *by_hand(0.95, [2.3] * 60))
    assert (
        "a step takes 5.05% of every one of the 2 matrices, and the loss stands at 2.3 (2.3 at first)"
        in finding.message
    )
    assert "p.mul_(1 - lr * weight_decay)" in finding.fix


def test_near_miss_steps_by_hand():
    assert play(WeightNormCollapse, *by_hand(0.95, [2.3] * 40)) == []
    assert play(WeightNormCollapse, *by_hand(0.95, [2.3 * 0.95**i for i in range(60)])) == []
    assert play(WeightNormCollapse, *by_hand(0.95, [2.3] * 60, ratios=(0.05, 0.2))) == []
    assert play(WeightNormCollapse, *by_hand(1.0, [2.3] * 60)) == []


def of_own_optimizer(shrink, losses, *, own=True):
    facts = OptimizerFacts(name="DecoupledAdam", own=own)
    return [replace(event, optimizer=facts) for event in run(shrink, losses, decay=0.05, lr=1e-3)]


def test_fires_where_an_optimizer_of_ones_own_takes_more_than_it_is_set_to():
    finding, *_ = play(WeightNormCollapse, *of_own_optimizer(0.9, [2.3] * 40))
    assert finding.severity == "warning"
    assert "steps of DecoupledAdam(weight_decay=0.05), all 2 matrices" in finding.message
    assert finding.fix.startswith("multiply the decay by the learning rate")


def test_near_miss_an_optimizer_of_torch_does_what_it_says():
    assert play(WeightNormCollapse, *of_own_optimizer(0.9, [2.3] * 40, own=False)) == []
    assert play(WeightNormCollapse, *of_own_optimizer(0.99, [2.3] * 40)) == []
    assert play(WeightNormCollapse, *of_own_optimizer(0.9, [2.3 * 0.95**i for i in range(40)])) == []


def penalised(*, second=1.0, decay=0.0, shrink=0.5, layers="abc", steps=8, update=0.6):
    """The gradient of each matrix is that of 0.01 × |w|; the last one's may be another."""
    for i in range(steps):
        sizes = [0.01] * (len(layers) - 1) + [0.01 * second]
        each = zip(layers, sizes, strict=True)
        numbers = [LayerNumbers(name=n, weight_rms=0.1 * shrink**i, gradient_rms=g, update_ratio=update, weight_decay=decay, learning_rate=1e-3)
                   for n, g in each]  # fmt: skip
        yield NumbersSampled(
            step=100 * i + 1, index=100 * i + 1, layers=tuple(numbers), loss=20 * shrink**i, first_loss=20.0
        )


def test_fires_where_nothing_but_the_gradient_of_a_penalty_is_left():
    (finding,) = play(WeightNormCollapse, *penalised())
    assert (finding.key, finding.step) == ("penalty", 601)
    assert finding.message == (
        "all 3 weight matrices shrank to under 1.6% of their first size in 601 steps, and all that is left of their gradients is "
        "0.01 on every weight, the same in each matrix"
    )
    assert "hundredfold, to 0.0001" in finding.fix


@pytest.mark.parametrize(
    "changed",
    [{"second": 1.3}, {"decay": 20.0}, {"shrink": 0.8}, {"layers": "a"}, {"steps": 6}, {"update": 0.02}],
    ids=["the data pull, too", "by decay", "not that small", "one matrix", "few samples", "larger than steps"],
)
def test_near_miss_a_penalty(changed):
    assert [finding for finding in play(WeightNormCollapse, *penalised(**changed)) if finding.key == "penalty"] == []


def squared(*, factor=0.5, shrink=0.3, decay=0.0, others=(1.0, 1.0), samples=8):
    """Two matrices that shrink, and gradients that are a multiple of them."""
    for number in range(samples):
        size = 0.1 * shrink**number
        layers = tuple(
            LayerNumbers(
                name=name,
                weight_rms=scale * size,
                gradient_rms=2 * factor * scale * size * other,
                weight_decay=decay,
                learning_rate=0.1,
                update_ratio=0.02,
            )
            for name, scale, other in (("a.weight", 1.0, others[0]), ("b.weight", 0.4, others[1]))
        )
        index = 1 + 100 * number
        yield NumbersSampled(step=index, index=index, layers=layers, loss=1.6, first_loss=24.0)


def test_fires_where_a_sum_of_squares_takes_everything():
    (finding,) = play(WeightNormCollapse, *squared())
    assert (finding.key, finding.severity) == ("squares", "warning")
    assert finding.message.endswith("all that is left of their gradients is 1 times the weights, in each matrix")
    assert "0.5 times the sum of the squared weights" in finding.cause


def with_a_table(events):
    """An embedding that began ten times as large, and has come down by a third."""
    table = LayerNumbers(
        name="table", kind="Embedding", weight_rms=1.0, gradient_rms=1.0, learning_rate=0.1, update_ratio=0.01
    )
    for at, event in enumerate(events):
        yield replace(event, layers=(*event.layers, replace(table, weight_rms=1.0 - 0.05 * at)))


def test_fires_beside_an_embedding_that_is_still_large():
    (finding,) = play(WeightNormCollapse, *with_a_table(squared()))
    assert finding.message.startswith("all 2 weight matrices besides embeddings shrank to under")
    assert play(WeightNormCollapse, *with_a_table(squared(others=(1.0, 3.0)))) == []


def test_a_penalty_is_told_once_whatever_the_weights_come_to():
    later = [replace(event, step=event.step + 9000, index=event.index + 9000) for event in squared()]
    same = [replace(event, layers=tuple(replace(layer, name=name) for layer, name in zip(event.layers, "ab", strict=True)))
            for event in later]  # fmt: skip
    assert {finding.key for finding in play(WeightNormCollapse, *penalised(layers="ab"), *same)} == {"penalty"}


@pytest.mark.parametrize(
    "changed",
    [
        {"shrink": 0.8, "samples": 4},  # not small
        {"others": (1.0, 3.0)},  # the data have a say
        {"factor": 1e-4},
        {"decay": 0.1},  # the optimizer's doing, which is told as such
    ],
)
def test_near_miss_a_sum_of_squares(changed):
    assert [finding for finding in play(WeightNormCollapse, *squared(**changed)) if finding.key == "squares"] == []


def thresholded(amount=0.003, *, left=0.001, losses=(1.09,) * 30, layers="ab"):
    """One amount goes off every weight between two steps; each matrix begins at 0.05."""
    for i, loss in enumerate(losses):
        taken = amount(i) if callable(amount) else amount
        rows = [
            LayerNumbers(name=n, weight_rms=left if i else 0.05, learning_rate=0.05, taken=taken if i < 12 else None)
            for n in layers
        ]
        optimizer = OptimizerFacts(name="SGD")
        yield NumbersSampled(
            step=i + 1, index=i + 1, optimizer=optimizer, layers=tuple(rows), loss=loss, first_loss=losses[0]
        )


def test_fires_when_a_threshold_behind_the_step_takes_it_all():
    finding, *_ = play(WeightNormCollapse, *thresholded())
    assert finding.message == (
        "something takes 0.003 off every weight between each step of SGD and the next: of all 2 matrices nothing is left after "
        "15 steps, and the loss stands at 1.09 (1.09 at first)"
    )
    assert "0.05 × 0.003 = 0.00015" in finding.fix
    one, *_ = play(WeightNormCollapse, *thresholded(layers="a"))
    assert "of a nothing is left" in one.message


def test_near_miss_a_threshold_that_leaves_weights_or_rises_along_a_path():
    assert play(WeightNormCollapse, *thresholded(left=0.004)) == []
    assert play(WeightNormCollapse, *thresholded(lambda i: 0.003 * 1.05**i)) == []
    assert play(WeightNormCollapse, *thresholded(lambda i: 0.003 if i % 2 else 0.0)) == []


def test_near_miss_a_threshold_while_the_loss_falls():
    assert play(WeightNormCollapse, *thresholded(losses=[1.09 * 0.95**i for i in range(30)])) == []
    assert play(WeightNormCollapse, *thresholded(losses=[1.09, *[0.5] * 20, *[1.09] * 9])) == []


def test_near_miss_matrices_that_begin_at_zero():
    """Half of an adapter; nothing shrinks, and nothing breaks."""
    zero = LayerNumbers(name="up.weight", weight_rms=0.0, gradient_rms=0.0, update_ratio=0.0)
    grown = LayerNumbers(name="down.weight", weight_rms=0.05, gradient_rms=0.01, update_ratio=0.01)
    events = [
        NumbersSampled(step=k, index=k, layers=(zero if k < 5 else grown, grown), loss=1.0, first_loss=1.0)
        for k in range(1, 40)
    ]
    assert play(WeightNormCollapse, *events) == []
