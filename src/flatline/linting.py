"""Source code judged: what the reader sees in each file, through the engine; the sibling of afterwards.py."""

from __future__ import annotations

import codecs
import dataclasses
import fnmatch
import io
import linecache
import os
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flatline.config import Config, silenced
from flatline.engine import Engine, watched
from flatline.events import SourceEdit, SourceParsed, Where
from flatline.findings import Finding, Report, causes
from flatline.readers.source._files import Text, Unparsable, find, python, read
from flatline.readers.source._project import event, speaks_of_torch
from flatline.readers.source._resolve import Project
from flatline.rules import Rule

EVERYTHING = "ALL"
USUALLY: Mapping[str, Sequence[str]] = {"tests/**": [EVERYTHING]}  # what is broken there is broken on purpose


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
        self.rules = [rule for rule in config.rules() if SourceParsed in watched(rule)]
        self.edits: dict[str, list[SourceEdit]] = {}  # by file
        self._told: set[tuple[str, Where | None]] = set()
        self._names: Counter[str] = Counter()
        self.done = Linted(checked=tuple(rule.code for rule in self.rules))

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

    def _text(self, text: Text, rules: Sequence[Rule]) -> None:
        if not speaks_of_torch(text):
            return
        engine = Engine([type(rule)() for rule in rules], on_finding=_nothing, on_broken=self._broken)
        for fresh, rule in zip(engine.rules, rules, strict=True):
            vars(fresh).update(vars(rule))
        try:
            seen = event(self.project, text)
        except Unparsable as error:
            self.done.notes.append(str(error))
            return
        engine.emit(seen)
        self._keep(text, engine.findings)
        fixable = {fact.where: fact.edit for fact in seen.facts if fact.edit is not None}
        told = {finding.where for finding in self.done.findings}
        self.edits[text.path] = [edit for where, edit in fixable.items() if where in told]

    def _broken(self, code: str, error: Exception) -> None:
        self.done.notes.append(f"{code} was switched off: {type(error).__name__}: {error}")

    def _keep(self, text: Text, findings: Sequence[Finding]) -> None:
        _show_lines(text)
        relevant = causes([f for f in findings if not silenced(f, self._line(text, f))])
        for finding in sorted(relevant, key=_place):
            place = finding.code, finding.where
            if place in self._told:
                continue  # a function that two files call is seen with both
            self._told.add(place)
            if self.config.shows(finding):
                self.done.findings.append(self._keyed(finding, self._line(text, finding)))
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


def fixes(linter: Linter) -> dict[str, tuple[bytes, bytes]]:
    """For each file that can be fixed: its bytes, and those to put in their place."""
    found = {}
    for path, edits in linter.edits.items():
        if edits and path.endswith(".py"):
            old = Path(path).read_bytes()
            new = _fixed(linter, path, old, sorted(edits, key=lambda edit: (-edit.line, -edit.start)))
            if new != old:
                found[path] = (old, new)
    return found


def _fixed(linter: Linter, path: str, data: bytes, edits: Sequence[SourceEdit]) -> bytes:
    """With every edit that makes findings fewer; the others are dropped."""
    left = _count(linter, path, data)
    for edit in edits:
        edited = _edited(data, edit)
        after = _count(linter, path, edited) if edited is not None else None
        if edited is not None and left is not None and after is not None and after < left:
            data, left = edited, after
    return data


def _count(linter: Linter, path: str, data: bytes) -> int | None:
    """How many findings the file has by itself; None if it is none that Python reads."""
    again = Linter(linter.config, linter.ignores)
    try:
        again._text(python(path, data), linter.rules)
    except Unparsable:
        return None
    return None if again.done.notes else len(again.done.findings) + again.done.hidden_hints


def _edited(data: bytes, edit: SourceEdit) -> bytes | None:
    """The same bytes everywhere else. Only UTF-8 is edited, as places are counted in it."""
    if b"\r" in data.replace(b"\r\n", b"") or tokenize.detect_encoding(io.BytesIO(data).readline)[0][:5] != "utf-8":
        return None
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
