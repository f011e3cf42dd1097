"""Files -> one event each."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain

from flatline.events import SourceParsed, Where
from flatline.readers.rehearsal.rehearsed import rehearsed
from flatline.readers.source._copied import copied_streams
from flatline.readers.source._cuts import cut_layers
from flatline.readers.source._facts import facts
from flatline.readers.source._files import Text, Unparsable, parse
from flatline.readers.source._fitted import fitted_before_split
from flatline.readers.source._frozen import drifting
from flatline.readers.source._halved import halved
from flatline.readers.source._idle import idle
from flatline.readers.source._imported import reached as reached_by
from flatline.readers.source._inverted import inverted_masks
from flatline.readers.source._labels import masked_labels, padded_labels
from flatline.readers.source._loaders import loaders
from flatline.readers.source._loads import loose_loads
from flatline.readers.source._logged_rates import logged_rates
from flatline.readers.source._loops import Loops
from flatline.readers.source._losses import losses
from flatline.readers.source._masked import masked_means
from flatline.readers.source._measured import measured_labels
from flatline.readers.source._micro import micro
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._orphans import orphans
from flatline.readers.source._outlive import outliving
from flatline.readers.source._padding import padded_targets
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module
from flatline.readers.source._still_moving import still_moving
from flatline.readers.source._terms import cut_terms
from flatline.readers.source._unlearned import unlearned
from flatline.readers.source._unzeroed import ZEROES, unzeroed
from flatline.readers.source._workers import equal_streams

SCHEDULES = re.compile(r"sched|lr_", re.IGNORECASE)


def speaks_of_torch(text: Text) -> bool:
    """Whether a file may train anything."""
    return any("torch" in line or ".backward()" in line or ".zero_grad(" in line for line in text.lines)


def event(project: Project, text: Text) -> SourceParsed:
    """What a file shows. Raises Unparsable."""
    known = project.modules.get(text.path)
    project.forget()
    try:
        module = known or Module(text, parse(text))
        if known is None:
            project.add(module, text.path)
        reached = reached_by(project, module)
        project.look_into_tables()
        plain = [each for each in reached if not speaks_of_torch(each.text)]  # no file of its own to lint
        zeroes = tuple(dict.fromkeys(place for each in reached for place in _zeroes(each)))
        found = (
            facts(project, module),
            loaders(project, module, reached),
            orphans(project, module),
            cut_layers(project, module),
            cut_terms(project, module),
            unlearned(project, module),
            outliving(project, module),
            micro(project, module),
            halved(project, module),
            padded_targets(project, module, reached),
            masked_means(project, module),
            drifting(project, module, reached),
            loose_loads(project, module),
            masked_labels(project, module),
            inverted_masks(project, module),
            padded_labels(project, module, reached),
            measured_labels(project, module),
            logged_rates(project, module),
            fitted_before_split(project, [module, *plain]),
            equal_streams(project, module),
            copied_streams(project, module),
            still_moving(project, module, reached),
        )
        walked, seen = Loops(project, module), rehearsed(project, module)
        places = {loss.where for loss in seen.losses}
        shown = chain(*found, idle(project, module, zeroes), unzeroed(project, walked))
        return SourceParsed(
            file=text.path,
            losses=(*(loss for loss in losses(project, module) if loss.where not in places), *seen.losses),
            loops=(*map(seen.corrected, walked.all()), *seen.loops),
            facts=(*filter(seen.allows, shown), *seen.facts),
            zeroes=zeroes,
            steps=any(_steps(each) for each in reached),
        )
    except RecursionError:
        raise Unparsable(f"{text.path}: is nested too deeply") from None


@cache
def _zeroes(module: Module) -> tuple[Where, ...]:
    lines = enumerate(module.text.lines, 1)
    found = [n for n, line in lines if "grad" in line and ZEROES.search(line) and not line.lstrip().startswith("#")]
    return tuple(Where(*module.text.place(number)) for number in found)


@cache
def _steps(module: Module) -> bool:
    """Anything that is called, or handed on, under the name of step, and is no schedule."""
    if "step" not in module.whole:
        return False
    called = (call.func for scope in module.scopes for call, _ in scope.calls)
    return any(map(_is_step, called)) or any(map(_is_step, walk(module.tree)))


def _is_step(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "step":
        return SCHEDULES.search(unparsed(node.value)) is None
    return isinstance(node, ast.Constant) and node.value == "step"
