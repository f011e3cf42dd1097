"""Runs a script in this process exactly as ``python script.py`` or ``python -m module`` would."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import tokenize
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, SimpleNamespace, TracebackType
from typing import Any


class CannotLaunch(Exception):
    """There is nothing to run; its text is one clear line."""


class StopTraining(SystemExit):
    """Ends the script after --max-steps."""


class StopNonFinite(StopTraining):
    """Ends the script at the first nan or inf, for --on-nan stop."""


def stop_non_finite() -> None:
    """Ends the run before a backward, or from inside an optimizer's step."""
    raise StopNonFinite(0)


def stop() -> None:
    """Ends the run, from inside an optimizer's step."""
    raise StopTraining(0)


@dataclass(frozen=True, slots=True)
class Program:
    """What to run: Python source in this process, or another program in a process of its own."""

    argv: tuple[str, ...]
    run: Callable[[], None]
    in_process: bool = True


def program(command: Sequence[str]) -> Program:
    """What the words after flatline's own options name. Raises CannotLaunch."""
    if not command:
        raise CannotLaunch("there is no script to run: name one, and its arguments behind it")
    if command[0] == "-m":
        if len(command) < 2:
            raise CannotLaunch("-m needs a module")
        return module(command[1], command[2:])
    return script(command[0], command[1:])


def script(path: str, arguments: Sequence[str]) -> Program:
    """``python path …``; a bare name that is no file here is looked up on PATH (torchrun, accelerate)."""
    if not os.path.exists(path) and os.sep not in path and (found := shutil.which(path)):
        return _command(found, arguments)
    if not os.path.exists(path):
        raise CannotLaunch(f"there is no script {path!r}")
    if _importable(path):
        return _container(path, arguments)
    return _source(path, arguments, folder=os.path.dirname(os.path.realpath(path)), argv0=path)


def _importable(path: str) -> bool:
    """A directory or a zip file: Python puts it on the path and runs the ``__main__`` in it."""
    for hook in sys.path_hooks:
        with suppress(ImportError):
            hook(path)
            return True
    return False


def _container(path: str, arguments: Sequence[str]) -> Program:
    folder = _absolute(path)
    spec = PathFinder.find_spec("__main__", [folder])
    if spec is None or spec.loader is None:
        raise CannotLaunch(f"{path!r} has no __main__.py; name the script in it")
    code = _code(spec)

    def run() -> None:
        _first_on_path(folder)
        _execute(code, spec.origin or folder, spec)

    return Program((path, *arguments), run)


def module(name: str, arguments: Sequence[str]) -> Program:
    """``python -m name …``"""
    _first_on_path(os.getcwd())
    sys.argv = ["-m", *arguments]  # as Python has it while the package is imported
    if name.startswith("."):
        raise CannotLaunch(f"-m needs a module's full name; it is {name!r}")
    try:
        spec = _module_spec(name)
    except BaseException as error:  # noqa: BLE001 - of the package; shown when it is run
        if _is_missing(name, error):
            raise CannotLaunch(f"no module named {name!r} ({error})") from None
        return Program(("-m", *arguments), functools.partial(_raise, error))
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        raise CannotLaunch(f"no module named {name!r} that could be run")
    try:
        code = _code(spec)
    except ImportError:  # built in
        code = None
    if code is None:
        raise CannotLaunch(f"no module named {name!r} that could be run")
    return Program((spec.origin, *arguments), lambda: _execute(code, spec.origin or name, spec))


def _is_missing(name: str, error: BaseException) -> bool:
    """The module is not there, or a package above it; not one that they import."""
    if isinstance(error, ImportError):
        return error.name is not None and f"{name}.__main__.".startswith(f"{error.name}.")
    return isinstance(error, ValueError) and name in sys.modules


def _raise(error: BaseException) -> None:
    raise error


