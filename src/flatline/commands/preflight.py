"""``flatline preflight``: the first hour of a training run, in one command."""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatline import config, launch, telling
from flatline.children import finding_of
from flatline.cli import fail, writable
from flatline.commands.run import watched_run
from flatline.findings import Finding, Report, Unchecked, causes
from flatline.importing import after_import, as_at_start
from flatline.preflight.likely import likely
from flatline.reporters import preflight as reporter

if TYPE_CHECKING:
    from flatline.preflight.scratch import Scratch
    from flatline.preflight.stages import Answer, Stage
    from flatline.session import Session

STAGES = {
    "look": "looking.Looking",
    "memorise": "memorising.Memorising",
    "rates": "sweeping.Sweeping",
    "probe": "probing.Probing",
}
STARTING = 600.0  # seconds beyond a stage's own until the first optimizer step: imports, data, models
STUCK = 30.0  # seconds beyond a stage's own, for a script that trains and does not step
INTERRUPTED = 130  # exit status, as of a shell
LAST_WORDS = 3  # lines of a script that crashed
TIDYING = 5.0  # seconds for what the script left to be done at its end
ENDING = 1.0  # seconds for processes that it left behind


def preflight(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Returns 0, 1 for --fail-on, or 2 when nothing could be run."""
    try:
        names = _chosen(options.stages)
        program = launch.program(command)
        settings = config.build(config.load(Path.cwd()), select=(), ignore=(), hints=options.hints)
        if options.output is not None and (why := writable(options.output)):
            return fail(why)
    except (config.ConfigError, launch.CannotLaunch) as error:
        return fail(str(error))
    if options.answer:
        return _stage(options, program, settings)
    try:
        answers = {name: _asked(name, options, command) for name in names}
    except KeyboardInterrupt:
        _progress("\n")
        return INTERRUPTED
    report = _report(answers)
    if causes_of := likely(answers):
        answers["memorise"]["lines"] = [*answers["memorise"].get("lines", ()), ("likely", "; ".join(causes_of))]
    telling.put(_shown(report, answers, options, program), options.output)
    if all(answer["verdict"] == "not done" for answer in answers.values()):
        return 2
    return int(report.reaches(options.fail_on))


def _shown(report: Report, answers: dict[str, Answer], options: argparse.Namespace, program: launch.Program) -> str:
    if options.format == "json":
        return reporter.as_json(report, answers)
    if options.format == "html":
        from flatline.reporters.html.preflight import render

        return render(report, answers, os.path.basename(program.argv[0]))
    return reporter.render(report, answers, width=telling.width())


def _chosen(stages: str) -> list[str]:
    names = [name.strip() for name in stages.split(",") if name.strip()]
    unknown = [name for name in names if name not in STAGES]
    if unknown or not names:
        raise config.ConfigError(f"--stages are some of {', '.join(STAGES)}; it is {stages!r}")
    return names


# --------------------------------------------------------------------------- the parent's side


def _asked(name: str, options: argparse.Namespace, command: Sequence[str]) -> Answer:
    """One stage, and what it answered; once more within fewer steps, where the script took no more of them."""
    started = time.monotonic()
    _progress(f"flatline: {name} …")
    answer = _once(name, options, command, options.steps)
    if answer.get("within") and not options.steps:
        answer = _once(name, options, command, answer["within"])
    answer["seconds"] = round(time.monotonic() - started, 2)
    _progress(f"\r\033[K{reporter.line(name, answer)}\n" if sys.stderr.isatty() else f" {answer['verdict']}\n")
    return answer


def _once(name: str, options: argparse.Namespace, command: Sequence[str], steps: int | None) -> Answer:
    """The script in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="flatline-") as folder:
        path, said = os.path.join(folder, "answer.json"), os.path.join(folder, "said")
        own = ["--stages", name, "--answer", path, "--seconds", str(options.seconds)]
        own += ["--steps", str(steps)] if steps else []
        own += ["--hints"] if options.hints else []
        words = [sys.executable, "-m", "flatline", "preflight", *own, *command]
        with open(said, "wb") as log:
            status = _ended(words, log, options.seconds + STARTING)
        return _read(path, said, status)


def _progress(words: str) -> None:
    sys.stderr.write(words)
    sys.stderr.flush()


