"""Reading Python source: files, names, tensors and loops."""

from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatline.readers.source import _project
from flatline.readers.source._files import Text, Unparsable, find, notebook, parse, python, read
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module


def event_of(code: str, **others: str):
    project = Project()
    for name, source in {**others, "train": code}.items():
        text = Text(f"{name}.py", tuple(source.split("\n")))
        project.add(Module(text, parse(text)), text.path)
    return _project.event(project, text)


def feed(code: str, **others: str) -> str:
    losses = event_of(f"import torch\nfrom torch import nn\nimport torch.nn.functional as F\n{code}", **others).losses
    return losses[-1].fed_by if losses else ""


# --------------------------------------------------------------------------- files


def test_finds_files_and_follows_no_link(tmp_path):
    (tmp_path / "a.py").write_text("")
    (tmp_path / "b.ipynb").write_text("{}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "c.py").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = find([str(tmp_path), str(tmp_path / "missing")])
    assert [os.path.basename(path) for path in found.files] == ["a.py", "b.ipynb"]
    assert len(found.missing) == 1


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"\xef\xbb\xbfx = 1\n", ("x = 1", "")),
        (b"x = 1\r\ny = 2\r\n", ("x = 1", "y = 2", "")),
        (b"# coding: latin-1\ns = '\xe4'\n", ("# coding: latin-1", "s = 'ä'", "")),
        (b"", ("",)),
    ],
)
def test_decodes_like_python(data, lines):
    assert python("a.py", data).lines == lines


@pytest.mark.parametrize("data", [b"# coding: nothing\n", b"s = '\xe4'\n"])
def test_undecodable_is_one_line(data):
    with pytest.raises(Unparsable) as error:
        python("a.py", data)
    assert str(error.value).count("\n") == 0


def test_python_2_is_named():
    with pytest.raises(Unparsable, match=r"a.py:1: cannot be parsed.*Python 2"):
        parse(python("a.py", b"print 'loss'\n"))


def test_unreadable_file(tmp_path):
    with pytest.raises(Unparsable):
        read(str(tmp_path / "gone.py"))


def test_notebook_counts_lines_of_cells():
    cells = [
        {"cell_type": "markdown", "source": ["# title"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip install x\n", "import torch"]},
        {"cell_type": "code", "source": "%%bash\nls"},
        {"cell_type": "code", "source": "x = 1\nfiles = !ls\nx?"},
    ]
    text = notebook("n.ipynb", json.dumps({"cells": cells}).encode())
    parse(text)
    assert text.place(3) == ("n.ipynb:cell 2", 3)
    assert text.place(len(text.lines)) == ("n.ipynb:cell 4", 3)


def test_a_broken_cell_leaves_the_others():
    cells = [{"cell_type": "code", "source": "def f(:\n  x"}, {"cell_type": "code", "source": "import torch"}]
    text = notebook("n.ipynb", json.dumps({"cells": cells}).encode())
    assert len(parse(text).body) == 1


@pytest.mark.parametrize("data", [b"{}", b"[1]", b"\xff", b'{"cells": [1]}'])
def test_no_notebook(data):
    with pytest.raises(Unparsable, match="as a notebook"):
        notebook("n.ipynb", data)


# --------------------------------------------------------------------------- names and tensors


@pytest.mark.parametrize(
    "code",
    [
        "F.cross_entropy(torch.softmax(x, 1), y)",
        "F.cross_entropy(input=x.softmax(1), target=y)",
        "p = F.softmax(x, 1)\nq = p.view(-1, 3)\nF.cross_entropy(q, y)",
        "m = nn.Sequential(nn.Linear(2, 2), nn.Softmax(1))\nc = nn.CrossEntropyLoss()\nc(m(x), y)",
        "m = nn.DataParallel(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1))).cuda()\nF.cross_entropy(m(x), y)",
        "s = nn.Softmax(dim=1) if a else nn.Softmax(dim=-1)\nF.cross_entropy(s(x), y)",
        "def f(z):\n    return F.softmax(z, 1), z\nf(x)\np, z = f(x)\nF.cross_entropy(p, y)",
        "def loss(p, y):\n    return F.cross_entropy(p, y)\nloss(x.softmax(1), y)\nloss(y=y, p=z.softmax(0))",
    ],
)
def test_follows_a_softmax(code):
    assert feed(code) == "softmax"


@pytest.mark.parametrize(
    "code",
    [
        "p = F.softmax(x, 1)\np = net(p)\nF.cross_entropy(p, y)",
        "p = net(x)\nfor _ in range(3):\n    p = F.softmax(p, 1)\nF.cross_entropy(p, y)",
        "if a:\n    p = F.softmax(x, 1)\nelse:\n    p = x\nF.cross_entropy(p, y)",
        "p = F.softmax(x, 1)\n[F.cross_entropy(p, y) for p in batches]",
        "def loss(p, y):\n    return F.cross_entropy(p, y)\nloss(x.softmax(1), y)\nloss(x, y)",
        "F = other\nF.cross_entropy(F.softmax(x, 1), y)",
        "p = F.softmax(x, 1) @ v\nF.cross_entropy(p, y)",
    ],
)
def test_is_silent_where_it_may_be_something_else(code):
    assert feed(code) != "softmax"


def test_a_branch_that_returns_does_not_flow_on():
    code = "def f(p):\n    if a:\n        p = F.softmax(p, 1)\n        return p\n    return F.cross_entropy(p, y)"
    assert feed(code) == ""


def test_base_class_in_another_file():
    other = "import torch\nfrom torch import nn\nclass Base(nn.Module):\n    def forward(self, x):\n        return torch.sigmoid(x)"
    code = "from base import *\nclass Net(Base):\n    pass\nF.binary_cross_entropy_with_logits(Net()(x), y)"
    assert feed(code, base=other) == "sigmoid"


# --------------------------------------------------------------------------- loops


def ways(body: str) -> list[str]:
    code = f"import torch\nopt = torch.optim.SGD(p, 0.1)\nfor x in data:\n{body}"
    loops = [loop for loop in event_of(code).loops if loop.repeats]
    return [" ".join(tick.kind for tick in path) for path in loops[0].paths] if loops else []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("  opt.zero_grad(); l.backward(); opt.step()", ["zero backward step"]),
        ("  l.backward()\n  if a: opt.step()", ["backward step", "backward"]),
        ("  if a: l.backward()\n  if not a: opt.step()", ["backward", "step"]),
        ("  if bad(x): continue\n  l.backward()\n  opt.step()", ["", "backward step"]),
        ("  for _ in range(3): l.backward()\n  opt.step()", ["backward step"]),
        ("  try:\n    l.backward()\n  finally:\n    opt.step()", ["backward step"]),
        ("  with torch.enable_grad():\n    l.backward()\n  train(opt)\n  opt.step()", ["backward opaque step"]),
    ],
)
def test_ways_through_a_loop(body, expected):
    assert sorted(ways(body)) == sorted(expected)


