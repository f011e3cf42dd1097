import math

from flatline.events import AttentionFacts, AttentionSampled
from flatline.rules.weights.attention_entropy_collapse import AttentionEntropyCollapse
from flatline.testing import play


def sampled(*looks, keys=32, layer="blocks.0.attn"):
    """Entropies of the heads and the loss, step by step."""
    return [
        AttentionSampled(
            step=step, layers=(AttentionFacts(layer=layer, heads=heads, keys=keys, rows=40, spread=30.0),), loss=loss
        )
        for step, (heads, loss) in enumerate(looks, 1)
    ]


OPEN = (0.95, 0.9, 0.97, 0.93)
SHUT = (0.01, 0.02, 0.0, 0.03)
COLLAPSE = [(OPEN, 4.0), (OPEN, 3.0), (SHUT, 3.4), (SHUT, 3.5), (SHUT, 3.6)]


def test_fires_on_a_collapse_while_the_loss_climbs():
    (finding,) = play(AttentionEntropyCollapse, *sampled(*COLLAPSE))
    assert finding.severity == "warning"
    assert finding.message == (
        "the attention of blocks.0.attn has collapsed: entropy 0.02 of ln(32 keys) in its 4 heads, 0.95 when first seen, "
        "scores of a row have std 30; loss 3.6, 3 before"
    )


def test_fires_where_it_was_open_at_the_first_step_only():
    looks = [(OPEN, None), (SHUT, 1.4), (SHUT, 1.7), (SHUT, 1.6), (SHUT, 1.5)]
    assert len(play(AttentionEntropyCollapse, *sampled(*looks))) == 1


def test_near_miss_some_sharp_heads():
    heads = (0.01, 0.02, 0.5, 0.9)
    assert play(AttentionEntropyCollapse, *sampled((OPEN, 4.0), *[(heads, 4.5)] * 6)) == []


def test_near_miss_sharp_and_the_loss_falls():
    looks = [(OPEN, 4.0), (OPEN, 3.0), (SHUT, 2.6), (SHUT, 2.2), (SHUT, 2.1)]
    assert play(AttentionEntropyCollapse, *sampled(*looks)) == []
    looks = [(OPEN, 4.0), (OPEN, 0.5), (SHUT, 0.6), (SHUT, 0.5), (SHUT, 0.6)]
    assert play(AttentionEntropyCollapse, *sampled(*looks)) == []


def test_near_miss_sharp_from_the_start():
    assert play(AttentionEntropyCollapse, *sampled(*[(SHUT, 4.0)] * 6)) == []
    assert play(AttentionEntropyCollapse, *sampled(((0.2,) * 4, 4.0), *[(SHUT, 4.0)] * 6)) == []


def test_near_miss_two_steps_or_opens_again():
    assert play(AttentionEntropyCollapse, *sampled(*COLLAPSE[:4])) == []
    assert play(AttentionEntropyCollapse, *sampled(*COLLAPSE[:4], (OPEN, 3.5), (SHUT, 3.5))) == []


def test_near_miss_few_keys():
    assert play(AttentionEntropyCollapse, *sampled(*COLLAPSE, keys=4)) == []


def test_near_miss_nothing_to_judge_by():
    assert play(AttentionEntropyCollapse, *sampled(*[(heads, None) for heads, _ in COLLAPSE])) == []
    assert play(AttentionEntropyCollapse, *sampled(*[(heads, math.nan) for heads, _ in COLLAPSE])) == []
    assert play(AttentionEntropyCollapse, *sampled(*[((), loss) for _, loss in COLLAPSE])) == []
