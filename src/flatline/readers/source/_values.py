"""Where a value comes from, one step back: fields, properties, tables, defaults; and which branches are never taken."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._records import BAGS, own_field
from flatline.readers.source._scopes import Binding, Class, Scope, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project
    from flatline.readers.source._things import Thing

DEPTH = 24  # steps from a name to what it stands for
SHORT = 4  # steps from a name to a number
STEPS = 12  # from a table to where it is written out
TABLES = {"torch.nn.ModuleDict", "types.MappingProxyType", "collections.OrderedDict", "torch.nn.ModuleList"}
OF_PAIRS = {"torch.nn.ModuleDict", "collections.OrderedDict"}
OF_RECORDS = {"dataclasses.asdict", "vars"}
SIZED = {"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "DataLoader", "TensorDataset"}
DEVICE = re.compile(r"[\w.]*device\w*(?:\.type)? (==|!=) '(cuda|cpu)'")


@dataclass(frozen=True, slots=True)
class Source:
    """An expression that a value may come from, and the calls that it comes through."""

    node: ast.expr
    use: Use
    via: tuple[int, ...] = ()


def sources(project: Project, node: ast.expr, use: Use, depth: int) -> Sequence[Source]:
    """All expressions that a value may come from; nothing if one of them is unknown."""
    if isinstance(node, ast.NamedExpr):
        return [Source(node.value, use)]
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return _first_true(project, node, use)
    if isinstance(node, ast.Attribute):
        return _field(project, node, use, depth)
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        return held(project, node.value, project.constant(node.slice, use), use, depth)
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr == "get" and isinstance(node, ast.Call) and node.args:
        found = held(project, func.value, project.constant(node.args[0], use), use, depth)
        return [*found, *(Source(each, use) for each in node.args[1:] if not is_none(each))] if found else []
    return _of_lambda(project, node, use, depth) if isinstance(node, ast.Call) else []


def _of_lambda(project: Project, node: ast.Call, use: Use, depth: int) -> Sequence[Source]:
    """``make()`` where that is ``lambda: nn.Linear(8, 2)``."""
    near = use.scope.module.lambdas or (project.lambdas and isinstance(node.func, ast.Subscript))
    if not isinstance(node.func, (ast.Name, ast.Subscript)) or depth > STEPS or not near:
        return []
    found = origins(project, node.func, use, depth=depth)
    made = [(each.node, each) for each in found if isinstance(each.node, ast.Lambda)]
    if len(made) != len(found):
        return []
    return [Source(function.body, _inside(function, each.use), (id(node), *each.via)) for function, each in made]


def _inside(function: ast.Lambda, use: Use) -> Use:
    """Where the expression of a lambda stands: among its parameters, if it has any."""
    scope = use.scope.module.of_lambda(function, use) if function.args.args else None
    return scope.statements[0] if scope is not None else use


def _first_true(project: Project, node: ast.BoolOp, use: Use) -> Sequence[Source]:
    """The parts of ``given or usual`` that it may be."""
    found: list[Source] = []
    for part in node.values:
        if not _is_false(project, part, use):
            found.append(Source(part, use))
        if part is not node.values[-1] and is_object(project, part, use, plain=True):
            break
    return found


def chosen(project: Project, node: ast.IfExp, use: Use) -> Sequence[ast.expr]:
    """Which of ``a if test else b`` it may be."""
    truth = project.once(node, lambda: truth_of(project, node.test, use))
    return [node.body, node.orelse] if truth is None else [node.body if truth else node.orelse]


def is_object(project: Project, node: ast.expr, use: Use, *, plain: bool) -> bool:
    """Certainly something else than None; plainly, if it is also as good as true."""
    return project.once(node, lambda: _is_made(project, node, use, plain)) is True


def _is_made(project: Project, node: ast.expr, use: Use, plain: bool) -> bool:
    found = origins(project, node, use) if isinstance(node, (ast.Name, ast.Attribute)) else []
    for each in found:
        made = isinstance(each.node, ast.Call)
        things = project.things(each.node, each.use) if made else ()
        owners = [t.made_of for t in things if t.made_of is not None]
        sized = any(t.name.rpartition(".")[2] in SIZED for t in things) or any(
            project.method(owner, name) for owner in owners for name in ("__len__", "__bool__")
        )
        known = bool(things) and all(t.call is not None for t in things) and not (plain and sized)
        named = not made and not plain and project.dotted(each.node, each.use).startswith("torch.")
        if not known and not named:
            return False
    return bool(found)


def _is_false(project: Project, node: ast.expr, use: Use) -> bool:
    found = project.constant(node, use)
    return found is not None and not found.value


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def origins(
    project: Project, node: ast.expr | None, use: Use, index: tuple[int, ...] = (), depth: int = 0
) -> Sequence[Source]:
    """The expressions that a value was first made by, behind names, calls and tables; nothing if one is unknown."""
    if node is None or depth > STEPS:
        return []
    steps = _back(project, node, use, index, depth)
    if steps is None:
        return [Source(node, use)] if not index else []
    found: list[Source] = []
    for value, place, inner in steps:
        each = origins(project, value, place, inner, depth + 1)
        if not each:
            return []
        found += each
    return found


Step: TypeAlias = tuple[ast.expr | None, Use, tuple[int, ...]]


def _back(project: Project, node: ast.expr, use: Use, index: tuple[int, ...], depth: int) -> Sequence[Step] | None:
    """One step back; None for what was made here."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        if isinstance(node, ast.Name) and node.id in use.scope.masked.get(id(use.statement), ()):
            return []
        if (bindings := project.holding(node, use, depth)) and not any(b.definition or b.imported for b in bindings):
            return [step for b in bindings for step in _behind(project, node, b, index)]
    if isinstance(node, ast.IfExp):
        return [(part, use, index) for part in chosen(project, node, use)]
    if isinstance(node, (ast.Tuple, ast.List)) and index and index[0] < len(node.elts):
        return [(node.elts[index[0]], use, index[1:])]
    if found := sources(project, node, use, depth):
        return [(each.node, each.use, index) for each in found]
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        return [(node.value, use, (node.slice.value, *index))]
    function = project.callee(node, use) if isinstance(node, ast.Call) else None
    if function is not None and function.returns and not function.marked("contextmanager"):
        return [(value, place, index) for value, place in project.returns(function)]
    return None


