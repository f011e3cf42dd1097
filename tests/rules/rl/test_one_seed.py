from flatline.events import RunsCompared, SeedGroup
from flatline.rules.rl.one_seed import OneSeed
from flatline.testing import play


def found(*groups):
    made = tuple(SeedGroup(name=f"group {i}", finals=finals) for i, finals in enumerate(groups))
    return play(OneSeed, RunsCompared(groups=made))


def test_fires_on_few_seeds():
    (finding,) = found((100.0, 120.0, 90.0), (10.0, 12.0))
    assert finding.code == "R6"
    assert finding.message.startswith("fewer than 5 seeds; interquartile means of the final reward")
    assert finding.evidence["fewest"] == 2


def test_fires_on_overlapping_intervals():
    (finding,) = found((10.0, 30.0, 20.0, 25.0, 14.0), (11.0, 29.0, 18.0, 26.0, 16.0))
    assert "overlap" in finding.message
    assert finding.evidence["overlap"]


def test_the_interquartile_mean_leaves_out_the_extremes():
    (finding,) = found((0.0, 10.0, 10.0, 1e6))
    assert "group 0 10 [" in finding.message


def test_near_miss_enough_seeds_and_apart():
    assert found((100.0, 101.0, 99.0, 100.5, 98.0), (10.0, 11.0, 9.0, 12.0, 10.0)) == []


def test_near_miss_one_run():
    assert found((100.0,)) == []


def test_near_miss_five_seeds_of_one_setting():
    assert found((1.0, 2.0, 3.0, 4.0, 5.0)) == []
