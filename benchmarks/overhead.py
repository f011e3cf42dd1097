"""What flatline costs: step time, memory and start-up, beside no watcher, anomaly detection and a peer.

    python benchmarks/overhead.py [--quick] [--json FILE] [--only mlp,cnn,gpt]

Every contender trains the same model in a process of its own and waits for its turn; the turns are short blocks of
steps in random order, round after round. A ratio compares two blocks of one round, so that a machine that is slow for
a while is slow for both. Shown are the median of the ratios and, in brackets, their quartiles.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import importlib.util
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve()
SOURCE = HERE.parents[1] / "src"
SCRIPT = str(HERE)
FLATLINE = ("-m", "flatline", "run")
PEER = "torch-audit"
CONTENDERS = ("plain", "flatline", "detect_anomaly", f"{PEER}, its default", f"{PEER}, every step")
COMMANDS = (("--help",), ("explain", "O12"), ("rules",))


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    restarts: int  # processes for each contender; their place in memory differs, and with it their speed
    rounds: int  # blocks of each process
    seconds: float  # length of a block
    repeats: int  # of whole processes, for memory and start-up


FULL = Plan(restarts=3, rounds=12, seconds=0.8, repeats=7)
QUICK = Plan(restarts=1, rounds=3, seconds=0.1, repeats=3)
SOME = 24  # steps of a process whose memory is measured
WARM = 64  # steps at the start, counted apart: flatline looks at the first ones closely
BOTH = ("plain", "flatline")


# --------------------------------------------------------------------------- what is trained


def mlp() -> tuple[Any, Any]:
    """About 0.4 ms a step, 6 tensors."""
    from torch import nn, randint, randn

    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    return model, lambda: (randn(64, 64), randint(0, 10, (64,)))


def cnn() -> tuple[Any, Any]:
    """About 5 ms a step, 14 tensors, batch normalisation."""
    from torch import nn, randint, randn

    def block(before: int, after: int) -> list[Any]:
        convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]

    body = [*block(3, 16), *block(16, 32), *block(32, 64), *block(64, 64)]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return model, lambda: (randn(16, 3, 32, 32), randint(0, 10, (16,)))


def gpt() -> tuple[Any, Any]:
    """About 50 ms a step, 52 tensors."""
    import torch
    from torch import nn

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(256, 128), nn.Embedding(64, 128)
            layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 4, nn.LayerNorm(128), enable_nested_tensor=False)
            self.head = nn.Linear(128, 256, bias=False)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(64), persistent=False)

        def forward(self, x: Any) -> Any:
            hidden = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
            return self.head(self.body(hidden, mask=self.mask, is_causal=True)).transpose(1, 2)

    return Gpt(), lambda: (torch.randint(0, 256, (12, 64)), torch.randint(0, 256, (12, 64)))


def wide() -> tuple[Any, Any]:
    """113 million weights: 1.8 GB with their gradients and two moments."""
    from torch import nn, randint, randn

    hidden = [layer for _ in range(12) for layer in (nn.Linear(3072, 3072), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(3072, 10)), lambda: (randn(4, 3072), randint(0, 10, (4,)))


TIMED = {"mlp": mlp, "cnn": cnn, "gpt": gpt}
MODELS = {**TIMED, "wide": wide}


# --------------------------------------------------------------------------- one contender's process


def child(model_name: str, contender: str) -> None:
    """Train as many steps as each line of stdin says; answer with the wall and processor seconds they took."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batch = MODELS[model_name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [batch() for _ in range(16)]
    finish = attach(contender, model, optimizer)
    print("ready", sum(1 for _ in model.parameters()), flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        train(model, optimizer, batches, int(line))
        print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)
    finish()


def train(model: Any, optimizer: Any, batches: list[Any], steps: int) -> None:
    """The loop that everybody writes."""
    from torch.nn.functional import cross_entropy

    for step in range(steps):
        x, y = batches[step % len(batches)]
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def attach(contender: str, model: Any, optimizer: Any) -> Callable[[], object]:
    """Put a contender on; flatline is on already, from outside."""
    import torch

    if contender == "detect_anomaly":
        torch.autograd.set_detect_anomaly(True)
    if contender.startswith(PEER):
        from torch_audit import autopatch

        every = {"every_n_steps": 1} if contender.endswith("every step") else {}
        return autopatch(model, optimizer=optimizer, reporters=[], **every).unpatch
    return lambda: None


