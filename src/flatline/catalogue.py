"""The rules as a book: pages parsed from their docstrings, found by code, by name or by symptom."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from flatline.engine import watched
from flatline.findings import Severity
from flatline.rules import Rule, all_rules

SECTIONS = ("Symptom", "Root cause", "Fix", "Example", "Use instead", "Healthy look-alikes", "References")
HEADING = re.compile(r"^(\S[^\n]*)\n-{3,}[ \t]*$", re.MULTILINE)
DOORS = {"SourceParsed": "lint", "CurvesUpdated": "diagnose"}  # every other event comes from a live run


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything there is to say about one rule."""

    code: str
    slug: str
    name: str
    severity: Severity
    family: str
    since: str
    doors: tuple[str, ...] = ()
    summary: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)
    text: str = ""  # the whole page as it is written


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A number that a rule judges by, with the comment beside it: where it comes from."""

    name: str  # as ``[tool.flatline.rules.CODE]`` spells it
    default: int | float
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table of rules."""

    code: str
    slug: str
    severity: Severity
    family: str
    summary: str
    doors: tuple[str, ...]
    since: str


def parse(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The one-line summary and the sections of a page."""
    introduction, *rest = HEADING.split(inspect.cleandoc(docstring or ""))
    summary = " ".join(introduction.strip().split("\n\n")[0].split())
    bodies = [body.strip("\n").rstrip() for body in rest[1::2]]
    return summary, dict(zip(rest[::2], bodies, strict=True))


def page_of(rule: type[Rule]) -> Page:
    """The page of a rule."""
    summary, sections = parse(rule.__doc__)
    return Page(
        code=rule.code,
        slug=rule.slug(),
        name=rule.__name__,
        severity=rule.severity,
        family=rule.family(),
        since=rule.since,
        doors=tuple(dict.fromkeys(DOORS.get(event.__name__, "run") for event in watched(rule))),
        summary=summary,
        sections=sections,
        text=inspect.cleandoc(rule.__doc__ or ""),
    )


@functools.cache
def pages() -> tuple[Page, ...]:
    """The page of every rule, by code."""
    return tuple(page_of(rule) for rule in all_rules())


def table() -> tuple[Row, ...]:
    """One row for every rule, by code."""
    return tuple(
        Row(
            code=page.code,
            slug=page.slug,
            severity=page.severity,
            family=page.family,
            summary=page.summary,
            doors=page.doors,
            since=page.since,
        )
        for page in pages()
    )


def options(page: Page) -> tuple[Option, ...]:
    """The options of a page's rule. Reads the rule's file for the comments; without it they are empty."""
    rule = next(rule for rule in all_rules() if rule.code == page.code)
    said: dict[str, str] = {}
    with suppress(OSError):
        source = inspect.getsource(sys.modules[rule.__module__])
        said.update(re.findall(r"^    (\w+): (?:int|float) = [^#\n]*# *(.*)$", source, re.MULTILINE))
    return tuple(
        Option(name=name.replace("_", "-"), default=value, source=said.get(name, ""))
        for name, value in rule.options().items()
    )


# --------------------------------------------------------------------------- by code or name


def find(word: str, *, among: Sequence[Page] | None = None) -> Page | None:
    """The page with this code, slug or class name, in any case."""
    wanted = _plain(word)
    return next((page for page in _chosen(among) if wanted in _names(page)), None)


def did_you_mean(word: str, *, among: Sequence[Page] | None = None) -> tuple[Page, ...]:
    """Up to three pages whose code or slug looks like the word."""
    owners = {name: page for page in _chosen(among) for name in _names(page)}
    close = difflib.get_close_matches(_plain(word), owners, n=6, cutoff=0.6)
    return tuple({owners[name].code: owners[name] for name in close}.values())[:3]


def _chosen(among: Sequence[Page] | None) -> Sequence[Page]:
    return pages() if among is None else among


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]+", "-", word.strip().lower())


def _names(page: Page) -> tuple[str, ...]:
    return page.code.lower(), page.slug, page.name.lower()


# --------------------------------------------------------------------------- by symptom

FIELDS = {"name": 4.0, "summary": 3.0, "Symptom": 3.0, "Root cause": 1.5, "Healthy look-alikes": 0.2, "References": 0.2}
SATURATION, LENGTH = 1.2, 0.25  # the two constants of BM25
RELATED_WEIGHT = 0.5
LIKELIHOOD = {"error": 1.2, "warning": 1.0, "hint": 0.8}
WORTH_SHOWING = 0.2  # of the best page's score
STOP_WORDS = (
    "a after am an and any are as at be become becomes but by can do does for from get gets go goes has have how i if "
    "in into is it its just me my not of on or so some that the their then there this to very was what when where "
    "which while why with"
)
RELATED = (
    "flat constant stuck stick plateau unchanged motionless move crawl glacial stagnate",
    "nan inf infinite nonfinite overflow",
    "lr rate",
    "grad gradient",
    "param parameter weight",
    "val validation evaluation eval test",
    "oom memory leak",
    "explode diverge blow unstable",
    "crash raise error exception",
    "bn batchnorm norm",
    "slow crawl glacial",
    "amp autocast scaler fp16 float16 half",
    "pad padding",
    "finetune freeze frozen pretrained",
    "accuracy metric score",
    "label target",
)
PHRASES = {  # in this order; the rest of a word stays, and falls to the stem: "not decreasing" is "flating"
    "’": "'",
    "n't ": " not ",
    "not decreas": "flat",
    "not fall": "flat",
    "not go down": "flat",
    "not going down": "flat",
    "not improv": "flat",
    "never improv": "flat",
    "not converg": "flat",
    "not learn": "flat",
    "never learn": "flat",
    "not mov": "motionless",
    "never mov": "motionless",
    "not chang": "motionless",
    "never chang": "motionless",
    "not updat": "motionless",
    "fine-tun": "finetun",
    "non-finite": "nonfinite",
    "out of memory": "oom",
    "stands still": "motionless",
    "stand still": "motionless",
    "step 0": "first step",
}
SUFFIXES = (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("ly", ""), ("es", "e"), ("s", ""))


def search(words: str | Iterable[str], *, among: Sequence[Page] | None = None, limit: int = 5) -> tuple[Page, ...]:
    """The pages that speak of these words, best first."""
    shelf = _chosen(among)
    index = _index() if among is None else _Index(shelf)
    text = words if isinstance(words, str) else " ".join(words)
    scores = index.scores(_terms(text))
    best = sorted(range(len(scores)), key=lambda place: -scores[place])
    return tuple(shelf[place] for place in best[:limit] if scores[place] > WORTH_SHOWING * scores[best[0]])


@functools.cache
def _index() -> _Index:
    return _Index(pages())


def _stem(word: str) -> str:
    """``losses`` -> ``loss``, ``exploding`` -> ``explod``: crude, and the same for page and question."""
    for suffix, put in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3 and not word.endswith("ss"):
            word = word[: -len(suffix)] + put
            break
    return word.rstrip("e") if len(word) > 4 else word


def _terms(text: str) -> list[str]:
    text = text.lower()
    for phrase, word in PHRASES.items():
        text = text.replace(phrase, word)
    stop = STOP_WORDS.split()
    return [_stem(word) for word in re.findall(r"[a-z0-9]+", text) if word not in stop]


def _kin() -> dict[str, set[str]]:
    groups = [{_stem(word) for word in line.split()} for line in RELATED]
    return {word: set().union(*(group for group in groups if word in group)) for group in groups for word in group}


class _Text:
    """The terms of one page, weighted by where on the page they stand."""

    def __init__(self, page: Page) -> None:
        self.whole: dict[str, float] = defaultdict(float)
        fields = {"name": f"{page.code} {page.slug} {page.family}", "summary": page.summary, **page.sections}
        for name, text in fields.items():
            for term in _terms(text):
                self.whole[term] += FIELDS.get(name, 1.0)
        said = f"{page.summary} {page.sections.get('Symptom', '')}"
        self.clauses = [set(_terms(clause)) for clause in re.split(r"[.;:]\s|, or ", said)]
        self.length = sum(self.whole.values())
        self.likelihood = LIKELIHOOD[page.severity]

    def count(self, term: str, kin: Iterable[str]) -> float:
        """How much the page speaks of a term; its kin count where the symptom is told, once in a clause."""
        related = sum(not clause.isdisjoint(kin) for clause in self.clauses if term not in clause)
        return self.whole.get(term, 0.0) + RELATED_WEIGHT * FIELDS["Symptom"] * related

    def together(self, asked: Sequence[set[str]]) -> float:
        """The largest share of the question that one clause of the symptom has."""
        return max(sum(not clause.isdisjoint(words) for words in asked) for clause in self.clauses) / len(asked)


class _Index:
    """Ranks pages by BM25, for questions in the words of a user."""

    def __init__(self, shelf: Sequence[Page]) -> None:
        self._texts = [_Text(page) for page in shelf]
        self._mean = sum(text.length for text in self._texts) / max(1, len(shelf)) or 1.0
        self._vocabulary = {term for text in self._texts for term in text.whole}
        self._kin = _kin()

    def scores(self, terms: Sequence[str]) -> list[float]:
        """BM25 for every page, more where the page has all of the question, and more where one clause has it."""
        asked = [self._known(term) for term in dict.fromkeys(terms)]
        columns = [self._column(term) for term in asked]
        words = [{term} | self._kin.get(term, set()) for term in asked]
        rows = zip(self._texts, zip(*columns, strict=True), strict=False)
        shares = ((text, row, sum(map(bool, row)) / len(row)) for text, row in rows)
        return [text.likelihood * sum(row) * share * (1 + text.together(words)) for text, row, share in shares]

    def _column(self, term: str) -> list[float]:
        counts = [text.count(term, self._kin.get(term, ())) for text in self._texts]
        holders = sum(count > 0 for count in counts)
        rarity = math.log(1 + (len(counts) - holders + 0.5) / (holders + 0.5))
        return [rarity * self._saturated(count, text) for count, text in zip(counts, self._texts, strict=True)]

    def _saturated(self, count: float, text: _Text) -> float:
        damping = SATURATION * (1 - LENGTH + LENGTH * text.length / self._mean)
        return count * (SATURATION + 1) / (count + damping)

    def _known(self, term: str) -> str:
        """The term, or the one that it may be the beginning or a misspelling of."""
        if term in self._vocabulary or term in self._kin:
            return term
        longer = [known for known in self._vocabulary if len(term) > 2 and known.startswith(term)]
        guesses = sorted(longer, key=len) or difflib.get_close_matches(term, self._vocabulary, n=1, cutoff=0.75)
        return guesses[0] if guesses else term
