import subprocess
import sys
from dataclasses import asdict
from unittest.mock import Mock

import pytest

from flatline import catalogue
from flatline.catalogue import SECTIONS, Page, did_you_mean, find, options, page_of, pages, parse, search, table
from flatline.events import LossComputed, OptimizerStepped
from flatline.rules import Rule, all_rules

EXISTING = {page.code for page in pages()}


class LeakyBucket(Rule):
    """The bucket loses water
    through a hole.

    More about buckets.

    Symptom
    -------
    The level is flat at zero.

    Example
    -------
    ::

        bucket = Bucket()

        Not a heading
        -------------

    Use instead
    -----------
    ::

        bucket = Bucket(holes=0)
    """

    __module__ = "bath.plumbing.leaky_bucket"
    code = "Z1"
    severity = "warning"

    def on_loss_computed(self, event: LossComputed):
        yield self.finding(event, "drip")

    def on_optimizer_stepped(self, event: OptimizerStepped):
        yield self.finding(event, "drip")


class Undocumented(Rule):
    __module__ = "bath.plumbing.undocumented"
    code = "Z2"
    severity = "hint"


def shelf(**symptoms: str) -> list[Page]:
    return [
        Page(
            code=code,
            slug=f"slug-{code.lower()}",
            name=code,
            severity="error",
            family="f",
            since="0.1",
            sections={"Symptom": text},
        )
        for code, text in symptoms.items()
    ]


def codes(found):
    return [page.code for page in found]


# --------------------------------------------------------------------------- pages


def test_a_page():
    page = page_of(LeakyBucket)
    assert (page.code, page.slug, page.name, page.severity) == ("Z1", "leaky-bucket", "LeakyBucket", "warning")
    assert page.summary == "The bucket loses water through a hole."
    assert (page.family, page.doors) == ("plumbing", ("run",))
    assert list(page.sections) == ["Symptom", "Example", "Use instead"]
    assert page.sections["Symptom"] == "The level is flat at zero."
    assert page.sections["Use instead"] == "::\n\n    bucket = Bucket(holes=0)"


def test_an_indented_heading_is_code():
    assert page_of(LeakyBucket).sections["Example"].endswith("    Not a heading\n    -------------")


def test_a_missing_docstring():
    page = page_of(Undocumented)
    assert (page.summary, page.sections, page.text) == ("", {}, "")


@pytest.mark.parametrize("docstring", [None, "", "One line.", "One.\n\n---\n", "A\n---\n\nB\n---\n"])
def test_odd_docstrings(docstring):
    summary, sections = parse(docstring)
    assert isinstance(summary, str)
    assert all(name in "AB" for name in sections)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.code)
def test_every_page_parses(page):
    assert page.summary.endswith(".")
    assert "\n" not in page.summary
    assert set(page.sections) <= set(SECTIONS)
    assert {"Symptom", "Root cause", "Fix"} <= set(page.sections)
    assert all(page.sections.values())
    assert list(page.sections) == [name for name in SECTIONS if name in page.sections]
    assert page.doors


def test_table():
    assert [row.code for row in table()] == [page.code for page in pages()]
    columns = ("code", "slug", "severity", "family", "summary", "doors", "since")
    assert all(tuple(asdict(row)) == columns for row in table())


# --------------------------------------------------------------------------- find


@pytest.mark.parametrize("word", ["Z1", "z1", " z1 ", "leaky-bucket", "Leaky_Bucket", "leaky bucket", "LeakyBucket"])
def test_find(word):
    page = page_of(LeakyBucket)
    assert find(word, among=[page]) is page


@pytest.mark.parametrize("word", ["Z", "Z11", "leaky", "", "flat"])
def test_find_nothing(word):
    assert find(word, among=[page_of(LeakyBucket)]) is None


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.code)
def test_every_rule_is_found_by_code_and_slug(page):
    assert find(page.code.lower()) is page
    assert find(page.slug) is page


@pytest.mark.parametrize("typo", ["012", "O112", "doubel-softmax", "double-sotfmax", "DoubleSofmax"])
def test_did_you_mean(typo):
    assert "O12" in codes(did_you_mean(typo))


def test_did_you_mean_nothing():
    assert did_you_mean("qqqqqq") == ()


# --------------------------------------------------------------------------- search


def test_search_prefers_rare_words():
    found = search("loss nan", among=shelf(A1="the loss is high", A2="the loss is nan", A3="the loss is low"))
    assert codes(found)[0] == "A2"


def test_search_prefers_pages_with_all_the_words():
    found = search("frozen norm", among=shelf(A1="frozen frozen frozen frozen", A2="a frozen norm", A3="loss"))
    assert codes(found)[0] == "A2"


@pytest.mark.parametrize("query", ["exploding", "explodes", "Explode!", "exploded"])
def test_search_knows_word_forms(query):
    assert codes(search(query, among=shelf(A1="gradients explode", A2="nothing"))) == ["A1"]


