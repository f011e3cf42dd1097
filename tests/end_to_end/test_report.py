"""``flatline report`` on a recorded run: the file, Markdown, and the live page."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "reporters"))
from browser import Browser, chromium

pytestmark = pytest.mark.slow
SCRIPT = """\
import sys
from pathlib import Path

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3), torch.nn.Softmax(dim=-1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
enough = Path(sys.argv[1])
for step in range(200_000):
    x = torch.randn(16, 8)
    loss = torch.nn.functional.cross_entropy(net(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if enough.exists() and step > 60:
        break
"""
FLATLINE = (sys.executable, "-m", "flatline")


def flatline(*arguments, cwd):
    return subprocess.run([*FLATLINE, *map(str, arguments)], cwd=cwd, capture_output=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that was recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    done = flatline("run", "--record", "run", "train.py", "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


# --------------------------------------------------------------------------- a file


def test_writes_the_page_beside_the_record(run):
    done = flatline("report", run, cwd=run)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().strip() == str(run / "report.html")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "1 problem found" in page
    assert "double-softmax" in page
    assert "loss.backward()" in page  # the user's line


def test_writes_to_a_file_and_to_stdout(run, tmp_path):
    assert flatline("report", run, "-o", "page.html", cwd=tmp_path).stdout == b"page.html\n"
    assert flatline("report", run, "-o", "-", cwd=tmp_path).stdout == (tmp_path / "page.html").read_bytes()


def test_markdown_goes_to_stdout(run):
    done = flatline("report", "--format", "md", run, cwd=run)
    assert done.stdout.startswith(b"### flatline: 1 problem found")
    assert b"| training loss |" in done.stdout


@pytest.mark.parametrize("more", [(), ("--live",)])
def test_what_is_no_record_is_said_in_a_line(tmp_path, more):
    (tmp_path / "bad.sqlite").write_bytes(b"SQLite format 3\0" + os.urandom(500))
    (tmp_path / "none").mkdir()
    for path in ("gone", "none", "bad.sqlite"):
        done = flatline("report", *more, path, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(b"flatline: ")
        assert done.stderr.count(b"\n") == 1


def test_a_place_that_cannot_be_written_is_said_in_a_line(run, tmp_path):
    done = flatline("report", run, "-o", tmp_path / "none" / "page.html", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


def test_live_without_a_record_is_refused(tmp_path):
    done = flatline("run", "--live", "--no-record", "train.py", cwd=tmp_path)
    assert done.returncode == 2


# --------------------------------------------------------------------------- the server


class Served:
    """A server of the live page."""

    def __init__(self, command, cwd):
        self.process = subprocess.Popen([*FLATLINE, *map(str, command)], cwd=cwd, stderr=subprocess.PIPE)
        lines = iter(self.process.stderr.readline, b"")
        told = next(line for line in lines if b" live at " in line)
        self.url = told.decode().split()[-1]
        self.parts = urlsplit(self.url)

    def get(self, path, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.parts.port, timeout=20)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def gone(self):
        """Wait until nobody answers."""
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.parts.port)):
                    return True
                tried.settimeout(0.2)
                try:
                    tried.recv(1)
                except OSError:
                    continue
        return False

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.process.stderr.close()


@pytest.fixture(scope="module")
def served(run):
    server = Served(["report", "--live", run], cwd=run)
    yield server
    server.close()


def test_serves_the_page_and_its_news(served):
    status, headers, body = served.get(served.parts.path)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Cache-Control"] == "no-store"
    assert b"connect-src &#39;self&#39;" in body
    assert served.get(served.parts.path + "news")[2].startswith(b'{"sections"')
    assert served.get(served.parts.path + "events")[2].startswith(b"event: changed\n")


def test_listens_on_this_machine_only(served):
    assert served.parts.hostname == "127.0.0.1"


@pytest.mark.parametrize("path", ["/", "/news", "/x/", "/{token}x/", "/{token}", "/../{token}/", "/%00/"])
def test_without_the_token_there_is_nothing(served, path):
    status, _, body = served.get(path.format(token=served.parts.path.strip("/")))
    assert status in (403, 404)
    assert b"problem" not in body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_name_is_refused(served, host):
    assert served.get(served.parts.path, Host=host.format(port=served.parts.port))[0] == 403


def test_localhost_is_the_same(served):
    assert served.get(served.parts.path, Host=f"localhost:{served.parts.port}")[0] == 200


def test_what_is_not_there_is_not_found(served):
    assert served.get(served.parts.path + "../../etc/passwd")[0] == 404


def test_ends_cleanly_on_an_interrupt(run):
    server = Served(["report", "--live", run], cwd=run)
    try:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
        assert server.process.stderr.read() == b""
    finally:
        server.close()


def test_a_port_that_is_taken_is_said_in_a_line(served, run):
    done = flatline("report", "--live", "--port", served.parts.port, run, cwd=run)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


# --------------------------------------------------------------------------- while the script trains


@pytest.mark.skipif(chromium() is None, reason="no Chromium was found (Debian: apt-get install chromium)")
def test_the_page_grows_with_the_run_and_the_server_ends(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    served = Served(["run", "--live", "--record", "run", "train.py", "enough"], cwd=tmp_path)
    chrome = Browser(tmp_path / "profile")
    steps = "Number((/([\\d,]+) steps/.exec(document.querySelector('.subline')?.textContent) || [0, '0'])[1].replaceAll(',', ''))"
    try:
        chrome.open(served.url)
        chrome.until(f"{steps} > 0 && document.querySelector('#status')?.textContent === 'live'")
        assert chrome.run("document.querySelector('h1').textContent").strip() == "1 problem found"
        chrome.run("document.querySelector('.chart .plot').focus()")
        chrome.key("+", "+")
        zoomed = chrome.run(
            "(() => { const x = document.querySelector('.chart .plot').owner.u.scales.x; return [x.min, x.max]; })()"
        )
        chrome.until(f"{steps} > {chrome.run(steps)}")
        after = chrome.run(
            "(() => { const x = document.querySelector('.chart .plot').owner.u.scales.x; return [x.min, x.max]; })()"
        )
        assert after == zoomed
        (tmp_path / "enough").touch()
        chrome.until("document.querySelector('#status').textContent === 'finished'")
        assert chrome.complaints() == []
        assert all(address.startswith(served.url) for address in chrome.requests())
        assert served.process.wait(60) == 0
        assert served.gone()
    finally:
        chrome.close()
        served.close()
