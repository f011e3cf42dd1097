"""``flatline report``: a recorded run as a page, as Markdown, or live."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from flatline.cli import fail
from flatline.record import RecordError, Recording, open_record
from flatline.record.place import Place

ROOT = str(Path(__file__).resolve().parents[2])
START = "import sys; sys.path[0] = sys.argv.pop(1); from flatline.cli import main; sys.exit(main())"


def report(options: argparse.Namespace) -> int:
    """Exit status 2 when there is no record, or nowhere to write."""
    if options.live:
        from flatline.commands.live import serve

        return serve(options)
    try:
        recording = open_record(options.run)
        with recording:
            return _write(_rendered(recording, options.format), recording, options)
    except RecordError as error:
        return fail(str(error))


def _rendered(recording: Recording, form: str) -> str:
    if form == "md":
        from flatline.reporters import markdown

        return markdown.render(recording)
    from flatline.reporters import html

    return html.render(recording)


def _write(text: str, recording: Recording, options: argparse.Namespace) -> int:
    output = options.output or ("-" if options.format == "md" else str(recording.file.parent / "report.html"))
    if output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
        return 0
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        return fail(f"{output}: {(error.strerror or 'cannot be written').lower()}")
    print(output)
    return 0


def follow(place: Place) -> None:
    """Serve the page of this run, in a process that ends by itself: the script gets no thread and no child of ours."""
    wanted = ["report", "--live", place.folder, "--family", place.token, "--parent", str(os.getpid())]
    command = ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-c", START, ROOT, *wanted]
    none = subprocess.DEVNULL
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(command, stdin=none, stdout=none, start_new_session=True, check=False, timeout=10)
