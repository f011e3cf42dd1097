"""Means of batches that are added up and divided by the number of samples, where a stop is decided by the result."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from flatline.events import Where
from flatline.sensors.scaled_loss import THROUGH, paths
from flatline.sensors.sources import (
    backward_name,
    called_name,
    function_around,
    given_names,
    option_names,
    own_nodes,
    parameter_names,
    tree_of,
    value_pairs,
)

STOPPING = ("exit", "_exit")


class Stopped(NamedTuple):
    """``running / len(loader.dataset)``, and the condition that asks how low it is, or by how much it came down."""

    division: str
    condition: str
    level: float
    where: Where | None
    margin: float = 0.0  # what an improvement has to be, in the place of a level


class Summed(NamedTuple):
    """A loop that adds up the numbers of a loss, as the source spells it."""

    scope: ast.AST
    loop: ast.For
    spelt: list[str]


NOTHING = Stopped("", "", 0.0, None)


def stop_by_samples(where: Where | None) -> Stopped:
    """For the backward at ``where``: the division, and the ``if`` that ends the training by it."""
    tree = tree_of(where.file) if where is not None else None
    if tree is None or where is None:
        return NOTHING
    for summed in _loops(tree, where):
        for division, told in _divisions(summed, tree):
            names = _results(summed.scope, tree, division)
            found = _stop(tree, names, division) or _margin(tree, names)
            if found is not None:
                function = getattr(summed.scope, "name", where.function)
                return found._replace(division=ast.unparse(told), where=Where(where.file, told.lineno, function))
    return NOTHING


def _divisions(summed: Summed, tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | ast.stmt]]:
    """(the mean that is used, the division by samples that is one too many)."""
    for kept in _sums(summed):
        division = _division(summed.scope, tree, summed.loop, kept)
        if division is not None:
            yield division, division
    for kept, added in _shares(summed, tree):
        divided = [n for n in own_nodes(summed.scope) if _divides(n, kept)]
        if len(divided) == 1 and isinstance(divided[0], ast.BinOp) and not _multiplied(summed.scope, divided[0]):
            yield divided[0], added


def _shares(summed: Summed, tree: ast.AST) -> Iterator[tuple[str, ast.AugAssign]]:
    """``running += loss.item() / len(x)``, where the loss is divided by nothing else and the sum gets nothing else."""
    added = [n for n in ast.walk(summed.loop) if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)]
    for node in added:
        kept, value = ast.unparse(node.target), node.value
        once = sum(ast.unparse(each.target) == kept for each in added) == 1
        if not once or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Div):
            continue
        number = any(_is_number(path) for name in summed.spelt for path in paths(value.left, name))
        if number and _is_batch_size(value.right, summed.loop, tree):
            yield kept, node


def _is_batch_size(node: ast.expr, loop: ast.For, tree: ast.AST) -> bool:
    """``len(x)`` of what the loop takes from its loader; the name that a loader is given its batch size by."""
    taken = {ast.unparse(n) for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    if _is_size(node):
        return any(isinstance(n, ast.Name) and n.id in taken for n in ast.walk(node))
    given = [k.value for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "batch_size"]
    return isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in map(ast.unparse, given)


def _multiplied(scope: ast.AST, node: ast.AST) -> bool:
    """It is part of another calculation."""
    around = [n for n in ast.walk(scope) if isinstance(n, ast.BinOp) and n is not node]
    return any(inner is node for each in around for inner in ast.walk(each))


def _loops(tree: ast.Module, where: Where) -> Iterator[Summed]:
    """That of the training, and those of other functions that call the same loss."""
    scope = function_around(where.file, where.line)
    name = backward_name(scope, where.line) if scope is not None else ""
    if scope is None or not name:
        return
    around = [n for n in own_nodes(scope) if isinstance(n, ast.For) and n.lineno < where.line <= (n.end_lineno or 0)]
    loop = max(around, key=lambda n: n.lineno, default=None)
    if loop is not None and all(map(_is_one_call, _values_given(scope, name))):
        yield Summed(scope, loop, [name])
    if any(_sums_or_keeps(n) for n in ast.walk(tree)):
        return  # what one function is given for a loss may be a mean, and what another one is given a sum
    losses = {ast.unparse(call.func) for call in _calls_given(scope, name)}
    for other in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n is not scope):
        for inner in (n for n in own_nodes(other) if isinstance(n, ast.For)):
            spelt = list(_spelt(inner, losses))
            if spelt:
                yield Summed(other, inner, spelt)


def _values_given(scope: ast.AST, name: str) -> Iterator[ast.expr]:
    """All that the loss is made of; what is added to it, too."""
    for node in own_nodes(scope):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        if any(ast.unparse(target) == name for target in targets):
            yield node.value  # type: ignore[attr-defined]


def _is_one_call(value: ast.expr) -> bool:
    """``criterion(model(x), y)``, or a part of it: what is seen of the loss function holds for the whole."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        return _is_one_call(value.left)
    return not isinstance(value, ast.BinOp) and (not isinstance(value, ast.Call) or called_name(value) != "sum")


