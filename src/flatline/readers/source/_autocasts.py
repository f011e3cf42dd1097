"""float16 autocast around what goes backward, without a scaler."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from flatline.events import SourceFact
from flatline.readers.source._contexts import contexts
from flatline.readers.source._nodes import names_in, unparsed
from flatline.readers.source._scopes import Use, lies_in, spelled
from flatline.readers.source._seen import CUT_OFF, Seen, seen_in, trained_models
from flatline.readers.source._values import Source, comes_by, on_cuda, origins

AUTOCASTS = {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast"}
ENDS = re.compile(r"(error|exit|abort)\(")
CALLS = 3  # from a loss to where it is computed
WEIGHT = 8  # a factor of a loss below is a weight: loss scales are 8 to 32,000 (Micikevicius et al. 2018)


def half(seen: Seen) -> Iterator[SourceFact]:
    """float16 autocast around the forward pass of a loop with a bare backward, and no scaler anywhere."""
    sent = [
        (c, g, u) for c, g, u in seen.methods("backward") if not c.args and all(k.arg != "gradient" for k in c.keywords)
    ]
    backs = [(c, u) for c, given, u in sent if not _scaled(seen, given, u)]
    for use in seen.scope.statements:
        node = use.statement
        if not isinstance(node, ast.With) or not backs:
            continue
        heads = [seen.sole(item.context_expr, use) for item in node.items]
        half = next((i.context_expr for i, head in zip(node.items, heads, strict=True) if _is_half(seen, *head)), None)
        near = [c for c, u in backs if seen.same_turn(u, use) and c.lineno >= node.lineno]
        if half is not None and near and any(True for _ in seen.methods("step")) and _is_learned_from(seen, node, use):
            yield seen.fact("half", half, text=spelled(seen.sole(half, use)[0]), other=near[0])
    yield from _half_elsewhere(seen) if backs and any(True for _ in seen.methods("step")) else ()


def _is_learned_from(seen: Seen, block: ast.With, around: Use) -> bool:
    """What goes backward is computed in a block, or the model that is trained runs there; no teacher alone."""
    inside = [u for u in seen.scope.statements if u is not around and lies_in(u.statement, block)]
    graph = [u for u in inside if not _is_cut(seen, u)]
    sent = {unparsed(receiver) for _, receiver, _ in seen.methods("backward")}
    if any(sent & _bound(u.statement) or _runs_trained(seen, u) for u in graph):
        return True
    made = {name for u in inside for name in _bound(u.statement)}
    return any(_calls(seen, u, frozenset()) for u in graph) and not any(
        _calls(seen, u, made) for u in seen.scope.statements if seen.same_turn(u, around) and u not in inside
    )


def _is_cut(seen: Seen, use: Use) -> bool:
    whole = hasattr(use.statement, "body")  # a block of its own: its statements follow
    return whole or seen.without_grad(use) or CUT_OFF.search(unparsed(use.statement)) is not None


def _bound(node: ast.stmt) -> set[str]:
    """What a statement gives a value, as it spells it."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    each = [e for t in targets if t is not None for e in (t.elts if isinstance(t, (ast.Tuple, ast.List)) else [t])]
    return {unparsed(target) for target in each if isinstance(target, ast.expr)}


def _calls(seen: Seen, use: Use, known: Collection[str]) -> bool:
    """A call of a model that may be any, and is given nothing that was computed before."""
    calls = [c for c, u in seen.scope.calls if u is use and isinstance(c.func, (ast.Name, ast.Attribute)) and c.args]
    free = [c for c in calls if not {n for a in c.args for n in names_in(a)} & set(known)]
    plain = [c for c in free if not seen.project.dotted(c.func, use) and not seen.project.callee(c, use)]
    own = [c for c in plain if isinstance(c.func, ast.Name) or unparsed(c.func).startswith("self.")]
    return any(not seen.project.things(c.func, use) for c in own)


def _scaled(seen: Seen, node: ast.expr, use: Use, depth: int = 0) -> bool:
    """Multiplied by hand with what is, or may be, a loss scale."""
    name = node.id if isinstance(node, ast.Name) else ""
    grown = [u.statement for u in seen.scope.statements if isinstance(u.statement, ast.AugAssign)]
    grown = [s for s in grown if isinstance(s.op, ast.Mult) and unparsed(s.target) == name]
    if any(_is_scale(seen, [s.value], use) for s in grown if isinstance(s, ast.AugAssign)):
        return True
    node, use = seen.sole(node, use)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _is_scale(seen, [node.left, node.right], use)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("mul", "mul_", "multiply"):
        return _is_scale(seen, node.args, use)
    written, _ = seen.sole(node.func, use)
    function = seen.project.callee(node, use) if depth < CALLS else None
    function = seen.module.of_lambda(written, use) if isinstance(written, ast.Lambda) else function
    inner = seen_in(seen.project, function) if function is not None else None
    returned = function.returns if function is not None else ()
    return any(v is not None and _scaled(inner, v, u, depth + 1) for v, u in returned) if inner is not None else False