@pytest.mark.parametrize("query", ["stuck", "flat", "plateau"])
def test_search_knows_kin(query):
    assert codes(search(query, among=shelf(A1="the loss does not move", A2="the loss is nan"))) == ["A1"]


@pytest.mark.parametrize("query", ["not falling", "doesn't decrease", "is not going down", "did not converge"])
def test_search_knows_that_not_falling_is_flat(query):
    assert codes(search(f"loss {query}", among=shelf(A1="the loss is flat", A2="the loss is nan")))[0] == "A1"


@pytest.mark.parametrize("query", ["gradiant", "gradi"])
def test_search_forgives_typos_and_finished_beginnings(query):
    assert codes(search(query, among=shelf(A1="gradient", A2="nothing"))) == ["A1"]


@pytest.mark.parametrize("query", ["", "   ", "the of a", "zzzzzzz", "\x00\udcff[", []])
def test_search_nothing(query):
    assert search(query) == ()


def test_search_takes_words_as_the_shell_gives_them():
    assert search(["loss", "flat"]) == search("loss flat")


def test_search_in_an_empty_book():
    assert search("loss", among=[]) == ()


@pytest.mark.parametrize(
    "query",
    [
        "loss flat",
        "my loss is flat",
        "loss flat from step 0",
        "flat loss",
        "loss does not decrease",
        "my loss isn't going down",
        "The loss doesn’t fall",
        "loss never improves",
    ],
)
def test_a_flat_loss_is_the_wiring_first(query):
    wiring = {"O2", "O3", "O4", "O7"}
    found = codes(search(query))
    assert found[0] in wiring
    assert len(wiring.intersection(found)) >= 2


def test_search_prefers_words_in_one_clause():
    found = search(
        "loss flat", among=shelf(A1="The norm is flat. The loss falls.", A2="The norm falls. The loss is flat.", A3="x")
    )
    assert codes(found)[0] == "A2"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("softmax", "O12"),
        ("softmax before cross entropy", "O12"),
        ("device-side assert", "O14"),
        ("target out of bounds", "O14"),
        ("element 0 of tensors does not require grad", "O3"),
        ("gradient accumulation", "O9"),
        ("size mismatch checkpoint", "O20"),
        ("weight decay adam", "O6"),
        ("padding", "O15"),
        ("eval mode", "O5"),
        ("scheduler order", "O8"),
        ("negative loss", "O16"),
        ("frozen layer changes", "O17"),
        ("weights never move", "O4"),
        ("loss is nan", "N1"),
        ("out of memory", "M1"),
        ("learning rate too low", "O7"),
        ("dropout in validation", "E1"),
        ("frozen batchnorm running statistics", "O18"),
        ("loss explodes", "O28"),
        ("loss oscillates", "O28"),
        ("dead relu", "O25"),
        ("gradient nan but loss finite", "N2"),
        ("initial loss too high", "W4"),
        ("forgot to shuffle", "D4"),
        ("fp16 gradients underflow", "FP1"),
        ("pretrained weights not loaded", "F2"),
        ("batchnorm small batch", "V7"),
        ("lora does not train", "O21"),
        ("loss scale keeps falling", "O24"),
        ("weights grow", "W1"),
        ("attention collapse", "W5"),
        ("vanishing gradients", "G2"),
        ("bfloat16 weights do not change", "FP3"),
        ("random seed augmentation same in workers", "S2"),
    ],
)
def test_a_symptom_finds_its_rule(query, code):
    if code not in EXISTING:
        pytest.skip(f"there is no {code}")
    assert code in codes(search(query))[:3]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.code)
def test_a_summary_finds_its_own_page(page):
    assert page.code in codes(search(page.summary))[:3]


def test_nothing_heavy_is_imported():
    code = "import sys, flatline.catalogue as c; c.search('loss flat'); sys.exit(bool({'torch', 'rich', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.code)
def test_every_option_says_where_its_number_comes_from(page):
    known = next(rule for rule in all_rules() if rule.code == page.code).options()
    found = options(page)
    assert {option.name.replace("-", "_"): option.default for option in found} == known
    assert [option.name for option in found if not option.source] == []


def test_options_without_the_source(monkeypatch):
    monkeypatch.setattr(catalogue.inspect, "getsource", Mock(side_effect=OSError))
    found = options(find("O7"))
    assert found
    assert {option.source for option in found} == {""}


def test_a_stripped_docstring_is_no_crash():
    code = "import flatline.catalogue as c; c.pages(); c.search('loss flat'); c.table()"
    assert subprocess.run([sys.executable, "-OO", "-c", code], check=False).returncode == 0


def test_kin_of_two_groups_belong_to_both():
    kin = catalogue._kin()
    assert {"flat", "slow"} <= kin["crawl"]
