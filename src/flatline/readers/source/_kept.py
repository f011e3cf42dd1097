"""Losses that are kept with their graphs, in something that outlives the turn."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument
from flatline.readers.source._edits import after, detached
from flatline.readers.source._losses import is_mean, kind_of
from flatline.readers.source._meters import meters
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._put_right import entry_put_right
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Scope, Use, lies_in, spelled
from flatline.readers.source._seen import Seen, seen_in, trained_models

ANEW = re.compile(r"\w\.__init__\((?!self)")  # ``self.__init__()``
TAKES = re.compile(
    rf"\.(clear|pop|popleft|popitem)\(|\bdel\b|\[[^\]]*:[^\]]*\] = |{ANEW.pattern}"
)  # ``values[:] = []``


def kept(seen: Seen) -> Iterator[SourceFact]:
    """``total += loss``: a tensor with its graph, in something that outlives the turn."""
    backwards = [(name, name, call, use) for name, call, use in seen.backwards()] + [*_of_tables(seen)]
    if not backwards:
        return
    flowing = seen.flowing(name for name, shown, _, _ in backwards if shown == name)
    for use in seen.scope.statements:
        keeper, value, inside = keeping(seen, use)
        for name, shown, call, back in backwards if value is not None else ():
            if (
                _carries(value, name)
                and keeper not in flowing
                and seen.same_turn(use, back)
                and seen.scope.reaching(name, use) == seen.scope.reaching(name, back)
                and (inside or outlives(seen, keeper, use))
                and not seen.without_grad(use)
                and not seen.freed(name)
                and not emptied(seen, keeper, use)
            ):
                edit = detached(value, name) if shown == name else None
                yield seen.fact("kept", use.statement, name=shown, text=keeper, other=call, edit=edit)


def _of_tables(seen: Seen) -> Iterator[tuple[str, str, ast.Call, Use]]:
    """``losses["total"].backward()`` of a dictionary in which nothing is put in its place."""
    for call, receiver, use in seen.methods("backward"):
        held = receiver.value if isinstance(receiver, ast.Subscript) else None
        known = isinstance(held, ast.Name) and not seen.project.written_to(held, use)
        if known and isinstance(held, ast.Name) and not entry_put_right(seen.project, receiver, use):
            yield held.id, unparsed(receiver), call, use


def kept_scores(seen: Seen) -> Iterator[SourceFact]:
    """``curve.append(loss_of(model(x), y))`` in a loop that trains the model: a loss with a graph that goes nowhere."""
    backs = [use for _, _, use in seen.methods("backward")]
    trained = {t.identity() for t in trained_models(seen.project, seen.scope)} if backs else set()
    for use in seen.scope.statements if trained else ():
        keeper, value = kept_by(use.statement)
        loop = seen.loop_of(use)
        node, place = seen.sole(value, use) if value is not None else (None, use)
        if loop is None or not isinstance(node, ast.Call) or not (place is use or seen.same_turn(place, use)):
            continue
        if not _scored(seen, node, place, trained) or seen.without_grad(use) or seen.without_grad(place):
            continue
        goes = any(lies_in(back.statement, loop) for back in backs) and outlives(seen, keeper, use)
        flows = seen.flowing(name for name, _, _ in seen.backwards())
        if goes and not emptied(seen, keeper, use) and not {keeper, unparsed(value)} & flows:  # type: ignore[arg-type]
            name = spelled(value)  # type: ignore[arg-type]
            edit = after(value, ".detach()") if value is not None else None
            yield seen.fact("kept", use.statement, name=name, text=keeper, edit=edit)


def _scored(seen: Seen, node: ast.Call, use: Use, trained: set[str]) -> bool:
    """A loss of torch, of what a model that is trained returns."""
    if not (kind_of(seen.project, node, use) or is_mean(seen.project, node, use)) or not node.args:
        return False
    given, place = seen.sole(node.args[0], use)
    return isinstance(given, ast.Call) and bool(
        {t.identity() for t in seen.project.things(given.func, place)} & trained
    )


def keeping(seen: Seen, use: Use) -> tuple[str, ast.expr | None, bool]:
    """What is kept and in what; and whether that is an object from outside of the turn which adds it up."""
    keeper, value = kept_by(use.statement)
    if value is None and isinstance(use.statement, ast.Assign) and _is_counted(seen, use.statement.targets[0], use):
        return unparsed(use.statement.targets[0].value), use.statement.value, False  # type: ignore[attr-defined]
    call = use.statement.value if isinstance(use.statement, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    if value is not None or not isinstance(call, ast.Call) or not isinstance(func, (ast.Name, ast.Attribute)):
        return keeper, value, False
    if isinstance(func, ast.Name) and seen.project.class_of(func, use) is None:
        return _kept_by_closure(seen, call, func.id, use)
    held = func.value if isinstance(func, ast.Attribute) else func
    function = seen.project.callee(call, use) if _from_outside(seen, held, use) else None
    for name, inner in _adds_up(seen.project, function) if function is not None and function.owner else ():
        lasting = seen.loop_of(use) is not None or never_emptied(seen.project, function, inner.partition("[")[0])  # type: ignore[arg-type]
        if lasting and (given := _given_as(call, function, name)) is not None:  # type: ignore[arg-type]
            receiver = unparsed(held)
            return inner if receiver == "self" else receiver, given, True
    return "", None, False


def _kept_by_closure(seen: Seen, call: ast.Call, called: str, use: Use) -> tuple[str, ast.expr | None, bool]:
    """``track(loss)``, where a function inside another puts it into a list of that one, which is never emptied."""
    function = seen.project.callee(call, use)
    outer = function.parent if function is not None and function.owner is None else None
    loop, found = seen.loop_of(use), seen.scope.reaching(called, use) if called in seen.scope.bindings else []
    inside = [b for b in found if loop is not None and lies_in(b.use.statement, loop)]
    if function is None or outer is None or isinstance(outer.node, ast.Module) or loop is None or inside or not found:
        return "", None, False
    text = unparsed(outer.node)
    for each in function.statements:
        keeper, value = kept_by(each.statement)
        begun = outer.bindings.get(keeper, []) if keeper not in function.bindings else []
        once = len(begun) == 1 and _plain_binding(begun[0]) and isinstance(each.statement, ast.Expr)
        names = [n for n in function.params if _carries(value, n)] if once else []
        emptied = re.search(
            rf"\b{re.escape(keeper)}(\.(clear|pop|popleft)\(|\[.*\] = )|\bdel {re.escape(keeper)}", text
        )
        if names and not emptied and not seen_in(seen.project, function).without_grad(each):
            return keeper, argument(call, function, names[0]), True
    return "", None, False


def _is_counted(seen: Seen, target: ast.expr, use: Use) -> bool:
    """``log[i]``, of another number in each turn."""
    key = target.slice if isinstance(target, ast.Subscript) else None
    found = seen.scope.reaching(key.id, use) if isinstance(key, ast.Name) and key.id in seen.scope.bindings else []
    counted = len(found) == 1 and isinstance(loop := found[0].use.statement, ast.For) and loop is seen.loop_of(use)
    return counted and re.match(r"(enumerate|range|trange|tqdm)\(", unparsed(loop.iter)) is not None  # type: ignore[attr-defined]


def _from_outside(seen: Seen, node: ast.expr, use: Use) -> bool:
    """An object that is there before the loop."""
    whole = node
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    loop = seen.loop_of(use)
    while isinstance(whole, ast.Attribute) and isinstance(whole.value, ast.Attribute):
        whole = whole.value
    if loop is None and isinstance(whole, ast.Name) and whole.id not in seen.scope.bindings:
        return seen.called_again and _is_global(seen, whole.id) and _begun_once(seen, whole.id)
    if loop is None and isinstance(whole, ast.Attribute) and isinstance(whole.value, ast.Name):
        return seen.called_again and _made_once(seen, whole)
    if loop is None and isinstance(whole, ast.Name) and seen.scope.own == (whole.id,):
        return seen.called_again
    found = seen.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in seen.scope.bindings else []
    if loop is not None and isinstance(node, ast.Name) and node.id not in seen.scope.bindings:
        return _is_global(seen, node.id)
    return loop is not None and bool(found) and not any(lies_in(b.use.statement, loop) for b in found)


def _is_global(seen: Seen, name: str) -> bool:
    """An object that the file makes once, outside of every function, or that an outer function has."""
    found = _outer_bindings(seen, name)
    return len(found) == 1 and isinstance(found[0].value, ast.Call)


def _outer_bindings(seen: Seen, name: str) -> list[Binding]:
    """What a name is given outside of the function, which does not bind it."""
    outer = seen.scope.parent if name.isidentifier() else None
    while outer is not None and name not in outer.bindings:
        outer = outer.parent
    return outer.bindings[name] if outer is not None else []


def _made_once(seen: Seen, node: ast.Attribute) -> bool:
    """``self.history``, which ``__init__`` makes, and nothing else."""
    owner = seen.scope.owner if seen.scope.own == (unparsed(node.value),) else None
    found = seen.project.attributes(owner, node.attr) if owner is not None else []
    outside = seen.project.set_from_outside(node.attr, seen.module)
    return not outside and [b.use.scope.name.rpartition(".")[2] for b in found] == ["__init__"]


def emptied(seen: Seen, keeper: str, use: Use) -> bool:
    """Something takes out of it again, or what was added up is begun anew in the loop."""
    for each in _together(seen, keeper):
        taken = [unparsed(receiver) for _, receiver, _ in each.methods("clear", "pop", "popleft")]
        if keeper in taken or any(keeper in unparsed(r) for _, r, _ in each.methods("backward") if "." in keeper):
            return True
    loop = seen.loop_of(use)
    if (loop is not None and _begun_again(seen, keeper, loop)) or _asks(keeper, use):
        return True
    resets = [call for call, receiver, _ in seen.methods("reset") if unparsed(receiver) == keeper]
    if any(loop is None or lies_in(call, loop) for call in resets):
        return True
    deleted = [t for u in seen.scope.statements if isinstance(u.statement, ast.Delete) for t in u.statement.targets]
    return any(unparsed(target).startswith(keeper) for target in deleted)


def _begun_again(seen: Seen, keeper: str, loop: ast.stmt) -> bool:
    """``self.losses = []``, ``done, self.losses = self.losses, []`` and ``self.losses[-1] = loss.item()`` in the loop."""
    for use in seen.scope.statements:
        node = use.statement
        if not isinstance(node, ast.Assign) or not lies_in(node, loop):
            continue
        for target in node.targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            if any(_is_overwritten(part, keeper) for part in parts):
                return True
            anew = "[]" in unparsed(node.value) if len(parts) > 1 else keeper not in unparsed(node.value)
            if anew and any(unparsed(part) == keeper for part in parts):
                return True
    return False


def _is_overwritten(target: ast.expr, keeper: str) -> bool:
    """``losses[:]`` and ``losses[-1]``, and not ``losses[step]``."""
    if not isinstance(target, ast.Subscript) or unparsed(target.value) != keeper:
        return False
    return isinstance(target.slice, (ast.Slice, ast.UnaryOp))


def _asks(keeper: str, use: Use) -> bool:
    """``if len(self.losses) < 3:`` around it."""
    tests = [use.scope.choices[block].test for block, _ in use.path if block in use.scope.choices]
    return any(re.search(rf"(len\(|not ){re.escape(keeper)}\b", unparsed(test)) for test in tests)


def _together(seen: Seen, keeper: str) -> Iterator[Seen]:
    """This function; for an attribute of self, every method of the class."""
    owner = seen.scope.owner if keeper.startswith("self.") else None
    others: list[Scope] = [*owner.methods.values()] if owner is not None else []
    if keeper.isidentifier() and keeper not in seen.scope.bindings:
        others = [each for each in seen.module.scopes if keeper not in each.params]
    yield from (seen_in(seen.project, each) for each in others)
    yield seen


def outlives(seen: Seen, keeper: str, use: Use) -> bool:
    """It starts as a number or an empty list outside of the loop, and gets nothing else in it."""
    loop = seen.loop_of(use)
    if loop is None:
        started_once = {b.use.scope.name.rpartition(".")[2] for b in _keeper_bindings(seen, keeper)} == {"__init__"}
        started_once = started_once or _begun_once(seen, keeper)
        return seen.called_again and started_once and all(map(_plain_binding, _keeper_bindings(seen, keeper)))
    started = False
    for binding in _keeper_bindings(seen, keeper):
        inside = lies_in(binding.use.statement, loop)
        inside = inside and binding.use.scope is seen.scope
        plain = _plain_start(binding.value)
        started = started or (plain and not inside)
        if inside and binding.use.statement is not use.statement and not plain:
            return False
        if inside and plain and seen.loop_of(binding.use) is loop and binding.use.path == use.path:
            return False
    return started


def _begun_once(seen: Seen, keeper: str) -> bool:
    """A name of the file, given a value outside of every loop, and never again."""
    found = [b for b in _outer_bindings(seen, keeper) if not isinstance(b.use.statement, ast.AugAssign)]
    plain = len(found) == 1 and isinstance(found[0].use.scope.node, ast.Module)
    return plain and seen_in(seen.project, found[0].use.scope).loop_of(found[0].use) is None


def _keeper_bindings(seen: Seen, keeper: str) -> list[Binding]:
    node = ast.parse(keeper, mode="eval").body
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        held = _keeper_bindings(seen, unparsed(node.value))
        parts = [replace(b, value=_held_by(b.value, node.slice.value)) for b in held]
        written = [use for use in seen.scope.statements if _sets(use.statement, keeper)]
        return parts if not written else []
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
        table = unparsed(node.value)
        held = _keeper_bindings(seen, table) if f"{table}[" not in " ".join(map(unparsed, _targets(seen))) else []
        return [replace(b, value=ast.List([], ast.Load())) for b in held if _holds_lists(b.value)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault":
        empty = len(node.args) == 2 and isinstance(node.args[1], ast.List) and not node.args[1].elts
        held = _keeper_bindings(seen, unparsed(node.func.value)) if empty else []
        return [replace(b, value=node.args[1]) for b in held if _is_table(b.value)]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
        return _field_bindings(seen, node)
    found = seen.scope.bindings.get(keeper) or _outer_bindings(seen, keeper)
    if keeper.startswith("self.") and seen.scope.owner is not None and seen.scope.params[:1] == ("self",):
        found = seen.scope.owner.attributes.get(keeper.removeprefix("self."), [])
        elsewhere = [
            b for b in found if b.use.scope is not seen.scope and b.use.scope.name.rpartition(".")[2] != "__init__"
        ]
        found = [] if elsewhere else found
    return [b for b in found if not isinstance(b.use.statement, ast.AugAssign)]


def _targets(seen: Seen) -> list[ast.expr]:
    """What assignments of this function write to."""
    return [t for use in seen.scope.statements for t in getattr(use.statement, "targets", ())]


def _field_bindings(seen: Seen, node: ast.Attribute) -> list[Binding]:
    """``self.state.losses``, of an object that was made once."""
    held = _keeper_bindings(seen, unparsed(node.value))
    things = seen.project.things(held[0].value, held[0].use) if len(held) == 1 else ()
    owner = things[0].made_of if len(things) == 1 else None
    value = owner.fields.get(node.attr) if owner is not None else None
    started = isinstance(value, ast.Call) and unparsed(value) == "field(default_factory=list)"
    return [replace(held[0], value=ast.List([], ast.Load()))] if started else []


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
            return unparsed(call.func.value), call.args[0]
    return "", None


def _added_to(node: ast.Assign | ast.AugAssign) -> tuple[str, ast.expr] | None:
    """``self.total += x``, ``self.total = self.total + x``, and the same with ``totals["loss"]``."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if not isinstance(target, (ast.Attribute, ast.Subscript)):
        return None
    if isinstance(node, ast.AugAssign):
        return (unparsed(target), node.value) if isinstance(node.op, ast.Add) else None
    value, text = node.value, unparsed(target)
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    for own, added in ((value.left, value.right), (value.right, value.left)):
        scaled = isinstance(own, ast.BinOp) and isinstance(own.op, ast.Mult)
        if text in (_entry_of(part) for part in ((own.left, own.right) if scaled else (own,))):  # type: ignore[attr-defined]
            return text, added
    return None


