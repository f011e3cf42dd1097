"""What a tensor was made by: the operation behind names, functions, layers and forwards."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flatline.readers.source import _heads, _in_place, _last_layers, _last_turn, _raw, _values
from flatline.readers.source._made import UNBOUNDED, Made
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Scope, Use, spelled
from flatline.readers.source._values import DEPTH, SHORT, Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project
    from flatline.readers.source._things import Thing

CUT = {"tensor", "detach", "item"}  # what has no graph
SHAPES = {"view", "reshape", "squeeze", "unsqueeze", "flatten", "contiguous", "permute", "transpose", "to", "cuda", "cpu",
          "float", "double", "clone", "requires_grad_", "view_as", "reshape_as", "type", "t", "expand",
          "diagonal", "diag", "gather", "index_select", "masked_select", "take_along_dim"}  # fmt: skip
MAKES = {
    "softmax": "softmax", "log_softmax": "log_softmax", "sigmoid": "sigmoid", "sigmoid_": "sigmoid", "linear": "linear",
    "expit": "sigmoid", "detach": "detach", "item": "item", "tolist": "item", "numpy": "item",
}  # fmt: skip
LAYERS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid", "Linear": "linear",
          "Softmax2d": "softmax", "Conv1d": "linear", "Conv2d": "linear", "Conv3d": "linear",
          "ConvTranspose1d": "linear", "ConvTranspose2d": "linear", "ConvTranspose3d": "linear"}  # fmt: skip
CLAMPS = {"clamp", "clip", "clamp_", "clip_"}
CLAMPED = "clamped "
REDUCES = {"mean", "sum", "max", "min", "abs"}
SUMS = {"mean", "sum"}
JOINS = {"cat", "concat", "stack", "hstack"}
THROUGH = {"Identity", "Dropout", "Flatten", "Unflatten"}


def made(
    project: Project, node: ast.expr | None, use: Use, depth: int = 0, index: tuple[int, ...] = ()
) -> tuple[Made, ...]:
    """The operations that may have made a tensor; nothing if one of them is unknown."""
    if node is None or depth > DEPTH:
        return ()
    if isinstance(node, ast.Name):
        return _name(project, node.id, use, depth, index)
    if isinstance(node, ast.IfExp):
        both = [made(project, part, use, depth + 1, index) for part in _values.chosen(project, node, use)]
        return tuple(m for each in both for m in each) if all(both) else ()
    if isinstance(node, ast.Tuple) and index and index[0] < len(node.elts):
        return made(project, node.elts[index[0]], use, depth + 1, index[1:])
    if isinstance(node, ast.Subscript) and not index:
        return _item(project, node, use, depth)
    if isinstance(node, ast.Attribute) and node.attr == "data" and not index:
        return (Made("detach", node, use),)
    if isinstance(node, (ast.BinOp, ast.UnaryOp)) and not index:
        return _raw.calculated(project, node, use, depth)
    found = _call(project, node, use, depth, index) if isinstance(node, ast.Call) else ()
    return found or _from(project, _values.sources(project, node, use, depth), depth, index)


def _from(project: Project, sources: Sequence[Source], depth: int, index: tuple[int, ...]) -> tuple[Made, ...]:
    each = [made(project, source.node, source.use, depth + 1, index) for source in sources]
    return tuple(m for inner in each for m in inner) if all(each) else ()


def _item(project: Project, node: ast.Subscript, use: Use, depth: int) -> tuple[Made, ...]:
    if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        return made(project, node.value, use, depth + 1, (node.slice.value,))
    if isinstance(node.slice, ast.Constant):
        return _from(project, _values.sources(project, node, use, depth), depth, ())
    comps = [s for s in _values.origins(project, node.value, use) if isinstance(s.node, ast.DictComp)]
    if comps and isinstance(node.slice, ast.Name):
        return _from(project, [Source(s.node.value, s.use) for s in comps], depth, ())  # type: ignore[attr-defined]
    chosen = _chooses(node.slice) and isinstance(node.value, (ast.Name, ast.Call, ast.Subscript))
    return made(project, node.value, use, depth + 1) if chosen else ()  # rows of a tensor; of a tuple nothing is known


def _name(project: Project, name: str, use: Use, depth: int, index: tuple[int, ...]) -> tuple[Made, ...]:
    if name in use.scope.masked.get(id(use.statement), ()) or name not in use.scope.bindings:
        return ()
    found: list[Made] = []
    for binding in _last_turn.in_force(project.bindings_of(name, use), use):
        if _in_place.is_changed(project, name, binding, use):
            return ()
        inner = (
            _argument(project, name, binding.use, depth, index)
            if binding.parameter
            else made(project, binding.value, binding.use, depth + 1, (*binding.index, *index))
        )
        if not inner:
            return ()
        found += inner
    return tuple(found)


def _argument(project: Project, name: str, use: Use, depth: int, index: tuple[int, ...]) -> tuple[Made, ...]:
    found: list[Made] = []
    for value, site in project.given(name, use) if depth < DEPTH else ():
        inner = made(project, value, site, depth + 1, index)
        if not inner:
            return ()
        found += inner
    return tuple(found)


def _call(project: Project, node: ast.Call, use: Use, depth: int, index: tuple[int, ...]) -> tuple[Made, ...]:
    func, dotted = node.func, project.dotted(node.func, use)
    if dotted.startswith("torch."):
        return _by_torch(project, dotted, node, use, depth) if not index else ()
    if isinstance(func, ast.Attribute) and not index:
        if func.attr in SHAPES and not dotted and project.class_behind(func.value, use, depth) is None:
            return made(project, func.value, use, depth + 1)
        if func.attr in MAKES and not dotted and project.class_behind(func.value, use, depth) is None:
            return (Made(MAKES[func.attr], node, use),)
        if func.attr in _raw.PRODUCTS and not dotted and node.args:
            return _raw.product(project, node, [func.value, *node.args], use, depth)
        if func.attr == "log" and not dotted:
            return _logged(made(project, func.value, use, depth + 1))
        if func.attr in CLAMPS and not dotted:
            return _clamped(made(project, func.value, use, depth + 1))
        if func.attr in REDUCES and not dotted and (not node.args or func.attr in SUMS):
            return _reduced(made(project, func.value, use, depth + 1), func.attr, node)
    things = project.things(func, use, depth + 1) or _each_layer(project, func, use, depth)
    layers = [thing for thing in things if thing.call is not None and thing.name.startswith("torch.nn.")]
    if layers:
        return _by_layers(project, layers, node, use, depth) if len(layers) == len(things) and not index else ()
    if len(things) == 1 and things[0].call is None and things[0].name.startswith("torch.nn.functional."):
        return _by_torch(project, things[0].name, node, use, depth) if not index else ()
    if things and not index and things[0].call is not None and things[0].made_of is None:
        return _heads.put_out(project, things, depth)
    function = _own_call(project, things) or project.callee(node, use, depth) or _forward_of(project, things)
    return _returned(project, function, depth, index) if function is not None else ()


def _own_call(project: Project, things: Sequence[Thing]) -> Scope | None:
    """The ``__call__`` that a class of modules puts around its forward, or a class above."""
    owners = {id(thing.made_of): thing.made_of for thing in things if thing.call is not None}
    (owner, *more) = owners.values() or [None]
    return project.method(owner, "__call__") if owner is not None and not more else None


def _forward_of(project: Project, things: Sequence[Thing]) -> Scope | None:
    """The one forward of modules that a list holds."""
    owners = {id(thing.made_of): thing.made_of for thing in things if thing.call is not None}
    (owner, *more) = owners.values() or [None]
    return project.method(owner, "forward") if owner is not None and not more else None


def _each_layer(project: Project, node: ast.expr, use: Use, depth: int) -> tuple[Thing, ...]:
    """All layers that ``head`` is, in ``{t: head(x) for t, head in project.heads.items()}``, in loops, and by a place."""
    listed = _values.gone_through(use, node.id) if isinstance(node, ast.Name) else None
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        listed = node.value
    if listed is None or depth > DEPTH - SHORT:
        return ()
    found = [] if isinstance(listed, ast.Call) else list(_values.each_of(project, listed, use))
    return project.things_of(found, depth + 1)


def _by_torch(project: Project, dotted: str, node: ast.Call, use: Use, depth: int) -> tuple[Made, ...]:
    last = dotted.rpartition(".")[2]
    if (last in SHAPES or last == "Variable") and node.args:
        return made(project, node.args[0], use, depth + 1)
    if last in CLAMPS and node.args:
        return _clamped(made(project, node.args[0], use, depth + 1))
    if last in JOINS and node.args:
        return _parts(project, node.args[0], use, depth) or (Made(last, node, use),)
    if last == "log" and node.args:
        return _logged(made(project, node.args[0], use, depth + 1))
    if last in _raw.PRODUCTS and (found := _raw.product(project, node, node.args, use, depth)):
        return found
    if dotted in ("torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.Tensor", "torch.FloatTensor"):
        return (Made("tensor", node, use),)
    return (Made(MAKES.get(last, last), node, use),)


def _parts(project: Project, node: ast.expr, use: Use, depth: int) -> tuple[Made, ...]:
    """Scores beside scores; nothing if anything else is among them."""
    comp = isinstance(node, (ast.ListComp, ast.GeneratorExp)) and not node.generators[0].ifs
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node.elt] if comp else []  # type: ignore[attr-defined]
    each = [made(project, part, use, depth + 1) for part in parts]
    raw = bool(each) and all(inner and all(m.by in UNBOUNDED for m in inner) for inner in each)
    return tuple(m for inner in each for m in inner) if raw else ()


def _by_layers(project: Project, layers: list[Thing], node: ast.Call, use: Use, depth: int) -> tuple[Made, ...]:
    found: list[Made] = []
    for layer in layers:
        last = layer.name.rpartition(".")[2]
        if last in THROUGH and node.args:
            inner = made(project, node.args[0], use, depth + 1)
        elif last == "Sequential" and layer.call is not None:
            inner = _sequence(project, layer.call, layer.use, depth, project.came_by(layer))
        else:
            inner = (Made(LAYERS.get(last, last), layer.call or node, layer.use),)
        if not inner:
            return ()
        found += inner
    return tuple(found)


def _sequence(
    project: Project, sequence: ast.Call, use: Use, depth: int, site: _last_layers.Site = None
) -> tuple[Made, ...]:
    """By the last layer of ``nn.Sequential(...)`` that changes numbers."""
    added = _appended(sequence, use)
    listed = _layers(sequence) or _last_layers.starred(project, sequence, use, site)
    for last in reversed([*listed, *added] if added is not None else []):
        things = _layer(project, last, use, depth, site)
        if len(things) == 1 and things[0].name.rpartition(".")[2] in THROUGH and things[0].name.startswith("torch.nn."):
            continue
        if len(things) != 1 or (call := things[0].call) is None:
            return ()
        (thing,) = things
        if thing.made_of is not None:
            forward = _own_call(project, things) or project.method(thing.made_of, "forward")
            return _returned(project, forward, depth, ()) if forward else ()
        name = thing.name.rpartition(".")[2]
        if name == "Sequential":
            return _sequence(project, call, thing.use, depth + 1)
        return (Made(LAYERS.get(name, name), call, thing.use),) if thing.name.startswith("torch.nn.") else ()
    return ()


def _layer(project: Project, node: ast.expr, use: Use, depth: int, site: _last_layers.Site) -> tuple[Thing, ...]:
    """What a layer of a sequence is; of a parameter, what the call gave that the sequence came by."""
    given, place = _last_layers.as_given(project, node, use, site)
    things = project.things(given, place, depth + 1)
    classes = given is not node and isinstance(node, ast.Call) and all(t.call is None for t in things)
    return tuple(replace(t, use=use, call=node, via=()) for t in things) if classes else things  # type: ignore[arg-type]


def _returned(
    project: Project,
    function: Scope,
    depth: int,
    index: tuple[int, ...],
) -> tuple[Made, ...]:
    found: list[Made] = []
    for value, use in project.returns(function):
        inner = made(project, value, use, depth + 1, index)
        if not inner:
            return ()
        found += inner
    return tuple(found)


def _chooses(node: ast.expr) -> bool:
    """Rows of a tensor, or a part of each."""
    if isinstance(node, ast.Tuple):
        return all(isinstance(each, (ast.Constant, ast.Call)) or _chooses(each) for each in node.elts)
    return isinstance(node, (ast.Name, ast.Attribute, ast.Slice, ast.Compare, ast.UnaryOp, ast.Subscript))


def _layers(call: ast.Call) -> list[ast.expr]:
    """The layers given to nn.Sequential; none if they are not written out."""
    if (
        len(call.args) == 1
        and isinstance(call.args[0], ast.Call)
        and spelled(call.args[0].func).endswith("OrderedDict")
    ):
        inner = call.args[0].args
        pairs = inner[0].elts if inner and isinstance(inner[0], (ast.List, ast.Tuple)) else []
        return [pair.elts[1] for pair in pairs if isinstance(pair, ast.Tuple) and len(pair.elts) == 2]
    starred = [place for place, given in enumerate(call.args) if isinstance(given, ast.Starred)]
    return call.args[starred[-1] + 1 :] if starred else call.args


def _appended(call: ast.Call, use: Use) -> list[ast.expr] | None:
    """What is put behind the layers of a sequence, in the function that makes it; None if it cannot be known."""
    node = use.statement
    own = isinstance(node, ast.Assign) and len(node.targets) == 1 and node.value is call
    name = unparsed(node.targets[0]) if own and isinstance(node, ast.Assign) else ""
    found: list[ast.expr] = []
    for other, place in use.scope.calls if name else ():
        method = other.func.attr if isinstance(other.func, ast.Attribute) else ""
        if method not in ("append", "add_module", "extend", "insert") or not other.args:
            continue
        if unparsed(other.func.value) == name:  # type: ignore[attr-defined]
            if place.path != use.path or method in ("extend", "insert"):
                return None
            found.append(other.args[-1])
    return found


def _clamped(inner: tuple[Made, ...]) -> tuple[Made, ...]:
    """Kept within bounds; for a loss it is what it was."""
    return tuple(Made(f"{CLAMPED}{m.by.removeprefix(CLAMPED)}", m.node, m.use) for m in inner if m.by not in CUT)


def _reduced(inner: tuple[Made, ...], by: str, node: ast.Call) -> tuple[Made, ...]:
    """A number of no graph stays one; a sum of scores has no bounds either."""
    if by in SUMS and inner and all(m.by in UNBOUNDED for m in inner):
        return inner
    return tuple(m for m in inner if m.by in CUT and not node.args)


def _logged(inner: tuple[Made, ...]) -> tuple[Made, ...]:
    return tuple(Made("log_softmax" if m.by == "softmax" else "log", m.node, m.use) for m in inner)
