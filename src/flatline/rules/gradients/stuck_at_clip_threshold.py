"""G3."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatline.events import ClipFacts, CurvesUpdated, LossesRead, NumbersSampled, OptimizerStepped, RunEnded
from flatline.findings import Finding
from flatline.history import Course, median
from flatline.rules import Rule
from flatline.trends import main


class StuckAtClipThreshold(Rule):
    """The clipping threshold lies far under every gradient norm.

    Symptom
    -------
    The logged norm after clipping is a flat line. The loss falls far too slowly, whatever the learning rate.

    Root cause
    ----------
    Clipping is meant for outliers. With a threshold far under the usual norm every step is shrunk to the same
    tiny length: the learning rate is in effect multiplied by threshold / norm.

    Fix
    ---
    Log the norms that ``clip_grad_norm_`` returns for a while, and set the threshold to their 90th or 95th
    percentile. A healthy clip rate is 1 to 10 % of the steps.

    Example
    -------
    ::

        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-5)

    Use instead
    -----------
    ::

        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    Healthy look-alikes
    -------------------
    Thresholds of 0.1 to 10 that clip all of the early steps by a moderate factor; tiny thresholds under Adam, which
    divides by the gradient's own size and takes ordinary steps all the same; a tiny threshold with a rate to match, under
    which the loss falls; gradients that still carry a loss scale.

    References
    ----------
    - Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    code = "G3"
    severity = "warning"
    each_training = True
    trial_dependent = True
    consequences = ("O7", "O22", "C2", "C3", "C5")

    steps_needed: int = 4  # steps that were looked at, all clipped
    tiny_threshold: float = 0.01  # recipes use 0.1 to 10
    tiny_ratio: float = 100.0  # norm over threshold under a tiny threshold
    ratio: float = 1000.0  # median norm over threshold under an ordinary one
    ratio_steps: int = 8  # steps looked at before an ordinary threshold is judged
    ratio_index: int = 40  # and the step from which on: early norms are large
    short_ratio: float = 30.0  # median norm over a tiny threshold, where nothing but it sets the pace
    held_back: float = 2e-4  # update over weight, at every step; a quarter of the lowest of 97 healthy scripts
    short_steps: int = 12  # steps looked at before that is judged
    short_index: int = 100  # and the step from which on
    whole_ratio: float = 10.0  # median norm over any threshold, all through a run; 1 to 3 is usual
    whole_steps: int = 30  # steps looked at before that is judged
    whole_index: int = 300  # and steps of the run
    whole_fallen: float = 0.15  # of the first loss, at the end
    still_falls: float = 0.2  # share of the whole fall in the second half; 0 where the loss has come to its floor
    fallen: float = 0.2  # of the first loss: it learns all the same
    small_update: float = 1e-4  # update over weight; 1e-3 is healthy (CS231n)

    points_needed: int = 30  # of a logged norm or clip rate
    equal: float = 1e-3  # relative distance of logged norms that are one threshold
    always: float = 0.9  # share of the logged norms that are, or clip rate; 0.01 to 0.1 is healthy (seed)

    def __init__(self) -> None:
        self._clips: dict[int, list[ClipFacts]] = {}
        self._steps: dict[int, int] = {}
        self._updates: dict[int, float] = {}  # largest median update ratio seen
        self._sampled: dict[int, list[ClipFacts]] = {}  # clips of sampled steps
        self._losses: dict[int, list[float]] = {}  # over the first one
        self._courses: dict[int, Course] = {}
        self._newest: dict[int, NumbersSampled] = {}

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """How far the clipped steps carry the weights, and whether the loss falls."""
        ratios = [each.update_ratio for each in event.layers if each.matrix and each.update_ratio is not None]
        key = event.optimizer.key
        if event.loss is not None and event.first_loss is not None and event.first_loss > 0:
            self._losses.setdefault(key, []).append(event.loss / event.first_loss)
        if ratios:
            self._updates[key] = max(median(ratios), self._updates.get(key, 0.0))
        self._newest[key] = event
        sampled = self._sampled.setdefault(key, [])
        sampled += _known(event.clips)
        if self._short(event, sampled):
            yield self._tell(event, sampled)

    def on_losses_read(self, event: LossesRead) -> None:
        """Loss and rate of every step."""
        self._courses.setdefault(event.optimizer.key, Course()).extend(event.losses, event.rates)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """Plain SGD all of whose steps were shrunk, from the first to the last, and a loss that hardly fell."""
        for key, newest in self._newest.items():
            if event.how in ("finished", "max-steps") and self._all_along(newest, self._sampled[key]):
                yield self._tell(newest, self._sampled[key])

    def on_optimizer_stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """The clips of one step, beside those of the earlier ones."""
        clips = _known(event.clips if event.clip_by_hand is None else (event.clip_by_hand,))
        if not clips:
            return
        key = event.optimizer.key
        known = self._clips.setdefault(key, [])
        known += clips
        self._steps[key] = self._steps.get(key, 0) + 1
        if self._stuck(event, known):
            yield self._tell(event, known)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """A logged norm that is a flat line, or a logged clip rate near 1."""
        norm, rate = main(event, "gradient_norm"), main(event, "clip_rate")
        norms = sorted(norm.values) if norm and norm.count >= self.points_needed else []
        top = norms[len(norms) * 99 // 100] if norms else 0.0
        flat = top > 0 and sum(abs(each - top) <= self.equal * top for each in norms) >= self.always * len(norms)
        clipped = median(rate.values) if rate and rate.values and rate.count >= self.points_needed else 0.0
        if flat:
            seen = f"{norm.name if norm else 'the norm'} is {top:.4g} at nearly all of {len(norms):,} points: it was logged after "
            seen += "clipping, and every step is clipped"
        elif self.always <= clipped <= 1:
            seen = (
                f"{rate.name if rate else 'the clip rate'} is {clipped:.0%} in the median: nearly every step is clipped"
            )
        else:
            return
        advice = (
            ""
            if flat or not norms
            else f" to about {norms[len(norms) * 95 // 100]:.2g}, the 95th percentile of those logged"
        )
        yield self.finding(
            event,
            seen,
            severity="hint",
            cause="clipping is meant for outliers; here it sets the length of every step, and the rate is in effect smaller",
            fix=f"log the norm that clip_grad_norm_ returns, and raise max_norm{advice or ' to the 95th percentile of it'}",
            key="logged",
            clip_rate=None if flat else clipped,
        )

    def _stuck(self, event: OptimizerStepped, clips: list[ClipFacts]) -> bool:
        key, ratios = event.optimizer.key, [_ratio(clip) for clip in clips]
        updates = self._updates.get(key)
        if min(ratios) <= 1 or self._steps[key] < self.steps_needed or (updates or 0.0) >= self.small_update:
            return False
        if max(clip.threshold for clip in clips) <= self.tiny_threshold and min(ratios) >= self.tiny_ratio:
            return updates is not None or not event.optimizer.adaptive
        late = self._steps[key] >= self.ratio_steps and event.index >= self.ratio_index
        return late and updates is not None and median(ratios) >= self.ratio

    def _short(self, event: NumbersSampled, clips: list[ClipFacts]) -> bool:
        """Plain SGD whose steps all have the length of the threshold, which is tiny or leaves tiny steps; the loss hardly falls."""
        if len(clips) < self.short_steps or event.index < self.short_index or event.optimizer.adaptive:
            return False
        ratios = [_ratio(clip) for clip in clips]
        slight = self._updates.get(event.optimizer.key, 1.0) < self.held_back
        tiny = slight or max(clip.threshold for clip in clips) <= self.tiny_threshold
        newest = self._losses.get(event.optimizer.key, [])[-self.steps_needed :]
        slow = len(newest) == self.steps_needed and median(newest) > 1 - self.fallen
        return tiny and slow and min(ratios) > 1 and median(ratios) >= self.short_ratio

    def _all_along(self, event: NumbersSampled, clips: list[ClipFacts]) -> bool:
        course = self._courses.get(event.optimizer.key, Course())
        if len(clips) < self.whole_steps or course.steps < self.whole_index or event.optimizer.adaptive:
            return False
        lasting = 1 - max((each.momentum for each in event.layers), default=0.0)
        if max(clip.threshold for clip in clips) <= self.tiny_threshold and self._gains_speed(course):
            lasting = 1.0
        ratios = [_ratio(clip) * lasting for clip in clips]
        return min(ratios) > 1 and median(ratios) >= self.whole_ratio and self._stays_high(course)

    def _stays_high(self, course: Course) -> bool:
        first, middle, last = course.stretches[0].loss, course.level(0.45, 0.55), course.level(0.9, 1.0)
        return last > (1 - self.whole_fallen) * first > 0 and middle - last >= self.still_falls * (first - last)

    def _gains_speed(self, course: Course) -> bool:
        """The loss falls as fast in the second half of the run as in the first, or faster: it has far to go."""
        first, middle, last = (course.level(*part) for part in ((0.0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0)))
        return 0 < first - middle <= middle - last

    def _tell(self, event: OptimizerStepped | NumbersSampled, clips: list[ClipFacts]) -> Finding:
        norms = sorted(clip.norm for clip in clips if clip.norm is not None)
        threshold, typical = clips[-1].threshold, median(norms)
        advice = norms[min(len(norms) - 1, int(0.95 * len(norms)))]
        return self.finding(
            event,
            f"all {len(clips)} gradient norms seen were clipped to {threshold:.4g}: they are {norms[0]:.3g} to "
            f"{norms[-1]:.3g}, median {typical / threshold:.3g} × the threshold",
            cause=f"every step is shrunk to the threshold, as if lr were {typical / threshold:.3g} × smaller",
            fix=f"raise max_norm from {threshold:.4g} to about {advice:.2g}, the 95th percentile of the norms seen",
            where=clips[-1].where,
            threshold=threshold,
            median_norm=typical,
            clip_rate=1.0,
            suggested=advice,
        )


def _known(clips: tuple[ClipFacts, ...]) -> list[ClipFacts]:
    """Clips by norm, of gradients as they are."""
    clips = tuple(clip for clip in clips if clip.kind == "norm" and not clip.scaled and clip.threshold > 0)
    return [clip for clip in clips if clip.norm is not None and math.isfinite(clip.norm)]


def _ratio(clip: ClipFacts) -> float:
    return (clip.norm or 0.0) / clip.threshold
