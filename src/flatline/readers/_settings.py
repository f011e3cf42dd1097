"""How many classes a run tells apart, if a small file of settings beside its logs says so."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

SETTINGS = {
    "config.json", "config.yaml", "config.yml", "hparams.yaml", "hparams.json", "args.json", "args.yaml", "args.yml",
    "params.json", "params.yaml", "config.toml",
}  # fmt: skip
LARGEST = 1 << 20  # bytes of such a file
MOST = 100_000  # classes
NAMES = "num_labels|num_classes|n_classes|nclasses|nb_classes"
SAID = re.compile(
    rf"""^[\s{{,]*["']?(?:{NAMES})["']?\s*[:=]\s*(?:\{{?\s*["']?value["']?:\s*)?(\d{{1,6}})\b""", re.MULTILINE
)
LABEL = re.compile(r'"id2label"\s*:\s*\{([^{}]*)\}')


def classes_in(files: Iterable[Path], given: Iterable[str]) -> int | None:
    """From settings in the folders of these files, if they lie in a folder that was given; None if two of them differ."""
    tops = [os.path.realpath(path) for path in given if os.path.isdir(path)]
    folders = dict.fromkeys(folder for file in files for folder in (file.parent, file.parent.parent))
    inside = [folder for folder in folders if _lies_in(folder, tops)]
    texts = [_text(folder / name) for folder in inside for name in sorted(SETTINGS)]
    found = {count for text in texts for count in _said(text)}
    return next(iter(found)) if len(found) == 1 else None


def _lies_in(folder: Path, tops: list[str]) -> bool:
    real = os.path.realpath(folder)
    return any(real == top or real.startswith(top + os.sep) for top in tops)


def _text(path: Path) -> str:
    """Of a small regular file that is no link."""
    try:
        facts = path.lstat()
        small = stat.S_ISREG(facts.st_mode) and facts.st_size <= LARGEST
        return path.read_text(encoding="utf-8", errors="replace") if small else ""
    except OSError:
        return ""


def _said(text: str) -> list[int]:
    counts = [int(number) for number in SAID.findall(text)]
    counts += [block.count(":") for block in LABEL.findall(text)]
    return [count for count in counts if 2 <= count <= MOST]
