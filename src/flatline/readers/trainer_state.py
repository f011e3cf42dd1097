"""Hugging Face's trainer_state.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._lines import Unreadable
from flatline.readers._log import Log
from flatline.readers._numbers import number
from flatline.readers.json_lines import take

LARGEST = 1 << 28  # bytes
CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")
SUMMARY = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}


class TrainerState(Reader):
    """``log_history`` is a list of logged objects. A file that is cut off is read up to there."""

    name = "trainer_state.json"
    known_as = r"^trainer_state\.json$"

    def claims(self, head: Head) -> int:
        """By its key, which may stand behind much else in a large file."""
        text = head.text.lstrip()
        keys = ('"log_history"', '"global_step"', '"is_world_process_zero"', '"trial_params"')
        return (
            2 if text.startswith("{") and any(key in text for key in keys) and "log_history" in self._all(head) else 0
        )

    def _all(self, head: Head) -> str:
        return (
            head.text if '"log_history"' in head.text or not re.search(self.known_as, head.path.name) else "log_history"
        )

    def run_of(self, path: Path) -> Path:
        """The output directory, above ``checkpoint-500``."""
        return path.parent.parent if CHECKPOINT.match(path.parent.name) else path.parent

    def read_all(self, paths: Sequence[Path], log: Log) -> None:
        """Each checkpoint repeats what was before it: only the last state is read."""
        super().read_all([max(paths, key=_age)], log)

    def read(self, path: Path, log: Log) -> None:
        """The list, entry by entry; then how far the run was to go."""
        if path.stat().st_size > LARGEST:
            raise Unreadable("too large for a trainer_state.json")
        text = path.read_text(encoding="utf-8", errors="replace")
        run = log.run()
        for entry in _entries(text):
            if not SUMMARY & set(entry):  # the summary at the end has a train_loss that is a mean over the run
                take(run, entry)
        done, planned = (_top(text, key) for key in ("global_step", "max_steps"))
        run.ended = done is None or planned is None or planned <= 0 or done >= planned


def _age(path: Path) -> float:
    """The number of the checkpoint; what lies outside of any is the last."""
    found = CHECKPOINT.match(path.parent.name)
    return float(found[1][:15]) if found else float("inf")


def _entries(text: str) -> Iterator[dict[str, object]]:
    start = re.search(r'"log_history"\s*:\s*\[', text)
    if start is None:
        raise Unreadable("has no log_history")
    decoder, at = json.JSONDecoder(), start.end()
    while found := re.compile(r"[\s,]*(?=\{)").match(text, at):
        entry, at = decoder.raw_decode(text, found.end())
        yield entry
    if not re.compile(r"\s*\]").match(text, at):
        raise Unreadable("cut off, and read as far as it goes")


def _top(text: str, key: str) -> float | None:
    found = re.search(rf'(?:^|[{{,])\s*"{key}"\s*:\s*(-?[\d.]+)', text, re.MULTILINE)
    return number(found[1]) if found else None
