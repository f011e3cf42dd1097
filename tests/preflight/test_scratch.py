"""What a script writes, makes, moves and removes reaches the scratch folder only, and is read from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import os, shutil, sys, glob, tempfile
from pathlib import Path
from flatline.importing import after_import
from flatline.preflight.scratch import Scratch
from flatline.preflight.redirecting import Redirecting
from flatline.preflight.libraries import Libraries
scratch = Scratch(sys.argv[1])
Redirecting(scratch).attach()
for module, door in Libraries(scratch).doors.items():
    after_import(module, door)
"""
AGAIN = """
if os.path.exists("runs"):
    shutil.rmtree("runs")
assert not os.path.exists("runs") and not os.path.exists("runs/old.txt") and "runs" not in os.listdir(".")
os.makedirs("runs")
assert os.path.isdir("runs") and os.listdir("runs") == [] and "runs" in os.listdir(".") and Path("runs").is_dir()
open("runs/new.txt", "w").write("x")
assert glob.glob("runs/*") == ["runs/new.txt"] and [f for _, _, f in os.walk("runs")] == [["new.txt"]]
os.makedirs("runs/a/b", exist_ok=True)
Path("runs/a/b").mkdir(parents=True, exist_ok=True)
for name in ("runs", "runs/a"):
    try:
        os.mkdir(name)
        raise SystemExit("it stands already")
    except FileExistsError:
        pass
shutil.rmtree("runs")
assert not os.path.exists("runs/a")
"""
REMOVED = """
os.remove("keep.txt")
assert not os.path.exists("keep.txt") and glob.glob("*.txt") == []
try:
    os.remove("keep.txt")
    raise SystemExit("it is gone")
except FileNotFoundError:
    pass
Path("keep.txt").write_text("new")
assert Path("keep.txt").read_text() == "new"
Path("keep.txt").unlink()
assert not Path("keep.txt").exists()
try:
    os.rmdir("runs")
    raise SystemExit("it is full")
except OSError:
    assert os.path.isdir("runs")
os.chmod("runs/old.txt", 0o600)
"""
LINKS = """
os.makedirs("out", exist_ok=True)
for step in range(3):
    open(f"out/{step}.pt", "w").write(str(step))
    if os.path.islink("latest"):
        os.remove("latest")
    os.symlink(f"out/{step}.pt", "latest")
    assert open("latest").read() == str(step) and os.readlink("latest") == f"out/{step}.pt"
os.symlink("runs", "folder")
assert open("folder/old.txt").read() == "old" and os.listdir("folder") == ["old.txt"]
open("folder/old.txt", "w").write("mine")
assert open("runs/old.txt").read() == "mine"
os.link("keep.txt", "hard.txt")
assert open("hard.txt").read() == "mine"
"""
MOVED = """
os.makedirs("part/sub")
open("part/sub/a.txt", "w").write("a")
os.rename("part", "whole")
assert open("whole/sub/a.txt").read() == "a" and not os.path.exists("part")
os.rename("runs", "runs.bak")
os.makedirs("runs")
assert os.path.isdir("runs.bak") and os.listdir("runs") == []
os.replace("keep.txt", "kept.txt")
assert not os.path.exists("keep.txt") and open("kept.txt").read() == "mine"
shutil.copy2("kept.txt", "copy.txt")
shutil.copytree("whole", "third")
assert sorted(os.listdir(".")) == ["copy.txt", "kept.txt", "runs", "runs.bak", "third", "whole"]
"""
OTHERS = """
with tempfile.TemporaryDirectory(prefix="own-") as folder:
    open(folder + "/a", "w").write("a")
    assert os.listdir(folder) == ["a"] and folder not in scratch.kept
import subprocess
assert not subprocess.run(["test", "-e", folder]).returncode == 0
try:
    open("nowhere/file.txt", "w")
    raise SystemExit("there is no such folder")
except FileNotFoundError:
    pass
os.makedirs("here")
os.chdir("here")
open("x", "w").write("x")
assert open("x").read() == "x"
"""
CACHED = """
assert os.environ["HF_HOME"] not in scratch.kept
os.makedirs(os.environ["HF_HOME"] + "/hub")
open(os.environ["HF_HOME"] + "/hub/a", "w").write("a")
os.replace(os.environ["HF_HOME"] + "/hub/a", os.environ["HF_HOME"] + "/hub/b")
assert os.listdir(os.environ["HF_HOME"] + "/hub") == ["b"]
"""
DATABASE = """
import sqlite3
with sqlite3.connect("runs.db") as base:
    base.execute("create table t(a)")
    base.execute("insert into t values (1)")
with sqlite3.connect("runs.db") as base:
    assert base.execute("select a from t").fetchall() == [(1,)]
assert sqlite3.connect(":memory:").execute("select 1").fetchone() == (1,)
"""


def tree(folder):
    """Every file and folder, with its content and rights."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_text() if path.is_file() else None)
        for path in sorted(Path(folder).rglob("*"))
    }


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own" / "runs").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "own" / "keep.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "own" / "runs" / "old.txt").write_text("old", encoding="utf-8")
    return tmp_path / "own"


def run(own, source):
    """In a process of its own, as a stage does."""
    words = [sys.executable, "-c", HEAD + source, str(own.parent / "scratch")]
    done = subprocess.run(words, cwd=own, capture_output=True, text=True, timeout=60, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "source",
    [AGAIN, REMOVED, LINKS, MOVED, OTHERS, DATABASE],
    ids=["removed and made again", "removed", "links", "moved", "others", "sqlite"],
)
def test_the_scripts_own_folder_stays_as_it_is(own, source):
    before = tree(own)
    run(own, source)
    assert tree(own) == before


def test_caches_of_libraries_are_kept(own, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(own.parent / "new" / "cache"))
    run(own, CACHED)
    assert (own.parent / "new" / "cache" / "hub" / "b").read_text(encoding="utf-8") == "a"


SAFETENSORS = """
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
Libraries(scratch).torch()
save_file({"w": torch.ones(2)}, "model.safetensors")
assert load_file("model.safetensors")["w"].sum() == 2
with safe_open("model.safetensors", framework="pt") as file:
    assert list(file.keys()) == ["w"]
torch.jit.trace(torch.nn.Linear(2, 1), torch.ones(1, 2)).save("traced.pt")
torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 1), torch.ones(1, 2)), "jit.pt")
assert torch.jit.load("jit.pt")(torch.ones(1, 2)).shape == (1, 1)
torch.save({"w": torch.ones(2)}, f="plain.pt")
assert sorted(glob.glob("*.pt")) == ["jit.pt", "plain.pt", "traced.pt"]
"""


def test_libraries_that_write_from_c(own):
    pytest.importorskip("safetensors")
    (own / "model.safetensors").write_text("mine", encoding="utf-8")
    before = tree(own)
    run(own, SAFETENSORS)
    assert tree(own) == before
