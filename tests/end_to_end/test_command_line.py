"""The contract of the command line, checked on real processes.

Scripts that need no torch are run twice, by python and by ``flatline run``, and must end the same. Those that train
are run by a process that has imported torch already and forks for each of them (``warm``): the import of torch is
nearly all of the time of such a script. What happens when a script itself imports torch is in the other files here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from flatline import __version__, catalogue
from flatline.engine import watched
from flatline.rules import all_rules

ROOT = Path(__file__).resolve().parents[2]
PYTHON = (sys.executable,)
FLATLINE = (sys.executable, "-m", "flatline")
RUN = (*FLATLINE, "run")
SECONDS = 120

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Ended:
    """What a process left behind."""

    status: int
    out: str
    err: str

    @property
    def script(self) -> str:
        """What the script itself wrote to stderr: everything before flatline's own lines."""
        return re.split(r"^flatline: ", self.err, maxsplit=1, flags=re.MULTILINE)[0]

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()

    def one_line(self) -> str:
        """The only line on stderr, of an exit 2 that has nothing on stdout."""
        assert (self.status, self.out) == (2, ""), self
        assert len(self.lines) == 1, self.err
        assert self.err.startswith("flatline")
        return self.err


def settings(**more: str) -> dict[str, str]:
    outer = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "PYTHONPATH")}
    return {**outer, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8", **more}


def call(*command: object, cwd: Path, given: str = "", **environment: str) -> Ended:
    ended = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=settings(**environment),
        input=given.encode(),
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    return Ended(ended.returncode, *(text.decode(errors="backslashreplace") for text in (ended.stdout, ended.stderr)))


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


# --------------------------------------------------------------------------- the script sees what it sees under python

PROBE = """
'''A docstring.'''
import inspect, os, pickle, sys, threading
class Thing:
    at: int
def function(): pass
found: int = 3
main = sys.modules["__main__"]
print("argv", sys.argv)
print("name", __name__, Thing.__module__, main.__dict__ is globals())
print("file", __file__)
print("package", __package__, "spec", __spec__ and (__spec__.name, __spec__.parent, __spec__.origin))
print("first on the path", sys.path[0])
print("path", sys.path)
print("cwd", os.getcwd())
print("doc", __doc__, __annotations__, type(__builtins__).__name__, type(__loader__).__name__)
print("names", sorted(name for name in globals() if name.startswith("__")))
print("code", function.__code__.co_filename, inspect.getsource(function).strip())
print("pickled", pickle.loads(pickle.dumps(Thing)) is Thing)
print("thread", threading.current_thread() is threading.main_thread(), threading.active_count())
print("stack", len(inspect.stack()) > 0, [entry.function for entry in inspect.stack()][0])
print("torch", "torch" in sys.modules, "rich" in sys.modules, "numpy" in sys.modules)
print("stdin", sys.stdin.read())
import builtins, gc, signal, warnings
print("first descriptor", os.open(os.devnull, os.O_RDONLY), sys.excepthook is sys.__excepthook__)
print("signals", [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE)])
print("filters", warnings.filters, len(sys.path_hooks), gc.get_threshold(), sorted(vars(builtins)))
print("limits", sys.getrecursionlimit(), sys.getswitchinterval(), sys.stdout.encoding, sys.stdout.line_buffering)
print("to stderr", file=sys.stderr)
"""

PROGRAMS = {
    "probe.py": PROBE,
    "train": PROBE,
    "-odd name.py": PROBE,
    "deep/er/probe.py": "from neighbour import NAME\nimport neighbour\nprint(NAME, neighbour.__file__)\n" + PROBE,
    "deep/er/neighbour.py": "NAME = 'next door'\n",
    "package/__init__.py": "",
    "package/__main__.py": "from . import NAME\n".replace("NAME", "names") + PROBE,
    "package/names.py": "NAME = 'a sibling'\n",
    "package/module.py": "from .names import NAME\nfrom package import names\nprint(NAME, names.__file__)\n" + PROBE,
    "package/sub/__init__.py": "",
    "package/sub/train.py": "from ..names import NAME\nprint(NAME)\n" + PROBE,
    "spaces/module.py": PROBE,
    "folder/__main__.py": "import beside\nprint(beside.__file__)\n" + PROBE,
    "folder/beside.py": "",
    "windows.py": PROBE.replace("\n", "\r\n"),
}
WAYS = [
    ["probe.py", "--epochs", "3", "--select", "O2", "a b", "", "--", "-m", "ü", "--help"],
    ["./probe.py"],
    ["deep/../probe.py", "--format", "json"],
    ["deep/er/probe.py", "-x"],
    ["{here}/deep/er/probe.py"],
    ["link.py"],
    ["train"],
    ["windows.py"],
    ["folder/__main__.py"],
    ["folder", "-v"],
    ["folder/"],
    ["packed.pyz", "-v"],
    ["-m", "package.module", "-m", "--max-steps", "2"],
    ["-m", "package", "x"],
    ["-m", "package.sub.train"],
    ["-m", "spaces.module"],
    ["-m", "probe"],
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    folder = write(tmp_path_factory.mktemp("programs"), PROGRAMS)
    (folder / "link.py").symlink_to(folder / "deep" / "er" / "probe.py")
    (folder / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nprint('caf\xe9', __file__)\n".encode("latin-1"))
    (folder / "bom.py").write_bytes(b"\xef\xbb\xbfprint('bom')")
    with zipfile.ZipFile(folder / "packed.pyz", "w") as packed:
        for name in ("__main__.py", "beside.py"):
            packed.write(folder / "folder" / name, name)
    return folder


@pytest.mark.parametrize("command", WAYS, ids=" ".join)
def test_script_sees_what_it_sees_under_python(command, programs):
    words = [word.format(here=programs) for word in command]
    plain, watched = (call(*runner, *words, cwd=programs, given="typed") for runner in (PYTHON, RUN))
    assert plain.status == 0, plain.err
    assert watched.out.splitlines() == plain.out.splitlines()
    assert watched.script == plain.err
    assert watched.status == 0


@pytest.mark.parametrize("name", ["latin.py", "bom.py"])
def test_source_is_read_as_python_reads_it(name, programs):
    assert call(*RUN, name, cwd=programs).out == call(*PYTHON, name, cwd=programs).out


def test_two_dashes_end_the_options(programs):
    plain = call(*PYTHON, "./-odd name.py", cwd=programs)
    watched = call(*RUN, "--", "-odd name.py", cwd=programs)
    assert watched.status == plain.status == 0
    assert "argv ['-odd name.py']" in watched.out


def test_package_sees_the_arguments_while_it_is_imported(tmp_path):
    write(
        tmp_path,
        {"pack/__init__.py": "import sys\nGIVEN = sys.argv[1:]\n", "pack/go.py": "from . import GIVEN\nprint(GIVEN)"},
    )
    assert call(*RUN, "-m", "pack.go", "--lr", "3", cwd=tmp_path).out == "['--lr', '3']\n"


@pytest.mark.parametrize("fault", ["raise KeyError('planted')", "import not_there", "import sys\nsys.exit(7)"])
def test_package_that_fails_when_it_is_imported_fails_as_under_python(fault, tmp_path):
    write(
        tmp_path, {"pack/__init__.py": f"def load():\n    {fault.replace(chr(10), '; ')}\nload()\n", "pack/go.py": ""}
    )
    plain, watched = (call(*runner, "-m", "pack.go", cwd=tmp_path) for runner in (PYTHON, RUN))
    assert watched.status == plain.status
    users = [line for line in plain.lines if "frozen runpy" not in line]
    assert [line for line in watched.script.splitlines() if "frozen importlib" not in line] == users


# --------------------------------------------------------------------------- it ends as it ends under python

ENDINGS = {
    "normal": "print('done')",
    "no newline": "import sys; sys.stdout.write('no newline')",
    "bytes": r"import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stdout.buffer.flush()",
    "exit 3": "import sys; print('out'); sys.exit(3)",
    "exit text": "import sys; sys.exit('some text')",
    "exit none": "import sys; sys.exit()",
    "exit true": "import sys; sys.exit(True)",
    "exit large": "import sys; sys.exit(263)",
    "exit negative": "import sys; sys.exit(-1)",
    "exit tuple": "import sys; sys.exit((1, 'a'))",
    "exit builtin": "exit(4)",
    "exit subclass": "class Bye(SystemExit): pass\nraise Bye(6)",
    "exit in a function": "def main():\n    raise SystemExit(9)\nmain()",
    "exit now": "import os; print('out', flush=True); os._exit(5)",
    "exit in a child": "import os\nif os.fork() == 0:\n    print('child', flush=True)\n    os._exit(0)\nos.wait()\nprint('parent')",
    "child goes on": "import os, sys\nif os.fork():\n    print(os.wait()[1] >> 8)\nelse:\n    print('child', flush=True)\n    sys.exit(8)",
    "exception": "def f(x):\n    return 1 / x\n\ndef g():\n    f(0)\n\ng()",
    "chained": "def f():\n    {}['a']\ntry:\n    f()\nexcept KeyError as error:\n    raise ValueError('b') from error",
    "context": "def f():\n    {}['a']\ntry:\n    f()\nexcept KeyError:\n    f() or [][1]",
    "chained and context": "try:\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        raise KeyError('a')\nexcept KeyError as error:\n    raise ValueError('b') from error",
    "group": "raise ExceptionGroup('many', [ValueError(1), KeyError('a')])" if sys.version_info >= (3, 11) else "",
    "notes": "e = ValueError(1)\ne.__notes__ = ['a note']\nraise e",
    "own exception": "class Mine(Exception):\n    def __str__(self):\n        return 'mine\\nalone'\nraise Mine",
    "base exception": "class Mine(BaseException): pass\nraise Mine('base')",
    "raised in a callback": "import functools\nsorted([1, 2], key=lambda x: x.missing)",
    "imported module crashes": "import beside_broken",
    "recursion": "import sys\ndef f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError as error:\n    print('caught', error)",
    "syntax error inside": "compile('a b', 'text', 'exec')",
    "keyboard interrupt": "def f():\n    raise KeyboardInterrupt\nf()",
    "interrupted": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)",
    "interrupt caught": "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(20)\nexcept KeyboardInterrupt:\n    print('caught')",
    "terminated": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(20)",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "own handler": "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(11))\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(20)",
    "atexit": "import atexit\natexit.register(print, 'first registered')\natexit.register(print, 'last registered')\nprint('body')",
    "atexit after a crash": "import atexit\natexit.register(print, 'still run')\n1 / 0",
    "atexit sees main": "import atexit, sys\nvalue = 42\natexit.register(lambda: print(value, sys.modules['__main__'].value))",
    "thread": "import threading, time\ndef work():\n    time.sleep(0.3)\n    print('from the thread')\nthreading.Thread(target=work).start()\nprint('main is over')",
    "thread after a crash": "import threading, time\ndef work():\n    time.sleep(0.3)\n    print('from the thread', flush=True)\nthreading.Thread(target=work).start()\n1 / 0",
    "pool left open": "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\nprint(pool.submit(lambda: 1).result())",
    "thread waits for main": "import threading\ndef work():\n    threading.main_thread().join()\n    print('joined', threading.main_thread().is_alive())\nthreading.Thread(target=work).start()",
    "pool of an event loop": "import asyncio\nloop = asyncio.new_event_loop()\nprint(loop.run_until_complete(loop.run_in_executor(None, lambda: 2)))",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(30,), daemon=True).start()\nprint('not waited for')",
    "thread crashes": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\nprint('on')",
    "excepthook": "import sys\nsys.excepthook = lambda kind, error, tb: print('mine:', kind.__name__, error, tb.tb_lineno, file=sys.stderr)\n1 / 0",
    "excepthook crashes": "import sys\ndef hook(*a):\n    raise KeyError('in hook')\nsys.excepthook = hook\n1 / 0",
    "excepthook exits": "import sys\nsys.excepthook = lambda *a: sys.exit(12)\n1 / 0",
    "faulthandler": "import faulthandler\nfaulthandler.enable()\nprint('on')",
    "warnings": "import warnings\nwarnings.warn('look out')\nwarnings.warn('again', DeprecationWarning)",
    "asyncio": "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    raise ValueError('async')\nasyncio.run(main())",
    "stdout replaced": "import io, sys\nsys.stdout = io.StringIO()\nprint('hidden')",
    "stderr closed": "import sys\nprint('on')\nsys.stderr.close()",
    "stdout closed": "import sys\nprint('on')\nsys.stdout.close()",
    "streams none": "import sys\nprint('on')\nsys.stdout.flush()\nsys.stdout = sys.stderr = None",
    "cleared environment": "import os\nos.environ.clear()\nprint('on')",
    "changed directory": "import os, sys\nos.makedirs('elsewhere', exist_ok=True)\nos.chdir('elsewhere')\nprint(os.path.basename(os.getcwd()))",
    "directory removed": "import os\nos.makedirs('gone', exist_ok=True)\nos.chdir('gone')\nos.rmdir('../gone')\nprint('on')",
    "path emptied": "import sys\nsys.path.clear()\nprint('on')",
    "argv changed": "import sys\nsys.argv[:] = ['other', '--format']\nprint(sys.argv)",
    "main replaced": "import sys, types\nsys.modules['__main__'] = types.ModuleType('__main__')\nprint('on')",
    "destructor": "class Last:\n    def __del__(self):\n        print('collected')\nlast = Last()\nprint('body')",
    "generator left open": "def g():\n    try:\n        yield 1\n    finally:\n        print('closed')\nit = g()\nnext(it)",
    "output to a pipe that closed": "import os, sys\nprint('on', flush=True)\nos.close(1)\nprint('lost')",
}  # fmt: skip


