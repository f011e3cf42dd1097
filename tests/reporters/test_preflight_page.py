"""The page of ``flatline preflight``."""

import html
import re

import pytest
from browser import Browser, chromium

from flatline.events import Where
from flatline.findings import Finding, Report
from flatline.reporters.html.preflight import render

HOSTILE = "<script>alert(1)</script>\N{RIGHT-TO-LEFT OVERRIDE}"
ANSWERS = {
    "look": {
        "verdict": "passed",
        "why": "70 rules checked",
        "lines": [["input", f"32 × 12 {HOSTILE}"]],
        "pictures": [{"image": "data:image/png;base64,AAAA", "label": "3"}],
        "parameters": [
            {
                "name": HOSTILE, "shape": [4, 3], "dtype": "float32", "trainable": False, "optimizers": ["AdamW"],
                "learning_rate": 0.01, "weight_decay": 0.1, "reached": True, "moved": True,
            }
        ],
        "seconds": 2.0,
    },
    "memorise": {"verdict": "failed", "why": "loss 1 → 0.9", "losses": [1.0, 0.95, float("nan"), 0.9], "seconds": 2.5},
    "rates": {
        "verdict": "open",
        "why": "falls fastest at 1e-02",
        "losses": [2.0, 1.9, 1.0, 30.0],
        "rates": [1e-4, 1e-3, 1e-2, 1e-1],
        "configured": 1e-3,
        "steepest": 1e-2,
    },
    "probe": {"verdict": "not done", "why": "no model of the script was called with a batch"},
}  # fmt: skip
FINDING = Finding(
    code="O1",
    slug="batch-not-memorised",
    severity="error",
    message=HOSTILE,
    cause="",
    fix="",
    where=Where("train.py", 3),
    step=5,
)


def page(findings=(FINDING,), answers=None):
    return render(Report(findings=tuple(findings)), answers or ANSWERS, f"train.py {HOSTILE}")


def test_every_stage_has_its_panel_and_its_curve():
    made = page()
    assert re.findall(r'id="stage-(\w+)"', made) == ["look", "memorise", "rates", "probe"]
    assert made.count("<polyline") == 2
    assert "configured 1.0e-03" in made
    assert "falls fastest 1.0e-02" in made
    assert made.count('<img src="data:image/png;base64,AAAA"') == 1
    assert "1 problem found" in made


def test_a_curve_leaves_out_what_is_not_finite():
    (points,) = re.findall(r'points="([^"]*)"', page(answers={"memorise": ANSWERS["memorise"]}))
    assert len(points.split()) == 3
    assert "nan" not in points


def test_nothing_that_a_script_says_is_obeyed():
    made = page()
    assert "<script" not in made
    assert "script-src 'none'" in html.unescape(made)
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in made


@pytest.mark.parametrize(("verdict", "said"), [("passed", "Ready for the long run"), ("open", "No problem found")])
def test_the_verdict_of_a_healthy_script(verdict, said):
    assert f"<span>{said}</span>" in page((), {"look": {"verdict": verdict, "why": ""}})


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no Chromium was found (Debian: apt-get install chromium)")
def test_in_a_browser(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page(), encoding="utf-8")
    browser = Browser(tmp_path / "profile")
    try:
        for width in (380, 1280):
            browser.open(file.as_uri(), width=width)
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.complaints() == []
            assert browser.requests() == [file.as_uri()]
    finally:
        browser.close()
