from flatline.events import LayerNumbers, NumbersSampled, OptimizerFacts, ProjectionDrawn, Where
from flatline.rules.finetuning.weights_drawn_anew import WeightsDrawnAnew
from flatline.testing import play

ADAM = OptimizerFacts(name="Adam", key=1, where=Where("train.py", 9))


def steps(*cosines, count=6):
    return [
        NumbersSampled(
            step=index,
            optimizer=ADAM,
            index=index,
            layers=tuple(
                LayerNumbers(name=f"{at}.weight", kept=each if index > 1 else None) for at, each in enumerate(cosines)
            ),
        )
        for index in range(1, count + 1)
    ]


def test_all_matrices_are_others_at_every_step():
    finding, *_ = play(WeightsDrawnAnew, *steps(0.05, -0.1, 0.12))
    assert (finding.severity, finding.step, finding.where) == ("error", 5, ADAM.where)
    assert finding.message == (
        "the 3 weight matrices of Adam were others than those that the step before had left, 4 times in a row: "
        "their cosine is 0.05, where a step that goes on from the last one finds 1"
    )


def test_near_miss_weights_that_are_clipped_or_put_back():
    assert play(WeightsDrawnAnew, *steps(0.8, 0.9, 1.0)) == []


def test_near_miss_one_part_is_drawn_anew():
    assert play(WeightsDrawnAnew, *steps(0.05, 0.02, 1.0)) == []


def test_near_miss_once_and_never_again():
    once = [*steps(1.0, count=3), *steps(0.0, count=3), *steps(1.0, count=3)]
    assert play(WeightsDrawnAnew, *once) == []


def test_random_features_in_a_forward():
    """Near misses stand with the sensor: what is kept, seeded, or of the input's size makes no ProjectionDrawn."""
    told = ProjectionDrawn(
        step=1, where=Where("model.py", 7, "forward"), module="Fourier", statement="b = torch.randn(2, 64)"
    )
    (finding,) = play(WeightsDrawnAnew, told)
    assert (finding.severity, finding.where) == ("error", Where("model.py", 7, "forward"))
    assert finding.message == (
        "Fourier draws its random features in forward(), `b = torch.randn(2, 64)`: they are others in every pass"
    )


def test_near_miss_three_times_in_a_row():
    assert play(WeightsDrawnAnew, *steps(0.0, 0.1, count=4)) == []