@pytest.fixture(scope="module")
def endings(tmp_path_factory) -> dict[str, tuple[Ended, Ended]]:
    """name -> how the script ended under python, and under flatline; scripts of several lines stand in a file each."""
    folders = [tmp_path_factory.mktemp("endings") / runner for runner in ("python", "flatline")]
    for folder in folders:
        texts = {f"case_{name.replace(' ', '_')}.py": text + "\n" for name, text in ENDINGS.items()}
        write(folder, {**texts, "beside_broken.py": "def load():\n    raise OSError(2, 'no file', 'x')\nload()\n"})

    def both(name: str) -> tuple[Ended, Ended]:
        script = f"case_{name.replace(' ', '_')}.py"
        plain, watched = (call(*r, f / script, cwd=f) for r, f in zip((PYTHON, RUN), folders, strict=True))
        moved = str(folders[1]), str(folders[0])
        return plain, Ended(watched.status, watched.out.replace(*moved), watched.err.replace(*moved))

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(ENDINGS, pool.map(both, ENDINGS), strict=True))


UNSPOKEN = ("exit text", "exit tuple")  # python tells these last, behind the report


@pytest.mark.parametrize("name", ENDINGS)
def test_exit_status_is_the_scripts_own(name, endings):
    plain, watched = endings[name]
    assert watched.status == plain.status, watched.err


@pytest.mark.parametrize("name", ENDINGS)
def test_stdout_is_the_scripts_own(name, endings):
    plain, watched = endings[name]
    assert watched.out == plain.out


@pytest.mark.parametrize("name", [name for name in ENDINGS if name not in UNSPOKEN])
def test_stderr_begins_as_the_scripts_own(name, endings):
    """Tracebacks are those of python, to the letter: they show the user's frames and nothing of ours."""
    plain, watched = endings[name]
    assert watched.script == plain.err


@pytest.mark.parametrize(("name", "text"), [("exit text", "some text\n"), ("exit tuple", "(1, 'a')\n")])
def test_text_of_sys_exit_is_shown_once(name, text, endings):
    plain, watched = endings[name]
    assert plain.err == text
    assert watched.err.count(text) == 1


@pytest.mark.parametrize("name", ENDINGS)
def test_nothing_of_flatline_is_in_a_traceback(name, endings):
    _, watched = endings[name]
    assert not re.search(r'File ".*flatline/\w+', watched.err.replace("/endings0/flatline/", ""))
    assert "runpy" not in watched.err


def test_traceback_names_files_as_python_does(tmp_path):
    write(tmp_path, {"crash.py": "def f():\n    1 / 0\nf()\n"})
    plain, watched = (call(*runner, "crash.py", cwd=tmp_path) for runner in (PYTHON, RUN))
    assert watched.script == plain.err


def test_script_without_torch_ends_with_one_line(endings):
    _, watched = endings["normal"]
    (line,) = watched.lines
    assert line.startswith("flatline: 0 findings")
    assert "0 rules checked" in line


REPORTED = ("stdout replaced", "stderr closed", "stdout closed", "streams none", "path emptied", "main replaced",
            "output to a pipe that closed", "excepthook crashes", "excepthook exits", "cleared environment", "directory removed")  # fmt: skip


@pytest.mark.parametrize("name", REPORTED)
def test_report_is_not_lost(name, endings):
    _, watched = endings[name]
    assert re.search(r"^flatline: 0 findings · ", watched.err, re.MULTILINE), watched.err


