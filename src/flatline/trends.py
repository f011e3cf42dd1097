"""A logged curve as robust numbers: levels, their noise, whether it rises or falls.

The null of every question is a healthy curve of the same noise: a level that moves as far as its own noise, and points that
follow each other as closely, would move it. Levels are medians of blocks of points; positions count in points, so that
steps, epochs or hours on the axis make no difference.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flatline.events import Curve, CurvesUpdated, Role
from flatline.history import fmean, median

MAD_TO_SIGMA = 1.4826  # of a normal distribution
MEDIAN_TO_MEAN = 1.2533  # standard error of a median over that of a mean
MOST_BLOCKS = 32
SHORTEST = 8  # points under which a curve says nothing
SHARPEST = 0.98  # autocorrelation of neighbours that is believed at most
BEGINNING = 5  # points that say where a run began
EXCESS = 0.08  # relative, of a first loss over ln C: initial weights are a little worse than guessing
UNSURE = 0.03  # error of an accuracy that still tells guessing among many from knowing
PROBE = 100.0  # times its first value, that a rate grows to in a range test


@dataclass(frozen=True, slots=True)
class Trend:
    """The levels of a curve. ``noise`` is the standard error of one level, ``spread`` that of one point."""

    steps: tuple[float, ...]  # the last step of each block
    levels: tuple[float, ...]
    noise: float
    spread: float
    start: float  # median of the first points
    points: int

    @property
    def best(self) -> int:
        """Where the lowest level is."""
        return self.levels.index(min(self.levels))

    @property
    def last(self) -> float:
        """Median of the last levels."""
        return median(self.levels[-3:])

    @property
    def size(self) -> float:
        """Larger of the first and the last level, without sign."""
        return max(abs(self.start), abs(self.last))

    def at(self, step: float) -> int:
        """The block that a step lies in."""
        return min(bisect_left(self.steps, step), len(self.steps) - 1)

    def around(self, index: int) -> float:
        """The level there, as the median of it and its neighbours."""
        return median(self.levels[max(index - 1, 0) : index + 2])

    def falls(self, begin: int = 0, end: int | None = None, *, z: float = 2.5) -> bool:
        """Whether it falls there, more than noise would."""
        part = self.levels[begin:end]
        return len(part) >= 3 and kendall(part) < -z and part[0] - part[-1] > 2 * self.noise

    def rises(self, begin: int = 0, end: int | None = None, *, z: float = 2.5) -> bool:
        """Whether it rises there, more than noise would."""
        part = self.levels[begin:end]
        return len(part) >= 3 and kendall(part) > z and part[-1] - part[0] > 2 * self.noise


def trend(curve: Curve | None, blocks: int = MOST_BLOCKS) -> Trend | None:
    """The levels of a curve, or None if it is too short to judge."""
    if curve is None or len(curve.values) < SHORTEST:
        return None
    edges = _edges(len(curve.values), blocks)
    levels = [median(curve.values[a:b]) for a, b in pairwise(edges)]
    rest = _residuals(curve.values, edges, levels)
    spread = MAD_TO_SIGMA * median(map(abs, rest))
    between = _between(levels)
    smallest = 1e-9 * max(map(abs, levels))
    return Trend(
        steps=tuple(curve.steps[b - 1] for b in edges[1:]),
        levels=tuple(levels),
        noise=max(between, _within(rest, spread, len(curve.values) / len(levels)), smallest),
        spread=max(spread, between, smallest),
        start=median(curve.values[: min(5, max(1, len(curve.values) // 8))]),
        points=len(curve.values),
    )


def until(curve: Curve, step: float) -> Curve:
    """The curve up to a step."""
    end = bisect_left(curve.steps, step) + 1
    return replace(curve, steps=curve.steps[:end], values=curve.values[:end], lows=(), highs=())


def _edges(points: int, blocks: int) -> list[int]:
    """Where blocks begin: of one point, of at least two, or as many as are wanted."""
    count = points if points <= blocks else min(blocks, points // 2)
    return [round(i * points / count) for i in range(count + 1)]


def _between(levels: Sequence[float]) -> float:
    """Noise of a level by differences that leave out a trend, straight or bent. Few of them may be small by chance."""
    second = [b - a for a, b in pairwise(b - a for a, b in pairwise(levels))]
    third = [b - a for a, b in pairwise(second)]
    sigmas = (median(map(abs, second)) / math.sqrt(6), median(map(abs, third)) / math.sqrt(20))
    return MAD_TO_SIGMA * min(sigmas) * (1 + 4 / len(levels))


def _within(rest: Sequence[float], spread: float, size: float) -> float:
    """Noise of a level by the spread of the points in it, and by how closely they follow each other."""
    if spread <= 0 or size < 2:
        return 0.0
    apart = MAD_TO_SIGMA * median(abs(b - a) for a, b in pairwise(rest))
    follow = min(max(1 - apart * apart / (2 * spread * spread), 0.0), SHARPEST)
    return MEDIAN_TO_MEAN * spread * math.sqrt(min((1 + follow) / (1 - follow) / size, 1.0))


def _residuals(values: Sequence[float], edges: Sequence[int], levels: Sequence[float]) -> list[float]:
    """Points without their trend: straight lines between the middles of the blocks."""
    middles = [(a + b - 1) / 2 for a, b in pairwise(edges)]
    rest, block = [], 0
    for i, value in enumerate(values):
        while block + 2 < len(middles) and i > middles[block + 1]:
            block += 1
        share = (i - middles[block]) / (middles[block + 1] - middles[block])
        rest.append(value - levels[block] - min(max(share, 0.0), 1.0) * (levels[block + 1] - levels[block]))
    return rest


def kendall(values: Sequence[float]) -> float:
    """Mann and Kendall's z: standard normal without a trend, positive if later values are larger."""
    n = len(values)
    if n < 3:
        return 0.0
    s = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    return (s - (s > 0) + (s < 0)) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


