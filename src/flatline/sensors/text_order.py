"""A table with text for keys, sorted as text, 10 before 2, beside arrays that nothing has sorted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.events import Where
from flatline.sensors.sources import FUNCTIONS, called_name, own_nodes, tree_of, value_pairs

READERS = ("DictReader", "reader", "split", "splitlines", "rsplit", "partition", "findall", "finditer")
ORDERS = (
    "sort",
    "argsort",
    "sort_values",
    "sort_index",
    "groupby",
    "unique",
    "listdir",
    "glob",
    "iglob",
    "rglob",
    "iterdir",
)
NUMBERS = ("int", "float", "zfill", "rjust", "format")  # keys that are numbers, or that are of one length


def sorted_by_text(file: str) -> tuple[str, Where | None]:
    """The call that puts one of two arrays into the order of text; '' if there is none."""
    tree = tree_of(file)
    call = (sorted_as_text(tree) or _as_text_and_as_numbers(tree)) if tree is not None else None
    return (ast.unparse(call), Where(file, call.lineno)) if call is not None else ("", None)


def sorted_as_text(tree: ast.Module) -> ast.expr | None:
    """``sorted(rows)`` in ``[rows[k] for k in sorted(rows)]``; None where another order, or a key of one length, is about."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [called_name(call) for call in calls]
    if names.count("sorted") != 1 or any(name in (*ORDERS, "zfill", "rjust") for name in names) or _of_one_length(tree):
        return None
    for scope in (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *FUNCTIONS))):
        nodes = list(own_nodes(scope))
        for holder, call in _listed(nodes):
            table = _sorted_table(call)
            array = _name_of(holder, scope, tree)
            if table and array and _has_text_keys(table, nodes) and _beside_others(array, tree):
                return call
    return None


def _as_text_and_as_numbers(tree: ast.Module) -> ast.expr | None:
    """``rows.sort(key=lambda r: r["id"])`` of rows of text, beside others that are sorted with ``int(r["id"])``."""
    if _of_one_length(tree):
        return None
    scopes = [list(ast.walk(scope)) for scope in ast.walk(tree) if isinstance(scope, FUNCTIONS)]
    for nodes in scopes:
        words = {called_name(node) for node in nodes if isinstance(node, ast.Call)}
        for call, column in _sorts_by_column(nodes) if words & set(READERS) else ():
            if any(_sorts_numbers(others, column) for others in scopes if others is not nodes):
                return call
    return None


def _sorts_by_column(nodes: list[ast.AST]) -> Iterator[tuple[ast.Call, str]]:
    """Sorts whose key is a column as it was read: ``lambda r: r["id"]``, ``itemgetter("id")``."""
    for call in (node for node in nodes if isinstance(node, ast.Call) and called_name(node) in ("sort", "sorted")):
        for key in (each.value for each in call.keywords if each.arg == "key"):
            if isinstance(key, ast.Lambda) and isinstance(key.body, ast.Subscript):
                yield call, ast.unparse(key.body.slice)
            elif isinstance(key, ast.Call) and called_name(key) == "itemgetter" and len(key.args) == 1:
                yield call, ast.unparse(key.args[0])


def _sorts_numbers(nodes: list[ast.AST], column: str) -> bool:
    """Rows that come from text, too, and of which this column is made a number before they are sorted."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = {called_name(call) for call in calls}
    made = [arg for call in calls if called_name(call) in ("int", "float") for arg in call.args]
    numbers = any(isinstance(arg, ast.Subscript) and ast.unparse(arg.slice) == column for arg in made)
    return numbers and bool(names & {"sort", "sorted", "argsort"}) and bool(names & set(READERS))


def _of_one_length(tree: ast.Module) -> bool:
    """``f"{i:04d}"``, ``"%04d" % i``: such keys have the same order as text and as numbers."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return any((text.startswith("0") and text[1:2].isdigit()) or "%0" in text or ":0" in text for text in texts)


