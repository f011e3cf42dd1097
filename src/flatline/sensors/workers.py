"""A ``worker_init_fn``: does it give every worker one and the same seed, and may it reach what the data set holds?"""

from __future__ import annotations

import ast
import inspect
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from flatline.events import Where
from flatline.sensors.callers import closure_of, is_users, methods_of
from flatline.sensors.sources import tree_of

DRAWS = {
    "rand", "randn", "randint", "random", "uniform", "normal", "choice", "choices", "sample", "shuffle", "permutation",
    "randperm", "random_sample", "standard_normal", "gauss", "betavariate", "randrange", "bernoulli", "multinomial",
    "rand_like", "randn_like", "integers",
}  # fmt: skip
SEEDS = ("seed", "manual_seed")
SEEDED = ("torch", "numpy", "random")  # packages that seed generators of their own, and know of no data set
OPTIONS = ("Namespace", "SimpleNamespace")
PLAIN = (int, float, str, type(None))
DEPTH = 2  # functions called by functions of the data set


def seeded_alike(init: Any, dataset: Any) -> tuple[str, str, Where] | None:
    """(the call, the generator, its line) of a seed that is the same in every worker, of a generator the data set draws from."""
    scope = _scope_of(init)
    if scope is None or not is_users(scope.file):
        return None
    seeds = list(_seeds(scope, DEPTH))
    apart = {seed.generator for seed in seeds if not seed.alike}
    for seed in seeds:
        if seed.generator not in apart and any(_draws(each, seed.generator) for each in _functions(dataset)):
            return ast.unparse(seed.call), seed.generator, Where(scope.file, seed.call.lineno, scope.function.__name__)
    return None


# --------------------------------------------------------------------------- what worker_init_fn may reach


def leaves_alone(init: Any, name: str) -> bool:
    """It is there, and changes nothing of a data set's: it seeds torch, random and numpy, which a generator ``name`` is none of."""
    if init is None:
        return True
    given = (*init.args, *init.keywords.values()) if isinstance(init, partial) else ()
    function = init.func if isinstance(init, partial) else init
    return all(isinstance(each, PLAIN) for each in given) and _plain(function, name, DEPTH)


def _plain(function: Any, name: str, deep: int) -> bool:
    """A function of the user's that reads numbers, functions of its own kind, and modules that know of no data set."""
    if not isinstance(function, FunctionType) or not is_users(function.__code__.co_filename):
        return False
    names = _names(function.__code__)
    if name in names or _words(function.__code__) & {name, "dataset"} or "dataset" in names:
        return False
    read = [function.__globals__[each] for each in names if each in function.__globals__]
    read += [*closure_of(function).values(), *(function.__defaults__ or ())]
    return all(_harmless(each) or (deep and _plain(each, name, deep - 1)) for each in read if each is not function)


def _harmless(value: Any) -> bool:
    """A number, options, or a function or a module that seeds at most generators of its own."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in (*SEEDED, *sys.stdlib_module_names)
    options = value if type(value) is dict else vars(value) if type(value).__name__ in OPTIONS else None
    if options is not None:
        return all(isinstance(each, PLAIN) or (type(each) is dict and _harmless(each)) for each in options.values())
    owner = getattr(value, "__module__", None) or ""
    return isinstance(value, PLAIN) or (callable(value) and owner.partition(".")[0] in SEEDED)


def _words(code: CodeType) -> set[str]:
    """Text in it: ``setattr(info.dataset, "rng", …)``."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return {part for part in code.co_consts if isinstance(part, str)}.union(*map(_words, inner))


# --------------------------------------------------------------------------- what worker_init_fn seeds, and with what


class Seed(NamedTuple):
    """A call that seeds one of the global generators."""

    call: ast.Call
    generator: str
    alike: bool  # with what is known before any worker is there


