"""Labels that are made class by class, and stay in that order."""

from __future__ import annotations

import ast

from flatline.readers.source._arguments import argument, argument_at, default
from flatline.readers.source._grouped import grouped, grouped_rows
from flatline.readers.source._listings import labels_in_turn, listed_by_class, rearranged
from flatline.readers.source._makers import of_its_object
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Use, spelled
from flatline.readers.source._spread import keywords
from flatline.readers.source._things import Thing
from flatline.readers.source._values import Source, origins

SAME_ORDER = {"long", "float", "to", "int", "cuda", "unsqueeze", "view", "reshape", "flatten", "contiguous", "clone"}
FULL = {"torch.full", "torch.full_like", "numpy.full", "numpy.full_like"}
FILLED = {"torch.zeros": 0, "torch.ones": 1}
MANY = 128  # samples in a batch; a larger one may hold the whole set


def class_by_class(project: Project, thing: Thing, loader: Thing) -> bool:
    """A TensorDataset whose last tensor is sorted, in batches that are no more than a part of it."""
    call = thing.call
    if thing.made_of is not None and loader.call is not None:
        own = thing.made_of
        sorts = _own_labels(project, own) or grouped_rows(project, own) or listed_by_class(project, own)
        return sorts and _fits(project, loader) and not rearranged(project, own)
    if thing.name != "torch.utils.data.TensorDataset" or call is None or len(call.args) < 2 or loader.call is None:
        return False
    return _fits(project, loader) and _sorted(project, call.args[-1], thing.use, 0)


def is_whole(project: Project, loader: Thing) -> bool:
    """A loader of one batch: ``batch_size=len(dataset)``."""
    size, data = _batch_size(project, loader), loader.call.args[:1] if loader.call is not None else []
    measured = isinstance(size, ast.Call) and spelled(size.func) == "len" and len(size.args) == 1
    return measured and [unparsed(each) for each in size.args] == [unparsed(each) for each in data]  # type: ignore[union-attr]


def _batch_size(project: Project, loader: Thing) -> ast.expr | None:
    named = keywords(project, loader.call, loader.use) if loader.call is not None else {}
    return named.get("batch_size") or (argument_at(loader.call, "batch_size", 1) if loader.call is not None else None)


def _fits(project: Project, loader: Thing) -> bool:
    given = _batch_size(project, loader)
    here = _in_call(project, given, loader) if given is not None else None
    own = of_its_object(project, given, loader) or Source(given or ast.Constant(1), loader.use)
    size = here.value if here is not None and isinstance(here.value, int) else project.number(own.node, own.use)
    return size is not None and 1 < size <= MANY


def _own_labels(project: Project, owner: Class) -> bool:
    """A data set that gives ``self.x[i], self.y[i]``, and sorted ``y`` when it is made."""
    method = project.method(owner, "__getitem__")
    value = method.returns[0][0] if method is not None and len(method.returns) == 1 else None
    label = value.elts[-1] if isinstance(value, ast.Tuple) and len(value.elts) == 2 else None
    if method is None or not isinstance(label, ast.Subscript) or not isinstance(label.value, ast.Attribute):
        return False
    plain = unparsed(label.slice) == method.params[-1] and len(method.bindings[method.params[-1]]) == 1
    found = (
        project.attributes(owner, label.value.attr) if plain and method.own == (unparsed(label.value.value),) else []
    )
    mixed = any(word in unparsed(owner.node) for word in ("perm", "shuffle", "argsort"))
    return len(found) == 1 and not mixed and not found[0].index and _sorted(project, found[0].value, found[0].use, 0)


