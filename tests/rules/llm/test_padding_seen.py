from flatline.events import PaddedStateTaken, PaddingProbed, Spread
from flatline.rules.llm.padding_seen import PaddingSeen
from flatline.testing import play


def probed(effect, half, *, recurrent=False, proven=True):
    spread = Spread(compared=1, changed=1, effect=effect, layer="encoder", kind="GRU" if recurrent else "Encoder")
    return PaddingProbed(
        step=24, model="Net", length=24, padded=20, spread=spread, half=half, recurrent=recurrent, proven=proven
    )


def test_fires_where_half_of_it_matters_too():
    (finding,) = play(PaddingSeen, probed(0.9, 0.4))
    assert (finding.code, finding.severity) == ("L14", "warning")
    assert finding.message == (
        "without the 20 positions of padding at its end, a sequence of 24 gets another output, "
        "by 0.9 times the spread between samples"
    )
    assert finding.cause == "encoder (Encoder) is the first to mix padding into what is real"


def test_fires_where_a_recurrent_layer_has_come_to_rest():
    assert len(play(PaddingSeen, probed(3.0, 0.01, recurrent=True))) == 1


def test_near_miss_blanks_that_may_mean_something():
    (hint,) = play(PaddingSeen, probed(0.9, 0.4, proven=False))
    assert hint.severity == "hint"
    assert hint.cause.endswith("if it is padding: nothing but its place says so")


def test_near_miss_the_edge_of_a_convolution():
    assert play(PaddingSeen, probed(0.8, 0.0)) == []
    assert play(PaddingSeen, probed(0.8, 0.03)) == []


def test_near_miss_a_masked_encoder():
    assert play(PaddingSeen, probed(1e-6, 1e-6)) == []


def test_near_miss_a_recurrent_layer_on_packed_sequences():
    assert play(PaddingSeen, probed(0.0, 0.0, recurrent=True)) == []


def test_fires_on_a_state_behind_the_padding():
    event = PaddedStateTaken(step=90, layer="lstm", kind="LSTM", length=120, padded=105, rows=60, of=64, left=3e-8)
    (finding,) = play(PaddingSeen, event)
    assert (finding.severity, finding.evidence["left"]) == ("warning", 3e-8)
    assert "behind 105 positions of padding (the median of 60 rows of 64)" in finding.message
    assert "differs 3e-08 times as much" in finding.message


def test_fires_where_no_gradient_comes_through_the_padding():
    event = PaddedStateTaken(step=90, layer="lstm", kind="LSTM", length=120, padded=105, left=0.4, reached=2e-9)
    assert "comes 2e-09 of the gradient at the padding" in play(PaddingSeen, event)[0].message
