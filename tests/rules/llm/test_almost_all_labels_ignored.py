import pytest

from flatline.events import LossComputed, TargetFacts
from flatline.rules.llm.almost_all_labels_ignored import AlmostAllLabelsIgnored
from flatline.testing import lint, play


def losses(*scored, total=320, low=3.0, high=90.0):
    return [
        LossComputed(step=step, target=TargetFacts(total=total, ignored=total - count, low=low, high=high))
        for step, count in enumerate(scored, 1)
    ]


def test_fires_on_a_single_label():
    (finding,) = play(AlmostAllLabelsIgnored, *losses(1, 1, 1))
    assert finding.severity == "warning"
    assert finding.message == "319 of 320 labels are ignored, 1 scored (0.3%), in all 3 steps looked at"
    assert "labels[:, :prompt_length] = -100" in finding.fix


def test_fires_where_the_only_label_left_is_one_token():
    (finding,) = play(AlmostAllLabelsIgnored, *losses(16, 15, 16, low=2.0, high=2.0))
    assert finding.severity == "warning"


def test_one_label_per_row_is_a_hint():
    (finding,) = play(AlmostAllLabelsIgnored, *losses(16, 16, 16))
    assert finding.severity == "hint"


def lone(*places, total=160):
    facts = [TargetFacts(total=total, ignored=total - 16, low=0.0, high=6.0, lone=place) for place in places]
    return [LossComputed(step=step, target=each) for step, each in enumerate(facts, 1)]


def test_each_row_has_the_label_of_its_first_token():
    (finding,) = play(AlmostAllLabelsIgnored, *lone(0, 0, 0))
    assert finding.severity == "hint"
    assert finding.message == (
        "each of the 16 rows has one label, that of token 0, where the rows' own tokens begin; all others (90.0%) are "
        "ignored, in all 3 losses looked at"
    )


def test_near_miss_one_label_per_row_at_other_places():
    assert play(AlmostAllLabelsIgnored, *lone(0, 0)) == []
    assert play(AlmostAllLabelsIgnored, *lone(0, 1, 0)) == []
    assert play(AlmostAllLabelsIgnored, *lone(0, None, 0)) == []


def test_near_miss_masked_language_model():
    assert play(AlmostAllLabelsIgnored, *losses(48, 51, 44, 50)) == []


def test_near_miss_long_prompts_with_short_answers():
    assert play(AlmostAllLabelsIgnored, *losses(12, 17, 9, 14)) == []


def test_near_miss_nothing_ignored_or_few_labels():
    assert play(AlmostAllLabelsIgnored, *losses(320, 320, 320)) == []
    assert play(AlmostAllLabelsIgnored, *losses(1, 1, 1, total=16)) == []


def test_near_miss_one_odd_batch():
    assert play(AlmostAllLabelsIgnored, *losses(1, 1, 200, 1, 1)) == []


MASKED = """
import torch
def collate(rows):
    ids = torch.stack(rows)
    labels = ids.clone()
    {}
    return ids, labels
"""


@pytest.mark.parametrize(
    "line",
    [
        "labels[:, : ids.size(1) - 1] = -100",
        "labels[:, : labels.shape[1]] = -100",
        "labels[:] = -100",
        "labels[labels != 0] = -100",
    ],
)
def test_source_mask_that_leaves_nothing(line):
    """Seen as a SourceParsed."""
    (finding,) = lint(AlmostAllLabelsIgnored, MASKED.format(line))
    assert finding.severity == "warning"
    assert finding.message.endswith("in labels")


@pytest.mark.parametrize(
    "line",
    [
        "labels[:, :prompt] = -100",
        "labels[:, : ids.size(1) // 2] = -100",
        "labels[labels == 0] = -100",
        "labels[ids != mask_id] = -100",
        "labels[:] = -100\n    labels[:, 4:] = ids[:, 4:]",
        "labels[:, 1:] = -100",
    ],
)
def test_near_miss_source(line):
    assert lint(AlmostAllLabelsIgnored, MASKED.format(line)) == []


