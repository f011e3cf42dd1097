"""Which functions and calls may do anything to the state of training."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from flatline.events import SourceTick, SourceTickKind
from flatline.readers.source._concrete import overriding
from flatline.readers.source._dispatch import each_of, is_likely, is_unknown
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, iterated

CLIPS = {f"torch.nn.utils.clip_grad_{name}" for name in ("norm_", "norm", "value_")}
NAMES = {
    "zero_grad",
    "backward",
    "step",
    "unscale_",
    "eval",
    "train",
    "zero_",
    "copy_",
    "add_",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grad_norm",
}
SUSPECT = re.compile(
    r"backward|step|closure|train|update|optim|scaler|learn|fit|minimi[sz]e"
    r"|(set|assign|load|copy|average|reduce|sync|unflatten|apply|write|put)\w*grad",
    re.IGNORECASE,
)
Paths: TypeAlias = list[tuple[SourceTick, ...]]
Index: TypeAlias = tuple[dict[int, Use], dict[int, list[ast.Call]], set[str]]


class Training:
    """What is known of the functions of a project, as far as the loops of one module come by them."""

    def __init__(self, project: Project, module: Module) -> None:
        self.project, self.module = project, module
        self.zeroed = {key for scope in module.scopes for key in _duck(scope)}
        self._busy: dict[int, bool] = {}
        self._busy_calls: dict[tuple[int, Use], bool] = {}
        self._training: dict[int, bool] = {}
        self._overriding: dict[int, Sequence[Scope]] = {}
        self._wrappers: dict[int, tuple[Scope, str] | None] = {}
        self._indexes: dict[int, Index] = {}
        self.matters: dict[int, bool] = {}  # statements, once they were looked at
        self.inlined: dict[tuple[object, ...], Paths | None] = {}  # functions, as they were called

    def index(self, scope: Scope) -> Index:
        """Uses and calls of a function by statement, and what step is called on."""
        if id(scope) not in self._indexes:
            calls: dict[int, list[ast.Call]] = {}
            stepped = set()
            for call, use in scope.calls:
                calls.setdefault(id(use.statement), []).append(call)
                if isinstance(call.func, ast.Attribute) and call.func.attr == "step":
                    stepped.add(unparsed(call.func.value))
            self._indexes[id(scope)] = {id(use.statement): use for use in scope.statements}, calls, stepped
        return self._indexes[id(scope)]

    def busy(self, function: Scope) -> bool:
        """Whether a function may do anything to the state of training."""
        if id(function) not in self._busy:
            self._busy[id(function)] = False
            empties = any(isinstance(u.statement, ast.Assign) and wipes(u.statement) for u in function.statements)
            around = self.wrapper(function)
            calls = [*function.calls, *(around[0].calls if around is not None else ())]
            self._busy[id(function)] = empties or any(self.busy_call(call, use) for call, use in calls)
        return self._busy[id(function)]

    def wrapper(self, function: Scope) -> tuple[Scope, str] | None:
        """What a decorator of the project puts around a function, and how that calls it."""
        if id(function) not in self._wrappers:
            self._wrappers[id(function)] = self.project.wrapper(function)
        return self._wrappers[id(function)]

    def trains(self, function: Scope) -> bool:
        """Whether a backward or a step may be in it, or in what it calls."""
        if id(function) not in self._training:
            self._training[id(function)] = False
            own = any(
                isinstance(c.func, ast.Attribute) and c.func.attr in ("backward", "step") for c, _ in function.calls
            )
            around = self.wrapper(function) if not own else None
            calls = [*function.calls, *(around[0].calls if around is not None else ())] if not own else []
            called = (each for c, u in calls for each in self._reached(c, u))
            own = own or any(
                isinstance(c.func, ast.Attribute) and c.func.attr in ("backward", "step") for c, _ in calls
            )
            self._training[id(function)] = own or any(self.trains(f) for f in called)
        return self._training[id(function)]

    def _reached(self, call: ast.Call, use: Use) -> Sequence[Scope]:
        """What a call may run."""
        function = self.project.callee(call, use)
        if function is None and is_likely(call, use):
            return [run.function for run in each_of(self.project, call, use, {})]
        return self.answers(function)

    def answers(self, function: Scope | None) -> Sequence[Scope]:
        """A function, and what classes below put in its place."""
        if function is None or function.owner is None:
            return () if function is None else (function,)
        if id(function) not in self._overriding:
            self._overriding[id(function)] = (function, *overriding(self.project, function))
        return self._overriding[id(function)]

    def may_train_between(self, function: Scope) -> bool:
        """Whether something may happen to the state of training while a generator waits."""
        sites = self.project.calls_of(function)
        if not sites or is_manager(function):
            return True
        loops = [u.statement for call, u in sites if goes_through(u.statement, call)]
        bodies = [(u, s) for s, (_, u) in zip(loops, sites, strict=False)]
        return len(loops) != len(sites) or any(
            self.busy_call(call, place)
            for use, loop in bodies
            for call, place in use.scope.calls
            if loop.lineno < call.lineno <= (loop.end_lineno or 0)
        )

    def busy_call(self, call: ast.Call, use: Use) -> bool:
        """Whether a call is a tick, or may be one, or leads to one."""
        key = (id(call), use)
        if key not in self._busy_calls:
            func = call.func
            name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
            known = name in NAMES or SUSPECT.search(name) is not None or self.project.dotted(func, use) in CLIPS
            function = None if known else self.project.callee(call, use)
            passed = not known and function is None and any(self.is_trainer(a, use) for a in call.args)
            runs = each_of(self.project, call, use, {}) if not known and not passed and function is None else ()
            listed = [run.function for run in runs]
            if function is None and isinstance(use.statement, (ast.With, ast.AsyncWith)):
                listed = [*listed, *(each for each in managers(self.project, call, use) if each is not None)]
            inner = self.answers(function) if function is not None else listed
            unknown = not inner and function is None and not known and is_unknown(self.project, call, use)
            self._busy_calls[key] = known or passed or unknown or any(self.busy(each) for each in inner)
        return self._busy_calls[key]

    def is_trainer(self, node: ast.expr, use: Use) -> bool:
        """Whether an argument is an optimizer."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        return any(thing.is_optimizer for thing in self.project.things(node, use))


