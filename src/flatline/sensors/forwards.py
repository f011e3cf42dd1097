"""Reads the forward of every class of the user's that runs, once."""

from __future__ import annotations

import ast

from flatline.events import DimensionsMixed, ProjectionDrawn, Where
from flatline.sensors.callers import is_users
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import ModelSensor
from flatline.sensors.projections import drawn_in_forward
from flatline.sensors.reshapes import cut_anew
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
                self._tell(kind.__name__, function, file)

    def _tell(self, module: str, function: ast.FunctionDef, file: str) -> None:
        drawn, cut = drawn_in_forward(function, file), cut_anew(function, file)
        if drawn is not None:
            self.loop.emit(ProjectionDrawn(step=self.loop.step, where=drawn[0], module=module, statement=drawn[1]))
        if cut is not None:
            where, call, order = cut
            self.loop.emit(
                DimensionsMixed(step=self.loop.step, where=where, module=module, statement=call, order=order)
            )


def forward_of(kind: type) -> tuple[ast.FunctionDef | None, str]:
    """The source of a class's forward, and its file; None for one that is not the user's."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    tree = tree_of(code.co_filename) if code is not None and is_users(code.co_filename) else None
    if code is None or tree is None:
        return None, ""
    found = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.lineno == code.co_firstlineno)
    return next(found, None), code.co_filename
