from dataclasses import replace

import pytest

from flatline.events import (
    ActivationsSampled,
    HookFacts,
    InputsObserved,
    LayerActivations,
    LayerNumbers,
    NumbersSampled,
    OptimizerFacts,
    ParameterFacts,
    ParametersAudited,
    RunEnded,
    Where,
)
from flatline.findings import causes
from flatline.rules.optimization.update_ratio_off import UpdateRatioOff
from flatline.rules.weights.weight_norm_runaway import WeightNormRunaway
from flatline.testing import play


def run(odd, *, others=1e-3, count=40, kind="Linear", lr=1e-3, weight=0.1, layers=4, elements=256, losses=(2.0, 2.0)):
    same = [
        LayerNumbers(name=f"net.{i}", weight_rms=0.1, gradient_rms=1e-3, update_ratio=others, elements=256)
        for i in range(layers - 1)
    ]
    one = LayerNumbers(
        name="odd",
        weight_rms=weight,
        gradient_rms=1e-3,
        update_ratio=odd,
        kind=kind,
        learning_rate=lr,
        elements=elements,
    )
    first, last = losses
    return [
        NumbersSampled(step=i + 1, index=i + 1, layers=(*same, one), first_loss=first, loss=last) for i in range(count)
    ]


def test_fires_on_a_group_with_a_mistaken_rate():
    (finding,) = play(UpdateRatioOff, *run(1e-9, lr=1e-9))
    assert finding.severity == "warning"
    assert finding.message == (
        "odd changes by 1.0e-09 of its size at a step, the other weight matrices by 1.0e-03; its group's lr is 1e-09, that of the "
        "others 0.001"
    )
    assert finding.cause == "the learning rate of its parameter group is far too low"
    assert finding.fix == "set the lr of its group to about 0.001"


def test_fires_on_a_rate_so_low_that_nothing_arrives():
    (finding,) = play(UpdateRatioOff, *run(0.0, lr=1e-12))
    assert finding.fix == "set the lr of its group to about 0.001"


def test_fires_on_a_layer_thrown_about():
    (finding,) = play(UpdateRatioOff, *run(0.5, count=120))
    assert "far larger than the others'" in finding.cause


def test_fires_on_a_group_thrown_away_at_once():
    (finding,) = play(UpdateRatioOff, *run(4.0, lr=20.0, count=6))
    assert finding.step == 5
    assert finding.fix == "set the lr of its group to about 0.005"


def test_a_rate_of_its_own_explains_what_the_thrown_layer_does():
    """Where each may bring about the other, the one that was seen first did."""
    (thrown,) = play(UpdateRatioOff, *run(4.0, lr=20.0, count=6))
    grows = replace(thrown, code="W1", step=120, consequences=WeightNormRunaway.consequences)
    assert ("O22" in grows.consequences, "W1" in thrown.consequences) == (True, True)
    assert causes([grows, thrown]) == [thrown]
    assert causes([replace(grows, step=2), thrown]) == [replace(grows, step=2)]
    (slow,) = play(UpdateRatioOff, *run(1e-9, lr=1e-9))
    assert "W1" not in slow.consequences


@pytest.mark.parametrize("odd", [1e-5, 1e-4, 0.05])
def test_near_miss_other_rates(odd):
    """A pretrained body at a hundredth of the head's rate, and a head at fifty times."""
    assert play(UpdateRatioOff, *run(odd)) == []


def test_near_miss_embedding_zero_initialised_or_frozen():
    assert play(UpdateRatioOff, *run(1e-9, kind="Embedding")) == []
    assert play(UpdateRatioOff, *run(0.5, weight=1e-6)) == []
    assert play(UpdateRatioOff, *run(0.0)) == []
    assert play(UpdateRatioOff, *run(None)) == []


def test_fires_on_an_embedding_with_a_rate_of_its_own():
    (finding,) = play(UpdateRatioOff, *run(5e-8, lr=2e-7, kind="Embedding"))
    assert finding.fix == "set the lr of its group to about 0.004"
    assert play(UpdateRatioOff, *run(5e-8, lr=1e-5, kind="Embedding")) == []


