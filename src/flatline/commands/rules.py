"""``flatline rules``: the table."""

from __future__ import annotations


def rules(form: str) -> int:
    """Print the table of rules."""
    raise NotImplementedError
