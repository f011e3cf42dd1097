"""Weights from elsewhere, as far as they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")  # DDP, torch.compile, Lightning, encoders of others
SHOWN = 5


@dataclass(frozen=True)
class LoadResult:
    """What was loaded and what was not.

    Attributes:
        loaded: names that were loaded.
        missing: names of the model that kept their values, as the checkpoint has nothing for them.
        unexpected: names of the checkpoint that the model does not have.
        mismatched: names with the shapes of both, checkpoint first; they kept their values, too.
        stripped: the prefix that was taken off the checkpoint's names, "" if none.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    stripped: str

    @property
    def complete(self) -> bool:
        """Everything was loaded and nothing left over."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        shapes = [f"{name} {list(theirs)} for {list(ours)}" for name, (theirs, ours) in self.mismatched.items()]
        parts = [("missing", self.missing), ("unexpected", self.unexpected), ("other shape", shapes)]
        told = [f"{len(names)} {what}: {', '.join(names[:SHOWN])}" for what, names in parts if names]
        return "; ".join([f"{len(self.loaded)} loaded", *told])


def load_matching_state_dict(model: nn.Module, state_dict: Mapping[str, Any]) -> LoadResult:
    """Load all that fits by name and shape, and tell what was skipped.

    ``load_state_dict(strict=False)`` forgives missing names, but raises where a head of another size has the
    same name. A prefix that all names of the checkpoint share and the model's do not ("module.", "_orig_mod.",
    "model.", "backbone.") is taken off, again and again.

    Args:
        model: the target; tensors are copied, with the dtype and device of the model's.
        state_dict: names and tensors of any device.

    Raises:
        ValueError: nothing fits, or the mapping is a whole checkpoint rather than a state dict.
    """
    own = model.state_dict()
    if not any(isinstance(value, Tensor) for value in state_dict.values()):
        inner = [name for name, value in state_dict.items() if isinstance(value, Mapping)]
        raise ValueError(f"this holds no tensors; pass the state dict itself, perhaps one of {inner or 'another file'}")
    stripped, given = _strip(dict(state_dict), own)
    shapes = {n: (_shape(given[n]), _shape(own[n])) for n in own if n in given}
    mismatched = {name: both for name, both in shapes.items() if both[0] != both[1]}
    loaded = {name: given[name] for name in shapes if name not in mismatched}
    if not loaded:
        names = f"{next(iter(given))!r} and {next(iter(own), None)!r}"
        raise ValueError(
            f"nothing fits; first names are {names}: rename the keys of the checkpoint, or build its model"
        )
    model.load_state_dict(loaded, strict=False)
    missing = tuple(name for name in own if name not in given)
    unexpected = tuple(name for name in given if name not in own)
    return LoadResult(tuple(loaded), missing, unexpected, mismatched, stripped)


def _strip(given: dict[str, Any], own: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    stripped = ""
    for _ in range(4):
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in given)), None)
        if prefix is None or any(name in own for name in given):
            break
        stripped, given = stripped + prefix, {name.removeprefix(prefix): value for name, value in given.items()}
    return stripped, given


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()