class Turn:
    """A contender that waits for its turn."""

    def __init__(self, model: str, contender: str, peer: str | None) -> None:
        under = FLATLINE if contender == "flatline" else ()
        command = [sys.executable, *under, SCRIPT, "--child", model, contender]
        self.process = subprocess.Popen(command, env=environment(peer), text=True, **PIPES)
        said = self._answer().split()
        if said[:1] != ["ready"]:
            raise RuntimeError(f"{contender} did not start: {self._errors()}")
        self.tensors = int(said[1])

    def run(self, steps: int) -> tuple[float, float]:
        """Wall and processor seconds of a step."""
        pipe(self.process.stdin).write(f"{steps}\n")
        pipe(self.process.stdin).flush()
        answer = self._answer().split()
        if len(answer) != 2:
            raise RuntimeError(f"stopped in the middle: {self._errors()}")
        return float(answer[0]) / steps, float(answer[1]) / steps

    def _answer(self) -> str:
        return pipe(self.process.stdout).readline()

    def _errors(self) -> str:
        self.process.kill()
        return (pipe(self.process.stderr).read().strip().splitlines() or ["no message"])[-1]

    def close(self) -> None:
        """Let it end as a script does."""
        self.process.communicate(timeout=60)


PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def environment(peer: str | None = None) -> dict[str, str]:
    """One thread each, this checkout's flatline with its bytecode compiled as by pip, and the peer where it is installed."""
    path = os.pathsep.join([str(SOURCE), *([peer] if peer else [])])
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONPYCACHEPREFIX": bytecode()}
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | own


@functools.cache
def bytecode() -> str:
    """A folder for what Python compiles; it ends with this process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# --------------------------------------------------------------------------- step time


@dataclass
class Row:
    """One line of the table."""

    what: str
    contender: str
    value: float
    unit: str
    ratio: float | None = None
    p25: float | None = None
    p75: float | None = None


Samples = dict[str, list[tuple[float, float]]]


def step_rows(model: str, plan: Plan, contenders: list[str], peer: str | None) -> Iterator[Row]:
    """Seconds of a step: at the start, in the first ten seconds, for which flatline has a grant, and from then on."""
    first: Samples = {name: [] for name in BOTH}
    early: Samples = {name: [] for name in BOTH}
    steady: Samples = {name: [] for name in contenders}
    tensors = 0
    for _ in range(plan.restarts):
        tensors = measure(model, plan, peer, first=first, early=early, steady=steady)
    yield from compared(f"{model}, {tensors} tensors", steady)
    yield from compared(f"{model}, first {plan.rounds * plan.seconds:.2g} s", early)
    yield from compared(f"{model}, first {WARM} steps", first)


def measure(model: str, plan: Plan, peer: str | None, *, first: Samples, early: Samples, steady: Samples) -> int:
    """One process for each contender, all rounds; adds to the samples."""
    with ExitStack() as stack:
        turns = {name: Turn(model, name, peer) for name in steady}
        for turn in turns.values():
            stack.callback(turn.close)
        for name in shuffled([*turns]):
            taken = turns[name].run(WARM)
            if name in first:
                first[name].append(taken)
        steps = max(2, round(plan.seconds / turns["plain"].run(8)[0]))
        for samples in (early, steady):
            for _ in range(plan.rounds):
                for name in shuffled([*samples]):
                    samples[name].append(turns[name].run(steps))
    return turns["plain"].tensors


def shuffled(names: list[str]) -> list[str]:
    return random.sample(names, len(names))


def compared(what: str, samples: Samples) -> Iterator[Row]:
    """Each contender against the plain block of the same round, by both clocks."""
    for clock, at in (("cpu", 1), ("wall", 0)):
        plain = [sample[at] for sample in samples["plain"]]
        for name, found in samples.items():
            mine = [sample[at] for sample in found]
            yield paired(f"{what}, {clock}", name, mine, plain, unit="ms", scale=1e3)


def paired(what: str, name: str, mine: list[float], base: list[float], *, unit: str, scale: float = 1.0) -> Row:
    """Median of the values, median and quartiles of the pairs' ratios."""
    value = statistics.median(mine) * scale
    if mine is base or name == "plain":
        return Row(what, name, value, unit)
    low, middle, high = quartiles([a / b for a, b in zip(mine, base, strict=True)])
    return Row(what, name, value, unit, middle, low, high)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


# --------------------------------------------------------------------------- memory, start-up, commands


