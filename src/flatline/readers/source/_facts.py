"""What else a source shows: a kind a function."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from flatline.events import SourceEdit, SourceFact
from flatline.readers.source._afterwards import all_afterwards
from flatline.readers.source._loops import LOOPS, modes_of, repeated
from flatline.readers.source._losses import is_mean, kind_of
from flatline.readers.source._ordered import class_by_class, handed_on, told
from flatline.readers.source._resolve import SAME, Project, Thing, argument, argument_at, builds_optimizer, default
from flatline.readers.source._rounds import Known, around, chosen_in, is_left_out, truth
from flatline.readers.source._scopes import FUNCTIONS, Binding, Module, Scope, Use, iterated, lies_in, spelled
from flatline.readers.source._turns import reached, turns
from flatline.readers.source._values import Source, comes_by, drawn_by, on_cuda, origins

AUTOCASTS = {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast"}
WHOSE = 400  # nodes in which parameters are looked for
PARAMETERS = ("parameters", "named_parameters")
CALLS = 2  # from a function to what its result goes into
UNCALLED = {"step", "zero_grad", "backward", "eval", "train", "unscale_"}
CUTS = {"tensor", "detach", "item"}
CLOSED_FORM = {"LambdaLR", "OneCycleLR", "CyclicLR", "ConstantLR", "LRScheduler", "ReduceLROnPlateau"}
LAYERS = re.compile(
    r"torch\.nn\.(Linear|Bilinear|Embedding|EmbeddingBag|Conv\w+|LSTM\w*|GRU\w*|RNN\w*|BatchNorm\w*|LayerNorm|Multihead\w+|"
    r"Transformer\w*|Sequential)"
)
CUT_OFF = re.compile(r"\bdetach|\.data\b|\.item\(|no_grad|argmax|\.numpy\(|\.tolist\(")  # no gradient comes back
OTHER_SCALING = re.compile(r"scaler|scale_loss|loss_scale|accelerat|deepspeed|fabric|lightning", re.IGNORECASE)
BACKWARDS = re.compile(r"(^|\.)(accelerator|fabric)$")  # that are handed the loss
OTHER_MODE = re.compile(
    r"\.eval\(|\.train\((?!\s*(True)?\s*\))|\.train\(.*\bmode|\.training\b|\.eval\b|eval_?(mode|ctx|context)|(set|to|as)_eval|getattr\([^()]*\)\(\)"
)
AFTERWARDS = 2  # lines about modes, behind the training
STEPS = re.compile(r"step|update|apply|optimi|sub_|add_$|^copy_$")  # what a batch may change the weights by
NO_GRAD = ("no_grad", "inference_mode")
OWN = re.compile(r"\bself\.(\w+)")
FILLED = re.compile(r"\bself\.(\w+)(?:\.append\(|\[[^\]]*\] = |(?:: [\w\[\]., ]+)? = )")
READ_ONLY = ("get_last_lr", "get_lr", "state_dict", "last_epoch", "base_lrs")


def facts(project: Project, module: Module) -> Iterator[SourceFact]:
    """Everything that one of the functions below sees."""
    text = "\n".join(module.text.lines)
    trains = ".backward(" in text
    scaling = trains and OTHER_SCALING.search(text) is not None
    trained: set[str] = set()
    modes = [n for n, line in enumerate(module.text.lines, 1) if OTHER_MODE.search(line)]
    if ("_grad" in text or "inference_mode" in text) and len(modes) <= AFTERWARDS:
        trained = {t.identity() for scope in module.scopes for t in trained_models(project, scope)}
    for scope in module.scopes:
        seen = seen_in(project, scope)
        yield from seen.uncalled()
        yield from seen.kept()
        yield from seen.kept_scores() if trains else ()
        yield from seen.severed()
        yield from seen.rates()
        yield from seen.coupled()
        yield from seen.logged_softmax() if trains else ()
        yield from seen.closures()
        yield from seen.schedulers() if trains else ()
        yield from seen.rebound()
        yield from seen.anomaly()
        yield from seen.half() if trains and not scaling else ()
        yield from seen.unshuffled()
        yield from seen.validated(trained) if all_afterwards(project, module, modes, scope) else ()
    for owner in module.classes.values():
        yield from plain_lists(project, module, owner.methods)


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
        self._passes: dict[int, bool] = {}  # loops, and whether a call switches their backward off
        self._scoring: dict[int, bool] = {}  # loops, and whether they compare with labels
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
                found.setdefault(ast.unparse(use.statement.target), []).append((use.statement.value, use))
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

    # ----------------------------------------------------------------------- statements

    def uncalled(self) -> Iterator[SourceFact]:
        """``optimizer.step`` without parentheses."""
        for use in self.scope.statements:
            node = use.statement
            if not (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute) and node.value.attr in UNCALLED
            ):
                continue
            if self._last_of_cell(node):
                continue
            things = self.project.things(node.value.value, use)
            schedule = bool(things) and all(t.name.startswith("torch.optim.lr_scheduler.") for t in things)
            kind = "uncalled schedule" if schedule else f"uncalled {node.value.attr}"
            yield self.fact(kind, node, edit=after(node.value, "()"))

    def _last_of_cell(self, node: ast.stmt) -> bool:
        """A notebook shows the value of a cell's last line."""
        return self.module.text.path.endswith(".ipynb") and isinstance(self.scope.node, ast.Module)

    def anomaly(self) -> Iterator[SourceFact]:
        """Anomaly mode, switched on for good."""
        for call, use in self.scope.calls:
            if self.project.dotted(call.func, use) != "torch.autograd.set_detect_anomaly":
                continue
            given = call.args[0] if call.args else call.keywords[0].value if call.keywords else None
            on = isinstance(given, ast.Constant) and given.value is True
            if on and isinstance(use.statement, ast.Expr) and self._unconditional(use):
                yield self.fact("anomaly", call, edit=_instead(given, "False") if given is not None else None)

        for use in self.scope.statements:
            heads = [item.context_expr for item in getattr(use.statement, "items", ())]
            for head in heads:
                name = self.project.dotted(head.func, use) if isinstance(head, ast.Call) and not head.args else ""
                if (
                    name == "torch.autograd.detect_anomaly"
                    and self._within(use.statement, "backward")
                    and self._unconditional(use)
                ):
                    yield self.fact("anomaly", head)

    def _unconditional(self, use: Use) -> bool:
        blocks = {block for block, _ in use.path}
        around = [s.statement for s in self.scope.statements if id(s.statement) in blocks]
        return all(not isinstance(node, ast.If) or "__main__" in ast.unparse(node.test) for node in around)

    def rates(self) -> Iterator[SourceFact]:
        """``scheduler.get_lr()`` of schedules whose get_lr is a step of a recursion."""
        for call, receiver, use in self.methods("get_lr"):
            things = self.project.things(receiver, use)
            names = {t.name.rpartition(".")[2] for t in things if t.name.startswith("torch.optim.lr_scheduler.")}
            if names and len(names) == len({t.name for t in things}) and not names & CLOSED_FORM:
                yield self.fact("get_lr", call, name=sorted(names)[0], edit=_renamed(call.func, "get_last_lr"))

    def coupled(self) -> Iterator[SourceFact]:
        """``Adam(weight_decay=0.01)``."""
        for call, use in self.scope.calls:
            name = self.project.dotted(call.func, use)
            decay = next((k.value for k in call.keywords if k.arg == "weight_decay"), None)
            switched = any(k.arg in (None, "decoupled_weight_decay") for k in call.keywords)
            if decay is None or switched or name not in ("torch.optim.Adam", "torch.optim.Adamax"):
                continue
            if (number := self.project.number(decay, use)) is not None and number > 0:
                yield self.fact("coupled", call, name=name.rpartition(".")[2], text=f"{number:g}")

    def logged_softmax(self) -> Iterator[SourceFact]:
        """``log(softmax(x))``, with nothing between the two."""
        for call, receiver, use in self.methods("log"):
            plain = self.project.dotted(call.func, use)
            given = call.args[0] if plain == "torch.log" and len(call.args) == 1 else receiver
            if (plain and plain != "torch.log") or (call.args and given is receiver):
                continue
            made = self.project.made(given, use)
            if made and all(m.by == "softmax" for m in made) and self.is_learned_from(use, call):
                edit = _log_softmax(call, given) if made[0].node is given else None
                yield self.fact("logged softmax", call, name=spelled(call), other=made[0].node, edit=edit)

    def is_learned_from(self, use: Use, call: ast.Call, depth: int = 0, place: int | None = None) -> bool:
        """It is in the result of a forward, or in what goes backward, perhaps as the result of a function."""
        node = use.statement
        names = _given_at(node, place)
        if not names and isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            names = {name for name, values in self._listed.items() if any(u is use for _, u in values)}
        if isinstance(node, ast.Return):
            forward = self.scope.owner is not None and self.scope.name.endswith(".forward")
            return forward or self._calls_learn(self._places_of(call, names), depth)
        flowing = self.flowing(name for name, _, _ in self.backwards())
        back = any(use.statement is other.statement for _, _, other in self.methods("backward"))
        places = self._places_of(call, names) if depth < CALLS and names and not (back or names & flowing) else ()
        return back or bool(names & flowing) or self._calls_learn(places, depth)

    def _returned_names(self) -> Iterator[tuple[str, Use]]:
        """Everything that ends up in the result of a function."""
        waiting = list(self.scope.returns)
        found = set[str]()
        while waiting:
            node, use = waiting.pop()
            for name in names_in(node) - found if node is not None else ():
                found.add(name)
                yield name, use
                waiting += self.values_of(name)

    def _behind(self, part: ast.expr) -> set[str]:
        """The names that a part of a result is made of, also by way of lists."""
        waiting, found = [part], set[str]()
        while waiting:
            for name in names_in(waiting.pop()) - found:
                found.add(name)
                waiting += [value for value, _ in (*self.values_of(name), *self._listed.get(name, ()))]
        return found

    def _calls_learn(self, places: Sequence[int | None], depth: int) -> bool:
        """What a call of this function returns goes backward, at a place where this is in it."""
        calls = self.project.sites_of(self.scope) if depth < CALLS and places else []
        seen = [(seen_in(self.project, use.scope), use, call) for call, use in calls if use.scope is not self.scope]
        return any(each.is_learned_from(use, call, depth + 1, place) for each, use, call in seen for place in places)

    def _places_of(self, node: ast.Call, names: set[str]) -> Sequence[int | None]:
        """Where in what is returned a call, or what it gave, ends up; None for the whole of it."""
        found: list[int | None] = []
        for value, _ in self.scope.returns:
            parts = _parts_of(value) if value is not None else []
            for place, part in enumerate(parts):
                if any(inner is node for inner in ast.walk(part)) or names & self._behind(part):
                    found.append(place)
            if value is not None and not parts:
                inside = any(inner is node for inner in ast.walk(value)) or names & self._behind(value)
                found += [None] if inside else []
        return found

    def closures(self) -> Iterator[SourceFact]:
        """``optimizer.step(closure)``, and the closure's backward."""
        for call, receiver, use in self.methods("step"):
            given = call.args[0] if len(call.args) == 1 else None
            functions = [t.function for t in self.project.things(given, use) if t.function is not None]
            things = self.project.things(receiver, use)
            if len(functions) == 1 and things and all(thing.is_optimizer for thing in things):
                back = [
                    c for c, _ in functions[0].calls if isinstance(c.func, ast.Attribute) and c.func.attr == "backward"
                ]
                if back and self.loop_of(use) is not None:
                    yield self.fact("closure", call, name=spelled(receiver), other=back[0])

    def schedulers(self) -> Iterator[SourceFact]:
        """A scheduler that is built, and of which nothing is asked but its rate."""
        for name, bindings in self.scope.bindings.items():
            for binding in bindings:
                if not isinstance(binding.value, ast.Call) or binding.use.scope is not self.scope:
                    continue
                things = self.project.things(binding.value, binding.use, 0, binding.index)
                scheduled = bool(things) and all(
                    t.call and t.name.startswith("torch.optim.lr_scheduler.") for t in things
                )
                if scheduled and len(bindings) == 1 and not self._mentioned(name, READ_ONLY):
                    yield self.fact("never stepped", binding.value, name=name)

    # ----------------------------------------------------------------------- losses

    def backwards(self) -> Iterator[tuple[str, ast.Call, Use]]:
        """Names whose backward is called, bare or scaled."""
        for call, receiver, use in self.methods("backward"):
            given = receiver
            if isinstance(receiver, ast.Call) and receiver.args and _named(receiver, "scale"):
                given = receiver.args[0]
            elif len(call.args) == 1 and BACKWARDS.search(ast.unparse(receiver)):
                given = call.args[0]
            if isinstance(given, ast.NamedExpr):
                given = given.target
            if isinstance(given, ast.Name):
                yield given.id, call, use

    def kept(self) -> Iterator[SourceFact]:
        """``total += loss``: a tensor with its graph, in something that outlives the turn."""
        backwards = [(name, name, call, use) for name, call, use in self.backwards()] + [*self._of_tables()]
        if not backwards:
            return
        flowing = self.flowing(name for name, shown, _, _ in backwards if shown == name)
        for use in self.scope.statements:
            keeper, value, inside = self.keeping(use)
            for name, shown, call, back in backwards if value is not None else ():
                if (
                    _carries(value, name)
                    and keeper not in flowing
                    and self.same_turn(use, back)
                    and self.scope.reaching(name, use) == self.scope.reaching(name, back)
                    and (inside or self.outlives(keeper, use))
                    and not self.without_grad(use)
                    and not self.freed(name)
                    and not self.emptied(keeper, use)
                ):
                    edit = detached(value, name) if shown == name else None
                    yield self.fact("kept", use.statement, name=shown, text=keeper, other=call, edit=edit)

    def _of_tables(self) -> Iterator[tuple[str, str, ast.Call, Use]]:
        """``losses["total"].backward()`` of a dictionary in which nothing is put in its place."""
        for call, receiver, use in self.methods("backward"):
            held = receiver.value if isinstance(receiver, ast.Subscript) else None
            if isinstance(held, ast.Name) and not self.project.written_to(held, use):
                yield held.id, ast.unparse(receiver), call, use

    def kept_scores(self) -> Iterator[SourceFact]:
        """``curve.append(loss_of(model(x), y))`` in a loop that trains the model: a loss with a graph that goes nowhere."""
        backs = [use for _, _, use in self.methods("backward")]
        trained = {t.identity() for t in trained_models(self.project, self.scope)} if backs else set()
        for use in self.scope.statements if trained else ():
            keeper, value = kept_by(use.statement)
            loop = self.loop_of(use)
            node, place = self.sole(value, use) if value is not None else (None, use)
            if loop is None or not isinstance(node, ast.Call) or not (place is use or self.same_turn(place, use)):
                continue
            if not self._scored(node, place, trained) or self.without_grad(use) or self.without_grad(place):
                continue
            goes = any(lies_in(back.statement, loop) for back in backs) and self.outlives(keeper, use)
            flows = self.flowing(name for name, _, _ in self.backwards())
            if goes and not self.emptied(keeper, use) and not {keeper, ast.unparse(value)} & flows:  # type: ignore[arg-type]
                name = spelled(value)  # type: ignore[arg-type]
                edit = after(value, ".detach()") if value is not None else None
                yield self.fact("kept", use.statement, name=name, text=keeper, edit=edit)

    def _scored(self, node: ast.Call, use: Use, trained: set[str]) -> bool:
        """A loss of torch, of what a model that is trained returns."""
        if not (kind_of(self.project, node, use) or is_mean(self.project, node, use)) or not node.args:
            return False
        given, place = self.sole(node.args[0], use)
        return isinstance(given, ast.Call) and bool(
            {t.identity() for t in self.project.things(given.func, place)} & trained
        )

    def keeping(self, use: Use) -> tuple[str, ast.expr | None, bool]:
        """What is kept and in what; and whether that is an object from outside of the turn which adds it up."""
        keeper, value = kept_by(use.statement)
        if value is None and isinstance(use.statement, ast.Assign) and self._is_counted(use.statement.targets[0], use):
            return ast.unparse(use.statement.targets[0].value), use.statement.value, False  # type: ignore[attr-defined]
        call = use.statement.value if isinstance(use.statement, ast.Expr) else None
        if value is None and isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            return self._kept_by_closure(call, call.func.id, use)
        if value is not None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return keeper, value, False
        function = self.project.callee(call, use) if self._from_outside(call.func.value, use) else None
        for name, inner in _adds_up(self.project, function) if function is not None and function.owner else ():
            lasting = self.loop_of(use) is not None or _never_emptied(self.project, function, inner)  # type: ignore[arg-type]
            if lasting and (given := _given_as(call, function, name)) is not None:  # type: ignore[arg-type]
                receiver = ast.unparse(call.func.value)
                return inner if receiver == "self" else receiver, given, True
        return "", None, False

    def _kept_by_closure(self, call: ast.Call, called: str, use: Use) -> tuple[str, ast.expr | None, bool]:
        """``track(loss)``, where a function inside another puts it into a list of that one, which is never emptied."""
        function = self.project.callee(call, use)
        outer = function.parent if function is not None and function.owner is None else None
        loop, found = self.loop_of(use), self.scope.reaching(called, use) if called in self.scope.bindings else []
        inside = [b for b in found if loop is not None and lies_in(b.use.statement, loop)]
        if (
            function is None
            or outer is None
            or isinstance(outer.node, ast.Module)
            or loop is None
            or inside
            or not found
        ):
            return "", None, False
        text = ast.unparse(outer.node)
        for each in function.statements:
            keeper, value = kept_by(each.statement)
            begun = outer.bindings.get(keeper, []) if keeper not in function.bindings else []
            once = len(begun) == 1 and _plain_binding(begun[0]) and isinstance(each.statement, ast.Expr)
            names = [n for n in function.params if _carries(value, n)] if once else []
            emptied = re.search(
                rf"\b{re.escape(keeper)}(\.(clear|pop|popleft)\(|\[.*\] = )|\bdel {re.escape(keeper)}", text
            )
            if names and not emptied and not seen_in(self.project, function).without_grad(each):
                return keeper, argument(call, function, names[0]), True
        return "", None, False

    def _is_counted(self, target: ast.expr, use: Use) -> bool:
        """``log[i]``, of another number in each turn."""
        key = target.slice if isinstance(target, ast.Subscript) else None
        found = self.scope.reaching(key.id, use) if isinstance(key, ast.Name) and key.id in self.scope.bindings else []
        counted = len(found) == 1 and isinstance(loop := found[0].use.statement, ast.For) and loop is self.loop_of(use)
        return counted and re.match(r"(enumerate|range|trange|tqdm)\(", ast.unparse(loop.iter)) is not None  # type: ignore[attr-defined]

    def _from_outside(self, node: ast.expr, use: Use) -> bool:
        """An object that is there before the loop."""
        whole = node
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        loop = self.loop_of(use)
        while isinstance(whole, ast.Attribute) and isinstance(whole.value, ast.Attribute):
            whole = whole.value
        if loop is None and isinstance(whole, ast.Name) and whole.id not in self.scope.bindings:
            return self.called_again and self._is_global(whole.id) and self._begun_once(whole.id)
        if loop is None and isinstance(whole, ast.Attribute) and isinstance(whole.value, ast.Name):
            return self.called_again and self._made_once(whole)
        found = (
            self.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in self.scope.bindings else []
        )
        if loop is not None and isinstance(node, ast.Name) and node.id not in self.scope.bindings:
            return self._is_global(node.id)
        return loop is not None and bool(found) and not any(lies_in(b.use.statement, loop) for b in found)

    def _is_global(self, name: str) -> bool:
        """An object that the file makes once, outside of every function, or that an outer function has."""
        found = self._outer_bindings(name)
        return len(found) == 1 and isinstance(found[0].value, ast.Call)

    def _outer_bindings(self, name: str) -> list[Binding]:
        """What a name is given outside of the function, which does not bind it."""
        outer = self.scope.parent if name.isidentifier() else None
        while outer is not None and name not in outer.bindings:
            outer = outer.parent
        return outer.bindings[name] if outer is not None else []

    def _made_once(self, node: ast.Attribute) -> bool:
        """``self.history``, which ``__init__`` makes, and nothing else."""
        owner = self.scope.owner if self.scope.own == (ast.unparse(node.value),) else None
        found = self.project.attributes(owner, node.attr) if owner is not None else []
        outside = self.project.set_from_outside(node.attr, self.module)
        return not outside and [b.use.scope.name.rpartition(".")[2] for b in found] == ["__init__"]

    def emptied(self, keeper: str, use: Use) -> bool:
        """Something takes out of it again, or what was added up is begun anew in the loop."""
        for each in self._together(keeper):
            taken = [ast.unparse(receiver) for _, receiver, _ in each.methods("clear", "pop", "popleft")]
            if keeper in taken or any(
                keeper in ast.unparse(r) for _, r, _ in each.methods("backward") if "." in keeper
            ):
                return True
        loop = self.loop_of(use)
        resets = [call for call, receiver, _ in self.methods("reset") if ast.unparse(receiver) == keeper]
        if any(loop is None or lies_in(call, loop) for call in resets):
            return True
        deleted = [t for u in self.scope.statements if isinstance(u.statement, ast.Delete) for t in u.statement.targets]
        return any(ast.unparse(target).startswith(keeper) for target in deleted)

    def _together(self, keeper: str) -> Iterator[Seen]:
        """This function; for an attribute of self, every method of the class."""
        owner = self.scope.owner if keeper.startswith("self.") else None
        others: list[Scope] = [*owner.methods.values()] if owner is not None else []
        if keeper.isidentifier() and keeper not in self.scope.bindings:
            others = [each for each in self.module.scopes if keeper not in each.params]
        yield from (seen_in(self.project, each) for each in others)
        yield self

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
                waiting += [n for value, _ in self._listed.get(name, ()) for n in names_in(value)]
        return found

    @cached_property
    def _listed(self) -> dict[str, list[tuple[ast.expr, Use]]]:
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
        listed = id(use.statement) in self.scope.masked and id(call) in repeated(use.statement)
        return listed or self.loop_of(use) is not None or self.called_again

    def loop_of(self, use: Use) -> ast.stmt | None:
        """The innermost loop around a place."""
        around = (block for block, name in reversed(use.path) if name == "body")
        return next((self._loops[block] for block in around if block in self._loops), None)

    def outlives(self, keeper: str, use: Use) -> bool:
        """It starts as a number or an empty list outside of the loop, and gets nothing else in it."""
        loop = self.loop_of(use)
        if loop is None:
            started_once = {b.use.scope.name.rpartition(".")[2] for b in self._keeper_bindings(keeper)} == {"__init__"}
            started_once = started_once or self._begun_once(keeper)
            return self.called_again and started_once and all(map(_plain_binding, self._keeper_bindings(keeper)))
        started = False
        for binding in self._keeper_bindings(keeper):
            inside = lies_in(binding.use.statement, loop)
            inside = inside and binding.use.scope is self.scope
            plain = _plain_start(binding.value)
            started = started or (plain and not inside)
            if inside and binding.use.statement is not use.statement and not plain:
                return False
            if inside and plain and self.loop_of(binding.use) is loop and binding.use.path == use.path:
                return False
        return started

    def _begun_once(self, keeper: str) -> bool:
        """A name of the file, given a value outside of every loop, and never again."""
        found = [b for b in self._outer_bindings(keeper) if not isinstance(b.use.statement, ast.AugAssign)]
        plain = len(found) == 1 and isinstance(found[0].use.scope.node, ast.Module)
        return plain and seen_in(self.project, found[0].use.scope).loop_of(found[0].use) is None

    def _keeper_bindings(self, keeper: str) -> list[Binding]:
        node = ast.parse(keeper, mode="eval").body
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            held = self._keeper_bindings(ast.unparse(node.value))
            parts = [replace(b, value=_held_by(b.value, node.slice.value)) for b in held]
            written = [use for use in self.scope.statements if _sets(use.statement, keeper)]
            return parts if not written else []
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
            table = ast.unparse(node.value)
            held = self._keeper_bindings(table) if f"{table}[" not in " ".join(map(ast.unparse, self._targets)) else []
            return [replace(b, value=ast.List([], ast.Load())) for b in held if _holds_lists(b.value)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault":
            empty = len(node.args) == 2 and isinstance(node.args[1], ast.List) and not node.args[1].elts
            held = self._keeper_bindings(ast.unparse(node.func.value)) if empty else []
            return [replace(b, value=node.args[1]) for b in held if _is_table(b.value)]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            return self._field_bindings(node)
        found = self.scope.bindings.get(keeper) or self._outer_bindings(keeper)
        if keeper.startswith("self.") and self.scope.owner is not None and self.scope.params[:1] == ("self",):
            found = self.scope.owner.attributes.get(keeper.removeprefix("self."), [])
            elsewhere = [
                b for b in found if b.use.scope is not self.scope and b.use.scope.name.rpartition(".")[2] != "__init__"
            ]
            found = [] if elsewhere else found
        return [b for b in found if not isinstance(b.use.statement, ast.AugAssign)]

    @cached_property
    def _targets(self) -> list[ast.expr]:
        """What assignments of this function write to."""
        return [t for use in self.scope.statements for t in getattr(use.statement, "targets", ())]

    def _field_bindings(self, node: ast.Attribute) -> list[Binding]:
        """``self.state.losses``, of an object that was made once."""
        held = self._keeper_bindings(ast.unparse(node.value))
        things = self.project.things(held[0].value, held[0].use) if len(held) == 1 else ()
        owner = things[0].made_of if len(things) == 1 else None
        value = owner.fields.get(node.attr) if owner is not None else None
        started = isinstance(value, ast.Call) and ast.unparse(value) == "field(default_factory=list)"
        return [replace(held[0], value=ast.List([], ast.Load()))] if started else []

    def without_grad(self, use: Use) -> bool:
        """Under no_grad, as a with statement or a decorator."""
        line = getattr(use.statement, "lineno", 0)
        around = [node for node in self.withs if node.lineno <= line <= (node.end_lineno or 0)]
        heads = [item.context_expr for node in around for item in node.items]
        if not isinstance(self.scope.node, ast.Module):
            heads += self.scope.node.decorator_list
        return any(re.search(r"no_grad|inference_mode", ast.unparse(head)) for head in heads)

    def severed(self) -> Iterator[SourceFact]:
        """backward() on a number that was cut from its graph."""
        for call, receiver, use in self.methods("backward"):
            if call.args or any(k.arg == "gradient" for k in call.keywords):
                continue
            made = self.project.made(receiver, use)
            if (
                made
                and all(m.by in CUTS for m in made)
                and not all(m.by == "tensor" and _literal(m.node) for m in made)
            ):
                yield self.fact("severed", call, name=made[0].by, text=spelled(made[0].node), other=made[0].node)
            elif (head := self._unrecorded(receiver, use)) is not None:
                yield self.fact("severed", call, name="no_grad", text=f"with {spelled(head)}:", other=head)

    def _unrecorded(self, node: ast.expr, use: Use) -> ast.expr | None:
        """The no_grad under which everything was computed that a name may stand for."""
        found = (
            self.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in self.scope.bindings else []
        )
        heads = [self._switched_off(binding) for binding in found]
        recorded = isinstance(node, ast.Name) and self.freed(node.id)
        return None if recorded or not heads or None in heads else heads[0]

    def _switched_off(self, binding: Binding) -> ast.expr | None:
        """``torch.no_grad()`` around a call that makes a binding, with nothing in it that switches gradients on."""
        line = getattr(binding.use.statement, "lineno", 0)
        around = [node for node in self.withs if node.lineno < line <= (node.end_lineno or 0)]
        heads = [item.context_expr for node in around for item in node.items]
        off = [head for head in heads if ast.unparse(head) in ("torch.no_grad()", "torch.inference_mode()")]
        plain = isinstance(binding.value, ast.Call) and binding.use.scope is self.scope
        value, place = binding.value, binding.use
        drawn = list(drawn_by(self.project, binding, ())) if value is None else []
        if len(drawn) == 1 and drawn[0][0] is not None and not drawn[0][2]:
            value, place, plain = drawn[0][0], drawn[0][1], True
        function = self.project.callee(value, place) if isinstance(value, ast.Call) else None
        if not off and plain and function is not None and function.marked_without_grad is not None:
            return function.marked_without_grad
        on = any(re.search(r"enable_grad|set_grad|requires_grad|Parameter", ast.unparse(node)) for node in around)
        return off[0] if off and plain and not on else None

    # ----------------------------------------------------------------------- optimizers and models

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

    def rebound(self) -> Iterator[SourceFact]:
        """A layer, or the model, that is replaced after the optimizer was built from it."""
        for name, thing, built in self.optimizers():
            model = model_of(thing)
            if model is None:
                continue
            later = [u for u in self._new if built.before(u) and u.path == built.path]
            found = [use for use in later if self._replaces(use, model, built, thing) and self._usedafter(name, use)]
            for use in found if found and not self._built_again(built) else ():
                yield self.fact("rebound", use.statement, name=name, other=built.statement)
            for function, use in self._handed_behind(built) if not self._built_again(built) else ():
                found = [u for u in function._new if not u.path and function._replaces(u, model, built, thing)]
                for new in found if self._usedafter(name, use) and not function._rebuilds else ():
                    yield function.fact("rebound", new.statement, name=name, other=built.statement)
            for seen in (*self._later_methods(), *self._called_behind(built)) if self._bound_once(name) else ():
                found = [use for use in seen._new if seen._replaces(use, model, built, thing)]
                for use in found if not seen._rebuilds else ():
                    yield seen.fact("rebound", use.statement, name=name, other=built.statement)

    @cached_property
    def _new(self) -> list[Use]:
        """Where something gets new layers."""
        calls = [
            u
            for u in self.scope.statements
            if isinstance(u.statement, ast.Assign) and isinstance(u.statement.value, ast.Call)
        ]
        return [use for use in calls if self._is_new(use)]

    def _is_new(self, use: Use) -> bool:
        value = plain_call(use.statement.value)  # type: ignore[attr-defined]
        things = self.project.things(value, use)
        return bool(things) and all(t.call is value and (t.made_of or LAYERS.fullmatch(t.name)) for t in things)

    def _built_again(self, built: Use) -> bool:
        later = (u for u in self.scope.statements[built.order + 1 :] if u.path == built.path)
        return any(_rebuilds(use.statement) for use in later)

    def _bound_once(self, name: str) -> bool:
        """An attribute of self that no other method gives a value."""
        owner = self.scope.owner
        found = owner.attributes.get(name.removeprefix("self."), []) if owner is not None else []
        return name.startswith("self.") and all(b.use.scope is self.scope for b in found)

    def _handed_behind(self, built: Use) -> Iterator[tuple[Seen, Use]]:
        """Functions of the project that are called, on every way, once the optimizer is there."""
        for call, use in self.scope.calls:
            function = self.project.callee(call, use) if built.before(use) and use.path == built.path else None
            plain = function is not None and function.owner is None and function is not self.scope and call.args
            if plain and function is not None and not isinstance(function.node, ast.Module):
                yield seen_in(self.project, function), use

    @property
    def _rebuilds(self) -> bool:
        """It makes another optimizer, or gives one more parameters."""
        return any(_rebuilds(use.statement) for use in self.scope.statements)

    def _called_behind(self, built: Use) -> Iterator[Seen]:
        """Methods of its own that it calls once the optimizer is there, and never before."""
        calls = [(self.project.callee(call, use), use) for call, use in self.scope.calls if _is_own(call)]
        for method in {id(m): m for m, _ in calls if m is not None and m.owner is not None}.values():
            places = [use for each, use in calls if each is method]
            if all(built.before(use) and use.path == built.path for use in places):
                yield seen_in(self.project, method)

    def _later_methods(self) -> Iterator[Seen]:
        """Methods that can only run when ``__init__``, which this is, is over."""
        owner = self.scope.owner
        if owner is None or owner.methods.get("__init__") is not self.scope:
            return
        text = ast.unparse(self.scope.node)
        called = {
            c.func.attr for scope in self.module.scopes for c, _ in scope.calls if isinstance(c.func, ast.Attribute)
        }
        for name, method in owner.methods.items():
            if method is not self.scope and f".{name}(" not in text and name in called:
                yield seen_in(self.project, method)

    def _replaces(self, use: Use, model: ast.expr, built: Use, optimizer: Thing) -> bool:
        node = use.statement
        assert isinstance(node, ast.Assign)
        assert isinstance(node.value, ast.Call)
        target, text = node.targets[0], ast.unparse(model)
        things = self.project.things(node.value, use)
        here = optimizer.call is built.statement.value  # type: ignore[attr-defined]
        if isinstance(target, (ast.Attribute, ast.Subscript)) and all(is_module(self.project, t) for t in things):
            if here and re.match(rf"{re.escape(text)}[.\[]", ast.unparse(target)):
                return True
            return self._belongs(target.value, use, self._given(model, optimizer))
        if ast.unparse(target) != text:
            return False
        before = self.project.things(model, built) if here else ()
        made = plain_call(node.value)
        given = {n for a in [*made.args, *(k.value for k in made.keywords)] for n in names_in(a)}
        return bool(before) and text.split(".")[0] not in given

    def _given(self, model: ast.expr, optimizer: Thing) -> set[str]:
        """The one model that an optimizer was given, in the function that built it and where that was called."""
        things = self.project.things(model, optimizer.use)
        if len(things) != 1 or things[0].call is None:
            return set()
        return {t.identity() for t in (things[0], replace(things[0], via=(*optimizer.via, *things[0].via)))}

    def _belongs(self, node: ast.expr, use: Use, models: set[str]) -> bool:
        """Whether an expression is one of the models, or a part of it."""
        while not isinstance(node, ast.Name):
            if {t.identity() for t in self.project.things(node, use)} & models:
                return True
            if not isinstance(node, ast.Attribute):
                return False
            node = node.value
        found = {t.identity() for t in self.project.things(node, use)}
        return len(found) == 1 and bool(found & models)

    def _usedafter(self, name: str, use: Use) -> bool:
        return name.startswith("self.") or any(
            name in names_in(inner) for later in self.scope.statements[use.order + 1 :] for inner in [later.statement]
        )

    def _mentioned(self, name: str, harmless: Collection[str]) -> bool:
        """Whether an object is given to anything, or asked for anything but what is harmless."""
        kept = {id(n.value) for n in ast.walk(self.scope.node) if isinstance(n, ast.Attribute) and n.attr in harmless}
        for call, use in self.scope.calls:
            if self.project.dotted(call.func, use).startswith("torch.optim.lr_scheduler."):
                kept |= {id(argument) for argument in call.args}
        loads = (n for n in ast.walk(self.scope.node) if isinstance(n, ast.Name) and n.id == name)
        return any(isinstance(n.ctx, ast.Load) and id(n) not in kept for n in loads)

    # ----------------------------------------------------------------------- data, precision, modes

    def half(self) -> Iterator[SourceFact]:
        """float16 autocast around the forward pass of a loop with a bare backward, and no scaler anywhere."""
        backs = [(c, u) for c, _, u in self.methods("backward") if not c.args]
        for use in self.scope.statements:
            node = use.statement
            if not isinstance(node, ast.With) or not backs:
                continue
            heads = [self.sole(item.context_expr, use) for item in node.items]
            half = next(
                (i.context_expr for i, head in zip(node.items, heads, strict=True) if self._is_half(*head)), None
            )
            near = [c for c, u in backs if self.same_turn(u, use) and c.lineno >= node.lineno]
            if half is not None and near and any(True for _ in self.methods("step")):
                yield self.fact("half", half, text=spelled(self.sole(half, use)[0]), other=near[0])
        yield from self._half_elsewhere() if backs and any(True for _ in self.methods("step")) else ()

    def _half_elsewhere(self) -> Iterator[SourceFact]:
        """The same, where a function of the project computes the loss that goes backward."""
        for back, given, use in self.methods("backward"):
            loss, place = self._unpacked(given, use)
            function = self.project.callee(loss, place) if isinstance(loss, ast.Call) else None
            if function is None or function in (self.scope, self.module.top) or function.module is not self.module:
                continue
            if back.args or (place is not use and not self.same_turn(place, use)):
                continue
            seen = seen_in(self.project, function)
            for head, inner in seen._half_results():
                yield seen.fact("half", head, text=spelled(seen.sole(head, inner)[0]))

    def _half_results(self) -> Iterator[tuple[ast.expr, Use]]:
        """float16 autocast around the call of a model in training, whose result is what a function returns."""
        returned = {name for name, _ in self._returned_names()}
        heads = [] if isinstance(self.scope.node, ast.Module) else self.scope.node.decorator_list
        above = [head for head in heads if self._is_half(head, self.scope.statements[0])] or list(self._half_around())
        if above and any(_goes_out(u.statement, returned) and self._runs_trained(u) for u in self.scope.statements):
            yield above[0], self.scope.statements[0]
        for use in self.scope.statements:
            node = use.statement
            if not isinstance(node, ast.With) or use.path or self.without_grad(use):
                continue
            heads = [i.context_expr for i in node.items if self._is_half(*self.sole(i.context_expr, use))]
            results = [u for u in self.scope.statements if u.statement in node.body and self._runs_trained(u)]
            results = [u for u in results if CUT_OFF.search(ast.unparse(u.statement)) is None]
            if heads and any(_goes_out(u.statement, returned) for u in results):
                yield heads[0], use

    def _half_around(self) -> Iterator[ast.expr]:
        """float16 autocast in what a decorator of the project puts around the function."""
        wrapper, name = self.project.wrapper(self.scope) or (None, "")
        for use in wrapper.statements if wrapper is not None else ():
            node = use.statement
            if isinstance(node, ast.With) and not use.path and f"{name}(" in ast.unparse(node):
                seen = seen_in(self.project, use.scope)
                yield from (i.context_expr for i in node.items if seen._is_half(*seen.sole(i.context_expr, use)))

    def _runs_trained(self, use: Use) -> bool:
        """A statement that calls a model which an optimizer of this file was given."""
        trained = {t.identity() for scope in self.module.scopes for t in trained_models(self.project, scope)}
        called = [c.func for c, u in self.scope.calls if u is use]
        return any(t.identity() in trained for func in called for t in self.project.things(func, use))

    def sole(self, node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
        """The one value of a name, and where it got it."""
        found = (
            self.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in self.scope.bindings else []
        )
        value = found[0].value if len(found) == 1 and not found[0].index else None
        return (value, found[0].use) if value is not None else (node, use)

    def _unpacked(self, node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
        """The one value that a name is given, or is a part of."""
        while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            node = node.value
        found = self.scope.reaching(node.id, use) if isinstance(node, ast.Name) else []
        part = found[0].value if len(found) == 1 and found[0].index else None
        return (part, found[0].use) if part is not None else self.sole(node, use)

    def _is_half(self, node: ast.expr, use: Use) -> bool:
        """A float16 autocast, perhaps from a function, or kept under a name."""
        found = [s for s in origins(self.project, node, use) if not self._off_cuda(s)]
        return bool(found) and all(isinstance(s.node, ast.Call) and self._autocasts(s.node, s.use) for s in found)

    def _off_cuda(self, source: Source) -> bool:
        """``return nullcontext()`` where there is no GPU."""
        whole = getattr(source.use.statement, "value", None)
        if isinstance(whole, ast.IfExp) and source.node in (whole.body, whole.orelse):
            return on_cuda(self.project, whole.test, source.use) is (source.node is whole.orelse)
        plain = isinstance(source.node, ast.Call) and source.node is whole
        if not plain or self.project.dotted(source.node.func, source.use) != "contextlib.nullcontext":  # type: ignore[attr-defined]
            return False
        blocks = [(source.use.scope.choices.get(block), part) for block, part in source.use.path]
        return any(
            choice is not None and on_cuda(self.project, choice.test, source.use) is (part != "body")
            for choice, part in blocks
        )

    def _autocasts(self, node: ast.Call, use: Use) -> bool:
        dotted = self.project.dotted(node.func, use)
        function = self.project.callee(node, use) if not dotted else None
        if function is not None and function.marked("contextmanager"):
            return seen_in(self.project, function)._enters_half()
        if dotted not in AUTOCASTS:
            return False
        named = {k.arg: k.value for k in node.keywords}
        if None in named or not self._is_on(named.get("enabled"), use):
            return False
        second = node.args[1] if len(node.args) > 1 and dotted != "torch.cuda.amp.autocast" else None
        if (dtype := named.get("dtype", second)) is not None:
            kinds = [self.project.dotted(each.node, each.use) for each in origins(self.project, dtype, use)]
            return bool(kinds) and all(kind in ("torch.float16", "torch.half") for kind in kinds)
        device = self.project.constant(node.args[0] if node.args else named.get("device_type"), use)
        cuda = device is not None and device.value == "cuda"
        plain = dotted == "torch.cuda.amp.autocast" and not node.args
        return plain or (dotted != "torch.cuda.amp.autocast" and cuda and len(node.args) < 2)

    def _is_on(self, node: ast.expr | None, use: Use) -> bool:
        """A switch that is left alone, or that is True wherever it is known."""
        found = self.project.constant(node, use) if not isinstance(node, ast.Compare) else None
        if node is None or (found is not None and found.value is True):
            return True
        (node, use), *others = [(s.node, s.use) for s in origins(self.project, node, use)] or [(node, use)]
        return not others and on_cuda(self.project, node, use) is True

    def _enters_half(self) -> bool:
        """A float16 autocast in a context manager that is a function."""
        left = [u.order for _, u in self.scope.returns if u.path and comes_by(self.project, u) is True]
        used = [u for u in self.scope.statements if u.order < min(left, default=u.order + 1)]
        withs = [(u.statement, u) for u in used if comes_by(self.project, u) is not False]
        return any(self._is_half(i.context_expr, u) for w, u in withs if isinstance(w, ast.With) for i in w.items)

    def unshuffled(self) -> Iterator[SourceFact]:
        """A loader in the order of the folders, in a loop that trains."""
        for use in self.scope.statements:
            node = use.statement
            if not isinstance(node, ast.For) or not self._within(node, "backward") or not _unpacks_labels(node):
                continue
            things = self._trained_on(node, use) if self._steps_in(node) else ()
            for thing in things if all(map(self._in_order, things)) else ():
                if thing.call is not None:
                    given = self.project.things(argument_at(thing.call, "dataset", 0), thing.use)
                    yield SourceFact(
                        kind="unshuffled", name=re.split(r"[.:]", given[0].name)[-1], text=spelled(thing.call),
                        where=thing.use.scope.module.where(thing.call, thing.use.scope), other=self.module.where(node, self.scope),
                    )  # fmt: skip

    def _steps_in(self, loop: ast.For) -> bool:
        """Something is done with the gradients of a batch before the next: else the order of the batches is nothing."""
        changed = any(isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Sub) for n in ast.walk(loop))
        called = (spelled(c.func).rpartition(".")[2] for c, _ in self.scope.calls if lies_in(c, loop))
        return changed or any(STEPS.search(name) for name in called)

    def _trained_on(self, loop: ast.For, use: Use) -> Sequence[Thing]:
        """The loaders of a loop, without those of calls that switch its backward off."""
        node, use = drawn_from(self.project, iterated(loop.iter), use)
        phases = turns(self.project, node, use) if use.scope is self.scope else []
        if any(each.settings for each in phases):
            called = [(each, [c.func for c, _ in reached(loop, self.scope, each.settings)]) for each in phases]
            kept = [each for each, funcs in called if any(ast.unparse(f).endswith(".backward") for f in funcs)]
            return [t for each in kept for t in each.loaders] if all(each.loaders for each in kept) else ()
        if not isinstance(node, ast.Name) or node.id not in self.scope.params:
            return self.project.things(node, use)
        backs = [u for _, _, u in self.methods("backward") if lies_in(u.statement, loop)]
        found: list[Thing] = []
        for call, site in self.project.calls_of(self.scope):
            if not all(self._switched(back, call) for back in backs):
                things = self.project.things(argument(call, self.scope, node.id), site)
                if not things:
                    return ()
                found += things
        return found or self.project.things(node, use)

    def _switched(self, back: Use, call: ast.Call) -> bool:
        """``if optimizer is not None`` stands around a backward, and the call gives none."""
        tests = [
            self.scope.choices[block].test
            for block, part in back.path
            if part == "body" and block in self.scope.choices
        ]
        for test in tests:
            node, _ = self.sole(test, back)
            given = node.left if isinstance(node, ast.Compare) and ast.unparse(node).endswith(" is not None") else node
            if isinstance(given, ast.Name) and given.id in self.scope.params:
                value = argument(call, self.scope, given.id) or default(self.scope, given.id)
                if isinstance(value, ast.Constant) and not value.value:
                    return True
        return False

    def _within(self, node: ast.stmt, method: str) -> bool:
        """Whether a statement of this function holds a call of the method."""
        last = node.end_lineno or node.lineno
        return any(node.lineno <= call.lineno <= last for call, _, _ in self.methods(method))

    def _in_order(self, thing: Thing) -> bool:
        call = thing.call
        if call is None or thing.name != "torch.utils.data.DataLoader":
            return False
        named = handed_on(self.project, self.project.keywords(call, thing.use), thing)
        shuffle = told(self.project, named.get("shuffle", ast.Constant(False)), thing)
        if len(call.args) > 2 or {None, "sampler", "batch_sampler"} & set(named):
            return False
        if shuffle is not False:
            return False
        given = call.args[0] if call.args else named.get("dataset")
        things = self.project.things(given, thing.use)
        folders = (t.call is not None and t.name == "torchvision.datasets.ImageFolder" for t in things)
        return bool(things) and (all(folders) or all(class_by_class(self.project, t, thing) for t in things))

    def validated(self, trained: set[str]) -> Iterator[SourceFact]:
        """A pass without gradients over a loader, with a model that has Dropout or BatchNorm, in a file without eval()."""
        for call, use in self.scope.calls if trained and not self._set_by_callers() else ():
            drawn = self.draws(call)
            plain = not drawn and self.never_recorded(use) and (self._judged(use) or self._judged_at_once(call, use))
            if drawn or not (plain or self._switched_pass(use) or self._passed_over(use)):
                continue
            for thing in _run_by(self.project, call, use):
                if thing.identity() in trained and (modes := modes_of(self.project, thing)):
                    yield self.fact("validated", call, name=modes, text=spelled(call.func))
                    return

    def _set_by_callers(self) -> bool:
        """A file that calls this function switches modes."""
        files = {id(u.scope.module): u.scope.module for _, u in self.project.calls_of(self.scope)}
        return any(OTHER_MODE.search("\n".join(each.text.lines)) for each in files.values() if each is not self.module)

    def _judged(self, use: Use) -> bool:
        """In a loop, or beside one, that compares scores with labels."""
        loop = self.loop_of(use)
        return loop is not None and not self._within(loop, "backward") and self.scores(loop)

    def draws(self, call: ast.Call) -> bool:
        """``[model(x) for _ in range(20)]``, which looks at the same input again and again."""
        return any(inner is call for each in self._repeats for inner in ast.walk(each))

    @cached_property
    def _repeats(self) -> list[ast.expr]:
        loops = [n for n in ast.walk(self.scope.node) if isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.SetComp))]
        return [n.elt for n in loops if any(spelled(each.iter).startswith("range") for each in n.generators)]

    def _switched_pass(self, use: Use) -> bool:
        """In a loop that scores, and whose backward some call of the function switches off, with the gradients."""
        loop = self.loop_of(use) if self._switches else None
        if loop is not None and id(loop) not in self._passes:
            backs = [u for _, _, u in self.methods("backward") if lies_in(u.statement, loop)]
            sites = self.project.calls_of(self.scope) if backs else []
            off = any(all(self._switched(back, call) for back in backs) for call, _ in sites)
            self._passes[id(loop)] = off and self.scores(loop)
        return loop is not None and self._passes[id(loop)]

    def _passed_over(self, use: Use) -> bool:
        """In a loop that scores, in a phase without gradients that comes by none of its backwards."""
        loop = self.loop_of(use) if self._switches else None
        if loop is None or not self.scores(loop):
            return False
        backs = [u for _, _, u in self.methods("backward") if lies_in(u.statement, loop)]
        return any(
            not is_left_out(use, known) and all(is_left_out(back, known) for back in backs) and self._off(use, known)
            for known in around(self.project, use)
            if known
        )

    def _off(self, use: Use, known: Known) -> bool:
        """Gradients are switched off there: ``with torch.set_grad_enabled(phase == "train")``."""
        if self.without_grad(use) and not any(isinstance(head, ast.IfExp) for head in self._heads(use)):
            return True
        heads = [chosen_in(head, known, use) for head in self._heads(use)]
        calls = [(ast.unparse(head.func), head.args) for head in heads if isinstance(head, ast.Call)]
        return any(
            truth(args[0], known, use) is False if args and "set_grad_enabled" in name else name.endswith(NO_GRAD)
            for name, args in calls
        )

    def _heads(self, use: Use) -> list[ast.expr]:
        """The managers of the with statements around a place."""
        return [item.context_expr for node in self.withs if lies_in(use.statement, node) for item in node.items]

    @cached_property
    def _switches(self) -> bool:
        """Gradients are switched off in a function with a backward."""
        back = any(True for _ in self.methods("backward"))
        return back and re.search(r"set_grad_enabled|no_grad|inference", ast.unparse(self.scope.node)) is not None

    def _judged_at_once(self, call: ast.Call, use: Use) -> bool:
        """Without a loop of its own, in a function that trains nothing, and compared with labels there or by who calls it."""
        if self.loop_of(use) is not None or any(self.loop_of(u) is None for _, _, u in self.methods("backward")):
            return False
        if self._compares(_results(use)) or any(_equals(node, call) for node in ast.walk(use.statement)):
            return True
        returned = {name for name, _ in self._returned_names()}
        if not isinstance(use.statement, ast.Return) and not _results(use) & returned:
            return False
        sites = [place for _, place in self.project.calls_of(self.scope)]
        return bool(sites) and all(seen_in(self.project, u.scope)._compares(_results(u)) for u in sites)

    def never_recorded(self, use: Use) -> bool:
        """Under no_grad, here or wherever the function is called."""
        sites = self.project.calls_of(self.scope) if not self.without_grad(use) else []
        outside = (seen_in(self.project, u.scope).without_grad(u) for _, u in sites if u.scope is not self.scope)
        return self.without_grad(use) or (bool(sites) and all(outside))

    def _compares(self, names: set[str]) -> bool:
        """``(pred == y).float().mean()``, or a loss of torch, of one of these names."""
        names = names | {t for u in self.scope.statements if names & names_in(u.statement) for t in _results(u)}
        for use in self.scope.statements if names else ():
            if hasattr(use.statement, "body"):
                continue
            for node in ast.walk(use.statement):
                equal = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
                plain = isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant)
                if equal and not plain and names_in(node) & names:
                    return True
                if isinstance(node, ast.Call) and node.args and names_in(node.args[0]) & names:
                    if kind_of(self.project, node, use) or is_mean(self.project, node, use):
                        return True
        return False

    def scores(self, loop: ast.stmt) -> bool:
        """Whether a loop compares what it computes with labels."""
        if id(loop) not in self._scoring:
            self._scoring[id(loop)] = self._does_score(loop)
        return self._scoring[id(loop)]

    def _does_score(self, loop: ast.stmt) -> bool:
        calls = [(c, u) for c, u in self.scope.calls if lies_in(c, loop)]
        names = {c.func.attr for c, _ in calls if isinstance(c.func, ast.Attribute)}
        known = bool(names & {"argmax", "eq", "topk"}) or any(kind_of(self.project, c, u) for c, u in calls)
        plain = known or any(is_mean(self.project, c, u) and len(c.args) == 2 for c, u in calls)
        return plain or (any(_takes_best(c) for c, _ in calls) and any(map(_is_equality, ast.walk(loop))))


