"""Weights that FSDP gathers for a forward: the graph ends at them, and the optimizer holds the shards they were made of."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from flatline.sensors.tree import modules

FSDP = "torch.distributed.fsdp._fully_shard"


def part_of(tensor: Any) -> Any:
    """What lies here of a distributed tensor; any other is whole."""
    return getattr(tensor, "_local_tensor", tensor)


def as_held(leaves: dict[int, Any], models: Iterable[Any]) -> dict[int, Any]:
    """The same leaves, with the shard in the place of each gathered weight."""
    if FSDP not in sys.modules:
        return leaves
    shards = dict(pair for model in models for part in modules(model) for pair in _shards(part))
    held = [shards.get(key, tensor) for key, tensor in leaves.items()]
    return {id(tensor): tensor for tensor in held}


def _shards(module: Any) -> Iterator[tuple[int, Any]]:
    """(identity of a gathered weight, its shard), by what torch keeps to itself; nothing where a release has moved it."""
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for each in [each for group in groups for each in getattr(group, "fsdp_params", ())]:
        whole, shard = getattr(each, "_unsharded_param", None), getattr(each, "sharded_param", None)
        if whole is not None and shard is not None:
            yield id(whole), shard
