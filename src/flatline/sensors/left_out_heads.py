"""A last layer that a load left at random, beside tensors of the checkpoint under another name: do they answer as the targets ask?

The proof is a trial: on the batches of the first close steps the layer is called once more, as a copy with the checkpoint's
tensors in it. A head of another task that happens to have the same shapes agrees with the targets no more than by chance.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every
from torch.nn.parameter import is_lazy

from flatline.events import HeadLeftOut, Where
from flatline.sensors.callers import caller
from flatline.sensors.filtered import by_names_of_both, was_checked
from flatline.sensors.graph import Graph, children, operation, saved
from flatline.sensors.lifecycle import LifecycleSensor, kept_own
from flatline.sensors.loop import Loop
from flatline.sensors.models import Call, Model, readable
from flatline.sensors.tree import entry, modules, parameters, stored_names

TENSORS = 16  # that a head may have
ELEMENTS = 1 << 22  # of each of them, which are copied; and of the scores of a batch
CANDIDATES = 4  # parts of a checkpoint that fit one head
PENDING = 4  # loads
LOOKS = 3  # batches that a head is tried on


class Trial:
    """A head as it is, and what else it might be."""

    def __init__(
        self, model: nn.Module, head: nn.Module, path: str, candidates: Mapping[str, dict[str, Tensor]]
    ) -> None:
        self.model, self.head, self.path = weakref.ref(model), weakref.ref(head), path
        self.kind = type(model).__name__
        self.candidates, self.where = candidates, caller()
        self.tensors = len(next(iter(candidates.values())))
        self.entered: Any = None  # what it was called with in this step, and what it made of it
        self.looks = self.rows = 0
        self.hits, self.losses = dict.fromkeys(["", *candidates], 0), dict.fromkeys(["", *candidates], 0.0)
        self.labels: dict[int, int] = {}

    def try_all(self, target: Tensor, ignored: Any) -> None:
        """One more batch: the answers of the head as it is, and of each candidate."""
        head, (given, made) = self.head(), self.entered
        like = next(parameters(head), given) if head is not None else given
        given = given.to(like.dtype) if given.is_floating_point() else given  # autocast is over
        self.looks += 1
        asked = target != ignored if isinstance(ignored, int) else torch.ones_like(target, dtype=torch.bool)
        self.rows += int(asked.sum())
        for label, count in zip(
            *(each.tolist() for each in torch.unique(target[asked], return_counts=True)), strict=True
        ):
            self.labels[label] = self.labels.get(label, 0) + count
        self._score("", made, target, asked)
        for name, tensors in self.candidates.items() if head is not None else ():
            self._score(name, _with(head, tensors)(given), target, asked)

    def _score(self, name: str, scores: Tensor, target: Tensor, asked: Tensor) -> None:
        scores, wanted = (
            scores.reshape(target.numel(), -1).float()[asked.reshape(-1)],
            target.reshape(-1)[asked.reshape(-1)],
        )
        self.hits[name] += int((scores.argmax(1) == wanted).sum())
        self.losses[name] += float(nn.functional.cross_entropy(scores, wanted, reduction="sum"))


def _with(head: Any, tensors: dict[str, Tensor]) -> nn.Module:
    """A copy of a head with other tensors, in eval mode: it draws nothing, and the head's statistics stay."""
    twin: nn.Module = copy.deepcopy(head)
    twin.load_state_dict(tensors, strict=False)
    return twin.eval()


