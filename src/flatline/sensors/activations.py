"""Reads activations: their scale along the forward pass, units that never answer, the scores under the first loss."""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import torch
from torch import nn

from flatline.events import (
    ActivationsSampled,
    DeadFacts,
    FirstCrossEntropy,
    ForwardObserved,
    LayerActivations,
    Where,
)
from flatline.sensors.audit import AuditSensor
from flatline.sensors.callers import caller
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
    source,
)
from flatline.sensors.loop import Loop
from flatline.sensors.losses import module_of, scaled
from flatline.sensors.models import BATCH_NORMS, Call, Model, ModelSensor, has_matrix, is_norm, readable, tensors_in
from flatline.sensors.spacing import spaced
from flatline.sensors.tree import modules, parameters

Tensor = torch.Tensor
SAMPLE = 4_096  # numbers of a tensor that are looked at
SIGNAL = 48  # samples, and numbers of each, that are compared
LAYERS = 192  # modules of a pass that are looked at
ROWS = 8  # of scores, at least
END = 0.01  # of a sigmoid or tanh, from its limits; its derivative has fallen to a twentieth there
INPUTS = {"Addmm": "mat1", "Mm": "self", "Convolution": "input"}
BIASES = {"Addmm": 0, "Convolution": 2, "NativeBatchNorm": 2, "NativeLayerNorm": 2}  # place among the inputs
LOOKS, LOOKS_KEPT = 3, 8  # at an activation, taken together
ENOUGH = 96  # samples in them
RELUS = 256
TURNED = ("T", "Transpose", "Permute", "ToCopy")


