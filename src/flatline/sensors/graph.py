"""Reads the autograd graph under a loss: what feeds it, what it reaches. Read before backward frees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from flatline.sensors.patching import Patches

Node = Any  # torch.autograd.graph.Node; the attributes read here differ by operation

NODE_LIMIT = 200_000
OPAQUE = ("CheckpointFunction", "CompiledFunction", "CompiledAutograd", "ScriptModule")
SHAPE_ONLY = {
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze", "Clone", "ToCopy",
    "Contiguous", "Slice", "Alias", "Expand", "Index", "Select", "Split", "SplitWithSizes", "Unbind", "Chunk",
    "AsStrided", "Cat", "Stack", "Movedim", "Swapaxes", "Flatten", "Unflatten", "Copy", "CopySlices", "Mt", "Repeat",
    "MaskedFill", "IndexSelect", "MaskedSelect", "ConstantPadNd", "Flip", "Roll",
}  # fmt: skip
VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze")  # the same numbers in the same order


def name_of(node: Node) -> str:
    """What torch calls it. On a node of a function of the user's, attributes are the user's."""
    return str(type(node).name(node))


def is_leaf(node: Node) -> bool:
    """It adds to the gradient of a tensor."""
    return hasattr(type(node), "variable")


def asks_alone(tensor: torch.Tensor) -> bool:
    """It asks for gradients, and nothing made it. FSDP's views of one flat weight raise an error where that is asked."""
    try:
        return tensor.requires_grad and tensor.is_leaf
    except RuntimeError:
        return False


def leaf_of(node: Node | None) -> Any:
    """That tensor, if it does."""
    return node.variable if is_leaf(node) else None  # type: ignore[union-attr]


def operation(node: Node) -> str:
    """``LogSoftmaxBackward0`` -> ``LogSoftmax``."""
    name: str = name_of(node).rsplit("::", 1)[-1]
    return name.partition("Backward")[0]


def children(node: Node) -> list[Node]:
    """The nodes that made this node's inputs, in order, constants left out."""
    return [child for child, _ in node.next_functions if child is not None]


def shape_of(node: Node) -> tuple[int, ...]:
    """Shape of the tensor that the node made; () also when torch does not tell."""
    metadata = getattr(node, "_input_metadata", None)
    return tuple(int(n) for n in metadata[0].shape) if metadata else ()


def sequence(node: Node) -> int:
    """Position of the node's operation in the forward pass."""
    return int(node._sequence_nr()) if hasattr(node, "_sequence_nr") else 0


class HookedSpans:
    """Spans of the forward pass under saved-tensor hooks: reading what was saved there would run them.

    A non-reentrant checkpoint recomputes its forward in such a hook; offloading copies back.
    """

    def __init__(self) -> None:
        self._open: list[int] = []
        self.spans: list[tuple[int, int]] = []  # to forget when the step is over

    def attach(self, patches: Patches) -> None:
        """Follow every ``saved_tensors_hooks`` block."""
        hooks = torch.autograd.graph.saved_tensors_hooks
        patches.around(hooks, "__enter__", before=self._entered)
        patches.around(hooks, "__exit__", after=self._left)

    def clear(self) -> None:
        """A step is over, and its graphs with it."""
        if self.spans:
            self.spans.clear()

    def _entered(self, hooks: Any) -> None:
        self._open.append(_position())

    def _left(self, result: Any, hooks: Any, *args: Any) -> None:
        if self._open:
            self.spans.append((self._open.pop(), _position()))

    def __contains__(self, node: Node) -> bool:
        if not self.spans and not self._open:
            return False
        place = sequence(node)
        return any(place >= start for start in self._open) or any(a <= place <= b for a, b in self.spans)


HOOKED = HookedSpans()


def _position() -> int:
    """Sequence number of the next operation."""
    read = getattr(torch._C._autograd, "_get_sequence_nr", None)
    return int(read()) if read is not None else 0


def saved(node: Node, name: str) -> Any:
    """A value that the node saved for backward, or None: it may be freed, hooked, or never have been kept."""
    if node in HOOKED:
        return None
    try:
        value = _signed(getattr(node, f"_saved_{name}", None))
    except RuntimeError:
        return None
    return None if isinstance(value, torch.Tensor) and is_freed(value) else value


def is_freed(tensor: torch.Tensor) -> bool:
    """It has a shape and no numbers: FSDP takes the storage of gathered weights away after each layer, and to read it is fatal."""
    try:
        return tensor.layout is torch.strided and tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0
    except (RuntimeError, NotImplementedError):  # no storage of its own, as under torch.func
        return False


def _signed(value: Any) -> Any:
    """Dimensions and indices as they were written: the graph keeps -1 as 2⁶⁴ - 1."""
    if isinstance(value, tuple):
        return tuple(_signed(each) for each in value)
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


@dataclass(slots=True)
class Graph:
    """Everything under one root."""

    root: Node
    nodes: list[Node] = field(default_factory=list)
    leaves: dict[int, Any] = field(default_factory=dict)  # id of the tensor -> tensor that would get a gradient
    opaque: bool = False

    @property
    def first_sequence(self) -> int:
        """Position of the earliest operation."""
        return min((sequence(node) for node in self.nodes if not is_leaf(node)), default=0)

    def named(self, *operations: str) -> Iterator[Node]:
        """Nodes of these operations."""
        return (node for node in self.nodes if operation(node) in operations)


def walk(root: Node) -> Graph:
    """The graph under a grad_fn."""
    graph = Graph(root)
    seen, waiting = {root}, [root]
    while waiting and len(graph.nodes) < NODE_LIMIT:
        node = waiting.pop()
        graph.nodes.append(node)
        if is_leaf(node):
            graph.leaves[id(node.variable)] = node.variable
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    graph.opaque = bool(waiting) or any(name_of(node).startswith(OPAQUE) for node in graph.nodes)
    return graph


def source(node: Node) -> tuple[Node | None, list[Node]]:
    """The first operation below that is more than a change of shape, and the shape-only nodes passed."""
    passed: list[Node] = []
    below = children(node)
    while len(below) == 1 and operation(below[0]) in SHAPE_ONLY:
        passed.append(below[0])
        below = children(below[0])
    return (below[0] if below else None), passed
