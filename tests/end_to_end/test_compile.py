"""torch.compile does the same with flatline as without: graphs, graph breaks, recompilations and losses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
WAYS = ("before", "after", "run")  # flatline.watch() before or after torch.compile, or `flatline run`
PROCESSES = [(way, "counting") for way in ("without", *WAYS)]
PROCESSES += [(way, backend) for backend in ("eager", "aot_eager") for way in ("without", "before")]
WATCHED = [pair for pair in PROCESSES if pair[0] != "without"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """
import contextlib, json, sys, warnings
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

way, backend = sys.argv[1:]
graphs = []


def counting(graph, inputs):
    done = [node.target for node in graph.graph.nodes if node.op != "placeholder"]
    graphs.append([getattr(target, "__name__", str(target)) for target in done])
    return graph.forward


def attach(when):
    if way == when:
        import flatline
        runs.append(flatline.watch())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.act = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True)
        self.drop, self.b = nn.Dropout(0.2), nn.Linear(16, 3)

    def forward(self, x):
        return self.b(self.drop(self.act(self.norm(self.a(x)))))


class Broken(Net):
    def forward(self, x):
        x = self.act(self.a(x))
        torch._dynamo.graph_break()
        return self.b(x)


def loss_of(model, x):
    return F.cross_entropy(model(x), x[:, :3].argmax(1))


def each_step(model, optimizer, sizes, forward):
    for size in sizes:
        x = torch.randn(size, 8)
        optimizer.zero_grad()
        loss = forward(x)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def module(model, optimizer, compiled, sizes):
    fast = compiled(model)
    attach("after")
    return list(each_step(model, optimizer, sizes, lambda x: loss_of(fast, x)))


def own_method(model, optimizer, compiled, sizes):
    model.compile(backend=chosen)
    attach("after")
    return list(each_step(model, optimizer, sizes, lambda x: loss_of(model, x)))


def loss_function(model, optimizer, compiled, sizes):
    fast = compiled(lambda x: loss_of(model, x))
    attach("after")
    return list(each_step(model, optimizer, sizes, fast))


def whole_step(model, optimizer, compiled, sizes):
    @compiled
    def step(x):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss
    attach("after")
    return [step(torch.randn(size, 8)).item() for size in sizes]


def optimizer_step(model, optimizer, compiled, sizes):
    step, losses = compiled(lambda: optimizer.step()), []
    attach("after")
    for size in sizes:
        x = torch.randn(size, 8)
        loss = loss_of(model, x)
        loss.backward()
        step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def validated(model, optimizer, compiled, sizes):
    losses = module(model, optimizer, compiled, sizes)
    fast = compiled(model.eval())
    for size in sizes[:3]:
        with torch.no_grad():
            losses.append(loss_of(fast, torch.randn(size, 8)).item())
    return losses


