"""What is kept of the events of a run."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flatline.events import (
    ActivationsSampled,
    AttentionSampled,
    BatchStoodOut,
    CheckpointLoaded,
    ClipFacts,
    Event,
    GradientNotFinite,
    HistogramsTaken,
    LossesRead,
    LossNotFinite,
    NumbersSampled,
    OptimizerCreated,
    OptimizerFacts,
    ParameterFacts,
    ParametersAudited,
    PassEnded,
    ScalarsLogged,
    ScalerObserved,
    ScheduleObserved,
    ScriptCrashed,
    ValidationObserved,
    Where,
)
from flatline.findings import Finding, Report
from flatline.record.event_file import EventFile
from flatline.record.facts import now
from flatline.record.labels import labelled, labels_of
from flatline.record.place import Place
from flatline.record.writing import LIMIT, Writer

MOST_PARAMETERS = 20_000


class Recorder:
    """Takes events, and writes about once a second, when ``tick`` is called."""

    def __init__(
        self,
        place: Place,
        *,
        on_note: Callable[[str], None],
        limit: int = LIMIT,
        rank: Callable[[], int | None] = lambda: None,
        tensorboard: str = "",
    ) -> None:
        self.place = place
        self.events = EventFile(lambda: self._beside(tensorboard), on_note=on_note) if tensorboard else None
        self._tags: dict[str, str] = {}
        self.writer = Writer(lambda: place.file(rank()), limit=limit, on_note=on_note)
        self.started = time.monotonic()
        self._handlers: dict[type[Event], Callable[..., None]] = {
            LossesRead: self._losses,
            ScalarsLogged: self._logged,
            NumbersSampled: self._numbers,
            ActivationsSampled: self._activations,
            AttentionSampled: self._attention,
            HistogramsTaken: self._histograms,
            ParametersAudited: self._parameters,
            ScalerObserved: self._scale,
            OptimizerCreated: self._built,
            ScheduleObserved: self._scheduled,
            CheckpointLoaded: self._loaded,
            PassEnded: self._passed,
            ValidationObserved: self._validated,
            ScriptCrashed: self._crashed,
            LossNotFinite: self._bad_loss,
            GradientNotFinite: self._bad_gradient,
            BatchStoodOut: self._outlier,
        }
        self._optimizers: dict[int, tuple[str, str]] = {}  # key -> its class, the one model that it trains
        self._facts_of: dict[int, OptimizerFacts] = {}
        self._told: dict[tuple[str, str], int] = {}
        self._skipped = 0

    def wants(self, event: type[Event]) -> bool:
        """Whether anything is kept of this event."""
        return event in self._handlers

    def take(self, event: Event) -> None:
        """Keep what there is to keep."""
        if (handler := self._handlers.get(type(event))) is not None:
            handler(event)

    @property
    def due(self) -> float:
        """The time at which to write next."""
        return self.writer.due if self.writer.alive else math.inf

    def forked(self) -> None:
        """In a child after a fork."""
        self.writer.forked()
        if self.events is not None:
            self.events.forked()

    # ------------------------------------------------------------------ scalars

    def _scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.writer.scalars(step, values)
        if self.events is not None:
            self.events.scalars(step, {self._tags.get(name) or self._tag(name): v for name, v in values.items()})

    def _tag(self, name: str) -> str:
        """A name is kept, even if another optimizer comes later."""
        optimizers = {str(key): pair for key, pair in sorted(self._optimizers.items())}
        return self._tags.setdefault(name, labelled(name, labels_of(optimizers)))

    def _beside(self, shelf: str) -> Path | None:
        """A folder that is named after the record, once there is one."""
        file = self.writer.file
        if file is None:
            return None
        return Path(shelf) / (file.parent.name + file.stem.removeprefix("record"))

    def _losses(self, event: LossesRead) -> None:
        self._know(event.optimizer)
        key = event.optimizer.key
        names = f"loss/#{key}", f"lr/#{key}"
        if self.events is None:
            self.writer.rows("scalars", names, event.steps, (event.losses, event.rates))
            return
        for step, *values in zip(event.steps, event.losses, event.rates, strict=True):
            self._scalars(step, dict(zip(names, values, strict=True)))

    def _know(self, optimizer: OptimizerFacts) -> None:
        self._facts_of[optimizer.key] = optimizer
        known = self._optimizers.get(optimizer.key)
        if known is None:
            self._optimizers[optimizer.key] = optimizer.name, ""
            self._tell_optimizers()

    def _tell_optimizers(self) -> None:
        self.writer.fact("optimizers", {str(key): list(pair) for key, pair in sorted(self._optimizers.items())})

    def _logged(self, event: ScalarsLogged) -> None:
        self._scalars(event.step, {f"logged/{name}": value for name, value in event.values})

    def _numbers(self, event: NumbersSampled) -> None:
        self._know(event.optimizer)
        key = event.optimizer.key
        norm = math.sqrt(sum(layer.gradient_rms**2 * layer.elements for layer in event.layers))
        scalars = {f"gradient_norm/#{key}": norm}
        clip = next((clip for clip in reversed(event.clips) if clip.kind == "norm" and not clip.scaled), None)
        if clip is not None and clip.norm is not None:
            scalars |= _clipped(clip, norm, key)
        self._scalars(event.step, scalars)
        self._layers("weight_rms", event.step, [(layer.name, layer.weight_rms) for layer in event.layers])
        self._layers("gradient_rms", event.step, [(layer.name, layer.gradient_rms) for layer in event.layers])
        ratios = [
            (layer.name, math.nan if layer.update_ratio is None else layer.update_ratio) for layer in event.layers
        ]
        self._layers("update_ratio", event.step, ratios)

    def _layers(self, quantity: str, step: int, pairs: Sequence[tuple[str, float]]) -> None:
        """A layer that ran twice has two columns."""
        values: dict[str, float] = {}
        for name, value in pairs:
            times = 2
            while name in values:
                name, times = f"{name.partition(' (')[0]} ({times})", times + 1  # noqa: PLW2901
            values[name] = value
        if values:
            self.writer.row(quantity, tuple(values), step, tuple(values.values()))

    def _activations(self, event: ActivationsSampled) -> None:
        layers = event.layers
        self._layers("activation_mean", event.step, [(layer.layer, layer.mean) for layer in layers])
        self._layers("activation_std", event.step, [(layer.layer, layer.std) for layer in layers])
        self._layers("zeros", event.step, [(layer.layer, layer.zeros) for layer in layers])
        ended = [(layer.layer, layer.saturated) for layer in layers if layer.kind in ("Sigmoid", "Tanh")]
        self._layers("saturated", event.step, ended)

    def _attention(self, event: AttentionSampled) -> None:
        known = [(each.layer, sum(each.heads) / len(each.heads)) for each in event.layers if each.heads]
        self._layers("attention_entropy", event.step, known)

    def _histograms(self, event: HistogramsTaken) -> None:
        for each in event.histograms:
            self.writer.histogram(f"{event.what}/{each.name}", event.step, each.low, each.high, each.counts)

    def _scale(self, event: ScalerObserved) -> None:
        self._scalars(event.step, {"loss_scale": event.scale})
        if event.skipped > self._skipped:
            self._skipped = event.skipped
            self._happened(event, "scaler skipped", f"a step was skipped; the loss scale is {event.scale:g} now")

    # ------------------------------------------------------------------ parameters

    def _parameters(self, event: ParametersAudited) -> None:
        for optimizer in event.optimizers:
            self._know(optimizer)
        self._name_by_model(event.parameters)
        table = [self._row(facts) for facts in event.parameters[:MOST_PARAMETERS]]
        self.writer.fact("parameters", table)

    def _name_by_model(self, parameters: Sequence[ParameterFacts]) -> None:
        """An optimizer whose parameters all belong to one model can be named after it."""
        models: dict[int, set[str]] = {}
        for facts in parameters:
            for key in facts.optimizers:
                models.setdefault(key, set()).add(facts.model if facts.registered else "")
        for key, (name, _) in self._optimizers.items():
            found = models.get(key, set())
            self._optimizers[key] = name, next(iter(found)) if len(found) == 1 else ""
        self._tell_optimizers()

    def _row(self, facts: ParameterFacts) -> dict[str, object]:
        held = [self._facts_of[key] for key in facts.optimizers if key in self._facts_of]
        groups = held[0].groups if held else ()
        return {
            "name": facts.name,
            "shape": list(facts.shape),
            "elements": facts.numel,
            "dtype": facts.dtype,
            "trainable": facts.trainable,
            "model": facts.model,
            "optimizer": held[0].name if held else "",
            "learning_rate": groups[0].lr if len(groups) == 1 else None,
            "weight_decay": facts.weight_decay if held else None,
        }

    # ------------------------------------------------------------------ happenings

    def _happened(self, event: Event, kind: str, text: str, where: Where | None = None) -> None:
        place = where or event.where
        told: list[object] | None = [place.file, place.line, place.function] if place is not None else None
        self.writer.happening(event.step, round(time.monotonic() - self.started, 3), kind, text, told)

    def _once(self, event: Event, kind: str, text: str) -> None:
        """The same again is told when the run is a twentieth further."""
        last = self._told.get((kind, text), -1)
        if last < 0 or event.step > last * 1.05:
            self._told[kind, text] = event.step
            self._happened(event, kind, text)

    def _built(self, event: OptimizerCreated) -> None:
        self._know(event.optimizer)
        rates = " and ".join(dict.fromkeys(f"{group.lr:g}" for group in event.optimizer.groups))
        self._happened(
            event, "optimizer built", f"{event.optimizer.name}, lr {rates}" if rates else event.optimizer.name
        )

    def _scheduled(self, event: ScheduleObserved) -> None:
        if (event.name, str(event.optimizer)) not in self._told:
            self._told[event.name, str(event.optimizer)] = event.step
            self._happened(event, "schedule", event.name)

    def _loaded(self, event: CheckpointLoaded) -> None:
        bad = f", {len(event.missing)} missing" if event.missing else ""
        self._happened(event, "checkpoint loaded", f"{event.model}, {event.tensors} tensors{bad}")

    def _passed(self, event: PassEnded) -> None:
        self._once(event, "epoch ended", f"{event.batches} batches")

    def _validated(self, event: ValidationObserved) -> None:
        self._once(event, "validation", event.model)

    def _crashed(self, event: ScriptCrashed) -> None:
        first = (event.message.splitlines() or [""])[0]
        self._happened(event, "crash", f"{event.error}: {first}"[:300])

    def _bad_loss(self, event: LossNotFinite) -> None:
        self._happened(event, "loss not finite", f"the loss is {event.value}")

    def _bad_gradient(self, event: GradientNotFinite) -> None:
        self._happened(event, "gradient not finite", f"{event.kind} in {event.bad} of {event.total} gradients")

    def _outlier(self, event: BatchStoodOut) -> None:
        self._happened(event, "batch stood out", f"largest of its {event.what}: {event.largest:.3g}")

    # ------------------------------------------------------------------ findings and the end

    def begin(self, facts: Mapping[str, object]) -> None:
        """What is known before the first step."""
        for name, value in {**facts, "started": now(), "process": os.getpid()}.items():
            self.writer.fact(name, value)

    def found(self, finding: Finding) -> None:
        """Kept the moment it is told, so that a run that is killed has it still."""
        self.writer.finding(finding.code, finding.key, dataclasses.asdict(finding))

    def loss_is(self, unproven: str) -> None:
        """Why the loss under backward is no curve that ought to fall, or nothing."""
        self.writer.fact("loss_unproven", unproven)

    def tick(self, steps: int) -> None:
        """Write what waits."""
        self.writer.fact("steps", steps)
        self.writer.fact("seconds", round(time.monotonic() - self.started, 3))
        self.writer.flush()
        if self.events is not None:
            self.events.flush()

    def finish(self, report: Report) -> None:
        """The end of the run, as reported."""
        self.writer.forget_findings()
        for finding in report.findings:
            self.found(finding)
        facts: dict[str, object] = {**report.run, "ended": now()}
        facts |= {"checked": list(report.checked), "notes": list(report.notes)}
        facts["not_checked"] = [[rule.code, rule.reason] for rule in report.not_checked]
        for name, value in facts.items():
            self.writer.fact(name, value)
        if not report.run.get("steps") and self.writer.file is None:
            self.writer.alive = False  # it never trained
        self.writer.close()
        if self.events is not None:
            self.events.flush()

    @property
    def folder(self) -> Path | None:
        """Where the record is, if anything was recorded, and nobody has removed it."""
        file = self.writer.file
        return file.parent if file is not None and file.is_file() else None


def _clipped(clip: ClipFacts, norm: float, key: int) -> dict[str, float]:
    """The norm before clipping is the gradient's own; what the optimizer saw is the clipped one."""
    assert clip.norm is not None
    return {
        f"gradient_norm/#{key}": clip.norm,
        f"clipped_norm/#{key}": norm,
        f"clip_threshold/#{key}": clip.threshold,
    }
