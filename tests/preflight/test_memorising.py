"""What is said of a loss that is not gone."""

from __future__ import annotations

import pytest

from flatline.preflight.memorising import _so_far

FALLING = [1.0 / (1 + 0.01 * step) for step in range(200)]


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (FALLING, "it falls"),
        ([1.117, *(3.0 - step * 1e-3 for step in range(1000))], "it is not below its first value"),
        ([1.0] + [0.5] * 300, "it came to a stand"),
        ([1.0, 0.9], "too few steps"),
    ],
    ids=["falls", "jumped, then falls", "stands", "few"],
)
def test_how_it_ended(losses, said):
    assert _so_far(losses).startswith(said)
