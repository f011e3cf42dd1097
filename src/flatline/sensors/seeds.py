"""Random numbers: where the user's code seeds them again, and what was seeded at all."""

from __future__ import annotations

import ast
import multiprocessing
import random
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from flatline.events import SeedsObserved, Where
from flatline.sensors.callers import is_users, methods_of
from flatline.sensors.loop import Loop
from flatline.sensors.patching import Patches
from flatline.sensors.sources import FUNCTIONS, LOOPS, called_name, given_names, own_nodes, tree_of

SEEDING = (
    "manual_seed",
    "manual_seed_all",
    "seed",
    "default_rng",
    "RandomState",
    "Random",
    "set_seed",
    "seed_everything",
)
DRAWING = (
    "randint", "randperm", "choice", "choices", "sample", "permutation", "shuffle", "integers", "multinomial", "randrange"
)  # fmt: skip
ORDERING = ("randperm", "permutation", "permuted", "shuffle")  # of DRAWING, those that put all samples into an order
Function = ast.FunctionDef | ast.AsyncFunctionDef
Functions = dict[str, Function]
Judge = Callable[[ast.AST, Functions], ast.expr | ast.stmt | None]
DEPTH = 3  # functions called by functions called in the loop
GENERATORS = ("numpy.random.Generator", "numpy.random.RandomState", "random.Random", "torch.Generator")
BY_HAND = 2**32  # seeds that torch picks for itself are larger nearly always
SERVING = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
WRAPPED = 3  # data sets around data sets


# --------------------------------------------------------------------------- what was seeded


class SeedSensor:
    """Notes which of the global generators were drawn from, and which were seeded."""

    def __init__(self, loop: Loop, patches: Patches) -> None:
        self.loop, self.patches = loop, patches
        self.seeded: set[str] = set()
        self.told: SeedsObserved | None = None
        self._values: dict[str, str] = {}  # generator -> the seed it was given last
        self._before: dict[str, int] = {}
        self._torch_seed = 0

    def attach(self) -> None:
        """Remember the generators' states; learn of calls that seed Python's and numpy's."""
        self._torch_seed = torch.initial_seed()
        self._before = _states()
        for name, module in _modules():
            self._around_seed(name, module)

    def _around_seed(self, name: str, module: Any) -> None:
        """``random.seed`` is a bound method: it is replaced in its module for the run."""
        original = module.seed

        def seed(*args: Any, **kwargs: Any) -> Any:
            self.seeded.add(name)
            given = args[0] if args else next(iter(kwargs.values()), None)
            self._values[name] = str(given) if type(given) is int else ""
            return original(*args, **kwargs)

        def restore() -> None:
            if module.seed is seed:
                module.seed = original

        seed.__module__, seed.__name__, seed.__qualname__ = module.__name__, "seed", "seed"  # it can be pickled
        module.seed = seed
        self.patches.on_undo(restore)

    def tell(self) -> None:
        """The run is over."""
        now, first = _states(), torch.initial_seed()
        late = self._torch_seed < BY_HAND  # seeded before we came: whatever else was, is not known
        if first != self._torch_seed or late:
            self.seeded.add("torch")
        used = {name for name, state in now.items() if state != self._before.get(name, state)}
        if "torch" in self.seeded:
            self._values["torch"] = str(first)
        self.told = SeedsObserved(
            step=self.loop.steps,
            seeded=tuple(sorted(self.seeded)),
            unseeded=() if late else tuple(sorted(used - self.seeded)),
            benchmark=torch.backends.cudnn.benchmark,
            deterministic=torch.backends.cudnn.deterministic,
            strict=torch.are_deterministic_algorithms_enabled(),
            cuda=bool(torch.cuda.is_initialized()),  # type: ignore[no-untyped-call]
        )
        self.loop.emit(self.told)

    def facts(self) -> dict[str, str | bool | None]:
        """For the record of the run: what to set, and what it ran on, to see the same numbers again."""
        told = self.told
        if told is None:
            return {}
        seeds = [f"{name}={value}" if (value := self._values.get(name)) else name for name in told.seeded]
        return {
            "seeds": ", ".join(seeds) or None,
            "unseeded": ", ".join(told.unseeded) or None,
            "deterministic": told.deterministic or told.strict,
            "benchmark": told.benchmark,
            "device": _device(told.cuda),
        }


