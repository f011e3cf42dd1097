"""Files that a data set pairs by their place in two lists, though their names say that they belong to others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import PurePath
from typing import Any, NamedTuple

from flatline.events import Where
from flatline.sensors.callers import is_users
from flatline.sensors.sources import function_around

FEWEST = 8  # pairs
MOST = 20_000  # that are looked at
APART = 0.2  # of them; a few may be named wrongly
SHARED = 0.5  # of the numbers; a list may be the part of another one
STEPS = 4  # different distances between the numbers of partners
DIGITS = re.compile(r"\d+")
Paths = Sequence[Any]


class Mispaired(NamedTuple):
    """Two files that stand at one place, and how many do so wrongly."""

    first: str
    second: str
    apart: int
    total: int
    where: Where | None


def mispaired(dataset: Any) -> Mispaired | None:
    """Both lists tell of the same cases, and were put into order by text, or one of them by number."""
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):  # a part of one
        dataset = dataset.dataset
    where = _where(dataset)
    for first, second in _columns(dataset) if where is not None else ():
        one, other = _numbers(first), _numbers(second)
        apart = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
        if (
            len(apart) >= APART * len(first)
            and _same_cases(one, other)
            and _sorted_apart((first, second), (one, other))
        ):
            names = [PurePath(column[apart[0]]).name for column in (first, second)]
            return Mispaired(names[0], names[1], len(apart), len(first), where)
    return None


def _same_cases(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> bool:
    """Each number once, most of them in both; and not the next one of a series throughout."""
    if len({len(each) for each in (*one, *other)}) != 1 or not len(set(one)) == len(set(other)) == len(one):
        return False
    steps = {tuple(b - a for a, b in zip(*pair, strict=True)) for pair in zip(one, other, strict=True)}
    return len(set(one) & set(other)) >= SHARED * len(one) and len(steps) >= STEPS


def _sorted_apart(columns: tuple[Paths, Paths], numbers: tuple[list[Any], list[Any]]) -> bool:
    """Each file has the rank of its partner, by text: no draw of partners does that. By number they have other ranks."""
    one, other = ((_ranks(list(map(str, c))), _ranks(n)) for c, n in zip(columns, numbers, strict=True))
    return one[1] != other[1] and any(a == b for a, b in product(one, other))


def _ranks(values: list[Any]) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)


def _where(dataset: Any) -> Where | None:
    """Where a class of the user's fills its lists."""
    code = getattr(getattr(type(dataset), "__init__", None), "__code__", None)
    return Where(code.co_filename, code.co_firstlineno, code.co_name) if code and is_users(code.co_filename) else None


def _columns(dataset: Any) -> Iterator[tuple[Paths, Paths]]:
    """The two sides of a list of pairs; two lists that are asked for one and the same place."""
    lists = {name: value for name, value in vars(dataset).items() if isinstance(value, (list, tuple))}
    lists = {name: value for name, value in lists.items() if FEWEST <= len(value) <= MOST}
    for value in lists.values():
        if all(isinstance(each, (list, tuple)) and len(each) == 2 and _are_paths(each) for each in value):
            yield [each[0] for each in value], [each[1] for each in value]
    paths = {name: value for name, value in lists.items() if _are_paths(value)}
    together = _asked_together(type(dataset)) if len(paths) > 1 else []
    for one, other in combinations(paths, 2):
        if len(paths[one]) == len(paths[other]) and any({one, other} <= names for names in together):
            yield paths[one], paths[other]


def _are_paths(values: Paths) -> bool:
    return all(isinstance(each, PurePath) or (isinstance(each, str) and "." in each) for each in values)


def _asked_together(kind: type) -> list[set[str]]:
    """The attributes that ``__getitem__`` asks for one index: ``self.images[i]``, ``self.masks[i]``."""
    code = getattr(getattr(kind, "__getitem__", None), "__code__", None)
    function = function_around(code.co_filename, code.co_firstlineno) if code is not None else None
    asked: dict[str, set[str]] = {}
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            asked.setdefault(ast.unparse(node.slice), set()).add(node.value.attr)
    return list(asked.values())


def _numbers(paths: Paths) -> list[tuple[int, ...]]:
    """The numbers in each name."""
    return [tuple(map(int, DIGITS.findall(PurePath(each).stem))) for each in paths]
