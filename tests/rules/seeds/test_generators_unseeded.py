from flatline.events import SeedsObserved
from flatline.rules.seeds.generators_unseeded import GeneratorsUnseeded
from flatline.testing import play


def test_hints_at_each_generator():
    (finding,) = play(GeneratorsUnseeded, SeedsObserved(step=100, seeded=("torch",), unseeded=("numpy", "random")))
    assert finding.severity == "hint"
    assert finding.message == "the run drew from numpy and random without a seed, though torch was seeded"
    assert finding.fix == "at the top of the script: np.random.seed(seed); random.seed(seed)"


def test_near_miss_everything_seeded():
    assert play(GeneratorsUnseeded, SeedsObserved(step=100, seeded=("random", "torch"))) == []


def test_near_miss_no_training():
    assert play(GeneratorsUnseeded, SeedsObserved(step=0, unseeded=("torch",))) == []
