"""``weights = model.state_dict(); weights.update(checkpoint)``: a dictionary that is filled, and loaded by nobody."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.sensors.sources import FUNCTIONS, called_name, function_around, own_nodes

NAMES_ALONE = ("len", "print", "set", "sorted", "list", "bool", "isinstance", "type", "iter", "enumerate")
COPYING = ("dict", "OrderedDict", "deepcopy", "copy")
SIZES = (
    "shape",
    "size",
    "dtype",
    "numel",
    "dim",
    "ndim",
    "device",
)  # of a tensor, which is not used by asking for them
REMOVING = ("pop", "popitem")
READING = ("items", "values", "get")  # give the tensors: harmless only before the dictionary is filled
WRITING = ("copy_", "add_", "sub_", "mul_", "div_", "lerp_", "set_")  # a state dict is how some reach a model's tensors
GIVES_AWAY = ("locals", "vars", "globals", "eval", "exec")  # as they are: model.eval() is another
LEVELS = 4  # dictionaries that are made of one another


def filled_for_nothing(file: str, line: int) -> int | None:
    """The line that fills the dictionary which ``state_dict()`` returned in this line, if nothing is made of it."""
    scope = function_around(file, line)
    if scope is None or _writes(scope):
        return None
    if any(_fills_unnamed(node) and _spans(node, line) for node in ast.walk(scope)):
        return line
    made = [(name, value) for node, name, value in _assignments(scope) if _spans(node, line)]
    if len(made) != 1 or not _of_state_dict(made[0][1]):
        return None
    return _Dictionary(scope, *made[0]).filled_in()


def _spans(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)


def _fills_unnamed(node: ast.AST) -> bool:
    """``model.state_dict().update(…)`` and ``model.state_dict()[k] = v``: the dictionary is gone with the statement."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called_name(node.value) == "update":
        return _is_state_dict(_without_method(node.value, ("update",)))
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(t, ast.Subscript) and _is_state_dict(t.value) for t in targets)


