import pytest

from flatline.events import ActivationsSampled, LayerActivations, RunEnded, WavesStacked
from flatline.rules.weights.init_against_nonlinearity import InitAgainstNonlinearity
from flatline.testing import play


def sampled(gain, kind="ReLU", layers=3, untrained=True, norm=False):
    found = []
    for i in range(layers):
        found.append(LayerActivations(layer=f"{3 * i}", kind="Linear", weighted=True, gain=gain, fan_in=64))
        if norm:
            found.append(LayerActivations(layer=f"{3 * i + 1}", kind="LayerNorm"))
        found.append(LayerActivations(layer=f"{3 * i + 2}", kind=kind))
    return ActivationsSampled(untrained=untrained, layers=tuple(found))


@pytest.mark.parametrize("gain", [0.08, 8.0])
def test_hints_at_a_fixed_deviation(gain):
    (finding,) = play(InitAgainstNonlinearity, sampled(gain))
    assert finding.severity == "hint"
    assert "kaiming_normal_" in finding.fix
    assert f"multiplies the size of its input by {gain:.2g}" in finding.cause


def test_names_the_scheme_for_tanh():
    (finding,) = play(InitAgainstNonlinearity, sampled(8.0, kind="Tanh"))
    assert finding.message == (
        "the weights of 3 layers before Tanh (0 …) have an rms of about 1 with 64 inputs; Tanh wants 0.12"
    )
    assert "xavier_normal_" in finding.fix


@pytest.mark.parametrize("gain", [0.58, 1.0, 1.41])
@pytest.mark.parametrize("kind", ["ReLU", "Tanh", "Sigmoid", "GELU"])
def test_near_miss_usual_schemes(gain, kind):
    assert play(InitAgainstNonlinearity, sampled(gain, kind)) == []


def test_near_miss_normalised_network():
    assert play(InitAgainstNonlinearity, sampled(0.08, norm=True)) == []


def test_near_miss_trained_few_layers_or_no_activation():
    assert play(InitAgainstNonlinearity, sampled(0.08, untrained=False)) == []
    assert play(InitAgainstNonlinearity, sampled(0.08, layers=2)) == []
    assert play(InitAgainstNonlinearity, sampled(0.08, kind="Identity")) == []


ENDED = RunEnded(step=900, how="finished", loss=0.1, first_loss=0.4)


def test_fires_where_the_phases_of_stacked_sines_spread_over_whole_turns():
    (finding,) = play(InitAgainstNonlinearity, WavesStacked(phases=(29.0, 30.0)), ENDED)
    assert (finding.code, finding.severity) == ("W6", "warning")
    assert "the phases of 2 sine layers behind another sine have a deviation of 29.5 at the start" in finding.message


@pytest.mark.parametrize("phases", [(1.0, 1.0, 1.0), (4.1, 4.2), (0.4,), (12.0, 1.0), (14.0,)])
def test_near_miss_phases_of_usual_size(phases):
    assert play(InitAgainstNonlinearity, WavesStacked(phases=phases), ENDED) == []


def test_near_miss_sines_that_learned_all_the_same():
    learned = RunEnded(step=900, how="finished", loss=0.02, first_loss=0.4)
    assert play(InitAgainstNonlinearity, WavesStacked(phases=(29.0, 30.0)), learned) == []
