"""Source code judged: what the reader sees in each file, through the engine; the sibling of afterwards.py."""

from __future__ import annotations

import codecs
import dataclasses
import fnmatch
import gc
import io
import linecache
import os
import tokenize
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flatline.config import COMMENT, Config, silenced
from flatline.engine import Engine, hook_name
from flatline.events import SourceEdit, SourceParsed, Where
from flatline.findings import Finding, Report, causes
from flatline.readers.source._files import Text, Unparsable, find, python, read
from flatline.readers.source._notebooks import opened
from flatline.readers.source._project import event, speaks_of_torch
from flatline.readers.source._repairs import PROPOSALS, edited, repairs
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module
from flatline.rules import Rule

EVERYTHING = "ALL"
USUALLY: Mapping[str, Sequence[str]] = {"tests/**": [EVERYTHING]}  # what is broken there is broken on purpose


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles meanwhile: what was read is kept to the end, and each search would go through all of it."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


@dataclass(slots=True)
class Linted:
    """What was found in some files."""

    findings: list[Finding] = field(default_factory=list)
    hidden_hints: int = 0
    files: int = 0  # that were read
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    checked: tuple[str, ...] = ()


class Linter:
    """Lints files of one project: what one imports from another is followed."""

    def __init__(self, config: Config, ignores: Mapping[str, Sequence[str]] | None = None) -> None:
        self.config = config
        self.ignores = {**USUALLY, **(ignores or {})}
        self.project = Project()
        self.rules = [rule for rule in config.rules() if hasattr(rule, hook_name(SourceParsed))]
        self.linted: set[str] = set()
        self.refused: list[str] = []  # files that could not be fixed, a line each
        self.unused: list[str] = []  # comments that silence nothing, a line each
        self._told: set[tuple[str, Where | None]] = set()
        self._names: Counter[str] = Counter()
        self.done = Linted(checked=tuple(rule.code for rule in self.rules))

    @uncollected()
    def paths(self, paths: Sequence[str]) -> Linted:
        """All Python files and notebooks there."""
        linecache.checkcache()  # reporters show the lines as they are now
        found = find(paths)
        self.done.missing += found.missing
        self.done.notes += found.notes
        named = {os.path.normpath(path) for path in paths}
        wanted = [(path, left) for path in found.files if (left := self._rules_for(path, named=path in named))]
        texts = [(text, left) for path, left in wanted if (text := self._read(path)) is not None]
        for text, _ in texts:
            if speaks_of_torch(text):
                self.project.load(text.path)  # all of them first: what one calls is defined in another
        for text, left in texts:
            self._text(text, left)
        self.done.findings.sort(key=_place)
        return self.done

    @uncollected()
    def standard_input(self, data: bytes) -> Linted:
        """What an editor has not saved yet."""
        try:
            self._text(python("<stdin>", data), self.rules)
        except Unparsable as error:
            self.done.notes.append(str(error))
        self.done.files = 0 if self.done.notes else 1
        self.done.findings.sort(key=_place)
        return self.done

    def _rules_for(self, path: str, *, named: bool) -> list[Rule]:
        near = os.path.relpath(path).replace(os.sep, "/")
        codes = {
            code
            for pattern, codes in self.ignores.items()
            if (fnmatch.fnmatch(near, pattern) or fnmatch.fnmatch(near, f"*/{pattern}"))
            and not (named and EVERYTHING in codes)
            for code in codes
        }
        return [] if EVERYTHING in codes else [rule for rule in self.rules if rule.code not in codes]

    def _read(self, path: str) -> Text | None:
        try:
            text = read(path)
        except Unparsable as error:
            self.done.notes.append(str(error))
            return None
        self.done.files += 1
        return text

    def _text(self, text: Text, rules: Sequence[Rule]) -> SourceParsed | None:
        self.linted.add(text.path)
        if not speaks_of_torch(text):
            return None
        engine = Engine([type(rule)() for rule in rules], on_finding=_nothing, on_broken=self._broken)
        for fresh, rule in zip(engine.rules, rules, strict=True):
            vars(fresh).update(vars(rule))
        try:
            seen = event(self.project, text)
        except Unparsable as error:
            self.done.notes.append(str(error))
            return None
        engine.emit(seen)
        self._keep(text, engine.findings, seen)
        return seen

    def _broken(self, code: str, error: Exception) -> None:
        self.done.notes.append(f"{code} was switched off: {type(error).__name__}: {error}")

    def _keep(self, text: Text, findings: Sequence[Finding], seen: SourceParsed) -> None:
        _show_lines(text)
        self.unused += _unused(text, findings, {rule.code: rule.slug() for rule in self.rules})
        relevant = causes([f for f in findings if not silenced(f, self._line(text, f))])
        for finding in sorted(relevant, key=_place):
            place = finding.code, finding.where
            if place in self._told:
                continue  # a function that two files call is seen with both
            self._told.add(place)
            if self.config.shows(finding):
                self.done.findings.append(self._keyed(_told(finding, seen), self._line(text, finding)))
            else:
                self.done.hidden_hints += 1

    def _keyed(self, finding: Finding, line: str) -> Finding:
        """With a key of its text: the same after the lines above it have changed."""
        name = f"{finding.where.function if finding.where else ''} {line.strip()}"
        self._names[f"{finding.code} {name}"] += 1
        return dataclasses.replace(finding, key=f"{name} {self._names[f'{finding.code} {name}']}", count=1)

    def _line(self, text: Text, finding: Finding) -> str:
        """The source line of a finding, perhaps in a file that this one imports."""
        where = finding.where
        if where is None:
            return ""
        path = where.file.partition(":cell ")[0]
        other = self.project.modules.get(path)
        return _line_at(other.text if path != text.path and other is not None else text, where)


