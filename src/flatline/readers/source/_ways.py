"""What has happened on the ways through some statements."""

from __future__ import annotations

from dataclasses import dataclass

from flatline.events import SourceTick

WAYS = 64  # through a loop; one with more is left alone


@dataclass(frozen=True, slots=True)
class Way:
    """What has happened so far on one way."""

    ticks: tuple[SourceTick, ...] = ()
    choices: tuple[tuple[str, bool], ...] = ()
    ended: str = ""  # by return or raise, break, continue
    outside: Way | None = None  # in a generator: the way of whoever goes through it


class TooMany(Exception):
    """More ways than are worth following."""


def distinct(ways: list[Way]) -> list[Way]:
    """Ways on which the same happened are one, whatever was chosen."""
    if len(ways) < 2:
        return ways
    found: dict[tuple[object, ...], Way] = {}
    for way in ways:
        around = (way.outside.choices, way.outside.ended) if way.outside is not None else None
        ticks = tuple((t.kind, t.where, t.of) for t in way.ticks)
        found.setdefault((ticks, way.choices, way.ended, around), way)
    return list(found.values())
