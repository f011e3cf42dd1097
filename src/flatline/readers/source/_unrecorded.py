"""Terms of a loss that are worked out without gradients, from what a model in training put out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import TypeAlias

from flatline.readers.source._losses import is_mean, kind_of
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use
from flatline.readers.source._seen import seen_in
from flatline.readers.source._values import Source

STEPS = 6  # from a term to where it is worked out
OFF = {"torch.no_grad()", "torch.inference_mode()", "torch.no_grad", "torch.inference_mode", "no_grad()"}
IsOutput: TypeAlias = Callable[[Project, ast.expr, Use], bool]


def head_of(project: Project, term: Source, is_output: IsOutput, depth: int = 0) -> Source | None:
    """The no_grad above, or around, what makes a term."""
    node, use = term.node, term.use
    if depth > STEPS:
        return None
    own = use.scope.marked_without_grad
    if own is not None:
        off = unparsed(own) in OFF and not use.scope.name.endswith(".forward") and _uses(project, node, use, is_output)
        return Source(own, use) if off else None
    if isinstance(node, ast.Call):
        return _above(project, node, use, is_output, depth)
    bound = project.holding(node, use, 0) if isinstance(node, ast.Name) else []
    bound = [b for b in bound if not isinstance(b.value, ast.Constant)] if len(bound) == 2 else bound
    value = bound[0].value if len(bound) == 1 and not bound[0].index and not bound[0].parameter else None
    value = _added(bound[0].use.statement) if value is None and len(bound) == 1 else value
    if value is None:
        return None
    place = bound[0].use
    head = _around(project, place) if place.scope is use.scope and _around(project, use) is None else None
    if head is not None:
        return Source(head, place) if _uses(project, value, place, is_output) else None
    return head_of(project, Source(value, place), is_output, depth + 1)


def _added(node: ast.stmt) -> ast.expr | None:
    """``term`` of ``total += term``."""
    return node.value if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) else None


def _above(project: Project, node: ast.Call, use: Use, is_output: IsOutput, depth: int) -> Source | None:
    function = project.callee(node, use)
    if function is None and (kind_of(project, node, use) or is_mean(project, node, use)):
        return _of_both(project, node, use, is_output)
    head = function.marked_without_grad if function is not None else None
    if function is None or (head is not None and function.name.endswith(".forward") and _is_model(project, node, use)):
        return None
    if head is not None:
        off = unparsed(head) in OFF and _uses(project, node, use, is_output)
        return Source(head, Use(function, -1, (), function.node)) if off else None  # type: ignore[arg-type]
    values = function.returns if not isinstance(function.node, ast.Module) else []
    if len(values) != 1 or values[0][0] is None:
        return None
    return head_of(project, Source(values[0][0], values[0][1]), is_output, depth + 1)


def _of_both(project: Project, node: ast.Call, use: Use, is_output: IsOutput) -> Source | None:
    """Of a loss of torch all of whose inputs are worked out without gradients, one of them from what a model put out."""
    heads = [off_by(project, each, use) for each in node.args]
    made = [_worked_out(each, use) for each in node.args]
    used = [head for head, each in zip(heads, made, strict=True) if _uses(project, each.node, each.use, is_output)]
    return used[0] if None not in heads and used else None


def _worked_out(node: ast.expr, use: Use) -> Source:
    """What a name is given in this function."""
    bound = use.scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    value = bound[0].value if len(bound) == 1 and not bound[0].parameter else None
    value = (
        _of_zip(bound[0].use.statement, node.id) if value is None and bound and isinstance(node, ast.Name) else value
    )
    return _worked_out(value, bound[0].use) if value is not None else Source(node, use)


def off_by(project: Project, node: ast.expr, use: Use, depth: int = 0) -> Source | None:
    """The no_grad under which a value is worked out, here or in a function, also as one of several that a loop goes through."""
    if depth > STEPS:
        return None
    if isinstance(node, ast.Name):
        bound = project.holding(node, use, 0)
        place = bound[0].use if len(bound) == 1 and not bound[0].parameter and bound[0].use.scope is use.scope else None
        head = _around(project, place) if place is not None else None
        if place is None or head is not None:
            return Source(head, place) if place is not None and head is not None else None
        value = bound[0].value if not bound[0].index else None
        value = value if value is not None else _of_zip(place.statement, node.id)
        return off_by(project, value, place, depth + 1) if value is not None else None
    function = project.callee(node, use) if isinstance(node, ast.Call) else None
    if function is None or _around(project, use) is not None:
        return None
    mark = function.marked_without_grad
    if mark is not None:
        return Source(mark, Use(function, -1, (), function.node)) if unparsed(mark) in OFF else None  # type: ignore[arg-type]
    heads = [_returned_off(project, value, place, depth) for value, place in function.returns]
    return heads[0] if heads and None not in heads and not isinstance(function.node, ast.Module) else None


def summed_off(project: Project, node: ast.expr, use: Use) -> Source | None:
    """The no_grad under which a function works out a loss, or all terms of ``sum(terms.values())``."""
    if isinstance(node, ast.Name):
        bound = project.holding(node, use, 0)
        plain = len(bound) == 1 and not bound[0].index and bound[0].use.scope is use.scope
        value = bound[0].value if plain and _around(project, bound[0].use) is None else None
        return summed_off(project, value, bound[0].use) if isinstance(value, ast.Call) else None
    summed = isinstance(node, ast.Call) and unparsed(node.func) == "sum" and len(node.args) == 1
    if not summed and isinstance(node, ast.Call):
        return off_by(project, node, use)
    terms = node.args[0] if summed and isinstance(node, ast.Call) else None
    if isinstance(terms, (ast.GeneratorExp, ast.ListComp)) and len(terms.generators) == 1:
        terms = terms.generators[0].iter
    asked = terms.func if isinstance(terms, ast.Call) and not terms.args else None
    table = asked.value if isinstance(asked, ast.Attribute) and asked.attr in ("values", "items") else terms
    return off_by(project, table, use) if isinstance(table, ast.Name) and not _is_put_into(table.id, use) else None


def _is_put_into(name: str, use: Use) -> bool:
    """``terms["kl"] = kl``, ``terms.update(more)``, ``terms.append(kl)``."""
    text = unparsed(use.scope.node)
    return (
        re.search(rf"\b{re.escape(name)}(\[[^\]]*\] [-+*/]?= |\.(update|setdefault|append|extend|insert)\()", text)
        is not None
    )


def _is_handed_on(value: ast.expr | None, use: Use) -> bool:
    """A parameter as it is, or its items."""
    if isinstance(value, ast.Name):
        bound = use.scope.reaching(value.id, use) if value.id in use.scope.bindings else []
        return any(b.parameter or (b.value is not None and _is_handed_on(b.value, b.use)) for b in bound)
    if isinstance(value, (ast.Tuple, ast.List)):
        return any(_is_handed_on(each, use) for each in value.elts)
    if isinstance(value, ast.Dict):
        return any(_is_handed_on(each, use) for each in value.values)
    made = value.value if isinstance(value, ast.DictComp) else getattr(value, "elt", None)
    return isinstance(made, ast.Name)


def _returned_off(project: Project, value: ast.expr | None, use: Use, depth: int) -> Source | None:
    """The no_grad around a return, or around what made its value."""
    head = _around(project, use) if not _is_handed_on(value, use) else None
    if head is not None or value is None:
        return Source(head, use) if head is not None else None
    return off_by(project, value, use, depth + 1)


def _of_zip(node: ast.stmt, name: str) -> ast.expr | None:
    """``features(fake)`` of ``for a, b in zip(features(fake), features(real))``."""
    head = node.iter if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) else None
    if not isinstance(head, ast.Call) or unparsed(head.func) != "zip" or head.keywords:
        return None
    pairs = zip(node.target.elts, head.args, strict=False)  # type: ignore[attr-defined]
    return next((given for target, given in pairs if isinstance(target, ast.Name) and target.id == name), None)


def _is_model(project: Project, node: ast.Call, use: Use) -> bool:
    """It has parameters, and is no plain loss."""
    things = project.things(node.func, use)
    return not any(t.made_of is not None and t.made_of.node.name.endswith(("Loss", "Criterion")) for t in things)


def _around(project: Project, use: Use) -> ast.expr | None:
    line = getattr(use.statement, "lineno", 0)
    found = [
        item.context_expr
        for node in seen_in(project, use.scope).withs
        for item in node.items
        if node.lineno < line <= (node.end_lineno or 0)
    ]
    plain = all("grad" not in unparsed(head) or unparsed(head) in OFF for head in found)
    return next((head for head in found if unparsed(head) in OFF), None) if plain else None


def _uses(project: Project, node: ast.expr, use: Use, is_output: IsOutput) -> bool:
    """It is made of something that a model put out."""
    waiting, names = [node], dict[str, ast.Name]()
    while waiting:
        for name in [n for n in walk(waiting.pop()) if isinstance(n, ast.Name) and n.id not in names]:
            names[name.id] = name
            bound = use.scope.bindings.get(name.id, ())
            waiting += [b.value for b in bound if b.value is not None and not b.parameter]
            zips = [_of_zip(b.use.statement, name.id) for b in bound if b.value is None]
            waiting += [each for each in zips if each is not None]
    return any(is_output(project, each, use) for each in names.values())
