"""Hooks of the user's on the gradients of parameters: do they make it smaller, all of it, by one factor?"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from flatline.events import HookFacts, Where
from flatline.sensors.graph import Graph
from flatline.sensors.models import readable
from flatline.sensors.patching import Patches
from flatline.sensors.spacing import spaced

Tensor = torch.Tensor
LOOKS = 3  # backwards of each parameter; all have to agree
MOST = 16  # parameters at a time
ELEMENTS = 1_024  # of each gradient
AGREES = 1e-3  # of the gradient: what may be left when the factor is taken out


class GradientHooks:
    """On steps that are looked at closely, a gradient is sampled before the first of its hooks and after the last."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self._handles: list[Any] = []
        self._samples: dict[int, list[Tensor]] = {}
        self._watched: dict[int, Tensor] = {}  # parameters, until the backward is over
        self._known: dict[int, tuple[Any, HookFacts, int]] = {}  # id -> weak reference, what was seen, how often
        patches.on_undo(self._take_off)

    def facts(self, parameter: Tensor) -> HookFacts | None:
        """The hook that scales the gradient of this parameter, seen twice at least."""
        known = self._known.get(id(parameter))
        if known is None or known[0]() is not parameter:
            return None
        return known[1] if known[2] > 1 and known[1].factor else None

    def before_backward(self, graph: Graph, where: Where | None) -> None:
        """Stand on both sides of the hooks there are."""
        self._take_off()
        hooked = [p for p in graph.leaves.values() if getattr(p, "_backward_hooks", None) and readable(p)]
        for parameter in hooked[:MOST]:
            ref, _, looks = self._known.get(id(parameter), (None, None, 0))
            if looks < LOOKS or ref is None or ref() is not parameter:
                self._stand_around(parameter)

    def _stand_around(self, parameter: Tensor) -> None:
        hooks: Any = parameter._backward_hooks
        register: Any = parameter.register_hook
        own = list(hooks)
        self._watched[id(parameter)] = parameter
        for keys in (own, ()):
            keep = self.patches.guard(functools.partial(self._keep, id(parameter)))
            self._handles.append(register(_silent(keep)))
            for key in keys:  # they run in the order in which they stand
                hooks[key] = hooks.pop(key)

    def _keep(self, key: int, gradient: Tensor) -> None:
        if not gradient.is_sparse and readable(gradient):
            stride, _ = spaced(gradient, ELEMENTS)
            self._samples.setdefault(key, []).append(gradient.detach().reshape(-1)[::stride].double())

    def after_backward(self) -> None:
        """What was left of each gradient."""
        watched, samples = self._watched, self._samples
        self._take_off()
        for key, parameter in watched.items():
            pair = samples.get(key, [])
            if len(pair) == 2:
                self._compare(parameter, *pair)

    def _compare(self, parameter: Tensor, before: Tensor, after: Tensor) -> None:
        dot, size, left = torch.stack([before @ after, before @ before, after @ after]).tolist()
        factor = dot / size if size > 0 else 0.0
        alike = abs(left - factor * dot) <= AGREES**2 * left
        _, last, looks = self._known.get(id(parameter), (None, None, 0))
        agrees = last is None or abs(last.factor - factor) <= AGREES * factor
        hook = next(iter(parameter._backward_hooks.values()), None)  # type: ignore[union-attr]
        facts = _named(hook, factor if alike and agrees and factor > 0 else 0.0)
        self._known[id(parameter)] = weakref.ref(parameter), facts, looks + 1

    def _take_off(self) -> None:
        handles, self._handles = self._handles, []
        self._watched, self._samples = {}, {}
        for handle in handles:
            handle.remove()


def _silent(keep: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
    """A hook that leaves the gradient as it is."""

    def hook(gradient: Tensor) -> None:
        keep(gradient)

    return hook


def _named(hook: Any, factor: float) -> HookFacts:
    while isinstance(hook, functools.partial):
        hook = hook.func
    code = getattr(hook, "__code__", None)  # a method has that of its function
    name = getattr(hook, "__name__", type(hook).__name__)
    return HookFacts(
        name="a lambda" if name == "<lambda>" else name,
        where=Where(code.co_filename, code.co_firstlineno, name) if code is not None else None,
        factor=factor,
    )