def _told(finding: Finding, seen: SourceParsed) -> Finding:
    """With how sure it is, and which command repairs it."""
    sure = {"error": "high", "warning": "medium", "hint": "low"}[finding.severity]
    evidence = {**finding.evidence, "confidence": sure}
    if any(fact.edit is not None and fact.where == finding.where for fact in seen.facts):
        evidence["repair"] = "--fix"
    elif finding.code in PROPOSALS:
        evidence["repair"] = "--fix --unsafe-fixes"
    if finding.severity == "hint" and finding.where is not None and finding.where.file.endswith(".py"):
        evidence["confirm"] = f"flatline run --select {finding.code} {finding.where.file}"
    return dataclasses.replace(finding, evidence=evidence)


def _unused(text: Text, findings: Sequence[Finding], rules: Mapping[str, str]) -> list[str]:
    """Comments that name a rule which finds nothing on their line, and those that name no rule."""
    told = []
    comments = [(n, COMMENT.search(line)) for n, line in enumerate(text.lines, 1) if "flatline" in line]
    for number, found in comments:
        file, place = text.place(number)
        names = [name.strip() for name in (found[1] or "").split(",")] if found else []
        here = {f.code for f in findings if f.where is not None and (f.where.file, f.where.line) == (file, place)}
        for name in filter(None, names):
            rule = next((code for code in rules if name.lower() in (code.lower(), rules[code])), None)
            if rule is not None and rule not in here:
                told.append(f"{file}:{place}: ignore[{name}] silences nothing that lint finds")
    return told


def _nothing(finding: Finding) -> None:
    """Findings are read when the file is done."""


def _place(finding: Finding) -> tuple[str, int, str]:
    return (finding.where.file, finding.where.line, finding.code) if finding.where else ("", 0, finding.code)


def _line_at(text: Text, where: Where) -> str:
    first = next((first for first, number in text.cells if where.file.endswith(f":cell {number}")), 1)
    number = first + where.line - 1
    return text.lines[number - 1] if 0 < number <= len(text.lines) else ""


def _show_lines(text: Text) -> None:
    """Let reporters show lines that are in no file of their own."""
    starts = [*(first for first, _ in text.cells), len(text.lines) + 1]
    for (first, number), after in zip(text.cells, starts[1:], strict=True) if text.cells else ():
        name = f"{text.path}:cell {number}"
        linecache.cache[name] = (1, None, [f"{line}\n" for line in text.lines[first - 1 : after - 1]], name)
    if text.path == "<stdin>":
        linecache.cache[text.path] = (1, None, [f"{line}\n" for line in text.lines], text.path)


# --------------------------------------------------------------------------- fixes


