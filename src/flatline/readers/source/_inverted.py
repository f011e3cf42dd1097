"""Masks of labels that are the wrong way round: what is attended to is left out, and the padding stays."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._labels import NOTHING, left_out
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Use, spelled
from flatline.readers.source._values import origins

ATTENDED = re.compile(r"(.*\W)?attention_mask(['\"]\])?")
SHOWN = {"==": {"1", "True"}, "!=": {"0", "False"}, ">": {"0"}}
PADS = re.compile(r"(.*\.)?pad(ding)?_?(token_id|id|idx|token|index)?", re.IGNORECASE)


def inverted_masks(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a mask."""
    for target, use in left_out(module):
        if _is_attended(project, target.slice, use):
            yield _fact(module, use.statement, unparsed(target.value), use)
    for scope in module.scopes if NOTHING in module.whole else ():
        for call, use in scope.calls:
            func = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            filled = func in ("masked_fill", "masked_fill_") and [unparsed(a) for a in call.args[1:]] == [NOTHING]
            chosen = func == "where" and len(call.args) == 3 and unparsed(call.args[1]) == NOTHING
            if (filled or chosen) and _is_attended(project, call.args[0], use):
                name = unparsed(call.func.value if filled and isinstance(call.func, ast.Attribute) else call.args[-1])
                yield _fact(module, call, name, use)


def _fact(module: Module, node: ast.AST, name: str, use: Use) -> SourceFact:
    return SourceFact(kind="only padding left", name=name, text=spelled(node), where=module.where(node, use.scope))


def _is_attended(project: Project, node: ast.expr, use: Use) -> bool:
    """``batch["attention_mask"].bool()``, ``mask == 1``, ``ids != tokenizer.pad_token_id``."""
    while (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("bool", "to", "type")
    ):
        node = node.func.value
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        by, right = (
            {ast.Eq: "==", ast.NotEq: "!=", ast.Gt: ">"}.get(type(node.ops[0]), ""),
            unparsed(node.comparators[0]),
        )
        if by == "!=" and PADS.fullmatch(right):
            return "mask" not in unparsed(node.left)
        return right in SHOWN.get(by, ()) and _is_mask(project, node.left, use)
    return _is_mask(project, node, use)


def _is_mask(project: Project, node: ast.expr, use: Use) -> bool:
    if ATTENDED.fullmatch(unparsed(node)):
        return True
    found = origins(project, node, use) if isinstance(node, ast.Name) else []
    inner = [each for each in found if each.node is not node and not isinstance(each.node, ast.Name)]
    return len(inner) == 1 == len(found) and _is_attended(project, inner[0].node, inner[0].use)
