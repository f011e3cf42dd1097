"""Reads the forward of every class of the user's that runs, once."""

from __future__ import annotations

import ast
from collections import Counter

from flatline.events import DimensionsMixed, ProjectionDrawn, Where
from flatline.sensors.callers import is_users
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import Call, ModelSensor
from flatline.sensors.projections import drawn_in_forward
from flatline.sensors.reshapes import Reading, cut_anew, first_moved
from flatline.sensors.samples_behind import put_first
from flatline.sensors.sources import tree_of
from flatline.sensors.tree import modules


class ForwardSensor:
    """Called after the step of every optimizer; reads on closely watched steps."""

    def __init__(self, loop: Loop, models: ModelSensor) -> None:
        self.loop, self.models = loop, models
        self._read: set[type] = set()

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """The classes that are new."""
        if not self.loop.dense:
            return
        alive = [module for model in self.models.known if (module := model.ref()) is not None]
        kinds = {type(part) for model in alive for part in modules(model)}
        for kind in kinds - self._read:
            self._read.add(kind)
            function, file = forward_of(kind)
            if function is not None:
                self._tell(kind, function, file)

    def _tell(self, kind: type, function: ast.FunctionDef, file: str) -> None:
        module, drawn = kind.__name__, drawn_in_forward(function, file)
        cut = cut_anew(function, file) or self._moved(kind, function, file)
        if drawn is not None:
            self.loop.emit(ProjectionDrawn(step=self.loop.step, where=drawn[0], module=module, statement=drawn[1]))
        if cut is not None:
            where, call, order = cut
            self.loop.emit(
                DimensionsMixed(step=self.loop.step, where=where, module=module, statement=call, order=order)
            )

    def _moved(self, kind: type, function: ast.FunctionDef, file: str) -> tuple[Where, str, str] | None:
        """A view in it that moves the samples to or from the first place, by what it was given last."""
        names = getattr(getattr(kind, "forward", None), "__globals__", {})
        for model in self.models.known:
            call = next((call for call in model.calls if type(call.module) is kind and call.given), None)
            if call is not None:
                batch = next((each.given[0] for each in model.calls if not each.depth and each.given), 0)
                reading = Reading(function, call.module, call.given, names, batch, _of_one_call(model.calls))
                return first_moved(reading, file) or put_first(reading, file)
        return None


def _of_one_call(calls: list[Call]) -> dict[int, tuple[tuple[int, ...], ...]]:
    """The shapes that modules gave, but for those that ran several times in the pass."""
    times = Counter(id(call.module) for call in calls)
    return {id(call.module): call.outputs for call in calls if times[id(call.module)] == 1}


def forward_of(kind: type) -> tuple[ast.FunctionDef | None, str]:
    """The source of a class's forward, and its file; None for one that is not the user's."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    tree = tree_of(code.co_filename) if code is not None and is_users(code.co_filename) else None
    if code is None or tree is None:
        return None, ""
    found = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.lineno == code.co_firstlineno)
    return next(found, None), code.co_filename
