from dataclasses import replace

import pytest

from flatline.events import (
    AdaptersNotMade,
    AdaptersUnused,
    LayerNumbers,
    NumbersSampled,
    OptimizerFacts,
    ParameterFacts,
    ParametersAudited,
    RandomFrozen,
    RunEnded,
    Where,
)
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


def test_fires_on_a_head_that_was_put_on_a_trained_body():
    (finding,) = play(AdapterNotWired, replace(FROZEN, source="training"))
    assert "frozen with fresh random weights: an earlier optimizer trained the other 40 tensors" in finding.message


def test_near_miss_nothing_was_left_out():
    assert play(AdapterNotWired) == []


def test_near_miss_is_told_once():
    assert len(play(AdapterNotWired, FROZEN, FROZEN)) == 1


NOT_MADE = AdaptersNotMade(
    step=200,
    where=Where("train.py", 12),
    adapter="LoRALinear",
    function="add_lora",
    targets=("q_proj", "v_proj"),
    layers=("query", "value", "head"),
    frozen=9_900,
    trainable=100,
)


def test_fires_on_names_that_match_nothing():
    (finding,) = play(AdapterNotWired, NOT_MADE)
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 12))
    assert finding.message == (
        "no LoRALinear was ever made: add_lora looks for layers named q_proj, v_proj, and came to none; the model has query, "
        "value, head. 99.0% of 10,000 weights are frozen, and 100 train"
    )


def test_fires_on_types_that_match_nothing():
    (finding,) = play(AdapterNotWired, replace(NOT_MADE, targets=(), function="", layers=()))
    assert finding.message.startswith(
        "no LoRALinear was ever made: the loop looks for layers of another type, and came to none."
    )


@pytest.mark.parametrize("frozen", [0, 60])
def test_near_miss_the_model_trains_as_a_whole(frozen):
    assert play(AdapterNotWired, replace(NOT_MADE, frozen=frozen)) == []


NEVER_CALLED = AdaptersUnused(
    step=700,
    where=Where("train.py", 90),
    adapter="LoRALinear",
    adapters=12,
    tensors=24,
    held=26,
    layers=("layers.0.q", "layers.0.k"),
    steps=400,
    frozen=9_900,
    trainable=100,
)


def test_fires_on_adapters_that_are_in_no_model():
    (finding,) = play(AdapterNotWired, NEVER_CALLED, RunEnded(step=700))
    assert (finding.severity, finding.where) == ("error", Where("train.py", 90))
    assert finding.message == (
        "24 of the 26 tensors in the optimizer got no gradient in 400 steps: those of 12 LoRALinear, built for layers.0.q, "
        "layers.0.k, which the model calls without them"
    )


DROPPED = replace(NEVER_CALLED, tensors=0, held=2, statement="layer = LoRALinear(layer)")


def test_fires_on_adapters_that_were_given_to_a_name_alone():
    (finding,) = play(AdapterNotWired, DROPPED, RunEnded(step=700))
    assert (finding.code, finding.severity) == ("O21", "error")
    assert finding.message == (
        "12 LoRALinear were built for layers.0.q, layers.0.k, and the model calls those layers without them: only 2 other "
        "tensors are in the optimizer; 99.0% of the weights are frozen"
    )
    assert "`layer = LoRALinear(layer)`" in finding.cause


def test_near_miss_dropped_in_a_model_that_trains():
    assert play(AdapterNotWired, replace(DROPPED, frozen=90), RunEnded(step=700)) == []


@pytest.mark.parametrize("change", [{"steps": 19}, {"frozen": 60}])
def test_near_miss_too_short_or_all_of_the_model_trains(change):
    assert play(AdapterNotWired, replace(NEVER_CALLED, **change)) == []


UNUSED = {"reached": False, "has_gradient": False, "gradient_zero": False}
HEAD = parameter("head.weight", 5, 32, gradient_zero=False)
DOWN, UP = parameter("adapters.0.down.weight", 4, 32, **UNUSED), parameter("adapters.0.up.weight", 32, 4, **UNUSED)


def test_fires_on_adapters_that_no_loss_reaches():
    a, b = replace(A, **{**UNUSED, "ran": True}), replace(B, **UNUSED)
    (finding,) = play(AdapterNotWired, audit(BASE, a, b, HEAD), RunEnded(step=90))
    assert finding.severity == "warning"
    assert finding.message == (
        "no loss reaches any of the 1 adapters, which are in the optimizer (first blocks.0.q.lora_a and blocks.0.q.lora_b): "
        "their product is not part of what their module returns; 79.0% of the weights are frozen"
    )


