"""Norms of weights, gradients and updates of every parameter, in a few fused calls on sampled steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from flatline.events import ClipFacts, LayerNumbers, NumbersSampled, Where
from flatline.sensors.forensics import parameter_names
from flatline.sensors.hooked import GradientHooks
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import ModelSensor
from flatline.sensors.sharded import part_of
from flatline.sensors.spacing import spaced
from flatline.sensors.tree import own_parameters

Tensor = torch.Tensor
ELEMENTS = 32  # of each tensor, compared before and after a step
ONE_AMOUNT = 0.01  # spread of what is taken off many weights, over its mean; rounding of float32 leaves less
FEW = 4  # elements that tell it
LOOKS = 2  # at a matrix that gets no gradient any more
HALF = (torch.float16, torch.bfloat16)  # their norms overflow, or lose digits, unless summed in float32


def local(tensor: Any) -> Tensor | None:
    """The numbers that lie here: a shard of a distributed tensor, real and imaginary parts of a complex one."""
    part = part_of(tensor)
    if type(part) not in (Tensor, nn.Parameter) or part.is_meta or not part.numel():
        return None
    part = part.detach()
    if part.is_sparse:
        part = part.coalesce().values()
    if part.is_complex():
        part = torch.view_as_real(part)
    return part if part.is_floating_point() and part.layout is torch.strided and part.numel() else None


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """L2 norm of each tensor, a scalar on its device; tensors of one dtype and device in one call."""
    groups: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault((tensor.dtype, tensor.device), []).append(place)
    found: list[Tensor] = [torch.empty(0)] * len(tensors)
    for (dtype, _), places in groups.items():
        those = [tensors[at] for at in places]
        for place, norm in zip(places, _wide(those) if dtype in HALF else torch._foreach_norm(those, 2), strict=True):
            found[place] = norm
    return found


def _wide(tensors: list[Tensor]) -> Sequence[Tensor]:
    """In float32, of half precision."""
    try:
        return torch._foreach_norm(tensors, 2, torch.float32)
    except TypeError:  # torch 2.3
        return torch._foreach_norm([tensor.float() for tensor in tensors], 2)


def gradient_norms(parameters: Sequence[Any], like: Tensor) -> list[Tensor]:
    """L2 norm of the gradient of each parameter; -1 where it has none."""
    gradients = [local(p.grad) if p.grad is not None else None for p in parameters]
    found = [g for g in gradients if g is not None]
    measured = iter(norms(found))
    none = found[0].new_full((), -1.0, dtype=torch.float32) if found else like.new_full((), -1.0)
    return [next(measured) if g is not None else none for g in gradients]


def stacked(scalars: Sequence[Tensor]) -> Tensor:
    """One vector in float64."""
    if len({scalar.dtype for scalar in scalars}) > 1:
        scalars = [scalar.to(torch.float64) for scalar in scalars]
    return torch.stack(list(scalars)).to(torch.float64)


def spread(tensor: Tensor) -> Tensor:
    """A view of some elements, evenly spread over the memory of a dense tensor, and over its columns."""
    stride, count = spaced(tensor, ELEMENTS)
    if not tensor.is_contiguous() and not tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.reshape(-1)[::stride]
    return tensor.as_strided((count,), (stride,), tensor.storage_offset())


class Elements:
    """Some elements of many tensors of one device, copied side by side."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.counts = [len(spread(tensor)) for tensor in tensors]
        self.values = self.take()

    def take(self) -> Tensor:
        """The elements as they are now."""
        return torch.cat([spread(tensor) for tensor in self.tensors]).to(torch.float64, copy=True)

    def sums(self, rows: Tensor) -> Tensor:
        """[rows, elements] -> [rows, tensors]: the sum over each tensor's own elements."""
        return rows.new_zeros(len(rows), len(self.counts)).index_add_(1, owners(tuple(self.counts), rows.device), rows)


