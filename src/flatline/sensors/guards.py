"""An unfreezing that waits for a number in another unit, or that stands in a method which nothing calls.

Read from the source when the script is over. Every way to the statement is walked outwards, through the conditions around it
and the calls of its functions; each has to come by one that was never true, as the numbers that were seen in it prove.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeGuard

from flatline.sensors.rounds import Share, made_in, share_of, speaks_of_rounds
from flatline.sensors.sources import FUNCTIONS, called_name, tree_of, value_pairs
from flatline.sensors.stages import Numbers, given_to, rounds_of, unfreezes, unfreezing_functions
from flatline.sensors.witnessed import Series, Witnessed

Guard = tuple[ast.expr, bool, ast.AST]  # a condition, what it has to be, and the function that it stands in
Way = list[Guard]
DEEPEST = 5  # calls from the unfreezing outwards
PERCENT = 10, 100  # numbers that a share is compared with where per cent are meant
LOOKS = 3  # at a counter
WHOLE = ("int", "round", "ceil", "floor")
LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)
GREATER = (ast.Gt, ast.GtE, ast.Eq)
LESS = (ast.Lt, ast.LtE, ast.Eq)
OPPOSITE = {ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.NotEq: ast.Eq}


class Missed(NamedTuple):
    """A statement that unfreezes, and what kept it from running."""

    file: str
    line: int
    condition: str
    why: Literal["percent", "samples", "uncalled", "rounds"]
    low: float = 0.0  # what was seen in place of the number
    high: float = 0.0
    number: float = 0.0  # that was waited for
    counted: str = ""  # by what


class Run(NamedTuple):
    """What is known of the training."""

    seen: Witnessed
    steps: int
    rows: int  # samples of a step
    numbers: Numbers = MappingProxyType({})  # that its functions began with


def missed_unfreezing(file: str, run: Run) -> Missed | None:
    """The first one in a file."""
    tree = tree_of(file)
    if tree is None:
        return None
    source, told = Source(tree, file), {name: True for name, flag in unfreezing_functions(tree).items() if flag}
    for node in source.nodes:
        if isinstance(node, (ast.Assign, ast.Call)) and unfreezes(node, told):
            ways = [source.blocked(way, run) for way in source.ways(node, DEEPEST)]
            found = [each for each in ways if each is not None]
            if found and len(found) == len(ways):
                return found[0]._replace(file=file, line=node.lineno)
    return None


class Source:
    """A file of the user's, asked from the inside out."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self.tree, self.file, self.nodes = tree, file, list(ast.walk(tree))
        self.above = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def mentions(self) -> dict[str, list[ast.AST]]:
        """Names, attributes and texts of the file."""
        found: dict[str, list[ast.AST]] = {}
        for node in self.nodes:
            said = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "value", None)
            if isinstance(node, (ast.Name, ast.Attribute, ast.Constant)) and isinstance(said, str):
                found.setdefault(said, []).append(node)
        return found

    # ------------------------------------------------------------------ ways to a statement

    def ways(self, node: ast.AST, deep: int) -> Iterator[Way]:
        """The conditions on every way to a place; one without any where it is not known who comes there."""
        scope, guards = self._around(node)
        if not isinstance(scope, FUNCTIONS) or not deep:
            yield guards if deep else []
            return
        asked = self.mentions.get(scope.name, [])
        calls = [up for each in asked if isinstance(up := self.above[each], ast.Call) and up.func is each]
        if len(calls) < len(asked) or scope.decorator_list:
            yield guards  # somebody else has it, and may call it
        elif not calls:
            yield [*guards, (ast.Constant(None), True, scope)]  # nobody has
        for call in calls if len(calls) == len(asked) else ():
            yield from ([*guards, *way] for way in self.ways(call, deep - 1))

    def _around(self, node: ast.AST) -> tuple[ast.AST, Way]:
        """The function around a node, and what has to be true, or false, for it to get there."""
        guards: Way = []
        at = node
        while not isinstance(at, (ast.Module, *FUNCTIONS)):
            at, inner = self.above[at], at
            if isinstance(at, ast.If) and inner is not at.test:
                guards.append((at.test, inner in at.body, at))
            block = next((b for name in ("body", "orelse") if inner in (b := _block(at, name))), [])
            earlier = block[: block.index(inner)] if block else []
            guards += [(s.test, False, s) for s in earlier if isinstance(s, ast.If) and isinstance(s.body[-1], LEAVING)]
        return at, [(test, wanted, at) for test, wanted, _ in guards]

    # ------------------------------------------------------------------ what keeps it from running

    def blocked(self, way: Way, run: Run) -> Missed | None:
        """By which of its conditions; None where none is known to, or where a setting may have switched it off."""
        parts = [(part, true, scope) for test, wanted, scope in way for part, true in _parts(test, wanted)]
        if any(self._may_be_off(part, true) for part, true, _ in parts):
            return None
        for part, true, scope in parts:
            if isinstance(part, ast.Constant) and part.value is None:
                return self._uncalled(parts, scope, run)
            for quantity, number in _compared(part, true):
                found = self._in_other_units(quantity, number, scope, run)
                found = found or self._in_other_rounds(quantity, number, scope, run)
                if found is not None:
                    told = "" if isinstance(number, ast.Constant) else f", which is {found.number:,.10g}"
                    return found._replace(condition=_said(part, true) + told)
        return None

    def _may_be_off(self, part: ast.expr, true: bool) -> bool:
        """A flag or a mode that somebody sets; one that the code itself turns over, such as ``self.unlocked``, is none."""
        if isinstance(part, ast.Compare):
            modes = any(isinstance(getattr(each, "value", None), str) for each in (part.left, *part.comparators))
            return modes and ast.unparse(part.left) != "__name__" and not self._is_stage(part)
        if not isinstance(part, (ast.Name, ast.Attribute)):
            return False
        name = _last_name(part)
        set_ = [n for n in self.nodes if isinstance(n, ast.Assign) and _sets(n, name)]
        if name == "requires_grad" or (len(set_) > 1 and any(isinstance(n.value, ast.Constant) for n in set_)):
            return False
        values = given_to(self.tree, part)
        known = [v.value for v in values if isinstance(v, ast.Constant)]
        return not known or len(known) < len(values) or any(bool(v) is not true for v in known) or _in_command(name)

    def _is_stage(self, part: ast.Compare) -> bool:
        """A word that the code itself sets, and sets to another one: ``self.stage == "head"``."""
        name = _last_name(part.left)
        set_ = [n.value for n in self.nodes if isinstance(n, ast.Assign) and _sets(n, name)]
        words = {each.value for each in set_ if isinstance(each, ast.Constant)}
        return len(words) > 1 and len(set_) == sum(isinstance(each, ast.Constant) for each in set_)

    def _in_other_units(self, quantity: ast.expr, number: ast.expr, scope: ast.AST, run: Run) -> Missed | None:
        """A share and per cent; a count of steps and of samples."""
        numbers, series = self._numbers(number, scope, run), self._seen(quantity, scope, run.seen, 2)
        if not numbers or series is None:
            return None
        least = min(numbers)
        share = series.low >= 0 and series.high <= 1 and series.fell
        if share and PERCENT[0] <= least <= PERCENT[1] and series.high >= least / 100:
            return Missed("", 0, "", "percent", series.low, series.high, least)
        end = series.last[1] + run.steps - series.last[0]
        if not series.counts or series.looks < LOOKS or not series.changes or end >= least:
            return None
        if least <= end * run.rows and not _is_power_of_ten(least):
            return Missed("", 0, "", "samples", series.first[1], end, least)
        return None

    def _in_other_rounds(self, quantity: ast.expr, number: ast.expr, scope: ast.AST, run: Run) -> Missed | None:
        """A round that the loop came to, counted by a number of steps that is not that of a round, or by nothing."""
        numbers = self._numbers(number, scope, run) if speaks_of_rounds(quantity, number) else []
        rounds = self._rounds(quantity, run, DEEPEST) if numbers else 0
        if not 0 < min(numbers, default=0) < rounds:
            return None
        counted, reached = self._counted(quantity, scope, run)
        if reached is None or reached >= min(numbers):
            return None
        return Missed("", 0, "", "rounds", rounds, reached, min(numbers), counted)

    def _counted(self, quantity: ast.expr, scope: ast.AST, run: Run) -> tuple[str, float | None]:
        """What counts, and how far it came at most; None where that is not known."""
        given, made = self._given(quantity, scope), made_in(quantity, scope, self.nodes)
        value, around = (made, scope) if made is not None or given is None else given
        counts = value if value is not None else quantity
        share = share_of(counts)
        if share is None:
            return ast.unparse(counts), self._stood_still(quantity, scope, run) if value is None else None
        if isinstance(quantity, ast.Attribute):
            around = next(self._functions_around(counts), scope)
        return ast.unparse(counts), self._whole(share, around, run)

    def _whole(self, share: Share, scope: ast.AST, run: Run) -> float | None:
        """How often a count of steps has come to that number of them."""
        series, sizes = self._seen(share[0], scope, run.seen, 2), self._numbers(share[1], scope, run)
        if series is None or not series.counts or series.looks < LOOKS or not series.changes:
            return None
        end = series.last[1] + run.steps - series.last[0]
        return end // sizes[0] if len(sizes) == 1 and sizes[0] > 0 else None

    def _stood_still(self, quantity: ast.expr, scope: ast.AST, run: Run) -> float | None:
        """The one value of an attribute that was seen for half of the training, and that its class writes as a number."""
        owner = self.above.get(scope)
        if not isinstance(owner, ast.ClassDef) or not _is_own(quantity):
            return None
        made = [n for n in ast.walk(owner) if isinstance(n, ast.Assign)]
        pairs = [pair for n in made for target in n.targets for pair in value_pairs(target, n.value)]
        values = [value for target, value in pairs if ast.unparse(target) == ast.unparse(quantity)]
        if not values or not all(isinstance(value, ast.Constant) for value in values):
            return None  # a setting
        series = run.seen.series.get((owner.name, quantity.attr))
        if series is None or series.changes or series.looks < LOOKS:
            return None
        return series.high if 2 * (series.last[0] - series.first[0]) >= run.steps else None

    def _functions_around(self, node: ast.AST) -> Iterator[ast.AST]:
        """From the inside out."""
        while node in self.above:
            node = self.above[node]
            if isinstance(node, FUNCTIONS):
                yield node

    def _rounds(self, node: ast.AST, run: Run, deep: int) -> int:
        """Of the loop around a place, or else around the calls of its function; the fewest, where there are several."""
        found, at = [], node
        while at in self.above and not isinstance(at, FUNCTIONS):
            at = self.above[at]
            rounds = rounds_of(self.tree, at, self.file, run.numbers) if isinstance(at, ast.For) else 0
            found += [rounds] if rounds else []
        if found or not deep or not isinstance(at, FUNCTIONS):
            return min(found, default=0)
        calls = [self.above[each] for each in self.mentions.get(at.name, [])]
        return min((self._rounds(call, run, deep - 1) for call in calls), default=0)

    def _uncalled(self, parts: list[tuple[ast.expr, bool, ast.AST]], scope: Any, run: Run) -> Missed | None:
        """A method of an object that there is, which waits for a round that would come; its other methods are called."""
        owner = self.above[scope]
        if not isinstance(owner, ast.ClassDef) or scope.name.startswith("__") or not self._plain(owner):
            return None
        given = {a.arg for a in scope.args.args[1:]}
        waits = [
            min(numbers)
            for part, true, at in parts
            for quantity, number in (_compared(part, true) if at is scope else ())
            if isinstance(quantity, ast.Name)
            and quantity.id in given
            and (numbers := self._numbers(number, scope, run))
        ]
        if not waits or not self._is_handler(owner, scope) or not 0 < waits[0] < run.steps or self._spelt(scope.name):
            return None
        return Missed("", 0, f"{owner.name}.{scope.name}", "uncalled")

    def _is_handler(self, owner: ast.ClassDef, method: ast.AST) -> bool:
        """Its other methods are called, by their name as a text or on each of several objects, or as it freezes, too."""
        others = [f.name for f in owner.body if isinstance(f, FUNCTIONS) and f is not method and f.name[:2] != "__"]
        asked = [each for name in others for each in self.mentions.get(name, [])]
        loops = {ast.unparse(n.target) for n in self.nodes if isinstance(n, (ast.For, ast.comprehension))}
        by_turns = any(isinstance(n, ast.Constant) or ast.unparse(getattr(n, "value", n)) in loops for n in asked)
        return bool(asked) and (by_turns or any(_freezes(node) for node in ast.walk(owner)))

    def _plain(self, owner: ast.ClassDef) -> bool:
        """Of a class that is made somewhere, with no base of a library, which could call it."""
        classes = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}
        bases = [classes.get(ast.unparse(base)) for base in owner.bases if ast.unparse(base) not in ("object", "ABC")]
        made = any(isinstance(self.above[each], ast.Call) for each in self.mentions.get(owner.name, []))
        known = all(base is not None and (base is owner or self._only_above(base)) for base in bases)
        return made and known and not owner.decorator_list

    def _only_above(self, base: ast.ClassDef) -> bool:
        return all(ast.unparse(each) in ("object", "ABC") for each in base.bases)

    def _spelt(self, name: str) -> bool:
        """Whether some text that is put together may be this name: ``f"on_{event}"``."""
        for node in self.nodes:
            parts: list[ast.expr] = node.values if isinstance(node, ast.JoinedStr) else []
            if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
                parts = [node.left, node.right]
            texts = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
            if any(len(text) > 1 and text.partition("%")[0].partition("{")[0] in name for text in texts):
                return True
        return False

    # ------------------------------------------------------------------ numbers

    def _numbers(self, node: ast.expr, scope: ast.AST, run: Run) -> list[float]:
        """All that an expression may be, as they are written in the file; none where one is not known, or another was seen."""
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, (int, float)) and node.value is not True else []
        name = _last_name(node)
        if not name:
            return []
        values = [v for v in (*given_to(self.tree, node), *self._by_place(name)) if v is not None]
        values = [v for v in values if ast.unparse(v).rpartition(".")[2] != name]
        if values and all(_is_product(v) for v in values):  # epochs * steps: nobody says never so
            made = self._seen(node, scope, run.seen, 2)
            return [made.high] if made is not None and not made.changes else []
        if any(type(getattr(v, "value", None)) not in (int, float) for v in values):
            return []
        numbers = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, (int, float))]
        seen = self._seen(node, scope, run.seen, 2)
        others = seen is not None and (seen.changes or seen.high not in numbers)
        return [] if others or _in_command(name) else numbers

    def _by_place(self, name: str) -> Iterator[ast.expr]:
        """What calls give for a parameter of this name without naming it."""
        for function in (node for node in self.nodes if isinstance(node, FUNCTIONS)):
            owner = self.above[function]
            arguments = [a.arg for a in function.args.args][isinstance(owner, ast.ClassDef) :]
            if name in arguments:
                known = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
                at = arguments.index(name)
                calls = [node for node in self.nodes if isinstance(node, ast.Call) and called_name(node) == known]
                yield from (call.args[at] for call in calls if at < len(call.args))

    def _seen(self, node: ast.expr, scope: ast.AST, seen: Witnessed, deep: int) -> Series | None:
        """What a name of a function, or an attribute of its object, was; of an argument what callers give for it."""
        if isinstance(node, ast.Attribute):
            owner = self.above.get(scope)
            return seen.of(owner.name if isinstance(owner, ast.ClassDef) else "", node.attr)
        if not isinstance(node, ast.Name):
            return None
        name = getattr(scope, "name", "")
        found = seen.series.get((name, node.id))
        if found is not None or node.id not in _arguments(scope) or not deep:
            return found or seen.of(name, node.id)
        given = self._given(node, scope)
        return self._seen(*given, seen, deep - 1) if given is not None else None

    def _given(self, node: ast.expr, scope: ast.AST) -> tuple[ast.expr, ast.AST] | None:
        """What the only call of a function gives for this argument, and where that stands."""
        arguments = _arguments(scope)
        if not isinstance(node, ast.Name) or node.id not in arguments or not isinstance(scope, FUNCTIONS):
            return None
        place = arguments.index(node.id) - (arguments[:1] == ["self"])
        calls = [n for n in self.nodes if isinstance(n, ast.Call) and called_name(n) == scope.name]
        named = [k.value for call in calls for k in call.keywords if k.arg == node.id]
        given = named or [call.args[place] for call in calls if place < len(call.args)]
        return (given[0], self._around(calls[0])[0]) if len(calls) == len(given) == 1 else None


