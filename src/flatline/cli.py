"""The command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from flatline import __version__

FORMATS = ("text", "json", "sarif", "github")
FAIL_ON = "exit 1 when a finding of this level exists (default: never)"


class Parser(argparse.ArgumentParser):
    """One clear line and exit 2 for a wrong option."""

    def error(self, message: str) -> NoReturn:
        """Print the line and leave."""
        self.exit(2, f"{self.prog}: {message} (see `{self.prog} --help`)\n")


def parser() -> Parser:
    """All commands and their options."""
    top = Parser(prog="flatline", description="Find out why your PyTorch training run won't learn.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"flatline {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    _add_run(commands)
    _add_preflight(commands)
    _add_lint(commands)
    _add_diagnose(commands)
    _add_export(commands)
    _add_report(commands)
    _add_explain(commands)
    _add_rules(commands)
    return top


def _add_run(commands: argparse._SubParsersAction[Parser]) -> None:
    run = commands.add_parser(
        "run",
        help="run a training script and name what is wrong with its training",
        usage="flatline run [OPTIONS] SCRIPT [ARGS…]\n       flatline run [OPTIONS] -m MODULE [ARGS…]",
        allow_abbrev=False,
    )
    run.add_argument("--format", choices=FORMATS, default="text", help="of the report (default: text, on stderr)")
    run.add_argument("--output", metavar="FILE", help="write the report to FILE")
    run.add_argument(
        "--fail-on",
        choices=("error", "warning", "never"),
        help=FAIL_ON,
    )
    run.add_argument("--select", metavar="CODES", action="append", default=[], help="check only these rules")
    run.add_argument("--ignore", metavar="CODES", action="append", default=[], help="leave these rules out")
    run.add_argument("--budget", metavar="SHARE", help="share of the run's time flatline may use (default: 1%%)")
    run.add_argument("--max-steps", metavar="N", help="end the run after N optimizer steps")
    run.add_argument(
        "--on-nan",
        choices=("replay", "stop", "continue"),
        default="continue",
        help="at the first loss or gradient that is not finite: do the step again on a copy and name the operation, "
        "end the run, or neither (default: continue)",
    )
    run.add_argument("--hints", action="store_true", help="show hints, too")
    run.add_argument(
        "--record", metavar="DIR", help="keep the record of the run in DIR (default: .flatline/DATE-SCRIPT)"
    )
    run.add_argument("--no-record", action="store_true", help="keep no record of the run")
    run.add_argument(
        "--tensorboard", metavar="DIR", help="write the scalars of the record into DIR for TensorBoard, too"
    )
    run.add_argument("--live", action="store_true", help="serve a page of the run on this machine while it goes on")
    run.add_argument("--verbose", action="store_true", help="say which rules could not be checked, and why")
    run.add_argument("-m", metavar="MODULE", dest="module", help="run a module, like python -m")


def _add_preflight(commands: argparse._SubParsersAction[Parser]) -> None:
    """``lr-find`` is one of its stages under a name of its own."""
    for name, stages, about in (
        (
            "preflight",
            "look,memorise,rates,probe",
            "check a script before a long run: data, parameters, one batch, learning rate",
        ),
        ("lr-find", "rates", "sweep the learning rate over the script's own optimizer"),
    ):
        usage = f"flatline {name} [OPTIONS] SCRIPT [ARGS…]\n       flatline {name} [OPTIONS] -m MODULE [ARGS…]"
        command = commands.add_parser(name, help=about, usage=usage, allow_abbrev=False)
        command.add_argument(
            "--stages", metavar="NAMES", default=stages, help=f"of look, memorise, rates, probe (default: {stages})"
        )
        command.add_argument(
            "--steps", metavar="N", type=_positive, help="optimizer steps of a stage (default: its own)"
        )
        command.add_argument(
            "--seconds", metavar="S", type=_positive, default=60, help="of a stage's training (default: 60)"
        )
        command.add_argument(
            "--format", choices=("text", "json", "html"), default="text", help="of the report (default: text)"
        )
        command.add_argument("--output", metavar="FILE", help="write the report to FILE")
        command.add_argument("--fail-on", choices=("error", "warning", "never"), default="never", help=FAIL_ON)
        command.add_argument("--hints", action="store_true", help="show hints, too")
        command.add_argument("--answer", help=argparse.SUPPRESS)
        command.add_argument("-m", metavar="MODULE", dest="module", help="run a module, like python -m")


def _positive(words: str) -> int:
    if not (words.isascii() and words.isdecimal()) or int(words) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; it is {words!r}")
    return int(words)


def _add_lint(commands: argparse._SubParsersAction[Parser]) -> None:
    lint = commands.add_parser("lint", help="find training defects in source code; nothing is run", allow_abbrev=False)
    lint.add_argument(
        "paths", nargs="*", metavar="PATH", help="files, notebooks or folders; - reads standard input (default: .)"
    )
    lint.add_argument("--format", choices=(*FORMATS, "junit"), default="text", help="of the report (default: text)")
    lint.add_argument("--output", metavar="FILE", help="write the report to FILE")
    lint.add_argument("--select", metavar="CODES", action="append", default=[], help="check only these rules")
    lint.add_argument("--ignore", metavar="CODES", action="append", default=[], help="leave these rules out")
    lint.add_argument("--fix", action="store_true", help="write the fixes that cannot change what is computed")
    lint.add_argument(
        "--unsafe-fixes", action="store_true", help="with --fix or --diff: those that change what is computed, too"
    )
    lint.add_argument("--diff", action="store_true", help="show what --fix would write")
    lint.add_argument(
        "--unused-ignores", action="store_true", help="name comments that silence nothing; exit 1 if there are any"
    )
    lint.add_argument("--hints", action="store_true", help="show hints, too")
    lint.add_argument("--verbose", action="store_true", help="show the facts behind each finding")


def _add_diagnose(commands: argparse._SubParsersAction[Parser]) -> None:
    diagnose = commands.add_parser(
        "diagnose", help="judge finished or running jobs from their logs", allow_abbrev=False
    )
    diagnose.add_argument("paths", nargs="+", metavar="PATH", help="a log, or a folder with logs in it")
    diagnose.add_argument("--format", choices=FORMATS, default="text", help="of the report (default: text)")
    diagnose.add_argument("--output", metavar="FILE", help="write the report to FILE")
    diagnose.add_argument(
        "--fail-on",
        choices=("error", "warning", "never"),
        help=FAIL_ON,
    )
    diagnose.add_argument("--select", metavar="CODES", action="append", default=[], help="check only these rules")
    diagnose.add_argument("--ignore", metavar="CODES", action="append", default=[], help="leave these rules out")
    diagnose.add_argument(
        "--map", metavar="ROLE=NAME", action="append", default=[], help="which curve is the loss, say: loss=train/ce"
    )
    diagnose.add_argument("--follow", action="store_true", help="keep watching running jobs; tell each finding once")
    diagnose.add_argument("--hints", action="store_true", help="show hints, too")
    diagnose.add_argument(
        "--verbose", action="store_true", help="name curves that were not recognised, and measured facts"
    )


def _add_export(commands: argparse._SubParsersAction[Parser]) -> None:
    export = commands.add_parser("export", help="write the curves of a record as CSV or Parquet", allow_abbrev=False)
    export.add_argument("run", metavar="RUN", help="the folder of a record")
    export.add_argument("-o", "--output", metavar="FILE", help="default: CSV onto stdout")
    export.add_argument("--format", choices=("csv", "parquet"), help="default: csv, unless FILE ends in .parquet")
    export.add_argument("--layers", action="store_true", help="with the numbers of every layer")


def _add_report(commands: argparse._SubParsersAction[Parser]) -> None:
    report = commands.add_parser("report", help="a recorded run as a page to look at", allow_abbrev=False)
    report.add_argument("run", metavar="RUN", help="the folder of a run, or its record")
    report.add_argument("--format", choices=("html", "md"), default="html", help="a page, or Markdown (default: html)")
    report.add_argument(
        "-o", "--output", metavar="FILE", help="default: report.html in the run's folder; - and Markdown: stdout"
    )
    report.add_argument(
        "--live", action="store_true", help="serve the page on this machine, and update it as the run goes on"
    )
    report.add_argument("--port", type=int, default=0, metavar="N", help="for --live (default: one that is free)")
    report.add_argument("--family", default="", help=argparse.SUPPRESS)
    report.add_argument("--parent", type=int, default=None, help=argparse.SUPPRESS)


def _add_explain(commands: argparse._SubParsersAction[Parser]) -> None:
    explain = commands.add_parser("explain", help="print a rule's page, by code, slug or symptom", allow_abbrev=False)
    explain.add_argument("words", nargs="+", metavar="CODE|WORDS")


def _add_rules(commands: argparse._SubParsersAction[Parser]) -> None:
    rules = commands.add_parser("rules", help="list the rules", allow_abbrev=False)
    rules.add_argument("--format", choices=("text", "json"), default="text")


WITH_VALUE = {
    "--format",
    "--output",
    "--fail-on",
    "--select",
    "--ignore",
    "--budget",
    "--max-steps",
    "--on-nan",
    "--record",
    "--tensorboard",
    "--stages",
    "--steps",
    "--seconds",
    "--answer",
}
STARTING = ("run", "preflight", "lr-find")  # commands that are given another command


def split_run(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """flatline's own options, and the command: everything from the first word that is not an option of ours."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return list(arguments[:at]), list(arguments[at + 1 :])
        if word == "-m" or not word.startswith("-"):
            break
        at += 2 if word in WITH_VALUE else 1
    return list(arguments[:at]), list(arguments[at:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command: list[str] = []
    if given and given[0] in STARTING:
        own, command = split_run(given[1:])
        given = [given[0], *own]
    options = parser().parse_args(given)
    if options.command == "run":
        from flatline.commands.run import run

        return run(options, command)
    if options.command in STARTING:
        from flatline.commands.preflight import preflight

        return preflight(options, command)
    try:
        return _other(options)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _other(options: argparse.Namespace) -> int:
    if options.command == "lint":
        from flatline.commands.lint import run as lint

        return lint(options)
    if options.command == "diagnose":
        from flatline.commands.diagnose import run as diagnose

        return diagnose(options)
    if options.command == "export":
        from flatline.commands.export import export

        return export(options)
    if options.command == "report":
        from flatline.commands.report import report

        return report(options)
    if options.command == "explain":
        from flatline.commands.explain import explain

        return explain(options.words)
    if options.command == "rules":
        from flatline.commands.rules import rules

        return rules(options.format)
    parser().print_help()
    return 2


def fail(message: str) -> int:
    """One clear line on stderr, exit status 2."""
    print(f"flatline: {message}", file=sys.stderr)
    return 2


def writable(path: str) -> str | None:
    """Why a report could not be written there, or None."""
    if not path:
        return "--output names no file"
    target = Path(path)
    if target.is_dir():
        return f"--output {path}: is a directory"
    if not target.parent.is_dir():
        return f"--output {path}: there is no directory {str(target.parent)!r}"
    return _openable(target)


def _openable(target: Path) -> str | None:
    """Opening for more changes nothing; what is not a file may wait for a reader, and is only looked at."""
    new = not target.exists()
    if not new and not target.is_file():
        return None if os.access(target, os.W_OK) else f"--output {target}: permission denied"
    try:
        target.open("ab").close()
        if new:
            target.unlink()
    except OSError as error:
        return f"--output {target}: {(error.strerror or 'cannot be written').lower()}"
    return None
