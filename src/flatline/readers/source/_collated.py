"""Collate functions that change what they put together by chance, whatever the batch is for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from flatline.readers.source._arguments import argument_at
from flatline.readers.source._augments import first_random
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._partials import made_in
from flatline.readers.source._resolve import Project
from flatline.readers.source._rounds import Known, is_left_out, told, truth
from flatline.readers.source._scopes import Scope, Use
from flatline.readers.source._things import Thing
from flatline.readers.source._values import origins

LIKELY = re.compile(
    r"partial\(|mask_along_axis|(Time|Frequency)Masking|\broll\(|\.flip\(|Random\w|ColorJitter|albumentations"
)
MASKS = re.compile(
    r"torchaudio\.functional\.mask_along_axis(_iid)?|torchaudio\.functional\.functional\.mask_along_axis(_iid)?"
)
MASKING = re.compile(r"torchaudio\.transforms\.(TimeMasking|FrequencyMasking|SpecAugment)")
DRAWN = re.compile(r"(torch|random|np\.random|numpy\.random)\.(randint|randrange|random_integers)\(")
COIN = re.compile(r"((torch|np\.random|numpy\.random)\.rand\(\d?\)(\.item\(\))?|random\.random\(\)) [<>]=? [\w.]+")
CHANCE = re.compile(
    r"torch\.(rand|randn|randint|randperm|rand_like|randn_like|bernoulli|normal)|numpy\.random\.\w+"
    r"|random\.(random|randint|randrange|uniform|gauss|choice|choices|sample)"
)
FLIPS = re.compile(r"\.flip\(|\b(hflip|vflip|fliplr|flipud)\(|ImageOps\.mirror\(")


def collate_of(project: Project, loader: Thing) -> Thing | None:
    """The function that a loader puts its batches together with, perhaps a partial one, or an object that is called."""
    given = argument_at(loader.call, "collate_fn", 6) if loader.call is not None else None
    made = origins(project, given, loader.use) if given is not None else []
    node, use = (made[0].node, made[0].use) if len(made) == 1 else (given, loader.use)
    part = isinstance(node, ast.Call) and project.dotted(node.func, use) == "functools.partial" and bool(node.args)
    things = project.things(node.args[0] if part and isinstance(node, ast.Call) else node, use)
    return replace(things[0], given=node if part and isinstance(node, ast.Call) else None) if len(things) == 1 else None


def same(one: Thing | None, other: Thing | None) -> bool:
    """The same function with the same settings."""
    if one is None or other is None or one.identity() != other.identity():
        return False
    given = [unparsed(each.given) if each.given is not None else "" for each in (one, other)]
    return one.given is other.given or given[0] == given[1]


def switched(project: Project, collate: Thing, others: list[Thing | None]) -> tuple[ast.expr, Use] | None:
    """The first random change behind a switch that is on here, and off in another use of the function."""
    function = collate.function
    settings = _settings(project, collate)
    unused = [
        Thing(collate.name, collate.use, function=function, given=call) for call, _ in _partials(project, collate)
    ]
    off = [_settings(project, each) for each in (*others, *unused) if each is not None and each.function is function]
    for call, use in function.calls if function is not None and settings else ():
        on = _switches(use, settings)
        opposite = any(is_left_out(use, {name: each[name] for name in on if name in each}) for each in off)
        if on and opposite and (_changes(project, call, use) or _draws(project, call, use)):
            return call, use
    return None


def _partials(project: Project, collate: Thing) -> Iterator[tuple[ast.Call, Use]]:
    name = re.split("[.:]", collate.name)[-1]
    return (made for found, made in made_in(collate.use.scope.module) if found == name)


def _settings(project: Project, collate: Thing) -> Known:
    """What the parameters of the function are: switches that a partial gave, or that are so by default."""
    function, given = collate.function, collate.given
    if function is None or not isinstance(given, (ast.Call, type(None))):
        return {}
    call, use = project.merged(given, None, collate.use) if given is not None else (NO_ARGUMENTS, collate.use)
    found = told(project, function, call, use, {})
    return {name: value for name, value in found.items() if isinstance(value, bool)}


NO_ARGUMENTS = ast.Call(ast.Name("collate"), [], [])


def _switches(use: Use, settings: Known) -> list[str]:
    """The parameters that the conditions around a place ask, if they say that it is come to, and nothing else is asked."""
    choices = [use.scope.choices[block] for block, _ in use.path if block in use.scope.choices]
    if is_left_out(use, settings) or any(truth(each.test, settings, use) is None for each in choices):
        return []
    named = {n.id for each in choices for n in ast.walk(each.test) if isinstance(n, ast.Name)}
    return [name for name in settings if name in named]


def _draws(project: Project, call: ast.Call, use: Use) -> bool:
    """It draws a number, or calls a function of the user's that always does."""
    things = project.things(call.func, use)
    function = things[0].function if len(things) == 1 else None
    if function is None:
        return _is_draw(project, call, use)
    return any(_is_certain(each, inner) and _is_draw(project, each, inner) for each, inner in function.calls)


