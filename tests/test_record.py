"""The record without torch: what is written can be read, whatever happens to the writer, the disk or the file."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatline.events import Where
from flatline.findings import Finding
from flatline.record import RecordError, open_record
from flatline.record import writing as writing_module
from flatline.record.facts import commit, without_secrets
from flatline.record.place import Place, name_of
from flatline.record.recorder import Recorder
from flatline.record.writing import LOOK_AT_SIZE, MOST_BAD, MOST_HISTOGRAMS, MOST_NAMES, Writer

SOURCE = Path(__file__).resolve().parents[1] / "src"
NAN, INF = math.nan, math.inf


class Written:
    """A writer into a folder, and its notes."""

    def __init__(self, folder: Path, limit: int = writing_module.LIMIT) -> None:
        self.folder, self.notes = folder, []
        self.writer = Writer(lambda: folder / "record.sqlite", limit=limit, on_note=self.notes.append)

    def scalars(self, steps, *, name="loss", value=float, every=500):
        for at, step in enumerate(steps):
            self.writer.scalars(step, {name: value(step)})
            if at % every == every - 1:
                self.writer.flush()
        return self

    def close(self):
        self.writer.close()
        return open_record(self.folder)


def curves(recording):
    with recording:
        return {series.name: series for series in recording.series()}


# --------------------------------------------------------------------------- there and back


def test_scalars_come_back_as_they_were(tmp_path):
    written = Written(tmp_path)
    for step in range(1, 101):
        written.writer.scalars(step, {"loss": 1 / step, "lr": 1e-3})
    loss, lr = curves(written.close()).values()
    assert loss.steps == tuple(range(1, 101))
    assert loss.values == tuple(1 / step for step in range(1, 101))
    assert set(lr.values) == {1e-3}
    assert (loss.lows, loss.highs, loss.not_finite) == ((), (), ())


def test_one_plain_file_is_left(tmp_path):
    Written(tmp_path).scalars(range(2000)).close().close()
    assert [path.name for path in tmp_path.iterdir()] == ["record.sqlite"]


def test_a_scalar_of_several_layouts_is_one_series(tmp_path):
    written = Written(tmp_path)
    for step in range(10):
        written.writer.scalars(step, {"a": step, "b": 0.0} if step % 2 else {"a": step})
    found = curves(written.close())
    assert found["a"].values == tuple(range(10))
    assert found["b"].steps == (1, 3, 5, 7, 9)


def test_numbers_that_are_not_finite_are_named(tmp_path):
    written = Written(tmp_path)
    for step, value in enumerate([1.0, NAN, INF, -INF, 2.0]):
        written.writer.scalars(step, {"loss": value})
    (loss,) = curves(written.close()).values()
    assert loss.not_finite == (1, 2, 3)
    assert [math.isnan(value) for value in loss.values] == [False, True, True, True, False]


def test_many_that_are_not_finite_are_counted_up_to_a_limit(tmp_path):
    (loss,) = curves(Written(tmp_path).scalars(range(3000), value=lambda step: NAN).close()).values()
    assert len(loss.not_finite) == MOST_BAD


def test_layers_are_a_grid(tmp_path):
    written = Written(tmp_path)
    written.writer.row("weight_rms", ("a", "b"), 1, (1.0, 2.0))
    written.writer.row("weight_rms", ("b", "c"), 2, (3.0, 4.0))
    written.writer.row("weight_rms", ("c",), 1, (5.0,))
    with written.close() as recording:
        grid = recording.grid("weight_rms")
        assert (grid.names, grid.steps, grid.values[0]) == (("a", "b", "c"), (1, 2), (1.0, 2.0, 5.0))
        assert math.isnan(grid.values[1][0])
        assert recording.quantities() == ("weight_rms",)
        assert recording.grid("zeros") is None


def test_findings_happenings_and_histograms_come_back(tmp_path):
    recorder = Recorder(Place(str(tmp_path / "run"), "t", shelf=False), on_note=print)
    finding = Finding(code="O12", slug="s", severity="error", message="m", cause="c", fix="f", consequences=("N1",),
                      where=Where("train.py", 3, "main"), step=4, evidence={"norm": INF, "classes": 5})  # fmt: skip
    recorder.begin({"python": "3.12"})
    recorder.found(finding)
    recorder.writer.scalars(4, {"loss": 1.0})
    recorder.writer.histogram("weights/a", 4, -1.0, 1.0, [1, 2, 3, 4])
    recorder.writer.histogram("weights/a", 5, -1.0, NAN, [1, 2, 3, 4])
    recorder.writer.happening(4, 0.5, "crash", "text", ["train.py", 5, "main"])
    recorder.tick(4)
    with open_record(tmp_path / "run") as recording:
        assert recording.findings == (finding,)
        (histogram,) = recording.histograms()
        assert (histogram.edges, histogram.counts) == ((-1.0, -0.5, 0.0, 0.5, 1.0), (1, 2, 3, 4))
        (happening,) = recording.happenings()
        assert (happening.kind, happening.where) == ("crash", Where("train.py", 5, "main"))
        assert (recording.facts["python"], recording.facts["steps"], recording.ended) == ("3.12", 4, False)


def test_a_version_changes_when_something_was_written(tmp_path):
    written = Written(tmp_path).scalars(range(500))
    with open_record(tmp_path) as recording:
        before = recording.version()
        assert recording.version() == before
        written.scalars(range(500, 1000))
        assert recording.version() != before
        assert len(recording.series()[0].steps) == 1000


def test_histograms_of_one_name_are_thinned(tmp_path):
    written = Written(tmp_path)
    for step in range(200):
        written.writer.histogram("a", step, 0.0, 1.0, [step])
    written.scalars([1])
    with written.close() as recording:
        steps = [histogram.step for histogram in recording.histograms()]
    assert len(steps) <= MOST_HISTOGRAMS
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert steps[-1] >= 195


def test_more_scalars_than_anybody_reads_are_left_out(tmp_path):
    written = Written(tmp_path)
    for at in range(MOST_NAMES + 100):
        written.writer.scalars(1, {f"s{at}": 1.0})
    assert len(curves(written.close())) == MOST_NAMES


# --------------------------------------------------------------------------- thinning


def test_a_spike_never_vanishes(tmp_path):
    spikes = {77: 1e6, 5_000: -1e6, 31_111: 5e5, 59_999: 7e5}
    written = Written(tmp_path).scalars(range(60_000), value=lambda step: spikes.get(step, 1.0))
    (loss,) = curves(written.close()).values()
    assert len(loss.steps) <= 20_000
    assert list(loss.steps) == sorted(set(loss.steps))
    assert {value for value in (*loss.highs, *loss.lows) if value != 1.0} == set(spikes.values())
    at = next(at for at, high in enumerate(loss.highs) if high == 1e6)
    assert loss.steps[at] <= 77 < loss.steps[at + 1]


def test_the_newest_rows_stay_as_they_are(tmp_path):
    (loss,) = curves(Written(tmp_path).scalars(range(50_000)).close()).values()
    assert loss.steps[-9_000:] == loss.values[-9_000:] == tuple(range(41_000, 50_000))


def test_the_mean_of_thinned_rows_is_theirs(tmp_path, monkeypatch):
    monkeypatch.setitem(writing_module.MOST_ROWS, "scalars", 128)
    values = [random.Random(step).random() for step in range(5_000)]
    written = Written(tmp_path).scalars(range(5_000), value=values.__getitem__, every=50)
    (loss,) = curves(written.close()).values()
    ends = [*loss.steps[1:], 5_000]
    for step, end, mean, low, high in zip(loss.steps, ends, loss.values, loss.lows, loss.highs, strict=True):
        part = values[int(step) : int(end)]
        assert (low, high) == (min(part), max(part))
        assert mean == pytest.approx(sum(part) / len(part))


def test_bad_steps_do_not_spoil_their_stretch(tmp_path, monkeypatch):
    monkeypatch.setitem(writing_module.MOST_ROWS, "scalars", 128)
    bad = {3, 4, 5, 6, 7, 8, 9, 10, 11, 100}
    written = Written(tmp_path).scalars(range(3_000), value=lambda step: NAN if step in bad else 2.0, every=50)
    (loss,) = curves(written.close()).values()
    assert loss.not_finite == tuple(sorted(bad))
    assert {value for value in loss.values if not math.isnan(value)} == {2.0}


@settings(max_examples=40, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 5), min_size=1, max_size=400),
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=7),
    every=st.integers(1, 90),
)
def test_any_pattern_of_steps(tmp_path_factory, gaps, values, every):
    folder = tmp_path_factory.mktemp("pattern")
    written = Written(folder)
    step, told = 0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing_module, "FEWEST_ROWS", 32)
        patch.setitem(writing_module.MOST_ROWS, "scalars", 32)
        for at, gap in enumerate(gaps):
            step += gap
            told.append((step, values[at % len(values)]))
            written.writer.scalars(*told[-1][:1], {"x": told[-1][1]})
            if at % every == 0:
                written.writer.flush()
        (series,) = curves(written.close()).values()
    finite = [value for _, value in told if math.isfinite(value)]
    assert list(series.steps) == sorted(series.steps)
    assert {*series.steps} <= {step for step, _ in told}
    assert list(series.not_finite) == [step for step, value in told if not math.isfinite(value)]
    lows, highs = series.lows or series.values, series.highs or series.values
    assert len(series.values) == len(lows) == len(highs) == len(series.steps)
    if finite:
        assert min(low for low in lows if not math.isnan(low)) == min(finite)
        assert max(high for high in highs if not math.isnan(high)) == max(finite)


def test_a_record_stays_within_its_limit(tmp_path):
    written = Written(tmp_path, limit=1 << 20)
    names = tuple(f"s{at}" for at in range(40))
    for step in range(20_000):
        written.writer.row("scalars", names, step, [1.0 * step] * 40)
        if step % 50 == 0:
            written.writer.flush()
    found = curves(written.close())
    assert (tmp_path / "record.sqlite").stat().st_size < 3 << 20
    assert len(found["s0"].steps) > 100
    assert found["s0"].steps[0] == 0
    assert written.notes == [] or "record-limit" in written.notes[0]


def test_a_record_that_cannot_be_thinned_enough_is_ended_with_a_note(tmp_path):
    written = Written(tmp_path, limit=1 << 16)
    for step in range(40 * LOOK_AT_SIZE):
        written.writer.row("weight_rms", tuple(f"{step % 50}.{at}" for at in range(300)), step, [1.0] * 300)
        written.writer.flush()
    assert len(written.notes) == 1
    assert "record-limit" in written.notes[0]
    assert written.close().grid("weight_rms") is not None


# --------------------------------------------------------------------------- whatever happens to the writer

WRITER = """
import sys, time
from pathlib import Path
from flatline.record.writing import Writer
folder = Path(sys.argv[1])
writer = Writer(lambda: folder / "record.sqlite", on_note=print)
step = 0
while True:
    for _ in range(200):
        step += 1
        writer.row("scalars", ("loss", "lr"), step, (float(step), -float(step)))
    writer.flush()
    print(step, flush=True)
