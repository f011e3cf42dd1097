"""A headless Chromium, driven through a pipe by its DevTools protocol: nothing to install but the browser."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PLUG = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 100) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""  # Chromium reads its orders at 3 and answers at 4
PATIENCE = 30.0  # seconds for one answer


def chromium():
    """The path of a browser, or None."""
    return os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


class Gone(Exception):
    """The browser does not answer."""


class Moved(Exception):
    """The page went elsewhere in the middle of a question."""


class Browser:
    """One browser with one page."""

    def __init__(self, folder):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
        ]
        flags += [
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--mute-audio",
            "--force-color-profile=srgb",
        ]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        command = [sys.executable, "-c", PLUG, str(theirs_in), str(theirs_out), chromium(), *flags]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), start_new_session=True, **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self.reading, self.writing, self.rest = ours_in, ours_out, b""
        self.number, self.session, self.events = 0, None, []
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Send a command and wait for its answer; events on the way are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(time.monotonic() + PATIENCE)
            if answer.get("id") == self.number:
                if "navigated" in str(answer.get("error")):
                    raise Moved
                if "error" in answer:
                    raise Gone(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method, since=0):
        """The first such event."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for event in self.events[since:]:
                if event.get("method") == method:
                    return event["params"]
            self.events.append(self._next(deadline))

    def _next(self, deadline):
        while b"\0" not in self.rest:
            if not select.select([self.reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Gone("no answer in time")
            data = os.read(self.reading, 1 << 20)
            if not data:
                raise Gone("the browser ended")
            self.rest += data
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, address, *, width=1280, height=900, dark=False, scale=1):
        """Load a page and wait until it has drawn a frame."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call(
            "Emulation.setEmulatedMedia",
            media="",
            features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}],
        )
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")
        self.settle()

    def settle(self):
        """Two frames, so that what was seen to be near the window is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")

    def run(self, script):
        """The value of an expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, script):
        """Wait, frame by frame, until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                if value := self.run(script):
                    return value
                self.settle()
            except Moved:
                continue
        raise AssertionError(f"never true: {script}")

    def key(self, name, text=""):
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}.get(name, 0)
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **extra)

    def drag(self, start, end):
        """Press at one point, move, release at another."""
        points = [
            ("mousePressed", start),
            ("mouseMoved", ((start[0] + end[0]) / 2, end[1])),
            ("mouseMoved", end),
            ("mouseReleased", end),
        ]
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=start[0], y=start[1])
        for kind, (x, y) in points:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def complaints(self):
        """Errors of the console, exceptions, dialogs, and everything that was asked of the network but the page itself."""
        self.run("1")
        found = []
        for event in self.events:
            method, of = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
                found.append(str(of))
            if method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning"):
                found.append(str(of))
            if method == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
                found.append(of["entry"]["text"] + " " + of["entry"].get("url", ""))
        return found

    def requests(self):
        """Addresses that were asked for."""
        sent = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [address for address in sent if not address.startswith("data:")]

    def shoot(self, file, *, whole=True):
        """A picture of the page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        more = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        Path(file).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **more)["data"]))

    def print(self, file):
        """The page as a PDF."""
        Path(file).write_bytes(
            base64.b64decode(
                self.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"]
            )
        )

    def close(self):
        """End it, and wait until it has ended."""
        with contextlib.suppress(Gone, OSError):
            self.session = None
            self.call("Browser.close")
        os.close(self.writing)
        os.close(self.reading)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
