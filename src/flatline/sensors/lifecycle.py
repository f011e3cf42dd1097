"""What becomes of a checkpoint between the load and the first step: read, put into a model, overwritten, dropped."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn

from flatline.events import (
    AdaptersNotMade,
    CheckpointFiltered,
    CheckpointLost,
    FlagOnModule,
    RandomFrozen,
    StageNotReached,
    Where,
)
from flatline.sensors.adapters import never_made
from flatline.sensors.built_anew import built_anew
from flatline.sensors.callers import caller, users_frame
from flatline.sensors.exhausted import exhausted_unfreezing
from flatline.sensors.filtered import Named, by_names_of_both, kept_out
from flatline.sensors.flags import Flags, flagged
from flatline.sensors.fresh_heads import head_left_at_random, random_and_frozen
from flatline.sensors.guards import Run, missed_unfreezing
from flatline.sensors.left_behind import LeftBehind
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.merging import filled_for_nothing
from flatline.sensors.models import ModelSensor, readable
from flatline.sensors.own_state import OwnStateSensor
from flatline.sensors.patching import Patches
from flatline.sensors.resuming import Resuming
from flatline.sensors.stages import numbers_in, unreached_unfreezing
from flatline.sensors.thawed import ThawedLayers
from flatline.sensors.tree import buffers, named_modules, named_parameters, parameters
from flatline.sensors.unmatched import Spellings, unmatched_unfreezing
from flatline.sensors.witnessed import Witnessed

Tensor = torch.Tensor
LOADS = 32  # loads before a first step that are followed
READS = 128  # files that are remembered in all
STAGES = 4  # of one script: a source is trained and saved, its checkpoint starts the next model
MATRICES = 32  # weight matrices that are remembered of each
ELEMENTS = 128  # of each matrix
FEW = 16  # elements from which on two tensors can be said to have nothing in common
UNLIKE = 0.5  # cosine from which on they have: that of 16 independent pairs has a standard deviation of 0.25
MOST = 0.8  # of the matrices
DEPTH = 4  # of the nest in a file


class FileRead:
    """What ``torch.load`` returned."""

    def __init__(self, result: Any, where: Where | None) -> None:
        self.where = where
        tensors = list(_tensors(result))
        self.refs = {id(t): weakref.ref(t) for t in tensors}
        self.named = dict(_named(result))
        self.shapes = Counter(tuple(t.shape) for t in tensors)
        self.used = False

    def holds(self, tensor: Tensor) -> bool:
        """Whether this very tensor came from the file."""
        ref = self.refs.get(id(tensor))
        return ref is not None and ref() is tensor


def _tensors(value: Any, depth: int = DEPTH) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping) and depth:
        for item in value.values():
            yield from _tensors(item, depth - 1)


def _named(value: Any, depth: int = DEPTH) -> Iterator[tuple[str, tuple[int, tuple[int, ...]]]]:
    """Identity and shape of the tensors, by the innermost key."""
    for key, item in value.items() if isinstance(value, Mapping) and depth else ():
        if isinstance(item, Tensor):
            yield str(key), (id(item), tuple(item.shape))
        else:
            yield from _named(item, depth - 1)


class Load:
    """One state dict that was put into a module."""

    def __init__(
        self,
        module: nn.Module,
        kind: Literal["file", "own", "empty"],
        where: Where | None,
        anew: bool = False,
        without: Collection[str] = (),  # names that the state dict gave nothing for
    ) -> None:
        self.anew = anew  # the source gives its name to another model right after the load
        self.ref, self.where, self.kind = weakref.ref(module), where, kind
        self.model = type(module).__name__
        self.layout = _layout(module)
        self.tensors = len(self.layout)
        self.ran = self.overwritten = False
        given = [(n, p) for n, p in named_parameters(module) if n not in without]
        matrices = [(n, p) for n, p in given if p.dim() >= 2 and p.numel() >= FEW and readable(p)]
        every = max(1, len(matrices) // MATRICES)
        self.kept = [(name, weakref.ref(p), _elements(p)) for name, p in matrices[::every][:MATRICES]]

    def fits(self, file: FileRead) -> bool:
        """Whether the file holds tensors like most of this model's."""
        shapes = Counter(shape for _, shape in self.layout)
        return 2 * sum((shapes & file.shapes).values()) >= self.tensors > 1


