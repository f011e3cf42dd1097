import pytest

from flatline.events import LayerNumbers, NumbersSampled
from flatline.rules.optimization.update_ratio_off import UpdateRatioOff
from flatline.testing import play


def run(odd, *, others=1e-3, count=40, kind="Linear", lr=1e-3, weight=0.1, layers=4, elements=256, losses=(2.0, 2.0)):
    same = [
        LayerNumbers(name=f"net.{i}", weight_rms=0.1, gradient_rms=1e-3, update_ratio=others, elements=256)
        for i in range(layers - 1)
    ]
    one = LayerNumbers(
        name="odd",
        weight_rms=weight,
        gradient_rms=1e-3,
        update_ratio=odd,
        kind=kind,
        learning_rate=lr,
        elements=elements,
    )
    first, last = losses
    return [
        NumbersSampled(step=i + 1, index=i + 1, layers=(*same, one), first_loss=first, loss=last) for i in range(count)
    ]


def test_fires_on_a_group_with_a_mistaken_rate():
    (finding,) = play(UpdateRatioOff, *run(1e-9, lr=1e-9))
    assert finding.severity == "warning"
    assert finding.message == (
        "odd changes by 1.0e-09 of its size at a step, the other weight matrices by 1.0e-03; its group's lr is 1e-09, that of the "
        "others 0.001"
    )
    assert finding.cause == "the learning rate of its parameter group is far too low"
    assert finding.fix == "set the lr of its group to about 0.001"


def test_fires_on_a_rate_so_low_that_nothing_arrives():
    (finding,) = play(UpdateRatioOff, *run(0.0, lr=1e-12))
    assert finding.fix == "set the lr of its group to about 0.001"


def test_fires_on_a_layer_thrown_about():
    (finding,) = play(UpdateRatioOff, *run(0.5))
    assert "far larger than the others'" in finding.cause


def test_fires_on_a_group_thrown_away_at_once():
    (finding,) = play(UpdateRatioOff, *run(4.0, lr=20.0, count=6))
    assert finding.step == 5
    assert finding.fix == "set the lr of its group to about 0.005"


@pytest.mark.parametrize("odd", [1e-5, 1e-4, 0.05])
def test_near_miss_other_rates(odd):
    """A pretrained body at a hundredth of the head's rate, and a head at fifty times."""
    assert play(UpdateRatioOff, *run(odd)) == []


def test_near_miss_embedding_zero_initialised_or_frozen():
    assert play(UpdateRatioOff, *run(1e-9, kind="Embedding")) == []
    assert play(UpdateRatioOff, *run(0.5, weight=1e-6)) == []
    assert play(UpdateRatioOff, *run(0.0)) == []
    assert play(UpdateRatioOff, *run(None)) == []


def test_fires_on_an_embedding_with_a_rate_of_its_own():
    (finding,) = play(UpdateRatioOff, *run(5e-8, lr=2e-7, kind="Embedding"))
    assert finding.fix == "set the lr of its group to about 0.004"
    assert play(UpdateRatioOff, *run(5e-8, lr=1e-5, kind="Embedding")) == []


def test_near_miss_the_first_steps_of_a_tensor_that_began_at_zero():
    assert play(UpdateRatioOff, *run(4.0, count=6)) == []
    assert play(UpdateRatioOff, *run(4.0, lr=0.016, count=6)) == []


def test_near_miss_the_first_steps_or_too_few_layers():
    assert play(UpdateRatioOff, *run(0.5, count=25)) == []
    assert play(UpdateRatioOff, *run(0.5, layers=2)) == []


def test_near_miss_all_are_fast():
    assert play(UpdateRatioOff, *run(0.5, others=0.2)) == []


def test_near_miss_a_tiny_matrix_or_a_loss_that_falls():
    """A head of four weights: their size is near zero by chance."""
    assert play(UpdateRatioOff, *run(0.5, elements=4)) == []
    assert play(UpdateRatioOff, *run(0.5, losses=(2.0, 0.7))) == []
