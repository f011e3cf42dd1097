"""Every folder of examples/ keeps its promise: the sick script shows its rule at the marked line, the healthy one nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from flatline import catalogue

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/sick.py"))
MARK = "# <- here"
MOST = 3  # findings for one planted defect
ALSO: dict[str, set[str]] = {}  # example -> codes that its defect brings along and that are true, too

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    """(name, sick or healthy) -> the future of its report; only for the examples that somebody asks for."""
    folder = tmp_path_factory.mktemp("reports")
    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = sorted({item.callspec.params["name"] for item in mine})
    with ThreadPoolExecutor(2) as pool:
        yield {(n, kind): pool.submit(run, n, kind, folder) for n in chosen for kind in ("sick", "healthy")}
        pool.shutdown(cancel_futures=True)


def run(name: str, kind: str, folder: Path) -> dict:
    output = folder / f"{name}.{kind}.json"
    options = ["--no-record", "--format", "json", "--output", str(output)]
    command = [sys.executable, "-m", "flatline", "run", *options, f"{kind}.py"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        command, cwd=EXAMPLES / name, env=settings, capture_output=True, text=True, timeout=120, check=False
    )
    assert output.exists(), ended.stderr
    return {**json.loads(output.read_text()), "status": ended.returncode, "stderr": ended.stderr}


def report(reports: dict[tuple[str, str], Future], *which: str) -> dict:
    return reports[which].result()


def codes(report: dict) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def marked(name: str) -> list[int]:
    lines = (EXAMPLES / name / "sick.py").read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith(MARK)]


@pytest.mark.parametrize("name", NAMES)
def test_sick_shows_its_rule_first_and_once(name, reports):
    found = report(reports, name, "sick")
    page = catalogue.find(name)
    assert codes(found)[:1] == [page.code], found["stderr"]
    assert found["findings"][0]["slug"] == name.replace("_", "-")
    assert found["findings"][0]["severity"] in ("error", "warning")
    assert codes(found).count(page.code) == 1, [finding["message"] for finding in found["findings"]]


@pytest.mark.parametrize("name", NAMES)
def test_sick_is_told_at_the_marked_line(name, reports):
    where = report(reports, name, "sick")["findings"][0]["where"]
    assert (EXAMPLES / name / where["file"]).resolve() == EXAMPLES / name / "sick.py"
    assert [where["line"]] == marked(name)


@pytest.mark.parametrize("name", NAMES)
def test_sick_shows_little_else(name, reports):
    found = report(reports, name, "sick")
    assert len(found["findings"]) <= MOST
    belong = {catalogue.find(name).code} | ALSO.get(name, set())
    assert set(codes(found)) <= belong
    assert found["notes"] == []


@pytest.mark.parametrize("name", NAMES)
def test_healthy_shows_nothing(name, reports):
    found = report(reports, name, "healthy")
    assert [finding["message"] for finding in found["findings"] if finding["severity"] != "hint"] == []
    assert found["notes"] == []
    assert found["status"] == 0
    assert found["run"]["steps"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_is_one_pair_with_one_mark_and_a_row_in_the_table(name):
    folder = EXAMPLES / name
    assert sorted(path.name for path in folder.glob("*.py")) == ["healthy.py", "sick.py"]
    assert catalogue.find(name) is not None, "a folder is named after its rule's slug"
    assert len(marked(name)) == 1
    assert MARK not in (folder / "healthy.py").read_text()
    page = catalogue.find(name)
    assert f"| [{name}]({name}) | {page.code} |" in (EXAMPLES / "README.md").read_text()


def test_there_are_enough():
    assert len(NAMES) >= 10
