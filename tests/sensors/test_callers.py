"""Variables of running functions are read, and left as they are."""

from __future__ import annotations

import gc
import sys
import weakref

import torch
from torch import nn

import flatline
from flatline.sensors.callers import variables_of


class Thing:
    """May be referred to weakly."""


def read_and_deleted():
    """Without an assertion: pytest writes ``locals()`` into functions that have one."""
    thing = Thing()
    read = variables_of(sys._getframe())["thing"] is thing
    ref = weakref.ref(thing)
    del thing
    return read, ref()


def test_what_was_read_is_let_go():
    assert read_and_deleted() == (True, None)


def test_a_dictionary_from_locals_stays_as_it_was():
    def read(setting):
        kept = locals()
        later = setting
        variables_of(sys._getframe())
        return kept, later

    assert read(3) == ({"setting": 3}, 3)


def kept_elsewhere(setting):
    kept = sys._getframe().f_locals
    read = variables_of(sys._getframe())
    return read["setting"], kept["setting"]


def test_a_dictionary_that_somebody_keeps_is_not_emptied():
    assert kept_elsewhere(3) == (3, 3)


def test_names_that_exec_made_stay():
    exec("made = 3")
    variables_of(sys._getframe())
    assert eval("made") == 3


class Model:
    def eval(self):
        return self


def test_a_method_by_the_name_of_a_function_that_gives_variables_away():
    def read(model):
        model.eval()
        return variables_of(sys._getframe())

    assert list(read(Model())) == ["model"]


def test_nothing_lives_on_in_a_function_that_trained():
    with flatline.watch() as run:
        model = nn.Sequential(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(9):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        refs = [weakref.ref(model), weakref.ref(optimizer)]
        del model, optimizer
        gc.collect()
        assert [ref() for ref in refs] == [None, None]
        assert run._session.notes == []
