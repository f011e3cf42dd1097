"""Padding: what fills rows up to one length, in the inputs and in the targets that stand at the same places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from flatline.sensors.models import Batch

Tensor = torch.Tensor
PADDING_RUN = 2  # equal tokens at the end of a row that count as padding
MANY_PADDED = 12  # positions with one label, which is no accident
PADDING_AHEAD = 0.01  # of what stands before the padding may be the same token
LENGTHS = 3  # different ones of rows of numbers: two may be two kinds of rows
SHORTEST = 4  # positions of rows that are looked at
MOST_NUMBERS = 4_000_000  # of one input
NOTHING = Batch()


def trailing(tokens: Tensor) -> tuple[Tensor, int | None]:
    """Mask of the run of one token that fills up the rows' ends, and that token; it differs in length by row.

    A token that stands ahead of those runs, too, means something; rows that are sorted end so for that reason.
    """
    pad = int(tokens[:, -1].mode().values)
    run, alone = _runs(torch.eq(tokens, tokens.new_tensor(pad)))
    return run, (pad if alone and not sorted_rows(tokens) else None)


def _runs(same: Tensor) -> tuple[Tensor, bool]:
    """Where rows end with nothing but what is ``same``; whether these runs differ in length, and hold nearly all of it."""
    run = same.flip(1).int().cumprod(1).flip(1).bool()
    lengths, ahead, others = run.sum(1), same.sum() - run.sum(), (~same).sum()
    ragged = bool(lengths.max() >= PADDING_RUN and lengths.min() < lengths.max() and (lengths < same.shape[1]).any())
    return run, ragged and bool(ahead <= PADDING_AHEAD * (ahead + others))


def sorted_rows(tokens: Tensor) -> bool:
    """All of them rise, or all fall, and not only from one value to another, as masks do."""
    steps = (tokens if tokens.is_floating_point() else tokens.long()).diff(dim=1)
    several = int((steps != 0).sum(1).max()) > 1
    return several and (bool((steps >= 0).all()) or bool((steps <= 0).all()))


def padded_labels(target: Tensor, ignore: int, weight: Any, inputs: list[Tensor]) -> tuple[float, int | None]:
    """Share of scored targets that stand where both inputs and targets are padding, and the padding's id."""
    tokens = next((each for each in inputs if _goes_with(each, target)), None)
    share, pad = _padded_tokens(target, tokens) if tokens is not None else (0.0, None)
    if pad is None:  # steps ahead of rows, or inputs that are no tokens
        share, value = padded_numbers(target, None, inputs)
        pad = int(value) if value is not None else None
    left_out = isinstance(weight, Tensor) and pad is not None and float(weight[pad]) == 0.0
    return (0.0, None) if pad is None or pad == ignore or left_out else (share, pad)


def _padded_tokens(target: Tensor, tokens: Tensor) -> tuple[float, int | None]:
    rows = target.reshape(tokens.shape[0], -1)
    padded, pad = trailing(tokens)
    width = min(rows.shape[1], tokens.shape[1])
    labelled, pad_label = trailing(rows)
    both = padded[:, -width:] & labelled[:, -width:]
    if pad is not None and pad_label is None:  # a class that other positions have, too
        both, pad_label = padded[:, -width:], _label_of(rows[:, -width:][padded[:, -width:]])
    return (float(both.float().mean()), pad_label) if pad is not None and pad_label is not None else (0.0, None)


def _goes_with(tokens: Tensor, target: Tensor) -> bool:
    """A label for each token, or for all but one."""
    whole = tokens.dim() == 2 and tokens.dtype in (torch.int64, torch.int32) and tokens.device == target.device
    if not whole or tokens.shape[0] < 2 or tokens.shape[1] < SHORTEST or target.numel() % tokens.shape[0]:
        return False
    width = target.numel() // tokens.shape[0]
    return abs(width - tokens.shape[1]) <= 1 and width >= 2


def _label_of(padded: Tensor) -> int | None:
    """The one label that all padded positions have."""
    first = padded[0] if padded.numel() >= MANY_PADDED else None
    return int(first) if first is not None and bool((padded == first).all()) else None


def padded_numbers(
    target: Tensor, scores: Any, inputs: list[Tensor], batch: Batch = NOTHING
) -> tuple[float, float | None]:
    """Share of targets at steps that only fill a row up, in inputs and targets alike; what the targets are there.

    Each side ends with one and the same vector, which it has nowhere else, and in each row both runs are of one length.
    Or the batch holds these lengths.
    """
    for steps, truth, wrong in _side_by_side(target, scores, inputs):
        (padded, fill), (filled, value) = filled_up(steps), filled_up(truth)
        if fill is None or value is None:
            continue
        lengths, both = padded.sum(1), padded & filled
        alike = int((lengths - filled.sum(1)).abs().max()) <= 1 and len(torch.unique(lengths)) >= LENGTHS
        if alike and bool((wrong & both).any()):
            return float(both.float().mean()), float(value.reshape(-1)[0])
    return _padded_by_lengths(target, scores, inputs, batch)


