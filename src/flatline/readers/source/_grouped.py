"""Labels from tables and arrays that were sorted by class, or put together class by class, and not mixed since."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Use

DEEP = 16
MIXES = re.compile(r"shuffl\w*\(|permut|randperm|\.sample\(|\.choice\(")
KEEPS = {
    "values", "to_numpy", "tolist", "astype", "copy", "reset_index", "array", "ravel", "flatten", "squeeze", "reshape",
    "map", "fillna", "dropna", "drop_duplicates", "drop", "rename", "head", "long", "float", "to", "int", "codes", "cat",
    "numpy", "clone", "view", "unsqueeze", "contiguous", "assign", "loc", "iloc", "type", "replace",
}  # fmt: skip
WRAPS = re.compile(
    r"torch\.(tensor|as_tensor|from_numpy|LongTensor|FloatTensor|Tensor)|numpy\.(array|asarray|ascontiguousarray|ravel)|"
    r"pandas\.(DataFrame|Series)|list|tuple"
)
SORTS = re.compile(r"numpy\.sort|torch\.sort|sorted")
ORDERS = re.compile(r"(numpy|torch)\.argsort\((.+?)(, [^()]*)?\)|(.+?)\.argsort\((stable=\w+|kind='\w+')?\)")


def grouped(project: Project, node: ast.expr | None, use: Use, depth: int = 0) -> bool:
    """Labels, class after class."""
    if node is None or depth > DEEP or MIXES.search(_text_of(use)):
        return False
    if isinstance(node, ast.Name):
        each = list(_made(project, node, use))
        return bool(each) and all(grouped(project, value, place, depth + 1) for value, place in each)
    if isinstance(node, ast.Subscript):
        return _item(project, node, use, depth)
    if isinstance(node, ast.BinOp):
        return _in_blocks(project, [node.left, node.right], use)
    if isinstance(node, ast.Attribute):
        held = project.holding(node, use, 0)
        if held:
            return len(held) == 1 and not held[0].index and grouped(project, held[0].value, held[0].use, depth + 1)
        if node.attr in KEEPS:
            return grouped(project, node.value, use, depth + 1)
        return _column(project, node.value, node.attr, use, depth + 1)
    return _call(project, node, use, depth) if isinstance(node, ast.Call) else False


def _call(project: Project, node: ast.Call, use: Use, depth: int) -> bool:
    name = project.dotted(node.func, use) or (unparsed(node.func) if isinstance(node.func, ast.Name) else "")
    if name in ("numpy.concatenate", "numpy.hstack", "torch.cat") and node.args:
        return _in_blocks(project, getattr(node.args[0], "elts", []), use)
    if name in ("numpy.repeat",) and node.args:
        return _counts_up(project, node.args[0], use)
    if WRAPS.fullmatch(name) and node.args:
        return grouped(project, node.args[0], use, depth + 1)
    func = node.func if isinstance(node.func, ast.Attribute) and not name else None
    if func is not None and func.attr in ("fit_transform", "transform") and len(node.args) == 1:
        things = project.things(func.value, use)
        encodes = bool(things) and all(t.name.endswith(".LabelEncoder") for t in things)
        return encodes and grouped(project, node.args[0], use, depth + 1)
    return func is not None and func.attr in KEEPS and grouped(project, func.value, use, depth + 1)


def _in_blocks(project: Project, parts: list[ast.expr], use: Use) -> bool:
    """``np.concatenate([np.zeros(50), np.ones(50)])``, and ``[0] * 50 + [1] * 50``."""
    flat: list[ast.expr] = []
    for part in parts:
        inner = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add)
        flat += [part.left, part.right] if inner and isinstance(part, ast.BinOp) else [part]
    values = [_filled_with(project, part, use) for part in flat]
    return len(values) > 1 and None not in values and len(set(values)) == len(values)


def _filled_with(project: Project, node: ast.expr, use: Use) -> str | None:
    """The one number of a block."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
        node = node.func.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List):
        return unparsed(node.left) if [isinstance(e, ast.Constant) for e in node.left.elts] == [True] else None
    name = project.dotted(node.func, use) if isinstance(node, ast.Call) else ""
    if name in ("numpy.full", "torch.full") and isinstance(node, ast.Call) and len(node.args) > 1:
        return unparsed(node.args[1]) if isinstance(node.args[1], ast.Constant) else None
    of_one = isinstance(node, ast.Call) and node.args and not isinstance(node.args[0], (ast.Tuple, ast.List))
    return {"numpy.zeros": "0", "numpy.ones": "1", "torch.zeros": "0", "torch.ones": "1"}.get(name) if of_one else None


