"""Parts of a batch that go backward one after the other, each with a mean of its own, before one step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._losses import is_mean
from flatline.readers.source._means import means
from flatline.readers.source._new_rows import is_of_new_rows
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, iterated, spelled
from flatline.readers.source._seen import Seen, seen_in
from flatline.readers.source._values import drawn_by, is_none, origins

FOLLOWED = 8  # spellings of one number
TASKS = re.compile(r"task|meta|episode|client|env", re.IGNORECASE)  # whose losses are summed by definition
BY_HAND = re.compile(r"\.grad\b")  # gradients that are divided afterwards


def micro(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a loop over parts."""
    text = module.whole
    if ".backward(" not in text or BY_HAND.search(text):
        return
    for scope in module.scopes:
        seen = seen_in(project, scope)
        loops = {id(seen.loop_of(use)) for _, _, use in seen.methods("backward")}
        for use in scope.statements if loops else ():
            if isinstance(use.statement, ast.For) and id(use.statement) in loops and _in_parts(seen, use):
                yield from _undivided(seen, use, use.statement)


def _in_parts(seen: Seen, use: Use) -> bool:
    """``for x, y in zip(xs.split(8), ys.split(8))``, perhaps as every call of the function gives them."""
    node, place = _drawn(seen, *seen.sole(iterated(use.statement.iter), use))  # type: ignore[attr-defined]
    if isinstance(node, ast.Name) and node.id in seen.scope.params:
        outer = [(seen_in(seen.project, site.scope), each, site) for each, site in seen.project.given(node.id, use)]
        given = [_drawn(around, *around.sole(each, site)) for around, each, site in outer]
        return bool(given) and all(_are_parts(seen, each, site, use) for each, site in given)
    return _are_parts(seen, node, place, use)


