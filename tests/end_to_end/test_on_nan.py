"""``flatline run --on-nan``: what is named, what is kept, and that training goes on as it would have."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from flatline.config import Config, kept_in
from flatline.events import NonFiniteReplayed
from flatline.launch import StopNonFinite, stop_non_finite
from flatline.reporters import text
from flatline.sensors.replay import watching
from flatline.session import OnNan, Session

SOURCE = Path(__file__).resolve().parents[2] / "src"


class Watched:
    """A run in this process."""

    def __init__(self, act, mode, folder=None) -> None:
        self.lines: list[str] = []
        self.ended = False
        session = self.session = Session(Config(), keeping=kept_in(str(folder)) if folder is not None else None)
        session.on_nan = OnNan(mode, stop_non_finite, self.lines.append)
        emit, self.replayed = session.engine.emit, []
        session.engine.emit = lambda event: (
            self.replayed.append(event) if isinstance(event, NonFiniteReplayed) else None,
            emit(event),
        )
        session.attach()
        try:
            act()
        except StopNonFinite:
            self.ended = True
        finally:
            session.finish("non-finite" if self.ended else "finished")
        self.steps = session.report().run["steps"]
        self.broken = [note for note in session.notes if "switched off" in note]

    @property
    def codes(self) -> list[str]:
        return [finding.code for finding in self.session.findings]

    @property
    def event(self) -> NonFiniteReplayed:
        assert self.broken == []
        (event,) = self.replayed
        return event

    @property
    def message(self) -> str:
        (finding,) = self.session.findings
        return finding.message


def step(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def line_of(text: str) -> int:
    """The number of the line of this file that ends with this comment."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


# --------------------------------------------------------------------------- sick models


