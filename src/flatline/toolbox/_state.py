"""What a probe touches is put back bit for bit."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Restore = Callable[[], None]


@contextmanager
def preserved(model: nn.Module, optimizer: Optimizer | None = None, batches: object = None) -> Iterator[None]:
    """Put everything back when the block ends, whatever happened in it, also after an exception.

    Parameters, buffers, ``requires_grad``, modes, gradients (the very same tensors), the state and settings of the
    optimizer, and the random generators of Python, NumPy, torch on every device, and of a DataLoader given as
    ``batches``. Inside the block ``grad`` of every parameter is None.

    Tensors that a module holds without registering them are not seen. The block needs memory for one copy of the
    weights, and of the optimizer's state.

    Args:
        model: its own parameters and buffers stay the same objects.
        optimizer: its parameters are kept, too, where they are not the model's.
        batches: a DataLoader whose order is drawn from generators of its own.

    Raises:
        ValueError: the model has lazy parameters that no forward pass has shaped yet.
    """
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in model.parameters()):
        raise ValueError("the model has lazy parameters without a value; call it on one batch first")
    with ExitStack() as stack:
        for restore in _restores(model, optimizer, batches):
            stack.callback(restore)
        yield


def _restores(model: nn.Module, optimizer: Optimizer | None, batches: object) -> Iterator[Restore]:
    parameters = all_parameters(model, optimizer)
    yield keep_random(batches)
    yield _keep_modes(model)
    yield _keep_gradients(parameters)  # put back after the values, whose dtype theirs must be
    yield _keep_values([*parameters, *model.buffers()])
    yield _keep_registered(model)
    if optimizer is not None:
        yield _keep_optimizer(optimizer)


def all_parameters(model: nn.Module, optimizer: Optimizer | None) -> list[Tensor]:
    """The parameters of a model and of an optimizer, each once."""
    groups: Iterable[dict[str, Any]] = optimizer.param_groups if optimizer is not None else ()
    found = [*model.parameters(), *(p for group in groups for p in group["params"])]
    return list({id(parameter): parameter for parameter in found}.values())


def _keep_values(tensors: list[Tensor]) -> Restore:
    kept = [(tensor, tensor.data, tensor.detach().clone()) for tensor in tensors]

    def restore() -> None:
        for tensor, data, value in kept:
            tensor.data = data  # the storage of before: a module may have been cast or moved
            data.copy_(value)

    return restore


def _keep_registered(model: nn.Module) -> Restore:
    """Which tensor stands behind which name: a forward may put a new one there."""
    plain = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    kept = [(module, dict(module._parameters), dict(module._buffers)) for module in plain]

    def restore() -> None:
        for module, parameters, buffers in kept:
            _refill(module._parameters, parameters)
            _refill(module._buffers, buffers)

    return restore


def _refill(target: dict[Any, Any], kept: dict[Any, Any]) -> None:
    target.clear()
    target.update(kept)


def _keep_modes(model: nn.Module) -> Restore:
    kept = [(module, module.training) for module in model.modules()]

    def restore() -> None:
        for module, training in kept:
            module.training = training

    return restore


def _keep_gradients(parameters: list[Tensor]) -> Restore:
    kept = [(parameter, parameter.grad, parameter.requires_grad) for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None

    def restore() -> None:
        for parameter, gradient, required in kept:
            parameter.grad = gradient
            parameter.requires_grad_(required)

    return restore


def _keep_optimizer(optimizer: Optimizer) -> Restore:
    tensors = _keep_values(list(_tensors([optimizer.state, [_settings(g) for g in optimizer.param_groups]])))
    attributes = dict(optimizer.__dict__)
    state = {parameter: _copied(entry) for parameter, entry in optimizer.state.items()}
    groups = [
        (group, {**_copied(_settings(group)), "params": list(group["params"])}) for group in optimizer.param_groups
    ]

    def restore() -> None:
        _refill(optimizer.__dict__, attributes)
        _refill(optimizer.state, state)
        optimizer.param_groups[:] = [group for group, _ in groups]
        for group, settings in groups:
            _refill(group, settings)
        tensors()

    return restore


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _tensors(value)


def _copied(tree: Any) -> Any:
    """A copy of what holds tensors; the tensors themselves stay the same objects."""
    if isinstance(tree, Tensor):
        return tree
    if type(tree) is dict:
        return {name: _copied(value) for name, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_copied(value) for value in tree)
    return copy.deepcopy(tree)


def keep_random(batches: object) -> Restore:
    """The state of every generator that random numbers are drawn from, those of a loader too: call it to put them back."""
    kept: list[Restore] = [
        _again(random.setstate, random.getstate()),
        _again(torch.set_rng_state, torch.get_rng_state()),
    ]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kept.append(_again(numpy.random.set_state, numpy.random.get_state()))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        kept.append(_again(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    if torch.backends.mps.is_available():
        kept.append(_again(torch.mps.set_rng_state, torch.mps.get_rng_state()))
    kept += [_again(generator.set_state, generator.get_state()) for generator in _generators(batches)]

    def restore() -> None:
        for put_back in kept:
            put_back()

    return restore


def _again(put_back: Callable[[Any], Any], state: Any) -> Restore:
    return lambda: put_back(state)


def _generators(batches: object) -> list[torch.Generator]:
    """The generators of a DataLoader and of its samplers, each once."""
    holders = [batches, getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)]
    holders.append(getattr(holders[2], "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
