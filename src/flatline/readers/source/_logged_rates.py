"""A constant that is logged as the rate, while a schedule moves the rate."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument_at
from flatline.readers.source._heard import heard, is_over_hooks
from flatline.readers.source._nodes import names_in, unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Use, lies_in, spelled
from flatline.readers.source._seen import Seen, seen_in
from flatline.readers.source._things import Thing

RATE = re.compile(r"(.*[/.\s])?(train_|current_|cur_)?(lr|learning[_ -]?rate)", re.IGNORECASE)
WRITTEN = re.compile(r"(?:^|.*[^\w-])(?:lr|learning[_ ]rate)\s*[=:]?\s*", re.IGNORECASE | re.DOTALL)
PERCENT, BRACES = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]"), re.compile(r"\{(?::[^}]*)?\}")
MOVING = re.compile(r"get_(last_)?lr\(|param_groups")  # the rate itself, beside the one at the start
FIRST = re.compile(r"\b(i|it|e|ep|\w*(epoch|step|iter)\w*) (== 0|<=? .*)|not (i|it|e|ep|\w*(epoch|step|iter)\w*)")
CALLS = 3  # from a step to the loop
ROOTS = 6  # from a name to where it comes from
MEASURED = re.compile(r"(\w+_)?(loss|acc(uracy)?|score|error|f1|auc|m?iou|mae|mse|rmse|ppl|perplexity|psnr)(_\w+)?")
TELLS = re.compile(r"log|record|report|track|writ|metric|print|emit|row|entry|stats|history", re.IGNORECASE)
SAVED = re.compile(r"save|dump|checkpoint|config|hparam|hyper", re.IGNORECASE)


def logged_rates(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a value."""
    text = module.whole
    if "lr_scheduler" not in text or ".step(" not in text:
        return
    for scope in module.scopes:
        seen = seen_in(project, scope)
        for step, receiver, use in seen.methods("step"):
            rate = _rate(project, receiver, use)
            for key, value, place in _constants(seen, use, rate) if rate is not None else ():
                yield SourceFact(
                    kind="constant rate", name=key, text=spelled(value),
                    where=place.scope.module.where(value, place.scope),
                    other=module.where(step, scope),
                )  # fmt: skip


def _constants(seen: Seen, step: Use, rate: tuple[ast.expr, Thing]) -> Iterator[tuple[str, ast.expr, Use]]:
    """What is told as the rate around the step of a schedule, and is what the optimizer began with."""
    for outer, loop in _loops(seen, step, 0):
        for key, value, place, around in _told(outer, loop):
            if _same(outer, value, place, rate, around):
                yield key, value, place


def _loops(seen: Seen, use: Use, depth: int) -> Iterator[tuple[Seen, ast.stmt]]:
    """The loop around a step, or around the calls of the function that makes it."""
    loop = seen.loop_of(use)
    hooks = loop is not None and is_over_hooks(seen.project, loop, seen.scope)
    if loop is not None and not hooks:
        yield seen, loop
    for _, site in seen.project.calls_of(seen.scope) if (loop is None or hooks) and depth < CALLS else ():
        if (hooks or site.scope.module is seen.module or seen.scope.owner is not None) and site.scope is not seen.scope:
            yield from _loops(seen_in(seen.project, site.scope), site, depth + 1)


def _rate(project: Project, schedule: ast.expr, use: Use) -> tuple[ast.expr, Thing] | None:
    """What the optimizer of a schedule was given as its rate."""
    things = project.things(schedule, use)
    thing = things[0] if len(things) == 1 and things[0].name.startswith("torch.optim.lr_scheduler.") else None
    if thing is not None and thing.call is not None and _still(thing.call):
        return None
    given = thing.call.args[0] if thing is not None and thing.call is not None and thing.call.args else None
    optimizers = project.things(given, thing.use) if thing is not None else ()
    made = optimizers[0] if len(optimizers) == 1 and optimizers[0].is_optimizer else None
    rate = argument_at(made.call, "lr", 1) if made is not None and made.call is not None else None
    return (rate, made) if rate is not None and made is not None else None


