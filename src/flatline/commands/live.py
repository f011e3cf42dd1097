"""The page of a run while it goes on: served to this machine only, to who knows the token, and ending by itself."""

from __future__ import annotations

import argparse
import hmac
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from flatline.cli import fail
from flatline.record import RecordError, Recording, open_record
from flatline.record.place import Place
from flatline.reporters import html

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")  # by any other name it is another page that asks: DNS rebinding
INTERVAL = 1.0  # seconds between two looks at the record
PATIENCE, LONGEST = 20, 15.0  # times as long as making the news took: 5 % of one core; and seconds
LINGER = 5.0  # seconds after the end of the run for which nobody has to be there
BEAT = 10.0  # seconds after which a silent connection is tried
WAITING = (
    "<!DOCTYPE html><meta charset=utf-8><meta http-equiv=refresh content=1><title>flatline</title>"
    "<link rel=icon href='data:,'>"
    "<p>The run has not come to its first step yet."
)
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def serve(options: argparse.Namespace) -> int:
    """Until Ctrl-C, or until the run is over and nobody looks any more."""
    story = Story(_finder(options), parent=options.parent)
    try:
        if not options.parent:
            story.look()
        server = Server(options.port, story)
    except RecordError as error:
        return fail(str(error))
    except (OSError, OverflowError) as error:
        return fail(f"--port {options.port}: {(getattr(error, 'strerror', None) or str(error)).lower()}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    with suppress(KeyboardInterrupt):
        print(f"flatline: live at {server.url}", file=sys.stderr, flush=True)
        if options.parent:  # who reads what the run says need not wait for us
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        story.watch()
    server.shutdown()
    server.server_close()
    return 0


def _finder(options: argparse.Namespace) -> Callable[[], Path | None]:
    """Where the record is; with --family it may not be there yet."""
    if not options.family:
        return lambda: Path(options.run)
    return Place(options.run, options.family, shelf=False).known


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class Story:
    """The record as it grows. One reads at a time; many wait."""

    def __init__(self, find: Callable[[], Path | None], *, parent: int | None = None) -> None:
        self.find, self.parent = find, parent
        self.changed = threading.Condition()
        self.reading = threading.Lock()
        self.version, self.over = 0, False
        self.ends = parent is not None  # by itself; so does one that saw the run go on
        self.visitors, self.left = 0, time.monotonic()
        self.cost = 0.0  # seconds that the last rendering took of this processor
        self._recording: Recording | None = None
        self._seen: int | None = None
        self._made: dict[str, tuple[int, bytes]] = {}

    # ------------------------------------------------------------------ the thread that watches

    def watch(self) -> None:
        """Look at the record until there is no reason to any more."""
        while not self._done():
            time.sleep(max(INTERVAL, min(LONGEST, PATIENCE * self.cost)))
            with suppress(RecordError):  # it is being written to, or not there yet: look again
                self.look()
            if self.parent and not self.over and not _lives(self.parent):
                self._tell(over=True)

    def look(self) -> None:
        """Whether there is something new, or the end. Raises RecordError."""
        with self.reading:
            recording = self._open()
            if recording is None:
                return
            seen, over = recording.version(), recording.ended
        self.ends = self.ends or not over
        if seen != self._seen or over != self.over:
            self._seen = seen
            self._tell(over=over or self.over)

    def _open(self) -> Recording | None:
        if self._recording is None and (path := self.find()) is not None:
            self._recording = open_record(path)
        return self._recording

    def _tell(self, *, over: bool) -> None:
        with self.changed:
            self.version += 1
            self.over = over
            self.changed.notify_all()

    def _done(self) -> bool:
        """Over, and nobody there; a run that was over from the start is shown until Ctrl-C."""
        return self.ends and self.over and not self.visitors and time.monotonic() - self.left > LINGER

    # ------------------------------------------------------------------ the threads that answer

    def made(self, what: str) -> bytes:
        """The page or the news of this moment; made once for all who ask."""
        with self.reading:
            version, known = self.version, self._made.get(what)
            if known is not None and known[0] == version:
                return known[1]
            started = time.thread_time()
            text = self._render(what)
            self.cost = time.thread_time() - started if what in self._made else 0.0  # the first one loads things, too
            self._made[what] = version, text.encode()
            return self._made[what][1]

    def _render(self, what: str) -> str:
        if (recording := self._open()) is None:
            return WAITING
        return html.render(recording, live=True) if what == "page" else html.news(recording)

    def wait(self, version: int) -> tuple[int, bool]:
        """Until there is something newer, or it is time to see whether somebody is still there."""
        with self.changed:
            self.changed.wait_for(lambda: self.version != version or self.over, BEAT)
            return self.version, self.over

    def come(self, count: int) -> None:
        """Somebody came (1) or went (-1)."""
        with self.changed:
            self.visitors += count
            self.left = time.monotonic()


class Server(ThreadingHTTPServer):
    """Bound to this machine, at an address nobody can guess."""

    daemon_threads = True

    def __init__(self, port: int, story: Story) -> None:
        self.story, self.token = story, secrets.token_urlsafe(24)
        super().__init__((ADDRESS, port), Visit)
        self.hosts = {f"{name}:{self.server_port}" for name in NAMES}
        self.url = f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        """Without the look-up of our own name that HTTPServer does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Visit(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    server_version, sys_version = "flatline", ""
    timeout = 30

    def do_GET(self) -> None:
        """The page, the news, or word of news."""
        token, slash, what = self.path.lstrip("/").partition("/")
        mine = self.headers.get("Host", "") in self.server.hosts
        if not mine or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return self._answer(403, b"This address needs the token that flatline printed.\n", "text/plain")
        if slash and not what:
            return self._made("page", "text/html")
        if what == "news":
            return self._made("news", "application/json")
        return self._events() if what == "events" else self._answer(404, b"There is nothing here.\n", "text/plain")

    def _made(self, what: str, kind: str) -> None:
        try:
            self._answer(200, self.server.story.made(what), kind)
        except RecordError as error:
            self._answer(503, f"{error}\n".encode(), "text/plain")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self._head(status, kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in HEADERS.items():
            self.send_header(name, value)

    def _events(self) -> None:
        """Say when there is something new, and when it is over."""
        story = self.server.story
        self._head(200, "text/event-stream")
        self.end_headers()
        story.come(1)
        try:
            self._say("changed")
            version, over = story.version, story.over
            while not over:
                newer, over = story.wait(version)
                self._say("changed" if newer != version else "")
                version = newer
            self._say("finished")
        finally:
            story.come(-1)

    def _say(self, word: str) -> None:
        self.wfile.write(f"event: {word}\ndata: \n\n".encode() if word else b": still here\n\n")
        self.wfile.flush()

    def log_message(self, *args: object) -> None:
        """Nothing: the terminal is the user's."""
