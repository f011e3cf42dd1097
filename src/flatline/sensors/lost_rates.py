"""Rates that the loop works out and the optimizer never gets: written to a copy of a group, or only told."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple

from flatline.events import OptimizerFacts, RateLost, Where
from flatline.sensors.callers import is_users, users_frame, variables_of
from flatline.sensors.copied_groups import rate_in_copy, rate_now
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.sources import LOOPS, called_name, function_around, tree_of
from flatline.sensors.told_rates import ALIKE, FUNCTIONS, LABEL, MOVES, SWING, rates_of, tellings

GROUPS = "param_groups"
COPIES = ("dict", "copy", "deepcopy")
TELLERS = ("print", "info", "debug", "add_scalar", "log_metric", "set_postfix", "write")
PURE = ("min", "max", "abs", "float", "round", "pow", "int", "len")  # of no state; and what ``math`` has
FIRST_LOOKS = 1  # before the source is read: the rates of most scripts have moved by then, or never do
FRAMES = 4  # of the user's, from the step outwards
BY_ITSELF = ("Adafactor", "ASGD")  # whose rate moves within
READS = ("get_last_lr", "get_lr", "state_dict", GROUPS)
ATTRIBUTES = ("lr", "learning_rate")  # of an optimizer: torch's have none of these names
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Lost(NamedTuple):
    """What the source says of a rate that goes nowhere."""

    line: int
    text: str
    name: str  # of the variable beside the step that holds the rate; '' where it has none
    copied: bool
    attribute: bool = False  # of the optimizer


class LostRates:
    """On sampled steps: the rate in use stands still, and the one that the loop works out moves."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._rates: dict[int, list[Any]] = {}
        self._looks: dict[int, int] = {}
        self._past: dict[int, list[float]] = {}
        self._moved: set[int] = set()  # optimizers whose rate did not stand still
        self._found: dict[int, tuple[OptimizerState, OptimizerFacts, Where, Lost]] = {}
        self._holders: dict[int, Any] = {}  # weak references to what keeps copies

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """Count the look, and note the value that the loop holds."""
        optimizer, key = state.ref(), state.key
        if optimizer is None or key in self._moved or not self.loop.wants(RateLost):
            return
        rates = rates_of(optimizer)
        if self._rates.setdefault(key, rates) != rates or not all(type(rate) is float for rate in rates):
            self._moved.add(key)
            return
        self._looks[key] = looks = self._looks.get(key, 0) + 1
        own = {name: vars(optimizer)[name] for name in ATTRIBUTES if name in vars(optimizer)}
        if looks <= FIRST_LOOKS or not type(optimizer).__module__.startswith("torch.optim."):
            return
        if own:
            self._note_attribute(state, *next(iter(own.items())))
        else:
            self._read(state, "lr_decay" in optimizer.defaults or type(optimizer).__name__ in BY_ITSELF)

    def _read(self, state: OptimizerState, decays: bool) -> None:
        frame, lost = _where_lost()
        if frame is None or lost is None:
            self._follow_copy(state)
            return
        if decays and not lost.copied:
            return
        where = Where(frame.f_code.co_filename, lost.line, frame.f_code.co_name)
        self._found[state.key] = state, state.facts, where, lost
        value = variables_of(frame).get(lost.name) if lost.name else None
        if isinstance(value, float):
            self._add(state.key, float(value))
        else:
            self._past.setdefault(state.key, [])

    def _note_attribute(self, state: OptimizerState, name: str, value: Any) -> None:
        """``optimizer.lr = lr``: the groups know nothing of it."""
        if type(value) is not float:
            return
        _, _, where, lost = self._found.get(state.key, (None, None, state.where, None))
        if lost is None or not lost.attribute:  # the source is read once
            place, text = _attribute_set(name)
            where = place or where
            lost = Lost(where.line if where is not None else 0, text, name, copied=True, attribute=True)
        if where is None:
            return
        self._found[state.key] = state, state.facts, where, lost
        self._add(state.key, value)

    def _follow_copy(self, state: OptimizerState) -> None:
        """No statement in the loop shows it; an object may keep copies of the groups, and move the rates in them."""
        found = rate_in_copy(users_frame(), state.ref())
        if found is not None:
            lost = Lost(found.where.line, found.text, GROUPS, copied=True)
            self._found[state.key] = state, state.facts, found.where, lost
            self._holders[state.key] = found.holder
            self._add(state.key, found.rate)

    def _add(self, key: int, rate: float) -> None:
        past = self._past.setdefault(key, [])
        if not past or past[-1] != rate:
            past.append(rate)

    def _look_once_more(self) -> None:
        """At what copies say in the end: a slow schedule has hardly moved by the last look."""
        for key, holder in self._holders.items():
            optimizer = self._found[key][0].ref()
            rate = rate_now(holder, optimizer)
            if rate is not None:
                self._add(key, rate)
            if optimizer is not None and rates_of(optimizer) != self._rates[key]:
                self._moved.add(key)

    def finish(self) -> None:
        """Told at the end: a rate may be written later than at the first steps."""
        self._look_once_more()
        for key, (state, facts, where, lost) in self._found.items():
            moved = key in self._moved or (self._moved and not lost.copied)
            if not moved and self._looks[key] > MOVES and self._goes(key, lost):
                self.loop.emit(
                    RateLost(
                        step=self.loop.steps,
                        where=where,
                        optimizer=replace(facts, steps=state.steps),
                        text=lost.text,
                        copied=lost.copied,
                        attribute=lost.attribute,
                        values=tuple(self._past[key]),
                        lr=self._rates[key][0],
                    )
                )

    def _goes(self, key: int, lost: Lost) -> bool:
        """The rate that is worked out moves; one that is only told has to be meant for this optimizer."""
        if not lost.name:
            return True
        past = self._past[key]
        if lost.attribute:
            return any(abs(rate - past[-1]) > SWING * max(rate, past[-1]) for rate in self._rates[key])
        meant = lost.copied or any(abs(max(past, default=0.0) - rate) <= ALIKE * rate for rate in self._rates[key])
        seldom = key in self._holders  # nothing but a rate is written there, be it once in many epochs
        return meant and len(past) > (1 if seldom else MOVES) and max(past) - min(past) >= SWING * max(past)