def _told(seen: Seen, loop: ast.stmt) -> Iterator[tuple[str, ast.expr, Use, ast.stmt]]:
    """What calls in a loop, or in those around it, are given under the name of a rate, beside something else; the outer loop."""
    for call, use in seen.scope.calls:
        around = {block for block, part in use.path if part == "body"}
        inner = seen.loop_of(use)
        if (
            not around
            or inner is None
            or not (lies_in(loop, inner) or lies_in(inner, loop))
            or SAVED.search(spelled(call.func))
            or _is_first(use)
        ):
            continue
        outer = inner if lies_in(loop, inner) else loop
        yield from ((*told, outer) for told in _given(seen.project, call, use))
        function = seen.project.callee(call, use)
        if function is not None and function.module is seen.module and function is not seen.scope:
            below = function.calls if not SAVED.search(function.name) else []
            yield from ((*told, outer) for pair in below for told in _given(seen.project, *pair))
        for hook in heard(seen.project, call, use):
            below = [(c, u) for c, u in hook.calls if not SAVED.search(f"{hook.name} {spelled(c.func)}")]
            yield from ((*told, outer) for pair in below for told in _given(seen.project, *pair))


def _is_first(use: Use) -> bool:
    """Under ``if epoch == 0``: the rate may not have moved yet."""
    tests = [use.scope.choices[block].test for block, part in use.path if part == "body" and block in use.scope.choices]
    return any(FIRST.fullmatch(unparsed(test)) for test in tests)


def _still(schedule: ast.Call) -> bool:
    """``LambdaLR(optimizer, lambda epoch: 1.0)``, which moves nothing."""
    given = argument_at(schedule, "lr_lambda", 1)
    return isinstance(given, ast.Lambda) and not names_in(given.body)


def _given(project: Project, call: ast.Call, use: Use) -> Iterator[tuple[str, ast.expr, Use]]:
    for given in call.args:
        pairs = _in_dict(_behind(given, use)) or _in_text(given) or _put_into_text(given)
        plain = len(pairs) > 1 and not any(MOVING.search(unparsed(value)) for _, value in pairs)
        yield from ((key, value, use) for key, value in pairs if plain and RATE.fullmatch(key))
    if len(call.args) > 1 and isinstance(call.args[0], ast.Constant) and RATE.fullmatch(str(call.args[0].value)):
        yield str(call.args[0].value), call.args[1], use
    named = [(k.arg, k.value) for k in call.keywords if k.arg is not None]
    plain = not any(MOVING.search(unparsed(value)) for _, value in named)
    if plain and any(MEASURED.fullmatch(name) for name, _ in named):
        rates = [(name, value) for name, value in named if RATE.fullmatch(name)]
        yield from ((name, value, use) for name, value in rates if _is_record(project, call, use, name))


def _is_record(project: Project, call: ast.Call, use: Use, name: str) -> bool:
    """``log(epoch=epoch, loss=loss, lr=cfg.lr)``: a function that tells things, or one of the project that takes ``**row``."""
    if TELLS.search(spelled(call.func)):
        return True
    function = project.callee(call, use)
    return function is not None and function.arguments.kwarg is not None and name not in function.params


def _behind(node: ast.expr, use: Use) -> ast.expr:
    """The dictionary that a name was given, once."""
    found = use.scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    value = found[0].value if len(found) == 1 and not found[0].index else None
    return value if isinstance(value, (ast.Dict, ast.Call)) and _in_dict(value) else node


def _in_dict(node: ast.expr) -> list[tuple[str, ast.expr]]:
    """``{"loss": loss, "lr": rate}``, and ``dict(loss=loss, lr=rate)``."""
    if isinstance(node, ast.Call) and unparsed(node.func) == "dict":
        return [(k.arg, k.value) for k in node.keywords if k.arg is not None]
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return [(str(key.value), value) for key, value in pairs if isinstance(key, ast.Constant)]


def _in_text(node: ast.expr) -> list[tuple[str, ast.expr]]:
    """``f"loss {loss} lr {rate}"``."""
    parts, found = node.values if isinstance(node, ast.JoinedStr) else [], []
    for before, part in zip([ast.Constant(""), *parts], parts, strict=False):
        if isinstance(part, ast.FormattedValue) and isinstance(before, ast.Constant):
            found.append(("lr" if WRITTEN.fullmatch(str(before.value)) else "", part.value))
    return found


