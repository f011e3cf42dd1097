"""Optimizers that are never stepped, or whose gradients nobody zeroes, beside others for which both is done."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from flatline.events import SourceFact, Where
from flatline.readers.source._facts import Seen, model_of, seen_in
from flatline.readers.source._mentions import Mentions
from flatline.readers.source._resolve import Project, Thing
from flatline.readers.source._scopes import Binding, Module, Scope, Use

OTHERS = {"param_groups", "state_dict"}  # of an optimizer, that neither steps nor zeroes
PASSIVE = {"train", "to", "cuda", "cpu", "state_dict", "parameters"}  # of a module, that zeroes nothing


def idle(project: Project, module: Module, zeroes: Sequence[Where]) -> Iterator[SourceFact]:
    """One fact an optimizer."""
    text = "\n".join(module.text.lines)
    if text.count(".parameters()") < 2 or ".backward(" not in text:
        return
    mentions = Mentions(project, module)
    known = dict[int, Sequence[Thing]]()
    for scope in module.scopes:
        seen = seen_in(project, scope)
        for name, thing, use in seen.optimizers():
            yield from Optimizer(seen, mentions, name, thing, use, known).facts(zeroes)


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
        given = model_of(things[0]) if len(things) == 1 and things[0].name.startswith("torch.optim.") else None
        return self.project.things(given, things[0].use) if given is not None else things

    def _apart(self, one: Thing, other: Thing) -> bool:
        """Built side by side, and neither from the other."""
        if one.call is None or other.call is None or one.identity() == other.identity() or one.via != other.via:
            return False
        if other.name.startswith("torch.optim.") or one.use.scope is not other.use.scope:
            return False
        return not self._within(one, other) and not self._within(other, one)

    def _within(self, part: Thing, whole: Thing) -> bool:
        assert whole.call is not None
        given = (*whole.call.args, *(k.value for k in whole.call.keywords))
        names = [n for each in given for n in ast.walk(each) if isinstance(n, (ast.Name, ast.Attribute))]
        return any(t.identity() == part.identity() for n in names for t in self.project.things(n, whole.use))