def _behind(project: Project, node: ast.expr, binding: Binding, index: tuple[int, ...]) -> Sequence[Step]:
    if binding.value is None and (drawn := list(drawn_by(project, binding, index))):
        return drawn
    if binding.parameter and isinstance(node, ast.Name):
        given = project.given(node.id, binding.use)
        return [(value, site, index) for value, site in given] or [(None, binding.use, index)]
    return [(binding.value, binding.use, (*binding.index, *index))]


def looped(project: Project, name: str, use: Use) -> Sequence[Source]:
    """The objects that a loop goes through under a name."""
    found, around = use.scope.bindings.get(name, []), {block for block, _ in use.path}
    if len(found) > 1 and all(isinstance(b.use.statement, ast.For) for b in found):
        found = [b for b in found if id(b.use.statement) in around]
    loop = found[0].use.statement if len(found) == 1 else None
    plain = isinstance(loop, ast.For) and isinstance(loop.target, ast.Name)
    return held(project, loop.iter, None, found[0].use, 0) if plain else []  # type: ignore[union-attr]


def gone_through(use: Use, name: str) -> ast.expr | None:
    """What a comprehension of a statement, or the loop that binds a name, goes through."""
    if name in use.scope.masked.get(id(use.statement), ()):
        comps = [n for n in walk(use.statement) if isinstance(n, ast.comprehension)]
        found = [(c.target, c.iter) for c in comps if name in names_in(c.target)]
    else:
        bound = use.scope.bindings.get(name, [])
        loops = [b.use.statement for b in bound if isinstance(b.use.statement, ast.For)]
        found = [(loop.target, loop.iter) for loop in loops] if len(bound) == 1 else []
    if len(found) != 1:
        return None
    target, head = found[0]
    if isinstance(head, ast.Call) and unparsed(head.func) == "enumerate" and isinstance(target, ast.Tuple):
        counted = len(target.elts) == 2 and len(head.args) == 1 and names_in(target.elts[1]) == {name}
        return head.args[0] if counted and isinstance(target.elts[1], ast.Name) else None
    asked = head.func if isinstance(head, ast.Call) and not head.args else None
    method = asked.attr if isinstance(asked, ast.Attribute) else ""
    last = isinstance(target, ast.Tuple) and len(target.elts) == 2 and names_in(target.elts[1]) == {name}
    if isinstance(asked, ast.Attribute) and (last if method == "items" else method == "values"):
        return asked.value if last or isinstance(target, ast.Name) else None
    return head if isinstance(target, ast.Name) and not isinstance(head, ast.Call) else None