def case(name, train, *, net=Net, sizes=(16,) * 8, **options):
    if backend != "counting" and name not in ("module", "whole graph", "whole step"):
        return
    torch._dynamo.reset()
    counters.clear(), graphs.clear(), runs.clear()
    torch.manual_seed(3)
    attach("before")
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    try:
        losses = train(model, optimizer, lambda thing: torch.compile(thing, backend=chosen, **options), sizes)
    except Exception as error:
        losses = [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    notes = [note for run in runs for note in (run.close(), run.report.notes)[1]]
    stats, breaks = counters["stats"], counters["graph_break"]
    print(json.dumps([name, {
        "losses": losses, "weights": [p.double().sum().item() for p in model.parameters()], "captured": stats["calls_captured"],
        "graphs": stats["unique_graphs"], "nodes": list(graphs), "breaks": sum(breaks.values()),
        "limits": dict(counters["recompile_limit"]), "notes": notes,
    }]))


runs, chosen = [], counting if backend == "counting" else backend
case("module", module)
case("whole graph", module, fullgraph=True)
case("own method", own_method)
case("loss function", loss_function, fullgraph=True)
case("whole step", whole_step)
case("optimizer step", optimizer_step)
case("with a break", module, net=Broken)
case("sizes change", module, sizes=(16, 16, 12, 12, 7, 16, 9, 9))
case("static sizes", module, sizes=(16, 12) * 4, dynamic=False)
case("validated", validated)

torch._dynamo.reset()
torch.manual_seed(4)
attach("before")
model = Net()
attach("after")
explained = torch._dynamo.explain(model)(torch.randn(4, 8))
print(json.dumps(["explain", {"graphs": explained.graph_count, "breaks": explained.graph_break_count,
                              "ops": explained.op_count, "notes": [], "losses": []}]))
"""

CASES = [*re.findall(r'^case\("([\w ]+)"', SCRIPT, re.M), "explain"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """(way, backend) -> case -> what torch.compile did, and the errors that were printed."""
    folder = tmp_path_factory.mktemp("compile")
    (folder / "train.py").write_text(SCRIPT)
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PROCESSES, pool.map(lambda pair: _outcome(folder, *pair), PROCESSES), strict=True))


def _outcome(folder: Path, way: str, backend: str) -> dict[str, dict]:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "TORCH_LOGS": "recompiles"}
    report = folder / f"{backend}.json"
    flatline = ["-m", "flatline", "run", "--format", "json", "--output", str(report)] if way == "run" else []
    command = [sys.executable, *flatline, "train.py", way, backend]
    ended = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = dict(json.loads(line) for line in ended.stdout.splitlines())
    found["errors"] = {"lines": ended.stderr.splitlines(), "notes": []}
    if way == "run":
        found["notes"] = {"notes": json.loads(report.read_text())["notes"]}
    return found


def changed(plain: dict, watched: dict) -> dict:
    """What torch.compile did otherwise: name -> (without flatline, with it). A break fewer is no harm."""
    other = {key: (value, watched[key]) for key, value in plain.items() if watched[key] != value and key != "notes"}
    return {key: pair for key, pair in other.items() if key != "breaks" or pair[1] > pair[0]}


def recompiled(outcome: dict) -> list[str]:
    printed = "\n".join(outcome["errors"]["lines"])
    return sorted(" ".join(found) for found in re.findall(r"Recompiling function (\S+) in \S*?([^/\s]+:\d+)", printed))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("way", "backend"), WATCHED)
def test_compiles_the_same(way, backend, name, outcomes):
    plain, watched = outcomes["without", backend], outcomes[way, backend]
    assert (name in plain) == (name in watched)
    assert name not in plain or changed(plain[name], watched[name]) == {}


@pytest.mark.parametrize(("way", "backend"), WATCHED)
def test_no_sensor_breaks(way, backend, outcomes):
    assert [note for case in outcomes[way, backend].values() for note in case["notes"]] == []


@pytest.mark.parametrize("name", ["module", "whole graph", "loss function"])
@pytest.mark.parametrize("way", ["without", *WAYS])
def test_one_graph_and_no_break(way, name, outcomes):
    """Against a script in which nothing compiles, with or without flatline."""
    case = outcomes[way, "counting"][name]
    assert (case["graphs"], len(case["nodes"]), case["breaks"]) == (1, 1, 0)
    assert len(case["losses"]) == 8
    assert all(isinstance(loss, float) for loss in case["losses"])


@pytest.mark.parametrize(("way", "backend"), WATCHED)
def test_recompiles_the_same(way, backend, outcomes):
    plain = recompiled(outcomes["without", backend])
    assert plain or backend != "counting"
    assert recompiled(outcomes[way, backend]) == plain


def test_flatline_itself_is_never_compiled(outcomes):
    """After a graph break dynamo compiles whatever is called, sensors too, unless they keep out of its sight."""
    printed = [line for pair in WATCHED for line in outcomes[pair]["errors"]["lines"]]
    assert [line for line in printed if str(SOURCE) in line] == []