def _duck(scope: Scope) -> Iterator[str]:
    """What zero_grad is called on: with a step of its own, it is an optimizer."""
    for call, _ in scope.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
            yield unparsed(call.func.value)


def wipes(node: ast.Assign) -> SourceTickKind | None:
    """``p.grad = None`` zeroes; any other gradient that is set by hand stands for a backward, ``m.training = was`` for train()."""
    for target in node.targets:
        if isinstance(target, ast.Attribute) and target.attr == "grad":
            empty = isinstance(node.value, ast.Constant) and node.value.value is None
            return "zero" if empty else "backward"
        if isinstance(target, ast.Attribute) and target.attr == "training":
            return "train"
    return None


def goes_through(statement: ast.AST, call: ast.Call) -> bool:
    """A loop over what the call returns."""
    return isinstance(statement, (ast.For, ast.AsyncFor)) and iterated(statement.iter) is call


def is_manager(function: Scope) -> bool:
    """``@contextmanager``."""
    return bool(function.yields) and function.marked("contextmanager", "asynccontextmanager")


def managers(project: Project, node: ast.expr, use: Use) -> tuple[Scope | None, Scope | None]:
    """What runs when an object of the project is entered and left."""
    things = project.things(node, use)
    owner = things[0].made_of if len(things) == 1 and things[0].call is not None else None
    if owner is None:
        return None, None
    return project.method(owner, "__enter__"), project.method(owner, "__exit__")