@lru_cache(maxsize=16)
def owners(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Which tensor each element belongs to."""
    places = [place for place, count in enumerate(counts) for _ in range(count)]
    return torch.tensor(places, device=device)


class Left(NamedTuple):
    """Of some elements: what a step changed them by, and what it made of them."""

    update: Tensor
    values: Tensor


@dataclass(slots=True)
class Sampled:
    """What was taken of one optimizer at one step; the numbers may still lie on the device."""

    state: OptimizerState
    step: int
    where: Where | None
    index: int
    loss: float | None
    lr: float
    parameters: list[Any] = field(default_factory=list)
    numbers: list[Tensor] = field(default_factory=list)  # [12, tensors] for each device
    settings: list[tuple[float, float, float]] = field(default_factory=list)  # rate, decay, momentum of each
    clips: tuple[ClipFacts, ...] = ()
    norm: Any = None  # of the newest clip, while it lies on the device


class NumbersSensor:
    """Called around the step of every optimizer; does nothing unless the loop samples this step."""

    def __init__(self, loop: Loop, models: ModelSensor, hooks: GradientHooks) -> None:
        self.loop, self.models, self.hooks = loop, models, hooks
        self.changes: dict[int, float] = {}  # id of each parameter -> relative change in the step just done
        self._waiting: list[Sampled] = []
        self._order: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._kinds: dict[int, Any] = {}
        self._known_at = -1, 0
        self._taught: set[int] = set()  # matrices that got a gradient
        self._looks = LOOKS
        loop.begins.append(self._begin)

    def _begin(self) -> None:
        self._looks = LOOKS

    def before_step(self, state: OptimizerState) -> None:
        """Copy some elements of every weight."""
        state.before, self.changes = {}, {}
        if self.loop.sampling:
            pairs = [(p, part) for p in state.parameters if (part := local(p)) is not None]
            for device, group in _by_device(pairs):
                parts = [part for _, part in group]
                state.before[device] = [p for p, _ in group], Elements(parts)

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """Measure; what lies on an accelerator is read when the next sample is taken."""
        before, state.before = state.before, {}
        if not before:
            return
        self.flush()
        taken = Sampled(state, self.loop.step, where, state.steps, state.last_loss, state.lr)
        taken.clips, taken.norm = tuple(state.window.clips), state.window.norm
        left: dict[Any, Left] = {}
        for device, (parameters, elements) in before.items():
            taken.parameters += parameters
            previous, sizes = self._previous(state, device), state.norms.get(device)
            left[device], numbers = self._measure(parameters, elements, previous, sizes)
            taken.numbers.append(numbers)
        state.left = self.loop.step, left
        settings = _settings(state)
        taken.settings = [settings[id(p)] for p in taken.parameters]
        self._waiting.append(taken)
        if self.loop.dense or all(numbers.is_cpu for numbers in taken.numbers):
            self.flush()

    def _previous(self, state: OptimizerState, device: Any) -> Left | None:
        step, left = state.left or (0, {})
        return left.get(device) if step == self.loop.step - 1 else None

    def _measure(
        self, parameters: list[Any], elements: Elements, previous: Left | None, sizes: list[Tensor] | None
    ) -> tuple[Left, Tensor]:
        """The update of the elements and what it left, and twelve numbers for every tensor."""
        before, after = elements.values, elements.take()
        update = torch.nan_to_num(after - before, nan=1.0, posinf=1.0, neginf=1.0)
        known = previous is not None and previous.update.shape == update.shape
        last, kept = previous if previous is not None and known else Left(*[torch.zeros_like(update)] * 2)
        changed = (before != after).to(update.dtype)
        off = (kept - before) * kept.sign()
        there = (before * kept > 0).to(update.dtype)
        mine = [update * update, before * before, changed]
        of_last = [update * last, last * last, before * kept, kept * kept]
        of_elements = torch.stack([*mine, *of_last, there, off * there, off * off * there])
        of_gradients = stacked(sizes if sizes is not None else gradient_norms(parameters, update))
        of_tensors = torch.stack([stacked(norms(elements.tensors)), of_gradients])
        return Left(update, after), torch.cat([elements.sums(of_elements), of_tensors])

    # ------------------------------------------------------------------ telling

    def flush(self) -> None:
        """Read what waits, and tell."""
        waiting, self._waiting = self._waiting, []
        for taken in waiting:
            self._tell(taken, [row for numbers in taken.numbers for row in numbers.T.tolist()])

    def _tell(self, taken: Sampled, rows: list[list[float]]) -> None:
        self._learn()
        state, loop = taken.state, self.loop
        self.changes = {id(p): _relative(row) for p, row in zip(taken.parameters, rows, strict=True)}
        each = enumerate(zip(taken.parameters, rows, taken.settings, strict=True))
        layers = [self._layer(place, p, row, *those) for place, (p, row, those) in each]
        self._look_at_silence(taken.parameters, rows)
        ours, dots, theirs = (sum(row[at] for row in rows) for at in (0, 3, 4))
        loop.emit(
            NumbersSampled(
                step=taken.step,
                where=taken.where,
                optimizer=state.facts,
                index=taken.index,
                lr=taken.lr,
                peak_lr=state.peak_lr,
                layers=tuple(sorted(layers, key=lambda layer: layer.depth)),
                loss=taken.loss,
                first_loss=state.first_loss,
                turn=dots / (ours * theirs) ** 0.5 if ours * theirs > 0 else None,
                clips=_with_norm(taken),
            )
        )

    def _look_at_silence(self, parameters: list[Any], rows: list[list[float]]) -> None:
        """A matrix that got gradients gets none any more: the next steps show why, whatever looks cost by now."""
        matrices = [(id(p), row[-1]) for p, row in zip(parameters, rows, strict=True) if p.dim() >= 2]
        silent = any(gradient == 0 and key in self._taught for key, gradient in matrices)
        if silent and self._looks and not self.loop.dense:
            self._looks -= 1
            self.loop.look_closely()
        self._taught.update(key for key, gradient in matrices if gradient > 0)

    def _layer(self, place: int, p: Any, row: list[float], rate: float, decay: float, momentum: float) -> LayerNumbers:
        _, size_before, changed, _, _, dot, size_left, *off, weight, gradient = row
        size = (p.numel() * (2 if p.is_complex() else 1)) ** 0.5
        kind = self._kinds.get(id(p))
        return LayerNumbers(
            name=self._names.get(id(p)) or f"parameter {place}",
            depth=self._order.get(id(p), -1),
            kind=kind or "",
            weight_rms=weight / size,
            gradient_rms=max(gradient, 0.0) / size,
            update_ratio=_relative(row) if changed == 0 or size_before > 0 else None,
            learning_rate=rate,
            weight_decay=decay,
            momentum=momentum,
            matrix=p.dim() >= 2,
            elements=p.numel(),
            hook=self.hooks.facts(p),
            kept=dot / (size_before * size_left) ** 0.5 if size_before * size_left > 0 else None,
            scaled=(size_before / size_left) ** 0.5 if size_left > 0 else None,
            taken=_taken(*off),
        )

    def _learn(self) -> None:
        """Names, and places in the forward pass, as the last close look saw them."""
        now = self.loop.sampled, len(self.models.models)
        if now == self._known_at and self._names:
            return
        self._known_at = now
        self._names = parameter_names(self.models)
        self._order, self._kinds = {}, {}
        for model in self.models.known:
            for place, call in enumerate(sorted(model.calls, key=lambda c: c.out_sequence)):
                placed = call.depth > 0 or len(model.calls) == 1  # of a model's own beside its layers nobody knows
                for parameter in own_parameters(call.module):
                    self._order.setdefault(id(parameter), place if placed else -1)
                    self._kinds.setdefault(id(parameter), type(call.module).__name__)


def _by_device(pairs: Iterable[tuple[Any, Tensor]]) -> Iterable[tuple[str, list[tuple[Any, Tensor]]]]:
    found: dict[str, list[tuple[Any, Tensor]]] = {}
    for pair in pairs:
        found.setdefault(str(pair[1].device), []).append(pair)
    return found.items()


def _settings(state: OptimizerState) -> dict[int, tuple[float, float, float]]:
    """id of a parameter -> its rate, its weight decay, its momentum."""
    optimizer = state.ref()
    groups = optimizer.param_groups if optimizer is not None else []
    read = (([number(g.get(name)) for name in ("lr", "weight_decay", "momentum")], g["params"]) for g in groups)
    return {id(p): (rate, decay, momentum) for (rate, decay, momentum), parameters in read for p in parameters}


def number(value: Any) -> float:
    """A setting of an optimizer; 0 for a tensor, which is not read."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def _with_norm(taken: Sampled) -> tuple[ClipFacts, ...]:
    """The clips; a norm that lay on the device is read with the numbers."""
    if taken.norm is None or not taken.clips:
        return taken.clips
    return *taken.clips[:-1], replace(taken.clips[-1], norm=float(taken.norm))


def _taken(there: float, off: float, squares: float) -> float | None:
    """What all elements lost between two steps, if that is one amount; None where few are left."""
    if there < FEW:
        return None
    mean = off / there
    return mean if mean > 0 and squares / there - mean * mean <= (ONE_AMOUNT * mean) ** 2 else 0.0


def _relative(row: list[float]) -> float:
    """Change over size; never 0 for a tensor that changed."""
    update, before, changed, *_ = row
    return max((update / max(before, 1e-24)) ** 0.5, 1e-30) if changed else 0.0
