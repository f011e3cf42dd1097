"""Every way through the statements of a function, and through the functions that it calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from flatline.events import SourceTick
from flatline.readers.source._arguments import argument
from flatline.readers.source._batched import over_data
from flatline.readers.source._concrete import Selves, runs, within
from flatline.readers.source._dispatch import Run, called_on, each_of, is_presence, is_unknown
from flatline.readers.source._listed import asked_for
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._ordered import is_whole
from flatline.readers.source._rounds import Known, told, truth, turns
from flatline.readers.source._scopes import FUNCTIONS, LOOPS, Scope, Use, calls_each, iterated, lies_in, spelled
from flatline.readers.source._settled import settled
from flatline.readers.source._ticks import Ticks
from flatline.readers.source._training import NAMES, Paths, goes_through, is_manager, managers, wipes
from flatline.readers.source._values import is_super
from flatline.readers.source._ways import WAYS, TooMany, Way, distinct

INLINED = 6  # calls within calls
HAS_GRADIENT = re.compile(r"\w+\.grad( is not None)?")


class Walker(Ticks):
    """Follows the statements of one function."""

    def block(self, body: Sequence[ast.stmt], ways: list[Way], *, sure: bool) -> list[Way]:
        """All ways through some statements."""
        for statement in body:
            going = [way for way in ways if not way.ended]
            ended = [way for way in ways if way.ended]
            ways = distinct(ended + self._statement(statement, going, sure=sure)) if going else ways
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
        if id(node) not in self.training.matters:
            self.training.matters[id(node)] = self._does_matter(node)
        return self.training.matters[id(node)]

    def _does_matter(self, node: ast.stmt) -> bool:
        last, start = node.end_lineno or node.lineno, self._use_of(node)
        for use in self.scope.statements[start.order :] if start is not None else ():
            inner = use.statement
            if inner.lineno > last:
                break
            if isinstance(inner, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
                return True
            if isinstance(inner, ast.Assign) and wipes(inner):
                return True
            if any(self.training.busy_call(call, use) for call in self.calls.get(id(inner), ())):
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
            isinstance(node, ast.For) and counted(node) is None and not isinstance(node.iter, (ast.List, ast.Tuple))
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

    def _yielded(self, node: ast.stmt, ways: list[Way]) -> list[Way]:
        """What happens where a generator yields: what is known of that, or anything."""
        if self.at_yield is not None:
            return self.at_yield(ways)
        if not self.training.may_train_between(self.scope):
            return ways
        return [replace(way, ticks=(*way.ticks, self._tick("opaque", node, name="yield"))) for way in ways]

    def generator(self, node: ast.stmt) -> tuple[Scope, ast.Call, Use] | None:
        """The generator of the project that a loop goes through."""
        use = self._use_of(node)
        call = iterated(node.iter) if isinstance(node, ast.For) else None
        function = self.callee(call, use) if isinstance(call, ast.Call) and use is not None else None
        if (
            function is None
            or not function.yields
            or not self.training.busy(function)
            or not isinstance(call, ast.Call)
        ):
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
            return self._around(function, head, use, ways, within) if self.training.busy(function) else within(ways)
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
        return distinct(found)

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
        each = calls_each(statement) if id(statement) in self.scope.masked else set()
        data, kept = over_data(statement) if each else (), self.over_data
        for call in self.calls.get(id(statement), ()):
            self.nested += id(call) in each
            self.over_data = (id(call) in data) if id(call) in each else kept
            ways = self.call(call, use, ways, sure=sure)
            self.nested -= id(call) in each
        self.over_data = kept
        if isinstance(node, ast.Assign) and (kind := wipes(node)):
            owner = self._owned(node.targets[0])
            name = spelled(node.targets[0])
            tick = SourceTick(kind=kind, name=name, where=self._where(node), always=sure, trains=owner)
            ways = [replace(way, ticks=(*way.ticks, tick)) for way in ways]
        return ways

    def call(self, call: ast.Call, use: Use, ways: list[Way], *, sure: bool) -> list[Way]:
        """The ways, with what a call does."""
        if self.within is not None and isinstance(call.func, ast.Name) and call.func.id == self.within[0]:
            return self._through(self.within[1](), ways, sure=sure)
        concrete = runs(self.project, call, use, self.selves)
        function = concrete or self.project.callee(call, use)
        if function is None and _goes_above(call):
            return self._unknown(call, ways)
        if not self.training.busy_call(call, use) and (concrete is None or not self.training.busy(concrete)):
            return ways
        if function is None and (each := each_of(self.project, call, use, self.keys)):
            several = len(called_on(self.project, call, use, self.keys)[1]) > 1  # any of some events
            if several or (_in_loop_over(call, use) and self._shares_its_turn(use)):
                return self._unknown(call, ways)
            return self._each(each, call, use, ways, sure=sure)
        if function is None and is_unknown(self.project, call, use):
            return self._unknown(call, ways)
        ticks = tuple(replace(tick, always=sure) for tick in self.ticks(call, use))
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

    def _shares_its_turn(self, use: Use) -> bool:
        """The loop over hooks has a backward beside the call: a turn is no part of something else."""
        around = {block for block, part in use.path if part == "body"}
        loops = [
            u.statement for u in self.uses.values() if id(u.statement) in around and isinstance(u.statement, ast.For)
        ]
        return any(".backward(" in unparsed(each) for loop in loops[-1:] for each in loop.body)

    def _through(self, inner: Paths | None, ways: list[Way], *, sure: bool) -> list[Way]:
        """The ways, each with all those through a function behind it."""
        if inner is None:
            return ways
        found = distinct(
            [
                replace(way, ticks=way.ticks + tuple(replace(t, always=t.always and sure) for t in more))
                for way in ways
                for more in inner
            ]
        )
        if len(found) > WAYS:
            raise TooMany
        return found

    def _into(self, function: Scope, call: ast.Call, use: Use) -> Walker:
        """Who follows the statements of a function that is called."""
        via = (*self.via, id(call)) if _makes(function) else self.via
        keys = self._handed(function, call, use)
        walker = Walker(self.training, function, self.loop, keys, self.depth + 1, via, self.own)
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

    def _inlined(self, function: Scope | None, call: ast.Call, use: Use) -> Paths | None:
        """The ways through a function of the project that is called."""
        if function is not None and (wrapped := self.training.wrapper(function)) is not None:
            return self._wrapped(function, *wrapped, call, use)
        return self._plainly(function, call, use)

    def _wrapped(self, function: Scope, wrapper: Scope, name: str, call: ast.Call, use: Use) -> Paths | None:
        """The ways through what a decorator puts around a function, and through the function within."""
        if self.depth >= INLINED or wrapper is self.scope or isinstance(wrapper.node, ast.Module):
            return None
        walker = Walker(self.training, wrapper, self.loop, {}, self.depth + 1, self.via, self.own)
        walker.nested, walker.over_data = self.nested, self.over_data
        walker.within = name, lambda: self._plainly(function, call, use)
        ways = walker.block(wrapper.node.body, [Way()], sure=True)
        return [way.ticks for way in ways if way.ended != "raise"] or None

    def _plainly(self, function: Scope | None, call: ast.Call, use: Use) -> Paths | None:
        """The ways through the function itself."""
        if function is None or function is self.scope or isinstance(function.node, ast.Module):
            return None
        if self.depth >= INLINED:
            deeper = self._tick("opaque", call, name=spelled(call.func))
            return [(deeper,)] if self.training.busy(function) else None
        if is_manager(function) or (goes_through(use.statement, call) and function.yields):
            return None  # it runs where its results are drawn
        if not self.training.busy(function):
            return None
        keys = self._handed(function, call, use)
        via = (*self.via, id(call)) if _makes(function) else self.via
        known = tuple(told(self.project, function, call, use, self.known).items())
        selves = self._selves(function, call, use).key
        place = self.nested, self.over_data, self.depth, id(self.loop)
        memory = (id(function), tuple(keys.items()), *place, via, known, selves)
        if memory not in self.training.inlined:
            self.training.inlined[memory] = None
            walker = self._into(function, call, use)
            body = [] if isinstance(function.node, ast.Module) else function.node.body
            try:
                ways = walker.block(body, [Way()], sure=True)
            except TooMany:
                del self.training.inlined[memory]
                raise
            self.training.inlined[memory] = [way.ticks for way in ways if way.ended != "raise"] or None
        return self.training.inlined[memory]


def _goes_above(call: ast.Call) -> bool:
    """``super().before()``, by a name that says nothing of training."""
    func = call.func
    above = isinstance(func, ast.Attribute) and is_super(func.value)
    return above and isinstance(func, ast.Attribute) and func.attr not in NAMES and not func.attr.startswith("__")


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


def counted(node: ast.AST) -> ast.expr | None:
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