@pytest.mark.parametrize(
    "fault", ["import rich", "import sys; sys.modules['rich'] = sys.modules['rich.console'] = None"]
)
def test_report_does_without_rich(fault, tmp_path):
    """A module of the script's own may have the name; then the report is told in plain lines."""
    write(tmp_path, {"script.py": f"{fault}\nprint('on')\n", "rich.py": "print('the script has its own')\n"})
    ended = call(*RUN, "script.py", cwd=tmp_path)
    assert ended.status == 0
    (line,) = ended.lines
    assert line.startswith("flatline: 0 findings · ")


def test_daemon_does_not_keep_our_streams_open(tmp_path):
    """A reader of stderr sees its end when the script has ended, whatever a child that closed its own still does."""
    text = """
import os, sys, time
ready, told = os.pipe()
if os.fork() == 0:
    for number in (0, 1, 2):
        os.close(number)
    os.write(told, b"x")
    time.sleep(60)
    os._exit(0)
os.read(ready, 1)
print("parent is done")
"""
    write(tmp_path, {"daemon.py": text})
    started = time.monotonic()
    assert call(*RUN, "daemon.py", cwd=tmp_path).out == "parent is done\n"
    assert time.monotonic() - started < 30


def test_stdin_is_the_scripts(tmp_path):
    write(tmp_path, {"ask.py": "print(input('name? ').upper())\nprint(input())\n"})
    assert call(*RUN, "ask.py", cwd=tmp_path, given="ada\nbob\n").out == "name? ADA\nbob\n"


def test_ctrl_c_from_outside(tmp_path):
    """The whole process group gets the signal, as from a terminal."""
    write(tmp_path, {"wait.py": "import time\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.05)\n"})
    statuses, texts = [], []
    for runner in (PYTHON, RUN):
        process = subprocess.Popen(
            [*runner, "wait.py"],
            cwd=tmp_path, env=settings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        texts.append(process.communicate(timeout=20)[1])
        statuses.append(process.returncode)
    assert statuses[0] == statuses[1] == -signal.SIGINT
    assert [text.count("KeyboardInterrupt") for text in texts] == [1, 1]
    assert "flatline/" not in texts[1]
    assert "(interrupted)" in texts[1].splitlines()[-1]


# --------------------------------------------------------------------------- workers

WORKERS = {
    "pools.py": """
import concurrent.futures, multiprocessing, os, subprocess, sys
CONSTANT = os.getpid()
class Thing:
    def __init__(self, value): self.value = value
def work(x):
    return Thing(x.value ** 2)
def broken(x):
    raise ValueError(f"from a worker {x}")
def leave():
    print("child says", flush=True)
    sys.exit(7)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            print(method, [thing.value for thing in pool.map(work, map(Thing, range(5)))])
            try:
                pool.apply(broken, (3,))
            except ValueError as error:
                print(error)
        process = context.Process(target=leave)
        process.start(), process.join()
        print(process.exitcode)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
            print(executor.submit(work, Thing(9)).result().value)
    print(subprocess.run([sys.executable, "-c", "print('grandchild')"], capture_output=True, text=True))
    print(subprocess.run([sys.executable, "-S", "-c", "import sys; print(sys.argv)", "x"], capture_output=True, text=True))
    print(subprocess.run([sys.executable, "-I", "-c", "raise SystemExit(3)"], capture_output=True, text=True).returncode)
    print("sitecustomize" in sys.modules)
""",
    "package/__init__.py": "",
    "package/spawned.py": """
import multiprocessing
from . import helper
def work(x):
    return helper.double(x), __name__
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, range(3)))
""",
    "package/helper.py": "def double(x):\n    return 2 * x\n",
    "folder/__main__.py": "import multiprocessing, beside\nif __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as p:\n        print(p.map(beside.f, [1, 2]))\n",
    "folder/beside.py": "def f(x):\n    return -x\n",
    "custom/sitecustomize.py": "import builtins\nbuiltins.CUSTOM = 'users own sitecustomize'\n",
    "asks.py": "import subprocess, sys\nprint(CUSTOM)\nprint(subprocess.run([sys.executable, '-c', 'print(CUSTOM)'], capture_output=True, text=True).stdout)\n",
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("workers"), WORKERS)


@pytest.mark.parametrize(
    "command", [["pools.py"], ["-m", "package.spawned"], ["folder"], ["./folder/__main__.py"]], ids=" ".join
)
def test_workers_are_not_disturbed(command, workers):
    plain, watched = (call(*runner, *command, cwd=workers) for runner in (PYTHON, RUN))
    assert (plain.status, watched.status) == (0, 0), plain.err + watched.err
    assert watched.out == plain.out
    assert watched.script == plain.err
    assert len(watched.lines) == len(plain.lines) + 1


def test_users_sitecustomize_is_still_run(workers):
    environment = {"PYTHONPATH": os.pathsep.join((str(workers / "custom"), str(ROOT / "src")))}
    watched = call(*RUN, "asks.py", cwd=workers, **environment)
    assert watched.out == call(*PYTHON, "asks.py", cwd=workers, **environment).out
    assert "users own sitecustomize" in watched.out


def test_leaves_no_files_behind(workers, tmp_path):
    before = set(tmp_path.iterdir())
    call(*RUN, "package/helper.py", cwd=workers, TMPDIR=str(tmp_path))
    call(*RUN, "missing.py", cwd=workers, TMPDIR=str(tmp_path))
    assert set(tmp_path.iterdir()) == before


LEAVING = [
    "normal",
    "exit 3",
    "exit now",
    "exception",
    "keyboard interrupt",
    "interrupted",
    "terminated",
    "killed",
    "own handler",
]


@pytest.mark.parametrize("name", LEAVING)
def test_leaves_no_files_behind_however_it_ends(name, tmp_path):
    write(tmp_path, {"script.py": ENDINGS[name], "temporary/empty": ""})
    call(*RUN, "script.py", cwd=tmp_path, TMPDIR=str(tmp_path / "temporary"))
    assert [path.name for path in (tmp_path / "temporary").iterdir()] == ["empty"]


# --------------------------------------------------------------------------- bad input: one line and exit 2

BAD = {
    "no script": [],
    "missing script": ["nowhere.py"],
    "missing script in a folder": ["nowhere/train.py", "--lr", "1"],
    "missing module": ["-m", "nowhere"],
    "missing submodule": ["-m", "package.nowhere"],
    "missing parent": ["-m", "nowhere.train"],
    "package without main": ["-m", "package"],
    "built-in module": ["-m", "sys"],
    "no module": ["-m"],
    "relative module": ["-m", ".train"],
    "directory": ["package"],
    "syntax error": ["broken.py"],
    "indentation": ["indented.py"],
    "syntax error in a module": ["-m", "broken"],
    "null bytes": ["null.py"],
    "not text": ["binary.py"],
    "unknown code": ["--select", "O99", "fine.py"],
    "no code": ["--select", "", "fine.py"],
    "only commas": ["--ignore", ",", "fine.py"],
    "no file": ["--output", "", "fine.py"],
    "unknown code among others": ["--select", "O12,O2,X99", "fine.py"],
    "unknown slug": ["--ignore", "no-such-rule", "fine.py"],
    "unknown family": ["--ignore", "ZZ", "fine.py"],
    "wrong option": ["--epochs", "3", "fine.py"],
    "shortened option": ["--form", "json", "fine.py"],
    "wrong format": ["--format", "xml", "fine.py"],
    "wrong level": ["--fail-on", "sometimes", "fine.py"],
    "option without value": ["--select"],
    "budget text": ["--budget", "little", "fine.py"],
    "budget zero": ["--budget", "0", "fine.py"],
    "budget nan": ["--budget", "nan", "fine.py"],
    "budget large": ["--budget", "200%", "fine.py"],
    "budget negative": ["--budget=-1%", "fine.py"],
    "steps zero": ["--max-steps", "0", "fine.py"],
    "steps text": ["--max-steps", "ten", "fine.py"],
    "steps fraction": ["--max-steps", "1.5", "fine.py"],
    "steps superscript": ["--max-steps", "²", "fine.py"],
    "steps negative": ["--max-steps=-3", "fine.py"],
    "output is a directory": ["--output", "package", "fine.py"],
    "output in no directory": ["--output", "nowhere/report.json", "fine.py"],
    "output under a file": ["--output", "fine.py/report.json", "fine.py"],
    "output cannot be written": ["--output", "/proc/report.json", "fine.py"],
}  # fmt: skip


@pytest.fixture(scope="module")
def bad(tmp_path_factory) -> Path:
    folder = write(
        tmp_path_factory.mktemp("bad"),
        {
            "fine.py": "print('ran')\n",
            "package/__init__.py": "",
            "broken.py": "x = 1\nprint('ran'\ny = (\n",
            "indented.py": "if True:\nprint(1)\n",
            "null.py": "print('ran')\0\n",
        },
    )
    (folder / "binary.py").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe\xfd")
    return folder


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_clear_line_and_exit_2(name, bad):
    line = call(*RUN, *BAD[name], cwd=bad).one_line()
    assert "Traceback" not in line
    assert "Error" not in line
    culprit = {"no script": "script", "no module": "module", "wrong option": "--epochs", "shortened option": "--form"}
    given = [word for text in BAD[name] for word in text.split("=")]
    shown = given[1] if len(given) > 1 and given[0].startswith("-") else "".join(given[:1])
    assert culprit.get(name, shown).split(",")[-1] in line


def test_syntax_error_names_the_line(bad):
    assert "broken.py:2" in call(*RUN, "broken.py", cwd=bad).one_line()


def test_output_is_tried_without_a_trace(bad, tmp_path):
    there, missing = tmp_path / "there.json", tmp_path / "missing.json"
    there.write_text("as it was")
    for path in (there, missing):
        call(*RUN, "--output", path, "broken.py", cwd=bad).one_line()
    assert there.read_text() == "as it was"
    assert not missing.exists()


def test_wrong_budget_is_blamed_on_its_place(tmp_path):
    write(tmp_path, {"fine.py": "print('ran')\n"})
    table(tmp_path, "budget = 'much'")
    assert "--budget" not in call(*RUN, "fine.py", cwd=tmp_path).one_line()
    assert call(*RUN, "--budget", "2%", "fine.py", cwd=tmp_path).status == 0


def test_report_that_cannot_be_written_in_the_end_is_one_line(bad):
    ended = call(*RUN, "--format", "json", "--output", "/dev/full", "fine.py", cwd=bad)
    assert ended.out == "ran\n"
    assert "/dev/full" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "given", [["bogus"], ["--bogus"], ["explain"], ["rules", "--format", "xml"], ["rules", "extra"]], ids=" ".join
)
def test_wrong_commands_give_one_line(given, bad):
    call(*FLATLINE, *given, cwd=bad).one_line()


