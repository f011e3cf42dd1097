"""Labels of which a mask leaves nothing, or one token alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._facts import kept_by
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, spelled

LENGTH = ("shape[1]", "shape[-1]", "size(1)", "size(-1)")


def masked_labels(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a statement."""
    if not any("-100" in line for line in module.text.lines):
        return
    for scope in module.scopes:
        for use in scope.statements:
            node = use.statement
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if not isinstance(target, ast.Subscript) or ast.unparse(node.value) != "-100":  # type: ignore[attr-defined]
                continue
            name = ast.unparse(target.value)
            kind = _kind(target, name, _cloned_from(scope, name, use))
            if kind and not _put_back(scope, name, use):
                yield SourceFact(kind=kind, name=name, text=spelled(node), where=module.where(node, scope))


def _kind(target: ast.Subscript, name: str, source: str) -> str:
    """Everything is masked, or everything but one token."""
    chosen = target.slice
    if isinstance(chosen, ast.Compare) and len(chosen.ops) == 1 and isinstance(chosen.ops[0], ast.NotEq):
        return "one label left" if ast.unparse(chosen.left) == name else ""
    parts = chosen.elts if isinstance(chosen, ast.Tuple) else [chosen]
    if not all(isinstance(part, ast.Slice) and part.lower is None and part.step is None for part in parts):
        return ""
    last = parts[-1].upper if isinstance(parts[-1], ast.Slice) else None
    rows = all(isinstance(part, ast.Slice) and part.upper is None for part in parts[:-1])
    whole = {f"{each}.{length}" for each in (name, source) for length in LENGTH if each}
    whole |= {f"len({each})" for each in (name, source) if each and len(parts) == 1}
    text = ast.unparse(last) if last is not None else ""
    return "no label left" if rows and source and (not text or text.removesuffix(" - 1") in whole) else ""


def _cloned_from(scope: Scope, name: str, use: Use) -> str:
    """``ids`` of ``labels = ids.clone()``."""
    found = scope.reaching(name, use) if name in scope.bindings else []
    value = found[0].value if len(found) == 1 else None
    func = value.func if isinstance(value, ast.Call) else None
    copied = isinstance(func, ast.Attribute) and func.attr in ("clone", "copy")
    return ast.unparse(func.value) if copied and isinstance(func, ast.Attribute) else ""


def _put_back(scope: Scope, name: str, use: Use) -> bool:
    """Labels are written into it again."""
    later = [u.statement for u in scope.statements[use.order + 1 :]]
    targets = [t for node in later if isinstance(node, ast.Assign) for t in node.targets]
    return any(ast.unparse(t) == name or ast.unparse(t).startswith(f"{name}[") for t in targets) or any(
        kept_by(node)[0] == name for node in later
    )
