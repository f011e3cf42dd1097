"""Generators of a data set that each worker of its loader has a copy of, in one and the same state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument_at
from flatline.readers.source._batched import LOADER
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Module, Use, spelled
from flatline.readers.source._spread import keywords
from flatline.readers.source._things import Thing
from flatline.readers.source._workers import called_by

GENERATORS = {"numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator", "random.Random"}
ITEMS = ("__getitem__", "__iter__")
RENEWED = re.compile(
    r"get_worker_info|worker_id|initial_seed|seed_worker|worker_seed"
)  # beside a generator that is made or seeded
MADE = re.compile(r"default_rng\(|RandomState\(|Random\(|\.seed\(|SeedSequence|manual_seed|spawn\(")


def copied_streams(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a loader."""
    if "num_workers" not in module.whole:
        return
    for scope in module.scopes:
        for call, use in scope.calls:
            if project.dotted(call.func, use) != LOADER or not _has_workers(project, call, use):
                continue
            certain = _mixes(project, call, use) and not RENEWED.search(module.whole)
            for data in project.things(argument_at(call, "dataset", 0), use):
                for made, place in _drawn_from(project, data):
                    name: str = made.targets[0].attr  # type: ignore[attr-defined]
                    plain = certain and _is_left_alone(project, name)
                    yield SourceFact(
                        kind="copied training stream" if plain else "copied stream",
                        name=f"self.{name}", text=spelled(made.value),
                        where=place.scope.module.where(made, place.scope), other=module.where(call, scope),
                    )  # fmt: skip


def _has_workers(project: Project, call: ast.Call, use: Use) -> bool:
    """Two or more, and nothing is done as each of them begins."""
    named = keywords(project, call, use)
    count = project.number(named.get("num_workers") or argument_at(call, "num_workers", 5), use)
    started = argument_at(call, "worker_init_fn", 9) or named.get("worker_init_fn")
    return None not in named and count is not None and count > 1 and started is None


def _mixes(project: Project, call: ast.Call, use: Use) -> bool:
    """Batches in another order each time: it is trained with."""
    shuffle = keywords(project, call, use).get("shuffle") or argument_at(call, "shuffle", 2)
    known = project.constant(shuffle, use)
    return known is not None and known.value is True


def _drawn_from(project: Project, data: Thing) -> Iterator[tuple[ast.Assign, Use]]:
    """The generators that ``__init__`` makes, and that items are drawn from."""
    owner = data.made_of
    items = [m for name in ITEMS if owner is not None and (m := project.method(owner, name)) is not None]
    if owner is None or not items or data.call is None or _is_renewed(owner):
        return
    text = "\n".join(unparsed(each.node) for each in called_by(project, items[0]))
    for name, bound in owner.attributes.items():
        node, use = (bound[0].use.statement, bound[0].use) if len(bound) == 1 else (None, None)
        value = bound[0].value if len(bound) == 1 and not bound[0].index else None
        if use is None or not isinstance(node, ast.Assign) or not isinstance(value, ast.Call):
            continue
        start = (
            use.scope.name.endswith(".__init__") and value is node.value and isinstance(node.targets[0], ast.Attribute)
        )
        if start and project.dotted(value.func, use) in GENERATORS and re.search(rf"\bself\.{name}\.\w+\(", text):
            yield node, use


def _is_left_alone(project: Project, name: str) -> bool:
    """Nothing seeds the generator later, or puts another one in its place."""
    modules = [each for each in project.modules.values() if each is not None and f".{name}" in each.whole]
    later = re.compile(
        rf"\.{name}\.(seed|setstate|set_state|bit_generator|spawn|jumped)\b|setattr\([^)]*['\"]{name}['\"]"
    )
    return not any(project.set_from_outside(name, each) or later.search(each.whole) for each in modules)


def _is_renewed(owner: Class) -> bool:
    """Something of the class asks which worker it is, and makes a generator of that."""
    text = unparsed(owner.node)
    once = len(MADE.findall(text)) <= 1
    return not once and RENEWED.search(text) is not None
