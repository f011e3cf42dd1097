"""Loops as every way through them: what happens to gradients, optimizers, schedules and modes, in order."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flatline.events import SourceLoop, SourceTick, SourceTickKind, Where
from flatline.readers.source._batched import is_loader, over_data
from flatline.readers.source._concrete import NOBODY, Selves, lowest, overriding, runs, within
from flatline.readers.source._dispatch import (
    Run,
    called_on,
    each_of,
    goes_through_objects,
    in_turn,
    is_likely,
    is_presence,
    is_unknown,
)
from flatline.readers.source._imported import one_says
from flatline.readers.source._listed import asked_for
from flatline.readers.source._means import means
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._ordered import is_whole
from flatline.readers.source._resolve import Project, Thing, argument, argument_at
from flatline.readers.source._rounds import Known, around, told, truth, turns, value
from flatline.readers.source._schedules import IN_STEPS, divisors, is_schedule, optimizer_of
from flatline.readers.source._scopes import FUNCTIONS, Class, Module, Scope, Use, iterated, lies_in, spelled
from flatline.readers.source._settled import settled
from flatline.readers.source._updates import trains_nothing
from flatline.readers.source._values import is_super, origins
from flatline.readers.source._zoo import ready_made

WAYS = 64  # through a loop; one with more is left alone
INLINED = 6  # calls within calls
LOOPS = (ast.For, ast.AsyncFor, ast.While)
MODES = re.compile(
    r"torch\.nn\.((?:Alpha|Feature)?Dropout[123]?d?|(?:Sync)?BatchNorm(?:[123]d)?|Transformer(?:En|De)coderLayer)"
)
VISION = re.compile(
    r"torchvision\.models\.(?:(?P<BatchNorm>(?:wide_)?resnet|resnext|densenet|mobilenet|efficientnet|googlenet|inception|"
    r"shufflenet|mnasnet|regnet)|(?P<Dropout>vgg|alexnet|squeezenet))\w*"
)
DROPS = re.compile(r"torch\.nn\.functional\.(alpha_|feature_alpha_)?dropout[123]?d?")
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
LENGTHS = {  # place and name of the argument
    "CosineAnnealingLR": ((1, "T_max"),),
    "OneCycleLR": ((2, "total_steps"), (4, "steps_per_epoch")),
    "StepLR": ((1, "step_size"),),
    "MultiStepLR": ((1, "milestones"),),
    "ExponentialLR": (),
    "LambdaLR": (),
    **IN_STEPS,
}
FACTORS = {"StepLR": ("gamma", 0.1), "ExponentialLR": ("gamma", 0.0), "MultiStepLR": ("gamma", 0.1)}
RESCALES = re.compile(
    r"register_(?:post_accumulate_grad_)?hook\(|\.grad(?:\.data)?\s*[/*]=|\.grad(?:\.data)?\.(?:div|mul)_\("
    r"|\.grad(?:\.data)?\s*=[^=\n]*[/*]|_foreach_(?:div|mul)_"
)
SUSPECT = re.compile(
    r"backward|step|closure|train|update|optim|scaler|learn|fit|minimi[sz]e"
    r"|(set|assign|load|copy|average|reduce|sync|unflatten|apply|write|put)\w*grad",
    re.IGNORECASE,
)
HAS_GRADIENT = re.compile(r"\w+\.grad( is not None)?")
Keys = Mapping[str, str]
Index = tuple[dict[int, Use], dict[int, list[ast.Call]], set[str]]


@dataclass(frozen=True, slots=True)
class Way:
    """What has happened so far on one way."""

    ticks: tuple[SourceTick, ...] = ()
    choices: tuple[tuple[str, bool], ...] = ()
    ended: str = ""  # by return or raise, break, continue
    outside: Way | None = None  # in a generator: the way of whoever goes through it


@dataclass(frozen=True, slots=True)
class Below:
    """A loop as it is for objects of a class below, and as it is for the class itself."""

    loop: SourceLoop
    owner: Class
    above: Sequence[SourceLoop]


class TooMany(Exception):
    """More ways than are worth following."""


class Loops:
    """The loops of one module."""

    def __init__(self, project: Project, module: Module) -> None:
        self.project, self.module = project, module
        self.zeroed = {key for scope in module.scopes for key in self._duck(scope)}
        self._busy: dict[int, bool] = {}
        self._busy_calls: dict[tuple[int, Use], bool] = {}
        self._training: dict[int, bool] = {}
        self._overriding: dict[int, Sequence[Scope]] = {}
        self.below: list[Below] = []
        self._wrappers: dict[int, tuple[Scope, str] | None] = {}
        self.inlined: dict[tuple[object, ...], list[tuple[SourceTick, ...]] | None] = {}
        self.matters: dict[int, bool] = {}
        self._indexes: dict[int, Index] = {}

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

    def _duck(self, scope: Scope) -> Iterator[str]:
        """What zero_grad is called on: with a step of its own, it is an optimizer."""
        for call, _ in scope.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
                yield unparsed(call.func.value)

    def busy(self, function: Scope) -> bool:
        """Whether a function may do anything to the state of training."""
        if id(function) not in self._busy:
            self._busy[id(function)] = False
            wipes = any(isinstance(u.statement, ast.Assign) and _wipes(u.statement) for u in function.statements)
            around = self.wrapper(function)
            calls = [*function.calls, *(around[0].calls if around is not None else ())]
            self._busy[id(function)] = wipes or any(self.busy_call(call, use) for call, use in calls)
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
        loops = [u.statement for call, u in sites if _goes_through(u.statement, call)]
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

    def all(self) -> Iterator[SourceLoop]:
        """Every loop with a backward or a step in it, and every function with one outside of its loops."""
        for scope in self.module.scopes:
            if not self.trains(scope):
                continue
            told = [*self._of(scope, NOBODY)]
            yield from told
            for owner in lowest(self.project, scope):
                yield from self._below(scope, owner, told)

    def _below(self, scope: Scope, owner: Class, told: Sequence[SourceLoop]) -> Iterator[SourceLoop]:
        """The loops of a method for objects of a class below, where they are others; without those that lack a zeroing."""
        for loop in self._of(scope, Selves(owner)):
            above = [each for each in told if each.where == loop.where and each.repeats == loop.repeats]
            if not any(_told(loop) == _told(each) for each in above):
                self.below.append(Below(loop, owner, above))
                if loop.has("zero") or not any(each.has("zero") for each in above):
                    yield loop

    def _of(self, scope: Scope, selves: Selves) -> Iterator[SourceLoop]:
        """The loops of a function, for objects of these classes."""
        yield from self._loop(scope, scope.node.body, scope.node, selves, repeats=False)
        for use in scope.statements:
            if isinstance(use.statement, LOOPS) and not goes_through_objects(self.project, use):
                yield from self._loop(scope, use.statement.body, use.statement, selves, repeats=True)
            if id(use.statement) in scope.masked:
                yield from self._comprehension(scope, use, selves)

    def _comprehension(self, scope: Scope, use: Use, selves: Selves) -> Iterator[SourceLoop]:
        """``[train(batch) for batch in loader]`` is a loop, too."""
        each = repeated(use.statement)
        calls = [call for call in self.index(scope)[1].get(id(use.statement), ()) if id(call) in each]
        if not any(self.busy_call(call, use) for call in calls):
            return
        walker, ways = _Walker(self, scope, use.statement), [Way()]
        walker.selves = selves
        try:
            for call in calls:
                ways = walker.call(call, use, ways, sure=True)
        except (TooMany, RecursionError):
            return
        paths = tuple(way.ticks for way in ways if way.ended != "raise")
        if any(tick.kind in ("backward", "step") for path in paths for tick in path):
            yield SourceLoop(paths=paths, repeats=True, where=self.module.where(use.statement, scope))

    def _loop(
        self, scope: Scope, body: Sequence[ast.stmt], node: ast.stmt | ast.Module, selves: Selves, *, repeats: bool
    ) -> Iterator[SourceLoop]:
        start = self.index(scope)[0].get(id(node)) if repeats else None
        inner = turns(self.project, node, start) if start is not None else []
        outer = around(self.project, start) if start is not None else [{}]
        try:
            ways = [
                way
                for known in outer
                for turn in inner or [{}]
                for way in self._ways(scope, body, node, {**known, **turn}, selves, repeats=repeats)
            ]
        except (TooMany, RecursionError):
            return
        paths = tuple(way.ticks for way in ways if way.ended != "raise")
        if any(tick.kind in ("backward", "step") for path in paths for tick in path):
            times, where = _turns(node), self.module.where(node, scope)
            count = self.project.number(times, start) if start is not None else None
            text = unparsed(times) if times is not None else ""
            yield SourceLoop(paths=paths, repeats=repeats, turns=text, count=count, where=where)

    def _ways(
        self,
        scope: Scope,
        body: Sequence[ast.stmt],
        node: ast.stmt | ast.Module,
        known: Known,
        selves: Selves,
        *,
        repeats: bool,
    ) -> list[Way]:
        """Through a loop, in one of the phases around it."""
        walker = _Walker(self, scope, node if repeats and isinstance(node, ast.stmt) else None)
        walker.known, walker.selves = known, selves
        source = walker.generator(node) if repeats and isinstance(node, ast.For) else None
        if source is None or not isinstance(node, ast.For):
            return walker.block(body, [Way()], sure=True)
        return walker.turn_of(node, source)


class _Walker:
    """Follows the statements of one function."""

    def __init__(
        self,
        loops: Loops,
        scope: Scope,
        loop: ast.stmt | None,
        keys: Keys | None = None,
        depth: int = 0,
        via: tuple[int, ...] = (),
        around: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.loops, self.project = loops, loops.project
        self.scope, self.loop, self.keys, self.depth = scope, loop, keys or {}, depth
        self.uses, self.calls, self._stepped = loops.index(scope)
        self.known: Known = {}  # constants behind names, in this turn of a loop over phases or in this call
        self.selves = NOBODY  # what is known of the objects here, by who called
        self.receiver: Class | None = None  # of the hook that is called
        self.via = via  # the calls that led here: what is made here is another object for each
        self.own = (
            {**(around or {}), **dict.fromkeys([id(call) for call, _ in scope.calls], via)} if via else around or {}
        )
        self.nested = 0
        self.over_data = self.outside = False  # in the innermost loop, and around it
        self.within: tuple[str, Callable[[], list[tuple[SourceTick, ...]] | None]] | None = None  # of a decorator
        self.at_yield: Callable[[list[Way]], list[Way]] | None = None
        self.owners: dict[str, str] = {}  # names for a parameter, or a group of an optimizer, in loops over them

    def callee(self, call: ast.Call, use: Use) -> Scope | None:
        """The function that a call runs, by the classes of the objects here."""
        return runs(self.project, call, use, self.selves) or self.project.callee(call, use)

    # ----------------------------------------------------------------------- statements

    def block(self, body: Sequence[ast.stmt], ways: list[Way], *, sure: bool) -> list[Way]:
        """All ways through some statements."""
        for statement in body:
            going = [way for way in ways if not way.ended]
            ended = [way for way in ways if way.ended]
            ways = _distinct(ended + self._statement(statement, going, sure=sure)) if going else ways
            if len(ways) > WAYS:
                raise TooMany
        return ways

    def _statement(self, node: ast.stmt, ways: list[Way], *, sure: bool) -> list[Way]:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return ways
        if isinstance(node, ast.If):
            return self._if(node, ways, sure=sure)
        if isinstance(node, LOOPS):
            return self._inner(node, ways)
        if isinstance(node, ast.Try):
            return self._try(node, ways, sure=sure)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            ways = self._expression(node, node, ways, sure=sure)
            return self._managed(node, node.items, ways, sure=sure)
        if isinstance(node, ast.Match):
            return [way for case in node.cases for way in self.block(case.body, ways, sure=False)] + ways
        ways = self._expression(node, node, ways, sure=sure)
        if isinstance(getattr(node, "value", None), ast.Yield):
            ways = self._yielded(node, ways)
        end = {ast.Return: "return", ast.Raise: "raise", ast.Break: "break", ast.Continue: "continue"}.get(type(node))
        return [replace(way, ended=end) for way in ways] if end else ways

    def _if(self, node: ast.If, ways: list[Way], *, sure: bool) -> list[Way]:
        if not self._matters(node):
            return ways
        ways = self._expression(node, node, ways, sure=True)
        if (taken := truth(node.test, self.known, self._use_of(node))) is None:
            taken = settled(self.project, node, self.scope)
        if taken is not None:
            return self.block(node.body if taken else node.orelse, ways, sure=sure)
        if HAS_GRADIENT.fullmatch(unparsed(node.test)) and not node.orelse:
            return self.block(node.body, ways, sure=True)
        if not node.orelse and (place := self._use_of(node)) is not None and is_presence(node.test, place):
            return self.block(node.body, ways, sure=sure)
        test, turned = node.test, False
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, turned = test.operand, not turned
        text = unparsed(test)
        found: list[Way] = []
        for way in ways:
            for choice in (True, False):
                known = dict(way.choices).get(text)
                if known is None or known == choice:
                    chosen = replace(way, choices=tuple(sorted({**dict(way.choices), text: choice}.items())))
                    found += self.block(node.body if choice != turned else node.orelse, [chosen], sure=False)
        return found

    def _matters(self, node: ast.stmt) -> bool:
        """Whether anything in it is a tick, or ends the way."""
        if id(node) not in self.loops.matters:
            self.loops.matters[id(node)] = self._does_matter(node)
        return self.loops.matters[id(node)]

    def _does_matter(self, node: ast.stmt) -> bool:
        last, start = node.end_lineno or node.lineno, self._use_of(node)
        for use in self.scope.statements[start.order :] if start is not None else ():
            inner = use.statement
            if inner.lineno > last:
                break
            if isinstance(inner, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
                return True
            if isinstance(inner, ast.Assign) and _wipes(inner):
                return True
            if any(self.loops.busy_call(call, use) for call in self.calls.get(id(inner), ())):
                return True
            if self.within is not None and f"{self.within[0]}(" in unparsed(inner):
                return True
        return False

    def _use_of(self, node: ast.stmt) -> Use | None:
        return self.uses.get(id(node))

    def _inner(self, node: ast.stmt, ways: list[Way]) -> list[Way]:
        """A loop within is gone through once."""
        ways = self._expression(node, node, ways, sure=True)
        if (source := self.generator(node)) is not None:
            return self._around(*source, ways, lambda given: self._turn(node, given))
        return self._turn(node, ways)

    def _turn(self, node: ast.stmt, ways: list[Way]) -> list[Way]:
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and (use := self._use_of(node)) is not None:
            self.owners[node.target.id] = self._owner(node.iter, use)
        kept, use = (self.over_data, self.outside), self._use_of(node)
        if phases := turns(self.project, node, use) if use is not None else []:
            return self._phases(node, phases, ways)
        self.outside = self.over_data
        self.over_data = (
            isinstance(node, ast.For) and _turns(node) is None and not isinstance(node.iter, (ast.List, ast.Tuple))
        )
        inner = not self._is_once(node, use)
        self.nested += inner
        through = self._once(node, ways)
        self.nested -= inner
        self.over_data, self.outside = kept
        return through

    def _is_once(self, node: ast.stmt, use: Use | None) -> bool:
        """A loop over a loader that has one batch, in another loop."""
        loaders = self.project.things(iterated(node.iter), use) if isinstance(node, ast.For) and use is not None else ()
        return bool(loaders) and all(is_whole(self.project, each) for each in loaders)

    def _once(self, node: ast.stmt, ways: list[Way]) -> list[Way]:
        """All ways through one turn."""
        through = self.block(node.body, ways, sure=True)  # type: ignore[attr-defined]
        return [replace(way, ended="") if way.ended in ("break", "continue") else way for way in through]

    def _phases(self, node: ast.stmt, phases: Sequence[Known], ways: list[Way]) -> list[Way]:
        """A turn for each of the phases, which is no loop over data; one turn of any if they are too many to follow."""
        known, through = self.known, ways
        try:
            for turn in phases:
                self.known = {**known, **turn}
                through = self._once(node, through)
        except TooMany:
            self.known = known
            return self._once(node, ways)
        self.known = known
        return through

    def _owner(self, node: ast.expr, use: Use) -> str:
        """The model in ``model.parameters()``, the optimizer in ``optimizer.param_groups``, and that of ``group["params"]``."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parameters":
            return self.key(node.func.value, use)
        if isinstance(node, ast.Attribute) and node.attr == "param_groups":
            return self.key(node.value, use)
        inner = node.value if isinstance(node, ast.Subscript) else None
        return self.owners.get(inner.id, "") if isinstance(inner, ast.Name) else ""

    def _owned(self, node: ast.expr) -> str:
        """Whose gradient ``p.grad`` is."""
        found = [n.id for n in walk(node) if isinstance(n, ast.Name)]
        return self.owners.get(found[0], "") if len(found) == 1 else ""

    # ----------------------------------------------------------------------- generators and managers

    def _yielded(self, node: ast.stmt, ways: list[Way]) -> list[Way]:
        """What happens where a generator yields: what is known of that, or anything."""
        if self.at_yield is not None:
            return self.at_yield(ways)
        if not self.loops.may_train_between(self.scope):
            return ways
        return [replace(way, ticks=(*way.ticks, self._tick("opaque", node, name="yield"))) for way in ways]

    def generator(self, node: ast.stmt) -> tuple[Scope, ast.Call, Use] | None:
        """The generator of the project that a loop goes through."""
        use = self._use_of(node)
        call = iterated(node.iter) if isinstance(node, ast.For) else None
        function = self.callee(call, use) if isinstance(call, ast.Call) and use is not None else None
        if function is None or not function.yields or not self.loops.busy(function) or not isinstance(call, ast.Call):
            return None
        return (function, call, use) if use is not None and self.depth < INLINED else None

    def _managed(
        self, node: ast.With | ast.AsyncWith, items: Sequence[ast.withitem], ways: list[Way], *, sure: bool
    ) -> list[Way]:
        """The body of a with statement, and what its managers do before and behind it."""
        use = self._use_of(node)
        if not items or use is None:
            return self.block(node.body, ways, sure=sure)

        def within(given: list[Way]) -> list[Way]:
            return self._managed(node, items[1:], given, sure=sure)

        head = items[0].context_expr
        function = self.callee(head, use) if isinstance(head, ast.Call) else None
        if function is not None and isinstance(head, ast.Call) and is_manager(function):
            return self._around(function, head, use, ways, within) if self.loops.busy(function) else within(ways)
        call = ast.copy_location(ast.Call(head, [], []), head)
        enter, leave = (self._inlined(each, call, use) for each in managers(self.project, head, use))
        ends = within(self._through(enter, ways, sure=sure))
        return self._through(leave, ends, sure=sure)

    def _around(
        self,
        function: Scope,
        call: ast.Call,
        use: Use,
        ways: list[Way],
        within: Callable[[list[Way]], list[Way]],
        body: Sequence[ast.stmt] | None = None,
    ) -> list[Way]:
        """All ways through a generator, with something else in the place of its yield."""
        if self.depth >= INLINED or isinstance(function.node, ast.Module):
            return within(ways)
        found: list[Way] = []
        for way in ways:
            walker = self._into(function, call, use)
            walker.at_yield = lambda given, way=way: [
                replace(each, ticks=after.ticks, outside=after)
                for each in given
                for after in within([replace(way, ticks=each.ticks)])
            ]
            for end in walker.block(body or function.node.body, [Way(way.ticks)], sure=True):
                ended = "raise" if end.ended == "raise" else (end.outside or way).ended
                found.append(replace(end.outside or way, ticks=end.ticks, ended=ended))
        if len(found) > WAYS:
            raise TooMany
        return _distinct(found)

    def turn_of(self, node: ast.For, source: tuple[Scope, ast.Call, Use]) -> list[Way]:
        """One turn of a loop that goes through a generator: what that does before and after it yields."""
        function = source[0]
        inner = [u.statement for u in function.statements if isinstance(u.statement, LOOPS)]
        around = [each for each in inner if any(lies_in(y, each) for y, _ in function.yields)]
        body = around[-1].body if len(function.yields) == 1 and around else None
        return self._around(*source, [Way()], lambda given: self.block(node.body, given, sure=True), body)

    def _try(self, node: ast.Try, ways: list[Way], *, sure: bool) -> list[Way]:
        return self.block([*node.body, *node.orelse, *node.finalbody], ways, sure=sure)

    def _expression(self, node: ast.AST, statement: ast.stmt, ways: list[Way], *, sure: bool) -> list[Way]:
        use = self._use_of(statement)
        if use is None:
            return ways
        each = repeated(statement) if id(statement) in self.scope.masked else set()
        data, kept = over_data(statement) if each else (), self.over_data
        for call in self.calls.get(id(statement), ()):
            self.nested += id(call) in each
            self.over_data = (id(call) in data) if id(call) in each else kept
            ways = self.call(call, use, ways, sure=sure)
            self.nested -= id(call) in each
        self.over_data = kept
        if isinstance(node, ast.Assign) and (kind := _wipes(node)):
            owner = self._owned(node.targets[0])
            name = spelled(node.targets[0])
            tick = SourceTick(kind=kind, name=name, where=self._where(node), always=sure, trains=owner)
            ways = [replace(way, ticks=(*way.ticks, tick)) for way in ways]
        return ways

    # ----------------------------------------------------------------------- calls

    def call(self, call: ast.Call, use: Use, ways: list[Way], *, sure: bool) -> list[Way]:
        """The ways, with what a call does."""
        if self.within is not None and isinstance(call.func, ast.Name) and call.func.id == self.within[0]:
            return self._through(self.within[1](), ways, sure=sure)
        concrete = runs(self.project, call, use, self.selves)
        function = concrete or self.project.callee(call, use)
        if function is None and _goes_above(call):
            return self._unknown(call, ways)
        if not self.loops.busy_call(call, use) and (concrete is None or not self.loops.busy(concrete)):
            return ways
        if function is None and (each := each_of(self.project, call, use, self.keys)):
            several = len(called_on(self.project, call, use, self.keys)[1]) > 1  # any of some events
            if several or (_in_loop_over(call, use) and self._shares_its_turn(use)):
                return self._unknown(call, ways)
            return self._each(each, call, use, ways, sure=sure)
        if function is None and is_unknown(self.project, call, use):
            return self._unknown(call, ways)
        ticks = tuple(replace(tick, always=sure) for tick in self._ticks(call, use))
        if ticks:
            return [replace(way, ticks=way.ticks + ticks) for way in ways]
        return self._through(self._inlined(function, call, use), ways, sure=sure)

    def _unknown(self, call: ast.Call, ways: list[Way]) -> list[Way]:
        """The ways, with a call behind which nothing is judged."""
        tick = self._tick("opaque", call, name=spelled(call.func))
        return [replace(way, ticks=(*way.ticks, tick)) for way in ways]

    def _each(self, each: Sequence[Run], call: ast.Call, use: Use, ways: list[Way], *, sure: bool) -> list[Way]:
        """Each of the hooks of a list, once: the loop over them is none over data."""
        once, kept = self.nested > 0 and _in_loop_over(call, use), (self.nested, self.over_data)
        self.nested, self.over_data = (self.nested - 1, self.outside) if once else kept
        for run in each:
            self.receiver = run.owner
            ways = self._through(self._inlined(run.function, run.call, run.use), ways, sure=sure)
        self.receiver = None
        self.nested, self.over_data = kept
        return ways

    def _through(self, inner: list[tuple[SourceTick, ...]] | None, ways: list[Way], *, sure: bool) -> list[Way]:
        """The ways, each with all those through a function behind it."""
        if inner is None:
            return ways
        found = _distinct(
            [
                replace(way, ticks=way.ticks + tuple(replace(t, always=t.always and sure) for t in more))
                for way in ways
                for more in inner
            ]
        )
        if len(found) > WAYS:
            raise TooMany
        return found

    def _into(self, function: Scope, call: ast.Call, use: Use) -> _Walker:
        """Who follows the statements of a function that is called."""
        via = (*self.via, id(call)) if _makes(function) else self.via
        keys = self._handed(function, call, use)
        walker = _Walker(self.loops, function, self.loop, keys, self.depth + 1, via, self.own)
        walker.nested, walker.over_data = self.nested, self.over_data
        walker.known = told(self.project, function, call, use, self.known)
        walker.selves = self._selves(function, call, use)
        return walker

    def _selves(self, function: Scope, call: ast.Call, use: Use) -> Selves:
        """What a function that is called knows of its objects."""
        return within(self.project, function, call, use, self.selves, self.receiver)

    def _handed(self, function: Scope, call: ast.Call, use: Use) -> dict[str, str]:
        """What a function is given, by the names of its parameters."""
        given = {name: argument(call, function, name) for name in function.params}
        return {name: self.key(node, use) for name, node in given.items() if node is not None}

    def _inlined(self, function: Scope | None, call: ast.Call, use: Use) -> list[tuple[SourceTick, ...]] | None:
        """The ways through a function of the project that is called."""
        if function is not None and (wrapped := self.loops.wrapper(function)) is not None:
            return self._wrapped(function, *wrapped, call, use)
        return self._plainly(function, call, use)

    def _wrapped(
        self, function: Scope, wrapper: Scope, name: str, call: ast.Call, use: Use
    ) -> list[tuple[SourceTick, ...]] | None:
        """The ways through what a decorator puts around a function, and through the function within."""
        if self.depth >= INLINED or wrapper is self.scope or isinstance(wrapper.node, ast.Module):
            return None
        walker = _Walker(self.loops, wrapper, self.loop, {}, self.depth + 1, self.via, self.own)
        walker.nested, walker.over_data = self.nested, self.over_data
        walker.within = name, lambda: self._plainly(function, call, use)
        ways = walker.block(wrapper.node.body, [Way()], sure=True)
        return [way.ticks for way in ways if way.ended != "raise"] or None

    def _plainly(self, function: Scope | None, call: ast.Call, use: Use) -> list[tuple[SourceTick, ...]] | None:
        """The ways through the function itself."""
        if function is None or function is self.scope or isinstance(function.node, ast.Module):
            return None
        if self.depth >= INLINED:
            deeper = self._tick("opaque", call, name=spelled(call.func))
            return [(deeper,)] if self.loops.busy(function) else None
        if is_manager(function) or (_goes_through(use.statement, call) and function.yields):
            return None  # it runs where its results are drawn
        if not self.loops.busy(function):
            return None
        keys = self._handed(function, call, use)
        via = (*self.via, id(call)) if _makes(function) else self.via
        known = tuple(told(self.project, function, call, use, self.known).items())
        selves = self._selves(function, call, use).key
        place = self.nested, self.over_data, self.depth, id(self.loop)
        memory = (id(function), tuple(keys.items()), *place, via, known, selves)
        if memory not in self.loops.inlined:
            self.loops.inlined[memory] = None
            walker = self._into(function, call, use)
            body = [] if isinstance(function.node, ast.Module) else function.node.body
            try:
                ways = walker.block(body, [Way()], sure=True)
            except TooMany:
                del self.loops.inlined[memory]
                raise
            self.loops.inlined[memory] = [way.ticks for way in ways if way.ended != "raise"] or None
        return self.loops.inlined[memory]

    def key(self, node: ast.expr, use: Use) -> str:
        """Equal for one object: the call that made it, or else how this function spells it."""
        things = in_turn(self.project, node, use)
        if things and all(thing.is_optimizer for thing in things):
            return " ".join(sorted({self._identity(thing) for thing in things}))
        if len({thing.identity() for thing in things}) == 1 and things[0].call is not None:
            return self._identity(things[0])
        if isinstance(node, ast.Name) and node.id in self.keys:
            return self.keys[node.id]
        return unparsed(node)

    def _identity(self, thing: Thing) -> str:
        """As the function sees it that called this one."""
        made = thing.via[0] if thing.via else id(thing.call)
        return replace(thing, via=(*self.own.get(made, ()), *thing.via)).identity()

    def _where(self, node: ast.AST) -> Where:
        return self.scope.module.where(node, self.scope)

    def _ticks(self, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        func = call.func
        dotted = self.project.dotted(func, use)
        if self.callee(call, use) is not None:
            return
        if dotted in CLIPS:
            yield self._tick("clip", call, name=dotted.rpartition(".")[2], threshold=_number(_threshold(call)))
        elif dotted in ("torch.autograd.backward",):
            yield self._tick("backward", call)
        elif isinstance(func, ast.Attribute) and not (dotted and not self.project.is_local(func, use)):
            yield from self._method(func, call, use)
        elif self._opaque(call, use):
            yield self._tick("opaque", call, name=spelled(func))

    def _method(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        made = getattr(self, f"_{func.attr}_tick", None)
        if made is not None:
            yield from made(func, call, use)
        elif self._opaque(call, use):
            yield self._tick("opaque", call, name=spelled(func))

    def _opaque(self, call: ast.Call, use: Use) -> bool:
        """An unknown function that is given, or named, like something that trains."""
        if not SUSPECT.search(spelled(call.func)) and not any(self.loops.is_trainer(a, use) for a in call.args):
            return False
        if self.project.dotted(call.func, use).startswith(("torch.", "tqdm", "numpy", "functools.")) or isinstance(
            call.func, ast.Lambda
        ):
            return False
        if trains_nothing(self.project, call, use):
            return False
        known = self.project.things(call.func, use)
        return not known or any(t.function is None and t.made_of is None for t in known)

    # ----------------------------------------------------------------------- methods

    def _zero_grad_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        things = in_turn(self.project, func.value, use)
        optimizer = _optimizers(things) or unparsed(func.value) in self._stepped
        key = self.key(func.value, use)
        trains = key if things and not optimizer else ""
        yield self._tick(
            "zero", call, of=key if optimizer else "", name=spelled(func.value), known=optimizer, trains=trains
        )

    def _scales(self, node: ast.expr, use: Use) -> bool:
        """A scaler that is not switched off, and whose switch asks for no dtype."""
        made = [t.call for t in self.project.things(node, use) if t.call is not None]
        switches = [k.value for call in made for k in call.keywords if k.arg == "enabled"]
        off = (isinstance(each, ast.Compare) or unparsed(each) == "False" for each in switches)
        return not any(off)

    def _rescales(self, loss: ast.expr, use: Use) -> bool:
        """Gradients are divided where they arise or afterwards, or the loss by whoever else holds it."""
        files = [each for each in self.project.modules.values() if each is not None]
        outside = isinstance(loss, ast.Attribute) and any(self.project.set_from_outside(loss.attr, m) for m in files)
        return outside or one_says((self.scope.module, self.loops.module), RESCALES)

    def _shares_its_turn(self, use: Use) -> bool:
        """The loop over hooks has a backward beside the call: a turn is no part of something else."""
        around = {block for block, part in use.path if part == "body"}
        loops = [
            u.statement for u in self.uses.values() if id(u.statement) in around and isinstance(u.statement, ast.For)
        ]
        return any(".backward(" in unparsed(each) for loop in loops[-1:] for each in loop.body)

    def _backward_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        scaled = isinstance(func.value, ast.Call) and isinstance(func.value.func, ast.Attribute)
        scaled = scaled and func.value.func.attr == "scale" and self._scales(func.value.func.value, use)  # type: ignore[attr-defined]
        plain = not call.args or isinstance(func.value, ast.Call)
        loss = func.value.args[0] if scaled and func.value.args else func.value  # type: ignore[attr-defined]
        weighted = bool(call.args) or any(k.arg == "gradient" for k in call.keywords)
        mean = not weighted and self._is_mean(loss, use) and not self._rescales(loss, use)
        yield self._tick("backward", call, name=spelled(func.value), scaled=scaled, known=plain, mean=mean)

    def _is_mean(self, node: ast.expr, use: Use) -> bool:
        """What a loss function of torch returned, with its usual reduction, perhaps through functions."""
        return means(self.project, node, use)

    def _step_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        things = in_turn(self.project, func.value, use)
        if is_schedule(things):
            given = optimizer_of(things[0])
            of = self.key(given, things[0].use) if given is not None else ""
            yield self._tick(
                "schedule",
                call,
                of=of,
                name=spelled(func.value),
                known=not call.args and not call.keywords,
                over_data=self.over_data,
                **(_schedule(self.project, things[0]) if len(things) == 1 else {}),
            )
        elif _optimizers(things) or (not call.args and unparsed(func.value) in self.loops.zeroed):
            yield self._stepping(func.value, call, use)
        elif call.args and (self.loops.is_trainer(call.args[0], use) or unparsed(call.args[0]) in self.loops.zeroed):
            yield replace(self._stepping(call.args[0], call, use), scaled=True)
        elif not things and not call.args and re.search("opt", spelled(func.value), re.IGNORECASE):
            yield self._tick("opaque", call, name=spelled(func.value))

    def _stepping(self, node: ast.expr, call: ast.Call, use: Use) -> SourceTick:
        things = in_turn(self.project, node, use)
        known = _optimizers(things)
        closure = (len(call.args) > 0 and node is not call.args[0]) or bool(call.keywords)
        if closure:
            return self._tick("opaque", call, name=spelled(node))
        return self._tick(
            "step", call, of=self.key(node, use), name=spelled(node), known=known,
            fresh=any(self._inside(thing) for thing in things), trains=self._trained(things), over_data=self.over_data,
        )  # fmt: skip

    def _inside(self, thing: Thing) -> bool:
        """Whether the loop itself builds it."""
        first, last = getattr(self.loop, "lineno", 0), getattr(self.loop, "end_lineno", 0) or 0
        here = thing.use.scope.module is self.loops.module and thing.call is not None
        return here and self.loop is not None and first <= getattr(thing.call, "lineno", 0) <= last

    def _trained(self, things: Sequence[Thing]) -> str:
        """The model in ``Adam(model.parameters())``."""
        keys = set()
        for thing in things:
            given = thing.call.args[0] if thing.call is not None and thing.call.args else None
            if (
                isinstance(given, ast.Call)
                and isinstance(given.func, ast.Attribute)
                and given.func.attr == "parameters"
            ):
                found = self.project.things(given.func.value, thing.use)
                keys |= {self._identity(t) for t in found if t.call} if found else {unparsed(given.func.value)}
        return keys.pop() if len(keys) == 1 else ""

    def _unscale__tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        yield self._tick("unscale", call)

    def _eval_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        if not call.args:
            yield self._mode("eval", func, call, use)

    def _train_tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        given = call.args[0] if call.args else call.keywords[0].value if call.keywords else None
        switch = value(given, self.known, use) if given is not None else True
        if switch is False:
            yield self._mode("eval", func, call, use)
        elif switch is True or isinstance(given, ast.Constant):
            yield self._mode("train", func, call, use)
        else:
            yield self._tick("train", call)

    def _mode(self, kind: SourceTickKind, func: ast.Attribute, call: ast.Call, use: Use) -> SourceTick:
        things = self.project.things(func.value, use)
        modes = next((m for thing in things if (m := modes_of(self.project, thing))), "")
        return self._tick(kind, call, of=self.key(func.value, use), name=spelled(func.value), modes=modes)

    def _zero__tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        if re.search(r"\.grad(\.data)?$", unparsed(func.value)):
            yield self._tick("zero", call, name=spelled(func.value), trains=self._owned(func.value))

    def _copy__tick(self, func: ast.Attribute, call: ast.Call, use: Use) -> Iterator[SourceTick]:
        """A gradient that is written by hand stands for a backward."""
        if re.search(r"\.grad(\.data)?$", unparsed(func.value)):
            yield self._tick("backward", call, name=spelled(func.value))

    _add__tick = _copy__tick

    def _tick(self, kind: SourceTickKind, node: ast.AST, **facts: object) -> SourceTick:
        return SourceTick(kind=kind, where=self._where(node), depth=self.nested, **facts)  # type: ignore[arg-type]


def _goes_above(call: ast.Call) -> bool:
    """``super().before()``, by a name that says nothing of training."""
    func = call.func
    above = isinstance(func, ast.Attribute) and is_super(func.value)
    return above and isinstance(func, ast.Attribute) and func.attr not in NAMES and not func.attr.startswith("__")


def _told(loop: SourceLoop) -> list[list[tuple[object, ...]]]:
    return [[(t.kind, t.where, t.of, t.always) for t in path] for path in loop.paths]


def _in_loop_over(call: ast.Call, use: Use) -> bool:
    """``hook.after(self)`` in the body of the loop that binds ``hook``."""
    names = {n.id for n in walk(asked_for(call.func, use)) if isinstance(n, ast.Name)}
    loops = [
        b.use.statement
        for name in names
        for b in use.scope.bindings.get(name, ())
        if isinstance(b.use.statement, ast.For)
    ]
    around = [block for block in use.path if block[0] not in use.scope.choices]
    return bool(around) and around[-1] in {(id(loop), "body") for loop in loops}


def _makes(function: Scope) -> bool:
    """It gives back something that it may have made."""
    return any(isinstance(node, (ast.Name, ast.Call, ast.Tuple)) for node, _ in function.returns)


def _turns(node: ast.AST) -> ast.expr | None:
    """``epochs`` in ``for e in range(epochs)`` and in ``for e in range(1, epochs + 1)``."""
    head = node.iter if isinstance(node, ast.For) else None
    while (
        isinstance(head, ast.Call)
        and head.args
        and spelled(head.func).rpartition(".")[2] in ("tqdm", "trange", "range")
    ):
        if spelled(head.func) == "range" or spelled(head.func).endswith("trange"):
            last = head.args[min(1, len(head.args) - 1)]
            one = isinstance(last, ast.BinOp) and isinstance(last.op, ast.Add) and unparsed(last.right) == "1"
            return last.left if one and isinstance(last, ast.BinOp) and unparsed(head.args[0]) == "1" else last
        head = head.args[0]
    return None


def _schedule(project: Project, thing: Thing) -> dict[str, object]:
    """Its length, as source and as a number, and the factor that follows."""
    name = thing.name.rpartition(".")[2]
    if thing.call is None or name not in LENGTHS:
        return {}
    places, (factor, usual) = LENGTHS[name], FACTORS.get(name, ("", 0.0))
    given = next((g for place, key in places if (g := argument_at(thing.call, key, place)) is not None), None)
    if name == "LambdaLR":
        return _by_function(project, thing)
    if given is None and name != "ExponentialLR":
        return {}
    lengths = [
        project.number(each, thing.use)
        for each in (given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])
    ]
    length = max(each for each in lengths if each is not None) if lengths and None not in lengths else None
    power = argument_at(thing.call, factor, 1 if name == "ExponentialLR" else 2)
    gamma = usual if power is None else project.number(power, thing.use)
    sizes = list(_lengths(project, given, thing.use)) if given is not None else []
    loaded = [t for n, use in sizes for a in n.args for t in project.things(a, use)]
    return {
        "horizon": f"{name}: {unparsed(given) if given is not None else 1}",
        "length": 1.0 if name == "ExponentialLR" else length,
        "gamma": gamma if name in FACTORS else None,
        "in_batches": ((name == "OneCycleLR" or name in IN_STEPS) and bool(sizes))
        or any(is_loader(project, t) for t in loaded),
    }


def _by_function(project: Project, thing: Thing) -> dict[str, object]:
    """A schedule whose function divides the step by a number of batches."""
    for node, use in divisors(project, thing):
        sizes = list(_lengths(project, node, use))
        loaded = [t for n, place in sizes for a in n.args for t in project.things(a, place)]
        if any(is_loader(project, t) for t in loaded):
            return {"horizon": f"LambdaLR: {unparsed(node)}", "in_batches": True}
    return {}


def _lengths(project: Project, node: ast.expr, use: Use, depth: int = 0) -> Iterator[tuple[ast.Call, Use]]:
    """``len(...)`` in a number, or in what its names stand for."""
    for inner in walk(node):
        if isinstance(inner, ast.Call) and spelled(inner.func) == "len":
            yield inner, use
        elif isinstance(inner, (ast.Name, ast.Attribute)) and depth < INLINED:
            for each in origins(project, inner, use):
                if each.node is not inner:
                    yield from _lengths(project, each.node, each.use, depth + 1)


def _goes_through(statement: ast.AST, call: ast.Call) -> bool:
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


def repeated(statement: ast.stmt) -> set[int]:
    """What a comprehension computes for each of its elements."""
    found = set()
    for node in walk(statement):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            found |= {id(n) for part in parts for n in walk(part) if isinstance(n, ast.Call)}
    return found


def _distinct(ways: list[Way]) -> list[Way]:
    """Ways on which the same happened are one, whatever was chosen."""
    if len(ways) < 2:
        return ways
    found: dict[tuple[object, ...], Way] = {}
    for way in ways:
        around = (way.outside.choices, way.outside.ended) if way.outside is not None else None
        ticks = tuple((t.kind, t.where, t.of) for t in way.ticks)
        found.setdefault((ticks, way.choices, way.ended, around), way)
    return list(found.values())


def _wipes(node: ast.Assign) -> SourceTickKind | None:
    """``p.grad = None`` zeroes; any other gradient that is set by hand stands for a backward, ``m.training = was`` for train()."""
    for target in node.targets:
        if isinstance(target, ast.Attribute) and target.attr == "grad":
            empty = isinstance(node.value, ast.Constant) and node.value.value is None
            return "zero" if empty else "backward"
        if isinstance(target, ast.Attribute) and target.attr == "training":
            return "train"
    return None


def _optimizers(things: Sequence[Thing]) -> bool:
    return bool(things) and all(thing.is_optimizer for thing in things)


def _threshold(call: ast.Call) -> ast.expr | None:
    named = [k.value for k in call.keywords if k.arg in ("max_norm", "clip_value")]
    return named[0] if named else call.args[1] if len(call.args) > 1 else None


def _number(node: ast.expr | None) -> float | None:
    """A literal number; a threshold that is made from a scale counts as endless, as it was thought of."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    return float("inf") if node is not None and re.search("scale|inf", unparsed(node)) else None


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