def fixes(linter: Linter, *, unsafe: bool = False) -> dict[str, tuple[bytes, bytes]]:
    """For each file that can be fixed: its bytes, and those to put in their place."""
    found = {}
    for path, codes in _told_codes(linter).items():
        if path.endswith((".py", ".ipynb")):
            old = Path(path).read_bytes()
            whole = path.endswith(".py")
            new = (
                _fixed(linter, path, old, codes, unsafe=unsafe)
                if whole
                else _cells_fixed(linter, path, codes, unsafe=unsafe)
            )
            if new != old:
                found[path] = (old, new)
    return found


def _cells_fixed(linter: Linter, path: str, codes: Collection[str], *, unsafe: bool) -> bytes:
    """A notebook with its cells edited; as it is, and with a note, if it could not be written back."""
    data = Path(path).read_bytes()
    notebook = opened(data)
    if notebook is None:
        linter.refused.append(f"{path}: not fixed, as its JSON could not be written back byte for byte")
        return data
    source = notebook.source()
    new = _fixed(linter, path, source, codes, unsafe=unsafe)
    written = notebook.written(new) if new != source else data
    if written is None:
        linter.refused.append(f"{path}: not fixed, as a magic of IPython would be moved")
    return data if written is None else written


def _told_codes(linter: Linter) -> dict[str, set[str]]:
    """By file, what was found in it."""
    codes: dict[str, set[str]] = {}
    for finding in linter.done.findings:
        path = finding.where.file.partition(":cell ")[0] if finding.where is not None else ""
        if path in linter.linted:
            codes.setdefault(path, set()).add(finding.code)
    return codes


def _fixed(linter: Linter, path: str, data: bytes, codes: Collection[str], *, unsafe: bool) -> bytes:
    """With every edit after which something is found less and nothing more; the others are dropped."""
    state, tried = _alone(linter, path, data), {data}
    while state is not None and _editable(data):
        for candidate in _candidates(data, state, codes, unsafe=unsafe):
            if candidate in tried:
                continue
            tried.add(candidate)
            after = _alone(linter, path, candidate)
            if after is not None and after.codes < state.codes:
                data, state = candidate, after
                break
        else:
            break
    return data


@dataclass(frozen=True, slots=True)
class _State:
    """A version of a file."""

    module: Module
    seen: SourceParsed
    findings: Sequence[Finding]

    @property
    def codes(self) -> Counter[str]:
        """How many findings it has of each rule."""
        return Counter(finding.code for finding in self.findings)


def _candidates(data: bytes, state: _State, codes: Collection[str], *, unsafe: bool) -> Iterator[bytes]:
    """The file with one edit each: those that cannot change what is computed come first."""
    findings = [finding for finding in state.findings if finding.code in codes and finding.where is not None]
    told = {finding.where for finding in findings}
    for fact in state.seen.facts:
        if fact.edit is not None and fact.where in told:
            yield _edited(data, fact.edit)
    for finding in findings if unsafe else ():
        assert finding.where is not None
        for repair in repairs(state.module, state.seen, finding.code, finding.where):
            if repair:
                yield edited(data, repair)


def _alone(linter: Linter, path: str, data: bytes) -> _State | None:
    """The file judged by itself; None if it is none that Python reads."""
    again = Linter(dataclasses.replace(linter.config, hints=True), linter.ignores)
    try:
        seen = again._text(python(path, data), linter.rules)
    except Unparsable:
        return None
    module = again.project.modules.get(os.path.normpath(path))
    if again.done.notes or seen is None or module is None:
        return None
    return _State(module, seen, again.done.findings)


def _editable(data: bytes) -> bool:
    """Only UTF-8 with lines that end in one way, as places are counted in it."""
    return b"\r" not in data.replace(b"\r\n", b"") and (
        tokenize.detect_encoding(io.BytesIO(data).readline)[0][:5] == "utf-8"
    )


def _edited(data: bytes, edit: SourceEdit) -> bytes:
    """The same bytes everywhere else."""
    lines = data.split(b"\n")
    line = lines[edit.line - 1]
    mark = 3 if edit.line == 1 and data.startswith(codecs.BOM_UTF8) else 0
    start, end = edit.start + mark, edit.end + mark
    lines[edit.line - 1] = line[:start] + edit.text.encode() + line[end:]
    return b"\n".join(lines)


def report(done: Linted) -> Report:
    """What reporters show."""
    return Report(
        findings=tuple(done.findings),
        checked=done.checked,
        run={"command": "lint", "files": done.files},
        notes=tuple(done.notes),
        hidden_hints=done.hidden_hints,
    )
