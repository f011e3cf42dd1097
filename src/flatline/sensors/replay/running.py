"""A step done again on a copy of its modules, under anomaly mode."""

from __future__ import annotations

import builtins
import io
import math
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from flatline.sensors.forensics import finite
from flatline.sensors.graph import walk
from flatline.sensors.replay.copying import Copier, Made, NotCopied, leaves
from flatline.sensors.replay.taping import Happening, Tape
from flatline.toolbox._state import keep_random
from flatline.toolbox.nonfinite import NonFinite, Watch, search

ROWS = 16
WRITING = frozenset("wax+")
WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)
Tensor = torch.Tensor


@dataclass(slots=True)
class Again:
    """What came of it."""

    found: NonFinite | None = None
    module: str = ""
    samples: int = 0  # in the batch
    exact: bool = True  # the loss was the same
    why_not: str = ""  # it could not be done, or told nothing
    kept: dict[str, Any] = field(default_factory=dict)  # for the file

    @property
    def rows(self) -> tuple[int, ...]:
        """The samples that were not finite, where not all of them were."""
        found = self.found
        if found is None or found.height != self.samples or not 0 < len(found.rows) < min(self.samples, ROWS):
            return ()
        return found.rows


class Step:
    """The part of a tape that a loss was made by."""

    def __init__(self, tape: Tape, root: Tensor, labels: dict[int, str], limit: int) -> None:
        self.root, self.labels, self.number = root, labels, tape.number_of(root)
        self.copier = Copier(limit)
        self.happenings = _needed(tape.happenings, self.number)
        self.models: list[nn.Module] = []
        calls = [h for h in self.happenings if isinstance(h.function, nn.Module)]
        self.main = max(calls, key=lambda h: _size(h.function), default=None)
        self.container = nn.Module()

    # ------------------------------------------------------------------ what there is

    @property
    def inputs(self) -> list[Tensor]:
        """What the largest model was given."""
        given = [_tensor(leaf) for leaf in self.main.given()] if self.main is not None else []
        return [tensor for tensor in given if tensor is not None]

    @property
    def samples(self) -> int:
        """Rows of the batch."""
        return next((tensor.shape[0] for tensor in self.inputs if tensor.dim()), 0)

    def targets(self) -> list[Tensor]:
        """What else was put in, and was not made by the step."""
        known = {id(tensor) for tensor in self.inputs}
        given = [leaf for h in self.happenings for leaf in h.given() if isinstance(leaf, Tensor)]
        return list({id(t): t for t in given if id(t) not in known and not t.requires_grad}.values())

    def _originals(self) -> list[nn.Module]:
        found = [_unwrapped(h.function) for h in self.happenings if isinstance(h.function, nn.Module)]
        return list({id(module): module for module in found}.values())

    def to_keep(self) -> dict[str, Any]:
        """The batch, and all that is needed to be given it again."""
        main = self.main
        if main is None:
            return {}
        kept = {"inputs": _plain(main.args), "keywords": _plain(main.kwargs)}
        kept |= {"targets": [t.detach() for t in self.targets()], "training": main.training}
        if main.random is not None:
            main.random()
        kept["rng"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            kept["cuda_rng"] = torch.cuda.get_rng_state_all()
        return kept

    # ------------------------------------------------------------------ done again

    def again(self) -> Again:
        """Find the first operation whose result is not finite; random generators are as before."""
        put_back = keep_random(None)
        result = Again(samples=self.samples)
        try:
            result.kept = self.to_keep()
            result.found = given = self._given()
            if given is None or given.op == "batch":
                self._copy(result)
            if given is None:
                self._search(result)
        except NotCopied as why:
            result.why_not = str(why)
        except Exception as error:  # noqa: BLE001 - the user's own code runs here a second time
            result.why_not = f"it raised {type(error).__name__} when it was done again"
        finally:
            put_back()
        return result

    def _given(self) -> NonFinite | None:
        """What was not finite before the step."""
        for model in self._originals():
            for name, parameter in model.named_parameters():
                if not finite(parameter):
                    return _named(f"parameter {name}", parameter)
        first = next(iter(self.inputs), None)
        nan = [t for t in (*self.inputs[1:], *self.targets()) if t.is_floating_point() and bool(t.isnan().any())]
        if first is not None and first.is_floating_point() and not finite(first):
            nan.insert(0, first)
        return _named("batch", nan[0]) if nan else None

    def _copy(self, result: Again) -> None:
        for number, module in enumerate(self._originals()):
            self.container.add_module(str(number), self.copier.copy(module))
        self.models = self._originals()
        loose = [leaf for h in self.happenings for leaf in h.given() if isinstance(leaf, nn.Parameter)]
        for number, parameter in enumerate(loose):
            if id(parameter) not in self.copier.memo:
                self.container.register_parameter(f"loose{number}", self.copier.copy(parameter))
        for happening in reversed(self.happenings):
            for buffer, before in happening.buffers:
                self.copier.copy(buffer).copy_(before)
        if self.main is not None:
            state = self.copier.copy(_unwrapped(self.main.function)).state_dict()
            changing = {id(self.copier.copy(b)) for h in self.happenings for b, _ in h.buffers}
            result.kept["state_dict"] = {
                name: value.detach().clone() if id(value) in changing else value for name, value in state.items()
            }

    def _search(self, result: Again) -> None:
        watch = Watch()
        with self._originals_rest(), _nothing_written():
            found = search(self.container, lambda: self._run(watch), (), watch)
        value = self.copier.made.get(self.number) if self.number is not None else None
        changed = any(happening.changed() for happening in self.happenings)
        same = value is not None and torch.equal(torch.nan_to_num(value), torch.nan_to_num(self.root))
        result.exact = same and not changed
        result.found, result.module = found, self._module(found.module) if found is not None else ""
        if found is None:
            result.why_not = "done again, its numbers were finite" if not result.exact else "no operation stood out"

    def _module(self, name: str) -> str:
        """``0.layers.3`` -> ``layers.3``, with the model in front where there are several."""
        number, _, path = name.partition(".")
        if not number.isdecimal() or int(number) >= len(self.models):
            return name
        model = self.models[int(number)]
        label = self.labels.get(id(model), type(model).__name__)
        several = sum(_size(each) > 0 for each in self.models) > 1
        return (f"{label}.{path}" if several else path) if path else label

    def _run(self, watch: Watch) -> Tensor:
        copier, last = self.copier, None
        for happening in self.happenings:
            args, kwargs = copier.copy(happening.args), copier.copy(happening.kwargs)
            function = happening.function
            if isinstance(function, nn.Module):
                function = copier.copy(_unwrapped(function))
                if happening.random is not None:
                    happening.random()
            with _as_before(happening), watch.at(happening.line):
                made = function(*args, **kwargs)
            for number, tensor in zip(happening.made, leaves(made), strict=False):
                copier.made[number] = tensor
                last = tensor if tensor.is_floating_point() else last
        loss = copier.made.get(self.number, last) if self.number is not None else last
        if loss is None:
            raise NotCopied("what made the loss was not seen")
        self._reaches_copies_only(loss)
        return loss if loss.numel() == 1 else loss.sum()

    def _reaches_copies_only(self, loss: Tensor) -> None:
        """A parameter that the model takes from somewhere else would be given a gradient."""
        reached = walk(loss.grad_fn).leaves if loss.grad_fn is not None else {}
        copies = {id(copy) for copy in self.copier.memo.values()} | {id(made) for made in self.copier.made.values()}
        if not reached.keys() <= copies:
            raise NotCopied("the model uses parameters that are not its own")

    @contextmanager
    def _originals_rest(self) -> Iterator[None]:
        """A model that was given a new ``forward`` may call the original from its copy."""
        originals = {id(module) for model in self._originals() for module in model.modules()}

        def check(module: nn.Module, args: Any) -> None:
            if id(module) in originals:
                raise NotCopied("its forward calls the original")

        handle = register_module_forward_pre_hook(check)
        try:
            yield
        finally:
            handle.remove()


@contextmanager
def _nothing_written() -> Iterator[None]:
    """What this thread opens for writing with Python's ``open`` goes nowhere."""
    opening, thread = io.open, threading.get_ident()

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or isinstance(file, int) or not WRITING & set(mode):
            return opening(file, mode, *args, **kwargs)
        return opening(os.devnull, mode.replace("x", "w"), *args, **kwargs)

    before, builtins.open, io.open = (builtins.open, io.open), opened, opened
    try:
        yield
    finally:
        builtins.open, io.open = before


@contextmanager
def _as_before(happening: Happening) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(happening.grad))
        for device, dtype in happening.autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield


def _needed(happenings: list[Happening], root: int | None) -> list[Happening]:
    """Without the calls of modules that the loss does not depend on, and what follows only from them."""
    wanted, needed, left_out = {root}, [], set()
    for happening in reversed(happenings):
        found = not wanted.isdisjoint(happening.made)
        if found:
            wanted |= {leaf.number for leaf in happening.given() if isinstance(leaf, Made)}
        if found or not isinstance(happening.function, nn.Module) or root is None:
            needed.append(happening)
        else:
            left_out |= set(happening.made)
    while needed and root is not None and wanted.isdisjoint(needed[-1].made):
        needed.pop()
    return [h for h in needed[::-1] if not _follows(h, left_out)]


def _follows(happening: Happening, left_out: set[int]) -> bool:
    """It was made from what is left out; so is what it made."""
    found = any(isinstance(leaf, Made) and leaf.number in left_out for leaf in happening.given())
    if found:
        left_out |= set(happening.made)
    return found


def _tensor(leaf: Any) -> Tensor | None:
    return leaf.tensor if isinstance(leaf, Made) else leaf


def _plain(value: Any) -> Any:
    """Nothing but tensors and what torch.load takes."""
    if isinstance(value, (Tensor, Made)):
        tensor = _tensor(value)
        return tensor.detach() if tensor is not None else None
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_plain(item) for item in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value if value is None or type(value) in (bool, int, float, str, torch.dtype) else str(type(value))


def _unwrapped(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, WRAPPERS) else module


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _named(what: str, tensor: Tensor) -> NonFinite:
    value = tensor.detach()
    bad = ~torch.isfinite(value)
    kind: Literal["nan", "inf"] = "nan" if bool(value.isnan().any()) else "inf"
    rows = bad.reshape(len(bad), -1).any(1).nonzero()[:ROWS, 0].tolist() if bad.dim() else []
    return NonFinite(
        what, kind, "forward", "", "", 0, "", math.nan, math.nan, tuple(rows), bad.shape[0] if bad.dim() else 0
    )
