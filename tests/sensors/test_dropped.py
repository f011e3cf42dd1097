"""Is what a statement builds given to nobody?"""

from __future__ import annotations

import linecache

import pytest

from flatline.events import Where
from flatline.sensors.dropped import dropped_statement

LOOP = """
def inject(model):
    for name, layer in model.named_modules():
        if wanted(name):
            {statement}
        else:
            print(layer)
    {after}
    return model
"""
FACTORY = """
def swap(layer):
    if wanted(layer):
        return Adapter(layer)
    return layer
{use}
"""


def dropped(tmp_path, text):
    file = tmp_path / "train.py"
    file.write_text(text, encoding="utf-8")
    linecache.checkcache()
    line = 1 + text[: text.index("Adapter(")].count("\n")
    return dropped_statement(Where(str(file), line, ""), "Adapter")


@pytest.mark.parametrize(
    "statement",
    ["layer = Adapter(layer)", "new = Adapter(layer)", "Adapter(layer)", "layer = Adapter(layer) if name else layer"],
)
def test_a_name_that_nothing_reads(tmp_path, statement):
    assert dropped(tmp_path, LOOP.format(statement=statement, after="pass")) == statement


@pytest.mark.parametrize(
    "text",
    [
        "layers = dict(model.named_modules())\nfor name in names:\n    layers[name] = Adapter(model)",
        "for a in x:\n    for b in a:\n        b = Adapter(b)",
        FACTORY.format(use="model.apply(swap)"),
        FACTORY.format(use="for layer in model.children():\n    swap(layer)"),
        FACTORY.format(use="for layer in model.children():\n    layer = swap(layer)"),
    ],
)
def test_a_copy_and_a_result(tmp_path, text):
    assert dropped(tmp_path, text)


@pytest.mark.parametrize(
    ("statement", "after"),
    [
        ("layer = Adapter(layer)", "use(layer)"),
        ("layer = Adapter(layer); setattr(model, name, layer)", "pass"),
        ("model.layer = Adapter(layer)", "pass"),
        ("layers[name] = Adapter(layer)", "pass"),
        ("kept.append(Adapter(layer))", "return kept"),
        ("setattr(model, name, Adapter(layer))", "pass"),
        ("model = Adapter(layer)", "pass"),
        ("global last; last = Adapter(layer)", "pass"),
        ("yield Adapter(layer)", "pass"),
    ],
)
def test_read_or_kept(tmp_path, statement, after):
    assert dropped(tmp_path, LOOP.format(statement=statement, after=after)) == ""


@pytest.mark.parametrize(
    "use", ["model.layer = swap(model.layer)", "replace(model, swap)", "", "model = swap(model)\nmodel(x)"]
)
def test_a_result_that_is_used(tmp_path, use):
    assert dropped(tmp_path, FACTORY.format(use=use)) == ""
