"""A state dict that is kept without a copy: its tensors are the model's own, and go on with it."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from torch import nn

from flatline.events import StateAliased, Where
from flatline.sensors.callers import caller
from flatline.sensors.loop import Loop
from flatline.sensors.patching import Patches
from flatline.sensors.sources import called_name, tree_of
from flatline.sensors.tree import named_buffers, named_parameters, parameters

WRITES = (1, 2, 3)  # to a parameter in one step of an optimizer: decay, the update, a projection
KEPT = 64  # state dicts that are remembered
LINES = 8  # of the script that make one of a model
WRITING = ("copy_", "add_", "sub_", "mul_", "div_", "lerp_")  # into the tensors of a model, which need no load then


class Taken(NamedTuple):
    """When a model's state dict was made."""

    steps: int  # of the optimizers that hold its parameters
    step: int
    where: Where | None
    model: weakref.ref[nn.Module]
    versions: dict[str, int]  # how often each of its parameters had been written to


class OwnStateSensor:
    """Patches ``Module.state_dict``; told of every ``load_state_dict``."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self._newest: weakref.WeakKeyDictionary[nn.Module, Taken] = weakref.WeakKeyDictionary()
        self._lines: weakref.WeakKeyDictionary[nn.Module, dict[Where, Taken]] = weakref.WeakKeyDictionary()
        self._loads: weakref.WeakKeyDictionary[nn.Module, int] = (
            weakref.WeakKeyDictionary()
        )  # since the newest was made
        self._dicts: dict[int, tuple[weakref.ref[Any], Taken]] = {}

    def attach(self) -> None:
        """Patch it; what it calls for every part of a model is passed by."""
        self.patches.around(nn.Module, "state_dict", after=self._taken, light=_of_a_part)

    def loaded(self, module: nn.Module, state: Any, missing: tuple[str, ...], assigned: bool) -> None:
        """Was it given its own tensors, as they are by now?"""
        loads = self._loads[module] = self._loads.get(module, 0) + 1
        own = {name: p for name, p in named_parameters(module) if p.requires_grad}
        taken = self._when(module, state)
        if taken is None or taken.model() is not module or missing or assigned or not self.loop.wants(StateAliased):
            return
        stepped, where = self._steps(module) - taken.steps, caller()
        if stepped <= 0 or where is None or writes_weights(where.file) or not _same_memory(module, state):
            return
        if not _steps_alone(own, taken.versions, stepped, loads):
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
        versions = {name: p._version for name, p in named_parameters(module) if not p.is_inference()}
        taken = self._newest[module] = Taken(
            self._steps(module), self.loop.steps, caller(), weakref.ref(module), versions
        )
        self._loads[module] = 0
        lines = self._lines.setdefault(module, {})
        if taken.where is not None and (taken.where in lines or len(lines) < LINES):
            lines[taken.where] = taken
        if len(self._dicts) >= KEPT:
            self._dicts.pop(next(iter(self._dicts)))
        self._dicts[id(state)] = weakref.ref(state), taken

    def untouched(self) -> Iterator[tuple[nn.Module, Taken]]:
        """Models of which a state dict was made, and that nothing was loaded into or written to since."""
        for module, lines in list(self._lines.items()):
            now = {name: p._version for name, p in named_parameters(module) if not p.is_inference()}
            yield from ((module, taken) for taken in lines.values() if now == taken.versions)

    def others(self, module: nn.Module) -> Iterator[Taken]:
        """What was made of other models' state dicts."""
        return (taken for _, taken in list(self._dicts.values()) if taken.model() is not module)

    def _when(self, module: nn.Module, state: Any) -> Taken | None:
        """This very dictionary; or, at the latest, the newest one of that model, of which this is made."""
        ref, taken = self._dicts.get(id(state), (None, None))
        return taken if ref is not None and ref() is state else self._newest.get(module)

    def _steps(self, module: nn.Module) -> int:
        ids = {id(p) for p in parameters(module)}
        return sum(state.steps for state in (*self.loop.states, *self.loop.retired) if not ids.isdisjoint(state.held))


def _of_a_part(module: nn.Module, *args: Any, **kwargs: Any) -> bool:
    return bool(args) or kwargs.get("destination") is not None


def _same_memory(module: nn.Module, state: Any) -> bool:
    """Each of the model's parameters and buffers lies where the tensor lies that it was given."""
    own = [*named_parameters(module), *((n, b) for n, b in named_buffers(module) if n in state and b.numel())]
    given = [(p, state.get(name)) for name, p in own]
    return bool(given) and all(
        t is not None and t.data_ptr() == p.data_ptr() != 0 and t.shape == p.shape and t.stride() == p.stride()
        for p, t in given
    )


def _steps_alone(own: dict[str, Any], versions: dict[str, int], steps: int, loads: int) -> bool:
    """Since then nothing wrote to most of the parameters but so many steps, each as often, and so many loads."""
    writes = [p._version - versions.get(name, p._version) - loads for name, p in own.items()]
    return 2 * sum(count in [steps * each for each in WRITES] for count in writes) > len(writes)


@lru_cache(maxsize=64)
def writes_weights(file: str) -> bool:
    """The file writes into tensors in place: a state dict may be how it reaches them."""
    tree = tree_of(file)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree is not None else ()
    return tree is None or any(called_name(call) in WRITING for call in calls)