def _arguments(scope: ast.AST) -> list[str]:
    return [a.arg for a in scope.args.args] if isinstance(scope, FUNCTIONS) else []


def _is_own(node: ast.expr) -> TypeGuard[ast.Attribute]:
    """``self.epoch``."""
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"


def _last_name(node: ast.expr) -> str:
    """``n`` of ``n``, ``cfg.n`` and ``cfg["n"]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _said(part: ast.expr, true: bool) -> str:
    """The condition as it is waited for."""
    if true or not isinstance(part, ast.Compare):
        return ast.unparse(part)
    return ast.unparse(ast.Compare(part.left, [OPPOSITE[type(part.ops[0])]()], part.comparators))


def _sets(node: ast.Assign, name: str) -> bool:
    return any(_last_name(each) == name for target in node.targets for each in getattr(target, "elts", [target]))


def _in_command(name: str) -> bool:
    """Whether the script was started with an option that may set it."""
    options = [text.partition("=")[0].lstrip("-").replace("-", "_") for text in sys.argv[1:]]
    return any(name in option or (option and name.startswith(option)) for option in options)


def _freezes(node: ast.AST) -> bool:
    """``requires_grad_(False)`` or ``requires_grad = False``."""
    value = node.args[0] if isinstance(node, ast.Call) and node.args else getattr(node, "value", None)
    names = [called_name(node)] if isinstance(node, ast.Call) else map(_last_name, getattr(node, "targets", ()))
    return getattr(value, "value", None) is False and any(name.startswith("requires_grad") for name in names)


def _block(node: ast.AST, name: str) -> list[Any]:
    block = getattr(node, name, None)
    return block if isinstance(block, list) else []


def _parts(test: ast.expr, wanted: bool) -> Iterator[tuple[ast.expr, bool]]:
    """What has to be true, or false, for all of it to be."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is wanted:
        for value in test.values:
            yield from _parts(value, wanted)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not wanted)
    else:
        yield test, wanted


def _compared(part: ast.expr, true: bool) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The quantity, and the number that it has to come to."""
    if not isinstance(part, ast.Compare) or len(part.ops) != 1:
        return
    op = type(part.ops[0]) if true else OPPOSITE.get(type(part.ops[0]), ast.Is)
    if issubclass(op, GREATER):
        yield part.left, part.comparators[0]
    if issubclass(op, LESS):
        yield part.comparators[0], part.left


def _is_product(node: ast.expr) -> bool:
    """Of settings and sizes, maybe made whole, with no power of ten among them."""
    while isinstance(node, ast.Call) and called_name(node) in WHOLE and len(node.args) == 1 and not node.keywords:
        node = node.args[0]
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    sides = [getattr(each, "value", None) for each in (node.left, node.right)]
    return not any(isinstance(each, (int, float)) and _is_power_of_ten(each) for each in sides)


def _is_power_of_ten(number: float) -> bool:
    """10,000 or 99,999: a way to say never."""
    return number >= 9 and any(str(int(each)).rstrip("0") == "1" for each in (number, number + 1))