class LeftOutHeads:
    """Told of loads, of modules that ran, and of graphs, on close steps."""

    def __init__(self, loop: Loop, lifecycle: LifecycleSensor) -> None:
        self.loop, self.lifecycle = loop, lifecycle
        self.trials: list[Trial] = []

    def loaded(self, module: nn.Module, state: Any, missing: tuple[str, ...], assigned: bool) -> None:
        """What was left out on either side, if it is one part of the model and the like of it."""
        if not isinstance(state, Mapping) or len(self.trials) >= PENDING or not self.loop.wants(HeadLeftOut):
            return
        known = set(stored_names(module))
        left = {name: t for name, t in state.items() if name not in known and isinstance(t, Tensor) and readable(t)}
        missing = missing or tuple(kept_own(module, state))
        if missing and not left and by_names_of_both(caller()):
            left = {name: t for name, t in self._filtered_out(state) if name not in known}
        path = _common(missing) if left and 0 < len(missing) <= TENSORS else ""
        head = _part(module, path) if path else None
        if head is None or not _plain(head) or was_checked(caller()):
            return
        mine = {name: (name.removeprefix(f"{path}."), _tensor(module, name)) for name in missing}
        candidates = dict(list(_candidates(mine, left))[:CANDIDATES])
        if candidates:
            self.trials.append(Trial(module, head, path, candidates))

    def _filtered_out(self, state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
        """What a filter of the script's left of the file that this was made of."""
        given = {id(value) for value in state.values()}
        for file in self.lifecycle.files:
            if not given.isdisjoint(file.refs):
                found = ((name, file.refs[key]()) for name, (key, _) in file.named.items() if key not in given)
                yield from ((name, tensor) for name, tensor in found if tensor is not None and readable(tensor))

    def after_module(self, model: Model, call: Call, args: Any, outputs: list[Tensor]) -> None:
        """Is this a head that was left out?"""
        for trial in self.trials:
            if (
                trial.head() is call.module
                and not _hooked_everywhere()
                and call.grad_enabled
                and len(outputs) == len(args) == 1
            ):
                trial.entered = args[0].detach(), outputs[0].detach()

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """A backward is about to begin from a loss over what it made."""
        waiting = [trial for trial in self.trials if trial.entered is not None]
        for trial in waiting:
            for scores, target, ignored in _losses(graph):
                if trial.entered is not None and _is_made_of(scores, trial.entered[1]):
                    with torch.no_grad():
                        trial.try_all(target, ignored)
                    trial.entered = None
            trial.entered = None
            if trial.looks >= LOOKS:
                self.trials.remove(trial)
                self._tell(trial)

    def _tell(self, trial: Trial) -> None:
        if not self._rest_learns(trial):
            return
        best = max(trial.candidates, key=lambda name: trial.hits[name])
        rows = max(1, trial.rows)
        self.loop.emit(
            HeadLeftOut(
                step=self.loop.step,
                where=trial.where,
                model=trial.kind,
                head=trial.path,
                stored=best,
                tensors=trial.tensors,
                samples=trial.rows,
                commonest=max(trial.labels.values(), default=0) / rows,
                agrees=trial.hits[best] / rows,
                agrees_now=trial.hits[""] / rows,
                loss=trial.losses[best] / rows,
                loss_now=trial.losses[""] / rows,
            )
        )

    def _rest_learns(self, trial: Trial) -> bool:
        """More than the head is trained: on a body that stays, a classifier is learned anew on purpose, as for balanced classes."""
        model, head = trial.model(), trial.head()
        if model is None or head is None:
            return False
        held = frozenset[int]().union(*(state.ids for state in self.loop.states))
        own = {id(p) for p in parameters(head)}
        return any(p.requires_grad and id(p) in held and id(p) not in own for p in parameters(model))


def _common(names: tuple[str, ...]) -> str:
    """The innermost module that all of these lie in."""
    parts = [name.split(".")[:-1] for name in names]
    together = 0
    while all(len(each) > together for each in parts) and len({each[together] for each in parts}) == 1:
        together += 1
    return ".".join(parts[0][:together])


def _part(module: nn.Module, path: str) -> nn.Module | None:
    part: Any = module
    for name in path.split("."):
        part = entry(part._modules, name) if part is not None else None
    return part  # type: ignore[no-any-return]


def _plain(head: nn.Module) -> bool:
    """Made of torch's own layers, without hooks: to call a copy of it does nothing else."""
    layers = list(modules(head))
    own = all(type(each).__module__.startswith("torch.nn.") for each in layers)
    return own and not any(each._forward_hooks or each._forward_pre_hooks for each in layers)


def _hooked_everywhere() -> bool:
    """A hook on all modules that is not ours would be called for a copy, too."""
    hooks = (*every._global_forward_hooks.values(), *every._global_forward_pre_hooks.values())
    return any((getattr(hook, "__module__", None) or "").partition(".")[0] != "flatline" for hook in hooks)


def _tensor(module: nn.Module, name: str) -> Any:
    path, _, last = name.rpartition(".")
    owner: Any = _part(module, path)
    found = entry(owner._parameters, last)
    return found if found is not None else entry(owner._buffers, last)


def _candidates(mine: dict[str, tuple[str, Any]], left: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Parts of a checkpoint with the same names below them and the same shapes; or all that is left, in the same order."""
    first = next(iter(mine.values()))[0]
    prefixes = [name.removesuffix(first) for name in left if name.endswith("." + first) or name == first]
    found = False
    for prefix in prefixes:
        given = {below: left.get(prefix + below) for below, _ in mine.values()}
        if all(_fits(t, given[below]) for below, t in mine.values()):
            found = True
            yield prefix.removesuffix("."), {below: t.detach().clone() for below, t in given.items() if t is not None}
    pairs = list(zip(mine.values(), left.items(), strict=False))
    in_order = len(mine) == len(left) and all(
        _fits(t, other) and below.rpartition(".")[2] == name.rpartition(".")[2] for (below, t), (name, other) in pairs
    )
    if in_order and not found:
        yield (
            _common(tuple(left)) or next(iter(left)),
            {below: other.detach().clone() for (below, _), (_, other) in pairs},
        )


def _fits(mine: Any, other: Tensor | None) -> bool:
    return (
        mine is not None
        and not is_lazy(mine)
        and other is not None
        and mine.shape == other.shape
        and other.numel() <= ELEMENTS
    )


def _losses(graph: Graph) -> Iterator[tuple[Tensor, Tensor, Any]]:
    """Logarithms of probabilities, targets and the target that is left out, of each cross-entropy."""
    for node in graph.named("NllLoss"):
        scores, target = saved(node, "self"), saved(node, "target")
        below = children(node)
        if isinstance(scores, Tensor) and isinstance(target, Tensor) and below and operation(below[0]) == "LogSoftmax":
            yield scores.detach(), target.detach(), saved(node, "ignore_index")


def _is_made_of(scores: Tensor, made: Tensor) -> bool:
    """The probabilities are those of what a layer made."""
    if (
        scores.dim() != 2
        or scores.numel() > ELEMENTS
        or made.numel() != scores.numel()
        or made.shape[-1] != scores.shape[-1]
    ):
        return False
    again = made.reshape(scores.shape).float().log_softmax(1)
    return torch.allclose(again, scores.float(), rtol=1e-2, atol=1e-2)
