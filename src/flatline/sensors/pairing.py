"""Do labels belong to their inputs? A small probe on samples of both, and the statement that tore them apart."""

from __future__ import annotations

import ast
import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from flatline.events import Where
from flatline.sensors.seeds import FUNCTIONS, SEEDING, tree_of

Tensor = torch.Tensor
ROWS = 2_048  # samples kept, at most
FEATURES = 32  # numbers kept of each
NEIGHBOURS = 5
ENOUGH_ROWS = 150
ENOUGH_STEPS = 25
RECENT = 8  # close steps
LEARNED = 0.85  # of the labels' entropy: a loss below says that the inputs tell the labels
CHANCE = 0.96


class Pairing:
    """Inputs and labels of one loss, kept while the model does not tell one from the other."""

    def __init__(self) -> None:
        self.probe = Probe()
        self.counts: Counter[int] = Counter()
        self.learned = False
        self._surprises: deque[float] = deque(maxlen=RECENT)

    def add(self, step: int, inputs: Tensor, labels: Tensor, surprise: float) -> None:
        """One batch, and how much its labels surprised the model."""
        if self.learned or self.probe.foreign(inputs):
            return
        self.counts.update(labels.tolist())
        self.probe.add(inputs, labels)
        if step > RECENT:
            self._surprises.append(surprise)
        if len(self._surprises) >= 3 and self.surprise < LEARNED * self.entropy:
            self.learned, self.probe = True, Probe()

    @property
    def surprise(self) -> float:
        """Mean over the last close steps."""
        return sum(self._surprises) / max(1, len(self._surprises))

    @property
    def entropy(self) -> float:
        """Of the labels, in nats."""
        total = sum(self.counts.values())
        return -math.fsum(n / total * math.log(n / total) for n in self.counts.values())

    def at_chance(self, step: int) -> bool:
        """Enough was seen, and the model still only knows how frequent the labels are."""
        enough = step >= ENOUGH_STEPS and self.probe.rows >= ENOUGH_ROWS and len(self._surprises) >= 3
        return not self.learned and enough and len(self.counts) > 1 and self.surprise >= CHANCE * self.entropy


class Probe:
    """Samples of inputs and labels, and how well simple rules tell one from the other."""

    def __init__(self) -> None:
        self.rows = 0
        self._inputs: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._known: set[float] = set()
        self._shape: tuple[int, ...] | None = None

    def foreign(self, inputs: Tensor) -> bool:
        """Of another shape than those kept: of another model, or not of one size."""
        shape = tuple(inputs.shape[1:])
        self._shape = shape if self._shape is None else self._shape
        return shape != self._shape

    def add(self, inputs: Tensor, labels: Tensor) -> None:
        """One batch; samples that were there before are left out."""
        flat = inputs.detach().reshape(inputs.shape[0], -1)
        width = flat.shape[1]
        spread = flat[:, :: -(-width // FEATURES)].float().cpu()
        keys = (spread.double() * torch.arange(1, spread.shape[1] + 1)).sum(1).tolist()
        new = [at for at, key in enumerate(keys) if key not in self._known and key - key == 0.0][: ROWS - self.rows]
        self._known.update(keys[at] for at in new)
        if new:
            self.rows += len(new)
            self._inputs.append(spread[new])
            self._labels.append(labels.detach().cpu()[new])

    def accuracy(self) -> tuple[float, float, float]:
        """Shares right on samples not learned from: nearest class mean, nearest neighbours, the commonest class."""
        inputs, labels = torch.cat(self._inputs), torch.cat(self._labels).long()
        inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-12)
        even = torch.arange(len(labels)) % 2 == 0
        halves = [(even, ~even), (~even, even)]
        linear = sum(_class_means(inputs[a], labels[a], inputs[b], labels[b]) for a, b in halves)
        near = sum(_neighbours(inputs[a], labels[a], inputs[b], labels[b]) for a, b in halves)
        common = int(torch.bincount(labels).max())
        return linear / len(labels), near / len(labels), common / len(labels)


def _class_means(inputs: Tensor, labels: Tensor, others: Tensor, truth: Tensor) -> int:
    classes = torch.unique(labels)
    means = torch.stack([inputs[labels == c].mean(0) for c in classes])
    return int((classes[torch.cdist(others, means).argmin(1)] == truth).sum())


def _neighbours(inputs: Tensor, labels: Tensor, others: Tensor, truth: Tensor) -> int:
    nearest = torch.cdist(others, inputs).topk(min(NEIGHBOURS, len(inputs)), largest=False).indices
    return int((labels[nearest].mode(1).values == truth).sum())


# --------------------------------------------------------------------------- the statement that tore them apart


@dataclass(slots=True)
class Permutation:
    """A random order that the code made, and the arrays that it was put to."""

    node: ast.expr
    arrays: set[str]
    escaped: bool = False  # it is used in a way that is not understood


def lone_permutation(file: str) -> tuple[str, Where | None]:
    """The statement that puts one array into a random order that no other array is put into; '' if there is none."""
    tree = tree_of(file)
    if tree is None:
        return "", None
    for scope in (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *FUNCTIONS))):
        for node in (*_permuted(scope, tree), *_shuffled(scope)):
            return ast.unparse(node), Where(file, node.lineno, getattr(scope, "name", "<module>"))
    return "", None


