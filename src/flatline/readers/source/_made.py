"""The operation that made a tensor."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from flatline.readers.source._scopes import Use

UNBOUNDED = {"linear", "Embedding", "EmbeddingBag"}  # what a layer of weights makes


@dataclass(frozen=True, slots=True)
class Made:
    """The operation that made a tensor."""

    by: str
    node: ast.AST
    use: Use
