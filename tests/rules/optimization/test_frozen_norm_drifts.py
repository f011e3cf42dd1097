from dataclasses import replace

from flatline.events import NormLayerFacts, ParameterFacts, ParametersAudited, Where
from flatline.rules.optimization.frozen_norm_drifts import FrozenNormDrifts
from flatline.testing import play

NORM = NormLayerFacts(name="body.bn1", frozen=True, drifted=0.31)
HEAD = ParameterFacts(name="head.weight", optimizers=(0,))


def audit(*norms, parameters=(HEAD,)):
    return ParametersAudited(
        step=3,
        where=Where("train.py", 30),
        backward_where=Where("train.py", 29),
        parameters=parameters,
        norms=norms,
    )


def test_fires_on_frozen_layers_in_train_mode():
    (finding,) = play(FrozenNormDrifts, audit(replace(NORM, name="body.bn0", drifted=0.1), NORM))
    assert finding.severity == "warning"
    assert finding.where == Where("train.py", 29)
    assert finding.message == (
        "2 frozen BatchNorm layers run in train mode; running_mean of body.bn1 moved by 31% in 3 steps"
    )
    assert finding.evidence == {"layers": 2, "drift": 0.31, "layer": "body.bn1"}


def test_near_miss_eval_mode():
    assert play(FrozenNormDrifts, audit(replace(NORM, training=False))) == []


def test_near_miss_statistics_stand_still():
    assert play(FrozenNormDrifts, audit(replace(NORM, drifted=0.0))) == []
    assert play(FrozenNormDrifts, audit(replace(NORM, drifted=1e-4))) == []


def test_near_miss_not_frozen_or_only_for_the_generators_step():
    assert play(FrozenNormDrifts, audit(replace(NORM, frozen=False))) == []


def test_near_miss_averaged_copy():
    assert play(FrozenNormDrifts, audit(replace(NORM, copied=True))) == []


def test_near_miss_did_not_run():
    assert play(FrozenNormDrifts, audit(replace(NORM, ran=False))) == []


def test_near_miss_nothing_learns():
    frozen = replace(HEAD, trainable=False)
    assert play(FrozenNormDrifts, audit(NORM, parameters=(frozen,))) == []
    assert play(FrozenNormDrifts, audit(NORM, parameters=(replace(HEAD, optimizers=()),))) == []
    assert play(FrozenNormDrifts, audit(NORM, parameters=(replace(HEAD, reached=False),))) == []


def test_near_miss_only_norms_learn():
    assert play(FrozenNormDrifts, audit(NORM, parameters=(replace(HEAD, norm=True),))) == []