def each_of(project: Project, node: ast.expr, use: Use) -> Sequence[Source]:
    """All that a table holds, also one that a comprehension fills."""
    found: list[Source] = []
    for each in origins(project, node, use):
        inner = each.node
        made = inner.func if isinstance(inner, ast.Call) and len(inner.args) == 1 else None
        paired = made is not None and (unparsed(made) == "dict" or project.dotted(made, each.use) in OF_PAIRS)
        if isinstance(inner, ast.Call) and (paired or (made is not None and project.dotted(made, each.use) in TABLES)):
            inner = inner.args[0]
        comp = inner.value if isinstance(inner, ast.DictComp) else None
        comp = inner.elt if isinstance(inner, (ast.ListComp, ast.GeneratorExp)) else comp
        comp = comp.elts[1] if paired and isinstance(comp, ast.Tuple) and len(comp.elts) == 2 else comp
        found += [Source(comp, each.use)] if comp is not None else held(project, inner, None, each.use, 0)
    return found


def drawn_by(project: Project, binding: Binding, index: tuple[int, ...]) -> Iterator[Step]:
    """What a generator of the project yields to the loop that binds a name."""
    node, use = binding.use.statement, binding.use
    if not isinstance(node, ast.For):
        return
    head, inner = node.iter, (*binding.index, *index)
    if isinstance(head, ast.Call) and unparsed(head.func) == "enumerate" and inner[:1] == (1,) and head.args:
        head, inner = head.args[0], inner[1:]
    around = replace(use, path=use.path[:-1])
    function = project.callee(head, around) if isinstance(head, ast.Call) else None
    for yielded, place in function.yields if function is not None else ():
        yield yielded.value, place, inner


# --------------------------------------------------------------------------- fields


def _field(project: Project, node: ast.Attribute, use: Use, depth: int) -> Sequence[Source]:
    """``config.rate``, ``self.rate`` of a dataclass, and what a property gives back."""
    if isinstance(node.value, ast.Name) and use.scope.owner is not None and use.scope.own == (node.value.id,):
        method = project.method(use.scope.owner, node.attr)
        if method is not None:
            return _returns(project, method) if method.marked("property", "cached_property") else []
        things = own_field(project, use.scope.owner, node.attr)
    else:
        things = project.things(node.value, use, depth + 1)
    found: list[Source] = []
    for thing in things if not project.set_from_outside(node.attr, use.scope.module) else ():
        inner = field_of(project, thing, node.attr)
        if not inner:
            return []
        found += inner
    return found


def field_of(project: Project, thing: Thing, name: str) -> Sequence[Source]:
    """What the one call that made an object gave for one of its fields."""
    owner, call = thing.made_of, thing.call
    if call is None:
        return _of_class(project, owner, name) if owner is not None and thing.function is None else []
    given = next((k.value for k in call.keywords if k.arg == name), None)
    if given is not None and (thing.name in BAGS or (owner is not None and owner.is_record)):
        return [Source(given, thing.use, thing.via)]
    if owner is None:
        return []
    method = project.method(owner, name)
    if method is not None and method.marked("property", "cached_property"):
        return _returns(project, method)
    return _by_place(owner, thing, call, name) if owner.is_record and name in owner.fields else []


