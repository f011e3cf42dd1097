"""Who was built around whom: modules that were given a layer of another one, and the parameters made in them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn

from flatline.events import Where
from flatline.sensors.callers import callers_above

MOST = 256  # modules around layers that are remembered when they are gone
LEVELS = 3  # from a parameter up to the module that was built around a layer: PEFT puts one around each matrix


class Built:
    """A module as it was built; it may be gone."""

    __slots__ = ("around", "kind", "ref", "weighty", "where", "within")

    def __init__(self, module: nn.Module) -> None:
        self.ref, self.kind = weakref.ref(module), type(module).__name__
        self.within: Built | None = None
        self.around: list[Any] = []  # weak references to layers that were another module's before
        self.where: Where | None = None  # that built what is around them
        self.weighty = False  # parameters were made in it

    @property
    def layers(self) -> list[nn.Module]:
        """Those of them that are still there."""
        return [layer for ref in self.around if (layer := ref()) is not None]


class Wrapping:
    """Told of all that modules register."""

    def __init__(self) -> None:
        self._built: dict[int, Built] = {}  # by id: a user's module may have a hash of its own
        self._parameters: dict[int, tuple[Any, Built]] = {}  # id -> weak reference, the module it was made in
        self.wrappers: list[Built] = []  # all that were built around a layer, also those that are gone

    def module(self, parent: nn.Module, child: nn.Module, before: nn.Module | None) -> None:
        """A module became a part of another, and was one of ``before`` until then."""
        owner = self._of(parent)
        if before is None or before is parent:
            inner = self._of(child)
            inner.within = owner
            owner.weighty |= inner.weighty
        else:
            if not owner.around and len(self.wrappers) < MOST:
                self.wrappers.append(owner)
            owner.around.append(weakref.ref(child))
            owner.where = next(iter(callers_above(1)), None)

    def parameter(self, module: nn.Module, parameter: Any) -> None:
        """A parameter was registered; the first module counts."""
        known = self._parameters.get(id(parameter))
        if parameter is not None and (known is None or known[0]() is not parameter):
            owner = self._of(module)
            owner.weighty = True
            self._parameters[id(parameter)] = weakref.ref(parameter), owner

    def homes(self, parameter: Any) -> list[Built]:
        """The module that a parameter was made in, and those above it, up to one that was built around a layer."""
        ref, built = self._parameters.get(id(parameter), (None, None))
        if ref is None or ref() is not parameter:
            return []
        above = list(_upwards(built))
        first = next((place for place, each in enumerate(above) if each.around), len(above))
        return above[: first + 1]

    def _of(self, module: nn.Module) -> Built:
        found = self._built.get(id(module))
        if found is None or found.ref() is not module:
            found = self._built[id(module)] = Built(module)
        return found


def _upwards(built: Built | None) -> Iterator[Built]:
    for _ in range(LEVELS):
        if built is not None:
            yield built
            built = built.within
