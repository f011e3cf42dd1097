"""Lines that the script prints about its validation: most scripts log them nowhere else."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

from flatline.events import LinePrinted
from flatline.sensors.loop import Loop
from flatline.sensors.patching import NO_FRAME, Patches, unseen_by_dynamo

LONGEST = 2_000  # characters of a line
TOLD = re.compile(r"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?![a-z]).*\d")
OURS = "flatline: "


class PrintedSensor:
    """Listens to ``write`` of stdout and stderr; what is written is left as it is."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self._open: dict[int, str] = {}  # of each stream, the line that is not over

    def attach(self) -> None:
        """Both streams, where they are ordinary ones."""
        if self.loop.wants(LinePrinted):
            for place, stream in enumerate((sys.stdout, sys.stderr)):
                if isinstance(stream, io.TextIOWrapper) and "write" not in vars(stream):
                    self._listen(place, stream)

    def _listen(self, place: int, stream: Any) -> None:
        original, heard = stream.write, self.patches.guard(self._heard)

        def write(text: str) -> int:
            count: int = original(text)
            heard(place, text)
            return count

        def take_off() -> None:
            if vars(stream).get("write") is write:
                del stream.write

        write.__code__ = write.__code__.replace(co_filename=NO_FRAME)
        unseen_by_dynamo(write)
        stream.write = write
        self.patches.on_undo(take_off)

    def _heard(self, place: int, text: str) -> None:
        """Whole lines, of a progress bar what it came to."""
        *lines, rest = (self._open.get(place, "") + text).split("\n")
        self._open[place] = rest[-LONGEST:]
        for line in lines:
            shown = line.rpartition("\r")[2][:LONGEST]
            if TOLD.search(shown) and not shown.startswith(OURS):
                self.loop.emit(LinePrinted(step=self.loop.steps, text=shown))