def _sums_or_keeps(node: ast.AST) -> bool:
    """``reduction="sum"``, or anything else that may be no mean."""
    if not isinstance(node, ast.keyword) or node.arg != "reduction":
        return False
    return not (isinstance(node.value, ast.Constant) and node.value.value == "mean")


def _calls_given(scope: ast.AST, name: str) -> Iterator[ast.Call]:
    """``criterion(model(x), y)`` of ``loss = criterion(model(x), y)``."""
    for node in (n for n in own_nodes(scope) if isinstance(n, ast.Assign)):
        if isinstance(node.value, ast.Call) and ast.unparse(node.targets[0]) == name:
            yield node.value


def _spelt(loop: ast.For, losses: set[str]) -> Iterator[str]:
    """The calls of these losses in a loop, and the names that are given one."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in losses:
            yield ast.unparse(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func) in losses:
                yield ast.unparse(node.targets[0])


def _sums(summed: Summed) -> list[str]:
    """``running`` of ``running += loss.item()``; nothing that is set within the loop, or weighted with the samples."""
    loop = summed.loop
    added = [n for n in ast.walk(loop) if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)]
    sums = [
        ast.unparse(n.target)
        for n in added
        if any(_is_number(path) for name in summed.spelt for path in paths(n.value, name))
    ]
    set_again = {ast.unparse(t) for n in ast.walk(loop) if isinstance(n, ast.Assign) for t in n.targets}
    return [each for each in sums if each not in set_again and sum(ast.unparse(n.target) == each for n in added) == 1]


def _is_number(around: tuple[ast.AST, ...]) -> bool:
    """``loss.item()``, ``float(loss.detach())``: nothing reckons."""
    calls = [called_name(each) for each in around if isinstance(each, ast.Call)]
    reckons = any(isinstance(each, (ast.BinOp, ast.IfExp, ast.Subscript)) for each in around)
    return not reckons and all(each in THROUGH for each in calls)


def _division(scope: ast.AST, tree: ast.AST, loop: ast.For, kept: str) -> ast.expr | None:
    """The one place where the sum is divided, by the number of samples; nothing that is multiplied again."""
    outside = [n for n in ast.walk(scope) if not any(n is inner for inner in ast.walk(loop))]
    divided = [n for n in outside if _divides(n, kept)]
    samples = _sample_counts(scope, tree, loop)
    if len(divided) != 1 or ast.unparse(_divisor(divided[0])) not in samples:
        return None
    node = divided[0]
    return node if isinstance(node, ast.expr) and not _multiplied(scope, node) else None


def _divides(node: ast.AST, kept: str) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and ast.unparse(node.left) == kept


def _divisor(node: ast.AST) -> ast.expr:
    return node.right if isinstance(node, ast.BinOp) else ast.Constant(None)


def _sample_counts(scope: ast.AST, tree: ast.AST, loop: ast.For) -> set[str]:
    """How the source may spell the number of samples that the loop goes through."""
    sources = {ast.unparse(n) for n in ast.walk(loop.iter) if isinstance(n, (ast.Name, ast.Attribute))}
    known = {f"len({each}.dataset)" for each in sources}
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
    for each in made:
        call: ast.Call = each.value  # type: ignore[assignment]
        if called_name(call) == "DataLoader" and call.args and sources & set(map(ast.unparse, each.targets)):
            known.add(f"len({ast.unparse(call.args[0])})")
    counted = [n for n in ast.walk(loop) if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)]
    known |= {ast.unparse(n.target) for n in counted if _is_size(n.value)}
    named = {ast.unparse(n.targets[0]) for n in own_nodes(scope) if isinstance(n, ast.Assign)} - known
    return known | {each for each in named if {_text(value) for value in _given(each, scope)} <= known}


def _is_size(node: ast.expr) -> bool:
    """``len(x)``, ``x.size(0)``, ``x.shape[0]``."""
    text = ast.unparse(node)
    return text.endswith((".size(0)", ".shape[0]")) or (isinstance(node, ast.Call) and called_name(node) == "len")


def _results(scope: ast.AST, tree: ast.AST, division: ast.expr) -> set[str]:
    """Names that hold nothing but the quotient, in this function and in those that it is returned to."""
    names = {ast.unparse(n.targets[0]) for n in own_nodes(scope) if isinstance(n, ast.Assign) and n.value is division}
    function = getattr(scope, "name", "")
    for returned in (n.value for n in own_nodes(scope) if isinstance(n, ast.Return) and n.value is not None):
        parts = returned.elts if isinstance(returned, ast.Tuple) else [returned]
        places = [at for at, part in enumerate(parts) if part is division or ast.unparse(part) in names]
        whole = not isinstance(returned, ast.Tuple)
        names |= {name for at in places for name in _received(tree, function, None if whole else at)}
    return {each for each in names if not _reckoned(tree, each) and not _is_other(tree, each, division, function)}


def _is_other(tree: ast.AST, name: str, division: ast.expr, function: str) -> bool:
    """Somewhere the name is given something else."""
    plain = [each for each in _given(name, tree) if each is not division]
    return any(not isinstance(each, ast.Call) or called_name(each) != function for each in plain)


def _received(tree: ast.AST, function: str, place: int | None) -> Iterator[str]:
    """What the result of a function is assigned to."""
    for made in (n for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)):
        target = made.targets[0]
        if not function or called_name(made.value) != function:  # type: ignore[arg-type]
            continue
        if place is None:
            yield ast.unparse(target)
        elif isinstance(target, ast.Tuple) and place < len(target.elts):
            yield ast.unparse(target.elts[place])


def _reckoned(tree: ast.AST, name: str) -> bool:
    """It is multiplied again: ``epoch_loss *= batch_size``."""
    scaled = [n for n in ast.walk(tree) if isinstance(n, (ast.BinOp, ast.AugAssign)) and isinstance(n.op, ast.Mult)]
    return any(isinstance(n, ast.expr) and ast.unparse(n) == name for each in scaled for n in ast.walk(each))


def _stop(tree: ast.AST, names: set[str], division: ast.expr) -> Stopped | None:
    """``if epoch_loss < TARGET: break``, of a level that does not come from these losses themselves."""
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.If)):
        ends = any(_ends(inner) for statement in node.body for inner in ast.walk(statement))
        compares = [n for n in ast.walk(node.test) if isinstance(n, ast.Compare)]
        levels = [level for each in compares if (level := _level_asked(each, names, division, tree)) > 0]
        if ends and len(levels) == 1:
            return Stopped("", ast.unparse(node.test), levels[0], None)
    return None


def _ends(node: ast.AST) -> bool:
    return isinstance(node, (ast.Break, ast.Return)) or (isinstance(node, ast.Call) and called_name(node) in STOPPING)


def _level_asked(node: ast.Compare, names: set[str], division: ast.expr, tree: ast.AST) -> float:
    """That below which the quotient has to be, where the source tells it as a number; else 0."""
    if len(node.comparators) != 1:
        return 0.0
    low, high = (node.left, node.comparators[0])
    if isinstance(node.ops[0], (ast.Gt, ast.GtE)):
        low, high = high, low
    elif not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
        return 0.0
    return _level(high, tree) if low is division or ast.unparse(low) in names else 0.0


def _level(node: ast.expr, tree: ast.AST) -> float:
    """A constant; a name, or a setting, that is given one and nothing else."""
    given = [node] if isinstance(node, ast.Constant) else list(_given(ast.unparse(node), tree))
    value = given[0].value if len(given) == 1 and isinstance(given[0], ast.Constant) else None
    return float(value) if isinstance(value, (int, float)) else 0.0


def _given(name: str, tree: ast.AST) -> Iterator[ast.expr | None]:
    """All that a name, an attribute or an option of the command line of this name is given; None for what is not known."""
    last = name.rpartition(".")[2]
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            pairs = [pair for each in targets for pair in _value_pairs(each, node.value)]
            yield from (value for target, value in pairs if _text(target).rpartition(".")[2] == last)
        elif isinstance(node, (ast.For, ast.AugAssign, ast.NamedExpr, ast.comprehension)):
            yield from (None for n in ast.walk(node.target) if _text(n).rpartition(".")[2] == last)
        elif isinstance(node, ast.Call) and called_name(node) == "add_argument" and last in option_names(node):
            yield next((each.value for each in node.keywords if each.arg == "default"), None)
        elif isinstance(node, ast.Call):
            yield from (each.value for each in node.keywords if each.arg == last)


def _value_pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """``a, b = f()`` gives both of them what a call returns."""
    for one, given in value_pairs(target, value):
        parts = one.elts if isinstance(one, ast.Tuple) else [one]
        yield from ((part, given) for part in parts)


def _text(node: ast.AST | None) -> str:
    return ast.unparse(node) if node is not None else ""


# --------------------------------------------------------------------------- by how much it has to come down


def _margin(tree: ast.AST, names: set[str]) -> Stopped | None:
    """``if val_loss < best - 0.001:``, in line or in a function that is given it."""
    scopes: list[tuple[ast.AST, set[str]]] = [(tree, names)]
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        scopes += [(function, {name}) for function, name in _taken(tree, call, names)]
    for scope, known in scopes:
        for node in (n for n in ast.walk(scope) if isinstance(n, ast.Compare)):
            margin = _margin_asked(node, known, tree)
            if margin > 0:
                return Stopped("", ast.unparse(node), 0.0, None, margin)
    return None


def _taken(tree: ast.AST, call: ast.Call, names: set[str]) -> Iterator[tuple[ast.FunctionDef, str]]:
    """The functions that a call by this name may mean, and what they call the argument."""
    places = [at for at, each in enumerate(call.args) if ast.unparse(each) in names]
    keywords = [each.arg for each in call.keywords if ast.unparse(each.value) in names]
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and places + keywords):
        parameters = given_names(node)
        if node.name in (called_name(call), "__call__"):
            yield from ((node, parameters[at]) for at in places if at < len(parameters))
            yield from ((node, each) for each in keywords if each in parameters)


def _margin_asked(node: ast.Compare, names: set[str], tree: ast.AST) -> float:
    """The constant of ``value < best - margin`` and ``best - value > margin``; 0 for anything else."""
    if len(node.comparators) != 1 or not isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return 0.0
    terms = [*_terms(node.left), *_terms(node.comparators[0])]
    others = [each for each in terms if ast.unparse(each) not in names]
    levels = [_default(each, tree) for each in others]
    known = [level for level in levels if level > 0]
    return known[0] if len(terms) == 3 and len(others) == 2 and len(known) == 1 else 0.0


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from (*_terms(node.left), *_terms(node.right))
    else:
        yield node


def _default(node: ast.expr, tree: ast.AST) -> float:
    """A constant, or the one that a name is given anywhere: in a call, or else as what a parameter has by itself."""
    if isinstance(node, ast.Constant):
        return _level(node, tree)
    last = ast.unparse(node).rpartition(".")[2]
    given = [each for each in (*_given(last, tree), *_by_place(last, tree)) if _text(each) != last]
    given = given or list(_defaults(last, tree))
    values = {each.value if isinstance(each, ast.Constant) else None for each in given}
    value = values.pop() if len(values) == 1 else None
    return float(value) if isinstance(value, (int, float)) else 0.0


def _functions(tree: ast.AST, parameter: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Those that take a parameter, by what they are called by: a class by its own name."""
    classes = {id(f): n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef) for f in n.body}
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        if parameter in given_names(node):
            yield (classes.get(id(node), node.name) if node.name == "__init__" else node.name), node


def _by_place(parameter: str, tree: ast.AST) -> Iterator[ast.expr]:
    """``EarlyStopping(5, 1e-3)``."""
    for name, function in _functions(tree, parameter):
        at = given_names(function).index(parameter)
        calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and called_name(n) == name)
        yield from (call.args[at] for call in calls if len(call.args) > at)


def _defaults(parameter: str, tree: ast.AST) -> Iterator[ast.expr]:
    for _, function in _functions(tree, parameter):
        pairs = dict(zip(reversed(parameter_names(function)), reversed(function.args.defaults), strict=False))
        yield from (pairs[parameter],) if parameter in pairs else ()
