"""Numbers of the images that a model learns from, and of those that it is validated on."""

from __future__ import annotations

from typing import Any

import torch

from flatline.events import ImagesCompared, ImageSpread
from flatline.sensors.callers import caller
from flatline.sensors.loop import Loop
from flatline.sensors.models import readable

Tensor = torch.Tensor
LOOKS = 4  # at batches that a model learned from, and at as many of its validation, each after other steps
MOST_NUMBERS = 1 << 19  # of a batch
CHANNELS = (1, 3, 4)
SMALLEST = 8  # pixels on a side


class ImageRanges:
    """Called with what models train on, at close looks, and with what they are validated on."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        loop.begins.append(self._begin)
        self._begin()

    def _begin(self) -> None:
        self._trained: dict[str, list[ImageSpread]] = {}
        self._looks: dict[str, int] = {}
        self._looked_at = 0

    def called(self, model: str, first: Tensor) -> None:
        """A model that is being trained was called."""
        if self.loop.wants(ImagesCompared) and _are_images(first):
            known = self._trained.setdefault(model, [])
            if len(known) < LOOKS:
                known.append(_spread(first))

    def validated(self, model: str, first: Any) -> None:
        """It ran without gradients: on images of the same range?"""
        step, trained, looks = self.loop.steps, self._trained.get(model), self._looks.get(model, 0)
        if not trained or looks >= LOOKS or step in (0, self._looked_at) or not _are_images(first):
            return
        self._looked_at, self._looks[model] = step, looks + 1
        shown = _spread(first)
        if len(shown.means) == len(trained[0].means):
            self.loop.emit(
                ImagesCompared(step=step, where=caller(), model=model, train=tuple(trained), validation=shown)
            )


def _are_images(tensor: Any) -> bool:
    if not isinstance(tensor, Tensor) or not readable(tensor) or not tensor.is_floating_point():
        return False
    shaped = tensor.dim() == 4 and tensor.shape[1] in CHANNELS and min(tensor.shape[2:]) >= SMALLEST
    return shaped and len(tensor) > 0 and tensor.grad_fn is None


def _spread(images: Tensor) -> ImageSpread:
    rows = max(1, MOST_NUMBERS // images[0].numel())
    some = images.detach()[:rows].transpose(0, 1).flatten(1).float()
    deviations, means = torch.std_mean(some, dim=1, correction=0)
    low, high = torch.aminmax(some)
    share = (some == low).float().mean()
    told: list[float] = torch.cat((means, deviations, torch.stack((low, high, share)))).tolist()
    channels = len(means)
    return ImageSpread(
        means=tuple(told[:channels]),
        deviations=tuple(told[channels:-3]),
        low=told[-3],
        high=told[-2],
        lowest=told[-1],
    )