def _where_lost() -> tuple[FrameType | None, Lost | None]:
    """The innermost of the user's frames whose loop loses a rate."""
    frame, left = users_frame(), FRAMES
    while frame is not None and left:
        if is_users(frame.f_code.co_filename):
            left -= 1
            if (lost := lost_rate(frame.f_code.co_filename, frame.f_lineno)) is not None:
                return frame, lost
        frame = frame.f_back
    return None, None


def _attribute_set(name: str) -> tuple[Where | None, str]:
    """Where the user's running files set an attribute of that name, of something that is not ``self``."""
    frame, files = users_frame(), dict[str, None]()
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            files[frame.f_code.co_filename] = None
        frame = frame.f_back
    for file in files:
        for node in ast.walk(tree_of(file) or ast.Module([], [])):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, (ast.Assign, ast.AugAssign)) and isinstance(target, ast.Attribute):
                if target.attr == name and ast.unparse(target.value) != "self":
                    function = function_around(file, node.lineno)
                    return Where(file, node.lineno, getattr(function, "name", "<module>")), ast.unparse(node)
    return None, f"optimizer.{name} = …"


# --------------------------------------------------------------------------- the source


@lru_cache(maxsize=64)
def lost_rate(file: str, line: int) -> Lost | None:
    """In the loop around the line of the step, or in a function that it calls with what it changes."""
    tree = tree_of(file) if any("lr" in text for text in linecache.getlines(file)) else None
    if tree is None:
        return None
    function = function_around(file, line) or tree
    loops = [n for n in _own(function) if isinstance(n, LOOPS) and n.lineno <= line <= (n.end_lineno or 0)]
    if not loops:
        return None
    loop = min(loops, key=lambda n: n.lineno)
    changed = set(_stored(loop))
    copies = [*_copied(loop, function, changed, beside=True), *_in_helpers(tree, loop, changed)]
    return next(iter(copies), None) or _only_told(tree, function, loop, changed)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of the functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield child
            yield from _own(child)


