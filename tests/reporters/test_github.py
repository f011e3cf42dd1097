import re
from dataclasses import replace

import pytest

from flatline.events import Where
from flatline.findings import Report
from flatline.reporters import github


def test_golden(full, golden):
    golden("github.txt", github.render(full))


def test_worst_first_with_a_level_each(full):
    lines = github.render(full).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::notice", "flatline:"]
    assert lines[0].startswith("::error file=train.py,line=9,title=O12 double-softmax::the input of")


def test_line_breaks_and_percent_signs_are_escaped(full):
    finding = replace(full.findings[1], message="50% of it\r\nis\nzero", where=Where("a,b:c%.py", 0))
    command = github.render(Report(findings=(finding,))).splitlines()[0]
    assert "file=a%2Cb%3Ac%25.py,line=1,title=" in command
    assert "::50%25 of it%0Ais%0Azero%0ACause: every" in command


def test_paths_are_relative_to_the_checkout(full, project, monkeypatch):
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.parent))
    assert f"file={project.name}/train.py,line=9" in github.render(full)


def test_no_place(full):
    assert "::notice title=O19 one-rate-for-all-layers::a pretrained" in github.render(full)


def test_a_clean_run(clean):
    assert github.render(clean).startswith("flatline: 0 findings · 47 rules checked")


@pytest.mark.parametrize("part", ["message", "cause", "fix"])
def test_hostile_text_cannot_start_a_command(hostile, part):
    finding = replace(hostile.findings[-1], **{part: "fine\n::set-output name=x::y\r::stop-commands::z"})
    lines = github.render(Report(findings=(finding,))).splitlines()
    assert len(lines) == 2


def test_hostile_report(hostile):
    rendered = github.render(hostile)
    rendered.encode("utf-8")
    lines = rendered.splitlines()
    assert len(lines) == len(hostile.findings) + 1
    assert all(re.match(r"::error (file=[^:,]*,line=\d+,)?title=[^:,]+::", line) for line in lines[:-1])
