"""The programs of benchmarks/detection.py: what the README says of them holds."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "detection.py"
SPECIFICATION = importlib.util.spec_from_file_location("detection", PATH)
detection = sys.modules["detection"] = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(detection)

PROGRAMS = {f"{path.parent.name}/{path.stem}": (path, code) for path, code in detection.programs()}
HINTS = {"planted/24_labels_masked_but_one", "planted/25_decay_on_norms"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcomes(request):
    mine = [item for item in request.session.items if item.path == request.path]
    chosen = [item.callspec.params["program"] for item in mine if hasattr(item, "callspec")]
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(detection.watched, *PROGRAMS[name]) for name in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_program_is_judged_as_the_readme_says(outcomes, program):
    outcome = outcomes[program].result()
    _, expected = PROGRAMS[program]
    planted = "needs a probe" if expected == "-" else "named as a hint" if program in HINTS else "named"
    assert outcome.verdict == (planted if expected else "quiet"), outcome


def test_counts_are_those_of_the_readme():
    assert sum(name.startswith("planted") for name in PROGRAMS) == 25
    assert sum(name.startswith("healthy") for name in PROGRAMS) == 10