def grouped_rows(project: Project, owner: Class) -> bool:
    """A data set that gives ``self.table.iloc[i]["label"]``, and whose table is sorted by that."""
    method = project.method(owner, "__getitem__")
    value = method.returns[0][0] if method is not None and len(method.returns) == 1 else None
    if method is None or not isinstance(value, ast.Tuple) or len(value.elts) != 2:
        return False
    if MIXES.search(owner.module.whole):
        return False
    use, index = method.returns[0][1], method.params[-1]
    if len(method.bindings[index]) != 1:
        return False
    label = _label(project, value.elts[1], use)
    row = _label(project, label.value, use) if isinstance(label, (ast.Subscript, ast.Attribute)) else None
    if row is not None and isinstance(row, ast.Subscript) and unparsed(row.slice) == index:
        key = label.slice if isinstance(label, ast.Subscript) else ast.Constant(getattr(label, "attr", ""))
        table = row.value.value if isinstance(row.value, ast.Attribute) and row.value.attr in ("iloc", "loc") else None
        return isinstance(key, ast.Constant) and _column(project, table, str(key.value), use, 0)
    plain = isinstance(label, ast.Subscript) and unparsed(label.slice) == index
    return plain and isinstance(label, ast.Subscript) and grouped(project, label.value, use)


def _label(project: Project, node: ast.expr, use: Use) -> ast.expr:
    """Behind ``int()``, ``torch.tensor()`` and a name of the method."""
    while (
        isinstance(node, ast.Call) and node.args and (WRAPS.fullmatch(project.dotted(node.func, use)) or _casts(node))
    ):
        node = node.args[0]
    found = use.scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    value = found[0].value if len(found) == 1 and not found[0].index and not found[0].parameter else None
    return _label(project, value, use) if value is not None else node


def _casts(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in ("int", "float")


def _counts_up(project: Project, node: ast.expr, use: Use) -> bool:
    if isinstance(node, (ast.List, ast.Tuple)):
        each = [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, int)]
        return len(each) == len(node.elts) > 1 and each == sorted(each)
    name = project.dotted(node.func, use) if isinstance(node, ast.Call) else ""
    return name == "numpy.arange" or (isinstance(node, ast.Call) and unparsed(node.func) == "range")


def _item(project: Project, node: ast.Subscript, use: Use, depth: int) -> bool:
    """A column, some of the rows in their order, or all of them in the order of the labels."""
    key, inner = node.slice, node.value
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return _column(project, inner, key.value, use, depth + 1)
    parts = key.elts if isinstance(key, ast.Tuple) else [key]
    if isinstance(inner, ast.Attribute) and inner.attr == "loc" and len(parts) == 2:
        named = isinstance(parts[1], ast.Constant) and isinstance(parts[1].value, str)
        rows = _in_order(project, parts[0], use, depth)
        return named and rows and _column(project, inner.value, parts[1].value, use, depth + 1)  # type: ignore[attr-defined]
    if len(parts) == 1 and _sorts(project, key, inner, use):
        return True
    return len(parts) == 1 and _in_order(project, key, use, depth) and grouped(project, inner, use, depth + 1)


def _sorts(project: Project, key: ast.expr, inner: ast.expr, use: Use) -> bool:
    """``labels[np.argsort(labels)]``."""
    made: list[tuple[ast.expr | None, Use]] = [(key, use)]
    if isinstance(key, ast.Name):
        made = list(_made(project, key, use))
    for value, place in made:
        if not isinstance(value, ast.Call):
            return False
        name = project.dotted(value.func, place)
        found = ORDERS.fullmatch(unparsed(value).replace(unparsed(value.func), name or unparsed(value.func), 1))
        if found is None or (found[2] or found[4]) != unparsed(inner):
            return False
    return bool(made)


def _in_order(project: Project, node: ast.expr | None, use: Use, depth: int) -> bool:
    """Rows that are taken in the order they stand in."""
    if isinstance(node, ast.Slice):
        return node.step is None
    if isinstance(node, ast.Name) and depth < DEEP:
        each = list(_made(project, node, use))
        return bool(each) and all(_in_order(project, value, place, depth + 1) for value, place in each)
    if isinstance(node, ast.Compare):
        return True
    return (
        isinstance(node, ast.Call)
        and SORTS.fullmatch(project.dotted(node.func, use) or unparsed(node.func)) is not None
    )


