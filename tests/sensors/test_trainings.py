"""A script that trains several models in turn: each training is judged by itself."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from watching import seen

from flatline.engine import Engine
from flatline.events import (
    FirstCrossEntropy,
    LossNotFinite,
    NumbersSampled,
    OptimizerFacts,
    Origin,
    ParametersAudited,
    RunEnded,
    TrainingBegan,
    TrainingsMixed,
)
from flatline.rules import Rule
from flatline.rules.numerics.non_finite_loss import NonFiniteLoss

X, Y = torch.randn(256, 6, generator=torch.Generator().manual_seed(0)), torch.arange(256) % 3


def network():
    return nn.Sequential(nn.Linear(6, 96), nn.ReLU(), nn.Linear(96, 3))


def train(model, optimizer, steps=30):
    for step in range(steps):
        rows = slice(8 * (step % 32), 8 * (step % 32) + 8)
        optimizer.zero_grad()
        cross_entropy(model(X[rows]), Y[rows]).backward()
        optimizer.step()


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def fit(model, steps=30):
    train(model, adam(model), steps)


# --------------------------------------------------------------------------- where one begins


def test_a_new_model_begins_a_training():
    def act():
        fit(network())
        fit(network(), 25)
        fit(network())

    began = seen(act, TrainingBegan)
    assert [event.step for event in began] == [30, 55]
    assert all(event.first_loss and event.last_loss for event in began)
    assert [event.step for event in seen(act, FirstCrossEntropy)] == [1, 31, 56]
    (ended,) = seen(act, RunEnded)
    first = cross_entropy(network()(X), Y).item()
    assert ended.first_loss == pytest.approx(first, abs=0.5)


def test_a_loaded_model_begins_a_training():
    def act():
        model = network()
        fit(model)
        other = network()
        optimizer = adam(other)
        other.load_state_dict(model.state_dict())
        train(other, optimizer)

    assert len(seen(act, TrainingBegan)) == 1
    assert len(seen(act, FirstCrossEntropy)) == 1  # the second one knows something


def the_same_model_with_another_optimizer():
    model = network()
    fit(model)
    fit(model)


def one_layer_of_it():
    model = network()
    fit(model)
    train(model, torch.optim.SGD(model[2].parameters(), lr=0.1))


def a_new_head_on_it():
    model = network()
    fit(model)
    model[2] = nn.Linear(96, 3)
    fit(model)


def two_that_are_built_together():
    one, other = network(), network()
    optimizers = adam(one), adam(other)
    for model, optimizer in zip((one, other), optimizers, strict=True):
        train(model, optimizer)


def one_step_before():
    fit(network(), 3)
    fit(network())


@pytest.mark.parametrize(
    "act",
    [
        the_same_model_with_another_optimizer,
        one_layer_of_it,
        a_new_head_on_it,
        two_that_are_built_together,
        one_step_before,
    ],
)
def test_near_miss_one_training(act):
    assert seen(act, TrainingBegan) == []


def test_near_miss_a_copy_of_what_was_trained_is_no_fresh_one():
    def act():
        model = network()
        fit(model)
        fit(copy.deepcopy(model))

    assert len(seen(act, FirstCrossEntropy)) == 1


def test_near_miss_weights_that_were_learned_and_put_in_by_hand_are_no_fresh_ones():
    def act():
        torch.manual_seed(0)
        model, other = network(), network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(150):
            optimizer.zero_grad()
            cross_entropy(model(X), X[:, :3].argmax(1)).backward()
            optimizer.step()
        with torch.no_grad():
            for learned, mine in zip(model.parameters(), other.parameters(), strict=True):
                mine.copy_(learned * 1.01)
        fit(other)

    assert len(seen(act, TrainingBegan)) == len(seen(act, FirstCrossEntropy)) == 1


def test_trainings_from_one_place_are_told_apart_from_others():
    def act():
        for _ in range(3):
            fit(network())
        train(model := network(), torch.optim.Adam(model.parameters(), lr=1e-3))

    assert [event.again for event in seen(act, TrainingBegan)] == [True, True, False]


def test_a_loop_over_settings_is_told_from_one_that_repeats_them_and_from_calls_on_several_lines():
    def act():
        for lr in (1e-3, 1e-3, 1e-2):
            train(model := network(), torch.optim.Adam(model.parameters(), lr=lr))
        fit(network())
        fit(network())

    def stages():
        for width, lr in ((6, 1e-3), (4, 1e-2)):
            model = nn.Sequential(nn.Linear(width, 96), nn.ReLU(), nn.Linear(96, 3))
            optimizer = torch.optim.Adam(model.parameters(), lr=lr)
            for _ in range(30):
                optimizer.zero_grad()
                cross_entropy(model(X[:8, :width]), Y[:8]).backward()
                optimizer.step()

    began = seen(act, TrainingBegan)
    assert not any(event.varied for event in seen(stages, TrainingBegan))  # the tasks are not the same
    assert [event.varied for event in began] == [False, True, False, False]
    assert [event.search == began[0].search for event in began] == [True, True, False, False]


def test_an_optimizer_that_goes_on_is_told():
    def act():
        one, other = network(), network()
        first = adam(one)
        train(one, first)
        second = adam(other)
        for _ in range(10):
            train(other, second, 1)
            train(one, first, 1)

    assert len(seen(act, TrainingBegan)) == len(seen(act, TrainingsMixed)) == 1


# --------------------------------------------------------------------------- who judges it


class Counts(Rule):
    """Tells what it saw."""

    code = "T1"
    severity = "hint"
    each_training = True
    enough: int = 3

    def __init__(self):
        self.seen = []

    def on_numbers_sampled(self, event):
        """One more."""
        self.seen.append(event.step)

    def on_run_ended(self, event):
        """All of it."""
        told = f"{self.seen} {event.step} {event.loss} {self.enough}"
        yield self.finding(event, told, key=str(self.seen))


def judged(*events):
    told, broken = [], []
    rule = Counts()
    rule.enough = 5
    engine = Engine([rule], on_finding=told.append, on_broken=lambda *why: broken.append(why))
    for event in events:
        engine.emit(event)
    assert broken == []
    return [(finding.message, finding.step) for finding in told]


def sampled(key, step):
    return NumbersSampled(step=step, optimizer=OptimizerFacts(key=key))


END = RunEnded(step=90, loss=0.5)


def test_each_training_has_its_own_steps_and_end():
    began = TrainingBegan(step=40, key=3, first_loss=2.0, last_loss=0.1)
    assert judged(sampled(1, 5), began, sampled(3, 45), sampled(2, 50), sampled(4, 60), END) == [
        ("[5, 50] 40 0.1 5", 40),
        ("[5, 20] 50 0.5 5", 90),
    ]


def test_trainings_that_are_mixed_are_one_again():
    began = TrainingBegan(step=40, key=3, last_loss=0.1)
    events = sampled(1, 5), began, sampled(3, 45), TrainingsMixed(step=46), sampled(3, 47), sampled(1, 48), END
    assert judged(*events) == [("[5, 47, 48] 90 0.5 5", 90)]


# --------------------------------------------------------------------------- trials of a search


class Overshoots(Rule):
    """Tells of every step."""

    code = "T2"
    severity = "warning"
    each_training = trial_dependent = True
    consequences = ("T3",)

    def on_numbers_sampled(self, event):
        """One more."""
        yield self.finding(event, "too far")


class Explodes(Overshoots):
    """What comes of it, told of the whole run."""

    code = "T3"
    each_training = trial_dependent = False
    consequences = ()


def kept(*events, rules=(Overshoots, Explodes)):
    engine = Engine([rule() for rule in rules], on_finding=lambda finding: None, on_broken=lambda *why: None)
    for event in events:
        engine.emit(event)
    return [(finding.code, finding.severity) for finding in engine.findings]


def trial(key, *, varied=True):
    return TrainingBegan(step=20 * key, key=key, search=1, varied=varied)


def test_what_some_trials_of_a_search_show_is_a_hint_and_explains_what_came_of_it():
    assert kept(sampled(1, 5), trial(2), trial(3)) == [("T2", "hint")]
    assert kept(trial(2), sampled(2, 45), trial(3)) == [("T2", "hint")]


def test_what_comes_of_a_trial_hides_nothing_of_another_training():
    class Later(Explodes):
        def on_numbers_sampled(self, event):
            """Of the last training alone."""
            yield from super().on_numbers_sampled(event) if event.optimizer.key == 3 else ()

    class Once(Overshoots):
        def on_numbers_sampled(self, event):
            """Of the first training alone."""
            yield from super().on_numbers_sampled(event) if event.optimizer.key == 1 else ()

    final = TrainingBegan(step=60, key=3, search=3)
    assert kept(sampled(1, 5), trial(2), final, sampled(3, 65), rules=[Once, Later]) == [
        ("T3", "warning"),
        ("T2", "hint"),
    ]


def test_a_finding_of_the_training_after_a_search_takes_the_place_of_that_of_a_trial():
    class Says(Overshoots):
        def on_numbers_sampled(self, event):
            """Whose step it is."""
            yield self.finding(event, f"step {event.step}")

    engine = Engine([Says()], on_finding=lambda finding: None, on_broken=lambda *why: None)
    final = TrainingBegan(step=60, key=3, search=3)
    for event in (sampled(1, 5), trial(2), final, sampled(3, 65)):
        engine.emit(event)
    assert [(finding.message, finding.severity) for finding in engine.findings] == [("step 5", "warning")]


def test_a_trial_at_a_rate_that_throws_the_weights_out_is_a_hint_and_one_that_takes_a_log_of_zero_is_not():
    hot = LossNotFinite(step=5, lr=30.0, optimizer="SGD", origin=Origin(kind="weights"), last_finite=9.0)
    zero = replace(hot, lr=0.1, origin=Origin(kind="operation", operation="log", detail="log of 0"))
    assert kept(hot, trial(2), rules=[NonFiniteLoss]) == [("N1", "hint")]
    assert kept(hot, trial(2, varied=False), rules=[NonFiniteLoss]) == [("N1", "error")]
    assert kept(zero, trial(2), rules=[NonFiniteLoss]) == [("N1", "error")]


def test_each_training_has_a_first_loss_that_is_not_finite():
    def act():
        for _ in range(2):
            model = network()
            optimizer = adam(model)
            for step in range(30):
                optimizer.zero_grad()
                loss = cross_entropy(model(X[:8]), Y[:8])
                (loss * float("nan") if step >= 25 else loss).backward()
                optimizer.step()

    assert len(seen(act, LossNotFinite)) == 2


@pytest.mark.parametrize(
    "events",
    [
        (sampled(1, 5), trial(2), sampled(2, 45)),  # every trial shows it
        (sampled(1, 5), trial(2, varied=False)),  # the settings are the same: folds
        (sampled(1, 5), TrainingBegan(step=40, key=2, search=2)),  # another place
        (trial(2), TrainingBegan(step=60, key=3, search=3), sampled(3, 65)),  # the training after a search
    ],
)
def test_near_miss_what_no_search_explains_is_told(events):
    assert kept(*events, rules=[Overshoots]) == [("T2", "warning")]


# --------------------------------------------------------------------------- names


class Tagger(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


def test_a_body_that_was_trained_alone_is_named_as_part_of_what_it_is_in_now():
    def act():
        body, probe = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)
        optimizer = torch.optim.SGD([*body.parameters(), *probe.parameters()], lr=0.1)
        for _ in range(120):
            optimizer.zero_grad()
            cross_entropy(probe(body(X)), Y).backward()
            optimizer.step()
        del optimizer, probe
        fit(Tagger(body), 40)

    facts = {p.name: p for event in seen(act, ParametersAudited)[-1:] for p in event.parameters}
    (trained,) = [p for name, p in facts.items() if name.endswith("encoder.0.weight")]
    (head,) = [p for name, p in facts.items() if name.endswith("head.weight")]
    assert (trained.trained_before, head.trained_before) == (True, False)
    names = {layer.name for event in seen(act, NumbersSampled)[-3:] for layer in event.layers}
    assert {trained.name, head.name} <= names
