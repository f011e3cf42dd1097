"""``flatline explain``: a rule's page."""

from __future__ import annotations

from collections.abc import Sequence


def explain(words: Sequence[str]) -> int:
    """Print the page of a code or slug, or the pages that fit the words."""
    raise NotImplementedError
