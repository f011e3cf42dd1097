"""Sees every backward before it runs: reads the graph closely on some steps, the loss's value on all."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any

import torch

from flatline.events import BackwardFacts, BackwardStarted, LossComputed, LossNotFinite, Where
from flatline.sensors import forensics, losses
from flatline.sensors.annealed import AnnealedSensor
from flatline.sensors.bad_data import bad_data
from flatline.sensors.callers import caller, users_frame
from flatline.sensors.graph import Graph, walk
from flatline.sensors.imbalance import Imbalance
from flatline.sensors.kept import Kept
from flatline.sensors.loop import TAPE_LIMIT, Loop, OptimizerState
from flatline.sensors.models import ModelSensor, readable
from flatline.sensors.optimizers import is_nonzero, probe_norms, signature, wiped
from flatline.sensors.outliers import Outliers
from flatline.sensors.patching import Patches, unseen_by_dynamo
from flatline.sensors.sharded import as_held
from flatline.sensors.sources import severing_call
from flatline.sensors.threads import Training
from flatline.sensors.tree import parameters

PROBES = 3
FEW_LOOKS = 4
MANY_NODES = 30_000  # graph nodes walked in one step
DEFERRED = 32  # losses on a device are read this many at a time
JOURNAL = 100_000  # losses that wait to be handed on
GRADS = 12  # calls of autograd.grad whose graph is read
LIVED_THROUGH = 5  # losses in a row that are not finite, and whose steps a GradScaler skips
SCALED_TOLD = 8  # a GradScaler lives through losses that are not finite: so many of them are told


class BackwardSensor:
    """One choke point of torch under all ways to call backward."""

    def __init__(self, loop: Loop, patches: Patches, models: ModelSensor) -> None:
        self.loop, self.patches, self.models = loop, patches, models
        self.reached_refs: dict[int, Any] = {}  # id of a parameter that some loss reached -> weak reference
        self.opaque = False
        self.where: Where | None = None
        self.raw_losses: dict[int, Any] = {}  # id of a scaled loss -> (raw loss, scale, what lets go of them)
        self.not_finite_told = 0
        loop.begins.append(self._begin)
        self.on_backward: list[Any] = []  # called on closely watched steps
        self.on_graph: list[Any] = []  # called with every graph that was walked, and the user's line, before it runs
        self.fed: Any = None  # called after every backward
        self.fed_lightly: Any = None  # the same in ordinary steps
        self.begins: Any = None  # called before every backward
        self.ended: Any = None  # called with its graph, if that was walked, when all else was done
        self.watch: Any = None  # of --on-nan: told of every backward, none is passed over lightly
        self.outliers = Outliers(loop)
        self._compare = patches.guard_inner(self.outliers.add)
        self.imbalance = Imbalance(loop)
        self._look_at_labels = patches.guard_inner(self.imbalance.look)
        self.kept = Kept(loop)
        self.annealed = AnnealedSensor(loop)
        self._reached_keys: list[int] = []  # of the backward in progress
        self._deferred: list[tuple[int, Any, bool, list[int]]] = []  # and keys of the optimizers that it reached
        self._bad_in_a_row = 0
        self._depth = 0
        self.training = Training(patches)

    def attach(self) -> None:
        """Patch the engine's entry, or the public methods where torch has moved it."""
        around = self.patches.around
        if not around(
            torch.autograd,
            "_engine_run_backward",
            before=self._starting,
            after=self._finished,
            failed=self._failed,
            light=self._lightly() if self.watch is None else None,
        ):
            around(torch.autograd, "backward", before=self._public, after=self._public_finished, failed=self._failed)
        self.patches.on_undo(self.flush)

    def _lightly(self) -> Any:
        """An ordinary backward of a loop with one optimizer: its loss is read, a tick is written, no more."""
        loop, known, raw, outliers = self.loop, self.loop.optimizers, self.raw_losses, self.outliers
        recent, imbalance, journal = outliers.recent, self.imbalance, loop.losses
        inside = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        plain = torch.Tensor
        training, identity, fed = self.training, get_ident, self.fed_lightly or (lambda: None)

        def counted(value: float | None) -> bool:
            raw.clear()
            for state in known.values():
                state.unseen_backwards += 1
                state.backwards += 1
                if value is not None:
                    state.last_loss = value
                    if journal is not None:
                        journal.append((loop.last_loss_step, value, state.key))
                if len(tape := state.window.tape) < TAPE_LIMIT:
                    tape.append("backward")
            fed()
            return True

        def light(roots: Any, *args: Any, accumulate_grad: bool = True, **kwargs: Any) -> bool:
            if not loop.light or len(known) != 1 or not accumulate_grad or outliers.look_on or inside() != -1:
                return False
            if identity() != training.identity:
                return False
            root = roots[0]
            if raw:  # by a GradScaler: one loss, scaled as a whole, or else the careful path
                if len(raw) != 1 or id(root) not in raw:
                    return False
                root = raw[id(root)][0]
            if type(root) is not plain or root.numel() != 1 or loop.steps >= imbalance.due:
                return False
            if not root.is_cpu:
                return self._waits(root.detach(), scaled=bool(raw)) and counted(None)
            value = root.item()
            if value - value != 0.0 or value > outliers.limit:
                return False
            recent.append(value)
            if loop.first_loss is None:
                loop.first_loss = value
            loop.last_loss, loop.last_loss_step = value, loop.steps + 1
            if not -loop.largest_loss <= value <= loop.largest_loss:
                loop.largest_loss = abs(value)
            return counted(value)

        unseen_by_dynamo(light)
        return light

    def _waits(self, loss: torch.Tensor, *, scaled: bool) -> bool:
        """Keep a loss on its device; False if it is time to read them."""
        if len(self._deferred) >= DEFERRED - 1:
            return False
        self._deferred.append((self.loop.step, loss, scaled, [state.key for state in self.loop.optimizers.values()]))
        return True

    def _public(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        self._starting((tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors), accumulate_grad=True)

    def _public_finished(self, result: Any, *args: Any, **kwargs: Any) -> None:
        self._finished(result, accumulate_grad=True)

    # ------------------------------------------------------------------ before

    def _starting(self, roots: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("accumulate_grad", True):
            self._by_grad(roots, args)
            return
        if get_ident() != self.training.identity and not self.training.takes_over():
            return
        self._depth += 1  # a reentrant checkpoint runs a backward inside the backward
        if self._depth > 1 or not roots or not isinstance(roots[0], torch.Tensor):
            return
        self._accumulates = True
        if self.begins is not None:
            self.begins()
        self.models.in_backward = True
        self._factor = None
        for state in self.loop.states:
            if state.probes:
                state.signature = signature(state.probes[0])
        self._looked = self.loop.dense and readable(roots[0]) and self._may_look()
        if self._looked:
            self._look(roots[0])
        else:
            for state in self.loop.states:
                state.unseen_backwards += 1
        if self._looked or self.loop.steps >= self.imbalance.due:
            self._look_at_labels(roots[0])
        self._value(roots[0])

    # ------------------------------------------------------------------ loops that call torch.autograd.grad

    _accumulates = False  # some backward ran
    _grads = 0  # calls of autograd.grad whose graph was read

    def _by_grad(self, roots: Any, args: Any) -> None:
        """A loss whose gradients are asked for by hand, in a loop that has no backward."""
        if self._depth or (self._grads >= GRADS and not self.loop.states):
            return
        asked = self._parameters_asked(roots, args)
        if self._accumulates:
            for state in self.loop.states if asked else ():
                state.unseen_backwards += not state.ids.isdisjoint(asked)
            return
        if not asked or (get_ident() != self.training.identity and not self.training.takes_over()):
            return
        if self.loop.dense and self._grads < GRADS:
            self._grads += 1
            self._read_graph(roots[0])
        states = [state for state in self.loop.states if not state.ids.isdisjoint(asked)]
        if states or self._grads < GRADS:
            self._value(roots[0])
        for state in states:
            if "backward" not in state.window.tape:
                state.backwards += 1
                state.window.tick("backward")
            state.learned_from(self._newest)
        if states and self._newest is not None:
            self._write_down(self.loop.step, self._newest, [state.key for state in states])

    def _parameters_asked(self, roots: Any, args: Any) -> set[int]:
        """Ids of the inputs, if they are most of a model's parameters, and the output is one number; no second derivative."""
        create_graph, inputs = (args[2], args[3]) if len(args) > 3 else (True, ())
        if create_graph or not inputs or len(roots) != 1 or not isinstance(roots[0], torch.Tensor):
            return set()
        if not readable(roots[0]) or roots[0].numel() != 1 or not all(type(p) is torch.nn.Parameter for p in inputs):
            return set()
        asked = {id(p) for p in inputs}
        trained = [[p for p in parameters(model) if p.requires_grad] for model in self.models.alive()]
        return asked if any(own and 2 * len(asked & {id(p) for p in own}) >= len(own) for own in trained) else set()

    def _read_graph(self, root: torch.Tensor) -> None:
        graph = walk(root.grad_fn) if root.grad_fn is not None else None
        if graph is None or not graph.leaves:
            return
        self.where = caller()
        self.models.first_sequence = graph.first_sequence
        self._tell_losses(graph)
        for look in self.on_graph:
            look(graph, self.where)

    # ------------------------------------------------------------------ the graph

    _looked = False
    _looks: tuple[int, int, int] = (0, 0, 0)  # step, looks at it, nodes seen in them

    def _may_look(self) -> bool:
        """Every backward of a step is looked at while graphs are small; of large ones only the first few."""
        self.loop.catch_breath()
        step, looks, nodes = self._looks
        if step != self.loop.step:
            self._looks = step, looks, nodes = self.loop.step, 0, 0
        return self.loop.dense and (looks < FEW_LOOKS or nodes < MANY_NODES)

    @property
    def factor(self) -> float:
        """The constant between the loss and the root of the backward in progress, without the loss scale."""
        return self._factor.factor if self._factor is not None else 1.0

    _factor: BackwardFacts | None = None
    _graph: Graph | None = None

    def _look(self, root: torch.Tensor) -> None:
        self.where = caller()
        node = root.grad_fn
        self._leftovers()
        graph = self._graph = walk(node) if node is not None else None
        if graph is not None:
            graph.leaves = as_held(graph.leaves, self.models.alive())
        step, looks, nodes = self._looks
        self._looks = step, looks + 1, nodes + (len(graph.nodes) if graph is not None else 0)
        trainable = sum(len(state.ids) for state in self.loop.states if not state.by_hand)
        if graph is None or not graph.leaves:
            self._tell_started(root, graph, trainable)
            return
        self.opaque = self.opaque or graph.opaque
        self.reached_refs.update((key, weakref.ref(tensor)) for key, tensor in graph.leaves.items())
        self._choose_probes(graph)
        self.models.first_sequence = graph.first_sequence
        self._tell_started(root, graph, trainable)
        found = self._tell_losses(graph)
        self._factor = losses.backward_facts(graph, found, where=self.where, scale=self._scale(root))
        for look in self.on_graph:
            look(graph, self.where)
        self.kept.loss(graph, self.where)

    def _tell_losses(self, graph: Graph) -> list[LossComputed]:
        found = losses.read(graph, self.models, step=self.loop.step, where=self.where)
        for loss in found:
            self.loop.emit(loss)
        self.annealed.after_losses(found)
        self.models.forget_answers()
        return found

    def _tell_started(self, root: torch.Tensor, graph: Graph | None, trainable: int) -> None:
        hint, place = severing_call(self.where) if graph is None else ("", None)
        self.loop.emit(
            BackwardStarted(
                step=self.loop.step,
                where=self.where,
                has_graph=graph is not None,
                is_leaf=root.is_leaf and root.requires_grad,
                reached=len(graph.leaves) if graph is not None else 0,
                source_hint=hint,
                hint_where=place,
                optimizer_parameters=0 if self._held(root) else trainable,
            )
        )

    def _held(self, root: torch.Tensor) -> bool:
        return any(id(root) in state.ids for state in self.loop.states)

    def _leftovers(self) -> None:
        """Are gradients of before the last step still there, about to be added to?"""
        for state in self.loop.states:
            window = state.window
            if wiped(state):
                window.tick("zero")
            if state.closure:
                again = "backward" in window.tape  # a closure runs several times within one step
            else:
                again = bool(state.steps) and ("backward" not in window.tape or window.fresh)
            if not again:
                continue
            held = [p.grad for p in state.probes if p.grad is not None]
            untouched = "zero" not in window.tape and not state.touched and not _worked_on(state)
            window.leftover = untouched and any(is_nonzero(g) for g in held)

    def _choose_probes(self, graph: Graph) -> None:
        for state in self.loop.states:
            mine = [p for key, p in graph.leaves.items() if key in state.ids]
            if mine and not any(p is q for p in state.probes for q in mine):
                state.probes = sorted(mine, key=lambda p: p.numel())[:PROBES]
                state.signature = signature(state.probes[0])

    def note_scaled(self, scaled: torch.Tensor, loss: Any, scale: float) -> None:
        """A GradScaler has scaled a loss, which is kept no longer than what came of it, or its backward."""
        losses, key = self.raw_losses, id(scaled)

        def gone(_: Any) -> None:
            losses.pop(key, None)
            losses[0] = None, 1.0  # that there was one: it may be a part of a sum

        losses[key] = loss, scale, weakref.ref(scaled, gone)

    def _scale(self, root: torch.Tensor) -> float:
        entry = self.raw_losses.get(id(root))
        return float(entry[1]) if entry is not None else 1.0

    # ------------------------------------------------------------------ the loss's value

    _newest: float | None = None  # the newest loss that was read

    def _value(self, root: torch.Tensor) -> None:
        self._newest, self._reached_keys = None, []
        raw, scaled = root, bool(self.raw_losses)
        if self.watch is not None:
            self.watch.begins(self.raw_losses.get(id(root), (root,))[0], scaled)
        if scaled:
            known = self.raw_losses.pop(id(root), None)
            self.raw_losses.clear()
            if known is None:
                return  # a sum of scaled losses: it may overflow
            raw = known[0]
        if raw.numel() != 1 or not raw.is_floating_point() or not readable(raw):
            return
        if raw.is_cpu:
            self._read(self.loop.steps + 1, raw.item(), raw, scaled)
        else:
            self._deferred.append((self.loop.step, raw.detach(), scaled, self._reached_keys))
            if self.loop.dense or self.watch is not None or len(self._deferred) >= DEFERRED:
                self.flush(raw)

    def _begin(self) -> None:
        """Another training has a first loss that is not finite of its own."""
        self.not_finite_told = self._bad_in_a_row = 0

    def reaches(self, parameter: torch.Tensor) -> bool:
        """Whether some loss that was looked at reached this parameter."""
        ref = self.reached_refs.get(id(parameter))
        return ref is not None and ref() is parameter

    def flush(self, newest: torch.Tensor | None = None) -> None:
        """Read the losses kept on the device, in one transfer. The graph of the newest may still be there."""
        waiting, self._deferred = self._deferred, []
        if waiting:
            values = torch.stack([entry[1].float().reshape(()) for entry in waiting]).tolist()
            for (step, _, scaled, keys), value in zip(waiting, values, strict=True):
                last = value is values[-1] and step == waiting[-1][0]
                self._read(step, value, newest if last else None, scaled)
                if keys:  # else its backward has not begun
                    self._write_down(step, value, keys)

    def _write_down(self, step: int, value: float, keys: list[int]) -> None:
        """For those who want the loss of every step."""
        journal = self.loop.losses
        if journal is not None and len(journal) < JOURNAL:
            journal.append((step, value, keys))

    def _read(self, step: int, value: float, root: torch.Tensor | None, scaled: bool) -> None:
        loop, self._newest = self.loop, value
        if value - value == 0.0:
            self._bad_in_a_row = 0
            loop.first_loss = value if loop.first_loss is None else loop.first_loss
            loop.last_loss, loop.last_loss_step = value, step
            loop.largest_loss = max(abs(value), loop.largest_loss)
            self._compare(step, value, root)
            return
        self._bad_in_a_row += 1
        self.not_finite_told += 1
        if self.not_finite_told > (SCALED_TOLD if scaled else 1):
            return
        states = loop.states
        first = forensics.origin(root, self.models, states)
        often = self.not_finite_told == SCALED_TOLD and step <= 3 * SCALED_TOLD
        lasting = self._bad_in_a_row >= LIVED_THROUGH or often
        calm = scaled and first.kind in ("operation", "unknown") and not lasting
        where = caller() if root is not None else self.where
        if self.watch is not None:
            self.watch.loss_is_bad(calm)
        loop.emit(
            LossNotFinite(
                step=step,
                where=where,
                value=str(value),
                last_finite=loop.last_loss,
                first_finite=loop.first_loss,
                largest=loop.largest_loss,
                last_finite_step=loop.last_loss_step,
                origin=first,
                gradient_note=forensics.risky_operations(root, self.models) if first.kind == "weights" else "",
                data_note=bad_data(users_frame()) if first.kind == "weights" else "",
                lr=max(states[0].peak_lr, states[0].lr) if states and not states[0].by_hand else None,
                built_with=_raised_from(states[0]) if states else None,
                optimizer=states[0].facts.name if states else "",
                scaled=scaled,
                in_a_row=self._bad_in_a_row,
                in_all=self.not_finite_told,
            )
        )
        if self.watch is not None:
            self.watch.loss_was_told(calm, str(value), where)

    # ------------------------------------------------------------------ after

    def _finished(self, result: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("accumulate_grad", True):
            return
        self._depth -= 1
        if self._depth:
            return
        self.models.in_backward = False
        graph, self._graph = self._graph, None
        if self.loop.dense:
            for callback in self.on_backward:
                callback()
        if self.fed is not None:
            self.fed()
        states = self.loop.states
        reached = [state for state in states if self._reached(state, graph)]
        for state in reached:
            self._count(state)
        keys = self._reached_keys
        keys += [state.key for state in (states if len(states) == 1 else reached)]
        for state in reached if len(states) > 1 else ():
            state.window.fed.append(keys)
        if self._newest is not None:
            self._write_down(self.loop.step, self._newest, keys)
        if self.ended is not None:
            self.ended(graph if self._looked else None)

    def _failed(self) -> None:
        self._depth = 0
        self.models.in_backward = False
        self._graph = None

    def _reached(self, state: OptimizerState, graph: Graph | None) -> bool:
        if self._looked and graph is not None:
            return not state.ids.isdisjoint(graph.leaves)
        return bool(state.probes) and signature(state.probes[0]) != state.signature

    def _count(self, state: OptimizerState) -> None:
        window = state.window
        state.backwards += 1
        state.learned_from(self._newest)
        window.tick("backward")
        if self._looked and len(window.backwards) < 256:
            window.backwards.append(self._factor or BackwardFacts(where=self.where, plain=False))
        if self.loop.dense:
            window.norms_after_backward = probe_norms(state)


def _worked_on(state: OptimizerState) -> bool:
    """Since the last step began somebody wrote to the gradients: a momentum kept in them, what was not sent yet."""
    pairs = zip(state.probes, state.stepped_with, strict=False)
    return any(signature(parameter) != was for parameter, was in pairs)


def _raised_from(state: OptimizerState) -> float | None:
    """The rate that an optimizer was given, if it has never been as high as now."""
    optimizer = state.ref()
    own = getattr(optimizer, "defaults", {}).get("lr")  # a step by hand has none
    return own if isinstance(own, float) and own < state.lr >= state.peak_lr else None
