"""Modules, functions and classes of a project, and which assignments may reach a place."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from flatline.events import Where
from flatline.readers.source._files import Text
from flatline.readers.source._nodes import children, unparsed, walk
from flatline.readers.source._unrolled import unrolled

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SAME = {"to", "cuda", "cpu", "float", "half", "double", "bfloat16", "train", "eval", "requires_grad_", "apply", "type",
        "to_empty", "share_memory", "xpu", "compile_"}  # fmt: skip
LAMBDA = "<lambda>"
NO_ARGUMENTS = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
Path: TypeAlias = tuple[tuple[int, str], ...]  # the blocks around a statement, outermost first


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A name or an attribute of self gets a value."""

    value: ast.expr | None  # None where it is not known
    use: Use
    index: tuple[int, ...] = ()  # of the value, which is unpacked
    anywhere: bool = False  # reaches every place, as globals do
    definition: ast.stmt | None = None  # a function or a class
    imported: str = ""  # the dotted name behind an import
    parameter: bool = False  # of the function: every call gives its own


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A place in a scope."""

    scope: Scope
    order: int
    path: Path
    statement: ast.stmt

    def before(self, other: Use) -> bool:
        """Whether every way to the other place comes by this one."""
        return self.order < other.order and other.path[: len(self.path)] == self.path


@dataclass(slots=True, eq=False)
class Scope:
    """A module or a function: its statements in order, and what it binds."""

    module: Module
    node: ast.Module | Function
    parent: Scope | None = None
    owner: Class | None = None
    statements: list[Use] = field(default_factory=list)
    calls: list[tuple[ast.Call, Use]] = field(default_factory=list)
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    ended: set[tuple[int, str]] = field(default_factory=set)  # blocks that nothing flows out of
    params: tuple[str, ...] = ()
    outer: set[str] = field(default_factory=set)  # names that are declared global or nonlocal
    masked: dict[int, set[str]] = field(default_factory=dict)  # names of comprehensions, by statement
    choices: dict[int, ast.If] = field(default_factory=dict)  # by the id that a path has
    loops: dict[int, ast.For] = field(default_factory=dict)
    matches: dict[int, ast.Match] = field(default_factory=dict)
    yields: list[tuple[ast.Yield, Use]] = field(default_factory=list)
    _heads: list[str] | None = None  # the last names of its decorators

    @property
    def name(self) -> str:
        """``Trainer.fit``, or nothing for a module."""
        if isinstance(self.node, ast.Module):
            return ""
        return f"{self.owner.node.name}.{self.node.name}" if self.owner else self.node.name

    def marked(self, *decorators: str) -> bool:
        """Whether one of these stands above the function: ``property``, ``staticmethod``."""
        if self._heads is None:
            heads = [] if isinstance(self.node, ast.Module) else self.node.decorator_list
            self._heads = [unparsed(head).rpartition(".")[2] for head in heads]
        return any(head in decorators for head in self._heads)

    @property
    def arguments(self) -> ast.arguments:
        """What stands in its parentheses; a module has none."""
        return NO_ARGUMENTS if isinstance(self.node, ast.Module) else self.node.args

    @property
    def own(self) -> tuple[str, ...]:
        """The name of the object that a method belongs to: ``self``."""
        return self.params[:1] if self.owner is not None and not self.marked("staticmethod") else ()

    @property
    def marked_without_grad(self) -> ast.expr | None:
        """``@torch.no_grad()`` above the function."""
        heads = [] if isinstance(self.node, ast.Module) else self.node.decorator_list
        return next((head for head in heads if re.search(r"no_grad|inference_mode", unparsed(head))), None)

    @property
    def returns(self) -> list[tuple[ast.expr | None, Use]]:
        """What it may give back, and where."""
        return [(use.statement.value, use) for use in self.statements if isinstance(use.statement, ast.Return)]

    def reaching(self, name: str, use: Use) -> list[Binding]:
        """The bindings of a name that may be in force at a place of this scope."""
        known = self.bindings.get(name, [])
        if use.scope is not self:
            return known
        before: list[Binding] = []
        for binding in reversed(known):
            if binding.use.order < use.order and self._flows(binding.use, use):
                before.append(binding)
                if binding.use.before(use):
                    break  # every way comes by it: what was before is over
        return before[::-1] or [b for b in known if b.anywhere or b.use.order >= use.order]

    def _flows(self, source: Use, target: Use) -> bool:
        """Not from one branch of a condition into the other, and not out of a block that ends."""
        for at, block in enumerate(source.path):
            if at < len(target.path) and target.path[at] == block:
                continue
            if at < len(target.path) and target.path[at][0] == block[0]:
                return False
            return not any(inner in self.ended for inner in source.path[at:])
        return True


@dataclass(slots=True, eq=False)
class Class:
    """A class: its methods, and what they assign to attributes of self."""

    module: Module
    node: ast.ClassDef
    use: Use
    methods: dict[str, Scope] = field(default_factory=dict)
    attributes: dict[str, list[Binding]] = field(default_factory=dict)
    fields: dict[str, ast.expr | None] = field(default_factory=dict)  # of a dataclass or NamedTuple, with the default

    @property
    def is_record(self) -> bool:
        """Made from its fields, by the class itself."""
        heads = [unparsed(head) for head in (*self.node.decorator_list, *self.node.bases)]
        plain = all(head.rpartition(".")[2] in ("NamedTuple", "object") for head in map(unparsed, self.node.bases))
        return plain and "__init__" not in self.methods and any(re.search(r"dataclass|NamedTuple", h) for h in heads)


@dataclass(slots=True, eq=False)
class Module:
    """A parsed file."""

    text: Text
    tree: ast.Module
    top: Scope = field(init=False)
    scopes: list[Scope] = field(default_factory=list)
    classes: dict[int, Class] = field(default_factory=dict)
    functions: dict[int, Scope] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    whole: str = field(init=False)  # its lines, in one
    lambdas: bool = field(init=False)  # whether there are any
    _lambdas: dict[int, Scope] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = "\n".join(self.text.lines)
        self.lambdas = "lambda" in self.whole
        self.tree = unrolled(self.text, self.tree)
        self.top = _Builder(self).scope(self.tree, self.tree.body, parent=None, owner=None)

    def of_lambda(self, node: ast.Lambda, use: Use) -> Scope:
        """A lambda as a function that returns its expression; it is none of the scopes that are gone through."""
        if id(node) not in self._lambdas:
            body = ast.copy_location(ast.Return(node.body), node.body)
            made = ast.FunctionDef(LAMBDA, node.args, [body], [], None)  # type: ignore[call-arg,arg-type,unused-ignore]
            self._lambdas[id(node)] = _Builder(self).apart(ast.copy_location(made, node), use.scope)
        return self._lambdas[id(node)]

    def where(self, node: ast.AST, scope: Scope | None = None) -> Where:
        """The place of a node, as people count."""
        file, line = self.text.place(getattr(node, "lineno", 1))
        return Where(file, line, scope.name if scope else "")

    def says(self, node: ast.stmt | ast.expr, pattern: re.Pattern[str]) -> bool:
        """Whether the code of a statement has what a pattern looks for; comments do not count."""
        lines = "\n".join(self.text.lines[node.lineno - 1 : node.end_lineno])
        return pattern.search(lines) is not None and pattern.search(unparsed(node)) is not None

    def line(self, node: ast.AST) -> str:
        """The source line of a node."""
        number = getattr(node, "lineno", 0)
        return self.text.lines[number - 1] if 0 < number <= len(self.text.lines) else ""


def spelled(node: ast.AST, *, limit: int = 60) -> str:
    """The source of an expression, on one line."""
    text = " ".join(unparsed(node).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def plain_call(node: ast.Call) -> ast.Call:
    """``nn.Linear(8, 2)`` in ``nn.Linear(8, 2).to(device)``."""
    while isinstance(node.func, ast.Attribute) and node.func.attr in SAME and isinstance(node.func.value, ast.Call):
        node = node.func.value
    return node


class _Builder:
    """One walk over a module."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def scope(
        self, node: ast.Module | Function, body: Sequence[ast.stmt], *, parent: Scope | None, owner: Class | None
    ) -> Scope:
        made = Scope(self.module, node, parent, owner)
        self.module.scopes.append(made)
        if not isinstance(node, ast.Module):
            self.module.functions[id(node)] = made
            self._params(made, node)
        self._block(body, made, ())
        return made

    def apart(self, node: Function, parent: Scope) -> Scope:
        """A function that the module does not list."""
        made = Scope(self.module, node, parent)
        self._params(made, node)
        self._block(node.body, made, ())
        return made

    def _params(self, scope: Scope, node: Function) -> None:
        given = node.args
        names = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        scope.params = tuple(argument.arg for argument in names)
        start = Use(scope, -1, (), node)
        for name in scope.params:
            scope.bindings[name] = [Binding(None, start, parameter=True)]
        for extra in (given.vararg, given.kwarg):
            if extra is not None:
                scope.bindings[extra.arg] = [Binding(None, start)]

    def _block(self, body: Sequence[ast.stmt], scope: Scope, path: Path) -> None:
        for statement in body:
            use = Use(scope, len(scope.statements), path, statement)
            scope.statements.append(use)
            self._statement(statement, use)
        if body and path and isinstance(body[-1], ENDS):
            scope.ended.add(path[-1])

    def _statement(self, node: ast.stmt, use: Use) -> None:
        if isinstance(node, FUNCTIONS):
            self._bind(node.name, Binding(None, use, definition=node))
            self._expressions([*node.decorator_list, *node.args.defaults], use)
            self.scope(node, node.body, parent=use.scope, owner=None)
            return
        if isinstance(node, ast.ClassDef):
            self._bind(node.name, Binding(None, use, definition=node))
            self._class(node, use)
            return
        self._binds(node, use)
        self._expressions(_own(node), use)
        if isinstance(node, ast.If):
            use.scope.choices[id(node)] = node
        elif isinstance(node, ast.For):
            use.scope.loops[id(node)] = node
        elif isinstance(node, ast.Match):
            use.scope.matches[id(node)] = node
        self._below(node, use)

    def _below(self, node: ast.stmt, use: Use) -> None:
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                through = isinstance(node, (ast.With, ast.AsyncWith, ast.Try)) and name != "orelse"
                self._block(body, use.scope, use.path if through else (*use.path, (id(node), name)))
        for number, part in enumerate([*getattr(node, "handlers", ()), *getattr(node, "cases", ())]):
            self._block(part.body, use.scope, (*use.path, (id(node), f"part {number}")))

    def _class(self, node: ast.ClassDef, use: Use) -> None:
        made = Class(self.module, node, use)
        self.module.classes[id(node)] = made
        for statement in node.body:
            if isinstance(statement, FUNCTIONS):
                made.methods[statement.name] = self.scope(statement, statement.body, parent=use.scope, owner=made)
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                made.fields[statement.target.id] = statement.value
            elif isinstance(statement, ast.Assign):
                self._expressions([statement.value], use)
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        made.attributes.setdefault(target.id, []).append(Binding(statement.value, use))
        for name, value in made.fields.items() if not made.is_record else ():
            if value is not None:
                self._expressions([value], use)
                made.attributes.setdefault(name, []).append(Binding(value, use))

    # ----------------------------------------------------------------------- names

    def _binds(self, node: ast.stmt, use: Use) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._target(target, node.value, use, ())
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._target(node.target, node.value, use, ())
        elif isinstance(node, ast.AugAssign):
            self._target(node.target, None, use, ())
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._target(node.target, None, Use(use.scope, use.order, (*use.path, (id(node), "body")), node), ())
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self._target(item.optional_vars, None, use, ())
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, use)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            use.scope.outer |= set(node.names)

    def _target(self, target: ast.expr, value: ast.expr | None, use: Use, index: tuple[int, ...]) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, Binding(value, use, index))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for number, element in enumerate(target.elts):
                inner = value
                here = (*index, number)
                if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) and not index:
                    inner, here = value.elts[number], ()
                self._target(element, inner, use, here)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and use.scope.owner:
            if use.scope.params[:1] == (target.value.id,):
                use.scope.owner.attributes.setdefault(target.attr, []).append(Binding(value, use, index))
        elif isinstance(target, ast.Starred):
            self._target(target.value, None, use, ())

    def _bind(self, name: str, binding: Binding) -> None:
        scope = binding.use.scope
        if name in scope.outer:
            outer = self.module.top if hasattr(self.module, "top") else _outermost(scope)
            moved = Binding(binding.value, binding.use, binding.index, True, binding.definition, binding.imported)
            outer.bindings.setdefault(name, []).append(moved)
            return
        scope.bindings.setdefault(name, []).append(binding)

    def _import(self, node: ast.Import | ast.ImportFrom, use: Use) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                dotted = alias.name if alias.asname else alias.name.split(".")[0]
                self._bind(alias.asname or dotted, Binding(None, use, imported=dotted))
            elif alias.name == "*":
                self.module.stars.append("." * node.level + (node.module or ""))
            else:
                dotted = f"{'.' * node.level}{node.module or ''}{'.' if node.module else ''}{alias.name}"
                self._bind(alias.asname or alias.name, Binding(None, use, imported=dotted))

    # ----------------------------------------------------------------------- expressions

    def _expressions(self, nodes: Sequence[ast.AST], use: Use) -> None:
        for node in nodes:
            for inner in evaluated(node):
                if isinstance(inner, ast.Call):
                    use.scope.calls.append((inner, use))
                elif isinstance(inner, ast.Yield):
                    use.scope.yields.append((inner, use))
                elif isinstance(inner, ast.NamedExpr):
                    self._target(inner.target, inner.value, use, ())
                elif isinstance(inner, ast.comprehension):
                    names = {name.id for name in walk(inner.target) if isinstance(name, ast.Name)}
                    use.scope.masked.setdefault(id(use.statement), set()).update(names)


