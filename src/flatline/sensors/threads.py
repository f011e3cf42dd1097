"""One thread trains at a time, or nobody looks: gradients that one thread writes cannot be read from another."""

from __future__ import annotations

import os
import sys
import threading
import time

from flatline.sensors.patching import Patches

WAITING = tuple(  # the files of Python in which a thread waits for another
    os.path.join(os.path.dirname(threading.__file__), name) for name in ("threading.py", "queue.py", "selectors.py")
)
PATIENCE = 1.0  # seconds for a callback in another thread


class SeveralThreads(Exception):
    """Two threads train at the same time."""


class Training:
    """The thread whose backward ran last. Another may take over from one that has ended, or waits."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self.identity = 0
        self._thread: threading.Thread | None = None

    def takes_over(self) -> bool:
        """Called by a thread other than the last one, before its backward: whether it may be watched."""
        me = threading.current_thread()
        if isinstance(me, threading._DummyThread):  # of autograd, for a backward inside the backward
            return True
        if self._thread is not None and self._thread.is_alive() and not _waits(self._thread):
            self._stop()
            return False
        self._thread, self.identity = me, threading.get_ident()
        return True

    def _stop(self) -> None:
        """For good, and not before callbacks in other threads have come to their end."""
        if self.patches.active:
            self.patches.active = False
            self.patches.on_broken("the watch", SeveralThreads("another thread began to train at the same time"))
        until = time.monotonic() + PATIENCE
        while self.patches.busy_elsewhere() and time.monotonic() < until:
            time.sleep(0)  # the other one needs Python's lock


def _waits(thread: threading.Thread) -> bool:
    """Its innermost frame is a wait for something: a join, a queue."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is None or frame.f_code.co_filename in WAITING