# --------------------------------------------------------------------------- the other commands, without torch


def test_command_is_installed_as_flatline():
    assert 'flatline = "flatline.cli:main"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    "given", [["--version"], ["explain", "O12"], ["rules"], ["run", "fine.py"], ["run", "crash.py"], ["run", "no.py"], []], ids=" ".join
)  # fmt: skip
def test_module_and_command_are_the_same(given, tmp_path):
    write(tmp_path, {"fine.py": "import sys\nprint(sys.path[0], sys.argv)\n", "crash.py": "def f():\n    1 / 0\nf()\n"})
    write(
        tmp_path,
        {
            "bin/flatline": "import sys\nfrom flatline.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
        },
    )
    one, other = (
        call(*FLATLINE, *given, cwd=tmp_path),
        call(*PYTHON, tmp_path / "bin" / "flatline", *given, cwd=tmp_path),
    )
    assert one == other


@pytest.mark.parametrize(
    "given", [["--help"], ["--version"], ["run", "--help"], ["rules"], ["rules", "--format", "json"], ["explain", "O12"],
              ["explain", "loss", "flat"], ["explain", "qqqq"], ["run", "nowhere.py"]], ids=" ".join,
)  # fmt: skip
def test_starts_without_torch(given, tmp_path):
    ended = call(sys.executable, "-X", "importtime", "-m", "flatline", *given, cwd=tmp_path)
    imported = {line.rpartition("|")[2].strip() for line in ended.lines if line.startswith("import time:")}
    assert "flatline.cli" in imported
    assert not imported & {"torch", "numpy", "rich", "jinja2"}


def test_version_and_help(tmp_path):
    assert call(*FLATLINE, "--version", cwd=tmp_path) == Ended(0, f"flatline {__version__}\n", "")
    shown = call(*FLATLINE, "run", "--help", cwd=tmp_path)
    assert shown.status == 0
    for option in (
        "--format",
        "--output",
        "--fail-on",
        "--select",
        "--ignore",
        "--budget",
        "--max-steps",
        "--hints",
        "--verbose",
    ):
        assert option in shown.out
    assert all(name in call(*FLATLINE, "--help", cwd=tmp_path).out for name in ("run", "explain", "rules"))


@pytest.mark.parametrize("words", ["O12", "o12", "double-softmax", "double_softmax", "DoubleSoftmax", "double softmax"])
def test_explain_finds_a_page_by_its_names(words, tmp_path):
    for given in (words.split(), [words]):
        ended = call(*FLATLINE, "explain", *given, cwd=tmp_path)
        assert ended.status == 0
        assert ended.out.startswith("O12 double-softmax · error")
        for title in ("Symptom", "Root cause", "Fix", "Example", "Use instead"):
            assert f"\n{title}\n" in ended.out


@pytest.mark.parametrize(
    ("words", "code"),
    [("loss is nan", "N1"), ("accuracy drops in evaluation with dropout", "E1"), ("gpu memory grows every step", "M1"),
     ("Target 10 is out of bounds", "O14"), ("lr_scheduler.step() before optimizer.step()", "O8")],
)  # fmt: skip
def test_explain_finds_a_page_by_its_symptom(words, code, tmp_path):
    ended = call(*FLATLINE, "explain", *words.split(), cwd=tmp_path)
    assert ended.status == 0
    also = ended.out.rpartition("See also: ")[2]
    assert ended.out.startswith(f"{code} ") or f"{code} " in also


def test_explain_corrects_typing_errors(tmp_path):
    assert "O12" in call(*FLATLINE, "explain", "O112", cwd=tmp_path).one_line()
    typo = call(*FLATLINE, "explain", "double-sotfmax", cwd=tmp_path)
    assert "O12" in typo.out + typo.err
    assert "qqqqq" in call(*FLATLINE, "explain", "qqqqq", cwd=tmp_path).one_line()


def test_rules_in_both_forms(tmp_path):
    table = json.loads(call(*FLATLINE, "rules", "--format", "json", cwd=tmp_path).out)
    assert [row["code"] for row in table] == [page.code for page in catalogue.pages()]
    assert all(set(row) >= {"code", "slug", "severity", "family", "summary"} for row in table)
    lines = call(*FLATLINE, "rules", cwd=tmp_path).out.splitlines()
    assert [line.split()[:2] for line in lines] == [[row["code"], row["slug"]] for row in table]


# --------------------------------------------------------------------------- scripts that train

SERVER = """
import json, os, sys
import gc
import torch, torch._dynamo, torch.utils.data
gc.collect(), gc.freeze()
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, (path, how) in enumerate(((os.devnull, "rb"), (job["out"], "wb"), (job["err"], "wb"))):
    with open(path, how) as file:
        os.dup2(file.fileno(), number)
os.chdir(job["cwd"])
exec(job["before"], {"__name__": "wrapper"})
from flatline.cli import main
sys.argv = ["flatline", *job["args"]]
sys.exit(main())
"""


