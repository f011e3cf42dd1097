"""Numbers that the script logs itself: TensorBoard, W&B, MLflow. Only of packages that the script has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from flatline.events import ScalarsLogged
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.patching import Patches

WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
LONGEST = 200  # characters of a name


class LoggedSensor:
    """Looks for the packages when it is put on, and before steps under close look."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self._patched: set[str] = set()

    def attach(self) -> None:
        """Patch what is imported."""
        self.look()

    def before_step(self, state: OptimizerState) -> None:
        """Patch what was imported since."""
        self.look()

    def look(self) -> None:
        """Each package once."""
        if not self.loop.wants(ScalarsLogged):
            return
        for module in WRITERS:
            self._around(module, "SummaryWriter", "add_scalar", self._scalar)
            self._around(module, "SummaryWriter", "add_scalars", self._scalars)
        self._around("wandb.sdk.wandb_run", "Run", "log", self._logged)
        self._around("mlflow.tracking.fluent", "", "log_metric", self._metric, also="mlflow")
        self._around("mlflow.tracking.fluent", "", "log_metrics", self._metrics, also="mlflow")

    def _around(self, module: str, owner: str, name: str, callback: Callable[..., None], also: str = "") -> None:
        key = f"{module}.{name}"
        found: Any = sys.modules.get(module)
        found = getattr(found, owner, None) if owner else found
        if found is not None and key not in self._patched:
            self._patched.add(key)
            self.patches.around(found, name, after=callback, also=sys.modules.get(also))

    # ------------------------------------------------------------------ what they are called with

    def _scalar(self, result: Any, writer: Any, tag: Any, scalar_value: Any, *args: Any, **kwargs: Any) -> None:
        self._tell({tag: scalar_value})

    def _scalars(self, result: Any, writer: Any, main_tag: Any, tag_scalar_dict: Any, *args: Any, **kw: Any) -> None:
        if isinstance(tag_scalar_dict, Mapping):
            self._tell({f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()})

    def _logged(self, result: Any, run: Any, data: Any = None, *args: Any, **kwargs: Any) -> None:
        if isinstance(data, Mapping):
            self._tell(data)

    def _metric(self, result: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> None:
        self._tell({key: value})

    def _metrics(self, result: Any, metrics: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(metrics, Mapping):
            self._tell(metrics)

    def _tell(self, values: Mapping[Any, Any]) -> None:
        known = [
            (str(name)[:LONGEST], number) for name, value in values.items() if (number := _number(value)) is not None
        ]
        if known:
            self.loop.emit(ScalarsLogged(step=self.loop.steps, values=tuple(known)))


def _number(value: Any) -> float | None:
    """A plain number, one of numpy's, or a tensor with one number that is at hand: nothing waits for an accelerator."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, torch.Tensor):
        return float(value.detach()) if value.is_cpu and value.numel() == 1 and not value.is_complex() else None
    kind = type(value)
    if kind.__module__ == "numpy" and getattr(value, "size", 0) == 1 and value.dtype.kind in "fiu":
        return float(value.item())
    return None
