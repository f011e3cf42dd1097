"""Nan and inf: where they come from, and how a run survives them."""

from __future__ import annotations

import copy
import math
import re
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flatline.toolbox._losses import LossFn, scalar
from flatline.toolbox._state import preserved

ROWS = 16
EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")  # whatever lay in memory
INNER = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
OURS = str(Path(__file__).parent.parent)  # a line here stands for one of the user's
Place = tuple[str, int, str]  # file, line, and its text
FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n(?:    (?P<code>[^\n]*))?')


@dataclass(frozen=True)
class NonFinite:
    """The operation that made the nan or inf which reached the loss or a gradient.

    Attributes:
        op: torch's name of it, such as "log" or "div"; in backward, that of the node first: "SqrtBackward0: div".
            "parameter NAME" or "batch" if it was there before any operation.
        kind: "nan" or "inf".
        phase: "forward" or "backward".
        module: name of the innermost module it ran for, "" outside of all.
        file: of the innermost line outside torch, "" if unknown. In backward, of the forward operation.
        line: its number, 0 if unknown.
        code: its text.
        low: lowest finite input; in backward, of the forward operation.
        high: highest finite input.
        rows: first indices of the bad elements along dimension 0, at most 16: often the samples.
        height: how long dimension 0 is, 0 if unknown: as long as the batch where the rows are its samples.
    """

    op: str
    kind: Literal["nan", "inf"]
    phase: Literal["forward", "backward"]
    module: str
    file: str
    line: int
    code: str
    low: float
    high: float
    rows: tuple[int, ...]
    height: int = 0

    def __str__(self) -> str:
        if not self.file and not self.line:
            return f"{self.op} holds {self.kind}, rows {', '.join(map(str, self.rows))}"
        place = f" of {self.module}" if self.module else ""
        inputs = f"inputs from {self.low:.4g} to {self.high:.4g}"
        rows = f", rows {', '.join(map(str, self.rows))}" if self.rows else ""
        return (
            f"{self.op} made {self.kind} in {self.phase}{place}, {self.file}:{self.line} `{self.code}`; {inputs}{rows}"
        )


def find_non_finite(model: nn.Module, batch: Any, loss_fn: LossFn) -> NonFinite | None:
    """Replay one batch under anomaly mode and name the operation that made it nan or inf; put everything back.

    Each nan and inf is followed from the operation that made it, so one that never reaches the loss or a gradient is not
    told. Infinity that stands in the code, as in ``masked_fill(mask, -inf)``, is meant; nan that grows out of it is not.
    Every operation is looked at, so this is slow. Not for models under ``torch.compile``: pass the original.

    Args:
        model: with the weights of the bad step.
        batch: whatever ``loss_fn`` takes, on the model's device.
        loss_fn: ``loss_fn(model, batch) -> Tensor`` with one element. See :func:`supervised`.

    Returns:
        What happened, or None if the loss and all gradients are finite.

    Raises:
        ValueError: the loss is no scalar or has no graph.

    Source: ``torch.autograd.set_detect_anomaly``, which names the node of the backward only.
    """
    with preserved(model):
        return search(model, lambda: scalar(loss_fn(model, batch)), batch, Watch())


def search(model: nn.Module, run: Callable[[], Tensor], batch: Any, watch: Watch) -> NonFinite | None:
    """The search itself, which puts nothing back: ``run`` makes the loss under the eyes of ``watch``."""
    with (
        _followed(model, watch),
        torch.enable_grad(),
        torch.autograd.set_detect_anomaly(True, check_nan=False),
        watch,
    ):
        loss = run()
        if not bool(torch.isfinite(loss)):
            return watch.origin(loss) or _given(model, batch)
        watch.phase = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        bad = [p.grad for p in model.parameters() if p.grad is not None and any(_kinds([p.grad]).values())]
        found = (watch.origin(gradient) for gradient in bad)
        return next((origin for origin in found if origin), watch.newest if bad else None)