def _entry_of(node: ast.expr) -> str:
    """``totals[k]``, also for ``totals.get(k, 0.0)``."""
    func = node.func if isinstance(node, ast.Call) and len(node.args) == 2 else None
    if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and func.attr == "get":
        return f"{unparsed(func.value)}[{unparsed(node.args[0])}]"
    return unparsed(node)


def _adds_up(project: Project, function: Scope) -> Iterator[tuple[str, str]]:
    """Parameters of a method that it adds, as they are, to an attribute of self, and to which."""
    seen = seen_in(project, function)
    yield from adds_up_below(project, function)
    for use in function.statements:
        keeper, value = kept_by(use.statement)
        if (
            bounded(function, keeper)
            or not keeper.startswith(f"{function.params[0] if function.params else ''}.")
            or seen.without_grad(use)
        ):
            continue
        for name in function.params[1:]:
            only = all(binding.parameter for binding in function.bindings.get(name, ()))
            if only and _carries(value, name):
                yield name, keeper
        table, _, key = keeper.partition("[")
        name = gone_through_by(use, value) if key else ""
        if name and name not in function.params[:1] and keeps_all(project, function, table):
            yield name, table


def adds_up_below(project: Project, function: Scope) -> Iterator[tuple[str, str]]:
    """Parameters that a method hands to one of its meters: ``self.meters[k].update(v)`` for all ``**values``."""
    own = f"{function.params[0]}." if function.params else "."
    for call, use in function.calls:
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if (
            receiver is None
            or not f"{unparsed(receiver)}.".startswith(own)
            or seen_in(project, function).without_grad(use)
        ):
            continue
        inner = next(iter(meters(project, call, use)), None)
        if inner is None or inner is function or _takes_out(function):
            continue
        for name, keeper in _adds_up(project, inner):
            lasting = keeps_all if "[" in keeper else never_emptied
            value = _given_as(call, inner, name) if lasting(project, inner, keeper.partition("[")[0]) else None
            value = value.elts[0] if isinstance(value, ast.Tuple) and len(value.elts) == 1 else value
            if not isinstance(value, ast.Name):
                continue
            table = unparsed(receiver.value if isinstance(receiver, ast.Subscript) else receiver)
            table = keeper.partition("[")[0] if f"{table}." == own else table
            plain = value.id in function.params and all(b.parameter for b in function.bindings[value.id])
            if whole := value.id if plain else gone_through_by(use, value) or _rest_of(function, value.id):
                yield whole, table


