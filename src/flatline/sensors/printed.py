"""Lines that the script prints about its validation: most scripts log them nowhere else."""

from __future__ import annotations

import functools
import io
import re
import sys
from typing import Any

from flatline.events import LinePrinted
from flatline.sensors.loop import Loop
from flatline.sensors.patching import NO_FRAME, Patches, unseen_by_dynamo

LONGEST = 300  # characters of a line; a longer one tells no figures
WORDS = 64  # that are kept of a line that does not end
TOLD = re.compile(r"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?![a-z])")
DIGIT = re.compile(r"\d")
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

        def write(*given: str) -> int:
            count: int = original(*given)
            words.append(str.__str__(*given))  # the words alone, of a class of the script's, too
            if "\n" in words[-1] or len(words) > WORDS:
                lines, _, rest = "".join(words).rpartition("\n")
                words[:] = [rest if len(rest) <= LONGEST else " " * LONGEST]
                heard(lines)
            return count

        def take_off() -> None:
            if vars(stream).get("write") is write:
                del stream.write

        functools.update_wrapper(write, original)
        write.__code__ = write.__code__.replace(co_filename=NO_FRAME)
        unseen_by_dynamo(write)
        stream.write = write
        self.patches.on_undo(take_off)

    def _heard(self, lines: str) -> None:
        """Of a progress bar what it came to."""
        for line in lines.split("\n"):
            shown = line.rpartition("\r")[2]
            told = TOLD.search(shown) if len(shown) <= LONGEST and not shown.startswith(OURS) else None
            if told is not None and DIGIT.search(shown, told.end()):
                self.loop.emit(LinePrinted(step=self.loop.steps, text=shown))
