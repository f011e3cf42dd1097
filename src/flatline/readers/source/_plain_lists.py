"""Layers in a list or dictionary of a module, which registers none of them."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from flatline.events import SourceFact
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import FUNCTIONS, Binding, Module, Scope, Use, lies_in, plain_call, spelled
from flatline.readers.source._seen import is_module, is_module_class, is_own
from flatline.readers.source._things import Thing
from flatline.readers.source._values import Source, origins

DICTIONARIES = {"dict", "OrderedDict", "defaultdict"}
MOVES = {"to", "cuda", "cpu", "half", "float", "double", "bfloat16", "train", "eval", "__repr__", "extra_repr"}
OWN = re.compile(r"\bself\.(\w+)")
TAKEN = re.compile(r"param|Module(List|Dict)|add_module|register|setattr")
FILLED = re.compile(r"\bself\.(\w+)(?:\.append\(|\[[^\]]*\]\)? = |(?:: [\w\[\]., ]+)?\)? = )")


def plain_lists(project: Project, module: Module, methods: dict[str, Scope]) -> Iterator[SourceFact]:
    """Layers in a list or dictionary of a module, which registers none of them."""
    start, forward = methods.get("__init__"), methods.get("forward")
    if start is None or forward is None or start.owner is None:
        return
    if not is_module_class(project, start):
        return
    lists = {
        name: shown
        for name, bindings in start.owner.attributes.items()
        if (shown := _list_of(project, bindings, start))
    }
    if not lists:
        return
    starts = _starts(start)
    working = _working(start.owner.methods, forward)
    text, run = "\n".join(unparsed(each.node) for each in starts), Counter(_learning(forward, *working))
    harmless = {id(each): unparsed(each.node) for each in (forward, *working, *_moving(start.owner.methods))}.values()
    ran = Counter(OWN.findall("\n".join(harmless))) - Counter(FILLED.findall("\n".join(harmless)))
    every = unparsed(start.owner.node)
    whole, made = Counter(OWN.findall(every)) - Counter(FILLED.findall(every)), Counter(OWN.findall(text))
    filled, added = Counter(FILLED.findall(text)), _appended(starts)
    for attribute, (binding, listed, kind) in lists.items():
        only = made[attribute] == filled[attribute] and "add_module" not in text and "setattr" not in text
        if not only or not run[attribute] or whole[attribute] > ran[attribute]:
            continue
        layers = [layer for layer in (*listed, *added.get(attribute, ())) if _parametric(project, *layer)]
        if layers and not _taken_outside(project, start, attribute):
            yield SourceFact(
                kind=kind,
                name=attribute,
                text=spelled(layers[0][0]),
                where=module.where(binding.use.statement, start),
            )


def _starts(start: Scope) -> list[Scope]:
    """``__init__``, and the methods that it calls."""
    methods = start.owner.methods if start.owner is not None else {}
    called = {call.func.attr for call, _ in start.calls if isinstance(call.func, ast.Attribute) and is_own(call)}
    return [start, *(method for name, method in methods.items() if name in called and name != "forward")]


def _working(methods: dict[str, Scope], forward: Scope) -> list[Scope]:
    """The methods that a forward leaves a part of its work to: ``return self.decode(self.encode(x))``."""
    found, waiting = dict[str, Scope](), [forward]
    while waiting:
        called = {c.func.attr for c, _ in waiting.pop().calls if isinstance(c.func, ast.Attribute) and is_own(c)}
        near = {name: methods[name] for name in called & methods.keys() - found.keys() if methods[name] is not forward}
        near = {name: each for name, each in near.items() if _gives_nothing(each)}
        found |= near
        waiting += near.values()
    return [each for each in found.values() if each.marked_without_grad is None]


def _moving(methods: dict[str, Scope]) -> list[Scope]:
    """Methods that move layers or set their modes, or run without gradients: none of them registers anything."""
    found = [each for name, each in methods.items() if name in MOVES or each.marked_without_grad is not None]
    return [each for each in found if _gives_nothing(each)]


def _gives_nothing(method: Scope) -> bool:
    """It neither registers what it asks for, nor hands it to whoever calls it."""
    given = {unparsed(value) for value, _ in method.returns if value is not None}
    return TAKEN.search(unparsed(method.node)) is None and not any(map(OWN.fullmatch, given))


def _taken_outside(project: Project, start: Scope, name: str) -> bool:
    """``chain(model.parameters(), *[h.parameters() for h in model.heads.values()])``."""
    own = start.owner.node if start.owner is not None else start.node
    read = re.compile(rf"\.{name}\b")
    for module in [m for m in project.modules.values() if m is not None]:
        if any(read.search(line) for line in module.text.lines):
            texts = (
                u.statement
                for s in module.scopes
                for u in s.statements
                if not _is_inside(u.statement, own, module, start)
            )
            if any(TAKEN.search(text) for text in map(unparsed, texts) if read.search(text)):
                return True
    return False


def _is_inside(node: ast.stmt, own: ast.AST, module: Module, start: Scope) -> bool:
    """In the class itself, or a definition, whose statements are looked at one by one."""
    return isinstance(node, (*FUNCTIONS, ast.ClassDef)) or (module is start.module and lies_in(node, own))  # type: ignore[arg-type]


def _learning(*scopes: Scope) -> Iterator[str]:
    """The attributes of self that a forward, and its helpers, ask for outside of no_grad, once each time."""
    nodes = [node for each in scopes for node in walk(each.node)]
    heads = [n for n in nodes if isinstance(n, ast.With) and "no_grad" in unparsed(n.items[0])]
    off = {id(inner) for head in heads for inner in walk(head)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in off:
            yield from [node.attr] if node.value.id == "self" else []


def _list_of(
    project: Project, bindings: list[Binding], start: Scope
) -> tuple[Binding, list[tuple[ast.expr, Use]], str] | None:
    """The one list that an attribute is given, what it begins with, and whether it is a dictionary."""
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
    parts = _parts_of(_unlisted(value))
    if parts is None:
        return None
    named = isinstance(value, (ast.Dict, ast.DictComp)) or _called(value) in DICTIONARIES
    return binding, [*((part, source) for part in parts), *held], "plain dict" if named else "plain list"


def _called(value: ast.expr | None) -> str:
    return unparsed(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""


def _parts_of(value: ast.expr | None) -> Sequence[ast.expr] | None:
    """What a list or a dictionary is written out to hold; None for anything else."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return value.elts
    if isinstance(value, ast.Dict):
        return value.values
    if isinstance(value, ast.DictComp):
        return [value.value]
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)):
        return [value.elt]
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Mult)):
        added = isinstance(value.op, ast.Add)
        both = [_parts_of(value.left), _parts_of(value.right) if added else ()]
        return [part for each in both for part in each or ()] if None not in both else None
    return _parts_of_call(value) if isinstance(value, ast.Call) else None