def trained_models(project: Project, scope: Scope) -> Sequence[Thing]:
    """The models whose parameters are given to an optimizer, or some of them."""
    return seen_in(project, scope).trained


def _whose(project: Project, node: ast.expr, use: Use, told: set[int]) -> Iterator[Thing]:
    """The models in ``Adam(groups(model), lr=1e-3)``, behind names, lists and functions."""
    for inner in ast.walk(node) if id(node) not in told and len(told) < WHOSE else ():
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
        if ast.unparse(node) != "self":
            yield from project.things(node, use)


def _listed_in(project: Project, function: Scope) -> Iterator[Thing]:
    """Models whose parameters a function goes through."""
    for _, receiver, use in seen_in(project, function).methods(*PARAMETERS):
        yield from _wholes(project, receiver, use)


def plain_lists(project: Project, module: Module, methods: dict[str, Scope]) -> Iterator[SourceFact]:
    """Layers in a list or dictionary of a module, which registers none of them."""
    start, forward = methods.get("__init__"), methods.get("forward")
    if start is None or forward is None or start.owner is None:
        return
    if not _is_module_class(project, start):
        return
    lists = {
        name: shown
        for name, bindings in start.owner.attributes.items()
        if (shown := _list_of(project, bindings, start))
    }
    if not lists:
        return
    text, run = ast.unparse(start.node), Counter(OWN.findall(ast.unparse(forward.node)))
    whole, made = Counter(OWN.findall(ast.unparse(start.owner.node))), Counter(OWN.findall(text))
    filled, added = Counter(FILLED.findall(text)), _appended(start)
    for attribute, (binding, listed) in lists.items():
        only = made[attribute] == filled[attribute] and "add_module" not in text and "setattr" not in text
        if not only or not run[attribute] or whole[attribute] > run[attribute] + made[attribute]:
            continue
        layers = [layer for layer in (*listed, *added.get(attribute, ())) if _parametric(project, *layer)]
        if layers:
            yield SourceFact(
                kind="plain dict" if isinstance(binding.value, (ast.Dict, ast.DictComp)) else "plain list",
                name=attribute,
                text=spelled(layers[0][0]),
                where=module.where(binding.use.statement, start),
            )


