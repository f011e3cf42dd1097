"""What a name may stand for: a class, a function, or an object that one call made."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import cache

from flatline.readers.source._scopes import Class, Scope, Use

PLAIN = (
    (re.compile(r"^torch\.nn\.modules\.\w+\."), "torch.nn."),
    (re.compile(r"^torch\.optim\.(?!lr_scheduler|swa_utils)[a-z_]+\."), "torch.optim."),
    (re.compile(r"^torch\.nn\.utils\.clip_grad\."), "torch.nn.utils."),
    (re.compile(r"^torch\.(cuda\.)?amp\.(grad_scaler|autocast_mode)\."), "torch.amp."),
)


@dataclass(frozen=True, slots=True)
class Thing:
    """A class, a function, or an object that one call made."""

    name: str  # the dotted name of its class or function
    use: Use
    call: ast.Call | None = None  # that made it; None for the class or function itself
    made_of: Class | None = None
    function: Scope | None = None
    via: tuple[int, ...] = ()  # calls of functions that returned it: each call makes another one
    given: ast.Call | None = None  # the partial() that gave some of its arguments

    def identity(self) -> str:
        """Equal for one object."""
        return f"{self.use.scope.module.text.path}:{id(self.call)}:{self.via}" if self.call else self.name

    @property
    def is_optimizer(self) -> bool:
        """One of torch's, built."""
        return self.call is not None and builds_optimizer(self.name)


def builds_optimizer(dotted: str) -> bool:
    """``torch.optim.Adam``, and no schedule."""
    return dotted.startswith("torch.optim.") and dotted.count(".") == 2 and dotted[12:13].isupper()


def through(node: ast.Call, things: tuple[Thing, ...]) -> tuple[Thing, ...]:
    return tuple(replace(thing, via=(id(node), *thing.via)) if thing.call is not None else thing for thing in things)


@cache
def plain_name(dotted: str) -> str:
    """One name for what torch offers under several."""
    for pattern, put in PLAIN:
        dotted = pattern.sub(put, dotted)
    return dotted
