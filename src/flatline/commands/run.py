"""``flatline run``: watch a training script and report."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatline import children, config, launch
from flatline.cli import fail, writable
from flatline.findings import SEVERITIES, Finding, Report
from flatline.importing import after_import
from flatline.session import How, Session

PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


class StopTraining(SystemExit):
    """Ends the script after --max-steps."""


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Returns the script's own exit status, or 1 for --fail-on, or 2 when it could not be run."""
    try:
        settings, budget, steps = settings_of(options)
        if options.output and (why := writable(options.output)):
            return fail(why)
        options.output = options.output and os.path.abspath(options.output)
        program = _program(command)
    except (config.ConfigError, launch.CannotLaunch) as error:
        return fail(str(error))
    session = Session(settings, budget=budget, tell=told)
    if steps is not None:
        session.stop_after(steps, stop)
    return _watch(session, program, options)


def settings_of(options: argparse.Namespace) -> tuple[config.Config, float, int | None]:
    """Rules, time budget and step limit of the options over pyproject.toml. Raises ConfigError."""
    table = config.load(Path.cwd())
    select, ignore = _codes(options.select), _codes(options.ignore)
    settings = config.build(table, select=select, ignore=ignore, hints=options.hints)
    if options.fail_on is None:
        options.fail_on = table.get("fail-on", "never")
    steps = options.max_steps
    if steps is not None and (not (steps.isascii() and steps.isdecimal()) or int(steps) < 1):
        raise config.ConfigError(f"--max-steps must be a whole number of at least 1; it is {steps!r}")
    return settings, _share(str(options.budget or table.get("budget", "1%"))), int(steps) if steps else None


def _codes(given: Sequence[str]) -> list[str]:
    return [code.strip() for text in given for code in text.split(",") if code.strip()]


def _share(text: str) -> float:
    try:
        share = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise config.ConfigError(f"--budget must be a share of the run's time, like 1% or 0.01; it is {text!r}")
    return share


def _program(command: Sequence[str]) -> launch.Program:
    if not command:
        raise launch.CannotLaunch("run needs a script: flatline run [OPTIONS] SCRIPT [ARGS…]")
    if command[0] == "-m":
        if len(command) < 2:
            raise launch.CannotLaunch("-m needs a module")
        return launch.module(command[1], command[2:])
    return launch.script(command[0], command[1:])


def stop() -> None:
    """Ends the run, from inside an optimizer's step."""
    raise StopTraining(0)


def told(finding: Finding) -> None:
    """One line on stderr, the moment a finding is certain."""
    from flatline.reporters import text

    start = "\r\033[K" if sys.stderr.isatty() else ""
    print(f"{start}{text.line(finding)}", file=sys.stderr, flush=True)


# --------------------------------------------------------------------------- the run itself


def _watch(session: Session, program: launch.Program, options: argparse.Namespace) -> int:
    family = children.Family(options)
    family.invite()
    if program.in_process:
        after_import("torch", lambda: _attach(session))
    os.register_at_fork(after_in_child=lambda: children.forked(session))
    sys.argv = list(program.argv)
    session.script = program.argv[0]
    ending = _run(session, program)
    if os.getpid() != session.pid:
        return ending.leave()
    report = family.merge(session.report())
    _write(report, options)
    if _fails(report, options.fail_on):
        return 1
    return ending.leave()


def _attach(session: Session) -> None:
    if os.getpid() != session.pid:
        return
    try:
        session.attach()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong with us, the script goes on
        session.notes.append(f"the sensors could not be put on: {type(error).__name__}: {error}")


class Ending:
    """How the script ended, and how to end the same way."""

    def __init__(self, how: How, error: BaseException | None = None) -> None:
        self.how, self.error = how, error

    def leave(self) -> int:
        """Exit as the script would have."""
        if isinstance(self.error, StopTraining) or self.error is None:
            return 0
        if isinstance(self.error, SystemExit):
            raise self.error
        if isinstance(self.error, KeyboardInterrupt):
            sys.excepthook = _silent
            raise self.error
        return 1


def _silent(*args: Any) -> None:
    """The traceback was printed already."""


def _run(session: Session, program: launch.Program) -> Ending:
    try:
        program.run()
        ending = Ending("finished")
    except StopTraining as stop:
        ending = Ending("max-steps", stop)
    except SystemExit as leaving:
        ending = Ending("finished" if not leaving.code else "crashed", leaving)
    except KeyboardInterrupt as interrupt:
        ending = Ending("interrupted", interrupt)
        _show(interrupt)
    except BaseException as error:  # noqa: BLE001 - shown as Python would show it
        ending = Ending("crashed", error)
        _show(error)
    session.finish(ending.how, None if isinstance(ending.error, SystemExit) else ending.error)
    return ending


def _show(error: BaseException) -> None:
    sys.stdout.flush()
    launch.clean(error, PACKAGE)
    sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()


# --------------------------------------------------------------------------- the report


def _fails(report: Report, level: str) -> bool:
    if level == "never":
        return False
    worst = SEVERITIES.index(level)
    return any(SEVERITIES.index(finding.severity) <= worst for finding in report.findings)


def _write(report: Report, options: argparse.Namespace) -> None:
    text = _rendered(report, options)
    if options.output:
        try:
            Path(options.output).write_text(text, encoding="utf-8")
        except OSError as error:
            fail(f"--output {options.output}: {error.strerror}")
        if options.format != "text":
            return
    _print(text if not options.output else _rendered(report, options, plain=False), options.format)


def _print(text: str, form: str) -> None:
    stream: Any = sys.stderr if form == "text" else sys.stdout
    try:
        sys.stdout.flush()
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
        stream.write(text if text.endswith("\n") else text + "\n")
        stream.flush()
    except (BrokenPipeError, ValueError):
        return  # nobody reads it any more


def _rendered(report: Report, options: argparse.Namespace, *, plain: bool = False) -> str:
    from importlib import import_module

    reporter = import_module(f"flatline.reporters.{options.format}")
    if options.format != "text":
        return str(reporter.render(report))
    colour = sys.stderr.isatty() and not options.output and "NO_COLOR" not in os.environ
    return str(reporter.render(report, verbose=options.verbose, width=_width(), colour=colour and not plain))


def _width() -> int:
    import shutil

    return max(60, min(120, shutil.get_terminal_size((100, 24)).columns))
