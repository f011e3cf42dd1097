"""What the page of a long run weighs, and how fast it opens.

python benchmarks/report.py [--steps N] [--tags N] [--keep FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "reporters")]

import browser  # noqa: E402
import recordings  # noqa: E402

from flatline.reporters import html, markdown  # noqa: E402

MEGABYTES, SECONDS, TIMES = 5.0, 2.0, 5


def opened(page: Path) -> list[float]:
    """Seconds from the address to the drawn page, several times."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        chrome = browser.Browser(folder)
        try:
            chrome.open("about:blank")
            return [_once(chrome, page) for _ in range(TIMES)]
        finally:
            chrome.close()


def _once(chrome: browser.Browser, page: Path) -> float:
    started = time.perf_counter()
    chrome.open(page.as_uri())
    chrome.until("document.querySelector('.chart .u-wrap') !== null")
    return time.perf_counter() - started


def main() -> int:
    """Print the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--tags", type=int, default=20, help="curves that the script logged itself")
    parser.add_argument("--keep", metavar="FILE", help="keep the page")
    options = parser.parse_args()
    recording = recordings.long(options.steps, options.tags)
    started = time.perf_counter()
    text = html.render(recording)
    made = time.perf_counter() - started
    weight = len(text.encode()) / 1e6
    print(f"a run of {options.steps:,} steps, {len(recording.weights)} tensors, {len(recording.curves)} curves")
    print(f"made in     {made:6.2f} s")
    print(f"weighs      {weight:6.2f} MB   (at most {MEGABYTES:g})")
    print(f"as Markdown {len(markdown.render(recording).encode()) / 1e3:6.1f} kB")
    failed = weight > MEGABYTES
    if browser.chromium() is None:
        print("opens in    ?  no Chromium was found")
        return int(failed)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(options.keep or Path(folder) / "report.html")
        page.write_text(text, encoding="utf-8")
        times = opened(page.resolve())
    print(
        f"opens in    {statistics.median(times):6.2f} s    (at most {SECONDS:g}; {min(times):.2f} to {max(times):.2f})"
    )
    return int(failed or statistics.median(times) > SECONDS)


if __name__ == "__main__":
    sys.exit(main())
