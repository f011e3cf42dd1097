"""Tokens as text: whatever lies in reach of the script's frames."""

from __future__ import annotations

import pytest

from flatline.preflight.texts import decoded, decoder


class Config(dict):
    __getattr__ = dict.__getitem__


class Raising:
    def __getattr__(self, name):
        raise RuntimeError(name)


class Odd(dict):
    def __bool__(self):
        raise RuntimeError


class Tokenizer:
    def encode(self, text):
        return [ord(each) for each in text]

    def decode(self, tokens):
        return "".join(map(chr, tokens))


@pytest.mark.parametrize("nuisance", [Config(lr=1), Raising(), Odd()], ids=["attributes", "raising", "odd"])
def test_objects_that_raise_are_passed_over(nuisance, monkeypatch):
    monkeypatch.setattr("flatline.preflight.texts._in_reach", lambda: iter([nuisance, Tokenizer()]))
    found = decoder([104, 105])
    assert found is not None
    assert decoded(found, [104, 105]) == "hi"


def test_tables_and_what_is_none():
    def reach(value):
        return lambda: iter([value])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flatline.preflight.texts._in_reach", reach({0: "a", 1: "b"}))
        found = decoder([0, 1])
        assert found is not None
        assert decoded(found, [1, 0]) == "ba"
        patch.setattr("flatline.preflight.texts._in_reach", reach("text"))
        assert decoder([0, 1]) is None