def test_near_miss_the_first_steps_of_a_tensor_that_began_at_zero():
    assert play(UpdateRatioOff, *run(4.0, count=6)) == []
    assert play(UpdateRatioOff, *run(4.0, lr=0.016, count=6)) == []


def test_near_miss_a_head_of_zeros_under_a_warm_up():
    """Its steps are as large as all others', and it is small: Adam, whose rate rises slowly."""
    assert play(UpdateRatioOff, *run(0.5, weight=2e-4)) == []


def test_near_miss_the_first_steps_or_too_few_layers():
    assert play(UpdateRatioOff, *run(0.5, count=25)) == []
    assert play(UpdateRatioOff, *run(0.5, layers=2)) == []


def test_near_miss_a_head_that_is_fast_before_the_loss_falls():
    assert play(UpdateRatioOff, *run(0.5, count=60)) == []


def test_near_miss_all_are_fast():
    assert play(UpdateRatioOff, *run(0.5, others=0.2)) == []


def test_near_miss_a_tiny_matrix_or_a_loss_that_falls():
    """A head of four weights: their size is near zero by chance."""
    assert play(UpdateRatioOff, *run(0.5, elements=4)) == []
    assert play(UpdateRatioOff, *run(0.5, losses=(2.0, 0.7))) == []


def chain(decay, *, loaded=False, count=130, first=1e-3, turn=None, fall=None, loss=1.5):
    """Rates that fall by one factor from layer to layer, towards the input."""
    rates = [first * decay**i for i in range(5)]
    names = [f"net.{i}" for i in range(5)]
    yield ParametersAudited(parameters=tuple(ParameterFacts(name=name, loaded=loaded) for name in names))
    layers = [
        LayerNumbers(name=n, weight_rms=0.1, gradient_rms=1e-3, elements=256, learning_rate=r, update_ratio=3 * r)
        for n, r in zip(names, rates, strict=True)
    ]
    for i in range(1, count + 1):
        if i == turn:
            layers[-1] = replace(layers[-1], learning_rate=2 * rates[-1])
        if i == fall:
            layers = [replace(each, learning_rate=each.learning_rate / 1e3) for each in layers]
        yield NumbersSampled(step=i, index=i, layers=tuple(layers), first_loss=2.0, loss=loss)


def test_fires_on_the_end_of_a_chain():
    finding = play(UpdateRatioOff, *chain(0.08))[0]
    assert finding.step == 100
    assert finding.message == (
        "net.4 changes by 1.2e-07 of its size at a step, the fastest weight matrix by 3.0e-03; its group's lr is 4.096e-08, "
        "the highest 0.001"
    )


def test_fires_where_half_of_the_layers_stay_at_random_though_the_others_make_do():
    assert play(UpdateRatioOff, *chain(0.05, loss=0.7))
    assert play(UpdateRatioOff, *chain(0.05, loss=0.3)) == []
    assert play(UpdateRatioOff, *chain(0.05, loss=0.7, loaded=True)) == []


def table(rate, *, ratio=4e-6, **facts):
    """A fresh embedding with a rate of its own, beside layers at 3e-3."""
    for event in chain(1.0, first=3e-3, **facts):
        layers = getattr(event, "layers", ())
        slow = [replace(each, learning_rate=rate, update_ratio=ratio) for each in layers[:1]]
        yield replace(event, layers=(*slow, *layers[1:])) if layers else event


def test_fires_on_fresh_weights_at_a_rate_thousands_of_times_lower():
    finding = play(UpdateRatioOff, *table(5e-7))[0]
    assert "net.0 changes by 4.0e-06 of its size at a step, the fastest weight matrix by 9.0e-03" in finding.message


def test_fires_on_fresh_weights_out_of_reach_though_the_others_make_do():
    finding = play(UpdateRatioOff, *table(3e-7, ratio=2e-6, loss=0.2))[0]
    assert "its group's lr is 3e-07, the highest 0.003" in finding.message


