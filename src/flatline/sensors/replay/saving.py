"""The batch of a step that went wrong, as a file, and the three lines that run it again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def save(folder: Path, step: int, rank: int | None, kept: dict[str, Any]) -> Path:
    """Write it in one move. Raises OSError."""
    name = f"nonfinite-step{step}" + (f"-rank{rank}" if rank else "")
    path = folder / f"{name}.pt"
    if path.exists():
        path = folder / f"{name}-{os.getpid()}.pt"
    part = path.with_suffix(".part")
    torch.save(kept, part)
    part.rename(path)
    return path


def three_lines(path: Path, kept: dict[str, Any]) -> tuple[str, str, str]:
    """For the user's own model, in a process of its own."""
    weights = 'model.load_state_dict(kept["state_dict"]); ' if "state_dict" in kept else ""
    return (
        f'kept = torch.load(r"{path}")',
        f'{weights}model.train(kept["training"]); torch.set_rng_state(kept["rng"])',
        'output = model(*kept["inputs"], **kept["keywords"])  # then your loss, of output and kept["targets"]',
    )
