"""Adapters that a script puts into its model, and that were never made: the names it looks for match no layer.

Read from the source when the script is over. What is told is certain: the loop over the modules ran, as every statement
on the way to it stands under no condition, and no object of the adapter's class was ever built.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from flatline.sensors.callers import is_users, users_frame
from flatline.sensors.sources import FUNCTIONS, given_names, option_names, parameter_names, tree_of

WALKS = ("named_modules", "modules", "named_children", "children")
MATCHING = ("endswith", "startswith", "search", "match", "fullmatch", "isinstance", "any", "lower", "split", "type")
WRITTEN = (ast.Constant, ast.Tuple, ast.List, ast.Set)
SPLITS = ("split", "strip")
DEEPEST = 6  # calls from the script's first line to the loop


class NeverMade(NamedTuple):
    """A statement that makes adapters, and that no layer came to."""

    file: str
    line: int
    adapter: str
    function: str
    targets: tuple[str, ...]  # that the layers' names were compared with; empty where only their type was asked


@dataclass(slots=True)
class Place:
    """A function of the user's that ran, or the script itself."""

    file: str
    tree: ast.AST
    body: list[ast.stmt]
    name: str
    names: Mapping[str, Any]  # of its module
    given: Mapping[str, ast.expr]  # its arguments, as the caller wrote them; defaults
    around: Place | None = None  # the caller


def never_made(made: set[type]) -> NeverMade | None:
    """The first one. ``made`` are the classes of all modules that were built."""
    main = sys.modules.get("__main__")
    file = str(getattr(main, "__file__", "") or "")
    tree = tree_of(file) if file and is_users(file) and users_frame() is None else None
    if tree is None:
        return None
    script = Place(file, tree, tree.body, "", vars(main), {})
    return next((found for place in _ran(script, DEEPEST, set()) if (found := _in(place, made)) is not None), None)


# --------------------------------------------------------------------------- what ran


def _ran(place: Place, deep: int, seen: set[tuple[str, int]]) -> Iterator[Place]:
    """A place, and the functions that it calls under no condition."""
    yield place
    for statement in _certain(place.body):
        for call in _calls(statement):
            function = _function(call, place)
            if function is None or not deep or (function[0], function[2].lineno) in seen:
                continue
            seen.add((function[0], function[2].lineno))
            yield from _ran(_entered(call, function, place), deep - 1, seen)


def _certain(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run whenever the body does."""
    for statement in body:
        if isinstance(statement, (ast.Return, ast.Raise)):
            yield statement
            return
        if isinstance(statement, ast.With) or _is_main(statement):
            yield from _certain(getattr(statement, "body", []))
        elif not isinstance(statement, (ast.If, ast.While, ast.Try, *FUNCTIONS, ast.ClassDef)):
            yield statement
        if isinstance(statement, (ast.If, ast.Try)) and _leaves(statement) and not _is_main(statement):
            return


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test).replace('"', "'") == "__name__ == '__main__'"


def _leaves(statement: ast.stmt) -> bool:
    return any(isinstance(node, (ast.Return, ast.Raise)) for node in ast.walk(statement))


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Calls of a statement that nothing keeps from running."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Lambda, ast.IfExp, ast.BoolOp, ast.GeneratorExp, ast.ListComp, ast.DictComp)):
            continue
        if isinstance(node, ast.Call):
            yield node
        inner = [node.iter] if isinstance(node, ast.For) else ast.iter_child_nodes(node)
        waiting += inner


def _function(call: ast.Call, place: Place) -> tuple[str, ast.Module, Any] | None:
    """File, its tree and the definition of what is called: a function, the only method of this name, a class's own start."""
    value: Any = None
    if isinstance(call.func, ast.Name):
        value = place.names.get(call.func.id)
        if isinstance(value, type):
            value = vars(value).get("__init__")
    elif isinstance(call.func, ast.Attribute):
        owner = place.names.get(call.func.value.id) if isinstance(call.func.value, ast.Name) else None
        value = (
            vars(owner).get(call.func.attr) if isinstance(owner, types.ModuleType) else _method(call.func.attr, place)
        )
    if not isinstance(value, types.FunctionType) or not is_users(value.__code__.co_filename):
        return None
    file = value.__code__.co_filename
    tree = tree_of(file)
    return None if tree is None else next(((file, tree, f) for f in _functions(tree) if _is(f, value)), None)


def _functions(tree: ast.AST) -> Iterator[Any]:
    return (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def _is(node: Any, function: types.FunctionType) -> bool:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return bool(node.name == function.__name__ and first == function.__code__.co_firstlineno)


def _method(name: str, place: Place) -> Any:
    """Of a class of this module, if no other has one of this name."""
    classes = [v for v in place.names.values() if isinstance(v, type) and is_users(_file_of(v))]
    found = {id(vars(c)[name]): vars(c)[name] for c in classes if name in vars(c)}
    return next(iter(found.values())) if len(found) == 1 else None


def _file_of(thing: type) -> str:
    return str(getattr(sys.modules.get(thing.__module__), "__file__", None) or "<unknown>")


def _entered(call: ast.Call, function: tuple[str, ast.Module, Any], around: Place) -> Place:
    file, tree, node = function
    names = parameter_names(node)
    given = dict(zip(names[::-1], node.args.defaults[::-1], strict=False))
    given |= {a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None}
    given |= dict(zip(given_names(node), call.args, strict=False))
    given |= {k.arg: k.value for k in call.keywords if k.arg}
    module = next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == file), None)
    return Place(file, tree, node.body, node.name, vars(module) if module else around.names, given, around)