def _alike(own: Mapping[str, tuple[int, ...]], file: Named) -> bool:
    """A file has tensors of a model's names and shapes, or most of its shapes."""
    if sum(name in own and own[name] == shape for name, (_, shape) in file.items()) > 1:
        return True
    shapes = Counter(own.values()) & Counter(shape for _, shape in file.values())
    return 2 * sum(shapes.values()) >= len(own) > 1


def _layout(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(p.shape)) for name, p in named_parameters(module)]


def _elements(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // ELEMENTS)][:ELEMENTS].to(torch.float32, copy=True)


def unlike(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether almost all of these tensors have nothing in common with what was there before."""
    pairs = [(old, now) for old, now in pairs if old.shape == now.shape and old.device == now.device]
    if len(pairs) < 2:
        return False
    cosines = torch.stack([torch.nn.functional.cosine_similarity(old, now, dim=0) for old, now in pairs])
    alive = torch.stack([(old.std() > 0) & now.isfinite().all() for old, now in pairs])
    strange = ((cosines.abs() < UNLIKE) & alive).sum() >= MOST * len(pairs)
    return bool(strange & (cosines.mean().abs() < UNLIKE / 2))


def kept_own(module: nn.Module, state: Any) -> list[str]:
    """Names under which a model was given its own tensors again: ``{**model.state_dict(), **fitting}``."""
    own = dict(named_parameters(module)) if isinstance(state, Mapping) else {}
    given = {name: state.get(name) for name in own}
    return [n for n, t in given.items() if isinstance(t, Tensor) and readable(t) and t.data_ptr() == own[n].data_ptr()]


class LifecycleSensor:
    """Follows what was read and loaded until training begins; at rest from then on, until a new model is loaded."""

    def __init__(self, loop: Loop, patches: Patches, models: ModelSensor, own_state: OwnStateSensor) -> None:
        self.loop, self.patches, self.models, self.own_state = loop, patches, models, own_state
        self.files: list[FileRead] = []
        self.loads: list[Load] = []
        self._left_out: list[tuple[Any, tuple[str, ...], Where | None]] = []  # module, its keys that a load missed
        self._filtered: list[tuple[CheckpointFiltered, list[tuple[Any, int]]]] = []  # and versions of what was left out
        self._loaded: dict[int, Any] = {}  # id of a parameter that was loaded -> weak reference
        self._filled: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that a state dict went into
        self._over = False
        self._numbers: dict[tuple[str, str, int], Any] = {}  # of functions that train, when they began to
        self._shares = 0, 0  # elements frozen and trainable, at the newest close step
        self._flags: list[FlagOnModule] = []  # and what is flagged, at the same
        self._modules = Flags()
        self._thawed = ThawedLayers(loop)
        self._spellings = Spellings()
        self._seen, self._rows = Witnessed(), 0
        self._stage = self._reads = self._anew = 0
        self.resuming = Resuming(loop, patches)
        self.left_behind = LeftBehind(loop)

    def attach(self) -> None:
        """Patch ``torch.load``."""
        self.patches.around(torch, "load", after=self._read, also=torch.serialization)
        self.loop.on_watch = self.patches.guard_inner(self._watch)
        self.resuming.attach()

    def _read(self, result: Any, *args: Any, **kwargs: Any) -> None:
        if self._reads < READS and len(self.files) < LOADS and isinstance(result, Mapping):
            self._reads += 1
            self.files.append(FileRead(result, caller()))
            self.resuming.read(result, caller())

    def loaded(self, module: nn.Module, state: Any, missing: tuple[str, ...], assign: bool) -> None:
        """A state dict went into a module."""
        self._filled.add(module)
        if self._over and self._built_anew(module, state):
            return
        if self._over and not self._next_stage(module):
            self._passed_on(module, state, missing)
            self.left_behind.loaded(module, state, missing, self.models.alive())
            return
        given = list(_tensors(state))
        for file in self.files:
            held = any(file.holds(t) for t in given)
            file.used = file.used or held
            if held:
                self._tell_filtered(module, state, file)
        if len(self.loads) >= LOADS or (self._stage and not self._fresh(module)):
            return
        own = {t.data_ptr() for t in (*parameters(module), *buffers(module)) if readable(t)}
        if given and not assign and all(readable(t) and t.data_ptr() in own for t in given if t.dim()):
            self.loads.append(Load(module, "own", caller()))
        elif not given and missing:
            self.loads.append(Load(module, "empty", caller()))
        elif 2 * len(missing) <= len(given):
            self._followed(module, (*missing, *kept_own(module, state)))
        if missing and 2 * len(missing) <= len(given) and len(self._left_out) < LOADS:
            self._left_out.append((weakref.ref(module), missing, caller()))

    def _tell_filtered(self, module: nn.Module, state: Any, file: FileRead) -> None:
        """A part of a file went in, and another part would have, under another name."""
        found = kept_out(module, state, file.named) if self.loop.wants(CheckpointFiltered) else None
        where = caller() if found is not None else None
        if found is not None and by_names_of_both(where) and len(self._filtered) < LOADS:
            own = dict(named_parameters(module))
            event = CheckpointFiltered(
                step=self.loop.steps,
                where=where,
                model=type(module).__name__,
                tensors=len(own),
                missing=found.missing,
                left=found.left,
                renamed=found.renamed,
                reshaped=found.reshaped,
                shapes=_two_shapes(module, found.reshaped, file.named),
            )
            self._filtered.append((event, [(weakref.ref(own[name]), own[name]._version) for name in found.missing]))

    def _tell_still_filtered(self) -> None:
        """Unless something was written into what the load had left out, as by hand, since the load."""
        for event, left in self._filtered:
            versions = [(ref(), version) for ref, version in left]
            if not any(p is not None and p._version > version for p, version in versions):
                self.loop.emit(event)
        self._filtered.clear()

    def _passed_on(self, module: nn.Module, state: Any, missing: tuple[str, ...]) -> None:
        """Weights that another model of this program may have learned."""
        names = state.keys() - set(missing) if isinstance(state, Mapping) else ()
        given = [p for name, p in named_parameters(module) if name in names]
        if len(self._loaded) < LOADS * MATRICES:
            self._loaded.update((id(p), weakref.ref(p)) for p in given)

    def _built_anew(self, module: nn.Module, state: Any) -> bool:
        """In the middle of training, and the next statements put another model in its place."""
        where = caller() if self._anew < STAGES else None
        if where is None or not isinstance(state, Mapping) or not built_anew(where.file, where.line):
            return False
        self._anew += 1
        self.loop.look_closely()
        if self.loop.dense:
            self._over = False
            self.loads.append(Load(module, "file", where, anew=True))
        return True

    def _next_stage(self, module: nn.Module) -> bool:
        """Something was read since training began, and goes into a model that neither ran nor trained."""
        if not self.files or self._stage >= STAGES or not self._fresh(module):
            return False
        self._stage += 1
        self.loop.look_closely()  # a pass of this model before it trains must not be missed
        self._over = not self.loop.dense
        return not self._over

    def _fresh(self, module: nn.Module) -> bool:
        mine = {id(p) for p in parameters(module)}
        if any(state.steps and not mine.isdisjoint(state.ids) for state in self.loop.states):
            return False
        return all(mine.isdisjoint(id(p) for p in parameters(model)) for model in self.models.alive())

    def _followed(self, module: nn.Module, missing: tuple[str, ...]) -> None:
        """The newest load of a parameter counts."""
        mine = {id(p) for p in parameters(module)}
        self._loaded.update((id(p), weakref.ref(p)) for n, p in named_parameters(module) if n not in missing)
        self.loads = [load for load in self.loads if not any(id(ref()) in mine for _, ref, _ in load.kept)]
        self.loads.append(Load(module, "file", caller(), without=missing))

    # ------------------------------------------------------------------ the first forward and the first step

    def entered(self, module: nn.Module) -> None:
        """A model is about to run: is what was loaded still in it?"""
        if self._over or not self.loads:
            return
        mine = {id(p) for p in parameters(module)}
        for load in self.loads:
            kept = [(ref(), old) for _, ref, old in load.kept]
            here = [(old, _elements(p)) for p, old in kept if p is not None and id(p) in mine and readable(p)]
            if load.ran or not here:
                continue
            load.ran = True
            load.overwritten = load.kind == "file" and unlike(here)

    def before_step(self, state: OptimizerState) -> None:
        """Training begins: tell what became of the loads."""
        if not state.steps and len(self._numbers) < STAGES:
            self._numbers.update(numbers_in(users_frame()))
        if not state.steps:
            self.models.note_classes()
            self.resuming.first_step(state)
            self._tell_merged()
            self._tell_fresh(state)
            self.left_behind.before_first_step(set(state.ids), self._loaded, self._ran())
            self._tell_still_filtered()
        self.resuming.look()
        self._thawed.before_step(state, self.models.alive())
        self._rows = max([self._rows, *(model.rows for model in self.models.known)])
        if self._numbers:
            self._shares = self._frozen_and_trainable()
            self._flags = self._flagged()
            self._modules.update(self.models.alive())
            self._spellings.update(self.models.alive())
        if self._over:
            return
        self._over = True
        unused = [file for file in self.files if not file.used]
        trained = {key for each in self.loop.states for key in each.ids}
        for load in self.loads:
            lost = self._lost(load, unused, trained)
            if lost is not None:
                self.loop.emit(lost)
        self.loads.clear()
        for ref, missing, where in self._left_out:
            self._tell_frozen(ref(), missing, where, trained)
        for kept in (self._left_out, self.files, self._loaded):
            kept.clear()

    def _tell_merged(self) -> None:
        """Weights were put into the state dict of a model that is about to train, and that dictionary into nothing."""
        running = {id(p) for model in self.models.alive() for p in parameters(model)}
        running.difference_update(id(p) for model in self._filled for p in parameters(model))
        for module, taken in self.own_state.untouched() if self.loop.wants(CheckpointLost) else ():
            own = {name: tuple(p.shape) for name, p in named_parameters(module)}
            if taken.where is None or running.isdisjoint(id(p) for p in parameters(module)):
                continue
            file = next((file for file in self.files if _alike(own, file.named)), None)
            if file is None and not any(len(own.keys() & t.versions.keys()) > 1 for t in self.own_state.others(module)):
                continue
            line = filled_for_nothing(taken.where.file, taken.where.line)
            if line is not None:
                self._lost_in_dictionary(module, Where(taken.where.file, line, taken.where.function), file)

    def _lost_in_dictionary(self, module: nn.Module, where: Where, file: FileRead | None) -> None:
        if file is not None:
            file.used = True
        self.loop.emit(
            CheckpointLost(
                step=self.loop.step,
                where=where,
                kind="merged",
                model=type(module).__name__,
                tensors=len(_layout(module)),
                read_where=file.where if file is not None else None,
                in_file=sum(file.shapes.values()) if file is not None else 0,
            )
        )

    def _tell_frozen(
        self, module: nn.Module | None, missing: tuple[str, ...], where: Where | None, trained: set[int]
    ) -> None:
        if module is None:
            return
        ran = self._ran()
        layers = [
            name
            for name, layer in named_modules(module)
            if id(layer) in ran and f"{name}.weight" in missing and random_and_frozen(layer, self._loaded)
        ]
        trains = sum(p.requires_grad and id(p) in trained for p in parameters(module))
        if layers and trains:
            self.loop.emit(
                RandomFrozen(
                    step=self.loop.step,
                    where=where,
                    model=type(module).__name__,
                    layers=tuple(layers),
                    loaded=sum(name not in missing for name, _ in named_parameters(module)),
                    trains=trains,
                )
            )

    def _ran(self) -> set[int]:
        """Modules that ran with gradients."""
        return {key for model in self.models.known for key in model.ran}

    def _tell_fresh(self, state: OptimizerState) -> None:
        """A second training of the same body, which has put a new head on it and then frozen all there was."""
        before = [each for each in self._states() if each is not state]
        if not before or not self.loop.wants(RandomFrozen):
            return
        for model in self.models.known:
            head = head_left_at_random(model, state, before, self.loop.born, self._loaded)
            if head is not None:
                self.loop.emit(RandomFrozen(step=self.loop.step, where=state.where, source="training", **head))
                return

    def finish(self, how: str) -> None:
        """At the end: are layers frozen that a later stage would have unfrozen?"""
        states = self._states()
        if how != "finished" or not states:
            return
        self._thawed.finish()
        frozen, trainable = self._frozen_and_trainable()
        if not trainable:  # the function that trained has returned, and its models are gone
            frozen, trainable = self._shares
        if frozen and trainable:
            self._tell_adapters(*(self._shares if all(self._shares) else (frozen, trainable)))
        files = {state.where.file for state in states if state.where is not None}
        for flag in self._flagged() if self.models.alive() else self._flags:
            self.loop.emit(flag)
        found = (unreached_unfreezing(file, self._numbers, self.loop.steps) for file in sorted(files) if frozen)
        stage = next((each for each in found if each is not None), None)
        told: dict[str, Any] = {"step": self.loop.steps, "frozen": frozen, "trainable": trainable}
        if stage is not None:
            told |= {"condition": stage.condition, "last": stage.last, "written": stage.written}
            self.loop.emit(StageNotReached(where=Where(stage.file, stage.line), **told))
        elif frozen and trainable and not self._tell_exhausted(files, told) and not self._tell_missed(files, told):
            self._tell_unmatched(files, told)

    def _tell_exhausted(self, files: set[str], told: dict[str, Any]) -> bool:
        found = next((e for f in sorted(files) if (e := exhausted_unfreezing(f)) is not None), None)
        if found is not None:
            told |= {"condition": found.name, "why": "exhausted", "counted": found.made, "last": found.used_up}
            self.loop.emit(StageNotReached(where=Where(found.file, found.line), **told))
        return found is not None

    def _tell_missed(self, files: set[str], told: dict[str, Any]) -> bool:
        self._seen.end(self.loop.steps)
        run = Run(self._seen, self.loop.steps, self._rows, self._numbers)
        found = next((m for f in sorted(files) if (m := missed_unfreezing(f, run)) is not None), None)
        if found is not None:
            told |= {"condition": found.condition, "why": found.why, "low": found.low, "high": found.high}
            told["counted"] = found.counted
            self.loop.emit(StageNotReached(where=Where(found.file, found.line), **told))
        return found is not None

    def _tell_unmatched(self, files: set[str], told: dict[str, Any]) -> None:
        self._spellings.update(self.models.alive())
        names = self._spellings.names
        found = next((u for f in sorted(files) if (u := unmatched_unfreezing(f, names)) is not None), None)
        if found is not None and names:
            told |= {"condition": found.condition, "words": found.words, "parts": tuple(self._spellings.parts)}
            self.loop.emit(StageNotReached(where=Where(found.file, found.line), **told))

    def _tell_adapters(self, frozen: int, trainable: int) -> None:
        found = never_made(self.models.made) if self.loop.wants(AdaptersNotMade) else None
        if found is None:
            return
        names = [name for m in self.models.alive() for name, layer in named_modules(m) if hasattr(layer, "weight")]
        self.loop.emit(
            AdaptersNotMade(
                step=self.loop.steps,
                where=Where(found.file, found.line),
                adapter=found.adapter,
                function=found.function,
                targets=found.targets,
                layers=tuple(dict.fromkeys(name.rpartition(".")[2] for name in names if name)),
                frozen=frozen,
                trainable=trainable,
            )
        )

    def _watch(self) -> None:
        """On a light step now and then."""
        self.resuming.look()
        self._seen.look(users_frame(), self.loop.steps)
        self._thawed.look()
        if self._modules.changed():
            self.loop.look_closely()

    def _flagged(self) -> list[FlagOnModule]:
        if not self.loop.wants(FlagOnModule):
            return []
        states = self._states()
        files = sorted({state.where.file for state in states if state.where is not None})
        trained = {key for state in states for key in state.ids}
        outermost = [module for model in self.models.outermost() if (module := model.ref()) is not None]
        return [flag for module in outermost for flag in flagged(module, files, self.loop.steps, trained)]

    def _states(self) -> list[OptimizerState]:
        return [s for s in (*self.loop.retired, *self.loop.states) if s.steps]

    def _frozen_and_trainable(self) -> tuple[int, int]:
        """Elements of the models that train now, and of frozen ones that did before, or that were loaded."""
        now = {key for state in self.loop.states for key in state.ids}
        trained = now.union(*(state.held for state in self.loop.retired))
        both: dict[int, Tensor] = {}
        for model in self.models.alive():
            mine = [p for p in parameters(model) if id(p) in trained]
            frozen = not any(p.requires_grad for p in parameters(model))
            trains = [p for p in mine if p.requires_grad and (not now or id(p) in now)]
            if trains or (frozen and (mine or model in self._filled)):
                both.update((id(p), p) for p in parameters(model))
        sizes = [(p.requires_grad, p.numel()) for p in both.values()]
        return sum(n for trains, n in sizes if not trains), sum(n for trains, n in sizes if trains)

    def _lost(self, load: Load, unused: list[FileRead], trained: set[int]) -> CheckpointLost | None:
        kept = [ref() for _, ref, _ in load.kept]
        file = next((file for file in unused if load.fits(file)), None)
        if load.kind != "file":
            trains = any(id(p) in trained for p in kept if p is not None)
            return self._event(load, load.kind, file) if file is not None and trains else None
        if unused:
            return None  # its tensors may have been copied by hand
        if load.overwritten and any(id(p) in trained for p in kept if p is not None):
            return self._event(load, "overwritten", None)
        gone = (load.anew or not self._stage) and load.ref() is None and not load.ran and all(p is None for p in kept)
        return self._event(load, "dropped", None) if gone and self._twin(load, trained) else None

    def _twin(self, load: Load, trained: set[int]) -> bool:
        """Whether a model of the same class and shapes trains in its place, with other weights, never loaded."""
        for module in self.models.alive():
            if type(module).__name__ != load.model or _layout(module) != load.layout:
                continue
            own = dict(named_parameters(module))
            ids = {id(p) for p in own.values()}
            if not ids & trained or any(key in self._loaded and self._loaded[key]() is not None for key in ids):
                continue
            if unlike([(old, _elements(own[name])) for name, _, old in load.kept if readable(own[name])]):
                return True
        return False

    def _event(
        self, load: Load, kind: Literal["own", "empty", "overwritten", "dropped"], file: FileRead | None
    ) -> CheckpointLost:
        return CheckpointLost(
            step=self.loop.step,
            where=load.where,
            kind=kind,
            model=load.model,
            tensors=load.tensors,
            read_where=file.where if file is not None else None,
            in_file=sum(file.shapes.values()) if file is not None else 0,
        )


def _two_shapes(module: nn.Module, names: tuple[str, ...], file: Named) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the first of these, in the model and in the file."""
    own = dict(named_parameters(module))
    return (tuple(own[names[0]].shape), file[names[0]][1]) if names else ((), ())