def _is_draw(project: Project, call: ast.Call, use: Use) -> bool:
    seeded = any(k.arg in ("generator", None) for k in call.keywords)
    return not seeded and CHANCE.fullmatch(project.dotted(call.func, use)) is not None


def by_chance(project: Project, collate: Thing) -> tuple[ast.expr, Use] | None:
    """The first random change that every batch goes through."""
    function = collate.function
    if collate.made_of is not None and collate.call is not None:
        function = project.method(collate.made_of, "__call__")
    for call, use in function.calls if function is not None else ():
        if _is_certain(call, use) and _changes(project, call, use):
            return call, use
    return _flipped(function) if function is not None else None


def _is_certain(call: ast.Call, use: Use) -> bool:
    """Under no condition."""
    parts = [n for n in walk(use.statement) if isinstance(n, (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension))]
    below = any(inner is call for n in parts if not isinstance(n, ast.comprehension) for inner in walk(n))
    return not below and not any(block in use.scope.choices or block in use.scope.matches for block, _ in use.path)


def _changes(project: Project, call: ast.Call, use: Use) -> bool:
    dotted = project.dotted(call.func, use)
    if MASKS.fullmatch(dotted):
        return True
    if dotted == "torch.roll" or (isinstance(call.func, ast.Attribute) and call.func.attr == "roll" and not dotted):
        given = argument_at(call, "shifts", 1 if dotted else 0)
        return given is not None and _is_drawn(given, use)
    if dotted.startswith(("torch.", "torchaudio.")):
        return False
    things = project.things(call.func, use)
    masks = [t.call is not None and MASKING.fullmatch(t.name) and not _is_switched(t.call) for t in things]
    return (bool(things) and all(masks)) or first_random(project, call.func, use, {}) is not None


def _is_switched(call: ast.Call) -> bool:
    """How often it does anything is said by a number, which may be 0."""
    return any(k.arg in (None, "p") for k in call.keywords)


def _is_drawn(node: ast.expr, use: Use) -> bool:
    """``int(torch.randint(-n, n, (1,)))``, perhaps behind a name."""
    if isinstance(node, ast.Name):
        found = use.scope.reaching(node.id, use) if node.id in use.scope.bindings else []
        value = found[0].value if len(found) == 1 and not found[0].index else None
        return value is not None and not isinstance(value, ast.Name) and _is_drawn(value, found[0].use)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int" and node.args:
        node = node.args[0]
    return isinstance(node, ast.Call) and DRAWN.match(unparsed(node)) is not None


def _flipped(function: Scope) -> tuple[ast.expr, Use] | None:
    """``if random.random() < 0.5: image = image.flip(-1)``."""
    for use in function.statements:
        node = use.statement
        plain = isinstance(node, ast.If) and not any(block in function.choices for block, _ in use.path)
        if plain and isinstance(node, ast.If) and COIN.fullmatch(unparsed(node.test)):
            if any(isinstance(each, ast.Assign) and FLIPS.search(unparsed(each.value)) for each in node.body):
                return node.test, use
    return None