def _parts_of_call(value: ast.Call) -> Sequence[ast.expr] | None:
    """``dict(zip(names, heads))``, ``dict((name, Head()) for name in names)``, ``dict(a=Head())``, ``list()``."""
    name, given = _called(value), value.args[0] if len(value.args) == 1 else None
    if name == "list" and not value.args:
        return []
    if name not in DICTIONARIES or len(value.args) > 1:
        return None
    if given is None or name == "defaultdict":
        return [k.value for k in value.keywords if k.arg is not None]
    if isinstance(given, ast.Call) and _called(given) == "zip" and len(given.args) == 2:
        return _parts_of(_unlisted(given.args[1]))
    pairs = _parts_of(given) if not isinstance(given, ast.Dict) else None
    if pairs is None or not all(isinstance(pair, ast.Tuple) and len(pair.elts) == 2 for pair in pairs):
        return _parts_of(given) if isinstance(given, (ast.Dict, ast.DictComp)) else None
    return [pair.elts[1] for pair in pairs if isinstance(pair, ast.Tuple)]


def _unlisted(value: ast.expr | None) -> ast.expr | None:
    """``blocks`` in ``list(blocks)``."""
    plain = isinstance(value, ast.Call) and unparsed(value.func) in ("list", "tuple") and len(value.args) == 1
    return value.args[0] if plain and isinstance(value, ast.Call) else value


def _put_into(scope: Scope, name: str) -> list[tuple[ast.expr, Use]]:
    """What a function puts into a list or dictionary."""
    found = [(c.args[0], use) for c, use in scope.calls if unparsed(c.func) == f"{name}.append" and c.args]
    for use in scope.statements:
        target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
        if isinstance(target, ast.Subscript) and unparsed(target.value) == name:
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
    return sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in walk(node))


def _appended(starts: Sequence[Scope]) -> dict[str, list[tuple[ast.expr, Use]]]:
    """What is put into lists later, by attribute."""
    found: dict[str, list[tuple[ast.expr, Use]]] = {}
    for call, use in (pair for start in starts for pair in start.calls):
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "append" and isinstance(func.value, ast.Attribute):
            if call.args and isinstance(func.value.value, ast.Name) and func.value.value.id == "self":
                found.setdefault(func.value.attr, []).append((call.args[0], use))
    for node, use in ((use.statement, use) for start in starts for use in start.statements):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Subscript):
            if (held := unparsed(target.value)).startswith("self."):
                found.setdefault(held.removeprefix("self."), []).append((node.value, use))
    return found


def _parametric(project: Project, node: ast.expr, use: Use) -> bool:
    things, made = project.things(node, use), plain_call(node) if isinstance(node, ast.Call) else node
    return bool(things) and all(is_made_by(t, made) and is_module(project, t) for t in things)


def is_made_by(thing: Thing, node: ast.expr) -> bool:
    """By a call itself, by the function that it calls, or with what ``partial()`` added to it."""
    place = operator.attrgetter("lineno", "col_offset", "end_lineno", "end_col_offset")
    merged = thing.call is not None and isinstance(node, ast.Call) and place(thing.call) == place(node)
    return thing.call is node or thing.via[:1] == (id(node),) or merged
