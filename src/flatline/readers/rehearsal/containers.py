"""Lists, tables, texts and numbers, and what a command line is read into."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from flatline.readers.rehearsal.machine import Machine
from flatline.readers.rehearsal.values import (
    MORE,
    UNKNOWN,
    Class,
    Env,
    Function,
    Library,
    Made,
    Object,
    Value,
    Weight,
    is_key,
)

TEXT = ("lower", "upper", "strip", "startswith", "endswith", "split", "join", "replace", "rpartition", "partition", "title",
        "lstrip", "rstrip", "removeprefix", "removesuffix", "capitalize", "isdigit", "count", "find")  # fmt: skip
SHOWS = ("items", "keys", "values")
LARGE = 1_000
BATCHES = "<batches>"
FILLS = "collections.defaultdict"


def method(
    m: Machine, value: Value, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """A method of a list, a table, a set or a text."""
    if isinstance(value, str):
        return _of_text(value, name, args)
    if isinstance(value, dict):
        return _of_table(m, value, name, args, kwargs)
    if isinstance(value, list):
        return _sort(m, value, args, kwargs, node, env) if name == "sort" else _of_list(m, value, name, args, node, env)
    if isinstance(value, set):
        return _of_set(value, name, args)
    return UNKNOWN


def _of_text(value: str, name: str, args: list[Value]) -> Value:
    plain = all(isinstance(each, (str, int)) or (isinstance(each, (list, tuple)) and _texts(each)) for each in args)
    long = any(len(each) > LARGE for each in (value, *args) if isinstance(each, (str, list, tuple)))
    if name not in TEXT or not plain or long or MORE in args:
        return UNKNOWN
    try:
        return getattr(value, name)(*args)
    except (TypeError, ValueError):
        return UNKNOWN


def _texts(value: Value) -> bool:
    return all(isinstance(each, str) for each in value)


def _of_table(m: Machine, value: dict[Value, Value], name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if MORE in value and name in SHOWS:
        return UNKNOWN
    if name in ("items", "keys", "values"):
        found: list[Value] = list(getattr(value, name)())
        return [tuple(each) for each in found] if name == "items" else found
    if name in ("get", "pop", "setdefault") and args and is_key(args[0]):
        return _asked(m, value, name, args)
    if name == "update":
        for given in (*args, kwargs):
            join(value, given)
        return None
    if name == "copy":
        return dict(value)
    if name == "clear":
        value.clear()
        return None
    m.escape([value])
    return UNKNOWN


def join(table: dict[Value, Value], given: Value) -> None:
    """``table.update(given)``: what is not known may stand in the place of everything."""
    table.update(given if isinstance(given, dict) else {**dict.fromkeys(table, UNKNOWN), MORE: UNKNOWN})


def entry(m: Machine, value: dict[Value, Value], key: Value) -> Value:
    """What a table holds under a key; where that is not known, the one class or function in it."""
    if MORE in value or not is_key(key) or isinstance(key, slice):
        return UNKNOWN
    (first, *more) = value.values() or [UNKNOWN]
    alone = not more and isinstance(first, (Class, Function)) and m.closed
    return first if key is UNKNOWN and alone else value.get(key, UNKNOWN)


def _asked(m: Machine, value: dict[Value, Value], name: str, args: list[Value]) -> Value:
    if args[0] is UNKNOWN or MORE in value:
        return entry(m, value, args[0]) if name == "get" and len(args) == 1 else UNKNOWN
    if name == "setdefault" and len(args) > 1 and args[0] not in value:
        m.born[id(args[1])] = m.born.get(id(value), len(m.loops))  # as old as the table that holds it from now on
    usual = args[1] if len(args) > 1 else None if name != "pop" else UNKNOWN
    return value.get(args[0], usual) if name == "get" else getattr(value, name)(args[0], usual)


def _of_list(m: Machine, value: list[Value], name: str, args: list[Value], node: ast.Call, env: Env) -> Value:
    if name == "append" and len(args) == 1:
        m.watcher.appended(m, value, args[0], node, env)
        if len(value) < LARGE:
            value.append(args[0])
        return None
    if name == "extend" and args and isinstance(args[0], (list, tuple)):
        value += args[0][: LARGE - len(value)] if len(value) < LARGE else []
        return None
    if name == "insert" and len(args) == 2 and isinstance(args[0], int) and len(value) < LARGE:
        value.insert(args[0], args[1])
        return None
    if name == "pop" and value:
        return value.pop(args[0] if args and isinstance(args[0], int) and abs(args[0]) < len(value) else -1)
    if name == "copy":
        return list(value)
    if name == "clear":
        value.clear()
        return None
    if name == "reverse":
        value.reverse()
        return None
    if name in ("index", "count"):
        return UNKNOWN
    m.escape([value])
    return UNKNOWN


def _sort(
    m: Machine, value: list[Value], args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    found = _sorted(m, [value, *args], kwargs, node, env)
    value[:] = found if isinstance(found, list) else [UNKNOWN]
    return None


def _of_set(value: set[Value], name: str, args: list[Value]) -> Value:
    if name == "add" and args and is_key(args[0]):
        value.add(args[0])
        return None
    if name == "update" and args and isinstance(args[0], (list, tuple, set)):
        value.update(each for each in args[0] if is_key(each))
        return None
    return UNKNOWN


# --------------------------------------------------------------------------- making them


def _sorted(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    """In the order of keys that are known; else nothing is known of it."""
    values = m.gathered(args[0]) if args else []
    by, turned = kwargs.get("key"), m.truth(kwargs.get("reverse", False))
    keys = [m.call(by, [each], {}, node, env) for each in values] if by is not None else values
    whole = all(isinstance(key, (int, float)) for key in keys) or all(isinstance(key, str) for key in keys)
    if not whole or turned is None or MORE in values:
        m.escape(values)
        return UNKNOWN
    order = sorted(range(len(values)), key=lambda at: keys[at], reverse=turned)
    return [values[at] for at in order]


def _reversed(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return m.gathered(args[0])[::-1] if args and args[0] is not UNKNOWN else UNKNOWN


def _dict(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    found: dict[Value, Value] = {}
    for given in args:
        if isinstance(given, dict):
            found.update(given)
        elif isinstance(given, (list, tuple)) and all(isinstance(p, (tuple, list)) and len(p) == 2 for p in given):
            found.update({key: value for key, value in given if is_key(key)})
        else:
            found[MORE] = UNKNOWN
    return m.begun({**found, **kwargs})


def _defaults(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    parts = dict(args[1]) if len(args) > 1 and isinstance(args[1], dict) else {}
    return m.begun(Made(FILLS, tuple(args), kwargs, parts=parts))


def _tuple(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    found = _list(m, args, kwargs, node, env)
    return tuple(found) if isinstance(found, list) else found


def _list(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    if not args:
        return []
    if isinstance(args[0], range):
        return list(args[0][:LARGE])
    return UNKNOWN if args[0] is UNKNOWN else m.gathered(args[0])


def _set(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    found = _list(m, args, kwargs, node, env)
    return {each for each in found if is_key(each)} if isinstance(found, list) else found


def _range(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    whole = args and all(isinstance(each, int) for each in args) and len(args) <= 3
    return range(*args) if whole and (len(args) < 3 or args[2]) else UNKNOWN


def _len(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    value = args[0] if args else UNKNOWN
    if isinstance(value, Made) and value.name == "DataLoader":
        return Made(BATCHES)
    value = value.parts if isinstance(value, Made) and isinstance(value.parts, (list, dict)) else value
    return len(value) if isinstance(value, (list, tuple, dict, set, str, range)) and MORE not in value else UNKNOWN


def is_batches(value: Value) -> bool:
    """How many batches a loader serves, or what is computed from that."""
    return isinstance(value, Made) and value.dotted == BATCHES


def _number(kind: type) -> Callable[..., Value]:
    def convert(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
        value = args[0] if args else UNKNOWN
        if is_batches(value):
            return value
        try:
            return kind(value) if isinstance(value, (int, float, str)) and len(str(value)) < LARGE else UNKNOWN
        except (ValueError, OverflowError):
            return UNKNOWN

    return convert


def _bool(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    found = m.truth(args[0]) if args else False
    return UNKNOWN if found is None else found


def _extreme(largest: bool) -> Callable[..., Value]:
    def choose(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
        given = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        if any(map(is_batches, given)):
            return Made(BATCHES)
        if not given or kwargs or not all(isinstance(each, (int, float)) for each in given):
            return UNKNOWN
        return max(given) if largest else min(given)

    return choose


def _space(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    """``SimpleNamespace(lr=0.1)``."""
    return Made("types.SimpleNamespace", (), kwargs, attributes=dict(kwargs))


def _field(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return Made("dataclasses.field", (), kwargs)


def _method_call(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return None


CALLS: dict[str, Callable[[Machine, list[Value], dict[str, Value], ast.Call, Env], Value]] = {
    "builtins.dict": _dict,
    "collections.OrderedDict": _dict,
    "collections.defaultdict": _defaults,
    "builtins.list": _list,
    "builtins.sorted": _sorted,
    "builtins.reversed": _reversed,
    "builtins.tuple": _tuple,
    "builtins.set": _set,
    "builtins.frozenset": _set,
    "builtins.range": _range,
    "tqdm.trange": _range,
    "builtins.len": _len,
    "builtins.int": _number(int),
    "builtins.float": _number(float),
    "builtins.str": _number(str),
    "builtins.bool": _bool,
    "builtins.max": _extreme(largest=True),
    "builtins.min": _extreme(largest=False),
    "types.SimpleNamespace": _space,
    "argparse.Namespace": _space,
    "dataclasses.field": _field,
    "builtins.print": _method_call,
}


# --------------------------------------------------------------------------- the command line


def of_parser(m: Machine, value: Made, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``parser.add_argument(...)``, and the settings of a run that gives none."""
    options: dict[str, Value] = value.attributes.setdefault("options", {})
    if name == "add_argument":
        names = [each.lstrip("-").replace("-", "_") for each in args if isinstance(each, str)]
        long = [n for n, each in zip(names, args, strict=False) if isinstance(each, str) and each.startswith("--")]
        given = kwargs.get("dest", long[0] if long else names[0] if names else "")
        action = kwargs.get("action")
        usual: Value = (
            {"store_true": False, "store_false": True}.get(action, UNKNOWN) if isinstance(action, str) else UNKNOWN
        )
        needed = m.truth(kwargs.get("required", False)) is not False or not long
        if usual is UNKNOWN and not needed and not action:
            usual = None
        options[given] = kwargs.get("default", usual)
        return UNKNOWN
    if name in ("parse_args", "parse_known_args"):
        found = Made("argparse.Namespace", attributes=dict(options))
        return found if name == "parse_args" else (found, [])
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return value
    if name == "set_defaults":
        options.update(kwargs)
        return None
    m.escape([value])
    return UNKNOWN


# --------------------------------------------------------------------------- copies


def copied(value: Value, seen: dict[int, Value]) -> Value:
    """A deep copy: its weights are others."""
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, (Class, Function, Library)) or value is UNKNOWN:
        return value
    made = _shell(value)
    seen[id(value)] = made
    if isinstance(value, dict):
        made.update({key: copied(each, seen) for key, each in value.items()})
    elif isinstance(value, (list, set)):
        (made.extend if isinstance(value, list) else made.update)(copied(each, seen) for each in value)
    elif isinstance(value, (Object, Made, Weight)):
        made.attributes = {key: copied(each, seen) for key, each in value.attributes.items()}
        if isinstance(value, Made):
            made.parts = copied(value.parts, seen) if isinstance(value.parts, (list, dict)) else value.parts
    return made


def _shell(value: Value) -> Any:
    if isinstance(value, (dict, list, set)):
        return type(value)()
    if isinstance(value, Object):
        return Object(value.made_of)
    if isinstance(value, Made):
        return Made(value.dotted, value.args, value.kwargs, value.place)
    if isinstance(value, Weight):
        return Weight(value.layer, value.name)
    return value
