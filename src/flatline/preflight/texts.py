"""Tokens as text, when the program has something that decodes them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any

from flatline.sensors.callers import is_users

Decoder = Callable[[list[int]], Any]
DEEPEST = 12  # frames


def decoder(tokens: list[int]) -> Decoder | None:
    """The first thing in reach of the user's frames above us that makes a text of these tokens."""
    return next((made for value in _in_reach() if (made := _safely(value)) and _text(made, tokens)), None)


def decoded(decode: Decoder, tokens: list[int]) -> str:
    """The text; '' if there is none."""
    return _text(decode, tokens) or ""


def _in_reach() -> Iterator[Any]:
    frame: FrameType | None = sys._getframe(1)
    depth = 0
    while frame is not None and depth < DEEPEST:
        if is_users(frame.f_code.co_filename):
            depth += 1
            names = {**frame.f_globals, **frame.f_locals}
            yield from names.values()
            yield from (v for owner in list(names.values()) for v in _attributes(owner))
        frame = frame.f_back


def _attributes(owner: Any) -> list[Any]:
    """Those of an object of a class of the user's: ``self.tokenizer``, ``dataset.itos``."""
    own = getattr(sys.modules.get(type(owner).__module__), "__file__", None) or ""
    held = inspect.getattr_static(owner, "__dict__", None)  # nothing of the user's is run
    return list(vars(owner).values()) if is_users(own or "<>") and held is not None else []


def _safely(value: Any) -> Decoder | None:
    try:
        return _decoding(value)
    except Exception:  # noqa: BLE001 - objects of the user's may answer in any way
        return None


def _decoding(value: Any) -> Decoder | None:
    """Tokenizers with ``decode`` beside ``encode``, functions of that name, tables from numbers to words."""
    if isinstance(value, FunctionType):
        return value if value.__name__ == "decode" or value.__qualname__.endswith("decode") else None
    if isinstance(value, dict) and value and all(type(k) is int and isinstance(v, str) for k, v in value.items()):
        return lambda tokens: _joined([value[token] for token in tokens])
    if isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(each, str) for each in value):
        return lambda tokens: _joined([value[token] for token in tokens])
    if isinstance(value, (type, str, bytes)) or not all(_has(value, name) for name in ("encode", "decode")):
        return None
    return value.decode if callable(value.encode) and callable(value.decode) else None


def _has(value: Any, name: str) -> bool:
    """Without running what the user's class does for names that it does not know."""
    return inspect.getattr_static(value, name, None) is not None


def _joined(pieces: list[str]) -> str:
    return ("" if max(map(len, pieces), default=0) < 2 else " ").join(pieces)


def _text(decode: Decoder, tokens: list[int]) -> str | None:
    try:
        text = decode(tokens)
    except Exception:  # noqa: BLE001 - it is the user's, and may be made for something else
        return None
    return text if isinstance(text, str) and text.strip() else None
