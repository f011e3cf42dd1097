"""``flatline explain``: a rule's page, by code, slug or symptom."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flatline import catalogue
from flatline.cli import fail

CODE_LIKE = 4  # a single short word with a digit is meant as a code


def explain(words: Sequence[str]) -> int:
    """Print the page of a code or slug, or the best page for the words and the names of the next ones."""
    page = catalogue.find(" ".join(words))
    if page is not None:
        return _show(page)
    if len(words) == 1 and len(words[0]) <= CODE_LIKE and any(c.isdigit() for c in words[0]):
        return _unknown(words[0])
    found = catalogue.search(words)
    if not found:
        return _unknown(" ".join(words))
    _show(found[0])
    if found[1:]:
        print("\nSee also: " + " · ".join(f"{p.code} {p.slug}" for p in found[1:]))
    return 0


def _unknown(word: str) -> int:
    near = catalogue.did_you_mean(word)
    hint = f"did you mean {' or '.join(p.code for p in near)}?" if near else "`flatline rules` lists all"
    return fail(f"no rule and no symptom matches {word!r}; {hint}")


def _show(page: catalogue.Page) -> int:
    print(f"{page.code} {page.slug} · {page.severity} · {', '.join(page.doors)}\n\n{page.summary}")
    for title, text in page.sections.items():
        print(f"\n{_bold(title)}\n{text}")
    _show_options(page)
    return 0


def _show_options(page: catalogue.Page) -> None:
    """The numbers that the rule judges by, as they may be put into pyproject.toml."""
    options = catalogue.options(page)
    if not options:
        return
    lines = [f"{option.name} = {option.default!r}" for option in options]
    wide = max(map(len, lines))
    print(f"\n{_bold('Options')}\n[tool.flatline.rules.{page.code}]")
    for line, option in zip(lines, options, strict=True):
        print(f"{line:<{wide}}  # {option.source}".rstrip(" #"))


def _bold(title: str) -> str:
    return f"\033[1m{title}\033[0m" if sys.stdout.isatty() else title