def _is_scale(seen: Seen, factors: Sequence[ast.expr], use: Use) -> bool:
    """None of the factors is known to be a weight."""
    known = [seen.project.constant(each, use) for each in factors]
    weights = [f.value for f in known if f is not None and isinstance(f.value, (int, float))]
    return not any(abs(weight) < WEIGHT for weight in weights)


def _half_elsewhere(seen: Seen) -> Iterator[SourceFact]:
    """The same, where a function of the project computes the loss that goes backward."""
    for back, given, use in seen.methods("backward"):
        loss, place = _unpacked(seen, given, use)
        function = seen.project.callee(loss, place) if isinstance(loss, ast.Call) else None
        if function is None or function in (seen.scope, seen.module.top) or function.module is not seen.module:
            continue
        if back.args or (place is not use and not seen.same_turn(place, use)):
            continue
        inside = seen_in(seen.project, function)
        for head, around in _half_results(inside):
            yield inside.fact("half", head, text=spelled(inside.sole(head, around)[0]))


def _half_results(seen: Seen) -> Iterator[tuple[ast.expr, Use]]:
    """float16 autocast around the call of a model in training, whose result is what a function returns."""
    returned = {name for name, _ in seen.returned_names()}
    heads = [] if isinstance(seen.scope.node, ast.Module) else seen.scope.node.decorator_list
    above = [head for head in heads if _is_half(seen, head, seen.scope.statements[0])] or list(_half_around(seen))
    if above and any(_goes_out(u.statement, returned) and _runs_trained(seen, u) for u in seen.scope.statements):
        yield above[0], seen.scope.statements[0]
    for use in seen.scope.statements:
        node = use.statement
        if not isinstance(node, ast.With) or use.path or seen.without_grad(use):
            continue
        heads = [i.context_expr for i in node.items if _is_half(seen, *seen.sole(i.context_expr, use))]
        results = [u for u in seen.scope.statements if u.statement in node.body and _runs_trained(seen, u)]
        results = [u for u in results if CUT_OFF.search(unparsed(u.statement)) is None]
        if heads and any(_goes_out(u.statement, returned) for u in results):
            yield heads[0], use


def _half_around(seen: Seen) -> Iterator[ast.expr]:
    """float16 autocast in what a decorator of the project puts around the function."""
    wrapper, name = seen.project.wrapper(seen.scope) or (None, "")
    for use in wrapper.statements if wrapper is not None else ():
        node = use.statement
        if isinstance(node, ast.With) and not use.path and f"{name}(" in unparsed(node):
            outer = seen_in(seen.project, use.scope)
            yield from (i.context_expr for i in node.items if _is_half(outer, *outer.sole(i.context_expr, use)))


def _runs_trained(seen: Seen, use: Use) -> bool:
    """A statement that calls a model which an optimizer of this file was given."""
    trained = {t.identity() for scope in seen.module.scopes for t in trained_models(seen.project, scope)}
    called = [c.func for c, u in seen.scope.calls if u is use]
    return any(t.identity() in trained for func in called for t in seen.project.things(func, use))


