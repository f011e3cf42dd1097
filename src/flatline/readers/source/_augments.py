"""Transforms that are drawn anew for every item, and the data sets that apply them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.readers.source._arguments import argument, argument_at, default
from flatline.readers.source._grown import grown
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._rounds import Known, told
from flatline.readers.source._scopes import Class, Scope, Use
from flatline.readers.source._things import Thing
from flatline.readers.source._turns import settled
from flatline.readers.source._values import Source

RANDOM = re.compile(
    r"torchvision\.transforms\.(v2\.)?(Random(?!Order|Choice|Apply|Invert|Grayscale)\w+|ColorJitter|RandAugment|"
    r"AutoAugment|TrivialAugmentWide|AugMix)"
    r"|albumentations\.(Random(?!Order|Scale\b)\w+|(Horizontal|Vertical)?Flip|Rotate|ShiftScaleRotate|Affine|ColorJitter|"
    r"HueSaturationValue|CoarseDropout|Cutout|GaussNoise|ElasticTransform|GridDistortion|Transpose)"
)
FLIPS = re.compile(r"Flip$|Transpose$")  # no chance is left in one of p=1
COMPOSED = re.compile(r"torchvision\.transforms\.(v2\.)?Compose|albumentations\.Compose|torch\.nn\.Sequential")
MADE_TO_TRAIN = "timm.data.create_transform"
SECOND = {"ImageFolder", "DatasetFolder"}  # what takes its transform right after the root
THIRD = {"CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "SVHN"}  # and after a split
DEEP = 4  # lists in lists
LIKELY = re.compile(r"Random|ColorJitter|Augment|albumentations|create_transform")


def random_transform(project: Project, dataset: Thing) -> tuple[ast.expr, Use] | None:
    """The first random transform that a data set was given."""
    given = _given(project, dataset)
    if given is None:
        return None
    scope, site = given.use.scope, project.came_by(dataset)
    settings: Known = {}
    if site is not None and scope is dataset.use.scope:
        settings = told(project, scope, *site, {})
        handed = argument(site[0], scope, given.node.id) if _is_handed(given) else None  # type: ignore[attr-defined]
        given, settings = (Source(handed, site[1]), {}) if handed is not None else (given, settings)
    elif dataset.call is not None and dataset.made_of is not None and scope is dataset.made_of.methods.get("__init__"):
        settings = told(project, scope, dataset.call, dataset.use, {})
    return first_random(project, *settled(project, given.node, given.use, settings))


def _is_handed(given: Source) -> bool:
    scope, name = given.use.scope, given.node.id if isinstance(given.node, ast.Name) else ""
    return name in scope.params and len(scope.bindings[name]) == 1


def first_random(project: Project, node: ast.expr, use: Use, settings: Known) -> tuple[ast.expr, Use] | None:
    """What is random in a transform, whichever it is."""
    found = [_first_of(project, thing, settings) for thing in project.things(node, use)]
    return found[0] if found and None not in found else None


def _first_of(project: Project, thing: Thing, settings: Known) -> tuple[ast.expr, Use] | None:
    if _is_random(project, thing) and thing.call is not None:
        return thing.call, thing.use
    for step in _steps(project, thing, settings) if COMPOSED.fullmatch(thing.name) else ():
        made = project.things(step.node, step.use)
        if made and all(_is_random(project, each) for each in made):
            return step.node, step.use
    return None


def _given(project: Project, dataset: Thing) -> Source | None:
    """The transform of a data set of torchvision, or of one whose items all go through it."""
    call, name = dataset.call, dataset.name.rpartition(".")[2]
    if call is None:
        return None
    if dataset.name.startswith("torchvision.datasets."):
        value = argument_at(call, "transform", 1 if name in SECOND else 2 if name in THIRD else -1)
        return Source(value, dataset.use) if value is not None else None
    start = project.method(dataset.made_of, "__init__") if dataset.made_of is not None else None
    held = _applied(project, dataset.made_of) if dataset.made_of is not None else None
    if start is None or held is None or not isinstance(held.node, ast.Name) or held.node.id not in start.params:
        return held
    if held.use.scope is not start or len(start.bindings[held.node.id]) != 1:
        return None
    value = argument(call, start, held.node.id)
    usual = default(start, held.node.id) if value is None and all(k.arg for k in call.keywords) else None
    return (
        Source(value, dataset.use)
        if value is not None
        else Source(usual, start.owner.use)
        if usual and start.owner
        else None
    )


def _applied(project: Project, owner: Class) -> Source | None:
    """What ``self.transform`` is, which every item goes through."""
    method = project.method(owner, "__getitem__")
    for call, use in method.calls if method is not None else ():
        func = call.func
        if method is None or not isinstance(func, ast.Attribute) or unparsed(func.value) not in method.own:
            continue
        bound = project.attributes(owner, func.attr)
        outside = project.set_from_outside(func.attr, owner.module)
        if len(bound) == 1 and not bound[0].index and bound[0].value is not None and not outside:
            if _always(method, use, unparsed(func)):
                return Source(bound[0].value, bound[0].use)
    return None


def _always(method: Scope, use: Use, name: str) -> bool:
    """Under no condition but that there is one: ``if self.transform is not None``."""
    tests = [method.choices[block].test if block in method.choices else None for block, _ in use.path]
    plain = (name, f"{name} is not None", f"{name} != None")
    return all(test is not None and unparsed(test) in plain for test in tests) and all(
        part == "body" for _, part in use.path
    )


def _steps(project: Project, thing: Thing, settings: Known) -> Iterator[Source]:
    """The steps that are certain to be in it."""
    for given in thing.call.args if thing.call is not None else ():
        yield from _parts(project, given, thing.use, settings, 0)


def _parts(project: Project, node: ast.expr, use: Use, settings: Known, depth: int) -> Iterator[Source]:
    if depth > DEEP:
        return
    if isinstance(node, ast.Starred):
        yield from _parts(project, node.value, use, settings, depth + 1)
    elif isinstance(node, (ast.List, ast.Tuple)):
        for each in node.elts:
            yield from _parts(project, each, use, settings, depth + 1)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for each in (node.left, node.right):
            yield from _parts(project, each, use, settings, depth + 1)
    elif isinstance(node, (ast.Name, ast.Attribute, ast.IfExp)):
        for value, place, inner in _behind(project, node, use, settings):
            yield from _parts(project, value, place, inner, depth + 1)
    elif isinstance(node, ast.Call):
        things = project.things(node, use)
        if len(things) == 1 and COMPOSED.fullmatch(things[0].name):
            yield from _steps(project, things[0], settings) if depth < DEEP else ()
        else:
            yield Source(node, use)


def _behind(project: Project, node: ast.expr, use: Use, settings: Known) -> Iterator[tuple[ast.expr, Use, Known]]:
    """The lists that a list grew by, or the one that a name stands for."""
    filled = grown(project, node, use, settings) if isinstance(node, ast.Name) else []
    yield from ((value, place, settings) for value, place in filled)
    made = settled(project, node, use, settings)
    taken = project.holding(node, use, 0) if isinstance(node, ast.Name) and made[0] is node else []
    value = taken[0].value if len(taken) == 1 and not taken[0].index and not taken[0].parameter else None
    if not filled and made[0] is not node:
        yield made
    elif not filled and value is not None:
        yield value, taken[0].use, settings


def _is_random(project: Project, thing: Thing) -> bool:
    if thing.call is None:
        return False
    named = {k.arg: project.constant(k.value, thing.use) for k in thing.call.keywords if k.arg}
    if thing.name == MADE_TO_TRAIN:
        trains = named.get("is_training")
        return trains is not None and trains.value is True
    chance = named.get("p") or (thing.call.args[0] if FLIPS.search(thing.name) and thing.call.args else None)
    share = chance.value if isinstance(chance, ast.Constant) else None
    certain = share == 0 or (share == 1 and FLIPS.search(thing.name) is not None)
    return not certain and RANDOM.fullmatch(thing.name) is not None
