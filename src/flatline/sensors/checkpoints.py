"""Sees checkpoints loaded: what fitted and what did not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from flatline.events import CheckpointLoaded
from flatline.sensors.audit import AuditSensor
from flatline.sensors.callers import caller
from flatline.sensors.filtered import goes_on, renamed_part
from flatline.sensors.loop import Loop
from flatline.sensors.patching import Patches
from flatline.sensors.tree import named_parameters, stored_names

PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder.", "base_model.", "net.", "state_dict.")
COUNTER = "num_batches_tracked"  # of BatchNorm: torch makes it where a checkpoint has none, and says nothing


class CheckpointSensor:
    """Patches ``Module.load_state_dict``."""

    def __init__(self, loop: Loop, patches: Patches, audit: AuditSensor) -> None:
        self.loop, self.patches, self.audit = loop, patches, audit
        self.on_loaded: list[Callable[[nn.Module, Any, tuple[str, ...], bool], None]] = []

    def attach(self) -> None:
        """Patch it."""
        self.patches.around(nn.Module, "load_state_dict", after=self._loaded)

    def _loaded(
        self, result: Any, module: nn.Module, state: Any, strict: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        missing = tuple(name for name in getattr(result, "missing_keys", ()) if not name.endswith(COUNTER))
        unexpected = tuple(getattr(result, "unexpected_keys", ()))
        own = dict(named_parameters(module))
        self.audit.loaded.update(id(p) for name, p in own.items() if name in state and name not in missing)
        self.loop.emit(
            CheckpointLoaded(
                step=self.loop.steps,
                where=caller(),
                model=type(module).__name__,
                strict=strict,
                tensors=sum(not name.endswith(COUNTER) for name in stored_names(module)),
                missing=missing,
                unexpected=unexpected,
                prefix=_prefix(missing, unexpected) or _renamed(own, state, missing, unexpected),
                nested=_nested(state, own) if missing else "",
            )
        )
        for callback in self.on_loaded:
            callback(module, state, missing, "assign" in kwargs or bool(args and args[0]))


def _nested(state: Any, own: dict[str, Any]) -> str:
    """The key of an inner mapping that holds most of the model's parameters."""
    inner = {key: value for key, value in state.items() if isinstance(value, Mapping)}
    return next((str(key) for key, value in inner.items() if 2 * sum(name in value for name in own) > len(own)), "")


def _renamed(own: dict[str, Any], state: Any, missing: tuple[str, ...], unexpected: tuple[str, ...]) -> str:
    """The part of a body that the checkpoint has under another name."""
    lost = {name: tuple(own[name].shape) for name in missing if name in own and not is_lazy(own[name])}
    left = {name: tuple(getattr(state[name], "shape", ())) for name in unexpected}
    return renamed_part(lost, left) if goes_on(list(own), tuple(lost)) else ""


def _prefix(missing: tuple[str, ...], unexpected: tuple[str, ...]) -> str:
    """The prefix by which missing and unexpected keys differ: '+x' to add to the checkpoint's, '-x' to remove."""
    wanted, given = set(missing), set(unexpected)
    if not wanted or not given:
        return ""
    heads = {key.partition(".")[0] + "." for key in (*missing, *unexpected)} | set(PREFIXES)
    for head in sorted(heads):
        if len({key.removeprefix(head) for key in given if key.startswith(head)} & wanted) * 2 > len(wanted):
            return f"-{head}"
        if len({head + key for key in given} & wanted) * 2 > len(wanted):
            return f"+{head}"
    return ""
