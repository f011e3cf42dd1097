"""Labels of tokens that are masked up to the length of a text: characters are counted, and there are fewer tokens."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Use, spelled
from flatline.readers.source._tensors import SHAPES
from flatline.readers.source._values import Source, origins

BY_CHARACTER = re.compile(r"byt5|canine|char", re.IGNORECASE)  # as many tokens as characters
LIBRARIES = re.compile(r"^\s*(from|import) (transformers|tiktoken|tokenizers|sentencepiece)\b")
KEPT = SHAPES | {"copy", "tolist", "long"}
COPIES = {"list", "torch.tensor", "torch.as_tensor", "torch.LongTensor", "copy.copy", "copy.deepcopy"}
TRIMS = {"strip", "rstrip", "lstrip", "lower", "upper", "replace", "removesuffix", "removeprefix"}
DEEP = 6


def measured_labels(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a mask."""
    text = module.whole
    if "-100" not in text or "len(" not in text or BY_CHARACTER.search(text) is not None:
        return
    for scope in module.scopes:
        for use in scope.statements:
            for end, tokens in _masks(project, use):
                length = _length_of_text(project, end, use)
                if length is not None and _are_tokens(project, tokens, use, 0):
                    yield SourceFact(
                        kind="measured in characters", name=spelled(length.node), text=spelled(use.statement),
                        where=length.use.scope.module.where(length.node, length.use.scope),
                        other=module.where(use.statement, scope),
                    )  # fmt: skip


def _masks(project: Project, use: Use) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Up to where labels are masked, and whose labels these are."""
    node = use.statement
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Subscript) and _is_ignored(project, value, use):
        last = target.slice.elts[-1] if isinstance(target.slice, ast.Tuple) and target.slice.elts else target.slice
        if isinstance(last, ast.Slice) and last.lower is None and last.upper is not None:
            yield last.upper, target.value
    for added in walk(value):
        if isinstance(added, ast.BinOp) and isinstance(added.op, ast.Add):
            yield from _filled(project, added.left, added.right, use)


def _filled(project: Project, mask: ast.expr, rest: ast.expr, use: Use) -> Iterator[tuple[ast.expr, ast.expr]]:
    """``[-100] * n + ids[n:]``."""
    factors = mask if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.Mult) else None
    listed = factors.left.elts if factors is not None and isinstance(factors.left, ast.List) else []
    after = rest.slice.lower if isinstance(rest, ast.Subscript) and isinstance(rest.slice, ast.Slice) else None
    if factors is not None and len(listed) == 1 and after is not None and _is_ignored(project, listed[0], use):
        yield after, rest.value  # type: ignore[attr-defined]


def _is_ignored(project: Project, node: ast.expr, use: Use) -> bool:
    found = origins(project, node, use)
    return bool(found) and all(unparsed(each.node) == "-100" for each in found)


def _length_of_text(project: Project, node: ast.expr, use: Use) -> Source | None:
    """``len(prompt)``, where that is certainly a text."""
    found = origins(project, node, use)
    value = found[0].node if len(found) == 1 else None
    counted = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "len"
    plain = counted and isinstance(value, ast.Call) and len(value.args) == 1
    given = value.args[0] if plain and isinstance(value, ast.Call) else None
    return found[0] if given is not None and _is_text(project, given, found[0].use, 0) else None


def _is_text(project: Project, node: ast.expr, use: Use, depth: int) -> bool:
    """Written out as one, put together from one, or what a method of texts gives."""
    found = origins(project, node, use) if depth < DEEP else []
    return bool(found) and all(_is_made_text(project, each.node, each.use, depth) for each in found)


def _is_made_text(project: Project, node: ast.expr, use: Use, depth: int) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        return any(_is_text(project, part, use, depth + 1) for part in (node.left, node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        trimmed = node.func.attr in (*TRIMS, "join", "format") and _is_text(project, node.func.value, use, depth + 1)
        plain = any(k.arg == "tokenize" and unparsed(k.value) == "False" for k in node.keywords)
        return trimmed or (node.func.attr == "apply_chat_template" and plain)
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str"
    return named or isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _are_tokens(project: Project, node: ast.expr, use: Use, depth: int) -> bool:
    """``tokenizer(text)["input_ids"]``, perhaps a copy of it."""
    found = origins(project, node, use) if depth < DEEP else []
    return bool(found) and all(_is_encoded(project, each.node, each.use, depth) for each in found)


def _is_encoded(project: Project, node: ast.expr, use: Use, depth: int) -> bool:
    if isinstance(node, ast.Subscript):
        named = isinstance(node.slice, ast.Constant) and node.slice.value == "input_ids"
        return named or (not isinstance(node.slice, ast.Slice) and _are_tokens(project, node.value, use, depth + 1))
    if isinstance(node, ast.Attribute):
        return node.attr == "input_ids"
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr in KEPT:
        return _are_tokens(project, func.value, use, depth + 1)
    if isinstance(node, ast.Call) and node.args and unparsed(node.func) in COPIES:
        return _are_tokens(project, node.args[0], use, depth + 1)
    known = any(LIBRARIES.search(line) for line in use.scope.module.text.lines)
    own = isinstance(node, ast.Call) and project.callee(node, use) is not None
    return known and not own and isinstance(func, ast.Attribute) and func.attr == "encode"