def test_fires_on_bottlenecks_that_never_run():
    (finding,) = play(AdapterNotWired, audit(BASE, replace(DOWN, ran=False), replace(UP, ran=False), HEAD), RunEnded())
    assert "never runs" in finding.message


def test_near_miss_one_of_several_adapters_is_in_use():
    used = [replace(p, name=p.name.replace(".0.", ".1."), reached=True) for p in (DOWN, UP)]
    assert play(AdapterNotWired, audit(BASE, DOWN, UP, *used, HEAD), RunEnded()) == []


def test_near_miss_adapters_join_later():
    joined = [replace(p, reached=True, has_gradient=True) for p in (DOWN, UP)]
    assert play(AdapterNotWired, audit(BASE, DOWN, UP, HEAD), audit(BASE, *joined, HEAD, step=60), RunEnded()) == []


def test_near_miss_a_small_classifier_that_is_not_used():
    heads = parameter("aux.0.weight", 16, 32, **UNUSED), parameter("aux.1.weight", 5, 16, **UNUSED)
    assert play(AdapterNotWired, audit(BASE, *heads, HEAD), RunEnded()) == []


def test_near_miss_nothing_is_frozen():
    body = replace(BASE, trainable=True, optimizers=(0,), gradient_zero=False)
    assert play(AdapterNotWired, audit(body, DOWN, UP, HEAD), RunEnded()) == []


ASTRAY = [replace(p, name=f"Bank.{p.name}", shape=(*p.shape, 3), model="") for p in (DOWN, UP)]


def test_fires_on_adapters_of_hooks_that_return_nothing():
    (finding,) = play(AdapterNotWired, audit(BASE, HEAD, astray=tuple(ASTRAY)), RunEnded(step=90))
    assert "first Bank.adapters.0.down.weight and Bank.adapters.0.up.weight" in finding.message
    assert "O3" in finding.consequences
    cut = [replace(p, cut="before x") for p in ASTRAY]
    (finding,) = play(AdapterNotWired, audit(BASE, HEAD, astray=tuple(cut)), RunEnded(step=90))
    assert "O3" not in finding.consequences


def test_near_miss_convolutions_that_do_not_come_back():
    heads = [replace(ASTRAY[0], shape=(16, 32, 3)), replace(ASTRAY[1], shape=(5, 16, 3))]
    assert play(AdapterNotWired, audit(BASE, HEAD, astray=tuple(heads)), RunEnded()) == []


PROMPT = parameter("net.prompt", 6, 32, kind="Net")


def sampled(zeros, *, index=40, others=1):
    layers = [LayerNumbers(name=str(n), matrix=True, gradient_rms=0.1 * (n >= zeros)) for n in range(zeros + others)]
    return NumbersSampled(step=index, index=index, optimizer=OptimizerFacts(key=0), layers=tuple(layers))


def shut(*parameters, numbers=None, **facts):
    base = replace(BASE, numel=9_000)
    return play(AdapterNotWired, audit(base, *parameters, **facts), numbers or sampled(1), RunEnded(step=90))


@pytest.mark.parametrize("others", [(), (HEAD,), (HEAD, parameter("head.bias", 5, 1, gradient_zero=False))])
def test_fires_on_a_prompt_that_a_mask_hides(others):
    (finding,) = shut(PROMPT, *others)
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 29))
    assert finding.message.startswith(
        "net.prompt (6, 32) got a gradient of exactly zero at every step that was looked at, though the loss reaches it; "
    )


@pytest.mark.parametrize(
    "facts",
    [
        {"gradient_zero": False},
        {"reached": False},
        {"optimizers": ()},
        {"kind": "Linear"},
        {"dtype": "float16"},
        {"shape": (192,)},
        {"name": "head.prompt"},
    ],
)
def test_near_miss_another_parameter(facts):
    assert shut(replace(PROMPT, **facts), HEAD) == []


def test_near_miss_a_gradient_came_later():
    assert shut(PROMPT, HEAD, numbers=sampled(0, others=2)) == []
    assert shut(PROMPT, HEAD, numbers=sampled(1, index=12)) == []


def test_near_miss_adapters_learn_beside_a_prompt_that_is_not_chosen():
    chosen = parameter("net.prompts.1", 6, 32, gradient_zero=False)
    assert shut(PROMPT, chosen, HEAD) == []


