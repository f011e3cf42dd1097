"""What else may be done to a ready-made model, after which its scores may be anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from flatline.readers.source._scopes import Module, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project
    from flatline.readers.source._things import Thing

FAMILIES = {
    "fc": re.compile(r"torchvision\.models\.((wide_)?resnet|resnext|shufflenet|regnet)\w*"),
    "classifier": re.compile(r"torchvision\.models\.(vgg|alexnet|densenet|mobilenet|efficientnet|convnext|mnasnet)\w*"),
    "head": re.compile(r"torchvision\.models\.swin\w*"),
    "heads": re.compile(r"torchvision\.models\.vit_\w*"),
}
ADDS = ("append", "add_module")  # a layer behind the others
HARMLESS = {"train", "eval", "to", "cuda", "cpu", "float", "half", "double", "bfloat16", "type", "parameters", "forward",
            "named_parameters", "modules", "named_modules", "children", "named_children", "state_dict", "buffers",
            "load_state_dict", "zero_grad", "requires_grad_", "apply", "compile", "share_memory", "get_classifier",
            "named_buffers", "reset_classifier", "forward_features", "set_grad_checkpointing"}  # fmt: skip
HOOKS = {"register_forward_hook", "register_forward_pre_hook"}
INSIDE = ("_", "forward")  # what every model has, whatever its layers are called


def last(target: ast.expr) -> ast.Attribute | None:
    """``model.heads`` of ``model.heads.head`` and ``model.heads[0]``."""
    node = target.value if isinstance(target, ast.Subscript) else target
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr in FAMILIES:
        node = node.value
    return node if isinstance(node, ast.Attribute) and node.attr in FAMILIES else None


def is_operated_on(project: Project, thing: Thing, places: list[str]) -> bool:
    """Whether a model may get another end than by what _heads.py reads."""
    return any(_concerns(project, thing, places, change) for change in _changes(thing.use.scope.module))


def _concerns(project: Project, thing: Thing, places: list[str], change: Change) -> bool:
    """Whether it is done to the end of this model; by a hook and by setattr(), also to what is not known."""
    node, below, use, anyone = change
    known = isinstance(node, ast.Name) and use.scope.own == (node.id,)
    while True:
        things = project.things(node, use)
        known = known or bool(things)
        if any(t.call is thing.call for t in things):
            return below is None or below in places or below.startswith(INSIDE) or len(places) > 1
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr" and node.args:
            node = ast.copy_location(ast.Attribute(node.args[0], INSIDE[0]), node)
        if not isinstance(node, (ast.Attribute, ast.Subscript)):
            return anyone and not known
        below = node.attr if isinstance(node, ast.Attribute) else below
        node = node.value


class Change(NamedTuple):
    """Of a file: what something is done to, and the attribute of it that is written."""

    node: ast.expr
    below: str | None
    use: Use
    anyone: bool = False


@cache
def _changes(module: Module) -> tuple[Change, ...]:
    return tuple(_found(module))


def _found(module: Module) -> Iterator[Change]:
    for scope in module.scopes:
        for use in scope.statements:
            node = use.statement
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                for each in _written(node):
                    yield Change(each.value, each.attr if isinstance(each, ast.Attribute) else "", use)
        for call, use in scope.calls:
            func = call.func
            if isinstance(func, ast.Name) and func.id == "setattr" and call.args:
                yield Change(call.args[0], None, use, True)
            elif isinstance(func, ast.Attribute) and func.attr not in HARMLESS and not _is_read(func.value, call):
                yield Change(func.value, None, use, func.attr in HOOKS)


def _written(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> Iterator[ast.Attribute | ast.Subscript]:
    """``model.last_linear = ...``, ``model._modules[name] = ...``; and the end of a model under another name."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, (ast.Attribute, ast.Subscript)) and last(target) is None:
            yield target
    held = node.value.value if isinstance(node.value, ast.Subscript) else node.value
    if isinstance(held, ast.Attribute) and held.attr in {*FAMILIES, "_modules", "__dict__"}:
        yield held


def _is_read(receiver: ast.expr, call: ast.Call) -> bool:
    """``model.classifier.append(...)``, which _heads.py follows."""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in ADDS
        and bool(call.args)
        and last(receiver) is not None
    )
