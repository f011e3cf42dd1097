"""Models that shift their tokens inside: then labels that equal the input are those of the next position."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from flatline.sensors.models import Call, Model, tensors_in

Tensor = torch.Tensor
LOOKS = 3  # passes of a model that are looked at
MODULES = 12  # behind the embedding
ALIKE = 0.99  # cosine of two vectors that are one and the same, but for rounding
OTHER = 0.9  # and of two that are not
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
        if model.shifts or outer is None or outer.dim() != 2 or not call.grad_enabled:
            return
        if self._looks.get(model, 0) >= LOOKS:
            return
        given = next(tensors_in(args), None)
        if call.depth == 0:
            self._looks[model] = self._looks.get(model, 0) + 1
        elif call.leaf and given is not None and given.shape == outer.shape and not given.is_floating_point():
            model.shifts = _tokens_shifted(given, outer)
            if self._embedded is None and outputs and outputs[0].shape[:2] == outer.shape:
                self._embedded = outputs[0].detach()
        elif self._embedded is not None and given is not None and self._modules < MODULES:
            self._modules += 1
            model.shifts = _vectors_shifted(self._embedded, given.detach())


def _tokens_shifted(inner: Tensor, outer: Tensor) -> bool:
    """Each row begins with something else, and goes on with the other's tokens; rows may be columns."""
    if inner is outer or inner.device != outer.device or min(inner.shape) < 2 or torch.equal(inner, outer):
        return False
    pairs = ((inner[:, 1:], outer[:, :-1]), (inner[1:], outer[:-1]))
    return any(torch.equal(one, other) for one, other in pairs)


def _vectors_shifted(embedded: Tensor, given: Tensor) -> bool:
    """The difference of two rows, in which positions that are added to both cancel out, moves by one place."""
    if given.dim() != 3 or not given.is_floating_point() or given.device != embedded.device:
        return False
    for made in (embedded, embedded.transpose(0, 1)):
        for taken in (given, given.transpose(0, 1)):
            if made.shape == taken.shape and made.shape[0] > 1 and _moved(made[0] - made[1], taken[0] - taken[1]):
                return True
    return False


def _moved(before: Tensor, after: Tensor) -> bool:
    before, after = before.float(), after.float()
    differ = before[:-1].norm(dim=1) > 0
    if int(differ.sum()) < PLACES:
        return False
    next_place = cosine_similarity(before[:-1][differ], after[1:][differ])
    same_place = cosine_similarity(before[:-1][differ], after[:-1][differ])
    return float(next_place.min()) > ALIKE and float(same_place.median()) < OTHER
