"""A call of the script's, repeated with other inputs: what changes, and where first."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from flatline.events import Spread, Where
from flatline.preflight.hearing import Call, Mode, fields_of, leaves, paths
from flatline.sensors.callers import caller
from flatline.toolbox._state import keep_random, preserved

SAME = 1e-4  # of the output's standard deviation: less is rounding (measured: up to 2e-6 in float32, other shapes)
NARROWEST = 4  # pixels of an image
COMPARING = ("eq", "ne", "__eq__", "__ne__")
HELD = 100_000_000  # numbers kept to find the layer, at most
Compare = Callable[[Tensor], Tensor | None]  # the part of a tensor that should not have changed


class Unprobed(Exception):
    """Why a question cannot be put to this model."""


class MadeNan(Unprobed):
    """What it makes of the changed input cannot be compared."""

    said: ClassVar[str] = "makes nan of it"


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
        made = tuple(tensor.detach().clone() for tensor in self._made(inputs) if tensor.is_floating_point())
        if any(bool(tensor.isnan().any()) for tensor in made):
            raise MadeNan
        return made

    def _made(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        new = {id(old): tensor for old, tensor in zip(self.inputs, inputs, strict=True)}
        self._random()
        with self.call.mode.cast():
            output = self.module(*_replaced(self.call.args, new), **_replaced(self.call.kwargs, new))
        return tuple(tensor for _, tensor in paths(output))

    def learning(self, places: set[int]) -> tuple[Tensor, ...]:
        """What it makes of its own inputs, at these places of what it returns."""
        made = self._made(self.inputs)
        if len(made) != self.call.returned:
            raise Unprobed(f"{type(self.module).__name__} returns something else in eval mode")
        return tuple(made[at].detach().clone() for at in sorted(places))

    @contextmanager
    def as_called(self) -> Iterator[None]:
        """Within ``evaluating``: the modes that the script called it in."""
        modules = list(self.module.modules())
        modes: Mode = self.call.mode
        for module, training in zip(modules, modes.training or (True,) * len(modules), strict=False):
            module.training = training
        try:
            yield
        finally:
            self.module.eval()

    def grown(self, places: set[int]) -> set[int]:
        """Its modules that return something with a graph; none if a gradient can go from these outputs back to the data."""
        found: set[int] = set()
        data = [t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in self.inputs]
        tokens = {(t.data_ptr(), t.numel()) for t in data if not t.is_floating_point()}
        doors = [t for t in data if t.requires_grad]

        def heard(module: Any, args: Any, output: Any) -> None:
            made = [tensor for _, tensor in paths(output) if tensor.requires_grad]
            found.update([id(module)] if made else [])
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                doors.extend(made if any((t.data_ptr(), t.numel()) in tokens for t in leaves(args)) else [])

        handles = [module.register_forward_hook(heard) for module in self.module.modules()]
        try:
            with torch.enable_grad():
                made = self._made(tuple(data))
                asked = [made[at] for at in sorted(places) if at < len(made) and made[at].requires_grad]
                total = torch.stack([tensor.float().sum() for tensor in asked]).sum() if asked else None
        finally:
            for handle in handles:
                handle.remove()
        if (
            total is None
            or not doors
            or any(g is not None for g in torch.autograd.grad(total, doors, allow_unused=True))
        ):
            return set()
        return found

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
        return self.carried(one, other, part)[0]

    def carried(self, one: tuple[Tensor, ...], other: tuple[Tensor, ...], part: Compare) -> tuple[Passed | None, bool]:
        """The same; and whether it, or a module within, was given a change by something that has no such part."""
        return first_apart(self.watched(one), self.watched(other), part)


def first_apart(one: list[Passed], other: list[Passed], part: Compare) -> tuple[Passed | None, bool]:
    """Of two runs; see ``carried``."""
    around: list[str] = []  # modules that were given one
    for a, b in zip(one, other, strict=False):
        if a.module is not b.module:
            break
        if _beside(a.given, b.given, part):
            around.append(b.name)
        if _same(a.given, b.given, part) and _same(a.made, b.made, part) is False:
            return b, any(name == b.name or not b.name or name.startswith(f"{b.name}.") for name in around)
    return None, bool(around)


class Comparisons(TorchFunctionMode):
    """Notes the numbers that a tensor is asked to be equal or unequal to."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.values: set[float] = set()
        self._tensor = tensor

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any call of torch's."""
        if getattr(function, "__name__", "") in COMPARING and len(args) > 1 and self._asked(args[0]):
            self.values.update([float(args[1])] if isinstance(args[1], (int, float)) else [])
        return function(*args, **(kwargs or {}))

    def _asked(self, tensor: Any) -> bool:
        same = isinstance(tensor, Tensor) and tensor.shape == self._tensor.shape
        return same and tensor.data_ptr() == self._tensor.data_ptr()


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
    """Everything is put back bit for bit; attention is computed as in training, where a row may be masked whole."""
    with preserved(module), torch.no_grad(), _no_shortcut():
        module.eval()
        yield


