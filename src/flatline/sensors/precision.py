"""Sees in which dtype a backward runs, and what float16 and bfloat16 lose. On closely watched steps only."""

from __future__ import annotations

from typing import Any

import torch

from flatline.events import PrecisionObserved, Where
from flatline.sensors.backward import BackwardSensor
from flatline.sensors.graph import Graph, Node
from flatline.sensors.loop import Loop
from flatline.sensors.models import readable
from flatline.sensors.patching import Patches

NODES = 2_000  # graph nodes whose dtype is read
HOOKED = 32  # float16 gradients that are sampled in one backward
ELEMENTS = 2_048  # of each
BY_HAND = 8.0  # a constant factor on the loss from here on is a loss scale
NORMAL = 2.0**-14  # smallest normal number of float16
LOWEST = 2.0**-22  # the fourth number above 0
Tensor = torch.Tensor


class PrecisionSensor:
    """Reads dtypes from the graph; samples float16 gradients as they flow where nothing scales the loss."""

    def __init__(self, loop: Loop, patches: Patches, backward: BackwardSensor) -> None:
        self.loop, self.patches, self.backward = loop, patches, backward
        self._handles: list[Any] = []
        self._counts: list[Tensor] = []
        self._facts: dict[str, Any] | None = None

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
        by_scaler = any(state.window.scaled for state in list(self.loop.optimizers.values()))
        self._scaled = by_scaler or bool(self.backward.raw_losses)
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
        self.loop.emit(
            PrecisionObserved(
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
    """Elements of a sample; those exactly 0; those not 0 and subnormal; those among the lowest four numbers."""
    flat = gradient.detach().reshape(-1)
    flat = flat[:: max(1, flat.numel() // ELEMENTS)].abs().float()
    some = flat > 0
    found = (torch.ones_like(some), ~some, some & (flat < NORMAL), some & (flat <= LOWEST))
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