def _of_class(project: Project, owner: Class, name: str) -> Sequence[Source]:
    """What the body of ``class CFG:`` gives a name, where nothing else does."""
    written = f"setattr({owner.node.name},"
    if project.set_from_outside(name, owner.module) or written in owner.module.whole:
        return []
    if owner.is_record:
        usual = owner.fields.get(name)
        return [Source(usual, owner.use)] if usual is not None and not isinstance(usual, ast.Call) else []
    found = project.attributes(owner, name)
    plain = len(found) == 1 and found[0].use.scope.owner is None and not found[0].index
    return [Source(found[0].value, found[0].use)] if plain and found[0].value is not None else []


def _by_place(owner: Class, thing: Thing, call: ast.Call, name: str) -> Sequence[Source]:
    place, spread = list(owner.fields).index(name), any(k.arg is None for k in call.keywords)
    if any(isinstance(each, ast.Starred) for each in call.args) or spread:
        return []
    if place < len(call.args):
        return [Source(call.args[place], thing.use, thing.via)]
    usual = _usual(owner.fields[name])
    return [Source(usual, owner.use, thing.via)] if usual is not None else []


@cache
def _usual(node: ast.expr | None) -> ast.expr | None:
    """What a field begins with: ``Meter()`` of ``field(default_factory=Meter)``."""
    if not isinstance(node, ast.Call) or unparsed(node.func).rpartition(".")[2] != "field":
        return node
    named = {k.arg: k.value for k in node.keywords}
    factory = named.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return factory.body
    return ast.copy_location(ast.Call(factory, [], []), factory) if factory is not None else named.get("default")


def _returns(project: Project, function: Scope) -> Sequence[Source]:
    return [Source(value, use) for value, use in project.returns(function) if value is not None]


# --------------------------------------------------------------------------- tables


def held(project: Project, node: ast.expr, key: ast.Constant | None, use: Use, depth: int) -> Sequence[Source]:
    """What a table holds under a key; under one that is not known, all that it holds."""
    if depth > STEPS:
        return []
    if isinstance(node, ast.Dict):
        pairs = [*zip(node.keys, node.values, strict=True)]
        return _joined(project, pairs, key, use, depth) if None in node.keys else _listed(pairs, key, use)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and key is None:
        return [s for part in (node.left, node.right) for s in held(project, part, None, use, depth + 1)]
    if isinstance(node, (ast.List, ast.Tuple)):
        numbered = [(ast.Constant(n), each) for n, each in enumerate(node.elts)]
        return _listed(numbered, key, use) if not any(isinstance(e, ast.Starred) for e in node.elts) else []
    if isinstance(node, ast.Call):
        return _held_by_call(project, node, key, use, depth)
    if isinstance(node, ast.Subscript):
        inside = held(project, node.value, project.constant(node.slice, use), use, depth + 1)
        return [s for each in inside for s in held(project, each.node, key, each.use, depth + 1)]
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return []
    found: list[Source] = []
    for each in _holders(project, node, use, depth):
        inner = held(project, each.node, key, each.use, depth + 1) if each is not None else []
        found += [Source(s.node, s.use, (*(each.via if each else ()), *s.via)) for s in inner]
        if not inner:
            return project.put(node, key, use)
    if project.written_below(node, key, use):
        return []
    return found if not project.written_to(node, use) else project.put(node, key, use)


def _joined(
    project: Project,
    pairs: Sequence[tuple[ast.expr | None, ast.expr]],
    key: ast.Constant | None,
    use: Use,
    depth: int,
) -> Sequence[Source]:
    """Of ``{**usual, "width": 8}``, where it is known which of the parts has the key."""
    for name, value in reversed(pairs) if key is not None else ():
        if name is None:
            if found := held(project, value, key, use, depth + 1):
                return found
            known = project.names_in(value, use)
            if known is None or (key is not None and key.value in known):
                return []
        elif isinstance(name, ast.Constant) and key is not None and name.value == key.value:
            return [Source(value, use)]
        elif not isinstance(name, ast.Constant):
            return []
    return []


