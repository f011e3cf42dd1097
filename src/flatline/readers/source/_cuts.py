"""Layers of a trained model whose every result is detached: they are in the optimizer, and no gradient comes back to them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache

from flatline.events import SourceFact
from flatline.readers.source._imported import all_reached
from flatline.readers.source._learned import is_learned_from, returns_learned
from flatline.readers.source._mentions import Index, Mentions
from flatline.readers.source._mentions import index as index_of
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Module, Scope, Use, lies_in, plain_call
from flatline.readers.source._seen import CUT_OFF, Seen, is_module, model_of, seen_in, trained_models
from flatline.readers.source._things import Thing

FROZEN = re.compile(  # somewhere in these files: it may be on purpose
    r"requires_grad|(?<!down)load(?!er)|pretrained|\bweights\s*=|deepcopy|\.(copy|mul|lerp|data\.copy)_\(|\.data\s*=|\.grad\b(?!_)|stop_?grad|torch\.func"
)
SCRATCH = re.compile(
    r"(?<=[(,])[ \t]*(weights|pretrained)\s*=\s*(None|False)\b(?!.*:[ \t]*$)", re.MULTILINE
)  # but in a def
IMPORTS = re.compile(r"^[ \t]*(from\b.*\bimport|import)\b(?!.*\bas\b).*$", re.MULTILINE)
DATA = re.compile(  # whose load() reads no weights
    r"(numpy|scipy|pandas|json|ujson|orjson|yaml|toml|tomli|tomllib|pickle|joblib|h5py|torchaudio|soundfile|librosa|tifffile"
    r"|nibabel|imageio|PIL|sklearn\.datasets|datasets)\."
)
ROWS = re.compile(r"Dataset\(|DataLoader\(")
WEIGHTS = re.compile(r"model|net\b|optim|parameters\(|backward", re.IGNORECASE)
CUTTING = re.compile(r"detach|no_grad|inference_mode|\.data\b(?!\s*=)")
ON_PURPOSE = re.compile(
    r"target|random|fixed|frozen|teacher|momentum|ema\b|_ema|key|old|proj|ref|prior|reservoir|hash|quant|codebook|token",
    re.IGNORECASE,
)
TAKES = ("torch.optim.", "torch.nn.utils.clip_grad")
LISTS = ("torch.nn.Sequential", "torch.nn.ModuleList")
OWNERS = 24  # classes that are looked at
ASKED = {"train", "eval", "to", "cuda", "cpu", "parameters", "state_dict", "zero_grad"}


def cut_layers(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact for all layers that one place cuts off."""
    told = set()
    for fact in _each_cut(project, module):
        if fact.other not in told:
            told.add(fact.other)
            yield fact


