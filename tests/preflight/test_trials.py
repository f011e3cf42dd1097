"""Questions put to a model leave it as it was."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

from flatline.events import Event
from flatline.preflight.hearing import Call, Loss
from flatline.preflight.probes import Probes
from flatline.preflight.trials import Trial, evaluating, names


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.drop = nn.Embedding(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.rnn, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids, *, scale=None):
        self.calls += 1
        hidden = self.drop(self.norm(self.embed(ids).mT).mT)
        return {"scores": self.head(self.rnn(hidden)[0]) * (1.0 if scale is None else scale)}


@pytest.fixture
def call():
    torch.manual_seed(0)
    model, ids = Sequences(), torch.randint(1, 20, (16, 12))
    ids[::3, 8:] = ids[1::3, 10:] = 0
    scores = model(ids)["scores"]
    functional.cross_entropy(scores.flatten(0, 1), ids.flatten()).backward()
    loss = Loss("cross_entropy", scores.flatten(0, 1), torch.cat([ids[:, 1:], ids[:, :1]], 1).flatten(), (), {})
    return Call(model, (ids,), {}, None), [loss]


def test_everything_is_put_back_bit_for_bit(call):
    made, losses = call
    model = made.module
    kept, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    gradients, random = [p.grad for p in model.parameters()], torch.get_rng_state()
    inputs = made.args[0].clone()
    said = list(Probes(made, losses, 1).ask())
    assert [type(each).__name__ for each in said if isinstance(each, Event)] == [
        "InfluenceProbed",
        "SamplesProbed",
        "FutureProbed",
        "PaddingProbed",
    ], said
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(before is after for before, after in zip(gradients, (p.grad for p in model.parameters()), strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert torch.equal(inputs, made.args[0])
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_that_refuses_is_left_alone(call):
    made, losses = call

    class Refusing(Sequences):
        def forward(self, ids):
            assert ids.shape == (16, 12), "nothing else"
            return super().forward(ids)

    torch.manual_seed(0)
    said = list(Probes(made._replace(module=Refusing()), losses, 1).ask())
    assert "samples: Refusing raised AssertionError" in said


def test_a_model_that_draws_in_eval_mode_is_repeatable(call):
    made, _ = call

    class Noisy(Sequences):
        def forward(self, ids):
            return super().forward(ids)["scores"] + torch.randn(())

    trial = Trial(made._replace(module=Noisy()))
    with evaluating(trial.module):
        assert trial.steady


def test_a_model_that_counts_is_not_judged(call):
    made, losses = call

    class Counting(Sequences):
        def forward(self, ids):
            return super().forward(ids)["scores"] + self.calls

    said = list(Probes(made._replace(module=Counting()), losses, 1).ask())
    assert said == ["Counting makes something else of the same input, in eval mode, too"]


def test_inputs_are_called_as_forward_calls_them(call):
    made, _ = call
    assert names(made._replace(kwargs={"scale": torch.ones(16, 1, 1)})) == ("ids", "scale")


@dataclass(frozen=True)
class Batch:
    ids: torch.Tensor
    weights: torch.Tensor | None = None


def test_a_batch_that_is_an_object(call):
    class Unpacking(Sequences):
        def forward(self, batch):
            return super().forward(batch.ids)

    torch.manual_seed(0)
    model, ids = Unpacking(), call[0].args[0]
    trial = Trial(Call(model, (Batch(ids),), {}, None))
    assert [tensor.shape for tensor in trial.inputs] == [(16, 12)]
    with evaluating(model):
        (one,), (other,) = trial.run((ids,)), trial.run((ids.flip(0),))
        assert torch.allclose(one, other.flip(0))
    assert not torch.equal(one, other)
