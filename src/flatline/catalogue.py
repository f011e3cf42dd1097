"""The rules as a book: pages parsed from their docstrings, found by code, by name or by symptom."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
SATURATION, LENGTH = 1.2, 0.5  # the two constants of BM25
RELATED_WEIGHT = 0.5
WORTH_SHOWING = 0.2  # of the best page's score
STOP_WORDS = (
    "a after am an and any are as at be become becomes but by can do does for from get gets go goes has have how i if "
    "in into is it its just me my of on or so some still that the their then there this to very was what when where "
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
    words = re.findall(r"[a-z0-9]+", text.lower().replace("fine-tun", "finetun").replace("non-finite", "nonfinite"))
    stop = STOP_WORDS.split()
    return [_stem(word) for word in words if word not in stop]


def _kin() -> dict[str, set[str]]:
    groups = [{_stem(word) for word in line.split()} for line in RELATED]
    return {word: set().union(*(group for group in groups if word in group)) for group in groups for word in group}


class _Index:
    """Term frequencies of some pages, weighted by where on the page a term stands."""

    def __init__(self, shelf: Sequence[Page]) -> None:
        self._counts = [_weighted(page) for page in shelf]
        lengths = [sum(counts.values()) for counts in self._counts]
        mean = sum(lengths) / max(1, len(lengths)) or 1.0
        self._damping = [SATURATION * (1 - LENGTH + LENGTH * length / mean) for length in lengths]
        self._vocabulary = {term for counts in self._counts for term in counts}
        self._kin = _kin()

    def scores(self, terms: Sequence[str]) -> list[float]:
        """BM25 for every page, times the share of the question's terms that it has."""
        asked = [self._column(self._meanings(term)) for term in dict.fromkeys(terms)]
        return [sum(row) * sum(score > 0 for score in row) / len(row) for row in zip(*asked, strict=True)]

    def _column(self, meanings: Mapping[str, float]) -> list[float]:
        """The score of every page for one term: its meanings count together, as if they were one word."""
        counts = [sum(share * page.get(term, 0.0) for term, share in meanings.items()) for page in self._counts]
        holders = sum(count > 0 for count in counts)
        rarity = math.log(1 + (len(counts) - holders + 0.5) / (holders + 0.5))
        pairs = zip(counts, self._damping, strict=True)
        return [rarity * count * (SATURATION + 1) / (count + damping) for count, damping in pairs]

    def _meanings(self, term: str) -> dict[str, float]:
        """The term itself, its kin at half the weight, or else what it may be a typo or the beginning of."""
        related = dict.fromkeys(self._kin.get(term, ()), RELATED_WEIGHT)
        if term in self._vocabulary or related:
            return related | {term: 1.0}
        longer = [known for known in self._vocabulary if len(term) > 2 and known.startswith(term)]
        guesses = longer or difflib.get_close_matches(term, self._vocabulary, n=3, cutoff=0.75)
        return dict.fromkeys(guesses, RELATED_WEIGHT)


def _weighted(page: Page) -> dict[str, float]:
    counts: dict[str, float] = defaultdict(float)
    fields = {"name": f"{page.code} {page.slug} {page.family}", "summary": page.summary, **page.sections}
    for name, text in fields.items():
        for term in _terms(text):
            counts[term] += FIELDS.get(name, 1.0)
    return dict(counts)
