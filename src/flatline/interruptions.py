"""Exceptions that are the script's though they were raised while our own code ran: those of its signal handlers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from types import FrameType
from typing import Any

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def of_the_scripts(error: BaseException) -> bool:
    """A handler of a signal raised it: a time limit, say. It is told its number and the frame that it interrupts."""
    return any(
        type(number) is int and isinstance(frame, FrameType)
        for given in _calls(error)
        for number, frame in pairwise(given)
    )


def _calls(error: BaseException) -> Iterator[list[Any]]:
    """What the functions of others in its traceback were called with."""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            held = traceback.tb_frame.f_locals
            several = code.co_flags & 0x04  # *args, which stands behind all that have a name
            rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if several else ""
            yield [*(held.get(name) for name in code.co_varnames[: code.co_argcount]), *held.get(rest, ())]
        traceback = traceback.tb_next