def told(project: Project, node: ast.expr, thing: Thing) -> bool | None:
    """What a switch was in the call that made a thing: ``shuffle=(split == "train")``."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        sides = [_in_call(project, each, thing) for each in (node.left, node.comparators[0])]
        same = sides[0].value == sides[1].value if sides[0] is not None and sides[1] is not None else None
        return None if same is None else same == isinstance(node.ops[0], ast.Eq)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = told(project, node.operand, thing)
        return None if inner is None else not inner
    found = _in_call(project, node, thing)
    return bool(found.value) if found is not None else None


def _in_call(project: Project, node: ast.expr, thing: Thing) -> ast.Constant | None:
    scope = thing.use.scope
    only = isinstance(node, ast.Name) and [b.parameter for b in scope.bindings.get(node.id, ())] == [True]
    known = project.came_by(thing) if only else None
    if known is not None and isinstance(node, ast.Name):
        value = argument(known[0], scope, node.id) or default(scope, node.id)
        return project.constant(value, known[1], strict=True)
    if (own := of_its_object(project, node, thing)) is not None:
        return project.constant(own.node, own.use, strict=True)
    return project.constant(node, thing.use, strict=True)


def _sorted(project: Project, node: ast.expr | None, use: Use, depth: int) -> bool:
    found = origins(project, node, use) if depth < len(SAME_ORDER) else []
    sorts = bool(found) and all(_is_sorted(project, each, depth) for each in found)
    return sorts or (
        depth == 0 and node is not None and (grouped(project, node, use) or labels_in_turn(project, node, use))
    )


def _is_sorted(project: Project, source: Source, depth: int) -> bool:
    node, use = source.node, source.use
    if isinstance(node, ast.Subscript):
        return _keeps_order(project, node.slice, use) and _sorted(project, node.value, use, depth + 1)
    if not isinstance(node, ast.Call):
        return False
    dotted = project.dotted(node.func, use)
    if dotted in ("torch.cat", "torch.concat", "numpy.concatenate", "numpy.hstack") and node.args:
        return _in_blocks(project, node.args[0], use)
    if dotted in ("torch.from_numpy", "torch.as_tensor", "torch.tensor", "torch.LongTensor") and node.args:
        return _sorted(project, node.args[0], use, depth + 1)
    if dotted == "torch.repeat_interleave" and len(node.args) == 2:
        return _counts_up(project, node.args[0], use)
    if not isinstance(node.func, ast.Attribute) or dotted:
        return False
    if node.func.attr == "repeat_interleave":
        return _counts_up(project, node.func.value, use)
    return node.func.attr in SAME_ORDER and _sorted(project, node.func.value, use, depth + 1)


def _keeps_order(project: Project, node: ast.expr, use: Use) -> bool:
    """A range, or a mask, and no permutation."""
    if isinstance(node, ast.UnaryOp):
        return _keeps_order(project, node.operand, use)
    found = origins(project, node, use) if not isinstance(node, ast.Slice) else []
    masks = bool(found) and all(isinstance(each.node, ast.Compare) for each in found)
    return masks or (isinstance(node, ast.Slice) and node.step is None)


def _counts_up(project: Project, node: ast.expr, use: Use) -> bool:
    found = origins(project, node, use)
    made = [project.dotted(each.node.func, each.use) for each in found if isinstance(each.node, ast.Call)]
    return bool(found) and made == ["torch.arange"] * len(found)


def _in_blocks(project: Project, node: ast.expr, use: Use) -> bool:
    """``[torch.zeros(50), torch.ones(50)]``, and ``[torch.full((50,), c) for c in range(3)]``."""
    if isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Call):
        filled = project.dotted(node.elt.func, use) == "torch.full" and len(node.elt.args) > 1
        counted = unparsed(node.generators[0].iter).startswith("range(")
        return filled and counted and unparsed(node.elt.args[1]) == unparsed(node.generators[0].target)
    if isinstance(node, ast.Name):
        return _appended_in_turn(project, node.id, use)
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
    values = [FILLED.get(project.dotted(each.func, use)) for each in parts if isinstance(each, ast.Call)]
    return (
        len(values) == len(parts) > 1
        and values == [0] * values.count(0) + [1] * values.count(1)
        and len({*values}) == 2
    )


def _appended_in_turn(project: Project, name: str, use: Use) -> bool:
    """``ys.append(torch.full((n,), c))`` in ``for c in range(3)``, and nothing else."""
    found = [(c, u) for c, u in use.scope.calls if isinstance(c.func, ast.Attribute) and unparsed(c.func.value) == name]
    begun = [unparsed(b.value) for b in use.scope.bindings.get(name, ()) if b.value is not None]
    if len(found) != 1 or begun != ["[]"] or len(found[0][0].args) != 1:
        return False
    (call, place), made = found[0], found[0][0].args[0]
    loops = {id(u.statement): u.statement for u in use.scope.statements if isinstance(u.statement, ast.For)}
    loop = loops.get(place.path[0][0]) if len(place.path) == 1 else None
    counter = _counter(loop) if loop is not None else ""
    full = isinstance(made, ast.Call) and project.dotted(made.func, place) in FULL and len(made.args) > 1
    appends = isinstance(call.func, ast.Attribute) and call.func.attr == "append"
    return appends and counter != "" and full and unparsed(made.args[1]) == counter  # type: ignore[attr-defined]


def _counter(loop: ast.For) -> str:
    """What counts the turns: ``c`` of ``for c in range(3)`` and of ``for c, file in enumerate(files)``."""
    text, target = unparsed(loop.iter), loop.target
    if text.startswith("enumerate(") and isinstance(target, ast.Tuple):
        return unparsed(target.elts[0])
    return unparsed(target) if text.startswith("range(") else ""


def handed_on(project: Project, named: dict[str | None, ast.expr], loader: Thing) -> dict[str | None, ast.expr]:
    """With what ``**options`` of a function are in the call that made a loader."""
    spread, node = named.get(None), loader.use.scope.node
    rest = node.args.kwarg.arg if not isinstance(node, ast.Module) and node.args.kwarg is not None else ""
    known = project.came_by(loader) if isinstance(spread, ast.Name) and spread.id == rest else None
    if known is None or any(k.arg is None for k in known[0].keywords):
        return named
    found: dict[str | None, ast.expr] = {k: value for k, value in named.items() if k is not None}
    for each in known[0].keywords:
        if each.arg not in loader.use.scope.params:
            found[each.arg] = project.constant(each.value, known[1], strict=True) or each.value
    return found