def _is_module_class(project: Project, start: Scope) -> bool:
    assert start.owner is not None
    return any(
        thing.name == "torch.nn.Module"
        for each in project.bases(start.owner)
        for base in each.node.bases
        for thing in project.things(base, each.use)
    )


def _list_of(
    project: Project, bindings: list[Binding], start: Scope
) -> tuple[Binding, list[tuple[ast.expr, Use]]] | None:
    """The one list that an attribute is given, and what it begins with."""
    (binding, *more) = bindings
    value, held = _unlisted(binding.value), []
    if more or binding.use.scope is not start or binding.index:
        return None
    source = binding.use
    if isinstance(value, ast.Name):
        found = start.reaching(value.id, source) if value.id in start.bindings else []
        held = _put_into(start, value.id)
        if len(found) != 1 or _loads(start.node, value.id) != len(held) + 1:
            return None  # it is given to something else, too, which may register what it holds
        value, source = found[0].value, found[0].use
    value = _unlisted(value)
    if isinstance(value, ast.Call) and len(made := origins(project, value, source)) == 1:
        held += _filled_by(project.callee(value, source), made[0])
        value, source = made[0].node, made[0].use
    value = _unlisted(value)
    if isinstance(value, (ast.List, ast.Tuple)):
        return binding, [*((element, source) for element in value.elts), *held]
    if isinstance(value, ast.Dict):
        return binding, [*((element, source) for element in value.values), *held]
    if isinstance(value, ast.DictComp):
        return binding, [(value.value, source)]
    return (binding, [(value.elt, source), *held]) if isinstance(value, (ast.ListComp, ast.GeneratorExp)) else None


