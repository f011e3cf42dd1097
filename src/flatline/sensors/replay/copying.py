"""A copy of modules and batches that can be run without the originals being touched."""

from __future__ import annotations

import copy
import functools
import io
import random
import sys
import types
import warnings
from collections import OrderedDict, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from flatline.sensors.models import readable

OBJECTS = 50_000  # that are looked into
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, slice, type(...))
SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, torch.utils.data.DataLoader)
FOREIGN = ("threading", "_thread", "multiprocessing", "logging", "queue", "socket", "io", "_io", "asyncio", "weakref")
ITERATORS = ("count", "repeat", "range_iterator", "list_iterator", "tuple_iterator")
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Made:
    """Stands for a tensor that the step made itself: a tape must not keep graphs alive."""

    number: int
    ref: Any  # weak reference
    value: torch.Tensor | None = None  # where no graph hangs on it

    @property
    def tensor(self) -> torch.Tensor | None:
        """As long as it is there."""
        return self.value if self.value is not None else self.ref()


class NotCopied(Exception):
    """Why there can be no copy, in a few words."""


class Copier:
    """Copies tensors, modules and what holds them; what is copied once is the same copy ever after.

    ``copy.deepcopy`` would follow a module's trainer to its data set, and refuses tensors of a graph. Here tensors are
    cloned, containers and plain objects made anew, and everything else is shared. Hooks of the user's are left off.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes
        self.bytes = 0
        self.memo: dict[int, Any] = {}
        self.made: dict[int, torch.Tensor] = {}  # number -> what was made this time
        self._kept: list[Any] = []  # so that no identity is taken over

    def knows(self, original: Any, replaced: Any) -> None:
        """From now on this stands for the original."""
        self.memo[id(original)] = replaced
        self._kept.append(original)

    def copy(self, value: Any) -> Any:
        """The copy of it."""
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, Made):
            return self._again(value)
        if id(value) in self.memo:
            return self.memo[id(value)]
        if len(self._kept) > OBJECTS:
            raise NotCopied("the model holds too many objects")
        made = self._made(value)
        if id(value) not in self.memo:
            self.knows(value, made)
        return made

    def _again(self, stand: Made) -> torch.Tensor:
        if stand.number not in self.made:
            original = stand.tensor
            if original is None:
                raise NotCopied("something that the step was made from is gone")
            self.made[stand.number] = self._tensor(original)
        return self.made[stand.number]

    def _made(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.jit.ScriptModule):
            raise NotCopied("scripted modules are not run again")
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, torch.Generator):
            twin = torch.Generator(value.device)
            twin.set_state(value.get_state())
            return twin
        if isinstance(value, random.Random) or type(value).__module__.startswith("numpy.random"):
            return copy.deepcopy(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.copy(value.__self__))
        if isinstance(value, functools.partial):
            return functools.partial(self.copy(value.func), *map(self.copy, value.args), **self.copy(value.keywords))
        return self._container(value)

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        if not readable(value) and not isinstance(value, nn.Parameter):
            raise NotCopied(f"a tensor is a {type(value).__name__}")
        if isinstance(value, nn.UninitializedParameter) or value.is_meta:
            raise NotCopied("a tensor has no values")
        if value.layout is torch.strided:
            self.bytes += value.numel() * value.element_size()
        if self.bytes > self.limit:
            raise NotCopied(f"a copy needs more than {self.limit >> 20} MB")
        twin = value.detach().clone()
        if isinstance(value, nn.Parameter):
            return nn.Parameter(twin, requires_grad=value.requires_grad)
        return twin.requires_grad_(value.requires_grad) if twin.is_floating_point() or twin.is_complex() else twin

    def _module(self, value: nn.Module) -> nn.Module:
        twin = type(value).__new__(type(value))
        self.knows(value, twin)
        twin.__dict__.update({name: self._attribute(name, held) for name, held in vars(value).items()})
        return twin

    def _attribute(self, name: str, held: Any) -> Any:
        """Hooks of torch's own, as of spectral_norm, are part of the forward pass; others may tell the user's log."""
        if name not in HOOKS or not isinstance(held, dict):
            return self.copy(held)
        own = {key: hook for key, hook in held.items() if _of_torch(hook)}
        return type(held)((key, self.copy(hook)) for key, hook in own.items())

    def _container(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, tuple):
            return tuple.__new__(type(value), map(self.copy, value))
        if type(value) in (list, set, deque):
            twin = type(value)()
            self.knows(value, twin)
            add = twin.add if isinstance(twin, set) else twin.append
            for item in value:
                add(self.copy(item))
            return twin
        return self._object(value)

    def _mapping(self, value: Any) -> Any:
        """Subclasses, such as the outputs of transformers, too; past their own methods."""
        kind: Any = type(value)
        twin = kind.__new__(kind)
        self.knows(value, twin)
        put = OrderedDict.__setitem__ if isinstance(value, OrderedDict) else dict.__setitem__
        for key, held in value.items():
            put(twin, key, self.copy(held))
        if isinstance(value, defaultdict):
            twin.default_factory = value.default_factory
        for name, held in getattr(value, "__dict__", {}).items():
            twin.__dict__[name] = self.copy(held)
        return twin

    def _object(self, value: Any) -> Any:
        kind: Any = type(value)
        if isinstance(value, io.IOBase):
            return self._file(value)
        if isinstance(value, SHARED) or kind.__module__.partition(".")[0] in FOREIGN:
            return value
        if kind.__new__ is not object.__new__ or not hasattr(value, "__dict__"):
            return self._iterator(value) if hasattr(kind, "__next__") else value
        twin = object.__new__(kind)
        self.knows(value, twin)
        twin.__dict__.update({name: self.copy(held) for name, held in vars(value).items()})
        return twin

    def _iterator(self, value: Any) -> Any:
        """One of Python's own that goes on by itself; those over other iterators would take these along."""
        if type(value).__name__ in ITERATORS:
            with warnings.catch_warnings(), suppress(TypeError):
                warnings.simplefilter("ignore")  # Python 3.14 cannot copy those of itertools any more
                return copy.copy(value)
        raise NotCopied(f"it holds a {type(value).__name__}, which would go on")

    def _file(self, value: io.IOBase) -> Any:
        """What is written into an open file goes nowhere."""
        if isinstance(value, (io.BytesIO, io.StringIO)):
            return copy.copy(value)
        if value in (sys.stdout, sys.stderr) or value.closed or not value.writable():
            return value
        return io.StringIO() if isinstance(value, io.TextIOBase) else io.BytesIO()


def _of_torch(hook: Any) -> bool:
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return str(module).partition(".")[0] == "torch"


def leaves(value: Any, depth: int = 4) -> list[Any]:
    """The tensors in a nest of containers and plain objects, or what stands for them, in an order that a copy keeps."""
    if isinstance(value, (torch.Tensor, Made)):
        return [value]
    if not depth or isinstance(value, (*PLAIN, *SHARED, nn.Module)):
        return []
    if isinstance(value, dict):
        parts: Any = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        parts = getattr(value, "__dict__", {}).values()
    return [leaf for part in parts for leaf in leaves(part, depth - 1)]