def _drawn(seen: Seen, node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
    """``list(islice(it, n))``, which a generator of the project yields in turn under a name."""
    drawn = list(_yielded(seen, node, use)) if isinstance(node, ast.Name) else []
    if len(drawn) != 1:
        return node, use
    value, place = seen_in(seen.project, drawn[0][1].scope).sole(*drawn[0])
    listed = isinstance(value, ast.Call) and spelled(value.func) in ("list", "tuple") and len(value.args) == 1
    return (value.args[0], place) if listed and isinstance(value, ast.Call) else (value, place)


def _yielded(seen: Seen, node: ast.Name, use: Use) -> Iterator[tuple[ast.expr, Use]]:
    """What the generator yields that a loop, or a comprehension, goes through under a name."""
    if node.id in seen.scope.masked.get(id(use.statement), ()):
        function = _generator_of(seen, node.id, use)
        yield from ((each.value, place) for each, place in function.yields if each.value) if function else ()
        return
    found = seen.scope.reaching(node.id, use) if node.id in seen.scope.bindings else []
    steps = [step for b in found if b.value is None for step in drawn_by(seen.project, b, ())]
    whole = len(found) == 1 and not any(inner for _, _, inner in steps)
    yield from ((value, place) for value, place, _ in steps if whole and value is not None)


def _generator_of(seen: Seen, name: str, use: Use) -> Scope | None:
    """``groups_of`` of ``[step(group) for group in groups_of(loader, 8)]``."""
    heads = [n for n in walk(use.statement) if isinstance(n, ast.comprehension)]
    named = [h.iter for h in heads if isinstance(h.target, ast.Name) and h.target.id == name]
    head = iterated(named[0]) if len(named) == 1 else None
    return seen.project.callee(head, use) if isinstance(head, ast.Call) else None


def _are_parts(seen: Seen, node: ast.expr, place: Use, use: Use) -> bool:
    if isinstance(node, ast.Call) and seen.project.dotted(node.func, place) == "itertools.islice":
        return len(node.args) == 2 and _is_counted(seen, node.args[1], place)
    if isinstance(node, ast.Call) and spelled(node.func) == "range" and len(node.args) == 1:
        head = f"{unparsed(node)} {unparsed(use.statement.target)}"  # type: ignore[attr-defined]
        return place.scope is use.scope and not TASKS.search(head) and _is_counted(seen, node.args[0], place)
    if isinstance(node, ast.Call) and spelled(node.func) == "range" and len(node.args) == 3:
        return re.search(r"\blen\(|\.size\(|\.shape\b", unparsed(node.args[1])) is not None and _slices(use)
    zipped = isinstance(node, ast.Call) and spelled(node.func) == "zip"
    given = node.args if zipped and isinstance(node, ast.Call) else [node]
    return bool(given) and all(_is_parted(seen, *seen.sole(each, place)) for each in given)


def _is_counted(seen: Seen, node: ast.expr, use: Use) -> bool:
    """More than one batch of a stream, by a number that nothing is divided by."""
    count = seen.project.number(node, use)
    names = [unparsed(each).rpartition(".")[2] for each in _spellings(seen.project, node, use)]
    divided = re.compile(rf"/=?\s*\(?[\w.]*\b({'|'.join(map(re.escape, names))})\b")
    return count is not None and count > 1 and not any(divided.search(line) for line in seen.module.text.lines)


def _spellings(project: Project, node: ast.expr, use: Use) -> list[ast.expr]:
    """A name, and what the calls of its function give for it."""
    found, waiting = [node], [(node, use)]
    while waiting and len(found) < FOLLOWED:
        each, place = waiting.pop()
        if isinstance(each, ast.Name) and each.id in place.scope.params:
            given = [
                (value, site)
                for value, site in project.given(each.id, place)
                if isinstance(value, (ast.Name, ast.Attribute))
            ]
            found += [value for value, _ in given]
            waiting += given
    return found


def _slices(use: Use) -> bool:
    """``x[i:i + size]`` in the loop, with what it counts."""
    target = use.statement.target  # type: ignore[attr-defined]
    cuts = [n for each in use.statement.body for n in walk(each) if isinstance(n, ast.Slice)]  # type: ignore[attr-defined]
    starts = [cut.lower.id for cut in cuts if isinstance(cut.lower, ast.Name)]
    return isinstance(target, ast.Name) and target.id in starts


def _is_parted(seen: Seen, node: ast.expr, use: Use) -> bool:
    """A tensor, cut along its first dimension."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
        return False
    dotted = seen.project.dotted(node.func, use)
    sizes = node.args[1:] if dotted in ("torch.split", "torch.chunk") else node.args if not dotted else []
    alone = len(sizes) == 1 and node.func.attr in ("split", "chunk")
    return alone and not (
        isinstance(sizes[0], ast.Constant) and (isinstance(sizes[0].value, str) or sizes[0].value == 1)
    )


def _undivided(seen: Seen, use: Use, loop: ast.For) -> Iterator[SourceFact]:
    backs = [(c, r, u) for c, r, u in seen.methods("backward") if seen.loop_of(u) is loop]
    if len(backs) != 1 or not (_steps_once(seen, use, loop) or _callers_step(seen, use, loop)):
        return
    (call, receiver, back) = backs[0]
    scaled = isinstance(receiver, ast.Call) and spelled(receiver.func).endswith(".scale") and len(receiver.args) == 1
    sent = receiver.args[0] if scaled and isinstance(receiver, ast.Call) else receiver
    loss, place = seen.sole(sent, back)
    direct = back.path == (*use.path, (id(loop), "body")) and seen.loop_of(place) is loop
    if not direct or call.args or not (_behind(seen, loss) & names_in(loop.target) or is_of_new_rows(seen, loss, loop)):
        return
    if _means(seen.project, loss, place) or means(seen.project, loss, place):
        yield seen.fact("micro mean", call, name=spelled(sent), other=loop)


def _behind(seen: Seen, node: ast.expr) -> frozenset[str]:
    """The names in an expression, and in what these were given."""
    found = names_in(node)
    return found | {inner for name in found for value, _ in seen.values_of(name) for inner in names_in(value)}


def _steps_once(seen: Seen, use: Use, loop: ast.For) -> bool:
    """Zeroed before the loop and stepped after it, beside it, and neither within."""
    steps = [u for c, r, u in seen.methods("step") if _is_optimizer(seen, c.args[0] if c.args else r, u)]
    zeros = [u for _, _, u in seen.methods("zero_grad")]
    within = [u for u in (*steps, *zeros) if loop.lineno <= u.statement.lineno <= (loop.end_lineno or 0)]
    beside = [u for u in steps if u.path == use.path and u.order > use.order]
    return not within and bool(beside) and any(u.path == use.path for u in zeros)


def _callers_step(seen: Seen, use: Use, loop: ast.For) -> bool:
    """The function neither zeroes nor steps, and all that call it zero before and step after, in the same block."""
    calls = seen.project.calls_of(seen.scope)
    if use.path or any(True for _ in seen.methods("step", "zero_grad")) or not calls:
        return False
    for _, site in calls:
        outer = seen_in(seen.project, site.scope)
        steps = [u for _, r, u in outer.methods("step") if _is_optimizer(outer, r, u) and u.path == site.path]
        zeros = [u for _, _, u in outer.methods("zero_grad") if u.path == site.path]
        if not any(u.order > site.order for u in steps) or not zeros or any(_inside(outer, u, site) for u in zeros):
            return False
    return True


def _inside(seen: Seen, zero: Use, site: Use) -> bool:
    """Between what was called and the step."""
    steps = [u.order for _, _, u in seen.methods("step") if u.order > site.order]
    return bool(steps) and site.order < zero.order < steps[0]


def _is_optimizer(seen: Seen, node: ast.expr, use: Use) -> bool:
    things = seen.project.things(node, use)
    return bool(things) and all(thing.is_optimizer for thing in things)


def _means(project: Project, node: ast.expr, use: Use) -> bool:
    """A mean, or what came out of a function with one."""
    if isinstance(node, ast.Call):
        return _mean(project, node, use)
    found = [s for s in origins(project, node, use) if not is_none(s.node)] if isinstance(node, ast.Name) else []
    return bool(found) and all(isinstance(s.node, ast.Call) and is_mean(project, s.node, s.use) for s in found)


def _mean(project: Project, call: ast.Call, use: Use) -> bool:
    """A loss function of torch with its usual reduction, perhaps as the result of a function."""
    function = project.callee(call, use)
    if function is None:
        return is_mean(project, call, use)
    return not isinstance(function.node, ast.Module) and _returns_mean(project, function)


def _returns_mean(project: Project, function: Scope) -> bool:
    seen = seen_in(project, function)
    values = [seen.sole(value, use) for value, use in function.returns if value is not None]
    means = [isinstance(value, ast.Call) and is_mean(project, value, place) for value, place in values]
    return bool(means) and all(means) and len(means) == len(function.returns)
