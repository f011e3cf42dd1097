"""Frozen trunks with BatchNorm, in a model that every epoch puts back into train mode."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument
from flatline.readers.source._dispatch import is_likely
from flatline.readers.source._listed import calls as listed
from flatline.readers.source._named_parts import part_behind
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Module, Scope, Use, spelled
from flatline.readers.source._seen import seen_in
from flatline.readers.source._things import Thing
from flatline.readers.source._values import Source, comes_by, origins
from flatline.readers.source._zoo import ready_made

WITH_NORMS = re.compile(
    r"torchvision\.models\.((wide_)?res(net|next)\w+|densenet\w+|mobilenet\w+|efficientnet\w+|mnasnet\w+|regnet\w+|"
    r"shufflenet\w+|vgg\d+_bn|video\.(r3d|mc3|r2plus1d)_18|segmentation\.(fcn|deeplabv3)_resnet\w+)"
)
PART = re.compile(r"features|layers|layer[1-4]|stage[2-4]|trunk_output")  # of these, with as many norms
BARE = re.compile(r"conv\d|relu\d?|act\d?|(max|avg)pool\d?|fc|classifier|head|last_linear")  # of these, without norms
NORM = re.compile(r"torch\.nn\.(Sync)?BatchNorm([123]d)?")
OTHERWISE = re.compile(
    r"track_running_stats|isinstance\([^)]*Norm|FrozenBatchNorm|"
    r"\.train\([^,()]*(False|==|!=|\band\b|\bnot\b|\bin\b|mode|training)|forward_pre_hook|\bsetattr\(|"  # parts of it
    r"def train\(self|momentum\s*=\s*(0\.0|0|None)\b(?!\.)|\.training\s*=|"
    r"deepcopy|lerp|\.copy_\(|\.mul_\(|AveragedModel|\bema\b|\.state_dict\(\)\)|"  # an averaged copy of another
    r"requires_grad_?\s*(\(\s*(True)?\s*\)|=\s*(?!False)\w)"
)
KNOWN = re.compile(r"(torch|torchvision|wandb|accelerate|lightning|torchinfo|torchsummary|thop|fvcore|copy)\b")
INIT = re.compile(r"init|watch|summary", re.IGNORECASE)
DEEP = 6


def drifting(project: Project, module: Module, reached: Sequence[Module]) -> Iterator[SourceFact]:
    """One fact a file."""
    text = "\n".join(each.whole for each in reached)
    if "requires_grad" not in text or ".backward(" not in text:
        return
    scopes = [scope for each in reached for scope in each.scopes]
    if (said := OTHERWISE.search(text)) is not None:
        off = _handed_off(project, scopes) if said[0].startswith("requires_grad") else set[tuple[str, int]]()
        kept = (line for e in reached for n, line in enumerate(e.text.lines, 1) if (e.text.path, n) not in off)
        if not off or OTHERWISE.search("\n".join(kept)) is not None:
            return
    asked = {name: [c for s in scopes for c in seen_in(project, s).methods(name)] for name in ("train", "eval")}
    for frozen in (each for scope in scopes for each in _frozen(project, scope)):
        wholes = [*_wholes(frozen), *_built_around(project, frozen)]
        wanted = {each for whole in wholes for each in (*_identities(project, whole), *_handed_on(project, whole))}
        if (
            not wanted
            or not _is_done(project, frozen.use, scopes, 0)
            or not all(_has_norms(project, t, 0) for t in _things(project, frozen))
        ):
            continue
        again = [
            (call, use) for call, held, use in asked["train"]
            if _plain(call) and _identities(project, Source(held, use)) & wanted and _repeats(project, use)
        ]  # fmt: skip
        trained = {i for call, use in again for i in _identities(project, Source(call.func.value, use))}  # type: ignore[attr-defined]
        parts = any(_puts_back(held, use, asked["eval"]) for _, held, use in asked["train"])
        if parts or _is_handed_away(project, scopes, wanted | trained | _own(project, frozen)):
            continue
        if again and all(_identities(project, Source(held, use)) & trained for _, held, use in asked["eval"]):
            (call, place), other = again[0], frozen.use
            yield SourceFact(
                kind="drifting norms", name=spelled(frozen.node), text=spelled(call),
                where=place.scope.module.where(call, place.scope), other=other.scope.module.where(frozen.node, other.scope),
            )  # fmt: skip
            return


def _puts_back(held: ast.expr, use: Use, evals: Sequence[tuple[ast.Call, ast.expr, Use]]) -> bool:
    """``model.eval()`` and then ``model.head.train()``: only a part of it trains."""
    near = [unparsed(whole) for _, whole, place in evals if place.scope is use.scope and place.before(use)]
    return unparsed(held).startswith(tuple(mark for each in near for mark in (f"{each}.", f"{each}[")))


def _own(project: Project, frozen: Source) -> set[str]:
    """The trunk itself."""
    return {t.identity() for t in project.things(frozen.node, frozen.use) if t.call is not None}


def _is_handed_away(project: Project, scopes: Sequence[Scope], wanted: set[str]) -> bool:
    """``set_bn_eval(model)`` or ``model.apply(bn_eval)``, of which nothing is known."""
    for call, use in (pair for scope in scopes for pair in scope.calls):
        applied = isinstance(call.func, ast.Attribute) and call.func.attr == "apply" and len(call.args) == 1
        func = call.args[0] if applied else call.func
        given = [call.func.value] if applied and isinstance(call.func, ast.Attribute) else call.args
        if not _is_unknown(project, func, ast.Call(func, [], []) if applied else call, use):
            continue
        held = (a for a in given if isinstance(a, (ast.Name, ast.Attribute)))
        if any(_identities(project, Source(a, use)) & wanted for a in held):
            return True
    return False


def _is_unknown(project: Project, func: ast.expr, call: ast.Call, use: Use) -> bool:
    """A function from a module that is not there, or of nowhere."""
    if not isinstance(func, (ast.Name, ast.Attribute)) or INIT.search(unparsed(func)) is not None:
        return False
    dotted = project.dotted(func, use)
    nowhere = (
        isinstance(func, ast.Name)
        and func.id not in use.scope.module.top.bindings
        and func.id not in use.scope.bindings
    )
    named = dotted or (func.id if nowhere and isinstance(func, ast.Name) and not hasattr(builtins, func.id) else "")
    if not named or KNOWN.match(named) is not None:
        return False
    return project.callee(call, use) is None and not any(t.made_of is not None for t in project.things(call, use))


def _plain(call: ast.Call) -> bool:
    """``train()`` and ``train(True)``."""
    return not call.keywords and all(isinstance(a, ast.Constant) and a.value is True for a in call.args)


def _repeats(project: Project, use: Use) -> bool:
    """In a loop, or in a function that a loop calls."""
    seen = seen_in(project, use.scope)
    return seen.loop_of(use) is not None or seen.called_again


def _is_done(project: Project, use: Use, scopes: Sequence[Scope], depth: int) -> bool:
    """Under no condition that is open, and where it stands in a method, that is called in these files."""
    returned = (u for u in use.scope.statements[: use.order] if isinstance(u.statement, ast.Return))
    if _is_open(project, use) or any(_chosen(project, u) is not False for u in returned):
        return False
    if use.scope.parent is None or depth > DEEP:
        return use.scope.parent is None
    known = project.calls_of(use.scope)
    sites = [u for call, u in known if not is_likely(call, u) or listed(project, call, u, use.scope)]
    sites = [u for u in sites if any(u.scope is each for each in scopes)]
    begins = not known and (use.scope.owner is None or use.scope is use.scope.owner.methods.get("__init__"))
    return begins or any(_is_done(project, site, scopes, depth + 1) for site in sites)


def _is_open(project: Project, use: Use) -> bool:
    """Behind a condition that is not known to hold."""
    return bool(_choices(use)) and _chosen(project, use) is not True


def _chosen(project: Project, use: Use) -> bool | None:
    """What the conditions around it come to."""
    return comes_by(project, replace(use, path=_choices(use)))


def _choices(use: Use) -> tuple[tuple[int, str], ...]:
    """The conditions around a place, but for whether the file is run as a script."""
    scope = use.scope
    tests = {block: unparsed(scope.choices[block].test) for block, _ in use.path if block in scope.choices}
    named = {block for block, test in tests.items() if "__name__" not in test}
    return tuple(each for each in use.path if each[0] in named or each[0] in scope.matches)


def _frozen(project: Project, scope: Scope) -> Iterator[Source]:
    """What has ``requires_grad_(False)`` called on it or its parameters; where a helper does it, what it is given."""
    for call, receiver, use in seen_in(project, scope).methods("requires_grad_"):
        off = call.args[:1] or [k.value for k in call.keywords]
        if len(off) == 1 and isinstance(off[0], ast.Constant) and off[0].value is False:
            yield from _given(project, receiver, use)
    for use in scope.statements:
        head = use.statement.iter if isinstance(use.statement, ast.For) else None
        func = head.func if isinstance(head, ast.Call) and not head.args else None
        if (
            isinstance(func, ast.Attribute)
            and func.attr in ("parameters", "named_parameters")
            and _switches_off(project, scope, use.statement)
        ):
            yield from _given(project, func.value, use)


def _switches_off(project: Project, scope: Scope, loop: ast.stmt) -> bool:
    """``p.requires_grad = False`` for each of them, also where every call of the function gives the False."""
    body = loop.body if isinstance(loop, ast.For) else []
    found = re.fullmatch(r"\w+\.requires_grad(?: = |_\()(\w+)\)?", unparsed(body[0])) if len(body) == 1 else None
    return found is not None and (found[1] == "False" or _is_off(project, scope, found[1], loop))


def _is_off(project: Project, scope: Scope, name: str, loop: ast.stmt) -> bool:
    """False is what every call gives for a parameter."""
    place = next((u for u in scope.statements if u.statement is loop), None) if name in scope.params else None
    known = project.constant(ast.Name(name, ast.Load()), place, strict=True) if place is not None else None
    return known is not None and known.value is False


def _handed_off(project: Project, scopes: Sequence[Scope]) -> set[tuple[str, int]]:
    """The lines of ``p.requires_grad = flag`` where that is False."""
    loops = [(s, u.statement) for s in scopes if s.params for u in s.statements if isinstance(u.statement, ast.For)]
    off = [(s, loop.body[0].lineno) for s, loop in loops if _switches_off(project, s, loop)]
    return {(s.module.text.path, line) for s, line in off}


def _given(project: Project, node: ast.expr, use: Use) -> Iterator[Source]:
    if isinstance(node, ast.Name) and use.scope.own == (node.id,):
        yield from _itself(project, use, 0)
        return
    found = use.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in use.scope.bindings else []
    if found and all(b.parameter for b in found) and isinstance(node, ast.Name):
        yield from (Source(*pair) for pair in project.given(node.id, found[0].use))
    elif parts := [each for b in found for each in _gone_through(b)]:
        yield from parts
    else:
        yield Source(node, use)
        yield from (
            Source(part, use) for b in found if len(found) == 1 and (part := part_behind(project, b)) is not None
        )


def _itself(project: Project, use: Use, depth: int) -> Iterator[Source]:
    """Where an object is made that freezes itself, or is told to."""
    function, sites = use.scope, project.calls_of(use.scope) if depth < DEEP and not _is_open(project, use) else []
    for call, site in sites:
        func, node = call.func, site.statement
        target = node.targets[0] if isinstance(node, ast.Assign) and node.value is call else None
        if getattr(function.node, "name", "") == "__init__":
            after = site.scope.statements[site.order + 1 : site.order + 2]
            yield from (Source(target, u) for u in after if isinstance(target, ast.Name))
            yield from [Source(call, site)] if isinstance(target, ast.Attribute) else []
        elif isinstance(func, ast.Attribute):
            own = isinstance(func.value, ast.Name) and site.scope.own == (func.value.id,)
            yield from _itself(project, site, depth + 1) if own else [Source(func.value, site)]


def _gone_through(binding: Binding) -> Iterator[Source]:
    """The parts in ``for part in (self.stem, self.layer1)``."""
    loop = binding.use.statement
    listed = loop.iter if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else None
    yield from (Source(e, binding.use) for e in (listed.elts if isinstance(listed, (ast.Tuple, ast.List)) else ()))


def _wholes(frozen: Source) -> list[Source]:
    """The models around a trunk; the trunk itself, if it gets a new head later."""
    node, scope = frozen.node, frozen.use.scope
    if isinstance(node, ast.Name):
        heads = (u.statement.targets[0] for u in scope.statements if isinstance(u.statement, ast.Assign))
        new = any(isinstance(t, ast.Attribute) and unparsed(t.value) == node.id for t in heads)
        kept = [each for u in scope.statements if u.order > frozen.use.order for each in _kept_as(node.id, u)]
        return [*([frozen] if new else []), *_held_as(node.id, frozen.use), *kept]
    if isinstance(node, ast.Call):
        return _made_in_place(node, frozen.use)
    found = []
    while isinstance(node, ast.Attribute):
        node = node.value
        found.append(Source(node, frozen.use))
    return found


def _kept_as(name: str, use: Use) -> list[Source]:
    """``self`` of ``self.trunk = trunk``."""
    node = use.statement
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    own = isinstance(target, ast.Attribute) and use.scope.own == (unparsed(target.value),)
    plain = own and isinstance(node, ast.Assign) and _is_name(node.value, name)
    return [Source(target.value, use)] if plain and isinstance(target, ast.Attribute) else []


def _held_as(name: str, use: Use) -> list[Source]:
    """``self`` where the trunk, or what a function gave back of it, becomes an attribute: ``self.trunk = freeze(trunk)``."""
    node = use.statement
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    given = node.value.args if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else []
    own = isinstance(target, ast.Attribute) and use.scope.own == (unparsed(target.value),)
    plain = own and len(given) == 1 and unparsed(given[0]) == name
    return [Source(target.value, use)] if plain and isinstance(target, ast.Attribute) else []


def _made_in_place(call: ast.Call, use: Use) -> list[Source]:
    """``self`` of ``self.trunk = freeze(resnet18())``, ``= resnet18().requires_grad_(False)`` and ``= Frozen()``."""
    node = use.statement
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    own = isinstance(target, ast.Attribute) and use.scope.own == (unparsed(target.value),)
    outer = node.value if own and isinstance(node, ast.Assign) else None
    given = [*outer.args, *(k.value for k in outer.keywords)] if isinstance(outer, ast.Call) else []
    fluent = isinstance(outer, ast.Call) and isinstance(outer.func, ast.Attribute) and outer.func.value is call
    plain = outer is call or fluent or any(each is call for each in given)
    return [Source(target.value, use)] if plain and isinstance(target, ast.Attribute) else []


def _built_around(project: Project, frozen: Source) -> Iterator[Source]:
    """``Probe(trunk)`` beside ``freeze(trunk)``, where the class keeps what it is given, and ``nn.Sequential(trunk, head)``."""
    name = frozen.node.id if isinstance(frozen.node, ast.Name) else ""
    for call, use in frozen.use.scope.calls if name else ():
        given = [*call.args, *(k.value for k in call.keywords)]
        things = project.things(call, use) if any(_is_name(g, name) for g in given) else ()
        if use.order > frozen.use.order and [t.name for t in things if t.call is call] == ["torch.nn.Sequential"]:
            yield Source(call, use)
        owner = things[0].made_of if len(things) == 1 and things[0].call is call else None
        start = owner.methods.get("__init__") if owner is not None else None
        taken = [p for p in start.params[1:] if _is_name(argument(call, start, p), name)] if start is not None else []
        held = [b.value for bindings in owner.attributes.values() for b in bindings] if owner is not None else []
        if any(_is_name(value, param) for value in held for param in taken):
            yield Source(call, use)


def _is_name(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _identities(project: Project, source: Source) -> set[str]:
    """Of the objects; of ``self``, and of what a class of the project made, the class."""
    node, use = source.node, source.use
    owner = use.scope.owner if isinstance(node, ast.Name) and use.scope.own == (node.id,) else None
    if owner is not None:
        return {f"class {id(each)}" for each in (owner, *project.heirs(owner))}
    things = [t for t in project.things(node, use) if t.call is not None]
    return {f"class {id(t.made_of)}" if t.made_of is not None else t.identity() for t in things}


def _handed_on(project: Project, source: Source) -> set[str]:
    """What calls of the function that makes and freezes it get."""
    scope = source.use.scope
    blocks = [block for block, _ in source.use.path if block in scope.choices]
    if scope.parent is None or (blocks and comes_by(project, source.use) is not True):
        return set()
    things = [t for t in project.things(source.node, source.use) if t.call is not None and t.use.scope is scope]
    sites = [id(call) for call, _ in project.calls_of(scope)] if things else []
    return {replace(thing, via=(site, *thing.via)).identity() for thing in things for site in sites}


def _things(project: Project, source: Source) -> Sequence[Thing]:
    return project.things(source.node, source.use) or [*_cut_from(project, source)] or (Thing("", source.use),)


def _cut_from(project: Project, source: Source) -> Iterator[Thing]:
    """The network of torchvision of which a trunk is ``features``, or another part."""
    for each in origins(project, source.node, source.use):
        part = each.node if isinstance(each.node, ast.Attribute) and PART.fullmatch(each.node.attr) else None
        wholes = project.things(part.value, each.use) if part is not None else ()
        yield from wholes if all(WITH_NORMS.fullmatch(t.name) for t in wholes) else ()
        if not wholes:
            yield Thing("", each.use)


def _has_norms(project: Project, thing: Thing, depth: int) -> bool:
    """A BatchNorm that the source shows, or a network of torchvision that is full of them."""
    if thing.call is None or depth > DEEP:
        return False
    if WITH_NORMS.fullmatch(thing.name) or NORM.fullmatch(thing.name) or ready_made(project, thing) == "BatchNorm":
        return all("BatchNorm" in unparsed(k.value) for k in thing.call.keywords if k.arg == "norm_layer")
    if thing.made_of is None:
        parts = [n for a in thing.call.args for n in _inside(a)]
        return thing.name == "torch.nn.Sequential" and any(_within(project, part, thing.use, depth) for part in parts)
    starts = [each.methods["__init__"] for each in project.bases(thing.made_of) if "__init__" in each.methods]
    return any(_within(project, call, use, depth) for start in starts for call, use in start.calls)


def _inside(node: ast.expr) -> Iterator[ast.expr]:
    """The names and calls in an argument, but for ``net`` of ``net.conv1``, which is no norm."""
    bare = {id(n.value) for n in walk(node) if isinstance(n, ast.Attribute) and BARE.fullmatch(n.attr)}
    yield from (n for n in walk(node) if isinstance(n, (ast.Name, ast.Call)) and id(n) not in bare)


def _within(project: Project, node: ast.expr, use: Use, depth: int) -> bool:
    return any(_has_norms(project, thing, depth + 1) for thing in project.things(node, use))
