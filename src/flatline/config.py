"""Settings: ``[tool.flatline]`` in pyproject.toml, overridden by the command line."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flatline.findings import Finding
from flatline.rules import Rule, all_rules

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

KNOWN = {"select", "ignore", "rules", "budget", "fail-on", "hints", "record", "record-limit", "per-file-ignores"}
FAIL_ON = ("error", "warning", "never")
COMMENT = re.compile(r"#\s*flatline:\s*ignore(?:\[([\w\s,-]*)\])?", re.IGNORECASE)


SHELF = ".flatline"  # where the records of runs are kept
RECORD_LIMIT = "256 MB"
UNITS = {"KB": 10, "MB": 20, "GB": 30}


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where a run is recorded."""

    folder: str  # of this run
    token: str  # of the processes that share it
    shelf: bool  # its parent is ours, too, and is to be left out of git
    limit: int  # bytes
    tensorboard: str = ""  # a folder in which the scalars are written as event files, too


class ConfigError(Exception):
    """A setting that cannot be used; its text is one clear line."""


@dataclass(frozen=True, slots=True)
class Config:
    """What the user wants checked."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    hints: bool = False

    def rules(self) -> list[Rule]:
        """The chosen rules, with their options set."""
        chosen = []
        for rule in all_rules():
            if (not self.select or matches(rule, self.select)) and not matches(rule, self.ignore):
                chosen.append(self._configured(rule()))
        return chosen

    def _configured(self, rule: Rule) -> Rule:
        for key, options in self.options.items():
            if matches(type(rule), (key,)):
                for name, value in options.items():
                    setattr(rule, name.replace("-", "_"), value)
        return rule

    def shows(self, finding: Finding) -> bool:
        """Hints are shown when asked for, by --hints or by their code."""
        return finding.severity != "hint" or self.hints or finding.code in {code.upper() for code in self.select}


def matches(rule: type[Rule], choices: Iterable[str]) -> bool:
    """By code, slug, or a family's letters (``O``)."""
    letters = rule.code.rstrip("0123456789")
    return any(choice.upper() in (rule.code, letters) or choice.lower() == rule.slug() for choice in choices)


def check(choices: Sequence[str], name: str) -> tuple[str, ...]:
    """The choices, if every one names a rule or a family."""
    rules = all_rules()
    for choice in choices:
        if not any(matches(rule, (choice,)) for rule in rules):
            raise ConfigError(f"{name}: there is no rule {choice!r}; `flatline rules` lists them")
    return tuple(choices)


def find_pyproject(start: Path) -> Path | None:
    """The nearest pyproject.toml with a [tool.flatline] table, here or above."""
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        with suppress(OSError):  # not there, or not for us to read
            if "tool.flatline" in path.read_text(encoding="utf-8", errors="replace"):
                return path
    return None


def load(start: Path) -> Mapping[str, object]:
    """The table, or nothing. Raises ConfigError for one that cannot be read."""
    path = find_pyproject(start)
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("flatline", {})
        table = {name.replace("_", "-"): value for name, value in table.items()}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    level = table.get("fail-on", "never")
    if level not in FAIL_ON:
        raise ConfigError(f"{path}: fail-on must be one of {', '.join(FAIL_ON)}; it is {level!r}")
    if not isinstance(table.get("hints", False), bool):
        raise ConfigError(f"{path}: hints must be true or false; it is {table['hints']!r}")
    unknown = sorted(set(table) - KNOWN)
    if unknown:
        raise ConfigError(f"{path}: [tool.flatline] has no setting {unknown[0]!r}; it has {', '.join(sorted(KNOWN))}")
    return dict(table)


def chosen(options: argparse.Namespace) -> tuple[Config, float, int | None]:
    """Rules, time budget and step limit: the options of ``flatline run`` over pyproject.toml. Raises ConfigError."""
    table = load(_here())
    settings = build(
        table, select=codes(options.select, "--select"), ignore=codes(options.ignore, "--ignore"), hints=options.hints
    )
    if options.fail_on is None:
        options.fail_on = table.get("fail-on", "never")
    given, steps = options.budget, options.max_steps
    if steps is not None and (not (steps.isascii() and steps.isdecimal()) or int(steps) < 1):
        raise ConfigError(f"--max-steps must be a whole number of at least 1; it is {steps!r}")
    budget = _share("[tool.flatline] budget", table.get("budget", "1%")) if given is None else _share("--budget", given)
    return settings, budget, int(steps) if steps else None


def keeping(options: argparse.Namespace, name: str) -> Keeping | None:
    """Where to record a run of this name: ``--record``, else a folder of its own; None for --no-record."""
    table, here = load(_here()), _here()
    limit, shelf = _size(table.get("record-limit", RECORD_LIMIT)), table.get("record", SHELF)
    if shelf is not False and (not isinstance(shelf, str) or not shelf):
        raise ConfigError(f"[tool.flatline] record must be a folder, or false; it is {shelf!r}")
    if options.no_record or (shelf is False and not options.record):
        if options.tensorboard:
            raise ConfigError("--tensorboard writes the scalars of the record, and none is kept here")
        return None
    kept = _kept(options, limit, str(shelf), name)
    return dataclasses.replace(kept, tensorboard=str(here / options.tensorboard)) if options.tensorboard else kept


