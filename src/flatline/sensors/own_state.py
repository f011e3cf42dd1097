"""A state dict that is kept without a copy: its tensors are the model's own, and go on with it."""

from __future__ import annotations

import ast
import weakref
from functools import lru_cache
from typing import Any, NamedTuple

from torch import nn

from flatline.events import StateAliased, Where
from flatline.sensors.callers import caller
from flatline.sensors.loop import Loop
from flatline.sensors.patching import Patches
from flatline.sensors.sources import called_name, tree_of
from flatline.sensors.tree import named_parameters

KEPT = 64  # state dicts that are remembered
WRITING = ("copy_", "add_", "sub_", "mul_", "div_", "lerp_")  # into the tensors of a model, which need no load then


class Taken(NamedTuple):
    """When a model's state dict was made."""

    steps: int  # of the optimizers that hold its parameters
    step: int
    where: Where | None


class OwnStateSensor:
    """Patches ``Module.state_dict``; told of every ``load_state_dict``."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self._newest: weakref.WeakKeyDictionary[nn.Module, Taken] = weakref.WeakKeyDictionary()
        self._dicts: dict[int, tuple[weakref.ref[Any], Taken]] = {}

    def attach(self) -> None:
        """Patch it; what it calls for every part of a model is passed by."""
        self.patches.around(nn.Module, "state_dict", after=self._taken, light=_of_a_part)

    def loaded(self, module: nn.Module, state: Any, missing: tuple[str, ...], assigned: bool) -> None:
        """Was it given its own tensors, as they are by now?"""
        own = dict(named_parameters(module))
        taken = self._when(module, state)
        if taken is None or missing or not own or not self.loop.wants(StateAliased):
            return
        stepped, where = self._steps(module) - taken.steps, caller()
        if stepped <= 0 or where is None or writes_weights(where.file) or not _same_memory(own, state):
            return
        self.loop.emit(
            StateAliased(
                step=self.loop.step,
                where=taken.where or where,
                model=type(module).__name__,
                tensors=len(own),
                taken=taken.step,
                steps=stepped,
                loaded=where,
            )
        )

    def _taken(self, state: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        taken = self._newest[module] = Taken(self._steps(module), self.loop.steps, caller())
        if len(self._dicts) >= KEPT:
            self._dicts.pop(next(iter(self._dicts)))
        self._dicts[id(state)] = weakref.ref(state), taken

    def _when(self, module: nn.Module, state: Any) -> Taken | None:
        """This very dictionary; or, at the latest, the newest one of that model, of which this is made."""
        ref, taken = self._dicts.get(id(state), (None, None))
        return taken if ref is not None and ref() is state else self._newest.get(module)

    def _steps(self, module: nn.Module) -> int:
        ids = {id(p) for p in module.parameters()}
        return sum(state.steps for state in (*self.loop.states, *self.loop.retired) if not ids.isdisjoint(state.held))


def _of_a_part(module: nn.Module, *args: Any, **kwargs: Any) -> bool:
    return bool(args) or kwargs.get("destination") is not None


def _same_memory(own: dict[str, Any], state: Any) -> bool:
    """Each of the model's parameters lies where the tensor lies that it was given."""
    given = [(p, state.get(name)) for name, p in own.items()]
    return all(
        t is not None and t.data_ptr() == p.data_ptr() != 0 and t.shape == p.shape and t.stride() == p.stride()
        for p, t in given
    )


@lru_cache(maxsize=64)
def writes_weights(file: str) -> bool:
    """The file writes into tensors in place: a state dict may be how it reaches them."""
    tree = tree_of(file)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree is not None else ()
    return tree is None or any(called_name(call) in WRITING for call in calls)
