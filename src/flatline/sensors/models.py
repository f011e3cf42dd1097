"""Sees modules run: which models there are, in which modes, what reaches their first layer, where gradients are cut."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from flatline.events import ForwardObserved, InputFacts, LayerInput, ModesObserved, ValidationObserved, Where
from flatline.sensors.callers import caller, users_frame, variables_of
from flatline.sensors.graph import HOOKED, is_freed
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.own_data import looks_at_own_data
from flatline.sensors.patching import Patches, unseen_by_dynamo
from flatline.sensors.spacing import spaced
from flatline.sensors.tree import entry as entry_of
from flatline.sensors.tree import modules, named_modules, own_parameters, parameters
from flatline.sensors.wrapping import Wrapping

Tensor = torch.Tensor
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm) + (
    (nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()
)
DROPOUTS = (nn.modules.dropout._DropoutNd,)
WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")
LATELY = 10  # steps within which a model that trains has run
FINGERPRINT_SAMPLE = 32
OUTPUTS = 8  # of a module, whose shapes are kept
CALL_LIMIT = 4_000  # module calls looked at closely in one step
HELD_ELEMENTS = 2_000_000  # kept alive to the end of a pass under close look, at most
SMALL = 1_000_000  # numbers of an answer that is kept until the backward
GIVEN = 8  # inputs of one pass that are kept in mind
EVALUATIONS = 12  # passes in eval mode with gradients whose outputs are looked at, one a step; later ones thin out
SPARSER = 1.1


def is_norm(module: nn.Module) -> bool:
    """A normalisation layer, torch's own or one named like it."""
    return isinstance(module, NORMS) or type(module).__name__.endswith("Norm")


def is_sensitive(module: nn.Module) -> bool:
    """Dropout that drops, BatchNorm with running statistics: layers for which the mode matters."""
    if isinstance(module, DROPOUTS):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0
    return isinstance(module, BATCH_NORMS) and module.track_running_stats


def readable(tensor: Tensor) -> bool:
    """Plain and with data: no fake, meta or distributed tensor, whose numbers cannot be had or cost a transfer."""
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta and not is_freed(tensor)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """Its sizes; a nested tensor has none that hold for all of it."""
    return () if tensor.is_nested else tuple(tensor.shape)


def tensors_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Readable tensors in a nest of tuples, lists and dicts."""
    if isinstance(value, Tensor):
        if readable(value):
            yield value
    elif depth and isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, dict):
        yield from tensors_in(list(value.values()), depth - 1)


def _integers(args: Any, *, dimensions: int) -> Any:
    """A weak reference to the first tensor of whole numbers, with so many dimensions at least."""
    for tensor in tensors_in(args):
        whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        if whole and tensor.dim() >= dimensions:
            return weakref.ref(tensor)
    return None


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in own_parameters(module))


def sample(tensor: Tensor, count: int = FINGERPRINT_SAMPLE) -> list[float]:
    """A few elements, evenly spread. Copies at most ``count`` numbers."""
    flat = tensor.detach()
    if flat.numel() == 0:
        return []
    flat = flat.view(-1) if flat.is_contiguous() else flat.reshape(-1)
    stride, _ = spaced(tensor, count)
    return list(flat[::stride].tolist())


def fingerprint(tensor: Tensor) -> int:
    """The same for tensors of the same shape and (as far as a sample shows) the same values."""
    return hash((tuple(tensor.shape), str(tensor.dtype), tuple(sample(tensor))))


GONE = nn.Identity()
FIRST_LAYERS = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase)  # that numbers of any size may reach


class Batch(NamedTuple):
    """What a loader served."""

    tensors: Sequence[Tensor] = ()
    filled_up: bool = False  # by the function that put it together


@dataclass(slots=True)
class Call:
    """One module's run in a forward pass under close look. Holds the module by a weak reference: it may go."""

    ref: Any
    path: str
    depth: int
    leaf: bool
    grad_enabled: bool
    in_grad: bool
    given: tuple[int, ...] = ()  # shape of its first argument
    outputs: tuple[tuple[int, ...], ...] = ()  # shapes
    out_grad: bool = False
    out_sequence: int = 0

    @property
    def module(self) -> Any:
        """The module, or an empty one in its place."""
        module = self.ref()
        return GONE if module is None else module


