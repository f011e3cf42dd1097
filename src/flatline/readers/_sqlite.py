"""SQLite databases of strangers: read only, and for a bounded time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from flatline.readers import Head

MAGIC = b"SQLite format 3\0"
SECONDS = 300.0  # for a query: a damaged or malicious database may make it endless
OFTEN = 100_000  # instructions between two looks at the clock


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Nothing is written beside it, unless another process is writing to it now."""
    log = path.with_name(path.name + "-wal")
    live = log.is_file() and not log.is_symlink() and log.stat().st_size > 0
    address = f"file:{quote(str(path.resolve()))}?mode=ro" + ("" if live else "&immutable=1")
    with closing(sqlite3.connect(address, uri=True, timeout=5)) as connection:
        end = time.monotonic() + SECONDS
        connection.set_progress_handler(lambda: time.monotonic() > end, OFTEN)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        yield connection


def columns(head: Head, table: str) -> set[str]:
    """The columns of a table, if the file is a database that has it."""
    if not head.start.startswith(MAGIC):
        return set()
    try:
        with opened(head.path) as connection:
            known = connection.execute(
                "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
            ).fetchone()
            return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")} if known else set()
    except (sqlite3.Error, OSError, ValueError):
        return set()
