"""What else a source shows: a kind a function."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._afterwards import all_afterwards
from flatline.readers.source._autocasts import half
from flatline.readers.source._bystanders import of_others
from flatline.readers.source._kept import kept, kept_scores
from flatline.readers.source._learned import logged_softmax
from flatline.readers.source._plain_lists import plain_lists
from flatline.readers.source._rebound import rebound
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module
from flatline.readers.source._seen import OTHER_MODE, seen_in, trained_models
from flatline.readers.source._severed import severed
from flatline.readers.source._statements import anomaly, closures, coupled, rates, schedulers, uncalled
from flatline.readers.source._unshuffled import unshuffled
from flatline.readers.source._validated import validated

OTHER_SCALING = re.compile(r"scaler|scale_loss|loss_scale|accelerat|deepspeed|fabric|lightning", re.IGNORECASE)
AFTERWARDS = 2  # lines about modes, behind the training


def facts(project: Project, module: Module) -> Iterator[SourceFact]:
    """Everything that one of the functions below sees."""
    text = "\n".join(module.text.lines)
    trains = ".backward(" in text
    scaling = trains and OTHER_SCALING.search(text) is not None
    trained: set[str] = set()
    modes = [n for n, line in enumerate(module.text.lines, 1) if OTHER_MODE.search(line)]
    if "_grad" in text or "inference_mode" in text:
        models = [t for scope in module.scopes for t in trained_models(project, scope)]
        others = of_others(project, module, modes, models) if models else set()
        modes = [n for n in modes if n not in others]
        trained = {t.identity() for t in models} if len(modes) <= AFTERWARDS else set()
    for scope in module.scopes:
        seen = seen_in(project, scope)
        yield from uncalled(seen)
        yield from kept(seen)
        yield from kept_scores(seen) if trains else ()
        yield from severed(seen)
        yield from rates(seen)
        yield from coupled(seen)
        yield from logged_softmax(seen) if trains else ()
        yield from closures(seen)
        yield from schedulers(seen) if trains else ()
        yield from rebound(seen)
        yield from anomaly(seen)
        yield from half(seen) if trains and not scaling else ()
        yield from unshuffled(seen)
        yield from validated(seen, trained) if all_afterwards(project, module, modes, scope) else ()
    for owner in module.classes.values():
        yield from plain_lists(project, module, owner.methods)
