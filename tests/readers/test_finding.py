"""Which files are logs, and which belong together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatline.readers._finding import find

SAMPLES = Path(__file__).parent / "samples"
CSV = "step,loss\n1,2\n2,1\n"


def write(path, text=CSV):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def runs(found):
    return [str(source.run) for source in found.sources]


def test_runs_under_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/b/metrics.csv", "runs/a/version_0/metrics.csv", "runs/seed1.csv", "runs/seed2.csv"):
        write(tmp_path / name)
    write(tmp_path / "runs/data.csv", "name,age\nann,3\n")
    write(tmp_path / "runs/train.py", CSV)
    write(tmp_path / "runs/.git/x.csv")
    found = find(["runs"])
    assert runs(found) == ["runs/seed1.csv", "runs/seed2.csv", "runs/a/version_0", "runs/b"]
    assert (found.notes, found.missing) == ([], [])


def test_a_file_is_named_by_its_folder_or_by_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "one/metrics.csv")
    write(tmp_path / "one/seed.csv")
    assert runs(find(["one/metrics.csv"])) == ["one"]
    assert runs(find(["one/seed.csv"])) == ["one/seed.csv"]
    assert runs(find(["one/metrics.csv", "one/metrics.csv"])) == ["one/metrics.csv"], "the same file once"


def test_no_link_is_followed(tmp_path):
    outside = write(tmp_path / "outside/metrics.csv")
    write(tmp_path / "runs/a/metrics.csv")
    (tmp_path / "runs/link.csv").symlink_to(outside)
    (tmp_path / "runs/folder").symlink_to(outside.parent)
    (tmp_path / "runs/loop").symlink_to(tmp_path / "runs")
    (tmp_path / "runs/latest").symlink_to(tmp_path / "runs/a")
    (tmp_path / "runs/broken").symlink_to(tmp_path / "nowhere")
    found = find([str(tmp_path / "runs")])
    assert runs(found) == [str(tmp_path / "runs/a")]
    assert [link.rpartition("/")[2] for link in found.links] == ["broken", "folder", "link.csv", "loop"]
    assert len(found.notes) == 1
    assert found.notes[0].endswith("link.csv and 1 more")


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "metrics.csv")
    assert find([str(tmp_path)]).sources == []
    assert "neither" in find([str(tmp_path / "metrics.csv")]).missing[0]


@pytest.mark.parametrize("content", [b"", b"\0" * 1000, b"\x93NUMPY\1\0", bytes(range(256)) * 40])
def test_a_file_that_does_not_keep_its_names_promise_is_named(tmp_path, content):
    for name in ("metrics.csv", "trainer_state.json"):
        (tmp_path / name).write_bytes(content)
    found = find([str(tmp_path)])
    assert (found.sources, len(found.notes)) == ([], 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_named(tmp_path):
    write(tmp_path / "metrics.csv").chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    assert len(find([str(tmp_path)]).notes) == 2


def test_what_is_not_there_is_missing(tmp_path):
    assert find([str(tmp_path / "nothing")]).missing == [f"{tmp_path / 'nothing'}: No such file or directory"]
    assert len(find(["a\0b"]).missing) == 1


def test_event_files_of_a_trainer_tell_of_its_run(tmp_path):
    state = '{\n "global_step": 2,\n "log_history": [{"loss": 1.0, "step": 1}, {"loss": 0.5, "step": 2}]\n}'
    write(tmp_path / "out/trainer_state.json", state)
    write(tmp_path / "out/runs/May01_host/metrics.csv")
    assert runs(find([str(tmp_path)])) == [str(tmp_path / "out"), str(tmp_path / "out")]


def test_what_wandb_keeps_of_a_run_is_no_other_run(tmp_path):
    top = tmp_path / "wandb/offline-run-1"
    (top / "logs").mkdir(parents=True)
    (top / "run-x.wandb").write_bytes((SAMPLES / "run-sample.wandb").read_bytes())
    printed = "".join(f"step {step}: loss {1 / step:.3f}\n" for step in range(1, 9))
    write(top / "files/output.log", printed)
    write(top / "logs/debug-internal.log", printed)
    (top / "logs/debug-core.log").symlink_to("/tmp/elsewhere.log")
    found = find([str(tmp_path)])
    assert set(runs(found)) == {str(top)}
    assert [source.reader.name for source in found.sources] == ["W&B", "text"]
    assert found.notes == []
