"""What the model really sees: the batches of the first steps, in numbers, words and pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from flatline.preflight.hearing import Call, Loss
from flatline.preflight.padded import padding_tail
from flatline.preflight.pictures import png
from flatline.preflight.trials import input_kind, names
from flatline.sensors.pairing import ENOUGH_MEASURED, ENOUGH_ROWS, Probe

Line = tuple[str, str]
KEPT = 4_000_000  # numbers of each input, at most
FEW = 4  # channels or columns that are told one by one
INPUTS = 12  # likewise
PICTURES = 8
IGNORED = -100
CLEAR = 3.0  # standard errors above guessing: the labels are related to the inputs
FORETOLD = 0.15  # correlation with measured targets


class Data:
    """Kept from the calls of a training loop: copies of the inputs, within bounds, and the targets."""

    def __init__(self) -> None:
        self.inputs: dict[str, list[Tensor]] = {}
        self.targets: list[Tensor] = []
        self.labels: list[Tensor] = []  # class indices, one for each sample
        self.probe, self.measured = Probe(), Probe()

    def add(self, calls: list[Call], losses: list[Loss]) -> None:
        """Those of one step."""
        call = next((c for c in calls if c.of_data), None)
        if call is None:
            return
        inputs = call.inputs
        given = losses[-1].target if losses else None
        for name, tensor in zip(names(call), inputs, strict=True):
            kept = self.inputs.setdefault(name, [])
            if sum(t.numel() for t in kept) + tensor.numel() <= KEPT and (not kept or kept[0].dim() == tensor.dim()):
                kept.append(tensor.detach().cpu().clone())
        if given is None or not inputs:
            return
        self.targets.append(given.detach().cpu().clone())
        if given.dim() and given.shape[0] == inputs[0].shape[0]:
            self._pair(inputs[0], given)

    def _pair(self, inputs: Tensor, targets: Tensor) -> None:
        """For the small probe: are labels related to inputs?"""
        if targets.is_floating_point():
            if not self.measured.foreign(inputs):
                self.measured.add(inputs, targets.detach().float().reshape(len(targets), -1))
        elif targets.dim() == 1:
            self.labels.append(targets.detach().cpu())
            if not self.probe.foreign(inputs):
                self.probe.add(inputs, targets)

    def lines(self) -> list[Line]:
        """For people."""
        return [line for part in self.parts() for line in part()]

    def parts(self) -> list[Callable[[], list[Line]]]:
        """What makes them, each by itself: a few inputs, and what is told of all."""
        if not self.inputs:
            return []
        told = [partial(self._input, name) for name in list(self.inputs)[:INPUTS]]
        return [*told, self._more, self._repeated, self._ignored, self._related]

    def _input(self, name: str) -> list[Line]:
        return [(f"input {name}" if not name.startswith("input") else name, _described(self.inputs[name]))]

    def _more(self) -> list[Line]:
        names = list(self.inputs)[INPUTS:]
        return (
            [("more inputs", f"{len(names)} not shown: {', '.join(names[:FEW])}{', …' * (len(names) > FEW)}")]
            if names
            else []
        )

    def _repeated(self) -> list[Line]:
        equal = _equal_rows(next(iter(self.inputs.values())))
        return [("repeated", equal)] if equal else []

    def _ignored(self) -> list[Line]:
        every = [target.flatten() for target in self.targets if not target.is_floating_point()]
        share = float((torch.cat(every) == IGNORED).float().mean()) if every else 0.0
        return [("labels", f"{share:.1%} of them are {IGNORED}, which no loss is taken of")] if share else []

    def _related(self) -> list[Line]:
        related = self._relation()
        return [("relation", related)] if related else []

    def _relation(self) -> str:
        if self.probe.rows >= ENOUGH_ROWS and len(torch.cat(self.labels).unique()) > 1:  # type: ignore[no-untyped-call]
            linear, near, common = self.probe.accuracy()
            best = max(linear, near)
            clear = best - common > CLEAR * math.sqrt(common * (1 - common) / self.probe.rows)
            said = f"a small probe on {self.probe.rows} samples is right on {best:.0%}, the commonest class on {common:.0%}"
            return said if clear else f"{said}: between inputs and labels it finds none"
        if self.measured.rows >= ENOUGH_MEASURED:
            best = max(self.measured.correlations())
            said = (
                f"a small probe on {self.measured.rows} samples foretells the targets with a correlation of {best:.2f}"
            )
            return said if best > FORETOLD else f"{said}: it finds none between inputs and targets"
        return ""

    def pictures(self) -> list[dict[str, str]]:
        """Of the first images, as they reach the model: the lowest number black, the highest white."""
        for kept in self.inputs.values():
            if input_kind(kept[0]) == "image" and kept[0].dim() == 4 and kept[0].shape[1] in (1, 3):
                labels = self.labels[0].tolist() if self.labels else []
                said = [str(label) for label in labels] + [""] * PICTURES
                return [{"image": png(one), "label": said[at]} for at, one in enumerate(kept[0][:PICTURES])]
        return []

    def first_tokens(self) -> Tensor | None:
        """The first sequence of tokens."""
        return next((kept[0][0] for kept in self.inputs.values() if input_kind(kept[0]) == "tokens"), None)

    def first_labels(self) -> Tensor | None:
        """The labels of that sequence, without those that are ignored."""
        tokens = self.first_tokens()
        if tokens is None or not self.targets or self.targets[0].is_floating_point():
            return None
        target = self.targets[0].flatten()[: len(tokens)] if self.targets[0].numel() > len(tokens) else None
        return target[target != IGNORED] if target is not None else None


# --------------------------------------------------------------------------- in words


def _described(kept: list[Tensor]) -> str:
    """Shape, type, range, and what is particular to its kind."""
    first = kept[0]
    words = f"{' × '.join(map(str, first.shape))} {str(first.dtype).removeprefix('torch.')}"
    every = torch.cat([tensor.flatten() for tensor in kept])
    if not every.numel():
        return f"{words}, empty"
    if every.dtype == torch.bool or every.is_complex():
        return words
    words += f", {float(every.min()):.4g} to {float(every.max()):.4g}"
    if not every.is_floating_point():
        tokens = all(input_kind(tensor) == "tokens" and tensor.shape[1] > 1 for tensor in kept)
        return f"{words}, {_tokens(every)}{_padding(kept) if tokens else ''}"
    bad = int((~every.isfinite()).sum())
    words += f", {bad:,} not finite" if bad else ""
    return f"{words}; {_columns(kept)}"


def _tokens(every: Tensor) -> str:
    values, counts = every.unique(return_counts=True)  # type: ignore[no-untyped-call]
    most = int(counts.argmax())
    return f"{len(values):,} different, {int(values[most])} in {float(counts[most]) / every.numel():.0%} of the places"


def _padding(kept: list[Tensor]) -> str:
    """The share of places at the end of rows that one token fills up."""
    tails = [padding_tail(tokens, set()) for tokens in kept]
    if any(tail is None for tail in tails) or sum(t.numel() for t in kept) == 0:
        return ""
    share = sum(int(tail.sum()) for tail in tails if tail is not None) / sum(t.numel() for t in kept)
    return f", {share:.0%} of them padding at the end of rows"


def _columns(kept: list[Tensor]) -> str:
    """Mean and standard deviation of every channel; of many columns, those that are constant and how far the rest is apart."""
    wide = kept[0].dim() > 1
    place = 1 if input_kind(kept[0]) == "image" else -1
    rows = [t.float().movedim(place, -1).reshape(-1, t.shape[place] if wide else 1) for t in kept]
    if len({part.shape[1] for part in rows}) > 1:
        return "of several sizes"
    columns = torch.cat(rows)
    mean, deviation = columns.mean(0), columns.std(0)
    told = "channel" if place == 1 else "column"
    if len(mean) <= FEW:
        each = ", ".join(f"{m:.3g} ± {d:.3g}" for m, d in zip(mean.tolist(), deviation.tolist(), strict=True))
        return f"mean ± deviation of each {told}: {each}"
    constant = int((deviation == 0).sum())
    spread = deviation[deviation > 0]
    words = f"means {float(mean.min()):.3g} to {float(mean.max()):.3g}"
    words += f", deviations {float(spread.min()):.3g} to {float(spread.max()):.3g}" if len(spread) else ""
    return words + (f"; {constant} of {len(mean)} {told}s constant" if constant else "")


def _equal_rows(kept: list[Tensor]) -> str:
    """Samples that stand several times in one batch."""
    whole = [tensor.reshape(len(tensor), -1) for tensor in kept if tensor.dtype != torch.bfloat16 and tensor.dim() > 1]
    total = sum(map(len, whole))
    same = total - sum(len({row.numpy().tobytes() for row in rows}) for rows in whole)
    return f"{same:,} of {total:,} samples stand a second time in their batch" if same else ""
