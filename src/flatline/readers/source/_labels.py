"""Labels of which a mask leaves nothing, or one token alone; and copies of padded input, which need one and have none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from flatline.events import SourceFact
from flatline.readers.source._kept import kept_by
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, spelled
from flatline.readers.source._tensors import SHAPES
from flatline.readers.source._values import origins

CAUSAL = re.compile(
    r"ForCausalLM\.from_pretrained\(|LMHeadModel\.from_pretrained\("
)  # leaves out -100, and nothing else
MASKED = re.compile(r"-100|ignore_index|Collator|masked_fill|where\(|reduction|\.logits\b|Trainer\b")
NOTHING = "-100"  # a label that the losses leave out
LENGTH = ("shape[1]", "shape[-1]", "size(1)", "size(-1)")


def masked_labels(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a statement."""
    for target, use in left_out(module):
        name = unparsed(target.value)
        kind = _kind(target, name, _cloned_from(use.scope, name, use))
        if kind and not _put_back(use.scope, name, use):
            where = module.where(use.statement, use.scope)
            yield SourceFact(kind=kind, name=name, text=spelled(use.statement), where=where)


def left_out(module: Module) -> Iterator[tuple[ast.Subscript, Use]]:
    """``labels[mask]`` of ``labels[mask] = -100``."""
    for use in [u for scope in module.scopes for u in scope.statements] if NOTHING in module.whole else ():
        node = use.statement
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Subscript) and unparsed(node.value) == NOTHING:  # type: ignore[attr-defined]
            yield target, use


def padded_labels(project: Project, module: Module, reached: Sequence[Module]) -> Iterator[SourceFact]:
    """``labels = ids.clone()`` of ids that a tokenizer filled up, for a model that counts them all; one fact a statement."""
    text = "\n".join(each.whole for each in reached)
    if "padding=" not in text or CAUSAL.search(text) is None or MASKED.search(text) is not None:
        return
    for scope in module.scopes if ".backward(" in text else ():
        for use in scope.statements:
            value = use.statement.value if isinstance(use.statement, ast.Assign) else None
            copied = isinstance(value, ast.Call) and _named(value, "clone", "copy") and _becomes_labels(scope, use)
            for call, place in _filled_up(project, value.func.value, use) if copied else ():  # type: ignore[union-attr]
                yield SourceFact(
                    kind="padded labels", name=spelled(value), text=spelled(call.func),  # type: ignore[arg-type]
                    where=module.where(use.statement, scope), other=place.scope.module.where(call, place.scope),
                )  # fmt: skip


def _named(call: ast.Call, *methods: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in methods


def _becomes_labels(scope: Scope, use: Use) -> bool:
    """``batch["labels"]``, or a name that a returned dictionary has under "labels"."""
    target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Constant) and target.slice.value == "labels"
    held = [
        v
        for value, _ in scope.returns
        if isinstance(value, ast.Dict)
        for k, v in zip(value.keys, value.values, strict=True)
        if isinstance(k, ast.Constant) and k.value == "labels"
    ]
    name = target.id if isinstance(target, ast.Name) else ""
    plain = bool(held) and all(isinstance(v, ast.Name) and v.id == name for v in held)
    return plain and len(scope.bindings[name]) == 1 and not _put_back(scope, name, use)


def _filled_up(project: Project, node: ast.expr, use: Use) -> Iterator[tuple[ast.Call, Use]]:
    """The call of a tokenizer that made these ids, and filled them up to one length."""
    found = origins(project, node, use)
    node, place = (found[0].node, found[0].use) if len(found) == 1 else (node, use)
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SHAPES:
        node = node.func.value
    part = node.slice if isinstance(node, ast.Subscript) else None
    ids = part.value if isinstance(part, ast.Constant) else getattr(node, "attr", "")
    made = origins(project, node.value, place) if isinstance(node, (ast.Subscript, ast.Attribute)) else []
    for each in made if ids == "input_ids" and len(made) == 1 else ():
        given = {k.arg: k.value for k in each.node.keywords} if isinstance(each.node, ast.Call) else {}
        padding = given.get("padding")
        whole = isinstance(padding, ast.Constant) and padding.value == "max_length"
        listed = isinstance(padding, ast.Constant) and padding.value in (True, "longest")
        several = isinstance(each.node, ast.Call) and each.node.args and isinstance(each.node.args[0], ast.ListComp)
        if isinstance(each.node, ast.Call) and (whole or (listed and several)):
            yield each.node, each.use


def _kind(target: ast.Subscript, name: str, source: str) -> str:
    """Everything is masked, or everything but one token."""
    chosen = target.slice
    if isinstance(chosen, ast.Compare) and len(chosen.ops) == 1 and isinstance(chosen.ops[0], ast.NotEq):
        return "one label left" if unparsed(chosen.left) == name else ""
    parts = chosen.elts if isinstance(chosen, ast.Tuple) else [chosen]
    if not all(isinstance(part, ast.Slice) and part.lower is None and part.step is None for part in parts):
        return ""
    last = parts[-1].upper if isinstance(parts[-1], ast.Slice) else None
    rows = all(isinstance(part, ast.Slice) and part.upper is None for part in parts[:-1])
    whole = {f"{each}.{length}" for each in (name, source) for length in LENGTH if each}
    whole |= {f"len({each})" for each in (name, source) if each and len(parts) == 1}
    text = unparsed(last) if last is not None else ""
    return "no label left" if rows and source and (not text or text.removesuffix(" - 1") in whole) else ""


def _cloned_from(scope: Scope, name: str, use: Use) -> str:
    """``ids`` of ``labels = ids.clone()``."""
    found = scope.reaching(name, use) if name in scope.bindings else []
    value = found[0].value if len(found) == 1 else None
    func = value.func if isinstance(value, ast.Call) else None
    copied = isinstance(func, ast.Attribute) and func.attr in ("clone", "copy")
    return unparsed(func.value) if copied and isinstance(func, ast.Attribute) else ""


def _put_back(scope: Scope, name: str, use: Use) -> bool:
    """Labels are written into it again."""
    later = [u.statement for u in scope.statements[use.order + 1 :]]
    targets = [t for node in later if isinstance(node, ast.Assign) for t in node.targets]
    return any(unparsed(t) == name or unparsed(t).startswith(f"{name}[") for t in targets) or any(
        kept_by(node)[0] == name for node in later
    )
