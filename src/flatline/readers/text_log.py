"""Printed lines: ``iter 100: loss 1.23``, ``{'loss': '0.5'}``, ``Epoch 3 | val loss 0.5``, progress bars, Keras."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._lines import lines
from flatline.readers._log import Log, RunLog
from flatline.readers._numbers import STEP_NAMES, is_clock
from flatline.readers._roles import TRAIN, VALIDATION, role_of, words_of
from flatline.readers.trainer_state import SUMMARY

ENDINGS = {".log", ".txt", ".out", ".err", ".stdout", ".stderr", ""}
NEEDED = 3  # values with a known meaning, before a file that nobody named is taken for a log
WIDEST = 4000  # characters of a line that are looked at
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x08")
NUMBER = r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
PAIR = re.compile(
    r"(?<![\w.@/-])([A-Za-z_][\w./@-]*(?: [A-Za-z_][\w./@-]*){0,3})"  # up to four words
    r"(?:'|\")?\s{0,8}(?:[:=]|->|\s)\s{0,8}(?:tensor\()?(?:'|\"|\[|\()?\s{0,8}"
    rf"({NUMBER})(?![\w.])(?:\s?/\s?(\d+))?",
    re.IGNORECASE,
)
NOISE = {
    "info",
    "debug",
    "warning",
    "root",
    "main",
    "log",
    "at",
    "for",
    "the",
    "in",
    "with",
    "and",
    "after",
    "end",
    "of",
    "got",
    "is",
}
STEPS = [name for name in STEP_NAMES if "/" not in name]
SUBSETS = re.compile(
    r"\b(?:(?P<val>val|valid|validation|eval|evaluation|test|dev)|(?P<train>train|training))\b", re.IGNORECASE
)


class TextLog(Reader):
    """Pairs of words and a number; a line without a step belongs to the last one that was told."""

    name = "text"
    known_as = r"^(train|training)\.log$"
    stands_for_folder = r"(?i)^(train|training|log|output|stdout|nohup|out)\.(log|txt|out)$"

    def claims(self, head: Head) -> int:
        """Some lines tell a loss, an accuracy or a reward."""
        if not head.text or (not head.named and head.path.suffix.lower() not in ENDINGS):
            return 0
        if head.named and not _starts_like_data(head.text):
            return 1
        told = (role_of(name) for line in head.lines for name, _, _ in pairs(line))
        return int(
            sum(role not in ("", "epoch", "learning_rate") for role in told) >= NEEDED
            and not _starts_like_data(head.text)
        )

    def read(self, path: Path, log: Log) -> None:
        """Line by line."""
        printed = _Printed(log.run())
        for line in lines(path):
            printed.take(line)


def _starts_like_data(text: str) -> bool:
    return text.lstrip().startswith(("{\n", "{\r", "[\n", '{"', "<?xml", "<!DOCTYPE", "<html"))


def pairs(line: str) -> Iterator[tuple[str, float, float | None]]:
    """Name, number, and what the number was given out of."""
    line = line[:WIDEST]
    if "\x1b" in line or "\x08" in line:
        line = ESCAPES.sub("", line)
    if any(word in line for word in SUMMARY):
        return
    subset = _subset(line)
    for found in PAIR.finditer(line):
        value, of = float(found[2].replace(",", "")), float(found[3][:300]) if found[3] else None
        yield _name(found[1], subset), value, of


@lru_cache(maxsize=4096)
def _name(words: str, subset: str) -> str:
    """Without words in front that belong to the sentence or to a logger; with what the line speaks of."""
    told = words.split()
    while len(told) > 1 and told[0].lower() in NOISE:
        del told[0]
    if len(told) > 1 and told[-1].lower() in ("is", "of", "at"):
        del told[-1]
    name = " ".join(told)
    unsaid = role_of(name) and not set(words_of(name)) & (TRAIN | VALIDATION)
    return f"{subset}/{name}" if subset and unsaid else name


def _subset(line: str) -> str:
    """``Test set: average loss 0.1`` speaks of validation."""
    found = {match.lastgroup for match in SUBSETS.finditer(line) if match.lastgroup}
    return found.pop() if len(found) == 1 else ""


class _Printed:
    """Lines on their way into curves."""

    def __init__(self, run: RunLog) -> None:
        self.run = run
        self.step: float | None = None  # that was told last

    def take(self, line: str) -> None:
        """The pairs of a line, at its step or else at that of a line before."""
        found = list(pairs(line))
        counted = {counter: value for name, value, _ in found if (counter := _counter(name)) and abs(value) < 1e15}
        self.step = next((counted[name] for name in STEPS if name in counted), self.step)
        values = [pair for pair in found if not _counter(pair[0]) and not is_clock(pair[0])]
        self.run.row += bool(values)
        if values and (epoch := counted.get("epoch")) is not None:  # where epochs begin is worth knowing
            self.run.add("epoch", self.run.row if self.step is None else self.step, epoch)
        for name, value, of in values:
            accuracy = of and "accuracy" in role_of(name)
            self.run.add(
                name, self.run.row if self.step is None else self.step, value / of if accuracy and of else value
            )


@lru_cache(maxsize=4096)
def _counter(name: str) -> str:
    """What a name counts that tells where the run is."""
    told = "_".join(word for word in words_of(name) if word not in TRAIN | VALIDATION)
    return told if told in STEPS else ""