def _each_cut(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a layer."""
    text = module.whole
    if ("optim" not in text and ".step(" not in text) or ".backward(" not in text:
        return
    given = [thing for scope in module.scopes for thing in trained_models(project, scope)]
    given = given or list(_stepped(project, module))
    trained = _owners(project, given)
    near = {id(owner.module): owner.module for owner in trained.values()} | {id(module): module}
    mentions, identities = Mentions(project, module), {thing.identity() for thing in given}
    for home in near.values():
        starts = [module, *(t.use.scope.module for t in given)] if home is not module else []
        files = [each for start in starts for each in all_reached(project, start)] or [module]
        if not any(map(_cuts, files)) or any(_freezes(project, each) for each in files):
            continue
        for owner in trained.values():
            chosen = _parts(project, owner) & identities
            for name in owner.attributes if owner.module is home else ():
                yield from _cut(project, mentions, owner, name, chosen)
    if _cuts(module) and not _freezes(project, module):
        for owner in module.classes.values():
            chosen = _parts(project, owner) & identities if id(owner) not in trained else set()
            for name in owner.attributes if chosen else ():
                yield from _cut(project, mentions, owner, name, chosen) if _is_made_here(project, owner, name) else ()
        for scope in module.scopes:
            yield from _cut_models(seen_in(project, scope), mentions)


def _stepped(project: Project, module: Module) -> Iterator[Thing]:
    """The models of the optimizers that a file is handed and steps."""
    for scope in module.scopes:
        for _, receiver, use in seen_in(project, scope).methods("step"):
            for built in project.things(receiver, use):
                yield from trained_models(project, built.use.scope) if built.is_optimizer else ()


def _owners(project: Project, given: Iterable[Thing]) -> dict[int, Class]:
    """The classes of models, and of the modules that are their attributes, where the optimizer has these, too."""
    found: dict[int, Class] = {}
    waiting = list(given)
    chosen = {thing.identity() for thing in waiting}
    while waiting:
        owner = waiting.pop().made_of
        if owner is None or id(owner) in found or len(found) >= OWNERS:
            continue
        above = [*project.bases(owner)]
        found |= {id(each): each for each in above}
        own = [bindings for each in above for bindings in each.attributes.values()]
        bound = [b for bindings in own if len(bindings) == 1 for b in bindings if b.value is not None]
        inner = [thing for b in bound if not b.index for thing in project.things(b.value, b.use)]
        inner = [thing for thing in inner if thing.identity() in chosen] or inner
        inner += [thing for each in inner if each.name in LISTS for thing in _listed(project, each)]
        waiting += [thing for thing in inner if thing.made_of is not None and is_module(project, thing)]
    return found


def _listed(project: Project, thing: Thing) -> Iterator[Thing]:
    """The modules written out in ``nn.Sequential(...)``."""
    given = thing.call.args if thing.call is not None else []
    parts = given[0].elts if len(given) == 1 and isinstance(given[0], (ast.List, ast.Tuple)) else given
    for node in parts:
        yield from project.things(node, thing.use)


@cache
def _cuts(module: Module) -> bool:
    return any(CUTTING.search(line) for line in module.text.lines)


def _freezes(project: Project, module: Module) -> bool:
    """Weights may come from elsewhere, or stay as they are, on purpose."""
    text = SCRATCH.sub("", IMPORTS.sub("", module.whole))
    if FROZEN.search(text) is None:
        return False
    loads = [pair for scope in module.scopes for pair in scope.calls if "load" in unparsed(pair[0].func)]
    others = {unparsed(call.func) for call, use in loads if not _loads_rows(project, call, use)}
    for name in {unparsed(call.func) for call, _ in loads} - others:
        text = text.replace(f"{name}(", "(")
    return FROZEN.search(text) is not None


def _loads_rows(project: Project, call: ast.Call, use: Use) -> bool:
    """What a data set loads, or what becomes one; a function of the project is looked at where it is defined."""
    if use.scope.owner is not None and "__getitem__" in use.scope.owner.methods:
        return True
    dotted = project.dotted(call.func, use)
    if DATA.match(dotted) or (isinstance(call.func, ast.Name) and project.callee(call, use) is not None):
        return True
    if dotted == "torch.load" and _fills_rows(use):
        return True
    if dotted != "torch.load" or isinstance(use.scope.node, ast.Module):
        return dotted == "torch.load" and ROWS.search(unparsed(use.statement)) is not None
    text, sites = unparsed(use.scope.node), project.calls_of(use.scope)
    taken = bool(sites) and all(ROWS.search(unparsed(place.statement)) for _, place in sites)
    return WEIGHTS.search(text) is None and (taken or ROWS.search(text) is not None)


def _fills_rows(use: Use) -> bool:
    """``d = torch.load(path)``, of which parts go into data sets or are asked for their sizes, and nothing else is done."""
    node, index = use.statement, index_of(use.scope.module)
    target = node.targets[0] if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    plain = all(isinstance(n, ast.Name) and len(use.scope.bindings.get(n.id, ())) == 1 for n in names)
    found = [read for n in names if plain for read in index.reads.get(getattr(n, "id", ""), ())]
    place = use.scope.node
    reads = [each for each in found if isinstance(place, ast.Module) or lies_in(each, place)]
    return bool(reads) and all(_is_rows(index, each) for each in reads)


def _is_rows(index: Index, node: ast.AST) -> bool:
    """A part of what a data set is made of, or something of which the size is asked."""
    while not isinstance(node, ast.stmt):
        node = index.above[id(node)]
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return True
        if isinstance(node, ast.Call) and ROWS.search(f"{unparsed(node.func)}("):
            return True
    return False


def _cut_models(seen: Seen, mentions: Mentions) -> Iterator[SourceFact]:
    """A model that an optimizer steps, and of which only detached results go anywhere."""
    stepped = {unparsed(receiver) for _, receiver, _ in seen.methods("step")}
    for name, thing, use in seen.optimizers():
        model = model_of(thing)
        binding = mentions.binding(model, thing.use) if isinstance(model, ast.Name) and name in stepped else None
        reads = mentions.reads(model, binding) if model is not None and binding is not None else None
        calls = [
            parent
            for read in reads or ()
            if isinstance(parent := mentions.parent(read), ast.Call) and parent.func is read
        ]
        asked = {_asked(seen, mentions, read, use) for read in reads or () if mentions.parent(read) not in calls}
        if not calls or not asked <= ASKED or not _back(seen, use):
            continue
        cuts = [_result_cut(seen, mentions, call) for call in calls]
        plain = [cut for cut in cuts if isinstance(cut, ast.Attribute)]
        if plain and all(cut is not None for cut in cuts):
            yield SourceFact(
                kind="cut layer", name=name_of(model), text=unparsed(plain[0])[:60],
                where=seen.module.where(use.statement, seen.scope), other=seen.module.where(plain[0], seen.scope),
            )  # fmt: skip


def _asked(seen: Seen, mentions: Mentions, read: ast.expr, use: Use) -> str:
    """The method that is called on a model; nothing for parameters that go anywhere but into an optimizer or a clip."""
    asked = mentions.asked(read)
    taker = mentions.parent(mentions.parent(mentions.parent(read))) if asked == "parameters" else None
    taken = isinstance(taker, ast.Call) and seen.project.dotted(taker.func, use).startswith(TAKES)
    return asked if asked != "parameters" or taken else ""


def name_of(node: ast.expr | None) -> str:
    """How the source spells it."""
    return unparsed(node) if node is not None else ""


def _back(seen: Seen, built: Use) -> bool:
    return any(built.order < use.order for _, _, use in seen.methods("backward"))


def _result_cut(seen: Seen, mentions: Mentions, call: ast.Call) -> ast.AST | None:
    """What cuts the result of a call; the call itself where it only becomes numbers."""
    use = next((u for c, u in seen.scope.calls if c is call), None)
    if use is None:
        return None
    if mentions.asked(call) == "detach":
        return mentions.parent(call)
    if seen.without_grad(use) or (isinstance(use.statement, ast.Expr) and CUT_OFF.search(unparsed(use.statement))):
        return call
    found = _name_cut(seen.project, mentions, seen.scope, use, call)
    return found[1] if found is not None else None


def _is_made_here(project: Project, owner: Class, name: str) -> bool:
    """``self.actor = nn.Sequential(...).to(device)``, and not a model that the object was handed."""
    made = owner.attributes[name][0]
    things = project.things(made.value, made.use) if isinstance(made.value, ast.Call) else ()
    return isinstance(made.value, ast.Call) and len(things) == 1 and things[0].call is plain_call(made.value)


def _parts(project: Project, owner: Class) -> set[str]:
    """What the attributes of a class are."""
    found = [b for bindings in owner.attributes.values() for b in bindings[:1]]
    return {thing.identity() for b in found for thing in project.things(b.value, b.use) if thing.call is not None}


def _cut(
    project: Project, mentions: Mentions, owner: Class, name: str, chosen: Collection[str]
) -> Iterator[SourceFact]:
    """A layer of a model; where an optimizer was given some parts of that, one of these."""
    bindings = owner.attributes[name]
    things = project.things(bindings[0].value, bindings[0].use) if len(bindings) == 1 else ()
    if len(things) != 1 or things[0].call is None or not is_module(project, things[0]):
        return
    if chosen and things[0].identity() not in chosen:
        return
    node = ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())
    reads = mentions.reads(node, bindings[0]) or []
    reads = [each for each in reads if not (chosen and _is_taken(project, mentions, each))]
    cuts = [_detached(project, mentions, owner, read, things[0]) for read in reads]
    if cuts and all(cut is not None for cut in cuts):
        scope, cut = cuts[0]  # type: ignore[misc]
        yield SourceFact(
            kind="cut layer", name=f"self.{name}", text=unparsed(cut)[:60],
            where=bindings[0].use.scope.module.where(bindings[0].use.statement, bindings[0].use.scope),
            other=scope.module.where(cut, scope),
        )  # fmt: skip


def _is_taken(project: Project, mentions: Mentions, read: ast.expr) -> bool:
    """``model.trunk.parameters()`` on its way into an optimizer or a clip, or ``model.trunk.train()``."""
    node: ast.AST = read if mentions.asked(read) == "parameters" else ast.Pass()
    if mentions.asked(read) in ASKED - {"parameters"}:
        return True
    while not isinstance(node, ast.stmt):
        node = mentions.parent(node)
        places = (
            (u for s in mentions.module.scopes for c, u in s.calls if c is node) if isinstance(node, ast.Call) else ()
        )
        if any(project.dotted(node.func, use).startswith(TAKES) for use in places):  # type: ignore[attr-defined]
            return True
    return False


def _detached(
    project: Project, mentions: Mentions, owner: Class, read: ast.expr, thing: Thing
) -> tuple[Scope, ast.AST] | None:
    """Where the result of a call of the layer is detached; None if it is not, or it is no call."""
    call = mentions.parent(read)
    scope = _method_of(project, owner, call)
    use = next((u for c, u in scope.calls if c is call), None) if scope is not None else None
    if scope is None or use is None or not isinstance(call, ast.Call) or call.func is not read:
        return None
    above = mentions.parent(call)
    if mentions.asked(call) == "detach" or (isinstance(above, ast.Attribute) and above.attr == "data"):
        return scope, above
    if (found := _cut_above(project, mentions, scope, call, use)) is not None:
        return scope, found
    head = _switched_off(seen_in(project, scope), use) or _called_off(project, scope)
    if head is not None and not ON_PURPOSE.search(unparsed(read)):
        return scope, head
    forward = project.method(thing.made_of, "forward") if thing.made_of is not None else None
    if forward is not None:
        return _returns_cut(project, forward)
    return _name_cut(project, mentions, scope, use, call)


def _cut_above(project: Project, mentions: Mentions, scope: Scope, node: ast.AST, use: Use) -> ast.AST | None:
    """What cuts an expression off in the statement that it is a part of: ``self.smooth(self.net(x))`` under no_grad."""
    while not isinstance(node, ast.stmt):
        node = mentions.parent(node)
        function = project.callee(node, use) if isinstance(node, ast.Call) else None
        off = function is not None and function.marked_without_grad is not None and function is not scope
        if off and function is not None and not ON_PURPOSE.search(f"{scope.name} {function.name}"):
            return function.marked_without_grad
    return None


def _switched_off(seen: Seen, use: Use) -> ast.expr | None:
    """``torch.no_grad()`` around a call in the forward, or above a method that the forward calls."""
    if not seen.without_grad(use) or ON_PURPOSE.search(seen.scope.name):
        return None
    line = use.statement.lineno
    withs = [u.statement for u in seen.scope.statements if isinstance(u.statement, ast.With)]
    heads = [i.context_expr for w in withs if w.lineno <= line <= (w.end_lineno or 0) for i in w.items]
    heads += [] if isinstance(seen.scope.node, ast.Module) else seen.scope.node.decorator_list
    return next(head for head in heads if re.search(r"no_grad|inference_mode", unparsed(head)))


def _called_off(project: Project, method: Scope) -> ast.expr | None:
    """``torch.no_grad()`` around all calls of a method."""
    name = method.name.rpartition(".")[2]
    if name == "forward" or ON_PURPOSE.search(name):
        return None
    sites = project.calls_of(method)
    known = {id(call) for call, _ in sites}
    heads = [_switched_off(seen_in(project, use.scope), use) for _, use in sites]
    unknown = any(id(call) not in known for call, _ in project.calls.of_method(name))
    return heads[0] if heads and None not in heads and not unknown else None


def _method_of(project: Project, owner: Class, call: ast.AST) -> Scope | None:
    """The forward, or a method that the forward, or one that is learned from, calls, in which something is called."""
    methods = {name: scope for each in [*project.bases(owner)][::-1] for name, scope in each.methods.items()}
    forward = methods.get("forward")
    text = unparsed(forward.node) if forward is not None else ""
    found = [(name, scope) for name, scope in methods.items() if any(c is call for c, _ in scope.calls)]
    own = next((scope for name, scope in found if name == "forward" or f"self.{name}(" in text), None)
    return own or next(
        (
            s
            for name, s in found
            if _is_learned_from(project, owner, name) or returns_learned(seen_in(project, s), call)
        ),
        None,
    )


def _is_learned_from(project: Project, owner: Class, name: str) -> bool:
    """What a method that calls it returns goes backward somewhere."""
    near = [m for each in project.bases(owner) for m in each.methods.values() if f"self.{name}(" in unparsed(m.node)]
    sites = [pair for method in near for pair in project.calls_of(method) if pair[1].scope.owner is not owner]
    return any(is_learned_from(seen_in(project, use.scope), use, call) for call, use in sites)


def _returns_cut(project: Project, forward: Scope) -> tuple[Scope, ast.AST] | None:
    """A forward whose every result is detached."""
    found = [made for value, use in forward.returns for made in project.made(value, use) or (None,)]
    cut = [made.node for made in found if made is not None and made.by == "detach"]
    return (forward, cut[0]) if cut and len(cut) == len(found) else None


def _name_cut(
    project: Project, mentions: Mentions, scope: Scope, use: Use, call: ast.Call
) -> tuple[Scope, ast.AST] | None:
    """``h = self.body(x)``, and nothing but ``h.detach()``, or a function under no_grad, after it."""
    node = use.statement
    target = node.targets[0] if isinstance(node, ast.Assign) and node.value is call else None
    if not isinstance(target, ast.Name) or len(scope.bindings.get(target.id, ())) != 1:
        return None
    reads = mentions.reads(target, scope.bindings[target.id][0]) or []
    cuts = [
        mentions.parent(read) if mentions.asked(read) == "detach" else _cut_above(project, mentions, scope, read, use)
        for read in reads
    ]
    cut = [each for each in cuts if each is not None]
    return (scope, cut[0]) if cut and len(cut) == len(reads) else None