def test_near_miss_a_prompt_in_a_model_that_trains():
    body = replace(BASE, trainable=True, optimizers=(0,), gradient_zero=False)
    assert play(AdapterNotWired, audit(body, PROMPT), sampled(1), RunEnded(step=90)) == []


def gated(number, **facts):
    """A bottleneck behind a gate, in the stream alone."""
    place = f"blocks.{number}.adapter"
    gate = ParameterFacts(
        name=f"{place}.alpha", shape=(1,), numel=1, optimizers=(0,), **{"gradient_zero": True, **facts}
    )
    return parameter(f"{place}.down.weight", 4, 32, **facts), parameter(f"{place}.up.weight", 32, 4, **facts), gate


def test_fires_on_gates_and_ways_up_that_both_begin_at_zero():
    (finding,) = play(AdapterNotWired, audit(BASE, *gated(0), *gated(1), HEAD))
    assert finding.message.startswith(
        "2 of 2 adapters got a gradient of exactly zero in both of their matrices at every step"
    )


def test_near_miss_gates():
    opens = replace(gated(0)[2], gradient_zero=False)
    assert play(AdapterNotWired, audit(BASE, *gated(0)[:2], opens, *gated(1), HEAD)) == []
    assert play(AdapterNotWired, audit(BASE, *gated(0), HEAD)) == []
    assert (
        play(AdapterNotWired, audit(replace(BASE, trainable=True, optimizers=(0,)), *gated(0), *gated(1), HEAD)) == []
    )
    assert play(AdapterNotWired, audit(BASE, *gated(0), *gated(1, gradient_zero=False), HEAD)) == []


# --------------------------------------------------------------------------- adapters that are frozen with the rest

AS_MADE = {"trainable": False, "optimizers": (), "reached": False, "has_gradient": False, "moved": False}
LEFT = [
    replace(p, name=p.name.replace("0", layer), zero=p is B, **(AS_MADE if p is not BASE else {}))
    for layer in "01"
    for p in (BASE, A, B)
]
LEARNS = parameter("head.weight", 2, 64, gradient_zero=False)
END = RunEnded(step=30)


def test_fires_on_adapters_that_are_frozen_with_the_rest():
    (finding,) = play(AdapterNotWired, audit(*LEFT, LEARNS, where=Where("train.py", 40)), END)
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 40))
    assert finding.message == (
        "all 2 adapters (first blocks.0.q.lora_a and blocks.0.q.lora_b) are frozen and in no optimizer, and as "
        "blocks.0.q.lora_b is exactly zero they change nothing: only head.weight train"
    )


def test_fires_on_adapters_that_stand_alone():
    down, up = (replace(DOWN, **AS_MADE), replace(UP, zero=True, **AS_MADE))
    two = [replace(p, name=f"{layer}.{p.name}") for layer in "ab" for p in (down, up)]
    body = replace(BASE, name="body.weight")
    assert len(play(AdapterNotWired, audit(body, *two, LEARNS), END)) == 1


@pytest.mark.parametrize(
    "facts",
    [
        {"zero": False},  # it came from somewhere, and does what it learned there
        {"loaded": True},
        {"moved": True},
        {"ran": False},
        {"trainable": True},
        {"shape": (4, 4), "numel": 16},
    ],
)
def test_near_miss_frozen_adapters(facts):
    parts = [replace(p, **facts) if "lora" in p.name else p for p in LEFT]
    assert play(AdapterNotWired, audit(*parts, LEARNS), END) == []


@pytest.mark.parametrize("how", ["interrupted", "crashed", "max-steps"])
def test_near_miss_frozen_adapters_of_a_run_that_did_not_come_to_its_end(how):
    assert play(AdapterNotWired, audit(*LEFT, LEARNS), RunEnded(step=30, how=how)) == []
    assert play(AdapterNotWired, audit(*LEFT, LEARNS), RunEnded(step=24)) == []


def test_near_miss_adapters_that_learn_before_or_later():
    learning = audit(BASE, A, replace(B, gradient_zero=False), LEARNS)
    assert play(AdapterNotWired, audit(*LEFT, LEARNS), learning, END) == []
    assert play(AdapterNotWired, learning, audit(*LEFT, LEARNS), END) == []


def test_near_miss_one_frozen_pair_of_matrices():
    assert play(AdapterNotWired, audit(*LEFT[:3], LEARNS), END) == []
    assert play(AdapterNotWired, audit(*LEFT), END) == []