def _outermost(scope: Scope) -> Scope:
    while scope.parent is not None:
        scope = scope.parent
    return scope


def _own(node: ast.stmt) -> list[ast.AST]:
    """The expressions of a statement itself, without the statements in it."""
    return [
        child
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
    ]


def lies_in(node: ast.AST, outer: ast.stmt) -> bool:
    """By their lines."""
    return outer.lineno <= getattr(node, "lineno", 0) <= (outer.end_lineno or 0)


def iterated(node: ast.expr) -> ast.expr:
    """The loader in ``enumerate(tqdm(loader))``."""
    while isinstance(node, ast.Call) and node.args and spelled(node.func).rpartition(".")[2] in ("enumerate", "tqdm"):
        node = node.args[0]
    return node


def evaluated(node: ast.AST) -> list[ast.AST]:
    """The nodes of an expression, those that are evaluated first coming first; no lambda is entered."""
    found: list[ast.AST] = []
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Lambda):
            continue
        found.append(node)
        waiting += children(node)
    return found[::-1]


def bindings_at(name: str, use: Use) -> list[Binding]:
    """The bindings of a name, in the innermost scope that has any."""
    scope: Scope | None = use.scope
    while scope is not None:
        if name in scope.bindings:
            return scope.reaching(name, use)
        scope = scope.parent
    return []


def is_bound(name: str, scope: Scope | None) -> bool:
    while scope is not None and name not in scope.bindings:
        scope = scope.parent
    return scope is not None


def calls_each(statement: ast.stmt) -> set[int]:
    """What a comprehension computes for each of its elements."""
    found = set()
    for node in walk(statement):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            found |= {id(n) for part in parts for n in walk(part) if isinstance(n, ast.Call)}
    return found
