"""Layers that a load from another model of the program left at random, though they are in that model under the same names."""

from __future__ import annotations

import linecache
import re
import weakref
from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from flatline.events import LayersLeftBehind, Where
from flatline.sensors.callers import caller
from flatline.sensors.fresh_heads import random_and_frozen
from flatline.sensors.loop import Loop
from flatline.sensors.models import readable
from flatline.sensors.tree import named_modules, named_parameters

Versions = Mapping[str, int]  # of tensors by name: another one tells that they were written to
MOST = 8  # loads that are followed


class LeftBehind:
    """Follows such loads to the first step of the model."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._loads: list[tuple[Any, Versions, str, Where | None]] = []  # module, names, the class they are in

    def loaded(self, module: nn.Module, state: Any, missing: tuple[str, ...], others: Iterable[nn.Module]) -> None:
        """A part of a state dict went in."""
        if not missing or not isinstance(state, Mapping) or len(self._loads) >= MOST:
            return
        giver = next((each for each in others if each is not module and _gave(each, state)), None)
        theirs = {name: p.shape for name, p in named_parameters(giver)} if giver is not None else {}
        own = dict(named_parameters(module))
        fitting = {name: own[name]._version for name in missing if name in own and theirs.get(name) == own[name].shape}
        if fitting:
            self._loads.append((weakref.ref(module), fitting, type(giver).__name__, caller()))

    def before_first_step(self, trained: set[int], loaded: Mapping[int, Any], ran: Container[int]) -> None:
        """An optimizer begins: is it with one of these models, and did layers run that are frozen as they were built?"""
        for load in list(self._loads):
            module = load[0]()
            own = dict(named_parameters(module)) if module is not None else {}
            if any(id(p) in trained and p.requires_grad for p in own.values()):
                self._loads.remove(load)
                self._tell(module, own, *load[1:], loaded, ran)

    def _tell(
        self,
        module: Any,
        own: Mapping[str, Any],
        fitting: Versions,
        giver: str,
        where: Where | None,
        loaded: Mapping[int, Any],
        ran: Container[int],
    ) -> None:
        layers = [
            name
            for name, layer in named_modules(module)
            if id(layer) in ran
            and (weight := own.get(f"{name}.weight")) is not None
            and fitting.get(f"{name}.weight") == weight._version
            and random_and_frozen(layer, loaded)
            and not (where is not None and frozen_by_name(where.file, name))
        ]
        if layers:
            self.loop.emit(
                LayersLeftBehind(
                    step=self.loop.step,
                    where=where,
                    model=type(module).__name__,
                    giver=giver,
                    layers=tuple(layers),
                    tensors=len(own),
                    missing=len(fitting),
                )
            )


def _gave(model: nn.Module, state: Mapping[str, Any]) -> bool:
    """The first matrix that both have is one and the same, or a copy."""
    for name, p in named_parameters(model):
        given = state.get(name)
        if p.dim() > 1 and isinstance(given, torch.Tensor):
            alike = given.shape == p.shape and given.device == p.device and readable(p) and readable(given)
            return alike and (given.data_ptr() == p.data_ptr() or torch.equal(given, p))
    return False


def frozen_by_name(file: str, layer: str) -> bool:
    """A line of the source freezes this very layer, and no larger part of the model: it is to stay at random."""
    spelled = re.escape(re.sub(r"\.(\d+)", r"[\1]", layer))
    named = re.compile(rf"""\.{spelled}\.|["']{re.escape(layer)}\.?["']""")
    lines = linecache.getlines(file)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        meant = line + following if line.rstrip().endswith(":") else line
        if named.search(line) and "requires_grad" in meant:
            return True
    return False
