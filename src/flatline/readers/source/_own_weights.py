"""Modules whose weights are parameters of their own: ``self.centers = nn.Parameter(torch.randn(10, 64))``."""

from __future__ import annotations

import ast
import re

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._raw import PARAMETERS
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Class

BLANK = re.compile(r"torch\.(randn?|empty|zeros|Tensor|FloatTensor|normal)")  # what only training gives a meaning
MOVED = re.compile(r"\.data\b|[a-z]_\(|\bdetach|\.grad\b|\.item\(|\.numpy\(")  # by other means than gradients


def holds_weights(project: Project, owner: Class) -> bool:
    """Parameters that begin at random or empty, that its forward calculates with, and that nothing else moves."""
    forward = owner.methods.get("forward")
    if forward is None:
        return False
    text = unparsed(forward.node)
    later = [unparsed(m.node) for name, m in owner.methods.items() if name not in ("__init__", "reset_parameters")]
    own = forward.params[0] if forward.params else "self"
    blank = [name for name, bound in owner.attributes.items() if len(bound) == 1 and _is_blank(project, bound[0])]
    read = [name for name in blank if re.search(rf"\b{own}\.{name}\b(?!\.(size|shape|device|dtype))", text)]
    return bool(read) and not any(MOVED.search(each) for each in later)


def _is_blank(project: Project, binding: Binding) -> bool:
    """``nn.Parameter(0.01 * torch.randn(10, 64))``."""
    made, use = binding.value, binding.use
    if not isinstance(made, ast.Call) or project.dotted(made.func, use) not in PARAMETERS or len(made.args) != 1:
        return False
    calls = [n for n in walk(made.args[0]) if isinstance(n, ast.Call)]
    names = [project.dotted(call.func, use) for call in calls]
    return not made.keywords and any(BLANK.fullmatch(name) for name in names)
