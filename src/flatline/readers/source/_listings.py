"""Lists of samples that are made folder by folder, one for each class."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Class, Scope, Use

MIXED = re.compile(r"perm|shuffle|argsort|(?<!import )random(?!\.seed)|sample\(|sort\(")
TOUCHED = (
    r"(?<!\bself)\.(?:{0})\b(?:\.\w+\(|(?:\[[^=]*\])?(?:\.i?loc\[[^=]*\])?\s*(?:,.*)?[-+*|&]?=(?!=))"
    r"|=\s*\w+(?:\.\w+)*\.(?:{0})\s*(?:#|;|$)|(?:shuffl|perm|sample|sort)\w*\(.*\.(?:{0})\b|setattr\(.*['\"](?:{0})['\"]"
    r"|(?:^|;)\s*(?!print)[\w.]+\((?:.*[(, ])?\w+\.(?:{0})\b"
)  # a write, a call of a method, another name for it, a call that may change it
WRAPS = {"int", "torch.tensor", "torch.as_tensor", "torch.LongTensor", "float"}
ARRAYS = {"numpy.array", "numpy.asarray", "torch.tensor", "torch.as_tensor", "torch.LongTensor", "torch.from_numpy"}
CASTS = {"long", "float", "int", "astype", "type"}
STEPS = 6  # from an attribute to the list that is filled


def listed_by_class(project: Project, owner: Class) -> bool:
    """A data set that gives ``self.samples[i]``, whose labels count the classes that its list was made from."""
    method = project.method(owner, "__getitem__")
    value = method.returns[0][0] if method is not None and len(method.returns) == 1 else None
    if method is None or not isinstance(value, ast.Tuple) or len(value.elts) != 2:
        return False
    held, place = _read(project, value.elts[1], method.returns[0][1])
    if held is None or not isinstance(held.value, ast.Attribute) or not _by_index(held.slice, method):
        return False
    name = held.value.attr
    if method.own != (unparsed(held.value.value),):
        return False
    found = _begun(project.attributes(owner, name))
    mixed = MIXED.search(unparsed(owner.node)) is not None
    plain = len(found) == 1 and not mixed
    return plain and _bound(project, found[0], f"{method.own[0]}.{name}", place, 0)


def labels_in_turn(project: Project, node: ast.expr, use: Use) -> bool:
    """A list of labels that was filled class by class, or a tensor of it."""
    return _in_turn(project, node, use, "", None, 0)


def rearranged(project: Project, owner: Class) -> bool:
    """What items are taken from, as ``samples`` in ``self.samples[i]``, is written to or handed on outside of the class."""
    method = project.method(owner, "__getitem__")
    own = method.own[0] if method is not None and method.own else "self"
    inside = walk(method.node) if method is not None else ()
    read = (unparsed(n.value).split(".") for n in inside if isinstance(n, ast.Subscript))
    names = "|".join({re.escape(parts[1]) for parts in read if parts[0] == own and len(parts) > 1}) or r"\Z\A"
    end = owner.node.end_lineno or owner.node.lineno
    texts = {id(m): [*m.text.lines] for m in (*project.modules.values(), owner.module) if m is not None}
    texts[id(owner.module)][owner.node.lineno - 1 : end] = []
    changed = re.compile(TOUCHED.format(names))
    return any(changed.search(line) for lines in texts.values() for line in lines)


def _read(project: Project, node: ast.expr, use: Use) -> tuple[ast.Subscript | None, int | None]:
    """``self.samples[i]`` behind a label, and the label's place in that."""
    while isinstance(node, ast.Call) and len(node.args) >= 1 and unparsed(node.func) in WRAPS:
        node = node.args[0]
    if isinstance(node, ast.Name):
        found = use.scope.reaching(node.id, use) if node.id in use.scope.bindings else []
        value = found[0].value if len(found) == 1 else None
        if isinstance(value, ast.Subscript) and len(found[0].index) == 1:
            return value, found[0].index[0]
        return _read(project, value, found[0].use) if value is not None and not found[0].index else (None, None)
    if not isinstance(node, ast.Subscript):
        return None, None
    inner, key = node.value, node.slice
    place = key.value if isinstance(key, ast.Constant) and isinstance(key.value, int) else None
    return (inner, place) if isinstance(inner, ast.Subscript) and place is not None else (node, None)