def _code(spec: ModuleSpec) -> Any:
    """Source is compiled here, for a clear line when it cannot be; a zip file knows its own."""
    if isinstance(spec.loader, SourceFileLoader) and spec.origin is not None:
        return _compiled(spec.origin)
    loader: Any = spec.loader
    try:
        return loader.get_code(spec.name)
    except SyntaxError as error:
        raise CannotLaunch(f"{spec.origin}:{error.lineno}: {error.msg}") from None


def _module_spec(name: str) -> ModuleSpec | None:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        return importlib.util.find_spec(f"{name}.__main__")
    return spec


def _source(path: str, arguments: Sequence[str], *, folder: str, argv0: str) -> Program:
    code = _compiled(path)
    path = _absolute(path)

    def run() -> None:
        _first_on_path(folder)
        _execute(code, path, None)

    return Program((argv0, *arguments), run)


def _first_on_path(folder: str) -> None:
    """Where Python would have put the script's folder, it put that of our own entry point."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [folder]


def _absolute(path: str) -> str:
    """Joined to the working directory and no more, as Python does with what it is given."""
    try:
        return os.path.join(os.getcwd(), path)
    except OSError:  # it was removed
        return path


def _compiled(path: str) -> CodeType:
    try:
        with tokenize.open(path) as file:
            text = file.read()
        return compile(text, _absolute(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f"{path}:{error.lineno}" if error.lineno else path
        raise CannotLaunch(f"{place}: {error.msg}") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CannotLaunch(f"{path}: cannot be read as Python source ({error})") from None


def _command(path: str, arguments: Sequence[str]) -> Program:
    with open(path, "rb") as file:
        first = file.readline(200)
    if first.startswith(b"#!") and b"python" in first:
        return _source(path, arguments, folder=os.path.dirname(path), argv0=path)
    return Program((path, *arguments), lambda: _spawn(path, arguments), in_process=False)


def _spawn(path: str, arguments: Sequence[str]) -> None:
    status = subprocess.run([path, *arguments], check=False).returncode
    if status:
        raise SystemExit(status if status > 0 else 128 - status)


def _execute(code: CodeType, path: str, spec: ModuleSpec | None) -> None:
    main = ModuleType("__main__")
    main.__file__ = path
    main.__spec__ = spec
    main.__package__ = spec.parent if spec is not None else None
    main.__loader__ = spec.loader if spec is not None else SourceFileLoader("__main__", path)
    cached = spec.cached if spec is not None else None
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={}, __cached__=cached)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def wait_for_threads() -> None:
    """What the interpreter does first when it ends: pools are told to stop, and the script's own threads joined.

    It does so once; threads that wait for the main thread, or ask whether it lives, see it gone.
    """
    try:
        getattr(threading, "_shutdown", _join_threads)()
    except BaseException as error:  # noqa: BLE001 - the interpreter tells, and goes on
        about = SimpleNamespace(
            exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=None, object=threading
        )
        sys.unraisablehook(about)


def _join_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon and thread.is_alive():
            thread.join()


# --------------------------------------------------------------------------- how it ends


def users_traceback(traceback: TracebackType | None, package: str) -> TracebackType | None:
    """The traceback without flatline's own frames."""
    kept = None
    for entry in reversed(list(_entries(traceback))):
        if not entry.tb_frame.f_code.co_filename.startswith((package, "<flatline")):
            entry.tb_next = kept
            kept = entry
    return kept


def _entries(traceback: TracebackType | None) -> Any:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def clean(error: BaseException, package: str) -> None:
    """Take flatline's frames out of an exception and of those it came from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        current.__traceback__ = users_traceback(current.__traceback__, package)
        current = current.__cause__ or current.__context__


def show(error: BaseException, package: str) -> SystemExit | None:
    """As the interpreter shows what nobody caught, by ``sys.excepthook``; the exit that the hook asked for, if any."""
    clean(error, package)
    hook = getattr(sys, "excepthook", sys.__excepthook__)
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return leaving
    except BaseException as second:  # noqa: BLE001 - shown as Python would show it
        clean(second, package)
        with suppress(Exception):
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(second), second, second.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
            sys.__excepthook__(type(error), error, error.__traceback__)
    return None
