"""Weight matrices whose units are copies of each other, and stay so while they train."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from flatline.events import UnitsFacts, UnitsFollowed, Where
from flatline.sensors.audit import AuditSensor
from flatline.sensors.forensics import parameter_names
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import ModelSensor, readable

FEWEST = 4  # units
ENOUGH = 16  # weights of all of them: gains of a few channels may well be alike
LATER = 3  # steps on: what only begins alike, as a head of zeros, has parted by then
LARGEST = 50_000_000  # weights of a matrix that is looked at
Tensor = torch.Tensor


class SymmetrySensor:
    """Called after the step of every optimizer; looks at closely watched steps, twice for each optimizer."""

    def __init__(self, loop: Loop, models: ModelSensor, audit: AuditSensor) -> None:
        self.loop, self.models, self.audit = loop, models, audit
        self._alike: dict[int, tuple[int, list[Any]]] = {}  # key of an optimizer -> step, weak references

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """First which matrices have units that are alike, then which of them still do."""
        if not self.loop.dense or not state.lr or not self.loop.wants(UnitsFollowed):
            return
        known = self._alike.get(state.key)
        if known is None:
            matrices = [p for p in state.parameters if p.requires_grad and _matrix(p)]
            self._alike[state.key] = state.steps, [weakref.ref(p) for p in _of_equal_units(matrices)]
        elif known[1] and state.steps >= known[0] + LATER:
            self._alike[state.key] = known[0], []
            self._tell(state, [p for ref in known[1] if (p := ref()) is not None])

    def _tell(self, state: OptimizerState, candidates: list[Tensor]) -> None:
        alike = _of_equal_units(candidates)
        if not alike:
            return
        gradients, names = self.audit.gradients, parameter_names(self.models)
        others = (gradients.get(id(p), 0.0) for p in state.parameters if p.dim() > 1)
        self.loop.emit(
            UnitsFollowed(
                step=self.loop.step,
                where=state.where,
                steps=state.steps,
                learning=any(norm > 0 for norm in others),
                layers=tuple(
                    UnitsFacts(
                        name=names.get(id(p), f"a parameter of {' × '.join(map(str, p.shape))}"),
                        units=p.shape[0],
                        zero=not bool(p.detach().any()),
                        gradient=gradients.get(id(p), 0.0),
                    )
                    for p in alike
                ),
            )
        )


def _matrix(p: Any) -> bool:
    plain = readable(p) and p.is_floating_point() and p.dim() > 1 and p.numel() <= LARGEST
    return plain and p.shape[0] >= FEWEST and p.numel() >= max(ENOUGH, 2 * p.shape[0])


def _of_equal_units(matrices: list[Tensor]) -> list[Tensor]:
    """Those with one row repeated, in one transfer for each device."""
    groups: dict[torch.device, list[Tensor]] = {}
    for p in matrices:
        groups.setdefault(p.device, []).append(p)
    answers = ((group, torch.stack([_alike(p) for p in group]).tolist()) for group in groups.values())
    return [p for group, told in answers for p, alike in zip(group, told, strict=True) if alike]


def _alike(matrix: Tensor) -> Tensor:
    rows = matrix.detach().flatten(1)
    return (rows == rows[:1]).all()
