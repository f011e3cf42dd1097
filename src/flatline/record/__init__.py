"""The record of a run: one SQLite file in a folder of its own, written while the run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatline.record.reading import (
        Grid,
        Happening,
        Histogram,
        Parameter,
        RecordError,
        Recording,
        Series,
        open_record,
    )

__all__ = ["Grid", "Happening", "Histogram", "Parameter", "RecordError", "Recording", "Series", "open_record"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: a run needs no reader, and a Python without sqlite3 can still run."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flatline.record import reading

    return getattr(reading, name)