def _unlisted(value: ast.expr | None) -> ast.expr | None:
    """``blocks`` in ``list(blocks)``."""
    plain = isinstance(value, ast.Call) and ast.unparse(value.func) in ("list", "tuple") and len(value.args) == 1
    return value.args[0] if plain and isinstance(value, ast.Call) else value


def _put_into(scope: Scope, name: str) -> list[tuple[ast.expr, Use]]:
    """What a function puts into a list or dictionary."""
    found = [(c.args[0], use) for c, use in scope.calls if ast.unparse(c.func) == f"{name}.append" and c.args]
    for use in scope.statements:
        target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) == name:
            found.append((use.statement.value, use))  # type: ignore[attr-defined]
    return found


def _filled_by(function: Scope | None, made: Source) -> list[tuple[ast.expr, Use]]:
    """What a function puts into what it returns, if it does nothing else with it."""
    names = {value.id for value, _ in function.returns if isinstance(value, ast.Name)} if function is not None else ()
    name = next(iter(names), "")
    if function is None or len(names) != 1 or len(function.returns) != 1 or made.use.scope is not function:
        return []
    found = _put_into(function, name)
    return found if _loads(function.node, name) == len(found) + 1 else []


def _loads(node: ast.AST, name: str) -> int:
    return sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(node))


