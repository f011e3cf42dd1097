"""How long a loop waits for its batches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flatline.sensors import waiting
from flatline.sensors.loop import Loop
from flatline.sensors.patching import Patches


class Iterator(SimpleNamespace):
    """Unlike its base, it may be referred to weakly, as torch's iterators may."""


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(value=1)
    monkeypatch.setattr(waiting.time, "perf_counter_ns", lambda: now.value)
    return now


def test_the_wait_and_the_rest(clock):
    told = []
    patches = Patches(on_broken=lambda *_: None)
    loop = Loop(told.append, wants=lambda _: True, budget=1.0, patches=patches)
    loop.dense, watch = False, waiting.Waiting(loop, patches)
    iterator = Iterator(_flatline_order=SimpleNamespace(served=0))
    for step in range(9):
        patches.timed = step % 2 == 0
        assert watch.asked(iterator) is False
        clock.value += 3_000_000
        watch.served(iterator)
        iterator._flatline_order.served += 1
        clock.value += 1_000_000
    watch.tell(2)
    (event,) = told
    assert (event.steps, event.wait, event.share, event.workers) == (3, 0.003, 0.75, 2)


def test_another_loader_in_between(clock):
    patches = Patches(on_broken=lambda *_: None)
    loop = Loop(print, wants=lambda _: True, budget=1.0, patches=patches)
    loop.dense, watch = False, waiting.Waiting(loop, patches)
    first, second = (Iterator(_flatline_order=SimpleNamespace(served=1)) for _ in range(2))
    for iterator in (first, second):
        watch.asked(iterator)
        clock.value += 5
        watch.served(iterator)
    assert watch.steps == 0
