"""A module's parts, read past its own methods: a user's ``parameters()`` or ``named_modules()`` may count its calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def named_modules(module: Any, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """The module and all below it, each once, with its path: in the order of ``nn.Module.named_modules``."""
    seen = set() if seen is None else seen
    stack = [(prefix, module)]
    while stack:
        path, part = stack.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield path, part
        below = [(f"{path}.{name}" if path else name, child) for name, child in part._modules.items()]
        stack += reversed(below)


def entry(table: Any, name: str) -> Any:
    """What a module's ``_modules`` or ``_parameters`` holds by that name, or None; a scripted module's have no ``get``."""
    return dict(table.items()).get(name)


def modules(module: Any) -> Iterator[Any]:
    """The module and all below it."""
    return (part for _, part in named_modules(module))


def own_parameters(module: Any) -> list[Any]:
    """Parameters of the module itself."""
    return [parameter for parameter in module._parameters.values() if parameter is not None]


def named_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """Every parameter once, by the first of its names."""
    seen: set[int] = set()
    for path, part in named_modules(module):
        for name, parameter in part._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{path}.{name}" if path else name, parameter


def parameters(module: Any) -> Iterator[Any]:
    """Every parameter once."""
    return (parameter for _, parameter in named_parameters(module))


def named_buffers(module: Any) -> Iterator[tuple[str, Any]]:
    """Every buffer, by its name."""
    for path, part in named_modules(module):
        named = ((f"{path}.{name}" if path else name, buffer) for name, buffer in part._buffers.items())
        yield from ((name, buffer) for name, buffer in named if buffer is not None)


def stored_names(module: Any, prefix: str = "") -> Iterator[str]:
    """What a state dict names: parameters and buffers, those of a shared part by every name."""
    left_out = getattr(module, "_non_persistent_buffers_set", ())
    kept = [(name, held) for name, held in module._buffers.items() if name not in left_out]
    yield from (prefix + name for name, held in (*module._parameters.items(), *kept) if held is not None)
    for name, child in module._modules.items():
        yield from stored_names(child, f"{prefix}{name}.") if child is not None else ()


def buffers(module: Any) -> Iterator[Any]:
    """Every buffer."""
    return (buffer for part in modules(module) for buffer in part._buffers.values() if buffer is not None)