def _names(node: ast.AST, kind: type[ast.expr_context] = ast.Load) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, kind)]


def _stored(node: ast.AST) -> Iterator[str]:
    yield from (name.id for name in _names(node, ast.Store))


def _in_helpers(tree: ast.AST, loop: ast.AST, changed: set[str]) -> Iterator[Lost]:
    """``adjust(optimizer, step)``: a function of this file that the loop calls with what it changes."""
    functions = [f for f in ast.walk(tree) if isinstance(f, FUNCTIONS[:2])]
    for call in (node for node in _own(loop) if isinstance(node, ast.Call)):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        named = [f for f in functions if getattr(f, "name", "") == called_name(call)]
        if len(named) == 1 and any(name.id in changed for each in given for name in _names(each)):
            parameters = {a.arg for a in ast.walk(named[0]) if isinstance(a, ast.arg)} - {"self"}
            yield from _copied(named[0], named[0], parameters | set(_stored(named[0])), beside=False)


def _copied(scope: ast.AST, function: ast.AST, changed: set[str], *, beside: bool) -> Iterator[Lost]:
    """Writes of a rate that moves to what is a copy for certain, and is not used again."""
    nodes = list(_own(scope))
    of_groups = {name for node in nodes for name in _over_groups(node)}
    for node in nodes:
        if not isinstance(node, (ast.Assign, ast.AugAssign)):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        value = _made(node, of_groups) or _written(node, target, function, of_groups)
        if value is None or not any(n.id in changed - of_groups for n in _names(value)):
            continue
        if _unused(node, target, function):
            name = value.id if isinstance(value, ast.Name) and beside else ""
            yield Lost(node.lineno, ast.unparse(node), name, copied=True)


def _over_groups(node: ast.AST) -> list[str]:
    """The names that stand for a group in ``for group in optimizer.param_groups``."""
    if not isinstance(node, (ast.For, ast.comprehension)):
        return []
    return list(_stored(node.target)) if _leads_to_groups(node.iter) else []


def _leads_to_groups(node: ast.AST) -> bool:
    return any(
        (isinstance(n, ast.Attribute) and n.attr == GROUPS) or (isinstance(n, ast.Constant) and n.value == GROUPS)
        for n in ast.walk(node)
    )


