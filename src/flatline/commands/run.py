"""``flatline run``: watch a training script and report."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from flatline import children, config, launch
from flatline.cli import fail, writable
from flatline.findings import Report
from flatline.importing import after_import, as_at_start
from flatline.record.place import Place, name_of
from flatline.reporters import json
from flatline.session import How, OnNan, Session
from flatline.telling import Stream, brief, flush, width

PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Returns the script's own exit status, or 1 for --fail-on, or 2 when it could not be run."""
    try:
        settings, budget, steps = config.chosen(options)
        if options.output is not None and (why := writable(options.output)):
            return fail(why)
        options.output = options.output and os.path.abspath(options.output)
        voice = Voice(options)
        program = launch.program(command)
        keeping = config.keeping(options, name_of(program.argv[0]))
    except (config.ConfigError, launch.CannotLaunch) as error:
        return fail(str(error))
    if options.live and keeping is None:
        return fail("--live shows the record of a run, and none is kept here")
    if options.live and keeping is not None:
        from flatline.commands.report import follow

        follow(Place(os.path.abspath(keeping.folder), keeping.token, shelf=keeping.shelf))
    session = Session(settings, budget=budget, tell=voice.stderr.tell, keeping=keeping)
    if steps is not None:
        session.stop_after(steps, launch.stop)
    if options.on_nan != "continue":
        session.on_nan = OnNan(options.on_nan, launch.stop_non_finite, voice.stderr.say)
    session.command = [*command]
    return _watch(session, program, options, voice, keeping)


# --------------------------------------------------------------------------- the run itself


def _watch(
    session: Session,
    program: launch.Program,
    options: argparse.Namespace,
    voice: Voice,
    keeping: config.Keeping | None,
) -> int:
    family = children.Family(options)
    family.invite(keeping)
    if program.in_process:
        after_import("torch", lambda: _attach(session))
    os.register_at_fork(after_in_child=lambda: children.forked(session))
    sys.argv = list(program.argv)
    session.script = program.argv[0]
    ending = watched_run(session, program)
    if os.getpid() != session.pid:
        return ending.leave()
    with as_at_start():
        failed = _report(session, family, voice, keeping)
    return 1 if failed else ending.leave()


def _attach(session: Session) -> None:
    if os.getpid() == session.pid:
        session.attach()


class Ending:
    """How the script ended, and how to end the same way."""

    def __init__(self, how: How, error: BaseException | None = None) -> None:
        self.how, self.error = how, error

    def leave(self) -> int:
        """Exit as the script would have."""
        if isinstance(self.error, launch.StopTraining) or self.error is None:
            return 0
        if isinstance(self.error, SystemExit):
            raise self.error
        if isinstance(self.error, KeyboardInterrupt):
            sys.excepthook = _silent
            raise self.error
        return 1


def _silent(*args: Any) -> None:
    """The traceback was printed already."""


def watched_run(session: Session, program: launch.Program) -> Ending:
    """Run the script to its end, and the session with it."""
    ending = _run_to_the_end(program)
    error = ending.error
    flush(sys.stdout)
    if error is not None and not isinstance(error, SystemExit):
        ending.error = launch.show(error, PACKAGE) or error
        flush(sys.stderr)
    if os.getpid() == session.pid:
        launch.wait_for_threads()
    with as_at_start():
        session.finish(ending.how, None if isinstance(error, SystemExit) else error)
    return ending


def _run_to_the_end(program: launch.Program) -> Ending:
    try:
        program.run()
    except launch.StopNonFinite as stop:
        return Ending("non-finite", stop)
    except launch.StopTraining as stop:
        return Ending("max-steps", stop)
    except SystemExit as leaving:
        return Ending("finished" if not leaving.code else "crashed", leaving)
    except KeyboardInterrupt as interrupt:
        return Ending("interrupted", interrupt)
    except BaseException as error:  # noqa: BLE001 - shown as Python would show it
        return Ending("crashed", error)
    return Ending("finished")


# --------------------------------------------------------------------------- the report


def _report(session: Session, family: children.Family, voice: Voice, keeping: config.Keeping | None) -> bool:
    """Write it; whether it fails the run."""
    try:
        report = _kept(family.merge(session.report()), keeping)
        voice.say(report)
        return report.reaches(voice.options.fail_on)
    except Exception as error:  # noqa: BLE001 - the script's exit status is kept
        voice.stderr.write(f"flatline: the report could not be made: {type(error).__name__}: {error}\n")
        return False


def _kept(report: Report, keeping: config.Keeping | None) -> Report:
    """The report of all processes, beside what they recorded."""
    folder = Place(keeping.folder, keeping.token, shelf=keeping.shelf).known() if keeping is not None else None
    if folder is None:
        return report
    report = dataclasses.replace(report, run={**report.run, "record": str(folder)})
    try:
        (folder / "report.json").write_text(json.render(report), encoding="utf-8")
    except OSError as error:
        report = dataclasses.replace(report, notes=(*report.notes, f"{folder}: report.json: {error.strerror}"))
    return report


class Voice:
    """Where the report goes: a file, the real stdout, or the real stderr."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stderr = Stream("stderr")
        onto_stdout = options.format != "text" and not options.output
        self.stream = Stream("stdout") if onto_stdout else self.stderr
        self.colour = self.stderr.is_terminal and "NO_COLOR" not in os.environ

    def say(self, report: Report) -> None:
        """Into the file; onto the screen, too, when it is text."""
        if self.options.output:
            self._write(_rendered(report, self.options))
            if self.options.format != "text":
                return
        text = _rendered(report, self.options, colour=self.colour)
        self.stream.write(text if text.endswith("\n") else text + "\n")

    def _write(self, text: str) -> None:
        try:
            Path(self.options.output).write_text(text, encoding="utf-8")
        except OSError as error:
            self.stderr.write(f"flatline: --output {self.options.output}: {error.strerror}\n")


def _rendered(report: Report, options: argparse.Namespace, *, colour: bool = False) -> str:
    if options.format != "text":
        return str(import_module(f"flatline.reporters.{options.format}").render(report))
    from flatline.reporters import text

    try:
        return text.render(report, verbose=options.verbose, width=width(), colour=colour)
    except Exception:  # noqa: BLE001 - the script has another rich, say
        return brief(report)
