"""What a model has in it that depends on its mode: Dropout, BatchNorm."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.readers.source._arguments import argument_at
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope, Use
from flatline.readers.source._things import Thing
from flatline.readers.source._zoo import ready_made

MODES = re.compile(
    r"torch\.nn\.((?:Alpha|Feature)?Dropout[123]?d?|(?:Sync)?BatchNorm(?:[123]d)?|Transformer(?:En|De)coderLayer)"
)
VISION = re.compile(
    r"torchvision\.models\.(?:(?P<BatchNorm>(?:wide_)?resnet|resnext|densenet|mobilenet|efficientnet|googlenet|inception|"
    r"shufflenet|mnasnet|regnet)|(?P<Dropout>vgg|alexnet|squeezenet))\w*"
)
DROPS = re.compile(r"torch\.nn\.functional\.(alpha_|feature_alpha_)?dropout[123]?d?")


def modes_of(project: Project, thing: Thing, depth: int = 0) -> str:
    """A Dropout or BatchNorm that the source of a model shows: ``nn.Dropout(0.5)``."""
    if thing.call is not None and (found := MODES.fullmatch(thing.name)):
        drops = next((k.value for k in thing.call.keywords if k.arg in ("dropout", "p")), None)
        if drops is not None and not (isinstance(drops, ast.Constant) and drops.value):
            return ""
        zero = thing.call.args and isinstance(thing.call.args[0], ast.Constant) and thing.call.args[0].value == 0
        return "" if zero else found[1]
    if thing.call is not None and (found := VISION.fullmatch(thing.name)):
        return found.lastgroup or ""
    if known := ready_made(project, thing):
        return known
    if thing.made_of is None or depth > 4:
        inner = thing.call.args if thing.call is not None and thing.name == "torch.nn.Sequential" else ()
        return next((m for node in inner for m in _modes_in(project, node, thing.use, depth)), "")
    for each in project.bases(thing.made_of):
        if "forward" in each.methods and _drops(project, each.methods["forward"]):
            return "dropout"
        start = each.methods.get("__init__")
        for call, use in start.calls if start else ():
            if inside := next(iter(_modes_in(project, call, use, depth)), ""):
                return inside
    return ""


def _drops(project: Project, forward: Scope) -> bool:
    """``F.dropout(x, 0.5, training=self.training)``."""
    for call, use in forward.calls:
        if DROPS.fullmatch(project.dotted(call.func, use)) is None:
            continue
        switch, rate = argument_at(call, "training", 2), argument_at(call, "p", 1)
        size = 0.5 if rate is None else project.number(rate, use)
        if switch is not None and unparsed(switch) == "self.training" and size is not None and size > 0:
            return True
    return False


def _modes_in(project: Project, node: ast.expr, use: Use, depth: int) -> Iterator[str]:
    for thing in project.things(node, use):
        made = thing.call is node or thing.via[:1] == (id(node),)  # here, or by the function that is called here
        if made and (found := modes_of(project, thing, depth + 1)):
            yield found