def _device(cuda: bool) -> str:
    """The processor that the run used, by name."""
    return torch.cuda.get_device_name() if cuda else "cpu"


def _modules() -> Iterator[tuple[str, Any]]:
    yield "random", random
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield "numpy", numpy


def _states() -> dict[str, int]:
    """A number for the state of each global generator."""
    states = {"torch": hash(bytes(torch.random.get_rng_state().tolist())), "random": hash(random.getstate())}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        kind, keys, *rest = numpy.get_state()
        states["numpy"] = hash((kind, keys.tobytes(), *rest))
    return states


# --------------------------------------------------------------------------- generators that workers copy


def copied_generator(dataset: Any) -> tuple[str, str, str] | None:
    """(class, name, kind) of a generator that a data set or its transform draws from, and every worker gets a copy of."""
    for _ in range(WRAPPED):
        inner = getattr(dataset, "__dict__", {}).get("dataset")
        parts = [dataset, *getattr(dataset, "__dict__", {}).values()]
        for owner in parts:
            found = _drawn_from(owner)
            if found is not None:
                return (type(owner).__name__, *found)
        if inner is None:
            return None
        dataset = inner
    return None


def _knows_its_worker(names: set[str]) -> bool:
    """It asks which worker it is in, and not only for how many there are."""
    return "get_worker_info" in names and ("num_workers" not in names or bool(names & {"id", "seed", "dataset"}))


def _drawn_from(owner: Any) -> tuple[str, str] | None:
    """A generator that the methods of an object of the user's draw from, and do not seed for each sample or worker."""
    methods = [m for m in methods_of(type(owner)) if is_users(m.__code__.co_filename)]
    names = {name for m in methods for name in _names(m.__code__)}
    if not names or names & {*SEEDING, "set_state", "setstate"} or _knows_its_worker(names):
        return None
    methods = _serving(methods)
    names = {name for m in methods for name in _names(m.__code__)}
    held = dict(getattr(owner, "__dict__", {}))
    if multiprocessing.get_start_method(allow_none=True) in (None, "fork") and sys.platform == "linux":
        held = {**{k: v for m in methods for k, v in m.__globals__.items() if k in names}, **held}
    for name, value in held.items():
        kind = f"{type(value).__module__}.{type(value).__name__}".replace("numpy.random._generator", "numpy.random")
        kind = kind.replace("numpy.random.mtrand", "numpy.random").replace("torch._C", "torch")
        if name in names and kind in GENERATORS:
            return name, kind
    return None


def _serving(methods: list[FunctionType]) -> list[FunctionType]:
    """Those that make a sample, and those that they call: another may draw once, or for each epoch in the main process."""
    found = [m for m in methods if m.__name__ in SERVING]
    for method in found:
        called = _names(method.__code__)
        found += [m for m in methods if m.__name__ in called and m not in found]
    return found or methods


