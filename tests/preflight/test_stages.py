"""What a stage does in the script's loop never raises there, and what fails is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from flatline.commands import preflight
from flatline.events import LossComputed
from flatline.launch import StopTraining, stop
from flatline.preflight.looking import Looking
from flatline.preflight.stages import Stage


class Failing(Stage):
    name, steps = "failing", 10

    def after_step(self, optimizer):
        raise KeyError("ours")

    def answer(self):
        return {"verdict": "passed", "why": "all is well"}


def made(kind, **settings):
    return kind(SimpleNamespace(), **{"steps": 10, "seconds": 60.0, "stop": stop, **settings})


def step(stage):
    """An optimizer's, as the stage sees it."""
    stage._stepped = stage.guarded(stage.after_step)
    stage._after(None, (), {})


def test_what_raises_ends_the_stage_and_not_the_script():
    stage = made(Failing)
    with pytest.raises(StopTraining):
        step(stage)
    assert stage.told() == {
        "verdict": "not done",
        "why": "flatline itself failed here (after step: KeyError: 'ours')",
        "notes": ["failing: after step was switched off: KeyError: 'ours'"],
    }


def test_an_answer_that_cannot_be_made():
    class Silent(Failing):
        def answer(self):
            raise ValueError("no answer")

    assert made(Silent).told()["why"] == "flatline itself failed here (answer: ValueError: no answer)"


def test_a_hook_that_failed_is_asked_no_more():
    asked = []

    def hook(value):
        asked.append(value)
        raise RuntimeError

    stage = made(Failing)
    safe = stage.guarded(hook, lambda value: value + 1)
    assert [safe(1), safe(2)] == [2, 3]
    assert asked == [1]
    assert len(stage.notes) == 1


def test_a_script_that_catches_its_end_is_left():
    stage = made(Failing, steps=1)
    stage.after_step = lambda optimizer: None
    left = []
    stage.leave = lambda: left.append(stage.steps_done)
    for _ in range(2):
        with pytest.raises(StopTraining):
            step(stage)
    assert left == [2]


def test_a_line_that_cannot_be_made_leaves_the_others():
    stage = made(Looking)
    stage.data.inputs = {"x": [torch.ones(3, 2)], "y": [None], "z": [torch.ones(3, 2)]}
    told = [label for label, _ in stage._lines([1.0])]
    assert told == ["input x", "input z", "repeated", "first loss"]
    assert stage.notes[0] == "input is not shown: AttributeError: 'NoneType' object has no attribute 'shape'"
    assert stage.missing == ""


LEFT = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
os._exit(0)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_a_process_of_the_script_does_not_outlive_the_stage(tmp_path):
    token = f"left-behind-{os.getpid()}-{time.monotonic_ns()}"
    before = time.monotonic()
    with open(tmp_path / "said", "wb") as log:
        assert preflight._ended([sys.executable, "-c", LEFT, token], log, 60.0) == 0
    seen = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert token not in seen
    assert time.monotonic() - before < 10


@pytest.mark.parametrize(("losses", "several"), [(1, False), (4, True)], ids=["one", "as of LBFGS"])
def test_a_closure_that_is_called_several_times(losses, several):
    stage = made(Failing)
    stage.after_step, stage.proof = lambda optimizer: None, SimpleNamespace(computed=lambda event: None)
    for _ in range(3):
        stage._before(None, (None, object()), {})  # Lightning and accelerate hand one to every optimizer
        for _ in range(losses):
            stage.heard(object.__new__(LossComputed))
        stage._stepped = stage.after_step
        stage._after(None, (), {})
    assert stage.closure is several