def _put_into_text(node: ast.expr) -> list[tuple[str, ast.expr]]:
    """``"loss %.3f lr %.5f" % (loss, rate)``, and the same with ``format``."""
    text, values, mark = None, [], PERCENT
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.right, ast.Tuple):
        text, values = node.left, node.right.elts
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text, values, mark = node.func.value, node.args, BRACES
    before = mark.split(text.value) if isinstance(text, ast.Constant) and isinstance(text.value, str) else []
    fits = len(before) == len(values) + 1
    return [("lr" if WRITTEN.fullmatch(b) else "", v) for b, v in zip(before, values, strict=False)] if fits else []


def _same(seen: Seen, node: ast.expr, use: Use, rate: tuple[ast.expr, Thing], loop: ast.stmt) -> bool:
    """The very number that the optimizer began with, which nothing in the loop changes."""
    given, optimizer = rate
    anew = optimizer.use.scope is seen.scope and lies_in(optimizer.use.statement, loop)
    if anew or not _is_setting(node) or _moved(seen, node, use, loop):
        return False
    here, there = (
        seen.project.constant(node, use, strict=True),
        seen.project.constant(given, optimizer.use, strict=True),
    )
    known = here is not None and there is not None and here.value == there.value
    return known or _root(seen.project, node, use, 0) == _root(seen.project, given, optimizer.use, 0)


def _is_setting(node: ast.expr) -> bool:
    """``lr``, ``args.lr`` or ``cfg["lr"]``."""
    entry = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    return entry or isinstance(node, (ast.Name, ast.Attribute))


def _root(project: Project, node: ast.expr, use: Use, depth: int) -> tuple[int, str]:
    """What an expression is called, and in which function, before it was handed on or kept: ``args.lr`` of ``self.args.lr``."""
    here = id(use.scope), unparsed(node)
    if isinstance(node, ast.Name) and node.id not in use.scope.bindings:
        return id(use.scope.module), node.id
    behind: list[tuple[ast.expr | None, Use]] = []
    if isinstance(node, ast.Name):
        bound = use.scope.bindings[node.id]
        behind = [*project.given(node.id, use)] if len(bound) == 1 and bound[0].parameter else []
    elif isinstance(node, ast.Attribute):
        held = project.holding(node, use, 0) if isinstance(node.value, ast.Name) else []
        behind = [(b.value, b.use) for b in held if not b.index and not b.parameter]
        if not behind:
            scope, text = _root(project, node.value, use, depth + 1)
            return scope, f"{text}.{node.attr}"
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        scope, text = _root(project, node.value, use, depth + 1)
        return scope, f"{text}[{node.slice.value!r}]"
    roots = {_root(project, value, place, depth + 1) for value, place in behind if value is not None and depth < ROOTS}
    return roots.pop() if len(roots) == 1 else here


def _moved(seen: Seen, node: ast.expr, use: Use, loop: ast.stmt) -> bool:
    """It is given a value in the loop, or from anywhere else."""
    names, scope = names_in(node), use.scope
    bound = [b for name in names for b in scope.bindings.get(name, ())]
    inside = any(b.use.order >= 0 and lies_in(b.use.statement, loop) for b in bound)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        put = re.compile(rf"\[['\"]{re.escape(str(node.slice.value))}['\"]\]\s*[-+*/]*=(?!=)")
        return inside or put.search(seen.module.whole) is not None or _moved(seen, node.value, use, loop)
    outside = isinstance(node, ast.Attribute) and seen.project.set_from_outside(node.attr, seen.module)
    own = isinstance(node, ast.Name) and len(bound) != 1 and node.id in scope.bindings
    return inside or outside or own or (names <= set(scope.own) and not _set_once(seen.project, node, use))


def _set_once(project: Project, node: ast.expr, use: Use) -> bool:
    """``self.config.rate``, where nothing but the ``__init__`` gives an object its ``config``."""
    while isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
        node = node.value
    held = project.holding(node, use, 0)
    return bool(held) and all(b.use.scope.name.endswith("__init__") for b in held)