def _made(node: ast.Assign | ast.AugAssign, of_groups: set[str]) -> ast.expr | None:
    """The rate in ``name = dict(group, lr=rate)``, ``{**group, "lr": rate}`` or ``group | {"lr": rate}``."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return None
    value, source = node.value, None
    found: ast.expr | None = None
    if isinstance(value, ast.Call) and called_name(value) == "dict" and value.args:
        source, found = value.args[0], next((k.value for k in value.keywords if k.arg == "lr"), None)
    elif isinstance(value, ast.Dict):
        source, found = next((v for k, v in zip(value.keys, value.values, strict=True) if k is None), None), _lr(value)
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr) and isinstance(value.right, ast.Dict):
        source, found = value.left, _lr(value.right)
    return found if source is not None and _is_group(source, of_groups) else None


def _lr(node: ast.Dict) -> ast.expr | None:
    keys = zip(node.keys, node.values, strict=True)
    return next((v for k, v in keys if isinstance(k, ast.Constant) and k.value == "lr"), None)


def _is_group(node: ast.expr, of_groups: set[str]) -> bool:
    return (isinstance(node, ast.Name) and node.id in of_groups) or _leads_to_groups(node)


def _written(
    node: ast.Assign | ast.AugAssign, target: ast.expr, function: ast.AST, of_groups: set[str]
) -> ast.expr | None:
    """The rate in ``copy["lr"] = rate``."""
    if (
        not isinstance(target, ast.Subscript)
        or not isinstance(target.slice, ast.Constant)
        or target.slice.value != "lr"
    ):
        return None
    return node.value if _is_copy(target.value, function, of_groups) else None


def _is_copy(node: ast.expr, function: ast.AST, of_groups: set[str]) -> bool:
    """A group of ``state_dict()``, or one that was copied on the spot or into a name that holds nothing else."""
    if isinstance(node, ast.Name):
        bound = [_binding(each, node.id) for each in _own(function)]
        values = [value for value in bound if value is not None]
        return bool(values) and all(not isinstance(v, ast.Name) and _is_copy(v, function, of_groups) for v in values)
    if _of_state(node):
        return True
    if isinstance(node, ast.Subscript):  # an item of what is a deep copy, or of a name
        deep = any(isinstance(n, ast.Call) and called_name(n) == "deepcopy" for n in ast.walk(node))
        return (deep or _names_state(node, function)) and _leads_to_groups(node)
    if not isinstance(node, ast.Call) or called_name(node) not in COPIES:
        return False
    method = isinstance(node.func, ast.Attribute) and not node.args
    source = node.func.value if method and isinstance(node.func, ast.Attribute) else next(iter(node.args), None)
    return source is not None and (_is_group(source, of_groups) and not _whole(source, node))


def _of_state(node: ast.expr) -> bool:
    """``state_dict()["param_groups"]`` in it, and no groups of the optimizer itself."""
    own = any(isinstance(n, ast.Attribute) and n.attr == GROUPS for n in ast.walk(node))
    items = [n for n in ast.walk(node) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Call)]
    return not own and any(called_name(n.value) == "state_dict" and _leads_to_groups(n.slice) for n in items)  # type: ignore[arg-type]


def _whole(source: ast.expr, call: ast.Call) -> bool:
    """The list of all groups, copied flat: the groups in it are the optimizer's own."""
    return isinstance(source, ast.Attribute) and source.attr == GROUPS and called_name(call) != "deepcopy"


