"""Modules that a loss goes through, and that no optimizer can have been given: every mention of them is seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument
from flatline.readers.source._mentions import Mentions
from flatline.readers.source._nodes import names_in, unparsed
from flatline.readers.source._own_weights import holds_weights
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Module, Scope, Use, plain_call
from flatline.readers.source._seen import CUT_OFF, LAYERS, Seen, is_module, model_of, seen_in
from flatline.readers.source._things import Thing, builds_optimizer

HARMLESS = frozenset({"train", "to", "cuda", "cpu", "float", "zero_grad", "state_dict"})
HELD = re.compile(r"requires_grad|no_grad|detach|load_state_dict|torch\.load|pretrained|\.eval\(")
LOADED = re.compile(r"requires_grad|load_state_dict|torch\.load|pretrained|\bweights\s*=")
WITHOUT = re.compile(r"(elementwise_)?affine=False")
GIVEN_BACK = re.compile(  # to the original, or to what steps it
    r"\.grad\b|load_state_dict|[a-z]_\(|(?<!utils)\.data\b|add_param_group|param_groups|functional_call|setattr|to_parameters|\bhigher\b|\.func\b|swa_utils"
)
ASKED = re.compile(r"\b(vars|getattr|setattr|locals|globals)\(|__dict__|\.children\(|\.modules\(|\.apply\(")


def orphans(project: Project, module: Module) -> Iterator[SourceFact]:
    """Modules that train as far as the loss goes, and no further."""
    text = module.whole
    if "optim" not in text or ".backward(" not in text or ASKED.search(text):
        return
    modules = _Modules(project, module)
    if "deepcopy" in text and GIVEN_BACK.search(text) is None:
        yield from _Copies(project, module).trained()
    flows = [flow for scope in module.scopes for flow in _flows(seen_in(project, scope))]
    for flow in flows:
        scope, told = flow.seen.scope, set[str]()
        for call, use in scope.calls:
            if flow.reaches(use):
                yield from modules.left_out(call, use, told)
            found = modules.orphan(call.func, use)
            name = unparsed(call.func)
            if found is not None and name not in told and flow.reaches(use):
                if found.copied is not None and not _left_behind(flow.seen, found):
                    continue
                told.add(name)
                yield SourceFact(
                    kind="orphan", name=name, text="deepcopy" if found.copied is not None else "",
                    where=module.where(found.binding.use.statement, found.binding.use.scope), other=module.where(call, scope),
                )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Found:
    """A module whose mentions are all harmless."""

    binding: Binding
    copied: ast.expr | None  # what it is a deepcopy of


class _Modules:
    """The modules of a file that nothing but a call is seen of."""

    def __init__(self, project: Project, module: Module) -> None:
        self.project, self.mentions = project, Mentions(project, module)
        self.module_lines = module.text.lines

    def orphan(self, node: ast.expr, use: Use) -> _Found | None:
        """The module behind a name or an attribute of self, if nothing but calls of it is seen."""
        node, use, taker = self._passed(node, use)
        binding = self.mentions.binding(node, use)
        if binding is None or not isinstance(binding.value, ast.Call) or "requires_grad_(" in unparsed(binding.value):
            return None
        copied = self._copied(binding) if not binding.index else None
        things = self.project.things(binding.value, binding.use, 0, binding.index)
        if len(things) != 1 or not (copied is not None or self._learns(things[0])):
            return None
        here = plain_call(binding.value)
        if copied is None and things[0].call is not here and id(here) not in things[0].via:
            return None  # it was handed over, and whoever made it may have given it to anything
        if not self._comes_alone(binding.value, binding.use, binding.index):
            return None
        return _Found(binding, copied) if self.mentions.only(node, binding, HARMLESS, taker) else None

    def _comes_alone(self, call: ast.Call, use: Use, index: tuple[int, ...]) -> bool:
        """The function that made it gave it to nothing, either."""
        function = self.project.callee(call, use)
        for value, place in function.returns if function is not None and function.name[-7:] != "forward" else ():
            part = (
                value.elts[index[0]] if isinstance(value, ast.Tuple) and index and index[0] < len(value.elts) else value
            )
            binding = self.mentions.binding(part, place) if isinstance(part, ast.Name) else None
            if isinstance(part, ast.Name) and (binding is None or not self.mentions.only(part, binding, HARMLESS)):
                return False
            if not isinstance(part, (ast.Name, ast.Call)):
                return False
        return True

    def _passed(self, node: ast.expr, use: Use) -> tuple[ast.expr, Use, ast.Call | None]:
        """Of a parameter that is only called, what the one call of its function gives for it."""
        if not isinstance(node, ast.Name) or node.id not in use.scope.params:
            return node, use, None
        bindings, sites = use.scope.bindings[node.id], self.project.calls_of(use.scope)
        near = len(sites) == 1 and sites[0][1].scope.module is use.scope.module
        alone = near and len(bindings) == 1 and self.mentions.only(node, bindings[0], HARMLESS)
        given = argument(sites[0][0], use.scope, node.id) if alone else None
        return (given, sites[0][1], sites[0][0]) if isinstance(given, ast.Name) else (node, use, None)

    def left_out(self, call: ast.Call, use: Use, told: set[str]) -> Iterator[SourceFact]:
        """The last layers of a model of which an optimizer was given other parts."""
        binding = self.mentions.binding(call.func, use)
        things = self.project.things(call.func, use) if binding is not None else ()
        owner = things[0].made_of if len(things) == 1 and things[0].call is not None else None
        forward = owner.methods.get("forward") if owner is not None else None
        if binding is None or owner is None or forward is None or binding.index or not isinstance(call.func, ast.Name):
            return
        given = [self._part(read) for read in self.mentions.reads(call.func, binding) or ()]
        parts = {part for part in given if part}
        if not parts or None in given or LOADED.search("\n".join(self.module_lines)):
            return
        for name in _last_layers(forward) - parts - told:
            held = owner.attributes.get(name, [])
            made = self.project.things(held[0].value, held[0].use) if len(held) == 1 else ()
            node = ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())
            if len(made) == 1 and self._learns(made[0]) and self.mentions.only(node, held[0], frozenset()):
                told.add(name)
                yield SourceFact(
                    kind="orphan", name=f"{unparsed(call.func)}.{name}",
                    where=binding.use.scope.module.where(held[0].use.statement, held[0].use.scope),
                    other=binding.use.scope.module.where(call, use.scope),
                )  # fmt: skip

    def _part(self, read: ast.expr) -> str | None:
        """``features`` in ``net.features.parameters()``; nothing for what is harmless, None for anything else."""
        parent = self.mentions.parent(read)
        if isinstance(parent, ast.Call) and parent.func is read:
            return ""
        if not isinstance(parent, ast.Attribute):
            return "" if isinstance(parent, ast.Return) else None
        if self.mentions.asked(read) in HARMLESS | {"eval"}:
            return ""
        return parent.attr if self.mentions.asked(parent) == "parameters" else None

    def _copied(self, binding: Binding) -> ast.expr | None:
        value = binding.value
        deep = isinstance(value, ast.Call) and self.project.dotted(value.func, binding.use) == "copy.deepcopy"
        return value.args[0] if deep and isinstance(value, ast.Call) and len(value.args) == 1 else None

    def _learns(self, thing: Thing) -> bool:
        """Its source makes layers of torch, and neither freezes nor loads them."""
        if thing.call is None or not is_module(self.project, thing):
            return False
        text = unparsed(_source(thing) or thing.call)
        layers = [name for name in re.findall(r"\b[A-Z]\w+(?=\()", text) if name != "Sequential"]
        some = any(LAYERS.fullmatch(f"torch.nn.{name}") for name in layers)
        some = some or (thing.made_of is not None and holds_weights(self.project, thing.made_of))
        return some and HELD.search(text) is None and WITHOUT.search(text) is None


def _source(thing: Thing) -> ast.AST | None:
    """Where the layers of a module are made: its class, or the function that fills ``nn.Sequential(*layers)``."""
    if thing.made_of is not None:
        return thing.made_of.node
    starred = thing.call is not None and any(isinstance(each, ast.Starred) for each in thing.call.args)
    inside = not isinstance(thing.use.scope.node, ast.Module)
    return thing.use.scope.node if starred and inside and len(thing.use.scope.returns) == 1 else thing.call


def _last_layers(forward: Scope) -> set[str]:
    """Attributes of self whose call is what a forward returns."""
    found = set()
    for use in forward.statements:
        value = use.statement.value if isinstance(use.statement, ast.Return) else None
        func = value.func if isinstance(value, ast.Call) else None
        if isinstance(func, ast.Attribute) and unparsed(func.value) == "self":
            found.add(func.attr)
    return found


class _Flow:
    """What goes into a backward, with its graph."""

    def __init__(self, seen: Seen, ends: Sequence[tuple[ast.expr, Use]] | None = None) -> None:
        self.seen = seen
        self.names: set[str] = set()
        self.sources: set[int] = set()  # statements that gradients come back to
        waiting = [(receiver, use) for _, receiver, use in seen.methods("backward")] if ends is None else [*ends]
        while waiting:
            node, use = waiting.pop()
            if id(use.statement) in self.sources and not isinstance(node, ast.Name):
                continue
            if CUT_OFF.search(unparsed(node)) or seen.without_grad(use):
                continue
            self.sources.add(id(use.statement))
            for name in names_in(node) - self.names:
                self.names.add(name)
                waiting += seen.values_of(name)

    def reaches(self, use: Use) -> bool:
        """Whether the result of a statement is among them."""
        return id(use.statement) in self.sources


def _flows(seen: Seen) -> Iterator[_Flow]:
    """What goes into the backward of a function that trains, there and in the functions that computed it."""
    if not any(True for _ in seen.methods("backward")) or not any(True for _ in seen.methods("step")):
        return
    waiting, done = [_Flow(seen)], {id(seen.scope)}
    while waiting:
        flow = waiting.pop()
        yield flow
        for call, use in flow.seen.scope.calls:
            function = seen.project.callee(call, use) if flow.reaches(use) else None
            plain = function is not None and function.module is seen.module and not function.name.endswith(".forward")
            if function is not None and plain and id(function) not in done and function.marked_without_grad is None:
                done.add(id(function))
                ends = [(value, place) for value, place in function.returns if value is not None]
                waiting.append(_Flow(seen_in(seen.project, function), ends))


class _Copies:
    """Models that are deep copies, and what the optimizers of the file hold."""

    def __init__(self, project: Project, module: Module) -> None:
        self.project, self.module = project, module
        calls = [(c, u) for scope in module.scopes for c, u in scope.calls]
        self.made = {id(c): (c, u) for c, u in calls if project.dotted(c.func, u) == "copy.deepcopy"}
        built = [Thing("", u, c) for c, u in calls if builds_optimizer(project.dotted(c.func, u))]
        held = [project.things(model_of(thing), thing.use) for thing in built]
        self.known = bool(held) and all(held) and not any(self.copied(t) for things in held for t in things)

    def copied(self, thing: Thing) -> int | None:
        """The deepcopy that it came out of."""
        return next((place for place in thing.via if place in self.made), None)

    def trained(self) -> Iterator[SourceFact]:
        """A copy from another function, which trains while the optimizer steps what it is a copy of."""
        for scope in self.module.scopes if self.made and self.known else ():
            seen = seen_in(self.project, scope)
            origin = self._stepped(seen)
            flow = _Flow(seen) if origin is not None else None
            ran = [(c, t) for c, u in scope.calls if flow and flow.reaches(u) for t in self.project.things(c.func, u)]
            ran = [(call, thing) for call, thing in ran if origin is not None and thing.call is origin.call]
            for call, thing in ran if all(self._is_copy(t, origin) for _, t in ran) else ():
                source, use = self.made[self.copied(thing) or 0]
                if use.scope is not scope:  # there it is judged by its mentions
                    yield SourceFact(
                        kind="orphan", name=unparsed(call.func), text="deepcopy",
                        where=self.module.where(source, use.scope), other=self.module.where(call, scope),
                    )  # fmt: skip
                    break

    def _stepped(self, seen: Seen) -> Thing | None:
        """The one model whose optimizer is stepped after a backward, as this function sees it."""
        found = [seen.project.things(receiver, use) for _, receiver, use in seen.methods("step")]
        names = {t.identity() for things in found for t in things}
        if not all(found) or len(names) != 1 or not any(True for _ in seen.methods("backward")):
            return None
        optimizer = found[0][0]
        model = model_of(optimizer) if optimizer.is_optimizer else None
        things = seen.project.things(model, optimizer.use)
        return replace(things[0], via=(*optimizer.via, *things[0].via)) if len(things) == 1 else None

    def _is_copy(self, thing: Thing, origin: Thing | None) -> bool:
        without = tuple(place for place in thing.via if place not in self.made)
        return self.copied(thing) is not None and origin is not None and without == origin.via


def _left_behind(seen: Seen, found: _Found) -> bool:
    """An optimizer of the file holds what was copied, which is not called here."""
    copied = found.copied
    assert copied is not None
    text = unparsed(copied)
    if any(unparsed(call.func) == text for call, _ in seen.scope.calls):
        return False
    whole = {t.identity() for t in seen.project.things(copied, found.binding.use)}
    return bool(whole) and any(_held(seen.project, scope, text, found) & whole for scope in seen.module.scopes)


def _held(project: Project, scope: Scope, text: str, found: _Found) -> set[str]:
    """The models that optimizers built before the copy were given."""
    held: set[str] = set()
    for call, use in scope.calls:
        if builds_optimizer(project.dotted(call.func, use)) and use.before(found.binding.use):
            model = model_of(Thing("", use, call))
            held |= {t.identity() for t in project.things(model, use)} if model is not None else set()
    return held
