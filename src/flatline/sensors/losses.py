"""Finds the loss functions in a graph and says what feeds them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from flatline.events import BackwardFacts, LossComputed, TargetFacts, Where
from flatline.sensors.causality import causal
from flatline.sensors.graph import (
    SHAPE_ONLY,
    VIEWS,
    Graph,
    Node,
    children,
    is_leaf,
    operation,
    saved,
    sequence,
    shape_of,
    source,
)
from flatline.sensors.mixtures import mixed
from flatline.sensors.models import ModelSensor, spoken
from flatline.sensors.tails import padded_labels, padded_numbers, trailing

LATE = 0.5  # of a row, behind which labels begin in rows that are cut where the prompts end
REDUCTIONS = ("none", "mean", "sum")
SHORT_ROW, FEW_ROWS = 4, 4  # tokens and rows under which one label a row says nothing
LOSSES = {
    "NllLoss": "nll",
    "NllLoss2D": "nll",
    "NllLossNd": "nll",
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "BinaryCrossEntropy": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "CtcLoss": "ctc_loss",
}
FEEDS = {
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "LogSigmoid": "log_sigmoid",
    "Log": "log",
    "Logsumexp": "logsumexp",
    "Addmm": "linear",
    "Mm": "linear",
    "Bmm": "linear",
    "Addbmm": "linear",
    "Linear": "linear",
    "Convolution": "convolution",
    "Relu": "relu",
    "Tanh": "tanh",
}
FEWEST_LABELS = 8  # that are compared with the tokens
SPAN = 2  # labels in a row, at least: of tokens masked at random they stand alone
MEASURED = ("MseLoss", "SmoothL1Loss", "HuberLoss")
POWER = "squared error"
WRITTEN_OUT = 64  # nodes looked at from the root of a loss that is written out
SEQUENCE = 4  # positions; shorter rows may be anything
SCALAR_SUMS = ("Add", "Sub", "Sqrt", "Log", "Exp", "Pow")
ELEMENTWISE = (
    "Pow",
    "Abs",
    "Mul",
    "Sqrt",
    "Log",
    "Log1P",
    "Exp",
    "Cosh",
    "Where",
    "Add",
    "Div",
    "Clamp",
    "ClampMin",
    "Softplus",
    "Neg",
)
ALL_KEPT = (
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Transpose",
    "T",
    "Permute",
    "Squeeze",
    "Unsqueeze",
    "Clone",
    "ToCopy",
    "Contiguous",
    "Alias",
)
GRAIN = 1e-5  # of the largest number: what rounding may change
WEIGHTS = ("AccumulateGrad", "T", "Transpose", "Permute")  # what stands between a matrix product and a weight
SCALAR_STEPS = ("Div", "Mul", "ToCopy", "View", "Squeeze", "Unsqueeze", "Neg", "Clone", "Reshape", "Select")


def read(graph: Graph, models: ModelSensor, *, step: int, where: Where | None) -> list[LossComputed]:
    """Every loss of torch in the graph, with what feeds it."""
    found = [_loss(node, graph, models, step, where) for node in graph.nodes if operation(node) in LOSSES]
    found += list(_composite(graph, models, step, where))
    found += list(_hand_written(graph, models, step, where))
    found += list(_picked(graph, step, where))
    return found


def feed_of(node: Node) -> tuple[str, Node | None, list[Node]]:
    """What feeds a node: a name ('' if unknown), the node behind the shape-only ones, and those passed."""
    below, passed = source(node)
    if below is None:
        return "", None, passed
    if operation(below) == "Div" and _is_softmax_by_hand(below):
        return "softmax", below, passed
    return FEEDS.get(operation(below), ""), below, passed


def _scores_of(log_softmax: Node) -> tuple[str, Node | None, list[Node]]:
    """The same of a log-softmax, which may also be given several softmaxes in one."""
    fed_by, below, passed = feed_of(log_softmax)
    over = mixed(log_softmax) if fed_by in ("", "linear") else None
    return ("mixture of softmaxes", over, passed) if over is not None else (fed_by, below, passed)


def _is_softmax_by_hand(node: Node) -> bool:
    """``exp(x) / exp(x).sum()``."""
    below = children(node)
    if len(below) != 2 or operation(below[0]) != "Exp":
        return False
    total, _ = (below[1], None) if operation(below[1]) == "Sum" else source(below[1])
    return total is not None and operation(total) == "Sum" and below[0] in children(total)


# --------------------------------------------------------------------------- one loss


def _loss(node: Node, graph: Graph, models: ModelSensor, step: int, where: Where | None) -> LossComputed:
    kind = LOSSES[operation(node)]
    fed_by, below, passed = feed_of(node)
    normalised = None
    if kind == "nll" and fed_by == "log_softmax" and below is not None:
        kind = "cross_entropy"
        fed_by, below, passed = _scores_of(below)
    elif kind == "nll":
        normalised = _normalised(node)
    scores, target = saved(node, "self"), saved(node, "target")
    if models.targets_seen is not None:
        learned = _learned(kind, fed_by, below)
        models.targets_seen(kind, learned, scores, target, saved(node, "ignore_index"), step, where)
    shape = tuple(scores.shape) if scores is not None else ()
    facts = _target(node, target, models)
    expand = next((n for n in passed if operation(n) == "Expand"), None)
    return LossComputed(
        step=step,
        where=where,
        kind=kind,
        fed_by=fed_by,
        feed_where=spoken(module_of(below, models)),
        reduction=_reduction(node),  # type: ignore[arg-type]
        averaged=_averaged(node, graph),
        classes=_classes(shape) if "nll" in kind or kind == "cross_entropy" else None,
        shape=shape,
        feed_shape=_feed_shape(expand),
        broadcast=_grew(expand, shape),
        target=facts,
        normalised=normalised,
        masked_mean=_masked_mean(node, graph) if _reduction(node) == "none" else _masked_scores(node, target),
        wrong_and_saturated=_wrong(scores, target) if kind == "binary_cross_entropy" else 0.0,
        gradient_ratio=_gradient_ratio(below, target) if kind == "cross_entropy" and fed_by == "softmax" else None,
        factor=scaled(below)[0] if kind == "cross_entropy" else 1.0,
        causal=facts.equals_input and _causal(graph, models),
    )


def _learned(kind: str, fed_by: str, below: Node | None) -> str:
    """What the raw scores come from; '' for a layer that is not trained, as where inputs are sought for an answer."""
    if kind == "binary_cross_entropy" and fed_by == "sigmoid" and below is not None:
        fed_by, below, _ = feed_of(below)
    inputs = children(below) if below is not None else []
    given_only = len(inputs) == 1 and operation(inputs[0]) not in WEIGHTS
    return "" if fed_by == "linear" and given_only else fed_by


def _reduction(node: Node) -> str:
    value = saved(node, "reduction")
    return REDUCTIONS[value] if isinstance(value, int) and 0 <= value < 3 else "mean"


def _averaged(node: Node, graph: Graph) -> bool:
    """A loss of every position, and nothing but means above it."""
    unreduced = _reduction(node) == "none" and shape_of(node) != ()
    wholes = [mean for mean in graph.named("Mean") if shape_of(mean) == ()] if unreduced else []
    return any(_under_means(mean) is node for mean in wholes)


def _under_means(mean: Node) -> Node | None:
    below: Node | None = mean
    while below is not None and operation(below) == "Mean":
        below, passed = source(below)
        if not all(operation(each) in ALL_KEPT for each in passed):
            return None
    return below


def _classes(shape: tuple[int, ...]) -> int | None:
    if not shape:
        return None
    return shape[1] if len(shape) > 1 else shape[0]


def _normalised(node: Node) -> bool | None:
    """Whether the rows that NLL was given are log-probabilities: exp of them sums to one."""
    scores = saved(node, "self")
    if scores is None or not scores.numel():
        return None
    total = torch.logsumexp(scores.detach().float(), dim=1 if scores.dim() > 1 else 0)
    return bool((total.abs() < 0.05).float().mean() > 0.9)


def _wrong(scores: Any, target: Any) -> float:
    """Share of probabilities that are exactly 0 or 1 where the target says the opposite."""
    if scores is None or target is None or not scores.numel():
        return 0.0
    p, y = scores.detach(), target.detach()
    return float((((p == 0) & (y > 0.5)) | ((p == 1) & (y < 0.5))).float().mean())


def _gradient_ratio(softmax: Node | None, target: Any) -> float | None:
    """Norm of the loss's gradient at the raw scores, right form over double softmax, on this very batch."""
    p = saved(softmax, "result") if softmax is not None else None
    if p is None or target is None or p.dim() != 2 or tuple(target.shape) != (p.shape[0],):
        return None
    p = p.detach().double()
    keep = (target >= 0) & (target < p.shape[1])
    p, target = p[keep], target[keep]
    if not len(target):
        return None
    hot = torch.zeros_like(p).scatter_(1, target[:, None], 1.0)
    inner = torch.softmax(p, 1) - hot
    double = p * (inner - (inner * p).sum(1, keepdim=True))
    return float((p - hot).norm() / double.norm().clamp(min=1e-30))


