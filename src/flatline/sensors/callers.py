"""Which line of the user's code are we under?"""

from __future__ import annotations

import dis
import inspect
import os
import sys
import sysconfig
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from flatline.events import Where

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
)

SNAPSHOTS = sys.version_info < (3, 13)
GIVES_AWAY = {"locals", "vars", "dir", "eval", "exec"}
OUR_REFERENCES = 3  # to a frame's dictionary that nobody else has: the frame's, a variable's, an argument's


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Whether a code object's file is the user's own: not flatline, not torch, not a library, not made up."""
    if filename.startswith("<"):
        return filename.startswith(("<stdin>", "<ipython-input", "<string>"))
    if f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename:
        return False
    path = os.path.abspath(filename)
    if path.startswith(PACKAGE):
        return False
    return not path.startswith(_LIBRARIES)


def users_frame() -> FrameType | None:
    """The innermost frame of the user's code above us."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def variables_of(frame: FrameType) -> dict[str, Any]:
    """What a running function's variables hold.

    Before 3.13 a function that is asked for them fills a dictionary and keeps it: what is in it would live on, and one
    that the script has from ``locals()`` would change. It is emptied; where the script, or a debugger, may have it, it
    is not asked for.
    """
    if not SNAPSHOTS or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    if sys.gettrace() is not None or _gives_away(frame.f_code):
        return {}
    names: Any = frame.f_locals
    held = dict(names)
    if sys.getrefcount(names) <= OUR_REFERENCES:
        names.clear()
    return held


@lru_cache(maxsize=256)
def _gives_away(code: CodeType) -> bool:
    """It may ask for its own variables; ``model.eval()`` is a method's name, and asks for nothing."""
    if GIVES_AWAY.isdisjoint(code.co_names):
        return False
    named = (step for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    return any(step.argval in GIVES_AWAY for step in named)


def caller() -> Where | None:
    """The line of the user's code above us."""
    frame = users_frame()
    return frame and Where(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def standing() -> tuple[tuple[str, int], ...]:
    """Where every function above us stands: the same again in a loop alone."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def callers_above(most: int) -> list[Where]:
    """The functions of the user's that called the innermost one, without one of a library between them."""
    frame = users_frame()
    found: list[Where] = []
    while frame is not None and (frame := frame.f_back) is not None and len(found) < most:
        if not is_users(frame.f_code.co_filename):
            break
        found.append(Where(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
    return found


def looked_up(path: str) -> Any:
    """What ``a.b.c`` is in the innermost of the user's functions that know it; attributes are read past the user's methods."""
    first, *attributes = path.split(".")
    frame, value = users_frame(), None
    while frame is not None and value is None:
        if is_users(frame.f_code.co_filename):
            value = variables_of(frame).get(first, frame.f_globals.get(first))
        frame = frame.f_back
    for name in attributes:
        value = getattr(value, "__dict__", {}).get(name)
    return value


def closure_of(function: Any) -> dict[str, Any]:
    """Variables of the functions around one; None where one has no value yet."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = dict.fromkeys(names)
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # not bound yet
            found[name] = cell.cell_contents
    return found


def methods_of(kind: type) -> list[FunctionType]:
    """What a class itself does once it is built: its functions, but for its constructor."""
    return [each for each in vars(kind).values() if isinstance(each, FunctionType) and each.__name__ != "__init__"]


def users_line(traceback: TracebackType | None) -> Where | None:
    """The innermost line of the user's code in a traceback."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_users(code.co_filename):
            found = Where(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found