def _appended(start: Scope) -> dict[str, list[tuple[ast.expr, Use]]]:
    """What is put into lists later, by attribute."""
    found: dict[str, list[tuple[ast.expr, Use]]] = {}
    for call, use in start.calls:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "append" and isinstance(func.value, ast.Attribute):
            if call.args and isinstance(func.value.value, ast.Name) and func.value.value.id == "self":
                found.setdefault(func.value.attr, []).append((call.args[0], use))
    for node, use in ((use.statement, use) for use in start.statements):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Subscript):
            if (held := ast.unparse(target.value)).startswith("self."):
                found.setdefault(held.removeprefix("self."), []).append((node.value, use))
    return found


def _parametric(project: Project, node: ast.expr, use: Use) -> bool:
    things = project.things(node, use)
    return bool(things) and all(_is_made_by(t, node) and is_module(project, t) for t in things)


def _is_made_by(thing: Thing, node: ast.expr) -> bool:
    """By a call itself, by the function that it calls, or with what ``partial()`` added to it."""
    place = operator.attrgetter("lineno", "col_offset", "end_lineno", "end_col_offset")
    merged = thing.call is not None and isinstance(node, ast.Call) and place(thing.call) == place(node)
    return thing.call is node or thing.via[:1] == (id(node),) or merged


