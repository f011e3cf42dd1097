"""What flatline costs and does on a GPU: step time, synchronisations, and whether the training stays bit for bit the same.

    python benchmarks/cuda.py [--quick] [--only time,syncs,same]

Times are taken as in overhead.py: two processes that wait for their turns, blocks of steps in random order, each ended by one
``torch.cuda.synchronize()``; a ratio compares two blocks of one round. Synchronisations are those that PyTorch's profiler
and its sync debug mode see. Without a GPU there is nothing to measure, and it says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import overhead
from overhead import FLATLINE, PIPES, Turn, environment, paired, shown, shuffled

SCRIPT = str(Path(__file__).resolve())
BOTH = ("plain", "flatline")
ROUNDS, SECONDS = 12, 1.0  # blocks of each process, and how long one is
WARM = 64  # steps before anything is counted: flatline looks at the first ones closely
COUNTED = 50  # steps under the profiler
SAME = 60  # steps whose outcome is compared
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    make: Callable[[], tuple[Any, Any]]
    half: Any = None  # dtype of autocast
    scaled: bool = False  # by a GradScaler


def gpt2() -> tuple[Any, Any]:
    """124 million weights: 12 blocks of 768, 12 heads, 50,257 tokens, 16 texts of 1,024; the head shares the embedding."""
    import torch
    from torch import nn
    from torch.nn.functional import gelu, scaled_dot_product_attention

    class Block(nn.Module):
        def __init__(self, width: int = 768, heads: int = 12) -> None:
            super().__init__()
            self.heads, self.before, self.after = heads, nn.LayerNorm(width), nn.LayerNorm(width)
            self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            split = self.attend(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).reshape(batch, length, width)
            x = x + self.project(mixed)
            return x + self.down(gelu(self.up(self.after(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(12)), nn.LayerNorm(768)
            self.head = nn.Linear(768, 50257, bias=False)
            self.apply(self._fill)
            self.head.weight = self.words.weight

        @staticmethod
        def _fill(module: Any) -> None:
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

        def forward(self, x: Any) -> Any:
            hidden = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
            for block in self.blocks:
                hidden = block(hidden)
            return self.head(self.norm(hidden)).flatten(0, 1)

    return Gpt(), lambda: (torch.randint(0, 50257, (16, 1024)), torch.randint(0, 50257, (16 * 1024,)))


def dropped() -> tuple[Any, Any]:
    """The MLP with dropout, which draws from the generator of the GPU."""
    from torch import nn

    model, batch = overhead.mlp()
    return nn.Sequential(model[0], nn.Dropout(0.2), *model[1:]), batch


def cases() -> dict[str, Case]:
    import torch

    return {
        "gpt2": Case(gpt2, half=torch.bfloat16),
        "cnn": Case(overhead.cnn),
        "mlp": Case(overhead.mlp),
        "dropout": Case(dropped),
        "cnn float16": Case(overhead.cnn, half=torch.float16, scaled=True),
        "small gpt bfloat16": Case(overhead.gpt, half=torch.bfloat16),
    }


class Training:
    """A model on the GPU, with the loop that everybody writes."""

    def __init__(self, case: Case) -> None:
        import torch

        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = True
        model, batch = case.make()
        self.case, self.model, self.steps = case, model.cuda(), 0
        self.batches = [tuple(part.cuda() for part in batch()) for _ in range(4)]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.scaler = torch.amp.GradScaler("cuda", enabled=case.scaled)

    def run(self, steps: int) -> None:
        import torch
        from torch.nn.functional import cross_entropy

        for _ in range(steps):
            x, y = self.batches[self.steps % len(self.batches)]
            self.steps += 1
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=self.case.half) if self.case.half else nullcontext():
                loss = cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


# --------------------------------------------------------------------------- processes


def child(what: str, name: str) -> None:
    """One process: it answers each line of stdin, or once."""
    training = Training(cases()[name])
    if what == "time":
        answer_turns(training)
    else:
        print(json.dumps({"syncs": synchronised, "same": outcome}[what](training)), flush=True)


def answer_turns(training: Training) -> None:
    """Train as many steps as each line says; answer with the wall and processor seconds."""
    import torch

    training.run(2)
    torch.cuda.synchronize()
    print("ready", sum(1 for _ in training.model.parameters()), flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        training.run(int(line))
        torch.cuda.synchronize()
        print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)


def synchronised(training: Training) -> dict[str, float]:
    """How often a step waits for the GPU, by the profiler and by the debug mode."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    training.run(WARM)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        training.run(COUNTED)
    names = Counter(event.name for event in seen.events())
    copies = sum(count for name, count in names.items() if name.startswith("Memcpy DtoH"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        training.run(COUNTED)
        torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(each.message) for each in told)
    return {name: names[name] / COUNTED for name in SYNCS} | {
        "copies to the host": copies / COUNTED,
        "told by the debug mode": waits / COUNTED,
    }


def outcome(training: Training) -> str:
    """A digest of weights, buffers, optimizer state and generators after some steps."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    training.run(SAME)
    digest = hashlib.sha256()
    state = [value for each in training.optimizer.state.values() for value in each.values()]
    for tensor in [*training.model.state_dict().values(), *state, torch.get_rng_state(), torch.cuda.get_rng_state()]:
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class GpuTurn(Turn):
    """A contender on the GPU that waits for its turn."""

    def __init__(self, name: str, contender: str) -> None:
        self.process = subprocess.Popen(command("time", name, contender), env=environment(), text=True, **PIPES)
        said = self._answer().split()
        if said[:1] != ["ready"]:
            raise RuntimeError(f"{name} {contender} did not start: {self._errors()}")
        self.tensors = int(said[1])


def command(what: str, name: str, contender: str) -> list[str]:
    under = FLATLINE if contender == "flatline" else ()
    return [sys.executable, *under, SCRIPT, "--child", what, name]


def answered(what: str, name: str, contender: str) -> Any:
    """What a process of its own has to say."""
    ended = subprocess.run(
        command(what, name, contender), env=environment(), capture_output=True, text=True, check=False
    )
    lines = [line for line in ended.stdout.splitlines() if line[:1] in '"{']
    if not lines:
        raise RuntimeError(f"{name} {contender}: {ended.stderr[-500:]}")
    return json.loads(lines[-1])


# --------------------------------------------------------------------------- what is printed


def timed(rounds: int) -> Iterator[str]:
    """Seconds of a step in steady state, and of the first ones."""
    for name in ("gpt2", "cnn", "mlp"):
        samples: dict[str, list[tuple[float, float]]] = {each: [] for each in BOTH}
        with ExitStack() as stack:
            turns = {each: GpuTurn(name, each) for each in BOTH}
            for turn in turns.values():
                stack.callback(turn.close)
            first = {each: turns[each].run(WARM)[0] for each in shuffled(list(BOTH))}
            steps = max(2, round(SECONDS / turns["plain"].run(8)[0]))
            for _ in range(rounds):
                for each in shuffled(list(BOTH)):
                    samples[each].append(turns[each].run(steps))
        yield f"{name}, first {WARM} steps: {first['plain'] * 1e3:.3f} ms, with flatline {first['flatline'] * 1e3:.3f} ms"
        walls = {each: [wall for wall, _ in found] for each, found in samples.items()}
        for each in BOTH:
            yield shown(
                paired(
                    f"{name}, {turns[each].tensors} tensors", each, walls[each], walls["plain"], unit="ms", scale=1e3
                )
            )


def counted() -> Iterator[str]:
    """Synchronisations of a step."""
    for name in ("cnn", "cnn float16", "gpt2"):
        for contender in BOTH:
            found = answered("syncs", name, contender)
            yield f"{name}, {contender}, a step: " + " · ".join(f"{what} {often:.3f}" for what, often in found.items())


def compared() -> Iterator[str]:
    """Whether weights, state and generators end alike."""
    for name in ("mlp", "dropout", "cnn", "cnn float16", "small gpt bfloat16"):
        plain, again, watched = (answered("same", name, each) for each in ("plain", "plain", "flatline"))
        yield f"{name}: " + (
            "not deterministic by itself" if plain != again else "same" if plain == watched else "CHANGED"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", default="same,syncs,time", help="of same, syncs, time")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch can use: nothing to measure")
    print(f"{torch.cuda.get_device_name()} · torch {torch.__version__}")
    parts = {"same": compared, "syncs": counted, "time": lambda: timed(ROUNDS // 3 if options.quick else ROUNDS)}
    for part in options.only.split(","):
        for line in parts[part]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
