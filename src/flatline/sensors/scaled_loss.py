"""A loss times the scale of GradScaler whose number is read: in the function that scales it, or in one that it returns to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flatline.events import Where
from flatline.sensors.sources import called_name, function_around, own_nodes, tree_of

SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)
DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
UNDOING = ("get_scale", "inv_scale", "_scale")
NUMBERS = frozenset({"item", "float"})  # calls that make a number of a tensor
THROUGH = (*NUMBERS, "detach", "cpu", "round", "str", "format", "dict")  # the scale is in what they return, too


class Thing(NamedTuple):
    """What carries the scale, as the source spells it."""

    text: str
    number: bool = False  # no longer a tensor
    own: bool = False  # a call within the very statement


def scaled_loss_read(where: Where | None, callers: Sequence[Where] = ()) -> tuple[str, Where | None]:
    """The statement that reads a number from ``scaled = scaler.scale(loss)``, which stands at ``where``."""
    scope = function_around(where.file, where.line) if where else None
    if scope is None or where is None:
        return "", None
    scaling = next((node for node in statements(scope) if _scales(node, where.line)), None)
    if scaling is None:
        return "", None
    name = next(n.id for n in ast.walk(scaling) if isinstance(n, ast.Name))
    return _followed([Thing(name)], scaling, [where, *callers])


def _followed(things: list[Thing], made: ast.stmt, ways: Sequence[Where]) -> tuple[str, Where | None]:
    """Where one of them is read, in the innermost of these functions or where that returns it to."""
    where, *above = ways
    scope = function_around(where.file, where.line)
    if scope is None:
        return "", None
    for thing in things:
        read = next((node for node in _later(scope, thing, made) if _tells(node, thing, where.file)), None)
        if read is not None:
            return ast.unparse(read), Where(where.file, read.lineno, where.function)
    outer = function_around(above[0].file, above[0].line) if above else None
    if outer is None or _undoes(scope, where.file) or _undoes(outer, above[0].file):
        return "", None
    returned = [pair for thing in things for node in _later(scope, thing, made) for pair in _returned(node, thing)]
    call = next((node for node in statements(outer) if _covers(node, above[0].line)), None)
    received = list(_received(call, where.function, returned)) if call is not None else []
    return _followed(received, call, above) if call is not None and received else ("", None)


def statements(scope: ast.AST) -> list[ast.stmt]:
    """Simple ones of its own, in order."""
    found = [node for node in own_nodes(scope) if isinstance(node, SIMPLE)]
    return sorted(found, key=lambda node: node.lineno)


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _mentions_scale(node: ast.AST) -> bool:
    return any(getattr(n, "attr", "") in UNDOING for n in ast.walk(node))


def _undoes(scope: ast.AST, file: str) -> bool:
    """Somebody reckons with the scale, or keeps it; who only prints it does not."""
    tree = tree_of(file)
    reckons = any(isinstance(n, ast.BinOp) and _mentions_scale(n) for n in (ast.walk(tree) if tree else ()))
    return reckons or any(_mentions_scale(node) for node in statements(scope) if not isinstance(node, ast.Expr))


def _scales(node: ast.stmt, line: int) -> bool:
    """``name = scaler.scale(loss)`` on this line."""
    if not isinstance(node, ast.Assign) or not _covers(node, line) or not isinstance(node.value, ast.Call):
        return False
    method = node.value.func.attr if isinstance(node.value.func, ast.Attribute) else ""
    return method == "scale" and isinstance(node.targets[0], ast.Name)


def later_statements(scope: ast.AST, name: str, made: ast.stmt) -> Iterator[ast.stmt]:
    """Those behind the one that made a name, while it stands for the same."""
    return _later(scope, Thing(name), made)


def _later(scope: ast.AST, thing: Thing, made: ast.stmt) -> Iterator[ast.stmt]:
    """The statements behind the one that made it, until it is something else."""
    for node in statements(scope):
        if node.lineno < made.lineno + (not thing.own) or _apart(scope, made, node):
            continue
        yield node
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [ast.unparse(target) for target in targets if target is not None]
        if any(thing.text == name or thing.text.startswith((f"{name}.", f"{name}[")) for name in names):
            return


def _apart(scope: ast.AST, one: ast.stmt, other: ast.stmt) -> bool:
    """They stand in the two branches of one ``if``."""
    branches = [node for node in ast.walk(scope) if isinstance(node, ast.If)]
    return any(_within(one, node.body) and _within(other, node.orelse) for node in branches)


def _within(node: ast.stmt, block: list[ast.stmt]) -> bool:
    return any(node is inner for statement in block for inner in ast.walk(statement))


# --------------------------------------------------------------------------- read


def _tells(node: ast.stmt, thing: Thing, file: str) -> bool:
    if isinstance(node, ast.Return) or _mentions_scale(node) or (thing.number and "inv" in ast.unparse(node)):
        return False
    return _kept(node, thing.text, file) if thing.number else _reads(node, thing.text)


def _reads(node: ast.stmt, text: str) -> bool:
    """``name.item()``, ``float(name)`` or ``f"{name:.4f}"``, and nothing in the statement that divides."""
    inside = list(ast.walk(node))
    calls = [n for n in inside if isinstance(n, ast.Call)]
    if any(isinstance(n, ast.Div) for n in inside):
        return False
    asked = [c.func.value for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "item"]
    item = any(
        all(called_name(n) == "detach" for n in path if isinstance(n, ast.Call))
        for each in asked
        for path in paths(each, text)
    )
    shown = any(isinstance(n, ast.FormattedValue) and ast.unparse(n.value) == text for n in inside)
    return (
        item
        or shown
        or any(getattr(c.func, "id", "") == "float" and bool(c.args) and ast.unparse(c.args[0]) == text for c in calls)
    )


def _kept(node: ast.stmt, text: str, file: str) -> bool:
    """A number that is added up, stored in a table, or handed to a call that stands alone: to print, to append."""
    if isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Subscript):
        return False
    sink = node.value if isinstance(node, ast.Expr) else None
    if sink is not None and (not isinstance(sink, ast.Call) or _knows_the_scale(called_name(sink), file)):
        return False
    for path in paths(node.value, text) if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)) else ():
        calls = [called_name(n) for n in path if isinstance(n, ast.Call) and n is not sink]
        divided = any(isinstance(getattr(n, "op", None), DIVISIONS) or isinstance(n, ast.Compare) for n in path)
        if all(name in THROUGH for name in calls) and not divided:
            return True
    return False


def _knows_the_scale(name: str, file: str) -> bool:
    """A function of the file that may divide by it."""
    tree = tree_of(file)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name] if tree else []
    return any("scale" in ast.unparse(function) for function in functions)


def paths(node: ast.AST, text: str, above: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.AST, ...]]:
    """What stands around each place that is spelt so, from the outside in."""
    if isinstance(node, ast.expr) and ast.unparse(node) == text:
        yield above
        return
    for child in ast.iter_child_nodes(node):
        yield from paths(child, text, (*above, node))


# --------------------------------------------------------------------------- returned, and received


def _returned(node: ast.stmt, thing: Thing) -> Iterator[tuple[str, bool]]:
    """(which part of what is returned, is it a number) of a return that hands it on."""
    value = node.value if isinstance(node, ast.Return) else None
    for part, each in _parts(value) if value is not None else ():
        path = next(paths(each, thing.text), None)
        calls = [called_name(n) if isinstance(n, ast.Call) else "" for n in path or ()]
        if path is not None and all(
            name in THROUGH or isinstance(n, ast.Attribute) for name, n in zip(calls, path, strict=True)
        ):
            yield part, thing.number or not NUMBERS.isdisjoint(calls)


def _parts(value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """A value, the elements of a tuple, the entries of a dictionary, the fields of a record."""
    yield "", value
    if isinstance(value, ast.Tuple):
        yield from ((f"[{place}]", each) for place, each in enumerate(value.elts))
    elif isinstance(value, ast.Dict):
        keyed = zip(value.keys, value.values, strict=True)
        yield from ((f"[{ast.unparse(key)}]", each) for key, each in keyed if isinstance(key, ast.Constant))
    elif isinstance(value, ast.Call) and called_name(value)[:1].isupper():
        yield from ((f".{each.arg}", each.value) for each in value.keywords)


def _received(call: ast.stmt, function: str, returned: list[tuple[str, bool]]) -> Iterator[Thing]:
    """What a statement that calls a function holds of what it returned."""
    calls = [n for n in ast.walk(call) if isinstance(n, ast.Call) and called_name(n) == function]
    target = call.targets[0] if isinstance(call, ast.Assign) else None
    for part, number in returned if len(calls) == 1 else ():
        if target is None or not isinstance(call, ast.Assign) or call.value is not calls[0]:
            yield Thing(ast.unparse(calls[0]) + part, number, own=True)
        elif isinstance(target, ast.Tuple):
            named = {f"[{place}]": each for place, each in enumerate(target.elts)}
            yield from (Thing(ast.unparse(named[each]), number) for each in (part,) if each in named)
        else:
            yield Thing(ast.unparse(target) + part, number)
