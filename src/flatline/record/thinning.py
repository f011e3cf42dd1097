"""Rows of numbers in blobs; old ones as stretches with mean, lowest and highest value, so that no spike vanishes.

A raw row is ``step, value, value, …``. A stretch is ``step, count, means…, lows…, highs…``, where the step is that of
its first row and the count is that of its rows. All of them are 64-bit numbers, little-endian.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence

Numbers = Sequence[float]
Summaries = tuple[Numbers, Numbers, Numbers]  # means, lowest, highest
NAN = math.nan
LARGEST = 64 << 20  # bytes of a blob: a larger one was not written by us


def packed(rows: array[float]) -> bytes:
    """As bytes, the same on every machine."""
    if sys.byteorder == "big":
        rows = array("d", rows)
        rows.byteswap()
    return rows.tobytes()


def unpacked(blob: object, stride: int) -> array[float]:
    """Back again; whole rows only. Raises ValueError."""
    if not isinstance(blob, bytes) or len(blob) > LARGEST or len(blob) % (8 * stride):
        raise ValueError("a stretch of the curves is damaged")
    rows = array("d")
    rows.frombytes(blob)
    if sys.byteorder == "big":
        rows.byteswap()
    return rows


def stride_of(columns: int, width: int) -> int:
    """Numbers in a row: of one step, or of a stretch of up to ``width`` steps."""
    return 1 + columns if width == 1 else 2 + 3 * columns


def condensed(rows: array[float], columns: int, width: int) -> array[float]:
    """Raw rows as stretches of ``width`` of them; the last one may be shorter."""
    stride, numbers, made = stride_of(columns, 1), rows.tolist(), array("d")
    for start in range(0, len(numbers), width * stride):
        stretch = numbers[start : start + width * stride]
        count = len(stretch) // stride
        made.extend((stretch[0], count))
        for part in _summaries([stretch[1 + column :: stride] for column in range(columns)], count):
            made.extend(array("d", part))
    return made


def _summaries(columns: list[list[float]], count: int) -> Summaries:
    """Of each column; all of them have so many numbers."""
    totals = list(map(sum, columns))
    total = sum(totals)
    if total - total == 0.0:
        return [total / count for total in totals], list(map(min, columns)), list(map(max, columns))
    means, lows, highs = zip(*map(_summary, columns), strict=True)
    return means, lows, highs


def _summary(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, lowest and highest of the finite ones."""
    total = sum(values)
    if total - total != 0.0:
        values = [value for value in values if value - value == 0.0]
        if not values:
            return NAN, NAN, NAN
        total = sum(value / len(values) for value in values) * len(values)
        if total - total != 0.0:  # beyond the largest number, by rounding
            return values[0], min(values), max(values)
    return total / len(values), min(values), max(values)


def halved(rows: array[float], columns: int) -> array[float]:
    """Neighbouring stretches as one; the last one stays alone if their number is odd."""
    stride = stride_of(columns, 2)
    steps, counts = rows[::stride].tolist(), rows[1::stride].tolist()
    heads = [(steps[at], sum(counts[at : at + 2])) for at in range(0, len(steps), 2)]
    parts = []
    for column in range(columns):
        means, lows, highs = (rows[2 + column + part * columns :: stride].tolist() for part in range(3))
        parts.append(_merged(counts, means, lows, highs))
    return _joined(heads, parts)


def _merged(counts: list[float], means: list[float], lows: list[float], highs: list[float]) -> Summaries:
    total = sum(means)
    if total - total != 0.0:
        found = [_both(at, counts, means, lows, highs) for at in range(0, len(means), 2)]
        slow_means, slow_lows, slow_highs = zip(*found, strict=True)
        return slow_means, slow_lows, slow_highs
    odd = len(means) - len(means) % 2
    pairs = zip(means[:odd:2], means[1::2], counts[:odd:2], counts[1::2], strict=True)
    both = [one + (other - one) * (n / (m + n)) for one, other, m, n in pairs]
    least, most = map(min, lows[:odd:2], lows[1::2]), map(max, highs[:odd:2], highs[1::2])
    return both + means[odd:], [*least, *lows[odd:]], [*most, *highs[odd:]]


def _both(at: int, counts: Numbers, means: Numbers, lows: Numbers, highs: Numbers) -> tuple[float, float, float]:
    """Where a stretch holds nothing finite, the other one is both."""
    one, other = means[at], means[at + 1] if at + 1 < len(means) else NAN
    if math.isnan(other):
        return one, lows[at], highs[at]
    if math.isnan(one):
        return other, lows[at + 1], highs[at + 1]
    share = counts[at] / ((counts[at] + counts[at + 1]) or 1.0)
    return one * share + other * (1 - share), min(lows[at], lows[at + 1]), max(highs[at], highs[at + 1])


def _joined(heads: Sequence[tuple[float, float]], parts: Sequence[Summaries]) -> array[float]:
    rows = array("d")
    by_row = [zip(*(part[which] for part in parts), strict=True) for which in range(3)]
    for head, *rest in zip(heads, *by_row, strict=True):
        rows.extend(head)
        for numbers in rest:
            rows.extend(numbers)
    return rows