def test_near_miss_a_rate_of_its_own_that_moves_or_was_trained_or_does_no_harm():
    assert play(UpdateRatioOff, *table(3e-5)) == []
    assert play(UpdateRatioOff, *table(5e-7, ratio=2e-5)) == []
    assert play(UpdateRatioOff, *table(5e-7, loaded=True)) == []
    assert play(UpdateRatioOff, *table(5e-7, loss=0.5)) == []


@pytest.mark.parametrize("decay", [0.3, 0.65, 0.9])
def test_near_miss_a_chain_that_leaves_every_layer_some_speed(decay):
    assert play(UpdateRatioOff, *chain(decay)) == []


def test_near_miss_a_chain_over_pretrained_layers():
    assert play(UpdateRatioOff, *chain(0.08, loaded=True)) == []


def test_near_miss_a_chain_whose_loss_falls_all_the_same():
    """Weights that were copied from another file by hand look random."""
    assert play(UpdateRatioOff, *chain(0.08, loss=0.2)) == []


def test_near_miss_a_chain_whose_rates_still_move():
    assert play(UpdateRatioOff, *chain(0.08, count=99)) == []
    assert play(UpdateRatioOff, *chain(0.11, turn=60)) == []
    assert play(UpdateRatioOff, *chain(0.11))
    assert play(UpdateRatioOff, *chain(0.3, fall=60)) == []
    assert play(UpdateRatioOff, *chain(0.08, fall=60)) == []


def test_near_miss_a_group_that_warms_up_on_its_own():
    rising = [
        replace(event, layers=(*event.layers[:-1], replace(event.layers[-1], learning_rate=1e-9 * 1.1**event.step)))
        for event in run(1e-9, lr=1e-9)
    ]
    assert play(UpdateRatioOff, *rising) == []


FRESH = ParametersAudited(parameters=(ParameterFacts(name="odd", shape=(16, 16)),))


def under_a_norm(*, gain=390.0, under="odd", untrained=True):
    layers = (
        LayerActivations(layer="odd", weighted=True, gain=gain),
        LayerActivations(layer="ln", kind="LayerNorm", under=under),
        LayerActivations(layer="net.0", weighted=True, gain=0.58),
    )
    return ActivationsSampled(step=1, untrained=untrained, layers=layers)


def crawling(odd=2e-5, others=9e-3, **facts):
    return run(odd, others=others, weight=40.0, count=130, losses=(1.8, 0.4), **facts)


def test_fires_on_weights_that_a_normalisation_makes_slow():
    (finding,) = play(UpdateRatioOff, under_a_norm(), FRESH, *crawling())
    assert finding.message == (
        "odd changes by 2.0e-05 of its size at a step, the other weight matrices by 9.0e-03: its rms is 40 (× √fan_in 390, "
        "where Kaiming's is 1.4), right under a normalisation"
    )
    assert finding.step >= 100


def test_near_miss_large_weights_under_something_else():
    assert play(UpdateRatioOff, under_a_norm(under=""), FRESH, *crawling()) == []
    assert play(UpdateRatioOff, under_a_norm(gain=6.0), FRESH, *crawling()) == []
    assert play(UpdateRatioOff, under_a_norm(untrained=False), FRESH, *crawling()) == []


def test_near_miss_large_weights_that_move_or_were_loaded():
    assert play(UpdateRatioOff, under_a_norm(), FRESH, *crawling(odd=2e-4)) == []
    assert play(UpdateRatioOff, under_a_norm(), FRESH, *crawling(others=1e-3)) == []
    loaded = replace(FRESH, parameters=(replace(FRESH.parameters[0], loaded=True),))
    assert play(UpdateRatioOff, under_a_norm(), loaded, *crawling()) == []
    assert play(UpdateRatioOff, under_a_norm(), FRESH, *crawling()[:90]) == []


def as_drawn(odd=3e-6, *, lr=4e-6, drawn=True, loaded=False, count=320, loss=1.9, kind="Embedding"):
    audit = ParametersAudited(parameters=(ParameterFacts(name="odd", drawn=drawn, loaded=loaded, kind=kind),))
    return [audit, *run(odd, lr=lr, kind=kind, count=count, losses=(2.0, loss))]