def slope(values: Sequence[float]) -> float:
    """Theil and Sen's: median change from one value to the next, over all pairs."""
    return median((b - a) / k for i, a in enumerate(values) for k, b in enumerate(values[i + 1 :], 1))


def drift(values: Sequence[float]) -> float:
    """How far the values move from first to last, along Theil and Sen's line."""
    return slope(values) * (len(values) - 1) if len(values) > 1 else 0.0


# --------------------------------------------------------------------------- several runs


def iqm(values: Sequence[float]) -> float:
    """Mean of the middle half; the two at its edges count in part."""
    ordered, cut = sorted(values), len(values) / 4
    weights = [max(0.0, min(i + 1, len(ordered) - cut) - max(i, cut)) for i in range(len(ordered))]
    return sum(w * v for w, v in zip(weights, ordered, strict=True)) / sum(weights)


def interval(values: Sequence[float], resamples: int = 2000) -> tuple[float, float]:
    """95 % of the interquartile means of resampled values lie in it. The same numbers give the same interval."""
    count, state, found = len(values), 1, []
    for _ in range(resamples):
        sample = []
        for _ in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            sample.append(values[(state >> 33) * count >> 31])
        found.append(iqm(sample))
    found.sort()
    return found[resamples // 40], found[-1 - resamples // 40]


# --------------------------------------------------------------------------- the curves of a run


def curves(event: CurvesUpdated, role: Role) -> list[Curve]:
    """Those of a role, the most detailed first."""
    return sorted((curve for curve in event.curves if curve.role == role), key=lambda curve: -curve.count)


def main(event: CurvesUpdated, role: Role) -> Curve | None:
    """The most detailed one of a role."""
    return next(iter(curves(event, role)), None)


SIDES = (
    r"(?:g|d|gen|generator|disc|discriminator|adv|adversarial|critic|actor|policy|value|q|pg|vf|qf\d?|alpha|encoder)"
)
ADVERSARIES = re.compile(
    rf"(?:^|[^a-z]){SIDES}[_/. -]?loss|loss[_/. -]?{SIDES}(?:$|[^a-z])|(?:^|[^a-z])(?:gan|real|fake)(?:$|[^a-z])"
)
AGENTS = re.compile(
    r"rew(?:ard|_mean)|episod|rollout|advantage|(?:^|[^a-z])returns?(?:$|[^a-z])|policy|actor|critic|ep_len|explained_var"
)
PREFERENCES = re.compile(r"margin|(?:^|[^a-z])(?:chosen|rejected)")


def lacking(event: CurvesUpdated, *, falling: bool = True, **needed: int) -> str:
    """Why curves of these roles, with so many points, cannot be judged: not there, too short, or not bound to fall."""
    for role, least in needed.items():
        found = max((curve.count for curve in event.curves if curve.role == role), default=0)
        what = role.replace("_", " ")
        if not found:
            return (event.note if role == "train_loss" else "") or f"no {what} was logged"
        if found < least:
            return f"too short: {found:,} points of the {what}, {least:,} are needed"
    return "" if not falling or falling_is_due(event) else "a loss of adversaries or agents need not fall"


# quantities that have no role, by the words of their names
PARTS = r"bbox|box|cls|class|classifier|objectness|obj|dfl|giou|centerness|mask|rpn"  # of a detector's loss
QUANTITIES = {
    "precision": r"(?:map(?:50|75)?|bbox m?ap|box m?ap|segm m?ap|mean average precision)",
    "overlap": r"(?:m ?iou|mean iou)",
    "balanced": r"(?:balanced accuracy|balanced acc|bacc|macro recall|recall macro)",
    "rare": r"(?:f1|f1 score|recall|minority recall|f1 minority|recall minority|sensitivity)",
    "margin": r"rewards? margins?",
    "chosen": r"(?:logps? chosen|chosen logps?)",
    "rejected": r"(?:logps? rejected|rejected logps?)",
    "normaliser": r"(?:log ?z|logsumexp|lse)",
    "logits": r"(?:max logits?|logits? (?:max|norm|rms|scale))",
    "critic": r"(?:(?:value|critic|vf|qf\d?|q) loss|loss (?:value|critic|vf))",
    "part": rf"(?:{PARTS}) loss|loss (?:{PARTS})",
    "length": r"(?:(?:response|completions?|output|generation) (?:mean )?lengths?)",
}
PREFIXES = (
    r"(?:train|training|val|valid|validation|eval|test|metrics?|losses|objective|policy|rollout|charts|env|train val)"
)
SUFFIXES = r"(?:step|epoch|mean|avg|b|m|95|50)"
NAMED = {what: re.compile(rf"(?:{PREFIXES} )*(?:{words})(?: {SUFFIXES})*") for what, words in QUANTITIES.items()}


def named(event: CurvesUpdated, what: str) -> Curve | None:
    """The most detailed curve of a quantity that has no role."""
    return max(all_named(event, what), key=lambda curve: curve.count, default=None)


def all_named(event: CurvesUpdated, what: str) -> list[Curve]:
    """Every curve of a quantity that has no role."""
    return [curve for curve in event.curves if NAMED[what].fullmatch(_words(curve.name))]


def told_by_name(name: str) -> bool:
    """Whether a curve of this name is a quantity that some rule looks for."""
    return any(pattern.fullmatch(_words(name)) for pattern in NAMED.values())


def _words(name: str) -> str:
    """``metrics/mAP50(B)`` -> ``metrics map50 b``."""
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


def short(what: str, curve: Curve | None, least: int) -> str:
    """Why a curve cannot be judged: not there, or too short."""
    if curve is None:
        return f"no {what} was logged"
    few = len(curve.values) + len(curve.not_finite)
    return f"too short: {few:,} points of the {what}, {least:,} are needed" if few < least else ""


def shares(curve: Curve) -> Curve:
    """An accuracy as shares of 1, if it was logged in percent."""
    percent = max(curve.values, default=0.0) > 1
    return replace(curve, values=tuple(value / 100 for value in curve.values)) if percent else curve


def classes_of(event: CurvesUpdated) -> int | None:
    """How many classes there are: known, or about as many as a loss and an accuracy show that both begin at guessing."""
    loss, accuracy = main(event, "train_loss"), main(event, "train_accuracy")
    found = trend(shares(accuracy)) if accuracy is not None else None
    if event.classes or loss is None or accuracy is None or found is None or len(loss.values) < SHORTEST:
        return event.classes
    begins, right = median(loss.values[:BEGINNING]), fmean(shares(accuracy).values[:BEGINNING])
    classes = round(math.exp(min(begins, 20.0)))
    error = found.spread / math.sqrt(BEGINNING)
    if classes < 2 or not abs(begins / math.log(classes) - 1) <= EXCESS or error > max(1 / classes, UNSURE):
        return None
    return classes if abs(right - 1 / classes) <= max(0.25 / classes, 2 * error) else None


def range_test(event: CurvesUpdated) -> bool:
    """Whether the logged rate was raised all along, by orders of magnitude: the loss is meant to leave."""
    rate = main(event, "learning_rate")
    if rate is None or len(rate.values) < SHORTEST or not 0 < rate.values[0] * PROBE <= rate.values[-1]:
        return False
    middle = rate.values[len(rate.values) // 2]
    grows = sum(b > a for a, b in pairwise(rate.values)) >= 0.9 * (len(rate.values) - 1)
    return grows and middle < 0.3 * rate.values[-1]


def falling_is_due(event: CurvesUpdated) -> bool:
    """Whether a loss of this run ought to fall: not between adversaries, nor where an agent makes its own data."""
    names = [re.sub(r"([a-z])([A-Z])", r"\1_\2", curve.name).lower() for curve in event.curves]
    if any(ADVERSARIES.search(name) for name in names) or _opposed(event):
        return False
    if any(PREFERENCES.search(name) for name in names):
        return True
    agents = any(curve.role == "reward" for curve in event.curves)
    return not agents and not any(AGENTS.search(name) for name in names)


def _opposed(event: CurvesUpdated) -> bool:
    """One training loss rises while another falls."""
    trends = [found for curve in curves(event, "train_loss") if (found := trend(curve))]
    return any(t.rises() for t in trends) and any(t.falls() for t in trends)


def warming(event: CurvesUpdated) -> bool:
    """Whether the logged learning rate still rises at the end."""
    rate = main(event, "learning_rate")
    if rate is None or len(rate.values) < 4:
        return False
    later = rate.values[len(rate.values) * 3 // 4 :]
    return later[-1] >= max(rate.values) and later[-1] > 1.02 * later[0]


def steps_of(other: Trend, steps: Sequence[float], at: float) -> float:
    """A step of one curve on the axis of another, if one of them counts epochs and the other steps."""
    last, there = steps[-1], other.steps[-1]
    if (there > 2 * last > 0 and _even(steps)) or (last > 2 * there > 0 and _even(other.steps)):
        return at / last * there
    return at


def _even(steps: Sequence[float]) -> bool:
    """Logged at regular times: where it ends, the run ended."""
    gaps = [b - a for a, b in pairwise(steps)]
    return bool(gaps) and 0 < max(gaps) <= 2.5 * min(gaps)


def shown(step: float) -> str:
    """A step as people read it."""
    return f"{step:,.0f}" if step == int(step) else f"{step:,.4g}"
