from flatline.events import FutureProbed, Spread
from flatline.rules.llm.future_seen import FutureSeen
from flatline.testing import play


def probed(effect, *, next_token=True, layer="blocks.0.attn", summary=False):
    spread = Spread(compared=192, changed=190, effect=effect, layer=layer, kind="Attention")
    return FutureProbed(
        step=24, model="GPT", length=24, begin=12, next_token=next_token, spread=spread, summary=summary
    )


def test_fires_where_earlier_scores_change():
    (finding,) = play(FutureSeen, probed(0.3))
    assert (finding.code, finding.severity) == ("L13", "error")
    assert finding.message == (
        "with the tokens from position 12 on exchanged, 190 of 192 scores before it change, by up to 0.3 standard deviations"
    )
    assert finding.cause.startswith("blocks.0.attn (Attention) is the first to mix later positions into earlier ones")


def test_names_the_model_where_no_layer_is_known():
    (finding,) = play(FutureSeen, probed(0.3, layer=""))
    assert finding.cause.startswith("Attention itself is the first")


def test_near_miss_one_vector_for_a_whole_sentence():
    (hint,) = play(FutureSeen, probed(0.3, summary=True))
    assert hint.severity == "hint"
    assert hint.cause.startswith("one vector of the whole sequence reaches every position, through blocks.0.attn")


def test_near_miss_a_masked_model():
    assert play(FutureSeen, probed(0.0)) == []


def test_near_miss_rounding():
    assert play(FutureSeen, probed(5e-4)) == []


def test_near_miss_labels_that_are_no_next_tokens():
    assert play(FutureSeen, probed(0.3, next_token=False)) == []
