"""Statements, one after the other. Each gives back how its block goes on: nothing, or "break", "continue", "return"."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from flatline.events import SourceTick
from flatline.readers.rehearsal import classes, passes
from flatline.readers.rehearsal.calls import RESULT, call, entered, generated, gone_through, left
from flatline.readers.rehearsal.expressions import assign, evaluate, function
from flatline.readers.rehearsal.machine import MANY_TURNS, TURNS, Language, Loop, Machine, Raised, Stopped
from flatline.readers.rehearsal.values import (
    MORE,
    UNKNOWN,
    Bound,
    Env,
    Function,
    Generator,
    Made,
    Object,
    Partial,
    Tensor,
    Unknown,
    Value,
)
from flatline.readers.source._nodes import unparsed

Going = str  # how a block goes on


def block(m: Machine, body: Sequence[ast.stmt], env: Env) -> Going:
    """Statements in their order."""
    for node in body:
        m.spend()
        does = DOES.get(type(node))
        going = does(m, node, env) if does is not None else ""
        if going:
            return going
    return ""


def _expression(m: Machine, node: ast.Expr, env: Env) -> Going:
    evaluate(m, node.value, env)
    return ""


def _assign(m: Machine, node: ast.Assign, env: Env) -> Going:
    value = evaluate(m, node.value, env)
    if m.loops and isinstance(value, (int, float)) and _counts(node):
        value = UNKNOWN
    for target in node.targets:
        assign(m, target, value, env)
    return ""


def _counts(node: ast.Assign) -> bool:
    """``step = step + 1``: in a loop that is not gone through to its end this says nothing."""
    value = node.value
    return isinstance(value, ast.BinOp) and unparsed(node.targets[0]) in (unparsed(value.left), unparsed(value.right))


def _annotated(m: Machine, node: ast.AnnAssign, env: Env) -> Going:
    if node.value is not None:
        assign(m, node.target, evaluate(m, node.value, env), env)
    if env.of_class and isinstance(node.target, ast.Name):
        env.names.setdefault("<fields>", {})[node.target.id] = node.value is not None
    return ""


def _added(m: Machine, node: ast.AugAssign, env: Env) -> Going:
    before = evaluate(m, node.target, env)
    if isinstance(before, list) and isinstance(node.op, ast.Add):
        before += m.gathered(evaluate(m, node.value, env))  # in its place, whoever else holds it
        return ""
    both = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
    value = evaluate(m, both, env)
    assign(m, node.target, UNKNOWN if m.loops and isinstance(value, (int, float)) else value, env)
    return ""


def _return(m: Machine, node: ast.Return, env: Env) -> Going:
    env.names[RESULT] = evaluate(m, node.value, env) if node.value is not None else None
    return "return"


def _raise(m: Machine, node: ast.Raise, env: Env) -> Going:
    raise Raised


def _if(m: Machine, node: ast.If, env: Env) -> Going:
    value = evaluate(m, node.test, env)
    taken, sure = m.decide(value, node)
    if not sure and any(_gives_up(part) for part in (node.body, node.orelse)):
        taken = not _gives_up(node.body)
        return block(m, node.body if taken else node.orelse, env)
    m.unsure += not sure
    try:
        return block(m, node.body if taken else node.orelse, env)
    finally:
        m.unsure -= not sure


def _gives_up(body: Sequence[ast.stmt]) -> bool:
    """It raises, or ends the loop or the program, or gives nothing back: what comes behind is what is looked for."""
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return unparsed(last.value.func) in ("sys.exit", "exit", "quit")
    return isinstance(last, (ast.Raise, ast.Break)) or (isinstance(last, ast.Return) and last.value is None)


# --------------------------------------------------------------------------- loops


def _for(m: Machine, node: ast.For, env: Env) -> Going:
    over = evaluate(m, node.iter, env)
    loader, count = passes.loader_of(over), float(len(over)) if isinstance(over, range) else None
    loop = Loop(
        m.where(node, env),
        m.unsure,
        _serves(over),
        loader,
        bool(m.quiet),
        text=unparsed(node.iter),
        count=count,
        over_doers=_do(over),
    )
    m.loops.append(loop)
    going = ""

    def turn(value: Value) -> None:
        nonlocal going
        assign(m, node.target, value, env)
        going = block(m, node.body, env)
        _turned(m, loop)
        if going in ("break", "return"):
            raise Stopped(loop)

    try:
        each(m, over, turn)
    except Stopped as stopped:
        if stopped.loop is not loop:
            raise
    finally:
        m.loops.pop()
    _ended(m, loop)
    if going == "return":
        return going
    return block(m, node.orelse, env) if going != "break" else ""


def _while(m: Machine, node: ast.While, env: Env) -> Going:
    loop = Loop(m.where(node, env), m.unsure)
    m.loops.append(loop)
    going = ""
    try:
        for _ in range(TURNS):
            if m.truth(evaluate(m, node.test, env)) is False:
                break
            going = block(m, node.body, env)
            _turned(m, loop)
            if going in ("break", "return"):
                break
    finally:
        m.loops.pop()
    _ended(m, loop)
    return going if going == "return" else ""


def _do(over: Value) -> bool:
    """Hooks and other objects: what each of them does belongs to the loop around."""
    each = list(over.values()) if isinstance(over, dict) else list(over) if isinstance(over, (list, tuple)) else []
    return bool(each) and all(isinstance(one, (Bound, Function, Object, Partial)) for one in each)


def _serves(over: Value) -> bool:
    """What is gone through is data, no numbers."""
    return isinstance(over, (Made, Unknown, Tensor))


def each(m: Machine, over: Value, turn: Callable[[Value], Any]) -> None:
    """The turns over a value."""
    if isinstance(over, Object):
        over = gone_through(m, over)
    if isinstance(over, Generator):
        generated(m, over, turn)
        return
    for value in elements(over):
        turn(value)


def elements(over: Value) -> Iterator[Value]:
    """What a loop over a value goes through."""
    if isinstance(over, range):
        yield from over if len(over) <= TURNS else [UNKNOWN] * TURNS  # which of the turns these are is not said
    elif isinstance(over, dict) and MORE in over:
        yield from [UNKNOWN] * TURNS
    elif isinstance(over, (list, tuple, set, frozenset, dict, str)):
        yield from list(over)[:MANY_TURNS]
    elif isinstance(over, Made) and isinstance(over.parts, (list, dict)):
        yield from list(over.parts)
    elif isinstance(over, Made) and over.dotted == "zip":
        yield from _side_by_side(over)
    elif isinstance(over, Made) and over.dotted == "enumerate":
        values = list(elements(over.args[0]))
        known = isinstance(over.args[0], (list, tuple, dict, str)) or getattr(over.args[0], "parts", None) is not None
        yield from ((number if known else UNKNOWN, value) for number, value in enumerate(values))
    elif over is not None:
        yield from [UNKNOWN] * TURNS


def _side_by_side(over: Made) -> Iterator[Value]:
    rows = [list(elements(part)) for part in over.args]
    yield from zip(*rows, strict=False)


def _turned(m: Machine, loop: Loop) -> None:
    loop.turns.append(tuple(loop.now))
    loop.now = []


def _ended(m: Machine, loop: Loop) -> None:
    """What happened in a loop happened in a turn of the loop around it, too."""
    if loop.now:
        _turned(m, loop)
    if loop.over_doers:
        for around in m.loops[-1:]:
            around.now += [tick for ticks in loop.turns for tick in ticks]
        return
    if any(loop.turns):
        m.watcher.looped(loop)
    if loop.loader is not None:
        m.watcher.passes.over(m, loop, loop.loader)
    if m.loops:
        told: list[list[tuple[Any, ...]]] = []
        for ticks in loop.turns:
            short: list[tuple[Any, ...]] = [(t.kind, t.where, t.of) for t in ticks]
            if short not in told:
                told.append(short)
                m.loops[-1].now += [_deeper(tick) for tick in ticks]


def _deeper(tick: SourceTick) -> SourceTick:
    return replace(tick, depth=tick.depth + 1)


# --------------------------------------------------------------------------- the others


def _with(m: Machine, node: ast.With, env: Env) -> Going:
    return _within(m, node.items, node.body, env)


def _within(m: Machine, items: Sequence[ast.withitem], body: Sequence[ast.stmt], env: Env) -> Going:
    if not items:
        return block(m, body, env)
    item, going = items[0], ""
    manager = evaluate(m, item.context_expr, env)

    def inside(value: Value) -> None:
        nonlocal going
        if item.optional_vars is not None:
            assign(m, item.optional_vars, value, env)
        going = _within(m, items[1:], body, env)

    if isinstance(manager, Generator):
        generated(m, manager, inside)
        return going
    inside_of = entered(m, manager, item.context_expr, env)
    try:
        inside(inside_of)
    finally:
        left(m, manager, item.context_expr, env)
    return going


def _try(m: Machine, node: ast.Try, env: Env) -> Going:
    try:
        going = block(m, node.body, env)
    except Raised:
        if not node.handlers:
            raise
        going = block(m, node.handlers[0].body, env)
    else:
        going = going or block(m, node.orelse, env)
    return block(m, node.finalbody, env) or going


def _function(m: Machine, node: ast.FunctionDef, env: Env) -> Going:
    made = function(m, node, env)
    for head in reversed(node.decorator_list):
        made = classes.decorated(m, head, made, env)
    env.names[node.name] = made
    return ""


def _class(m: Machine, node: ast.ClassDef, env: Env) -> Going:
    inside = Env(env.module, env, scope=env.scope, of_class=True)
    block(m, node.body, inside)
    made: Value = classes.built(m, node, inside, env)
    for head in reversed(node.decorator_list):
        made = classes.decorated(m, head, made, env)
    env.names[node.name] = made
    return ""


def _import(m: Machine, node: ast.Import, env: Env) -> Going:
    for alias in node.names:
        name = alias.name if alias.asname else alias.name.partition(".")[0]
        env.names[alias.asname or name] = m.module(name, env)
    return ""


def _from(m: Machine, node: ast.ImportFrom, env: Env) -> Going:
    head = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name != "*":
            dotted = f"{head}{alias.name}" if head.endswith(".") else f"{head}.{alias.name}"
            env.names[alias.asname or alias.name] = m.imported(dotted, env)
    return ""


def _declared(m: Machine, node: ast.Global | ast.Nonlocal, env: Env) -> Going:
    for name in node.names:
        home = env.top if isinstance(node, ast.Global) else _home(name, env)
        env.declared[name] = home
    return ""


def _home(name: str, env: Env) -> Env:
    outer = env.outer
    while outer is not None and name not in outer.names:
        outer = outer.outer
    return outer or env


def _deleted(m: Machine, node: ast.Delete, env: Env) -> Going:
    for target in node.targets:
        if isinstance(target, ast.Name):
            env.names.pop(target.id, None)
        elif isinstance(target, ast.Subscript):
            m.escape([evaluate(m, target.value, env)])
    return ""


def _match(m: Machine, node: ast.Match, env: Env) -> Going:
    subject = evaluate(m, node.subject, env)
    for case in node.cases:
        pattern = case.pattern
        if isinstance(pattern, ast.MatchValue):
            value = evaluate(m, pattern.value, env)
            if not isinstance(subject, (str, int, float)) or value != subject:
                continue
        elif not (isinstance(pattern, ast.MatchAs) and pattern.pattern is None):
            continue
        return block(m, case.body, env)
    return ""


def _says(going: str) -> Callable[[Machine, ast.stmt, Env], Going]:
    return lambda m, node, env: going


DOES: dict[type, Callable[[Machine, Any, Env], Going]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _added,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Import: _import,
    ast.ImportFrom: _from,
    ast.Global: _declared,
    ast.Nonlocal: _declared,
    ast.Delete: _deleted,
    ast.Match: _match,
    ast.Break: _says("break"),
    ast.Continue: _says("continue"),
}
LANGUAGE = Language(block, evaluate, call, each)
