"""Processes that a watched script starts: ranks of torchrun and accelerate, spawned and forked workers."""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatline.importing import after_import

if TYPE_CHECKING:
    from flatline.config import Keeping
    from flatline.findings import Finding, Report
    from flatline.session import Session

FAMILY = "FLATLINE_FAMILY"
SETTINGS = "FLATLINE_SETTINGS"
SITE = str(Path(__file__).resolve().parent / "_site")


class Family:
    """The parent's side: a folder where every process that trained leaves what it found. The first one makes it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.pid = options, os.getpid()
        self.folder = os.path.join(tempfile.gettempdir(), f"flatline-{os.urandom(8).hex()}")
        atexit.register(self._forget)  # the first to be registered is the last to be run: children have ended by then

    def _forget(self) -> None:
        if os.getpid() == self.pid:
            shutil.rmtree(self.folder, ignore_errors=True)

    def invite(self, keeping: Keeping | None = None) -> None:
        """Let child processes find us, through their environment."""
        names = ("select", "ignore", "hints", "budget", "max_steps", "on_nan")
        kept = {name: getattr(self.options, name, None) for name in names}
        kept["parent"], kept["keeping"] = self.pid, dataclasses.asdict(keeping) if keeping is not None else None
        os.environ[FAMILY], os.environ[SETTINGS] = self.folder, json.dumps(kept)
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = SITE + (os.pathsep + path if path else "")

    def merge(self, report: Report) -> Report:
        """The report with what the children found: each finding once, with the ranks that saw it."""
        members = sorted(self._members(), key=lambda member: member["rank"] or 0)
        self._forget()
        return _merged(report, members) if members else report

    def _members(self) -> Iterator[dict[str, Any]]:
        for path in Path(self.folder).glob("*.json"):
            try:
                yield json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue


def _merged(report: Report, members: list[dict[str, Any]]) -> Report:
    from flatline.findings import Unchecked

    found: dict[tuple[str, str], Finding] = {(f.code, f.key): f for f in report.findings}
    for member in members:
        for entry in member["findings"]:
            finding = finding_of(entry)
            known = found.get((finding.code, finding.key), finding)
            ranks = known.ranks if member["rank"] is None else (*known.ranks, member["rank"])
            found[finding.code, finding.key] = dataclasses.replace(known, ranks=ranks)
    checked = set(report.checked).union(*(member["checked"] for member in members))
    reasons = {u.code: u.reason for u in report.not_checked} | dict(members[0]["not_checked"])
    run = {**report.run, "processes": len(members)}
    if not report.run.get("steps"):  # a launcher: the run is that of what it launched
        run = {**report.run, **members[0]["run"], "processes": len(members)}
        run["steps"] = max(member["run"]["steps"] for member in members)
    return dataclasses.replace(
        report,
        findings=tuple(sorted(found.values(), key=lambda finding: finding.rank)),
        checked=tuple(code for code in (*report.checked, *reasons) if code in checked),
        not_checked=tuple(Unchecked(code, reason) for code, reason in reasons.items() if code not in checked),
        run=run,
        notes=(*report.notes, *(note for member in members for note in member["notes"])),
    )


def finding_of(entry: dict[str, Any]) -> Finding:
    """What ``dataclasses.asdict`` made of a finding, read back."""
    from flatline.events import Where
    from flatline.findings import Finding

    place = entry.pop("where")
    entry["ranks"], entry["consequences"] = (), tuple(entry["consequences"])
    return Finding(**entry, where=Where(**place) if place else None)


# --------------------------------------------------------------------------- the child's side


class Member:
    """One child process under watch."""

    def __init__(self, session: Session) -> None:
        self.session, self.folder = session, os.environ[FAMILY]
        self.parent = int(json.loads(os.environ[SETTINGS])["parent"])
        self.steps_before = session.sensors.loop.steps if session.sensors is not None else 0
        self.done = False

    def leave(self, how: Any = "finished", error: BaseException | None = None) -> None:
        """Write down what was found, if this process trained."""
        if not self.done:
            self.done = True
            with suppress(Exception):  # whatever goes wrong with us, the process ends as it would have
                self._leave(how, error)

    def _leave(self, how: Any, error: BaseException | None) -> None:
        self.session.finish(how, error)
        report = self.session.report()
        if int(report.run["steps"] or 0) > self.steps_before or (error is not None and report.findings):
            self._write(report)

    def _write(self, report: Report) -> None:
        if not _runs(self.parent):  # nobody will read it
            return shutil.rmtree(self.folder, ignore_errors=True)
        facts = {
            "rank": self.session.rank(),
            "findings": [dataclasses.asdict(finding) for finding in report.findings],
            "checked": report.checked,
            "not_checked": [(u.code, u.reason) for u in report.not_checked],
            "run": dict(report.run),
            "notes": report.notes,
        }
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        path = Path(self.folder) / f"{os.getpid()}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(facts), encoding="utf-8")
        part.rename(path)
        return None


def _runs(pid: int) -> bool:
    """Whether that process can still read what is written for it; one that was killed may not be buried yet."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except ProcessLookupError:
        return False
    except OSError:  # not ours to ask, or a system without /proc
        return True
    return state.split()[:1] != ["Z"]


def join() -> None:
    """Called when a child's interpreter starts: do nothing until it imports torch."""
    after_import("torch", _watch_safely)


def _watch_safely() -> None:
    with suppress(Exception):  # whatever goes wrong with us, the script goes on
        _watch()


def _watch() -> None:
    from flatline import config, launch
    from flatline.session import OnNan, Session
    from flatline.telling import Stream

    given = json.loads(os.environ[SETTINGS])
    options = argparse.Namespace(**given, fail_on="never")
    keeping = config.Keeping(**given["keeping"]) if given.get("keeping") else None
    settings, budget, steps = config.chosen(options)
    stderr = Stream("stderr")

    def tell(finding: Finding) -> None:
        if not session.rank():
            stderr.tell(finding)

    def say(line: str) -> None:
        if not session.rank():
            stderr.say(line)

    session = Session(settings, budget=budget, tell=tell, keeping=keeping)
    session.script, session.command = sys.argv[0] or None, sys.argv
    if steps is not None:
        session.stop_after(steps, launch.stop)
    if given.get("on_nan") in ("stop", "replay"):
        session.on_nan = OnNan(given["on_nan"], launch.stop_non_finite, say)
    session.attach()
    member = Member(session)
    _leave_at_exit(member)
    _explain_crashes(member)
    os.register_at_fork(after_in_child=lambda: forked(session))


def _explain_crashes(member: Member) -> None:
    show = sys.excepthook

    def excepthook(kind: Any, error: BaseException, traceback: Any) -> None:
        try:
            show(kind, error, traceback)
        finally:
            member.leave("interrupted" if isinstance(error, KeyboardInterrupt) else "crashed", error)

    sys.excepthook = excepthook


def _leave_at_exit(member: Member) -> None:
    from multiprocessing import util

    util.Finalize(None, member.leave, exitpriority=-100)
    atexit.register(member.leave)


def forked(session: Session) -> None:
    """After a fork, in the child: a data worker never steps and is not heard of; a child that trains is a member."""
    session.forked()
    try:
        _leave_at_exit(Member(session))
    except (KeyError, ValueError):  # the script has cleared its environment
        session.abandon()
