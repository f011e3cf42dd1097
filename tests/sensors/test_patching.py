"""Patches come off in any order, and never take anybody else's off."""

from __future__ import annotations

import functools
import itertools
import operator
import pickle
import random
import signal
import types
import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("numpy")

import numpy
import torch
from torch import nn

import flatline
from flatline.sensors.patching import Patches


def plain(x):
    return x + 1


class Watch:
    """Patches on ``owner.f`` that count its calls."""

    def __init__(self, owner, also=None):
        self.calls, self.broken = 0, []
        self.patches = Patches(on_broken=lambda *what: self.broken.append(what))
        assert self.patches.around(owner, "f", before=self.count, also=also)

    def count(self, *args):
        self.calls += 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_undo_in_any_order(order):
    owner, public = types.SimpleNamespace(f=plain), types.SimpleNamespace(f=plain)
    watches = [Watch(owner, also=public) for _ in range(3)]
    for closed, number in enumerate(order):
        before = [watch.calls for watch in watches]
        assert owner.f(1) == public.f(1) == 2
        assert sum(watch.calls for watch in watches) - sum(before) == 2 * (3 - closed)
        watches[number].patches.undo()
    assert owner.f is public.f is plain
    assert [watch.broken for watch in watches] == [[], [], []]


def test_somebody_elses_patch_stays_and_ours_lets_through():
    owner = types.SimpleNamespace(f=plain)
    first, second = Watch(owner), Watch(owner)
    inner = owner.f

    @functools.wraps(inner)
    def theirs(x):
        return 10 * inner(x)

    owner.f = theirs
    second.patches.undo()
    first.patches.undo()
    assert owner.f is theirs
    assert owner.f(1) == 20
    assert (first.calls, second.calls) == (0, 0)


def test_other_place_with_another_function_is_left_alone():
    owner, public = types.SimpleNamespace(f=plain), types.SimpleNamespace(f=len)
    watch = Watch(owner, also=public)
    assert public.f is len
    watch.patches.undo()
    assert (owner.f, public.f) == (plain, len)


def test_inherited_function_is_inherited_again():
    class Base:
        def f(self):
            return 1

    class Child(Base):
        pass

    first, second = Watch(Child), Watch(Child)
    assert Child().f() == 1
    first.patches.undo()
    second.patches.undo()
    assert "f" not in vars(Child)
    assert (first.calls, second.calls) == (1, 1)


def test_undo_that_fails_leaves_the_others_to_be_undone():
    owner = types.SimpleNamespace(f=plain)
    watch = Watch(owner)
    watch.patches.on_undo(lambda: 1 / 0)
    watch.patches.undo()
    assert owner.f is plain
    assert len(watch.broken) == 1


def warns(x):
    warnings.warn("look here", UserWarning, stacklevel=2)
    return x


def test_warnings_of_a_patched_function_name_its_caller():
    owner = types.SimpleNamespace(f=warns)
    Watch(owner)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        owner.f(1)
    assert [warning.filename for warning in caught] == [__file__]


def test_what_is_patched_can_be_pickled():
    """As a part of a data set, or of a loader, whose workers are spawned."""
    functions = "load", "nn.utils.clip_grad_norm_", "nn.Module.train"
    with flatline.watch():
        held = [random.seed, numpy.random.seed, *(operator.attrgetter(name)(torch) for name in functions)]
        assert [pickle.loads(pickle.dumps(each)) is each for each in held] == [True] * len(held)


class Late(Exception):
    """A time limit of the script's."""


class Limit:
    """As a method, or with whatever it is called with."""

    def over(self, number, frame):
        raise Late

    def __call__(self, *given):
        raise Late


@pytest.mark.parametrize("handler", [Limit().over, Limit(), functools.partial(lambda about, *_: Limit()(), "about")])
@pytest.mark.parametrize("place", ["before", "after", "light"])
def test_what_a_signal_raises_while_we_look_is_raised(place, handler):
    def look(*args):
        signal.raise_signal(signal.SIGUSR1)

    owner, broken = types.SimpleNamespace(f=plain), []
    patches = Patches(on_broken=lambda *what: broken.append(what))
    patches.around(owner, "f", **{place: look})
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(2):
            with pytest.raises(Late):
                owner.f(1)
    finally:
        signal.signal(signal.SIGUSR1, before)
        patches.undo()
    assert broken == []


class Told(nn.Parameter):
    """Is told of every function that it is given to."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        TOLD.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


TOLD = []


def trained():
    model = nn.Linear(4, 2)
    model.weight = Told(model.weight.data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 2).backward()
        optimizer.step()


def test_a_subclass_of_a_tensor_is_told_of_nothing_more():
    trained()
    by_itself = [*TOLD]
    TOLD.clear()
    with flatline.watch() as run:
        trained()
    assert by_itself == TOLD
    assert run._session.notes == []