def test_fires_on_an_embedding_that_stays_as_it_was_drawn():
    (finding,) = play(UpdateRatioOff, *as_drawn())
    assert (finding.step, finding.fix) == (300, "set the lr of its group to about 0.001")
    assert finding.message.endswith("its group's lr is 4e-06, that of the others 0.001")


def test_fires_at_the_end_where_the_last_samples_were_early():
    audit, *steps = as_drawn(count=200)
    (finding,) = play(UpdateRatioOff, audit, *steps, RunEnded(step=640, loss=1.9, first_loss=2.0))
    assert finding.message.startswith("odd changes by 3.0e-06 of its size at a step")
    assert play(UpdateRatioOff, audit, *steps, RunEnded(step=280, loss=1.9, first_loss=2.0)) == []


def test_fires_on_an_embedding_beside_two_matrices():
    audit, *steps = as_drawn()
    few = [replace(e, layers=tuple(sorted(e.layers, key=lambda x: x.name != "odd"))[:3]) for e in steps]
    (finding,) = play(UpdateRatioOff, audit, *few)
    assert finding.message.startswith("odd changes by 3.0e-06 of its size at a step")


@pytest.mark.parametrize(
    "facts",
    [
        {"drawn": False},
        {"loaded": True},
        {"count": 290},
        {"loss": 0.9},
        {"lr": 1e-5},
        {"odd": 3e-5},
        {"odd": 1e-8},
    ],
    ids=[
        "pretrained vectors",
        "a checkpoint",
        "early",
        "the loss falls",
        "a hundredth",
        "it moves",
        "few rows are used",
    ],
)
def test_near_miss_of_an_embedding_with_a_low_rate(facts):
    assert play(UpdateRatioOff, *as_drawn(**facts)) == []


def hooked(factor, odd=1e-6, kind="Embedding", count=110):
    hook = HookFacts(name="damp", where=Where("train.py", 12), factor=factor)
    audit = ParametersAudited(parameters=(ParameterFacts(name="odd", kind=kind),))
    events = run(odd, kind=kind, count=count)
    return [audit] + [
        replace(event, layers=(*event.layers[:-1], replace(event.layers[-1], hook=hook))) for event in events
    ]


@pytest.mark.parametrize("kind", ["Embedding", "Linear"])
def test_fires_on_a_hook_that_leaves_next_to_nothing(kind):
    (finding,) = play(UpdateRatioOff, *hooked(1e-6, odd=9e-7, kind=kind))
    assert finding.cause == "a hook on its gradient, damp, multiplies all of it by 1.0e-06"
    assert finding.where == Where("train.py", 12)


def test_near_miss_of_hooks():
    """A tenth; what an adaptive optimizer makes up for; an embedding of which few rows are used."""
    assert play(UpdateRatioOff, *hooked(0.1)) == []
    assert play(UpdateRatioOff, *hooked(1e-6, odd=8e-4)) == []
    assert play(UpdateRatioOff, *run(1e-6, kind="Embedding", count=110)) == []


SGD, ADAM = OptimizerFacts(key=1, name="SGD"), OptimizerFacts(key=2, name="Adam", adaptive=True)


def beside_adam(*, update=3e-6, count=600, elements=12_800, loss=0.65, loaded=False, fast=4e-3, how="finished"):
    """Two optimizers: the tables are under plain SGD, the tower is under Adam."""
    yield ParametersAudited(parameters=(ParameterFacts(name="ids.weight", loaded=loaded, kind="Embedding"),))
    table = LayerNumbers(
        name="ids.weight",
        weight_rms=0.5,
        gradient_rms=1e-4,
        update_ratio=update,
        kind="Embedding",
        learning_rate=0.02,
        elements=elements,
    )
    tower = LayerNumbers(name="tower", weight_rms=0.1, gradient_rms=1e-3, update_ratio=fast, elements=2048)
    for i in range(20, count + 1, 20):
        yield NumbersSampled(step=i, index=i, lr=0.02, layers=(table,), optimizer=SGD)
        yield NumbersSampled(step=i, index=i, lr=1e-3, layers=(tower,), optimizer=ADAM)
    yield RunEnded(step=count, how=how, loss=loss, first_loss=0.7)


