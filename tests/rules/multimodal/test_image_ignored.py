import pytest

from flatline.events import InfluenceFacts, InfluenceProbed
from flatline.rules.multimodal.image_ignored import ImageIgnored
from flatline.testing import play


def probed(image, text, kind="image", waiting=False):
    return InfluenceProbed(
        step=24,
        model="VQA",
        inputs=(
            InfluenceFacts(name="pixels", kind=kind, shape=(32, 3, 16, 16), effect=image),
            InfluenceFacts(name="ids", kind="tokens", shape=(32, 6), effect=text),
        ),
        waiting=waiting,
    )


def test_fires_on_an_image_without_effect():
    (finding,) = play(ImageIgnored, probed(0.0, 1.5))
    assert (finding.code, finding.severity, finding.key) == ("X5", "error", "pixels")
    assert finding.message == "with the images of a batch exchanged for one another, the output of VQA does not change"
    assert (
        finding.cause
        == "pixels (32 × 3 × 16 × 16) reaches the output nowhere; the other inputs move it by 1.5 standard deviations"
    )


def test_near_miss_a_weak_image():
    assert play(ImageIgnored, probed(0.004, 1.5)) == []


@pytest.mark.parametrize("event", [probed(0.0, 0.0), probed(0.0, 1.5, waiting=True)], ids=["constant", "gate"])
def test_near_miss_where_nothing_is_proven(event):
    assert play(ImageIgnored, event) == []


def test_near_miss_another_input_without_effect_is_a_hint():
    text = InfluenceFacts(name="ids", kind="tokens", shape=(32, 6), effect=1.5)
    patches = InfluenceFacts(name="patches", shape=(32, 16, 48), effect=0.0)
    lengths = InfluenceFacts(name="lengths", shape=(32,), effect=0.0)
    (hint,) = play(ImageIgnored, InfluenceProbed(step=24, model="VQA", inputs=(text, patches, lengths)))
    assert (hint.severity, hint.key) == ("hint", "patches")
    assert hint.message == "with patches exchanged between the samples of a batch, the output of VQA does not change"
