import linecache
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from flatline.events import Where
from flatline.findings import Finding, Report
from flatline.reporters import text


def plain(**changes):
    settings = {
        "code": "O12",
        "slug": "double-softmax",
        "severity": "error",
        "message": "seen",
        "cause": "why",
        "fix": "how",
    }
    return Finding(**settings | changes)


def without_colour(rendered):
    return re.sub(r"\x1b\[[0-9;]*m", "", rendered)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("verbose", [False, True])
def test_golden(full, golden, width, verbose):
    golden(f"text_{width}{'_verbose' if verbose else ''}.txt", text.render(full, verbose=verbose, width=width))


def test_golden_in_colour(full, golden):
    golden("text_80_colour.txt", text.render(full, width=80, colour=True))


def test_colour_changes_nothing_but_the_closing_line(full):
    coloured = without_colour(text.render(full, width=80, colour=True)).split("flatline: 2 findings")[0]
    assert coloured == text.render(full, width=80).split("flatline: 2 findings")[0]


def test_the_block_of_the_design(full):
    block = text.render(full, width=120).split("\n\n")[0].lstrip("\n").splitlines()
    assert block[0] == "O12 double-softmax · error · train.py:9 · step 1"
    assert block[1] == "   8 │     probs = model(x)"
    assert block[2] == " ▸ 9 │     loss = criterion(probs, y)"
    assert block[3].startswith("Seen    the input of cross_entropy")
    assert block[-1] == "More    flatline explain O12"


def test_a_clean_run_is_one_line(clean):
    assert text.render(clean, width=80) == (
        "flatline: 0 findings · 47 rules checked, 9 not (flatline run --verbose says why) · 1,200 steps · overhead 0.4 %\n"
    )


def test_a_clean_run_is_folded_for_a_terminal(clean):
    assert without_colour(text.render(clean, width=80, colour=True)) == (
        "flatline: 0 findings · 47 rules checked, 9 not (flatline run --verbose says why)\n"
        "          1,200 steps · overhead 0.4 %\n"
    )


def test_an_empty_report():
    assert text.render(Report()) == "flatline: 0 findings · 0 rules checked\n"


def test_closing_line_counts_levels(full):
    assert text.closing(full) == (
        "flatline: 2 findings (1 error, 1 warning), 1 hint · 2 hints folded (--hints shows them) · "
        "5 rules checked, 2 not (--verbose says why) · 1,200 steps · overhead 0.4 %"
    )


def test_closing_line_in_the_singular():
    report = Report(findings=(plain(),), checked=("O2",), hidden_hints=1, run={"steps": 1, "overhead": 0.0001})
    assert text.closing(report) == (
        "flatline: 1 finding (1 error) · 1 hint folded (--hints shows it) · 1 rule checked · 1 step · overhead < 0.1 %"
    )


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ("finished", "3 steps"),
        ("crashed", "3 steps (crashed)"),
        ("max-steps", "3 steps (--max-steps)"),
        ("?", "3 steps"),
    ],
)
def test_closing_line_says_how_the_run_ended(how, shown):
    assert text.closing(Report(run={"steps": 3, "how": how})).endswith(f" · {shown}")


def test_line(full):
    assert text.line(full.findings[2]).startswith(
        "flatline: O12 double-softmax · error · train.py:9 · step 1: the input of"
    )
    assert text.line(plain()) == "flatline: O12 double-softmax · error: seen"


def test_line_of_hostile_text_is_one_printable_line(hostile):
    for finding in hostile.findings:
        printed = text.line(finding)
        assert printed.isprintable()
        assert len(printed) <= text.LINE_LIMIT
        printed.encode("utf-8")


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("width", [1, 80, 10_000])
def test_hostile_text_is_harmless(hostile, verbose, colour, width):
    rendered = text.render(hostile, verbose=verbose, width=width, colour=colour)
    rendered.encode("utf-8")
    printed = without_colour(rendered)
    assert printed.replace("\n", "").isprintable()
    assert "[bold red]markup[/] [/] :smile:" in " ".join(printed.split()) or width == 1
    assert max(len(line) for line in printed.split("flatline: 10")[0].splitlines()) <= 120


def test_paths_inside_the_current_directory_are_relative(project):
    (project / "src").mkdir()
    inside, outside = plain(where=Where(str(project / "src" / "a.py"), 3)), plain(where=Where("/elsewhere/a.py", 3))
    assert "· src/a.py:3:" in text.line(inside)
    assert "· /elsewhere/a.py:3:" in text.line(outside)


def test_a_sibling_with_the_same_beginning_is_outside(project):
    path = f"{project}-other/a.py"
    assert f"· {path}:3:" in text.line(plain(where=Where(path, 3)))


def test_source_of_the_first_line_and_after_a_blank_one(project):
    first = text.render(Report(findings=(plain(where=Where("train.py", 1)),)))
    assert " ▸ 1 │ import torch\nSeen" in first
    blank = text.render(Report(findings=(plain(where=Where("train.py", 4)),)))
    assert "train.py:4\n ▸ 4 │ model = Net()\n" in blank


def test_numbers_are_aligned_where_a_digit_is_gained(project):
    assert "    9 │     loss" in text.render(Report(findings=(plain(where=Where("train.py", 10)),)))


def test_source_of_a_notebook_cell(project):
    cell = "<ipython-input-7>"
    linecache.cache[cell] = (10, None, ["a = 1\n", "b = 2\n"], cell)
    try:
        assert " ▸ 2 │ b = 2\n" in text.render(Report(findings=(plain(where=Where(cell, 2)),)))
    finally:
        del linecache.cache[cell]


def test_source_that_is_not_utf8_is_shown(hostile):
    assert " ▸ 2 │ x = '" in text.render(replace(hostile, findings=hostile.findings[:1]))


def test_wide_characters_stay_in_their_columns():
    rendered = text.render(Report(findings=(plain(message="損失が下がらない " * 12),)), width=60)
    seen = rendered.split("Seen")[1].split("Cause")[0].splitlines()
    assert all(line.startswith("        ") for line in seen[1:])


def test_errors_come_first(full):
    rendered = text.render(full)
    assert rendered.index("O12 double") < rendered.index("O4 update") < rendered.index("O19 one")


def test_many_ranks_are_counted():
    assert "· 64 ranks:" in text.line(plain(ranks=tuple(range(64))))
    assert "· rank 3:" in text.line(plain(ranks=(3,)))


def test_verbose_names_the_rules_that_could_not_judge(full):
    rendered = text.render(full, verbose=True, width=120)
    assert re.search(r"^  O8  +.*no learning-rate scheduler was built$", rendered, re.MULTILINE)
    assert "says why" not in rendered
    assert "Facts   losses=3, gradient_ratio=14.0312, mean=True\n" in rendered


def test_what_was_switched_off_is_always_named(full):
    assert "\nNotes\n  Z7 was switched off: ValueError: [red]boom[/red]\n" in text.render(full)


def test_a_missing_current_directory(project, monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr("os.getcwd", gone)
    assert "· train.py:9:" in text.line(plain(where=Where("train.py", 9)))


def test_the_live_line_needs_no_rich():
    code = "import sys; from flatline.reporters import text; sys.exit('rich' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_recorded_run_ends_with_the_name_of_its_folder(clean, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorded = replace(clean, run={**clean.run, "record": str(tmp_path / ".flatline" / "20260101-120000-train")})
    assert text.render(recorded).splitlines()[-1] == "flatline: recorded in .flatline/20260101-120000-train"