def _side_by_side(target: Tensor, scores: Any, inputs: list[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """[rows, steps, features] of inputs and of targets, and where scores are wrong; tokens have one feature.

    An input is not its own target. Where a mask has set scores and targets to one number, nothing is learned.
    """
    known = isinstance(scores, Tensor) and scores.shape == target.shape
    wrong = scores.detach() != target if known else torch.ones_like(target, dtype=torch.bool)
    for each in inputs:
        steps = (
            each.unsqueeze(-1) if each.dim() == 2 and (not each.is_floating_point() or _series(each, target)) else each
        )
        if steps.dim() != 3 or steps.device != target.device or steps.is_complex() or steps.numel() > MOST_NUMBERS:
            continue
        rows, length = steps.shape[:2]
        fits = target.dim() == 1 or target.shape[0] == rows
        if min(rows, length) < SHORTEST or not fits or _ends_by_itself(steps, target):
            continue
        if target.numel() % (rows * length):
            continue
        sides = steps, target.reshape(rows, length, -1), wrong.reshape(rows, length, -1).any(-1)
        yield sides
        yield sides[0].transpose(0, 1), sides[1].transpose(0, 1), sides[2].transpose(0, 1)


def _series(each: Tensor, target: Tensor) -> bool:
    """A number for each that is asked for, and no switch between two."""
    return each.shape == target.shape and each.numel() <= MOST_NUMBERS and len(torch.unique(each)) > 2


def _ends_by_itself(steps: Tensor, target: Tensor) -> bool:
    """It rises to where it stays, or is copied, as an autoencoder does with a picture and its empty rows."""
    own = (
        steps.is_floating_point()
        and steps.numel() == target.numel()
        and torch.equal(target.reshape(-1), steps.reshape(-1))
    )
    return own or (steps.shape[2] == 1 and sorted_rows(steps[..., 0]))


def filled_up(steps: Tensor) -> tuple[Tensor, Tensor | None]:
    """Mask of the steps that fill the rows up, and the vector that they are filled with; None if that is no padding."""
    vectors, counts = torch.unique(steps[:, -1], dim=0, return_counts=True)
    fill = vectors[counts.argmax()]
    run, alone = _runs((steps == fill).all(-1))
    return run, fill if alone else None


# --------------------------------------------------------------------------- lengths that come with the batch


def _padded_by_lengths(target: Tensor, scores: Any, inputs: list[Tensor], batch: Batch) -> tuple[float, float | None]:
    """The same where whole numbers or a mask tell where rows end: there the inputs may be at that constant elsewhere, too.

    Or they are something else, such as the time before, and the function that put the batch together has filled it up.
    """
    known = isinstance(scores, Tensor) and scores.shape == target.shape
    wrong = scores != target if known else torch.ones_like(target, dtype=torch.bool)
    layouts = [(target, wrong), (target.transpose(0, 1), wrong.transpose(0, 1))] if target.dim() > 1 else []
    for truth, off in layouts:
        for after in _ends(truth, [*inputs, *batch.tensors]):
            value = _constant(truth, after)
            if value is not None and bool(off[after].any()) and (batch.filled_up or _all_over(inputs, after)):
                return float(after.float().mean()), float(value.reshape(-1)[0])
    return 0.0, None


def _ends(target: Tensor, batch: list[Tensor]) -> Iterator[Tensor]:
    """Masks, by what says where the rows of targets end: behind they are constant, and no row's last real step is."""
    if target.dim() < 2 or min(target.shape[:2]) < SHORTEST or target.numel() > MOST_NUMBERS:
        return
    rows, steps = target.shape[:2]
    for each in batch:
        lengths = _as_lengths(each, rows, steps)
        if lengths is None or int(lengths.min()) < 1 or len(torch.unique(lengths)) < LENGTHS:
            continue
        after = behind(lengths.to(target.device), steps)
        value = _constant(target, after)
        last = target[:, :-1][after[:, 1:] & ~after[:, :-1]]
        if value is not None and not bool((last == value).reshape(len(last), -1).all(-1).any()):
            yield after


def _as_lengths(each: Tensor, rows: int, steps: int) -> Tensor | None:
    if each.dtype in (torch.int64, torch.int32) and each.shape == (rows,):
        return each if bool((each <= steps).all()) else None
    for mask in (each, each.T) if each.dim() == 2 else ():
        if mask.shape == (rows, steps) and bool(((mask == 0) | (mask == 1)).all()):
            lengths = mask.sum(1).long()
            return lengths if torch.equal(mask.bool(), ~behind(lengths, steps)) else None
    return None


def behind(lengths: Tensor, steps: int) -> Tensor:
    """Mask of the steps at which rows of these lengths are over."""
    return torch.arange(steps, device=lengths.device)[None] >= lengths[:, None]


def _constant(steps: Tensor, after: Tensor) -> Tensor | None:
    """The one vector that stands wherever rows are over, if not everywhere."""
    over, ahead = steps[after], steps[~after]
    alone = bool(len(over)) and bool((over == over[0]).all()) and not bool((ahead == over[0]).all())
    return over[0] if alone else None


def _all_over(inputs: list[Tensor], after: Tensor) -> bool:
    """Some input, of whatever layout, is constant where the rows are over, and no switch that is off there."""
    for each in inputs:
        if each.dim() not in (2, 3) or each.device != after.device or each.numel() > MOST_NUMBERS:
            continue
        layouts = [each, each.transpose(0, 1), each.transpose(1, -1)] if len(torch.unique(each)) > 2 else []
        if any(_constant(steps, after) is not None for steps in layouts if steps.shape[:2] == after.shape):
            return True
    return False
