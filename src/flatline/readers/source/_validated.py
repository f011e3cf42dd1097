"""A pass without gradients that scores a model in training mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._agreements import is_agreement
from flatline.readers.source._losses import is_mean, kind_of
from flatline.readers.source._modes import modes_of
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._rounds import Known, around, chosen_in, is_left_out, truth
from flatline.readers.source._scopes import Use, lies_in, spelled
from flatline.readers.source._seen import Seen, mode_lines, seen_in
from flatline.readers.source._set_modes import set_elsewhere
from flatline.readers.source._things import Thing

NO_GRAD = ("no_grad", "inference_mode")


def validated(seen: Seen, trained: set[str]) -> Iterator[SourceFact]:
    """A pass without gradients over a loader, with a model that has Dropout or BatchNorm, in a file without eval()."""
    for call, use in seen.scope.calls if trained and not _set_by_callers(seen) else ():
        drawn = seen.draws(call)
        plain = not drawn and seen.never_recorded(use) and (_judged(seen, use) or _judged_at_once(seen, call, use))
        if drawn or not (plain or _switched_pass(seen, use) or _passed_over(seen, use)):
            continue
        for thing in _run_by(seen.project, call, use):
            if thing.identity() in trained and (modes := modes_of(seen.project, thing)):
                if set_elsewhere(seen):
                    return
                yield seen.fact("validated", call, name=modes, text=spelled(call.func))
                return


def _set_by_callers(seen: Seen) -> bool:
    """A file that calls this function switches modes."""
    files = {id(u.scope.module): u.scope.module for _, u in seen.project.calls_of(seen.scope)}
    return any(mode_lines(seen.project, each) for each in files.values() if each is not seen.module)


def _judged(seen: Seen, use: Use) -> bool:
    """In a loop, or beside one, that compares scores with labels."""
    loop = seen.loop_of(use)
    return loop is not None and not seen.within(loop, "backward") and seen.scores(loop)


def _switched_pass(seen: Seen, use: Use) -> bool:
    """In a loop that scores, and whose backward some call of the function switches off, with the gradients."""
    loop = seen.loop_of(use) if seen.switches else None
    return loop is not None and seen.judges(loop)


def _passed_over(seen: Seen, use: Use) -> bool:
    """In a loop that scores, in a phase without gradients that comes by none of its backwards."""
    loop = seen.loop_of(use) if seen.switches else None
    if loop is None or not seen.scores(loop):
        return False
    backs = [u for _, _, u in seen.methods("backward") if lies_in(u.statement, loop)]
    return any(
        not is_left_out(use, known) and all(is_left_out(back, known) for back in backs) and _off(seen, use, known)
        for known in around(seen.project, use)
        if known
    )


def _off(seen: Seen, use: Use, known: Known) -> bool:
    """Gradients are switched off there: ``with torch.set_grad_enabled(phase == "train")``."""
    if seen.without_grad(use) and not any(isinstance(head, ast.IfExp) for head in _heads(seen, use)):
        return True
    heads = [chosen_in(head, known, use) for head in _heads(seen, use)]
    calls = [(unparsed(head.func), head.args) for head in heads if isinstance(head, ast.Call)]
    return any(
        truth(args[0], known, use) is False if args and "set_grad_enabled" in name else name.endswith(NO_GRAD)
        for name, args in calls
    )


def _heads(seen: Seen, use: Use) -> list[ast.expr]:
    """The managers of the with statements around a place."""
    return [item.context_expr for node in seen.withs if lies_in(use.statement, node) for item in node.items]


def _judged_at_once(seen: Seen, call: ast.Call, use: Use) -> bool:
    """Without a loop of its own, in a function that trains nothing, and compared with labels there or by who calls it."""
    if seen.loop_of(use) is not None or any(seen.loop_of(u) is None for _, _, u in seen.methods("backward")):
        return False
    asked = [node for node in walk(use.statement) if _equals(node, call)]
    if _compares(seen, _results(use)) or any(not is_agreement(seen.project, node, use) for node in asked):
        return True
    returned = {name for name, _ in seen.returned_names()}
    if not isinstance(use.statement, ast.Return) and not _results(use) & returned:
        return False
    sites = [place for _, place in seen.project.calls_of(seen.scope)]
    return bool(sites) and all(_compares(seen_in(seen.project, u.scope), _results(u)) for u in sites)


def _compares(seen: Seen, names: set[str]) -> bool:
    """``(pred == y).float().mean()``, or a loss of torch, of one of these names."""
    names = names | {t for u in seen.scope.statements if names & names_in(u.statement) for t in _results(u)}
    for use in seen.scope.statements if names else ():
        if hasattr(use.statement, "body"):
            continue
        for node in walk(use.statement):
            equal = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
            plain = isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant)
            if equal and not plain and names_in(node) & names and not is_agreement(seen.project, node, use):
                return True
            if isinstance(node, ast.Call) and node.args and names_in(node.args[0]) & names:
                known = kind_of(seen.project, node, use) or is_mean(seen.project, node, use)
                if known and not is_agreement(seen.project, node, use):
                    return True
    return False


def _results(use: Use) -> set[str]:
    """The names that a statement gives a value."""
    return {n for t in getattr(use.statement, "targets", ()) for n in names_in(t)}


def _equals(node: ast.AST, call: ast.Call) -> bool:
    """``model(x).argmax(1) == y``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "eq" and node.args:
        return any(inner is call for inner in walk(node.func.value))
    equal = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
    return equal and not isinstance(node.comparators[0], ast.Constant) and any(n is call for n in walk(node))  # type: ignore[attr-defined]


def _run_by(project: Project, call: ast.Call, use: Use, depth: int = 0) -> Iterator[Thing]:
    """What a call runs, itself or in the function that it reaches, if that does nothing to gradients."""
    things = project.things(call.func, use)
    yield from things
    function = project.callee(call, use) if depth < 2 and not any(thing.call for thing in things) else None
    if function is None or isinstance(function.node, ast.Module) or function.node is use.scope.node:
        return
    if re.search(r"backward|_grad|inference_mode|\.step\(", unparsed(function.node)) is None:
        for inner, place in function.calls:
            seen = seen_in(project, function)
            if not seen.draws(inner) and seen.loop_of(place) is None:
                yield from _run_by(project, inner, place, depth + 1)
