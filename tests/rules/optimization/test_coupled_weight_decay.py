from dataclasses import replace

import pytest

from flatline.events import GroupFacts, LayerNumbers, NumbersSampled, OptimizerCreated, OptimizerFacts, Where
from flatline.rules.optimization.coupled_weight_decay import CoupledWeightDecay
from flatline.testing import lint, play

ADAM = OptimizerFacts(name="Adam", adaptive=True, where=Where("train.py", 12))
ADAMW = OptimizerFacts(name="AdamW", adaptive=True, decoupled=True)
SGD = OptimizerFacts(name="SGD")


def created(name="Adam", *groups, adaptive=True, decoupled=False):
    facts = OptimizerFacts(name=name, adaptive=adaptive, decoupled=decoupled, groups=groups)
    return OptimizerCreated(optimizer=facts, where=Where("train.py", 12))


def layer(name="fc.weight", weight=0.1, gradient=1e-3, decay=0.1, **facts):
    return LayerNumbers(name=name, weight_rms=weight, gradient_rms=gradient, weight_decay=decay, **facts)


def sampled(*layers, steps=3, optimizer=ADAM):
    return [NumbersSampled(step=i, index=i, optimizer=optimizer, layers=layers) for i in range(1, steps + 1)]


def test_hints_at_coupled_decay():
    matrices, rest = GroupFacts(weight_decay=0.1, tensors=4), GroupFacts(tensors=6, small_tensors=6)
    (finding,) = play(CoupledWeightDecay, created("Adam", matrices, rest))
    assert finding.severity == "hint"
    assert finding.where == Where("train.py", 12)
    assert finding.key == "coupled"
    assert finding.message == "Adam(weight_decay=0.1) is coupled to the gradient"
    assert "AdamW" in finding.fix


def test_hints_at_decay_of_biases_and_norms():
    group = GroupFacts(weight_decay=0.01, tensors=9, small_tensors=5)
    (finding,) = play(CoupledWeightDecay, created("AdamW", group, decoupled=True))
    assert finding.severity == "hint"
    assert finding.key == "small"
    assert finding.message == "weight decay is applied to 5 biases and norm tensors"


def test_both_hints_at_once():
    group = GroupFacts(weight_decay=0.01, tensors=9, small_tensors=5)
    assert {f.key for f in play(CoupledWeightDecay, created("Adam", group))} == {"coupled", "small"}


def test_near_miss_no_decay():
    assert play(CoupledWeightDecay, created("Adam", GroupFacts(tensors=9, small_tensors=5))) == []


def test_near_miss_adamw_in_two_groups():
    groups = GroupFacts(weight_decay=0.1, tensors=4), GroupFacts(tensors=6, small_tensors=6)
    assert play(CoupledWeightDecay, created("AdamW", *groups, decoupled=True)) == []


def test_near_miss_sgd_with_l2():
    group = GroupFacts(weight_decay=5e-4, tensors=9, small_tensors=5)
    assert play(CoupledWeightDecay, created("SGD", group, adaptive=False)) == []


def test_warns_where_the_decay_is_as_large_as_the_gradients():
    (finding,) = play(CoupledWeightDecay, *sampled(layer(), layer("head.weight", gradient=5e-3), steps=5))
    assert finding.severity == "warning"
    assert "C2" in finding.consequences
    assert finding.step == 3
    assert finding.where == Where("train.py", 12)
    assert finding.key == "dominates"
    assert finding.message == (
        "Adam(weight_decay=0.1): the decay term is 10 × the loss's gradient in fc.weight, and over 0.5 × in 2 of 2 "
        "weight matrices"
    )


def test_each_optimizer_is_sampled_on_its_own():
    other = OptimizerFacts(key=1, name="Adam", adaptive=True)
    calm = sampled(layer(gradient=1.0), optimizer=other)
    mixed = [event for pair in zip(sampled(layer()), calm, strict=True) for event in pair]
    assert len(play(CoupledWeightDecay, *mixed)) == 1


def test_near_miss_decay_is_small_beside_the_gradients():
    assert play(CoupledWeightDecay, *sampled(layer(gradient=0.1), steps=9)) == []


def test_near_miss_in_a_few_matrices_only():
    assert play(CoupledWeightDecay, *sampled(layer(), *[layer(gradient=0.1)] * 3, steps=9)) == []


def test_near_miss_two_samples():
    assert (
        play(CoupledWeightDecay, *sampled(layer(), steps=2), *sampled(layer(gradient=0.1)), *sampled(layer())[:2]) == []
    )


def test_near_miss_published_recipe_with_a_small_l2_term():
    assert play(CoupledWeightDecay, *sampled(layer(decay=5e-4, gradient=1e-5), steps=9)) == []


def test_near_miss_decoupled_or_not_adaptive():
    assert play(CoupledWeightDecay, *sampled(layer(), steps=9, optimizer=ADAMW)) == []
    assert play(CoupledWeightDecay, *sampled(layer(), steps=9, optimizer=SGD)) == []


def test_near_miss_an_optimizer_of_ones_own():
    """Nobody knows what its step makes of the setting."""
    own = OptimizerFacts(name="DecoupledAdam", adaptive=True, own=True)
    assert play(CoupledWeightDecay, *sampled(layer(), steps=9, optimizer=own)) == []
    event = created("DecoupledAdam", GroupFacts(weight_decay=0.1))
    event = replace(event, optimizer=replace(event.optimizer, own=True))
    assert [finding.key for finding in play(CoupledWeightDecay, event)] == []


def test_near_miss_gradients_that_vanished_or_vectors():
    assert play(CoupledWeightDecay, *sampled(layer(gradient=0.0), steps=9)) == []
    assert play(CoupledWeightDecay, *sampled(layer(matrix=False), steps=9)) == []


@pytest.mark.parametrize("decay", ["0.01", "DECAY", "args.weight_decay"])
def test_source_adam_with_decay(decay):
    """Seen as a SourceParsed."""
    head = "import argparse, torch\nDECAY = 0.01\np = argparse.ArgumentParser()\np.add_argument('--weight-decay', default=0.01)\n"
    (finding,) = lint(
        CoupledWeightDecay,
        f"{head}args = p.parse_args()\nopt = torch.optim.Adam(net.parameters(), weight_decay={decay})",
    )
    assert (finding.severity, finding.where.line) == ("hint", 6)


@pytest.mark.parametrize(
    "made",
    ["AdamW(w, weight_decay=0.01)", "SGD(w, 0.1, weight_decay=0.01)", "Adam(w, weight_decay=0)", "Adam(w, weight_decay=decay)",
     "Adam(w, weight_decay=0.01, decoupled_weight_decay=True)"],
)  # fmt: skip
def test_near_miss_source_decoupled_or_unknown(made):
    assert lint(CoupledWeightDecay, f"import torch\nopt = torch.optim.{made}") == []
