from dataclasses import replace

from flatline.events import ParameterFacts, ParametersAudited, Where
from flatline.rules.optimization.frozen_but_updated import FrozenButUpdated
from flatline.testing import play

HEAD = ParameterFacts(name="head.weight", optimizers=(0,), moved_at_step=True)


def audit(*parameters):
    return ParametersAudited(step=3, where=Where("train.py", 30), parameters=(HEAD, *parameters))


def frozen(name="body.weight", *, optimizers=(0,), moved_frozen=True, decay=0.01):
    return ParameterFacts(
        name=name, trainable=False, optimizers=optimizers, moved_frozen=moved_frozen, weight_decay=decay
    )


def held(*, zeroed=True, decay=0.01, moved=True, optimizers=(0,)):
    return ParameterFacts(
        name="body.weight", optimizers=optimizers, gradient_zeroed=zeroed, moved_at_step=moved, weight_decay=decay
    )


def test_fires_on_frozen_parameters_that_a_step_moved():
    (finding,) = play(FrozenButUpdated, audit(frozen(), frozen("body.bias", decay=0.0)))
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 30)
    assert finding.key == "frozen"
    assert finding.message == "2 parameters with requires_grad=False changed inside step() (first body.weight)"
    assert "applies weight decay (0.01) and momentum" in finding.cause
    assert finding.evidence == {"parameters": 2, "weight_decay": 0.01}


def test_fires_on_momentum_alone():
    (finding,) = play(FrozenButUpdated, audit(frozen(decay=0.0)))
    assert "applies momentum to them" in finding.cause


def test_warns_of_gradients_that_are_zeroed_before_the_step():
    (finding,) = play(FrozenButUpdated, audit(held()))
    assert finding.severity == "warning"
    assert finding.key == "zeroed"
    assert finding.message == (
        "the gradients of 1 parameters are zeroed before each step, and weight decay (0.01) moves them all the same "
        "(first body.weight)"
    )


def test_frozen_ones_come_first():
    (finding,) = play(FrozenButUpdated, audit(held(), frozen()))
    assert finding.key == "frozen"


def test_near_miss_in_the_optimizer_without_a_gradient():
    assert play(FrozenButUpdated, audit(frozen(moved_frozen=False))) == []


def test_near_miss_averaged_copy():
    assert play(FrozenButUpdated, audit(frozen(optimizers=()))) == []


def test_near_miss_gradual_unfreezing():
    unfrozen = ParameterFacts(name="body.weight", optimizers=(0,), moved_at_step=True)
    frozen_later = ParameterFacts(name="body.weight", trainable=False, optimizers=(0,), moved_at_step=True)
    assert play(FrozenButUpdated, audit(unfrozen), audit(frozen_later)) == []
    assert play(FrozenButUpdated, audit(replace(frozen(), trainable=True))) == []


def test_near_miss_zeroed_and_unmoved():
    assert play(FrozenButUpdated, audit(held(moved=False))) == []
    assert play(FrozenButUpdated, audit(held(decay=0.0))) == []


def test_near_miss_gradients_not_zeroed():
    assert play(FrozenButUpdated, audit(held(zeroed=False))) == []
