"""The records of all processes of a run, read as one."""

from __future__ import annotations

import dataclasses

import pytest

from flatline.findings import Finding
from flatline.record import RecordError, open_record
from flatline.record.writing import Writer


def finding(**more):
    known = {"code": "G2", "slug": "dead", "severity": "warning", "message": "m", "cause": "c", "fix": "f", "step": 5}
    return Finding(**{**known, "key": "", "where": None, **more})


def write(folder, name="record.sqlite", *, losses=(3.0, 2.0, 1.0), found=(), facts=None, ended=True, **scalars):
    folder.mkdir(exist_ok=True, parents=True)
    writer = Writer(lambda: folder / name, on_note=print)
    for step, value in enumerate(losses, 1):
        writer.scalars(step, {"loss": value, **scalars})
    for name_, value in {"steps": len(losses), **(facts or {}), **({"ended": "now"} if ended else {})}.items():
        writer.fact(name_, value)
    for one in found:
        writer.finding(one.code, one.key, dataclasses.asdict(one))
    writer.close()
    return folder


def test_of_the_others_come_losses_and_what_only_they_have(tmp_path):
    folder = write(tmp_path / "run", lr=0.1)
    write(folder, "record-rank1.sqlite", losses=(4.0, 5.0), **{"lr": 0.1, "logged/val": 7.0})
    write(folder, "record-rank10.sqlite", losses=(6.0,))
    write(folder, "record-rank2.sqlite", losses=(8.0,))
    with open_record(folder) as record:
        found = {series.name: series.values for series in record.series()}
        assert list(found) == ["loss", "lr", "loss/rank 1", "loss/rank 2", "loss/rank 10", "logged/val"]
        assert found["loss"] == (3.0, 2.0, 1.0)
        assert found["loss/rank 1"] == (4.0, 5.0)
        assert record.facts["processes"] == 4
        assert record.facts["steps"] == 3
        assert record.name == "run"


def test_a_finding_is_told_once_with_its_ranks(tmp_path):
    folder = write(tmp_path / "run", found=[finding(), finding(key="only here", step=9)])
    write(folder, "record-rank1.sqlite", found=[finding(), finding(code="C11", severity="error")])
    with open_record(folder) as record:
        told = [(one.code, one.key, one.ranks) for one in record.findings]
    assert told == [("C11", "", (1,)), ("G2", "", (0, 1)), ("G2", "only here", (0,))]


def test_processes_without_a_rank_have_none(tmp_path):
    folder = write(tmp_path / "run", found=[finding()])
    write(folder, "record-4711.sqlite", found=[finding()])
    with open_record(folder) as record:
        assert [one.ranks for one in record.findings] == [()]
        assert "loss/process 4711" in {series.name for series in record.series()}


def test_a_run_is_over_when_all_of_it_is(tmp_path):
    folder = write(tmp_path / "run", facts={"how": "finished"})
    write(folder, "record-rank1.sqlite", ended=False)
    with open_record(folder) as record:
        assert not record.ended
    write(tmp_path / "other", facts={"how": "finished"})
    write(tmp_path / "other", "record-rank1.sqlite", facts={"how": "crashed"})
    with open_record(tmp_path / "other") as record:
        assert record.ended
        assert record.facts["how"] == "crashed"


def test_a_rank_that_joins_later_is_seen(tmp_path):
    folder = write(tmp_path / "run", ended=False)
    with open_record(folder) as record:
        seen = record.version()
        write(folder, "record-rank1.sqlite")
        assert record.version() != seen
        assert "loss/rank 1" in {series.name for series in record.series()}


def test_a_damaged_rank_is_one_line_and_a_link_is_not_followed(tmp_path):
    folder = write(tmp_path / "run")
    (folder / "record-rank1.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    (folder / "record-rank2.sqlite").symlink_to(write(tmp_path / "elsewhere") / "record.sqlite")
    with open_record(folder) as record:
        assert [series.name for series in record.series()] == ["loss"]
        (note,) = record.notes
        assert "record-rank1.sqlite" in note
        assert "\n" not in note


def test_a_damaged_first_rank_leaves_the_others(tmp_path):
    folder = write(tmp_path / "run", "record-rank1.sqlite")
    (folder / "record.sqlite").write_bytes(b"")
    with open_record(folder) as record:
        assert [series.values for series in record.series()] == [(3.0, 2.0, 1.0)]
    (folder / "record-rank1.sqlite").write_bytes(b"")
    with pytest.raises(RecordError):
        open_record(folder)


def test_pages_show_one_run(tmp_path):
    from flatline.reporters import html, markdown

    folder = write(tmp_path / "run", found=[finding()])
    write(folder, "record-rank1.sqlite", losses=(4.0, 5.0), found=[finding()])
    with open_record(folder) as record:
        page, text = html.render(record), markdown.render(record)
    assert page.count("1 problem found") >= 1
    assert "rank 1" in page
    assert "1 problem found" in text
    assert "2 processes" in page
    assert "2 processes" in text
    assert "training loss, rank 1" in text