def _names_state(node: ast.Subscript, function: ast.AST) -> bool:
    root: ast.expr = node
    while isinstance(root, ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    values = [value for each in _own(function) if (value := _binding(each, root.id)) is not None]
    return bool(values) and all(isinstance(v, ast.Call) and called_name(v) == "state_dict" for v in values)


def _binding(node: ast.AST, name: str) -> ast.expr | None:
    """What a statement binds a name to; what a loop takes it from."""
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
        return node.value
    if isinstance(node, (ast.For, ast.comprehension)) and name in _stored(node.target):
        return node.iter if not isinstance(node.iter, ast.Attribute) else ast.Tuple(elts=[], ctx=ast.Load())
    return None


def _unused(node: ast.stmt, target: ast.expr, function: ast.AST) -> bool:
    """Nothing reads the copy: neither its name nor that of what it was taken from, but to write a rate there."""
    root = target
    while isinstance(root, ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name):
        return True  # made on the spot
    own = {id(n) for n in ast.walk(node)}
    name, scope = root.id, _binder(node, root.id, function)
    inner = {id(n) for f in ast.walk(function) for b in _rebinding(f, name) if b is not scope for n in ast.walk(b)}
    loads = [n for n in _loads(function, name) if id(n) not in own and id(n) not in inner]
    return not any(n.lineno >= (scope.lineno if scope is not None else 0) for n in loads)


def _binder(node: ast.stmt, name: str, function: ast.AST) -> ast.For | None:
    """The innermost loop around a statement that takes the name from somewhere."""
    around = [f for f in ast.walk(function) if isinstance(f, ast.For) and name in _stored(f.target)]
    inside = [f for f in around if any(n is node for n in ast.walk(f))]
    return max(inside, key=lambda f: f.lineno, default=None)


def _rebinding(node: ast.AST, name: str) -> list[ast.AST]:
    """Other loops and comprehensions in which the name stands for something else."""
    if isinstance(node, ast.For) and name in _stored(node.target):
        return [node]
    kinds = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return [node] if isinstance(node, kinds) and any(name in _stored(g.target) for g in node.generators) else []


# --------------------------------------------------------------------------- told, and no more


def _only_told(tree: ast.AST, function: ast.AST, loop: ast.stmt, changed: set[str]) -> Lost | None:
    """A name that the loop computes anew, and that nothing but a log gets."""
    own = set(_stored(loop.target)) if isinstance(loop, ast.For) else set()
    labelled = {e.id: e for e in _labelled(loop) if isinstance(e, ast.Name) and e.id in changed - own}
    for name, node in labelled.items():
        writes = [each for each in _own(loop) if name in _written_by(each)]
        if writes and all(_computed(each, name, tree, changed) for each in writes):
            harmless = {id(n) for each in (*writes, *_texts(loop)) for n in _names(each)}
            loads = [n for n in _loads(function, name) if id(n) not in harmless]
            if all(n.lineno < loop.lineno for n in loads) and not _nonlocal(tree, name):
                return Lost(node.lineno, name, name, copied=False)
    return None


def _labelled(loop: ast.AST) -> Iterator[ast.expr]:
    yield from tellings(loop)
    for call in (n for n in _own(loop) if isinstance(n, ast.Call) and called_name(n) == "set_postfix"):
        yield from (k.value for k in call.keywords if k.arg and LABEL.search(k.arg))


def _written_by(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr, ast.withitem)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        return [name for target in targets if target is not None for name in _stored(target)]
    return []


def _computed(node: ast.AST, name: str, tree: ast.AST, changed: set[str]) -> bool:
    """Worked out from what the loop changes by plain arithmetic and functions of this file that know no optimizer."""
    value = getattr(node, "value", None)
    if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) or value is None or not _pure(value):
        return False
    if not isinstance(node, ast.AugAssign) and not any(n.id in changed for n in _names(value)):
        return False
    functions = {f.name: f for f in ast.walk(tree) if isinstance(f, Function)}
    for call in (n for n in ast.walk(value) if isinstance(n, ast.Call)):
        known = functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        of_math = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in ("math", "np", "numpy")
        if not of_math and called_name(call) not in PURE and (known is None or not _pure(known)):
            return False
    return True


def _pure(node: ast.AST) -> bool:
    """It neither reads a rate of an optimizer nor writes anything but names of its own."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and (each.attr in READS or not isinstance(each.ctx, ast.Load)):
            return False
        if isinstance(each, ast.Subscript) and not isinstance(each.ctx, ast.Load):
            return False
        if isinstance(each, (ast.Global, ast.Nonlocal)) or (
            isinstance(each, ast.Constant) and each.value in ("lr", GROUPS)
        ):
            return False
    return True


def _texts(loop: ast.AST) -> Iterator[ast.AST]:
    """What becomes a text or a row of a log."""
    for node in ast.walk(loop):
        if isinstance(node, ast.FormattedValue) or (isinstance(node, ast.Call) and called_name(node) in TELLERS):
            yield node
    yield from tellings(loop)


def _loads(function: ast.AST, name: str) -> Iterable[ast.Name]:
    """Of the name in its own scope, and in functions that see it."""
    hidden = {
        id(n)
        for f in ast.walk(function)
        if isinstance(f, FUNCTIONS) and f is not function and (name in _stored(f) or name in _arguments(f))
        for n in ast.walk(f)
    }
    return [n for n in _names(function) if n.id == name and id(n) not in hidden]


def _arguments(function: ast.AST) -> set[str]:
    return {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}


def _nonlocal(tree: ast.AST, name: str) -> bool:
    return any(isinstance(n, (ast.Global, ast.Nonlocal)) and name in n.names for n in ast.walk(tree))