def _given(model: nn.Module, batch: Any) -> NonFinite | None:
    """What was bad before any operation."""
    given = [(f"parameter {name}", p.detach()) for name, p in model.named_parameters()]
    given += [("batch", leaf) for leaf in tree_leaves(batch) if _is_float(leaf)]
    for name, tensor in given:
        kinds = _kinds([tensor])
        if any(kinds.values()):
            kind: Literal["nan", "inf"] = "nan" if kinds["nan"] else "inf"
            return NonFinite(name, kind, "forward", "", "", 0, "", *_ends([tensor]), *_rows([tensor]))
    return None


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at the inputs and outputs of every operation, and follows what is bad to where it was made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.newest: NonFinite | None = None
        self.origins: dict[int, NonFinite | None] = {}  # by storage
        self.held: list[Tensor] = []  # so that no storage is used again
        self.phase: Literal["forward", "backward"] = "forward"
        self.modules: list[tuple[str, int]] = []  # those that run now, and where in the graph they began
        self.spans: list[tuple[int, int, str]] = []  # those that ran, innermost first
        self.standing: Place | None = None  # the user's line that is run again, if it is not on the stack
        self.stood: list[tuple[int, int, Place]] = []
        self.given: dict[int, tuple[float, float]] = {}  # ends of what the operation of a node was given

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        leaves = tree_leaves((args, kwargs or {}))
        inputs = [leaf for leaf in leaves if _is_float(leaf)]
        meant = any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in leaves)
        before, ends, origin = _kinds(inputs), _ends(inputs), self._origin_of(inputs)  # it may work in place
        if self.phase == "forward":
            self.given.setdefault(_position() - 1, ends)  # its node is made already
        output = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(output) if _is_float(leaf)]
        after = _kinds(outputs)
        if name in EMPTY or not any(after.values()):
            return output
        born = origin is None and not before["nan"] and (after["nan"] or not any(before.values()))
        if born and not meant:
            self.newest = origin = self._name(name, "nan" if after["nan"] else "inf", ends, outputs)
        for tensor in outputs:
            if any(_kinds([tensor]).values()):
                self.origins[tensor.untyped_storage().data_ptr()] = origin
                self.held.append(tensor)
        return output

    @contextmanager
    def at(self, place: Place | None) -> Iterator[None]:
        """What is done in here stands on that line, where it is not code of the user's itself."""
        began, self.standing = _position(), place
        try:
            yield
        finally:
            self.standing = None
            if place is not None:
                self.stood.append((began, _position(), place))

    def origin(self, tensor: Tensor) -> NonFinite | None:
        """What made the tensor bad, if an operation did."""
        return self.origins.get(tensor.untyped_storage().data_ptr()) if tensor.layout == torch.strided else None

    def _origin_of(self, inputs: list[Tensor]) -> NonFinite | None:
        found = (self.origin(tensor) for tensor in inputs if any(_kinds([tensor]).values()))
        return next((origin for origin in found if origin), None)

    def _name(
        self, op: str, kind: Literal["nan", "inf"], ends: tuple[float, float], outputs: list[Tensor]
    ) -> NonFinite:
        node = getattr(torch._C, "_current_autograd_node", lambda: None)() if self.phase == "backward" else None
        if node is not None:
            number = node._sequence_nr()
            standing = next((place for low, high, place in self.stood if low <= number < high), None)
            module = next((name for low, high, name in self.spans if low <= number < high), "")
            name, ends = f"{node.name()}: {op}", self.given.get(number, ends)
            return NonFinite(name, kind, self.phase, module, *_of_node(node, standing), *ends, *_rows(outputs))
        module = self.modules[-1][0] if self.modules else ""
        return NonFinite(op, kind, self.phase, module, *_of_stack(self.standing), *ends, *_rows(outputs))


@contextmanager
def _followed(model: nn.Module, watch: Watch) -> Iterator[None]:
    """Hooks that tell which module runs."""

    def enter(module: nn.Module, args: Any) -> None:
        watch.modules.append((names[id(module)], _position()))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        name, began = watch.modules.pop()
        watch.spans.append((began, _position(), name))

    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
    handles = [h for m in model.modules() for h in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _position() -> int:
    """How many nodes the graph has; 0 where torch does not tell."""
    return int(getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)())


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() > 0 and leaf.layout == torch.strided


def _kinds(tensors: list[Tensor]) -> dict[str, bool]:
    bad = [tensor for tensor in tensors if not bool(torch.isfinite(tensor).all())]
    return {
        "nan": any(bool(torch.isnan(tensor).any()) for tensor in bad),
        "inf": any(bool(torch.isinf(tensor).any()) for tensor in bad),
    }


def _ends(tensors: list[Tensor]) -> tuple[float, float]:
    finite = [tensor.detach()[torch.isfinite(tensor)].float() for tensor in tensors]
    filled = [tensor for tensor in finite if tensor.numel()]
    if not filled:
        return math.nan, math.nan
    return min(float(tensor.min()) for tensor in filled), max(float(tensor.max()) for tensor in filled)


def _rows(outputs: list[Tensor]) -> tuple[tuple[int, ...], int]:
    bad = next((~torch.isfinite(o) for o in outputs if o.dim() and not bool(torch.isfinite(o).all())), None)
    if bad is None:
        return (), 0
    rows = bad.reshape(len(bad), -1).any(1).nonzero()[:ROWS, 0]
    return tuple(int(row) for row in rows), len(bad)


def _of_stack(standing: Place | None) -> Place:
    for frame in reversed(traceback.extract_stack()):
        if standing is not None and _is_ours(frame.filename):
            return standing
        if not frame.filename.startswith((*INNER, "<frozen")):
            return frame.filename, frame.lineno or 0, frame.line or ""
    return "", 0, ""


