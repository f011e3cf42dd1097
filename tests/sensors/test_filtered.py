"""A part of a file goes into a model's own state dict, and another part would have under another name."""

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import CheckpointFiltered, CheckpointLoaded


class Body(nn.Module):
    """Three layers under a name that can be chosen, a norm, and a head."""

    def __init__(self, part="layers", head="head", width=12, after=True):
        super().__init__()
        self.embed = nn.Linear(6, width)
        setattr(self, part, nn.ModuleList(nn.Linear(width, width) for _ in range(3)))
        if after:
            self.norm = nn.LayerNorm(width)
        setattr(self, head, nn.Linear(width, 4))


def loaded(tmp_path, saved, model, *, strict=True, after=lambda held: None):
    path = tmp_path / "body.pt"
    torch.save({"model": saved.state_dict()}, path)

    def run():
        held, own = torch.load(path)["model"], model.state_dict()
        fitting = {k: v for k, v in held.items() if k in own and v.shape == own[k].shape}
        own.update(fitting)
        model.load_state_dict(own if strict else held, strict=strict)
        after(held)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sum(p.sum() for p in model.parameters()).backward()
        optimizer.step()

    return run


def test_layers_under_another_name(tmp_path):
    (event,) = seen(loaded(tmp_path, Body("layers", "lm_head"), Body("blocks")), CheckpointFiltered)
    assert event.renamed == "layers.>blocks."
    assert event.missing[:2] == ("blocks.0.weight", "blocks.0.bias")
    assert "layers.2.bias" in event.left
    assert event.tensors == 12


def test_a_loose_load_of_layers_under_another_name(tmp_path):
    (event,) = seen(loaded(tmp_path, Body("layers"), Body("blocks"), strict=False), CheckpointLoaded)
    assert event.prefix == "layers.>blocks."


@pytest.mark.parametrize(
    ("saved", "model"),
    [
        (Body(), Body()),  # all of it fits
        (Body(head="lm_head"), Body(head="classifier")),  # a new head
        (Body("layers", "old"), Body("blocks", "new", after=False)),  # a new decoder, at the end
        (Body("layers", width=16), Body("blocks", width=12)),  # of another width
    ],
    ids=["all", "head", "decoder", "width"],
)
def test_near_miss(tmp_path, saved, model):
    assert [each for each in seen(loaded(tmp_path, saved, model), CheckpointFiltered) if each.renamed] == []


class Wide(nn.Module):
    """Blocks of a width that can be chosen, under one and the same names."""

    def __init__(self, inner, outputs, channels=3):
        super().__init__()
        self.stem = nn.Linear(channels, 12)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, inner), nn.Linear(inner, 12)) for _ in range(3))
        self.head = nn.Linear(12, outputs)


def test_layers_of_another_size(tmp_path):
    (event,) = seen(loaded(tmp_path, Wide(32, 10), Wide(24, 6)), CheckpointFiltered)
    assert (event.renamed, event.tensors, len(event.reshaped)) == ("", 16, 11)
    assert event.reshaped[0] == "blocks.0.0.weight"
    assert event.shapes == ((24, 12), (32, 12))


def test_near_miss_of_another_size(tmp_path):
    """A stem and a head of other sizes."""
    assert seen(loaded(tmp_path, Wide(32, 10), Wide(32, 6, channels=1)), CheckpointFiltered) == []


def test_near_miss_of_another_size_that_is_filled_by_hand(tmp_path):
    """A part of every larger tensor, written behind the load."""
    model = Wide(36, 6)
    load = loaded(tmp_path, Wide(32, 10), model, after=lambda state: widen(model, state))
    assert seen(load, CheckpointFiltered) == []


def widen(model, state):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.shape != state[name].shape and not name.startswith("head"):
                p[tuple(slice(0, n) for n in state[name].shape)] = state[name]
