"""One way to ask any loop for its loss: ``loss_fn(model, batch)``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

LossFn = Callable[[nn.Module, Any], Tensor]


def supervised(criterion: Callable[[Tensor, Tensor], Tensor]) -> LossFn:
    """Make ``loss_fn(model, batch)`` of a criterion, for batches that are pairs of inputs and targets.

    All probes of the toolbox ask for the loss in this form. For other batches write a function of your own, such as
    ``lambda model, batch: model(**batch).loss``.

    Args:
        criterion: ``criterion(output, target) -> Tensor``, such as ``nn.CrossEntropyLoss()``.
    """

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        return criterion(model(inputs), targets)

    return loss_fn


def entropy_floor(targets: Tensor) -> float:
    """The lowest mean cross entropy that soft targets allow: their own mean entropy, in nats.

    A model that knows the targets by heart still has this loss, so a test for memory has to measure from there.

    Args:
        targets: probabilities, shape (N, C), float; each row sums to 1.

    Raises:
        ValueError: the rows are no probabilities.
    """
    if not targets.is_floating_point() or targets.dim() < 2:
        raise ValueError("targets must be probabilities of shape (N, C); hard labels have the floor 0")
    if bool((targets < 0).any()) or not torch.allclose(targets.sum(-1).float(), torch.ones(()), atol=1e-3):
        raise ValueError("each row of targets must be probabilities that sum to 1; apply softmax to scores first")
    return float(torch.special.entr(targets.double()).sum(-1).mean())


def scalar(loss: object, *, graph: bool = True) -> Tensor:
    """The loss, when it is one number that gradients can flow from."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss_fn must return a tensor with one element, not {shape}; end it with .mean()")
    if graph and not loss.requires_grad:
        raise ValueError("the loss has no graph: it was detached, made under no_grad, or nothing in it is trainable")
    return loss.reshape(())


def value_of(loss_fn: LossFn, model: nn.Module, batch: Any) -> float:
    """The loss as a number, in the caller's grad mode: a loss may take gradients of its own."""
    return float(scalar(loss_fn(model, batch), graph=False).detach())


def gradients(loss_fn: LossFn, model: nn.Module, batch: Any) -> float:
    """One backward into ``grad``, after which the loss is known as a number."""
    with torch.enable_grad():
        loss = scalar(loss_fn(model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, again and again; a generator can only be gone through once."""
    while True:
        batch = None
        for batch in batches:
            yield batch
        if batch is None:
            raise ValueError("there are no more batches; pass a DataLoader or a list, which can be gone through again")


def mean(values: Iterable[float]) -> float:
    """The mean, nan for no values."""
    found = list(values)
    return math.fsum(found) / len(found) if found else math.nan
