"""Which models the parameters of an optimizer come from, behind names, lists, groups and filters."""

from __future__ import annotations

import ast

from flatline.readers.source._arguments import argument_at
from flatline.readers.source._nodes import names_in, unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use
from flatline.readers.source._things import Thing
from flatline.readers.source._values import Source, origins

NESTED = 6  # groups in lists behind names
LISTS = ("list", "tuple", "iter", "set", "sorted")
GROWS = ("append", "extend", "insert")
ASKED = ("parameters", "named_parameters")


def models_of(project: Project, optimizer: ast.Call, use: Use) -> list[Source]:
    """``model`` of ``Adam([{"params": model.head.parameters()}])``, once a mention; nothing if a part is unknown."""
    given = argument_at(optimizer, "params", 0)
    return _models(project, given, use, 0) if given is not None else []


def whole_of(project: Project, parts: list[Source]) -> Thing | None:
    """The one model that all of these are, or are parts of."""
    each = [_around(project, part) for part in parts]
    shared = [thing for thing in each[0] if all(any(_same(thing, t) for t in other) for other in each)] if each else []
    return shared[0] if shared else None


def _around(project: Project, part: Source) -> list[Thing]:
    """What a part is, and what it is a part of: the smaller ones first."""
    node, found = part.node, list[Thing]()
    while True:
        things = project.things(node, part.use)
        found += things if len(things) == 1 and things[0].call is not None else ()
        if not isinstance(node, ast.Attribute):
            return found
        node = node.value


def _same(one: Thing, other: Thing) -> bool:
    return one.identity() == other.identity()


def _models(project: Project, node: ast.expr, use: Use, depth: int) -> list[Source]:
    if depth > NESTED:
        return []
    if isinstance(node, (ast.Name, ast.Attribute)):
        found = origins(project, node, use)
        parts = [(s.node, s.use) for s in found if s.node is not node] if not _is_grown(node, use) else []
        return _all(project, parts, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _all(project, [(node.left, use), (node.right, use)], depth)
    if isinstance(node, ast.List) and not node.elts:
        return _filled(node, use)
    if isinstance(node, (ast.List, ast.Tuple)):
        return _all(project, [(e.value if isinstance(e, ast.Starred) else e, use) for e in node.elts], depth)
    if isinstance(node, ast.Dict):
        named = [v for k, v in zip(node.keys, node.values, strict=True) if _is_params(k)]
        return _all(project, [(each, use) for each in named], depth)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        drawn = _drawn(node)
        return _models(project, drawn, use, depth + 1) if drawn is not None else []
    return _called(project, node, use, depth) if isinstance(node, ast.Call) else []


def _all(project: Project, parts: list[tuple[ast.expr, Use]], depth: int) -> list[Source]:
    each = [_models(project, part, place, depth + 1) for part, place in parts]
    return [source for inner in each for source in inner] if all(each) else []


def _called(project: Project, node: ast.Call, use: Use, depth: int) -> list[Source]:
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr in ASKED and not node.args:
        return [Source(func.value, use)]
    name = unparsed(func)
    if name == "filter" and len(node.args) == 2:
        return _models(project, node.args[1], use, depth + 1)
    if name == "dict" and not node.args:
        named = [(k.value, use) for k in node.keywords if k.arg == "params"]
        return _all(project, named, depth)
    if name in LISTS or name.endswith(("chain", "chain.from_iterable")):
        return _all(project, [(each, use) for each in node.args], depth)
    return _all(project, [(s.node, s.use) for s in origins(project, node, use) if s.node is not node], depth)


def _filled(node: ast.List, use: Use) -> list[Source]:
    """``model`` of ``for name, p in model.named_parameters(): body.append(p)``, where nothing else goes into the list."""
    names = {name for name, bound in use.scope.bindings.items() if len(bound) == 1 and bound[0].value is node}
    found: list[Source] = []
    for call, place in use.scope.calls:
        func = call.func
        receivers = names_in(func.value) if isinstance(func, ast.Attribute) and func.attr in GROWS else frozenset()
        if not names & receivers:
            continue
        loops = [place.scope.loops[block] for block, _ in place.path if block in place.scope.loops]
        drawn = _drawn_in(loops[-1], call) if loops else None
        if drawn is None:
            return []
        found.append(Source(drawn, place))
    return found


def _drawn_in(loop: ast.For, call: ast.Call) -> ast.expr | None:
    """``model``, of whose parameters the loop goes through, where each is appended as it is."""
    head, target = loop.iter, loop.target
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    asked = head.func if isinstance(head, ast.Call) and not head.args else None
    own = isinstance(asked, ast.Attribute) and asked.attr in ASKED and len(call.args) == 1
    same = own and unparsed(call.args[0]) == unparsed(parts[-1])
    return asked.value if same and isinstance(asked, ast.Attribute) else None


def _drawn(node: ast.ListComp | ast.GeneratorExp) -> ast.expr | None:
    """``net.parameters()`` of ``[p for p in net.parameters() if p.requires_grad]``."""
    head, elt = node.generators[0], node.elt
    parts = head.target.elts if isinstance(head.target, ast.Tuple) else [head.target]
    plain = len(node.generators) == 1 and isinstance(elt, ast.Name) and isinstance(parts[-1], ast.Name)
    return head.iter if plain and isinstance(elt, ast.Name) and elt.id == parts[-1].id else None  # type: ignore[attr-defined]


def _is_params(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value == "params"


def _is_grown(node: ast.expr, use: Use) -> bool:
    """``params.append(...)`` is in the same function."""
    text = unparsed(node)
    calls = (c.func for c, _ in use.scope.calls if isinstance(c.func, ast.Attribute))
    return any(f.attr in GROWS and unparsed(f.value) == text for f in calls)