def _rest_of(function: Scope, name: str) -> str:
    """``values`` of ``def update(self, **values)``."""
    taken = getattr(getattr(function.node, "args", None), "kwarg", None)
    return name if taken is not None and taken.arg == name else ""


def bounded(function: Scope, keeper: str) -> bool:
    """``deque(maxlen=50)``, which lets go of what is old."""
    found = function.owner.attributes.get(keeper.partition(".")[2], []) if function.owner is not None else []
    made = [unparsed(b.value) for b in found if isinstance(b.value, ast.Call)]
    return any("deque(" in text and ("maxlen" in text or "," in text) for text in made)


def _given_as(call: ast.Call, function: Scope, name: str) -> ast.expr | None:
    """What a call gives for a parameter; for ``**values`` all that has the name of no other."""
    if name in function.params:
        return argument(call, function, name)
    rest = [k.value for k in call.keywords if k.arg not in function.params]
    return ast.copy_location(ast.Tuple(rest, ast.Load()), call) if rest else None


def gone_through_by(use: Use, value: ast.expr | None) -> str:
    """``metrics``, where a statement keeps each ``value`` of ``for key, value in metrics.items()`` as it is."""
    found = use.scope.bindings.get(value.id, []) if isinstance(value, ast.Name) else []
    loop = found[0].use.statement if len(found) == 1 else None
    if not isinstance(loop, ast.For) or use.path != ((id(loop), "body"),) or not isinstance(value, ast.Name):
        return ""
    drawn = re.fullmatch(rf"for \(?\w+, {value.id}\)? in (\w+)\.items\(\):", unparsed(loop).split("\n")[0])
    bound = use.scope.bindings.get(drawn[1], []) if drawn is not None else []
    keywords = getattr(getattr(use.scope.node, "args", None), "kwarg", None)
    given = [b.parameter or (keywords is not None and keywords.arg == drawn[1]) for b in bound] if drawn else []
    return drawn[1] if drawn is not None and given == [True] else ""


