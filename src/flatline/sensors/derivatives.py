"""When gradients are not finite though the loss is: which operation has an infinite derivative where it was used?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from flatline.events import GradientNotFinite, Where
from flatline.sensors.audit import AuditSensor
from flatline.sensors.backward import BackwardSensor
from flatline.sensors.forensics import finite, owner, parameter_names
from flatline.sensors.graph import Graph, Node, operation, saved, sequence
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import ModelSensor, readable
from flatline.sensors.optimizers import LASTING

HELD = 8_000_000  # bytes of saved tensors that are kept alive from backward to step, at most
NODES = 200  # operations that are kept in mind
NAMED = 4
Tensor = torch.Tensor


def _zero(tensor: Tensor) -> bool:
    return bool((tensor == 0).any())


def _negative(tensor: Tensor) -> bool:
    return bool((tensor < 0).any())


def _reaches_below(value: Any) -> bool:
    plain = isinstance(value, Tensor) and readable(value) and value.is_floating_point()
    return plain and _bytes(value) <= HELD and _negative(value.detach())


def _overflowed(tensor: Tensor) -> bool:
    return not finite(tensor)


def _at_one(tensor: Tensor) -> bool:
    return bool((tensor.abs() >= 1).any())


def _repeated(tensor: Tensor) -> bool:
    ordered = tensor.sort().values
    return bool((ordered.diff().abs() <= 1e-7 * ordered.abs().max()).any())


# operation -> (what it saved, where its derivative is infinite, how that is told)
RISKS: dict[str, tuple[str, Callable[[Tensor], bool], str]] = {
    "Sqrt": ("result", _zero, "sqrt of 0"),
    "Rsqrt": ("result", _overflowed, "rsqrt of 0"),
    "Log": ("self", _zero, "log of 0"),
    "Log2": ("self", _zero, "log2 of 0"),
    "Log10": ("self", _zero, "log10 of 0"),
    "Div": ("other", _zero, "division by 0"),
    "Reciprocal": ("result", _overflowed, "reciprocal of 0"),
    "Acos": ("self", _at_one, "acos at 1 or -1"),
    "Asin": ("self", _at_one, "asin at 1 or -1"),
    "Atanh": ("self", _at_one, "atanh at 1 or -1"),
    "Exp": ("result", _overflowed, "exp that overflows"),
    "Logsumexp": ("result", _overflowed, "logsumexp over -inf only"),
    "Mul": ("other", _overflowed, "multiplication by inf"),
    "LinalgEigh": ("eigenvalues", _repeated, "eigh with repeated eigenvalues"),
    "LinalgSvd": ("S", _repeated, "svd with repeated singular values"),
}


def risk(node: Node) -> tuple[Tensor, Callable[[Tensor], bool], str] | None:
    """What is to be looked at, should gradients turn out not to be finite."""
    name = operation(node)
    if name == "Pow":
        exponent = saved(node, "exponent")
        if not isinstance(exponent, (int, float)) or exponent <= 0:
            return None
        entry: tuple[str, Callable[[Tensor], bool], str] = "self", _overflowed, "pow of inf"
        if exponent < 1:
            entry = "self", _zero, f"pow(0, {exponent:g})"
        if exponent != int(exponent) and _reaches_below(saved(node, "self")):
            entry = "self", _negative, f"a number below 0 to the power {exponent:.3g}"
    elif name in RISKS:
        entry = RISKS[name]
    else:
        return None
    value = saved(node, entry[0])
    if not isinstance(value, Tensor) or not readable(value) or not value.is_floating_point() or not value.numel():
        return None
    return value.detach(), *entry[1:]


class DerivativeSensor:
    """Keeps small saved tensors of a few operations from backward to step; looks at them only when it must."""

    def __init__(self, loop: Loop, models: ModelSensor, backward: BackwardSensor, audit: AuditSensor) -> None:
        self.loop, self.models, self.backward, self.audit = loop, models, backward, audit
        self._risks: list[tuple[int, str, str, Tensor, Callable[[Tensor], bool], str]] = []
        self._pending: GradientNotFinite | None = None
        self._broken: list[Tensor] = []
        self._seen_at = 0
        self._told = False

    def before_backward(self, graph: Graph, where: Where | None) -> None:
        """Keep what the risky operations saved."""
        if self._told or not self.loop.wants(GradientNotFinite):
            return
        if self._seen_at != self.loop.step:
            self._risks, self._seen_at = [], self.loop.step
        room = HELD - sum(_bytes(entry[3]) for entry in self._risks)
        for node in graph.nodes:
            found = risk(node) if operation(node) in RISKS or operation(node) == "Pow" else None
            if found is None or _bytes(found[0]) > room or len(self._risks) >= NODES:
                continue
            room -= _bytes(found[0])
            self._risks.append((sequence(node), operation(node).lower(), owner(node, self.models, 0), *found))

    @property
    def found(self) -> bool:
        """Gradients that are not finite go into the step in progress."""
        return self._pending is not None

    def before_step(self, state: OptimizerState) -> None:
        """Do non-finite gradients go into this step, and after a loss that was finite?"""
        self._pending = None
        if not self.loop.dense or self._told or state.closure or state.window.scaled:
            return
        bad = [p for p in state.parameters if not math.isfinite(self.audit.gradients.get(id(p), 0.0))]
        bad = [p for p in bad if p.grad is not None and not finite(_values(p.grad)) and finite(p)]
        if bad and "backward" in state.window.tape and self._loss_was_finite():
            self._pending, self._broken = self._event(state, bad), bad

    def thrown_away(self, state: OptimizerState) -> bool:
        """Gradients are zeroed unread, again and again: is it because they are not finite? That is told where it lasts."""
        if self._told or state.window.scaled or not self._loss_was_finite():
            return self._told
        bad = [p for p in state.parameters if p.grad is not None and not finite(_values(p.grad))]
        if bad and state.idle_cycles >= LASTING:
            self._told = True
            self.loop.emit(self._event(state, bad))
        return bool(bad)

    def _loss_was_finite(self) -> bool:
        return not self.backward.not_finite_told and self.loop.last_loss_step == self.loop.step

    def _event(self, state: OptimizerState, bad: list[Any]) -> GradientNotFinite:
        early = self.audit.gradients_after_backward
        first = [p for p in bad if not math.isfinite(early.get(id(p), 0.0))] or bad
        names = parameter_names(self.models)
        guilty = self._guilty()
        return GradientNotFinite(
            step=self.loop.step,
            where=self.backward.where,
            kind="nan" if any(bool(torch.isnan(_values(p.grad)).any()) for p in first) else "inf",
            parameters=tuple(names.get(id(p), "a parameter") for p in first[:NAMED]),
            bad=len(first),
            total=len(state.parameters),
            operation=guilty[0],
            module=guilty[1],
            detail=guilty[2],
            dtype=str(first[0].grad.dtype).removeprefix("torch."),
            loss=self.loop.last_loss,
            optimizer=state.facts.name,
            lr=state.lr,
        )

    def _guilty(self) -> tuple[str, str, str]:
        """The risky operation nearest to the loss that was used where its derivative is infinite."""
        for _, name, place, value, infinite, told in sorted(self._risks, key=lambda entry: -entry[0]):
            if infinite(value):
                return name, place, told
        return "", "", ""

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """Tell if the weights are gone now; an optimizer may leave such a step out."""
        event, self._pending = self._pending, None
        broken, self._broken = self._broken, []
        self._risks = []
        if event is not None and not all(finite(p) for p in broken):
            self._told = True
            self.loop.emit(event)


def _bytes(tensor: Tensor) -> int:
    """What a tensor keeps alive: a view holds all that it is a view of."""
    return tensor.untyped_storage().nbytes()


def _values(gradient: Tensor) -> Tensor:
    return gradient.detach().coalesce().values() if gradient.is_sparse else gradient
