"""Which parameters are trained, and how fast: groups, freezing and unfreezing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

NORMS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm)
NORMS += (nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()

_places: WeakKeyDictionary[Optimizer, dict[int, tuple[int, int]]] = WeakKeyDictionary()


def param_groups(
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.01,
    no_decay: Iterable[str] = (),
    layers: Sequence[nn.Module] = (),
    layer_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """Make the groups of an optimizer: no decay for biases and norms, lower rates near the input.

    Parameters with two or more dimensions decay, those with fewer do not, nor do those of norms. Frozen ones are left
    out. Layer ``i`` of ``n`` has the rate ``lr * layer_decay ** (n - i)``, with ``i`` from 0 at the input; what
    is in no layer, such as the head, has ``lr``. Each group has a ``name`` beside what ``torch.optim`` wants.

    Args:
        model: any module.
        lr: the highest rate.
        weight_decay: of the parameters that decay. Meant for AdamW: Adam's own is not decoupled.
        no_decay: parts of names that do not decay either, such as "embedding".
        layers: modules of the model from input to output, such as ``[model.embed, *model.blocks]``.
        layer_decay: ratio of the rates of neighbouring layers, often 0.65 to 0.95; 1.0 for one rate.

    Raises:
        ValueError: nothing is trainable, a layer is not in the model, or a parameter is in two layers.

    Source: A. Karpathy, nanoGPT (dimensions); J. Howard and S. Ruder, ULMFiT (2018), arXiv:1801.06146, and H. Bao
    et al., BEiT (2021), arXiv:2106.08254 (layer-wise rates).
    """
    depths = _depths(model, layers)
    steady = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters(recurse=False)}
    excluded = tuple(no_decay)
    found: dict[tuple[int, bool], list[Tensor]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = parameter.dim() >= 2 and id(parameter) not in steady and not any(e in name for e in excluded)
            found[depths.get(id(parameter), len(layers)), decays].append(parameter)
    if not found:
        raise ValueError("nothing in the model is trainable; call unfreeze(model) or requires_grad_(True) first")
    return [
        {
            "params": found[depth, decays],
            "lr": lr * layer_decay ** (len(layers) - depth),
            "weight_decay": weight_decay if decays else 0.0,
            "name": f"{f'layer {depth}' if depth < len(layers) else 'rest'}, {'decay' if decays else 'no decay'}",
        }
        for depth, decays in sorted(found)
    ]


def _depths(model: nn.Module, layers: Sequence[nn.Module]) -> dict[int, int]:
    own = {id(parameter) for parameter in model.parameters()}
    depths: dict[int, int] = {}
    for depth, layer in enumerate(layers):
        for parameter in layer.parameters():
            if id(parameter) not in own:
                raise ValueError(f"layer {depth} ({type(layer).__name__}) is not a part of the model")
            if depths.setdefault(id(parameter), depth) != depth:
                raise ValueError(
                    f"a parameter is in the layers {depths[id(parameter)]} and {depth}; list each part once"
                )
    return depths


def freeze(module: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Freeze a module in all three ways: no gradients, no updates of norm statistics, no place in the optimizer.

    ``requires_grad`` alone leaves two doors open: norms in train mode go on averaging their statistics, and an
    optimizer moves parameters by decay and momentum. Norms with statistics stay in eval mode through any
    ``model.train()``, by a forward pre-hook that can be pickled. Dropout is left as it is. Done twice, it is done once.

    Args:
        module: a part of the model, or all of it.
        optimizer: its groups lose the parameters and their state. A group may become empty, schedulers keep working.

    Source: torch.nn.BatchNorm2d (statistics), torch.optim (decay and momentum where the gradient is zero).
    """
    for parameter in module.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    for norm in _with_statistics(module):
        if not any(isinstance(hook, _StayInEval) for hook in norm._forward_pre_hooks.values()):
            norm.register_forward_pre_hook(_StayInEval(norm.training))
        norm.eval()
    if optimizer is not None:
        _take_out(optimizer, {id(parameter) for parameter in module.parameters()})


def unfreeze(module: nn.Module, optimizer: Optimizer | None = None, **settings: Any) -> None:
    """Undo :func:`freeze`: gradients on, norms in the mode of the module around them, back in the optimizer.

    Args:
        module: what shall be trained again.
        optimizer: gets the parameters back where ``freeze`` took them from, else in its first group.
        settings: such as ``lr=1e-5``; with any of them the parameters form a new group, as ``add_param_group`` makes it.
    """
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    for norm in _with_statistics(module):
        hooks = {key: hook for key, hook in norm._forward_pre_hooks.items() if isinstance(hook, _StayInEval)}
        for key, hook in hooks.items():
            del norm._forward_pre_hooks[key]
            norm.train(hook.training if norm is module else module.training)
    if optimizer is not None:
        _put_in(optimizer, list(module.parameters()), settings)


def _with_statistics(module: nn.Module) -> list[_NormBase]:
    return [m for m in module.modules() if isinstance(m, _NormBase) and m.running_mean is not None]


class _StayInEval:
    """A hook that can be pickled and copied with its module."""

    def __init__(self, training: bool) -> None:
        self.training = training  # the mode when it was frozen

    def __call__(self, module: nn.Module, args: Any) -> None:
        module.training = False


def _take_out(optimizer: Optimizer, frozen: set[int]) -> None:
    places = _places.setdefault(optimizer, {})
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            if id(parameter) in frozen:
                places[id(parameter)] = (index, position)
                optimizer.state.pop(parameter, None)
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in frozen]


def _put_in(optimizer: Optimizer, parameters: list[nn.Parameter], settings: dict[str, Any]) -> None:
    places = _places.get(optimizer, {})
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    new = [(places.pop(id(p), (0, 1 << 62)), p) for p in parameters if id(p) not in held]
    if settings and new:
        optimizer.add_param_group({"params": [parameter for _, parameter in new], **settings})
        return
    for (index, position), parameter in sorted(new, key=lambda place: place[0]):
        optimizer.param_groups[index]["params"].insert(position, parameter)
