"""Weight matrices whose units are copies of each other, and stay so while they train: rows, or the columns of a table."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import nn

from flatline.events import UnitsFacts, UnitsFollowed, Where
from flatline.sensors.audit import AuditSensor
from flatline.sensors.forensics import parameter_names
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import ModelSensor, readable
from flatline.sensors.tree import modules, own_parameters

FEWEST = 4  # units
ENOUGH = 16  # weights of all of them: gains of a few channels may well be alike
LATER = 3  # steps on: what only begins alike, as a head of zeros, has parted by then
LARGEST = 50_000_000  # weights of a matrix that is looked at
TABLES = (nn.Embedding, nn.EmbeddingBag)
LAYERS = (nn.Linear, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
Tensor = torch.Tensor


class Units(NamedTuple):
    """A matrix whose rows, or whose columns, are units of it."""

    matrix: Tensor
    columns: bool

    def each(self) -> Tensor:
        """One row for each unit."""
        rows = self.matrix.detach().flatten(1)
        return rows.t() if self.columns else rows

    def alike(self) -> Tensor:
        """Whether all of them hold the same numbers; no tensor of their size is made for it."""
        units = self.each()
        low, high = torch.aminmax(torch.view_as_real(units) if units.is_complex() else units, dim=0)
        return (low == high).all()


class Begun(NamedTuple):
    """Units that were alike after the first step, and what each of them held."""

    ref: Any
    columns: bool
    held: Tensor

    def now(self) -> Units | None:
        """The same now; columns count if they have moved, which a table whose rows are not used has not."""
        matrix = self.ref()
        units = None if matrix is None else Units(matrix, self.columns)
        return units if units and not (self.columns and torch.equal(units.each()[0], self.held)) else None


class SymmetrySensor:
    """Called after the step of every optimizer; looks at closely watched steps, twice for each optimizer."""

    def __init__(self, loop: Loop, models: ModelSensor, audit: AuditSensor) -> None:
        self.loop, self.models, self.audit = loop, models, audit
        self._alike: dict[int, tuple[int, list[Begun]]] = {}  # key of an optimizer -> step, what is alike

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """First which matrices have units that are alike, then which of them still do."""
        if not self.loop.dense or not state.lr or not self.loop.wants(UnitsFollowed):
            return
        known = self._alike.get(state.key)
        if known is None:
            alike = _of_equal_units(self._candidates(state))
            begun = [Begun(weakref.ref(each.matrix), each.columns, each.each()[0].clone()) for each in alike]
            self._alike[state.key] = state.steps, begun
        elif known[1] and state.steps >= known[0] + LATER:
            self._alike[state.key] = known[0], []
            self._tell(state, [units for each in known[1] if (units := each.now()) is not None])

    def _candidates(self, state: OptimizerState) -> list[Units]:
        """The rows of every matrix, and the columns of those that are no torch layer's weights."""
        trained = [p for p in state.parameters if p.requires_grad and readable(p) and p.is_floating_point()]
        layers = self._weights_of_layers()
        tables = [p for p in trained if p.dim() == 2 and id(p) not in layers and _matrix(p.detach().t())]
        return [Units(p, False) for p in trained if _matrix(p)] + [Units(p, True) for p in tables]

    def _weights_of_layers(self) -> set[int]:
        """Of layers that multiply by them: their columns belong to what the layer is given."""
        heads = (module for model in self.models.known if (module := model.ref()) is not None)
        parts = (part for head in heads for part in modules(head) if not isinstance(part, TABLES))
        return {id(p) for part in parts if isinstance(part, LAYERS) for p in own_parameters(part)}

    def _tell(self, state: OptimizerState, candidates: list[Units]) -> None:
        alike = _of_equal_units(candidates)
        rows = {id(each.matrix) for each in alike if not each.columns}
        alike = [each for each in alike if not each.columns or id(each.matrix) not in rows]
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
                        units=p.shape[int(columns)],
                        columns=columns,
                        zero=not bool(p.detach().any()),
                        gradient=gradients.get(id(p), 0.0),
                    )
                    for p, columns in alike
                ),
            )
        )


def _matrix(p: Tensor) -> bool:
    return p.dim() > 1 and p.numel() <= LARGEST and p.shape[0] >= FEWEST and p.numel() >= max(ENOUGH, 2 * p.shape[0])


def _of_equal_units(units: list[Units]) -> list[Units]:
    """Those with one unit repeated, in one transfer for each device."""
    groups: dict[torch.device, list[Units]] = {}
    for each in units:
        groups.setdefault(each.matrix.device, []).append(each)
    answers = ((group, torch.stack([each.alike() for each in group]).tolist()) for group in groups.values())
    return [each for group, told in answers for each, alike in zip(group, told, strict=True) if alike]