# --------------------------------------------------------------------------- the loop over the modules


def _in(place: Place, made: set[type]) -> NeverMade | None:
    """A loop over modules that makes adapters for those it chooses, and made none."""
    for statement in _certain(place.body):
        if isinstance(statement, ast.For) and _walks(statement.iter, place):
            found = list(_made_in(statement, place))
            if found and all(_never(adapter, made) for _, adapter, _ in found):
                line, adapter, targets = found[0]
                return NeverMade(place.file, line, adapter.__name__, place.name, targets)
    return None


def _walks(node: ast.expr, place: Place) -> bool:
    """The modules of a model are gone through, or a list of them that was made just before."""
    if isinstance(node, ast.Name):
        values = [s.value for s in place.body if isinstance(s, ast.Assign) and _sets(s, node.id)]
        return any(_walks(value, place) for value in values if not isinstance(value, ast.Name))
    calls = [n.func.attr for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    return any(name in WALKS for name in calls)


def _never(adapter: type, made: set[type]) -> bool:
    return not any(issubclass(each, adapter) for each in made)


def _made_in(loop: ast.For, place: Place) -> Iterator[tuple[int, type, tuple[str, ...]]]:
    """Lines that build a module of the user's, where only the names and types of layers decide whether they run."""
    layers = _named_in(loop, place)
    for line, tests, adapter in _builds(loop.body, _conditions(loop.iter, place), place):
        targets = [_targets(test, place) if _about(test, layers) else None for test in tests]
        if not tests or any(each is None for each in targets):
            yield line, nn.Module, ()  # cannot be said to have been looked for
        else:
            yield line, adapter, tuple(dict.fromkeys(t for each in targets if each is not None for t in each))


def _conditions(node: ast.expr, place: Place) -> list[ast.expr]:
    """Of a comprehension that chooses the layers before the loop."""
    made = [s.value for s in place.body if isinstance(s, ast.Assign) and _sets(s, ast.unparse(node))]
    values = made if isinstance(node, ast.Name) else [node]
    comprehensions = [c for value in values for n in ast.walk(value) for c in getattr(n, "generators", ())]
    return [test for each in comprehensions for test in each.ifs]


def _sets(statement: ast.AST, name: str) -> bool:
    return isinstance(statement, ast.Assign) and [ast.unparse(t) for t in statement.targets] == [name]


def _builds(body: list[ast.stmt], tests: list[ast.expr], place: Place) -> Iterator[tuple[int, list[ast.expr], type]]:
    tests = list(tests)
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _builds(statement.body, [*tests, statement.test], place)
            yield from _builds(statement.orelse, [*tests, statement.test], place)
            if any(isinstance(inner, ast.Continue) for inner in statement.body):
                tests.append(statement.test)
        elif isinstance(statement, (ast.For, ast.With)):
            yield from _builds(statement.body, tests, place)
        else:
            yield from ((line, tests, adapter) for line, adapter in _built(statement, place, 1))


def _built(statement: ast.stmt, place: Place, deep: int) -> Iterator[tuple[int, type]]:
    """The user's modules that a statement builds, itself or in a function that it calls."""
    for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
        value = place.names.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if isinstance(value, type) and issubclass(value, nn.Module) and is_users(_file_of(value)):
            yield call.lineno, value
        elif deep and (function := _function(call, place)) is not None:
            inner = _entered(call, function, place)
            yield from (found for each in inner.body for found in _built(each, inner, deep - 1))


# --------------------------------------------------------------------------- what was looked for


def _named_in(loop: ast.For, place: Place) -> set[str]:
    """Names that are bound within a loop, and in comprehensions before it: the layers, their names, what is made of them."""
    nodes = [n for each in (loop, *place.body) for n in ast.walk(each)]
    generators = [c.target for n in nodes for c in getattr(n, "generators", ())]
    targets = [n.target for n in ast.walk(loop) if isinstance(n, ast.For)]
    assigned = [t for n in ast.walk(loop) if isinstance(n, ast.Assign) for t in n.targets]
    return {n.id for t in (*generators, *targets, *assigned) for n in ast.walk(t) if isinstance(n, ast.Name)}


def _about(test: ast.expr, layers: set[str]) -> bool:
    """Every part of the condition asks something of a layer."""
    if isinstance(test, ast.BoolOp):
        return all(_about(value, layers) for value in test.values)
    return any(isinstance(n, ast.Name) and n.id in layers for n in ast.walk(test))


def _targets(test: ast.expr, place: Place) -> tuple[str, ...] | None:
    """The texts that a name is compared with; None where the condition may ask for anything else."""
    calls = [node.func for node in ast.walk(test) if isinstance(node, ast.Call)]
    names = [f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls]
    if any(name not in MATCHING for name in names) or not _compares_only(test, names):
        return None
    found: list[str] = []
    for node in _asked(test):
        texts = _texts(node, place)
        if not texts:
            return None
        found += texts
    return tuple(found)


def _compares_only(test: ast.expr, calls: list[str]) -> bool:
    """No plain flag is part of the condition."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    parts = [p.operand if isinstance(p, ast.UnaryOp) and isinstance(p.op, ast.Not) else p for p in parts]
    return all(isinstance(part, (ast.Compare, ast.Call, ast.BoolOp)) for part in parts)


def _asked(test: ast.expr) -> Iterator[ast.expr]:
    """What may hold the texts: the other side of a comparison, the argument of a match, what a generator goes through."""
    bound = {ast.unparse(c.target) for g in ast.walk(test) if isinstance(g, ast.GeneratorExp) for c in g.generators}
    for node in ast.walk(test):
        if isinstance(node, ast.GeneratorExp):
            yield from (each.iter for each in node.generators)
        elif isinstance(node, ast.Compare) and not ast.unparse(node.left).startswith("type("):
            sides: list[ast.expr] = [node.left, *node.comparators]
            if isinstance(node.ops[0], (ast.In, ast.NotIn)):
                written: list[ast.expr] = [each for each in sides if isinstance(each, ast.Constant)]
                sides = written[:1] or sides[1:]
                yield from (each for each in sides if ast.unparse(each) not in bound and not _of_bound(node, bound))
            else:
                yield from (each for each in sides[1:] if ast.unparse(each) not in bound)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.args
            and node.func.attr != "split"
        ):
            yield from (a for a in node.args[:1] if ast.unparse(a) not in bound)


def _of_bound(node: ast.Compare, bound: set[str]) -> bool:
    """``target in name`` within a generator over targets."""
    return ast.unparse(node.left) in bound


def _texts(node: ast.expr, place: Place) -> tuple[str, ...]:
    """The texts that an expression holds, if it is certain that there are some."""
    value = _value(node, place)
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, (tuple, list, set, frozenset, dict)) and all(isinstance(each, str) for each in value):
        return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value)
    return ()


def _value(node: ast.expr, place: Place) -> Any:
    if isinstance(node, WRITTEN):
        return _literal(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SPLITS:
        return _split(node.func.attr, _value(node.func.value, place), [_literal(a) for a in node.args])
    if isinstance(node, ast.Call) and node.args:  # tuple(targets)
        return _value(node.args[0], place)
    if isinstance(node, (ast.ListComp, ast.SetComp)):  # [t.strip() for t in targets]
        return _value(node.generators[0].iter, place) if len(node.generators) == 1 else None
    if isinstance(node, ast.Name):
        if node.id in place.given:
            return _value(place.given[node.id], place.around or place)
        local = [
            s.value for each in place.body for s in ast.walk(each) if isinstance(s, ast.Assign) and _sets(s, node.id)
        ]
        if local and place.name:
            own = len(local) != 1 or any(isinstance(n, ast.Name) and n.id == node.id for n in ast.walk(local[0]))
            return None if own else _value(local[0], place)
        return place.names.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and not place.name:
        known = getattr(place.names.get(node.value.id), "__dict__", {}).get(node.attr)
        if known is not None:
            return known
    last = node.attr if isinstance(node, ast.Attribute) else _key(node)
    values = [_literal(value) for value in _given_to(place.tree, last)] if last else []
    return values[0] if len(values) == 1 else None


def _split(how: str, text: Any, given: list[Any]) -> Any:
    """``targets.split(",")``, ``targets.strip()``."""
    if not isinstance(text, str) or not all(isinstance(each, str) for each in given):
        return None
    if how != "split":
        return text.strip()
    return [part.strip() for part in text.split(given[0] if given and given[0] else None) if part.strip()]


def _literal(node: ast.expr) -> Any:
    """What is written there; of a dataclass's field its default."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "field":
        made = [k.value for k in node.keywords if k.arg in ("default", "default_factory")]
        node = next((m.body if isinstance(m, ast.Lambda) else m for m in made), node)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _key(node: ast.expr) -> str:
    key = node.slice if isinstance(node, ast.Subscript) else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def _given_to(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """Everything that an attribute or a key of this name is set to in a file, as it is written there."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = any(ast.unparse(target).rpartition(".")[2] == name or _key(target) == name for target in targets)
            if named and not isinstance(node.value, (ast.Name, ast.Attribute)):
                yield node.value
        elif isinstance(node, ast.Call):
            options = option_names(node)
            yield from (k.value for k in node.keywords if k.arg == name or (k.arg == "default" and name in options))
        elif isinstance(node, ast.Dict):
            yield from (
                v
                for k, v in zip(node.keys, node.values, strict=True)
                if isinstance(k, ast.Constant) and k.value == name
            )
