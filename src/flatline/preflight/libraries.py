"""Libraries that write from C: their functions of a path, sent to the scratch folder."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from flatline.preflight.scratch import Scratch


class Libraries:
    """Covers ``torch.save``, ``torch.jit``, ``torch.export``, safetensors and SQLite."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch

    @property
    def doors(self) -> dict[str, Callable[[], None]]:
        """What to call after the import of which module; before ``safetensors`` and ``sqlite3`` take the names over."""
        return {"safetensors._safetensors_rust": self._safetensors, "_sqlite3": self._sqlite}

    def torch(self) -> None:
        """When torch is there."""
        import torch

        for module in (torch, torch.jit, sys.modules.get("torch.export")):
            self._put(module, "save", "w", at=1)
            self._put(module, "load", "r")
        self._put(torch.jit.ScriptModule, "save", "w", at=1)
        self._put(getattr(torch.jit, "RecursiveScriptModule", None), "save", "w", at=1)

    def _safetensors(self) -> None:
        module = sys.modules["safetensors._safetensors_rust"]
        self._put(module, "serialize_file", "w", at=1)
        self._put(module, "safe_open", "r")

    def _sqlite(self) -> None:
        """Not one in memory, nor an address."""
        module: Any = sys.modules["_sqlite3"]
        connecting = module.connect

        @functools.wraps(connecting)
        def connected(database: Any, *args: Any, **kwargs: Any) -> Any:
            plain = not kwargs.get("uri") and database not in (":memory:", "", b":memory:")
            return connecting(self.scratch.place(database, "a") if plain else database, *args, **kwargs)

        for name in ("_sqlite3", "sqlite3.dbapi2", "sqlite3"):
            if name in sys.modules:
                sys.modules[name].connect = connected  # type: ignore[attr-defined]

    def _put(self, owner: Any, name: str, mode: str, *, at: int = 0) -> None:
        """Its argument at this place is a path, or an open file."""
        original: Callable[..., Any] | None = getattr(owner, name, None)
        if original is None:
            return
        keys = ("f", "filename")

        @functools.wraps(original, updated=())
        def placed(*args: Any, **kwargs: Any) -> Any:
            if len(args) > at:
                args = (*args[:at], self.scratch.place(args[at], mode), *args[at + 1 :])
            else:
                kwargs |= {key: self.scratch.place(kwargs[key], mode) for key in keys if key in kwargs}
            return original(*args, **kwargs)

        setattr(owner, name, placed)
