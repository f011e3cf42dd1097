from flatline.events import LoaderWaited
from flatline.rules.data.loader_starves import LoaderStarves
from flatline.testing import play


def test_fires_as_a_hint():
    (finding,) = play(LoaderStarves, LoaderWaited(steps=20, wait=0.03, share=0.75))
    assert finding.severity == "hint"
    assert finding.message == (
        "75% of the time of a step goes by in waiting for its batch, 30 ms with 0 workers, as 20 steps show"
    )
    assert "num_workers=4" in finding.fix


def test_more_workers():
    (finding,) = play(LoaderStarves, LoaderWaited(steps=20, wait=0.03, share=0.75, workers=2))
    assert "more workers" in finding.fix


def test_near_miss_a_small_share():
    assert play(LoaderStarves, LoaderWaited(steps=20, wait=0.03, share=0.2)) == []


def test_near_miss_a_tiny_model():
    assert play(LoaderStarves, LoaderWaited(steps=20, wait=0.0002, share=0.7)) == []


def test_near_miss_few_steps():
    assert play(LoaderStarves, LoaderWaited(steps=2, wait=0.03, share=0.7)) == []