"""


def test_a_killed_writer_leaves_all_that_it_flushed(tmp_path):
    chance = random.Random(0)
    settings_ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    began, kills = time.monotonic(), 0
    while kills < 50 or (kills < 80 and time.monotonic() - began < 12):
        folder = tmp_path / str(kills)
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", WRITER, str(folder)], stdout=subprocess.PIPE, env=settings_
        )
        process.stdout.readline()
        time.sleep(chance.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        lines = process.communicate()[0].split()
        flushed = int(lines[-1]) if lines else 200
        found = curves(open_record(folder))
        assert found["loss"].steps[-1] >= flushed
        assert found["loss"].values == found["loss"].steps or found["loss"].lows
        assert [-value for value in found["lr"].values] == list(found["loss"].values)
        kills += 1


def test_a_child_after_a_fork_leaves_its_parents_record_alone(tmp_path):
    written = Written(tmp_path).scalars(range(500))
    written.writer.scalars(500, {"loss": 500.0})
    child = os.fork()
    if not child:
        written.writer.scalars(9_999, {"loss": 1.0})
        written.writer.close()
        os._exit(0)
    os.waitpid(child, 0)
    (loss,) = curves(written.scalars(range(501, 600)).close()).values()
    assert loss.steps == tuple(range(600))


def test_a_child_that_trains_has_a_file_of_its_own(tmp_path):
    recorder = Recorder(Place(str(tmp_path / "run"), "t", shelf=False), on_note=print)
    recorder.writer.scalars(1, {"loss": 1.0})
    recorder.tick(1)
    child = os.fork()
    if not child:
        recorder.forked()
        recorder.writer.scalars(2, {"loss": 2.0})
        recorder.tick(2)
        os._exit(0)
    os.waitpid(child, 0)
    assert curves(open_record(tmp_path / "run"))["loss"].steps == (1,)
    assert curves(open_record(tmp_path / "run" / f"record-{child}.sqlite"))["loss"].steps == (2,)


def test_no_descriptor_stays_open(tmp_path):
    before = os.listdir("/proc/self/fd")
    written = Written(tmp_path).scalars(range(2_000))
    assert os.listdir("/proc/self/fd") == before
    written.close().close()


def test_another_working_directory_is_no_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(Place(os.path.abspath("run"), "t", shelf=False), on_note=print)
    recorder.writer.scalars(1, {"loss": 1.0})
    recorder.tick(1)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    recorder.writer.scalars(2, {"loss": 1.0})
    recorder.tick(2)
    assert curves(open_record(tmp_path / "run"))["loss"].steps == (1, 2)


def test_a_deleted_folder_ends_the_record_with_one_note(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    written = Written(folder).scalars(range(500))
    shutil.rmtree(folder)
    written.scalars(range(500, 3_000))
    written.writer.close()
    assert len(written.notes) == 1
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_one_note(tmp_path):
    (tmp_path / "file").write_text("")
    notes = []
    recorder = Recorder(Place(str(tmp_path / "file" / "run"), "t", shelf=True), on_note=notes.append)
    for step in range(3):
        recorder.writer.scalars(step, {"loss": 1.0})
        recorder.tick(step)
    assert len(notes) == 1
    assert "record" in notes[0]


def test_a_full_disk_ends_the_record_with_one_note(tmp_path, monkeypatch):
    written = Written(tmp_path).scalars(range(500))
    real = writing_module._connected

    def small(file, *, new):
        connection = real(file, new=new)
        connection.execute("PRAGMA max_page_count = 20")
        return connection

    monkeypatch.setattr(writing_module, "_connected", small)
    written.scalars(range(500, 30_000))
    written.writer.close()
    assert len(written.notes) == 1
    assert "full" in written.notes[0]
    assert curves(open_record(tmp_path))["loss"].steps[:500] == tuple(range(500))


def test_a_reader_in_the_way_is_not_waited_for(tmp_path):
    written = Written(tmp_path).scalars(range(500))
    reader = sqlite3.connect(tmp_path / "record.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM chunks").fetchone()
    began = time.monotonic()
    written.scalars(range(500, 1000))
    assert time.monotonic() - began < 2
    reader.close()
    (loss,) = curves(written.close()).values()
    assert loss.steps == tuple(range(1000))
    assert written.notes == []


def test_threads_may_log_at_once(tmp_path):
    written = Written(tmp_path)

    def log(name):
        for step in range(3_000):
            written.writer.scalars(step, {name: float(step)})
            if step % 100 == 0:
                written.writer.flush()

    threads = [threading.Thread(target=log, args=(f"s{at}",)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = curves(written.close())
    assert all(found[f"s{at}"].steps == tuple(range(3_000)) for at in range(4))


def test_nothing_is_left_behind_without_a_step(tmp_path):
    recorder = Recorder(Place(str(tmp_path / "shelf" / "run"), "t", shelf=True), on_note=print)
    recorder.begin({})
    recorder.tick(0)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------- folders


def test_two_runs_of_one_second_have_a_folder_each(tmp_path):
    one, other = (Place(str(tmp_path / "shelf" / "run"), token, shelf=True) for token in "ab")
    assert [place.claim().name for place in (one, other, one)] == ["run", "run-2", "run"]
    assert [place.known().name for place in (one, other)] == ["run", "run-2"]
    assert Place(str(tmp_path / "shelf" / "run"), "c", shelf=True).known() is None
    assert (tmp_path / "shelf" / ".gitignore").read_text() == "*\n"


def test_ranks_of_one_run_share_a_folder(tmp_path):
    names = [Place(str(tmp_path / "run"), "t", shelf=False).file(rank).name for rank in (None, 0, 3)]
    assert names == ["record.sqlite", f"record-{os.getpid()}.sqlite", "record-rank3.sqlite"]


def test_runs_that_begin_at_once_do_not_meet(tmp_path):
    found = []
    places = [Place(str(tmp_path / "run"), str(at), shelf=False) for at in range(12)]
    threads = [threading.Thread(target=lambda place=place: found.append(place.claim())) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 12


@pytest.mark.parametrize(
    ("script", "ends"), [("train.py", "-train"), ("a b/ü.py", "-ü"), ("/x/torchrun", "-torchrun"), ("", "-run")]
)
def test_folders_are_named_after_the_script(script, ends):
    assert name_of(script).endswith(ends)


# --------------------------------------------------------------------------- strange files


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    written = Written(folder).scalars(range(800), every=100)
    written.writer.row("weight_rms", ("a", "b"), 1, (1.0, 2.0))
    written.writer.histogram("weights/a", 4, -1.0, 1.0, [1, 2, 3, 4])
    written.writer.happening(4, 0.5, "crash", "text", None)
    finding = {
        "code": "O1",
        "slug": "s",
        "severity": "error",
        "message": "m",
        "cause": "c",
        "fix": "f",
        "step": 1,
        "where": None,
    }
    written.writer.finding("O1", "", finding)
    row = {
        "name": "a",
        "shape": [2],
        "elements": 2,
        "dtype": "float32",
        "trainable": True,
        "model": "m",
        "optimizer": "SGD",
    }
    written.writer.fact("parameters", [{**row, "learning_rate": 0.1, "weight_decay": None}])
    written.writer.fact("optimizers", {"1": ["SGD", "m"]})
    written.close().close()
    return folder / "record.sqlite"


def read_all(path):
    with open_record(path) as recording:
        _ = (
            recording.facts,
            recording.findings,
            recording.checked,
            recording.notes,
            recording.not_checked,
            recording.ended,
        )
        for quantity in recording.quantities():
            recording.grid(quantity)
        return recording.series(), recording.histograms(), recording.parameters(), recording.happenings()


def test_the_whole_file_can_be_read(whole):
    series, histograms, parameters, happenings = read_all(whole)
    assert (len(series), len(histograms), len(happenings)) == (1, 1, 1)
    assert parameters[0].shape == (2,)


def test_flipped_bits_are_damage_and_nothing_else(whole, tmp_path):
    chance, data = random.Random(1), whole.read_bytes()
    outcomes = []
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 1, 4, 64))):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        (tmp_path / "record.sqlite").write_bytes(damaged)
        try:
            read_all(tmp_path)
            outcomes.append("read")
        except RecordError as error:
            outcomes.append("damaged" if "\n" not in str(error) else str(error))
    assert set(outcomes) == {"read", "damaged"}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.3, 0.7])
def test_a_file_cut_short_is_told_in_a_line(whole, tmp_path, share):
    data = whole.read_bytes()
    (tmp_path / "record.sqlite").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(RecordError) as told:
        read_all(tmp_path)
    assert "\n" not in str(told.value)


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE facts (name, value)")
    connection.commit()
    connection.close()


STRANGE = {
    "text": lambda path: path.write_text("step,loss\n1,2\n"),
    "noise": lambda path: path.write_bytes(random.Random(0).randbytes(50_000)),
    "foreign": foreign,
}


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_what_is_no_record_is_told_in_a_line(tmp_path, make):
    make(tmp_path / "record.sqlite")
    with pytest.raises(RecordError, match="no record of flatline"):
        read_all(tmp_path / "record.sqlite")


def test_places_without_a_record_are_told(tmp_path):
    for path in (tmp_path, tmp_path / "not_there"):
        with pytest.raises(RecordError, match=str(path)):
            open_record(path)


def test_a_newer_version_is_told(whole, tmp_path):
    shutil.copy(whole, tmp_path / "record.sqlite")
    connection = sqlite3.connect(tmp_path / "record.sqlite")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(RecordError, match="newer"):
        open_record(tmp_path)


HOSTILE = {
    "values": "UPDATE facts SET value = '[[['",
    "numbers": "UPDATE layouts SET names = '3'",
    "wide": 'UPDATE layouts SET names = \'["a", "b", "c", "d"]\'',
    "widths": "UPDATE chunks SET width = 'x'",
    "negative": "UPDATE chunks SET width = -1, data = x'00'",
    "blobs": "UPDATE chunks SET data = 'text'",
    "huge": "UPDATE chunks SET data = zeroblob(100000001)",
    "findings": "UPDATE findings SET value = '{\"code\": 1}'",
    "lists": "UPDATE findings SET value = '[1]'",
    "counts": "UPDATE histograms SET counts = 'null'",
    "steps": "UPDATE happenings SET step = 'x'",
    "endless": "DROP TABLE facts; CREATE VIEW facts AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS name, x AS value FROM n",
}


@pytest.mark.parametrize("statement", HOSTILE.values(), ids=HOSTILE)
def test_hostile_contents_are_damage(whole, tmp_path, statement, monkeypatch):
    monkeypatch.setattr("flatline.record.reading.SECONDS", 0.5)
    monkeypatch.setattr("flatline.record.reading.MOST_ROWS", 10_000)
    shutil.copy(whole, tmp_path / "record.sqlite")
    connection = sqlite3.connect(tmp_path / "record.sqlite")
    connection.executescript(statement)
    connection.close()
    with pytest.raises(RecordError) as told:
        read_all(tmp_path)
    assert "\n" not in str(told.value)


def test_reading_writes_nothing(whole, tmp_path):
    shutil.copy(whole, tmp_path / "record.sqlite")
    before = (tmp_path / "record.sqlite").read_bytes()
    (tmp_path / "record.sqlite").chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        read_all(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["record.sqlite"]
    finally:
        tmp_path.chmod(0o755)
    assert (tmp_path / "record.sqlite").read_bytes() == before


def test_a_flush_that_was_cut_in_the_middle_is_undone_in_a_copy(whole, tmp_path):
    """As a process leaves it that is killed between writing its pages and deleting its journal."""
    shutil.copy(whole, tmp_path / "record.sqlite")
    script = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA cache_size = 1'); c.execute('PRAGMA cache_spill = 1'); c.execute('BEGIN')\n"
        "c.execute('DELETE FROM chunks'); c.execute('INSERT INTO bad SELECT hex(randomblob(900)), value FROM generate' "
        "if False else 'INSERT INTO facts VALUES (1, hex(zeroblob(900000)))'); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "record.sqlite")], check=False)
    assert (tmp_path / "record.sqlite-journal").exists()
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    series, *_ = read_all(tmp_path)
    assert series[0].steps == tuple(range(800))
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before


# --------------------------------------------------------------------------- facts


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("train.py --lr 0.1 --token abc --epochs 3", "train.py --lr 0.1 --token *** --epochs 3"),
        ("train.py --api-key=abc --key-dim 64", "train.py --api-key=*** --key-dim 64"),
        ("train.py --wandb_key x --num-tokens 5 --keys a", "train.py --wandb_key *** --num-tokens 5 --keys a"),
        ("train.py HF_TOKEN=abc AWS_SECRET_ACCESS_KEY=x model.dim=5", "train.py HF_TOKEN=*** AWS_SECRET_ACCESS_KEY=*** model.dim=5"),
        ("train.py --data s3://user:pw@host/x", "train.py --data s3://***@host/x"),
        ("train.py hf_abcdefghijklmnop sk-abcdefgh12345678", "train.py *** ***"),
        (f"train.py {'0af1' * 10}", "train.py ***"),
        ("train.py --password hunter2 -p x", "train.py --password *** -p x"),
        ("train.py --token --fast", "train.py --token --fast"),
        ("train.py --out /data/Experiments/ResNet50_2024_final_run_with_long_name/x", "train.py --out /data/Experiments/ResNet50_2024_final_run_with_long_name/x"),
    ],
)  # fmt: skip
def test_secrets_are_left_out_of_the_command(given, shown):
    assert without_secrets(given.split()) == shown


def test_the_commit_is_read_without_git(tmp_path):
    assert commit(tmp_path) is None
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{'b' * 40} refs/heads/main\n")
    (tmp_path / "deep").mkdir()
    assert commit(tmp_path / "deep") == "b" * 40
    (git / "refs/heads/main").write_text("a" * 40 + "\n")
    assert commit(tmp_path) == "a" * 40
    (git / "HEAD").write_text("c" * 40)
    assert commit(tmp_path) == "c" * 40
    (git / "HEAD").write_text("nonsense")
    assert commit(tmp_path) is None
