"""Two loaders side by side: which batches are compared with which."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from watching import seen

from flatline.events import LoadersApart

DRAW = torch.Generator().manual_seed(0)
IMAGES = torch.randn(96, 1, 8, 8, generator=DRAW)
MASKS = (IMAGES > 0.5).float()


def network():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))


def loaders(*arrays, **given):
    return [DataLoader(array, batch_size=16, shuffle=True, **given) for array in arrays]


def trained(loss_of, *feeds, nets=1):
    """A loss of the networks' and of one batch of each loader."""
    made = [network() for _ in range(nets)]
    optimizer = torch.optim.SGD([p for net in made for p in net.parameters()], lr=0.01)
    for _ in range(2):
        for batch in zip(*feeds, strict=True):
            optimizer.zero_grad()
            loss_of(*made, *batch).backward()
            optimizer.step()


def crossed(loss_of, *feeds, **how):
    return seen(lambda: trained(loss_of, *feeds, **how), LoadersApart)


def segment(net, image, mask):
    return functional.binary_cross_entropy_with_logits(net(image), mask)


def denoise(net, noisy, clean):
    return functional.mse_loss(net(noisy), clean)


@pytest.mark.parametrize("loss_of", [segment, denoise])
def test_images_of_one_loader_and_masks_of_another(loss_of):
    torch.manual_seed(0)
    (event,) = crossed(loss_of, *loaders(IMAGES, MASKS))
    assert event.looks == 4
    assert event.inputs != event.targets
    assert set(event.inputs + event.targets) <= set(range(96))


def unpaired(there, back, one, other):
    """The losses of CycleGAN that compare images."""
    cycles = functional.l1_loss(back(there(one)), one) + functional.l1_loss(there(back(other)), other)
    same = functional.mse_loss(back(one), one) + functional.mse_loss(there(other), other)
    return cycles + same + functional.binary_cross_entropy_with_logits(back(one), torch.ones_like(one))


def mixed(net, one, other):
    return functional.mse_loss(net(0.5 * one + 0.5 * other), one)


def both(net, one, other):
    return functional.mse_loss(net(one) + net(other), other)


@pytest.mark.parametrize(("loss_of", "nets"), [(unpaired, 2), (mixed, 1), (both, 1)])
def test_near_miss_losses_of_batches_that_belong_to_no_other(loss_of, nets):
    torch.manual_seed(0)
    assert crossed(loss_of, *loaders(IMAGES, MASKS), nets=nets) == []


def test_near_miss_two_loaders_in_one_order():
    feeds = [loaders(each, generator=torch.Generator().manual_seed(3))[0] for each in (IMAGES, MASKS)]
    assert crossed(segment, *feeds) == []
    assert crossed(segment, *(DataLoader(each, batch_size=16) for each in (IMAGES, MASKS))) == []


def test_near_miss_one_loader_for_both():
    pairs = DataLoader(list(zip(IMAGES, MASKS, strict=True)), batch_size=16, shuffle=True)
    assert crossed(lambda net, pair: segment(net, *pair), pairs) == []
