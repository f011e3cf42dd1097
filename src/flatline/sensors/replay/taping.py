"""What a step computed, in order: calls of the user's modules, and torch functions between them and the backward."""

from __future__ import annotations

import linecache
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from flatline.sensors.callers import users_frame
from flatline.sensors.models import readable, transformed
from flatline.sensors.patching import Patches
from flatline.sensors.replay.copying import Copier, Made, leaves
from flatline.toolbox._state import Restore, keep_random
from flatline.toolbox.nonfinite import Place

LONGEST = 5_000  # calls on a tape
RECENT = 8  # calls of modules that are always kept
GRADIENT = vars(torch._C.TensorBase)["grad"].__get__
DEVICES = ("cpu", "cuda")


@dataclass(slots=True)
class Happening:
    """A call, with what is needed to do it again."""

    function: Any  # a module, or a function of torch
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: tuple[str, int] | None
    grad: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    versions: list[tuple[torch.Tensor, int]]  # of what it was given
    random: Restore | None = None
    training: bool = True
    buffers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # those that a pass changes
    made: list[int] = field(default_factory=list)  # numbers of the tensors that came out
    graphs: set[int] = field(default_factory=set)  # numbers of tensors that went in, and that a graph hangs on
    bytes: int = 0  # of the tensors that are held for it

    @property
    def line(self) -> Place | None:
        """The user's line, with its text."""
        return (*self.place, linecache.getline(*self.place).strip()) if self.place is not None else None

    def changed(self) -> bool:
        """Whether something that it was given has other values now."""
        return any(version_of(tensor) != version for tensor, version in self.versions)

    def given(self) -> list[Any]:
        """The tensors that went in, and what stands for them."""
        return [*leaves(self.args), *leaves(self.kwargs)]


class _Packer(Copier):
    """What a call was given, as it may be held: nothing that a graph hangs on, and copies of what is changed in place."""

    def __init__(self, tape: Tape, limit: int) -> None:
        super().__init__(limit)
        self.tape = tape

    def _tensor(self, value: torch.Tensor) -> Any:
        number = self.tape.number_of(value)
        if value.requires_grad and not value.is_leaf:
            return Made(self.tape.numbered(value), weakref.ref(value))
        if number is not None:
            return Made(number, weakref.ref(value), value)
        small = value.layout is torch.strided and value.numel() * value.element_size() <= self.limit
        return value.detach().clone() if self.tape.copying and small and not value.requires_grad else value

    def _module(self, value: nn.Module) -> nn.Module:
        return value

    def _iterator(self, value: Any) -> Any:
        return value

    def _file(self, value: Any) -> Any:
        return value


