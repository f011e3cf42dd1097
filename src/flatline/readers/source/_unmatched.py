"""Checkpoints of which no name is one of the model's: both classes are in the project, and have no part of one name."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._prefixed import saved_where
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Class, Module, Use
from flatline.readers.source._seen import is_module_class
from flatline.readers.source._values import Source, origins
from flatline.readers.source._zoo import parts_of

REGISTERS = ("register_buffer", "register_parameter", "add_module", "register_module")
RENAMES = (
    "state_dict",
    "load_state_dict",
    "_load_from_state_dict",
    "_save_to_state_dict",
    "__setattr__",
    "__getattr__",
)


def unmatched_by(project: Project, state: ast.expr, receiver: ast.expr, use: Use) -> Source | None:
    """The save of the checkpoint that is loaded, where nothing in it fits."""
    found = origins(project, state, use) if not project.written_to(state, use) else []
    saved = list(saved_where(project, found[0])) if len(found) == 1 and _is_written_out(project, found[0]) else []
    mine = _parts(project, receiver, use)
    each = [_parts(project, model, s.use) for s in saved if (model := _model_of(s.node)) is not None]
    apart = bool(mine) and all(theirs and not theirs & mine for theirs in each)
    others = [name for theirs in each for name in theirs]
    grown = any(project.set_from_outside(name, use.scope.module) for name in others) or any(
        _is_put(s.use.scope.module, name, others) for name in mine for s in saved
    )
    return saved[0] if saved and len(each) == len(saved) and apart and not grown else None


def _is_put(module: Module, name: str, parts: Collection[str]) -> bool:
    """``net.head = ...`` is in the file, and not ``self.body.head = ...``, which is deeper in the model."""
    targets = [t for scope in module.scopes for u in scope.statements for t in getattr(u.statement, "targets", ())]
    named = [t.value for t in targets if isinstance(t, ast.Attribute) and t.attr == name]
    inside = [v for v in named if isinstance(v, ast.Attribute) and v.attr in parts and unparsed(v.value) == "self"]
    return len([v for v in named if unparsed(v) != "self"]) > len(inside)


def _is_written_out(project: Project, source: Source) -> bool:
    """``torch.load("body.pt")["model"]``: the path is the very text that it is saved under."""
    node = source.node
    while isinstance(node, ast.Subscript):
        node = node.value
    inner = origins(project, node, source.use)
    call = inner[0].node if len(inner) == 1 else None
    paths = origins(project, call.args[0], inner[0].use) if isinstance(call, ast.Call) and call.args else []
    return bool(paths) and all(isinstance(each.node, ast.Constant) for each in paths)


def _model_of(node: ast.expr) -> ast.expr | None:
    """``model`` of ``model.state_dict()``."""
    func = node.func if isinstance(node, ast.Call) and not node.args else None
    return func.value if isinstance(func, ast.Attribute) and func.attr == "state_dict" else None


def _parts(project: Project, model: ast.expr, use: Use) -> set[str]:
    """The attributes of a model that may be in its state; nothing where they cannot be known."""
    things = project.things(model, use)
    owner = things[0].made_of if len(things) == 1 and things[0].call is not None else None
    if len(things) == 1 and things[0].call is not None and (known := parts_of(things[0])):
        return known
    start = owner.methods.get("__init__") if owner is not None else None
    if owner is None or start is None or not is_module_class(project, start):
        return set()
    classes = list(project.bases(owner))
    return _named(project, classes) if all(_is_plain(project, each, classes) for each in classes) else set()


def _is_plain(project: Project, owner: Class, classes: Sequence[Class]) -> bool:
    """It has the parts that it is seen to make, under their names, and inherits from nothing unknown."""
    bases = [thing for base in owner.node.bases for thing in project.things(base, owner.use)]
    known = all(t.name == "torch.nn.Module" or t.made_of in classes for t in bases)
    calls = [call for method in owner.methods.values() for call, _ in method.calls]
    names = [c.func.attr if isinstance(c.func, ast.Attribute) else unparsed(c.func) for c in calls]
    hidden = {*REGISTERS, "setattr", "update"} & set(names)
    plain = not hidden and not any(name in owner.methods for name in RENAMES)
    return plain and known and len(bases) == len(owner.node.bases) > 0


def _named(project: Project, classes: Sequence[Class]) -> set[str]:
    every = [(name, each) for owner in classes for name, bindings in owner.attributes.items() for each in bindings]
    return {name for name, each in every if not _is_number(project, each)}


def _is_number(project: Project, binding: Binding) -> bool:
    """``self.width = 8``."""
    return not binding.index and project.constant(binding.value, binding.use) is not None
