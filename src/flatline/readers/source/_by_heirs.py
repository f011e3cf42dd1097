"""Tables that classes put themselves into as they are defined: ``__init_subclass__``."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Class, Module, Scope, Use
from flatline.readers.source._values import Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Key: TypeAlias = tuple[ast.expr, bool]
WORD = "__init_subclass__"


def put_by_heirs(project: Project, node: ast.expr, key: ast.Constant | None, use: Use) -> list[Source]:
    """The classes that a table of the class above them holds under a key, or all of them."""
    found: list[Source] = []
    if not project.recalled(project, WORD, lambda: [m for m in project.modules.values() if m and _has(m)]):
        return []
    for owner, method, (name, asked) in _fillers(project, node, use):
        for heir in project.heirs(owner):
            word = _word(heir, method, name)
            if word is None and not asked:
                return []
            if word is not None and (key is None or word == key.value):
                found.append(_of(heir))
    return found


def _fillers(project: Project, node: ast.expr, use: Use) -> list[tuple[Class, Scope, Key]]:
    """The classes whose ``__init_subclass__`` puts the new class into the table, and under what."""
    if isinstance(node, ast.Attribute):
        things = project.things(node.value, use) if isinstance(node.value, ast.Name) else ()
        owners, table = [t.made_of for t in things if t.made_of is not None and t.call is None], f".{node.attr}"
    else:
        owners, table = [*use.scope.module.classes.values()], unparsed(node)
    each = [(owner, method) for owner in owners if (method := owner.methods.get(WORD)) is not None]
    return [(owner, method, name) for owner, method in each if (name := _key(method, table)) is not None]


@cache
def _has(module: Module) -> bool:
    return WORD in module.whole


def _key(method: Scope, table: str) -> Key | None:
    """``name`` of ``Base.table[name] = cls``, and whether a class without a name is left out."""
    for use in method.statements:
        node = use.statement
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        text = unparsed(target.value) if isinstance(target, ast.Subscript) else ""
        if (
            isinstance(target, ast.Subscript)
            and (text[text.rfind(".") :] if "." in text else text) == table
            and isinstance(node, ast.Assign)
        ):
            tests = [unparsed(method.choices[block].test) for block, part in use.path if part == "body"]
            name = unparsed(target.slice)
            plain = all(test in (name, f"{name} is not None") for test in tests) and len(tests) == len(use.path)
            return (target.slice, bool(tests)) if plain and unparsed(node.value) == method.params[0] else None
    return None


def _word(heir: Class, method: Scope, name: ast.expr) -> object:
    """What a class is called in the table; None where that is not known."""
    text, own = unparsed(name), method.params[0]
    if text in (f"{own}.__name__", f"{own}.__name__.lower()"):
        return heir.node.name.lower() if text.endswith("lower()") else heir.node.name
    if isinstance(name, ast.Name):
        given: list[ast.expr | None] = [k.value for k in heir.node.keywords if k.arg == name.id]
    else:
        given = [b.value for b in heir.attributes.get(text.removeprefix(f"{own}."), ())]
    return given[0].value if len(given) == 1 and isinstance(given[0], ast.Constant) else None


def _of(heir: Class) -> Source:
    """A class, by its name at the end of its file."""
    top = heir.module.top
    return Source(ast.Name(heir.node.name, ast.Load()), Use(top, len(top.statements), (), heir.module.tree.body[-1]))
