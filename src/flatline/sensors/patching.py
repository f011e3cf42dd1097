"""The one way flatline touches somebody else's code: every patch is guarded, and every patch can be undone."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

Callback = Callable[..., Any]


class Patches:
    """Puts callbacks around functions of torch. A callback that raises is switched off for good."""

    def __init__(self, *, on_broken: Callable[[str, Exception], None]) -> None:
        self.active = True
        self.timed = True  # count the time of callbacks; off on most steps, where counting would cost the most
        self.nanoseconds = 0
        self._busy = False
        self._on_broken = on_broken
        self._undo: list[Callable[[], None]] = []

    def guard(self, callback: Callback) -> Callback:
        """``callback`` timed, never raising, never re-entered, silent once broken, and unseen by the user's modes.

        Under a dispatch mode (a counter, a tracer, fake tensors) every operation of ours would be seen: do nothing.
        """
        import torch

        alive = True
        user_modes = getattr(torch._C, "_len_torch_dispatch_stack", _none)
        function_modes = getattr(torch._C, "_len_torch_function_stack", _none)
        set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
        without_functions = torch._C.DisableTorchFunction

        def guarded(*args: Any, **kwargs: Any) -> Any:
            nonlocal alive
            if self._busy or not alive or not self.active or user_modes():
                return None
            self._busy = True
            prior = set_eval_frame(None)  # after a graph break dynamo compiles whatever is called: not us
            started = time.perf_counter_ns() if self.timed else 0
            try:
                if function_modes():
                    with without_functions():
                        return callback(*args, **kwargs)
                return callback(*args, **kwargs)
            except Exception as error:
                alive = False
                self._on_broken(_name(callback), error)
                return None
            finally:
                set_eval_frame(prior)
                self._busy = False
                if started:
                    self.nanoseconds += time.perf_counter_ns() - started

        unseen_by_dynamo(guarded)
        return guarded

    def guard_inner(self, callback: Callback) -> Callback:
        """The same for a callback that another guarded callback calls: one that breaks leaves the others on."""
        alive = True

        def guarded(*args: Any) -> None:
            nonlocal alive
            try:
                if alive:
                    callback(*args)
            except Exception as error:
                alive = False
                self._on_broken(_name(callback), error)

        unseen_by_dynamo(guarded)
        return guarded

    def around(
        self,
        owner: Any,
        name: str,
        *,
        before: Callback | None = None,
        after: Callback | None = None,
        failed: Callback | None = None,
    ) -> bool:
        """Call ``before(*args, **kwargs)``, ``after(result, *args, **kwargs)``, or ``failed()`` when it raised.

        False if the owner has no function of that name.
        """
        original = inspect.getattr_static(owner, name, None)
        if not inspect.isfunction(original):
            return False
        guarded = [callback and self.guard(callback) for callback in (before, after, failed)]
        setattr(owner, name, _wrapper(original, *guarded))
        self._undo.append(lambda: setattr(owner, name, original))
        return True

    def on_undo(self, action: Callable[[], Any]) -> None:
        """Run ``action`` when the patches are taken off."""
        self._undo.append(action)

    def undo(self) -> None:
        """Take every patch off, newest first."""
        self.active = False
        while self._undo:
            self._undo.pop()()


def _name(callback: Callback) -> str:
    return f"{callback.__module__}.{callback.__qualname__}".removeprefix("flatline.sensors.")


def _none() -> int:
    return 0


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _wrapper(original: Callback, before: Callback | None, after: Callback | None, failed: Callback | None) -> Callback:
    from torch.compiler import is_compiling

    first, last, instead = before or _nothing, after or _nothing, failed or _nothing

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        first(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            instead()
            raise
        last(result, *args, **kwargs)
        return result

    unseen_by_dynamo(observed)
    return observed


def unseen_by_dynamo(*functions: Any) -> None:
    """Dynamo leaves the frames of these alone; where it inlines them it still looks in."""
    from torch._C._dynamo import eval_frame

    if not hasattr(eval_frame, "set_code_exec_strategy"):
        return
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
    for function in functions:
        eval_frame.set_code_exec_strategy(function.__code__, skip)