def test_fires_on_an_embedding_that_plain_sgd_leaves_as_it_was_drawn():
    (finding,) = play(UpdateRatioOff, *beside_adam())
    assert (finding.severity, finding.key) == ("warning", "left")
    assert finding.message == (
        "SGD at lr=0.02 moves ids.weight by 0.18% of their size in 600 steps, where the other optimizer changes its weights by "
        "4.0e-03 at each: they stay what they were drawn as"
    )
    assert finding.fix == "SparseAdam or Adagrad scale every element; or raise lr to about 1"


@pytest.mark.parametrize(
    "facts",
    [
        {"update": 3e-5},
        {"count": 280},
        {"elements": 1 << 20},
        {"loss": 0.3},
        {"loaded": True},
        {"fast": 5e-5},
        {"how": "interrupted"},
    ],
    ids=["it moves", "early", "few rows are used", "it learns", "a checkpoint", "all are slow", "interrupted"],
)
def test_near_miss_of_an_embedding_under_plain_sgd(facts):
    assert play(UpdateRatioOff, *beside_adam(**facts)) == []


def oversized(*, size=1e4, update=2e-7, lr=2e-3, loaded=False, count=600, loss=0.56, kind="Linear"):
    """One matrix of an Adam that was drawn far too large."""
    yield ParametersAudited(parameters=(ParameterFacts(name="style.weight", loaded=loaded),))
    same = [
        LayerNumbers(
            name=f"{i}.weight", weight_rms=1.0, gradient_rms=1e-3, update_ratio=1e-3, learning_rate=2e-3, elements=256
        )
        for i in range(3)
    ]
    one = LayerNumbers(
        name="style.weight",
        weight_rms=size,
        gradient_rms=1e-3,
        update_ratio=update,
        learning_rate=lr,
        elements=192,
        kind=kind,
    )
    for i in range(20, count + 1, 20):
        yield NumbersSampled(step=i, index=i, lr=2e-3, layers=(*same, one), optimizer=ADAM, loss=loss, first_loss=1.3)
    yield RunEnded(step=count, how="finished", loss=loss, first_loss=1.3)


def test_fires_on_weights_too_large_for_the_steps_of_adam():
    (finding,) = play(UpdateRatioOff, *oversized())
    assert (finding.severity, finding.key) == ("warning", "oversized")
    assert finding.message == (
        "the weights of style.weight have rms 1e+04, the other matrices 1: a step of Adam at lr=0.002 changes them by 2.0e-07 of "
        "their size, 0.01% in 600 steps, the others by 1.0e-03: they stay what they were drawn as"
    )
    assert finding.fix.endswith("a rate of about 20")


@pytest.mark.parametrize(
    "facts",
    [
        {"size": 100.0, "update": 2e-5},
        {"size": 50.0},
        {"loaded": True},
        {"count": 280},
        {"loss": 0.2},
        {"kind": "Embedding"},
    ],
    ids=["StyleGAN's mapping network", "as the others", "a checkpoint", "early", "it learns", "few rows are used"],
)
def test_near_miss_of_weights_that_are_larger(facts):
    assert play(UpdateRatioOff, *oversized(**facts)) == []


def test_near_miss_of_a_layer_of_which_a_few_columns_learn():
    events = run(1e-9)
    adam = OptimizerFacts(name="Adam", adaptive=True)
    assert play(UpdateRatioOff, *(replace(event, optimizer=adam) for event in events)) == []
    assert play(UpdateRatioOff, *events) == []


@pytest.mark.parametrize("adaptive", [True, False])
def test_fires_on_a_gradient_that_is_as_small_as_the_step(adaptive):
    optimizer = OptimizerFacts(name="Adam" if adaptive else "SGD", adaptive=adaptive)
    events = [
        replace(event, optimizer=optimizer, layers=(*event.layers[:-1], replace(event.layers[-1], gradient_rms=1e-12)))
        for event in run(1e-9)
    ]
    (finding,) = play(UpdateRatioOff, *events)
    assert finding.cause == "its gradient is far smaller than the others', and one rate serves all"