class Log(nn.Module):
    """The logarithm of something that is 0 for a sample far away."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        near = (x.abs().amax(1, keepdim=True) < 100).float()
        return torch.log(torch.sigmoid(self.drop(self.scores(x))) * near)  # the logarithm


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(torch.exp(x))  # the exponential


class Distance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4, bias=False)

    def forward(self, x, z):
        difference = self.embed(x) - self.embed(z)
        return (difference * difference).sum(1).sqrt()  # the root


def train_log():
    torch.manual_seed(0)
    x, y = torch.randn(160, 4), torch.randint(0, 3, (160,))
    x[96] = 500.0
    model = nn.Sequential(OrderedDict(body=nn.Linear(4, 4), head=Log()))
    nn.init.eye_(model.body.weight)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for a, b in DataLoader(TensorDataset(x, y), 8, shuffle=True):
        step(model, optimizer, F.cross_entropy(model(a), b))


def train_distance(steps=40, bad=23, guarded=False):
    torch.manual_seed(0)
    model = Distance()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for at in range(1, steps + 1):
        x, z = torch.randn(8, 4), torch.randn(8, 4)
        if at == bad or (guarded and at in (bad + 3, bad + 6, bad + 8)):
            z[5] = x[5]
        loss = (model(x, z) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if not guarded or all(bool(p.grad.isfinite().all()) for p in model.parameters()):
            optimizer.step()
    return model


# --------------------------------------------------------------------------- replay


def test_a_logarithm_in_a_module(tmp_path):
    run = Watched(train_log, "replay", tmp_path / "kept")
    event = run.event
    assert (event.operation, event.kind, event.phase, event.module) == ("log", "inf", "forward", "head")
    assert (event.where.file, event.where.line) == (__file__, line_of("the logarithm"))
    assert event.low == 0.0
    assert 0 < event.high < 1
    assert (len(event.rows), event.samples, event.indices, event.exact) == (1, 8, (96,), True)
    assert run.codes == ["N1"]
    assert "done again on a copy, log made inf in head" in run.message
    assert "data set index 96" in run.message


def test_what_is_kept_makes_it_again(tmp_path):
    event = Watched(train_log, "replay", tmp_path / "kept").event
    kept = torch.load(event.file)
    model = nn.Sequential(OrderedDict(body=nn.Linear(4, 4), head=Log()))
    model.load_state_dict(kept["state_dict"])
    model.train(kept["training"])
    torch.set_rng_state(kept["rng"])
    output = model(*kept["inputs"], **kept["keywords"])
    assert not bool(F.cross_entropy(output, *kept["targets"]).isfinite())
    assert (kept["rows"], kept["indices"]) == (list(event.rows), [96])


def test_a_division_in_the_loop():
    def train():
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for at in range(30):
            x, mask = torch.randn(8, 4), torch.ones(8)
            if at == 17:
                mask = torch.zeros(8)
            error = ((model(x).squeeze(1) - x.sum(1)) ** 2 * mask).sum()
            loss = error / mask.sum()  # the division
            step(model, optimizer, loss)

    run = Watched(train, "replay")
    event = run.event
    assert (event.operation, event.module, event.low, event.high) == ("div", "", 0.0, 0.0)
    assert event.where.line == line_of("the division")
    assert run.codes == ["N1"]


def test_a_root_at_0_in_the_backward():
    run = Watched(train_distance, "replay")
    event = run.event
    assert event.operation.startswith("SqrtBackward0")
    assert (event.phase, event.where.line, event.rows, event.samples) == ("backward", line_of("the root"), (5,), 8)
    assert (event.step, event.low) == (23, 0.0)
    assert run.codes == ["N2"]
    assert "step 23" in run.message


def test_an_exponential_of_one_sample():
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(OrderedDict(first=nn.Linear(4, 8), gate=Gate(), act=nn.Tanh(), out=nn.Linear(8, 2)))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for at in range(20):
            x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
            if at == 12:
                x[11] = 3e3
            step(model, optimizer, F.cross_entropy(model(x), y))

    event = Watched(train, "replay").event
    assert (event.operation, event.module, event.rows, event.indices) == ("exp", "gate", (11,), ())
    assert event.where.line == line_of("the exponential")
    assert event.high > 88


@pytest.mark.parametrize("bad", ["x", "y"])
def test_nan_in_the_data(bad):
    def train():
        torch.manual_seed(0)
        x = torch.randn(64, 4)
        y = x.sum(1, keepdim=True)
        {"x": x, "y": y}[bad][41, 0] = float("nan")
        model = nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for a, b in DataLoader(TensorDataset(x, y), 8, shuffle=True):
            step(model, optimizer, F.mse_loss(model(a), b))

    run = Watched(train, "replay")
    event = run.event
    assert (event.operation, event.kind, event.indices, event.where) == ("batch", "nan", (41,), None)
    assert run.codes == ["N1"]


def test_a_model_that_returns_its_loss_and_accumulates():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

        def forward(self, input_ids=None, labels=None):
            scores = self.head(self.embed(input_ids))
            each = F.cross_entropy(scores.transpose(1, 2), labels, reduction="none", ignore_index=-100)
            return {"loss": (each.sum(1) / (labels != -100).sum(1)).mean(), "scores": scores}

    def train():
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for at in range(60):
            ids, labels = torch.randint(0, 50, (8, 6)), torch.randint(0, 50, (8, 6))
            if at == 41:
                labels[3] = -100
            (model(input_ids=ids, labels=labels)["loss"] / 4).backward()
            if at % 4 == 3:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    event = Watched(train, "replay").event
    assert (event.operation, event.rows, event.samples, event.step) == ("div", (3,), 8, 11)


def test_two_optimizers():
    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, z):
            h = self.layer(z)
            return h * (h * h).sum(1, keepdim=True).sqrt()

    def train():
        torch.manual_seed(0)
        generator, critic = Generator(), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        first, second = (torch.optim.Adam(model.parameters(), 1e-3) for model in (generator, critic))
        for at in range(40):
            z = torch.randn(8, 4)
            if at == 25:
                z[6] = 0
            fake = generator(z)
            real = F.softplus(-critic(torch.randn(8, 4))).mean()
            step(critic, second, real + F.softplus(critic(fake.detach())).mean())
            step(generator, first, F.softplus(-critic(fake)).mean())

    event = Watched(train, "replay").event
    assert (event.operation.partition(":")[0], event.module, event.rows) == ("SqrtBackward0", "generator", (6,))


def test_inputs_that_the_model_changes_and_things_that_it_keeps():
    class Notes:
        def __init__(self) -> None:
            self.rows, self.random = [], random.Random(3)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm, self.notes, self.count = nn.Linear(4, 8), nn.BatchNorm1d(8), Notes(), 0
            self.own = torch.Generator().manual_seed(5)
            self.state = None

        def forward(self, x):
            self.count += 1
            self.notes.rows.append(self.notes.random.random())
            x += torch.randn(x.shape, generator=self.own)
            h = self.norm(self.layer(x)) + torch.rand(())
            self.state = h.detach()
            return (h * h).sum(1).sqrt() if self.count not in (15, 18, 21) else (0 * h).sum(1).sqrt()

    def train():
        torch.manual_seed(0)
        model = Model()
        seen = []
        model.layer.register_forward_hook(lambda *_: seen.append(random.random()))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        random.seed(4)
        for _ in range(25):
            loss = model(torch.randn(16, 4)).mean()
            optimizer.zero_grad()
            loss.backward()
            grads = [p.grad for p in model.parameters()]
            if all(bool(g.isfinite().all()) for g in grads):
                optimizer.step()
        facts = model.count, model.notes.rows, seen, model.notes.random.random(), random.random(), torch.rand(3)
        digests.append((*map(str, facts), digest(model), torch.rand(3, generator=model.own).tolist()))

    digests: list[object] = []
    train()
    run = Watched(train, "replay")
    assert digests[0] == digests[1]
    assert (run.codes, run.replayed, run.broken) == ([], [], [])


def digest(model) -> str:
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()


def test_a_loop_that_leaves_bad_steps_out_is_left_alone():
    finished = train_distance(guarded=True)
    models = []
    for mode in ("replay", "stop"):
        run = Watched(lambda: models.append(train_distance(guarded=True)), mode)
        assert (run.codes, run.replayed, run.lines, run.ended) == ([], [], [], False)
    assert {digest(model) for model in models} == {digest(finished)}


def test_a_forward_that_calls_the_original_is_not_run_again():
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Distance())
        whole = model[0].forward
        model[0].forward = lambda x: 1 * whole(x)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for at in range(12):
            x = torch.randn(8, 4)
            h = model[0](x)
            loss = (h * h * (at != 8)).sum(1).sqrt().mean()
            optimizer.zero_grad()
            loss.backward()
            before = [p.grad.clone() for p in model[0].parameters()]
            assert all(p.grad.equal(g) or g.isnan().any() for p, g in zip(model[0].parameters(), before, strict=True))
            optimizer.step()

    run = Watched(train, "replay")
    assert run.codes == ["N2"]
    assert (run.event.operation, run.broken) == ("", [])
    assert any("parameters that are not its own" in line for line in run.lines)


def test_the_model_is_larger_than_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "BUDGET", 40)
    run = Watched(train_log, "replay", tmp_path / "kept")
    kept = torch.load(run.event.file)
    assert "state_dict" not in kept
    assert kept["inputs"][0].shape == (8, 4)
    assert any("a copy needs more than" in line for line in run.lines)
    assert any("the last good weights are not kept" in line for line in run.lines)
    assert run.codes == ["N1"]


def test_weights_that_were_gone_before_leave_the_last_good_ones(tmp_path):
    def train():
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for at in range(12):
            x = torch.randn(8, 4)
            step(model, optimizer, F.mse_loss(model(x), x.sum(1, keepdim=True)))
            if at == 8:
                with torch.no_grad():
                    model.weight.fill_(float("inf"))

    event = Watched(train, "replay", tmp_path / "kept").event
    kept = torch.load(event.file)
    assert event.operation == "parameter weight"
    assert 0 < kept["good_step"] <= 9
    assert all(bool(value.isfinite().all()) for value in kept["good_weights"].values())


def test_the_lines_that_run_the_batch_again_can_be_copied(tmp_path):
    run = Watched(train_log, "replay", tmp_path / ("a long way to the folder of the record " * 4).strip())
    shown = text.render(run.session.report(), width=80).splitlines()
    code = [line.strip() for line in run.lines if line.startswith("    ")]
    assert len(code) == 3
    assert [" ".join(line.split()) for line in code] == [line.strip() for line in shown if line.startswith("      ")][
        -3:
    ]


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_a_closure(bad):
    def train():
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=6)
        for at in range(6):
            x = torch.randn(8, 4)

            def closure(x=x, at=at):
                optimizer.zero_grad()
                made = model(x)
                loss = made.square().mean()
                if at == 4:
                    off = made * 0
                    loss = loss + (off.log().mean() if bad == "loss" else off.square().sqrt().mean())
                loss.backward()
                return loss

            optimizer.step(closure)

    run = Watched(train, "replay")
    operation, phase = ("log", "forward") if bad == "loss" else ("SqrtBackward0: div", "backward")
    assert (run.event.operation, run.event.phase, run.event.low, run.event.step) == (operation, phase, 0.0, 5)
    assert run.codes == ["N1" if bad == "loss" else "N2"]
    assert run.lines == ["--on-nan replay: no record is kept, so the batch is not saved"]


class Counting(nn.Module):
    """Goes on with every call, and writes it down."""

    def __init__(self, log, numbers) -> None:
        super().__init__()
        self.inner, self.log, self.numbers = nn.Linear(4, 1), log, numbers
        self.open = log.open("a", encoding="utf-8")

    def forward(self, x):
        number = next(self.numbers)
        self.open.write(f"{number}\n")
        with self.log.with_suffix(".closed").open("a", encoding="utf-8") as file:
            file.write(f"{number}\n")
        return self.inner(x)


@pytest.mark.parametrize(
    "numbers", [itertools.count(), iter([*range(99)]), (n for n in range(99))], ids=["count", "list", "generator"]
)
def test_what_a_module_goes_through_and_writes_stays(tmp_path, numbers):
    model = Counting(tmp_path / "log", numbers)

    def train():
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for at in range(8):
            made = model(torch.ones(4, 4))
            loss = made.square().mean() + (torch.log(made * 0).mean() if at == 6 else 0)
            optimizer.zero_grad()
            loss.backward()

    run = Watched(train, "replay")
    assert next(numbers) == 8
    model.open.close()
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines() == [*map(str, range(8))]
    assert (tmp_path / "log.closed").read_text(encoding="utf-8").splitlines() == [*map(str, range(8))]
    told = any("it holds a generator, which would go on" in line for line in run.lines)
    assert told == (type(numbers).__name__ == "generator")


def test_the_logarithm_of_minus_zero_is_that_of_zero():
    def train():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        step(model, optimizer, torch.log(model(torch.ones(2, 2)).abs() * -0.0).mean())

    run = Watched(train, "continue")
    (finding,) = run.session.findings
    assert "log of 0" in finding.message
    assert "exactly 0" in finding.cause


def test_no_record_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Watched(train_log, "replay")
    assert run.event.file == ""
    assert run.lines == ["--on-nan replay: no record is kept, so the batch is not saved"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["replay", "stop"])
def test_the_search_of_a_scaler_is_quiet(mode):
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=4, growth_factor=8.0)
        for at in range(40):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(torch.randn(16, 4)), torch.randint(0, 2, (16,)))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if at % 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        skipped.append(scaler.get_scale() < 2.0**127)

    skipped: list[bool] = []
    run = Watched(train, mode)
    assert skipped
    assert (run.codes, run.replayed, run.lines, run.ended) == ([], [], [], False)


def test_passes_without_a_backward_hold_no_graph():
    import weakref

    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(3):
            step(model, optimizer, model(torch.randn(8, 4)).pow(2).mean())
            for _ in range(40):
                outputs.append(weakref.ref(model(torch.randn(8, 4)).pow(2)))

    outputs: list[weakref.ref[torch.Tensor]] = []
    Watched(train, "replay")
    assert [ref for ref in outputs if ref() is not None] == []


# --------------------------------------------------------------------------- stop


def test_stop_at_a_loss():
    run = Watched(train_log, "stop")
    assert (run.ended, run.codes, run.replayed) == (True, ["N1"], [])
    assert run.steps < 19
    (line,) = run.lines
    assert line.startswith(f"--on-nan stop: the run ends at step {run.steps + 1}, {__file__}:")


def test_stop_at_a_gradient():
    run = Watched(train_distance, "stop")
    assert (run.ended, run.codes, run.steps) == (True, ["N2"], 23)
    assert "gradients of 1 of 1 parameters are not finite" in run.lines[0]


# --------------------------------------------------------------------------- the command

SCRIPT = """
import hashlib, random
import torch
from torch import nn

