"""What a batch holds: its labels, as a loss saved them, and what the model answered."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset

from flatline.events import LabelFacts, WholeLabels
from flatline.sensors.models import fingerprint, readable

Tensor = torch.Tensor
WRITTEN = ("l1_loss", "squared error")  # their targets are worked out, and known up to rounding
REGRESSIONS = ("mse_loss", "smooth_l1_loss", "huber_loss", *WRITTEN)
ROUNDED = 3e-5  # of the largest number
COUNTED = ("cross_entropy", "nll", "binary_cross_entropy", "binary_cross_entropy_with_logits")
FILLING = {"pad_sequence", "pad"}
MOST_LABELS = 65_536  # of one batch
MOST_DISTINCT = 1_024
MOST_RUNS = 32
LOOKED_AT = 8_192  # labels of a whole data set, evenly spread
MOST_STORED = 200_000  # labels of a data set in a list
FEW_IDS = 2  # one word, and what fills a text up
DEEPEST = 3  # data sets of data sets
MOST_NUMBERS = 4_000_000  # of one input, added up


# --------------------------------------------------------------------------- inputs


def content(tensors: list[Tensor]) -> int:
    """The same for the same numbers; 0 when there are too many to be sure."""
    if any(t.numel() > MOST_NUMBERS or t.is_complex() or t.is_sparse for t in tensors):
        return 0
    return hash(tuple((fingerprint(t), float(t.detach().double().sum())) for t in tensors)) or 1


def equal_rows(tensors: list[Tensor]) -> bool:
    """Whether all samples of the batch are one and the same, in every tensor that holds samples."""
    rows = tensors[0].shape[0] if tensors and tensors[0].dim() else 0
    batched = [t.detach() for t in tensors if t.dim() and t.shape[0] == rows]
    if rows < 2 or any(t.numel() > MOST_NUMBERS or t.is_sparse for t in batched):
        return False
    return all(bool((t[0] == t[1]).all()) and bool((t == t[:1]).all()) for t in batched)


def few_ids(tensors: list[Tensor]) -> tuple[int, ...]:
    """The ids of a batch, if no other tensor adds to them: one, or two of which one fills the rows up."""
    if not tensors or tensors[0].dtype not in (torch.int64, torch.int32) or not 0 < tensors[0].numel() <= MOST_LABELS:
        return ()
    ids, *others = tensors
    found = torch.unique(ids)
    if _is_bag(tensors):
        return tuple(found.tolist()) if len(found) == 1 else ()
    if ids.dim() != 2 or len(found) > FEW_IDS or not all(_tells_nothing(each, ids, found) for each in others):
        return ()
    changes = int((ids[:, 1:] != ids[:, :-1]).sum(1).max()) if ids.shape[1] > 1 else 0
    return tuple(found.tolist()) if changes < FEW_IDS else ()


def layout(tensors: list[Tensor]) -> tuple[int, int]:
    """Samples of the batch, and numbers in each, of the first tensor."""
    first = tensors[0]
    rows = tensors[1].numel() if _is_bag(tensors) else first.shape[0] if first.dim() else 0
    return rows, first.numel() // max(1, rows)


def _is_bag(tensors: list[Tensor]) -> bool:
    """The ids of all texts in one row, and where each text begins, as an EmbeddingBag takes them."""
    if len(tensors) != 2 or any(t.dim() != 1 or t.dtype not in (torch.int64, torch.int32) for t in tensors):
        return False
    ids, begins = tensors
    if not 1 < begins.numel() < ids.numel():
        return False
    return int(begins[0]) == 0 and int(begins[-1]) < ids.numel() and bool((begins[1:] > begins[:-1]).all())


def _tells_nothing(other: Tensor, ids: Tensor, found: Tensor) -> bool:
    """The same for every sample, or told by the ids themselves, as a mask and a length of padded texts are."""
    if other.device != ids.device or other.dim() == 0 or len(other) != len(ids):
        return False
    if bool((other == other[:1]).all()):
        return True
    if other.shape == ids.shape:
        return all(len(torch.unique(other[ids == each])) == 1 for each in found)
    return other.dim() == 1 and any(torch.equal((ids == each).sum(1).to(other.dtype), other) for each in found)


class Repeats:
    """How often in a row a model was given the same numbers in a new tensor."""

    def __init__(self) -> None:
        self.times = 0
        self._step = 0
        self._content = 0
        self._last: Any = None

    def add(self, step: int, tensor: Tensor, content: int) -> bool:
        """One more input; only the first of a step counts. Returns whether it was counted."""
        if step == self._step:
            return False
        held = self._last() if self._last is not None else None
        kept = held is not None and (held is tensor or held.untyped_storage() is tensor.untyped_storage())
        same = content == self._content != 0 and not kept
        self.times = self.times + 1 if same else int(content != 0)
        self._step, self._content, self._last = step, content, weakref.ref(tensor)
        return True


def fills_up(collate: Any) -> bool:
    """A function of the user's puts batches together, and fills rows up to one length in it."""
    function = getattr(collate, "func", collate)  # of a partial
    code = getattr(function, "__code__", None) or getattr(vars(type(function)).get("__call__"), "__code__", None)
    return code is not None and not is_torchs(function) and not FILLING.isdisjoint(code.co_names)