def is_module(project: Project, thing: Thing) -> bool:
    """A module with parameters of its own."""
    if thing.made_of is not None and (start := thing.made_of.methods.get("__init__")):
        return _is_module_class(project, start)
    return LAYERS.fullmatch(thing.name) is not None


def plain_call(node: ast.Call) -> ast.Call:
    """``nn.Linear(8, 2)`` in ``nn.Linear(8, 2).to(device)``."""
    while isinstance(node.func, ast.Attribute) and node.func.attr in SAME and isinstance(node.func.value, ast.Call):
        node = node.func.value
    return node


def _goes_out(node: ast.stmt, returned: Collection[str]) -> bool:
    """What it computes is returned, as it is or in what is made of it."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    return isinstance(node, ast.Return) or any(names_in(target) & set(returned) for target in targets)


def _named(call: ast.Call, method: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == method


def after(node: ast.expr, text: str) -> SourceEdit:
    end = node.end_col_offset or 0
    return SourceEdit(node.end_lineno or 0, end, end, text)


def _instead(node: ast.expr, text: str) -> SourceEdit:
    return SourceEdit(node.lineno, node.col_offset, node.end_col_offset or 0, text)


def _renamed(node: ast.expr, name: str) -> SourceEdit | None:
    """Another name of the attribute."""
    if not isinstance(node, ast.Attribute):
        return None
    end = node.end_col_offset or 0
    return SourceEdit(node.end_lineno or 0, end - len(node.attr), end, name)


def _log_softmax(call: ast.Call, given: ast.expr) -> SourceEdit | None:
    """``log(softmax(x, 1))`` -> ``log_softmax(x, 1)``, on one line."""
    func = given.func if isinstance(given, ast.Call) else None
    if not isinstance(func, ast.Attribute) or func.attr != "softmax" or call.lineno != call.end_lineno:
        return None
    made = ast.unparse(given)
    name = ast.unparse(func)
    put = f"{name.removesuffix('softmax')}log_softmax{made[len(name) :]}"
    return SourceEdit(call.lineno, call.col_offset, call.end_col_offset or 0, put)


def detached(value: ast.expr | None, name: str) -> SourceEdit | None:
    """``loss`` -> ``loss.detach()``: still a tensor, so that nothing after it has to change."""
    found = [n for n in ast.walk(value) if isinstance(n, ast.Name) and n.id == name] if value is not None else []
    return after(found[0], ".detach()") if len(found) == 1 else None


def kept_by(node: ast.stmt) -> tuple[str, ast.expr | None]:
    """``total += x`` and ``kept.append(x)``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.BinOp):
        name = node.targets[0].id
        if _carries(node.value, name) and isinstance(node.value.op, ast.Add):
            return name, node.value
    if isinstance(node, (ast.Assign, ast.AugAssign)) and (kept := _added_to(node)) is not None:
        return kept
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
        listed = call.func.attr == "extend" and isinstance(call.args[0], (ast.List, ast.Tuple))
        if call.func.attr == "append" or listed:
            return ast.unparse(call.func.value), call.args[0]
    return "", None


