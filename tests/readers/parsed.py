"""Source as the linter reads it, without a rule."""

from flatline.readers.source import _project
from flatline.readers.source._files import Text, parse
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module


def parsed(head: str, code: str, **others: str):
    """The event of train.py beside other files of a project; all begin with the same lines."""
    project = Project()
    for name, source in {**others, "train": code}.items():
        text = Text(f"{name}.py", tuple(f"{head}{source}".split("\n")))
        project.add(Module(text, parse(text)), text.path)
    return _project.event(project, text)


def kinds_in(head: str, code: str, **others: str) -> list[str]:
    """Of its facts, in order."""
    return [fact.kind for fact in parsed(head, code, **others).facts]
