import math

from flatline.events import ActivationsSampled, AttentionFacts, AttentionSampled, RunEnded
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


UNTRAINED = ActivationsSampled(step=1, untrained=True)
STUCK = RunEnded(step=200, loss=1.5, first_loss=1.72)


def layers(*heads, looks=8, **facts):
    """The same layers at some steps, each with its heads."""
    seen = [
        AttentionFacts(**{"layer": f"att{place}", "heads": each, "keys": 16, "rows": 40, "projected": True, **facts})
        for place, each in enumerate(heads, 1)
    ]
    return [AttentionSampled(step=step, layers=tuple(seen), loss=1.6) for step in range(1, looks + 1)]


def test_fires_on_layers_that_were_made_so():
    (finding,) = play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, (0.03, 0.12)), STUCK)
    assert finding.severity == "warning"
    assert finding.message == (
        "both attention layers attend to one key each since before the first step: the entropy of att1 was 0.015 of "
        "ln(16 keys), where fresh projections give 0.9, and it stayed so; loss 1.72 at first, 1.5 at the end"
    )


def test_says_what_to_do_where_queries_have_a_given_length():
    (finding,) = play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, SHUT, SHUT, normalised=True), STUCK)
    assert finding.message.startswith("all 3 attention layers attend")
    assert "begin at 10" in finding.fix


def test_near_miss_made_so_and_the_task_is_solved():
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, SHUT), RunEnded(loss=0.2, first_loss=1.7)) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, SHUT), RunEnded()) == []


def test_near_miss_one_layer_or_an_open_one_beside_it():
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT), STUCK) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, OPEN), STUCK) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, (0.15, 0.2)), STUCK) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, (0.0, math.nan)), STUCK) == []


def test_near_miss_made_so_and_opens():
    looks = [*layers(SHUT, SHUT, looks=6), *layers(SHUT, OPEN, looks=1), *layers(SHUT, SHUT)]
    assert play(AttentionEntropyCollapse, UNTRAINED, *looks, STUCK) == []


def test_near_miss_a_bias_makes_attention_local():
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, SHUT, alone=0.4), STUCK) == []
    assert len(play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, SHUT, alone=9.0), STUCK)) == 1


def test_near_miss_no_projections():
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, SHUT, projected=False), STUCK) == []


def test_near_miss_trained_or_loaded_weights():
    assert play(AttentionEntropyCollapse, *layers(SHUT, SHUT), STUCK) == []
    assert play(AttentionEntropyCollapse, ActivationsSampled(), *layers(SHUT, SHUT), STUCK) == []


def test_near_miss_made_so_and_few_looks_or_keys():
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, SHUT, looks=4), STUCK) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, SHUT, keys=5), STUCK) == []


def test_fires_on_one_layer_whose_scores_are_enlarged():
    (finding,) = play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, scale=32.0, one_query=True), STUCK)
    assert finding.message == (
        "the attention attends to one key each since before the first step: the entropy of att1 was 0.015 of ln(16 keys), "
        "where fresh projections give 0.9, q·k is multiplied by 32, and it stayed so; loss 1.72 at first, 1.5 at the end"
    )


def test_fires_where_scores_are_multiplied_by_what_should_divide_them():
    soft = (0.2, 0.29)
    (finding,) = play(AttentionEntropyCollapse, UNTRAINED, *layers(soft, soft, scale=32**0.5, width=32), STUCK)
    assert "q·k is multiplied by 5.66, which is √32, and it stayed so" in finding.message


def test_fires_where_one_batch_is_attended_to_more_evenly():
    soft, slip = (0.3, 0.32), {"scale": 96**0.5, "width": 96}
    looks = [
        *layers(soft, soft, looks=3, **slip),
        *layers((0.44, 0.46), soft, looks=1, **slip),
        *layers(soft, soft, **slip),
    ]
    assert len(play(AttentionEntropyCollapse, UNTRAINED, *looks, STUCK)) == 1
    looks = [*looks, *layers((0.7, 0.7), soft, looks=1, **slip)]
    assert play(AttentionEntropyCollapse, UNTRAINED, *looks, STUCK) == []


def test_fires_where_scores_that_should_be_divided_make_training_worse():
    slip = layers((0.2, 0.29), (0.2, 0.29), scale=32**0.5, width=32)
    (finding,) = play(AttentionEntropyCollapse, UNTRAINED, *slip, RunEnded(step=800, loss=0.2, first_loss=1.9))
    assert finding.message.endswith("loss 1.9 at first, 0.2 at the end")


def test_near_miss_scores_that_should_be_divided_and_the_task_is_solved():
    slip = layers((0.2, 0.29), (0.2, 0.29), scale=32**0.5, width=32)
    assert play(AttentionEntropyCollapse, UNTRAINED, *slip, RunEnded(step=800, loss=0.008, first_loss=1.9)) == []


def test_near_miss_soft_attention_of_another_scale():
    soft = (0.2, 0.29)
    for scale, width in ((5.0, 32), (32**-0.5, 32), (32**0.5, 0)):
        assert play(AttentionEntropyCollapse, UNTRAINED, *layers(soft, soft, scale=scale, width=width), STUCK) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers((0.6, 0.7), scale=32**0.5, width=32), STUCK) == []


def test_near_miss_one_layer_with_another_scale():
    for scale in (0.18, 1.0, None, math.nan):
        assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, scale=scale), STUCK) == []
        assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, SHUT, scale=scale, one_query=True), STUCK) == []


def test_near_miss_enlarged_scores_that_stay_even():
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers((0.4,), scale=4.0), STUCK) == []


def test_near_miss_one_query_that_comes_to_point_at_one_key():
    looks = [
        AttentionSampled(step=step, layers=(AttentionFacts(heads=heads, keys=32, rows=24, one_query=True),), loss=loss)
        for step, (heads, loss) in enumerate(COLLAPSE, 1)
    ]
    assert play(AttentionEntropyCollapse, *looks) == []


def test_fires_on_one_layer_with_wide_projections():
    (finding,) = play(AttentionEntropyCollapse, UNTRAINED, *layers((0.1, 0.18), gain=6.4), STUCK)
    assert (
        "its projections have rms × √fan_in of 6.4, where nn.Linear begins at 0.58, and it stayed so" in finding.message
    )


def test_near_miss_projections_as_they_are_made():
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, gain=1.4), STUCK) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, gain=6.4, projected=False), STUCK) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers((0.3, 0.2), gain=6.4), STUCK) == []


def test_fires_on_few_keys_where_projections_and_scale_say_the_same():
    (finding,) = play(AttentionEntropyCollapse, UNTRAINED, *layers((0.01, 0.0), gain=6.3, scale=6.3, keys=7), STUCK)
    assert "of ln(7 keys)" in finding.message


def test_near_miss_few_keys_and_one_reason_only():
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, gain=6.3, scale=0.2, keys=7), STUCK) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, gain=1.4, scale=6.3, keys=7), STUCK) == []
    assert play(AttentionEntropyCollapse, UNTRAINED, *layers(SHUT, gain=6.3, scale=6.3, keys=5), STUCK) == []
