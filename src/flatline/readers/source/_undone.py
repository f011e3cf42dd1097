"""New layers that change nothing for the optimizer: put back, frozen, or with the parameters of the old one."""

from __future__ import annotations

import ast
import re

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Use
from flatline.readers.source._seen import Seen

FREEZES = re.compile(r"requires_grad")
OWN = ("weight", "bias")


def is_undone(seen: Seen, use: Use) -> bool:
    """The function that makes a layer also puts the old one back, freezes the new one, or ties it to the old one."""
    node = use.statement
    assert isinstance(node, ast.Assign)
    target = unparsed(node.targets[0])
    named = {target, unparsed(node.value)} if isinstance(node.value, ast.Name) else {target}
    others = [each for each in seen.scope.statements if each is not use]
    later = [each for each in others if each.order > use.order]
    return any(_puts_back(each.statement, target) for each in later) or any(
        _ties(each.statement, named) or _freezes(seen, each, named) for each in others
    )


def _puts_back(node: ast.stmt, target: str) -> bool:
    """``model.head = old``."""
    plain = isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute))
    return plain and isinstance(node, ast.Assign) and unparsed(node.targets[0]) == target


def _ties(node: ast.stmt, named: set[str]) -> bool:
    """``new.weight = old.weight``, also beside the bias."""
    if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Call):
        return False
    targets = [each for each in walk(node.targets[0]) if isinstance(each, ast.Attribute) and each.attr in OWN]
    return any(unparsed(each.value) in named for each in targets)


def _freezes(seen: Seen, use: Use, named: set[str]) -> bool:
    """``head.requires_grad_(False)``, ``for p in head.parameters(): ...``, or a function of the project that does so."""
    parts = [each for each in walk(use.statement) if isinstance(each, (ast.Name, ast.Attribute))]
    if not any(unparsed(each) in named for each in parts):
        return False
    if seen.module.says(use.statement, FREEZES):
        return True
    functions = [seen.project.callee(call, place) for call, place in seen.scope.calls if place is use]
    return any(f is not None and FREEZES.search(unparsed(f.node)) is not None for f in functions)