def _unpacked(seen: Seen, node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
    """The one value that a name is given, or is a part of."""
    while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        node = node.value
    found = seen.scope.reaching(node.id, use) if isinstance(node, ast.Name) else []
    part = found[0].value if len(found) == 1 and found[0].index else None
    return (part, found[0].use) if part is not None else seen.sole(node, use)


def _is_half(seen: Seen, node: ast.expr, use: Use) -> bool:
    """A float16 autocast, perhaps from a function, or kept under a name."""
    found = [s for s in contexts(seen.project, node, use) if not _off_cuda(seen, s)]
    return bool(found) and all(isinstance(s.node, ast.Call) and _autocasts(seen, s.node, s.use) for s in found)


def _off_cuda(seen: Seen, source: Source) -> bool:
    """``return nullcontext()`` where there is no GPU."""
    whole = getattr(source.use.statement, "value", None)
    if isinstance(whole, ast.IfExp) and source.node in (whole.body, whole.orelse):
        return on_cuda(seen.project, whole.test, source.use) is (source.node is whole.orelse)
    plain = isinstance(source.node, ast.Call) and source.node is whole
    if not plain or seen.project.dotted(source.node.func, source.use) != "contextlib.nullcontext":  # type: ignore[attr-defined]
        return False
    blocks = [(source.use.scope.choices.get(block), part) for block, part in source.use.path]
    return any(
        choice is not None and on_cuda(seen.project, choice.test, source.use) is (part != "body")
        for choice, part in blocks
    )


def _autocasts(seen: Seen, node: ast.Call, use: Use) -> bool:
    dotted = seen.project.dotted(node.func, use)
    function = seen.project.callee(node, use) if not dotted else None
    if function is not None and function.marked("contextmanager"):
        return _enters_half(seen_in(seen.project, function))
    if dotted not in AUTOCASTS:
        return False
    named = {k.arg: k.value for k in node.keywords}
    if None in named:
        return False
    second = node.args[1] if len(node.args) > 1 and dotted != "torch.cuda.amp.autocast" else None
    if (dtype := named.get("dtype", second)) is not None:
        made = origins(seen.project, dtype, use)
        kinds = [seen.project.dotted(s.node, s.use) or _named(seen, s) for s in made]
        half = bool(kinds) and all(kind in ("torch.float16", "torch.half") for kind in kinds)
        return half and (_is_switch(seen, named.get("enabled"), use) or _is_on(seen, named.get("enabled"), use))
    if not _is_on(seen, named.get("enabled"), use):
        return False
    device = seen.project.constant(node.args[0] if node.args else named.get("device_type"), use)
    cuda = device is not None and device.value == "cuda"
    plain = dotted == "torch.cuda.amp.autocast" and not node.args
    return plain or (dotted != "torch.cuda.amp.autocast" and cuda and len(node.args) < 2)


def _named(seen: Seen, source: Source) -> str:
    """``getattr(torch, "float16")``."""
    return " ".join(thing.name for thing in seen.project.things(source.node, source.use))


def _is_on(seen: Seen, node: ast.expr | None, use: Use) -> bool:
    """A switch that is left alone, or that is True wherever it is known."""
    found = seen.project.constant(node, use) if not isinstance(node, ast.Compare) else None
    if node is None or (found is not None and found.value is True):
        return True
    (node, use), *others = [(s.node, s.use) for s in origins(seen.project, node, use)] or [(node, use)]
    return not others and on_cuda(seen.project, node, use) is True


def _is_switch(seen: Seen, node: ast.expr | None, use: Use) -> bool:
    """``args.fp16``, which may be off: but float16 it is whenever it is on."""
    if isinstance(node, ast.Attribute) and _is_refused(seen, node):
        return False
    option = isinstance(node, ast.Attribute) and bool(seen.project.defaults(node.attr, use.scope.module))
    return option or (isinstance(node, (ast.Name, ast.Attribute)) and seen.project.constant(node, use) is None)


def _is_refused(seen: Seen, switch: ast.Attribute) -> bool:
    """``if args.fp16: parser.error(...)``, or another end, or ``args.fp16 = False``."""
    for choice in (choice for scope in seen.module.scopes for choice in scope.choices.values()):
        tests = choice.test.values if isinstance(choice.test, ast.BoolOp) and isinstance(choice.test.op, ast.Or) else []
        asked = any(unparsed(test) == unparsed(switch) for test in (choice.test, *tests))
        ends = isinstance(choice.body[-1], ast.Raise) or ENDS.search(unparsed(choice.body[-1])) is not None
        if asked and (ends or any(unparsed(each) == f"{unparsed(switch)} = False" for each in choice.body)):
            return True
    return False


def _enters_half(seen: Seen) -> bool:
    """A float16 autocast in a context manager that is a function."""
    left = [u.order for _, u in seen.scope.returns if u.path and comes_by(seen.project, u) is True]
    used = [u for u in seen.scope.statements if u.order < min(left, default=u.order + 1)]
    withs = [(u.statement, u) for u in used if comes_by(seen.project, u) is not False]
    return any(_is_half(seen, i.context_expr, u) for w, u in withs if isinstance(w, ast.With) for i in w.items)


def _goes_out(node: ast.stmt, returned: Collection[str]) -> bool:
    """What it computes is returned, as it is or in what is made of it."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    return isinstance(node, ast.Return) or any(names_in(target) & set(returned) for target in targets)