class Model:
    """A module that the user's code called itself."""

    def __init__(self, module: nn.Module, label: str) -> None:
        self.ref = weakref.ref(module)
        self.label = label
        self.paths: dict[int, str] = {}
        self._sensitive: list[tuple[str, Any]] = []  # paths, and weak references: a layer may know its model
        self.trained_in_train = False
        self.grad_forwards = 0
        self.last_seen = 0  # step of the last forward that was looked at
        self.idle_forwards = 0  # forwards without gradients since the last step
        self.last_idle_input: Any = None
        self.calls: list[Call] = []
        self.ran: set[int] = set()
        self.ran_without_grad: set[int] = set()
        self.cuts: dict[int, str] = {}  # id of module -> where its gradient was cut, proven by a shared storage
        self.gaps: dict[int, str] = {}  # id of module -> where the next one began without a gradient
        self.integer_input: Any = None  # weak reference to the last integer tensor it was called with
        self.given: list[Any] = []  # weak references to what it and its embeddings were last called with
        self.answers: dict[int, Tensor] = {}  # place in the graph -> what it made last, until a backward was looked at
        self.moved: int | None = None  # places by which what it makes of these integers has moved on, if that shows
        self.last_input: Any = None
        self.rows = 0  # of the largest of these
        self.refresh()

    def refresh(self) -> None:
        """Learn the paths of all modules."""
        module = self.ref()
        if module is None:
            return
        self.paths = {id(child): clean(path) for path, child in named_modules(module)}
        layers = [(path, child) for path, child in named_modules(module) if is_sensitive(child)]
        self._sensitive = [(clean(path), weakref.ref(child)) for path, child in layers]

    @property
    def sensitive(self) -> list[tuple[str, nn.Module]]:
        """Layers for which the mode matters, with their paths."""
        return [(path, child) for path, ref in self._sensitive if (child := ref()) is not None]

    def path(self, module: Any) -> str:
        """The module's path, '' for the model itself; for a module that it does not own, its class."""
        return self.paths.get(id(module), f"<unregistered {type(module).__name__}>")


def spoken(path: str) -> str:
    """A path as a sentence can name it: ``layer 3`` where all there is is a number."""
    return f"layer {path}" if path.isdecimal() else path


def clean(path: str) -> str:
    """A path without the wrappers of DDP, FSDP and torch.compile."""
    for wrapper in WRAPPERS:
        path = path.replace(wrapper, "")
    return "" if path + "." in WRAPPERS else path


@dataclass(slots=True)
class Pass:
    """The forward pass in progress."""

    stack: list[Call] = field(default_factory=list)
    model: Model | None = None
    inputs: set[int] = field(default_factory=set)  # storages that the model was called with
    outputs: dict[int, tuple[Any, str]] = field(default_factory=dict)  # storage -> (output kept alive, its module)
    held: int = 0  # elements kept alive


