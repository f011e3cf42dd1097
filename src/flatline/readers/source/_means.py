"""Losses that are a mean over the batch, behind a criterion of one's own or in a sum of terms."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from flatline.readers.source._losses import is_mean
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope, Use
from flatline.readers.source._values import is_none, origins

TERMS = 4  # sums in sums
PLAIN = (ast.Name, ast.Attribute, ast.Constant)
OF_MODEL = re.compile(r"transformers\.\w+(?:For[A-Z]\w+|LMHeadModel)\.from_(?:pretrained|config)")
HALF = 0.5  # of a sum of terms one counts at least as much


def means(project: Project, node: ast.expr, use: Use, depth: int = 0) -> bool:
    """What goes backward averages its batch, and nothing divides it once more."""
    found = [s for s in origins(project, node, use) if not is_none(s.node)] if depth <= TERMS else []
    if not found and isinstance(node, ast.Name):
        bound = use.scope.reaching(node.id, use) if node.id in use.scope.bindings else []
        items = [b for b in bound if isinstance(b.value, ast.Subscript) and not b.index]
        return bool(items) and len(items) == len(bound) and all(_is_of_model(project, b.value, b.use) for b in items)
    return bool(found) and all(_is_term(project, s.node, s.use, depth) for s in found)


def _is_term(project: Project, node: ast.expr, use: Use, depth: int) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return _is_sum(project, node, use, depth)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return means(project, node.operand, use, depth + 1)
    if not isinstance(node, ast.Call):
        return _is_of_model(project, node, use)
    return is_mean(project, node, use) or _averages(project, node, use)


def _is_of_model(project: Project, node: ast.expr | None, use: Use) -> bool:
    """``model(**batch).loss`` of a model of transformers with a head, which averages over what it is given."""
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return False
    first = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0
    if not first and not (isinstance(node, ast.Attribute) and node.attr == "loss"):
        return False
    calls = [(s.node, s.use) for s in origins(project, node.value, use)]
    known = [call for call, at in calls if isinstance(call, ast.Call) and _averages_itself(project, call, at)]
    labelled = not first or all(any(k.arg == "labels" for k in call.keywords) for call in known)
    return bool(calls) and len(known) == len(calls) and labelled


def _averages_itself(project: Project, call: ast.Call, use: Use) -> bool:
    things = project.things(call.func, use)
    counted = any(k.arg is not None and k.arg.startswith("num_items") for k in call.keywords)
    return bool(things) and not counted and all(t.call is not None and OF_MODEL.fullmatch(t.name) for t in things)


def _is_sum(project: Project, node: ast.BinOp, use: Use, depth: int) -> bool:
    """``ce + self.weight * dice``: every term a mean, and one of them not made small."""
    terms = [each for each in _terms(node) if not isinstance(each[1], ast.Constant)]
    weights = [_weight(project, factor, use) for factor, _ in terms]
    written = {unparsed(factor) for factor, _ in terms if factor is not None}
    shared = any(f"1 - {factor}" in written for factor in written)
    whole = shared or any(weight is not None and weight >= HALF for weight in weights)
    return whole and all(means(project, term, use, depth + 1) for _, term in terms)


def _terms(node: ast.expr) -> list[tuple[ast.expr | None, ast.expr]]:
    """The terms of a sum, each with its factor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return [*_terms(node.left), *_terms(node.right)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        first = isinstance(node.right, ast.Call) or not isinstance(node.left, ast.Call)
        return [(node.left, node.right) if first else (node.right, node.left)]
    return [(None, node)]


def _weight(project: Project, factor: ast.expr | None, use: Use) -> float | None:
    """A number, as it is written out or in ``1 - w``."""
    if isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.Sub):
        left, right = project.number(factor.left, use), project.number(factor.right, use)
        return left - right if left is not None and right is not None else None
    return 1.0 if factor is None else project.number(factor, use)


def _averages(project: Project, node: ast.Call, use: Use) -> bool:
    """``x.mean()`` over all there is, in a function in which nothing is divided by a plain number."""
    func = node.func
    dotted = project.dotted(func, use)
    plain = isinstance(func, ast.Attribute) and func.attr == "mean" and not node.keywords
    count = len(node.args) == (1 if dotted == "torch.mean" else 0)
    return plain and count and (not dotted or dotted == "torch.mean") and not _divides(use.scope)


@lru_cache(maxsize=8)
def _divides(scope: Scope) -> bool:
    """By something that may be the number of batches."""
    divided = [n.right for n in walk(scope.node) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    return any(isinstance(each, PLAIN) and not _is_computed(scope, each) for each in divided)


def _is_computed(scope: Scope, node: ast.expr) -> bool:
    """What the function itself works out, as ``union`` in ``overlap / union``."""
    found = scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    return bool(found) and all(isinstance(b.value, (ast.BinOp, ast.Call)) for b in found)
