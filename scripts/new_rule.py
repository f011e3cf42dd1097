"""Start a rule: write its file and its test.

    python scripts/new_rule.py optimization DoubleSoftmax O12

The two files run at once. Every TODO in them is to be replaced; the tests in tests/laws say what is left.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

RULE = '''"""$code."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LossComputed
from flatline.findings import Finding
from flatline.rules import Rule


class $name(Rule):
    """TODO: the defect in one line.

    Symptom
    -------
    TODO: what the user sees, in the words of somebody who does not know the cause yet.

    Root cause
    ----------
    TODO: why it happens.

    Fix
    ---
    TODO: the exact code, or the knob to turn.

    Example
    -------
    ::

        TODO()

    Use instead
    -----------
    ::

        TODO()

    Healthy look-alikes
    -------------------
    TODO: what looks the same and is right. Each of them is a near miss in the test.

    References
    ----------
    - TODO
    """

    code = "$code"
    severity = "warning"
    cause = "TODO: why, in one sentence"
    fix = "TODO: the exact code or knob"

    certain_after: int = 2  # TODO: where this number comes from

    def __init__(self) -> None:
        self._seen = 0

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """TODO: what is judged here."""
        self._seen = self._seen + 1 if event.kind == "TODO" else 0
        if self._seen >= self.certain_after:
            yield self.finding(event, f"TODO: seen in {self._seen} losses in a row", losses=self._seen)
'''

TEST = """from flatline.events import LossComputed, Where
from flatline.rules.$family.$module import $name
from flatline.testing import play

DEFECT = LossComputed(step=1, where=Where("train.py", 48), kind="TODO")


def test_fires():
    (finding,) = play($name, DEFECT, DEFECT)
    assert finding.code == "$code"
    assert finding.severity == "warning"
    assert finding.where == Where("train.py", 48)


def test_near_miss_healthy():
    assert play($name, LossComputed(), LossComputed()) == []


def test_near_miss_only_once():
    assert play($name, DEFECT, LossComputed(), DEFECT) == []
"""


class Refused(Exception):
    """The rule cannot be started; its text is one clear line."""


def snake(name: str) -> str:
    """``DoubleSoftmax`` -> ``double_softmax``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def taken(rules: Path) -> dict[str, Path]:
    """The code of every rule and its file."""
    files = (path for path in sorted(rules.rglob("*.py")) if path.name != "__init__.py")
    found = (
        (re.search(r'^    code = "(\w+)"', path.read_text(encoding="utf-8"), re.MULTILINE), path) for path in files
    )
    return {match[1]: path for match, path in found if match}


def check(root: Path, family: str, name: str, code: str) -> None:
    """Refuse what is not well formed, and what exists."""
    if not re.fullmatch(r"[a-z][a-z0-9]*", family):
        raise Refused(f"the family is the name of a folder in lower case, like optimization; it is {family!r}")
    if not re.fullmatch(r"([A-Z][a-z0-9]+){2,}", name):
        raise Refused(f"the name is two or more words in CamelCase, like NllWithoutLogSoftmax; it is {name!r}")
    if not re.fullmatch(r"[A-Z]{1,2}[1-9][0-9]*", code):
        raise Refused(f"a code is one or two letters and a number, like O28; it is {code!r}")
    rules = root / "src" / "flatline" / "rules"
    known = taken(rules)
    if code in known:
        raise Refused(f"{code} is taken by {known[code].relative_to(root)}; codes are never used twice")
    for path in (*rules.rglob(f"{snake(name)}.py"), *(root / "tests").rglob(f"test_{snake(name)}.py")):
        raise Refused(f"{path.relative_to(root)} exists")


def write(root: Path, family: str, name: str, code: str) -> list[Path]:
    """The files written: the rule and its test, and a new family's __init__.py."""
    module, folder = snake(name), root / "src" / "flatline" / "rules" / family
    words = {"family": family, "name": name, "module": module, "code": code}
    texts = {
        folder / f"{module}.py": Template(RULE).substitute(words),
        root / "tests" / "rules" / family / f"test_{module}.py": Template(TEST).substitute(words),
    }
    if not (folder / "__init__.py").exists():
        texts[folder / "__init__.py"] = f'"""{family.capitalize()}."""\n'
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or say in one line why not."""
    parser = argparse.ArgumentParser(description="Start a rule: write its file and its test.")
    parser.add_argument("family", help="the folder under rules/, like optimization")
    parser.add_argument("name", help="the class, named after the defect: DoubleSoftmax")
    parser.add_argument("code", help="like O28; `flatline rules` lists those that are taken")
    given = parser.parse_args(arguments)
    root = Path(__file__).resolve().parents[1]
    try:
        check(root, given.family, given.name, given.code)
    except Refused as why:
        print(f"new_rule: {why}", file=sys.stderr)
        return 2
    for path in write(root, given.family, given.name, given.code):
        print(path.relative_to(root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
