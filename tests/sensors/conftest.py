"""Sensors are tested with time to look: a busy machine must not decide what they see."""

from __future__ import annotations

import math

import pytest

from flatline.sensors import loop


@pytest.fixture(autouse=True)
def time_to_look(monkeypatch):
    """No look is ended early, and no sample left out, because it took long."""
    monkeypatch.setattr(loop, "PATIENCE", math.inf)
    monkeypatch.setattr(loop, "SAMPLE_GRANT", math.inf)
