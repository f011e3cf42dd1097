"""What names stand for in a rehearsal: plain Python values where they are known, and the kinds of objects below."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from flatline.events import Where
from flatline.readers.source._scopes import Module, Scope, spelled

Value: TypeAlias = Any


class Unknown:
    """What nothing is known of."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()
MORE = "<more>"  # arguments, or entries of a table, that are not known
SETTER = "<setter>"  # what setting a property does, among its attributes
OWN = "weight of its own"  # of a layer of torch, among its attributes
QUIET = ("torch.no_grad", "torch.inference_mode")


@dataclass(slots=True, eq=False)
class Env:
    """Names and what they stand for: of a file, a class or a call of a function."""

    module: Module
    outer: Env | None = None
    names: dict[str, Value] = field(default_factory=dict)
    declared: dict[str, Env] = field(default_factory=dict)  # by global and nonlocal
    scope: Scope | None = None  # the function, for the places that are told
    of_class: bool = False
    owner: Class | None = None  # of the method
    receiver: Value = None
    on_yield: Any = None

    def find(self, name: str) -> Value:
        """What a name stands for. Raises KeyError."""
        env: Env | None = self.declared.get(name, self)
        while env is not None:
            if name in env.names and (not env.of_class or env is self):
                return env.names[name]
            env = env.outer
        raise KeyError(name)

    @property
    def top(self) -> Env:
        """Of the file."""
        return self if self.outer is None else self.outer.top


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """An expression in the source; where that is and how it is spelled is asked for seldom."""

    node: ast.AST
    env: Env

    @property
    def where(self) -> Where:
        """As people count."""
        return self.env.module.where(self.node, self.env.scope)

    @property
    def text(self) -> str:
        """Its source, on one line."""
        return spelled(self.node)


