"""What the script's loop does within one step: which models it calls, with what, and which losses of torch it computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from flatline.events import Where
from flatline.sensors.callers import caller
from flatline.sensors.models import transformed

LOSSES = (
    "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "kl_div", "gaussian_nll_loss", "poisson_nll_loss",
)  # fmt: skip
DEEP = 5  # nests within nests of what a model is given
CALLS = 4  # of one model within a step that are kept: each holds its inputs
KEPT = 64  # losses
STRANGE = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # from objects of the user's own classes


class Mode(NamedTuple):
    """What else decides what a call makes."""

    training: tuple[bool, ...] = ()  # of every module
    autocast: tuple[str, torch.dtype] | None = None

    def cast(self) -> AbstractContextManager[Any]:
        """The autocast that the script called its model under."""
        return nullcontext() if self.autocast is None else torch.autocast(self.autocast[0], dtype=self.autocast[1])


class Call(NamedTuple):
    """A model that the script called itself, with gradients on."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    where: Where | None
    returned: int = 0  # tensors
    mode: Mode = Mode()

    @property
    def named(self) -> tuple[tuple[str, Tensor], ...]:
        """Every tensor with a shape that it was given, once, as its forward calls it."""
        given = (*zip(_parameters(self.module, len(self.args)), self.args, strict=True), *self.kwargs.items())
        every = [(f"{name}{path}", tensor) for name, value in given for path, tensor in paths(value, DEEP)]
        usable = {id(t): (name, t) for name, t in reversed(every) if t.dim() and t.layout == torch.strided}
        return tuple(reversed(usable.values()))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The same without their names."""
        return tuple(tensor for _, tensor in self.named)

    @property
    def of_data(self) -> bool:
        """Whether no other model made what it was given."""
        return all(tensor.grad_fn is None for tensor in self.inputs)


class Loss(NamedTuple):
    """A loss of torch that was computed with gradients on, from targets that need none."""

    name: str
    scores: Tensor
    target: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def again(self, target: Tensor) -> Tensor:
        """The loss of the same scores with other targets."""
        result: Tensor = getattr(functional, self.name)(self.scores, target, *self.args, **self.kwargs)
        return result

    def floor(self) -> float:
        """What the loss cannot fall below: the entropy of targets that are no single class, in nats; 0 if unknown.

        Label smoothing e of C classes has the entropy of one share 1 - e + e/C and C - 1 shares of e/C
        (Szegedy et al., 2016, https://arxiv.org/abs/1512.00567).
        """
        if self.args or self.kwargs.get("weight") is not None or self.kwargs.get("reduction", "mean") != "mean":
            return 0.0
        target = self.target.detach().float()
        if self.name == "cross_entropy":
            shares = target if self.target.is_floating_point() else self._one_hot()
            smoothing, classes = float(self.kwargs.get("label_smoothing", 0.0)), shares.shape[1]
            return float(_entropy(shares * (1 - smoothing) + smoothing / classes).sum(1).mean())
        if self.name.startswith("binary_cross_entropy"):
            return float((_entropy(target) + _entropy(1 - target)).mean())
        return 0.0

    def _one_hot(self) -> Tensor:
        """One row is enough: all have the same entropy."""
        return functional.one_hot(torch.zeros(1, dtype=torch.long), self.scores.shape[1]).float()


class Hearing:
    """Stands before the outermost modules with weights and the losses; what it hears may be changed on its way."""

    def __init__(self) -> None:
        self.called: Callable[[Call], object] = lambda call: None
        self.returned: Callable[[Any], object] = lambda output: None
        self.inputs: Callable[[Any, Any], tuple[Any, Any]] = lambda args, kwargs: (args, kwargs)
        self.target: Callable[[str, Tensor], Tensor] = lambda name, target: target
        self._depth = 0
        self.broken: Callable[[str, Exception], None] = lambda what, error: None
        self._calls: list[Call] = []
        self._losses: list[Loss] = []

    @property
    def outside(self) -> bool:
        """The script's own lines run, with gradients on."""
        return not self._depth and torch.is_grad_enabled()

    def step(self) -> tuple[list[Call], list[Loss]]:
        """What was heard since this was asked last."""
        heard = self._calls, self._losses
        self._calls, self._losses = [], []
        return heard

    def attach(self) -> None:
        """For the rest of the process."""
        calling = nn.Module.__call__

        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.outside or transformed():
                return calling(module, *args, **kwargs)
            args, kwargs = self.inputs(args, kwargs)
            self._depth += 1
            try:
                output = calling(module, *args, **kwargs)
            finally:
                self._depth -= 1
            try:
                self._heard(module, args, kwargs, output)
            except STRANGE as error:
                self.broken("hearing", error)
            return output

        nn.Module.__call__ = called  # type: ignore[method-assign]
        for name in LOSSES:
            setattr(functional, name, self._loss(name, getattr(functional, name)))

    def _heard(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Its output is not kept, as that would keep the graph."""
        if next(module.parameters(), None) is None:  # it is a loss, most likely
            return
        mode = Mode(tuple(each.training for each in module.modules()), _autocast())
        returned = len(list(paths(output)))
        earlier = [call for call in self._calls if call.module is module]
        if len(earlier) >= CALLS:
            self._calls = [call for call in self._calls if call is not earlier[0]]
        self._calls.append(Call(module, args, kwargs, caller(), returned, mode))
        self.called(self._calls[-1])
        self.returned(output)

    def _loss(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def computed(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled() or transformed():
                return original(input, target, *args, **kwargs)
            if isinstance(target, Tensor) and not target.requires_grad:
                target = self.target(name, target)
                scores = input.detach() if isinstance(input, Tensor) else input
                self._losses = [*self._losses[1 - KEPT :], Loss(name, scores, target, args, kwargs)]
            return original(input, target, *args, **kwargs)

        return computed


def _parameters(module: nn.Module, count: int) -> list[str]:
    """What a forward calls the first so many things that it is given."""
    try:
        kinds = list(inspect.signature(getattr(module, "_orig_mod", module).forward).parameters.values())
    except (TypeError, ValueError):
        kinds = []
    known = [kind.name for kind in kinds if kind.kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD)][:count]
    return [*known, *(f"input {at}" for at in range(len(known), count))]


def _autocast() -> tuple[str, torch.dtype] | None:
    if not hasattr(torch, "get_autocast_dtype"):  # torch 2.3
        return None
    devices = (device for device in ("cuda", "cpu") if torch.is_autocast_enabled(device))
    return next(((device, torch.get_autocast_dtype(device)) for device in devices), None)


def leaves(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors in a nest of tuples, lists and dictionaries, each with a shape."""
    return (tensor for _, tensor in paths(value, depth) if tensor.dim())


def paths(value: Any, depth: int = 3) -> Iterator[tuple[str, Tensor]]:
    """The same with their places, and those without a shape."""
    if isinstance(value, Tensor):
        yield "", value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from ((f".{key}{path}", tensor) for path, tensor in paths(item, depth - 1))
    elif depth and isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield from ((f"[{at}]{path}", tensor) for path, tensor in paths(item, depth - 1))
    elif depth:
        for name, item in fields_of(value).items():
            yield from ((f".{name}{path}", tensor) for path, tensor in paths(item, depth - 1))


def fields_of(value: Any) -> dict[str, Any]:
    """Of a plain object that holds tensors, as a dataclass does; nothing of a module, a class or a function."""
    if isinstance(value, (nn.Module, type, Tensor)) or callable(value):
        return {}
    slots = getattr(type(value), "__slots__", ())
    names = [*getattr(value, "__dict__", ()), *((slots,) if isinstance(slots, str) else slots)]
    held = {name: getattr(value, name, None) for name in names if isinstance(name, str) and name[:1] != "_"}
    return held if any(isinstance(item, Tensor) for item in held.values()) else {}


def _entropy(shares: Tensor) -> Tensor:
    return -torch.xlogy(shares, shares)
