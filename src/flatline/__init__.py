"""flatline: find out why your training run won't learn.

sensors and readers turn what happens into events, the engine shows the events to the rules, rules conclude
findings, reporters print them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatline.api import Run, watch
    from flatline.findings import Finding

__version__ = "0.1.0"
__all__ = ["Finding", "Run", "__version__", "watch"]

_HOMES = {"watch": "flatline.api", "Run": "flatline.api", "Finding": "flatline.findings"}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'flatline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
