"""An unfreezing that goes by the names of parameters, and meets none: read from the source when the script is over."""

from __future__ import annotations

import ast
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn

from flatline.sensors.sources import FUNCTIONS, LOOPS, called_name, own_nodes, tree_of
from flatline.sensors.stages import unfreezes
from flatline.sensors.tree import named_modules, named_parameters

Words = tuple[str, ...]
ANY = "{}"  # a part of a name that the source does not tell


class Unmatched(NamedTuple):
    """The statement that unfreezes, and what the names were asked for."""

    file: str
    line: int
    condition: str
    words: Words


class Spellings:
    """The names of the parameters of every model, as it and every part of it tell them; kept when the model is gone."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.parts: dict[str, None] = {}
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def update(self, models: Iterable[nn.Module]) -> None:
        """Those of models that were not known."""
        for model in models:
            if model not in self._known:
                self._known.add(model)
                self.parts.update((name.partition(".")[0], None) for name, _ in named_parameters(model))
                self.names.update(name for _, part in named_modules(model) for name, _ in named_parameters(part))


def unmatched_unfreezing(file: str, names: set[str]) -> Unmatched | None:
    """The first loop over parameters, run within a training loop, that unfreezes by names that no model has."""
    tree = tree_of(file)
    if tree is None:
        return None
    for scope in (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *FUNCTIONS))):
        for loop in own_nodes(scope):
            if isinstance(loop, ast.For) and _by_name(loop) and _in_training(scope, loop, tree):
                known = _known(scope, tree, file)
                if (found := _unmatched(loop, _asked(scope, loop, tree, file) or names, known)) is not None:
                    return found._replace(file=file)
    return None


def _by_name(loop: ast.For) -> bool:
    """``for name, p in model.named_parameters():``."""
    call, target = loop.iter, loop.target
    named = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "named_parameters"
    return named and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name)


def _asked(scope: ast.AST, loop: ast.For, tree: ast.AST, file: str) -> set[str]:
    """The names of the models whose parameters the loop goes through, where all of them are variables of the script's."""
    script = _script(file)
    receiver = ast.unparse(loop.iter.func.value)  # type: ignore[attr-defined]
    models = [receiver]
    if isinstance(scope, FUNCTIONS) and receiver in (names := [each.arg for each in scope.args.args]):
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and called_name(n) == scope.name]
        given = [_given(call, receiver, names.index(receiver)) for call in calls]
        models = [ast.unparse(each) if each is not None else "" for each in given]
    held = [script.get(name) for name in models]
    if not held or not all(isinstance(each, nn.Module) for each in held):
        return set()
    return {name for model in held for name, _ in named_parameters(model)}


def _script(file: str) -> dict[str, Any]:
    """The variables of the script itself."""
    main = sys.modules.get("__main__")
    same = os.path.abspath(getattr(main, "__file__", "") or "") == os.path.abspath(file)
    return dict(vars(main)) if same and main is not None else {}


def _in_training(scope: ast.AST, loop: ast.For, tree: ast.AST) -> bool:
    """In a loop itself, or in a function that is called in one."""
    name = getattr(scope, "name", None)
    around = [node for node in ast.walk(tree) if isinstance(node, LOOPS) and node is not loop]
    return any(
        inner is loop or (name is not None and isinstance(inner, ast.Call) and called_name(inner) == name)
        for outer in around
        for inner in ast.walk(outer)
    )


def _unmatched(loop: ast.For, names: set[str], known: Mapping[str, Words]) -> Unmatched | None:
    branches = [each for each in loop.body if isinstance(each, ast.If)]
    free = any(unfreezes(inner) for each in loop.body if not isinstance(each, ast.If) for inner in ast.walk(each))
    if free or any(isinstance(inner, (ast.Continue, ast.Break)) for inner in ast.walk(loop)):
        return None
    asked = [each for each in branches if any(unfreezes(inner) for inner in ast.walk(each))]
    tests = [_test(each.test, ast.unparse(loop.target.elts[0]), known) for each in asked if not each.orelse]  # type: ignore[attr-defined]
    if not tests or len(tests) != len(asked) or None in tests or any(t[1](n) for t in tests if t for n in names):
        return None
    line = next(inner.lineno for inner in ast.walk(asked[0]) if unfreezes(inner))  # type: ignore[attr-defined]
    return Unmatched("", line, ast.unparse(asked[0].test), tests[0][0] if tests[0] else ())


# --------------------------------------------------------------------------- what a name is asked


