"""Workers of a loader that are all given one seed, and a data set that draws from what it sets."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument, argument_at
from flatline.readers.source._batched import LOADER
from flatline.readers.source._nodes import walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, spelled

SEEDS = {"numpy.random.seed": "numpy.random", "random.seed": "random", "torch.manual_seed": "torch"}
DRAWS = re.compile(
    r"(numpy\.random|random|torch)\.((rand|randn|randint|random|uniform|normal|choice|choices|sample|shuffle|permutation|"
    r"beta|gauss|randrange|betavariate|binomial|poisson|standard_normal|random_sample|randperm|bernoulli|multinomial)(_like)?)"
)
FIXED = {"int", "abs"}  # functions of a number that may stand around a seed
CALLS = 16  # functions that make an item


@dataclass(frozen=True, slots=True)
class Seed:
    """A generator gets a number in the function that each worker begins with."""

    library: str
    call: ast.Call
    use: Use
    same: bool  # in all workers


def equal_streams(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a seed."""
    if "worker_init_fn" not in module.whole:
        return
    for scope in module.scopes:
        for call, use in scope.calls:
            if project.dotted(call.func, use) != LOADER or not _trains_with_several(project, call, use):
                continue
            drawn = {library: place for place, library in _drawn_by_items(project, call, use)}
            for seed in _shared(list(_seeds(project, call, use))) if drawn else ():
                if seed.library in drawn:
                    yield SourceFact(
                        kind="equal streams", name=seed.library, text=spelled(seed.call),
                        where=seed.use.scope.module.where(seed.call, seed.use.scope), other=module.where(call, scope),
                    )  # fmt: skip


def _trains_with_several(project: Project, call: ast.Call, use: Use) -> bool:
    """Two workers or more, and batches in another order each time."""
    workers, shuffle = argument_at(call, "num_workers", 5), argument_at(call, "shuffle", 2)
    count, mixed = project.number(workers, use), project.constant(shuffle, use)
    return count is not None and count > 1 and mixed is not None and bool(mixed.value)


def _shared(seeds: list[Seed]) -> Iterator[Seed]:
    """The last of each library, if no other gives each worker its own."""
    own = {seed.library for seed in seeds if not seed.same}
    yield from {seed.library: seed for seed in seeds if seed.library not in own}.values()


# --------------------------------------------------------------------------- the function of each worker


def _seeds(project: Project, loader: ast.Call, use: Use) -> Iterator[Seed]:
    """What worker_init_fn seeds, also in a function that it calls."""
    given = argument_at(loader, "worker_init_fn", 9)
    things = project.things(given, use)
    start = things[0].function if len(things) == 1 else None
    if start is None or len(start.params) - (start.owner is not None) < 1:
        return
    bound = things[0].given
    free = {p for p in start.params if bound is None or not _is_bound(bound, p)}
    for call, place in start.calls:
        yield from _seed(project, call, place, free)
        function = project.callee(call, place)
        if function is None or function is start:
            continue
        varied = {p for p in function.params if _varies(project, argument(call, function, p), place, free)}
        for inner, site in function.calls:
            yield from _seed(project, inner, site, varied)


def _is_bound(partial: ast.Call, name: str) -> bool:
    """``partial(start, seed=1)`` gives it."""
    return any(keyword.arg == name for keyword in partial.keywords)


def _seed(project: Project, call: ast.Call, use: Use, free: Collection[str]) -> Iterator[Seed]:
    library = SEEDS.get(project.dotted(call.func, use))
    given = call.args[0] if len(call.args) == 1 else call.keywords[0].value if len(call.keywords) == 1 else None
    if library is not None:
        yield Seed(library, call, use, given is not None and not _varies(project, given, use, free))


def _varies(project: Project, node: ast.expr | None, use: Use, free: Collection[str]) -> bool:
    """Anything but constants, and names that were there before the workers were."""
    for inner in walk(node) if node is not None else ():
        if isinstance(inner, ast.Call) and spelled(inner.func) not in FIXED:
            return True
        if not isinstance(inner, ast.Name) or not isinstance(inner.ctx, ast.Load):
            continue
        found = use.scope.reaching(inner.id, use) if inner.id in use.scope.bindings else []
        if inner.id in free or inner.id in use.scope.outer or any(b.value is None and not b.parameter for b in found):
            return True
        if any(b.value is not None and _varies(project, b.value, b.use, free) for b in found):
            return True
    return False


# --------------------------------------------------------------------------- what the items are made of


def _drawn_by_items(project: Project, loader: ast.Call, use: Use) -> Iterator[tuple[ast.Call, str]]:
    """Draws from the generators that all share, where none of the functions seeds them for an item."""
    for thing in project.things(argument_at(loader, "dataset", 0), use):
        item = project.method(thing.made_of, "__getitem__") if thing.made_of is not None else None
        scopes = called_by(project, item) if item is not None else []
        calls = [(call, project.dotted(call.func, place)) for scope in scopes for call, place in scope.calls]
        if not any(name in SEEDS for _, name in calls):
            yield from ((c, found[1]) for c, name in calls if (found := DRAWS.fullmatch(name)) and not _has_own(c))


def _has_own(call: ast.Call) -> bool:
    """``torch.rand(8, generator=self.rng)``."""
    return any(keyword.arg == "generator" for keyword in call.keywords)


def called_by(project: Project, function: Scope) -> Sequence[Scope]:
    """A function, and those of the project that it calls."""
    found = [function]
    for each in found:
        inner = [project.callee(*pair) for pair in each.calls] if len(found) < CALLS else []
        found += [scope for scope in inner if scope is not None and scope not in found]
    return found