# --------------------------------------------------------------------------- broadcasting


def _feed_shape(expand: Node | None) -> tuple[int, ...]:
    sizes = saved(expand, "self_sym_sizes") if expand is not None else None
    return tuple(int(n) for n in sizes) if sizes is not None else ()


def _grew(expand: Node | None, shape: tuple[int, ...]) -> bool:
    """A [B, 1] was blown up to [B, B], and nobody asked for it with unsqueeze."""
    before = _feed_shape(expand)
    if expand is None or not before or not shape:
        return False
    below = children(expand)
    if below and operation(below[0]) == "Unsqueeze":
        return False
    return _outer(before, shape)


def _outer(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """[B, 1] -> [B, B] or [B] -> [B, B]: the batch axis against itself."""
    if len(after) < 2 or after[-1] != after[-2] or after[-1] < 2:
        return False
    return before == (*after[:-1], 1) or before == after[1:]


def _hand_written(graph: Graph, models: ModelSensor, step: int, where: Where | None) -> Iterator[LossComputed]:
    """``((pred - y) ** 2).mean()`` and ``(pred - y).abs().mean()``, l1_loss too; what is longer only if it broadcasts."""
    for total, difference, plain in _differences(graph.root):
        operand = children(difference)[0]
        asked = operation(operand) == "Unsqueeze" or (operation(operand) == "Expand" and not plain)
        if operation(operand) == "Expand":
            inner = children(operand)
            operand, asked = (inner[0], asked or operation(inner[0]) == "Unsqueeze") if inner else (operand, True)
        before, after = shape_of(operand), shape_of(difference)
        if is_leaf(operand):
            before = tuple(operand.variable.shape)
        broadcast = not asked and _outer(before, after)
        masked = _sequences_masked(total)
        if plain or broadcast or masked:
            measured = _measured(total, difference, models) if plain and not broadcast else None
            if measured is not None and models.targets_seen is not None:
                models.targets_seen(plain, FEEDS.get(operation(operand), ""), *measured, None, step, where)
            yield LossComputed(
                step=step,
                where=where,
                kind=plain or "the loss",
                fed_by=FEEDS.get(operation(operand), ""),
                reduction="mean" if operation(total) == "Mean" else "sum",
                shape=after,
                feed_shape=before,
                broadcast=broadcast,
                target=_filled(total, measured, models),
                masked_mean=masked,
            )


def _measured(total: Node, difference: Node, models: ModelSensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What a model answered, and the measured targets of a loss that is written out: that less the difference."""
    core = next((each for each in children(total) if difference in children(each)), None)
    gap, answer = saved(core, "self") if core is not None else None, _answer(children(difference)[0], models)
    if gap is None or answer is None or answer.numel() != gap.numel():
        return None
    gap, answer = gap.detach(), answer.detach().reshape(gap.shape)
    answered_first = difference.next_functions[0][0] is not None
    target = answer - gap if answered_first else answer + gap
    largest = float(answer.abs().max() + gap.abs().max())
    if not 0.0 < largest < math.inf:
        return None
    grain = 2.0 ** math.floor(math.log2(GRAIN * largest))
    return answer, torch.where(gap == 0, answer, (target / grain).round() * grain)  # what was one number is one again


def _filled(total: Node, measured: tuple[torch.Tensor, torch.Tensor] | None, models: ModelSensor) -> TargetFacts:
    """How large such targets of a mean are, and padding among them."""
    if measured is None or operation(total) != "Mean":
        return TargetFacts()
    answer, target = measured
    share, value = padded_numbers(target, answer, _inputs(models), models.newest_batch())
    return TargetFacts(
        shape=tuple(target.shape),
        low=float(target.min()),
        high=float(target.max()),
        total=target.numel(),
        padding_share=share,
        padding_value=value,
    )


def _answer(node: Node, models: ModelSensor) -> torch.Tensor | None:
    """What a model answered, if nothing but a view of it was made since."""
    while operation(node) in VIEWS and not any(sequence(node) in model.answers for model in models.known):
        below = children(node)
        if len(below) != 1:
            return None
        node = below[0]
    return next((model.answers[sequence(node)] for model in models.known if sequence(node) in model.answers), None)


def _differences(root: Node) -> Iterator[tuple[Node, Node, str]]:
    """Each subtraction of something constant under a whole sum or mean, with that, and what it is the core of.

    Only operations on scalars stand above the sum, and only elementwise ones of one shape below it.
    """
    waiting: list[tuple[Node, Node | None, Node | None]] = [(root, None, None)]
    seen: set[Node] = set()
    while waiting and len(seen) < WRITTEN_OUT:
        node, total, above = waiting.pop(0)
        if node in seen:
            continue
        seen.add(node)
        below, name = children(node), operation(node)
        if total is None:
            if shape_of(node) != () or name not in (*SCALAR_STEPS, *SCALAR_SUMS, "Mean", "Sum"):
                continue
            total = node if name in ("Mean", "Sum") else None
        elif name in ("Sub", "Rsub") and len(below) == 1:
            core = above is not None and above in children(total) and {"Pow": POWER, "Mul": POWER, "Abs": "l1_loss"}
            yield total, node, core.get(operation(above), "") if core and above is not None else ""
            continue
        elif name not in ELEMENTWISE:
            continue
        waiting += [(child, total, node) for child in below]


def _picked(graph: Graph, step: int, where: Where | None) -> Iterator[LossComputed]:
    """Logarithms of a softmax, picked by ``gather``, under a mask of sequences and a plain mean."""
    for mean in graph.named("Mean"):
        masked = _sequences_masked(mean)
        node = next(iter(children(children(mean)[0])), None) if masked else None
        while node is not None and operation(node) in (*SHAPE_ONLY, "Neg"):
            node = next(iter(children(node)), None)
        below = source(node)[0] if node is not None and operation(node) == "Gather" else None
        if below is not None and operation(below) == "LogSoftmax":
            yield LossComputed(step=step, where=where, kind="the loss", reduction="mean", masked_mean=masked)


# --------------------------------------------------------------------------- composite cross entropy


def _composite(graph: Graph, models: ModelSensor, step: int, where: Where | None) -> Iterator[LossComputed]:
    """Cross entropy against class probabilities: sum of log_softmax times target."""
    under_nll = {c for n in graph.named("NllLoss", "NllLoss2D") for c in [source(n)[0]] if c is not None}
    for node in graph.named("Mul"):
        target, below = saved(node, "other"), children(node)
        if len(below) != 1 or operation(below[0]) != "LogSoftmax" or below[0] in under_nll:
            continue
        if not isinstance(target, torch.Tensor) or target.shape != shape_of(below[0]) or target.dim() < 2:
            continue
        fed_by, deeper, _ = _scores_of(below[0])
        sums = target.detach().float().sum(1)
        yield LossComputed(
            step=step,
            where=where,
            kind="cross_entropy",
            fed_by=fed_by,
            feed_where=spoken(module_of(deeper, models)),
            classes=int(target.shape[1]),
            shape=tuple(target.shape),
            target=TargetFacts(
                shape=tuple(target.shape),
                total=target.numel(),
                low=float(target.min()),
                high=float(target.max()),
                row_sum_low=float(sums.min()),
                row_sum_high=float(sums.max()),
            ),
        )


# --------------------------------------------------------------------------- targets and padding


def _target(node: Node, target: Any, models: ModelSensor) -> TargetFacts:
    if not isinstance(target, torch.Tensor) or not target.numel():
        return TargetFacts()
    target = target.detach()
    ignore = saved(node, "ignore_index")
    if not isinstance(ignore, int):
        filled, value = _padding_of_numbers(node, target, models)
        return TargetFacts(
            shape=tuple(target.shape),
            low=float(target.min()),
            high=float(target.max()),
            total=target.numel(),
            padding_share=filled,
            padding_value=value,
        )
    kept = target[target != ignore]
    share, pad = padded_labels(target, ignore, saved(node, "weight"), _inputs(models))
    return TargetFacts(
        shape=tuple(target.shape),
        low=float(kept.min()) if kept.numel() else None,
        high=float(kept.max()) if kept.numel() else None,
        ignored=int(target.numel() - kept.numel()),
        total=target.numel(),
        padding_share=share,
        padding_id=pad,
        equals_input=_equals_input(target, ignore, models),
        in_place=any(model.moved == 0 for model in models.known),
        lone=_lone(target, ignore, models) if kept.numel() < target.numel() else None,
        **_bare_rows(target, ignore, models),
    )


def _inputs(models: ModelSensor) -> list[torch.Tensor]:
    """What models and their embeddings were last called with, the first tokens of a model ahead."""
    tokens = _token_input(models)
    given = [tensor for model in models.known for ref in model.given if (tensor := ref()) is not None]
    return [each.detach() for each in (*(() if tokens is None else (tokens,)), *given)]


def _padding_of_numbers(node: Node, target: torch.Tensor, models: ModelSensor) -> tuple[float, float | None]:
    """The same for measured targets, of losses that are means and weigh no element."""
    if operation(node) not in MEASURED or _reduction(node) == "sum":
        return 0.0, None
    return padded_numbers(target, saved(node, "self"), _inputs(models), models.newest_batch())


def _token_input(models: ModelSensor) -> torch.Tensor | None:
    """The integer [batch, time] tensor that a model was last called with."""
    for model in models.known:
        tokens = model.integer_input() if model.integer_input is not None else None
        if isinstance(tokens, torch.Tensor) and tokens.dim() == 2 and tokens.dtype in (torch.int64, torch.int32):
            return tokens.detach()
    return None


def _equals_input(target: torch.Tensor, ignore: int, models: ModelSensor) -> bool:
    """All labels that are there; not those of places here and there, which a model may have masked itself."""
    tokens = _token_input(models)
    if tokens is None or tokens.numel() != target.numel() or tokens.device != target.device:
        return False
    if any(model.moved == 1 for model in models.known):
        return False
    kept = (target != ignore).reshape(tokens.shape)
    begun = kept[:, :1].sum() + (kept[:, 1:] & ~kept[:, :-1]).sum()
    count = int(kept.sum())
    if count < FEWEST_LABELS or count < SPAN * int(begun):
        return False
    return bool((tokens == target.reshape(tokens.shape))[kept].all())


def _causal(graph: Graph, models: ModelSensor) -> bool:
    tokens = _token_input(models)
    return tokens is not None and causal(graph.nodes, *tokens.shape)


def _bare_rows(target: torch.Tensor, ignore: int, models: ModelSensor) -> dict[str, Any]:
    """Rows that have no label, where labels are the tokens that come next; nothing of other losses."""
    tokens = _token_input(models)
    if tokens is None or tokens.device != target.device or tokens.shape[1] < SHORT_ROW:
        return {}
    rows, length = tokens.shape
    if target.numel() not in (rows * length, rows * (length - 1)):
        return {}
    labels = target.reshape(rows, -1)[:, : length - 1]
    kept = labels != ignore
    if bool(kept.all()) or not bool((labels == tokens[:, 1:])[kept].all()):
        return {}
    starts = kept.int().argmax(1)[kept.any(1)]  # of the rows that have labels: where these begin
    late = len(torch.unique(starts)) > 1 and float(starts.float().median()) >= LATE * kept.shape[1]
    return {"bare_rows": int((~kept.any(1)).sum()), "rows": rows, "late": late}


def _lone(target: torch.Tensor, ignore: int, models: ModelSensor) -> int | None:
    """Every row has one label, at the same place: the first at which rows have tokens of their own."""
    tokens = _token_input(models)
    if tokens is None or tokens.numel() != target.numel() or tokens.device != target.device:
        return None
    rows, length = tokens.shape
    kept = target.reshape(rows, length) != ignore
    place = int(kept[0].int().argmax())
    if length < SHORT_ROW or rows < FEW_ROWS or int(kept.sum()) != rows or not bool(kept[:, place].all()):
        return None
    own = len(torch.unique(tokens[:, place])) > rows / 2
    return place if own and bool((tokens[:, :place] == tokens[:1, :place]).all()) else None


def _masked_mean(node: Node, graph: Graph) -> float:
    """Share of zeros in a 0/1 mask that multiplies an unreduced loss right under a plain mean."""
    for mean in graph.named("Mean"):
        product = next(iter(children(mean)), None)
        if product is None or operation(product) != "Mul":
            continue
        mask = next((m for m in (saved(product, "other"), saved(product, "self")) if isinstance(m, torch.Tensor)), None)
        feeds = [n for c in children(product) for n in (c, *([source(c)[0]] if operation(c) in SHAPE_ONLY else []))]
        if mask is None or node not in feeds or mask.dim() < 1:
            continue
        mask = mask.detach()
        if bool(((mask == 0) | (mask == 1)).all()):
            return float((mask == 0).float().mean())
    return 0.0


def _sequences_masked(mean: Node) -> float:
    """Share of zeros in a mask of sequences, ones and then zeros in each row, right under a plain mean."""
    product = next(iter(children(mean)), None)
    mask = saved(product, "other") if product is not None and operation(product) == "Mul" else None
    if operation(mean) != "Mean" or not isinstance(mask, torch.Tensor):
        return 0.0
    rows = mask.detach().squeeze(-1)
    if rows.dim() != 2 or rows.shape[1] < SEQUENCE or not bool(((rows == 0) | (rows == 1)).all()):
        return 0.0
    lengths = rows.sum(1)
    ends = torch.arange(rows.shape[1], device=rows.device)[None] < lengths[:, None]
    padded = bool((rows.bool() == ends).all()) and bool((lengths > 0).all()) and bool(lengths.min() < lengths.max())
    return float((rows == 0).float().mean()) if padded else 0.0


def _masked_scores(node: Node, target: Any) -> float:
    """Share of padding when scores are multiplied by a mask of sequences, and a plain mean follows."""
    below, _ = source(node)
    if below is None or operation(below) != "Mul" or operation(node) not in MEASURED or _reduction(node) == "sum":
        return 0.0
    mask = saved(below, "other")
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or not isinstance(target, torch.Tensor):
        return 0.0
    mask = mask.detach()
    binary = bool(((mask == 0) | (mask == 1)).all())
    if not binary or mask.shape[1] < 4 or target.shape != mask.shape or trailing(mask.long())[1] != 0:
        return 0.0
    run, _ = trailing(mask.long())
    return float(run.float().mean()) if bool((target.detach()[run] == 0).all()) else 0.0


# --------------------------------------------------------------------------- the root


def backward_facts(graph: Graph, found: list[LossComputed], *, where: Where | None, scale: float) -> BackwardFacts:
    """What stands between the loss functions and the tensor that backward was called on."""
    node: Node | None = graph.root
    factor, plain, steps = 1.0, True, 0
    while node is not None and operation(node) in SCALAR_STEPS and steps < 16:
        factor, steps = factor * constant_of(node), steps + 1
        below = children(node)
        plain = plain and len(below) == 1
        node = below[0] if below else None
    reductions = {"mean" if loss.averaged else loss.reduction for loss in found}
    mean = reductions == {"mean"} or (not reductions and node is not None and operation(node) == "Mean")
    return BackwardFacts(
        where=where,
        factor=factor / scale if scale else factor,
        mean=mean,
        plain=plain and len(found) <= 1,
        losses=tuple(loss.kind for loss in found),
        reached=hash(frozenset(graph.leaves)),
        one_target=any(_constant_target(loss.target) for loss in found),
        whole=len(found) == 1 and node is not None and operation(node) in LOSSES,
    )


def _constant_target(target: TargetFacts) -> bool:
    return target.low is not None and target.low == target.high and target.total > 1


def constant_of(node: Node) -> float:
    """The constant that a Div or Mul node applies; 0 when it cannot be read, which counts as averaged."""
    name = operation(node)
    if name not in ("Div", "Mul"):
        return 1.0
    other = saved(node, "other")
    if isinstance(other, torch.Tensor):
        other = float(other.detach()) if other.numel() == 1 else None
    if not isinstance(other, (int, float)) or not other:
        return 0.0
    return 1.0 / float(other) if name == "Div" else float(other)


def scaled(node: Node | None) -> tuple[float, Node | None]:
    """The constants that something is multiplied with, in one number (0 if that is not known), and what it was before."""
    factor = 1.0
    while node is not None and operation(node) in ("Mul", "Div") and len(children(node)) == 1:
        factor, node = factor * abs(constant_of(node)), source(node)[0]
    return factor, node


def module_of(node: Node | None, models: ModelSensor, shift: int = 0) -> str:
    """The module whose forward made a node, by the order of operations of the pass last looked at closely.

    ``shift`` is how many operations later than that pass the node's own pass began.
    """
    if node is None:
        return ""
    position = sequence(node) - shift
    for model in models.known:
        for call in model.calls:
            if call.leaf and call.out_sequence == position:
                return call.path or model.label
    return ""
