"""Functions and classes of Python and of libraries: those that a training script is put together with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from flatline.readers.rehearsal import attributes, containers, modules, tensors
from flatline.readers.rehearsal.classes import above
from flatline.readers.rehearsal.machine import Machine
from flatline.readers.rehearsal.values import (
    UNKNOWN,
    Bound,
    Class,
    Env,
    File,
    Function,
    Library,
    Made,
    Method,
    Object,
    Partial,
    Place,
    Super,
    Tensor,
    Value,
    Weight,
    is_layer,
    is_module,
)
from flatline.readers.source._losses import FUNCTIONS

CALLER = "operator.methodcaller"
HARMLESS = ("torch.", "numpy.", "math.", "random.", "time.", "os.", "logging.", "json.", "warnings.", "sys.", "pathlib.", "PIL.",
            "builtins.", "datetime.", "tqdm.", "sklearn.", "matplotlib.", "pandas.", "re.", "shutil.", "torchvision.",
            "typing.", "yaml.", "collections.", "itertools.", "contextlib.", "statistics.", "string.", "gc.", "copy.",
            "scipy.", "cv2.", "albumentations.", "torchaudio.", "csv.", "pickle.", "hashlib.", "uuid.",
            "wandb.", "mlflow.")  # fmt: skip
NO_GRAPH = ("zeros", "ones", "rand", "randn", "randint", "tensor", "as_tensor", "from_numpy", "arange", "full", "empty", "eye",
            "linspace", "randperm", "zeros_like", "ones_like", "rand_like", "randn_like", "FloatTensor", "LongTensor")  # fmt: skip
KEEPS = ("weakref.proxy", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm",
         "builtins.iter", "torch.compile", "torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.jit.script",
         "copy.copy", "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "rich.progress.track")  # fmt: skip


def call(m: Machine, dotted: str, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    """What a function or class of a library gives."""
    does = CALLS.get(dotted)
    if does is not None:
        return does(m, args, kwargs, node, env)
    if dotted in KEEPS:
        return _kept(m, args)
    if dotted in FUNCTIONS:
        return m.watcher.loss(m, FUNCTIONS[dotted], args, kwargs, None, node, env)
    if is_layer(dotted):
        return modules.layer(m, dotted, args, kwargs, _made(m, dotted, args, kwargs, node, env))
    if dotted.startswith("torch.optim.") and dotted.rpartition(".")[2][:1].isupper():
        return _trainer(m, dotted, args, kwargs, node, env)
    if dotted.startswith(("torch.nn.utils.", "torch.utils.", "torchvision.", "torch.amp.", "torch.cuda.")):
        return _of_torch(m, dotted, args, kwargs, node, env)
    if dotted.startswith("torch."):
        return _function(m, dotted, args, kwargs, node, env)
    if not dotted.startswith(HARMLESS):
        m.watcher.unknown(m, Library(dotted), args, node, env)
        m.escape([*args, *kwargs.values()])
    m.escape(_to_be_called([*args, *kwargs.values()]))
    return _made(m, dotted, args, kwargs, node, env) if dotted.rpartition(".")[2][:1].isupper() else UNKNOWN


def _made(m: Machine, dotted: str, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Made:
    return Made(dotted, tuple(args), kwargs, Place(node, env))


def _to_be_called(values: Sequence[Value]) -> list[Value]:
    """What a library is handed to call it some time: ``stack.callback(model.train)``."""
    return [each for each in values if isinstance(each, (Function, Bound, Method, Partial))]


def _kept(m: Machine, args: Sequence[Value]) -> Value:
    first = args[0] if args else []
    if isinstance(first, (tuple, set, frozenset, dict)):
        return m.gathered(first)
    return list(first) if isinstance(first, list) else first


def _trainer(
    m: Machine, dotted: str, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """An optimizer, or a schedule."""
    made = _made(m, dotted, args, kwargs, node, env)
    if ".lr_scheduler." in dotted or ".swa_utils." in dotted:
        return made
    made.attributes["param_groups"] = modules.groups(made.given("params", 0))
    m.watcher.built(made)
    return made


def _of_torch(
    m: Machine, dotted: str, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """What torch has beside tensors."""
    name = dotted.rpartition(".")[2]
    if name == "random_split":
        parts = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else [UNKNOWN, UNKNOWN]
        return [_made(m, "torch.utils.data.Subset", args[:1], {}, node, env) for _ in parts]
    if name.startswith("clip_grad"):
        m.watcher.clipped(m, name, args, kwargs, node, env)
        return Tensor()
    if name in ("weight_norm", "spectral_norm", "parametrize"):
        m.escape(args)
        return args[0] if args else UNKNOWN
    if name[:1].isupper() or name == "autocast" or is_layer(dotted):
        made = _made(m, dotted, args, kwargs, node, env)
        return modules.layer(m, dotted, args, kwargs, made) if is_layer(dotted) else made
    return UNKNOWN


def _function(
    m: Machine, dotted: str, args: Sequence[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    name = dotted.rpartition(".")[2]
    if dotted.startswith("torch.nn.init.") or name in ("manual_seed", "save", "seed", "set_num_threads"):
        return args[0] if args else None
    if name in ("no_grad", "inference_mode", "set_grad_enabled", "enable_grad", "autocast", "device", "Generator"):
        return _made(m, dotted, args, kwargs, node, env)
    if name == "is_tensor" and args and isinstance(args[0], (Tensor, str, int, float, list, tuple, dict)):
        return isinstance(args[0], Tensor)
    if name in ("load", "is_available", "is_grad_enabled", "get_rank", "is_tensor", "numel"):
        return UNKNOWN
    if name in NO_GRAPH:
        return Tensor()
    return tensors.by_function(m, name, args, kwargs, node, env)


# --------------------------------------------------------------------------- methods


def method(
    m: Machine, value: Value, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """A method of something that is not of the project."""
    if isinstance(value, Object) and value.table is not None:
        value = value.table
    if isinstance(value, (list, dict, set, str, tuple)):
        return containers.method(m, value, name, args, kwargs, node, env)
    if isinstance(value, Tensor):
        return tensors.method(m, value, name, [*args, *kwargs.values()], node, env)
    if isinstance(value, Super):
        return _above(m, value, name, args, kwargs, node, env)
    if is_module(value):
        return modules.method(m, value, name, args, kwargs, node, env)
    if isinstance(value, Made) and value.dotted == containers.FILLS:
        return containers.method(m, value.parts, name, args, kwargs, node, env)
    if isinstance(value, Made):
        return _of_made(m, value, name, args, kwargs, node, env)
    if isinstance(value, Weight):
        if name == "requires_grad_":
            value.attributes["requires_grad"] = m.truth(args[0]) if args else True
            return value
        moved = name in ("to", "cuda", "float", "cpu")
        return value if moved else Tensor() if m.quiet else Tensor(reach=frozenset([value]))
    if isinstance(value, Class):
        return _of_class(m, value, name, args, kwargs, node, env)
    m.escape([value, *args, *kwargs.values()])
    return UNKNOWN


def _above(
    m: Machine, value: Super, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """``super().__init__()``, where a library is above."""
    made = value.receiver
    if name in ("__init__", "__init_subclass__", "__new__", "__setattr__", "__post_init__"):
        if isinstance(made, Object) and made.made_of.comes_from("torch.nn.Sequential", "torch.nn.ModuleList"):
            made.attributes.update({str(at): part for at, part in enumerate(args)})
        if name == "__init__" and isinstance(made, Object) and not made.is_module:
            made.attributes.setdefault("args", tuple(args))
        return None
    if is_module(made):
        return modules.method(m, made, name, args, kwargs, node, env)
    return UNKNOWN


def _of_class(
    m: Machine, value: Class, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """``nn.Module.__init__(self)``, and what the metaclass has."""
    m.escape([*args, *kwargs.values()])
    return UNKNOWN


def _of_made(
    m: Machine, value: Made, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    if value.dotted.startswith("torch.optim."):
        return _of_trainer(m, value, name, args, kwargs, node, env)
    if value.name == "GradScaler":
        return m.watcher.scaler(m, value, name, args, node, env)
    if value.dotted == "argparse.ArgumentParser":
        return containers.of_parser(m, value, name, args, kwargs)
    if name == "set_epoch":
        m.watcher.passes.told.add(id(value))
    if value.name == "DataLoader" or value.dotted.startswith(HARMLESS):
        m.escape(_to_be_called([*args, *kwargs.values()]))
        return UNKNOWN
    m.watcher.unknown(m, value, args, node, env)
    m.escape([value, *args, *kwargs.values()])
    return UNKNOWN


def _of_trainer(
    m: Machine, value: Made, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env
) -> Value:
    """A method of an optimizer or a schedule."""
    if ".lr_scheduler." in value.dotted:
        if name == "step":
            m.watcher.scheduled(m, value, args, kwargs, node, env)
        return UNKNOWN
    if name == "step":
        m.watcher.stepped(m, value, args, kwargs, node, env)
    elif name == "zero_grad":
        m.watcher.zeroed(m, value, node, env)
    elif name == "add_param_group":
        known = value.attributes["param_groups"]
        if isinstance(known, list):
            known += args
    elif name not in ("state_dict", "load_state_dict"):
        m.escape([value])
    return UNKNOWN


# --------------------------------------------------------------------------- functions of Python


def _isinstance(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    value, kinds = (args[0], args[1]) if len(args) == 2 else (UNKNOWN, UNKNOWN)
    found = [_is_of(value, kind) for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
    return True if True in found else UNKNOWN if None in found else False


def _is_of(value: Value, kind: Value) -> bool | None:
    if isinstance(kind, Class):
        if isinstance(value, Object):
            return None if value.made_of.open and kind not in value.made_of.order else kind in value.made_of.order
        return None if value is UNKNOWN else False
    if not isinstance(kind, Library):
        return None
    last = kind.dotted
    if last in PLAIN:
        return (
            isinstance(value, PLAIN[last])
            if isinstance(value, (str, int, float, list, tuple, dict, set, type(None)))
            else None
        )
    if isinstance(value, Made) and is_layer(value.dotted) and is_layer(last):
        return True if last in (value.dotted, "torch.nn.Module") else _kind_of(value.dotted, last)
    if isinstance(value, Made) and value.name == last.rpartition(".")[2]:
        return True
    if isinstance(value, Object):
        return value.made_of.comes_from(last) or (None if value.made_of.open else False)
    if isinstance(value, Weight):
        return last in ("torch.nn.Parameter", "torch.Tensor")
    return None


def _kind_of(one: str, other: str) -> bool | None:
    return None if "_" in other else False


PLAIN: dict[str, Any] = {"builtins.str": str, "builtins.int": int, "builtins.float": float, "builtins.list": list,
                         "builtins.tuple": tuple, "builtins.dict": dict, "builtins.bool": bool, "builtins.set": set}  # fmt: skip


def _getattr(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    if len(args) < 2 or not isinstance(args[1], str):
        return UNKNOWN
    if len(args) > 2 and isinstance(args[0], (Object, File)):
        known = args[0].attributes if isinstance(args[0], Object) else args[0].env.names
        plain = isinstance(args[0], File) or (not args[0].is_module and not args[0].made_of.open)
        if args[1] not in known and plain and not _in_class(args[0], args[1]):
            return args[2]
    return attributes.get(m, args[0], args[1], node, env)


def _in_class(value: Value, name: str) -> bool:
    return isinstance(value, Object) and any(
        isinstance(each, Class) and name in each.names for each in value.made_of.order
    )


def _hasattr(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    if len(args) == 2 and isinstance(args[0], Made) and args[0].name == "DistributedSampler":
        return True if args[1] == "set_epoch" else UNKNOWN
    if len(args) == 2 and isinstance(args[0], Object) and isinstance(args[1], str):
        known = args[1] in args[0].attributes or _in_class(args[0], args[1])
        above = any(isinstance(each, Library) or each is UNKNOWN for each in args[0].made_of.order)
        return True if known else UNKNOWN if above else False
    return UNKNOWN


def _setattr(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    if len(args) == 3 and isinstance(args[1], str):
        attributes.put(m, args[0], args[1], args[2], node, env)
    else:
        m.escape(args)
    return None


def _super(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return above(env)


def _type(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return args[0].made_of if len(args) == 1 and isinstance(args[0], Object) else UNKNOWN


def _id(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return id(args[0]) if args and isinstance(args[0], (Weight, Object, Made)) else UNKNOWN


def _partial(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return Partial(args[0], tuple(args[1:]), kwargs) if args else UNKNOWN


def _method_caller(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return _made(m, CALLER, args, kwargs, node, env)


def _wraps(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return Library("builtins.<same>")


def _same(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return args[0] if args else UNKNOWN


def _quiet(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return _made(m, "torch.no_grad", args, kwargs, node, env)


def _weight(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    made = Weight(_made(m, "torch.nn.Parameter", args, kwargs, node, env))
    if m.truth(kwargs.get("requires_grad", True)) is not True:
        made.attributes["requires_grad"] = kwargs["requires_grad"]
    return made


def _copied(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return containers.copied(args[0], {}) if args else UNKNOWN


def _called(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    """``callable(thing)``."""
    return True if args and isinstance(args[0], (Function, Bound, Class, Partial)) else UNKNOWN


def _map(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    if len(args) != 2:
        return UNKNOWN
    return [m.call(args[0], [each], {}, node, env) for each in m.gathered(args[1])]


def _zip(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return Made("zip", tuple(args))


def _enumerate(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    return Made("enumerate", tuple(args[:1])) if args else UNKNOWN


def _sum(m: Machine, args: list[Value], kwargs: dict[str, Value], node: ast.Call, env: Env) -> Value:
    parts = m.gathered(args[0]) if args else []
    numbers = all(isinstance(each, (int, float)) for each in parts)
    return sum(parts) if numbers else tensors.combined(parts) if any(isinstance(p, Tensor) for p in parts) else UNKNOWN


CALLS: dict[str, Callable[[Machine, list[Value], dict[str, Value], ast.Call, Env], Value]] = {
    "builtins.isinstance": _isinstance,
    "builtins.getattr": _getattr,
    "builtins.hasattr": _hasattr,
    "builtins.setattr": _setattr,
    "builtins.super": _super,
    "builtins.type": _type,
    "builtins.id": _id,
    "builtins.callable": _called,
    "builtins.map": _map,
    "builtins.zip": _zip,
    "builtins.enumerate": _enumerate,
    "builtins.sum": _sum,
    "builtins.<same>": _same,
    "functools.partial": _partial,
    "operator.methodcaller": _method_caller,
    "functools.wraps": _wraps,
    "copy.deepcopy": _copied,
    "torch.nn.Parameter": _weight,
    "torch.nn.parameter.Parameter": _weight,
    "torch.autograd.no_grad": _quiet,
    **containers.CALLS,
}