def _of_node(node: Any, standing: Place | None) -> Place:
    """The line that made a node, from what anomaly mode has noted of it."""
    for frame in reversed(node.metadata.get("traceback_", [])):
        match = FRAME.match(frame)
        if match and standing is not None and _is_ours(match["file"]):
            return standing
        if match and not match["file"].startswith((*INNER, "<frozen")):
            return match["file"], int(match["line"]), match["code"] or ""
    return "", 0, ""


def _is_ours(file: str) -> bool:
    return file.startswith(OURS) and not file.startswith(INNER)


class NaNGuard:
    """Keep nan and inf out of the weights: skip the step, or go back to the last good state.

    Ask ``check`` after every backward; each call waits for the device once. The ring holds copies of parameters,
    buffers and optimizer state, on their device; learning rates and random generators are not turned back, so
    that schedules go on and the next batch differs. A second failure right after a return goes back further.
    ``GradScaler`` skips overflows of float16 by itself and has to see them: use the guard with float32 and bfloat16.

    Args:
        model: whose buffers are turned back, too.
        optimizer: its parameters' gradients are looked at.
        action: "skip" leaves weights as they are, "rollback" takes the newest good ones.
        keep: states on the ring, for "rollback".
        every: good steps from one state to the next.
        patience: bad steps in a row after which it raises.
        loss_fn: if given, the first bad batch that ``check`` is given is replayed, see :func:`find_non_finite`.

    Raises:
        ValueError: a setting is out of range.

    Source: A. Chowdhery et al., PaLM (2022), arXiv:2204.02311, section 5.1, which goes back and skips batches.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        action: Literal["skip", "rollback"] = "skip",
        keep: int = 2,
        every: int = 100,
        patience: int = 10,
        loss_fn: LossFn | None = None,
    ) -> None:
        if action not in ("skip", "rollback") or min(keep, every, patience) < 1:
            raise ValueError("need action 'skip' or 'rollback', and keep, every and patience of at least 1")
        self.model, self.optimizer, self.action, self.every, self.patience = model, optimizer, action, every, patience
        self.loss_fn = loss_fn
        self.cause: NonFinite | None = None
        self.good, self.bad, self.in_a_row = 0, 0, 0
        self._ring: deque[_Good] = deque(maxlen=keep)
        self._since = 0  # good steps since the newest state, or since the return to it

    def check(self, loss: Tensor, batch: Any = None) -> bool:
        """Look at the loss and all gradients, between backward and ``optimizer.step()``.

        Args:
            loss: any shape.
            batch: replayed if it is bad, ``loss_fn`` was given, and no ``cause`` is known yet.

        Returns:
            True if the step may be taken. If False, gradients are gone, and the state may be an older one.

        Raises:
            FloatingPointError: too many bad steps in a row.
        """
        if _finite([loss, *self._gradients()]):
            self.in_a_row = 0
            self._keep()
            return True
        self.bad, self.in_a_row = self.bad + 1, self.in_a_row + 1
        if batch is not None and self.loss_fn is not None and self.cause is None:
            self.cause = find_non_finite(self.model, batch, self.loss_fn)
        self.optimizer.zero_grad()
        if self.action == "rollback":
            self._return()
        if self.in_a_row > self.patience:
            why = self.cause or "pass loss_fn to NaNGuard and the batch to check to learn where from"
            raise FloatingPointError(f"{self.in_a_row} steps in a row were not finite: {why}")
        return False

    def _gradients(self) -> Iterator[Tensor]:
        for group in self.optimizer.param_groups:
            yield from (p.grad for p in group["params"] if p.grad is not None)

    def _keep(self) -> None:
        """The weights before this step gave a finite loss: every so often they are kept."""
        if self.action == "rollback" and (not self._ring or self._since >= self.every):
            self._ring.append(_Good(self.model, self.optimizer))
            self._since = 0
        self._since += 1
        self.good += 1

    def _return(self) -> None:
        """Back to the newest state; it is dropped if it led here at once."""
        if self._since == 0 and len(self._ring) > 1:
            self._ring.pop()
        if self._ring:
            self._ring[-1].restore()
        self._since = 0


class _Good:
    """A copy of everything that training changes, but for rates and random generators."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        tensors = {id(t): t for t in (*model.parameters(), *model.buffers(), *held)}
        self.values = [(tensor, tensor.detach().clone()) for tensor in tensors.values()]
        self.optimizer, self.state = optimizer, copy.deepcopy(optimizer.state_dict()["state"])

    def restore(self) -> None:
        """Copy back."""
        for tensor, value in self.values:
            tensor.data.copy_(value)
        now = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**now, "state": copy.deepcopy(self.state)})


def _finite(tensors: Iterable[Tensor]) -> bool:
    """One wait for all."""
    dense = [tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach() for tensor in tensors]
    flags = [torch.isfinite(tensor).all() for tensor in dense]
    return bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all())