class Warm:
    """Runs ``flatline …`` in forks of a process that has imported torch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number, self.lock = folder, 0, threading.Lock()
        (folder / "server.py").write_text(SERVER)
        self.server = subprocess.Popen(
            [sys.executable, folder / "server.py"],
            env=settings(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *args: str, cwd: Path, before: str = "") -> Ended:
        with self.lock:
            self.number += 1
            out, err = (self.folder / f"{self.number}.{name}" for name in ("out", "err"))
            job = {"args": args, "cwd": str(cwd), "out": str(out), "err": str(err), "before": before}
            self.server.stdin.write(json.dumps(job) + "\n")
            self.server.stdin.flush()
            return Ended(int(self.server.stdout.readline()), out.read_text(), err.read_text())


@pytest.fixture(scope="module")
def warm(tmp_path_factory) -> Iterator[Warm]:
    runner = Warm(tmp_path_factory.mktemp("warm"))
    yield runner
    runner.server.communicate(timeout=SECONDS)


HEAD = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(96, 8), torch.randint(0, 3, (96,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 96, 8)]
"""
HEALTHY = (
    HEAD
    + """
for xb, yb in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(xb), yb)
    loss.backward()
    optimizer.step()
    print(loss.item())
print("after", file=sys.stderr)
"""
)
SICK = HEALTHY.replace("model(xb)", "model(xb).softmax(1)")
WARNED = (
    HEAD
    + """
for i, (xb, yb) in enumerate(batches):
    F.cross_entropy(model(xb), yb).backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
print("done")
"""
)
HINTED = HEALTHY.replace(
    "torch.optim.SGD(model.parameters(), lr=0.1)", "torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-4)"
)
BOTH = WARNED.replace("model(xb)", "model(xb).softmax(1)")
SCRIPTS = {
    "healthy.py": HEALTHY,
    "sick.py": SICK,
    "warned.py": WARNED,
    "hinted.py": HINTED,
    "both.py": BOTH,
    "crash.py": SICK + "\nraise ValueError('the end')\n",
    "exits.py": SICK + "\nsys.exit(3)\n",
    "moves.py": SICK + "\nimport os\nos.makedirs('moved', exist_ok=True)\nos.chdir('moved')\n",
    "captures.py": "import io\n" + SICK + "\nsys.stdout = io.StringIO()\n",
    "silent.py": SICK.replace("torch.manual_seed(0)", "torch.manual_seed(0)\nsys.stderr.close()").replace('print("after", file=sys.stderr)', ""),
    "ignored.py": SICK.replace("loss.backward()", "loss.backward()  # flatline: ignore[O12]"),
    "ignored_slug.py": SICK.replace("loss.backward()", "loss.backward()  # noqa  # flatline: ignore[o9, double-softmax] - known"),
    "ignored_all.py": SICK.replace("loss.backward()", "loss.backward()  # flatline: ignore"),
    "ignored_other.py": SICK.replace("loss.backward()", "loss.backward()  # flatline: ignore[O9]"),
    "interrupted.py": SICK + "\nraise KeyboardInterrupt\n",
    "finally.py": "import atexit\natexit.register(print, 'atexit')\n" + HEAD + """
def train():
    try:
        for step, (xb, yb) in enumerate(batches):
            optimizer.zero_grad()
            F.cross_entropy(model(xb), yb).backward()
            optimizer.step()
            print("step", step)
    except Exception:
        print("not an exception")
    finally:
        print("finally")
    print("never reached")
train()
""",
    "labels.py": HEAD + "def loss_of(scores, target):\n    return F.cross_entropy(scores, target)\n\nloss_of(model(x), y + 1).backward()\n",
    "detached.py": HEAD + "loss = F.cross_entropy(model(x), y).detach()\nloss.backward()\n",
    "checkpoint.py": HEAD + "other = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)).state_dict()\nmodel.load_state_dict(other, strict=False)\n",
    "hooked.py": HEAD + "sys.excepthook = lambda kind, error, tb: print('my hook:', kind.__name__, file=sys.stderr)\nF.cross_entropy(model(x), y + 1)\n",
    "torch_only.py": "import torch\nprint(torch.ones(2).sum().item())\n",
    "own_crash.py": HEAD + "class Net(nn.Module):\n    def forward(self, x):\n        return x @ torch.ones(3, 3)\n\nNet()(x)\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("scripts"), SCRIPTS)


def codes(text: str) -> list[str]:
    return [finding["code"] for finding in json.loads(text)["findings"]]


def json_of(ended: Ended) -> dict:
    """The report behind the script's own output."""
    return json.loads(ended.out[ended.out.index('{\n  "schema"') :])


@pytest.fixture(scope="module")
def plainly(scripts) -> str:
    """What sick.py prints under python."""
    return call(*PYTHON, "sick.py", cwd=scripts).out


def test_report_on_stderr_and_stdout_untouched(warm, scripts, plainly):
    ended = warm("run", "sick.py", cwd=scripts)
    assert ended.status == 0
    assert ended.out == plainly
    at_once, rest = ended.err.split("after\n")
    assert re.fullmatch(r"flatline: O12 double-softmax · error · sick\.py:\d+ · step 1: .*\n", at_once)
    for part in (
        "O12 double-softmax · error · sick.py:",
        " ▸ ",
        "\nSeen ",
        "\nCause ",
        "\nFix ",
        "\nMore    flatline explain O12",
    ):
        assert part in rest
    closing, kept = rest.splitlines()[-2:]
    assert closing.startswith("flatline: 1 finding (1 error) · ")
    assert "12 steps" in closing
    assert re.fullmatch(r"flatline: recorded in \.flatline/\d+-\d+-sick(-\d+)?", kept)
    assert "\033[" not in ended.err


def test_healthy_run_ends_with_one_line(warm, scripts):
    ended = warm("run", "--no-record", "healthy.py", cwd=scripts)
    own, line = ended.lines
    assert own == "after"
    assert re.match(r"flatline: 0 findings · \d+ rules checked, .* · 12 steps · overhead ", line)


@pytest.mark.parametrize(
    ("script", "level", "status"),
    [("sick.py", "error", 1), ("sick.py", "warning", 1), ("sick.py", "never", 0), ("warned.py", "error", 0),
     ("warned.py", "warning", 1), ("hinted.py", "warning", 0), ("healthy.py", "warning", 0), ("exits.py", "error", 1),
     ("exits.py", "never", 3), ("crash.py", "error", 1), ("crash.py", "never", 1)],
)  # fmt: skip
def test_fail_on(script, level, status, warm, scripts):
    assert warm("run", "--fail-on", level, script, cwd=scripts).status == status


def test_fail_on_counts_no_hints_even_when_shown(warm, scripts):
    assert warm("run", "--hints", "--fail-on", "warning", "hinted.py", cwd=scripts).status == 0


def test_max_steps_ends_the_run_cleanly(warm, scripts, tmp_path):
    report = tmp_path / "report.json"
    ended = warm("run", "--max-steps", "3", "--format", "json", "--output", str(report), "finally.py", cwd=scripts)
    assert ended.status == 0
    assert ended.out == "step 0\nstep 1\nfinally\natexit\n"
    assert ended.err == ""
    run = json.loads(report.read_text())["run"]
    assert (run["steps"], run["how"]) == (3, "max-steps")


def test_max_steps_and_fail_on_go_together(warm, scripts):
    ended = warm("run", "--max-steps=2", "--fail-on=error", "sick.py", cwd=scripts)
    assert ended.status == 1
    assert "2 steps (--max-steps)" in ended.lines[-2]


def test_max_steps_beyond_the_end(warm, scripts):
    assert warm("run", "--max-steps", "99", "exits.py", cwd=scripts).status == 3


SELECTED = [
    ([], ["O12", "O9"]),
    (["--select", "O12"], ["O12"]),
    (["--select", "o9"], ["O9"]),
    (["--select", "double-softmax"], ["O12"]),
    (["--select", "O"], ["O12", "O9"]),
    (["--select", "N,D"], []),
    (["--select", "N, O12"], ["O12"]),
    (["--select", "O9", "--select", "O12"], ["O12", "O9"]),
    (["--ignore", "O12"], ["O9"]),
    (["--ignore", "double-softmax,accumulation-not-averaged"], []),
    (["--ignore", "O"], []),
    (["--select", "O", "--ignore", "O9"], ["O12"]),
    (["--select=O9"], ["O9"]),
]


@pytest.mark.parametrize(("options", "expected"), SELECTED, ids=lambda value: " ".join(value) or "-")
def test_select_and_ignore(options, expected, warm, scripts, tmp_path):
    report = tmp_path / "report.json"
    warm("run", *options, "--format", "json", "--output", str(report), "both.py", cwd=scripts)
    assert codes(report.read_text()) == expected


def test_what_is_not_selected_is_not_checked(warm, scripts):
    found = json_of(warm("run", "--select", "O12,E1", "--format", "json", "healthy.py", cwd=scripts))
    assert set(found["checked"]) | {rule["code"] for rule in found["not_checked"]} == {"O12", "E1"}


KEYS = {"code", "slug", "severity", "message", "where", "step", "evidence", "cause", "fix"}


LIVE = [rule.code for rule in all_rules() if any(event.live for event in watched(rule))]  # the others read logs


@pytest.mark.parametrize("script", ["sick.py", "crash.py", "exits.py", "interrupted.py", "torch_only.py"])
def test_json_is_written_however_the_script_ends(script, warm, scripts, tmp_path, plainly):
    report = tmp_path / "report.json"
    ended = warm("run", "--format", "json", "--output", str(report), script, cwd=scripts)
    assert ended.status == {"crash.py": 1, "exits.py": 3, "interrupted.py": -signal.SIGINT}.get(script, 0)
    assert ended.out == ("2.0\n" if script == "torch_only.py" else plainly)
    found = json.loads(report.read_text())
    assert found["schema"] == 1
    assert {"schema", "findings", "checked", "not_checked", "run"} <= set(found)
    assert {"steps", "seconds", "overhead", "python", "torch"} <= set(found["run"])
    assert all(set(rule) == {"code", "reason"} and rule["reason"] for rule in found["not_checked"])
    every = [*found["checked"], *(rule["code"] for rule in found["not_checked"])]
    assert sorted(every) == sorted(LIVE)
    if script != "torch_only.py":
        (finding,) = found["findings"]
        assert set(finding) >= KEYS
        assert (finding["code"], finding["slug"], finding["severity"]) == ("O12", "double-softmax", "error")
        assert Path(finding["where"]["file"]).name == script
        assert SCRIPTS[script].splitlines()[finding["where"]["line"] - 1].strip() == "loss.backward()"
        assert "O12" in found["checked"]
        assert found["run"]["steps"] == 12


@pytest.mark.parametrize("form", ["json", "sarif", "github", "text"])
def test_formats_with_and_without_output(form, warm, scripts, tmp_path, plainly):
    report = tmp_path / "report"
    into_file = warm("run", "--format", form, "--output", str(report), "sick.py", cwd=scripts)
    to_screen = warm("run", "--format", form, "sick.py", cwd=scripts)
    assert into_file.out == plainly
    assert to_screen.out.startswith(plainly)
    shown = to_screen.err if form == "text" else to_screen.out.removeprefix(plainly)
    for text in (report.read_text(), shown):
        if form == "json":
            assert codes(text) == ["O12"]
        elif form == "sarif":
            (result,) = json.loads(text)["runs"][0]["results"]
            assert result["ruleId"] == "O12"
        elif form == "github":
            assert text.startswith("::error file=sick.py,line=")
        else:
            assert "O12 double-softmax · error" in text
    if form != "text":
        assert "Seen" not in into_file.err + to_screen.err


def test_output_stays_where_flatline_was_started(warm, scripts):
    warm("run", "--format", "json", "--output", "relative.json", "moves.py", cwd=scripts)
    assert codes((scripts / "relative.json").read_text()) == ["O12"]


def test_findings_name_files_from_where_flatline_was_started(warm, scripts):
    found = json_of(warm("run", "--format", "json", "moves.py", cwd=scripts))
    assert (scripts / found["findings"][0]["where"]["file"]).is_file()


def test_report_goes_to_the_real_stdout(warm, scripts):
    ended = warm("run", "--format", "json", "captures.py", cwd=scripts)
    assert '"schema"' in ended.out
    assert json_of(ended)["findings"][0]["code"] == "O12"


def test_script_that_closes_stderr_is_judged_all_the_same(warm, scripts, plainly, tmp_path):
    report = tmp_path / "report.json"
    ended = warm("run", "--format", "json", "--output", str(report), "silent.py", cwd=scripts)
    assert (ended.status, ended.out) == (0, plainly)
    assert codes(report.read_text()) == ["O12"]
    assert json.loads(report.read_text())["notes"] == []


def test_hints_are_hidden_unless_asked_for(warm, scripts):
    without, shown = (warm("run", "--no-record", *options, "hinted.py", cwd=scripts) for options in ([], ["--hints"]))
    assert "O6" not in without.err
    assert "flatline: 0 findings · " in without.lines[-1]
    assert "folded (--hints shows" in without.lines[-1]
    assert "O6 coupled-weight-decay · hint" in shown.err
    by_code = warm("run", "--select", "O6", "hinted.py", cwd=scripts)
    assert "O6 coupled-weight-decay · hint" in by_code.err


def test_verbose_says_what_was_not_checked(warm, scripts):
    shown = warm("run", "--verbose", "healthy.py", cwd=scripts).err
    assert "Not checked" in shown
    assert re.search(r"O8 +scheduler-out-of-step +\S", shown)


@pytest.mark.parametrize(
    ("script", "found"),
    [("ignored.py", []), ("ignored_slug.py", []), ("ignored_all.py", []), ("ignored_other.py", ["O12"])],
)
def test_comment_on_the_line_silences(script, found, warm, scripts):
    ended = warm("run", "--fail-on", "error", "--format", "json", script, cwd=scripts)
    assert [finding["code"] for finding in json_of(ended)["findings"]] == found
    assert ended.status == len(found)
    assert ("O12" in ended.err) == bool(found)


# --------------------------------------------------------------------------- crashes that a rule explains


@pytest.mark.parametrize(
    ("script", "code", "line"),
    [
        ("labels.py", "O14", "return F.cross_entropy"),
        ("detached.py", "O3", "loss.backward()"),
        ("checkpoint.py", "O20", "model.load_state_dict"),
    ],
)
def test_crash_keeps_its_traceback_and_is_explained_under_it(script, code, line, warm, scripts):
    ended = warm("run", str(scripts / script), cwd=scripts)
    assert ended.status == 1
    assert frames(ended.script)[0].startswith(str(scripts / script))
    assert all(str(scripts) in frame or "site-packages/torch/" in frame for frame in frames(ended.script))
    assert "flatline" not in ended.script
    assert re.search(r"^\w+Error: ", ended.script, re.MULTILINE)
    rest = ended.err.removeprefix(ended.script)
    assert f"\n{code} " in rest
    assert f"· {script}:" in rest
    assert re.search(rf"▸ +\d+ │ +{re.escape(line)}", rest)
    assert "\nFix " in rest
    assert "(crashed)" in ended.lines[-1]


def frames(traceback: str) -> list[str]:
    return re.findall(r'^  File "([^"]+)", line \d+', traceback, re.MULTILINE)


def test_custom_excepthook_is_respected(warm, scripts):
    ended = warm("run", "hooked.py", cwd=scripts)
    assert ended.status == 1
    assert ended.script == "my hook: IndexError\n"
    assert "Traceback" not in ended.err
    assert "O14 target-form" in ended.err


def test_crash_without_an_explanation_shows_the_users_frames(warm, scripts):
    """The forward of a module runs below hooks of ours: torch's own frames are others then, and none is ours."""
    script = scripts / "own_crash.py"
    ended, plain = warm("run", str(script), cwd=scripts), call(*PYTHON, script, cwd=scripts)
    assert [f for f in frames(ended.script) if f == str(script)] == [f for f in frames(plain.err) if f == str(script)]
    assert ended.script.splitlines()[-1] == plain.lines[-1]
    assert "flatline" not in ended.script
    assert "flatline: 0 findings" in ended.err


# --------------------------------------------------------------------------- pyproject.toml

TABLES = {
    "select": ('select = ["O9"]', [], ["O9"]),
    "select family": ('select = ["O", "N"]', [], ["O12", "O9"]),
    "ignore": ('ignore = ["double-softmax"]', [], ["O9"]),
    "option": ("[tool.flatline.rules.O9]\ncertain-after = 1000", [], ["O12"]),
    "option by slug": ("[tool.flatline.rules.accumulation-not-averaged]\ncertain_after = 1000", [], ["O12"]),
    "command line over file": ('select = ["O9"]', ["--select", "O12"], ["O12"]),
    "both ignore": ('ignore = ["O9"]', ["--ignore", "O12"], []),
    "other tools": ("", [], ["O12", "O9"]),
}
WRONG = {
    "unknown setting": "selct = ['O9']",
    "unknown rule": "select = ['O99']",
    "unknown ignored": "ignore = ['O99']",
    "not a list": "select = 'O9'",
    "not strings": "ignore = [9]",
    "rules no table": "rules = 3",
    "rule no table": "[tool.flatline.rules]\nO9 = 3",
    "unknown rule in options": "[tool.flatline.rules.O99]\na = 1",
    "unknown option": "[tool.flatline.rules.O9]\nthreshold = 1",
    "option no number": "[tool.flatline.rules.O9]\ncertain-after = 'many'",
    "not toml": "select = [",
    "wrong level": "fail-on = 'sometimes'",
    "level no text": "fail-on = 1",
    "wrong budget": "budget = 'much'",
    "hints no switch": "hints = 'yes'",
}


def table(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.other]\nx = 1\n[tool.flatline]\n{text}\n", encoding="utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_settings_of_pyproject(name, warm, tmp_path):
    text, options, expected = TABLES[name]
    write(tmp_path, {"both.py": BOTH, "sub/empty": ""})
    table(tmp_path, text)
    found = json_of(warm("run", *options, "--format", "json", "../both.py", cwd=tmp_path / "sub"))
    assert [finding["code"] for finding in found["findings"]] == expected


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_give_one_line_and_exit_2(name, tmp_path):
    write(tmp_path, {"fine.py": "print('ran')\n"})
    table(tmp_path, WRONG[name])
    line = call(*RUN, "fine.py", cwd=tmp_path).one_line()
    assert "tool.flatline" in line or "pyproject.toml" in line or "select" in line or "ignore" in line
    assert "Traceback" not in line


def test_other_settings_of_pyproject(warm, tmp_path):
    write(tmp_path, {"sick.py": SICK, "hinted.py": HINTED})
    table(tmp_path, 'fail-on = "error"\nhints = true\nbudget = "5%"')
    assert warm("run", "sick.py", cwd=tmp_path).status == 1
    assert warm("run", "--fail-on", "never", "sick.py", cwd=tmp_path).status == 0
    assert "O6" in warm("run", "hinted.py", cwd=tmp_path).err


# --------------------------------------------------------------------------- what breaks is ours, never the user's

RULE_BREAKS = """
from flatline.rules.optimization.double_softmax import DoubleSoftmax
def boom(self, event):
    raise ZeroDivisionError("planted")
DoubleSoftmax.on_loss_computed = boom
"""
EVERY_RULE_BREAKS = """
from flatline.rules import all_rules
def boom(self, event):
    raise ZeroDivisionError("planted")
for rule in all_rules():
    for name in [name for name in vars(rule) if name.startswith("on_")]:
        setattr(rule, name, boom)
"""
SENSORS = ["audit.AuditSensor", "backward.BackwardSensor", "checkpoints.CheckpointSensor", "clipping.ClipSensor", "crashes.CrashSensor",
           "data.DataSensor", "models.ModelSensor", "optimizers.OptimizerSensor", "schedules.ScheduleSensor"]  # fmt: skip
SENSOR_BREAKS = """
import importlib
module = importlib.import_module("flatline.sensors." + {module!r})
def boom(*args, **kwargs):
    raise ZeroDivisionError("planted")
for name, value in list(vars(module.{cls}).items()):
    if callable(value) and {condition}:
        setattr(module.{cls}, name, boom)
"""
EVERYTHING = (
    HEAD.replace("SGD", "AdamW")
    + """
from torch.utils.data import DataLoader, TensorDataset
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
model.append(nn.Dropout(0.1))
for epoch in range(2):
    model.train()
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(loss.item())
    scheduler.step()
    model.eval()
    with torch.no_grad():
        print(model(x).sum().item())
    model.load_state_dict(model.state_dict())
print(sum(p.double().sum().item() for p in model.parameters()), torch.rand(1).item())
F.cross_entropy(model(x), y + 1)
"""
)


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> tuple[Path, Ended]:
    folder = write(tmp_path_factory.mktemp("everything"), {"everything.py": EVERYTHING})
    return folder, call(*PYTHON, folder / "everything.py", cwd=folder)


def test_rule_that_raises_is_named_and_goes_unseen(warm, scripts, plainly):
    ended = warm("run", "sick.py", cwd=scripts, before=RULE_BREAKS)
    assert (ended.status, ended.out) == (0, plainly)
    assert "Traceback" not in ended.err
    assert ended.err.count("O12 was switched off: ZeroDivisionError: planted") == 1
    found = json_of(warm("run", "--format", "json", "sick.py", cwd=scripts, before=RULE_BREAKS))
    assert found["findings"] == []
    (unchecked,) = [rule for rule in found["not_checked"] if rule["code"] == "O12"]
    assert "planted" in unchecked["reason"]


def test_every_rule_raises(warm, everything):
    folder, plain = everything
    ended = warm("run", "--format", "json", str(folder / "everything.py"), cwd=folder, before=EVERY_RULE_BREAKS)
    assert ended.out.startswith(plain.out)
    assert (ended.status, ended.err) == (plain.status, plain.err)
    found = json_of(ended)
    assert not {note.split()[0] for note in found["notes"]} & set(found["checked"])
    assert len(found["notes"]) >= 15
    assert len({note.split()[0] for note in found["notes"]}) == len(found["notes"]), "each is logged once"


TELLING_BREAKS = """
from flatline.reporters import text
def boom(finding):
    raise ZeroDivisionError("planted")
text.line = boom
"""


def test_line_that_cannot_be_told_does_not_switch_a_rule_off(warm, scripts, plainly):
    ended = warm("run", "--format", "json", "sick.py", cwd=scripts, before=TELLING_BREAKS)
    assert ended.out.startswith(plainly)
    assert ended.err == "after\n"
    found = json_of(ended)
    assert [finding["code"] for finding in found["findings"]] == ["O12"]
    assert "O12" in found["checked"]


def unharmed(ended: Ended, plain: Ended) -> dict:
    assert ended.out.startswith(plain.out), ended.err
    assert ended.status == plain.status
    assert ended.script == plain.err
    return json_of(ended)


@pytest.mark.parametrize("sensor", SENSORS)
@pytest.mark.parametrize("condition", ["name != '__init__'", "name == 'attach'"], ids=["every method", "attach"])
def test_sensor_that_raises_is_named_and_goes_unseen(sensor, condition, warm, everything):
    module, _, cls = sensor.partition(".")
    if condition == "name == 'attach'" and sensor in ("audit.AuditSensor", "crashes.CrashSensor"):
        pytest.skip("puts nothing on")
    folder, plain = everything
    before = SENSOR_BREAKS.format(module=module, cls=cls, condition=condition)
    found = unharmed(warm("run", "--format", "json", str(folder / "everything.py"), cwd=folder, before=before), plain)
    assert any("planted" in note for note in found["notes"])
    assert found["run"]["steps"] in (0, 12)


@pytest.mark.parametrize(
    "before",
    [
        SENSOR_BREAKS.format(module="models", cls="ModelSensor", condition="name == '__init__'"),
        SENSOR_BREAKS.format(module="live", cls="LiveSensors", condition="name == 'attach'"),
        SENSOR_BREAKS.format(module="live", cls="LiveSensors", condition="name == 'finish'"),
        SENSOR_BREAKS.format(module="live", cls="LiveSensors", condition="name == 'detach'"),
        "import sys\nsys.modules['flatline.sensors.live'] = None",
    ],
    ids=[
        "a sensor cannot be built",
        "cannot attach",
        "cannot finish",
        "cannot detach",
        "a new torch: cannot be imported",
    ],
)
def test_sensors_that_break_as_a_whole_are_named_and_go_unseen(before, warm, everything):
    folder, plain = everything
    found = unharmed(warm("run", "--format", "json", str(folder / "everything.py"), cwd=folder, before=before), plain)
    assert found["notes"]


# --------------------------------------------------------------------------- whole runs that import torch themselves

LOADERS = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Numbers(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        assert get_worker_info() is not None
        return torch.randn(6, generator=torch.Generator().manual_seed(i)) + torch.rand(1) * 0, i % 3


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for context in ("fork", "spawn"):
        loader = DataLoader(Numbers(), 8, shuffle=True, num_workers=1, multiprocessing_context=context, persistent_workers=True)
        for epoch in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                print(context, epoch, loss.item())
    print(torch.rand(1).item(), torch.initial_seed())


if __name__ == "__main__":
    main()
"""
WATCH = """
import json, sys, warnings
import torch, torch._dynamo, torch.utils.data
import torch.nn.functional as F
from torch import nn

COUNTED = ("torch.nn.modules.module", "torch.optim.optimizer")


def state():
    '''Every function, method and hook of torch that anybody could have replaced.'''
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "torch" or module is None:
            continue
        for key, value in list(vars(module).items()):
            if callable(value):
                found[name, key] = id(value)
            if isinstance(value, type) and value.__module__.startswith("torch"):
                found.update({(value.__module__, value.__qualname__, k): id(v) for k, v in list(vars(value).items()) if callable(v)})
            if "hooks" in key and isinstance(value, dict):
                found[name, key] = len(value)
    found["excepthook"], found["meta_path"] = id(sys.excepthook), [id(finder) for finder in sys.meta_path]
    return found


def changed(before):
    after = state()
    return sorted(str(key) for key, value in before.items() if after.get(key) != value)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, steps=4, soften=True):
    for _ in range(steps):
        x, y = torch.randn(8, 8), torch.randint(0, 3, (8,))
        optimizer.zero_grad()
        scores = model(x).softmax(1) if soften else model(x)
        F.cross_entropy(scores, y).backward()
        optimizer.step()


def raised(action):
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


train(*build(), soften=False)
torch.optim.Adam(build()[0].parameters())  # torch itself wraps step() of a class at its first instance
out, before, filters = {}, state(), list(warnings.filters)
import flatline
out["import changes"] = changed(before)

with flatline.watch() as run:
    during = state()
    model, optimizer = build()
    train(model, optimizer)
    out["while it runs"] = [f.code for f in run.findings]
    out["patched"] = len([key for key, value in before.items() if during.get(key) != value])
out["with"] = [[f.code, f.severity, f.where.line] for f in run.findings]
out["with changes"] = changed(before)
out["filters"] = warnings.filters == filters
out["report"] = [run.report.run["steps"], len(run.report.checked)]
train(model, optimizer, 5)
out["closed means closed"] = run.report.run["steps"]
out["markdown"] = run.findings[0]._repr_markdown_()
out["run markdown"] = run._repr_markdown_()
out["repr"] = repr(run)

model, optimizer = build()
run = flatline.watch(model, optimizer)
train(model, optimizer)
run.close()
run.close()
out["objects"] = [f.code for f in run.findings]
out["objects changes"] = changed(before)

model, optimizer = build()
model.append(nn.Linear(3, 3))
with flatline.watch(model, optimizer) as run:
    train(model, optimizer, soften=False)
out["existing"] = [[f.code, f.message] for f in run.findings]

first, second = flatline.watch(), flatline.watch()
train(*build())
first.close()
train(*build())
second.close()
out["two"] = [[f.code for f in run.findings] for run in (first, second)]
out["two steps"] = [run.report.run["steps"] for run in (first, second)]
out["two changes"] = changed(before)
before = state()

with flatline.watch(select=("O9",)) as run:
    train(*build())
out["select"] = [f.code for f in run.findings]
with flatline.watch(ignore=("double-softmax",)) as run:
    train(*build())
out["ignore"] = [f.code for f in run.findings]
model, _ = build()
with flatline.watch() as plain, flatline.watch(hints=True) as run:
    train(model, torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-4), soften=False)