torch.manual_seed(0)
random.seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for step in range(25):
    x = torch.randn(16, 4)
    d = (model(x) - x.sum(1, keepdim=True)).squeeze(1)
    if step == 15:
        d = d * (torch.arange(16) != 3)
    loss = (d * d).sqrt().mean() + 0.01 * random.random()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (14, 24):
        weights = b"".join(v.numpy().tobytes() for v in model.state_dict().values())
        print(step, hashlib.sha256(weights).hexdigest(), torch.rand(1).item(), random.random())
"""


def command(tmp_path, *options):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    under = ("-m", "flatline", "run", "--format", "json", "--output", "report.json", *options) if options else ()
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    words = [sys.executable, *under, str(script)]
    return subprocess.run(
        words, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=120, check=False
    ), json.loads((tmp_path / "report.json").read_text()) if options else {}


def test_trains_the_same_bit_for_bit(tmp_path):
    plain, _ = command(tmp_path)
    on, report = command(tmp_path, "--on-nan", "replay")
    off, _ = command(tmp_path, "--on-nan", "continue", "--no-record")
    assert plain.stdout == on.stdout == off.stdout
    assert plain.stdout.count("\n") == 2
    (finding,) = report["findings"]
    assert finding["code"] == "N2"
    assert finding["evidence"]["samples"] == "3"
    assert Path(finding["evidence"]["batch_file"]).parent == Path(report["run"]["record"])
    assert "kept = torch.load(" in on.stderr
    assert "nonfinite" not in off.stderr


def test_the_command_ends_the_run(tmp_path):
    ended, report = command(tmp_path, "--on-nan", "stop", "--no-record")
    assert ended.returncode == 0
    assert (report["run"]["how"], report["run"]["steps"]) == ("non-finite", 16)
    assert "flatline: --on-nan stop: the run ends at step 16" in ended.stderr
    assert command(tmp_path, "--on-nan", "stop", "--no-record", "--fail-on", "error")[0].returncode == 1


@pytest.mark.parametrize("kind", ["device", "around", "within", "spanning"])
def test_modes_of_the_users_stay_on_their_stack(kind):
    from torch.overrides import TorchFunctionMode

    class Counter(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def train():
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for at in range(12):
            mode = torch.device("cpu") if kind in ("device", "around") else Counter()
            x = torch.randn(8, 4)
            if kind in ("around", "spanning"):
                mode.__enter__()
            error = model(x).squeeze(1) - x.sum(1)
            if kind in ("around", "spanning"):
                mode.__exit__(None, None, None)
                mode = torch.enable_grad()
            with mode:
                error = error * (torch.arange(8) != 2) if at == 8 else error
                loss = (error * error).sqrt().mean()
            step(model, optimizer, loss)
            heights.append(torch._C._len_torch_function_stack())

    heights: list[int] = []
    run = Watched(train, "replay")
    assert set(heights) == {0}
    assert run.codes == ["N2"]
    assert run.event.operation.startswith("" if kind in ("around", "spanning") else "SqrtBackward0")


def test_other_threads_are_left_alone():
    import threading

    def train():
        torch.manual_seed(0)
        models.append(train_distance(steps=25))

    def in_a_thread():
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    models: list[nn.Module] = []
    train()
    for mode in ("replay", "stop"):
        run = Watched(in_a_thread, mode)
        assert (run.replayed, run.lines, run.ended, run.broken) == ([], [], False, [])
    assert len({digest(model) for model in models}) == 1


def test_a_default_device():
    torch.set_default_device("cpu")
    try:
        assert Watched(train_distance, "replay").event.operation.startswith("SqrtBackward0")
        height = torch._C._len_torch_function_stack()
    finally:
        torch.set_default_device(None)
    assert (height, torch._C._len_torch_function_stack()) == (1, 0)