def _added_to(node: ast.Assign | ast.AugAssign) -> tuple[str, ast.expr] | None:
    """``self.total += x``, ``self.total = self.total + x``, and the same with ``totals["loss"]``."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if not isinstance(target, (ast.Attribute, ast.Subscript)):
        return None
    if isinstance(node, ast.AugAssign):
        return (ast.unparse(target), node.value) if isinstance(node.op, ast.Add) else None
    value, text = node.value, ast.unparse(target)
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    for own, added in ((value.left, value.right), (value.right, value.left)):
        scaled = isinstance(own, ast.BinOp) and isinstance(own.op, ast.Mult)
        if text in (ast.unparse(part) for part in ((own.left, own.right) if scaled else (own,))):  # type: ignore[attr-defined]
            return text, added
    return None


def _adds_up(project: Project, function: Scope) -> Iterator[tuple[str, str]]:
    """Parameters of a method that it adds, as they are, to an attribute of self, and to which."""
    seen = seen_in(project, function)
    for use in function.statements:
        keeper, value = kept_by(use.statement)
        if not keeper.startswith(f"{function.params[0] if function.params else ''}.") or seen.without_grad(use):
            continue
        for name in function.params[1:]:
            only = all(binding.parameter for binding in function.bindings.get(name, ()))
            if only and _carries(value, name):
                yield name, keeper
        table, _, key = keeper.partition("[")
        name = _gone_through_by(use, value) if key else ""
        if name and name not in function.params[:1] and _keeps_all(project, function, table):
            yield name, table


def _given_as(call: ast.Call, function: Scope, name: str) -> ast.expr | None:
    """What a call gives for a parameter; for ``**values`` all that has the name of no other."""
    if name in function.params:
        return argument(call, function, name)
    rest = [k.value for k in call.keywords if k.arg not in function.params]
    return ast.copy_location(ast.Tuple(rest, ast.Load()), call) if rest else None


def _gone_through_by(use: Use, value: ast.expr | None) -> str:
    """``metrics``, where a statement keeps each ``value`` of ``for key, value in metrics.items()`` as it is."""
    found = use.scope.bindings.get(value.id, []) if isinstance(value, ast.Name) else []
    loop = found[0].use.statement if len(found) == 1 else None
    if not isinstance(loop, ast.For) or use.path != ((id(loop), "body"),) or not isinstance(value, ast.Name):
        return ""
    drawn = re.fullmatch(rf"for \(?\w+, {value.id}\)? in (\w+)\.items\(\):", ast.unparse(loop).split("\n")[0])
    bound = use.scope.bindings.get(drawn[1], []) if drawn is not None else []
    keywords = getattr(getattr(use.scope.node, "args", None), "kwarg", None)
    given = [b.parameter or (keywords is not None and keywords.arg == drawn[1]) for b in bound] if drawn else []
    return drawn[1] if drawn is not None and given == [True] else ""


def _keeps_all(project: Project, function: Scope, table: str) -> bool:
    """Nothing in the class takes from a table of lists, or from anything else."""
    text = ast.unparse(function.owner.node) if function.owner is not None else "del"
    return re.search(r"\.(clear|pop|popleft|popitem)\(|\bdel\b", text) is None and _never_emptied(
        project, function, table
    )


def _never_emptied(project: Project, function: Scope, keeper: str) -> bool:
    """``self.losses``, which begins empty in ``__init__``, and which no method of the class begins anew or takes from."""
    owner = function.owner
    found = owner.attributes.get(keeper.removeprefix("self."), []) if owner is not None else []
    begun = [b for b in found if not isinstance(b.use.statement, ast.AugAssign)]
    usual = owner.fields.get(keeper.removeprefix("self.")) if owner is not None and owner.is_record else None
    listed = isinstance(usual, ast.Call) and ast.unparse(usual) == "field(default_factory=list)"
    once = _begun_in_start(project, begun) or (listed and not begun)
    name = re.escape(keeper.removeprefix("self"))
    taken = re.compile(rf"{name}(\.(clear|pop|popleft)\(|\[.*\] = )|\bdel \S*{name}")
    outside = project.set_from_outside(keeper.removeprefix("self."), function.module)
    plain = once and not outside and all(map(_plain_binding, begun))
    return plain and not any(taken.search(line) for line in function.module.text.lines)


def _begun_in_start(project: Project, begun: Sequence[Binding]) -> bool:
    """In ``__init__``, or in a method that ``__init__`` calls, and nothing else; what nothing calls, another file may."""
    starts = {id(b.use.scope): b.use.scope for b in begun}
    rest = [scope for scope in starts.values() if not scope.name.endswith(".__init__")]
    called = [[use.scope.name for _, use in _known_calls(project, scope)] for scope in rest]
    return bool(begun) and all(called) and all(n.endswith(".__init__") for names in called for n in names)


def _known_calls(project: Project, method: Scope) -> Iterator[tuple[ast.Call, Use]]:
    """Everything that is called by the name of a method."""
    name = getattr(method.node, "name", "")
    for module in project.modules.values():
        if module is not None and f".{name}" in "".join(module.text.lines):
            for scope in module.scopes:
                yield from ((c, u) for c, u in scope.calls if isinstance(c.func, ast.Attribute) and c.func.attr == name)


def _held_by(value: ast.expr | None, key: object) -> ast.expr | None:
    """What a dictionary begins with under a key."""
    if isinstance(value, ast.Dict):
        found = [
            v for k, v in zip(value.keys, value.values, strict=True) if isinstance(k, ast.Constant) and k.value == key
        ]
        return found[0] if len(found) == 1 else None
    empty = isinstance(value, ast.Call) and spelled(value.func).endswith("defaultdict") and len(value.args) == 1
    return ast.List([], ast.Load()) if empty and ast.unparse(value.args[0]) == "list" else None  # type: ignore[union-attr]


def _is_table(value: ast.expr | None) -> bool:
    """An empty dictionary."""
    return isinstance(value, ast.Dict) and not value.keys


def _sets(node: ast.stmt, keeper: str) -> bool:
    return isinstance(node, ast.Assign) and any(ast.unparse(target) == keeper for target in node.targets)


def _carries(value: ast.expr | None, name: str) -> bool:
    """The tensor itself, or arithmetic with it."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Div, ast.Add)):
        return _carries(value.left, name) or _carries(value.right, name)
    if isinstance(value, (ast.Tuple, ast.List)):
        return any(_carries(element, name) for element in value.elts)
    if isinstance(value, ast.Dict):
        return any(_carries(element, name) for element in value.values)
    return isinstance(value, ast.Name) and value.id == name


