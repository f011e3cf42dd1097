from flatline.events import UnitsFacts, UnitsFollowed, Where
from flatline.rules.weights.units_alike import UnitsAlike
from flatline.testing import play


def followed(*layers, **facts):
    return UnitsFollowed(step=4, where=Where("train.py", 12), steps=4, layers=layers, **facts)


def test_copies_that_train_and_stay_copies():
    (finding,) = play(UnitsAlike, followed(UnitsFacts(name="fc1.weight", units=64, gradient=0.3)))
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 12)
    assert (
        finding.message == "after 4 steps all 64 units of fc1.weight have the same weights, as they had from the start"
    )
    assert "kaiming_normal_" in finding.fix


def test_zeros_everywhere_where_no_matrix_gets_a_gradient():
    layers = [UnitsFacts(name=name, units=32, zero=True) for name in ("a.weight", "b.weight")]
    (finding,) = play(UnitsAlike, followed(*layers, learning=False))
    assert finding.message == (
        "after 4 steps all 32 units of a.weight have weights of nothing but zeros, as they had from the start; "
        "so have those of b.weight"
    )
    assert "passes no gradient on" in finding.cause


def test_columns_of_a_table():
    tables = [UnitsFacts(name=name, units=8, columns=True, gradient=0.1) for name in ("p.weight", "q.weight")]
    (finding,) = play(UnitsAlike, followed(*tables))
    assert finding.message == (
        "after 4 steps all 8 columns of p.weight have the same weights, as they had from the start; so have those of q.weight"
    )
    assert finding.fix.startswith("draw the table at random")


def test_near_miss_all_parted():
    assert play(UnitsAlike, followed()) == []


def test_near_miss_zeros_that_wait_for_their_turn():
    layers = [UnitsFacts(name=name, units=32, zero=True) for name in ("lora_b.weight", "other_b.weight")]
    assert play(UnitsAlike, followed(*layers, learning=True)) == []


def test_near_miss_one_layer_without_a_gradient():
    assert play(UnitsAlike, followed(UnitsFacts(name="head.weight", units=10, zero=True), learning=False)) == []


def test_near_miss_columns_without_a_gradient():
    assert play(UnitsAlike, followed(UnitsFacts(name="items.weight", units=8, columns=True))) == []