def _permuted(scope: ast.AST, tree: ast.Module) -> Iterator[ast.expr]:
    """``y[torch.randperm(n)]``, or ``y[order]`` where ``order`` is a permutation that nothing else is indexed with."""
    nodes = list(_own(scope))
    for node in nodes:
        if isinstance(node, ast.Subscript) and any(_makes_order(inner) for inner in ast.walk(node.slice)):
            yield node
        elif isinstance(node, ast.Assign) and _makes_order(_bare(node.value)):
            name = ast.unparse(node.targets[0])
            found = _uses(name, list(ast.walk(tree)) if "." in name else nodes)
            if found is not None and len(found.arrays) == 1 and not found.escaped:
                yield found.node


def _uses(name: str, nodes: list[ast.AST]) -> Permutation | None:
    """The arrays that a permutation, or a part of it, indexes."""
    names = {name}
    for node in nodes:  # parts of it: `some = order[:n]`, `for i in order`
        if isinstance(node, ast.Assign) and _is_part(node.value, names):
            names.add(ast.unparse(node.targets[0]))
        elif isinstance(node, (ast.For, ast.comprehension)) and _is_part(node.iter, names):
            names.add(ast.unparse(node.target))
    indexings = [
        n for n in nodes if isinstance(n, ast.Subscript) and _mentions(n.slice, names) and not _is_part(n, names)
    ]
    counted = sum(_mentions(n.slice, names) for n in indexings)
    parts = sum(_mentions(n.value, names) for n in nodes if isinstance(n, ast.Assign) and _is_part(n.value, names))
    parts += sum(_mentions(n.iter, names) for n in nodes if isinstance(n, (ast.For, ast.comprehension)))
    read = sum(_loads(n, names) for n in nodes)
    if not indexings:
        return None
    return Permutation(indexings[0], {ast.unparse(n.value) for n in indexings}, escaped=read > counted + parts)


def _shuffled(scope: ast.AST) -> Iterator[ast.expr]:
    """``random.shuffle(y)`` of one array; not of indices, nor of several arrays after one and the same seed."""
    nodes = list(_own(scope))
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    shuffles = [call for call in calls if call.func.attr == "shuffle" and len(call.args) == 1]  # type: ignore[attr-defined]
    seeds = [call for call in calls if call.func.attr in SEEDING]  # type: ignore[attr-defined]
    for call in shuffles if len(shuffles) < 2 or len(seeds) < 2 else []:
        name = {ast.unparse(call.args[0])}
        used = [n.slice for n in nodes if isinstance(n, ast.Subscript)]
        used += [n.iter for n in nodes if isinstance(n, (ast.For, ast.comprehension))]
        if not any(_mentions(index, name) for index in used):
            yield call


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of functions in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from _own(child)


def _makes_order(node: ast.AST) -> bool:
    """``torch.randperm(n)``, ``rng.permutation(n)``, ``random.sample(range(n), n)``."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    ranged = isinstance(node.args[0], ast.Call) and ast.unparse(node.args[0].func) == "range"
    return called in ("randperm", "permutation") or (called == "sample" and ranged)


def _bare(node: ast.AST) -> ast.AST:
    """Without ``.tolist()``, ``.to(device)`` and the like."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not _makes_order(node):
        node = node.func.value
    return node


def _is_part(node: ast.AST, names: set[str]) -> bool:
    """``order``, ``order[:n]``, ``order.split(n)``."""
    node = _bare(node)
    while isinstance(node, ast.Subscript):
        node = _bare(node.value)
    return ast.unparse(node) in names


def _loads(node: ast.AST, names: set[str]) -> int:
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return 0
    return int(ast.unparse(node) in names)


def _mentions(node: ast.AST, names: set[str]) -> int:
    return sum(_loads(inner, names) for inner in ast.walk(node))