MEASURED = """
import torch
{head}
IGNORE = -100
TEMPLATE = "### Question: {{q}} ### Answer: "
def item(row, tok):
    prompt = {prompt}
    ids = {ids}
    {mask}
    return ids, labels
"""
ENCODED = 'tok(prompt + row["answer"], truncation=True)["input_ids"]'
FILLED = "labels = [IGNORE] * len(prompt) + ids[len(prompt):]"


@pytest.mark.parametrize(
    ("prompt", "ids", "mask", "line"),
    [
        ("TEMPLATE.format(**row)", ENCODED, FILLED, 8),
        ("f'Question: {row}'", "tok.encode(prompt)", "labels = list(ids)\n    labels[:len(prompt)] = -100", 9),
        (
            "'Question: ' + row['q'].strip()",
            "tok(prompt, return_tensors='pt').input_ids",
            "n = len(prompt)\n    labels = ids.clone()\n    labels[:, :n] = IGNORE",
            8,
        ),
        (
            "tok.apply_chat_template(row, tokenize=False)",
            ENCODED,
            "n = len(prompt)\n    labels = [-100] * min(n, len(ids)) + ids[n:]",
            8,
        ),
    ],
)
def test_source_mask_measured_in_characters(prompt, ids, mask, line):
    (finding,) = lint(
        AlmostAllLabelsIgnored,
        MEASURED.format(head="from transformers import AutoTokenizer", prompt=prompt, ids=ids, mask=mask),
    )
    assert (finding.severity, finding.where.line) == ("warning", line)
    assert finding.message.startswith("len(prompt) counts the characters of a text, and as many tokens are masked")


@pytest.mark.parametrize(
    ("prompt", "ids", "mask"),
    [
        ("tok(TEMPLATE)['input_ids']", ENCODED, FILLED),
        ("row['prompt']", ENCODED, FILLED),
        ("TEMPLATE.format(**row)", "[stoi[c] for c in prompt]", FILLED),
        ("TEMPLATE.format(**row)", ENCODED.replace("tok(", "byt5("), FILLED),
        ("TEMPLATE.format(**row)", ENCODED, "labels = [0] * len(prompt) + ids[len(prompt):]"),
        ("TEMPLATE.format(**row)", ENCODED, "n = len(tok(prompt)['input_ids'])\n    labels = [IGNORE] * n + ids[n:]"),
    ],
)
def test_near_miss_source_mask_measured_in_tokens(prompt, ids, mask):
    assert (
        lint(
            AlmostAllLabelsIgnored,
            MEASURED.format(head="from transformers import AutoTokenizer", prompt=prompt, ids=ids, mask=mask),
        )
        == []
    )


def test_near_miss_source_tokens_of_a_tokenizer_of_ones_own():
    filled = FILLED.replace("ids[", "list(ids)[")
    given = {"prompt": "TEMPLATE.format(**row)", "ids": "tok.encode(prompt)", "mask": filled}
    assert lint(AlmostAllLabelsIgnored, MEASURED.format(head="import json", **given)) == []


def bare(*rows, of=32, late=True):
    facts = [
        TargetFacts(total=of * 23, ignored=of * 20, low=3.0, high=9.0, bare_rows=each, rows=of, late=late)
        for each in rows
    ]
    return [LossComputed(step=step, target=each) for step, each in enumerate(facts, 1)]


def test_rows_without_a_label():
    (finding,) = play(AlmostAllLabelsIgnored, *bare(30, 31, 29))
    assert finding.severity == "warning"
    assert finding.message == (
        "29 of 32 rows have no label at all, 91% or more of the rows in 3 losses one after another"
    )


def test_near_miss_of_rows_without_a_label():
    assert play(AlmostAllLabelsIgnored, *bare(30, 31)) == []
    assert play(AlmostAllLabelsIgnored, *bare(30, 10, 31)) == []
    assert play(AlmostAllLabelsIgnored, *bare(4, 4, 4, of=4)) == []
    assert play(AlmostAllLabelsIgnored, *bare(30, 31, 29, late=False)) == []
