"""One function or module, looked at once: what the facts of several kinds ask of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property

from flatline.events import SourceEdit, SourceFact
from flatline.readers.source._agreements import is_agreement, only_agree
from flatline.readers.source._arguments import argument, argument_at, default
from flatline.readers.source._losses import is_mean, kind_of
from flatline.readers.source._managed import is_quiet, is_wrapped_quietly
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import LOOPS, Module, Scope, Use, calls_each, lies_in, spelled
from flatline.readers.source._scored import differs, gives_loss
from flatline.readers.source._things import Thing, builds_optimizer

WHOSE = 400  # nodes in which parameters are looked for
PARAMETERS = ("parameters", "named_parameters")
LAYERS = re.compile(
    r"torch\.nn\.(Linear|Bilinear|Embedding|EmbeddingBag|Conv\w+|LSTM\w*|GRU\w*|RNN\w*|BatchNorm\w*|LayerNorm|Multihead\w+|"
    r"Transformer\w*|Sequential)"
)
CUT_OFF = re.compile(r"\bdetach|\.data\b|\.item\(|no_grad|argmax|\.numpy\(|\.tolist\(")  # no gradient comes back
SWITCHES = re.compile(r"set_grad_enabled|no_grad|inference")
BACKWARDS = re.compile(r"(^|\.)(accelerator|fabric)$")  # that are handed the loss
OTHER_MODE = re.compile(
    r"\.eval\(|\.train\((?!\s*(True)?\s*\))|\.train\(.*\bmode|\.training\b|\.eval\b|eval_?(mode|ctx|context)|(set|to|as)_eval|getattr\([^()]*\)\(\)"
)


def seen_in(project: Project, scope: Scope) -> Seen:
    """A function or module, looked at once."""
    found = project.seen.get(id(scope))
    if not isinstance(found, Seen):
        found = project.seen[id(scope)] = Seen(project, scope.module, scope)
    return found


class Seen:
    """One function or module."""

    def __init__(self, project: Project, module: Module, scope: Scope) -> None:
        self.project, self.module, self.scope = project, module, scope
        self._by_name: dict[str, list[tuple[ast.Call, ast.expr, Use]]] = {}
        self._scoring: dict[int, bool] = {}  # loops, and whether they compare with labels
        self._judging: dict[int, bool] = {}  # loops, and whether some call makes a validation of them
        for call, use in scope.calls:
            if isinstance(call.func, ast.Attribute):
                self._by_name.setdefault(call.func.attr, []).append((call, call.func.value, use))

    @cached_property
    def _loops(self) -> dict[int, ast.stmt]:
        return {id(u.statement): u.statement for u in self.scope.statements if isinstance(u.statement, LOOPS)}

    @cached_property
    def backs_in(self) -> dict[int, list[ast.Call]]:
        """Calls of backward by the innermost loop around them."""
        found: dict[int, list[ast.Call]] = {}
        for call, _, use in self.methods("backward"):
            if (loop := self.loop_of(use)) is not None:
                found.setdefault(id(loop), []).append(call)
        return found

    @cached_property
    def withs(self) -> list[ast.With]:
        return [u.statement for u in self.scope.statements if isinstance(u.statement, ast.With)]

    @cached_property
    def _added(self) -> dict[str, list[tuple[ast.expr, Use]]]:
        found: dict[str, list[tuple[ast.expr, Use]]] = {}
        for use in self.scope.statements:
            if isinstance(use.statement, ast.AugAssign):
                found.setdefault(unparsed(use.statement.target), []).append((use.statement.value, use))
        return found

    def fact(
        self,
        kind: str,
        node: ast.AST,
        *,
        name: str = "",
        text: str = "",
        other: ast.AST | None = None,
        edit: SourceEdit | None = None,
    ) -> SourceFact:
        place = self.module.where(other, self.scope) if other is not None else None
        text, where = text or spelled(node), self.module.where(node, self.scope)
        return SourceFact(kind=kind, name=name, text=text, where=where, other=place, edit=edit)

    @cached_property
    def trained(self) -> Sequence[Thing]:
        """The models of which the optimizers that are built here were given parameters."""
        found: list[Thing] = []
        for call, use in self.scope.calls:
            if builds_optimizer(self.project.dotted(call.func, use)) or self._builds_by_name(call, use):
                given = argument_at(call, "params", 0)
                found += _whose(self.project, given, use, set()) if given is not None else ()
        return found

    def _builds_by_name(self, call: ast.Call, use: Use) -> bool:
        """``getattr(torch.optim, name)(...)``, and ``OPTIMIZERS[name](...)``."""
        things = self.project.things(call.func, use) if not isinstance(call.func, ast.Attribute) else ()
        return bool(things) and all(t.call is None and builds_optimizer(t.name) for t in things)

    def methods(self, *names: str) -> Iterator[tuple[ast.Call, ast.expr, Use]]:
        """Calls of methods with these names, and what they are called on."""
        for name in names:
            yield from self._by_name.get(name, ())

    def returned_names(self) -> Iterator[tuple[str, Use]]:
        """Everything that ends up in the result of a function."""
        waiting = list(self.scope.returns)
        found = set[str]()
        while waiting:
            node, use = waiting.pop()
            for name in names_in(node) - found if node is not None else ():
                found.add(name)
                yield name, use
                waiting += self.values_of(name)

    def backwards(self) -> Iterator[tuple[str, ast.Call, Use]]:
        """Names whose backward is called, bare or scaled."""
        for call, receiver, use in self.methods("backward"):
            given = receiver
            if isinstance(receiver, ast.Call) and receiver.args and _named(receiver, "scale"):
                given = receiver.args[0]
            elif len(call.args) == 1 and BACKWARDS.search(unparsed(receiver)):
                given = call.args[0]
            if isinstance(given, ast.NamedExpr):
                given = given.target
            if isinstance(given, ast.Name):
                yield given.id, call, use

    def freed(self, name: str) -> bool:
        return any(isinstance(r, ast.Name) and r.id == name for _, r, _ in self.methods("detach_", "requires_grad_"))

    def flowing(self, names: Iterator[str]) -> set[str]:
        """Everything that ends up in a backward."""
        found: set[str] = set()
        waiting = list(names)
        for call, receiver, _ in self.methods("backward", "grad"):
            waiting += [n for part in (receiver, *call.args) for n in names_in(part)]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [n for value, _ in self.values_of(name) for n in names_in(value)]
                waiting += [n for value, _ in self.listed.get(name, ()) for n in names_in(value)]
        return found

    @cached_property
    def listed(self) -> dict[str, list[tuple[ast.expr, Use]]]:
        """What is put into lists."""
        found: dict[str, list[tuple[ast.expr, Use]]] = {}
        for call, receiver, use in self.methods("append"):
            if isinstance(receiver, ast.Name) and len(call.args) == 1:
                found.setdefault(receiver.id, []).append((call.args[0], use))
        return found

    def values_of(self, name: str) -> Iterator[tuple[ast.expr, Use]]:
        """All that a name is given here, or that is added to it."""
        yield from self._added.get(name, ())
        for binding in self.scope.bindings.get(name, ()):
            if binding.value is not None:
                yield binding.value, binding.use

    def same_turn(self, one: Use, other: Use) -> bool:
        """In the same innermost loop, or in one call of a function that a loop calls."""
        return self.loop_of(one) is self.loop_of(other) and (self.loop_of(one) is not None or self.called_again)

    @cached_property
    def called_again(self) -> bool:
        """Every call of this function that is known stands in a loop, or in a function of which that is so."""
        sites = self.project.calls_of(self.scope)
        self.__dict__["called_again"] = False  # of itself nothing is known
        return bool(sites) and all(seen_in(self.project, use.scope).repeats(call, use) for call, use in sites)

    def repeats(self, call: ast.Call, use: Use) -> bool:
        """A call in a loop, for each element of a comprehension, or in a function that is called so."""
        listed = id(use.statement) in self.scope.masked and id(call) in calls_each(use.statement)
        return listed or self.loop_of(use) is not None or self.called_again

    def loop_of(self, use: Use) -> ast.stmt | None:
        """The innermost loop around a place."""
        around = (block for block, name in reversed(use.path) if name == "body")
        return next((self._loops[block] for block in around if block in self._loops), None)

    def without_grad(self, use: Use) -> bool:
        """Under no_grad, as a with statement or a decorator."""
        line = getattr(use.statement, "lineno", 0)
        around = [node for node in self.withs if node.lineno <= line <= (node.end_lineno or 0)]
        heads = [item.context_expr for node in around for item in node.items]
        if not isinstance(self.scope.node, ast.Module):
            heads += self.scope.node.decorator_list
        plain = any(re.search(r"no_grad|inference_mode", unparsed(head)) for head in heads)
        return plain or any(is_quiet(self.project, head, use) for head in heads) or self._wrapped_quietly

    @cached_property
    def _wrapped_quietly(self) -> bool:
        return is_wrapped_quietly(self.project, self.scope)

    def optimizers(self) -> Iterator[tuple[str, Thing, Use]]:
        """Names and attributes of self that are given one optimizer here, perhaps by a function that builds it."""
        owner = self.scope.owner
        own = {f"self.{name}": found for name, found in owner.attributes.items()} if owner is not None else {}
        for name, bindings in (*self.scope.bindings.items(), *own.items()):
            for binding in bindings:
                made = isinstance(binding.value, ast.Call) and binding.use.scope is self.scope
                things = self.project.things(binding.value, binding.use, 0, binding.index) if made else ()
                again = any(b.use.order > binding.use.order for b in bindings)
                if len(things) == 1 and things[0].is_optimizer and not again:
                    yield name, things[0], binding.use

    def sole(self, node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
        """The one value of a name, and where it got it."""
        found = (
            self.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in self.scope.bindings else []
        )
        value = found[0].value if len(found) == 1 and not found[0].index else None
        return (value, found[0].use) if value is not None else (node, use)

    def switched(self, back: Use, call: ast.Call) -> bool:
        """``if optimizer is not None`` stands around a backward, and the call gives none."""
        tests = [
            self.scope.choices[block].test
            for block, part in back.path
            if part == "body" and block in self.scope.choices
        ]
        for test in tests:
            node, _ = self.sole(test, back)
            given = node.left if isinstance(node, ast.Compare) and unparsed(node).endswith(" is not None") else node
            if isinstance(given, ast.Name) and given.id in self.scope.params:
                value = argument(call, self.scope, given.id) or default(self.scope, given.id)
                if isinstance(value, ast.Constant) and not value.value:
                    return True
        return False

    def within(self, node: ast.stmt, method: str) -> bool:
        """Whether a statement of this function holds a call of the method."""
        last = node.end_lineno or node.lineno
        return any(node.lineno <= call.lineno <= last for call, _, _ in self.methods(method))

    def draws(self, call: ast.Call) -> bool:
        """``[model(x) for _ in range(20)]``, which looks at the same input again and again."""
        return any(inner is call for each in self._repeats for inner in walk(each))

    @cached_property
    def _repeats(self) -> list[ast.expr]:
        loops = [n for n in walk(self.scope.node) if isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.SetComp))]
        return [n.elt for n in loops if any(spelled(each.iter).startswith("range") for each in n.generators)]

    @cached_property
    def switches(self) -> bool:
        """Gradients are switched off in a function with a backward."""
        back = any(True for _ in self.methods("backward"))
        return back and any(
            self.module.says(each, SWITCHES)
            for each in (*self.scope.node.body, *getattr(self.scope.node, "decorator_list", ()))
        )

    def never_recorded(self, use: Use) -> bool:
        """Under no_grad, here or wherever the function is called."""
        sites = self.project.calls_of(self.scope) if not self.without_grad(use) else []
        outside = (seen_in(self.project, u.scope).without_grad(u) for _, u in sites if u.scope is not self.scope)
        return self.without_grad(use) or (bool(sites) and all(outside))

    def scores(self, loop: ast.stmt) -> bool:
        """Whether a loop compares what it computes with labels."""
        if id(loop) not in self._scoring:
            self._scoring[id(loop)] = self._does_score(loop)
        return self._scoring[id(loop)]

    def _does_score(self, loop: ast.stmt) -> bool:
        calls = [(c, u) for c, u in self.scope.calls if lies_in(c, loop)]
        names = {c.func.attr for c, _ in calls if isinstance(c.func, ast.Attribute)}
        known = bool(names & {"argmax", "eq", "topk"}) and not only_agree(self.project, self.scope, loop)
        plain = known or any(self._is_score(c, u) for c, u in calls)
        plain = plain or (any(_takes_best(c) for c, _ in calls) and any(map(_is_equality, walk(loop))))
        plain = plain or differs(self.project, self.scope, loop)
        return plain or any(gives_loss(self.project, c, u) for c, u in calls)

    def _is_score(self, call: ast.Call, use: Use) -> bool:
        """A loss of torch, of two things that are not of the same models."""
        known = kind_of(self.project, call, use) or (len(call.args) == 2 and is_mean(self.project, call, use))
        return bool(known) and not is_agreement(self.project, call, use)

    def judges(self, loop: ast.stmt) -> bool:
        """Whether a loop scores, and some call of the function switches all its backwards off."""
        if id(loop) not in self._judging:
            backs = [u for _, _, u in self.methods("backward") if lies_in(u.statement, loop)]
            sites = self.project.calls_of(self.scope) if backs else []
            off = any(all(self.switched(back, call) for back in backs) for call, _ in sites)
            self._judging[id(loop)] = off and self.scores(loop)
        return self._judging[id(loop)]

    @cached_property
    def compares_best(self) -> bool:
        """The best classes are taken, and something is compared with labels."""
        calls = [c for c, _ in self.scope.calls]
        names = {c.func.attr for c in calls if isinstance(c.func, ast.Attribute)}
        takes = bool(names & {"argmax", "topk"}) or any(map(_takes_best, calls))
        return takes and ("eq" in names or any(map(_is_equality, walk(self.scope.node))))


@cache
def _said(module: Module) -> list[int]:
    return [n for n, line in enumerate(module.text.lines, 1) if OTHER_MODE.search(line)]


def mode_lines(project: Project, module: Module) -> list[int]:
    """Where a file sets a mode, or may do so."""
    lines = _said(module)
    bare = [n for n in lines if OTHER_MODE.search(module.text.lines[n - 1].replace(".train(", ".fit(")) is None]
    calls = [c for scope in module.scopes if bare for c in seen_in(project, scope).methods("train")]
    own = {c.lineno for c, _, use in calls if _is_training(project, c, use)}
    return [n for n in lines if n not in bare or n not in own]


def _is_training(project: Project, call: ast.Call, use: Use) -> bool:
    """``engine.train(loader)``, a function of the project that sends something backward, and sets no other mode."""
    function = project.callee(call, use)
    inner = [project.callee(*pair) for pair in function.calls] if function is not None else []
    texts = [unparsed(each.node) for each in (function, *inner) if each is not None]
    back = any(".backward(" in text for text in texts)
    return back and not any(OTHER_MODE.search(text) for text in texts)


def trained_models(project: Project, scope: Scope) -> Sequence[Thing]:
    """The models whose parameters are given to an optimizer, or some of them."""
    return seen_in(project, scope).trained


def _whose(project: Project, node: ast.expr, use: Use, told: set[int]) -> Iterator[Thing]:
    """The models in ``Adam(groups(model), lr=1e-3)``, behind names, lists and functions."""
    for inner in walk(node) if id(node) not in told and len(told) < WHOSE else ():
        told.add(id(inner))
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in PARAMETERS:
            yield from _wholes(project, inner.func.value, use)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            for binding in project.holding(inner, use, 0):
                given = project.given(inner.id, binding.use) if binding.parameter else [(binding.value, binding.use)]
                for value, place in given:
                    yield from _whose(project, value, place, told) if value is not None else ()
        elif isinstance(inner, ast.Call) and (function := project.callee(inner, use)) is not None:
            for value, place in function.returns if function.node is not use.scope.node else ():
                yield from _whose(project, value, place, told) if value is not None else ()
            yield from _listed_in(project, function)


def _wholes(project: Project, node: ast.expr, use: Use) -> Iterator[Thing]:
    """A model, and what it is a part of."""
    yield from project.things(node, use)
    while isinstance(node, ast.Attribute):
        node = node.value
        if unparsed(node) != "self":
            yield from project.things(node, use)


def _listed_in(project: Project, function: Scope) -> Iterator[Thing]:
    """Models whose parameters a function goes through."""
    for _, receiver, use in seen_in(project, function).methods(*PARAMETERS):
        yield from _wholes(project, receiver, use)


def is_module_class(project: Project, start: Scope) -> bool:
    assert start.owner is not None
    return any(
        thing.name == "torch.nn.Module"
        for each in project.bases(start.owner)
        for base in each.node.bases
        for thing in project.things(base, each.use)
    )


def is_module(project: Project, thing: Thing) -> bool:
    """A module with parameters of its own."""
    if thing.made_of is not None and (start := thing.made_of.methods.get("__init__")):
        return is_module_class(project, start)
    return LAYERS.fullmatch(thing.name) is not None


def _named(call: ast.Call, method: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == method


def _takes_best(call: ast.Call) -> bool:
    """``torch.max(scores, 1)`` and ``scores.max(1)``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "max":
        return False
    own = unparsed(call.func.value) != "np"
    places = call.args[1:] if unparsed(call.func) == "torch.max" else call.args
    dims = [*places, *(k.value for k in call.keywords if k.arg == "dim")]
    return own and len(dims) == 1 and isinstance(dims[0], (ast.Constant, ast.UnaryOp))


def _is_equality(node: ast.AST) -> bool:
    """``predicted == labels``."""
    equal = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
    sides = (node.left, node.comparators[0]) if equal and isinstance(node, ast.Compare) else ()
    return bool(sides) and not any(isinstance(each, (ast.Constant, ast.BinOp)) for each in sides)


def model_of(thing: Thing) -> ast.expr | None:
    """``model`` in ``Adam(model.parameters())``."""
    given = thing.call.args[0] if thing.call is not None and thing.call.args else None
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "parameters":
        return given.func.value
    return None


def is_own(call: ast.Call) -> bool:
    """``self.prepare()``."""
    func = call.func
    return isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"
