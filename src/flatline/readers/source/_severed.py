"""A backward on what was cut from its graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flatline.events import SourceFact
from flatline.readers.source._leaves import is_sought, new_leaf
from flatline.readers.source._made import Made
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Binding, Use, spelled
from flatline.readers.source._seen import Seen
from flatline.readers.source._unrecorded import summed_off
from flatline.readers.source._values import Source, drawn_by
from flatline.readers.source._whole_numbers import chosen

CUTS = {"tensor", "detach", "item"}


def severed(seen: Seen) -> Iterator[SourceFact]:
    """backward() on a number that was cut from its graph."""
    for call, receiver, use in seen.methods("backward"):
        if call.args or any(k.arg == "gradient" for k in call.keywords):
            continue
        made = seen.project.made(receiver, use)
        if made and all(m.by in CUTS for m in made) and not _is_on_purpose(seen, made):
            yield seen.fact("severed", call, name=made[0].by, text=spelled(made[0].node), other=made[0].node)
        elif (head := _unrecorded(seen, receiver, use)) is not None:
            yield seen.fact("severed", call, name="no_grad", text=f"with {spelled(head)}:", other=head)
        elif not made and (leaf := new_leaf(seen, receiver, use)) is not None:
            yield seen.fact("severed", call, name="tensor", text=spelled(leaf.node), other=leaf.node)
        elif (off := _summed(seen, receiver, use)) is not None:
            place = off.use.scope.module.where(off.node, off.use.scope)
            yield replace(seen.fact("severed", call, name="no_grad", text=f"with {spelled(off.node)}:"), other=place)
        elif (choice := chosen(seen.project, receiver, use)) is not None:
            yield seen.fact("severed", call, name="chosen", text=spelled(choice.node), other=choice.node)


def _is_on_purpose(seen: Seen, made: Sequence[Made]) -> bool:
    """Tensors that are written out, or one whose own gradient is sought."""
    tensors = [each for each in made if each.by == "tensor"]
    written = len(tensors) == len(made) and all(_literal(each.node) for each in tensors)
    return written or any(is_sought(seen, each.use) for each in tensors)


def _unrecorded(seen: Seen, node: ast.expr, use: Use) -> ast.expr | None:
    """The no_grad under which everything was computed that a name may stand for."""
    found = seen.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in seen.scope.bindings else []
    heads = [_switched_off(seen, binding) for binding in found]
    recorded = isinstance(node, ast.Name) and seen.freed(node.id)
    return None if recorded or not heads or None in heads else heads[0]


def _summed(seen: Seen, node: ast.expr, use: Use) -> Source | None:
    """The no_grad under which all terms of a sum are worked out."""
    recorded = isinstance(node, ast.Name) and seen.freed(node.id)
    return summed_off(seen.project, node, use) if isinstance(node, ast.Name) and not recorded else None


def _switched_off(seen: Seen, binding: Binding) -> ast.expr | None:
    """``torch.no_grad()`` around a call that makes a binding, with nothing in it that switches gradients on."""
    line = getattr(binding.use.statement, "lineno", 0)
    around = [node for node in seen.withs if node.lineno < line <= (node.end_lineno or 0)]
    heads = [item.context_expr for node in around for item in node.items]
    off = [head for head in heads if unparsed(head) in ("torch.no_grad()", "torch.inference_mode()")]
    plain = isinstance(binding.value, ast.Call) and binding.use.scope is seen.scope
    value, place = binding.value, binding.use
    drawn = list(drawn_by(seen.project, binding, ())) if value is None else []
    if len(drawn) == 1 and drawn[0][0] is not None and not drawn[0][2]:
        value, place, plain = drawn[0][0], drawn[0][1], True
    function = seen.project.callee(value, place) if isinstance(value, ast.Call) else None
    if not off and plain and function is not None and function.marked_without_grad is not None:
        return function.marked_without_grad
    on = any(re.search(r"enable_grad|set_grad|requires_grad|Parameter", unparsed(node)) for node in around)
    return off[0] if off and plain and not on else None


def _literal(node: ast.AST) -> bool:
    """A tensor of numbers that are written out, or one that is a new leaf on purpose."""
    return isinstance(node, ast.Call) and not any(
        isinstance(n, (ast.Name, ast.Call)) for a in node.args for n in walk(a)
    )
