from flatline.events import Where, WorkersStarted
from flatline.rules.seeds.equal_streams_in_workers import EqualStreamsInWorkers
from flatline.testing import play


def started(**facts):
    own = {"owner": "Noisy", "generator": "rng", "kind": "numpy.random.Generator"}
    return WorkersStarted(**{"step": 1, "where": Where("train.py", 20), "workers": 4, **own, **facts})


def test_fires_on_a_generator_of_the_data_set():
    (finding,) = play(EqualStreamsInWorkers, started())
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 20))
    assert finding.message == (
        "Noisy draws from its own numpy.random.Generator, rng, and each of the 4 workers gets a copy of it in the same state: "
        "they draw the same numbers, and the same again in every epoch"
    )


def test_says_nothing_of_epochs_where_workers_live_on():
    (finding,) = play(EqualStreamsInWorkers, started(persistent=True))
    assert finding.message.endswith("they draw the same numbers")


def test_near_miss_no_generator_of_its_own():
    assert play(EqualStreamsInWorkers, started(owner="", generator="", kind="")) == []


def test_near_miss_one_worker():
    assert play(EqualStreamsInWorkers, started(workers=1)) == []


def test_fires_on_one_seed_for_all():
    event = started(owner="", generator="", kind="", seeding="np.random.seed(1234)", seeded="numpy.random")
    (finding,) = play(EqualStreamsInWorkers, event)
    assert (finding.severity, finding.key) == ("warning", "seeded")
    assert finding.message == (
        "`np.random.seed(1234)` in worker_init_fn gives each of the 4 workers the same seed, and the data set draws from "
        "numpy.random: they draw the same numbers, and the same again in every epoch"
    )


def test_near_miss_one_seed_for_one_worker():
    assert (
        play(EqualStreamsInWorkers, started(generator="", seeding="random.seed(0)", seeded="random", workers=1)) == []
    )
