"""Targets that were filled up to one length, in a loss that does not leave the filling out."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument_at
from flatline.readers.source._batched import LOADER
from flatline.readers.source._imported import beside
from flatline.readers.source._losses import kind_of
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._own_losses import labels_for
from flatline.readers.source._records import fields
from flatline.readers.source._resolve import Project
from flatline.readers.source._rows import appended, filled_by, marked_by
from flatline.readers.source._scopes import Binding, Module, Scope, Use, spelled
from flatline.readers.source._seen import seen_in
from flatline.readers.source._tensors import SHAPES
from flatline.readers.source._values import Source, drawn_by, origins

Path: TypeAlias = tuple[object, ...]  # keys and places, outermost first
Filled: TypeAlias = tuple[Source, "float | None"]
DEEP = 24
SAME = SHAPES | {"long", "int", "bool", "pin_memory", "detach", "transpose"}
TENSORS = {"torch.tensor", "torch.as_tensor", "torch.LongTensor", "torch.stack", "torch.from_numpy"}
PADS = "torch.nn.utils.rnn.pad_sequence"
MASKED = re.compile(r"masked_fill|masked_select|torch\.where|\] = -100|\bignore_idx|nonzero\(")
LOSSES = re.compile(r"cross_entropy|CrossEntropyLoss|nll_loss|NLLLoss")
FILES = 40  # of a project that is looked through for what runs a loss
TOKENS = ("pad_token_id",)
TOKEN = math.inf  # stands for one of them
MASK = -math.inf  # stands for what tells the filling apart
USUALLY = -100.0  # ignore_index of torch


def padded_targets(project: Project, module: Module, reached: Sequence[Module]) -> Iterator[SourceFact]:
    """One fact a loss."""
    text = "\n".join(each.whole for each in reached)
    if ".backward(" not in text and LOSSES.search(module.whole) and len(project.modules) <= FILES:
        text = "\n".join(each.whole for each in beside(project, module))
    if ".backward(" not in text or "pad" not in text.lower() or MASKED.search(text) is not None:
        return
    for scope in module.scopes:
        for call, use in scope.calls:
            ignored, filled = _scored(project, call, use, text)
            values = {value for _, value in filled}
            if TOKEN in values and ignored is not None and ignored >= 0:
                continue  # it may be that token
            if (
                len(values) == 1
                and not values & {ignored, None, MASK}
                and not seen_in(project, scope).never_recorded(use)
            ):
                source, value = filled[0]
                yield SourceFact(
                    kind="padded target" if kind_of(project, call, use) else "padded target of model",
                    name=f"{value:g}" if value != TOKEN else "pad_token_id", text=spelled(source.node),
                    where=module.where(call, scope), other=source.use.scope.module.where(source.node, source.use.scope),
                )  # fmt: skip


def masks_of(project: Project, node: ast.expr, use: Use) -> list[Source]:
    """The comparisons that a mask may be, and the tensors in which ones were put, also in the batches of a loader."""
    found = _fillings(project, node, use, (), 0)
    return [source for source, _ in found] if all(value == MASK for _, value in found) else []


def _scored(project: Project, call: ast.Call, use: Use, text: str) -> tuple[float | None, list[Filled]]:
    """What a loss leaves out, and what fills up its targets."""
    if kind_of(project, call, use) in ("cross_entropy", "nll") and len(call.args) == 2:
        ignored = _ignored(project, call, use)
        return ignored, _fillings(project, call.args[1], use, (), 0) if ignored is not None else []
    own = labels_for(project, call, use, text)
    return (USUALLY, _fillings(project, own[0], use, own[1], 0)) if own is not None else (None, [])


def _ignored(project: Project, call: ast.Call, use: Use) -> float | None:
    """The target that a loss leaves out; None where that, or how it is averaged, is not known."""
    things = project.things(call.func, use)
    made = [(t.call, t.use) for t in things if t.call is not None] or [(call, use)]
    if len(made) != 1:
        return None
    named = {k.arg: k.value for k in made[0][0].keywords}
    reduction = named.get("reduction")
    if isinstance(reduction, ast.Constant) and reduction.value == "none" and _averaged(call, use):
        del named["reduction"]
    if {None, "weight", "reduction", "reduce", "size_average"} & set(named) or (
        made[0][0] is not call and made[0][0].args
    ):
        return None
    return _number(project, named["ignore_index"], made[0][1]) if "ignore_index" in named else USUALLY


def _averaged(call: ast.Call, use: Use) -> bool:
    """The losses of all tokens are averaged as they are: ``loss_of(scores, labels).mean()``, perhaps behind a name."""
    node = use.statement
    means = {
        unparsed(c.func.value): c
        for c, _ in use.scope.calls
        if isinstance(c.func, ast.Attribute) and c.func.attr == "mean" and (_is_whole(c) or _is_averaged_again(c, use))
    }
    if any(isinstance(c.func, ast.Attribute) and c.func.value is call for c in means.values()):
        return True
    target = node.targets[0] if isinstance(node, ast.Assign) and node.value is call else None
    reads = [n for n in walk(use.scope.node) if isinstance(n, ast.Name) and unparsed(n) == unparsed(target or n)]
    loads = [n for n in reads if isinstance(n.ctx, ast.Load)]
    return isinstance(target, ast.Name) and len(loads) == 1 and len(reads) == 2 and target.id in means


def _is_whole(call: ast.Call) -> bool:
    return not call.args and not call.keywords


def _is_averaged_again(call: ast.Call, use: Use) -> bool:
    """``.mean(dim=1)`` of ``.mean(dim=1).mean()``: all rows are as long."""
    means = (c.func for c, _ in use.scope.calls if _is_whole(c) and isinstance(c.func, ast.Attribute))
    plain = all(
        isinstance(each, (ast.Constant, ast.UnaryOp)) for each in (*call.args, *(k.value for k in call.keywords))
    )
    return plain and any(func.attr == "mean" and func.value is call for func in means)


def _number(project: Project, node: ast.expr | None, use: Use) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = project.number(node.operand, use)
        return -inner if inner is not None else None
    known = project.number(node, use)
    if known is not None or not isinstance(node, (ast.Name, ast.Attribute)):
        return known
    each = {_named(project, origin) for origin in origins(project, node, use)}
    return each.pop() if len(each) == 1 else None


def _named(project: Project, origin: Source) -> float | None:
    """``-100`` behind a name, and ``tokenizer.pad_token_id``, which is a number from 0 on."""
    if isinstance(origin.node, ast.UnaryOp):
        return _number(project, origin.node, origin.use)
    return TOKEN if isinstance(origin.node, ast.Attribute) and origin.node.attr in TOKENS else None


def _fillings(project: Project, node: ast.expr | None, use: Use, path: Path, depth: int) -> list[Filled]:
    """What fills up the rows of a tensor, on all ways that lead to it; nothing if one of them is unknown."""
    if node is None or depth > DEEP:
        return []
    if isinstance(node, ast.Call):
        return _by_call(project, node, use, path, depth)
    if isinstance(node, (ast.Tuple, ast.List)) and path and isinstance(path[0], int) and path[0] < len(node.elts):
        return _fillings(project, node.elts[path[0]], use, path[1:], depth + 1)
    if isinstance(node, ast.Dict) and path:
        held = [
            v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant) and k.value == path[0]
        ]
        return _fillings(project, held[0], use, path[1:], depth + 1) if len(held) == 1 else []
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant):
            return _fillings(project, node.value, use, (node.slice.value, *path), depth + 1)
        return _fillings(project, node.value, use, path, depth + 1) if not path and _is_sliced(node.slice) else []
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)) and path and len(node.generators) == 1:
        return _moved(project, node, use, path, depth)
    if isinstance(node, ast.DictComp) and path:
        return _mapped(project, node, use, path, depth)
    if isinstance(node, ast.BinOp) and not path:
        return _added(project, node, use)
    if isinstance(node, ast.Compare) and not path:
        return [(Source(node, use), MASK)]
    return _by_name(project, node, use, path, depth) if isinstance(node, (ast.Name, ast.Attribute)) else []


def _is_sliced(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(part, ast.Slice) for part in parts)


def _moved(project: Project, node: ast.GeneratorExp | ast.ListComp, use: Use, path: Path, depth: int) -> list[Filled]:
    """``(part.to(device) for part in batch)``."""
    head, inner = node.generators[0], node.elt
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in SAME:
        inner = inner.func.value
    same = isinstance(inner, ast.Name) and unparsed(head.target) == inner.id and not head.ifs
    return _fillings(project, head.iter, use, path, depth + 1) if same else []


def _mapped(project: Project, node: ast.DictComp, use: Use, path: Path, depth: int) -> list[Filled]:
    """``{key: part.to(device) for key, part in batch.items()}``."""
    head, inner = node.generators[0], node.value
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in SAME:
        inner = inner.func.value
    names = [unparsed(each) for each in head.target.elts] if isinstance(head.target, ast.Tuple) else []
    same = len(names) == 2 and names == [unparsed(node.key), unparsed(inner)] and not head.ifs
    asked = head.iter.func if isinstance(head.iter, ast.Call) else None
    items = isinstance(asked, ast.Attribute) and asked.attr == "items" and len(node.generators) == 1
    return _fillings(project, asked.value, use, path, depth + 1) if same and items else []  # type: ignore[union-attr]


def _added(project: Project, node: ast.BinOp, use: Use) -> list[Filled]:
    """``ids + [PAD] * (longest - len(ids))``."""
    more = node.right
    listed = more.left if isinstance(node.op, ast.Add) and isinstance(more, ast.BinOp) else None
    if not isinstance(listed, ast.List) or len(listed.elts) != 1 or not isinstance(more, ast.BinOp):
        return []
    length = more.right
    bound = use.scope.bindings.get(length.id, ()) if isinstance(length, ast.Name) else ()
    told = " ".join(unparsed(b.value) for b in bound if b.value is not None and not b.index)
    counted = (
        isinstance(more.op, ast.Mult) and isinstance(length, (ast.BinOp, ast.Name)) and "len(" in unparsed(node) + told
    )
    return [(Source(node, use), _number(project, listed.elts[0], use))] if counted else []


def _by_call(project: Project, node: ast.Call, use: Use, path: Path, depth: int) -> list[Filled]:
    func, dotted = node.func, project.dotted(node.func, use)
    if dotted == PADS and not path:
        value = argument_at(node, "padding_value", 2)
        return [(Source(node, use), 0.0 if value is None else _number(project, value, use))]
    if dotted in ("torch.nn.functional.pad",) and not path:
        value = argument_at(node, "value", 3)
        return [(Source(node, use), 0.0 if value is None else _number(project, value, use))]
    if dotted in TENSORS and node.args:
        inner = node.args[0]
        if isinstance(inner, ast.ListComp) and not path:
            return _fillings(project, inner.elt, use, (), depth + 1)
        return _fillings(project, inner, use, path, depth + 1)
    if isinstance(func, ast.Attribute) and func.attr in SAME and not dotted:
        return _fillings(project, func.value, use, path, depth + 1)
    if isinstance(func, ast.Name) and func.id in ("next", "iter") and node.args:
        return _served(project, node.args[0], use, path, depth) if func.id == "next" else []
    if isinstance(func, ast.Name) and func.id == "dict" and path and not node.args:
        given = [k.value for k in node.keywords if k.arg == path[0]]
        return _fillings(project, given[0], use, path[1:], depth + 1) if given else []
    if path and (held := fields(project, node, use)):
        name = [*held][path[0]] if isinstance(path[0], int) and path[0] < len(held) else path[0]
        return _fillings(project, held.get(str(name)), use, path[1:], depth + 1)
    function = project.callee(node, use)
    return _returned(project, function, path, depth) if function is not None else []


def _returned(project: Project, function: Scope, path: Path, depth: int) -> list[Filled]:
    each = [_fillings(project, value, place, path, depth + 1) for value, place in project.returns(function)]
    return [filled for found in each for filled in found] if each and all(each) else []


def _by_name(project: Project, node: ast.Name | ast.Attribute, use: Use, path: Path, depth: int) -> list[Filled]:
    each: list[list[Filled]] = []
    if isinstance(node, ast.Name) and node.id in use.scope.masked.get(id(use.statement), ()):
        return _comprehended(project, node.id, use, path, depth)
    put = _put(node, use, path[0]) if path and isinstance(node, ast.Name) else None
    if put is not None:
        return _fillings(project, *put, path[1:], depth + 1)
    bindings = project.holding(node, use, 0)
    if isinstance(node, ast.Attribute) and not bindings:
        return _fillings(project, node.value, use, (node.attr, *path), depth + 1)
    for binding in bindings:
        if isinstance(node, ast.Name) and (rows := _by_row(project, node.id, binding, path, depth)):
            each.append(rows)
        elif binding.parameter and isinstance(node, ast.Name):
            given = project.given(node.id, binding.use)
            each += [_fillings(project, value, site, path, depth + 1) for value, site in given] or [
                _spread(project, node.id, binding.use.scope, path, depth)
            ]
        elif binding.value is not None:
            each.append(_fillings(project, binding.value, binding.use, (*binding.index, *path), depth + 1))
        else:
            each.append(_looped(project, binding, path, depth))
    return [filled for found in each for filled in found] if each and all(each) else []


def _by_row(project: Project, name: str, binding: Binding, path: Path, depth: int) -> list[Filled]:
    """Of a tensor of one number into which rows are put, or of a list of filled rows."""
    node, use = binding.value, binding.use
    if node is None or path or binding.index:
        return []
    if isinstance(node, ast.List) and not node.elts:
        each = [_fillings(project, value, place, (), depth + 1) for value, place in appended(name, use)]
        return [filled for found in each for filled in found] if all(each) else []
    if marked_by(node, name, use):
        return [(Source(node, use), MASK)]
    number = filled_by(node, name, use)
    return [(Source(node, use), _number(project, number, use))] if number is not None else []


def _comprehended(project: Project, name: str, use: Use, path: Path, depth: int) -> list[Filled]:
    """``batch`` of ``[step(batch) for batch in loader]``."""
    comps = [n for n in walk(use.statement) if isinstance(n, ast.comprehension)]
    found = [(c.iter, place) for c in comps for place in _places(c.target, name)]
    if len(found) != 1:
        return []
    drawn = _drawn(found[0][0], (*found[0][1], *path))
    return _served(project, drawn[0], use, drawn[1], depth) if drawn is not None else []


def _places(target: ast.expr, name: str) -> Iterator[Path]:
    """Where a name stands in what a loop binds."""
    if isinstance(target, ast.Name) and target.id == name:
        yield ()
    for number, part in enumerate(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else ():
        yield from ((number, *inner) for inner in _places(part, name))


def _drawn(head: ast.expr, inner: Path) -> tuple[ast.expr, Path] | None:
    """The loader in ``enumerate(tqdm(loader))``, and the place in its batches."""
    while isinstance(head, ast.Call) and head.args and spelled(head.func).rpartition(".")[2] in ("enumerate", "tqdm"):
        counted = spelled(head.func) == "enumerate"
        if counted and inner[:1] != (1,):
            return None
        head, inner = head.args[0], inner[1:] if counted else inner
    return head, inner


def _put(node: ast.Name, use: Use, key: object) -> tuple[ast.expr, Use] | None:
    """``batch["labels"] = pad_sequence(labels)``, the only one, on every way to a place."""
    wanted = f"{node.id}[{key!r}]"
    found = [
        (u.statement.value, u) for u in use.scope.statements
        if isinstance(u.statement, ast.Assign) and [unparsed(t) for t in u.statement.targets] == [wanted]
    ]  # fmt: skip
    return found[0] if len(found) == 1 and found[0][1].before(use) else None


def _spread(project: Project, name: str, function: Scope, path: Path, depth: int) -> list[Filled]:
    """Of what ``loss_of(*step(model, batch))`` gives for a parameter."""
    place = function.params.index(name) - len(function.own)
    calls = project.calls_of(function)
    stars = [(call.args[0], use) for call, use in calls if len(call.args) == 1 and not call.keywords]
    given = [(star.value, use) for star, use in stars if isinstance(star, ast.Starred)]
    each = [_fillings(project, value, use, (place, *path), depth + 1) for value, use in given]
    return [filled for found in each for filled in found] if len(each) == len(calls) and all(each) else []


def _looped(project: Project, binding: Binding, path: Path, depth: int) -> list[Filled]:
    """Of what a loop over a loader, or over a generator, binds."""
    node, inner = binding.use.statement, (*binding.index, *path)
    if not isinstance(node, ast.For):
        return []
    drawn = list(drawn_by(project, binding, ()))
    if drawn:
        each = [_fillings(project, value, place, (*index, *path), depth + 1) for value, place, index in drawn]
        return [filled for found in each for filled in found] if all(each) else []
    at = _drawn(node.iter, inner)
    around = replace(binding.use, path=binding.use.path[:-1])
    return _served(project, at[0], around, at[1], depth) if at is not None else []


def _served(project: Project, node: ast.expr, use: Use, path: Path, depth: int) -> list[Filled]:
    """A part of the batches of a loader: as its collate function makes them, or the data set its items."""
    each: list[list[Filled]] = []
    for thing in project.things(node, use):
        if thing.name != LOADER or thing.call is None:
            return []
        collate, data = argument_at(thing.call, "collate_fn", 6), argument_at(thing.call, "dataset", 0)
        made = collate if collate is not None else data
        if isinstance(made, ast.Call) and project.dotted(made.func, thing.use) == "functools.partial" and made.args:
            made = made.args[0]
        functions = [_function(project, t) for t in project.things(made, thing.use)]
        if collate is not None and isinstance(collate, ast.Lambda):
            return _fillings(project, collate.body, thing.use, path, depth + 1)
        if collate is not None and not functions:
            functions = [_method(project, collate, thing.use)]
        each += [
            _returned(project, function, path, depth + 1) if function is not None else [] for function in functions
        ]
    return [filled for found in each for filled in found] if each and all(each) else []


def _method(project: Project, node: ast.expr, use: Use) -> Scope | None:
    """``self.collate`` and ``data.collate``."""
    return project.callee(ast.copy_location(ast.Call(node, [], []), node), use)


def _function(project: Project, thing: object) -> Scope | None:
    made = getattr(thing, "made_of", None)
    name = "__getitem__" if made is not None and "__getitem__" in made.methods else "__call__"
    return project.method(made, name) if made is not None else getattr(thing, "function", None)
