"""Terms of a loss that are numbers: added to what goes backward, and without a gradient of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from flatline.events import SourceFact
from flatline.readers.source._losses import is_mean, kind_of
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._numbered import of_same_table
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Use, spelled
from flatline.readers.source._seen import CUT_OFF, Seen, is_module, seen_in
from flatline.readers.source._unrecorded import head_of
from flatline.readers.source._values import Source, each_of, gone_through, held, origins

DEEP = 8  # sums within sums
KEEPING = {"clamp", "clip", "view", "reshape", "flatten", "squeeze", "unsqueeze", "permute", "repeat", "expand", "float",
           "contiguous", "to", "mul", "div", "add", "sub"}  # fmt: skip
CUTTING = ("item", "detach", "tolist")


def cut_terms(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a term."""
    if ".backward(" not in module.whole:
        return
    told = set[int]()
    for scope in module.scopes:
        seen = seen_in(project, scope)
        for call, receiver, use in seen.methods("backward"):
            terms = list(_terms(project, receiver, use, 0))
            for term in terms if len(terms) > 1 else ():
                cut = _cut(project, term) or of_same_table(project, term, terms)
                if cut is not None and id(cut.node) not in told:
                    told.add(id(cut.node))
                    yield SourceFact(
                        kind="cut term", name=spelled(term.node), text=spelled(cut.node),
                        where=cut.use.scope.module.where(cut.node, cut.use.scope), other=module.where(call, scope),
                    )  # fmt: skip
            yield from _unrecorded(project, terms, call, use, told) if len(terms) > 1 else ()


def _unrecorded(
    project: Project, terms: list[Source], call: ast.Call, use: Use, told: set[int]
) -> Iterator[SourceFact]:
    """Some of the terms are worked out without gradients."""
    found = [(term, head) for term in terms if (head := head_of(project, term, _is_output)) is not None]
    for term, head in found if len(found) < len(terms) else ():
        if id(term.node) not in told:
            told.add(id(term.node))
            yield SourceFact(
                kind="unrecorded term", name=spelled(term.node), text=spelled(head.node),
                where=term.use.scope.module.where(term.node, term.use.scope),
                other=head.use.scope.module.where(head.node, head.use.scope),
            )  # fmt: skip


