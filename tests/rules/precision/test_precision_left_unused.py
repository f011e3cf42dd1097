from dataclasses import replace

from flatline.events import PrecisionObserved
from flatline.rules.precision.precision_left_unused import PrecisionLeftUnused
from flatline.testing import play

PLAIN = PrecisionObserved(device="cuda", capability=9)


def test_fires_on_float32_without_tf32():
    (finding,) = play(PrecisionLeftUnused, PLAIN)
    assert (finding.code, finding.severity) == ("FP4", "hint")
    assert "set_float32_matmul_precision" in finding.fix


def test_fires_on_float16_where_bfloat16_is():
    (finding,) = play(PrecisionLeftUnused, replace(PLAIN, dtype="float16", scaled=True))
    assert "bfloat16" in finding.fix


def test_near_miss_cpu_or_older_gpu():
    assert play(PrecisionLeftUnused, PrecisionObserved(), replace(PLAIN, capability=7)) == []


def test_near_miss_in_use_already():
    assert play(PrecisionLeftUnused, replace(PLAIN, tf32=True), replace(PLAIN, dtype="bfloat16")) == []
    assert play(PrecisionLeftUnused, replace(PLAIN, parameters="float64", dtype="float64")) == []