def test_functions_are_inlined_and_recursion_ends():
    code = "import torch\nopt = torch.optim.SGD(p, 0.1)\ndef go(o, n):\n  l.backward()\n  o.step()\n  go(o, n - 1)\nwhile True:\n  go(opt, 3)"
    (loop,) = [loop for loop in event_of(code).loops if loop.repeats]
    assert {tick.kind for path in loop.paths for tick in path} == {"backward", "step"}
    assert len({tick.of for path in loop.paths for tick in path if tick.kind == "step"}) == 1


def test_too_many_ways_are_left_alone():
    assert ways("".join(f"  if a{n}: opt.step()\n" for n in range(12))) == []


# --------------------------------------------------------------------------- never a crash

NAMES = st.sampled_from(["x", "loss", "opt", "model", "self", "F", "torch", "nn"])
METHODS = st.sampled_from(["backward", "step", "zero_grad", "eval", "train", "softmax", "item", "detach", "parameters"])
ATOMS = st.one_of(NAMES, st.just("torch.optim.SGD(model.parameters())"), st.just("nn.Linear(1, 2)"), st.just("(0)"))
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("{}.{}({})".format, inner, METHODS, inner),
        st.builds("F.cross_entropy({}, {})".format, inner, inner),
        st.builds("({} + {})".format, inner, inner),
        st.builds("[{} for x in {}]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
    ),
    max_leaves=6,
)
SIMPLE = st.one_of(
    st.builds("{} = {}".format, NAMES, EXPRESSIONS),
    st.builds("{} += {}".format, NAMES, EXPRESSIONS),
    st.builds("self.{} = {}".format, NAMES, EXPRESSIONS),
    st.builds("return {}".format, EXPRESSIONS),
    EXPRESSIONS,
)


def _block(head: str, body: list[str]) -> str:
    return head + ":\n" + "\n".join("    " + line for part in body for line in part.split("\n"))


BLOCKS = st.recursive(
    SIMPLE,
    lambda inner: st.builds(
        _block,
        st.one_of(
            st.builds("for {} in {}".format, NAMES, EXPRESSIONS),
            st.builds("if {}".format, EXPRESSIONS),
            st.builds("def {}({}, y)".format, NAMES, NAMES),
            st.builds("class {}({})".format, NAMES, NAMES),
            st.just("with torch.no_grad()"),
            st.just("while True"),
        ),
        st.lists(inner, min_size=1, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(BLOCKS, min_size=1, max_size=5))
def test_never_crashes(blocks):
    source = "def outer(self):\n" + "\n".join("    " + line for b in blocks for line in b.split("\n"))
    header = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
    assert event_of(f"{header}{source}\n").file == "train.py"


def test_reads_the_standard_library():
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.glob("*.py"))[:60]:
        text = read(str(path))
        assert _project.event(Project(), text).losses == ()