def _terms(project: Project, node: ast.expr, use: Use, depth: int) -> Iterator[Source]:
    """What is added up, behind names and functions."""
    seen = seen_in(project, use.scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and depth < DEEP:
        yield from _terms(project, node.left, use, depth + 1)
        yield from _terms(project, node.right, use, depth + 1)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_count(project, node.right, use):
        yield from _terms(project, node.left, use, depth + 1)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and depth < DEEP:
        pairs = (node.left, node.right), (node.right, node.left)
        scaled = [one for one, other in pairs if project.constant(other, use) is not None][:1]
        for value in scaled if not any(_is_zero(project, side, use) for side in (node.left, node.right)) else ():
            yield from _terms(project, value, use, depth + 1)
        if not scaled:
            yield Source(node, use)
    elif (listed := _summed(project, node, use)) and depth < DEEP:
        for each in listed:
            yield from _terms(project, each.node, each.use, depth + 1)
    elif isinstance(node, ast.Name) and _added_up(seen, node.id) and depth < DEEP:
        for value, place in seen.values_of(node.id):
            yield from _terms(project, value, place, depth + 1)
    else:
        found = [s for s in origins(project, node, use) if s.node is not node] if depth < DEEP else []
        sums = [s for s in found if isinstance(s.node, ast.BinOp) or _is_sum(s, project) or _sums(s.node) is not None]
        for each in sums if len(sums) == len(found) else ():
            yield from _terms(project, each.node, each.use, depth + 1)
        if not sums or len(sums) != len(found):
            yield Source(node, use)


def _is_zero(project: Project, node: ast.expr, use: Use) -> bool:
    """A weight that keeps a term out of the sum: it is only watched."""
    found = project.constant(node, use, strict=True)
    return found is not None and found.value == 0


def _is_count(project: Project, node: ast.expr, use: Use) -> bool:
    """A number, or the length of something."""
    counted = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
    return counted or project.number(node, use) is not None


def _sums(node: ast.expr) -> ast.expr | None:
    """``parts`` of ``sum(parts)``."""
    plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sum"
    return node.args[0] if plain and isinstance(node, ast.Call) and node.args else None


def _summed(project: Project, node: ast.expr, use: Use) -> Sequence[Source]:
    """All that ``sum(weights[k] * v for k, v in terms.items())`` adds, where the weights are numbers."""
    inner = _sums(node)
    if isinstance(inner, (ast.GeneratorExp, ast.ListComp)) and len(inner.generators) == 1:
        factors = [inner.elt]
        while isinstance(factors[0], ast.BinOp) and isinstance(factors[0].op, ast.Mult):
            factors = [factors[0].left, factors[0].right, *factors[1:]]
        drawn = [f for f in factors if isinstance(f, ast.Name) and gone_through(use, f.id) is not None]
        numbers = all(_are_numbers(project, f, use) for f in factors if f not in drawn)
        table = gone_through(use, drawn[0].id) if len(drawn) == 1 and numbers and not inner.generators[0].ifs else None
        return each_of(project, table, use) if table is not None else []
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "values":
        inner = inner.func.value
    return each_of(project, inner, use) if inner is not None else []


def _are_numbers(project: Project, node: ast.expr, use: Use) -> bool:
    """A number, or an entry of a table that holds nothing else, and keeps no term out."""
    if project.number(node, use) is not None:
        return True
    listed = each_of(project, node.value, use) if isinstance(node, ast.Subscript) else []
    return bool(listed) and all(project.number(each.node, each.use) not in (None, 0) for each in listed)


def _added_up(seen: Seen, name: str) -> bool:
    """``total = 0``, and ``total += term`` beside it."""
    added = [u for v, u in seen.values_of(name) if isinstance(u.statement, ast.AugAssign)]
    plain = all(isinstance(u.statement.op, ast.Add) for u in added if isinstance(u.statement, ast.AugAssign))
    return bool(added) and plain


def _is_sum(source: Source, project: Project) -> bool:
    """A name that is added to."""
    return isinstance(source.node, ast.Name) and _added_up(seen_in(project, source.use.scope), source.node.id)


def _cut(project: Project, term: Source) -> Source | None:
    """The call that turned a loss of torch into a number, where the term is nothing else."""
    if (entry := _of_table(project, term)) is not None:
        return entry
    found = origins(project, term.node, term.use)
    cuts = [each for each in found if _of_loss(project, each)]
    return cuts[0] if cuts and len(cuts) == len(found) else None


def _of_table(project: Project, term: Source) -> Source | None:
    """``logs["center"]`` of ``logs = {k: v.item() for k, v in parts.items()}``, where that is a loss among the parts."""
    node, use = term.node, term.use
    key = node.slice if isinstance(node, ast.Subscript) else None
    table = node.value if isinstance(node, ast.Subscript) and isinstance(key, ast.Constant) else None
    bound = project.holding(table, use, 0) if table is not None and not project.written_to(table, use) else []
    near = [b for b in bound if b.use.scope is use.scope and b.use.before(use) and not b.index]
    value = near[-1].value if near else None
    if value is None or not isinstance(key, ast.Constant):
        return None
    entry = _entry(value, key)
    number = _number_of(entry) if entry is not None else None
    losses = _put_under(project, value, number, key, near[-1].use) if number is not None else []
    found = bool(losses) and all(_is_loss(project, each) for each in losses)
    return Source(entry, near[-1].use) if found and entry is not None else None


def _entry(table: ast.expr, key: ast.Constant) -> ast.expr | None:
    """What a dictionary that is written out, or one that a comprehension fills, has under a key."""
    if isinstance(table, ast.DictComp):
        target = table.generators[0].target if len(table.generators) == 1 and not table.generators[0].ifs else None
        kept = isinstance(target, ast.Tuple) and unparsed(target.elts[0]) == unparsed(table.key)
        return table.value if kept else None
    pairs = zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
    return next((v for k, v in pairs if isinstance(k, ast.Constant) and k.value == key.value), None)


def _put_under(project: Project, table: ast.expr, node: ast.expr, key: ast.Constant, use: Use) -> Sequence[Source]:
    """The tensors that became numbers."""
    if not isinstance(table, ast.DictComp):
        return origins(project, node, use)
    parts = gone_through(use, node.id) if isinstance(node, ast.Name) else None
    return held(project, parts, key, use, 0) if parts is not None else []


def _is_loss(project: Project, source: Source) -> bool:
    """A loss of torch, or a mean that the project works out from what a model put out, perhaps times a number."""
    node, use = source.node, source.use
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        node = node.right if project.number(node.left, use) is not None else node.left
    return isinstance(node, ast.Call) and (
        bool(kind_of(project, node, use)) or is_mean(project, node, use) or _is_mean_of_outputs(project, node, use)
    )


def _is_mean_of_outputs(project: Project, node: ast.Call, use: Use) -> bool:
    """``center(features, labels)``, a function or module of the project that reduces what a model in training put out."""
    function = project.callee(node, use)
    if function is None or len(node.args) < 2 or seen_in(project, use.scope).without_grad(use):
        return False
    cut = CUT_OFF.search(unparsed(function.node)) is not None or function.marked_without_grad is not None
    reduced = bool(function.returns) and all(_is_reduced(value) for value, _ in function.returns)
    return reduced and not cut and any(_is_output(project, each, use) for each in node.args)


def _number_of(node: ast.expr) -> ast.expr | None:
    """What ``v.item()`` or ``float(v)`` makes a number of."""
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr in CUTTING:
        return func.value
    plain = isinstance(func, ast.Name) and func.id == "float" and isinstance(node, ast.Call) and len(node.args) == 1
    return node.args[0] if plain and isinstance(node, ast.Call) else None


def _of_loss(project: Project, source: Source) -> bool:
    """``F.l1_loss(a, b).item()``, also where the loss has a name."""
    node, use = source.node, source.use
    if not isinstance(node, ast.Call):
        return False
    given = _number_of(node)
    sent = {name for name, _, _ in seen_in(project, use.scope).backwards()}
    losses = origins(project, given, use) if not isinstance(given, ast.Name) or given.id not in sent else []
    if given is not None and _of_outputs(project, given, use):
        return True
    return bool(losses) and all(
        isinstance(s.node, ast.Call)
        and bool(kind_of(project, s.node, s.use) or is_mean(project, s.node, s.use))
        and not seen_in(project, s.use.scope).without_grad(s.use)
        for s in losses
    )


def _of_outputs(project: Project, node: ast.expr, use: Use) -> bool:
    """A function of the project that reduces what a model in training put out: ``divergence(mean, spread)``."""
    function = project.callee(node, use) if isinstance(node, ast.Call) else None
    if function is None or not isinstance(node, ast.Call) or function.name.endswith(".forward"):
        return False
    if seen_in(project, use.scope).without_grad(use) or function.marked_without_grad is not None:
        return False
    reduced = bool(function.returns) and all(_is_reduced(value) for value, _ in function.returns)
    cut = CUT_OFF.search(unparsed(function.node)) is not None
    return reduced and not cut and any(_is_output(project, each, use) for each in node.args)


def _is_reduced(node: ast.expr | None) -> bool:
    """A mean or a sum, perhaps times something."""
    if isinstance(node, ast.BinOp):
        return _is_reduced(node.left) or _is_reduced(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_reduced(node.operand)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("mean", "sum")


def _is_output(project: Project, node: ast.expr, use: Use) -> bool:
    """What a model returned that an optimizer of the file was given, and that was not cut off since."""
    found = origins(project, node, use)
    return bool(found) and all(
        _within(project, each)
        or any(_is_output(project, inner, each.use) for inner in _behind(each.node) if inner is not node)
        for each in found
    )


def _behind(node: ast.expr) -> Sequence[ast.expr]:
    """``out`` of ``out.clamp(0, 1)``, and of ``(out - mean) / std``."""
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr in KEEPING:
        return _behind(func.value) or [func.value]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        sides = [_behind(side) or [side] for side in (node.left, node.right)]
        return [each for side in sides for each in side if isinstance(each, (ast.Name, ast.Attribute, ast.Call))]
    return []


def _within(project: Project, source: Source) -> bool:
    """A layer or model of the project is called in an expression, or in what its names stand for."""
    return any(
        isinstance(inner, ast.Call) and is_module(project, thing)
        for inner in walk(source.node)
        for thing in (project.things(inner.func, source.use) if isinstance(inner, ast.Call) else ())
        if thing.call is not None
    )
