"""Sees in which dtype a backward runs, and what float16 and bfloat16 lose. On closely watched steps only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from flatline.events import OptimizerStateSampled, PrecisionObserved, Where
from flatline.sensors.backward import BackwardSensor
from flatline.sensors.graph import Graph, Node, operation, saved
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import readable
from flatline.sensors.numbers import HALF
from flatline.sensors.own_squares import OwnSquares, spread
from flatline.sensors.patching import Patches
from flatline.sensors.penalties import number_of

NODES = 2_000  # graph nodes whose dtype is read
HOOKED = 32  # float16 gradients that are sampled in one backward
ELEMENTS = 2_048  # of each
BY_HAND = 8.0  # a constant factor on the loss from here on is a loss scale
NORMAL = 2.0**-14  # smallest normal number of float16
LOWEST = 2.0**-22  # the fourth number above 0
TENSORS = 32  # of an optimizer that are sampled
ALWAYS = 0.99  # of the backwards under anomaly mode, in one block or many
SQUARES = ("exp_avg_sq", "square_avg", "sum")  # what Adam, RMSprop and Adagrad call it
KNOWN = ("Adam", "AdamW", "SGD")  # whose update is computed here again
Tensor = torch.Tensor


class PrecisionSensor:
    """Reads dtypes from the graph; samples float16 gradients as they flow where nothing scales the loss."""

    def __init__(self, loop: Loop, patches: Patches, backward: BackwardSensor) -> None:
        self.loop, self.patches, self.backward = loop, patches, backward
        self._handles: list[Any] = []
        self._counts: list[Tensor] = []
        self._facts: dict[str, Any] | None = None
        self._last: PrecisionObserved | None = None
        self._before: list[tuple[Tensor, Tensor]] = []
        self._narrow: set[int] = set()  # keys of optimizers with weights in half precision
        self._own = OwnSquares()
        self._since = 0  # backwards of the leading optimizer when anomaly mode was entered
        self._covered = 0  # of them that ran in blocks under it

    def attach(self) -> None:
        """Follow the blocks under anomaly mode."""
        if not self.loop.wants(PrecisionObserved):
            return
        mode, around = torch.autograd.anomaly_mode, self.patches.around
        around(mode.detect_anomaly, "__enter__", after=self._anomaly_begins)
        around(mode.set_detect_anomaly, "__init__", after=self._anomaly_begins)
        for context in (mode.detect_anomaly, mode.set_detect_anomaly):
            around(context, "__exit__", before=self._anomaly_ends)

    def _backwards(self) -> int:
        return self.loop.lead.backwards if self.loop.lead is not None else 0

    def _anomaly_begins(self, result: Any, context: Any, *args: Any, **kwargs: Any) -> None:
        if torch.is_anomaly_enabled() and not context.prev:
            self._since = self._backwards()

    def _anomaly_ends(self, context: Any, *args: Any, **kwargs: Any) -> None:
        if torch.is_anomaly_enabled() and not context.prev:
            self._covered += max(0, self._backwards() - self._since)

    # ------------------------------------------------------------------ around backward

    def before_backward(self, graph: Graph, where: Where | None) -> None:
        """Read the dtypes of the graph; sample float16 gradients if no scale protects them."""
        self._let_go()
        if not self.loop.wants(PrecisionObserved):
            return
        spread = graph.nodes[:: max(1, len(graph.nodes) // NODES)]
        dtypes = [(node, dtype_of(node)) for node in spread]
        half = [node for node, dtype in dtypes if dtype is torch.float16]
        narrow = torch.float16 if half else next((d for _, d in dtypes if d is torch.bfloat16), torch.float32)
        by_scaler = any(state.window.scaled for state in self.loop.states)
        by_hand = number_of(saved(graph.root, "other")) if operation(graph.root) == "Mul" else 1.0  # in any unit
        self._scaled = by_scaler or bool(self.backward.raw_losses) or abs(by_hand) >= BY_HAND
        self._facts = {"dtype": _name(narrow), **_of_leaves(graph)}
        if half and not self._scaled:
            sample = self.patches.guard(self._sample)
            for node in half[:: max(1, len(half) // HOOKED)]:
                self._handles.append(node.register_prehook(_only_looking(sample)))

    _scaled = False

    def _sample(self, gradients: Any) -> None:
        for gradient in gradients:
            if isinstance(gradient, Tensor) and readable(gradient) and gradient.dtype is torch.float16:
                self._counts.append(counts(gradient))

    def after_backward(self) -> None:
        """Tell what the backward ran in."""
        facts, self._facts = self._facts, None
        waiting = self._counts
        self._let_go()
        if facts is None:
            return
        total = torch.stack(waiting).sum(0).tolist() if waiting else [0, 0, 0, 0]
        self._last = PrecisionObserved(
            step=self.loop.step,
            where=self.backward.where,
            **facts,
            scaled=self._scaled or abs(self.backward.factor) >= BY_HAND,
            elements=total[0],
            zeros=total[1],
            coarse=total[2],
            lowest=total[3],
            anomaly_mode=torch.is_anomaly_enabled(),
            loss=self.loop.last_loss if self.loop.last_loss_step == self.loop.step else None,
        )
        self.loop.emit(self._last)

    def finish(self, how: str) -> None:
        """Tell of an anomaly mode that was on to the end, too: short steps may never have been looked at again."""
        if how == "crashed":  # maybe by what the mode had found
            return
        always = self._covered >= ALWAYS * self._backwards() > 0
        if self._last is not None and self._last.step < self.loop.steps and (always or torch.is_anomaly_enabled()):
            self.loop.emit(replace(self._last, step=self.loop.steps, elements=0, anomaly_mode=True))

    # ------------------------------------------------------------------ around a step

    def before_step(self, state: OptimizerState) -> None:
        """Copy some elements of half-precision parameters."""
        self._before = []
        if self._looks(state):
            unknown = self._own.asks(state)
            held = [p for p in state.parameters if (unknown or p.dtype in HALF) and p.grad is not None and _dense(p)]
            self._before = [(p, spread(p).clone()) for p in held[:: max(1, len(held) // TENSORS)]]

    def _looks(self, state: OptimizerState) -> bool:
        """On steps that are looked at closely; with weights in half precision on sampled ones, too: warm-ups end there."""
        if state.closure or not self.loop.wants(OptimizerStateSampled):
            return False
        return self.loop.dense or (self.loop.sampling and state.key in self._narrow)

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """Tell the dtypes of the optimizer's state, and what became of the update."""
        before, self._before = self._before, []
        optimizer = state.ref()
        if optimizer is None or not self._looks(state):
            return
        held = [(p, g) for g in optimizer.param_groups for p in g["params"] if p.grad is not None and _dense(p)]
        if not held:
            return
        if any(p.dtype in HALF for p, _ in held):
            self._narrow.add(state.key)
        group = held[0][1]
        names = (*SQUARES, *self._own.names(state, before))
        sampled = held[:: max(1, len(held) // TENSORS)]
        squares = [(p, v) for p, _ in sampled if (v := mean_square(optimizer, p, names)) is not None]
        largest = [optimizer.state[p]["exp_inf"] for p, _ in held if "exp_inf" in optimizer.state.get(p, {})]  # Adamax
        kept = min(
            (v.dtype for v in (*(v for _, v in squares), *largest)), key=lambda dtype: dtype.itemsize, default=None
        )
        eps = group.get("eps")
        stock = type(optimizer).__module__.startswith("torch.optim.")
        moved = [_fate(optimizer, p, old) for p, old in before] if stock and type(optimizer).__name__ in KNOWN else []
        zeros = _total([_squares(p, v) for p, v in squares])
        fate = _total([counted for counted in moved if counted is not None])
        self.loop.emit(
            OptimizerStateSampled(
                step=self.loop.step,
                where=where,
                optimizer=state.facts,
                index=state.steps,
                stock=stock,
                fused=bool(group.get("fused")),
                lr=state.lr,
                peak_lr=state.peak_lr,
                parameters=_name(min((p.dtype for p, _ in held), key=lambda dtype: dtype.itemsize)),
                state=_name(kept) if kept is not None else "",
                eps=float(eps) if isinstance(eps, (int, float)) else None,
                eps_stored=float(torch.tensor(eps, dtype=kept)) if kept and isinstance(eps, (int, float)) else None,
                squares=zeros[0],
                squares_zero=zeros[1],
                wanted=fate[0],
                lost=fate[1],
            )
        )

    def _let_go(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._counts = [], []


def _only_looking(sample: Any) -> Any:
    def hook(gradients: Any) -> None:
        sample(gradients)

    return hook


def counts(gradient: Tensor) -> Tensor:
    """Finite elements of a sample; those exactly 0; those not 0 and subnormal; those among the lowest four numbers."""
    flat = gradient.detach().reshape(-1)
    flat = flat[:: max(1, flat.numel() // ELEMENTS)].abs().float()
    some = flat > 0
    found = (torch.isfinite(flat), flat == 0, some & (flat < NORMAL), some & (flat <= LOWEST))
    return torch.stack([mask.sum() for mask in found])


def dtype_of(node: Node) -> torch.dtype | None:
    """Dtype of the tensor that the node made; None when torch does not tell."""
    metadata = getattr(node, "_input_metadata", None)
    return metadata[0].dtype if metadata else None


def _of_leaves(graph: Graph) -> dict[str, Any]:
    leaves = [leaf for leaf in graph.leaves.values() if leaf.is_floating_point()]
    if not leaves:
        return {}
    device = leaves[0].device
    narrow = min((leaf.dtype for leaf in leaves), key=lambda dtype: dtype.itemsize)
    return {"parameters": _name(narrow), "device": device.type, **(_cuda(device) if device.type == "cuda" else {})}


def _cuda(device: torch.device) -> dict[str, Any]:
    return {
        "capability": torch.cuda.get_device_capability(device)[0],
        "tf32": torch.get_float32_matmul_precision() != "highest" or bool(torch.backends.cuda.matmul.allow_tf32),
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --------------------------------------------------------------------------- the optimizer's state


def _dense(tensor: Tensor) -> bool:
    gradient = tensor.grad
    return readable(tensor) and tensor.is_floating_point() and gradient is not None and not gradient.is_sparse


def mean_square(optimizer: Any, parameter: Tensor, names: tuple[str, ...] = SQUARES) -> Tensor | None:
    """The running mean of squared gradients of a parameter, where it is kept element by element."""
    kept = optimizer.state.get(parameter, {})
    found: Tensor | None = next((kept[key] for key in names if isinstance(kept.get(key), Tensor)), None)
    if found is None or not readable(found) or not found.is_floating_point() or found.shape != parameter.shape:
        return None
    return found


def _squares(parameter: Tensor, square: Tensor) -> Tensor:
    """Elements with a gradient; those of them with a mean square of 0."""
    some = spread(parameter.grad) != 0 if parameter.grad is not None else spread(square) != 0
    return torch.stack([some.sum(), (some & (spread(square) == 0)).sum()])


def _total(counted: list[Tensor]) -> list[int]:
    return [int(n) for n in torch.stack([c.cpu() for c in counted]).sum(0).tolist()] if counted else [0, 0]


def _fate(optimizer: Any, parameter: Tensor, before: Tensor) -> Tensor | None:
    """Elements whose update is not 0; those of them that it left as they were because it is too small."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    update = _update(optimizer.state.get(parameter, {}), group, parameter)
    if update is None:
        return None
    update = update.abs().float()
    wanted = torch.isfinite(update) & (update > 0)
    lost = wanted & (spread(parameter) == before) & (update < half_step(before))
    return torch.stack([wanted.sum(), lost.sum()])


def half_step(value: Tensor) -> Tensor:
    """Half the distance to the next number of the dtype: what is less is rounded away."""
    exponent = torch.frexp(value.float().abs()).exponent - 1
    return torch.ldexp(torch.full_like(value, torch.finfo(value.dtype).eps / 2, dtype=torch.float32), exponent)


def _update(kept: dict[str, Any], group: dict[str, Any], parameter: Tensor) -> Tensor | None:
    """What Adam or SGD meant to subtract, from the state after the step."""
    first = kept.get("exp_avg")
    if isinstance(group["lr"], Tensor) or parameter.grad is None:
        return None
    lr = float(group["lr"])
    if first is None:
        velocity = kept.get("momentum_buffer")
        return spread(velocity if velocity is not None else parameter.grad).float() * lr
    beta1, beta2 = group["betas"]
    count = int(kept["step"])
    mean = spread(first).float() / (1 - beta1**count)
    square = spread(kept["exp_avg_sq"]).float() / (1 - beta2**count)
    update: Tensor = lr * mean / (square.sqrt() + group["eps"])
    return update