def _ended(words: Sequence[str], log: Any, seconds: float) -> int | None:
    """Run to the end, with what it prints in a file: the exit status, None if it took too long. It ends with us."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:
            signal.signal(getattr(signal, name), _leave)
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.kill()
            _end_group(process.pid)


def _end_group(leader: int) -> None:
    """What the script started and left behind; what is only tidying up may do so."""
    if not hasattr(os, "killpg"):
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGTERM)
        until = time.monotonic() + ENDING
        while time.monotonic() < until:
            os.killpg(leader, 0)  # raises when nobody is left
            time.sleep(0.02)
        os.killpg(leader, signal.SIGKILL)


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _read(path: str, said: str, status: int | None) -> Answer:
    if status is None:
        return {"verdict": "not done", "why": "the script took no optimizer step in time"}
    try:
        return dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        words = Path(said).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return {"verdict": "not done", "why": " / ".join([f"the process ended {how}", *words[-LAST_WORDS:]])}


def _report(answers: dict[str, Answer]) -> Report:
    """Findings of all stages; one that cannot learn a batch is explained by whatever else is broken."""
    found: list[Finding] = []
    for answer in answers.values():
        known = {finding.code for finding in found}  # what an earlier stage saw is not told twice
        found += [each for entry in answer.get("findings", ()) if (each := finding_of(entry)).code not in known]
    kept = causes(found)
    others = any(finding.code != "O1" and finding.severity != "hint" for finding in kept)
    look = answers.get("look", {})
    return Report(
        findings=tuple(finding for finding in kept if finding.code != "O1" or not others),
        checked=tuple(sorted({code for answer in answers.values() for code in answer.get("checked", ())})),
        not_checked=tuple(Unchecked(code, reason) for code, reason in look.get("not_checked", ())),
        run={name: value for name, value in look.get("run", {}).items() if name != "how"},  # nobody ended it but we
        notes=tuple(dict.fromkeys(note for answer in answers.values() for note in answer.get("notes", ()))),
    )


# --------------------------------------------------------------------------- the child's side


def _stage(options: argparse.Namespace, program: launch.Program, settings: config.Config) -> int:
    """Run the script with one stage's hands on its loop, and write down the answer."""
    from flatline.preflight.libraries import Libraries
    from flatline.preflight.redirecting import Redirecting
    from flatline.preflight.scratch import Scratch
    from flatline.preflight.stages import Watched

    if not program.in_process:
        return _write(options.answer, {"verdict": "not done", "why": "the command starts other processes"})
    session = Watched(settings, budget=1.0)
    folder, _, kind = STAGES[options.stages].rpartition(".")
    scratch = Scratch(os.path.dirname(os.path.abspath(options.answer)))
    libraries = Libraries(scratch)
    holder: list[Stage] = []

    def begin() -> None:
        with as_at_start():
            kind_of: type[Stage] = getattr(import_module(f"flatline.preflight.{folder}"), kind)
        session.attach()
        stage = kind_of(session, steps=options.steps or kind_of.steps, seconds=options.seconds, stop=launch.stop)
        stage.attach()
        libraries.torch()
        holder.append(stage)
        watchdog = threading.Timer(options.seconds + STUCK, _stuck, (stage, options.answer))
        watchdog.daemon = True
        stage.on_first_step = watchdog.start
        stage.leave = lambda: _caught(session, stage, options.answer)

    Redirecting(scratch).attach()
    for module, door in libraries.doors.items():
        after_import(module, door)
    sys.argv = list(program.argv)
    session.script = program.argv[0]
    after_import("torch", begin)
    ending = watched_run(session, program)
    with as_at_start():
        answer = holder[0].told() if holder else {"verdict": "not done", "why": "the script never imported torch"}
        _write(options.answer, {**answer, **_crashed(ending.how, ending.error, answer, scratch)})
    return _gone()


def _caught(session: Session, stage: Stage, path: str) -> None:
    """The script caught what ends it, and goes on."""
    session.finish("max-steps")
    _write(path, stage.told())
    _gone()


def _gone() -> int:
    """As the interpreter ends, but soon: what the script left for then is done, and its processes do not outlive it."""
    over = threading.Timer(TIDYING, os._exit, (0,))
    over.daemon = True
    over.start()
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.terminate()
    atexit._run_exitfuncs()
    os._exit(0)


def _stuck(stage: Stage, path: str) -> None:
    """The script trained, and has not stepped again in time to be stopped: its loop goes round without us."""
    why = f"the script took {stage.steps_done} steps, and then none for long"
    _write(path, {"verdict": "not done", "why": why})
    os._exit(0)


def _crashed(how: str, error: BaseException | None, answer: Answer, scratch: Scratch) -> dict[str, Any]:
    if how != "crashed" or error is None or isinstance(error, SystemExit):
        return {}
    said = f"the script crashed: {type(error).__name__}: {error}"
    return {"verdict": "failed" if answer.get("findings") else "not done", "why": scratch.unnamed(said)}


def _write(path: str, answer: Answer) -> int:
    plain = {name: value for name, value in answer.items() if value is not None}
    Path(path).write_text(json.dumps(plain, default=_plain), encoding="utf-8")
    return 0


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)
