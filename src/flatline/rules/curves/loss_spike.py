"""C6."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flatline.events import Curve, CurvesUpdated
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule
from flatline.trends import MAD_TO_SIGMA, Trend, curves, falling_is_due, kendall, lacking, range_test, shown, trend


class LossSpike(Rule):
    """The loss jumped up at once, and came back or did not.

    Symptom
    -------
    A needle in the curve: within a step or two the loss multiplies. Mostly it falls back; sometimes what was learned is gone.

    Root cause
    ----------
    One bad batch (an outlier, a corrupt sample, a wrong label) with a huge gradient, a jump of the learning rate, or an
    instability of attention in long runs of large models. Adam's second moment is small after a calm time, and its step large.

    Fix
    ---
    Clip the gradient norm at 1, log the loss of every batch with its indices, and look at the batch. Not recovered: go back to a
    checkpoint from before the spike and leave out the batches around it. Large models: beta2 of 0.95, z-loss, QK-norm.

    Example
    -------
    ::

        loss.backward()
        optimizer.step()

    Use instead
    -----------
    ::

        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()

    Healthy look-alikes
    -------------------
    Losses of small batches, whose noise has a long tail; restarts of a schedule and harder data, from which the loss falls again;
    the first steps of a run; a range test of the rate; losses of adversaries and agents.

    References
    ----------
    - Chowdhery et al., PaLM, 2022, section 5.1, https://arxiv.org/abs/2204.02311
    - Molybog et al., A Theory on Adam Instability in Large-Scale Machine Learning, 2023, https://arxiv.org/abs/2304.09871
    """

    code = "C6"
    severity = "warning"
    consequences = ("C3", "C5")

    window: int = 16  # points before a spike that say what is usual
    sure: float = 15.0  # spreads of the usual noise
    tail: float = 4.0  # times what one point in fifty exceeds the usual by: long tails stay under it
    factors: float = 8.0  # spreads of the logarithm: half of what one point is judged by, as it has no tail
    height: float = 0.3  # of the usual level and of what was learned
    narrow: int = 24  # points within which a spike is over; an average of 0.9 needs 22 to a tenth
    back: float = 0.2  # share of the height that may be left then
    learned: float = 8.0  # standard errors that the loss had fallen by before it was lost
    lost: float = 0.7  # share of what was learned that is gone
    jump: float = 0.35  # share of what was learned that went at once; an average of 0.9 shows as much in four points
    abrupt: int = 18  # points of the climb; an average of 0.9 makes 17 of a jump
    relearned: float = 0.3  # share of the jump that is won back in the end: harder data looks like that
    after: float = 0.1  # share of the run for which it stayed away
    long: int = 200  # points under which neither the tail of the noise nor what happens at once is known
    crowd: int = 8  # spikes that are no accident any more, but the noise of this loss

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough."""
        return lacking(event, train_loss=self.long)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """Single points that stand out, and levels that were lost at once."""
        if not falling_is_due(event) or range_test(event):
            return
        for curve in curves(event, "train_loss")[:2]:
            found = trend(curve)
            if found is None or curve.count < self.long:
                continue
            fall = self._lost(curve, found)
            if fall is not None:
                yield self._tell_lost(event, curve, fall)
            else:
                yield from self._recovered(event, curve, found)

    def _lost(self, curve: Curve, t: Trend) -> _Jump | None:
        """The largest jump, if the loss stayed up where it began."""
        at, height = _largest_jump(curve.values, self.window // 2)
        before, rest = curve.values[max(at - self.window, 0) : at], curve.values[at:]
        if (
            len(curve.values) < 6 * self.window
            or len(before) < self.window
            or len(rest) < max(self.window, self.after * len(curve.values))
        ):
            return None
        level, later = median(before), _levels(rest)
        learned = t.start - level
        if (
            learned < max(self.learned * t.noise, self.sure / 2 * t.spread, 0.1 * abs(t.start))
            or height < self.jump * learned
        ):
            return None
        gone = min(later[3:]) - level >= self.lost * learned
        low = min(_levels(curve.values[:at], 24))
        gone = gone and _climb(curve.values, at, low, median(later) - low) <= self.abrupt
        half = later[len(later) // 2 :]
        recovers = kendall(half) < -2 and half[0] - half[-1] > max(0.1 * learned, 3 * t.noise)
        recovers = recovers or later[0] - later[-1] > self.relearned * (later[0] - level)
        return _Jump(at, level, max(rest), median(later), learned) if gone and not recovers else None

    def _recovered(self, event: CurvesUpdated, curve: Curve, t: Trend) -> Iterator[Finding]:
        found = self._needles(curve, t)
        if not found or len(found) > self.crowd:
            return
        worst = max(found, key=lambda spike: spike.peak - spike.level)
        more = f", and {len(found) - 1} more like it" if len(found) > 1 else ""
        yield self.finding(
            event,
            f"{curve.name} jumped from {worst.level:.4g} to {worst.peak:.4g} at step {shown(curve.steps[worst.at])}, and "
            f"was back at {worst.later:.4g} soon after{more}",
            severity="hint",
            cause="one bad batch or a moment of instability; it was survived, and may not be the next time",
            fix="clip_grad_norm_(parameters, 1.0), and look at the batch of that step",
            key=f"{curve.name} recovered",
            at=curve.steps[worst.at],
            level=worst.level,
            peak=worst.peak,
            spikes=len(found),
        )

    def _needles(self, curve: Curve, t: Trend) -> list[_Jump]:
        values = curve.highs or curve.values
        usual = _usual(values, self.window)
        above = [value - base for value, (base, _) in zip(values, usual, strict=True)]
        long_tail = self.tail * sorted(above)[len(above) * 49 // 50]
        factor = self._usual_factor(values, usual)
        found, free = [], self.window
        for i in range(self.window, len(values) - 2):
            base, spread = usual[i]
            least = max(self.sure * spread, self.sure / 2 * t.spread, long_tail, self.height * abs(base))
            enough = above[i] >= max(least, self.height * (t.start - base))
            if i < free or not enough or (factor is not None and values[i] < factor * base):
                continue
            peak = max(values[i : i + self.window])
            later = values[values.index(peak, i) : i + self.narrow]
            over = next((k for k, value in enumerate(later) if value - base < self.back * (peak - base)), None)
            free = i + self.narrow
            if over is not None:
                found.append(_Jump(i, base, peak, later[over], peak - base))
        return found

    def _usual_factor(self, values: Sequence[float], usual: Sequence[tuple[float, float]]) -> float | None:
        """How many times the usual a point may be by noise that multiplies, as the mean of few long-tailed losses does."""
        if min(values) <= 0:
            return None
        logs = [abs(math.log(value / base)) for value, (base, _) in zip(values, usual, strict=True)]
        return math.exp(min(self.factors * MAD_TO_SIGMA * median(logs), 100.0))

    def _tell_lost(self, event: CurvesUpdated, curve: Curve, fall: _Jump) -> Finding:
        step = shown(curve.steps[fall.at])
        return self.finding(
            event,
            f"{curve.name} jumped from {fall.level:.4g} to {fall.peak:.4g} at step {step} and stayed near {fall.later:.4g} for "
            f"the remaining {len(curve.values) - fall.at:,} points: {(fall.later - fall.level) / fall.learned:.0%} of what it had "
            "learned is lost",
            cause="one step threw the weights far away: a bad batch with a huge gradient, or a rate at the edge of stability",
            fix=f"go back to a checkpoint from before step {step}, leave out the batches around it, and clip_grad_norm_ at 1.0",
            key=curve.name,
            at=curve.steps[fall.at],
            level=fall.level,
            peak=fall.peak,
            later=fall.later,
        )


@dataclass(frozen=True, slots=True)
class _Jump:
    at: int
    level: float
    peak: float
    later: float
    learned: float


def _largest_jump(values: Sequence[float], window: int) -> tuple[int, float]:
    """Where the medians of the points before and after differ most, and by how much."""
    best, at = 0.0, 0
    for i in range(window, len(values) - window):
        if values[i] + values[i + 1] > values[i - 1] + values[i - 2]:
            height = median(values[i : i + window]) - median(values[i - window : i])
            if height > best:
                best, at = height, i
    return at, best


def _climb(values: Sequence[float], at: int, level: float, height: float) -> int:
    """Points from the last that lies low to the first that lies high."""
    begin = next((i for i in range(at, 0, -1) if median(values[i - 1 : i + 2]) < level + 0.15 * height), 0)
    end = next(
        (i for i in range(begin, len(values)) if median(values[i - 1 : i + 2]) > level + 0.85 * height), len(values)
    )
    return end - begin


def _levels(values: Sequence[float], count: int = 12) -> list[float]:
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    return [median(values[a:b]) for a, b in pairwise(edges) if b > a]


def _usual(values: Sequence[float], window: int) -> list[tuple[float, float]]:
    """Median and robust deviation of the points before each."""
    past: deque[float] = deque(maxlen=window)
    found = []
    for value in values:
        base = median(past) if past else value
        found.append((base, MAD_TO_SIGMA * median(abs(each - base) for each in past) if past else 0.0))
        past.append(value)
    return found
