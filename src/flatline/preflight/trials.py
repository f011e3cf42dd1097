"""A call of the script's, repeated with other inputs: what changes, and where first."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from flatline.events import Spread, Where
from flatline.preflight.hearing import Call, leaves, paths
from flatline.sensors.callers import caller
from flatline.toolbox._state import keep_random, preserved

SAME = 1e-4  # of the output's standard deviation: less is rounding (measured: up to 2e-6 in float32, other shapes)
NARROWEST = 4  # pixels of an image
PAD_ROWS = 0.2  # of the rows end with the same token, at least twice
HELD = 100_000_000  # numbers kept to find the layer, at most
Compare = Callable[[Tensor], Tensor | None]  # the part of a tensor that should not have changed


class Passed(NamedTuple):
    """One module's run."""

    name: str
    module: nn.Module
    given: tuple[Tensor, ...]
    made: tuple[Tensor, ...]
    where: Where | None


class Trial:
    """Runs a model in eval mode, without gradients, from the same random numbers every time."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.module = call.module
        self.inputs = call.inputs
        self._random = keep_random(None)

    def run(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What the model makes of these tensors in place of its own: every tensor of numbers."""
        new = {id(old): tensor for old, tensor in zip(self.inputs, inputs, strict=True)}
        self._random()
        output = self.module(*_replaced(self.call.args, new), **_replaced(self.call.kwargs, new))
        return tuple(tensor.clone() for tensor in leaves(output) if tensor.is_floating_point())

    @cached_property
    def steady(self) -> bool:
        """Whether it makes the same of the same."""
        one, other = self.run(self.inputs), self.run(self.inputs)
        return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

    def effect(self, one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The change of every output, in standard deviations of that output."""
        return tuple(_change(a, b) for a, b in zip(one, other, strict=True))

    def watched(self, inputs: tuple[Tensor, ...]) -> list[Passed]:
        """The same run, with what every module was given and made."""
        names = {id(module): name for name, module in self.module.named_modules()}
        passed: list[Passed] = []
        held = 0

        def heard(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            nonlocal held
            given, made = tuple(leaves((args, kwargs))), tuple(leaves(output))
            held += sum(tensor.numel() for tensor in (*given, *made))
            if held <= HELD:
                kept = tuple(t.clone() for t in given), tuple(t.clone() for t in made)
                passed.append(Passed(names[id(module)], module, *kept, caller()))

        handles = [m.register_forward_hook(heard, with_kwargs=True) for m in self.module.modules()]
        try:
            self.run(inputs)
        finally:
            for handle in handles:
                handle.remove()
        return passed

    def culprit(self, one: tuple[Tensor, ...], other: tuple[Tensor, ...], part: Compare) -> Passed | None:
        """The first module that was given the same in that part, and made something else there."""
        for a, b in zip(self.watched(one), self.watched(other), strict=False):
            if a.module is b.module and _same(a.given, b.given, part) and _same(a.made, b.made, part) is False:
                return b
        return None


def spread(changes: Tensor, culprit: Passed | None) -> Spread:
    """``changes`` holds the largest change of every position or sample."""
    return Spread(
        compared=changes.numel(),
        changed=int((changes > SAME).sum()),
        effect=float(changes.max()) if changes.numel() else 0.0,
        layer=culprit.name if culprit is not None else "",
        kind=type(culprit.module).__name__ if culprit is not None else "",
        shape=tuple(culprit.given[0].shape) if culprit is not None and culprit.given else (),
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Everything is put back bit for bit."""
    with preserved(module), torch.no_grad():
        module.eval()
        yield


def names(call: Call) -> tuple[str, ...]:
    """Of the tensors that a model was given, as its forward calls them."""
    try:
        bound = inspect.signature(call.module.forward).bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"input {at}": value for at, value in enumerate(call.args)} | call.kwargs
    return tuple(f"{key}{path}" for key, value in bound.items() for path, tensor in paths(value) if tensor.dim())


def input_kind(tensor: Tensor) -> Literal["image", "tokens", "numbers"]:
    """What a tensor that a model is given stands for, by its type and shape."""
    if tensor.is_floating_point():
        return "image" if tensor.dim() in (4, 5) and min(tensor.shape[-2:]) >= NARROWEST else "numbers"
    return "tokens" if tensor.dtype in (torch.long, torch.int32) and tensor.dim() == 2 else "numbers"


def padding_tail(tokens: Tensor, known: set[int | None]) -> Tensor | None:
    """How many tokens at the end of each row are padding; None if that is not certain. 0 for rows of nothing else."""
    last = int(tokens[:, -1].mode().values)
    tail = (tokens.flip(1) == last).long().cumprod(1).sum(1)
    runs = tail[tail > 1].tolist()
    varied = len(set(runs)) > 1 and len(runs) >= PAD_ROWS * len(tokens)
    long_texts = int(tail.min()) < tokens.shape[1] // 2
    if not runs or not long_texts or not (last in known or varied) or bool((tokens == last).all()):
        return None
    return tail.where(tail < tokens.shape[1], 0)


def _replaced(value: Any, new: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return new.get(id(value), value)
    if isinstance(value, dict):
        return type(value)({key: _replaced(item, new) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(item, new) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(item, new) for item in value)
    return value


def _change(one: Tensor, other: Tensor) -> Tensor:
    scale = one.float().std().clamp(min=1e-12) if one.numel() > 1 else one.float().abs().clamp(min=1e-12)
    return (one.float() - other.float()).abs() / scale


def _same(one: tuple[Tensor, ...], other: tuple[Tensor, ...], part: Compare) -> bool | None:
    """None where nothing can be compared."""
    pairs = [(part(a), part(b)) for a, b in zip(one, other, strict=False)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None and a.shape == b.shape]
    return all(_alike(a, b) for a, b in known) if known else None


def _alike(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return one.numel() == 0 or float(_change(one, other).max()) <= SAME