def starved(
    *,
    gradient=3e-6,
    fed=2e-2,
    stem=2e-2,
    first=3e-6,
    blocks=4,
    adaptive=False,
    loaded=False,
    count=600,
    loss=1.2,
    how="finished",
    lr=0.05,
    seen=600,
    wide=1,
):
    """A stem and a head that learn under SGD with momentum, and blocks behind a residual scale of a thousandth."""
    names = ("stem", *(f"blocks.{i}" for i in range(blocks)), "head")
    yield ParametersAudited(parameters=tuple(ParameterFacts(name=name, loaded=loaded) for name in names))

    def of(name, i):
        return {"stem": min(stem, fed), "head": fed}.get(name, first if i < 30 else gradient)

    def layers(i):
        return tuple(
            LayerNumbers(
                name=name,
                weight_rms=0.1,
                gradient_rms=of(name, i),
                update_ratio=6e-5 if name.startswith("blocks") else 0.02,  # of weight decay
                learning_rate=lr,
                momentum=0.9,
                elements=4_608 * (1 if name.startswith("blocks") else wide),
            )
            for name in names
        )

    optimizer = OptimizerFacts(key=1, name="SGD", adaptive=adaptive)
    for i in range(20, min(count, seen) + 1, 2):
        yield NumbersSampled(step=i, index=i, lr=lr, layers=layers(i), optimizer=optimizer)
    yield RunEnded(step=count, how=how, loss=loss, first_loss=1.44)


def test_fires_on_blocks_that_get_next_to_no_gradient():
    (finding,) = play(UpdateRatioOff, *starved())
    assert (finding.severity, finding.key) == ("warning", "unfed")
    assert finding.message == (
        "4 of 6 weight matrices got next to no gradient in 600 steps: all that blocks.0 got, if it had pointed one way, moves it "
        "by 0.9% of its size, and the others typically by 60 times theirs"
    )


def test_fires_where_the_scale_grows_and_the_stem_learns_little():
    (finding,) = play(UpdateRatioOff, *starved(stem=1e-4, first=1e-7))
    assert {"C2", "G10"} <= set(finding.consequences)


def test_fires_where_only_the_head_gets_any_and_the_loss_stands():
    (finding,) = play(UpdateRatioOff, *starved(stem=3e-6, loss=1.43))
    assert finding.message.startswith("5 of 6 weight matrices got next to no gradient in 600 steps")
    assert play(UpdateRatioOff, *starved(stem=3e-6, loss=1.2)) == []


def test_fires_where_the_last_samples_are_long_ago():
    (finding,) = play(UpdateRatioOff, *starved(seen=200))
    assert "in 600 steps" in finding.message


@pytest.mark.parametrize(
    "facts",
    [
        {"gradient": 3e-5},
        {"fed": 5e-5},
        {"stem": 4e-4},
        {"blocks": 1},
        {"adaptive": True},
        {"loaded": True},
        {"count": 280},
        {"loss": 0.4},
        {"how": "interrupted"},
        {"seen": 140},
        {"wide": 10},
    ],
    ids=[
        "they move",
        "all are slow",
        "a small head alone has far more",
        "one layer",
        "Adam",
        "a checkpoint",
        "early",
        "it learns",
        "interrupted",
        "not seen",
        "a few gates that stay shut",
    ],
)
def test_near_miss_of_blocks_with_small_gradients(facts):
    assert play(UpdateRatioOff, *starved(**facts)) == []


