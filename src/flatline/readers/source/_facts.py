"""What else a source shows: a kind a function."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from flatline.events import SourceFact
from flatline.readers.source import _managed as managed
from flatline.readers.source._afterwards import all_afterwards
from flatline.readers.source._autocasts import half
from flatline.readers.source._bystanders import of_others, of_siblings
from flatline.readers.source._flags import flags
from flatline.readers.source._imported import all_reached, reached
from flatline.readers.source._kept import kept, kept_scores
from flatline.readers.source._learned import logged_softmax
from flatline.readers.source._left_on import left_on
from flatline.readers.source._plain_lists import plain_lists
from flatline.readers.source._rebound import rebound
from flatline.readers.source._reheaded import reheaded
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope
from flatline.readers.source._seen import mode_lines, seen_in, trained_models
from flatline.readers.source._severed import severed
from flatline.readers.source._statements import anomaly, closures, coupled, rates, schedulers, stopwatch, uncalled
from flatline.readers.source._things import Thing
from flatline.readers.source._unshuffled import unshuffled
from flatline.readers.source._validated import validated

OTHER_SCALING = re.compile(r"scaler|scale_loss|loss_scale|accelerat|deepspeed|fabric|lightning", re.IGNORECASE)
ON_PURPOSE = re.compile(r"mc_?dropout|monte|bayes|uncertain|stochastic|\badapt(?!ive)|enable_drop", re.IGNORECASE)
AFTERWARDS = 2  # lines about modes, behind the training


def facts(project: Project, module: Module) -> Iterator[SourceFact]:
    """Everything that one of the functions below sees."""
    text = module.whole
    trains = _sends(module)
    scaling = trains and OTHER_SCALING.search(text) is not None
    learns = trains or ("softmax" in text and "log" in text and _is_learned_elsewhere(project, module))
    sets_flags = ".requires_grad =" in text
    asleep = list[tuple[set[str], list[int]]]()
    if _switches_off(project, text) or any(_switches_off(project, each.whole) for each in _running(project, module)):
        models = [t for each in _training(project, module) for t in trained_models(project, each)]
        asleep = list(_by_modes(project, module, models)) if models else []
    for scope in module.scopes:
        seen = seen_in(project, scope)
        yield from uncalled(seen)
        yield from kept(seen)
        yield from kept_scores(seen) if trains else ()
        yield from severed(seen)
        yield from rates(seen)
        yield from coupled(seen)
        yield from logged_softmax(seen) if learns else ()
        yield from closures(seen)
        yield from schedulers(seen) if trains else ()
        yield from rebound(seen)
        yield from reheaded(seen)
        yield from anomaly(seen)
        yield from stopwatch(seen)
        yield from flags(seen) if sets_flags else ()
        yield from half(seen) if trains and not scaling else ()
        yield from unshuffled(seen)
        trained = [names for names, modes in asleep if all_afterwards(project, module, modes, scope)]
        yield from validated(seen, set[str]().union(*trained)) if trained else ()
    for owner in module.classes.values():
        yield from plain_lists(project, module, owner.methods)


def _switches_off(project: Project, text: str) -> bool:
    """Gradients, perhaps."""
    return "_grad" in text or "inference_mode" in text or any(name in text for name in managed.names(project))


def _by_modes(project: Project, module: Module, models: Sequence[Thing]) -> Iterator[tuple[set[str], list[int]]]:
    """Models that train, and the few lines that may set their modes."""
    modes = mode_lines(project, module)
    left = left_on(project, module, modes)
    whole = [n for n in modes if n not in of_others(project, module, modes, models) | left]
    if len(whole) <= AFTERWARDS:
        yield {thing.identity() for thing in models}, whole
    for thing in models if whole and not ON_PURPOSE.search(module.whole) else ():
        own = [n for n in whole if n not in of_siblings(project, module, whole, thing)]
        if len(own) < len(whole) and len(own) <= AFTERWARDS:
            yield {thing.identity()}, own


def _is_learned_elsewhere(project: Project, module: Module) -> bool:
    """A file that imports this one sends something backward."""
    senders = [each for each in project.modules.values() if each is not None and _sends(each)]
    return any(found is module for each in senders for found in reached(project, each))


@cache
def _sends(module: Module) -> bool:
    return ".backward(" in module.whole


def _training(project: Project, module: Module) -> Iterator[Scope]:
    """The functions of a file, and of those that run them, if no mode is set in all that these import."""
    yield from module.scopes
    for each in _running(project, module):
        if not any(mode_lines(project, other) for other in all_reached(project, each)):
            yield from each.scopes


def _running(project: Project, module: Module) -> Iterable[Module]:
    """The files that call what this one defines."""
    sites = [use for scope in module.scopes for _, use in project.calls_of(scope)]
    found = {use.scope.module.text.path: use.scope.module for use in sites}
    return [each for path, each in found.items() if path != module.text.path]
