"""What is seen in a rehearsal: the sensors of a run that does not take place."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flatline.events import SourceFact, SourceLoop, SourceLoss, SourceTick, Where
from flatline.readers.rehearsal.containers import is_batches
from flatline.readers.rehearsal.machine import Loop, Machine
from flatline.readers.rehearsal.modules import held, set_modes
from flatline.readers.rehearsal.passes import Passes
from flatline.readers.rehearsal.tensors import combined, same
from flatline.readers.rehearsal.values import (
    UNKNOWN,
    Bound,
    Env,
    Function,
    Made,
    Mark,
    Object,
    Place,
    Tensor,
    Value,
    Weight,
    call_at,
    is_module,
    modules_of,
    weights_of,
)
from flatline.readers.source._modes import MODES, VISION
from flatline.readers.source._schedules import FACTORS, LENGTHS, counts_steps, told
from flatline.readers.source._scopes import spelled
from flatline.readers.source._training import SUSPECT

TELLS = re.compile(r"(^|[._])(on|after|before|pre|post)_|hook|fire|emit|trigger|dispatch|notify|publish|event|callback")
REDUCTIONS = ("reduction", "reduce", "size_average")
LOGITS = ("cross_entropy", "nll", "binary_cross_entropy", "binary_cross_entropy_with_logits")


@dataclass(slots=True, eq=False)
class Replaced:
    """Layers that took the place of others."""

    new: frozenset[Weight]
    optimizer: Made
    fact: SourceFact


@dataclass(slots=True, eq=False)
class Kept:
    """What one line puts into a list."""

    place: Place
    tensors: list[Tensor] = field(default_factory=list)
    together: bool = False  # two of them were in it at one time


@dataclass(slots=True, eq=False)
class Watcher:
    """One rehearsal's."""

    losses: dict[int, list[SourceLoss]] = field(default_factory=dict)
    loops: dict[Where, list[SourceLoop]] = field(default_factory=dict)
    optimizers: dict[int, Made] = field(default_factory=dict)
    passed: set[tuple[str, str, int]] = field(default_factory=set)  # places that a rehearsal came by
    judged: set[tuple[str, str, int]] = field(default_factory=set)  # places that a fact would be told of, by kind
    learned: dict[Weight, Where] = field(default_factory=dict)
    marks: set[Mark] = field(default_factory=set)
    others: list[Replaced] = field(default_factory=list)
    asleep: dict[str, Value] = field(default_factory=dict)  # models in eval mode
    evaluated: set[Weight] = field(default_factory=set)  # of models that were in eval mode at some time
    loaded: set[Weight] = field(default_factory=set)  # from a checkpoint
    kept: dict[tuple[int, int], Kept] = field(default_factory=dict)  # in lists that outlive the step
    open: set[tuple[str, str, int]] = field(default_factory=set)  # places at which something may be wrong
    slept: bool = False  # a step was taken while the model was in eval mode
    sometimes: set[Where | None] = field(default_factory=set)  # schedules that step in some turns only
    rescaled: bool = False  # gradients are divided somewhere
    strange: bool = False  # something steps that may be an optimizer
    passes: Passes = field(default_factory=Passes)
    escaped: frozenset[int] = frozenset()  # handed to something unknown

    # ----------------------------------------------------------------------- losses

    def loss(
        self,
        m: Machine,
        kind: str,
        args: Sequence[Value],
        kwargs: dict[str, Value],
        made: Made | None,
        node: ast.Call,
        env: Env,
    ) -> Value:
        """A loss function is called."""
        first = args[0] if args else kwargs.get("input", UNKNOWN)
        fed = first.by if isinstance(first, Tensor) else ""
        found = combined([*args, *kwargs.values()])
        settings = {**(made.kwargs if made is not None else {}), **kwargs}
        if not any(name in settings for name in REDUCTIONS):
            found.by = "mean loss"
        if m.quiet:
            found.reach = frozenset()
        if kind in LOGITS:
            place = first.place if isinstance(first, Tensor) else None
            told = SourceLoss(
                kind=kind,
                fed_by=fed,
                feed=place.text if place is not None else "",
                feed_where=place.where if place is not None else None,
                where=m.where(node, env),
            )
            self.losses.setdefault(id(node), []).append(told)
        return found

    # ----------------------------------------------------------------------- the loop

    def _tick(self, m: Machine, kind: Any, node: ast.Call, env: Env, **facts: Any) -> None:
        over_data = bool(m.loops) and m.loops[-1].over_data
        m.tick(SourceTick(kind=kind, where=m.where(node, env), always=m.sure, over_data=over_data, **facts))

    def backward(self, m: Machine, tensor: Tensor, node: ast.Call, env: Env) -> None:
        """Gradients flow."""
        where = m.where(node, env)
        weighted = bool(node.args) or any(k.arg == "gradient" for k in node.keywords)
        mean = tensor.by == "mean loss" and not weighted and not self.rescaled
        self._tick(m, "backward", node, env, name=_receiver(node), known=tensor.known, scaled=tensor.scaled, mean=mean)
        bare = not tensor.scaled and not weighted
        self.marks |= {mark for mark in tensor.marks if mark.kind != "half" or bare}
        tensor.done = True
        for weight in tensor.reach:
            if weight.attributes.get("requires_grad") is True:
                self.learned.setdefault(weight, where)

    def stepped(
        self, m: Machine, value: Made, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
    ) -> None:
        """An optimizer's step, of its own."""
        if args or kwargs:
            self._tick(m, "opaque", node, env, name=_receiver(node))
            return
        self._step(m, value, node, env, scaled=False)

    def _step(self, m: Machine, value: Made, node: ast.Call, env: Env, *, scaled: bool) -> None:
        key = self._key(value)
        self._woken(m, f"model of {key}", node, env)
        self.slept = self.slept or f"model of {key}" in self.asleep
        self._tick(
            m, "step", node, env, of=key, name=_receiver(node), known=True, trains=f"model of {key}", scaled=scaled
        )

    def _woken(self, m: Machine, model: str, node: ast.Call, env: Env) -> None:
        """A model that was put into eval mode is in train mode again, by whatever means."""
        slept = self.asleep.get(model)
        if slept is not None and any(id(part) in m.escaped for _, part in modules_of(slept)):
            del self.asleep[model]
            self._tick(m, "opaque", node, env, name=_receiver(node))  # whoever has it may have woken it
            return
        if slept is not None and all(
            part.attributes.get("training") is not False for part in _minding(slept) or [slept]
        ):
            del self.asleep[model]
            self._tick(m, "train", node, env, of=model, name="train")

    def zeroed(self, m: Machine, value: Value, node: ast.Call, env: Env) -> None:
        """``zero_grad()`` of an optimizer or a model."""
        if isinstance(value, Made) and id(value) in self.optimizers:
            self._tick(m, "zero", node, env, of=self._key(value), name=_receiver(node), known=True)
        else:
            self._tick(m, "zero", node, env, name=_receiver(node), trains=self._model(value))

    def graded(self, m: Machine, given: Value, node: ast.AST, env: Env) -> None:
        """``p.grad`` is set by hand."""
        self._tick(m, "zero" if given is None else "backward", call_at(node, "grad"), env, name="grad")

    def scheduled(
        self, m: Machine, value: Made, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
    ) -> None:
        """A schedule's step."""
        of = value.given("optimizer", 0)
        key = self._key(of) if isinstance(of, Made) else ""
        plain = not args and not kwargs
        length = _horizon(value) if m.sure else {}  # what comes in some turns may come once per epoch
        self.sometimes |= set() if m.sure else {m.where(node, env)}
        self._tick(m, "schedule", node, env, of=key, name=_receiver(node), known=plain, **length)

    def clipped(
        self, m: Machine, name: str, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
    ) -> None:
        """Gradients are clipped."""
        given = kwargs.get("max_norm", kwargs.get("clip_value", args[1] if len(args) > 1 else None))
        threshold = float(given) if isinstance(given, (int, float)) else None
        self._tick(m, "clip", node, env, name=name, threshold=threshold)

    def scaler(self, m: Machine, value: Made, name: str, args: Sequence[Value], node: ast.Call, env: Env) -> Value:
        """A method of GradScaler."""
        on = m.truth(value.kwargs.get("enabled", True)) is True
        first = args[0] if args else UNKNOWN
        if name == "scale" and isinstance(first, Tensor):
            first.done = True  # as good as
            return replace(same(first), scaled=on)
        if name == "unscale_":
            self._tick(m, "unscale", node, env)
        elif name == "step" and isinstance(first, Made):
            self._step(m, first, node, env, scaled=True)
        elif name == "step":
            self._tick(m, "opaque", node, env, name=_receiver(node))
        return UNKNOWN

    def mode(self, m: Machine, value: Value, on: bool | None, node: ast.Call, env: Env) -> None:
        """``train()`` or ``eval()``."""
        set_modes(value, on)
        kind = "eval" if on is False else "train"
        if on is False and any(id(part) in m.escaped for _, part in modules_of(value)):
            self._tick(m, "opaque", node, env, name=_receiver(node))  # whoever has it may wake it again
            return
        if on is False:
            self.evaluated |= _weights(value)
            self.asleep[self._model(value)] = value
        self._tick(m, kind, node, env, of=self._model(value), name=_receiver(node), modes=modes_in(value))

    def unknown(self, m: Machine, function: Value, args: Sequence[Value], node: ast.Call, env: Env) -> None:
        """Something is called that may do anything."""
        asked = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        self.strange = self.strange or asked in ("step", "zero_grad")
        if asked == "set_epoch":
            self.passes.vague = True
        trains = any(
            isinstance(each, (Object, Bound, Function)) or is_module(each) or id(each) in self.optimizers
            for each in args
        )
        if trains or SUSPECT.search(spelled(node.func)) or TELLS.search(spelled(node.func)):
            self._tick(m, "opaque", node, env, name=spelled(node.func))

    def looped(self, loop: Loop) -> None:
        """A loop is over."""
        self.judge("no set_epoch", loop.where)
        paths = list(dict.fromkeys(loop.turns))
        kinds = {tick.kind for path in paths for tick in path}
        if kinds & {"step", "backward"}:
            self.loops.setdefault(loop.where, []).append(
                SourceLoop(paths=tuple(paths), turns=loop.text, count=loop.count, where=loop.where)
            )

    # ----------------------------------------------------------------------- passes over data

    def scored(self, m: Machine) -> None:
        """Something is compared, or the best of something is chosen."""
        for loop in m.loops[::-1]:
            loop.scores = True
            if loop.loader is not None:
                return

    def called(self, m: Machine, value: Object | Made, node: ast.Call, env: Env) -> None:
        """A model is called from outside of all models."""
        if m.quiet and m.loops and m.loops[-1].loader is not None:
            minding = _minding(value)
            if minding and all(part.attributes.get("training", True) is True for part in minding):
                where = m.where(node, env)
                self.open.add(("validated", where.file, where.line))
                m.loops[-1].awake.append((value, Place(node, env)))
            else:
                self.judge("validated", m.where(node, env))

    def appended(self, m: Machine, values: list[Value], value: Value, node: ast.Call, env: Env) -> None:
        """Something is put into a list."""
        data = next((at for at in range(len(m.loops), 0, -1) if m.loops[at - 1].loader is not None), 0)
        if isinstance(value, Tensor) and data and not m.quiet and m.born.get(id(values), data) < data:
            self.judge("kept", m.where(node, env))
            found = self.kept.setdefault((id(values), id(node)), Kept(Place(node, env)))
            found.together = found.together or any(each is one for each in values for one in found.tensors)
            found.tensors.append(value)
            value.marks |= {Mark("kept", found.place)}  # a loss that is computed from it later uses its graph

    # ----------------------------------------------------------------------- who holds what

    def built(self, value: Made) -> None:
        """An optimizer was made."""
        self.optimizers[id(value)] = value

    def holds(self) -> tuple[frozenset[Weight], bool]:
        """The weights that optimizers hold by now, and whether all of them are known."""
        found, whole = held([made.attributes["param_groups"] for made in self.optimizers.values()])
        return found, whole and not self.strange

    def pass_by(self, kind: str, where: Where) -> None:
        """This place was come by, whatever was seen there."""
        self.passed.add((kind, where.file, where.line))

    def judge(self, kind: str, where: Where) -> None:
        """What is seen at this place says whether something is wrong there."""
        self.judged.add((kind, where.file, where.line))

    def replaced(self, m: Machine, owner: Value, name: str, old: Value, new: Value, node: ast.AST, env: Env) -> None:
        """A layer takes the place of another."""
        before, after = _weights(old), _weights(new)
        self.judge("rebound", m.where(node, env))
        for made in self.optimizers.values():
            given = _given(made)
            if before & given and after and not after & given:
                fact = SourceFact(
                    kind="rebound",
                    name=made.name,
                    text=spelled(node),
                    where=m.where(node, env),
                    other=made.place.where if made.place else None,
                )
                self.others.append(Replaced(after, made, fact))

    def _key(self, value: Made) -> str:
        return f"rehearsed {sorted(self.optimizers).index(id(value)) if id(value) in self.optimizers else id(value)}"

    def _model(self, value: Value) -> str:
        """A module, by the optimizer that trains all of it or a part."""
        own = _weights(value)
        for made in self.optimizers.values():
            given = _given(made)
            if given and given <= own:
                return f"model of {self._key(made)}"
        return f"module {id(value)}"


