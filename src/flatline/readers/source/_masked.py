"""Losses that a mask of the padding makes zero, under a mean that counts the padding as well."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from flatline.events import SourceFact
from flatline.readers.source._losses import CLASSES, DISTANCES, FUNCTIONS
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._padding import masks_of
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, spelled
from flatline.readers.source._seen import seen_in
from flatline.readers.source._values import origins

SHAPED = {
    "unsqueeze",
    "float",
    "to",
    "type_as",
    "bool",
    "expand",
    "expand_as",
    "view",
    "long",
    "half",
    "double",
    "type",
}
BROADCAST = re.compile(r"len|None|unsqueeze|view\(")
PADDING = re.compile(r"pad", re.IGNORECASE)
DEEP = 6


def masked_means(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a mean."""
    if "mean(" not in module.whole:
        return
    for scope in module.scopes:
        for call, use in scope.calls:
            factors, place = _factors(_averaged(project, call, use), use)
            masks = [each for each in factors if len(factors) > 1 and _is_mask(project, each, place, 0)]
            if not masks or not any(_is_loss(project, each, place) for each in factors):
                continue
            if not _is_counted(scope, masks[0]) and _goes_backward(project, call, use, 0):
                yield SourceFact(
                    kind="masked mean", name=spelled(masks[0]), text=spelled(call), where=module.where(call, scope)
                )


def _averaged(project: Project, call: ast.Call, use: Use) -> ast.expr | None:
    """What ``x.mean()`` or ``torch.mean(x)`` is the mean of, over all there is."""
    if call.keywords or not isinstance(call.func, ast.Attribute) or call.func.attr != "mean":
        return None
    if project.dotted(call.func, use) == "torch.mean":
        return call.args[0] if len(call.args) == 1 else None
    return call.func.value if not call.args else None


def _factors(node: ast.expr | None, use: Use) -> tuple[Sequence[ast.expr], Use]:
    """``loss`` and ``mask`` of ``loss * mask``, perhaps behind a name, and where that stands."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors_of(node.left), *_factors_of(node.right)], use
    found = use.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in use.scope.bindings else []
    value = found[0].value if len(found) == 1 and not found[0].index else None
    return _factors(value, found[0].use) if isinstance(value, ast.BinOp) else ([], use)


def _factors_of(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors_of(node.left), *_factors_of(node.right)]
    return [node]


def _is_mask(project: Project, node: ast.expr, use: Use, depth: int) -> bool:
    """One for what is there and zero for the padding: ``torch.arange(n) < lengths[:, None]``, ``ids != pad``."""
    if depth > DEEP:
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SHAPED:
        return _is_mask(project, node.func.value, use, depth + 1)
    if isinstance(node, ast.Subscript) and (not isinstance(node.slice, ast.Constant) or node.slice.value is None):
        return _is_mask(project, node.value, use, depth + 1)
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and _tells_padding(node, use)
    made = origins(project, node, use) if isinstance(node, (ast.Name, ast.Call)) else []
    if made:
        return all(each.node is not node and _is_mask(project, each.node, each.use, depth + 1) for each in made)
    drawn = masks_of(project, node, use) if isinstance(node, (ast.Name, ast.Subscript)) else []
    return bool(drawn) and all(
        isinstance(each.node, ast.Call) or _is_mask(project, each.node, each.use, depth + 1) for each in drawn
    )


def _tells_padding(node: ast.Compare, use: Use) -> bool:
    sides = [node.left, node.comparators[0]]
    if isinstance(node.ops[0], ast.NotEq):
        return isinstance(sides[1], (ast.Name, ast.Attribute)) and PADDING.search(unparsed(sides[1])) is not None
    ordered = isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
    counts = [_counts(side, use) for side in sides]
    other = sides[0] if counts[1] else sides[1]
    return ordered and sum(counts) == 1 and BROADCAST.search(unparsed(other)) is not None


def _counts(node: ast.expr, use: Use) -> bool:
    """``torch.arange(n)``, perhaps behind a name."""
    names = {n.id for n in walk(node) if isinstance(n, ast.Name)}
    values = [b.value for name in names for b in use.scope.bindings.get(name, ()) if b.value is not None]
    return any("arange(" in unparsed(each) for each in (node, *values))


def _is_loss(project: Project, node: ast.expr, use: Use) -> bool:
    """``(a - b) ** 2``, or a loss of torch with no reduction."""
    if isinstance(node, ast.Name):
        found = use.scope.reaching(node.id, use) if node.id in use.scope.bindings else []
        value = found[0].value if len(found) == 1 and not found[0].index else None
        return value is not None and not isinstance(value, ast.Name) and _is_loss(project, value, found[0].use)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _differs(node.left)
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr in ("pow", "square", "abs") and _differs(func.value):
        return True
    if isinstance(func, ast.Attribute) and func.attr in ("view_as", "view", "reshape", "mean", "sum", "squeeze"):
        return _is_loss(project, func.value, use)
    if isinstance(func, ast.Attribute) and func.attr in ("abs", "square") and len(node.args) == 1:
        return _differs(node.args[0])
    return _is_unreduced(project, node, use)


def _is_unreduced(project: Project, node: ast.Call, use: Use) -> bool:
    dotted = project.dotted(node.func, use)
    made = [node] if dotted in FUNCTIONS or dotted in DISTANCES else [
        t.call for t in project.things(node.func, use) if t.call is not None and (t.name in CLASSES or t.name in DISTANCES)
    ]  # fmt: skip
    given = [k.value for call in made for k in call.keywords if k.arg == "reduction"]
    return bool(made) and len(given) == len(made) and all(unparsed(each) == "'none'" for each in given)


def _differs(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)


def _is_counted(scope: Scope, mask: ast.expr) -> bool:
    """The function asks how much of the mask there is."""
    text, name = unparsed(scope.node), re.escape(unparsed(mask))
    return re.search(rf"{name}(\.\w+\(\))*(\.sum\(|\.numel\(|\.mean\()", text) is not None


def _goes_backward(project: Project, node: ast.Call, use: Use, depth: int) -> bool:
    """What a call gives is sent backward as it is, here or where the function is called."""
    if depth > DEEP:
        return False
    seen, statement = seen_in(project, use.scope), use.statement
    if any(receiver is node for _, receiver, _ in seen.methods("backward")):
        return True
    if isinstance(statement, ast.Return):
        whole = statement.value is node
        sites = project.sites_of(use.scope) if whole and isinstance(use.scope.node, ast.FunctionDef) else []
        return any(_goes_backward(project, call, place, depth + 1) for call, place in sites)
    target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is node else None
    if not isinstance(target, ast.Name):
        return False
    if any(isinstance(v, ast.Name) and v.id == target.id for v, _ in use.scope.returns):
        sites = project.sites_of(use.scope)
        return any(_goes_backward(project, call, place, depth + 1) for call, place in sites)
    return any(name == target.id for name, _, _ in seen.backwards())