@contextmanager
def _no_shortcut() -> Iterator[None]:
    """torch's own way through attention in eval mode makes nan of what training makes 0 of."""
    mha: Any = getattr(torch.backends, "mha", None)
    if mha is None:
        yield
        return
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


def names(call: Call) -> tuple[str, ...]:
    """Of the tensors that a model was given, as its forward calls them."""
    return tuple(name for name, _ in call.named)


def input_kind(tensor: Tensor) -> Literal["image", "tokens", "numbers"]:
    """What a tensor that a model is given stands for, by its type and shape."""
    if tensor.is_floating_point():
        return "image" if _is_image(tensor) else "numbers"
    if tensor.dtype == torch.uint8 and _is_image(tensor):
        return "image"
    return "tokens" if tensor.dtype in (torch.long, torch.int32) and tensor.dim() == 2 else "numbers"


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() in (4, 5) and min(tensor.shape[-2:]) >= NARROWEST


def _replaced(value: Any, new: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return new.get(id(value), value)
    if isinstance(value, Mapping):
        items = {key: _replaced(item, new) for key, item in value.items()}
        if all(items[key] is value[key] for key in items):
            return value
        other: Any = copy.copy(value)
        for key, item in items.items():
            other[key] = item
        return other
    if isinstance(value, (list, tuple)):
        parts = [_replaced(item, new) for item in value]
        if all(one is other for one, other in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    changed = {n: item for n, old in fields_of(value).items() if (item := _replaced(old, new)) is not old}
    if not changed:
        return value
    another = copy.copy(value)
    for name, item in changed.items():
        object.__setattr__(another, name, item)  # a dataclass may be frozen
    return another


def _change(one: Tensor, other: Tensor) -> Tensor:
    """Where both are the same infinity, as of scores that a mask closes, nothing changed."""
    one, other = one.float(), other.float()
    known = one[one.isfinite()]
    scale = (known.std() if known.numel() > 1 else known.abs().sum()).clamp(min=1e-12)
    return torch.where(one == other, torch.zeros_like(one), (one - other).abs()) / scale


def _beside(one: tuple[Tensor, ...], other: tuple[Tensor, ...], part: Compare) -> bool:
    """Whether a tensor of numbers changed that has no such part."""
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if part(a) is None and a.is_floating_point()]
    return any(a.shape == b.shape and not _alike(a, b) for a, b in pairs)


def _same(one: tuple[Tensor, ...], other: tuple[Tensor, ...], part: Compare) -> bool | None:
    """None where nothing can be compared."""
    pairs = [(part(a), part(b)) for a, b in zip(one, other, strict=False)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None and a.shape == b.shape]
    return all(_alike(a, b) for a, b in known) if known else None


def _alike(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return one.numel() == 0 or float(_change(one, other).max()) <= SAME