def _given(made: Made) -> frozenset[Weight]:
    return held(made.attributes["param_groups"])[0]


def _weights(value: Value) -> frozenset[Weight]:
    return frozenset(weight for _, weight in weights_of(value))


def _horizon(value: Made) -> dict[str, Any]:
    """The length of a schedule, and the factor that follows."""
    name = value.name
    places = LENGTHS.get(name, ())
    given = next((g for place, key in places if (g := value.given(key, place)) is not None), None)
    if name not in LENGTHS or name == "LambdaLR" or (given is None and name != "ExponentialLR"):
        return {}
    each = given if isinstance(given, (list, tuple)) else [given]
    lengths = [float(n) if isinstance(n, (int, float)) else None for n in each]
    factor, usual = FACTORS.get(name, ("", 0.0))
    gamma = value.given(factor, 1 if name == "ExponentialLR" else 2) if factor else None
    gamma = usual if factor and gamma is None else gamma
    text = next((f"{length:g}" for length in lengths if length is not None), "…")
    rate = float(gamma) if isinstance(gamma, (int, float)) else None
    return told(name, text, lengths, rate, counts_steps(name) and any(map(is_batches, each)))


def _receiver(node: ast.Call) -> str:
    return spelled(node.func.value) if isinstance(node.func, ast.Attribute) else spelled(node.func)


def _minding(value: Value) -> list[Value]:
    """The layers of a module that mind its mode; a model of torchvision as a whole."""
    return [part for _, part in modules_of(value) if isinstance(part, Made) and _mode_of(part)]


def _mode_of(part: Made) -> str:
    if found := MODES.fullmatch(part.dotted):
        return found[1] if part.given("p", 0) != 0 else ""
    vision = VISION.fullmatch(part.dotted)
    return vision.lastgroup or "" if vision else ""


def modes_in(value: Value) -> str:
    """A Dropout or BatchNorm of a module."""
    return next((_mode_of(part) for part in _minding(value)), "")