def _made(project: Project, node: ast.Name, use: Use) -> Iterator[tuple[ast.expr | None, Use]]:
    """What a name stands for; None for what is not known."""
    for binding in project.holding(node, use, 0):
        if binding.parameter:
            given = project.given(node.id, binding.use)
            yield from given
            if not given:
                yield None, use
        else:
            yield None if binding.index else binding.value, binding.use


def _column(project: Project, node: ast.expr | None, name: str, use: Use, depth: int) -> bool:
    """A column of a table whose rows stand in the order of that column."""
    if node is None or depth > DEEP:
        return False
    if isinstance(node, ast.Name):
        if _sorted_in_place(node.id, name, use):
            return True
        if _put_elsewhere(node.id, use):
            return False
        each = list(_made(project, node, use))
        return bool(each) and all(_column(project, value, name, place, depth + 1) for value, place in each)
    if isinstance(node, ast.Subscript):
        wanted = isinstance(node.slice, (ast.List, ast.Slice)) or _in_order(project, node.slice, use, depth)
        return (
            wanted and not isinstance(node.slice, ast.Constant) and _column(project, node.value, name, use, depth + 1)
        )
    if isinstance(node, ast.Attribute):
        held = project.holding(node, use, 0) if node.attr not in KEEPS else []
        if len(held) == 1 and not held[0].index:
            return _column(project, held[0].value, name, held[0].use, depth + 1)
        return node.attr in KEEPS and _column(project, node.value, name, use, depth + 1)
    return _table(project, node, name, use, depth) if isinstance(node, ast.Call) else False


def _table(project: Project, node: ast.Call, name: str, use: Use, depth: int) -> bool:
    """``table.sort_values("label")``, and ``pd.concat([fake, true])`` of one class each."""
    func, dotted = node.func, project.dotted(node.func, use)
    if dotted == "pandas.concat" and node.args and isinstance(node.args[0], (ast.List, ast.Tuple)):
        each = [_told(part, name, use) for part in node.args[0].elts]
        return len(each) > 1 and None not in each and len(set(each)) == len(each)
    if not isinstance(func, ast.Attribute) or dotted:
        return False
    if func.attr == "sort_values":
        return _key(node) == name and not any(k.arg == "key" for k in node.keywords)
    return func.attr in KEEPS and _column(project, func.value, name, use, depth + 1)


def _text_of(use: Use) -> str:
    return use.scope.module.whole


def _key(node: ast.Call) -> object:
    """The column that a table is sorted by."""
    by = next((k.value for k in node.keywords if k.arg == "by"), node.args[0] if node.args else None)
    first = by.elts[0] if isinstance(by, (ast.List, ast.Tuple)) and by.elts else by
    return first.value if isinstance(first, ast.Constant) else None


def _told(node: ast.expr, name: str, use: Use) -> str | None:
    """The one label of a table: ``fake["label"] = 0``."""
    wanted = (f"{unparsed(node)}['{name}']", f"{unparsed(node)}.{name}")
    found = [
        u.statement.value for u in use.scope.statements[: use.order]
        if isinstance(u.statement, ast.Assign) and unparsed(u.statement.targets[0]) in wanted
    ]  # fmt: skip
    return unparsed(found[0]) if len(found) == 1 and isinstance(found[0], ast.Constant) else None


def _put_elsewhere(table: str, use: Use) -> bool:
    """``table.sort_index(inplace=True)``, and ``table[:] = ...``: rows in an order of which nothing is known."""
    calls = [c for c, _ in use.scope.calls if any(k.arg == "inplace" for k in c.keywords)]
    moved = (c.func for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr not in KEEPS)
    written = [t for u in use.scope.statements for t in getattr(u.statement, "targets", ())]
    rows = (t.value for t in written if isinstance(t, ast.Subscript) and isinstance(t.slice, ast.Slice))
    return table in {unparsed(each) for each in (*(f.value for f in moved), *rows)}


def _sorted_in_place(table: str, name: str, use: Use) -> bool:
    """``table.sort_values("label", inplace=True)`` before it, and no other table under the name since."""
    sorts = [
        (c, u) for c, u in use.scope.calls
        if isinstance(c.func, ast.Attribute) and c.func.attr == "sort_values" and unparsed(c.func.value) == table
    ]  # fmt: skip
    here = [(c, u) for c, u in sorts if any(k.arg == "inplace" for k in c.keywords) and u.before(use)]
    if any(k.arg == "key" for c, _ in sorts for k in c.keywords) or f"{table}.sort_index(" in _text_of(use):
        return False
    since = [b for b in use.scope.bindings.get(table, ()) if here and b.use.order > here[-1][1].order]
    return bool(here) and len(sorts) == len(here) and not since and _key(here[-1][0]) == name