def _listed(pairs: Sequence[tuple[ast.expr | None, ast.expr]], key: ast.Constant | None, use: Use) -> Sequence[Source]:
    if key is None:
        return [Source(value, use) for _, value in pairs]
    return [Source(value, use) for k, value in pairs if isinstance(k, ast.Constant) and k.value == key.value][-1:]


def _holders(project: Project, node: ast.Name | ast.Attribute, use: Use, depth: int) -> Sequence[Source | None]:
    """The values of a name or attribute; None for one that is not known."""
    found: list[Source | None] = []
    for binding in project.holding(node, use, depth):
        if binding.parameter and isinstance(node, ast.Name):
            given = project.given(node.id, binding.use)
            found += [Source(*pair) for pair in given] or [None]
        elif binding.imported:
            found.append(project.elsewhere(binding.imported, binding.use))
        elif binding.index and binding.value is not None:
            found += origins(project, binding.value, binding.use, binding.index, depth + 1) or [None]
        else:
            plain = binding.value is not None and not binding.index
            found.append(Source(binding.value, binding.use) if plain and binding.value is not None else None)
    if not found and isinstance(node, ast.Attribute):
        found += sources(project, node, use, depth + 1)
    return found


def _held_by_call(project: Project, call: ast.Call, key: ast.Constant | None, use: Use, depth: int) -> Sequence[Source]:
    dotted = project.dotted(call.func, use)
    if isinstance(call.func, ast.Name) and call.func.id == "dict" and (not call.args or key is not None):
        parts = [*((None, each) for each in call.args)]
        pairs = [*parts, *((ast.Constant(k.arg) if k.arg else None, k.value) for k in call.keywords)]
        plain = all(name is not None for name, _ in pairs)
        return _listed(pairs, key, use) if plain else _joined(project, pairs, key, use, depth)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "copy" and not call.args and not dotted:
        return held(project, call.func.value, key, use, depth + 1)
    listed = isinstance(call.func, ast.Name) and call.func.id in ("list", "tuple")
    if (dotted in TABLES or listed) and len(call.args) == 1:
        return held(project, call.args[0], key, use, depth + 1)
    if key is not None and dotted in OF_RECORDS and len(call.args) == 1:
        each = [field_of(project, t, str(key.value)) for t in project.things(call.args[0], use, depth)]
        return [s for inner in each for s in inner] if all(each) else []
    function = project.callee(call, use)
    found: list[Source] = []
    for value, place in project.returns(function) if function is not None else ():
        inner = held(project, value, key, place, depth + 1) if value is not None else []
        if not inner:
            return []
        found += [Source(s.node, s.use, (id(call), *s.via)) for s in inner]
    return found


# --------------------------------------------------------------------------- branches


def possible(project: Project, bindings: list[Binding], use: Use) -> list[Binding]:
    """Those in branches that are taken; where one is certain to be, nothing that was before."""
    kept = [b for b in bindings if comes_by(project, b.use) is not False]
    for number in range(len(kept) - 1, 0, -1):
        source = kept[number].use
        around = [block for block in source.path if _choice(project, source, block) is not True]
        if source.order < use.order and source.scope is use.scope and use.path[: len(around)] == tuple(around):
            return kept[number:]
    return kept


def returns(project: Project, function: Scope) -> list[tuple[ast.expr | None, Use]]:
    """What a function may give back, and where, in the branches that are taken."""
    found = []
    for value, use in function.returns:
        taken = comes_by(project, use) if use.path and len(function.returns) > 1 else None
        if taken is not False:
            found.append((value, use))
        if taken is True:
            break
    return found


def comes_by(project: Project, use: Use) -> bool | None:
    """Whether a place is come by; None where that is not known."""
    choices = [_choice(project, use, block) for block in use.path]
    return False if False in choices else True if choices and all(choices) else None


