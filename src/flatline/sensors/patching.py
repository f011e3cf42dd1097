"""The one way flatline touches somebody else's code: every patch is guarded, and every patch can be undone."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

from flatline.interruptions import of_the_scripts

Callback = Callable[..., Any]
# Warnings count stack levels without the frames of such files: torch's warnings name the user's line, as without us.
NO_FRAME = "<flatline, beside importlib._bootstrap>"
VITAL = tuple(f"flatline.sensors.{name}" for name in ("optimizers", "backward", "clipping"))  # they keep the tape


class Patches:
    """Puts callbacks around functions of torch. A callback that raises is switched off for good.

    Without one that keeps the tape of the loop, a healthy loop would look sick: then all of them are.
    """

    def __init__(self, *, on_broken: Callable[[str, Exception], None]) -> None:
        self.active = True
        self.timed = True  # count the time of callbacks; off on most steps, where counting would cost the most
        self.nanoseconds = 0
        self._busy: set[int] = set()  # threads that are inside a callback
        self.on_broken = on_broken
        self._undo: list[Callable[[], None]] = []

    def busy_elsewhere(self) -> bool:
        """Whether another thread is inside a callback."""
        return bool(self._busy - {threading.get_ident()})

    def guard(self, callback: Callback) -> Callback:
        """``callback`` timed, never re-entered, silent once broken, and unseen by the user's modes.

        It raises nothing but what a handler of a signal has raised. Under a dispatch mode (a counter, a tracer, fake
        tensors) every operation of ours would be seen: do nothing.
        """
        import torch

        alive, vital = True, callback.__module__ in VITAL
        user_modes = _dispatch_modes()
        set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
        without_functions = torch._C.DisableTorchFunction
        busy, identity = self._busy, threading.get_ident

        def guarded(*args: Any, **kwargs: Any) -> Any:
            nonlocal alive
            me = identity()
            if me in busy or not alive or not self.active or user_modes():
                return None
            busy.add(me)
            prior = set_eval_frame(None)  # after a graph break dynamo compiles whatever is called: not us
            started = time.thread_time_ns() if self.timed else 0
            try:
                with without_functions():
                    return callback(*args, **kwargs)
            except Exception as error:
                if of_the_scripts(error):
                    raise
                alive = False
                self.on_broken(_name(callback), error)
                self.active = self.active and not vital
                return None
            finally:
                set_eval_frame(prior)
                busy.discard(me)
                if started:
                    self.nanoseconds += time.thread_time_ns() - started

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
                if of_the_scripts(error):
                    raise
                alive = False
                self.on_broken(_name(callback), error)

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
        light: Callback | None = None,
        also: Any = None,
    ) -> bool:
        """Call ``before(*args, **kwargs)``, ``after(result, *args, **kwargs)``, or ``failed()`` when it raised.

        ``light(*args, **kwargs)`` is asked first, without the cost of a guard: True if it did all there is to do for
        this call. ``also`` is another place of the same function. False if the owner has no function of that name.
        """
        original = inspect.getattr_static(owner, name, None)
        if not inspect.isfunction(original):
            return False
        first, last, instead = (callback and self.guard(callback) for callback in (before, after, failed))
        layer = self._layer(original, light, first or _nothing, last or _nothing, instead or _nothing)
        for place in (owner, also):
            if inspect.getattr_static(place, name, None) is original:
                setattr(place, name, layer)
                self._undo.append(functools.partial(_take_off, place, name, layer))
        return True

    def quick(self, light: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """``light`` on ordinary steps, as cheap as it can be: False where it does not apply, and once it has raised."""
        alive, user_modes = True, _dispatch_modes()

        def tried(subject: Any) -> bool:
            nonlocal alive
            try:
                return alive and self.active and not user_modes() and light(subject)
            except Exception as error:
                if of_the_scripts(error):
                    raise
                alive = False
                self.on_broken(_name(light), error)
                return False

        unseen_by_dynamo(tried)
        return tried

    def _layer(
        self, original: Callback, light: Callback | None, first: Callback, last: Callback, instead: Callback
    ) -> Callback:
        """What stands in the place of ``original``. It runs several times in every step."""

        is_compiling = asks_dynamo()
        user_modes = _dispatch_modes()

        def observe(*args: Any, **kwargs: Any) -> Any:
            nonlocal light
            if is_compiling():
                return original(*args, **kwargs)
            if light is not None and self.active and not user_modes():
                try:
                    done = light(*args, **kwargs)
                except Exception as error:
                    if of_the_scripts(error):
                        raise
                    done = self.on_broken(_name(light), error)
                    light = None
                if done:
                    return original(*args, **kwargs)
            try:
                first(*args, **kwargs)
                result = original(*args, **kwargs)
            except BaseException:
                instead()
                raise
            last(result, *args, **kwargs)
            return result

        def lower(below: Callback) -> None:
            nonlocal original
            original = observed.__wrapped__ = below  # type: ignore[attr-defined]

        observe.__code__ = observe.__code__.replace(co_filename=NO_FRAME)
        observed: Callback = functools.wraps(original)(observe)
        observed.lower = lower  # type: ignore[attr-defined]
        unseen_by_dynamo(observed)
        return observed

    def on_undo(self, action: Callable[[], Any]) -> None:
        """Run ``action`` when the patches are taken off."""
        self._undo.append(action)

    def undo(self) -> None:
        """Take every patch off, newest first; one that cannot be taken off stays, and lets everything through."""
        self.active = False
        while self._undo:
            action = self._undo.pop()
            try:
                action()
            except Exception as error:
                self.on_broken("taking off a patch", error)


def _take_off(owner: Any, name: str, layer: Any) -> None:
    """Out of the middle, too, where a later watch has patched over us. Under somebody else's patch it stays, idle."""
    above, current = None, inspect.getattr_static(owner, name, None)
    while current is not layer and hasattr(current, "lower"):
        above, current = current, current.__wrapped__
    if current is not layer:
        return
    below = layer.__wrapped__
    if above is not None:
        above.lower(below)
    elif any(vars(base).get(name) is below for base in getattr(owner, "__mro__", ())[1:]):
        delattr(owner, name)
    else:
        setattr(owner, name, below)


def _name(callback: Callback) -> str:
    return f"{callback.__module__}.{callback.__qualname__}".removeprefix("flatline.sensors.")


def asks_dynamo() -> Callable[[], bool]:
    """Whether dynamo reads the function that asks. An export that runs it is seen by its modes."""
    import torch

    found: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling)
    return found


def _dispatch_modes() -> Callable[[], int]:
    """Counts the modes that would see every operation of ours."""
    import torch

    return getattr(torch._C, "_len_torch_dispatch_stack", _none)


def _none() -> int:
    return 0


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def unseen_by_dynamo(*functions: Any) -> None:
    """Dynamo leaves the frames of these alone; where it inlines them it still looks in."""
    from torch._C._dynamo import eval_frame

    if not hasattr(eval_frame, "set_code_exec_strategy"):
        return
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
    for function in functions:
        eval_frame.set_code_exec_strategy(function.__code__, skip)