def spread(tensor: Tensor, count: int = SAMPLE) -> Tensor:
    """About ``count`` numbers of a tensor, evenly spread over its memory; no copy of the whole."""
    flat = tensor.detach()
    if not flat.is_contiguous():
        strides = flat.stride()
        flat = flat.permute(sorted(range(flat.dim()), key=lambda axis: -strides[axis]))
    if not flat.is_contiguous() and flat.numel() > count:
        rows = max(1, count * flat.shape[0] // flat.numel())
        flat = flat[:: max(1, flat.shape[0] // rows)]
    stride, _ = spaced(flat, count)
    return flat.reshape(-1)[::stride]


def rms(tensor: Tensor) -> float:
    """Root mean square of a sample."""
    return float(spread(tensor).float().square().mean().sqrt())


def is_plain(tensor: Any) -> bool:
    """A readable tensor of floating-point numbers with something in it."""
    return (
        isinstance(tensor, Tensor)
        and readable(tensor)
        and tensor.layout is torch.strided
        and tensor.is_floating_point()
        and tensor.numel() > 0
    )


class ActivationSensor:
    """Called for every module of a pass under close look, and with the graph under every loss."""

    def __init__(self, loop: Loop, models: ModelSensor, audit: AuditSensor) -> None:
        self.loop, self.models, self.audit = loop, models, audit
        self._told: weakref.WeakKeyDictionary[Model, int] = weakref.WeakKeyDictionary()  # and at which step
        self._pass: list[tuple[LayerActivations, Tensor]] = []
        self._units: dict[Any, _Unit] = {}
        self._heads: dict[int, Any] = {}  # output layers whose first loss was seen: weak references by identity

    # ------------------------------------------------------------------ the forward pass

    def after_module(self, model: Model, call: Call, args: Any, outputs: list[Tensor]) -> None:
        """Take a sample of what a module made; tell all of them when the model is done."""
        if len(model.calls) == 1:
            self._pass = []
        if not call.grad_enabled or self._told.get(model) == self.loop.step:
            return
        if not self.loop.wants(ActivationsSampled) or isinstance(call.module, torch.jit.ScriptModule):
            return
        if call.leaf and len(self._pass) < LAYERS and outputs and is_plain(outputs[0]):
            weight = _weight_of(call.module, args, outputs[0])
            self._pass.append((self._facts(model, call, args, weight), moments_of(call.module, outputs[0], weight)))
        if call.depth == 0:
            self._tell(model)

    def _tell(self, model: Model) -> None:
        untrained = model not in self._told and self._untrained(model)
        self._told[model] = self.loop.step
        waiting, self._pass = tuple(self._pass), []  # whole, though another thread may be adding to it
        layers = [
            filled(facts, numbers, untrained)
            for (facts, _), numbers in zip(waiting, read_together([moments for _, moments in waiting]), strict=True)
        ]
        self.loop.emit(
            ActivationsSampled(
                step=self.loop.step, where=caller(), model=model.label, untrained=untrained, layers=tuple(layers)
            )
        )

    def _untrained(self, model: Model) -> bool:
        """No step was taken on it so far, and no parameter came from a checkpoint."""
        module = model.ref()
        return module is not None and self.audit.untouched(list(parameters(module)))

    def _facts(self, model: Model, call: Call, args: Any, weight: Tensor | None) -> LayerActivations:
        module = call.module
        values, items = _batch(module, args)
        return LayerActivations(
            layer=call.path or model.label,
            kind=type(module).__name__,
            weighted=weight is not None,
            gain=None if weight is None or model in self._told else gain_of(weight),
            fan_in=0 if weight is None else _fan_in(weight),
            values=values,
            items=items,
            under=_under(model, call, args) if is_norm(module) else "",
        )

    # ------------------------------------------------------------------ the graph under a loss

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """Units that never answer; the scores under the first cross entropy."""
        if self.loop.wants(ForwardObserved):
            self._answers(graph, where)
        if self.loop.wants(FirstCrossEntropy):
            for node in graph.named("NllLoss", "NllLoss2D"):
                self._first_loss(node, graph, where)

    def _answers(self, graph: Graph, where: Where | None) -> None:
        line = (where.file, where.line) if where is not None else None
        found = _relus(graph, self.models, self._units, line) + _saturated(graph, self.models, self._units, line)
        if found:
            self.loop.emit(ForwardObserved(step=self.loop.step, where=where, dead=tuple(found)))

    def _first_loss(self, node: Node, graph: Graph, where: Where | None) -> None:
        """Scores from a layer whose weight is a parameter, times a constant: no margin, no product of features."""
        below, _ = source(node)
        made, _ = source(below) if below is not None and operation(below) == "LogSoftmax" else (None, [])
        factor, made = scaled(made)
        head = _head(made) if factor else None
        if made is None or head is None or not self._is_new(head[0]) or self._touched(graph):
            return
        weight, bias, product = head
        if factor != 1 and is_plain(weight) and _of_length_one(weight):
            return  # a temperature over directions
        scores, target = saved(node, "self"), saved(node, "target")
        if not (is_plain(weight) and is_plain(scores) and isinstance(target, Tensor)) or scores.dim() < 2:
            return
        value, count = _cross_entropy(scores.detach(), target.detach(), saved(node, "ignore_index"))
        entered = saved(product, INPUTS[operation(product)])
        layer, tied = _owners(weight, self.models)
        self.loop.emit(
            FirstCrossEntropy(
                step=self.loop.step,
                where=where,
                classes=int(scores.shape[1]),
                value=value,
                targets=count,
                spread=_row_spread(scores.detach()),
                layer=layer,
                tied=tied,
                factor=factor,
                gain=factor * gain_of(weight, int(scores.shape[1])),
                weight_std=float(spread(weight).float().std(unbiased=False)),
                fan_in=_fan_in(weight, int(scores.shape[1])),
                bias_std=0.0 if bias is None else factor * float(bias.detach().float().std(unbiased=False)),
                input_rms=rms(entered) if is_plain(entered) else None,
            )
        )

    def _is_new(self, weight: Tensor) -> bool:
        known = self._heads.get(id(weight))
        if known is not None and known() is weight:
            return False
        self._heads[id(weight)] = weakref.ref(weight)
        return True

    def _touched(self, graph: Graph) -> bool:
        """Some optimizer stepped on a parameter under the loss, or one came from a checkpoint."""
        return not self.audit.untouched(list(graph.leaves.values()))


# --------------------------------------------------------------------------- one module


def _weight_of(module: Any, args: Any, output: Tensor) -> Tensor | None:
    """The weight of a linear layer or a convolution, of torch or of the user's: the one matrix between these widths."""
    if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
        return module.weight if is_plain(module.weight) else None
    if type(module).__module__.startswith("torch."):
        return None
    matrices = [each for each in parameters(module) if each.dim() > 1]
    first = next(tensors_in(args), None)
    if len(matrices) != 1 or first is None or not is_plain(matrices[0]) or min(first.dim(), output.dim()) < 2:
        return None
    place = 1 if matrices[0].dim() > 2 else -1
    return matrices[0] if tuple(matrices[0].shape[:2]) == (output.shape[place], first.shape[place]) else None


def moments_of(module: Any, output: Tensor, weight: Tensor | None) -> Tensor:
    """Mean, standard deviation, share of zeros, share near the ends: a tensor, read later."""
    numbers = spread(output).float()
    std, mean = torch.std_mean(numbers, unbiased=False)
    zeros = (numbers == 0).float().mean()
    if isinstance(module, nn.Sigmoid):
        ends = ((numbers - 0.5).abs() > 0.5 - END).float().mean()
    elif isinstance(module, nn.Tanh):
        ends = (numbers.abs() > 1 - END).float().mean()
    else:
        ends = torch.zeros_like(mean)
    signal = _signal(output.detach()) if weight is not None else torch.zeros_like(mean)
    return torch.stack((mean, std, zeros, ends, signal))


def _signal(output: Tensor) -> Tensor:
    """Over some samples and some of their numbers, how much the samples differ."""
    samples = output[:SIGNAL] if output.dim() > 1 else output.unsqueeze(0)
    places = torch.arange(0, samples[0].numel(), max(1, samples[0].numel() // SIGNAL), device=samples.device)
    chosen: list[Any] = []
    for size in reversed(samples.shape[1:]):  # torch.unravel_index would load sympy, which takes half a second
        chosen.insert(0, places % size)
        places = places // size
    return samples[(slice(None), *chosen)].float().var(dim=0, unbiased=False).mean().sqrt()


def read_together(moments: list[Tensor]) -> list[list[float]]:
    """One transfer for every device."""
    found: dict[int, list[float]] = {}
    for device in {each.device for each in moments}:
        places = [place for place, each in enumerate(moments) if each.device == device]
        numbers = torch.stack([moments[place] for place in places]).tolist()
        found.update(zip(places, numbers, strict=True))
    return [found[place] for place in range(len(moments))]


def filled(facts: LayerActivations, numbers: list[float], untrained: bool) -> LayerActivations:
    """The facts of a layer with its numbers."""
    mean, std, zeros, ends, signal = numbers
    return LayerActivations(
        layer=facts.layer,
        kind=facts.kind,
        mean=mean,
        std=std,
        zeros=zeros,
        saturated=ends,
        signal=signal if facts.weighted else None,
        weighted=facts.weighted,
        gain=facts.gain if untrained else None,
        fan_in=facts.fan_in,
        values=facts.values,
        items=facts.items,
        under=facts.under,
    )


def _batch(module: Any, args: Any) -> tuple[int | None, int]:
    """Numbers and samples behind each channel's statistics, where BatchNorm takes them from this process's batch."""
    if not isinstance(module, BATCH_NORMS) or isinstance(module, nn.SyncBatchNorm):
        return None, 0
    first = next(tensors_in(args), None)
    if first is None or first.dim() < 2 or not (module.training or module.running_mean is None):
        return None, 0
    return first.numel() // max(1, first.shape[1]), int(first.shape[0])


def _under(model: Model, call: Call, args: Any) -> str:
    """The layer before, if it made what this one is given, and nothing changed it on the way."""
    first = next(tensors_in(args), None)
    made = sequence(first.grad_fn) if first is not None and first.grad_fn is not None else 0
    before = (each for each in reversed(model.calls) if each.leaf and each is not call)
    return next((each.path for each in before if made and each.out_sequence == made), "")


def _fan_in(weight: Tensor, outputs: int | None = None) -> int:
    """Inputs of each output; a bare matrix may have its outputs last."""
    outputs = int(weight.shape[0]) if outputs is None else outputs
    return weight.numel() // max(1, outputs)


def gain_of(weight: Tensor, outputs: int | None = None) -> float:
    """rms of a weight × √fan_in."""
    return rms(weight) * math.sqrt(_fan_in(weight, outputs))


# --------------------------------------------------------------------------- the scores under a loss


def _of_length_one(weight: Tensor) -> bool:
    """Every row, or every column, begins with length 1."""
    lengths = [weight.detach().float().norm(dim=axis) for axis in (0, 1)] if weight.dim() == 2 else []
    return any(bool(((each - 1).abs() <= 0.01).all()) for each in lengths)


def _head(node: Node | None) -> tuple[Tensor, Tensor | None, Node] | None:
    """Weight and bias of the layer that a node is the output of, and the product's node."""
    bias = None
    if node is not None and operation(node) == "Add":
        parts = children(node)
        bias = next((part.variable for part in parts if is_leaf(part)), None)
        rest = [part for part in parts if not is_leaf(part)]
        if bias is None or len(rest) != 1:
            return None
        node = rest[0] if operation(rest[0]) not in SHAPE_ONLY else source(rest[0])[0]
    name = operation(node) if node is not None else ""
    if node is None or name not in INPUTS:
        return None
    inputs = [child for child, _ in node.next_functions]
    weight = parameter_behind(inputs[2] if name == "Addmm" else inputs[1])
    if name != "Mm":
        bias = parameter_behind(inputs[0] if name == "Addmm" else inputs[2])
    return (weight, bias, node) if weight is not None and weight.dim() >= 2 else None


def parameter_behind(node: Node | None) -> Tensor | None:
    """The parameter behind a transposition or a change of type."""
    while node is not None and operation(node) in TURNED:
        node = next(iter(children(node)), None)
    leaf: Tensor | None = leaf_of(node)
    return leaf


def _owners(weight: Tensor, models: ModelSensor) -> tuple[str, str]:
    """Paths of the layer and of the embedding that hold a parameter, '' for none."""
    layer = tied = ""
    for model in models.known:
        module = model.ref()
        for child in modules(module) if module is not None else ():
            if any(parameter is weight for parameter in child._parameters.values()):
                if isinstance(child, nn.Embedding):
                    tied = tied or model.path(child) or model.label
                else:
                    layer = layer or model.path(child) or model.label
    return layer, tied


def _cross_entropy(scores: Tensor, target: Tensor, ignore: Any) -> tuple[float, int]:
    """Mean of the targets' negative log-probabilities, and how many targets are scored."""
    if not isinstance(ignore, int):
        return 0.0, 0
    kept = target != ignore
    chosen = scores.gather(1, target.clamp(0, scores.shape[1] - 1).unsqueeze(1)).squeeze(1)[kept]
    return (float(-chosen.float().mean()), chosen.numel()) if chosen.numel() else (0.0, 0)


def _row_spread(scores: Tensor) -> float:
    """Standard deviation of the scores of a row: that of its log-probabilities."""
    rows = max(ROWS, SAMPLE // int(scores.shape[1]))
    if scores.dim() > 2:
        scores = scores[: max(1, rows * scores.shape[0] * scores.shape[1] // scores.numel())]
        scores = scores.movedim(1, -1).reshape(-1, scores.shape[1])
    return float(scores[:: max(1, scores.shape[0] // rows)].float().std(dim=1, unbiased=False).mean())


# --------------------------------------------------------------------------- units that never answer


class _Unit:
    """One activation over the newest looks."""

    def __init__(self) -> None:
        self.alive: deque[tuple[Tensor, int]] = deque(
            maxlen=LOOKS_KEPT
        )  # which units answered, and to how many samples
        self.shares: deque[float] = deque(maxlen=LOOKS)  # near the limits
        self.first_bias: Tensor | None = None
        self.filled: float | None = None
        self.layer = ""  # for a function, the layer under it

    def window(self) -> list[tuple[Tensor, int]]:
        """As few of the newest looks as give enough samples."""
        chosen: list[tuple[Tensor, int]] = []
        for look in reversed(self.alive):
            if len(chosen) >= LOOKS and sum(samples for _, samples in chosen) >= ENOUGH:
                break
            chosen.append(look)
        return chosen


def _relus(graph: Graph, models: ModelSensor, units: dict[Any, _Unit], line: Any) -> list[DeadFacts]:
    """ReLUs with units at zero for the whole batch, for modules and for ``F.relu`` alike, in order."""
    found = []
    for place, node in enumerate(list(graph.named("Relu"))[:RELUS]):
        output = saved(node, "result")
        if not is_plain(output) or output.dim() < 2:
            continue
        alive, samples = _alive(output.detach())
        layer = module_of(node, models)
        unit = units.setdefault((line, layer, place, len(alive)), _Unit())
        if not layer and not unit.alive:
            unit.layer = _layer_under(node, models)
        if unit.alive and unit.alive[0][0].device != alive.device:
            unit.alive.clear()
        unit.alive.append((alive, samples))
        found.append(_dead_facts(node, unit, layer or unit.layer))
    return found[::-1]


def _dead_facts(node: Node, unit: _Unit, layer: str) -> DeadFacts:
    (alive, samples), window = unit.alive[-1], unit.window()
    silent = ~torch.stack([each for each, _ in window]).any(dim=0)
    dead, lasting = torch.stack(((~alive).sum(), silent.sum())).tolist()
    bias = _incoming_bias(node, len(alive)) if lasting else None
    if unit.first_bias is None:
        first = _incoming_bias(node, len(alive))
        unit.first_bias = first.clone() if first is not None else None
        unit.filled = float(first[0]) if first is not None and bool((first == first[0]).all()) else None
    return DeadFacts(
        layer=layer,
        units=len(alive),
        dead=int(dead),
        samples=samples,
        looks=len(window),
        lasting=int(lasting),
        total=sum(each for _, each in window),
        bias=float(bias[silent].mean()) if bias is not None else None,
        first_bias=float(unit.first_bias[silent].mean()) if bias is not None and unit.first_bias is not None else None,
        filled=unit.filled,
    )


def _layer_under(node: Node, models: ModelSensor) -> str:
    """'after NAME' for a function on the output of a layer: an activation, and not a part of a loss."""
    head = _head(source(node)[0])
    layer = _owners(head[0], models)[0] if head is not None else ""
    return f"after {layer}" if layer else ""


def _alive(output: Tensor) -> tuple[Tensor, int]:
    """Which units are above zero, or nan, for some sample, and how many samples there are."""
    axis = 1 if output.dim() in (4, 5) else output.dim() - 1
    others = [d for d in range(output.dim()) if d != axis]
    return ~(output.amax(dim=others) <= 0), output.numel() // int(output.shape[axis])


def _incoming_bias(node: Node, units: int) -> Tensor | None:
    """The bias of the layer or normalisation right under an activation."""
    below = next(iter(children(node)), None)
    while below is not None and operation(below) in SHAPE_ONLY:
        below = next(iter(children(below)), None)
    place = BIASES.get(operation(below)) if below is not None else None
    if below is None or place is None or len(below.next_functions) <= place:
        return None
    bias = parameter_behind(below.next_functions[place][0])
    if bias is None or not is_plain(bias) or tuple(bias.shape) != (units,):
        return None
    return bias.detach().float()


# --------------------------------------------------------------------------- units near their limits


def _saturated(graph: Graph, models: ModelSensor, units: dict[Any, _Unit], line: Any) -> list[DeadFacts]:
    """Sigmoids and tanhs between two layers of one model. Gates and outputs are meant to reach their limits."""
    nodes = list(graph.named("Sigmoid", "Tanh"))[:RELUS]
    if not nodes:
        return []
    above: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for child in children(node):
            above.setdefault(child, []).append(node)
    found = []
    for place, node in enumerate(nodes):
        output = saved(node, "result")
        if is_plain(output) and output.dim() >= 2 and _hidden(node, above, models):
            layer, kind = module_of(node, models), operation(node)
            unit = units.setdefault((line, kind, layer, place, int(output.shape[-1])), _Unit())
            numbers = spread(output).float()
            near = numbers.abs() > 1 - END if kind == "Tanh" else (numbers - 0.5).abs() > 0.5 - END
            unit.shares.append(float(near.float().mean()))
            axis = 1 if output.dim() in (4, 5) else output.dim() - 1
            found.append(
                DeadFacts(
                    layer=layer,
                    kind=kind,
                    units=int(output.shape[axis]),
                    samples=output.numel() // int(output.shape[axis]),
                    looks=len(unit.shares),
                    saturated=min(unit.shares),
                )
            )
    return found[::-1]


def _hidden(node: Node, above: dict[Node, list[Node]], models: ModelSensor) -> bool:
    """Between two layers of one model: made by a layer, taken by a layer, and by nothing as a gate."""
    below, _ = source(node)
    if below is None or operation(below) not in (*INPUTS, "Add", "NativeBatchNorm", "NativeLayerNorm"):
        return False
    takers: list[Node] = []
    waiting = list(above.get(node, ()))
    while waiting and len(takers) < 8:
        taker = waiting.pop()
        scaled = operation(taker) in ("Mul", "Div", "NativeDropout") and len(children(taker)) == 1
        if scaled or (operation(taker) in SHAPE_ONLY and len(children(taker)) == 1):
            waiting += above.get(taker, ())
        else:
            takers.append(taker)
    layers = [taker for taker in takers if operation(taker) in INPUTS]
    return bool(layers) and len(layers) == len(takers) and _within_one(node, layers, models)


def _within_one(node: Node, takers: list[Node], models: ModelSensor) -> bool:
    """Inside one model, and not the end of a part of several layers: an encoder's code, a generator's picture."""
    here, last = sequence(node), max(sequence(taker) for taker in takers)
    for model in models.known:
        calls = model.calls
        if not calls or calls[-1].depth or not here < last <= calls[-1].out_sequence:
            continue
        first = min((call.out_sequence for call in calls if call.leaf and call.out_sequence), default=here + 1)
        ends = [call for call in calls if not call.leaf and call.out_sequence == here]
        return first < here and not any(_layers_in(call, calls) > 1 for call in ends)
    return False


def _layers_in(part: Call, calls: list[Call]) -> int:
    inner = {id(module) for module in modules(part.module)}
    return sum(call.leaf and id(call.module) in inner and has_matrix(call.module) for call in calls)