def _choice(project: Project, use: Use, block: tuple[int, str]) -> bool | None:
    if (match := use.scope.matches.get(block[0])) is not None:
        return _case(project, match, use, int(block[1].rpartition(" ")[2]))
    node = use.scope.choices.get(block[0])
    if node is None:
        return None
    truth = project.truth(node, use.scope)
    return truth if truth is None else truth == (block[1] == "body")


def _case(project: Project, match: ast.Match, use: Use, number: int) -> bool | None:
    """Whether a case of a match is the one that is taken."""
    subject = project.constant(match.subject, replace(use, path=()), strict=True)
    if subject is None:
        return None
    for place, case in enumerate(match.cases[: number + 1]):
        fits = _fits(case.pattern, subject.value) if case.guard is None else None
        if fits is not False or place == number:
            return fits if place == number or fits is None else False
    return None


def _fits(pattern: ast.pattern, value: object) -> bool | None:
    """Whether a value that is written out matches; None where that is not known."""
    if isinstance(pattern, ast.MatchValue):
        return pattern.value.value == value if isinstance(pattern.value, ast.Constant) else None
    if isinstance(pattern, ast.MatchSingleton):
        return pattern.value is value
    if isinstance(pattern, ast.MatchOr):
        each = [_fits(part, value) for part in pattern.patterns]
        return True if True in each else None if None in each else False
    return True if isinstance(pattern, ast.MatchAs) and pattern.pattern is None else None


def on_cuda(project: Project, test: ast.expr, use: Use) -> bool | None:
    """What a condition is on a GPU."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = on_cuda(project, test.operand, use)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [on_cuda(project, each, use) for each in test.values]
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in parts else None if None in parts else not decisive
    if unparsed(test).endswith("cuda.is_available()"):
        return True
    asked = DEVICE.fullmatch(unparsed(test))
    return (asked[1] == "==") == (asked[2] == "cuda") if asked is not None else truth_of(project, test, use)


def truth_of(project: Project, test: ast.expr, use: Use) -> bool | None:
    """What a condition is, where it is about constants alone."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth_of(project, test.operand, use)
        return None if inner is None else not inner
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(project, test, use)
    if isinstance(test, ast.BoolOp):
        parts = [truth_of(project, each, use) for each in test.values]
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in parts else None if None in parts else not decisive
    found = project.constant(test, use, strict=True) if isinstance(test, (ast.Name, ast.Attribute)) else None
    return None if found is None else bool(found.value)


def _compared(project: Project, test: ast.Compare, use: Use) -> bool | None:
    left, right = project.constant(test.left, use, strict=True), test.comparators[0]
    if left is None and is_none(right) and isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        there = is_object(project, test.left, use, plain=False)
        return isinstance(test.ops[0], ast.IsNot) if there else None
    if left is None:
        return None
    if isinstance(test.ops[0], (ast.In, ast.NotIn)):
        listed = right.elts if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else []
        plain = bool(listed) and all(isinstance(each, ast.Constant) for each in listed)
        among = left.value in [each.value for each in listed if isinstance(each, ast.Constant)]
        return None if not plain else among == isinstance(test.ops[0], ast.In)
    other = project.constant(right, use, strict=True)
    if other is None or not isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        return None
    return (left.value == other.value) == isinstance(test.ops[0], (ast.Eq, ast.Is))


def inherited(owner: Class | None, name: str, depth: int = 0) -> Scope | None:
    """A method of the classes of the same file that a class inherits from, by their names alone."""
    for base in owner.node.bases if owner is not None and depth < STEPS else ():
        found = owner.module.top.bindings.get(base.id, ()) if isinstance(base, ast.Name) and owner is not None else ()
        made = owner.module.classes.get(id(found[0].definition)) if len(found) == 1 and owner is not None else None
        method = made.methods.get(name) or inherited(made, name, depth + 1) if made is not None else None
        if method is not None:
            return method
    return None


def is_super(node: ast.expr) -> bool:
    """``super()``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
