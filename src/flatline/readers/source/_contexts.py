"""What a with statement enters, where a name or a table holds what makes it: ``self.context()``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache

from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use
from flatline.readers.source._values import Source, origins

PARTIAL = "functools.partial"


def contexts(project: Project, node: ast.expr, use: Use) -> Sequence[Source]:
    """The calls that make it, behind ``partial()``, ``lambda`` and names of what is called."""
    found = origins(project, node, use)
    return [each for source in found for each in _made(project, source)]


def _made(project: Project, source: Source) -> Sequence[Source]:
    """The one that was made here, or what the call of a kept maker makes."""
    call = source.node if isinstance(source.node, ast.Call) else None
    plain = (
        call is not None and not call.args and not call.keywords and isinstance(call.func, (ast.Name, ast.Attribute))
    )
    if call is None or not plain or project.dotted(call.func, source.use) or project.callee(call, source.use):
        return [source]
    makers = origins(project, call.func, source.use)
    made = [each for each in (_by(project, maker) for maker in makers) if each is not None]
    return made if makers and len(made) == len(makers) else [source]


@cache
def _call_of(maker: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(maker, [], []), maker)


def _by(project: Project, maker: Source) -> Source | None:
    """What a maker makes: ``torch.autocast("cuda")`` of ``partial(torch.autocast, "cuda")``."""
    node, use = maker.node, maker.use
    if isinstance(node, ast.Lambda):
        return Source(node.body, use) if not node.args.args else None
    if isinstance(node, (ast.Name, ast.Attribute)):
        return Source(_call_of(node), use) if project.dotted(node, use) else None
    if not isinstance(node, ast.Call) or project.dotted(node.func, use) != PARTIAL or not node.args:
        return None
    return Source(project.merged(node, None, use)[0], use)
