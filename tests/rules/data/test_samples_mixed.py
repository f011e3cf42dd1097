from flatline.events import DimensionsMixed, SamplesProbed, Spread, Where
from flatline.rules.data.samples_mixed import SamplesMixed
from flatline.testing import play


def probed(effect=0.4, *, time=False, order=True, own=True, proven=True):
    spread = Spread(compared=1, changed=1, effect=effect, layer="rnn", kind="LSTM", shape=(5, 20, 6))
    return SamplesProbed(
        step=24,
        model="Net",
        spread=spread,
        reads_as_time=time,
        order_matters=order,
        own_target=own,
        proven=proven,
    )


def test_fires_where_samples_are_read_as_time():
    (finding,) = play(SamplesMixed, probed(time=True))
    assert (finding.code, finding.severity) == ("D12", "error")
    assert finding.message == (
        "with the other samples of its batch exchanged, the output of a sample changes by up to 0.4 standard deviations, "
        "in eval mode"
    )
    assert (
        finding.cause
        == "rnn (LSTM) takes the first dimension of its input (5 × 20 × 6) for time, and there are the samples"
    )
    assert finding.fix == "batch_first=True in that layer, or transpose(0, 1) before and after it"


def test_fires_where_the_order_of_samples_matters():
    (finding,) = play(SamplesMixed, probed())
    assert (
        finding.cause == "rnn (LSTM) is the first to mix samples, and their order in the batch decides what comes out"
    )
    assert "view and reshape" in finding.fix


def test_near_miss_a_model_of_sets():
    assert play(SamplesMixed, probed(order=False)) == []


def test_near_miss_one_target_for_all():
    assert play(SamplesMixed, probed(own=False)) == []


def test_near_miss_a_first_dimension_that_may_be_time():
    assert play(SamplesMixed, probed(time=True, proven=False)) == []
    assert play(SamplesMixed, probed(proven=False)) == []


def test_near_miss_rounding():
    assert play(SamplesMixed, probed(effect=2e-4, time=True)) == []


def test_fires_on_a_view_in_a_forward():
    """Near misses stand with the sensor, which makes no DimensionsMixed of a view behind a permute."""
    told = DimensionsMixed(
        step=1, where=Where("net.py", 42, "forward"), module="CRNN", statement="f.view(w, b, c * h)", order="b, c, h, w"
    )
    (finding,) = play(SamplesMixed, told)
    assert (finding.severity, finding.where) == ("error", Where("net.py", 42, "forward"))
    assert finding.message.startswith("`f.view(w, b, c * h)` in the forward of CRNN takes a tensor of (b, c, h, w)")