out["hints"] = [[f.code for f in watched.findings] for watched in (plain, run)]


def crash():
    with flatline.watch() as run:
        runs.append(run)
        model, optimizer = build()
        F.cross_entropy(model(torch.randn(4, 8)), torch.tensor([1, 2, 3, 3]))


runs = []
out["crash"] = raised(crash)
out["crash findings"] = [f.code for f in runs[0].findings]
out["crash changes"] = changed(before)
out["list"] = raised(lambda: flatline.watch([model, optimizer]))
out["text"] = raised(lambda: flatline.watch("model"))
out["class"] = raised(lambda: flatline.watch(nn.Linear))
out["unknown"] = raised(lambda: flatline.watch(select=("O99",)))
out["unknown ignored"] = raised(lambda: flatline.watch(ignore=("nothing",)))
out["one text"] = raised(lambda: flatline.watch(select="O12").close())
out["errors change"] = changed(before)
out["missing"] = raised(lambda: flatline.no_such_name)
out["names"] = [name for name in flatline.__all__ if getattr(flatline, name, None) is None]
print(json.dumps(out))
"""
PACKAGE = {
    "project/__init__.py": "import torch\n",
    "project/model.py": "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))\n",
    "project/train.py": SICK.replace("from torch import nn", "from torch import nn\nfrom .model import build").replace(
        "nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))", "build()"
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Ended]:
    """Runs that take some seconds each, two at a time."""
    folder = write(tmp_path_factory.mktemp("whole"), {"loaders.py": LOADERS, "watch.py": WATCH, **PACKAGE})
    report = ("--format", "json", "--output")
    commands = {
        "watch": (*PYTHON, "watch.py"),
        "loaders": (*RUN, *report, "loaders.json", "loaders.py"),
        "plain loaders": (*PYTHON, "loaders.py"),
        "package": (*RUN, *report, "package.json", "-m", "project.train"),
        "python": (*RUN, *report, "python.json", "python", "-m", "project.train"),
    }
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    with ThreadPoolExecutor(2) as pool:
        ended = pool.map(lambda command: call(*command, cwd=folder, PATH=path), commands.values())
        results = dict(zip(commands, ended, strict=True))
    for path in folder.glob("*.json"):
        results[path.name] = json.loads(path.read_text())
    return results


def test_data_loader_workers_are_not_disturbed(whole):
    assert whole["plain loaders"].status == whole["loaders"].status == 0, whole["loaders"].err
    assert whole["loaders"].out == whole["plain loaders"].out
    assert whole["loaders"].err == whole["plain loaders"].err
    assert whole["loaders.json"]["notes"] == []
    assert whole["loaders.json"]["findings"] == []
    assert whole["loaders.json"]["run"]["steps"] == 16
    assert whole["loaders.json"]["run"].get("processes", 1) == 1


def test_module_in_a_package_that_imports_torch_is_watched(whole, plainly):
    assert (whole["package"].status, whole["package"].out) == (0, plainly)
    (finding,) = whole["package.json"]["findings"]
    assert finding["code"] == "O12"
    assert finding["where"]["file"].endswith("project/train.py")


def test_flatline_run_python_is_watched_too(whole, plainly):
    assert (whole["python"].status, whole["python"].out) == (0, plainly)
    assert [finding["code"] for finding in whole["python.json"]["findings"]] == ["O12"]
    assert whole["python.json"]["run"]["steps"] == 12


@pytest.fixture(scope="module")
def watched(whole) -> dict:
    assert whole["watch"].status == 0, whole["watch"].err
    return json.loads(whole["watch"].out)


def line_of(code: str) -> int:
    return next(number for number, line in enumerate(WATCH.splitlines(), 1) if code in line)


def test_watch_as_a_context(watched):
    assert watched["while it runs"] == ["O12"]
    assert watched["with"] == [["O12", "error", line_of("F.cross_entropy(scores, y).backward()")]]
    steps, checked = watched["report"]
    assert steps == watched["closed means closed"] == 4
    assert checked > 10


def test_watch_with_objects(watched):
    assert watched["objects"] == ["O12"]
    ((code, message),) = watched["existing"]
    assert code == "O2"
    assert "3.weight" in message


@pytest.mark.parametrize("when", ["import", "with", "objects", "two", "crash", "errors"])
def test_close_takes_every_patch_off(when, watched):
    assert watched["patched"] >= 5
    assert watched["errors change" if when == "errors" else f"{when} changes"] == []


def test_close_leaves_the_users_warning_filters_alone(watched):
    assert watched["filters"]


def test_two_watches_at_once(watched):
    assert watched["two"] == [["O12"], ["O12"]]
    assert watched["two steps"] == [4, 8]


def test_watch_options(watched):
    assert (watched["select"], watched["ignore"]) == ([], [])
    assert watched["hints"] == [[], ["O6", "O6"]] or watched["hints"] == [[], ["O6"]]


def test_watch_lets_exceptions_through_and_explains_them(watched):
    assert watched["crash"] == ["IndexError", "Target 3 is out of bounds."]
    assert watched["crash findings"] == ["O14"]


def test_watch_errors_show_the_way_out(watched):
    assert watched["list"] == ["TypeError", "watch() got a list. Pass modules and optimizers one by one, as in watch(model, optimizer), or nothing at all."]  # fmt: skip
    assert watched["text"][0] == watched["class"][0] == "TypeError"
    assert "got a str" in watched["text"][1]
    for name, word in (("unknown", "'O99'"), ("unknown ignored", "'nothing'")):
        kind, text = watched[name]
        assert kind == "ValueError"
        assert word in text
        assert "flatline rules" in text
    assert watched["one text"] is None or "'O12'" in watched["one text"][1]
    assert watched["missing"][0] == "AttributeError"
    assert watched["names"] == []


def test_finding_is_shown_in_notebooks(watched):
    shown = watched["markdown"]
    assert shown.startswith("**O12 double-softmax** · error · `")
    assert all(word in shown for word in ("**Seen**", "**Cause**", "**Fix**", "watch.py:"))
    assert watched["run markdown"].startswith(shown.splitlines()[0])
    assert "O12 double-softmax · error" in watched["repr"]


# --------------------------------------------------------------------------- quick enough


HEAVY = {"torch", "numpy", "rich", "jinja2", "asyncio", "sqlite3", "multiprocessing", "xml", "http", "email", "decimal"}


@pytest.mark.parametrize(
    "given", [["--help"], ["explain", "O12"], ["explain", "loss", "flat"], ["rules"]], ids=" ".join
)
def test_starts_light(given, tmp_path):
    """Seconds are for benchmarks/overhead.py to tell; here nothing may be loaded that would cost them."""
    lines = call(sys.executable, "-X", "importtime", "-m", "flatline", *given, cwd=tmp_path).err.splitlines()
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in lines if line.startswith("import time:")}
    assert "flatline" in loaded
    assert not HEAVY & loaded
    assert len(lines) < 400
