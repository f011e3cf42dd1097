"""The first steps as they are: every live rule, and what the model is made of, fed with and asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from flatline.events import (
    Event,
    ForwardObserved,
    InputFacts,
    OptimizerFacts,
    ParameterFacts,
    ParametersAudited,
    TargetsObserved,
)
from flatline.preflight.data import Data, Line
from flatline.preflight.hearing import Call, Hearing
from flatline.preflight.scales import Scales
from flatline.preflight.stages import Answer, Stage
from flatline.preflight.texts import Decoder, decoded, decoder
from flatline.preflight.trials import input_kind

CLASSES = 10  # of a histogram, in words
TOWERS = 8  # parts of a model told one by one, at most
TEXT = 80  # characters of a decoded row


class Looking(Stage):
    """Watches, and changes nothing."""

    name: ClassVar[str] = "look"
    steps: ClassVar[int] = 60  # rules on labels and rates want to see some

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.audit: ParametersAudited | None = None
        self.forward: ForwardObserved | None = None
        self.scales = Scales()
        self.targets: list[TargetsObserved] = []
        self.data = Data()
        self.hearing = Hearing()
        self._decode: Decoder | None = None

    def attach(self) -> None:
        """Hear what the loop feeds its models with."""
        super().attach()
        self.hearing.called, self.hearing.broken = self.guarded(self._called), self.failed
        self.hearing.attach()

    def _called(self, call: Call) -> None:
        if self.steps_done == 0 and self._decode is None:
            tokens = next((t[0] for t in call.inputs if input_kind(t) == "tokens"), None)
            self._decode = decoder(tokens.tolist()) if tokens is not None else None

    def after_step(self, optimizer: Any) -> None:
        """What the step was fed with is kept."""
        self.data.add(*self.hearing.step())

    def heard(self, event: Event) -> None:
        """Keep what is told at the end."""
        super().heard(event)
        self.scales.heard(event)
        if isinstance(event, ParametersAudited):
            self.audit = event
        elif isinstance(event, ForwardObserved):
            self.forward = self.forward or event
        elif isinstance(event, TargetsObserved):
            self.targets.append(event)

    def answer(self) -> Answer:
        """Findings, and tables."""
        report = self.session.report()
        losses = self.losses()
        found = [dataclasses.asdict(finding) for finding in report.findings]
        bad = sum(finding.severity != "hint" for finding in report.findings)
        why = f"{bad} finding{'s' if bad != 1 else ''}" if bad else f"{len(report.checked)} rules checked"
        return {
            "verdict": "failed" if bad else "passed" if self.steps_done else "not done",
            "why": why if self.steps_done or bad else "the script took no optimizer step",
            "findings": found,
            "checked": report.checked,
            "not_checked": [[each.code, each.reason] for each in report.not_checked],
            "run": report.run,
            "losses": losses,
            "lines": self._lines(losses),
            "pictures": self.guarded(self.data.pictures, list)(),
            "parameters": _rows(self.audit) if self.audit is not None else [],
        }

    def failed(self, what: str, error: Exception) -> None:
        """What the rules found stands without it."""
        self.notes.append(f"{what} is not shown: {type(error).__name__}: {error}")

    def _lines(self, losses: list[float]) -> list[Line]:
        """Each by itself: one that cannot be made leaves the others."""
        parts: list[Callable[[], list[Line]]] = [self._model, *(self.data.parts() or [self._inputs]), self._labels]
        parts += [self._text, partial(self._start, losses), self._scales]
        return [line for part in parts for line in self.guarded(part, list)()]

    def _scales(self) -> list[Line]:
        return list(self.scales.lines())

    def _model(self) -> list[tuple[str, str]]:
        if self.audit is None:
            return []
        every = self.audit.parameters
        total, trained = sum(p.numel for p in every), sum(p.numel for p in every if p.trainable)
        by_key: dict[int, list[ParameterFacts]] = {}
        for parameter in every:
            for key in parameter.optimizers:
                by_key.setdefault(key, []).append(parameter)
        outside = [p for p in every if p.trainable and not p.optimizers]
        share = f"{trained / total:.0%} trainable" if total else "nothing trainable"
        lines = [("model", f"{total:,} weights in {len(every)} tensors, {share}")]
        lines += [("parts", parts)] if (parts := _towers(every)) else []
        lines += [("optimizer", _held(each, by_key.get(each.key, []))) for each in self.audit.optimizers]
        if outside:
            names = ", ".join(p.name for p in outside[:3]) + (" …" if len(outside) > 3 else "")
            lines.append(("no optimizer", f"{len(outside)} trainable tensors: {names}"))
        return lines

    def _inputs(self) -> list[tuple[str, str]]:
        if self.forward is None:
            return []
        inputs, layer = self.forward.inputs, self.forward.first_layer
        words = _shape(inputs)
        if layer is not None:
            words += f", {layer.low:.3g} to {layer.high:.3g}, root mean square {layer.rms:.3g}"
        return [("inputs", words)]

    def _labels(self) -> list[tuple[str, str]]:
        if not self.targets:
            return []
        counts: dict[int, int] = {}
        for event in self.targets:
            for label, count in event.labels.histogram:
                counts[label] = counts.get(label, 0) + count
        classes, total = self.targets[0].classes, sum(counts.values())
        if not total:
            return []
        common = sorted(counts.items(), key=lambda pair: -pair[1])[:CLASSES]
        shares = ", ".join(f"{label}: {count / total:.0%}" for label, count in sorted(common))
        more = ", …" if len(counts) > CLASSES else ""
        return [("labels", f"{len(counts)} of {classes} classes seen in {total:,} targets ({shares}{more})")]

    def _text(self) -> list[tuple[str, str]]:
        """One row, decoded: what the model reads, and what it has to say."""
        tokens, labels = self.data.first_tokens(), self.data.first_labels()
        if self._decode is None or tokens is None:
            return []
        lines = [("text", repr(decoded(self._decode, tokens.tolist())[:TEXT]))]
        if labels is not None and (said := decoded(self._decode, labels.tolist())):
            lines.append(("its labels", repr(said[:TEXT])))
        return lines

    def _start(self, losses: list[float]) -> list[tuple[str, str]]:
        lines = []
        if self.scales.first is not None:
            chance = math.log(self.scales.first.classes)
            lines.append(
                (
                    "first loss",
                    f"{self.scales.first.value:.3f}; guessing among {self.scales.first.classes} classes costs {chance:.3f}",
                )
            )
        elif losses:
            lines.append(("first loss", f"{losses[0]:.4g}"))
        return lines


def _held(optimizer: OptimizerFacts, held: list[ParameterFacts]) -> str:
    """Groups with one rate and decay as one."""
    groups: dict[tuple[float, float], int] = {}
    for group in optimizer.groups:
        groups[group.lr, group.weight_decay] = groups.get((group.lr, group.weight_decay), 0) + group.tensors
    words = "; ".join(f"{count} tensors at lr={lr:g}, decay {decay:g}" for (lr, decay), count in groups.items())
    frozen = sum(not p.trainable for p in held)
    return f"{optimizer.name}: {words}" + (f"; {frozen} of them frozen" if frozen else "")


def _rows(audit: ParametersAudited) -> list[dict[str, Any]]:
    names = {each.key: each.name for each in audit.optimizers}
    return [
        {
            "name": parameter.name,
            "shape": parameter.shape,
            "dtype": parameter.dtype,
            "trainable": parameter.trainable,
            "optimizers": [names.get(key, "") for key in parameter.optimizers],
            "learning_rate": parameter.learning_rate,
            "weight_decay": parameter.weight_decay,
            "reached": parameter.reached,
            "moved": parameter.moved,
        }
        for parameter in audit.parameters
    ]


def _towers(parameters: tuple[ParameterFacts, ...]) -> str:
    """The weights of each part of the model, and how much of it trains."""
    parts: dict[str, list[ParameterFacts]] = {}
    for parameter in parameters:
        parts.setdefault(parameter.name.split(".")[0], []).append(parameter)
    if not 1 < len(parts) <= TOWERS or all(name.isdecimal() for name in parts):
        return ""
    shares = {
        name: sum(p.numel for p in held if p.trainable) / sum(p.numel for p in held) for name, held in parts.items()
    }
    return ", ".join(
        f"{name} {sum(p.numel for p in held):,}" + ("" if shares[name] == 1 else f" ({shares[name]:.0%} trainable)")
        for name, held in parts.items()
    )


def _shape(inputs: InputFacts) -> str:
    return f"{' × '.join(map(str, inputs.shape)) or 'a scalar'} {inputs.dtype}"