def _names(code: CodeType) -> set[str]:
    """Names that a function reads or calls, those of functions in it, too."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return {*code.co_names, *(name for part in inner for name in _names(part))}


# --------------------------------------------------------------------------- why a loop draws the same again


def seeded_draw(frame: FrameType | None) -> tuple[str, Where | None]:
    """The call that seeds anew, in a loop around ``frame``, before samples are drawn; '' if there is none."""
    return _first(frame, _seeds_then_draws)


def seeded_order(frame: FrameType | None) -> tuple[str, Where | None]:
    """The same before an order of all samples is drawn, in any loop around ``frame`` in which one optimizer goes on."""
    while frame is not None:
        file = frame.f_code.co_filename
        tree = tree_of(file) if is_users(file) else None
        for loop in _loops_around(tree, frame.f_lineno) if tree is not None else ():
            scopes = list(_called_in(file, frame.f_lineno, loop))
            if any(_builds_optimizer(scope) for _, scope, _ in scopes):
                return "", None
            for name, scope, functions in scopes:
                found = _seeds_then_draws(scope, functions, ORDERING)
                if found is not None and not _varies(tree, found):
                    return ast.unparse(found), Where(file, found.lineno, name)
        frame = frame.f_back
    return "", None


def _varies(tree: ast.AST | None, seeding: ast.Call) -> bool:
    """The seed may be another one in each pass: it is reckoned, counted, or given to the function by a loop."""
    given = [*seeding.args, *(keyword.value for keyword in seeding.keywords)]
    inner = [n for each in given for n in ast.walk(each)]
    if tree is None or any(isinstance(n, (ast.BinOp, ast.Call, ast.JoinedStr)) for n in inner):
        return True
    names = {ast.unparse(n) for n in inner if isinstance(n, (ast.Name, ast.Attribute))}
    return not names.isdisjoint(_changing(tree))


def _changing(tree: ast.AST) -> set[str]:
    """What a loop or a count gives another value, and parameters that are given such a thing."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.AugAssign)):
            found |= {ast.unparse(n) for n in ast.walk(node.target) if isinstance(n, (ast.Name, ast.Attribute))}
    for _ in range(DEPTH):
        found |= set(_handed_on(tree, found))
    return found


def _handed_on(tree: ast.AST, names: set[str]) -> Iterator[str]:
    functions: dict[str, list[Function]] = {}
    for key, node in _functions(tree):  # type: ignore[arg-type]
        functions.setdefault(key.removeprefix("."), []).append(node)
    for call in _calls(tree):
        for function in functions.get(called_name(call), ()):
            pairs = [
                *zip(given_names(function), call.args, strict=False),
                *((k.arg or "", k.value) for k in call.keywords),
            ]
            yield from (name for name, value in pairs if _mentions(value, names))


def _mentions(value: ast.AST, names: set[str]) -> bool:
    return any(ast.unparse(n) in names for n in ast.walk(value) if isinstance(n, (ast.Name, ast.Attribute)))


def _builds_optimizer(scope: ast.AST) -> bool:
    return any(isinstance(getattr(torch.optim, called_name(call), None), type) for call in _calls(scope))


def lost_step(frame: FrameType | None) -> tuple[str, Where | None]:
    """The statement that moves a window along for nothing, in a function called in a loop around ``frame``; '' if there is none."""
    return _first(frame, lambda scope, functions: _moves_for_nothing(scope) or _moves_by_the_epoch(scope))


def _first(frame: FrameType | None, judge: Judge) -> tuple[str, Where | None]:
    while frame is not None:
        file = frame.f_code.co_filename
        for name, scope, functions in _in_loop(file, frame.f_lineno) if is_users(file) else ():
            found = judge(scope, functions)
            if found is not None:
                return ast.unparse(found), Where(file, found.lineno, name)
        frame = frame.f_back
    return "", None


def _in_loop(file: str, line: int) -> Iterator[tuple[str, ast.AST, Functions]]:
    """The innermost loop around a line, and the functions that are called there; the innermost first."""
    tree = tree_of(file)
    loops = _loops_around(tree, line) if tree is not None else []
    if loops:
        yield from _called_in(file, line, loops[0])