@dataclass(frozen=True, slots=True)
class Scope:
    """A function of the user's, with what is known of its variables; nothing of the worker's number."""

    function: FunctionType
    known: Mapping[str, Any]

    @property
    def file(self) -> str:
        """Where it is written."""
        return self.function.__code__.co_filename

    def nodes(self) -> list[ast.AST]:
        """Those of its own lines."""
        first, tree = self.function.__code__.co_firstlineno, tree_of(self.file)
        found = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))) if tree else ()
        return [inner for node in found if node.lineno == first for inner in ast.walk(node)]

    def held(self, node: ast.AST) -> Any:
        """What an expression is in every worker; None where that is not known. A sum of such is told by its first part."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            return self._part(node) if not self._stores(ast.unparse(node)) else None
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
        return self.held(sides[0]) if sides and all(type(self.held(each)) is int for each in sides) else None

    def _part(self, node: ast.Attribute | ast.Subscript) -> Any:
        """An attribute, without a property of the user's being run, or an entry of a table."""
        owner = self.held(node.value)
        if isinstance(node, ast.Subscript):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return owner.get(key) if type(owner) is dict else None
        look = getattr if isinstance(owner, ModuleType) else inspect.getattr_static
        return look(owner, node.attr, None) if owner is not None else None

    def _stores(self, text: str) -> list[ast.AST]:
        """The places at which something gets a value."""
        nodes = (n for n in self.nodes() if isinstance(getattr(n, "ctx", None), ast.Store))
        return [node for node in nodes if ast.unparse(node) == text]

    def _named(self, name: str) -> Any:
        """A variable that is set once, one that was given, or one of the module's."""
        stored = self._stores(name)
        if stored:
            made = [n.value for n in self.nodes() if isinstance(n, ast.Assign) and n.targets == stored]
            own = any(isinstance(n, ast.Name) and n.id == name for value in made for n in ast.walk(value))
            return self.held(made[0]) if made and not own and name not in self.known else None
        if name in self.function.__code__.co_varnames:
            return self.known.get(name)
        return self.known.get(name, self.function.__globals__.get(name))

    def called(self, call: ast.Call) -> Scope | None:
        """The user's function that is called by its name, with what it is given."""
        function = self.held(call.func) if isinstance(call.func, ast.Name) else None
        if not isinstance(function, FunctionType) or not is_users(function.__code__.co_filename):
            return None
        if function is self.function or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        named = {k.arg: self.held(k.value) for k in call.keywords if k.arg}
        return Scope(function, _variables(function, [self.held(each) for each in call.args], named))


def _scope_of(init: Any) -> Scope | None:
    """Of a function, a method, an object that can be called, and of functools.partial of them."""
    given, named = [], {}
    if isinstance(init, partial):
        given, named, init = list(init.args), dict(init.keywords), init.func
    if isinstance(init, MethodType):
        given, init = [init.__self__, *given], init.__func__
    elif not isinstance(init, FunctionType):
        given, init = [init, *given], inspect.getattr_static(type(init), "__call__", None)
    if not isinstance(init, FunctionType):
        return None
    return Scope(init, _variables(init, [*given, None], named))  # None: the worker's number


def _variables(function: FunctionType, given: list[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments, their defaults, and variables of functions around."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(names[::-1], (function.__defaults__ or ())[::-1], strict=False))
    defaults |= function.__kwdefaults__ or {}
    return closure_of(function) | defaults | dict(zip(names, given, strict=False)) | dict(named)


def _seeds(scope: Scope, deep: int) -> Iterator[Seed]:
    """Calls of ``seed(…)`` in its own lines, and of functions that make one."""
    for call in (node for node in scope.nodes() if isinstance(node, ast.Call)):
        generator = _generator(call, scope)
        if generator:
            yield Seed(call, generator, bool(call.args) and all(type(scope.held(each)) is int for each in call.args))
        elif deep and (helper := scope.called(call)) is not None:
            yield from (seed._replace(call=call) for seed in _seeds(helper, deep - 1))


def _generator(call: ast.Call, scope: Scope) -> str:
    """Which global generator a call seeds."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in SEEDS:
        return ""
    found = scope.held(call.func.value)
    return next((name for name, module in _modules().items() if found is module), "")


def _modules() -> dict[str, Any]:
    known = {"random": random, "torch": torch, "numpy.random": sys.modules.get("numpy.random")}
    return {name: module for name, module in known.items() if module is not None}


# --------------------------------------------------------------------------- what a sample is made with


def _functions(dataset: Any) -> list[FunctionType]:
    """The user's functions that a sample is made with: methods of the data set and of its transforms, and what they call."""
    parts = [dataset, *getattr(dataset, "__dict__", {}).values()]
    found = [part for part in parts if isinstance(part, FunctionType)]
    for part in parts:
        found += methods_of(type(part))
    found = [each for each in found if is_users(each.__code__.co_filename)]
    for _ in range(DEPTH):
        called = [each.__globals__.get(name) for each in found for name in _names(each.__code__)]
        found += [
            c for c in called if isinstance(c, FunctionType) and is_users(c.__code__.co_filename) and c not in found
        ]
    return found


def _draws(function: FunctionType, generator: str) -> bool:
    """It names the generator's module, and something that draws from it; and seeds nothing."""
    names, module = _names(function.__code__), _modules()[generator]
    if names & {*SEEDS, "default_rng", "RandomState", "Generator"} or not names & DRAWS:
        return False
    held = [value for name, value in function.__globals__.items() if name in names]
    if generator == "numpy.random" and "random" in names:
        return any(value is sys.modules.get("numpy") for value in held) or any(value is module for value in held)
    return any(value is module for value in held)


def _names(code: CodeType) -> set[str]:
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return {*code.co_names, *(name for part in inner for name in _names(part))}
