import re
from dataclasses import replace

import pytest
import recordings

from flatline.reporters.markdown import escaped, render


def test_the_verdict_comes_first():
    text = render(recordings.sick())
    assert text.startswith("### flatline: 2 problems found\n\n18 rules checked, 3 not · 1,200 steps")
    assert "| error | **O28 learning-rate-too-high**: the loss went from 0.41" in text
    assert "`train.py:9` | 640 |" in text


def test_hints_are_folded_only():
    text = render(recordings.sick())
    table = text.partition("<details>")[0]
    assert "G8" not in table
    assert "<summary>G8 gradient-creeps-up: hint</summary>" in text


def test_key_numbers():
    assert re.search(r"\| learning rate \| 0.3 \| 0.3 \| 0.3 \| 0.3 \|", render(recordings.sick()))
    assert "| training loss (not always finite) |" in render(recordings.sick())


def test_a_healthy_run_is_short():
    text = render(recordings.healthy())
    assert text.startswith("### flatline: nothing wrong found")
    assert "finding |" not in text


@pytest.mark.parametrize("name", recordings.ALL)
def test_tables_are_whole_and_details_are_closed(name):
    text = render(recordings.ALL[name]())
    assert text.count("<details>") == text.count("</details>")
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    for block in re.findall(r"(?:^\|.*\n)+", outside, re.MULTILINE):
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(columns) == 1, block


def test_hostile_text_is_no_markup():
    text = render(recordings.hostile())
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    outside = re.sub(r"`[^`\n]*`", "", outside)
    assert re.findall(r"(?<!\\)<(?!/?details>|/?summary>)", outside) == []


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("@octocat", "@\u200boctocat"),
        ("see #12", "see #\u200b12"),
        ("a | b", "a \\| b"),
        ("![x](http://e.vil)", "\\!\\[x\\](http:\u200b//e.vil)"),
        ("<b>", "\\<b\\>"),
        ("&lt;", "&amp;lt;"),
        ("two\nlines", "two lines"),
    ],
)
def test_escaping(text, safe):
    assert escaped(text) == safe


def test_a_fence_inside_a_fix_does_not_end_it():
    text = render(replace(recordings.sick(), findings=(replace(recordings.DIVERGES, fix="```\n</details>\n```"),)))
    assert "````\n```\n</details>\n```\n````" in text
