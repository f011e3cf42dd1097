"""Methods that take the place of the one that zeroes gradients, and do not call it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from flatline.events import SourceFact, SourceLoop, SourceTick, Where
from flatline.readers.source._concrete import method, order
from flatline.readers.source._imported import all_reached
from flatline.readers.source._loops import Loops
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Module, Scope

ZEROES = re.compile(r"zero_grad|\.grad\s*=\s*None|\.grad(\.data)?\.(zero_|fill_)|\.grad\.data\s*=|set_to_none")


def unzeroed(project: Project, loops: Loops) -> Iterator[SourceFact]:
    """One fact a method."""
    told = set[int]()
    for below in loops.below:
        step = _step(below.loop) if below.loop.repeats else None
        zeroes = [*_zeroes(below.above)]
        if step is None or not zeroes or [*_zeroes([below.loop])]:
            continue
        found = [_instead(project, below.owner, place) for place in zeroes]
        if None in found or not _all_known(project, [loops.module, below.owner.module], zeroes):
            continue
        for function in found:
            if function is not None and id(function) not in told:
                told.add(id(function))
                where = function.module.where(function.node, function)
                yield SourceFact(
                    kind="zeroing replaced", name=step.name, text=function.name, where=where, other=zeroes[0]
                )


def _step(loop: SourceLoop) -> SourceTick | None:
    """The one optimizer's step that follows a backward on every way; None if anything else may happen."""
    steps = [tick for path in loop.paths for tick in path if tick.kind == "step"]
    plain = all(t.known and t.always and not t.depth and not t.fresh for t in steps)
    if not steps or not plain or len({t.of for t in steps}) > 1 or loop.has("opaque"):
        return None
    return steps[0] if all(_follows(path) for path in loop.paths) else None


def _follows(path: Sequence[SourceTick]) -> bool:
    kinds = [tick.kind for tick in path if tick.kind in ("backward", "step")]
    return kinds == ["backward", "step"] and all(t.known for t in path if t.kind == "backward")


def _zeroes(loops: Sequence[SourceLoop]) -> Iterator[Where]:
    """The places that zero gradients."""
    for loop in loops:
        yield from (t.where for path in loop.paths for t in path if t.kind == "zero" and t.where is not None)


def _instead(project: Project, owner: Class, place: Where) -> Scope | None:
    """The method of a class that runs in the place of the one which zeroes, and does not call it."""
    for each in order(project, owner):
        for name, function in each.methods.items():
            if each.module.text.path != place.file or function.name != place.function:
                continue
            other = method(project, owner, name)
            asked = re.compile(rf"super\(.*\)\.{name}\(|{each.node.name}\.{name}\(")
            calls = any(asked.search(line) for each in order(project, owner) for line in each.module.text.lines)
            return other if other is not function and not calls else None
    return None


def _all_known(project: Project, modules: Sequence[Module], zeroes: Sequence[Where]) -> bool:
    """Nothing else in these files, and in those that they import, zeroes gradients."""
    known = {(place.file, place.line) for place in zeroes}
    files = {each.text.path: each for module in modules for each in all_reached(project, module)}
    for each in files.values():
        for number, line in enumerate(each.text.lines, 1):
            if "grad" in line and ZEROES.search(line) and not line.lstrip().startswith("#"):
                file, at = each.text.place(number)
                if (file, at) not in known:
                    return False
    return True
