"""Optimizers that are never stepped, or whose gradients nobody zeroes, beside others for which both is done."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from flatline.events import SourceFact, Where
from flatline.readers.source._mentions import Mentions
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Module, Scope, Use
from flatline.readers.source._seen import Seen, model_of, seen_in
from flatline.readers.source._things import Thing, builds_optimizer

OTHERS = {"param_groups", "state_dict"}  # of an optimizer, that neither steps nor zeroes
PASSIVE = {"train", "to", "cuda", "cpu", "state_dict", "parameters"}  # of a module, that zeroes nothing


def idle(project: Project, module: Module, zeroes: Sequence[Where]) -> Iterator[SourceFact]:
    """One fact an optimizer."""
    text = module.whole
    if text.count(".parameters()") < 2 or ".backward(" not in text:
        return
    mentions = Mentions(project, module)
    known = dict[int, Sequence[Thing]]()
    for scope in module.scopes:
        seen = seen_in(project, scope)
        for name, thing, use in seen.optimizers():
            yield from Optimizer(seen, mentions, name, thing, use, known).facts(zeroes)
        for name, binding in _tables(seen):
            yield from _unstepped(seen, mentions, name, binding)


def _tables(seen: Seen) -> Iterator[tuple[str, Binding]]:
    """Names that stand for a dictionary, as it is written out here or in the function that makes it."""
    for name, bindings in seen.scope.bindings.items():
        if len(bindings) == 1 and isinstance(bindings[0].value, (ast.Dict, ast.Call)) and not bindings[0].index:
            yield name, bindings[0]


def _unstepped(seen: Seen, mentions: Mentions, name: str, binding: Binding) -> Iterator[SourceFact]:
    """``{"encoder": Adam(...), "decoder": Adam(...)}``: all are zeroed in a loop, and one is never stepped."""
    entries = _entries(seen.project, binding)
    reads = mentions.reads(ast.Name(name, ast.Load()), binding) if len(entries) > 1 else None
    keys = [_key(seen, mentions, read) for read in reads or ()]
    stepped = {key for key in keys if key}
    if not stepped or None in keys or "" not in keys or not stepped < set(entries):
        return
    models = {key: seen.project.things(model_of(t), t.use) for key, t in entries.items()}
    others = [t for s in seen.module.scopes for c, u in s.calls for t in _optimizers_in(seen.project, c, u)]
    apart = all(len(things) == 1 and things[0].call is not None for things in models.values())
    if apart and len({things[0].identity() for things in models.values()}) == len(entries) == len(others):
        place = next(read for read, key in zip(reads or (), keys, strict=True) if key == "")
        for key in entries.keys() - stepped:
            yield SourceFact(kind="idle optimizer", name=f"{name}[{key!r}]", where=seen.module.where(place, seen.scope))


def _optimizers_in(project: Project, call: ast.Call, use: Use) -> Iterator[ast.Call]:
    if builds_optimizer(project.dotted(call.func, use)):
        yield call


def _entries(project: Project, binding: Binding) -> dict[str, Thing]:
    """The optimizers of a dictionary, by key; nothing unless all of it is known."""
    value, use = binding.value, binding.use
    function = project.callee(value, use) if isinstance(value, ast.Call) else None
    if function is not None and len(function.returns) == 1:
        value, use = function.returns[0]
    keys = value.keys if isinstance(value, ast.Dict) else []
    names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    things = [project.things(each, use) for each in value.values] if isinstance(value, ast.Dict) else []
    plain = len(names) == len(keys) == len(set(names)) and all(len(each) == 1 for each in things)
    made = plain and all(thing.is_optimizer for (thing,) in things)
    return {name: thing for name, (thing,) in zip(names, things, strict=True)} if made else {}


def _key(seen: Seen, mentions: Mentions, read: ast.expr) -> str | None:
    """The entry that is stepped; nothing where all are only zeroed in a loop, None for anything else."""
    parent = mentions.parent(read)
    if isinstance(parent, ast.Subscript) and parent.value is read and isinstance(parent.slice, ast.Constant):
        key = parent.slice.value
        return key if mentions.asked(parent) == "step" and isinstance(key, str) else None
    call = mentions.parent(parent) if mentions.asked(read) == "values" else None
    loop = mentions.parent(call) if call is not None else None
    if not isinstance(loop, ast.For) or loop.iter is not call or len(loop.body) != 1:
        return None
    return "" if unparsed(loop.body[0]).startswith(f"{unparsed(loop.target)}.zero_grad(") else None


class Optimizer:
    """One that is built in a function, and everything that is done with it."""

    def __init__(
        self, seen: Seen, mentions: Mentions, name: str, thing: Thing, use: Use, known: dict[int, Sequence[Thing]]
    ) -> None:
        self.known = known  # whose gradients each line zeroes
        self.seen, self.project, self.mentions = seen, seen.project, mentions
        self.name, self.thing, self.use = name, thing, use
        self.node = ast.parse(name, mode="eval").body

    def facts(self, zeroes: Sequence[Where]) -> Iterator[SourceFact]:
        """What it lacks."""
        binding = self.mentions.binding(self.node, self.use)
        model = model_of(self.thing)
        reads = self.mentions.reads(self.node, binding) if binding is not None else None
        if not reads or model is None or not all(self._is_plain(read) for read in reads):
            return
        asked = {self.mentions.asked(read) for read in reads} - {""}
        place = next((read for read in reads if self.mentions.asked(read) in ("step", "zero_grad")), reads[0])
        where = self.seen.module.where(place, self._scope_of(place))
        if asked == {"zero_grad"} and self._alone(model):
            yield SourceFact(kind="idle optimizer", name=self.name, where=where)
        elif "step" in asked and "zero_grad" not in asked and zeroes and self._left_out(model, zeroes):
            if self._in_step(place):
                yield SourceFact(kind="never zeroed", name=self.name, where=where)

    def _is_plain(self, read: ast.expr) -> bool:
        """Stepped, zeroed, looked at, or scheduled."""
        parent = self.mentions.parent(read)
        if isinstance(parent, ast.Attribute):
            return parent.attr in OTHERS or self.mentions.asked(read) in ("step", "zero_grad")
        return isinstance(parent, ast.Call) and self._called(parent).startswith("torch.optim.lr_scheduler.")

    def _called(self, call: ast.Call) -> str:
        return self.project.dotted(call.func, self.use)

    def _scope_of(self, node: ast.AST) -> Scope:
        line = getattr(node, "lineno", 0)
        around = [s for s in self.seen.module.scopes if not isinstance(s.node, ast.Module)]
        around = [s for s in around if s.node.lineno <= line <= (s.node.end_lineno or 0)]  # type: ignore[union-attr]
        return max(around, key=lambda s: s.node.lineno, default=self.seen.module.top)  # type: ignore[union-attr]

    def _in_step(self, place: ast.expr) -> bool:
        """In a loop, behind a backward, as a statement of its own."""
        seen = seen_in(self.project, self._scope_of(place))
        for call, receiver, use in seen.methods("step"):
            if (
                receiver is place
                and isinstance(use.statement, ast.Expr)
                and use.statement.value is call
                and not call.args
            ):
                backs = seen.backs_in.get(id(seen.loop_of(use)), [])
                once = not backs and seen.loop_of(use) is None and self._called_again(seen)
                backs = [b for b, _, other in seen.methods("backward") if other.path == use.path] if once else backs
                return any(back.lineno < call.lineno for back in backs)
        return False

    def _called_again(self, seen: Seen) -> bool:
        """A call of the function stands in a loop."""
        sites = [use for _, use in self.project.calls_of(seen.scope)]
        return any(seen_in(self.project, use.scope).loop_of(use) is not None for use in sites)

    # ----------------------------------------------------------------------- its model

    def _model(self, model: ast.expr) -> tuple[Binding, list[ast.expr]] | None:
        binding = self.mentions.binding(model, self.thing.use)
        reads = self.mentions.reads(model, binding) if binding is not None else None
        return (binding, reads) if binding is not None and reads else None

    def _alone(self, model: ast.expr) -> bool:
        """No other optimizer can have been given the model's parameters."""
        found = self._model(model)
        return found is not None and all(self._is_passive(read, alone=True) for read in found[1])

    def _is_passive(self, read: ast.expr, *, alone: bool) -> bool:
        """It is called, or gives its parameters to this optimizer, or to a clip."""
        parent = self.mentions.parent(read)
        if isinstance(parent, ast.Call) and parent.func is read:
            return True
        asked = self.mentions.asked(read)
        if asked != "parameters":
            return asked in PASSIVE or (asked in ("eval", "zero_grad") and alone)
        taker = self.mentions.parent(self.mentions.parent(parent))
        if not isinstance(taker, ast.Call):
            return False
        return taker is self.thing.call or self._called(taker).startswith("torch.nn.utils.clip_grad")

    def _left_out(self, model: ast.expr, zeroes: Sequence[Where]) -> bool:
        """Every zeroing of the file is that of another model."""
        found = self._model(model)
        own = self.project.things(model, self.thing.use)
        if found is None or len(own) != 1 or not all(self._is_passive(read, alone=False) for read in found[1]):
            return False
        module = self.seen.module
        if not self.known:
            self.known |= {
                module.where(call).line: self._zeroed(receiver, use)
                for scope in module.scopes
                for call, receiver, use in seen_in(self.project, scope).methods("zero_grad")
            }
        known = self.known
        places = [known.get(place.line, ()) if place.file == module.text.path else () for place in zeroes]
        return all(len(things) == 1 and self._apart(own[0], things[0]) for things in places)

    def _zeroed(self, node: ast.expr, use: Use) -> Sequence[Thing]:
        """The model whose gradients a call of zero_grad zeroes."""
        things = self.project.things(node, use)
        given = model_of(things[0]) if len(things) == 1 and things[0].is_optimizer else None
        return self.project.things(given, things[0].use) if given is not None else things

    def _apart(self, one: Thing, other: Thing) -> bool:
        """Built side by side, and neither from the other."""
        if one.call is None or other.call is None or one.identity() == other.identity() or one.via != other.via:
            return False
        if other.is_optimizer or one.use.scope is not other.use.scope:
            return False
        return not self._within(one, other) and not self._within(other, one)

    def _within(self, part: Thing, whole: Thing) -> bool:
        assert whole.call is not None
        given = (*whole.call.args, *(k.value for k in whole.call.keywords))
        names = [n for each in given for n in walk(each) if isinstance(n, (ast.Name, ast.Attribute))]
        return any(t.identity() == part.identity() for n in names for t in self.project.things(n, whole.use))
