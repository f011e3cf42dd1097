"""Reads attention out of the graph under a loss: how evenly a row attends to the keys it may attend to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from flatline.events import AttentionFacts, AttentionSampled, Where
from flatline.sensors.graph import (
    SHAPE_ONLY,
    Graph,
    Node,
    children,
    is_leaf,
    leaf_of,
    operation,
    saved,
    sequence,
    shape_of,
)
from flatline.sensors.loop import Loop
from flatline.sensors.models import ModelSensor, readable

Tensor = torch.Tensor
ATTENTIONS = 48  # of a graph
ROWS = 24  # queries of each
BATCH = 2  # samples of each
HEADS = 64
KEYS = 4_096  # longer rows are not looked at
FEWEST_KEYS = 4  # a row that may attend to fewer says nothing
SHORT = 6  # fewer keys or rows are no self-attention worth judging
SOFTMAXES = ("Softmax", "SafeSoftmax")
FUSED = "ScaledDotProduct"
MASKS = ("attn_mask", "attn_bias")
PRODUCTS = ("Bmm", "Baddbmm")
SCALES = ("Mul", "Div")
UNMASKED = (*SCALES, "View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "Expand", "Clone", "ToCopy")
LAYERS = ("Addmm", "Mm", "Linear")
NORMS = ("NativeLayerNorm", "FusedRmsNorm", "RmsNorm")
LENGTHS = ("LinalgVectorNorm", "Norm", "Mean", "Sum")  # what a vector is divided by to have a given length
RANGES = ("Exp", "Clamp", "ClampMax", "ClampMin", "Softplus", "Sigmoid")
CHAIN = 8  # operations on such a length: a floor, a root, a reciprocal, an axis


class AttentionSensor:
    """Called with the graph under every loss on closely watched steps."""

    def __init__(self, loop: Loop, models: ModelSensor) -> None:
        self.loop, self.models = loop, models
        self._allowed: dict[tuple[int, ...], Tensor] = {}  # attention and its shape -> keys ever attended to

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """Tell of fused attention and of softmaxes that weigh the rows of a product."""
        if not self.loop.wants(AttentionSampled):
            return
        weighing = _weighing(graph)
        weighing |= {node for node in _summing(graph) if _projected(node)}
        nodes = [node for node in graph.nodes if operation(node).startswith(FUSED) or node in weighing]
        found = []
        for place, node in enumerate(sorted(nodes, key=sequence)[:ATTENTIONS]):
            scores = _fused(node) if operation(node).startswith(FUSED) else _softmax(node)
            if scores is not None:
                found.append(self._facts(node, place, scores))
        if found:
            self.loop.emit(
                AttentionSampled(step=self.loop.step, where=where, layers=tuple(found), loss=self.loop.last_loss)
            )

    def _facts(self, node: Node, place: int, scores: Tensor) -> AttentionFacts:
        """``scores`` is [heads, samples, rows, keys], up to a constant in each row; -inf where it may not look."""
        logs = scores.log_softmax(-1)
        open_to = self._keys(place, logs) if _masked_somehow(node) else torch.ones_like(logs[0, 0], dtype=torch.bool)
        counts = open_to.sum(-1)
        kept = counts >= FEWEST_KEYS
        entropy = -torch.where(logs > -math.inf, logs.exp() * logs, 0.0).sum(-1)[:, :, kept]
        evenness = entropy / counts[kept].float().log()
        finite = torch.where(logs > -math.inf, logs, math.nan)
        spread = (finite - finite.nanmean(-1, keepdim=True)).square().nanmean(-1).sqrt().nanmean()
        heads = evenness.mean(dim=(1, 2)).tolist() if int(kept.sum()) else []
        straight = _projected(node)
        normalised = not straight and _normalised(node)
        return AttentionFacts(
            layer=self._module(node),
            heads=tuple(heads),
            keys=int(counts[kept].float().mean()) if heads else 0,
            rows=int(kept.sum()) * scores.shape[1],
            spread=float(spread) if operation(node).startswith(FUSED) else None,
            projected=straight or normalised,
            normalised=normalised,
            scale=None if normalised else _scale(node),  # a temperature, whose usual size is another one
            width=_width(node),
            gain=_gain(node),
            alone=_alone(node),
            one_query=not operation(node).startswith(FUSED) and _one_query(shape_of(node)),
        )

    def _keys(self, place: int, logs: Tensor) -> Tensor:
        """Which keys each row may attend to: those that some head, for some sample, at some step attended to."""
        seen = (logs.exp() > 0).flatten(0, 1).any(dim=0)
        key = (place, *logs.shape[-2:])
        before = self._allowed.get(key)
        self._allowed[key] = seen if before is None or before.device != seen.device else before | seen
        return self._allowed[key]

    def _module(self, node: Node) -> str:
        """The module around the attention: what the layers just before and just after it have in common."""
        position = sequence(node)
        for model in self.models.known:
            leaves = sorted((c.out_sequence, c.path) for c in model.calls if c.leaf and c.out_sequence)
            before = [path for place, path in leaves if place <= position]
            after = [path for place, path in leaves if place > position]
            if before and after:
                return _shared(before[-1], after[0]) or model.label
        return ""


def _shared(one: str, other: str) -> str:
    """The part of two paths that is the same."""
    parts, others = one.split("."), other.split(".")
    same = next(
        (at for at, (a, b) in enumerate(zip(parts, others, strict=False)) if a != b), min(len(parts), len(others))
    )
    return ".".join(parts[:same])


def _weighing(graph: Graph) -> set[Node]:
    """Softmaxes that are the first factor of a batched product, behind changes of shape and dropout."""
    found = {_weights(product.next_functions[0][0]) for product in graph.named("Bmm")}
    return found - {None}


def _summing(graph: Graph) -> set[Node]:
    """Softmaxes whose weights are multiplied onto vectors, one to each, that are then summed up."""
    found = set()
    for total in graph.named("Sum"):
        product = next(iter(children(total)), None)
        if product is None or operation(product) != "Mul" or _axes(total) != [len(shape_of(product)) - 2]:
            continue
        for factor in children(product):
            weights = _weights(factor)
            one_each = shape_of(factor)[-1:] == (1,) and shape_of(product)[-1:] != (1,)
            if weights is not None and one_each and shape_of(weights)[-1:] == shape_of(product)[-2:-1]:
                found.add(weights)
    return found


def _axes(node: Node) -> list[int]:
    """Of a sum, counted from the first."""
    axes, dims = saved(node, "dim"), len(shape_of(children(node)[0]))
    return [axis % max(1, dims) for axis in axes or ()]


def _weights(node: Node | None) -> Node | None:
    """The softmax behind changes of shape and dropout."""
    while node is not None and operation(node) not in SOFTMAXES:
        below = children(node)
        passing = operation(node) in (*SHAPE_ONLY, "Mul", "Div", "NativeDropout")
        node = below[0] if passing and len(below) == 1 else None
    return node


def _one_query(shape: tuple[int, ...]) -> bool:
    """Weights of [samples, keys], [samples, 1, keys] or [samples, heads, 1, keys]."""
    return len(shape) == 2 or (len(shape) in (3, 4) and shape[-2] == 1)


def _projected(node: Node) -> bool:
    """Queries and keys come straight from linear layers: no distances, no similarities of given length."""
    factors = _factors(node)
    return len(factors) == 2 and all(_linear(_through(factor)) for factor in factors)


def _normalised(node: Node) -> bool:
    """They come from linear layers, straight or brought to a given length behind them: qk-norm, cosine attention."""
    factors = [_through(factor) for factor in _factors(node)]
    return len(factors) == 2 and all(_linear(_through(_unnormalised(each))) for each in factors)


def _unnormalised(node: Node | None) -> Node | None:
    """What a LayerNorm or a division by its own length was given."""
    if node is not None and (operation(node) in NORMS or _by_length(node)):
        return children(node)[0]
    return node


def _by_length(node: Node) -> bool:
    """``q / q.norm()``, ``F.normalize(q)``, ``q * q.square().mean().rsqrt()``."""
    below = children(node)
    made = list(_chain(below[1])) if operation(node) in SCALES and len(below) == 2 else []
    return bool(made) and below[0] in made and any(operation(each) in LENGTHS for each in made)


def _chain(node: Node) -> Iterator[Node]:
    """A node and what it is made from, as long as that is one thing."""
    below = [node]
    for _ in range(CHAIN):
        if len(below) != 1:
            return
        yield below[0]
        below = list(dict.fromkeys(children(below[0])))


def _alone(node: Node) -> float | None:
    """How widely q·k is spread within a row by itself, where a mask or a bias of numbers is added; 0 where that is not known."""
    if operation(node).startswith(FUSED):
        masks = [mask for name in MASKS if (mask := saved(node, name)) is not None]
        if not any(isinstance(mask, Tensor) and mask.is_floating_point() for mask in masks):
            return None
        query, key = saved(node, "query"), saved(node, "key")
        both = _usable(query) and _usable(key)
        return _deviation(query, key.transpose(-1, -2), _fused_scale(node, query)) if both else 0.0
    below = next(iter(children(node)), None)
    if not any(operation(each) == "Add" for each in _passed(below)):
        return None
    product = _through(below)
    if product is None or operation(product) != "Bmm":
        return 0.0
    return _deviation(saved(product, "self"), saved(product, "mat2"), _scale(node))


def _deviation(query: Any, key: Any, scale: float | None) -> float:
    """Of the products of queries [..., rows, width] and keys [..., width, keys], within a row."""
    if not (_usable(query) and _usable(key)) or query.shape[:-2] != key.shape[:-2] or query.dim() < 3:
        return 0.0
    few, keys = query.detach().flatten(0, -3)[:HEADS, :ROWS].float(), key.detach().flatten(0, -3)[:HEADS].float()
    with torch.autocast(query.device.type, enabled=False):
        return float((few @ keys * (scale or 0.0)).std(-1).mean())


def _gain(node: Node) -> float | None:
    """Of the two linear layers: by how much they widen numbers that have nothing to do with each other."""
    layers = [_through(factor) for factor in _factors(node)]
    weights = [_weight(layer) for layer in layers if layer is not None and operation(layer) in ("Addmm", "Mm")]
    sizes = [float(w.float().norm()) / math.sqrt(w.shape[1]) for w in weights if w is not None]
    return math.sqrt(math.prod(sizes)) if len(sizes) == 2 else None


def _weight(layer: Node) -> Tensor | None:
    """What a linear layer multiplies by, [in, out]; kept for the backward only where its input needs a gradient."""
    weight: Any = saved(layer, "mat2")
    below = layer.next_functions[-1][0]
    if weight is None and below is not None:
        turned = operation(below) == "T"
        below = next(iter(children(below)), None) if turned else below
        weight = leaf_of(below)
        weight = weight.detach().T if turned and _usable(weight) and weight.dim() == 2 else weight
    return weight.detach() if _usable(weight) and weight.dim() == 2 else None


def _factors(node: Node) -> list[Node]:
    """What is multiplied to give the scores: by a batched product, or elementwise and then summed."""
    product: Node | None = node
    if not operation(node).startswith(FUSED):
        product = _through(next(iter(children(node)), None))
    if product is not None and operation(product) == "Sum" and shape_of(product)[-1:] == shape_of(node)[-1:]:
        product = next(iter(children(product)), None)
        return children(product) if product is not None and operation(product) == "Mul" else []
    if product is None or not (product is node or operation(product) in PRODUCTS):
        return []
    return [factor for factor, _ in product.next_functions[:2]]


def _masked_somehow(node: Node) -> bool:
    """A weight of exactly 0 may be that of a key that is out of sight; without a mask it is one that has vanished."""
    if operation(node).startswith(FUSED):
        return bool(saved(node, "is_causal")) or any(saved(node, name) is not None for name in MASKS)
    passed = list(_passed(next(iter(children(node)), None)))
    known = bool(_factors(node)) and all(operation(each) in UNMASKED for each in passed)
    return not known


def _scale(node: Node) -> float | None:
    """The constants that the product of queries and keys is multiplied by; None where one is not known."""
    given = saved(node, "scale") if operation(node).startswith(FUSED) else 1.0
    places = [*_factors(node), *(children(node)[:1] if not operation(node).startswith(FUSED) else ())]
    constants = [_constant(passed) for place in places for passed in _passed(place) if operation(passed) in SCALES]
    if not isinstance(given, float) or any(constant is None for constant in constants):
        return None
    return math.prod([given, *(constant for constant in constants if constant is not None)])


def _width(node: Node) -> int:
    """What a query and a key are multiplied over."""
    shapes = [shape_of(factor) for factor in _factors(node)[:1]]
    return shapes[0][-1] if shapes and shapes[0] else 0


def _constant(node: Node) -> float | None:
    """Of ``x * 3`` or ``x / 3``."""
    other = saved(node, "other")
    if not isinstance(other, Tensor) or not readable(other) or other.requires_grad:
        return None
    if other.dim() or other.device.type != "cpu":
        return None
    value = float(other)
    return value if operation(node) == "Mul" else 1 / (value or math.nan)


def _through(node: Node | None) -> Node | None:
    """Down through changes of shape and what a constant does: a scale, a mask, a bias."""
    for passed in _passed(node):
        node = _only(passed)
    return node


def _passed(node: Node | None) -> Iterator[Node]:
    """Those changes of shape and constants."""
    while node is not None and operation(node) in (*SHAPE_ONLY, *SCALES, "Add", "Where") and not _by_length(node):
        yield node
        node = _only(node)


def _only(node: Node) -> Node | None:
    """What it changes."""
    below = children(node)
    return below[0] if len(below) == 1 else _without_parameters(below)


def _without_parameters(nodes: list[Node]) -> Node | None:
    """The one that is not a parameter."""
    others = [node for node in nodes if not _is_parameter(node)]
    return others[0] if len(others) == 1 else None


def _is_parameter(node: Node) -> bool:
    """Or what bounds it to a range: ``scale.exp().clamp(max=100)``."""
    last = next((each for each in _chain(node) if operation(each) not in (*SHAPE_ONLY, *RANGES)), node)
    return is_leaf(last)


def _linear(node: Node | None) -> bool:
    return node is not None and operation(node) in LAYERS


def _chosen(size: int, count: int, device: Any) -> Tensor:
    """Up to ``count`` places, evenly spread and with the last."""
    return torch.linspace(0, size - 1, min(size, count), device=device).round().long()


def _usable(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and readable(tensor) and tensor.is_floating_point() and tensor.numel() > 0


def _softmax(node: Node) -> Tensor | None:
    """Logarithms of the weights of a softmax over the last axis: [heads, samples, rows, keys]."""
    weights, dim = saved(node, "result"), saved(node, "dim")
    if not _usable(weights) or weights.dim() not in (2, 3, 4):
        return None
    if isinstance(dim, int) and dim not in (-1, weights.dim() - 1):
        return None
    if _one_query(tuple(weights.shape)):
        return _of_one_query(weights.detach()) if _projected(node) else None
    if not _worth(int(weights.shape[-2]), int(weights.shape[-1])):
        return None
    rows = _chosen(int(weights.shape[-2]), ROWS, weights.device)
    if weights.dim() == 3:
        few = weights.detach()[:HEADS].unsqueeze(1)
    else:
        few = weights.detach()[:BATCH, :HEADS].transpose(0, 1)
    chosen: Tensor = few.index_select(2, rows)
    return chosen.float().log()


def _of_one_query(weights: Tensor) -> Tensor | None:
    """Each sample has one row; together they are as good as the rows of one."""
    if not _worth(int(weights.shape[0]), int(weights.shape[-1])):
        return None
    samples = weights.index_select(0, _chosen(int(weights.shape[0]), ROWS, weights.device))
    flat = samples.reshape(len(samples), -1, 1, int(weights.shape[-1]))[:, :HEADS]
    return flat.transpose(0, 1).float().log()


def _worth(rows: int, keys: int) -> bool:
    return rows >= SHORT and SHORT <= keys <= KEYS


def _fused(node: Node) -> Tensor | None:
    """Scores of a fused attention, worked out again for a few rows: [heads, samples, rows, keys]."""
    query: Any = saved(node, "query")
    key: Any = saved(node, "key")
    if not (_usable(query) and _usable(key)) or query.dim() != 4 or key.dim() != 4:
        return None
    if not _worth(int(query.shape[2]), int(key.shape[2])) or query.shape[1] % key.shape[1]:
        return None
    rows = _chosen(int(query.shape[2]), ROWS, query.device)
    query = query.detach()[:BATCH].index_select(2, rows).float()
    key = key.detach()[:BATCH].float().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale = _fused_scale(node, query)
    with torch.autocast(query.device.type, enabled=False):
        scores = _masked(node, query @ key.transpose(-1, -2) * scale, rows)
    return None if scores is None else scores[:, :HEADS].transpose(0, 1)


def _fused_scale(node: Node, query: Tensor) -> float:
    scale = saved(node, "scale")
    return scale if isinstance(scale, float) else 1 / math.sqrt(query.shape[-1])


def _masked(node: Node, scores: Tensor, rows: Tensor) -> Tensor | None:
    """The same under the causal mask and the given one; None if that cannot be read."""
    if saved(node, "is_causal"):
        places = torch.arange(scores.shape[-1], device=scores.device)
        scores = scores.masked_fill(places > rows[:, None], -math.inf)
    mask = next((m for name in MASKS if (m := saved(node, name)) is not None), None)
    if mask is None:
        return scores
    if not isinstance(mask, Tensor) or mask.dim() > 4:
        return None
    mask = mask.detach()
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    mask = mask[:BATCH] if mask.shape[0] > 1 else mask
    mask = mask.index_select(2, rows) if mask.shape[2] > 1 else mask
    return scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask.float()
