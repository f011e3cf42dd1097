"""A report with everything in it, hostile text, and golden files (FLATLINE_UPDATE_GOLDEN=1 rewrites them)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flatline.events import Where
from flatline.findings import Finding, Report, Unchecked

GOLDEN = Path(__file__).parent / "golden"
SOURCE = """\
import torch
from model import Net, data

model = Net()
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters())
for x, y in data():
    probs = model(x)
    loss = criterion(probs, y)
    loss.backward()
    optimizer.zero_grad()

    optimizer.step()
"""

DOUBLE_SOFTMAX = Finding(
    code="O12",
    slug="double-softmax",
    severity="error",
    message="the input of cross_entropy is already a softmax (model.py:21, net.classifier.3); all of the first 3 losses",
    cause="cross_entropy applies log-softmax itself; a second softmax squeezes the scores into [0, 1]: gradient 14 × smaller here",
    fix="return raw scores: drop nn.Softmax at model.py:21, and apply softmax only where probabilities are read",
    where=Where("train.py", 9, "<module>"),
    step=1,
    evidence={"losses": 3, "gradient_ratio": 14.03125, "mean": True, "note": None},
)
UPDATE_ORDER = Finding(
    code="O4",
    slug="update-order-broken",
    severity="warning",
    message="zero_grad() stood between backward() and step() at all of the first 12 steps",
    cause="every update is made of zeros",
    fix="optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
    where=Where("train.py", 13),
    step=1200,
    count=12,
    ranks=(0, 1),
)
ONE_RATE = Finding(
    code="O19",
    slug="one-rate-for-all-layers",
    severity="hint",
    message="a pretrained body and a fresh head learn at the same rate 0.001",
    cause="",
    fix="give the head a parameter group of its own",
    step=2,
)
HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 [bold red]markup[/] [/] :smile: \x07 bell\r\nnext\u2028line \u202ertl "
    "surrogate \udcff null \x00 %0A ::error:: \x9b2J " + "x" * 5000
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with train.py in it."""
    (tmp_path / "train.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


@pytest.fixture
def full(project: Path) -> Report:
    return Report(
        findings=(ONE_RATE, UPDATE_ORDER, DOUBLE_SOFTMAX),
        checked=("O2", "O3", "O4", "O12", "O19"),
        not_checked=(
            Unchecked("O8", "no learning-rate scheduler was built"),
            Unchecked(
                "Z99", "no GradScaler was used in this run, and this reason is too long for one line of a terminal"
            ),
        ),
        run={
            "steps": 1200,
            "seconds": 61.25,
            "overhead": 0.004,
            "how": "finished",
            "python": "3.11.7",
            "torch": "2.13.0",
        },
        notes=("Z7 was switched off: ValueError: [red]boom[/red]",),
        hidden_hints=2,
    )


@pytest.fixture
def clean() -> Report:
    checked = tuple(f"Z{number}" for number in range(47))
    not_checked = tuple(Unchecked(f"Y{number}", "it never happened") for number in range(9))
    return Report(checked=checked, not_checked=not_checked, run={"steps": 1200, "overhead": 0.004})


@pytest.fixture
def hostile(project: Path) -> Report:
    (project / "latin.py").write_bytes(b"# caf\xe9 \x1b[31m\nx = '\xff'\t# " + b"y" * 4000 + b"\n")
    places = [
        Where("latin.py", 2),
        Where("gone.py", 3),
        Where("train.py", 99),
        Where("train.py", 0),
        Where("a\udcff\x00\n.py", 1),
    ]
    places += [Where(".", 1), Where("<stdin>", 1), Where("", 1), Where("/elsewhere/deep/train.py", 5)]
    findings = tuple(
        Finding(
            code="O12",
            slug="double-softmax",
            severity="error",
            message=HOSTILE,
            cause=HOSTILE,
            fix=HOSTILE,
            where=where,
            evidence={HOSTILE: float("nan"), "high": float("inf"), "low": float("-inf"), "text": HOSTILE},
            key=str(number),
        )
        for number, where in enumerate([*places, None])
    )
    run = {"steps": None, "overhead": float("nan"), "how": HOSTILE, "torch": None, "script": HOSTILE}
    return Report(findings=findings, not_checked=(Unchecked(HOSTILE, HOSTILE),), notes=(HOSTILE,), run=run)


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare with a file of the golden folder, or rewrite it."""

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if os.environ.get("FLATLINE_UPDATE_GOLDEN"):
            file.write_bytes(text.encode())
        assert text == file.read_bytes().decode()

    return check
