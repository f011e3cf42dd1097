"""Repairs of a finding that change what is computed: lines inserted and moved, with names that the source has itself.

They are proposals. ``linting.py`` keeps one only if the file still parses, and has this finding less and no new one.
"""

from __future__ import annotations

import ast
import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flatline.events import SourceEdit, SourceParsed, Where
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._scopes import FUNCTIONS, LOOPS, Module, Scope, Use

Block = list[ast.stmt]
WITHS = (ast.With, ast.AsyncWith)


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a file to be replaced; ``removed`` may be 0, and the new lines stand before ``line`` then."""

    line: int
    removed: int = 0
    put: tuple[str, ...] = ()


Repair = tuple[Lines, ...]


def repairs(module: Module, seen: SourceParsed, code: str, where: Where) -> Iterator[Repair]:
    """What may repair a finding, the likeliest first."""
    propose = PROPOSALS.get(code)
    if propose is not None and where.file == module.text.path:
        yield from propose(Site(module, seen, where))


def edited(data: bytes, repair: Repair) -> bytes:
    """The file with a repair. All other lines stay byte for byte."""
    if data.startswith(codecs.BOM_UTF8) and any(part.line == 1 for part in repair):
        return data
    lines = data.split(b"\n")
    end = b"\r" if lines[0].endswith(b"\r") else b""
    for part in sorted(repair, key=lambda part: -part.line):
        at = part.line - 1
        if at >= len(lines) and lines[-1]:  # behind a last line without an end
            lines[-1] += end
            lines.append(b"")
        lines[at : at + part.removed] = [text.encode() + end for text in part.put]
    return b"\n".join(lines)


class Site:
    """A finding's place in the tree, and how lines are put around it."""

    def __init__(self, module: Module, seen: SourceParsed, where: Where) -> None:
        self.module, self.seen, self.where = module, seen, where
        self.lines = module.text.lines
        self.blocks: dict[int, tuple[Block, int, ast.AST]] = {}
        for node in walk(module.tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    self.blocks |= {id(inner): (block, at, node) for at, inner in enumerate(block)}

    def calls(self, *methods: str, at: Where | None = None) -> Iterator[tuple[ast.Call, ast.Attribute, Use]]:
        """Calls of methods with these names on the line of a place."""
        place = at or self.where
        for scope in self.module.scopes:
            for call, use in scope.calls:
                if call.lineno == place.line and isinstance(call.func, ast.Attribute) and call.func.attr in methods:
                    yield call, call.func, use

    def statement(self) -> ast.stmt | None:
        """The innermost statement that begins at the place or holds it."""
        line = self.where.line
        held = [u.statement for s in self.module.scopes for u in s.statements]
        held = [node for node in held if node.lineno <= line <= (node.end_lineno or node.lineno)]
        return max(held, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)

    def place(self, node: ast.stmt) -> tuple[Block, int, ast.AST]:
        """Its block, its number in it, and what the block belongs to."""
        return self.blocks.get(id(node), ([node], 0, self.module.tree))

    def parent(self, node: ast.stmt) -> ast.stmt | None:
        """The statement whose block it stands in."""
        above = self.place(node)[2]
        return above if isinstance(above, ast.stmt) else None

    def loop_of(self, node: ast.stmt) -> ast.stmt | None:
        """The innermost loop around it, within its function."""
        above = self.parent(node)
        while above is not None and not isinstance(above, (*LOOPS, *FUNCTIONS, ast.ClassDef)):
            above = self.parent(above)
        return above if isinstance(above, LOOPS) else None

    # ----------------------------------------------------------------------- lines

    def alone(self, node: ast.stmt) -> bool:
        """Whether its lines hold nothing else but a comment."""
        first, last = self.lines[node.lineno - 1], self.lines[(node.end_lineno or node.lineno) - 1]
        head = first.encode()[: node.col_offset].strip()
        tail = last.encode()[node.end_col_offset or 0 :].strip()
        return not head and (not tail or tail.startswith(b"#"))

    def indent(self, node: ast.stmt) -> str:
        """The white space before it."""
        line = self.lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def before(self, node: ast.stmt, *texts: str) -> Repair:
        """Lines in front of a statement."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        return (Lines(first, 0, tuple(self.indent(node) + text for text in texts)),) if self.begins(node) else ()

    def after(self, node: ast.stmt, *texts: str) -> Repair:
        """Lines behind a statement."""
        put = tuple(self.indent(node) + text for text in texts)
        fits = self.begins(node) and (self.alone(node) or hasattr(node, "body"))
        return (Lines((node.end_lineno or node.lineno) + 1, 0, put),) if fits else ()

    def first_in(self, loop: ast.stmt, *texts: str) -> Repair:
        """Lines at the top of a loop's body."""
        body: Block = getattr(loop, "body", [])
        return self.before(body[0], *texts) if body and body[0].lineno > loop.lineno else ()

    def begins(self, node: ast.stmt) -> bool:
        """Whether it is the first on its line."""
        return not self.lines[node.lineno - 1].encode()[: node.col_offset].strip()

    def moved(self, nodes: Sequence[ast.stmt], spot: Repair, to: ast.stmt) -> Repair:
        """Whole statements, from where they are to a spot that ``before`` or ``after`` gave."""
        if not spot or not all(self.alone(node) for node in nodes) or _multiline_text(nodes):
            return ()
        ends = {id(self.place(node)[0]): 0 for node in nodes}
        for node in nodes:
            ends[id(self.place(node)[0])] += 1
        if any(len(self.place(node)[0]) <= ends[id(self.place(node)[0])] for node in nodes):
            return ()  # a block would be left empty
        target, put, out = self.indent(to), [], []
        for node in nodes:
            lines = self.lines[node.lineno - 1 : node.end_lineno]
            cut = len(self.indent(node))
            put += [target + line[cut:] if line[:cut].strip() == "" else line for line in lines]
            out.append(Lines(node.lineno, len(lines)))
        return (*out, Lines(spot[0].line, 0, tuple(put)))

    def carrier(self, node: ast.stmt) -> ast.stmt:
        """``if clip: clip_grad_norm_(...)``: the whole of it."""
        block, _, above = self.place(node)
        while len(block) == 1 and isinstance(above, (ast.If, *WITHS)) and not getattr(above, "orelse", ()):
            node = above
            block, _, above = self.place(node)
        return node


# --------------------------------------------------------------------------- one a code


def _order(site: Site) -> Iterator[Repair]:
    """zero_grad, backward, step."""
    for _, func, use in site.calls("zero_grad"):
        node, receiver = use.statement, _named(func.value)
        first = _first_backward(site, node)
        if first is not None:
            yield site.moved([node], site.before(first), first)
        step, back = _sibling(site, node, 1, "step"), _sibling(site, node, 1, "backward")
        if step is not None and back is not None:
            yield site.moved([step], site.after(back), back)  # the step came before its backward
        elif step is not None:
            yield site.moved([node], site.after(step), step)
        last = _last_after(site, node, "backward", "clip_grad_norm_", "clip_grad_value_")
        if last is not None and receiver and not _holds(last, "scale"):
            yield site.after(last, f"{receiver}.step()")
    for call, func, use in site.calls("step"):
        given = _named(call.args[0] if call.args else func.value)
        first = _first_backward(site, use.statement)
        if first is not None and given:
            yield site.before(first, f"{given}.zero_grad()")
        yield site.after(use.statement, f"{given}.zero_grad()") if given else ()
    for _, _, use in site.calls("backward"):
        yield from _closure(site, use)


def _closure(site: Site, use: Use) -> Iterator[Repair]:
    """The first thing in a closure."""
    node = use.scope.node
    for scope in site.module.scopes:
        for call, _ in scope.calls if not isinstance(node, ast.Module) and use.scope.parent is scope else ():
            given = call.args[0] if len(call.args) == 1 else None
            named = isinstance(given, ast.Name) and given.id == node.name  # type: ignore[union-attr]
            if named and isinstance(call.func, ast.Attribute) and call.func.attr == "step" and _named(call.func.value):
                yield site.first_in(node, f"{_named(call.func.value)}.zero_grad()")  # type: ignore[arg-type]


def _unscaled(site: Site) -> Iterator[Repair]:
    """``scaler.unscale_(optimizer)`` before the clip, with the names of the scaler's step."""
    clip = _call_statement(site, "clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
    if clip is None:
        return
    late = _sibling(site, clip, 1, "unscale_")
    if late is not None:
        yield site.moved([late], site.before(clip), clip)
    for step in _scaled_steps(site):
        for call, func, _ in site.calls("step", at=step):
            scaler, given = _named(func.value), _named(call.args[0]) if call.args else ""
            if scaler and given:
                yield site.before(site.carrier(clip), f"{scaler}.unscale_({given})")


def _scaled_steps(site: Site) -> Iterator[Where]:
    """Where a scaler steps, on the ways that come by the place."""
    for path in (path for loop in site.seen.loops for path in loop.paths):
        if any(tick.where == site.where for tick in path):
            yield from (t.where for t in path if t.kind == "step" and t.scaled and t.where is not None)


def _clip_sooner(site: Site) -> Iterator[Repair]:
    """The clip before the step."""
    clip = _call_statement(site, "clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
    if clip is not None:
        node = site.carrier(clip)
        step = _sibling(site, node, -1, "step")
        if step is not None:
            yield site.moved([node], site.before(step), step)


def _clip_later(site: Site) -> Iterator[Repair]:
    """The clip behind the backward."""
    clip = _call_statement(site, "clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
    if clip is not None:
        node = site.carrier(clip)
        back = _sibling(site, node, 1, "backward")
        if back is not None:
            yield site.moved([node], site.after(back), back)


def _schedule(site: Site) -> Iterator[Repair]:
    """The scheduler's step behind the optimizer's, once per epoch, or once per batch."""
    for _, _, use in site.calls("step"):
        node = use.statement
        step = _sibling(site, node, 1, "step")
        if step is not None:
            yield site.moved([node], site.after(step), step)
        loop = site.loop_of(node)
        if loop is not None and site.loop_of(loop) is not None:
            yield site.moved([node], site.after(loop), loop)
        inner = _sibling(site, node, -1, "step")
        if isinstance(inner, LOOPS):
            steps = [n for n in walk(inner) if isinstance(n, ast.Expr) and _is_call(n.value, "step")]
            if len(steps) == 1:
                yield site.moved([node], site.after(steps[0]), steps[0])


def _validation(site: Site) -> Iterator[Repair]:
    """eval() before a pass without gradients, and train() behind it."""
    node: ast.stmt | None = site.statement()
    if node is None:
        return
    model = next((t.text for t in site.seen.of("validated") if t.where == site.where), "")
    around = [node]
    while (above := site.parent(around[-1])) is not None and not isinstance(above, (*FUNCTIONS, ast.ClassDef)):
        around.append(above)
    heads = [n for n in around if isinstance(n, WITHS) and "no_grad" in unparsed(n.items[0].context_expr)]
    loops = [n for n in around if isinstance(n, LOOPS) and not _holds(n, "backward")]
    outer = (heads or loops)[-1:]
    if heads and loops and site.place(loops[-1])[0] is not heads[-1].body and heads[-1] not in walk(loops[-1]):
        outer = heads[-1:]
    for whole in outer:
        if model and not any(isinstance(n, (ast.Return, ast.Yield)) for n in walk(whole)):
            before, after = site.before(whole, f"{model}.eval()"), site.after(whole, f"{model}.train()")
            yield (*before, *after) if before and after else ()


def _mode(site: Site) -> Iterator[Repair]:
    """train() before the loop that trains, or behind the pass that wanted eval()."""
    for _, func, use in site.calls("eval", "train"):
        model, place = f"{_named(func.value)}.train()", use.statement
        if not _named(func.value):
            return
        for scope in site.module.scopes:
            inside = scope.statements if _means_the_same(func.value, use.scope, scope) else ()
            for loop in (u.statement for u in inside if isinstance(u.statement, LOOPS)):
                if any(_is_call(c, "backward") and site.loop_of(u.statement) is loop for c, u in scope.calls):
                    yield site.before(loop, model)
                    yield site.first_in(loop, model)
        block, at, _ = site.place(place)
        passes = [n for n in block[at + 1 :] if isinstance(n, (*LOOPS, *WITHS))]
        if passes and not isinstance(block[-1], ast.Return):
            yield site.after(block[-1], model)
        elif passes:
            yield site.before(block[-1], model)


def _means_the_same(node: ast.expr, one: Scope, other: Scope) -> bool:
    """Whether two functions mean the same by a name: both the module's, or both an attribute of their object."""
    if one is other:
        return True
    first = node
    while isinstance(first, ast.Attribute):
        first = first.value
    if not isinstance(first, ast.Name):
        return False
    if one.owner is not None and one.owner is other.owner and first.id == "self":
        return isinstance(node, ast.Attribute) and one.params[:1] == other.params[:1] == ("self",)
    return all(
        first.id not in s.bindings or isinstance(s.node, ast.Module) or first.id in s.outer for s in (one, other)
    )


def _averaged(site: Site) -> Iterator[Repair]:
    """``loss.backward()`` -> ``(loss / N).backward()``, with the N of ``if (i + 1) % N == 0: optimizer.step()``."""
    for call, func, use in site.calls("backward"):
        loop = site.loop_of(use.statement)
        tests = [n.test for n in walk(loop) if isinstance(n, ast.If) and _holds(n, "step")] if loop else []
        every = {
            _named(n.right) for t in tests for n in walk(t) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)
        }
        loss = func.value
        scaled = loss.args[0] if isinstance(loss, ast.Call) and _is_call(loss, "scale") and loss.args else loss
        if len(every) == 1 and isinstance(scaled, ast.Name) and "" not in every and not call.args:
            (number,) = every
            put = f"{scaled.id} / {number}" if scaled is not loss else f"({scaled.id} / {number})"
            yield _put(site, [SourceEdit(scaled.lineno, scaled.col_offset, scaled.end_col_offset or 0, put)])


def _shuffled(site: Site) -> Iterator[Repair]:
    """``shuffle=True``."""
    for scope in site.module.scopes:
        for call, _ in scope.calls:
            if call.lineno == site.where.line and unparsed(call.func).endswith("DataLoader"):
                off = next((k.value for k in call.keywords if k.arg == "shuffle"), None)
                if off is not None:
                    yield _put(site, [SourceEdit(off.lineno, off.col_offset, off.end_col_offset or 0, "True")])
                elif given := [*call.args, *(k.value for k in call.keywords)]:
                    end = given[-1].end_col_offset or 0
                    yield _put(site, [SourceEdit(given[-1].end_lineno or 0, end, end, ", shuffle=True")])


def _parameters(site: Site) -> Iterator[Repair]:
    """The optimizer behind the new layer; layers in a list that registers them."""
    node = site.statement()
    fact = next((f for f in site.seen.facts if f.where == site.where and f.kind in ("rebound", "plain list")), None)
    if fact is None or node is None:
        return
    if fact.kind == "plain list":
        yield from _module_list(site, node)
        return
    block, at, _ = site.place(node)
    start = next((n for n, inner in enumerate(block) if fact.other and inner.lineno == fact.other.line), at)
    moved, names = [], set[str]()
    for inner in block[start:at]:
        if inner is block[start] or names & names_in(inner):
            moved.append(inner)
            names |= {n.id for n in walk(inner) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if moved and not names & names_in(node):
        yield site.moved(moved, site.after(node), node)


def _module_list(site: Site, node: ast.stmt) -> Iterator[Repair]:
    value = getattr(node, "value", None)
    layers = [n for n in walk(site.module.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    parts = {unparsed(n.func.value) for n in layers if isinstance(n.func, ast.Attribute) and n.func.attr == "Linear"}
    parts |= {b.id for c in walk(site.module.tree) if isinstance(c, ast.ClassDef) for b in _module_bases(c)}
    if isinstance(value, ast.expr) and len(parts) == 1:
        (nn,) = parts
        start = SourceEdit(value.lineno, value.col_offset, value.col_offset, f"{nn}.ModuleList(")
        end = value.end_col_offset or 0
        yield _put(site, [start, SourceEdit(value.end_lineno or 0, end, end, ")")])


def _module_bases(node: ast.ClassDef) -> Iterator[ast.Name]:
    """``nn`` in ``class Net(nn.Module)``."""
    for base in node.bases:
        if isinstance(base, ast.Attribute) and base.attr == "Module" and isinstance(base.value, ast.Name):
            yield base.value


def _epoch(site: Site) -> Iterator[Repair]:
    """``sampler.set_epoch(epoch)`` first thing in every epoch."""
    names = [fact.name for fact in site.seen.of("no set_epoch") if fact.where == site.where and fact.name]
    loops = [u.statement for s in site.module.scopes for u in s.statements if u.statement.lineno == site.where.line]
    for loop in loops:
        if names and isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
            yield site.first_in(loop, f"{names[0]}.set_epoch({loop.target.id})")


PROPOSALS: dict[str, Callable[[Site], Iterator[Repair]]] = {
    "O4": _order,
    "G4": _unscaled,
    "G5": _clip_sooner,
    "G6": _clip_later,
    "O8": _schedule,
    "E1": _validation,
    "E2": _mode,
    "O5": _mode,
    "O9": _averaged,
    "D4": _shuffled,
    "O2": _parameters,
    "P1": _epoch,
}


# --------------------------------------------------------------------------- the tree


def _is_call(node: ast.AST, *names: str) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    return (isinstance(func, ast.Attribute) and func.attr in names) or (isinstance(func, ast.Name) and func.id in names)


def _is_schedule(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and re.search("sched|^prof", unparsed(node.func), re.IGNORECASE) is not None


def _holds(node: ast.stmt, *names: str) -> bool:
    """Whether a call of one of these is in a statement."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return False
    return any(_is_call(inner, *names) and not _is_schedule(inner) for inner in walk(node))


def _call_statement(site: Site, *names: str) -> ast.stmt | None:
    """The statement of a call at the place."""
    node = site.statement()
    return node if node is not None and _holds(node, *names) else None


def _sibling(site: Site, node: ast.stmt, way: int, *names: str) -> ast.stmt | None:
    """The nearest statement of the block, in one direction, that holds such a call."""
    block, at, _ = site.place(node)
    order = block[at + 1 :] if way > 0 else block[:at][::-1]
    return next((inner for inner in order if _holds(inner, *names)), None)


def _last_after(site: Site, node: ast.stmt, *names: str) -> ast.stmt | None:
    """The last statement of the block that holds such a call."""
    block = site.place(node)[0]
    return next((inner for inner in reversed(block) if _holds(inner, *names) and isinstance(inner, ast.Expr)), None)


def _first_backward(site: Site, node: ast.stmt) -> ast.stmt | None:
    """The first backward since the step before, in the same block."""
    block, at, _ = site.place(node)
    found = None
    for inner in block[:at][::-1]:
        if _holds(inner, "step"):
            break
        found = inner if _holds(inner, "backward") else found
    return found


def _named(node: ast.expr) -> str:
    """An expression that may be written twice: a name, an attribute, an item."""
    return "" if any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Await)) for n in walk(node)) else unparsed(node)


def _multiline_text(nodes: Sequence[ast.stmt]) -> bool:
    """A string over several lines would change with its indentation."""
    inner = [n for node in nodes for n in walk(node) if isinstance(n, (ast.Constant, ast.JoinedStr))]
    return any((n.end_lineno or 0) > n.lineno for n in inner)


def _put(site: Site, edits: Sequence[SourceEdit]) -> Repair:
    """Edits within lines, as whole lines."""
    lines: dict[int, bytes] = {}
    for edit in sorted(edits, key=lambda edit: (-edit.line, -edit.start)):
        line = lines.get(edit.line, site.lines[edit.line - 1].encode())
        lines[edit.line] = line[: edit.start] + edit.text.encode() + line[edit.end :]
    return tuple(Lines(number, 1, (line.decode(),)) for number, line in lines.items())
