"""Tensors of a file that a filter of the script's kept out of a model, for which they were made: their names do not fit."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flatline.events import Where
from flatline.sensors.sources import called_name, function_around, own_nodes
from flatline.sensors.tree import named_parameters

CHOOSING = ("startswith", "endswith", "removeprefix", "split", "partition", "match", "search")
LAYERS, SHARE = 4, 0.25  # of a model, that have another shape in the file: more than a stem, positions and a head
Shapes = Mapping[str, tuple[int, ...]]
Named = Mapping[str, tuple[int, tuple[int, ...]]]  # identity and shape of each


class KeptOut(NamedTuple):
    """What a load left at random, what it might have been filled with, and how the names differ."""

    missing: tuple[str, ...]
    left: tuple[str, ...]
    renamed: str  # "layers.>blocks."
    reshaped: tuple[str, ...] = ()  # names in both, with other shapes


def kept_out(module: nn.Module, state: Any, file: Named) -> KeptOut | None:
    """Of a model into which a part of a file went, by a dictionary with the names of both."""
    if not isinstance(state, Mapping):
        return None
    own = {name: p for name, p in named_parameters(module) if not is_lazy(p)}
    came = {identity for identity, _ in file.values()}
    loaded = [name for name in own if id(state.get(name)) in came]
    missing = tuple(name for name in own if _is_own(state.get(name), own[name]))
    given = {id(value) for value in state.values()}
    left = tuple(name for name, (identity, _) in file.items() if identity not in given)
    if not loaded or not missing or not left:
        return None
    renamed = renamed_part({name: tuple(own[name].shape) for name in missing}, {name: file[name][1] for name in left})
    reshaped = tuple(name for name in missing if name in file and file[name][1] != tuple(own[name].shape))
    wide = len({name.rpartition(".")[0] for name in reshaped}) >= LAYERS and len(reshaped) >= SHARE * len(own)
    return KeptOut(missing, left, renamed, reshaped) if (renamed or wide) and goes_on(list(own), missing) else None


def by_names_of_both(where: Where | None) -> bool:
    """``{k: v for k, v in file.items() if k in own}`` around this line, and no word that chooses a part on purpose."""
    scope = function_around(where.file, where.line) if where is not None else None
    nodes = list(own_nodes(scope)) if scope is not None else []
    asked = [node for node in nodes if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In)]
    chosen = any(isinstance(node.left, ast.Constant) for node in asked) or any(
        isinstance(node, ast.Call) and called_name(node) in CHOOSING for node in nodes
    )
    return not chosen and any(isinstance(node.left, ast.Name) for node in asked)


def was_checked(where: Where | None) -> bool:
    """The script would stop at other names than those that ``load_state_dict`` in this line missed: it means them."""
    scope = function_around(where.file, where.line) if where is not None else None
    if scope is None or where is None:
        return False
    nodes = list(own_nodes(scope))
    made = (n for n in nodes if isinstance(n, ast.Assign) and n.lineno <= where.line <= (n.end_lineno or n.lineno))
    loads = [n for n in made if isinstance(n.value, ast.Call) and called_name(n.value) == "load_state_dict"]
    names = {n.id for load in loads for target in load.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    tests = (test for node in nodes if (test := _stops_unless(node)) is not None)
    return any(isinstance(n, ast.Name) and n.id in names for test in tests for n in ast.walk(test))


def _stops_unless(node: ast.AST) -> ast.expr | None:
    """The condition of an ``assert``, or of an ``if`` that raises."""
    raises = isinstance(node, ast.If) and any(isinstance(n, ast.Raise) for part in node.body for n in ast.walk(part))
    return node.test if raises or isinstance(node, ast.Assert) else None  # type: ignore[attr-defined]


def _is_own(value: Any, parameter: Tensor) -> bool:
    """Nothing, or what the model had itself."""
    return value is None or (isinstance(value, Tensor) and value.data_ptr() == parameter.data_ptr())


def renamed_part(missing: Shapes, left: Shapes) -> str:
    """'layers.>blocks.' where most of what is missing is there under another first word, in the same shapes."""
    for mine in dict.fromkeys(_first(name) for name in missing):
        for other in dict.fromkeys(_first(name) for name in left):
            fits = [name for name in missing if name.startswith(mine) and _same(name, mine, other, missing, left)]
            if mine != other and 2 * len(fits) > len(missing):
                return f"{other}>{mine}"
    return ""


def _same(name: str, mine: str, other: str, missing: Shapes, left: Shapes) -> bool:
    return left.get(other + name.removeprefix(mine)) == missing[name]


def _first(name: str) -> str:
    return name.partition(".")[0] + "."


def goes_on(names: list[str], missing: tuple[str, ...]) -> bool:
    """The model goes on with loaded layers: what is missing is no head."""
    last = max((place for place, name in enumerate(names) if name not in missing), default=0)
    return any(name in missing for name in names[:last])
