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
WORDS = 64  # that are kept of a line that does not end
TOLD = re.compile(r"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?![a-z]).*\d")
OURS = "flatline: "


class PrintedSensor:
    """Listens to ``write`` of stdout and stderr; what is written is left as it is."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches

    def attach(self) -> None:
        """Both streams, where they are ordinary ones."""
        if self.loop.wants(LinePrinted):
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper) and "write" not in vars(stream):
                    self._listen(stream)

    def _listen(self, stream: Any) -> None:
        """``print`` writes each word on its own: they are kept until the line is over."""
        original, heard = stream.write, self.patches.guard(self._heard)
        words: list[str] = []

        def write(text: str) -> int:
            count: int = original(text)
            words.append(text)
            if "\n" in text or len(words) > WORDS:
                lines, _, rest = "".join(words).rpartition("\n")
                words[:] = [rest[-LONGEST:]]
                heard(lines)
            return count

        def take_off() -> None:
            if vars(stream).get("write") is write:
                del stream.write

        write.__code__ = write.__code__.replace(co_filename=NO_FRAME)
        unseen_by_dynamo(write)
        stream.write = write
        self.patches.on_undo(take_off)

    def _heard(self, lines: str) -> None:
        """Of a progress bar what it came to."""
        for line in lines.split("\n"):
            shown = line.rpartition("\r")[2][:LONGEST]
            if TOLD.search(shown) and not shown.startswith(OURS):
                self.loop.emit(LinePrinted(step=self.loop.steps, text=shown))
