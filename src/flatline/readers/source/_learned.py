"""What a loss is learned from: the logarithm of a softmax in what goes backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from flatline.events import SourceFact
from flatline.readers.source._edits import log_softmaxed
from flatline.readers.source._made import Made
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._scopes import Use, spelled
from flatline.readers.source._seen import Seen, seen_in

PICKED = re.compile(r"\.(gather|index_select|take_along_dim)\(|\[.*\w.*\]$")
DRAWS = re.compile(r"\b(Categorical|multinomial)\(")
BOUNDED = re.compile(r"\b(clamp|clip|tanh|sigmoid|normalize|cosine_similarity|double)\(|float64")
CALLS = 2  # from a function to what its result goes into


def logged_softmax(seen: Seen) -> Iterator[SourceFact]:
    """``log(softmax(x))``, with nothing between the two."""
    for call, receiver, use in seen.methods("log"):
        plain = seen.project.dotted(call.func, use)
        given = call.args[0] if plain == "torch.log" and len(call.args) == 1 else receiver
        if (plain and plain != "torch.log") or (call.args and given is receiver) or seen.without_grad(use):
            continue
        made = seen.project.made(given, use)
        plain_softmax = bool(made) and all(m.by == "softmax" for m in made) and not _is_drawn(seen, given, use)
        if plain_softmax and any(_is_bounded(seen, m) for m in made):
            continue
        if plain_softmax and is_learned_from(seen, use, call):
            edit = log_softmaxed(call, given) if made[0].node is given else None
            yield seen.fact("logged softmax", call, name=spelled(call), other=made[0].node, edit=edit)


def _is_drawn(seen: Seen, given: ast.expr, use: Use) -> bool:
    """``pi.gather(1, action)`` in a file that draws its actions: what was drawn is hardly ever improbable."""
    picked = PICKED.search(unparsed(seen.sole(given, use)[0])) is not None
    return picked and any(DRAWS.search(line) for line in seen.module.text.lines)


def _is_bounded(seen: Seen, made: Made) -> bool:
    """The scores lie between bounds that no softmax of them comes to 0 by."""
    node = made.node
    first = node.args[:1] if isinstance(node, ast.Call) else []
    given = first[0] if first and isinstance(node, ast.Call) and "softmax" in unparsed(node.func) else None
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and not unparsed(node.func).startswith(("F.", "torch."))
    ):
        given = node.func.value
    return given is not None and BOUNDED.search(unparsed(seen.sole(given, made.use)[0])) is not None


def is_learned_from(seen: Seen, use: Use, call: ast.Call, depth: int = 0, place: int | None = None) -> bool:
    """It is in the result of a forward, or in what goes backward, perhaps as the result of a function."""
    node = use.statement
    names = _given_at(node, place) | _paired(node, call)
    if not names and isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        names = {name for name, values in seen.listed.items() if any(u is use for _, u in values)}
    if isinstance(node, ast.Return):
        forward = seen.scope.owner is not None and seen.scope.name.endswith(".forward")
        return forward or _calls_learn(seen, _places_of(seen, call, names), depth)
    flowing = seen.flowing(name for name, _, _ in seen.backwards())
    back = any(use.statement is other.statement for _, _, other in seen.methods("backward"))
    places = _places_of(seen, call, names) if depth < CALLS and names and not (back or names & flowing) else ()
    return back or bool(names & flowing) or _calls_learn(seen, places, depth)


def returns_learned(seen: Seen, call: ast.AST) -> bool:
    """What a function makes of a call in it is returned, and goes backward where the function is called."""
    use = next((use for each, use in seen.scope.calls if each is call), None)
    if use is None or not isinstance(call, ast.Call):
        return False
    names = {name for name in names_in(use.statement) if any(b.use is use for b in seen.scope.bindings.get(name, ()))}
    return _calls_learn(seen, _places_of(seen, call, names), 0)


def _behind(seen: Seen, part: ast.expr) -> set[str]:
    """The names that a part of a result is made of, also by way of lists."""
    waiting, found = [part], set[str]()
    while waiting:
        for name in names_in(waiting.pop()) - found:
            found.add(name)
            waiting += [value for value, _ in (*seen.values_of(name), *seen.listed.get(name, ()))]
    return found


def _calls_learn(seen: Seen, places: Sequence[int | None], depth: int) -> bool:
    """What a call of this function returns goes backward, at a place where this is in it."""
    calls = seen.project.sites_of(seen.scope) if depth < CALLS and places else []
    outer = [(seen_in(seen.project, use.scope), use, call) for call, use in calls if use.scope is not seen.scope]
    return any(is_learned_from(each, use, call, depth + 1, place) for each, use, call in outer for place in places)


def _places_of(seen: Seen, node: ast.Call, names: set[str]) -> Sequence[int | None]:
    """Where in what is returned a call, or what it gave, ends up; None for the whole of it."""
    found: list[int | None] = []
    for value, _ in seen.scope.returns:
        parts = _parts_of(value) if value is not None else []
        for place, part in enumerate(parts):
            if any(inner is node for inner in walk(part)) or names & _behind(seen, part):
                found.append(place)
        if value is not None and not parts:
            inside = any(inner is node for inner in walk(value)) or names & _behind(seen, value)
            found += [None] if inside else []
    return found


def _parts_of(node: ast.expr) -> Sequence[ast.expr]:
    """The elements of a tuple; of ``map(torch.stack, (rewards, values))`` those that are gone through."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("map", "tuple")
        and node.args
    ):
        node = node.args[-1]
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)) and len(node.generators) == 1:
        node = node.generators[0].iter
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else []


def _given_at(node: ast.stmt, place: int | None) -> set[str]:
    """The names that a statement gives a value, or the part of it at a place."""
    if not isinstance(node, ast.Assign):
        return set()
    plain = {unparsed(target) for target in node.targets}
    parts = [target.elts for target in node.targets if isinstance(target, ast.Tuple)]
    return plain | {unparsed(elts[place]) for elts in parts if place is not None and place < len(elts)}


def _paired(node: ast.stmt, call: ast.Call) -> set[str]:
    """``b`` in ``a, b = model.left(x), model.right(y)``, for the call that stands in its place."""
    value, target = (node.value, node.targets[0]) if isinstance(node, ast.Assign) else (None, None)
    if not isinstance(value, ast.Tuple) or not isinstance(target, ast.Tuple) or len(value.elts) != len(target.elts):
        return set()
    pairs = zip(target.elts, value.elts, strict=True)
    return {unparsed(name) for name, given in pairs if any(inner is call for inner in walk(given))}