def _listed(nodes: list[ast.AST]) -> Iterator[tuple[ast.stmt, ast.Call]]:
    """Statements that make a list of, or return, what goes through ``sorted(...)``."""
    for holder in nodes:
        if isinstance(holder, (ast.Assign, ast.Return)) and holder.value is not None:
            for each in (n for n in ast.walk(holder.value) if isinstance(n, (ast.ListComp, ast.GeneratorExp))):
                source = each.generators[0].iter
                if isinstance(source, ast.Call) and called_name(source) == "sorted" and len(each.generators) == 1:
                    yield holder, source


def _sorted_table(call: ast.Call) -> str:
    """``rows`` of ``sorted(rows)``, ``sorted(rows.keys())`` and ``sorted(rows.items())``, without a key of its own."""
    if len(call.args) != 1 or call.keywords:
        return ""
    inner = call.args[0]
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in ("keys", "items"):
        inner = inner.func.value
    return ast.unparse(inner) if isinstance(inner, (ast.Name, ast.Attribute)) else ""


def _has_text_keys(table: str, nodes: list[ast.AST]) -> bool:
    """It is filled row by row from a file of text, and its keys are no numbers; or JSON wrote them."""
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        if ast.unparse(target) == table and isinstance(node.value, ast.DictComp):
            return _as_read(node.value.key, node.value.generators[0].iter, nodes)
        if ast.unparse(target) == table and isinstance(node.value, ast.Call):
            return ast.unparse(node.value.func) in ("json.load", "json.loads")
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) == table:
            loops = [n for n in nodes if isinstance(n, ast.For) and node in ast.walk(n)]
            return any(_as_read(target.slice, loop.iter, nodes) for loop in loops)
    return False


def _as_read(key: ast.expr, source: ast.expr, nodes: list[ast.AST]) -> bool:
    """A part of a row of text: a column, or a name for it."""
    words = {called_name(n) for n in ast.walk(source) if isinstance(n, ast.Call)}
    for made in (n for n in nodes if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == ast.unparse(source)):
        words |= {called_name(n) for n in ast.walk(made.value) if isinstance(n, ast.Call)}
    calls = {called_name(n) for n in ast.walk(key) if isinstance(n, ast.Call)}
    plain = isinstance(key, (ast.Subscript, ast.Name)) and not calls & set(NUMBERS)
    return plain and bool(words & set(READERS)) and not words & {"map", "enumerate"}


def _name_of(holder: ast.stmt, scope: ast.AST, tree: ast.Module) -> str:
    """The name of the list, or that of what a function with it returns."""
    if isinstance(holder, ast.Assign):
        target = ast.unparse(holder.targets[0])
        returned = [n.value for n in own_nodes(scope) if isinstance(n, ast.Return) and n.value is not None]
        if not any(ast.unparse(value) == target for value in returned):
            return target
    function = getattr(scope, "name", "")
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
    named = [ast.unparse(n.targets[0]) for n in made if function and called_name(n.value) == function]  # type: ignore[arg-type]
    return named[0] if len(named) == 1 else ""


def _beside_others(array: str, tree: ast.Module) -> bool:
    """It is handed on, whole or in part, with an array that was not made from it, by a call or as ``x[i], y[i]``."""
    own = {array}
    for made in (n for n in ast.walk(tree) if isinstance(n, ast.Assign)):
        for target, value in (pair for each in made.targets for pair in value_pairs(each, made.value)):
            if value is not None and any(ast.unparse(inner) in own for inner in ast.walk(value)):
                own.add(ast.unparse(target))
    for node in ast.walk(tree):
        sides = node.args if isinstance(node, ast.Call) and called_name(node) != "print" else getattr(node, "elts", [])
        stems = [ast.unparse(_stem(each)) for each in sides]
        others = [stem for stem in stems if stem not in own and stem.replace(".", "").isidentifier()]
        if others and own & set(stems):
            return True
    return False


def _stem(node: ast.expr) -> ast.expr:
    """``y`` of ``y[i]``, ``torch.tensor(y)`` and ``y.float()``."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and len(node.args) == 1:
            node = node.args[0]
        elif isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return node