def _plain_binding(binding: Binding) -> bool:
    return _plain_start(binding.value)


def _plain_start(value: ast.expr | None) -> bool:
    number = isinstance(value, ast.Constant) and isinstance(value.value, (int, float))
    zeros = value is not None and re.match(r"torch\.(zeros\(|tensor\(0)", ast.unparse(value)) is not None
    return (
        number
        or zeros
        or _is_table(value)
        or _holds_lists(value)
        or _held_by(value, "") is not None
        or (isinstance(value, ast.List) and not value.elts)
    )


def _holds_lists(value: ast.expr | None) -> bool:
    """``{name: [] for name in names}``, and ``{"train": [], "val": []}``."""
    each = [value.value] if isinstance(value, ast.DictComp) else value.values if isinstance(value, ast.Dict) else []
    return bool(each) and all(isinstance(inner, ast.List) and not inner.elts for inner in each)


def _literal(node: ast.AST) -> bool:
    """A tensor of numbers that are written out, or one that is a new leaf on purpose."""
    return isinstance(node, ast.Call) and not any(
        isinstance(n, (ast.Name, ast.Call)) for a in node.args for n in ast.walk(a)
    )


def names_in(node: ast.AST) -> set[str]:
    """The names in an expression or statement."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _parts_of(node: ast.expr) -> Sequence[ast.expr]:
    """The elements of a tuple; of ``map(torch.stack, (rewards, values))`` those that are gone through."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("map", "tuple")
        and node.args
    ):
        node = node.args[-1]
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)) and len(node.generators) == 1:
        node = node.generators[0].iter
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else []


def _given_at(node: ast.stmt, place: int | None) -> set[str]:
    """The names that a statement gives a value, or the part of it at a place."""
    if not isinstance(node, ast.Assign):
        return set()
    plain = {ast.unparse(target) for target in node.targets}
    parts = [target.elts for target in node.targets if isinstance(target, ast.Tuple)]
    return plain | {ast.unparse(elts[place]) for elts in parts if place is not None and place < len(elts)}


def _results(use: Use) -> set[str]:
    """The names that a statement gives a value."""
    return {n for t in getattr(use.statement, "targets", ()) for n in names_in(t)}


def _equals(node: ast.AST, call: ast.Call) -> bool:
    """``model(x).argmax(1) == y``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "eq" and node.args:
        return any(inner is call for inner in ast.walk(node.func.value))
    equal = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
    return equal and not isinstance(node.comparators[0], ast.Constant) and any(n is call for n in ast.walk(node))  # type: ignore[attr-defined]


def _takes_best(call: ast.Call) -> bool:
    """``torch.max(scores, 1)`` and ``scores.max(1)``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "max":
        return False
    own = ast.unparse(call.func.value) != "np"
    places = call.args[1:] if ast.unparse(call.func) == "torch.max" else call.args
    dims = [*places, *(k.value for k in call.keywords if k.arg == "dim")]
    return own and len(dims) == 1 and isinstance(dims[0], (ast.Constant, ast.UnaryOp))


def _is_equality(node: ast.AST) -> bool:
    """``predicted == labels``."""
    equal = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
    sides = (node.left, node.comparators[0]) if equal and isinstance(node, ast.Compare) else ()
    return bool(sides) and not any(isinstance(each, (ast.Constant, ast.BinOp)) for each in sides)


def _run_by(project: Project, call: ast.Call, use: Use, depth: int = 0) -> Iterator[Thing]:
    """What a call runs, itself or in the function that it reaches, if that does nothing to gradients."""
    things = project.things(call.func, use)
    yield from things
    function = project.callee(call, use) if depth < 2 and not any(thing.call for thing in things) else None
    if function is None or isinstance(function.node, ast.Module) or function.node is use.scope.node:
        return
    if re.search(r"backward|_grad|inference_mode|\.step\(", ast.unparse(function.node)) is None:
        for inner, place in function.calls:
            seen = seen_in(project, function)
            if not seen.draws(inner) and seen.loop_of(place) is None:
                yield from _run_by(project, inner, place, depth + 1)


def _unpacks_labels(node: ast.For) -> bool:
    """Images and labels, and none of them thrown away."""
    target = node.target
    if isinstance(target, ast.Tuple) and spelled(node.iter).startswith("enumerate") and len(target.elts) == 2:
        target = target.elts[1]
    if not isinstance(target, (ast.Tuple, ast.List)) or len(target.elts) != 2:
        return False
    label = target.elts[1]
    return isinstance(label, ast.Name) and not label.id.startswith("_")


def drawn_from(project: Project, node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
    """The loader behind a generator that goes through it, once, and hands its batches on."""
    function = project.callee(node, use) if isinstance(node, ast.Call) else None
    loops = [u for u in function.statements if isinstance(u.statement, ast.For)] if function is not None else []
    if function is None or not isinstance(node, ast.Call) or len(function.yields) != 1 or len(loops) != 1:
        return node, use
    inner = iterated(loops[0].statement.iter)  # type: ignore[attr-defined]
    if function.yields[0][1].path[:1] != ((id(loops[0].statement), "body"),):
        return node, use
    plain = (
        isinstance(inner, ast.Name)
        and all(b.parameter for b in function.bindings.get(inner.id, ()))
        and inner.id in function.params
    )
    given = argument(node, function, inner.id) if plain and isinstance(inner, ast.Name) else None
    if given is not None:
        return drawn_from(project, iterated(given), use)
    own = isinstance(inner, ast.Attribute) and function.own and ast.unparse(inner.value) == function.own[0]
    return (inner, loops[0]) if own else (node, use)


def model_of(thing: Thing) -> ast.expr | None:
    """``model`` in ``Adam(model.parameters())``."""
    given = thing.call.args[0] if thing.call is not None and thing.call.args else None
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "parameters":
        return given.func.value
    return None


def _is_own(call: ast.Call) -> bool:
    """``self.prepare()``."""
    func = call.func
    return isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"


def _rebuilds(node: ast.stmt) -> bool:
    """Another optimizer, or more parameters for this one."""
    return (
        bool(
            re.search(
                r"add_param_group|\w*opt\w*\(|optim\b(?!\.lr_scheduler)|\b(Adam\w*|SGD|RMSprop)\(", ast.unparse(node)
            )
        )
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef))
        else False
    )
