"""Which part of an input is padding, how much of it each row has, and what says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flatline.preflight.trials import input_kind
from flatline.sensors.tails import PADDING_AHEAD, sorted_rows

PAD_ROWS = 0.2  # of the rows end with the same token, at least twice
SHORTEST = 4  # positions
OTHER_LENGTHS = 3  # of sequences, from batch to batch: they are filled up to the longest
ENDS_REAL = 0.5  # of the rows, at least: their last real element is not what they are filled up with


class Padding(NamedTuple):
    """An input of rows × positions that is filled up at the end of its rows."""

    at: int  # which of the inputs
    tail: Tensor  # positions of padding in each row
    proven: bool
    numbers: bool = False  # of numbers, no tokens: a blank may mean something

    @property
    def row(self) -> int:
        """That with the most."""
        return int(self.tail.argmax())

    def where(self, length: int, tail: Tensor | None = None) -> Tensor:
        """Rows × positions: padding, or what lies in another tail."""
        tail = self.tail if tail is None else tail
        return torch.arange(length, device=tail.device) >= (length - tail)[:, None]

    @property
    def cut(self) -> int:
        """The most."""
        return int(self.tail.max())


def padding_of(
    at: int, inputs: Sequence[Tensor], known: set[int | None], filled: set[tuple[int, ...]], lengths: set[int]
) -> Padding | None:
    """Of one input; ``known``: ids of padding, ``filled``: shapes that the script made, ``lengths``: those of other batches."""
    sequence, others = inputs[at], [each for place, each in enumerate(inputs) if place != at]
    if sequence.dim() < 2 or sequence.shape[1] < SHORTEST or input_kind(sequence) == "image":
        return None
    rows, length = sequence.shape[:2]
    told = told_tail(sequence, others)
    if input_kind(sequence) != "tokens":
        made = tuple(sequence.shape) in filled and sequence.dim() <= 3
        tail = told if told is not None else filled_tail(sequence) if made else None
        return None if tail is None else Padding(at, tail, proven=sequence.dim() > 2, numbers=True)
    tail = padding_tail(sequence, known)
    if tail is None:
        return None if told is None else Padding(at, told, proven=False)
    named = int(sequence[:, -1].mode().values) in known
    made = bool({(rows, length), (length, rows)} & filled)
    longest = len(lengths) >= OTHER_LENGTHS and int(tail.min()) == 0
    return Padding(at, tail, proven=named or made or longest or _told(tail, length, others))


def padding_tail(tokens: Tensor, known: set[int | None]) -> Tensor | None:
    """How many tokens at the end of each row are padding; None if that is not certain. 0 for rows of nothing else."""
    last = int(tokens[:, -1].mode().values)
    same = tokens == last
    tail = same.flip(1).long().cumprod(1).sum(1)
    runs = tail[tail > 1].tolist()
    varied = len(set(runs)) > 1 and len(runs) >= PAD_ROWS * len(tokens)
    long_texts = int(tail.min()) < tokens.shape[1] // 2
    if not runs or not long_texts or not (last in known or varied) or bool(same.all()):
        return None
    before = int((~same).sum()), int(same.sum() - tail.sum())  # others, and the same token, ahead of the tails
    if before[1] > PADDING_AHEAD * sum(before) or sorted_rows(tokens):
        return None
    return tail.where(tail < tokens.shape[1], 0)


def filled_tail(sequence: Tensor) -> Tensor | None:
    """How many positions at the end of each row hold one and the same number; None where no two rows differ in that."""
    blank = _blank(sequence)
    tail = blank.flip(1).long().cumprod(1).sum(1)
    tail = tail.where(tail < sequence.shape[1], 0)
    return tail if len(tail.unique()) > 1 and int(tail.max()) > 1 else None  # type: ignore[no-untyped-call]


def told_tail(sequence: Tensor, others: Sequence[Tensor]) -> Tensor | None:
    """The same, as another input counts or marks it: behind what is real stands one and the same number everywhere."""
    rows, length = sequence.shape[:2]
    blank = _blank(sequence)
    for each in others:
        real = _counted(each, rows, length)
        if real is None or len(real.unique()) < 2:  # type: ignore[no-untyped-call]
            continue
        behind = torch.arange(length, device=real.device) >= real[:, None]
        last = blank.to(real.device).gather(1, (real - 1)[:, None])
        if bool(blank.to(real.device)[behind].all()) and float(last.float().mean()) < 1 - ENDS_REAL:
            return (length - real).to(sequence.device)
    return None


def _blank(sequence: Tensor) -> Tensor:
    """Rows × positions: all numbers of it are the one that most rows end with."""
    fill = sequence[:, -1].flatten().mode().values
    return (sequence == fill).flatten(2).all(2) if sequence.dim() > 2 else sequence == fill


def _counted(tensor: Tensor, rows: int, length: int) -> Tensor | None:
    """Positions of each row that are real, where a tensor holds their numbers, or marks them with a value of their own."""
    if tensor.dim() == 1 and len(tensor) == rows and not tensor.is_floating_point() and tensor.dtype != torch.bool:
        inside = int(tensor.min()) >= 1 and int(tensor.max()) <= length
        return tensor.long() if inside else None
    if tensor.shape[:1] != (rows,) or tensor.numel() != rows * length:
        return None
    marks = tensor.reshape(rows, length)
    kept = marks == marks[0, 0]
    real = kept.long().cumprod(1).sum(1)
    rest = marks[~kept]
    one_value = rest.numel() > 0 and bool((rest == rest[0]).all())
    return real if one_value and int(real.min()) > 0 and torch.equal(real, kept.sum(1)) else None


def _told(tail: Tensor, length: int, others: Sequence[Tensor]) -> bool:
    """Whether another input says the same of each row."""
    counts = (_counted(each, len(tail), length) for each in others)
    return any(real is not None and torch.equal(real.to(tail.device), length - tail) for real in counts)