def _kept(options: argparse.Namespace, limit: int, shelf: str, name: str) -> Keeping:
    here = _here()
    if options.record:
        folder = here / options.record
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--record {options.record}: is not a folder")
        return kept_in(str(folder), limit)
    return dataclasses.replace(kept_in(str(here / shelf / name), limit), shelf=True)


def kept_in(folder: str, limit: int | None = None) -> Keeping:
    """In this very folder."""
    limit = _size(RECORD_LIMIT) if limit is None else limit
    return Keeping(os.path.abspath(folder), os.urandom(8).hex(), shelf=False, limit=limit)


def _size(value: object) -> int:
    """``"256 MB"`` -> bytes."""
    found = re.fullmatch(r"\s*(\d+)\s*(KB|MB|GB)\s*", value, re.IGNORECASE) if isinstance(value, str) else None
    if found is None or not int(found[1]):
        raise ConfigError(f'[tool.flatline] record-limit must be a size, like "256 MB"; it is {value!r}')
    return int(found[1]) << UNITS[found[2].upper()]


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:  # it was removed
        return Path("/")


def codes(given: Iterable[str], option: str) -> list[str]:
    """``["O2,O12", "E"]`` -> ``["O2", "O12", "E"]``."""
    found = [[code.strip() for code in text.split(",") if code.strip()] for text in given]
    if not all(found):
        raise ConfigError(f"{option} names no rule; `flatline rules` lists them")
    return [code for each in found for code in each]


def _share(name: str, value: object) -> float:
    text = str(value)
    try:
        share = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ConfigError(f"{name} must be a share of the run's time, like 1% or 0.01; it is {text!r}")
    return share


def build(
    table: Mapping[str, object], *, select: Sequence[str] = (), ignore: Sequence[str] = (), hints: bool = False
) -> Config:
    """The command line over the file."""
    return Config(
        select=check(select or _strings(table, "select"), "select"),
        ignore=check([*ignore, *_strings(table, "ignore")], "ignore"),
        options=_options(table.get("rules", {})),
        hints=hints or bool(table.get("hints", False)),
    )


def per_file(table: Mapping[str, object]) -> dict[str, list[str]]:
    """``[tool.flatline.per-file-ignores]``: patterns of paths, each with the codes that are left out there."""
    given = table.get("per-file-ignores", {})
    if not isinstance(given, dict):
        raise ConfigError(f"[tool.flatline] per-file-ignores must be a table; it is {given!r}")
    found = {pattern: _strings(given, pattern) for pattern in given}
    rules = {pattern: [code for code in codes if code.upper() != "ALL"] for pattern, codes in found.items()}
    for pattern, codes in rules.items():
        check(codes, f"per-file-ignores {pattern!r}")
    return {pattern: [rule.code for rule in all_rules() if matches(rule, rules[pattern])] for pattern in found} | {
        pattern: ["ALL"] for pattern, codes in found.items() if len(rules[pattern]) < len(codes)
    }


def _strings(table: Mapping[str, object], name: str) -> list[str]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f'[tool.flatline] {name} must be a list of codes, like ["O12"]; it is {value!r}')
    return value


def _options(table: object) -> dict[str, dict[str, float]]:
    if not isinstance(table, dict):
        raise ConfigError(
            f"[tool.flatline.rules] must hold a table per rule, like [tool.flatline.rules.O5]; it is {table!r}"
        )
    return {key: _checked(key, options) for key, options in table.items()}


def _checked(key: str, options: object) -> dict[str, float]:
    check([key], "[tool.flatline.rules]")
    known = {name.replace("_", "-") for rule in all_rules() if matches(rule, (key,)) for name in rule.options()}
    if not isinstance(options, dict):
        raise ConfigError(f"[tool.flatline.rules.{key}] must be a table of options; it is {options!r}")
    for name, value in options.items():
        if name.replace("_", "-") not in known:
            raise ConfigError(
                f"[tool.flatline.rules.{key}] has no option {name!r}; it has {', '.join(sorted(known)) or 'none'}"
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"[tool.flatline.rules.{key}] {name} must be a number; it is {value!r}")
    return dict(options)


def silenced(finding: Finding, line: str) -> bool:
    """Whether ``# flatline: ignore[CODE]`` stands on the finding's line."""
    found = COMMENT.search(line)
    if not found:
        return False
    codes = {code.strip().lower() for code in (found[1] or "").split(",") if code.strip()}
    return not codes or finding.code.lower() in codes or finding.slug in codes
