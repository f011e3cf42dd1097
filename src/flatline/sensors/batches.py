"""What a batch holds: its labels, as a loss saved them, and what the model answered."""

from __future__ import annotations

from typing import Any

import torch

from flatline.events import LabelFacts, WholeLabels
from flatline.sensors.models import readable

Tensor = torch.Tensor
COUNTED = ("cross_entropy", "nll", "binary_cross_entropy", "binary_cross_entropy_with_logits")
MOST_LABELS = 65_536  # of one batch
MOST_DISTINCT = 1_024
MOST_RUNS = 32
LOOKED_AT = 8_192  # labels of a whole data set, evenly spread


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


def answers(kind: str, scores: Tensor) -> tuple[tuple[int, int], ...]:
    """How often each class had the highest score."""
    if scores.shape[1] == 1:
        chosen = (scores[:, 0] > (0.0 if kind.endswith("logits") else 0.5)).long()
    else:
        chosen = scores.argmax(1)
    distinct, counts = torch.unique(chosen, return_counts=True)
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
    if base.numel() < 4 * target.numel():
        return None
    spread = base.detach()[:: max(1, base.numel() // LOOKED_AT)]
    return WholeLabels(
        count=spread.numel(), distinct=len(torch.unique(spread)), runs=len(torch.unique_consecutive(spread))
    )