def _called_in(file: str, line: int, loop: ast.AST) -> Iterator[tuple[str, ast.AST, Functions]]:
    tree = tree_of(file)
    if tree is None:
        return
    functions = {key: node for key, node in _functions(tree) if not node.lineno <= line <= (node.end_lineno or 0)}
    scopes: dict[str, ast.AST] = {"": loop}
    for _ in range(DEPTH):
        called = [_key(call) for scope in scopes.values() for call in _calls(scope)]
        scopes.update({key: functions[key] for key in called if key in functions})
    for name, scope in reversed(list(scopes.items())):
        yield name.removeprefix("."), scope, functions


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Functions by name, methods by their name with a dot."""
    methods = {id(f) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            yield ("." if id(node) in methods else "") + node.name, node


def _loops_around(tree: ast.Module, line: int) -> list[ast.AST]:
    """Those around a line, within the function that the line stands in; the innermost first."""
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, (*LOOPS, *FUNCTIONS)) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found.append(node)
    found.sort(key=lambda node: getattr(node, "lineno", 0), reverse=True)
    return list(takewhile(lambda node: isinstance(node, LOOPS), found))


def _seeds_then_draws(scope: ast.AST, functions: Functions, what: tuple[str, ...] = DRAWING) -> ast.Call | None:
    """The seeding call of a scope that draws samples after it, itself or in a function that it calls."""
    calls = sorted(_calls(scope), key=lambda call: (call.lineno, call.col_offset))
    seeding = [call for call in calls if _does(call, SEEDING, functions) and (call.args or call.keywords)]
    drawing = [call for call in calls if _does(call, what, functions)]
    return seeding[0] if seeding and drawing and drawing[-1].lineno >= seeding[0].lineno else None


def _moves_for_nothing(scope: ast.AST) -> ast.stmt | None:
    """``at += n`` behind ``order[at : at + n]``, where ``at`` is the function's own, and nothing reads it after that."""
    if not isinstance(scope, FUNCTIONS):
        return None
    nodes = list(own_nodes(scope))
    shared = {name for n in nodes if isinstance(n, (ast.Nonlocal, ast.Global)) for name in n.names}
    looped = {id(inner) for loop in nodes if isinstance(loop, LOOPS) for inner in ast.walk(loop)}
    begins = _begins(nodes)
    for node in nodes:
        if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Name) or id(node) in looped:
            continue
        name = node.target.id
        read = (n.lineno > node.lineno for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name)
        if name in begins - shared and not any(read):
            return node
    return None


def _begins(nodes: list[ast.AST]) -> set[str]:
    """Names for where a slice begins."""
    bounds = [n.slice.lower for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice)]
    return {n.id for bound in bounds if bound is not None for n in ast.walk(bound) if isinstance(n, ast.Name)}


def _moves_by_the_epoch(scope: ast.AST) -> ast.stmt | None:
    """``at = step // batches * size`` before ``order[at : at + size]``, where ``batches = len(order) // size``: % was meant."""
    nodes = list(own_nodes(scope)) if isinstance(scope, FUNCTIONS) else []
    made = [
        n for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name)
    ]
    values = {n.targets[0].id: n.value for n in made if isinstance(n.targets[0], ast.Name)}
    for node in made:
        value = node.value
        if ast.unparse(node.targets[0]) not in _begins(nodes) or not isinstance(value, ast.BinOp):
            continue
        epoch, size = value.left, ast.unparse(value.right)
        counted = epoch.right if isinstance(value.op, ast.Mult) and isinstance(epoch, ast.BinOp) else None
        batches = values.get(counted.id) if isinstance(counted, ast.Name) else counted
        divided = isinstance(batches, ast.BinOp) and isinstance(batches.op, ast.FloorDiv)
        if divided and ast.unparse(batches.right) == size and isinstance(epoch.op, ast.FloorDiv):  # type: ignore[union-attr,attr-defined]
            return node
    return None


def _does(call: ast.Call, what: tuple[str, ...], functions: Functions) -> bool:
    own = functions.get(_key(call))
    return any(called_name(inner) in what for inner in _calls(own)) if own is not None else called_name(call) in what


def _calls(scope: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(scope) if isinstance(node, ast.Call)]


def _key(call: ast.Call) -> str:
    return ("." if isinstance(call.func, ast.Attribute) else "") + called_name(call)