def _test(node: ast.expr, name: str, known: Mapping[str, Words]) -> tuple[Words, Callable[[str], bool]] | None:
    """The words that a name is compared with, and the comparison; None for anything else."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        parts = [_test(each, name, known) for each in node.values]
        sure = [part for part in parts if part is not None]
        if len(sure) < len(parts):
            return None
        return tuple(w for words, _ in sure for w in words), lambda each: any(ask(each) for _, ask in sure)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == name:
        words = _words(node.args[0], known) if len(node.args) == 1 else None
        if words and node.func.attr in ("startswith", "endswith"):
            before, after = ("", ".*") if node.func.attr == "startswith" else (".*", "")
            return words, lambda each: any(_meets(word, each, before, after) for word in words)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In):
        words = _words(node.left, known)
        if words and ast.unparse(node.comparators[0]) == name:
            return words, lambda each: any(_meets(word, each, ".*", ".*") for word in words)
    return _any_of(node, name, known)


def _any_of(node: ast.expr, name: str, known: Mapping[str, Words]) -> tuple[Words, Callable[[str], bool]] | None:
    """``any(word in name for word in words)``."""
    inner = node.args[0] if isinstance(node, ast.Call) and ast.unparse(node.func) == "any" and node.args else None
    if not isinstance(inner, ast.GeneratorExp) or len(inner.generators) != 1 or inner.generators[0].ifs:
        return None
    words = _words(inner.generators[0].iter, known)
    variable = ast.unparse(inner.generators[0].target)
    return _test(inner.elt, name, {**known, variable: words}) if words else None


def _meets(word: str, name: str, before: str, after: str) -> bool:
    """Whether a name may have this word in it, whatever a part of it that is not known stands for."""
    return re.fullmatch(before + re.escape(word).replace(re.escape(ANY), ".*") + after, name) is not None


def _words(node: ast.expr, known: Mapping[str, Words]) -> Words | None:
    if isinstance(node, ast.Constant):
        return (node.value,) if isinstance(node.value, str) and node.value else None
    if isinstance(node, (ast.JoinedStr, ast.BinOp, ast.Call)):
        text = _put_together(node)
        return (text,) if any(part.strip("._") for part in text.split(ANY)) else None
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return _words(node.elt, {})
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        parts = [_words(each, known) for each in node.elts]
        return tuple(w for part in parts if part for w in part) if parts and None not in parts else None
    return known.get(ast.unparse(node)) if isinstance(node, (ast.Name, ast.Attribute)) else None


def _put_together(node: ast.expr) -> str:
    """``f"layer.{i}."``, ``"layer." + str(i)``, ``"layer.%d." % i`` and the like; what is not written is ``ANY``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_put_together(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _put_together(node.left) + _put_together(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return re.sub(r"%\w", ANY, _put_together(node.left))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return re.sub(r"{[^{}]*}", ANY, _put_together(node.func.value))
    return ANY


def _known(scope: ast.AST, tree: ast.AST, file: str) -> dict[str, Words]:
    """Settings of the script's own module, and parameters that every call and default give as plain words."""
    script = _script(file)
    known = {k: words for k, v in script.items() if (words := _plain(v))} | _settings(script)
    known |= _assigned(scope, known)
    if not isinstance(scope, FUNCTIONS):
        return known
    names = [each.arg for each in scope.args.args]
    usual = dict(zip(names[::-1], scope.args.defaults[::-1], strict=False))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and called_name(n) == scope.name]
    bound = {
        ast.unparse(target) for node in own_nodes(scope) if isinstance(node, ast.Assign) for target in node.targets
    }
    for place, name in enumerate(names):
        given = [_given(call, name, place - (names[0] == "self")) or usual.get(name) for call in calls]
        told = [_words(each, known) if each is not None else None for each in given]
        if name not in bound:
            known[name] = () if None in told else tuple(w for part in told if part for w in part)
    return {name: words for name, words in known.items() if words}


def _settings(script: Mapping[str, Any]) -> dict[str, Words]:
    """``CFG.release`` and ``args.release``: what a class, or an object of one that only holds settings, has for attributes."""
    found: dict[str, Words] = {}
    for name, value in script.items():
        own = isinstance(value, type) and value.__module__ == "__main__"
        for attribute, part in dict(getattr(value, "__dict__", {})).items() if own or _holds_settings(value) else ():
            if words := _plain(part):
                found[f"{name}.{attribute}"] = words
    return found


def _holds_settings(value: Any) -> bool:
    """argparse's, types' and dataclasses' objects."""
    return type(value).__name__ in ("Namespace", "SimpleNamespace") or hasattr(type(value), "__dataclass_fields__")


def _assigned(scope: ast.AST, known: Mapping[str, Words]) -> dict[str, Words]:
    """Names that the statements of a scope bind: to words where one statement does, and that is plain, else to nothing."""
    nodes = list(own_nodes(scope))
    values: dict[str, list[ast.expr]] = {}
    for node in (each for each in nodes if isinstance(each, ast.Assign)):
        for target in node.targets:
            values.setdefault(ast.unparse(target), []).append(node.value)
    loops = [node for node in nodes if isinstance(node, ast.For)]
    through = {name: _words(n.iter, known) or () for n in loops if (name := ast.unparse(n.target)) not in values}
    again = {ast.unparse(n.target) for n in nodes if isinstance(n, (ast.AugAssign, ast.AnnAssign))} | through.keys()
    once = {name: each[0] for name, each in values.items() if len(each) == 1 and name not in again}
    told = {name: _words(value, known) for name, value in once.items()}
    kept = {name: told.get(name) or () for name in values if not isinstance(scope, ast.Module) or told.get(name)}
    return through | kept


def _given(call: ast.Call, name: str, place: int) -> ast.expr | None:
    named = [k.value for k in call.keywords if k.arg == name]
    return named[0] if named else call.args[place] if 0 <= place < len(call.args) else None


def _plain(value: Any) -> Words:
    if type(value) is str and value:
        return (value,)
    if type(value) in (list, tuple, set) and value and all(type(each) is str and each for each in value):
        return tuple(value)
    return ()