class Tape(TorchFunctionMode):
    """Written from the first call of a module to the backward; ``limit`` bytes may be held for it."""

    def __init__(self, patches: Patches, limit: int) -> None:
        super().__init__()
        self.happenings: list[Happening] = []
        self.overflowed = False
        self.limit = limit
        self.copying = False  # some model changes its inputs
        self.inside = False  # within a module: it is run again as a whole
        self._numbers: dict[int, tuple[Any, int]] = {}  # id of a tensor -> weak reference, number
        self._count = self._bytes = 0
        self._moving: set[int] = set()  # buffers that a pass changes
        self._open: Happening | None = None
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._on = self._working = False
        self._thread = threading.get_ident()  # a mode that is left on another one's stack crashes it at its end
        self._noted = patches.guard(self._note)

    @property
    def elsewhere(self) -> bool:
        """In another thread than the one that is watched."""
        return threading.get_ident() != self._thread

    # ------------------------------------------------------------------ on and off

    def listen(self) -> None:
        """Be shown every function of torch that the user's loop calls."""
        if _free():
            self._on = True
            _push(self)

    def close(self) -> None:
        """No more; taken off later, when a function of torch is not just being run, such as Tensor.backward."""
        if self.elsewhere:
            return
        self._on = False
        if self._working:
            return
        above = []  # modes that the user has put on since
        while _stack():
            mode = _pop()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push(mode)

    def clear(self) -> None:
        """Forget everything."""
        self.happenings, self.overflowed, self._numbers, self._bytes = [], False, {}, 0

    def prune(self, recent: int = RECENT, room: int = RECENT) -> None:
        """Keep the newest calls of modules, and older ones only while what they made, or led to, is there."""
        calls = [at for at, h in enumerate(self.happenings) if h.random is not None]
        if len(calls) <= recent + room:
            return
        alive = {number for ref, number in self._numbers.values() if ref() is not None}
        kept = []
        for at in reversed(range(len(self.happenings))):
            happening = self.happenings[at]
            if at >= calls[-recent] or not alive.isdisjoint(happening.made):
                alive |= happening.graphs
                kept.append(happening)
        self.happenings, self._bytes = kept[::-1], sum(happening.bytes for happening in kept)
        self._numbers = {key: entry for key, entry in self._numbers.items() if entry[0]() is not None}

    # ------------------------------------------------------------------ numbers

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The one under which the step made it, if it did."""
        ref, number = self._numbers.get(id(tensor), (None, 0))
        return number if ref is not None and ref() is tensor else None

    def numbered(self, tensor: torch.Tensor) -> int:
        """Its number, from now on."""
        known = self.number_of(tensor)
        if known is None:
            self._count = known = self._count + 1
            self._numbers[id(tensor)] = weakref.ref(tensor), known
        return known

    # ------------------------------------------------------------------ modules

    def enters(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The user's code calls a module."""
        self.close()
        self.inside = True
        self.prune()
        if not torch.is_grad_enabled() or transformed() or self.overflowed:
            return
        buffers = [buffer for buffer in module.buffers() if id(buffer) in self._moving]
        happening = self._happening(module, args, kwargs)
        happening.training, happening.random = module.training, keep_random(None)
        happening.buffers = [(buffer, buffer.detach().clone()) for buffer in buffers]
        self._versions = [(buffer, version_of(buffer)) for buffer in module.buffers() if readable(buffer)]
        self._open = happening

    def leaves_off(self) -> None:
        """The module raised."""
        self.inside, self._open = False, None

    def left(self, result: Any) -> None:
        """The module is done."""
        self.inside, happening, self._open = False, self._open, None
        if happening is None:
            return
        self._moving |= {id(buffer) for buffer, version in self._versions if version_of(buffer) != version}
        self.copying = self.copying or happening.changed()
        self._hold(happening, leaves(result))
        self.listen()

    # ------------------------------------------------------------------ functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Between modules: torch's function, and a note of it."""
        if not self._on:
            return func(*args, **(kwargs or {}))
        self._working = True
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            self._working = False
        if self._on:
            self._noted(func, args, kwargs or {}, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = getattr(func, "__name__", "")
        made = leaves(result, 2)
        if self.inside or name == "backward" or self.overflowed or func == GRADIENT or transformed():
            return
        if made or name == "__setitem__":
            self._hold(self._happening(func, args, kwargs), made)

    def _happening(self, function: Any, args: Any, kwargs: Any) -> Happening:
        frame, packer = users_frame(), _Packer(self, self.limit)
        happening = Happening(
            function=function,
            args=packer.copy(tuple(args)),
            kwargs=packer.copy(dict(kwargs)),
            place=(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None,
            grad=torch.is_grad_enabled(),
            autocast=_autocast(),
            versions=[],
        )
        given = happening.given()
        plain = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        happening.graphs = {leaf.number for leaf in given if isinstance(leaf, Made) and leaf.value is None}
        happening.versions = [(leaf, version_of(leaf)) for leaf in plain]
        happening.bytes = sum(t.numel() * t.element_size() for t in plain if not t.requires_grad)
        return happening

    def _hold(self, happening: Happening, made: list[torch.Tensor]) -> None:
        """Beyond the limit, of the newest call only; without all of a step it cannot be done again."""
        happening.made = [self.numbered(tensor) for tensor in made]
        self.happenings.append(happening)
        self._bytes += happening.bytes
        if self._bytes > self.limit:
            self.prune(1, 0)
        if len(self.happenings) > LONGEST:
            self.clear()
            self.overflowed = True


def version_of(tensor: torch.Tensor) -> int:
    """Counts changes in place; inference tensors do not."""
    return -1 if not readable(tensor) or tensor.is_inference() else tensor._version


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """Where it is on, and with what."""
    if not hasattr(torch, "get_autocast_dtype"):  # before 2.4
        now = (
            (torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()),
            (
                torch.is_autocast_enabled(),
                torch.get_autocast_gpu_dtype(),
            ),
        )
        return tuple((device, dtype) for device, (on, dtype) in zip(DEVICES, now, strict=True) if on)
    on = [device for device in DEVICES if torch.is_autocast_enabled(device)]
    return tuple((device, torch.get_autocast_dtype(device)) for device in on)


_stack: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 1)


def _free() -> bool:
    """No mode of the user's is on, which would pop ours in place of itself; that of set_default_device does not."""
    default = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    at = getattr(torch._C, "_get_function_stack_at", None)
    return not _stack() or (at is not None and _stack() == 1 and default is not None and at(0) is default)


def _push(mode: Any) -> None:
    torch._C._push_on_torch_function_stack(mode)


def _pop() -> Any:
    return torch._C._pop_torch_function_stack()