def keeps_all(project: Project, function: Scope, table: str) -> bool:
    """Nothing in the class takes from a table of lists, or from anything else."""
    return not _takes_out(function) and never_emptied(project, function, table)


def _takes_out(function: Scope) -> bool:
    """Something in the class takes from what it holds."""
    text = unparsed(function.owner.node) if function.owner is not None else "del"
    return TAKES.search(text) is not None


def never_emptied(project: Project, function: Scope, keeper: str) -> bool:
    """``self.losses``, which begins empty in ``__init__``, and which no method of the class begins anew or takes from."""
    owner = function.owner
    found = owner.attributes.get(keeper.removeprefix("self."), []) if owner is not None else []
    begun = [
        b for b in found if kept_by(b.use.statement)[0] != keeper and not isinstance(b.use.statement, ast.AugAssign)
    ]
    usual = owner.fields.get(keeper.removeprefix("self.")) if owner is not None and owner.is_record else None
    listed = isinstance(usual, ast.Call) and unparsed(usual) == "field(default_factory=list)"
    listed = listed or (isinstance(usual, ast.Constant) and isinstance(usual.value, (int, float)))
    once = _begun_in_start(project, begun) or (listed and not begun)
    name = re.escape(keeper.removeprefix("self"))
    grows = rf"(\w+{name}(\[[^=]*\]|\.get\(.*\)) \+ |\w+ \+ \w+{name}(\[|\.get\())"
    taken = re.compile(rf"{name}(\.(clear|pop|popleft)\(|\[.*\] = (?!{grows}))|\bdel \S*{name}")
    outside = project.set_from_outside(keeper.removeprefix("self."), function.module)
    plain = once and not outside and all(map(_plain_binding, begun))
    return plain and not any(taken.search(line) or ANEW.search(line) for line in function.module.text.lines)


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
    return ast.List([], ast.Load()) if empty and unparsed(value.args[0]) == "list" else None  # type: ignore[union-attr]


def _is_table(value: ast.expr | None) -> bool:
    """An empty dictionary."""
    made = isinstance(value, ast.Call) and not value.args and not value.keywords
    named = made and spelled(value.func).rpartition(".")[2] in ("dict", "OrderedDict", "Counter")  # type: ignore[union-attr]
    return named or (isinstance(value, ast.Dict) and not value.keys)


def _sets(node: ast.stmt, keeper: str) -> bool:
    return isinstance(node, ast.Assign) and any(unparsed(target) == keeper for target in node.targets)


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
    zeros = value is not None and re.match(r"torch\.(zeros\(|tensor\(0)", unparsed(value)) is not None
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