def _is_state_dict(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and called_name(value) == "state_dict"


def _assignments(scope: ast.AST) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """Statement, name and value of plain assignments to one name."""
    for node in ast.walk(scope):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and len(targets) == 1 and isinstance(targets[0], ast.Name):
            yield from [(node, targets[0].id, node.value)] if node.value is not None else []


def _of_state_dict(value: ast.expr) -> bool:
    """``model.state_dict()``, a copy of it, or a new dictionary of its entries and of others."""
    return any(_is_state_dict(each) for each in (value, *_entries(value)))


def _entries(value: ast.expr) -> list[ast.expr]:
    """What the entries of a dictionary come from; nothing for other expressions."""
    if isinstance(value, ast.Dict):
        return [v for k, v in zip(value.keys, value.values, strict=True) if k is None]
    if isinstance(value, ast.DictComp):
        return [_without_method(each.iter, READING) for each in value.generators]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return [value.left, value.right]
    if isinstance(value, ast.Call) and called_name(value) in COPYING:
        spread = [k.value for k in value.keywords if k.arg is None]
        return [_without_method(value, COPYING), *value.args[:1], *spread]
    return [value] if isinstance(value, ast.Name) else []


def _without_method(value: ast.expr, methods: tuple[str, ...]) -> ast.expr:
    """``own`` of ``own.items()``."""
    called = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in methods
    return value.func.value if called else value  # type: ignore[attr-defined]


def _merges(value: ast.expr) -> bool:
    """Entries of several come together, or each gets a value of its own."""
    if isinstance(value, ast.Dict):
        return len(value.values) > 1
    if isinstance(value, ast.Call):
        return any(k.arg is None for k in value.keywords)
    if isinstance(value, ast.DictComp):
        return _looks_up(value)
    return isinstance(value, ast.BinOp)


def _looks_up(value: ast.DictComp) -> bool:
    """Its values come from another table, too: ``{k: file.get(k, v) for …}``, and not ``{k: v.clone() for …}``."""
    tables = [n.value for n in ast.walk(value.value) if isinstance(n, ast.Subscript)]
    tables += [_without_method(n, READING) for n in ast.walk(value.value) if isinstance(n, ast.Call)]
    own = {n.id for each in value.generators for n in ast.walk(each.target) if isinstance(n, ast.Name)}
    return any(isinstance(n, ast.Name) and n.id not in own for n in tables)


def _writes(scope: ast.AST) -> bool:
    """Into tensors, or it cannot be said who reads its names."""
    if any(_gives_names_away(node) for node in own_nodes(scope)):
        return True
    return any(isinstance(n, ast.Call) and called_name(n) in WRITING for n in _before_training(scope))


def _gives_names_away(node: ast.AST) -> bool:
    """``locals()``, and neither ``model.eval()`` nor ``vars(args)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return node.func.id in GIVES_AWAY and not (node.func.id == "vars" and node.args)


def _before_training(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes outside of the loops that train: what these write, as into an average, is written later than the load."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, FUNCTIONS) and not _trains(child):
            yield child
            yield from _before_training(child)


def _trains(node: ast.AST) -> bool:
    loop = isinstance(node, (ast.For, ast.While))
    return loop and any(isinstance(n, ast.Call) and called_name(n) == "backward" for n in ast.walk(node))


class _Dictionary:
    """A state dict, and the dictionaries that are made of it, under all of their names in one scope."""

    def __init__(self, scope: ast.AST, name: str, value: ast.expr) -> None:
        self.names = {name}
        self.nodes = list(_seen_from(scope, self.names))
        self.filled = [value.lineno] if _merges(value) else []
        self.fine: set[int] = set()  # uses that lead nowhere
        self.early: dict[int, int] = {}  # uses that give its tensors -> line
        for _ in range(LEVELS):
            for node in self.nodes:
                self._judge(node)

    def filled_in(self) -> int | None:
        """The line of the first fill, if it is used nowhere from then on."""
        if not self.filled:
            return None
        first = min(self.filled)
        self.fine |= {use for use, line in self.early.items() if line < first}
        found = [n for n in self.nodes if isinstance(n, ast.Name) and n.id in self.names]
        used = any(isinstance(n.ctx, ast.Load) and id(n) not in self.fine for n in found)
        return None if used else first

    def _is(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self.names

    def _judge(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            self._assigned(node)
        elif isinstance(node, ast.AugAssign) and self._is(node.target) and isinstance(node.op, ast.BitOr):
            self.filled.append(node.lineno)
        elif isinstance(node, ast.Subscript) and self._is(node.value):
            self._entry(node)
        elif isinstance(node, ast.Call):
            self._called(node)
        elif isinstance(node, ast.Compare) and all(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
            self.fine.update(id(n) for n in node.comparators if self._is(n))
        elif isinstance(node, (ast.For, ast.comprehension)) and self._is(node.iter):
            self.fine.add(id(node.iter))
        elif isinstance(node, ast.Attribute) and node.attr in SIZES and isinstance(node.value, ast.Subscript):
            self.fine.add(id(node.value.value))

    def _assigned(self, node: ast.Assign) -> None:
        """Another name for it, or a dictionary that its entries went into."""
        name = node.targets[0] if len(node.targets) == 1 else None
        sources = [n for n in _entries(node.value) if self._is(n)]
        if sources and isinstance(name, ast.Name):
            self.names.add(name.id)
            self.fine.update(map(id, sources))
            self.filled += [node.lineno] if _merges(node.value) else []

    def _entry(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load):
            self.early[id(node.value)] = node.lineno
            return
        self.fine.add(id(node.value))
        if isinstance(node.ctx, ast.Store):
            self.filled.append(node.lineno)

    def _called(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in NAMES_ALONE:
            self.fine.update(id(n) for n in node.args if self._is(n))
        if not isinstance(node.func, ast.Attribute) or not self._is(node.func.value):
            return
        owner, method = node.func.value, node.func.attr
        if method in READING:
            self.early[id(owner)] = node.lineno
        elif method in ("update", "keys", *REMOVING):
            self.fine.add(id(owner))
            self.filled += [node.lineno] if method == "update" else []


def _seen_from(scope: ast.AST, names: set[str]) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of inner functions that have these names for themselves."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, FUNCTIONS) or not _binds(child, names):
            yield child
            yield from _seen_from(child, names)


def _binds(function: ast.AST, names: set[str]) -> bool:
    parts = list(ast.walk(function))
    shared = any(isinstance(n, (ast.Global, ast.Nonlocal)) and names & set(n.names) for n in parts)
    own = any(isinstance(n, ast.arg) and n.arg in names for n in parts)
    made = any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in names for n in parts)
    return not shared and (own or made)
