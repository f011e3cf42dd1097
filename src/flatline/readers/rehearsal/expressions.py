"""Expressions: what they stand for, and what is bound by assigning."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flatline.readers.rehearsal import attributes, calls, containers, tensors
from flatline.readers.rehearsal.machine import Machine
from flatline.readers.rehearsal.values import (
    MORE,
    UNKNOWN,
    Env,
    Function,
    Library,
    Made,
    Object,
    Tensor,
    Value,
    inside,
    is_key,
)

BUILT_IN = frozenset(dir(builtins))
LARGE = 10_000  # of what an operation may make
SCALARS = (bool, int, float, str, type(None))


def evaluate(m: Machine, node: ast.expr, env: Env) -> Value:
    """What an expression stands for."""
    m.spend()
    does = VALUES.get(type(node))
    return does(m, node, env) if does is not None else UNKNOWN


def _constant(m: Machine, node: ast.Constant, env: Env) -> Value:
    return node.value


def _name(m: Machine, node: ast.Name, env: Env) -> Value:
    try:
        return env.find(node.id)
    except KeyError:
        return Library(f"builtins.{node.id}") if node.id in BUILT_IN else UNKNOWN


def _attribute(m: Machine, node: ast.Attribute, env: Env) -> Value:
    return attributes.get(m, evaluate(m, node.value, env), node.attr, node, env)


def _call(m: Machine, node: ast.Call, env: Env) -> Value:
    function = evaluate(m, node.func, env)
    args = _listed(m, node.args, env)
    kwargs: dict[str, Value] = {}
    for keyword in node.keywords:
        value = evaluate(m, keyword.value, env)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
            kwargs.update(value)
        else:
            kwargs[MORE] = UNKNOWN
    return calls.call(m, function, args, kwargs, node, env)


def _listed(m: Machine, nodes: Sequence[ast.expr], env: Env) -> list[Value]:
    """Expressions one after the other, some of them spread."""
    found: list[Value] = []
    for each in nodes:
        if isinstance(each, ast.Starred):
            found += calls.spread(evaluate(m, each.value, env))
        else:
            found.append(evaluate(m, each, env))
    return found


def _tuple(m: Machine, node: ast.Tuple | ast.List | ast.Set, env: Env) -> Value:
    found = _listed(m, node.elts, env)
    if isinstance(node, ast.Set):
        return {each for each in found if is_key(each)}
    if isinstance(node, ast.List):
        m.begun(found)
    return tuple(found) if isinstance(node, ast.Tuple) else found


def _dict(m: Machine, node: ast.Dict, env: Env) -> Value:
    found: dict[Value, Value] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        part = evaluate(m, value, env)
        if key is None:
            containers.join(found, part)
        elif is_key(name := evaluate(m, key, env)):
            found[name] = part
    return m.begun(found)


def _joined(m: Machine, node: ast.JoinedStr, env: Env) -> Value:
    parts = [_formatted(m, part, env) for part in node.values]
    known = all(isinstance(part, str) for part in parts) and sum(map(len, parts)) <= LARGE
    return "".join(parts) if known else UNKNOWN


def _formatted(m: Machine, node: ast.expr, env: Env) -> Value:
    if isinstance(node, ast.FormattedValue):
        value = evaluate(m, node.value, env)
        plain = isinstance(value, (str, int)) and node.format_spec is None
        return str(value) if plain else UNKNOWN
    return evaluate(m, node, env)


# --------------------------------------------------------------------------- operators

OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _binary(m: Machine, node: ast.BinOp, env: Env) -> Value:
    one, other = evaluate(m, node.left, env), evaluate(m, node.right, env)
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return tensors.combined((one, other))
    if containers.is_batches(one) or containers.is_batches(other):
        return Made(containers.BATCHES)
    return _computed(node.op, one, other)


def _computed(op: ast.operator, one: Value, other: Value) -> Value:
    """By Python itself, for numbers, texts and lists of a sound size."""
    does = OPERATORS.get(type(op))
    if does is None or not _is_plain(one) or not _is_plain(other):
        return UNKNOWN
    if _length(one) + _length(other) > LARGE or (isinstance(op, ast.Mult) and _too_long(one, other)):
        return UNKNOWN
    if isinstance(op, ast.Mod) and isinstance(one, str):
        return UNKNOWN
    try:
        return does(one, other)
    except (TypeError, ValueError, ArithmeticError):
        return UNKNOWN


def _is_plain(value: Value) -> bool:
    small = not isinstance(value, int) or abs(value) < 1 << 64
    return small and isinstance(value, (bool, int, float, str, list, tuple, set, frozenset, dict))


def _length(value: Value) -> int:
    return 1 if isinstance(value, (bool, int, float)) else len(value)


def _too_long(one: Value, other: Value) -> bool:
    times = [v for v in (one, other) if isinstance(v, int)]
    sized = [v for v in (one, other) if isinstance(v, (str, list, tuple))]
    return bool(times and sized) and abs(times[0]) * len(sized[0]) > LARGE


def _unary(m: Machine, node: ast.UnaryOp, env: Env) -> Value:
    value = evaluate(m, node.operand, env)
    if isinstance(node.op, ast.Not):
        found = m.truth(value)
        return UNKNOWN if found is None else not found
    if isinstance(value, Tensor):
        return tensors.combined((value,))
    if isinstance(value, (int, float)):
        return -value if isinstance(node.op, ast.USub) else value if isinstance(node.op, ast.UAdd) else UNKNOWN
    return UNKNOWN


def _either(m: Machine, node: ast.BoolOp, env: Env) -> Value:
    stops = isinstance(node.op, ast.Or)
    value: Value = UNKNOWN
    unsure = False
    for part in node.values:
        value = evaluate(m, part, env)
        found = m.truth(value)
        if found is None:
            unsure = True
        elif found is stops:
            return value  # whatever the others are, it counts as this
    return UNKNOWN if unsure else value


def _compared(m: Machine, node: ast.Compare, env: Env) -> Value:
    one = evaluate(m, node.left, env)
    found: list[bool | None] = []
    for op, right in zip(node.ops, node.comparators, strict=True):
        other = evaluate(m, right, env)
        if isinstance(one, Tensor) or isinstance(other, Tensor):
            m.watcher.scored(m)
        found.append(_compare(op, one, other))
        one = other
    if False in found:
        return False
    return UNKNOWN if None in found else True


def _compare(op: ast.cmpop, one: Value, other: Value) -> bool | None:
    if isinstance(op, (ast.Is, ast.IsNot)):
        return _same(one, other, isinstance(op, ast.Is))
    if isinstance(op, (ast.In, ast.NotIn)):
        return _contains(one, other, isinstance(op, ast.In))
    if isinstance(op, (ast.Eq, ast.NotEq)):
        if isinstance(one, SCALARS) and isinstance(other, SCALARS):
            return (one == other) is isinstance(op, ast.Eq)
        same_kind = isinstance(one, Library) and isinstance(other, Library)
        return _same(one, other, isinstance(op, ast.Eq)) if same_kind else None
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return bool(COMPARISONS[type(op)](one, other))
    return None


def _same(one: Value, other: Value, wanted: bool) -> bool | None:
    if one is UNKNOWN or other is UNKNOWN or isinstance(one, attributes.MAYBE) or isinstance(other, attributes.MAYBE):
        return None
    if isinstance(one, Library) and isinstance(other, Library):
        return (one.dotted == other.dotted) is wanted
    return (one is other) is wanted


def _contains(one: Value, other: Value, wanted: bool) -> bool | None:
    other = inside(other)
    if isinstance(other, str):
        return (one in other) is wanted if isinstance(one, str) else None
    if not isinstance(other, (list, tuple, set, frozenset, dict)) or one is UNKNOWN or not is_key(one):
        return None
    if any(each is UNKNOWN for each in other) or MORE in other:
        return None
    return any(each is one or (isinstance(each, SCALARS) and each == one) for each in other) is wanted


# --------------------------------------------------------------------------- the others


def _chosen(m: Machine, node: ast.IfExp, env: Env) -> Value:
    taken, _ = m.decide(evaluate(m, node.test, env), node)
    return evaluate(m, node.body if taken else node.orelse, env)


def _item(m: Machine, node: ast.Subscript, env: Env) -> Value:
    value = evaluate(m, node.value, env)
    key = _slice(m, node.slice, env) if isinstance(node.slice, ast.Slice) else evaluate(m, node.slice, env)
    if (
        isinstance(value, Made)
        and value.dotted == containers.FILLS
        and isinstance(key, (*SCALARS, Object))
        and key not in value.parts
    ):
        made = calls.call(m, value.given("default_factory", 0), [], {}, ast.Call(node, [], []), env)
        value.parts[key] = made
        if isinstance(made, list):
            m.born[id(made)] = m.born.get(id(value), 0)
    return item(m, value, key)


def _slice(m: Machine, node: ast.Slice, env: Env) -> Value:
    parts = [evaluate(m, part, env) if part is not None else None for part in (node.lower, node.upper, node.step)]
    return slice(*parts) if all(part is None or isinstance(part, int) for part in parts) else UNKNOWN


def item(m: Machine, value: Value, key: Value) -> Value:
    """One element."""
    if isinstance(value, Tensor):
        return tensors.same(value, picked=not isinstance(key, (slice, tuple)))
    value = inside(value)
    if isinstance(value, Library):
        return value  # Optional[int]
    if isinstance(value, dict):
        return containers.entry(m, value, key)
    if isinstance(value, (list, tuple, str, range)) and isinstance(key, (int, slice)):
        try:
            return value[key]
        except (IndexError, ValueError):
            return UNKNOWN
    return attributes.by_key(m, value, key)


def _lambda(m: Machine, node: ast.Lambda, env: Env) -> Value:
    return function(m, node, env)


def function(m: Machine, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, env: Env) -> Function:
    """A function as it is defined: its defaults are evaluated once."""
    given, defaults = node.args, dict[str, Value]()
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    for name, value in zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True):
        defaults[name] = evaluate(m, value, env)
    for each, usual in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if usual is not None:
            defaults[each.arg] = evaluate(m, usual, env)
    scope = env.module.functions.get(id(node))
    generates = scope is not None and bool(scope.yields)
    return Function(node, env, defaults, generates=generates)


def _comprehension(m: Machine, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, env: Env) -> Value:
    found = [
        evaluate(m, node.elt, inner) for inner in _turns(m, node.generators, Env(env.module, env, scope=env.scope))
    ]
    return {each for each in found if is_key(each)} if isinstance(node, ast.SetComp) else found


def _table(m: Machine, node: ast.DictComp, env: Env) -> Value:
    found: dict[Value, Value] = {}
    for inner in _turns(m, node.generators, Env(env.module, env, scope=env.scope)):
        key, value = evaluate(m, node.key, inner), evaluate(m, node.value, inner)
        if is_key(key):
            found[key] = value
    return found


def _turns(m: Machine, generators: Sequence[ast.comprehension], env: Env) -> Iterator[Env]:
    """Each turn of the loops of a comprehension. What a condition that is not known lets through is let through."""
    if not generators:
        yield env
        return
    for value in m.gathered(evaluate(m, generators[0].iter, env)):
        assign(m, generators[0].target, value, env)
        if all(m.truth(evaluate(m, test, env)) is not False for test in generators[0].ifs):
            yield from _turns(m, generators[1:], env)


def _bound(m: Machine, node: ast.NamedExpr, env: Env) -> Value:
    value = evaluate(m, node.value, env)
    assign(m, node.target, value, env)
    return value


def _yielded(m: Machine, node: ast.Yield, env: Env) -> Value:
    value = evaluate(m, node.value, env) if node.value is not None else None
    if env.on_yield is not None:
        env.on_yield(value)
    return None


def _yielded_from(m: Machine, node: ast.YieldFrom, env: Env) -> Value:
    m.each(evaluate(m, node.value, env), env.on_yield or (lambda value: None))
    return UNKNOWN


def _awaited(m: Machine, node: ast.Await, env: Env) -> Value:
    return evaluate(m, node.value, env)


def _starred(m: Machine, node: ast.Starred, env: Env) -> Value:
    return evaluate(m, node.value, env)


# --------------------------------------------------------------------------- assigning


def assign(m: Machine, target: ast.expr, value: Value, env: Env) -> None:
    """A name, an attribute, an element, or several of them get a value."""
    if isinstance(target, ast.Name):
        env.declared.get(target.id, env).names[target.id] = value
    elif isinstance(target, ast.Attribute):
        attributes.put(m, evaluate(m, target.value, env), target.attr, value, target, env)
    elif isinstance(target, ast.Subscript):
        _put(m, evaluate(m, target.value, env), evaluate(m, target.slice, env), value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        _unpacked(m, target.elts, value, env)
    elif isinstance(target, ast.Starred):
        assign(m, target.value, value, env)


def _unpacked(m: Machine, targets: Sequence[ast.expr], value: Value, env: Env) -> None:
    if isinstance(value, Tensor):
        values: Sequence[Value] = [tensors.same(value)] * len(targets)
    else:
        values = m.gathered(value) if value is not UNKNOWN else []
    star = next((at for at, each in enumerate(targets) if isinstance(each, ast.Starred)), None)
    if star is not None and len(values) >= len(targets) - 1:
        end = len(values) - (len(targets) - star - 1)
        values = [*values[:star], list(values[star:end]), *values[end:]]
    if len(values) != len(targets):
        values = [UNKNOWN] * len(targets)
    for target, each in zip(targets, values, strict=True):
        assign(m, target, each, env)


def _put(m: Machine, value: Value, key: Value, given: Value) -> None:
    value = inside(value)
    if isinstance(value, dict):
        if key is UNKNOWN or not is_key(key):
            value[MORE] = UNKNOWN
        else:
            value[key] = given
    elif isinstance(value, list):
        if isinstance(key, int) and -len(value) <= key < len(value):
            value[key] = given
        else:
            m.escape([value])
    elif isinstance(value, Tensor):
        value.by = ""
    else:
        attributes.put_key(m, value, key, given)


VALUES: dict[type, Callable[[Machine, Any, Env], Value]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.Set: _tuple,
    ast.Dict: _dict,
    ast.JoinedStr: _joined,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _either,
    ast.Compare: _compared,
    ast.IfExp: _chosen,
    ast.Subscript: _item,
    ast.Lambda: _lambda,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _table,
    ast.NamedExpr: _bound,
    ast.Yield: _yielded,
    ast.YieldFrom: _yielded_from,
    ast.Await: _awaited,
    ast.Starred: _starred,
}