def memory_rows(model: str, plan: Plan) -> Iterator[Row]:
    """Peak resident memory of a whole run."""
    found: dict[str, list[float]] = {"plain": [], "flatline": []}
    for repeat in range(plan.repeats + 1):
        for name in shuffled(list(found)):
            under = FLATLINE if name == "flatline" else ()
            held = peak([*under, SCRIPT, "--child", model, name])
            found[name] += [held] if repeat else []  # the first one compiles
    for name, peaks in found.items():
        yield paired(f"{model}, peak memory", name, peaks, found["plain"], unit="MB")


def peak(words: list[str]) -> float:
    """Megabytes that a process held at most; it trains SOME steps."""
    process = subprocess.Popen([sys.executable, *words], env=environment(), text=True, **PIPES)
    pipe(process.stdin).write(f"{SOME}\n")
    pipe(process.stdin).close()
    pipe(process.stdout).read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {pipe(process.stderr).read()[-500:]}")
    return usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def start_rows(plan: Plan) -> Iterator[Row]:
    """A script that imports torch and does next to nothing."""
    with script("import torch\ntorch.zeros(3).sum()\n") as path:
        yield from processes("script with torch", plan, {"plain": [path], "flatline": [*FLATLINE, path]})
    with script("print('hello')\n") as path:
        yield from processes("script without torch", plan, {"plain": [path], "flatline": [*FLATLINE, path]})
    for words in COMMANDS:
        yield from processes(f"flatline {' '.join(words)}", plan, {"flatline": ["-m", "flatline", *words]})


def processes(what: str, plan: Plan, commands: dict[str, list[str]]) -> Iterator[Row]:
    """Wall seconds of whole processes, beside an empty Python."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    for repeat in range(plan.repeats + 1):
        for name in shuffled(list(commands)):
            took = seconds(commands[name])
            found[name] += [took] if repeat else []  # the first one compiles
    for name, times in found.items():
        yield paired(f"{what}, wall", name, times, found.get("plain", times), unit="ms", scale=1e3)


def seconds(words: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], env=environment(), capture_output=True, check=True)
    return time.perf_counter() - started


@contextmanager
def script(text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(text)
        yield str(path)


# --------------------------------------------------------------------------- the peer


def find_peer(folder: str) -> tuple[str | None, str]:
    """Where the peer is: installed already, or put into a folder that is thrown away; else why it is not there."""
    if importlib.util.find_spec("torch_audit"):
        return "", ""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, PEER]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        return None, (ended.stderr.strip().splitlines() or ["pip failed"])[-1]
    return folder, ""


# --------------------------------------------------------------------------- all of it


def rows(plan: Plan, models: list[str], peer: str | None) -> Iterator[Row]:
    """Everything that is measured, as it becomes known."""
    contenders = [name for name in CONTENDERS if peer is not None or not name.startswith(PEER)]
    for model in models:
        yield from step_rows(model, plan, contenders, peer)
    for model in [*models, "wide"]:
        yield from memory_rows(model, plan)
    yield from start_rows(plan)


def shown(row: Row) -> str:
    ratio = f"{row.ratio:8.3f} x  [{row.p25:.3f} to {row.p75:.3f}]" if row.ratio is not None else ""
    return f"{row.what:32}{row.contender:26}{row.value:12.3f} {row.unit:4}{ratio}".rstrip()


def machine() -> dict[str, object]:
    import torch

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count(), "load": load,
            "platform": platform.platform()}  # fmt: skip


def main() -> None:
    options = arguments()
    if options.child:
        child(*options.child)
    else:
        report(options)


def report(options: argparse.Namespace) -> None:
    """Print each row when it is known; write all of them to the file."""
    found: list[Row] = []
    plan = QUICK if options.quick else FULL
    print(" · ".join(f"{name} {value}" for name, value in machine().items()))
    with tempfile.TemporaryDirectory() as folder:
        peer, why = find_peer(folder)
        if peer is None:
            print(f"{PEER} is left out: {why}")
        for row in rows(plan, options.only.split(","), peer):
            found.append(row)
            print(shown(row), flush=True)
    if options.json:
        record = {
            "machine": machine(),
            "plan": asdict(plan),
            "peer": why or PEER,
            "rows": [asdict(row) for row in found],
        }
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute, for CI; the numbers are rough")
    parser.add_argument("--json", metavar="FILE", help="write all rows to FILE")
    parser.add_argument("--only", metavar="MODELS", default=",".join(TIMED), help="of mlp, cnn, gpt")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