@dataclass(slots=True, eq=False)
class Function:
    """A function of the project, with the names around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    env: Env
    defaults: dict[str, Value]
    owner: Class | None = None
    kind: str = ""  # static, class, property, manager
    quiet: Place | None = None  # @torch.no_grad()
    generates: bool = False
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Bound:
    """A method of an object."""

    function: Function
    receiver: Value


@dataclass(slots=True, eq=False)
class Partial:
    """A function with some of its arguments."""

    function: Value
    args: tuple[Value, ...]
    kwargs: dict[str, Value]


@dataclass(slots=True, eq=False)
class Class:
    """A class of the project."""

    name: str
    module: Module
    bases: tuple[Value, ...]
    names: dict[str, Value]
    record: bool = False  # a dataclass or NamedTuple
    fields: dict[str, Value] = field(default_factory=dict)
    order: tuple[Value, ...] = ()  # in which attributes are looked for, itself first

    def find(self, name: str) -> Value:
        """What a name stands for in the class or above it. Raises KeyError."""
        for each in self.order:
            if isinstance(each, Class) and name in each.names:
                return each.names[name]
        raise KeyError(name)

    def function(self, name: str) -> Function | None:
        """A method of the class, or of one above it."""
        try:
            found = self.find(name)
        except KeyError:
            return None
        return found if isinstance(found, Function) else None

    @property
    def open(self) -> bool:
        """Something above it is not known."""
        return any(base is UNKNOWN for base in self.order)

    def comes_from(self, *dotted: str) -> bool:
        """Whether a class of a library is above it."""
        return any(isinstance(base, Library) and base.dotted in dotted for base in self.order)


@dataclass(slots=True, eq=False)
class Library:
    """A function, class or module that is not of the project."""

    dotted: str


@dataclass(slots=True, eq=False)
class File:
    """A module of the project."""

    env: Env


@dataclass(slots=True, eq=False)
class Object:
    """An object of a class of the project."""

    made_of: Class
    attributes: dict[str, Value] = field(default_factory=dict)
    table: dict[Value, Value] | None = None  # what it holds as a dict, if its class is one

    @property
    def is_module(self) -> bool:
        """Of torch.nn.Module."""
        return any(isinstance(base, Library) and is_layer(base.dotted) for base in self.made_of.order)


@dataclass(slots=True, eq=False)
class Made:
    """What a library made."""

    dotted: str
    args: tuple[Value, ...] = ()
    kwargs: dict[str, Value] = field(default_factory=dict)
    place: Place | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    parts: Any = None  # of Sequential, ModuleList, ModuleDict; the weights of an optimizer

    @property
    def name(self) -> str:
        """The last one."""
        return self.dotted.rpartition(".")[2]

    def given(self, name: str, place: int) -> Value:
        """An argument; None where it was not given."""
        return self.kwargs.get(name, self.args[place] if place < len(self.args) else None)


@dataclass(slots=True, eq=False)
class Weight:
    """The parameters of a layer."""

    layer: Any
    name: str = "weight"
    attributes: dict[str, Value] = field(default_factory=lambda: {"requires_grad": True})


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was done to a tensor on its way to the loss."""

    kind: str
    place: Place
    of: Any = None


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor: the operation that made it, and which weights a gradient would reach."""

    by: str = ""
    place: Place | None = None
    reach: frozenset[Weight] = frozenset()
    marks: frozenset[Mark] = frozenset()
    known: bool = True  # all that it was made of is
    scaled: bool = False  # by a GradScaler
    done: bool = False  # its backward has run
    picked: bool = False  # some of the numbers alone
    bounded: bool = False  # by a clamp, a tanh and their like


@dataclass(slots=True, eq=False)
class Method:
    """A method of something that is not of the project."""

    receiver: Value
    name: str


@dataclass(slots=True, eq=False)
class Generator:
    """A call of a function that yields, not yet gone through."""

    function: Function
    env: Env


@dataclass(slots=True, eq=False)
class Super:
    """``super()``."""

    above: tuple[Value, ...]
    receiver: Value


def inside(value: Value) -> Value:
    """The list or table that something is, or that a module of a list holds."""
    if isinstance(value, Made) and isinstance(value.parts, (list, dict)):
        return value.parts
    return value.table if isinstance(value, Object) and value.table is not None else value


def is_key(value: Value) -> bool:
    """Whether a table or a set can hold it."""
    return not isinstance(value, (list, dict, set))


def call_at(node: ast.AST, name: str) -> ast.Call:
    """A call that the source does not spell, at the place that makes it."""
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [], []), node)


def parts_of(value: Value) -> Iterator[tuple[str, Value]]:
    """The modules and weights that a module registers, with their names."""
    if isinstance(value, (Object, Made)):
        own = value.parts if isinstance(value, Made) and not isinstance(value.parts, frozenset) else None
        for name, part in own.items() if isinstance(own, dict) else enumerate(own or ()):
            if is_module(part) or isinstance(part, Weight):
                yield str(name), part
        for name, part in value.attributes.items():
            if is_module(part) or isinstance(part, Weight):
                yield name, part


def is_module(value: Value) -> bool:
    """Whether it is a module of torch."""
    if isinstance(value, Object):
        return value.is_module
    return isinstance(value, Made) and is_layer(value.dotted)


def is_layer(dotted: str) -> bool:
    """A class of torch.nn, or a model of a library."""
    if dotted.startswith(("torchvision.models.", "timm.create_model")):
        return True
    return dotted.startswith("torch.nn.") and dotted.rpartition(".")[2][:1].isupper()


def weights_of(value: Value, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Weight]]:
    """All weights of a module, each once, with their names."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Weight):
        yield path, value
        return
    own = value.attributes.get(OWN) if isinstance(value, Made) else None
    if own is not None and id(own) not in seen:
        seen.add(id(own))
        yield f"{path}.weight".lstrip("."), own
    for name, part in parts_of(value):
        if part is not own:
            yield from weights_of(part, f"{path}.{name}".lstrip("."), seen)


def modules_of(value: Value, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Value]]:
    """A module and all that it registers, each once."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, Weight):
        return
    seen.add(id(value))
    yield path, value
    for name, part in parts_of(value):
        yield from modules_of(part, f"{path}.{name}".lstrip("."), seen)
