"""Losses that were put into a new leaf, ``torch.tensor([a, b], requires_grad=True)``, and calculated with since."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.readers.source._losses import is_mean, kind_of
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._raw import is_number
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use
from flatline.readers.source._seen import Seen, is_module, seen_in
from flatline.readers.source._things import builds_optimizer
from flatline.readers.source._values import Source, origins

DEEP = 12  # calculations within calculations, and functions in functions
WALKED = 60  # expressions that are looked at for a loss
NEW = {"torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor"}
GRADIENT = re.compile(r"\w\.grad\b|autograd\.grad\(")
REDUCES = {
    "sum",
    "mean",
    "dot",
    "mul",
    "add",
    "std",
    "sub",
    "div",
    "neg",
    "float",
    "view",
    "squeeze",
    "unsqueeze",
    "flatten",
}


def new_leaf(seen: Seen, node: ast.expr, use: Use) -> Source | None:
    """The leaf that a backward ends at, where it is made of losses in the same turn and nothing else has a graph."""
    found = list(_parts(seen.project, node, use, 0))
    leaves = [part for part in found if part is not None and _is_leaf(seen.project, part)]
    fresh = [leaf for leaf in leaves if _is_fresh(seen, leaf.use, use) and not is_sought(seen, leaf.use)]
    learned = all(_is_of_network(seen.project, leaf) for leaf in fresh)
    return fresh[0] if fresh and None not in found and len(fresh) == len(leaves) and learned else None


def _is_fresh(seen: Seen, made: Use, use: Use) -> bool:
    """Made in the turn, or in the call, in which it is sent backward."""
    alone = seen.loop_of(made) is None and seen.loop_of(use) is None and not isinstance(seen.scope.node, ast.Module)
    return made.scope is not seen.scope or alone or seen.same_turn(made, use)


def is_sought(seen: Seen, made: Use) -> bool:
    """Its own gradient is read, or an optimizer moves it."""
    names = {n for target in getattr(made.statement, "targets", ()) for n in names_in(target)}
    read = any(seen.module.says(u.statement, GRADIENT) for u in made.scope.statements)
    calls = [c for c, u in made.scope.calls if builds_optimizer(seen.project.dotted(c.func, u))]
    return read or any(names & names_in(call) for call in calls)


def _parts(project: Project, node: ast.expr, use: Use, depth: int) -> Iterator[Source | None]:
    """What is calculated with, but numbers and tensors that are written out; None for what is not known."""
    if is_number(project, node, use) or _is_size(node):
        return
    inner: list[tuple[ast.expr, Use]] = []
    if isinstance(node, ast.BinOp):
        inner = [(node.left, use), (node.right, use)]
    elif isinstance(node, ast.UnaryOp):
        inner = [(node.operand, use)]
    elif isinstance(node, (ast.Name, ast.Attribute)):
        inner = [(s.node, s.use) for s in origins(project, node, use) if s.node is not node]
    elif isinstance(node, ast.Call) and _is_new(project, node, use):
        if not _is_written(node) or _wants_gradients(node):
            yield Source(node, use)
        return
    elif isinstance(node, ast.Call):
        behind = [(s.node, s.use) for s in origins(project, node, use) if s.node is not node]
        inner = [(each, use) for each in _operands(project, node, use)] or behind
    if not inner or depth > DEEP:
        yield None
    for each, place in inner if depth <= DEEP else ():
        yield from _parts(project, each, place, depth + 1)


def _is_size(node: ast.expr) -> bool:
    """``len(losses)``, ``x.size(0)`` and ``x.shape[0]``."""
    name = unparsed(node.func) if isinstance(node, ast.Call) else ""
    shape = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return name == "len" or name.endswith((".size", ".numel")) or shape


def _operands(project: Project, call: ast.Call, use: Use) -> list[ast.expr]:
    """``x`` and ``w`` of ``x.mul(w)``, and ``x`` of ``torch.sum(x)``."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in REDUCES:
        return []
    dotted = project.dotted(func, use)
    wanted = [each for each in call.args if not isinstance(each, ast.Constant)]
    return wanted if dotted.startswith("torch.") else [] if dotted else [func.value, *wanted]


def _is_new(project: Project, call: ast.Call, use: Use) -> bool:
    """``torch.tensor(x)``, and ``torch.tensor(x).requires_grad_()``."""
    made = _maker(call)
    return project.dotted(made.func, use) in NEW and bool(made.args)


def _maker(call: ast.Call) -> ast.Call:
    while isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        call = call.func.value
    return call


def _wants_gradients(call: ast.Call) -> bool:
    on = any(k.arg == "requires_grad" and unparsed(k.value) == "True" for k in _maker(call).keywords)
    return on or (isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_" and not call.args)


def _is_written(call: ast.Call) -> bool:
    return not any(isinstance(n, (ast.Name, ast.Call)) for a in _maker(call).args for n in walk(a))


def _is_leaf(project: Project, part: Source) -> bool:
    return isinstance(part.node, ast.Call) and _wants_gradients(part.node) and not _is_written(part.node)


def _is_of_network(project: Project, leaf: Source) -> bool:
    """A loss of torch, or a call of a model, is among what a leaf was made of."""
    assert isinstance(leaf.node, ast.Call)
    waiting: list[tuple[ast.expr, Use]] = [(_maker(leaf.node).args[0], leaf.use)]
    done = set[int]()
    while waiting and len(done) < WALKED:
        node, use = waiting.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        for inner in walk(node):
            if isinstance(inner, ast.Call) and _is_network(project, inner, use):
                return True
            waiting += _behind(project, inner, use)
    return False


def _is_network(project: Project, call: ast.Call, use: Use) -> bool:
    if kind_of(project, call, use) or is_mean(project, call, use):
        return True
    return any(t.call is not None and is_module(project, t) for t in project.things(call.func, use))


def _behind(project: Project, node: ast.AST, use: Use) -> list[tuple[ast.expr, Use]]:
    """What a name was given or a list was filled with, and what a function returns."""
    if isinstance(node, ast.Name):
        seen, bound = seen_in(project, use.scope), use.scope.bindings.get(node.id, ())
        given = [pair for b in bound if b.parameter for pair in project.given(node.id, b.use)]
        return [*given, *seen.values_of(node.id), *seen.listed.get(node.id, ())]
    if isinstance(node, ast.Attribute) and use.scope.owner is not None and unparsed(node.value) == "self":
        calls = [pair for method in use.scope.owner.methods.values() for pair in method.calls]
        return [(c.args[0], u) for c, u in calls if c.args and unparsed(c.func) == f"{unparsed(node)}.append"]
    function = project.callee(node, use) if isinstance(node, ast.Call) else None
    return [(value, place) for value, place in function.returns if value is not None] if function is not None else []
