from dataclasses import replace

import pytest

from flatline.events import ParameterFacts, ParametersAudited, RandomFrozen, Where
from flatline.rules.optimization.adapter_not_wired import AdapterNotWired
from flatline.testing import play

FROZEN = RandomFrozen(step=1, where=Where("train.py", 9), model="Classifier", layers=("score",), loaded=40, trains=8)


def parameter(name, *shape, **facts):
    facts = {"optimizers": (0,), "gradient_zero": True, **facts}
    return ParameterFacts(name=name, shape=shape, numel=shape[0] * shape[1], **facts)


BASE = parameter("blocks.0.q.base.weight", 64, 32, trainable=False, optimizers=())
A = parameter("blocks.0.q.lora_a", 4, 32)
B = parameter("blocks.0.q.lora_b", 64, 4)


def audit(*parameters, step=5, **facts):
    return ParametersAudited(step=step, backward_where=Where("train.py", 29), parameters=parameters, **facts)


def test_fires_on_two_matrices_of_zeros():
    (finding,) = play(AdapterNotWired, audit(BASE, A, B))
    assert (finding.code, finding.severity, finding.where) == ("O21", "error", Where("train.py", 29))
    assert finding.message == (
        "1 of 1 adapters got a gradient of exactly zero in both of their matrices at every step (first "
        "blocks.0.q.lora_a and blocks.0.q.lora_b)"
    )


def test_fires_on_matrices_in_modules_of_their_own():
    a, b = replace(A, name="q.lora_A.default.weight"), replace(B, name="q.lora_B.default.weight")
    assert len(play(AdapterNotWired, audit(replace(BASE, name="q.base_layer.weight"), a, b))) == 1


def test_fires_on_some_of_them():
    other = [replace(p, name=p.name.replace("0", "1"), gradient_zero=p is BASE) for p in (BASE, A, B)]
    (finding,) = play(AdapterNotWired, audit(BASE, A, B, *other))
    assert (finding.severity, finding.evidence) == ("warning", {"dead": 1, "adapters": 2})


def test_near_miss_one_matrix_starts_at_zero():
    assert play(AdapterNotWired, audit(BASE, A, replace(B, gradient_zero=False))) == []


def test_near_miss_the_first_steps_of_a_warm_up():
    assert play(AdapterNotWired, audit(BASE, A, B, step=2)) == []


def test_near_miss_a_gate_in_the_same_layer():
    assert play(AdapterNotWired, audit(BASE, A, B, parameter("blocks.0.q.gate", 1, 1, gradient_zero=False))) == []


@pytest.mark.parametrize(
    "facts", [{"trainable": True}, {"shape": (64, 64)}, {"shape": (4, 2), "numel": 8}, {"name": "elsewhere.weight"}]
)
def test_near_miss_no_frozen_weight_of_that_shape(facts):
    assert play(AdapterNotWired, audit(replace(BASE, **facts), A, B)) == []


def test_fires_on_a_head_frozen_at_random():
    (finding,) = play(AdapterNotWired, FROZEN)
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 9))
    assert finding.message == (
        "score of Classifier is frozen with fresh random weights: the checkpoint filled the other 40 tensors, and 8 "
        "tensors train"
    )


def test_near_miss_nothing_was_left_out():
    assert play(AdapterNotWired) == []


def test_near_miss_is_told_once():
    assert len(play(AdapterNotWired, FROZEN, FROZEN)) == 1