def bag_of_words(
    *,
    gradient=3e-5,
    others=2e-2,
    loss=1.18,
    elements=72_000,
    loaded=False,
    ids=True,
    adaptive=False,
    count=700,
    falls=0.22,
):
    """A bag of words under SGD with momentum: its embedding is most of the model."""
    sizes = {"emb": (1.0, gradient, elements), "fc.0": (0.1, others, 1_536), "fc.2": (0.07, others, 256)}
    yield ParametersAudited(parameters=tuple(ParameterFacts(name=name, loaded=loaded) for name in sizes))
    yield InputsObserved(ids_alone=ids, floating=False)
    layers = tuple(
        LayerNumbers(
            name=name,
            kind="Linear" if name.startswith("fc") else "EmbeddingBag",
            weight_rms=weight,
            gradient_rms=pull,
            update_ratio=0.1 * pull / weight,
            learning_rate=0.1,
            momentum=0.9,
            elements=size,
        )
        for name, (weight, pull, size) in sizes.items()
    )
    for i in range(20, count + 1, 5):
        facts = OptimizerFacts(key=1, name="SGD", adaptive=adaptive)
        now = loss + falls * (1 - i / count)
        yield NumbersSampled(step=i, index=i, lr=0.1, layers=layers, optimizer=facts, loss=now, first_loss=1.4)
    yield RunEnded(step=count, how="finished", loss=loss, first_loss=1.4)


def test_fires_on_an_embedding_that_stays_as_drawn_under_plain_sgd():
    (finding,) = play(UpdateRatioOff, *bag_of_words())
    assert (finding.severity, finding.key) == ("warning", "table")
    assert finding.message == (
        "all that emb got in 700 steps, if it had pointed one way, moves it by 2.1% of its size, and the other weight matrices by "
        "170 times theirs: its rows stay what they were drawn as"
    )


@pytest.mark.parametrize(
    "facts",
    [{"gradient": 3e-4}, {"others": 2e-5}, {"loss": 0.9}, {"elements": 900_000}, {"elements": 600}, {"loaded": True},
     {"ids": False}, {"adaptive": True}, {"count": 280}, {"falls": 0.01}],
    ids=["moves", "all slow", "it learns", "rows may be unused", "a small part", "a checkpoint", "numbers besides", "Adam", "early",
         "at its floor"],
)  # fmt: skip
def test_near_miss_of_an_embedding_that_moves_little(facts):
    assert play(UpdateRatioOff, *bag_of_words(**facts)) == []


def outweighed(*, weight=1e3, gradient=2e-6, loaded=False, adaptive=False, trunks=4, end=0.7, count=1200):
    """A head that learns under SGD, on layers whose weights a factor in the forward pass makes small again."""
    names = (*(f"trunk.{i}" for i in range(trunks)), *(f"head.{i}" for i in range(5 - trunks)))
    yield ParametersAudited(parameters=tuple(ParameterFacts(name=name, loaded=loaded) for name in names))
    sizes = [(weight, gradient) if name.startswith("trunk") else (1.0, 0.02) for name in names]
    layers = tuple(
        LayerNumbers(
            name=name,
            weight_rms=w,
            gradient_rms=g,
            update_ratio=0.05 * g / w,
            learning_rate=0.05,
            momentum=0.9,
            elements=900,
        )
        for name, (w, g) in zip(names, sizes, strict=True)
    )
    optimizer = OptimizerFacts(key=1, name="SGD", adaptive=adaptive)
    for i in range(20, count + 1, 20):
        loss = 1.4 if i < 200 else end
        yield NumbersSampled(step=i, index=i, lr=0.05, loss=loss, layers=layers, optimizer=optimizer)
    yield RunEnded(step=count, how="finished", loss=end, first_loss=4.75)


def test_fires_on_weights_stored_a_thousand_times_larger():
    (finding,) = play(UpdateRatioOff, *outweighed())
    assert (finding.severity, finding.key) == ("warning", "outweighed")
    assert finding.message == (
        "the weights of 4 of 5 matrices are stored far too large for one rate: trunk.0 has rms 1e+03, head.0 1; in 1,200 steps of "
        "SGD its gradients move it by 1.2e-06 of its size: it stays what it was drawn as"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"weight": 10.0},
        {"gradient": 0.2},
        {"loaded": True},
        {"adaptive": True},
        {"end": 0.2},
        {"count": 280},
    ],
)
def test_near_miss_weights_stored_larger(changed):
    assert play(UpdateRatioOff, *outweighed(**changed)) == []


def test_near_miss_random_features_whose_outputs_are_as_large_as_their_weights():
    loud = ActivationsSampled(untrained=True, layers=(LayerActivations(layer="trunk", std=70.0),))
    assert play(UpdateRatioOff, loud, *outweighed()) == []
