"""Results with their graphs in what outlives the turn: a loss that a function returns, and the outputs of the model."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument
from flatline.readers.source._edits import after, detached
from flatline.readers.source._kept import emptied, keeping, kept_by, outlives
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._put_right import entry_put_right
from flatline.readers.source._records import fields, parts
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, spelled
from flatline.readers.source._seen import Seen, seen_in, trained_models


def outliving(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a statement that keeps."""
    if ".backward(" not in module.whole:
        return
    trained = {t.identity() for scope in module.scopes for t in trained_models(project, scope)}
    for scope in module.scopes:
        yield from _losses(seen_in(project, scope))
        yield from _collected(seen_in(project, scope))
        yield from _outputs(seen_in(project, scope), trained)


def _losses(seen: Seen) -> Iterator[SourceFact]:
    """``meter.update(loss)``, where a function sent the loss backward and returned it."""
    for use in seen.scope.statements:
        keeper, value, inside = keeping(seen, use)
        loop = seen.loop_of(use)
        if value is None or (loop is None and not seen.called_again) or seen.without_grad(use):
            continue
        for part in _parts(value):
            if not (has_graph(seen, part, use) or _is_handed_back(seen, part, use)):
                continue
            if keeper in seen.flowing(name for name, _, _ in seen.backwards()):
                continue
            if entry_put_right(seen.project, part, use):
                continue
            if (inside or outlives(seen, keeper, use)) and not emptied(seen, keeper, use):
                name = spelled(part)
                edit = detached(value, name) if isinstance(part, ast.Name) else after(part, ".detach()")
                edit = edit if _is_tensor(seen, part, use) else None
                yield seen.fact("kept", use.statement, name=name, text=keeper, edit=edit)


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    """Names and calls whose tensor it is, or arithmetic with them."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Div, ast.Add)):
        yield from _parts(value.left)
        yield from _parts(value.right)
    elif isinstance(value, (ast.Tuple, ast.List)):
        for element in value.elts:
            yield from _parts(element)
    elif isinstance(value, (ast.Name, ast.Call, ast.Subscript, ast.Attribute)):
        yield value


def has_graph(seen: Seen, node: ast.expr, use: Use) -> bool:
    """It is what a function of the project returns after its backward, in this turn."""
    function, index = _returned_by(seen, node, use)
    return function is not None and _returns_graph(seen.project, function, index)


def _returned_by(seen: Seen, node: ast.expr, use: Use) -> tuple[Scope | None, tuple[object, ...]]:
    """The function that returned it in this turn, and which part of the result it is."""
    index: tuple[object, ...] = ()
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        index = (node.slice.value,)
        node = node.value
    elif isinstance(node, ast.Attribute):
        index, node = (node.attr,), node.value
    if isinstance(node, ast.Name):
        found = seen.scope.reaching(node.id, use) if node.id in seen.scope.bindings else []
        if len(found) != 1 or found[0].value is None or seen.freed(node.id) or seen.without_grad(found[0].use):
            return None, ()
        if not seen.same_turn(found[0].use, use):
            return None, ()
        node, use, index = found[0].value, found[0].use, (*found[0].index, *index)
    function = seen.project.callee(node, use) if isinstance(node, ast.Call) else None
    return (function, index) if function is not seen.scope else (None, ())


def _is_tensor(seen: Seen, node: ast.expr, use: Use) -> bool:
    """No record or table that has the loss in it."""
    function, index = _returned_by(seen, node, use)
    return function is None or bool(index) or all(isinstance(value, ast.Name) for value, _ in function.returns)


def _is_handed_back(seen: Seen, node: ast.expr, use: Use) -> bool:
    """``self.optimise(losses)`` in this turn, where that sends the loss, or one of the losses, backward as it is."""
    whole = node.value if isinstance(node, ast.Subscript) else node
    if not isinstance(whole, ast.Name) or seen.freed(whole.id) or whole.id not in seen.scope.bindings:
        return False
    if seen.project.written_to(whole, use):
        return False
    for call, place in seen.scope.calls:
        if place is use or not seen.same_turn(place, use):
            continue
        given = [unparsed(each) for each in (*call.args, *(k.value for k in call.keywords))]
        if not {whole.id, unparsed(node)} & {*given}:
            continue
        if seen.scope.reaching(whole.id, place) != seen.scope.reaching(whole.id, use):
            continue
        function = seen.project.callee(call, place)
        parts = _sent_back_of(seen, call, function) if function is not None and function is not seen.scope else ()
        if any(part == unparsed(node) or (node is whole and part.startswith(f"{whole.id}[")) for part in parts):
            return True
    return False


def _sent_back_of(seen: Seen, call: ast.Call, function: Scope) -> Iterator[str]:
    """What a call gives to be sent backward, as the call spells it: ``losses["total"]``."""
    inner = seen_in(seen.project, function)
    for _, receiver, use in inner.methods("backward"):
        scaled = (
            isinstance(receiver, ast.Call) and spelled(receiver.func).endswith(".scale") and len(receiver.args) == 1
        )
        sent = receiver.args[0] if scaled and isinstance(receiver, ast.Call) else receiver
        held = sent.value if isinstance(sent, ast.Subscript) else sent
        plain = isinstance(held, ast.Name) and held.id in function.params and not inner.freed(held.id)
        if not plain or not isinstance(held, ast.Name) or any(not b.parameter for b in function.bindings[held.id]):
            continue
        given = argument(call, function, held.id)
        if given is not None and not seen.project.written_to(held, use):
            yield unparsed(given) + unparsed(sent)[len(held.id) :]


def _collected(seen: Seen) -> Iterator[SourceFact]:
    """``losses = [step(batch) for batch in loader]``, where the function sent the loss backward and returned it."""
    for use in seen.scope.statements:
        node = use.statement.value if isinstance(use.statement, ast.Assign) else None
        target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
        if not isinstance(node, ast.ListComp) or not isinstance(target, ast.Name) or seen.without_grad(use):
            continue
        function = seen.project.callee(node.elt, use) if isinstance(node.elt, ast.Call) else None
        if function is None or function is seen.scope or not _returns_graph(seen.project, function, ()):
            continue
        edit = after(node.elt, ".detach()") if all(isinstance(v, ast.Name) for v, _ in function.returns) else None
        yield seen.fact("kept", use.statement, name=spelled(node.elt), text=target.id, edit=edit)


def _returns_graph(project: Project, function: Scope, index: tuple[object, ...]) -> bool:
    """Every result is the very name whose backward was called, or has it in it."""
    seen = seen_in(project, function)
    wrapped = isinstance(function.node, ast.Module) or bool(function.node.decorator_list)
    return (
        not wrapped and bool(function.returns) and all(_is_sent_back(seen, *each, index) for each in function.returns)
    )


def _is_sent_back(seen: Seen, value: ast.expr | None, use: Use, index: tuple[object, ...]) -> bool:
    if index and isinstance(value, ast.Tuple) and isinstance(index[0], int) and index[0] < len(value.elts):
        value, index = value.elts[index[0]], index[1:]
    elif index and isinstance(value, ast.Dict):
        named = [v for k, v in zip(value.keys, value.values, strict=True) if getattr(k, "value", None) == index[0]]
        value, index = (named[0], index[1:]) if len(named) == 1 else (None, ())
    elif index and isinstance(value, ast.Call):
        value, index = fields(seen.project, value, use).get(str(index[0])), index[1:]
    if not index and (inside := parts(seen.project, value, use)):
        return any(_is_sent_back(seen, part, use, ()) for part in inside)
    if index or not isinstance(value, ast.Name) or seen.freed(value.id):
        return False
    return any(
        name == value.id and back.before(use) and seen.scope.reaching(name, use) == seen.scope.reaching(name, back)
        for name, _, back in seen.backwards()
    )


# --------------------------------------------------------------------------- outputs


def _outputs(seen: Seen, trained: Collection[str]) -> Iterator[SourceFact]:
    """``scores.append(logits)`` in the loop that trains: the backward is over, and the graph goes nowhere any more."""
    backs = list(seen.methods("backward"))
    if not backs or any(call.args or call.keywords for call, _, _ in backs):
        return  # with retain_graph it may be wanted
    flowing = seen.flowing(name for name, _, _ in seen.backwards())
    for use in seen.scope.statements:
        keeper, value = kept_by(use.statement)
        if not isinstance(use.statement, ast.Expr) or value is None or not keeper.isidentifier() or keeper in flowing:
            continue
        near = any(seen.same_turn(use, back) for _, _, back in backs)
        names = [part for part in _parts(value) if isinstance(part, ast.Name) and part.id in flowing]
        made = [part.id for part in names if _is_output(seen, part, use, trained)]
        if made and near and outlives(seen, keeper, use) and not emptied(seen, keeper, use):
            if not seen.without_grad(use) and not _goes_on(seen, keeper, use):
                yield seen.fact(
                    "kept output", use.statement, name=made[0], text=keeper, edit=detached(value, made[0])
                )  # fmt: skip


def _is_output(seen: Seen, node: ast.Name, use: Use, trained: Collection[str]) -> bool:
    """What a model that an optimizer was given returned in this turn."""
    found, place = seen.sole(node, use)
    if not isinstance(found, ast.Call) or seen.freed(node.id) or not seen.same_turn(place, use):
        return False
    things = seen.project.things(found.func, place)
    return bool(things) and all(t.identity() in trained for t in things) and not seen.without_grad(place)


def _goes_on(seen: Seen, keeper: str, use: Use) -> bool:
    """It is returned, or read in the loop by anything else."""
    loop = seen.loop_of(use)
    first, last = (loop.lineno, loop.end_lineno or 0) if loop is not None else (0, 0)
    for other in seen.scope.statements:
        node = other.statement
        if isinstance(node, (ast.Return, ast.Expr)) and any(
            isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(node)
        ):
            return True
        if isinstance(node, ast.Return) and keeper in names_in(node):
            return True
        plain = not hasattr(node, "body") and node is not use.statement
        if plain and first <= node.lineno <= last and keeper in names_in(node):
            return True
    return False
