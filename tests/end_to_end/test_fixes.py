"""The fix that a finding names does away with the defect, as docs/fixes.md says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = importlib.util.spec_from_file_location("fixes", ROOT / "benchmarks" / "fixes.py")
fixes = sys.modules["fixes"] = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(fixes)

EXAMPLES = {example.name: example for example in fixes.examples([])}
OF_EACH_FAMILY = [  # loss, loop, parameters, mode, gradients, numbers
    "double_softmax",
    "update_order_broken",
    "parameter_not_in_optimizer",
    "training_in_eval_mode",
    "clip_before_unscale",
    "non_finite_loss",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH_FAMILY)
def test_fix_clears_the_finding_and_closes_the_gap(name):
    outcome = fixes.outcome(EXAMPLES[name])
    assert outcome.cleared, outcome
    assert outcome.enough, outcome
    assert outcome.fixed.loud == ()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_fix_fits_and_compiles(name):
    text = fixes.fixed_text(EXAMPLES[name])
    assert text != (EXAMPLES[name] / "sick.py").read_text()
    compile(text, f"{name}/fixed.py", "exec")


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_is_in_the_table(name):
    assert f"| {name} | " in (ROOT / "docs" / "fixes.md").read_text()


def test_diff_is_applied():
    diff = "--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n one\n-two\n+2\n+3\n@@ -4 +5 @@\n-four\n+4\n"
    assert fixes.patched("one\ntwo\nthree\nfour\nfive\n", diff) == "one\n2\n3\nthree\n4\nfive\n"


def test_diff_for_another_text_is_an_error():
    with pytest.raises(fixes.DoesNotFit, match="line 2 is not 'two'"):
        fixes.patched("one\nzwei\n", "@@ -1,2 +1,2 @@\n one\n-two\n+2\n")


def run(loss, first=2.0, **printed):
    return fixes.Run((), (), True, first, loss, printed)


@pytest.mark.parametrize(
    ("sick", "fixed", "healthy", "expected"),
    [
        (run(2.0), run(1.1), run(1.0), ("loss", 0.9, "")),
        (run(float("nan")), run(1.5), run(1.0), ("from the first loss", 0.5, "")),
        (run(None), run(1.0), run(1.0), ("from the first loss", 1.0, "")),
        (run(2.0), run(float("nan")), run(1.0), ("loss", 0.0, "")),
        (run(1.01), run(1.0), run(1.0), ("", None, "sick and healthy end alike")),
        (run(0.5), run(1.0), run(1.0), ("", None, "the sick loss is lower")),
        (run(1.0, accuracy=0.5), run(1.0, accuracy=0.9), run(1.0, accuracy=0.9), ("accuracy", 1.0, "")),
        (run(-9.0, error=0.5), run(1.0, error=0.1), run(1.0, error=0.1), ("error", 1.0, "")),
        (
            run(9.0, error=0.1),
            run(1.0, error=0.1),
            run(1.0, error=0.1),
            ("error", None, "the sick error is hardly higher"),
        ),
        (run(0.5, error=0.1), run(1.0, error=0.4), run(1.0, error=0.4), ("error", None, "the sick error is lower")),
    ],
)
def test_what_is_compared(sick, fixed, healthy, expected):
    measure, closed, reason = fixes.compared(sick, fixed, healthy)
    assert (measure, reason) == (expected[0], expected[2])
    assert closed == (None if expected[1] is None else pytest.approx(expected[1]))
