"""Terms that are the numbers of a table of losses, of which another entry is a term as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use
from flatline.readers.source._values import Source, gone_through, origins


def of_same_table(project: Project, term: Source, terms: Sequence[Source]) -> Source | None:
    """``sum(v.item() for k, v in terms.items())`` beside ``terms["main"]``: the call that makes a number of each."""
    found = _numbers(project, term)
    if found is None:
        return None
    cut, table = found
    kept = {name for other in terms if other is not term for name in _tables(other, table.use)}
    return cut if unparsed(table.node) in kept else None


def _tables(term: Source, use: Use) -> Iterator[str]:
    """``losses`` of ``weight * losses["main"]``, where that is the same table as in another place."""
    factors = [term.node]
    while isinstance(factors[0], ast.BinOp) and isinstance(factors[0].op, ast.Mult):
        factors = [factors[0].left, factors[0].right, *factors[1:]]
    for each in factors:
        table = each.value if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant) else None
        own = isinstance(table, ast.Attribute) and [unparsed(table.value)] == [*use.scope.own] == [*term.use.scope.own]
        if table is not None and (term.use.scope is use.scope or (own and term.use.scope.owner is use.scope.owner)):
            yield unparsed(table)


def _numbers(project: Project, term: Source) -> tuple[Source, Source] | None:
    """Where each entry becomes a number, and the table that it is an entry of, behind a name or a method."""
    head = _summed(term.node)
    drawn = [n for n in walk(head.elt) if isinstance(n, ast.Name)] if head is not None else []
    for name in drawn:
        table = gone_through(term.use, name.id)
        if head is None or table is None:
            continue
        if (cut := _cut_of(head.elt, name.id)) is not None:
            return Source(cut, term.use), Source(table, term.use)
        made = origins(project, table, term.use)
        if len(made) == 1 and isinstance(made[0].node, ast.DictComp) and _factor(head.elt, name.id):
            return _each(made[0].node, made[0].use)
    return None


def _each(node: ast.DictComp, use: Use) -> tuple[Source, Source] | None:
    """``{k: v.item() for k, v in losses.items()}``."""
    for name in (n.id for n in walk(node.value) if isinstance(n, ast.Name)):
        table = gone_through(use, name)
        if table is not None and (cut := _cut_of(node.value, name)) is not None:
            return Source(cut, use), Source(table, use)
    return None


def _summed(node: ast.expr) -> ast.GeneratorExp | ast.ListComp | None:
    """The comprehension in ``sum(...)``."""
    plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sum" and node.args
    inner = node.args[0] if plain and isinstance(node, ast.Call) else None
    return inner if isinstance(inner, (ast.GeneratorExp, ast.ListComp)) and len(inner.generators) == 1 else None


def _cut_of(node: ast.expr, name: str) -> ast.Call | None:
    """``v.item()``, ``v.detach()`` or ``float(v)``, perhaps times something."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        return _cut_of(node.left, name) or _cut_of(node.right, name)
    cut = isinstance(node, ast.Call) and unparsed(node) in (f"{name}.item()", f"{name}.detach()", f"float({name})")
    return node if cut and isinstance(node, ast.Call) else None


def _factor(node: ast.expr, name: str) -> bool:
    """The name itself, perhaps times something."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _factor(node.left, name) or _factor(node.right, name)
    return isinstance(node, ast.Name) and node.id == name
