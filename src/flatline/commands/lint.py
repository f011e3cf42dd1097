"""``flatline lint``: training defects found in source code. Nothing is imported, nothing is run."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from flatline import config, telling
from flatline.cli import fail, writable
from flatline.findings import Report
from flatline.linting import Linted, Linter, fixes, report


def run(options: argparse.Namespace) -> int:
    """Exit status 0 when clean, 1 with findings, 2 when nothing could be linted."""
    try:
        linter = _linter(options)
    except config.ConfigError as error:
        return fail(str(error))
    if options.output and (why := writable(options.output)):
        return fail(why)
    if options.unsafe_fixes and not (options.fix or options.diff):
        return fail("--unsafe-fixes says which fixes --fix and --diff may use; give one of them, too")
    options.paths = options.paths or ["."]
    done = _linted(linter, options.paths)
    if done.missing:
        return fail("; ".join(done.missing))
    if not done.files and done.notes:
        return fail("; ".join(done.notes[:3]))
    if options.diff:
        status = _diff(fixes(linter, unsafe=options.unsafe_fixes))
        for line in linter.refused:
            print(line, file=sys.stderr)
        return status
    if options.fix:
        linter, done = _fixed(linter, options, done)
    unused = linter.unused if options.unused_ignores else []
    done.notes += unused
    made = report(done)
    telling.put(_rendered(made, options), options.output)
    return int(bool(unused) or any(finding.severity != "hint" for finding in made.findings))


def _fixed(linter: Linter, options: argparse.Namespace, done: Linted) -> tuple[Linter, Linted]:
    """The files rewritten, and linted again."""
    changed = fixes(linter, unsafe=options.unsafe_fixes)
    refused = linter.refused
    for path, (_, new) in changed.items():
        Path(path).write_bytes(new)
    if changed:
        linter = _linter(options)
        done = _linted(linter, options.paths)
        done.notes.append(f"fixed: {', '.join(sorted(changed))}")
    done.notes += refused
    return linter, done


def _linter(options: argparse.Namespace) -> Linter:
    """The command line over pyproject.toml. Raises ConfigError."""
    table = config.load(Path.cwd())
    select, ignore = config.codes(options.select, "--select"), config.codes(options.ignore, "--ignore")
    settings = config.build(table, select=select, ignore=ignore, hints=options.hints)
    return Linter(settings, config.per_file(table))


def _linted(linter: Linter, paths: list[str]) -> Linted:
    if paths == ["-"]:
        return linter.standard_input(sys.stdin.buffer.read())
    return linter.paths(paths)


def _diff(changed: Mapping[str, tuple[bytes, bytes]]) -> int:
    """What --fix would change. Exit status 1 if there is anything."""
    for path, versions in changed.items():
        old, new = (data.decode("utf-8", "replace").splitlines(keepends=True) for data in versions)
        sys.stdout.writelines(difflib.unified_diff(old, new, path, path))
    return int(bool(changed))


def _rendered(made: Report, options: argparse.Namespace) -> str:
    if options.format != "text":
        return str(import_module(f"flatline.reporters.{options.format}").render(made))
    from flatline.reporters import text

    return text.render(made, verbose=options.verbose, width=telling.width(), colour=telling.colour(options.output))
