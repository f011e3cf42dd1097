"""What a call gives for a parameter, and what that is when it gives nothing."""

from __future__ import annotations

import ast

from flatline.readers.source._scopes import Scope


def default(function: Scope, name: str) -> ast.expr | None:
    """What a parameter is when a call gives nothing."""
    if isinstance(function.node, ast.Module):
        return None
    given = function.node.args
    names = [a.arg for a in (*given.posonlyargs, *given.args)]
    pairs = [*zip(names[::-1], given.defaults[::-1], strict=False)]
    pairs += [(a.arg, value) for a, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value is not None]
    return dict(pairs).get(name)


def argument(call: ast.Call, function: Scope, name: str) -> ast.expr | None:
    """What a call gives for a parameter."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    bound = function.owner is not None and not function.marked("staticmethod")
    place = function.params.index(name) - bound
    if 0 <= place < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args[: place + 1]):
        return call.args[place]
    return None


def argument_at(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """What a call gives for a parameter of torch's, by name or by place; -1 for one that is given by name only."""
    named = [k.value for k in call.keywords if k.arg == name]
    return named[0] if named else call.args[place] if 0 <= place < len(call.args) else None


def is_spread(call: ast.Call) -> bool:
    """``f(*given)`` or ``f(**given)``."""
    return any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)


def fits(call: ast.Call, function: Scope) -> bool:
    """Whether a call gives all that a method needs."""
    needed = [name for name in function.params[1:] if default(function, name) is None]
    return is_spread(call) or len(call.args) + len(call.keywords) >= len(needed)