class ModelSensor:
    """Global forward hooks: a thorough pair while the loop looks closely, a cheap one where a validation may begin.

    A global hook costs every module call a little, so on ordinary steps there is none: entering ``no_grad`` or
    ``inference_mode``, ``eval()`` and a batch of a loader that never fed a backward put the cheap one on.
    """

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self.models: dict[int, Model] = {}
        self.labels: dict[str, int] = {}
        self.parents: weakref.WeakKeyDictionary[Any, tuple[Any, str]] = weakref.WeakKeyDictionary()
        self.replaced: weakref.WeakSet[Any] = weakref.WeakSet()  # modules that were put in the place of others
        self.wrapping = Wrapping()
        self.made: set[type] = set()  # classes of the modules that were built
        self.eval_calls: dict[int, Where | None] = {}
        self.in_backward = False
        self.grad_forward_without: Where | None = None
        self.targets_seen: Any = None  # told of every loss of torch in a graph, for its targets
        self.validation_seen: Any = None  # told of what a model was called with that learns nothing from it
        self.inputs_seen: Any = None  # told of what a model that is being trained was called with
        self.batch: list[Any] = []  # weak references to the tensors of the newest batch of a loader
        self.batch_filled_up = False  # by the function that put it together: rows of several lengths
        self._train_depth = 0
        self.validated: list[Model] = []  # ran without a backward since the last step
        self._calls = 0  # module calls looked at since the last step
        self.first_sequence = 0  # of the graph last looked at closely
        self._now = Pass()
        self._dense_handles: list[Any] = []
        self.on_enter: list[Any] = []  # called before a model's pass under close look
        self.on_lone: list[Any] = []  # called before that of a module without parameters, such as a loss
        self.on_leave: list[Any] = []  # called after every module of a pass under close look
        self.on_evaluated: Any = None  # called after some passes in eval mode that make a graph
        self._evaluations, self._evaluation_due = 0, 0
        self._output_handle: Any = None

    # ------------------------------------------------------------------ attach

    def attach(self) -> None:
        """Register the hooks."""
        from torch.nn.modules import module as hooks

        HOOKED.attach(self.patches)
        self._make_room()
        self._quick = self._quick_hook()
        self.patches.on_undo(self._leave_off)
        self._follow_grad_mode()
        self.patches.around(nn.Module, "train", before=self._mode_set, after=self._mode_left)
        self.loop.on_dense.append(self._watch_closely)
        self._watch_closely(self.loop.dense)
        if hasattr(hooks, "register_module_module_registration_hook"):
            handle = hooks.register_module_module_registration_hook(self.patches.guard(self._registered))
            self.patches.on_undo(handle.remove)
        if hasattr(hooks, "register_module_parameter_registration_hook"):
            handle = hooks.register_module_parameter_registration_hook(self.patches.guard(self._parameter_registered))
            self.patches.on_undo(handle.remove)

    def _make_room(self) -> None:
        """A module call takes three frames, and four while there are global hooks: deep models keep their depth."""
        before = sys.getrecursionlimit()
        ours = before + before // 2
        sys.setrecursionlimit(ours)

        def restore() -> None:
            if sys.getrecursionlimit() == ours:
                sys.setrecursionlimit(before)

        self.patches.on_undo(restore)

    def _follow_grad_mode(self) -> None:
        """Forwards without gradients are validation: be there when they begin."""
        around, arm, disarm = self.patches.around, self._armed(True), self._armed(False)
        for mode in (torch.no_grad, torch.inference_mode):
            around(mode, "__enter__", light=arm)
            around(mode, "__exit__", light=disarm)
        around(torch.set_grad_enabled, "__init__", light=self._grad_set)
        around(torch.set_grad_enabled, "__exit__", light=lambda context, *args: self._grad_set(context, context.prev))

    def _armed(self, on: bool) -> Any:
        """A step's own no_grad is none of ours: ``stepping`` is set in between."""

        def light(context: Any, *args: Any) -> bool:
            if not self.loop.dense and not self.loop.stepping and self.models:
                self.arm(on)
            return True

        return light

    def _grad_set(self, context: Any, mode: bool) -> bool:
        """Blocks like ``no_grad`` begin and end with it; torch's mode changes only after us."""
        if not self.loop.dense and not self.loop.stepping and self.models:
            self.arm(not mode, bool(mode))
        return True

    def arm(self, on: bool, grad: bool = False) -> None:
        """Put the cheap hook on, or take it off; ``grad``: gradients are about to be on."""
        if on is (self._quick_handle is not None) or self._quick is None or self._closely or has_compiled():
            return
        if on:
            from torch.nn.modules import module as hooks

            self._quick_handle = hooks.register_module_forward_pre_hook(self._quick)
        elif not self.batch_is_foreign and (grad or torch.is_grad_enabled()):
            self._quick_handle.remove()
            self._quick_handle = None

    _quick: Any = None
    _quick_handle: Any = None
    _foreign = False

    @property
    def batch_is_foreign(self) -> bool:
        """The newest batch came from a loader that never fed a backward."""
        return self._foreign

    @batch_is_foreign.setter
    def batch_is_foreign(self, foreign: bool) -> None:
        if foreign is not self._foreign:
            self._foreign = foreign
            self.arm(foreign)

    def _parameter_registered(self, module: nn.Module, name: str, parameter: Any) -> None:
        self.loop.clock += 1
        self.loop.born.setdefault(id(parameter), self.loop.clock)
        self.wrapping.parameter(module, parameter)
        self.made.add(type(module))

    def _watch_closely(self, closely: bool) -> None:
        """Dynamo's guards hold the keys of the global hooks: once anything is compiled they stay as they are."""
        from torch.nn.modules import module as hooks

        self._now, self._closely = Pass(), closely
        if not self._leaving and has_compiled():
            return
        for handle in self._dense_handles:
            handle.remove()
        self._dense_handles = []
        if self._quick_handle is not None:
            self._quick_handle.remove()
            self._quick_handle = None
        if closely:
            before, after = self._while_close(self._enter), self._while_close(self._leave)
            self._dense_handles = [
                hooks.register_module_forward_pre_hook(self._quick),
                hooks.register_module_forward_pre_hook(before),
                hooks.register_module_forward_hook(after, always_call=True),
            ]

    _closely = False
    _leaving = False

    def _while_close(self, callback: Any) -> Any:
        from torch.compiler import is_compiling

        guarded = self.patches.guard(callback)

        def hook(*args: Any) -> None:
            if not is_compiling() and self._closely:
                guarded(*args)

        unseen_by_dynamo(hook)
        return hook

    def _leave_off(self) -> None:
        self._leaving = True
        if self._output_handle is not None:
            self._output_handle.remove()
            self._output_handle = None
        self._watch_closely(False)

    def _quick_hook(self) -> Any:
        """Runs at every module call while it is on: one look-up, then nothing for all but the models themselves."""
        from torch.compiler import is_compiling

        models, slow, loop, grad_enabled = (
            self.models,
            self.patches.guard(self._model_called),
            self.loop,
            torch.is_grad_enabled,
        )
        evaluated = self.patches.guard(self._evaluation_begins)

        def quick(module: Any, args: Any) -> None:
            if is_compiling():
                return
            if id(module) not in models:
                return
            if loop.dense or self.batch_is_foreign or not grad_enabled():
                slow(module, args)
            if not module.training and loop.steps >= self._evaluation_due and grad_enabled() and not loop.dense:
                evaluated(module)

        unseen_by_dynamo(quick)
        return quick

    def _evaluation_begins(self, module: nn.Module) -> None:
        """A pass in eval mode, with gradients, between close looks: be there when it is over."""
        from torch.nn.modules import module as hooks

        model = self.models[id(module)]
        if self.on_evaluated is None or self.in_backward or self._now.stack or transformed() or has_compiled():
            return
        if model.ref() is not module or self._output_handle is not None or not self.loop.steps:
            return
        self._evaluations += 1
        steps = self.loop.steps
        self._evaluation_due = steps + 1 if self._evaluations < EVALUATIONS else int(SPARSER * steps) + 1
        ends = self.patches.guard(self._evaluation_ends)

        def hook(called: Any, args: Any, output: Any) -> None:
            if called is module and self._output_handle is not None:
                self._output_handle.remove()
                self._output_handle = None
                ends(model, called, output)

        unseen_by_dynamo(hook)
        self._output_handle = hooks.register_module_forward_hook(hook, always_call=True)

    def _evaluation_ends(self, model: Model, module: nn.Module, output: Any) -> None:
        self.on_evaluated(model, module, [t for t in tensors_in(output) if t.grad_fn is not None])

    def _registered(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is not None:
            before = self.parents.get(child)
            if name in parent._modules and entry_of(parent._modules, name) not in (None, child):
                self.replaced.add(child)
            self.wrapping.module(parent, child, before[0]() if before is not None else None)
            self.parents[child] = weakref.ref(parent), name
            self.made.update((type(parent), type(child)))

    def _mode_set(self, module: nn.Module, mode: bool = True) -> None:
        """``train()`` recurses into the children; only the outermost call is the user's."""
        self._train_depth += 1
        if self._train_depth == 1 and not mode:
            self.eval_calls[id(module)] = caller()
            self.loop.unsettled = True
            self.arm(True)

    def _mode_left(self, result: Any, module: nn.Module, mode: bool = True) -> None:
        self._train_depth = max(0, self._train_depth - 1)

    # ------------------------------------------------------------------ every step

    def _model_called(self, module: nn.Module, args: Any) -> None:
        model = self.models[id(module)]
        if model.ref() is not module or self.in_backward or self._now.stack or transformed():
            return
        if torch.is_grad_enabled():
            model.grad_forwards += 1
            self._tick_forward()
            if not self.batch_is_foreign:
                model.idle_forwards = 0
                return
        self._validation(module, model, args)

    def _tick_forward(self) -> None:
        for state in self.loop.states:
            tape = state.window.tape
            if not tape or tape[-1] != "forward":
                state.window.tick("forward")

    def _validation(self, module: nn.Module, model: Model, args: Any) -> None:
        model.idle_forwards += 1
        self.validated.append(model)
        self.loop.unsettled = True
        first = next(tensors_in(args), None)
        again = first is not None and model.last_idle_input is not None and model.last_idle_input() is first
        model.last_idle_input = weakref.ref(first) if first is not None else None
        if self.validation_seen is not None and first is not None:
            self.validation_seen(model.label, first)
        if not self._worth_judging(module, model):
            return
        active, where = [path for path, child in model.sensitive if child.training], caller()
        self.loop.emit(
            ValidationObserved(
                step=self.loop.steps,
                where=where,
                model=model.label,
                training=module.training,
                grad_enabled=torch.is_grad_enabled(),
                sensitive=len(active),
                examples=tuple(map(spoken, active[:3])),
                forwards=model.idle_forwards,
                same_input=again,
                other_loader=self.batch_is_foreign,
                own_data=bool(active) and where is not None and looks_at_own_data(where.file, where.line),
                adversarial=self._adversarial(model),
                averaged=not self._in_optimizer(module),
                recalibrated=any(_starts_anew(child, model.idle_forwards) for _, child in model.sensitive),
            )
        )

    def _worth_judging(self, module: nn.Module, model: Model) -> bool:
        """There is something to be wrong about, and it was not told often enough since the last step."""
        return bool(model.sensitive) and model.idle_forwards <= 4 and self.loop.steps > 0

    def _in_optimizer(self, module: nn.Module) -> bool:
        mine = {id(p) for p in parameters(module)}
        return any(mine & state.ids for state in self.loop.states)

    def _adversarial(self, model: Model) -> bool:
        module = model.ref()
        mine = {id(p) for p in parameters(module)} if module is not None else set()
        owners = [state for state in self.loop.states if mine & state.ids]
        return len([s for s in self.loop.states if s.steps]) > len(owners) > 0

    # ------------------------------------------------------------------ close look

    def newest_batch(self) -> Batch:
        """The tensors of the newest batch of a loader that are still there."""
        return Batch([tensor.detach() for ref in self.batch if (tensor := ref()) is not None], self.batch_filled_up)

    def forget_answers(self) -> None:
        """The backward was looked at."""
        for model in self.known:
            model.answers.clear()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if self.in_backward or transformed():
            return
        now = self._now
        self._calls += 1
        if self._calls > CALL_LIMIT:
            self._watch_closely(False)
            return
        if not now.stack:
            for callback in self.on_enter:
                callback(module)
            new = id(module) not in self.models
            now.model = self._model(module)
            if new and now.model is not None and torch.is_grad_enabled():
                now.model.grad_forwards += 1
                self._tick_forward()
            self._before_model(now.model, args)
            for look in self.on_lone if now.model is None else ():
                look(module, args)
        model = now.model
        if model is None:
            now.stack.append(Call(weakref.ref(module), "", 0, False, True, False))
            return
        call = Call(
            ref=weakref.ref(module),
            path=model.path(module),
            depth=len(now.stack),
            leaf=all(child is None for child in module._modules.values()),
            grad_enabled=torch.is_grad_enabled(),
            in_grad=any(t.requires_grad for t in tensors_in(args)),
            given=_shape(args[0]) if args and isinstance(args[0], Tensor) else (),
        )
        self._look_for_cut(model, call, args)
        if model.integer_input is None and call.leaf:  # given to the model by keyword, which hooks are not told
            model.integer_input = _integers(args, dimensions=2)
        if call.leaf and (isinstance(module, nn.Embedding) or not model.given) and len(model.given) < GIVEN:
            model.given += [weakref.ref(tensor) for tensor in tensors_in(args)]
        now.stack.append(call)

    def _before_model(self, model: Model | None, args: Any) -> None:
        if model is None:
            return
        model.calls, self._weighted = [], 0
        model.last_seen = self.loop.steps
        self._now.outputs, self._now.held = {}, 0
        self._now.inputs = {_pointer(t) for t in tensors_in(args)}
        module = model.ref()
        if module is not None and len(model.paths) != sum(1 for _ in modules(module)):
            model.refresh()
        model.answers.clear()
        model.integer_input = _integers(args, dimensions=1)
        model.given = [weakref.ref(tensor) for tensor in tensors_in(args)][:GIVEN]

    def _look_for_cut(self, model: Model, call: Call, args: Any) -> None:
        """Does an input carry on an earlier output without its gradient, or start anew in the middle of the pass?"""
        if not call.grad_enabled or call.depth == 0:
            return
        for tensor in tensors_in(args):
            source = self._now.outputs.get(_pointer(tensor))
            if source is not None and not tensor.requires_grad and tensor.is_floating_point():
                self._cut(model, model.cuts, f"between {source[1]} and {call.path}", until=source[1])
        known = any(_pointer(t) in self._now.inputs for t in tensors_in(args))
        if call.leaf and not call.in_grad and not known and any(c.out_grad for c in model.calls):
            self._cut(model, model.gaps, f"before {call.path}")

    def _cut(self, model: Model, cuts: dict[int, str], place: str, until: str | None = None) -> None:
        for earlier in model.calls:
            cuts.setdefault(id(earlier.module), place)
            if earlier.path == until:
                return

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        now = self._now
        if self.in_backward or not now.stack or transformed():
            return
        while now.stack and now.stack[-1].module is not module:
            now.stack.pop()
        if not now.stack:
            return
        call, model = now.stack.pop(), now.model
        if model is None:
            return
        outputs = list(tensors_in(output))
        call.out_grad = any(t.requires_grad for t in outputs)
        call.out_sequence = _sequence(outputs[0] if outputs else None)
        call.outputs = tuple(map(_shape, outputs[:OUTPUTS]))
        (model.ran if call.grad_enabled else model.ran_without_grad).add(id(module))
        model.calls.append(call)
        for look in self.on_leave:
            look(model, call, args, outputs)
        if call.leaf:
            self._first_layer(model, module, args)
        if call.depth == 0:
            now.outputs = {}
            small = [each for each in outputs if each.requires_grad and each.numel() <= SMALL]
            model.answers = {_sequence(each): each.detach() for each in small}
            self._after_model(model, call, args)
        else:
            self._keep(call, outputs)

    def _keep(self, call: Call, outputs: list[Tensor]) -> None:
        """Hold outputs to the end of the pass, so that their addresses stay theirs; within a bound."""
        now = self._now
        for tensor in outputs:
            if tensor.requires_grad and now.held + tensor.numel() <= HELD_ELEMENTS:
                now.held += tensor.numel()
                now.outputs[_pointer(tensor)] = tensor, call.path

    def _after_model(self, model: Model, call: Call, args: Any) -> None:
        if not call.grad_enabled:
            self.grad_forward_without = caller() if call.module.training else self.grad_forward_without
            return
        first = next(tensors_in(args), None)
        if first is None:
            return
        self.loop.emit(
            ForwardObserved(
                step=self.loop.step,
                where=caller(),
                model=model.label,
                training=call.module.training,
                inputs=self._input_facts(model, first),
                first_layer=self._layer_input,
            )
        )
        self._layer_input = None
        if self.inputs_seen is not None and call.module.training:
            self.inputs_seen(model.label, list(tensors_in(args)), call.module)

    _layer_input: LayerInput | None = None
    _fixed = False  # the first layer is frozen
    _weighted = 0  # modules with a weight matrix, so far in this pass

    def _first_layer(self, model: Model, module: nn.Module, args: Any) -> None:
        """Range of what reaches the first layer with a weight matrix; the module after it decides about norms."""
        if self._weighted > 2:
            return
        weighted = has_matrix(module)
        self._weighted += weighted
        if self._weighted == 1 and weighted and isinstance(module, FIRST_LAYERS):
            first = next(tensors_in(args), None)
            raw = first is not None and first.grad_fn is None  # no weight made it
            if first is not None and raw and first.is_floating_point() and first.numel():
                low, high = (float(v) for v in torch.aminmax(first.detach()))
                rms = float(first.detach().float().pow(2).mean().sqrt())
                label = model.path(module) or model.label
                self._layer_input = LayerInput(layer=label, kind=type(module).__name__, rms=rms, low=low, high=high)
                self._fixed = not _learns(module)
        elif self._weighted == 2 and weighted and self._fixed and _learns(module):
            self._layer_input = None  # a whitening, or another fixed map before the first layer that learns
        elif self._layer_input is not None and is_norm(module) and len(model.calls) >= 2:
            if model.calls[-2].module is not module and has_matrix(model.calls[-2].module):
                seen = self._layer_input
                self._layer_input = LayerInput(
                    layer=seen.layer, kind=seen.kind, rms=seen.rms, low=seen.low, high=seen.high, normalised_next=True
                )

    def _input_facts(self, model: Model, first: Tensor) -> InputFacts:
        same = model.last_input is not None and model.last_input() is first
        model.last_input = weakref.ref(first)
        model.rows = max(model.rows, first.shape[0] if first.dim() else 0)
        base = first._base
        rows = int(base.shape[0]) if base is not None and base.dim() == first.dim() and base.dim() else None
        values = sample(first)
        return InputFacts(
            shape=tuple(first.shape),
            dtype=str(first.dtype).removeprefix("torch."),
            fingerprint=hash((tuple(first.shape), tuple(values))),
            same_object=same,
            base_rows=rows,
        )

    # ------------------------------------------------------------------ names

    def introduce(self, module: nn.Module) -> None:
        """A model known before it ran."""
        self._model(module)

    @property
    def known(self) -> list[Model]:
        """As of now: one may be collected, or called first in another thread, while they are read."""
        return list(self.models.values())

    def alive(self) -> list[nn.Module]:
        """The modules that the user's code called, and that are still there."""
        return [module for model in self.known if (module := model.ref()) is not None]

    def note_classes(self) -> None:
        """Of the modules that there are: those built under a mode of torch's were not seen."""
        self.made.update(type(each) for model in self.alive() for each in modules(model))

    def outermost(self) -> list[Model]:
        """Those that run first, and the larger before the smaller: an encoder is also called by itself, or before it has a head."""
        sizes = {model: len(list(parameters(module))) for model in self.known if (module := model.ref()) is not None}
        return sorted(sizes, key=lambda model: (self.fell_silent(model), -sizes[model]))

    def fell_silent(self, model: Model) -> bool:
        """It ran long ago, as far as was looked at."""
        return self.loop.steps - model.last_seen > LATELY

    def _model(self, module: nn.Module) -> Model | None:
        known = self.models.get(id(module))
        if known is not None and known.ref() is module:
            return known
        if next(parameters(module), None) is None:
            return None
        model = self.models[id(module)] = Model(module, self._label(module))
        weakref.finalize(module, self.models.pop, id(module), None).atexit = False
        return model

    def owners(self, module: nn.Module) -> tuple[nn.Module, list[str]]:
        """The outermost module that a module was registered in, and the names that lead from there to it."""
        path: list[str] = []
        current = module
        while (entry := self.parents.get(current)) is not None and (parent := entry[0]()) is not None:
            path.insert(0, entry[1])
            current = parent
        return current, path

    def _label(self, module: nn.Module) -> str:
        outermost, path = self.owners(module)
        top = _variable_name(outermost) or type(outermost).__name__
        label = ".".join([top, *path])
        self.labels[label] = self.labels.get(label, 0) + 1
        return label if self.labels[label] == 1 else f"{label}#{self.labels[label]}"

    def training_models(self, state: OptimizerState) -> Iterator[tuple[Model, nn.Module]]:
        """Models that ran with gradients and have parameters in this optimizer."""
        for model in self.known:
            module = model.ref()
            if module is not None and model.grad_forwards and any(id(p) in state.ids for p in parameters(module)):
                yield model, module

    def forget_step(self) -> None:
        """A step was taken: validation passes and module calls are counted anew."""
        for model in self.validated:
            model.idle_forwards = 0
        self.validated.clear()
        HOOKED.clear()
        if self._calls > CALL_LIMIT:
            self._watch_closely(self.loop.dense)
        self._calls = 0
        self.loop.unsettled = self.asleep()
        if self._quick_handle is not None:
            self.arm(False)

    # ------------------------------------------------------------------ modes

    def asleep(self) -> bool:
        """Some model woke up once, and is in eval mode now."""
        for model in self.known:
            if model.trained_in_train and model.sensitive:
                module = model.ref()
                if module is not None and not module.training:
                    return True
        return False

    def observe_modes(self, state: OptimizerState, where: Where | None) -> None:
        """Tell in which modes this optimizer's models trained."""
        for model, module in self.training_models(state):
            layers = [(path, child) for path, child in model.sensitive if not _frozen_norm(child)]
            asleep = [path for path, child in layers if not child.training]
            self.loop.emit(
                ModesObserved(
                    step=self.loop.step,
                    where=where,
                    model=model.label,
                    training=module.training,
                    sensitive=len(layers),
                    in_eval=len(asleep),
                    examples=tuple(map(spoken, asleep[:3])),
                    trained_before=model.trained_in_train,
                    eval_where=self.eval_calls.get(id(module)) or next(iter(self.eval_calls.values()), None),
                    trainable=sum(id(p) in state.ids and p.requires_grad for p in parameters(module)),
                )
            )
            model.trained_in_train = model.trained_in_train or module.training


def _frozen_norm(module: nn.Module) -> bool:
    """A BatchNorm put to sleep on purpose: in eval while its model trains, or without trainable weights."""
    if not isinstance(module, BATCH_NORMS):
        return False
    trainable = any(p.requires_grad for p in own_parameters(module))
    return not trainable if module.affine else False


def _starts_anew(module: nn.Module, forwards: int) -> bool:
    """A BatchNorm whose statistics were reset since it last trained, or are a plain mean: they are being made again."""
    if not isinstance(module, BATCH_NORMS) or not module.track_running_stats:
        return False
    count = module.num_batches_tracked
    return module.momentum is None or (count is not None and count.is_cpu and int(count) < forwards)


def has_matrix(module: Any) -> bool:
    """It owns a weight of two or more dimensions itself."""
    return any(p.dim() >= 2 for p in own_parameters(module))


def vocabulary(module: Any) -> int:
    """Rows of its largest embedding."""
    tables = (each for each in modules(module) if isinstance(each, (nn.Embedding, nn.EmbeddingBag)))
    return max((table.num_embeddings for table in tables), default=0)


def _pointer(tensor: Tensor | None) -> int:
    try:
        return tensor.data_ptr() if tensor is not None else 0
    except RuntimeError:
        return 0


def _sequence(tensor: Tensor | None) -> int:
    node = tensor.grad_fn if tensor is not None else None
    return int(node._sequence_nr()) if node is not None and hasattr(node, "_sequence_nr") else 0


def transformed() -> bool:
    """Under vmap, grad transforms or a tracer: tensors are not what they seem."""
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.peek_interpreter_stack() is not None:
        return True
    return torch._C._get_tracing_state() is not None


def has_compiled() -> bool:
    """Whether dynamo has compiled anything."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    return bool(dynamo is not None and dynamo.FRAME_COUNTER)


def _variable_name(value: Any) -> str:
    """The name by which the user's code knows an object."""
    frame = users_frame()
    if frame is None:
        return ""
    variables = variables_of(frame)
    owner = getattr(variables.get("self"), "__dict__", {})
    for scope in (variables, frame.f_globals, owner):
        for name, held in list(scope.items()):
            if held is value and name != "self" and not name.startswith("_"):
                return str(name)
    return ""
