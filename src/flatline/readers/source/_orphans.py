"""Modules that a loss goes through, and that no optimizer can have been given: every mention of them is seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from flatline.events import SourceFact
from flatline.readers.source._facts import CUT_OFF, LAYERS, Seen, is_module, model_of, names_in, seen_in
from flatline.readers.source._mentions import Mentions
from flatline.readers.source._resolve import Project, Thing
from flatline.readers.source._scopes import Binding, Module, Scope, Use

HARMLESS = frozenset({"train", "to", "cuda", "cpu", "float", "zero_grad", "state_dict"})
HELD = re.compile(r"requires_grad|no_grad|detach|load_state_dict|torch\.load|pretrained|\.eval\(")
LOADED = re.compile(r"requires_grad|load_state_dict|torch\.load|pretrained|\bweights\s*=")
WITHOUT = re.compile(r"(elementwise_)?affine=False")
ASKED = re.compile(r"\b(vars|getattr|setattr|locals|globals)\(|__dict__|\.children\(|\.modules\(|\.apply\(")


def orphans(project: Project, module: Module) -> Iterator[SourceFact]:
    """Modules that train as far as the loss goes, and no further."""
    text = "\n".join(module.text.lines)
    if "optim" not in text or ".backward(" not in text or ASKED.search(text):
        return
    modules = _Modules(project, module)
    for scope in module.scopes:
        seen = seen_in(project, scope)
        trains = any(True for _ in seen.methods("backward")) and any(True for _ in seen.methods("step"))
        flow = _Flow(seen) if trains else None
        told = set[str]()
        for call, use in scope.calls if flow is not None else ():
            if flow is not None and flow.reaches(use):
                yield from modules.left_out(call, use, told)
            found = modules.orphan(call.func, use)
            name = ast.unparse(call.func)
            if found is not None and name not in told and flow is not None and flow.reaches(use):
                if found.copied is not None and not _left_behind(seen, found):
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
        binding = self.mentions.binding(node, use)
        if binding is None or not isinstance(binding.value, ast.Call) or binding.index:
            return None
        copied = self._copied(binding)
        things = self.project.things(binding.value, binding.use)
        if len(things) != 1 or not (copied is not None or self._learns(things[0])):
            return None
        return _Found(binding, copied) if self.mentions.only(node, binding, HARMLESS) else None

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
                    kind="orphan", name=f"{ast.unparse(call.func)}.{name}",
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
        text = ast.unparse(thing.made_of.node if thing.made_of is not None else thing.call)
        layers = [name for name in re.findall(r"\b[A-Z]\w+(?=\()", text) if name != "Sequential"]
        some = any(LAYERS.fullmatch(f"torch.nn.{name}") for name in layers)
        return some and HELD.search(text) is None and WITHOUT.search(text) is None


def _last_layers(forward: Scope) -> set[str]:
    """Attributes of self whose call is what a forward returns."""
    found = set()
    for use in forward.statements:
        value = use.statement.value if isinstance(use.statement, ast.Return) else None
        func = value.func if isinstance(value, ast.Call) else None
        if isinstance(func, ast.Attribute) and ast.unparse(func.value) == "self":
            found.add(func.attr)
    return found


class _Flow:
    """What goes into a backward, with its graph."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.names: set[str] = set()
        self.sources: set[int] = set()  # statements that gradients come back to
        waiting = [(receiver, use) for _, receiver, use in seen.methods("backward")]
        while waiting:
            node, use = waiting.pop()
            if id(use.statement) in self.sources and not isinstance(node, ast.Name):
                continue
            if CUT_OFF.search(ast.unparse(node)) or seen.without_grad(use):
                continue
            self.sources.add(id(use.statement))
            for name in names_in(node) - self.names:
                self.names.add(name)
                waiting += seen.values_of(name)

    def reaches(self, use: Use) -> bool:
        """Whether the result of a statement is among them."""
        return id(use.statement) in self.sources


def _left_behind(seen: Seen, found: _Found) -> bool:
    """An optimizer of the file holds what was copied, which is not called here."""
    copied = found.copied
    assert copied is not None
    text = ast.unparse(copied)
    if any(ast.unparse(call.func) == text for call, _ in seen.scope.calls):
        return False
    whole = {t.identity() for t in seen.project.things(copied, found.binding.use)}
    return bool(whole) and any(_held(seen.project, scope, text, found) & whole for scope in seen.module.scopes)


def _held(project: Project, scope: Scope, text: str, found: _Found) -> set[str]:
    """The models that optimizers built before the copy were given."""
    held: set[str] = set()
    for call, use in scope.calls:
        if project.dotted(call.func, use).startswith("torch.optim.") and use.before(found.binding.use):
            model = model_of(Thing("", use, call))
            held |= {t.identity() for t in project.things(model, use)} if model is not None else set()
    return held
