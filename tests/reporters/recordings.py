"""Runs in memory, with the attributes of a Recording: healthy, sick, large, cut short, hostile."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flatline.events import Where
from flatline.findings import Finding, Unchecked, Value
from flatline.record import Grid, Happening, Histogram, Parameter, Series

NAN = math.nan
FACTS: Mapping[str, Value] = {
    "steps": 1200,
    "seconds": 754.2,
    "python": "3.11.7",
    "torch": "2.13.0",
    "platform": "Linux-6.1.0-x86_64-with-glibc2.36",
    "script": "train.py",
    "command": "train.py --lr 3e-4 --token ***",
    "git_commit": "915851c0a1b2c3d4e5f60718293a4b5c6d7e8f90",
    "git_dirty": True,
    "seed": 1337,
    "started": "2026-03-04T09:12:44",
    "ended": "2026-03-04T09:25:18",
    "how": "finished",
    "overhead": 0.0041,
}


@dataclass(kw_only=True)
class Played:
    """A stand-in for ``flatline.record.Recording``."""

    name: str = "20260304-091244-train"
    facts: Mapping[str, Value] = field(default_factory=lambda: FACTS)
    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[Unchecked, ...] = ()
    notes: tuple[str, ...] = ()
    ended: bool = True
    curves: tuple[Series, ...] = ()
    grids: tuple[Grid, ...] = ()
    bins: tuple[Histogram, ...] = ()
    weights: tuple[Parameter, ...] = ()
    marks: tuple[Happening, ...] = ()

    def series(self) -> tuple[Series, ...]:
        return self.curves

    def grid(self, quantity: str) -> Grid | None:
        return next((grid for grid in self.grids if grid.quantity == quantity), None)

    def quantities(self) -> tuple[str, ...]:
        return tuple(grid.quantity for grid in self.grids)

    def histograms(self) -> tuple[Histogram, ...]:
        return self.bins

    def parameters(self) -> tuple[Parameter, ...]:
        return self.weights

    def happenings(self) -> tuple[Happening, ...]:
        return self.marks

    def version(self) -> int:
        return 1

    def close(self) -> None:
        pass


def curve(name, steps, value, *, band=0.0, not_finite=()):
    """A Series of a function of the step."""
    steps = tuple(float(step) for step in steps)
    values = tuple(NAN if step in not_finite else float(value(step)) for step in steps)
    lows = tuple(v * (1 - band) for v in values) if band else ()
    highs = tuple(v * (1 + band) for v in values) if band else ()
    return Series(
        name=name, steps=steps, values=values, lows=lows, highs=highs, not_finite=tuple(map(float, not_finite))
    )


def spread(last, count=60):
    """Steps as flatline samples them: dense at first, thinner with age."""
    found, step = [], 1.0
    ratio = max(1.02, last ** (1 / count))
    while step < last:
        found.append(max(int(step), found[-1] + 1 if found else 1))
        step = max(step * ratio, step + 1)
    return tuple(each for each in found if each <= last)


def layers_of(quantity, names, steps, value):
    """A Grid of a function of layer number and step."""
    rows = tuple(tuple(float(value(at, step)) for at in range(len(names))) for step in steps)
    return Grid(quantity=quantity, names=tuple(names), steps=tuple(steps), values=rows)


def bell(name, steps, width):
    """Histograms that widen."""
    made = []
    for step in steps:
        sigma = width(step)
        edges = tuple(sigma * 4 * (i / 15 - 1) for i in range(31))
        counts = tuple(round(4000 * math.exp(-8 * ((i + 0.5) / 15 - 1) ** 2)) for i in range(30))
        made.append(Histogram(name=name, step=int(step), edges=edges, counts=counts))
    return tuple(made)


def parameter(name, shape, **other):
    known = {"dtype": "float32", "trainable": True, "model": "Net", "optimizer": "AdamW"}
    known |= {"learning_rate": 3e-4, "weight_decay": 0.01}
    return Parameter(name=name, shape=shape, elements=math.prod(shape), **(known | other))


def rate(step, last=1200, top=3e-4, warm=100):
    """Warm-up and cosine."""
    if step < warm:
        return top * step / warm
    return top * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (last - warm))))


CHECKED = (
    "O2",
    "O3",
    "O4",
    "O5",
    "O7",
    "O12",
    "O13",
    "O14",
    "O22",
    "O25",
    "G1",
    "G2",
    "G3",
    "W1",
    "W3",
    "N1",
    "D3",
    "E1",
)
NOT_CHECKED = (
    Unchecked("O8", "no learning-rate scheduler was built"),
    Unchecked("O10", "no GradScaler was used"),
    Unchecked("L11", "the loss is none of a language model"),
)
CNN = ("conv1", "bn1", "conv2", "bn2", "conv3", "bn3", "fc1", "fc2")


def healthy(last=1200, seed=0):
    """A small CNN that learns."""
    rng = random.Random(seed)
    steps = range(1, last + 1)

    def loss(step):
        return 0.25 + 2.05 * math.exp(-step / 260) + rng.gauss(0, 0.05 * (0.3 + math.exp(-step / 400)))

    names = [f"{layer}.weight" for layer in CNN]
    sampled = spread(last)
    modules = [*CNN[:-1], "relu"]
    return Played(
        facts=dict(FACTS) | {"steps": last},
        checked=CHECKED,
        not_checked=NOT_CHECKED,
        curves=(
            curve("loss", steps, loss),
            curve("val_loss", range(100, last + 1, 100), lambda s: 0.34 + 1.9 * math.exp(-s / 280)),
            curve("lr", steps, lambda s: rate(s, last)),
            curve("gradient_norm", sampled, lambda s: 0.4 + 2 * math.exp(-s / 150) + abs(rng.gauss(0, 0.15))),
            curve("clip_threshold", sampled, lambda s: 1.0),
            curve("logged/val/accuracy", range(100, last + 1, 100), lambda s: 0.93 - 0.8 * math.exp(-s / 300)),
        ),
        grids=(
            layers_of(
                "update_ratio", names, sampled, lambda at, s: rate(s, last) * 4 * math.exp(rng.gauss(0, 0.2) - at / 9)
            ),
            layers_of("activation_std", modules, sampled, lambda at, s: 0.8 + 0.1 * at + rng.gauss(0, 0.03)),
            layers_of("zeros", modules, sampled, lambda at, s: min(1, 0.3 + 0.03 * at + s / last / 8)),
        ),
        bins=bell("weights/conv1.weight", sampled[::4], lambda s: 0.1 + s / 9000)
        + bell("activations/fc1", sampled[::4], lambda s: 1 + s / 2000),
        weights=tuple(
            parameter(f"{layer}.{kind}", (64, 64, 3, 3) if kind == "weight" and "conv" in layer else (64,))
            for layer in CNN
            for kind in ("weight", "bias")
        ),
        marks=(
            Happening(
                step=0,
                seconds=0.4,
                kind="optimizer built",
                text="AdamW, 16 parameters, lr 0.0003",
                where=Where("train.py", 31),
            ),
            Happening(step=600, seconds=380.0, kind="checkpoint saved", text="best.pt", where=None),
        ),
    )


DIVERGES = Finding(
    code="O28",
    slug="learning-rate-too-high",
    severity="error",
    message="the loss went from 0.41 to 118 within 60 steps while the updates grew to 9 % of the weights at a step",
    cause="the learning rate 0.3 throws the weights farther than the loss is smooth",
    fix="optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)",
    where=Where("train.py", 9, "<module>"),
    step=640,
    evidence={"learning_rate": 0.3, "update_ratio": 0.0912, "loss_before": 0.41, "loss_after": 118.2, "from_step": 600},
    count=3,
)
DEAD = Finding(
    code="O25",
    slug="dead-units",
    severity="warning",
    message="61 of 64 units of fc1 are zero on all 512 samples of 9 steps, the last of them step 720",
    cause="a step that was too large pushed their bias far below zero",
    fix="nn.LeakyReLU(0.01) in place of nn.ReLU(), or a lower learning rate",
    where=Where("models/very/deep/package/architectures/residual/classification_head.py", 213),
    step=720,
    evidence={"layer": "fc1", "units": 64, "dead": 61, "samples": 512, "bias": -3.4},
)
CREEPS = Finding(
    code="G8",
    slug="gradient-creeps-up",
    severity="hint",
    message="the gradient norm doubles about every 240 steps",
    cause="",
    fix="clip_grad_norm_(model.parameters(), 1.0)",
    step=500,
    evidence={"doubling": 240},
)


def sick(last=1200):
    """Learns, then blows up; units die."""
    well = healthy(last)
    rng = random.Random(4)

    def loss(step):
        return (
            0.4 + 1.9 * math.exp(-step / 150) + abs(rng.gauss(0, 0.03))
            if step < 600
            else 0.4 * math.exp((min(step, 700) - 600) / 17) * (1 + 0.2 * rng.random())
        )

    def ratio(at, step):
        return 2e-3 * math.exp(rng.gauss(0, 0.2)) * (1 if step < 600 else 40) * (0 if at == 6 and step > 700 else 1)

    sampled = spread(last, 90)
    names = well.grids[0].names
    return replace(
        well,
        findings=(DIVERGES, DEAD, CREEPS),
        notes=("O9 was switched off: ValueError: too many values to unpack",),
        curves=(
            curve("loss", range(1, last + 1), loss, not_finite=(905, 906, 907)),
            *well.curves[1:2],
            curve("lr", range(1, last + 1), lambda s: 0.3),
            curve(
                "gradient_norm",
                sampled,
                lambda s: 0.5 + rng.random() if s < 600 else 40 * math.exp(min(s - 600, 300) / 60),
            ),
            curve("clip_threshold", sampled, lambda s: 1.0),
            curve("loss_scale", sampled, lambda s: 65536 / 2 ** min(12, max(0, int((s - 600) / 40)))),
        ),
        grids=(
            layers_of("update_ratio", names, sampled, ratio),
            layers_of(
                "activation_std", CNN, sampled, lambda at, s: (1 + rng.gauss(0, 0.03)) * (1 if s < 600 else 1.4**at)
            ),
            layers_of("zeros", CNN, sampled, lambda at, s: 0.97 if at == 6 and s > 640 else 0.2 + 0.02 * at),
        ),
    )


def gpt(layers=40, last=20000):
    """A language model: hundreds of tensors."""
    rng = random.Random(2)
    parts = (
        "ln_1.weight",
        "ln_1.bias",
        "attn.c_attn.weight",
        "attn.c_attn.bias",
        "attn.c_proj.weight",
        "attn.c_proj.bias",
    )
    parts += ("ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias")
    names = ["transformer.wte.weight", "transformer.wpe.weight"]
    names += [f"transformer.h.{n}.{part}" for n in range(layers) for part in parts] + ["transformer.ln_f.weight"]
    blocks = [f"transformer.h.{n}.{part}" for n in range(layers) for part in ("attn", "mlp")]
    sampled = spread(last, 200)
    thinned = range(1, last + 1, max(1, last // 4000))

    def shape(name):
        return (3072, 768) if "c_" in name and "weight" in name else (50304, 768) if "wte" in name else (768,)

    return Played(
        name="20260304-091244-train_gpt",
        facts=dict(FACTS) | {"steps": last, "seconds": 91234.5},
        checked=CHECKED,
        not_checked=NOT_CHECKED,
        curves=(
            curve("loss", thinned, lambda s: 2.9 + 8 * math.exp(-s / 900) + rng.gauss(0, 0.03), band=0.02),
            curve("val_loss", range(1000, last + 1, 1000), lambda s: 3.0 + 8 * math.exp(-s / 900)),
            curve("lr", thinned, lambda s: rate(s, last, 6e-4, last // 20)),
            curve("gradient_norm", sampled, lambda s: 0.5 + 3 * math.exp(-s / 500) + abs(rng.gauss(0, 0.2))),
            curve("clip_threshold", sampled, lambda s: 1.0),
        ),
        grids=(
            layers_of(
                "update_ratio",
                names,
                sampled,
                lambda at, s: 1e-3 * math.exp(rng.gauss(0, 0.3)) * (3 if "ln" in names[at] else 1),
            ),
            layers_of("gradient_rms", names, sampled, lambda at, s: 1e-4 * math.exp(rng.gauss(0, 0.3) - at / 200)),
            layers_of("activation_std", blocks, sampled, lambda at, s: 0.4 * 1.03**at * (1 + rng.gauss(0, 0.05))),
            layers_of("attention_entropy", blocks[::2], sampled, lambda at, s: 5 - 2 * s / last + 0.02 * at),
        ),
        bins=tuple(h for n in names[2:14] for h in bell(f"weights/{n}", sampled[::20], lambda s: 0.02)),
        weights=tuple(parameter(n, shape(n), model="GPT", dtype="bfloat16", trainable="wpe" not in n) for n in names),
    )


def gan(last=800):
    """Two optimizers, two losses."""
    rng = random.Random(3)
    names = [f"{net}.{at}.weight" for net in ("generator.main", "discriminator.main") for at in range(0, 12, 3)]
    steps = range(1, last + 1)
    return Played(
        name="20260304-101500-dcgan",
        facts=dict(FACTS) | {"steps": last, "script": "dcgan.py"},
        checked=CHECKED,
        curves=(
            curve("loss/generator", steps, lambda s: 2 + math.sin(s / 40) / 2 + rng.gauss(0, 0.3)),
            curve("loss/discriminator", steps, lambda s: 0.7 - math.sin(s / 40) / 5 + rng.gauss(0, 0.1)),
            curve("lr/generator", steps, lambda s: 2e-4),
            curve("lr/discriminator", steps, lambda s: 1e-4),
            curve("gradient_norm/generator", spread(last), lambda s: 1 + rng.random()),
            curve("gradient_norm/discriminator", spread(last), lambda s: 0.3 + rng.random()),
        ),
        grids=(
            layers_of("update_ratio", names, spread(last), lambda at, s: 1e-3 * (1 + at) * math.exp(rng.gauss(0, 0.2))),
        ),
        weights=tuple(parameter(n, (64, 64, 4, 4), model=n.split(".")[0].title(), optimizer="Adam") for n in names),
    )


def cut_short():
    """Killed after three steps."""
    facts = {k: v for k, v in FACTS.items() if k not in ("ended", "how", "seconds", "overhead")} | {"steps": 3}
    return Played(
        name="20260304-120000-train",
        facts=facts,
        ended=False,
        curves=(curve("loss", (1, 2, 3), lambda s: 2.3 - s / 100),),
        grids=(layers_of("update_ratio", ("net.0.weight", "net.2.weight"), (1, 2, 3), lambda at, s: 1e-3 * (at + s)),),
    )


def empty():
    """Nothing but a name."""
    return Played(name="empty", facts={}, ended=False)


EVIL = "</script><img src=x onerror=alert(2)>"


def hostile():
    """Every text is an attack."""
    bad = f"<script>alert(1)</script>{EVIL}\u2028\u202e' \" & <!-- <b>\x00\x1b[31m"
    finding = Finding(
        code="O12",
        slug=bad,
        severity="error",
        message=bad,
        cause=bad,
        fix=bad,
        where=Where(bad, 3),
        step=2,
        evidence={bad: bad, "layer": EVIL, "n": NAN, "m": math.inf},
        key=bad,
    )
    return Played(
        name="<script>alert(1)</script>",
        facts={"steps": 3, "script": bad, "command": bad, bad: bad, "seconds": NAN},
        findings=(finding, replace(finding, where=None, code=EVIL, severity="warning")),
        checked=("O12", EVIL),
        not_checked=(Unchecked(EVIL, bad),),
        notes=(bad,),
        curves=(
            curve("loss", (1, 2, 3), lambda s: s, not_finite=(2,)),
            curve(f"loss/{EVIL}", (1, 2, 3), lambda s: math.inf),
            curve("lr", (1, 10**17), lambda s: 1e30),
            curve("gradient_norm", (3, 3, 1), lambda s: 1e-40),
            curve(f"logged/{EVIL}", (1, 2, 3), lambda s: 1e308 * s),
            curve(bad, (1, 2, 3), lambda s: -1e308),
        ),
        grids=(
            layers_of("update_ratio", (EVIL, "__proto__"), (1, 2, 3), lambda at, s: (NAN, math.inf)[at]),
            layers_of("zeros", ("a",), (3, -5, 10**17, 3), lambda at, s: 1e300),
        ),
        bins=(
            Histogram(name=EVIL, step=1, edges=(0.0, 1.0, 2.0), counts=(3, 0)),
            Histogram(name="__proto__", step=1, edges=(NAN, NAN), counts=(0,)),
        ),
        weights=(parameter(EVIL, (2, 2), model=EVIL, optimizer=EVIL, dtype=EVIL, learning_rate=NAN),),
        marks=(Happening(step=2, seconds=NAN, kind=EVIL, text=bad, where=Where(bad, 1)),),
    )


def long(last=100_000, tags=20):
    """A run of 100,000 steps, as the record keeps it: nothing is thinned but what is old."""
    well = gpt(layers=24, last=last)
    steps = range(1, last + 1, 5)
    more = tuple(
        curve(f"logged/metric/{n}", steps, lambda s, n=n: n + math.sin(s / 1000), band=0.1) for n in range(tags)
    )
    return replace(
        well, curves=(curve("loss", range(1, last + 1), lambda s: 3 + math.exp(-s / 9000)), *well.curves[1:], *more)
    )


ALL = {
    "healthy": healthy,
    "sick": sick,
    "gpt": gpt,
    "gan": gan,
    "cut_short": cut_short,
    "empty": empty,
    "hostile": hostile,
}
