"""Looks at every parameter: reached, held, moved, and by how much. On closely watched steps only."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from flatline.events import (
    NormLayerFacts,
    ParameterFacts,
    ParametersAudited,
    Where,
)
from flatline.sensors.backward import BackwardSensor
from flatline.sensors.drawn import drawn_alone
from flatline.sensors.graph import asks_alone
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import BATCH_NORMS, Model, ModelSensor, is_norm, readable, spoken
from flatline.sensors.numbers import NumbersSensor, norms, number
from flatline.sensors.sharded import part_of
from flatline.sensors.spacing import spaced
from flatline.sensors.tree import modules, named_modules, named_parameters, own_parameters, parameters

RECENT = 60  # steps within which an optimizer counts as active
LONG_FROZEN = 3  # looks in a row
LONG_TRAINED = 100  # steps
SLOWER = 1e-2  # of the highest rate
HOLLOW = 2  # looks in a row at which an optimizer found no gradient: one may be a call that only warms up a schedule
STALE = 64  # tensors of optimizers that no loss reaches, and that are told
TELLING = 500  # elements that tell drawn numbers from learned ones
INITIALISED = 8  # times that a fresh parameter was written to in place, at most
SAMPLE = 16  # elements of each parameter that are remembered between looks
Tensor = torch.Tensor
Owners = dict[int, list[tuple[OptimizerState, float, float]]]  # id of a parameter -> optimizer, weight decay, rate


def _plain(tensor: Tensor) -> bool:
    part = part_of(tensor)
    return readable(part) and part.is_floating_point() and part.numel() > 0


def _as_drawn(matrices: Sequence[Tensor]) -> bool:
    """Nothing was learned in them yet: the larger ones are independent numbers, as initialisers draw them."""
    known = [p for p in matrices if readable(p) and p.is_floating_point() and p.numel() >= TELLING and bool(p.any())]
    return bool(known) and all(drawn_alone(p) for p in known)


def _no_tensor() -> None:
    pass


def _values_of(parameter: Tensor) -> tuple[tuple[int, ...], tuple[float, ...]]:
    return tuple(parameter.shape), tuple(_spread(parameter).tolist()) if _plain(parameter) else ()


def _spread(tensor: Tensor) -> Tensor:
    tensor = part_of(tensor)
    flat = tensor.detach()
    flat = flat.view(-1) if flat.is_contiguous() else flat.reshape(-1)
    stride, _ = spaced(tensor, SAMPLE)
    return flat[::stride].to(torch.float32, copy=True)


def _affine(layer: Any) -> Tensor:
    parts = [_spread(p) for p in own_parameters(layer)]
    return torch.cat(parts) if parts else torch.empty(0)


def _statistics(layer: Any) -> list[Tensor]:
    return [_spread(layer.running_mean), _spread(layer.running_var)]


def _drift(then: Tensor, now: Tensor) -> float:
    return float((now.cpu() - then.cpu()).norm() / then.cpu().norm().clamp(min=1e-3))


class AuditSensor:
    """Keeps what was seen of each parameter since the run began."""

    def __init__(self, loop: Loop, models: ModelSensor, backward: BackwardSensor, numbers: NumbersSensor) -> None:
        self.loop, self.models, self.backward, self.numbers = loop, models, backward, numbers
        self.loaded: set[int] = set()  # ids of parameters that came from a checkpoint
        self._first: dict[int, tuple[Any, Tensor]] = {}  # id -> (weak reference, elements when first seen)
        self._moved: set[int] = set()
        self._moved_at_step: set[int] = set()
        self._moved_frozen: set[int] = set()
        self._had_gradient: set[int] = set()
        self._nonzero: set[int] = set()
        self._zeroed: set[int] = set()
        self._by_id = (
            self._moved, self._moved_at_step, self._moved_frozen, self._had_gradient, self._nonzero, self._zeroed
        )  # fmt: skip
        self._after_backward: dict[int, float] = {}
        self.gradients: dict[int, float] = {}  # norms of the gradients that the step in progress found, by id
        self._trained_before: frozenset[int] = frozenset()  # ids of parameters of optimizers that are gone
        self._trained_long: frozenset[int] = frozenset()  # of those and of idle ones that had stepped often
        self._trained_values: set[tuple[tuple[int, ...], tuple[float, ...]]] = set()  # shapes, and elements of those
        self._paces: dict[int, dict[int, int]] = {}  # by key: steps of all other optimizers at its own first one
        self._empty: dict[int, int] = {}  # by key: looks in a row at which an optimizer found no gradient
        self._audited: dict[int, Any] = {}  # id of a parameter of an optimizer -> weak reference, at the newest audit
        self._reused: set[int] = set()  # identities that belonged to another parameter before
        self._norms: dict[int, tuple[Any, list[Tensor], Tensor]] = {}  # statistics and weights when last trainable
        self._affine_trained: dict[int, int] = {}  # id of a layer -> looks since it was last trainable

    # ------------------------------------------------------------------ around backward and step

    def after_backward(self) -> None:
        """Remember which gradients were zero right after backward."""
        if not self.loop.dense:
            return
        self._first_look()
        held = [p for state in self.loop.states for p in state.parameters]
        held += [p for ref in self.backward.reached_refs.values() if (p := ref()) is not None and asks_alone(p)]
        self._after_backward = _norms({id(p): p.grad for p in held if p.grad is not None})
        self._had_gradient.update(self._after_backward)
        self._nonzero.update(key for key, norm in self._after_backward.items() if norm != 0.0)

    def _first_look(self) -> None:
        for model in self.models.known:
            module = model.ref()
            for parameter in parameters(module) if module is not None else ():
                self._remember(parameter)
            for child in modules(module) if module is not None else ():
                if isinstance(child, BATCH_NORMS) and child.running_mean is not None and _plain(child.running_mean):
                    self._remember_norm(child)
        for state in self.loop.states:
            for parameter in state.parameters:
                self._remember(parameter)

    def _remember(self, parameter: Tensor) -> None:
        known = self._first.get(id(parameter))
        if (known is None or known[0]() is not parameter) and _plain(parameter):
            self._first[id(parameter)] = weakref.ref(parameter), _spread(parameter)
            for known_of in self._by_id:
                known_of.discard(id(parameter))  # said of another tensor, that lived at this address before

    def _remember_norm(self, layer: Any) -> None:
        """Statistics as they were when the layer was last trainable, and how many looks ago that was."""
        trainable = layer.affine and any(p.requires_grad for p in own_parameters(layer))
        if trainable:
            self._affine_trained[id(layer)] = 0
        elif id(layer) in self._affine_trained:
            self._affine_trained[id(layer)] += 1
        known = self._norms.get(id(layer))
        just_frozen = self._affine_trained.get(id(layer)) == 1
        if trainable or just_frozen or known is None or known[0]() is not layer:
            self._norms[id(layer)] = weakref.ref(layer), _statistics(layer), _affine(layer)

    def _frozen(self, layer: Any) -> bool:
        """Frozen from the start, or for long, and not only for another optimizer's step as in a GAN."""
        affine = list(own_parameters(layer))
        if any(p.requires_grad for p in affine):
            return False
        if id(layer) not in self._affine_trained:
            return True
        held = {id(p) for p in affine}
        active = [s for s in self.loop.states if s.steps and self.loop.steps - s.last_step < RECENT]
        return self._affine_trained[id(layer)] >= LONG_FROZEN and not any(held & s.ids for s in active)

    @property
    def gradients_after_backward(self) -> dict[int, float]:
        """The same for every parameter, right after the newest backward."""
        return self._after_backward

    def before_step(self, state: OptimizerState) -> None:
        """Note gradients zeroed by hand."""
        if not self.loop.dense:
            return
        parameters = state.parameters
        if state.steps < 2:
            self._first_look()
        if not state.steps:
            self._paces[state.key] = {other.key: other.steps for other in self.loop.states}
        now = _norms({id(p): p.grad for p in parameters if p.grad is not None})
        self._had_gradient.update(now)
        self.gradients = now
        self._zeroed.update(k for k, norm in now.items() if norm == 0.0 and self._after_backward.get(k, 0.0) > 0.0)

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """Note what moved; audit all parameters when every optimizer has stepped twice."""
        if not self.loop.dense:
            return
        ratios = self.numbers.changes
        self._moved_at_step.update(key for key, ratio in ratios.items() if ratio > 0)
        self._moved_frozen.update(id(p) for p in state.parameters if not p.requires_grad and ratios.get(id(p), 0) > 0)
        self._empty[state.key] = 0 if self._had_something(state) else self._empty.get(state.key, 0) + 1
        if self._complete(state):
            self._compare()
            self._audit(state)
            self.loop.audited = True

    def _had_something(self, state: OptimizerState) -> bool:
        """A gradient that is not zero, when its step began or, where a closure made it, when that was over."""
        gradients = {id(p): p.grad for p in state.parameters if p.grad is not None}
        found = self.gradients or _norms(gradients)
        unread = state.by_hand or not all(_plain(gradient) for gradient in gradients.values())
        return unread or any(norm != 0.0 for norm in found.values())

    def _complete(self, state: OptimizerState) -> bool:
        others = [s for s in self.loop.states if s.backwards and s.idle_cycles < 2]
        waited = state.steps >= 6
        return state.steps >= 2 and (waited or all(s.steps >= 2 for s in others))

    # ------------------------------------------------------------------ the audit

    def moved_by_hand(self, state: OptimizerState) -> bool:
        """Whether the parameters of an optimizer that never stepped changed all the same."""
        self._compare()
        return any(key in self._moved for key in state.ids)

    def untouched(self, parameters: Sequence[Tensor]) -> bool:
        """No optimizer stepped on one of them, no checkpoint filled it, and none is the copy of one that was trained."""
        held = frozenset().union(*(state.ids for state in self.loop.states if state.steps))
        gone = frozenset().union(*(state.held for state in self.loop.retired))
        for p in parameters:
            past = self._audited.get(id(p))
            if id(p) in held or id(p) in self.loaded or (id(p) in gone and (past is None or past() is p)):
                return False
        if not self.loop.steps:
            return True
        known = [each for key in (*held, *gone) if (each := self._audited.get(key, _no_tensor)()) is not None]
        trained = {_values_of(p) for p in known if p.dim() > 1}
        fresh = all(not p.is_inference() and p._version <= INITIALISED for p in parameters)
        matrices = [p for p in parameters if p.dim() > 1]
        return fresh and not any(_values_of(p) in trained for p in matrices) and _as_drawn(matrices)

    def _is_copy(self, parameter: Tensor) -> bool:
        """It began as the copy of one that was trained long."""
        known = self._first.get(id(parameter))
        if known is None or known[0]() is not parameter:
            return False
        return (tuple(parameter.shape), tuple(known[1].tolist())) in self._trained_values

    def _compare(self) -> None:
        for key, (ref, first) in list(self._first.items()):  # another thread may train, too
            parameter = ref()
            if parameter is None or key in self._moved or not _plain(parameter):
                continue
            if not torch.equal(first.cpu(), _spread(parameter).cpu()):
                self._moved.add(key)

    def _audit(self, state: OptimizerState) -> None:
        owners = self._owners()
        self._trained_before = frozenset().union(*(state.held for state in self.loop.retired))
        over = self._over(state)
        long = frozenset().union(*(s.held for s in over if s.steps >= LONG_TRAINED))
        self._trained_long = long.intersection(self._audited) - self._reused
        self._trained_values = {_values_of(p) for key in self._trained_long if (p := self._audited[key]()) is not None}
        seen: set[int] = set()
        every = [self._facts(p, name, model, seen, owners) for name, p, model in self._all_parameters()]
        facts = [fact for fact in every if fact is not None]
        for p in (p for s in self.loop.states for p in s.parameters):
            self._reused |= {id(p)} if id(p) in self._audited and self._audited[id(p)]() is not p else set()
            self._audited[id(p)] = weakref.ref(p)
        active = [s for s in self.loop.states if s not in over]
        held = {id(p): p for s in active for p in s.parameters}
        stale = [p for key, p in held.items() if key not in seen and not self._fed(p)]
        hollow = all(self._empty.get(s.key, 0) >= HOLLOW for s in active)
        self.loop.emit(
            ParametersAudited(
                step=self.loop.step,
                where=state.where,
                parameters=tuple(facts),
                norms=tuple(self._norm_facts()),
                optimizers=tuple(s.facts for s in self.loop.states),
                idle=tuple(s.key for s in over),
                stale=len(stale),
                held=len(held),
                twins=_twins(list(held.values()) if hollow else stale, facts),
                hollow=hollow,
                astray=tuple(self._astray(stale, owners)),
                opaque=self.backward.opaque,
                backward_where=self.backward.where,
            )
        )

    def _fed(self, parameter: Tensor) -> bool:
        """A loss reached it, or it had a gradient."""
        return self.backward.reaches(parameter) or id(parameter) in self._had_gradient

    def _over(self, state: OptimizerState) -> list[OptimizerState]:
        """Optimizers that are gone, and those that took no step since this one took its first."""
        paces = self._paces.get(state.key, {})
        return [*self.loop.retired, *(s for s in self.loop.states if s is not state and paces.get(s.key) == s.steps)]

    def _astray(self, stale: list[Tensor], owners: Owners) -> Iterator[ParameterFacts]:
        """What hooks and the like compute, and nobody takes."""
        ran = {id(p): c.module for m in self.models.known for c in m.calls for p in own_parameters(c.module)}
        tops: dict[int, str] = {}
        for p in [p for p in stale if id(p) in ran][:STALE]:
            outermost, path = self.models.owners(ran[id(p)])
            top = tops.setdefault(id(outermost), type(outermost).__name__ + (f"#{len(tops) + 1}" if tops else ""))
            name = next((name for name, q in named_parameters(ran[id(p)]) if q is p), "")
            facts = self._facts(p, ".".join([top, *path, name]), None, set(), owners)
            if facts is not None:
                yield facts

    def _owners(self) -> Owners:
        found: Owners = {}
        for state in self.loop.states:
            optimizer = state.ref()
            for group in optimizer.param_groups if optimizer is not None else ():
                decay, rate = number(group.get("weight_decay")), number(group.get("lr"))
                for p in group["params"]:
                    found.setdefault(id(p), []).append((state, decay, rate))
        return found

    def _all_parameters(self) -> list[tuple[str, Tensor, Model | None]]:
        """Parameters of the models that trained, then reached leaves that no model owns."""
        found: list[tuple[str, Tensor, Model | None]] = []
        known: set[int] = set()
        several = len(self.models.models) > 1
        for model in self.models.outermost():
            module = model.ref()
            for name, p in named_parameters(module) if module is not None and self._trains(model) else ():
                if id(p) not in known:
                    known.add(id(p))
                    found.append((f"{model.label}.{name}" if several else name, p, model))
        names = self._plain_tensors()
        for key, ref in self.backward.reached_refs.items():
            p = ref()
            if p is not None and key not in known and (isinstance(p, nn.Parameter) or key in names):
                found.append((names.get(key, ""), p, None))
        return found

    def _trains(self, model: Model) -> bool:
        """It ran with gradients, and not only long ago."""
        return bool(model.grad_forwards) and not self.models.fell_silent(model)

    def _plain_tensors(self) -> dict[int, str]:
        """Tensors that ask for gradients and are plain attributes of a module, not parameters."""
        found: dict[int, str] = {}
        for model in self.models.known:
            module = model.ref()
            for path, child in named_modules(module) if module is not None else ():
                for name, value in vars(child).items():
                    if isinstance(value, Tensor) and asks_alone(value):
                        found[id(value)] = f"{path}.{name}" if path else name
        return found

    def _facts(
        self,
        p: Tensor,
        name: str,
        model: Model | None,
        seen: set[int],
        owners: Owners,
    ) -> ParameterFacts | None:
        seen.add(id(p))
        holders = owners.get(id(p), [])
        layer, owner = self._layer_of(p, model)
        before = owner if owner is not None or self.backward.reaches(p) else self._cut_before(p, model)
        return ParameterFacts(
            name=name or f"{type(owner).__name__ if owner is not None else 'Parameter'} {tuple(p.shape)}",
            shape=tuple(p.shape),
            numel=p.numel(),
            dtype=str(p.dtype).removeprefix("torch."),
            trainable=p.requires_grad,
            optimizers=tuple(state.key for state, _, _ in holders),
            reached=self.backward.reaches(p),
            has_gradient=id(p) in self._had_gradient,
            moved=id(p) in self._moved,
            moved_at_step=id(p) in self._moved_at_step,
            moved_frozen=id(p) in self._moved_frozen,
            gradient_zero=part_of(p) is p and id(p) in self._had_gradient and id(p) not in self._nonzero,
            gradient_zeroed=id(p) in self._zeroed,
            weight_decay=max((decay for _, decay, _ in holders), default=0.0),
            learning_rate=max((rate for _, _, rate in holders), default=0.0),
            registered=model is not None,
            after_optimizer=self._is_new(p),
            trained_before=(id(p) in self._trained_long and self._audited[id(p)]() is p) or self._is_copy(p),
            loaded=id(p) in self.loaded or (id(p) in self._trained_before and not holders),
            ran=owner is not None,
            training=layer,
            cut=self._cut(model, before),
            cut_proven=model is not None and (id(before) in model.cuts or id(before) in model.ran_without_grad),
            kind=type(owner).__name__ if owner is not None else "" if isinstance(p, nn.Parameter) else "tensor",
            norm=owner is not None and is_norm(owner),
            zero=not p.requires_grad and not holders and p.dim() > 1 and self._is_zero(p),
            drawn=self._far_slower(holders) and readable(p) and drawn_alone(p),
            model=model.label if model is not None else "",
        )

    def _is_zero(self, p: Tensor) -> bool:
        """All of it; asked only where the few elements that are remembered are."""
        known = self._first.get(id(p))
        return known is not None and known[0]() is p and not known[1].any() and not bool(p.detach().any())

    def _far_slower(self, holders: list[tuple[OptimizerState, float, float]]) -> bool:
        """Its rate is far lower than that of another group of the same optimizer."""
        highest = max((group.lr for state, _, _ in holders[:1] for group in state.facts.groups), default=0.0)
        return len(holders) == 1 and 0 < holders[0][2] < SLOWER * highest

    def _layer_of(self, p: Tensor, model: Model | None) -> tuple[bool, Any]:
        """The mode of the parameter's model, and the module that owns it if that module ran."""
        models = [model] if model is not None else self.models.known
        for candidate in models:
            for call in candidate.calls:
                if any(q is p for q in own_parameters(call.module)):
                    root = candidate.ref()
                    return (root.training if root is not None else True), call.module
        root = model.ref() if model is not None else None
        return (root.training if root is not None else True), None

    def _cut_before(self, p: Tensor, model: Model | None) -> Any:
        """The module that owns a parameter, if it was cut off in an earlier pass than the last, as where its output is kept."""
        root = model.ref() if model is not None else None
        cut = model.gaps.keys() | model.cuts.keys() if model is not None else set()
        owners = (layer for _, layer in named_modules(root) if id(layer) in cut) if root is not None and cut else ()
        return next((layer for layer in owners if any(q is p for q in own_parameters(layer))), None)

    def _cut(self, model: Model | None, owner: Any) -> str:
        if model is None or owner is None:
            return ""
        if id(owner) in model.ran_without_grad and id(owner) not in model.ran:
            return f"no_grad around {model.path(owner)}"
        return model.cuts.get(id(owner)) or model.gaps.get(id(owner), "")

    def _is_new(self, p: Tensor) -> bool:
        """Made after the newest optimizer was built: nothing can hold it."""
        newest = max((state.born for state in self.loop.states), default=0)
        return self.loop.born.get(id(p), 0) > newest > 0

    def _norm_facts(self) -> list[NormLayerFacts]:
        found: dict[int, NormLayerFacts] = {}
        for model in self.models.known:
            module = model.ref()
            for path, layer in named_modules(module) if module is not None and model.grad_forwards else ():
                if isinstance(layer, BATCH_NORMS) and self._followed(layer) and id(layer) not in found:
                    found[id(layer)] = self._norm(layer, path, model)
        return list(found.values())

    def _followed(self, layer: Any) -> bool:
        known = self._norms.get(id(layer))
        return known is not None and known[0]() is layer and bool(layer.affine) and _plain(layer.running_mean)

    def _norm(self, layer: Any, path: str, model: Model) -> NormLayerFacts:
        _, first, weights = self._norms[id(layer)]
        mean, variance = (_drift(then, now) for then, now in zip(first, _statistics(layer), strict=True))
        return NormLayerFacts(
            name=spoken(path),
            frozen=self._frozen(layer),
            training=layer.training,
            drifted=max(mean, variance),
            statistic="running_mean" if mean >= variance else "running_var",
            copied=not torch.equal(weights.cpu(), _affine(layer).cpu()),
            ran=id(layer) in model.ran,
        )


def _twins(unreached: list[Tensor], facts: list[ParameterFacts]) -> int:
    """How many of the tensors that no loss reaches have the shape of one that gets gradients and that no optimizer holds."""
    left_out = Counter(p.shape for p in facts if p.trainable and p.reached and p.has_gradient and not p.optimizers)
    return sum((Counter(tuple(p.shape) for p in unreached) & left_out).values())


def _norms(gradients: dict[int, Any]) -> dict[int, float]:
    """id -> L2 norm in float32, in one fused call and one transfer."""
    plain = {k: part_of(g).detach() for k, g in gradients.items() if _plain(g) and not g.is_sparse}
    sparse = {k: g.detach().coalesce().values() for k, g in gradients.items() if g is not None and g.is_sparse}
    found = {k: float(values.float().norm()) for k, values in sparse.items()}
    measured = [norm.double().cpu() for norm in norms(list(plain.values()))]
    found.update(zip(plain, torch.stack(measured).tolist() if measured else [], strict=True))
    return found
