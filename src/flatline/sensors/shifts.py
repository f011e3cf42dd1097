"""Models that shift their tokens inside: then labels that equal the input are those of the next position."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from flatline.sensors.models import Call, Model, tensors_in

Tensor = torch.Tensor
LOOKS = 3  # passes of a model that are looked at
MODULES = 12  # behind the embedding
ALIKE = 0.6  # cosine of a vector and what a dropout of one half has left of it; of two that are one and the same, 1
APART = 0.3  # so much less alike are vectors of different tokens, at least
PLACES = 3  # at which two rows differ


class ShiftSensor:
    """Called for every module of a pass under close look."""

    def __init__(self) -> None:
        self._looks: weakref.WeakKeyDictionary[Model, int] = weakref.WeakKeyDictionary()
        self._embedded: Tensor | None = None  # what the embedding in progress made
        self._modules = 0

    def after_module(self, model: Model, call: Call, args: Any, outputs: list[Tensor]) -> None:
        """Are the tokens, or what the embedding made of them, one place later than the model was given them?"""
        if len(model.calls) == 1:
            self._embedded, self._modules = None, 0
        outer = model.integer_input() if model.integer_input is not None else None
        if model.moved == 1 or outer is None or outer.dim() != 2 or not call.grad_enabled:
            return
        if self._looks.get(model, 0) >= LOOKS:
            return
        given = next(tensors_in(args), None)
        if call.depth == 0:
            self._looks[model] = self._looks.get(model, 0) + 1
        elif call.leaf and given is not None and given.shape == outer.shape and not given.is_floating_point():
            self._of_tokens(model, given, outer, outputs)
        elif self._embedded is not None and given is not None and self._modules < MODULES:
            self._modules += 1
            places = None if isinstance(call.module, nn.Dropout) else _places(self._embedded, given.detach())
            model.moved = places if places is not None else model.moved

    def _of_tokens(self, model: Model, given: Tensor, outer: Tensor, outputs: list[Tensor]) -> None:
        if _tokens_shifted(given, outer):
            model.moved = 1
        elif self._embedded is None and outputs and outputs[0].shape[:2] == outer.shape:
            self._embedded = outputs[0].detach()


def _tokens_shifted(inner: Tensor, outer: Tensor) -> bool:
    """Each row begins with something else, and goes on with the other's tokens; rows may be columns."""
    if inner is outer or inner.device != outer.device or min(inner.shape) < 2 or torch.equal(inner, outer):
        return False
    pairs = ((inner[:, 1:], outer[:, :-1]), (inner[1:], outer[:-1]))
    return any(torch.equal(one, other) for one, other in pairs)


def _places(embedded: Tensor, given: Tensor) -> int | None:
    """By how many places the vectors of an embedding have moved on: 0 or 1; None where that does not show.

    Compared is the difference of two rows, in which positions that are added to both cancel out.
    """
    if given.dim() != 3 or not given.is_floating_point() or given.device != embedded.device:
        return None
    for made in (embedded, embedded.transpose(0, 1)):
        for taken in (given, given.transpose(0, 1)):
            if made.shape == taken.shape and made.shape[0] > 1:
                places = _moved(made[0] - made[1], taken[0] - taken[1])
                if places is not None:
                    return places
    return None


def _moved(before: Tensor, after: Tensor) -> int | None:
    before, after = before.float(), after.float()
    differ = before[:-1].norm(dim=1) > 0
    if int(differ.sum()) < PLACES:
        return None
    next_place = float(cosine_similarity(before[:-1][differ], after[1:][differ]).median())
    same_place = float(cosine_similarity(before[:-1][differ], after[:-1][differ]).median())
    if max(next_place, same_place) < ALIKE or abs(next_place - same_place) < APART:
        return None
    return int(next_place > same_place)
