"""Numbers as logs write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

MISSING = {"", "none", "null", "na", "n/a", "-", "--", "<na>"}
WRAPPED = re.compile(r"(?:tensor|array|np\.float\d+|Decimal)\(\s*'?([^,)']+)'?[^)]*\)")
GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
LONGEST = 400  # characters of a number
# what a row of a log is counted by, the best first
STEP_NAMES = (
    "global_step", "trainer/global_step", "step", "_step", "steps", "iteration", "iter", "iters", "it",
    "update", "updates", "time/total_timesteps", "total_timesteps", "timesteps", "timestep", "env_steps",
    "num_updates", "train_step", "train/global_step", "train/step", "n_iter", "iter_num", "batch", "epoch", "epochs",
    "train/epoch", "ep", "episode", "round",
)  # fmt: skip
CLOCKS = {"_timestamp", "_runtime", "timestamp", "time", "wall_time", "datetime", "date", "t"}


def number(value: object) -> float | None:
    """``0.5``, ``"0.5"``, ``"nan"``, ``"12 %"``, ``"tensor(0.5)"`` -> a float; None where there is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return _float(value)
    return _read(value.strip()) if isinstance(value, str) and len(value) <= LONGEST else None


def _float(value: int | float | str) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if isinstance(value, int) and value > 0 else float("-inf")
    except ValueError:
        return None


def _read(text: str) -> float | None:
    if "_" in text or text.lower() in MISSING:
        return None
    if (plain := _float(text)) is not None:
        return plain
    if found := WRAPPED.fullmatch(text):
        return _float(found[1].strip())
    if GROUPED.fullmatch(text):
        return _float(text.replace(",", ""))
    return _float(text[:-1].strip()) if text.endswith("%") else None


def step_name(names: Iterable[str]) -> str | None:
    """The name that counts the rows."""
    spelt = {name.strip().lower().replace(" ", "_").replace("-", "_"): name for name in names}
    return next((spelt[known] for known in STEP_NAMES if known in spelt), None)


def is_clock(name: str) -> bool:
    """Whether it tells the time, and nothing about the training."""
    return name.strip().lower().rpartition("/")[2] in CLOCKS