def is_torchs(function: Any) -> bool:
    """Its own function."""
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"


# --------------------------------------------------------------------------- labels


def class_labels(kind: str, scores: Any, target: Any, ignore: int | None = None) -> tuple[Tensor, Tensor] | None:
    """Scores [N, C] and labels [N] of a loss over classes; one column of scores for two classes. None for all else."""
    if kind not in COUNTED or not isinstance(scores, Tensor) or not isinstance(target, Tensor):
        return None
    if not readable(scores) or not readable(target) or not 0 < target.numel() <= MOST_LABELS:
        return None
    scores, target = scores.detach(), target.detach()
    if kind.startswith("binary"):
        return _binary(scores, target)
    if scores.dim() != 2 or target.dim() != 1 or target.dtype not in (torch.int64, torch.int32, torch.uint8):
        return None
    if ignore is not None and bool((target == ignore).any()):
        kept = target != ignore
        scores, target = scores[kept], target[kept]
    inside = target.numel() and int(target.min()) >= 0 and int(target.max()) < scores.shape[1]
    return (scores, target) if inside else None


def _binary(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
    """One yes or no for each sample."""
    if target.numel() != target.shape[0] or scores.numel() != target.numel():
        return None
    target = target.reshape(-1)
    return (scores.reshape(-1, 1), target.long()) if bool(((target == 0) | (target == 1)).all()) else None


def one_class(kind: str, scores: Any, target: Any) -> tuple[LabelFacts, float] | None:
    """A class for each pixel or word: those of a batch as if they were one label for each sample, if all are one, else as two."""
    classed = kind in ("cross_entropy", "nll") and isinstance(scores, Tensor) and isinstance(target, Tensor)
    if not classed or not readable(scores) or not readable(target) or scores.dim() < 3 or not target.numel():
        return None
    if target.is_floating_point() or target.shape != (scores.shape[0], *scores.shape[2:]):
        return None
    low, high = (int(value) for value in torch.aminmax(target.detach()))
    one = low == high and 0 <= low < scores.shape[1]
    surprise = float(-scores.detach()[:, low].float().mean()) if one else 0.0
    return LabelFacts(count=len(target), runs=1 if one else 2, order=(low,) if one else ()), surprise


def label_facts(labels: Tensor) -> LabelFacts:
    """The histogram of the labels and their order."""
    distinct, counts = torch.unique(labels, return_counts=True)
    stretches = torch.unique_consecutive(labels)
    few = len(distinct) <= MOST_DISTINCT
    return LabelFacts(
        count=labels.numel(),
        histogram=tuple(zip(distinct.tolist(), counts.tolist(), strict=True)) if few else (),
        runs=len(stretches),
        order=tuple(stretches.tolist()) if len(stretches) <= MOST_RUNS else (),
    )


def chosen(kind: str, scores: Tensor) -> Tensor:
    """The class with the highest score, of every sample."""
    if scores.shape[1] == 1:
        return (scores[:, 0] > (0.0 if kind.endswith("logits") else 0.5)).long()
    return scores.argmax(1)


def answers(kind: str, scores: Tensor) -> tuple[tuple[int, int], ...]:
    """How often each class had the highest score."""
    distinct, counts = torch.unique(chosen(kind, scores), return_counts=True)
    return tuple(zip(distinct.tolist(), counts.tolist(), strict=True))[:MOST_DISTINCT]


def surprise(kind: str, scores: Tensor, labels: Tensor) -> float:
    """Mean of -log p(label). NLL keeps log-probabilities, the others probabilities or logits."""
    if scores.shape[1] > 1:
        return float(-scores.float().gather(1, labels[:, None].long()).mean())
    one = scores[:, 0].float()
    if kind.endswith("logits"):
        return float(torch.nn.functional.softplus(torch.where(labels == 1, -one, one)).mean())
    return float(-torch.where(labels == 1, one, 1 - one).clamp(min=1e-12).log().mean())


def whole_labels(target: Tensor) -> WholeLabels | None:
    """The labels of the tensor that a batch's labels are a slice of."""
    base = target._base
    if base is None or base.dim() != 1 or base.dtype != target.dtype or not readable(base):
        return None
    return _whole(base) if base.numel() >= 4 * target.numel() else None


def _whole(labels: Tensor) -> WholeLabels:
    spread = labels.detach()[:: max(1, labels.numel() // LOOKED_AT)]
    return WholeLabels(
        count=spread.numel(), distinct=len(torch.unique(spread)), runs=len(torch.unique_consecutive(spread))
    )


def stored_labels(dataset: Any, labels: Tensor, start: int) -> WholeLabels | None:
    """The labels that a data set keeps, where those from ``start`` on are the batch's: it is taken in the stored order."""
    mine = labels.detach().cpu().long()
    fitting = [column for column in _columns(dataset) if torch.equal(column[start : start + len(mine)], mine)]
    found = [_whole(column) for column in fitting]
    return max(found, key=lambda whole: whole.distinct, default=None)


def _columns(dataset: Any, deep: int = DEEPEST) -> list[Tensor]:
    """What may be the labels of a data set, of several behind one another, of a part of one."""
    if isinstance(dataset, ConcatDataset) and deep and len(dataset.datasets) <= MOST_RUNS:
        parts = [_columns(each, deep - 1) for each in dataset.datasets]
        return [torch.cat(pieces) for pieces in zip(*parts, strict=True)] if len(set(map(len, parts))) == 1 else []
    if isinstance(dataset, Subset) and deep:
        return [column[torch.as_tensor(dataset.indices)] for column in _columns(dataset.dataset, deep - 1)]
    held = getattr(dataset, "__dict__", {}).values()
    parts = [part for value in held for part in (value if _few_tensors(value) else (value,))]
    return [column for part in parts if (column := _column(part, len(dataset))) is not None]


def _few_tensors(value: Any) -> bool:
    return isinstance(value, tuple) and 0 < len(value) <= MOST_RUNS and all(isinstance(t, Tensor) for t in value)


def _column(value: Any, length: int) -> Tensor | None:
    """One whole number for each sample, kept as a tensor, an array, a list, or at the end of pairs."""
    if isinstance(value, (list, tuple)) and len(value) == length <= MOST_STORED:
        value = [each[-1] if isinstance(each, tuple) and each else each for each in value]
        return torch.tensor(value) if all(type(each) is int for each in value) else None
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == (length,) and value.dtype.kind in "iu":
        value = torch.from_numpy(value.astype("int64"))
    if not isinstance(value, Tensor) or tuple(value.shape) != (length,) or not readable(value):
        return None
    whole = not value.is_floating_point() or bool(((value == 0) | (value == 1)).all())
    return value.detach().cpu().long() if whole and value.dtype is not torch.bool and not value.is_complex() else None


def constant_target(scores: Any, target: Any) -> tuple[LabelFacts, float] | None:
    """The targets of a regression as if they were labels, if all are one whole number, else as two; and the squared error."""
    if not isinstance(scores, Tensor) or not isinstance(target, Tensor) or not readable(scores) or not readable(target):
        return None
    if scores.shape != target.shape or not 0 < target.numel() <= MOST_LABELS:
        return None
    low, high = (float(value) for value in torch.aminmax(target.detach()))
    error = float((scores.detach().float() - target.detach().float()).pow(2).mean())
    one = low == high and low == int(low)
    label = (int(low),) if one else ()
    return LabelFacts(count=target.numel(), runs=1 if one else 2, order=label), error


def as_served(target: torch.Tensor, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor of the batch that holds these numbers, bit for bit as it was served; else the target itself."""
    near = ROUNDED * float(target.abs().max()) if target.numel() else 0.0
    for each in batch:
        alike = each.numel() == target.numel() and each.is_floating_point() and each.device == target.device
        if alike and torch.allclose(each.detach().to(target.dtype).reshape(target.shape), target, rtol=0.0, atol=near):
            return each.detach().reshape(target.shape)
    return target
