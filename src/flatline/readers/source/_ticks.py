"""What a call does to gradients, optimizers, schedules and modes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from flatline.events import SourceTick, SourceTickKind, Where
from flatline.readers.source._concrete import NOBODY, runs
from flatline.readers.source._dispatch import in_turn
from flatline.readers.source._imported import one_says
from flatline.readers.source._means import means
from flatline.readers.source._modes import modes_of
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._rounds import Known, value
from flatline.readers.source._schedules import is_schedule, length_of, optimizer_of
from flatline.readers.source._scopes import Class, Scope, Use, spelled
from flatline.readers.source._things import Thing
from flatline.readers.source._training import CLIPS, SUSPECT, Paths, Training
from flatline.readers.source._updates import trains_nothing
from flatline.readers.source._ways import Way

RESCALES = re.compile(
    r"register_(?:post_accumulate_grad_)?hook\(|\.grad(?:\.data)?\s*[/*]=|\.grad(?:\.data)?\.(?:div|mul)_\("
    r"|\.grad(?:\.data)?\s*=[^=\n]*[/*]|_foreach_(?:div|mul)_"
)
Keys: TypeAlias = Mapping[str, str]


class Ticks:
    """The calls of one function, with what is known of its objects there."""

    def __init__(
        self,
        training: Training,
        scope: Scope,
        loop: ast.stmt | None,
        keys: Keys | None = None,
        depth: int = 0,
        via: tuple[int, ...] = (),
        around: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.training, self.project = training, training.project
        self.scope, self.loop, self.keys, self.depth = scope, loop, keys or {}, depth
        self.uses, self.calls, self._stepped = training.index(scope)
        self.known: Known = {}  # constants behind names, in this turn of a loop over phases or in this call
        self.selves = NOBODY  # what is known of the objects here, by who called
        self.receiver: Class | None = None  # of the hook that is called
        self.via = via  # the calls that led here: what is made here is another object for each
        self.own = (
            {**(around or {}), **dict.fromkeys([id(call) for call, _ in scope.calls], via)} if via else around or {}
        )
        self.nested = 0
        self.over_data = self.outside = False  # in the innermost loop, and around it
        self.within: tuple[str, Callable[[], Paths | None]] | None = None  # of a decorator
        self.at_yield: Callable[[list[Way]], list[Way]] | None = None
        self.owners: dict[str, str] = {}  # names for a parameter, or a group of an optimizer, in loops over them

    def callee(self, call: ast.Call, use: Use) -> Scope | None:
        """The function that a call runs, by the classes of the objects here."""
        return runs(self.project, call, use, self.selves) or self.project.callee(call, use)

    def _owned(self, node: ast.expr) -> str:
        """Whose gradient ``p.grad`` is."""
        found = [n.id for n in walk(node) if isinstance(n, ast.Name)]
        return self.owners.get(found[0], "") if len(found) == 1 else ""

    def key(self, node: ast.expr, use: Use) -> str:
        """Equal for one object: the call that made it, or else how this function spells it."""
        things = in_turn(self.project, node, use)
        if things and all(thing.is_optimizer for thing in things):
            return " ".join(sorted({self._identity(thing) for thing in things}))
        if len({thing.identity() for thing in things}) == 1 and things[0].call is not None:
            return self._identity(things[0])
        if isinstance(node, ast.Name) and node.id in self.keys:
            return self.keys[node.id]
        return unparsed(node)

    def _identity(self, thing: Thing) -> str:
        """As the function sees it that called this one."""
        made = thing.via[0] if thing.via else id(thing.call)
        return replace(thing, via=(*self.own.get(made, ()), *thing.via)).identity()

    def _where(self, node: ast.AST) -> Where:
        return self.scope.module.where(node, self.scope)

    def ticks(self, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        func = call.func
        dotted = self.project.dotted(func, use)
        if self.callee(call, use) is not None:
            return
        if dotted in CLIPS:
            yield self._tick("clip", call, name=dotted.rpartition(".")[2], threshold=_number(_threshold(call)))
        elif dotted in ("torch.autograd.backward",):
            yield self._tick("backward", call)
        elif isinstance(func, ast.Attribute) and not (dotted and not self.project.is_local(func, use)):
            yield from self._method(func, call, use)
        elif self._opaque(call, use):
            yield self._tick("opaque", call, name=spelled(func))

    def _method(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        made = getattr(self, f"_{func.attr}_tick", None)
        if made is not None:
            yield from made(func, call, use)
        elif self._opaque(call, use):
            yield self._tick("opaque", call, name=spelled(func))

    def _opaque(self, call: ast.Call, use: Use) -> bool:
        """An unknown function that is given, or named, like something that trains."""
        if not SUSPECT.search(spelled(call.func)) and not any(self.training.is_trainer(a, use) for a in call.args):
            return False
        if self.project.dotted(call.func, use).startswith(("torch.", "tqdm", "numpy", "functools.")) or isinstance(
            call.func, ast.Lambda
        ):
            return False
        if trains_nothing(self.project, call, use):
            return False
        known = self.project.things(call.func, use)
        return not known or any(t.function is None and t.made_of is None for t in known)

    def _zero_grad_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        things = in_turn(self.project, func.value, use)
        optimizer = _optimizers(things) or unparsed(func.value) in self._stepped
        key = self.key(func.value, use)
        trains = key if things and not optimizer else ""
        yield self._tick(
            "zero", call, of=key if optimizer else "", name=spelled(func.value), known=optimizer, trains=trains
        )

    def _scales(self, node: ast.expr, use: Use) -> bool:
        """A scaler that is not switched off, and whose switch asks for no dtype."""
        made = [t.call for t in self.project.things(node, use) if t.call is not None]
        switches = [k.value for call in made for k in call.keywords if k.arg == "enabled"]
        off = (isinstance(each, ast.Compare) or unparsed(each) == "False" for each in switches)
        return not any(off)

    def _rescales(self, loss: ast.expr, use: Use) -> bool:
        """Gradients are divided where they arise or afterwards, or the loss by whoever else holds it."""
        files = [each for each in self.project.modules.values() if each is not None]
        outside = isinstance(loss, ast.Attribute) and any(self.project.set_from_outside(loss.attr, m) for m in files)
        return outside or one_says((self.scope.module, self.training.module), RESCALES)

    def _backward_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        scaled = isinstance(func.value, ast.Call) and isinstance(func.value.func, ast.Attribute)
        scaled = scaled and func.value.func.attr == "scale" and self._scales(func.value.func.value, use)  # type: ignore[attr-defined]
        plain = not call.args or isinstance(func.value, ast.Call)
        loss = func.value.args[0] if scaled and func.value.args else func.value  # type: ignore[attr-defined]
        weighted = bool(call.args) or any(k.arg == "gradient" for k in call.keywords)
        mean = not weighted and self._is_mean(loss, use) and not self._rescales(loss, use)
        yield self._tick("backward", call, name=spelled(func.value), scaled=scaled, known=plain, mean=mean)

    def _is_mean(self, node: ast.expr, use: Use) -> bool:
        """What a loss function of torch returned, with its usual reduction, perhaps through functions."""
        return means(self.project, node, use)

    def _step_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        things = in_turn(self.project, func.value, use)
        if is_schedule(things):
            given = optimizer_of(things[0])
            of = self.key(given, things[0].use) if given is not None else ""
            yield self._tick(
                "schedule",
                call,
                of=of,
                name=spelled(func.value),
                known=not call.args and not call.keywords,
                over_data=self.over_data,
                **(length_of(self.project, things[0]) if len(things) == 1 else {}),
            )
        elif _optimizers(things) or (not call.args and unparsed(func.value) in self.training.zeroed):
            yield self._stepping(func.value, call, use)
        elif call.args and (
            self.training.is_trainer(call.args[0], use) or unparsed(call.args[0]) in self.training.zeroed
        ):
            yield replace(self._stepping(call.args[0], call, use), scaled=True)
        elif not things and not call.args and re.search("opt", spelled(func.value), re.IGNORECASE):
            yield self._tick("opaque", call, name=spelled(func.value))

    def _stepping(self, node: ast.expr, call: ast.Call, use: Use) -> SourceTick:
        things = in_turn(self.project, node, use)
        known = _optimizers(things)
        closure = (len(call.args) > 0 and node is not call.args[0]) or bool(call.keywords)
        if closure:
            return self._tick("opaque", call, name=spelled(node))
        return self._tick(
            "step", call, of=self.key(node, use), name=spelled(node), known=known,
            fresh=any(self._inside(thing) for thing in things), trains=self._trained(things), over_data=self.over_data,
        )  # fmt: skip

    def _inside(self, thing: Thing) -> bool:
        """Whether the loop itself builds it."""
        first, last = getattr(self.loop, "lineno", 0), getattr(self.loop, "end_lineno", 0) or 0
        here = thing.use.scope.module is self.training.module and thing.call is not None
        return here and self.loop is not None and first <= getattr(thing.call, "lineno", 0) <= last

    def _trained(self, things: Sequence[Thing]) -> str:
        """The model in ``Adam(model.parameters())``."""
        keys = set()
        for thing in things:
            given = thing.call.args[0] if thing.call is not None and thing.call.args else None
            if (
                isinstance(given, ast.Call)
                and isinstance(given.func, ast.Attribute)
                and given.func.attr == "parameters"
            ):
                found = self.project.things(given.func.value, thing.use)
                keys |= {self._identity(t) for t in found if t.call} if found else {unparsed(given.func.value)}
        return keys.pop() if len(keys) == 1 else ""

    def _unscale__tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        yield self._tick("unscale", call)

    def _eval_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        if not call.args:
            yield self._mode("eval", func, call, use)

    def _train_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        given = call.args[0] if call.args else call.keywords[0].value if call.keywords else None
        switch = value(given, self.known, use) if given is not None else True
        if switch is False:
            yield self._mode("eval", func, call, use)
        elif switch is True or isinstance(given, ast.Constant):
            yield self._mode("train", func, call, use)
        else:
            yield self._tick("train", call)

    def _mode(self, kind: SourceTickKind, func: ast.Attribute, call: ast.Call, use: Use) -> SourceTick:
        things = self.project.things(func.value, use)
        modes = next((m for thing in things if (m := modes_of(self.project, thing))), "")
        return self._tick(kind, call, of=self.key(func.value, use), name=spelled(func.value), modes=modes)

    def _zero__tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        if re.search(r"\.grad(\.data)?$", unparsed(func.value)):
            yield self._tick("zero", call, name=spelled(func.value), trains=self._owned(func.value))

    def _copy__tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        """A gradient that is written by hand stands for a backward."""
        if re.search(r"\.grad(\.data)?$", unparsed(func.value)):
            yield self._tick("backward", call, name=spelled(func.value))

    _add__tick = _copy__tick

    def _tick(self, kind: SourceTickKind, node: ast.AST, **facts: object) -> SourceTick:
        return SourceTick(kind=kind, where=self._where(node), depth=self.nested, **facts)  # type: ignore[arg-type]


def _optimizers(things: Sequence[Thing]) -> bool:
    return bool(things) and all(thing.is_optimizer for thing in things)


def _threshold(call: ast.Call) -> ast.expr | None:
    named = [k.value for k in call.keywords if k.arg in ("max_norm", "clip_value")]
    return named[0] if named else call.args[1] if len(call.args) > 1 else None


def _number(node: ast.expr | None) -> float | None:
    """A literal number; a threshold that is made from a scale counts as endless, as it was thought of."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    return float("inf") if node is not None and re.search("scale|inf", unparsed(node)) else None