def _begun(bindings: Sequence[Binding]) -> list[Binding]:
    """Without what an empty list grew by, where it was made."""
    grown = [b for b in bindings if isinstance(b.use.statement, ast.AugAssign)]
    begun = [b for b in bindings if b not in grown]
    empty = len(begun) == 1 and isinstance(begun[0].value, ast.List) and not begun[0].value.elts
    return begun if empty and all(b.use.scope is begun[0].use.scope for b in grown) else list(bindings)


def _by_index(node: ast.expr, method: Scope) -> bool:
    name = method.params[-1]
    return unparsed(node) == name and len(method.bindings[name]) == 1


def _in_turn(project: Project, node: ast.expr | None, use: Use, name: str, place: int | None, depth: int) -> bool:
    """A list is filled with the samples of one class after the other."""
    if node is None or depth > STEPS:
        return False
    if isinstance(node, ast.ListComp):
        label = _part(node.elt, place)
        return len(node.generators) > 1 and _counts(
            project, label, node.generators[0].target, node.generators[0].iter, use
        )
    if isinstance(node, ast.List) and not node.elts:
        return _filled(project, use.scope, name, place)
    if isinstance(node, ast.Name):
        return _by_name(project, node, use, place, depth)
    if isinstance(node, ast.Call) and node.args and project.dotted(node.func, use) in ARRAYS:
        return _in_turn(project, node.args[0], use, "", place, depth + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CASTS:
        return _in_turn(project, node.func.value, use, "", place, depth + 1)
    return isinstance(node, ast.Call) and _returned(project, node, use, None, place, depth)


def _by_name(project: Project, node: ast.Name, use: Use, place: int | None, depth: int) -> bool:
    """A list under a name, perhaps one that every call hands over."""
    found = [b for b in use.scope.bindings.get(node.id, []) if use.path or b.use.order <= use.order]
    if not found or MIXED.search(unparsed(use.scope.node).replace("shuffle=False", "")):
        return False
    begun = found[0]
    if not all(_keeps_order(project, each) for each in found[1:]):
        return False
    if begun.parameter:
        given = project.given(node.id, begun.use) if len(found) == 1 else []
        return bool(given) and all(_in_turn(project, *each, "", place, depth + 1) for each in given)
    return (not begun.index or len(found) == 1) and _bound(project, begun, node.id, place, depth)


def _keeps_order(project: Project, later: Binding) -> bool:
    """``labels += ...`` or ``labels = np.array(labels)``, and nothing of which the order is not known."""
    value = later.value
    called = isinstance(value, ast.Call) and project.callee(value, later.use) is not None
    return isinstance(later.use.statement, ast.AugAssign) or not called


def _bound(project: Project, begun: Binding, name: str, place: int | None, depth: int) -> bool:
    """What a name got, perhaps one of several that a function gave back."""
    value, part = begun.value, begun.index[0] if len(begun.index) == 1 else None
    if not begun.index:
        return _in_turn(project, value, begun.use, name, place, depth + 1)
    if part is None or not isinstance(value, ast.Call):
        return part is not None and _in_turn(project, _part(value, part), begun.use, name, place, depth + 1)
    return _returned(project, value, begun.use, part, place, depth)


def _returned(project: Project, call: ast.Call, use: Use, part: int | None, place: int | None, depth: int) -> bool:
    """What a function of the project gives back, or a part of it, was filled in it."""
    function = project.callee(call, use)
    if function is None or len(function.returns) != 1 or MIXED.search(unparsed(function.node)):
        return False
    value, inside = function.returns[0]
    return _in_turn(project, _part(value, part), inside, "", place, depth + 1)


def _part(node: ast.expr | None, place: int | None) -> ast.expr | None:
    if place is None:
        return node
    return (
        node.elts[place]
        if isinstance(node, (ast.Tuple, ast.List)) and -len(node.elts) <= place < len(node.elts)
        else None
    )


def _filled(project: Project, scope: Scope, name: str, place: int | None) -> bool:
    """``samples.append((path, label))`` in a loop over files, in a loop over classes; once, and nothing else."""
    calls = [(c, u) for c, u in scope.calls if isinstance(c.func, ast.Attribute) and unparsed(c.func.value) == name]
    added = [
        u for u in scope.statements if isinstance(u.statement, ast.AugAssign) and unparsed(u.statement.target) == name
    ]
    if len(calls) + len(added) != 1:
        return False
    if added:
        return _below(project, added[0], _each(added[0].statement.value, place), 1)  # type: ignore[attr-defined]
    (call, use), func = calls[0], calls[0][0].func
    given = call.args[0] if len(call.args) == 1 else None
    method = func.attr if isinstance(func, ast.Attribute) else ""
    if method == "extend":
        return _below(project, use, _each(given, place), 1)
    return method == "append" and given is not None and _below(project, use, _part(given, place), 2)


def _each(node: ast.expr | None, place: int | None) -> ast.expr | None:
    """The label of every element of ``[(f, k) for f in files]``, ``[k] * n`` and ``zip(files, [k] * n)``."""
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return _part(node.elt, place)
    if isinstance(node, ast.Call) and unparsed(node.func) == "list" and len(node.args) == 1:
        return _each(node.args[0], place)
    if isinstance(node, ast.Call) and unparsed(node.func) == "zip" and place is not None:
        return _each(_part(ast.Tuple(node.args), place), None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        lists = [side for side in (node.left, node.right) if isinstance(side, ast.List) and len(side.elts) == 1]
        return _part(lists[0].elts[0], place) if lists else None
    return None


def _below(project: Project, use: Use, label: ast.expr | None, loops: int) -> bool:
    """In so many loops, of which the outermost counts the label."""
    known = {id(u.statement): u for u in use.scope.statements if isinstance(u.statement, ast.For)}
    around = [known[block] for block, _ in use.path if block in known]
    if len(around) != loops or use.path[0][0] not in known:
        return False
    loop = around[0].statement
    inner = around[1].statement if loops > 1 else use.statement
    return isinstance(loop, ast.For) and _counts(project, _behind(label, use, inner), loop.target, loop.iter, around[0])


def _behind(label: ast.expr | None, use: Use, inner: ast.stmt) -> ast.expr | None:
    """``label = self.index[name]``, before the loop over files."""
    found = use.scope.bindings.get(label.id, []) if isinstance(label, ast.Name) else []
    value = found[0].value if len(found) == 1 and not found[0].index else None
    return value if value is not None and found[0].use.statement.lineno < inner.lineno else label


def _counts(project: Project, label: ast.expr | None, target: ast.expr, head: ast.expr, use: Use) -> bool:
    """The label is the number of the class."""
    counted = isinstance(head, ast.Call) and unparsed(head.func) == "enumerate" and isinstance(target, ast.Tuple)
    if label is None or (counted and len(target.elts) != 2):  # type: ignore[attr-defined]
        return False
    if _drawn(project, label, target, head, use):
        return True
    name = target.elts[1] if counted else target  # type: ignore[attr-defined]
    if counted and unparsed(label) == unparsed(target.elts[0]):  # type: ignore[attr-defined]
        return True
    listed = head.args[0] if counted and isinstance(head, ast.Call) else head
    if isinstance(label, ast.Call):
        return unparsed(label) == f"{unparsed(listed)}.index({unparsed(name)})"
    if not isinstance(label, ast.Subscript) or unparsed(label.slice) != unparsed(name):
        return False
    return _is_table(project, label.value, use)


def _drawn(project: Project, label: ast.expr, target: ast.expr, head: ast.expr, use: Use) -> bool:
    """``k`` of ``for k in range(10)``, and of ``for name, k in NUMBERS.items()``."""
    func = head.func if isinstance(head, ast.Call) else None
    if isinstance(target, ast.Name):
        return unparsed(label) == target.id and isinstance(func, ast.Name) and func.id == "range"
    pair = isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(func, ast.Attribute)
    items = pair and isinstance(func, ast.Attribute) and func.attr == "items" and _is_table(project, func.value, use)
    return items and isinstance(target, ast.Tuple) and unparsed(label) == unparsed(target.elts[1])


def _is_table(project: Project, node: ast.expr, use: Use) -> bool:
    """Another number for every name."""
    found = project.holding(node, use, 0) if isinstance(node, (ast.Name, ast.Attribute)) else []
    return len(found) == 1 and not found[0].index and _numbers(found[0].value)


def _numbers(node: ast.expr | None) -> bool:
    """``{name: i for i, name in enumerate(names)}``, and ``{"cat": 0, "dog": 1}``."""
    if isinstance(node, ast.Dict):
        values = [v.value for v in node.values if isinstance(v, ast.Constant) and isinstance(v.value, int)]
        return len(values) == len(node.values) > 1 and len(set(values)) == len(values)
    if not isinstance(node, ast.DictComp) or len(node.generators) != 1:
        return False
    head = node.generators[0]
    return (
        isinstance(head.target, ast.Tuple)
        and unparsed(head.iter).startswith("enumerate(")
        and [unparsed(e) for e in head.target.elts] == [unparsed(node.value), unparsed(node.key)]
    )
