"""First values of weights, and what they make of activations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.utils.hooks import RemovableHandle

from flatline.toolbox._losses import LossFn
from flatline.toolbox._state import preserved
from flatline.toolbox.groups import NORMS

Module = TypeVar("Module", bound=nn.Module)
Nonlinearity = Literal["linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]

MATRICES = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
GREW = 100.0  # times the first layer's: two decades, as a chain of ten sound layers stays within one
DEAD = 0.99  # share of zeros behind a ReLU; one half is its design
SATURATED = 0.99  # of a tanh, and as far from the middle of a sigmoid


def init_xavier_(module: Module, *, gain: float = 1.0) -> Module:
    """Give linear and convolutional weights the variance ``gain ** 2 * 2 / (fan_in + fan_out)``; for tanh and sigmoid.

    Biases become 0, norms 1 and 0. Embeddings and other parameters stay. In place, uniform distribution.

    Args:
        module: all its submodules, too.
        gain: as ``nn.init.calculate_gain`` gives it.

    Returns:
        The module.

    Source: X. Glorot and Y. Bengio, Understanding the difficulty of training deep feedforward neural networks (2010).
    """
    for part in module.modules():
        if isinstance(part, MATRICES):
            init.xavier_uniform_(part.weight, gain=gain)
        _plain(part)
    return module


def init_kaiming_(module: Module, *, nonlinearity: Nonlinearity = "relu", negative_slope: float = 0.0) -> Module:
    """Give linear and convolutional weights the variance ``gain ** 2 / fan_in``: 2 / fan_in for ReLU.

    torch's own start has 1 / (3 fan_in), whatever follows. Biases become 0, norms 1 and 0. Embeddings and other
    parameters stay. In place, normal distribution.

    Args:
        module: all its submodules, too.
        nonlinearity: what follows the weights.
        negative_slope: of a leaky ReLU.

    Returns:
        The module.

    Source: K. He et al., Delving Deep into Rectifiers (2015), arXiv:1502.01852.
    """
    for part in module.modules():
        if isinstance(part, MATRICES):
            init.kaiming_normal_(part.weight, a=negative_slope, nonlinearity=nonlinearity)
        _plain(part)
    return module


def init_transformer_(
    module: Module, *, std: float = 0.02, residual: Iterable[str] = (), branches: int | None = None
) -> Module:
    """Draw all matrices and embeddings from N(0, std), those that end a residual branch from less.

    Each branch adds its variance to the stream, so its last matrix has ``std / sqrt(branches)``. Biases become 0, norms 1
    and 0, rows of padding 0. In place.

    Args:
        module: all its submodules, too.
        std: 0.02 in GPT-2 and BERT.
        residual: how the names of the last matrices of branches end, such as ("out_proj", "linear2").
        branches: how many branches there are; the matrices named so if None.

    Returns:
        The module.

    Raises:
        ValueError: no module has a name that ends so.

    Source: A. Radford et al., Language Models are Unsupervised Multitask Learners (2019), section 2.3.
    """
    ends = tuple(residual)
    last = {id(m) for name, m in module.named_modules() if ends and name.endswith(ends) and isinstance(m, MATRICES)}
    if ends and not last:
        raise ValueError(f"no linear or convolutional module has a name that ends in {ends}; see named_modules()")
    smaller = std / math.sqrt(branches or len(last) or 1)
    for part in module.modules():
        _plain(part)
        if isinstance(part, (*MATRICES, nn.Embedding)):
            init.normal_(part.weight, std=smaller if id(part) in last else std)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            part.weight.data[part.padding_idx].zero_()
        if isinstance(part, nn.MultiheadAttention):
            _attention(part, std)
    return module


def _plain(module: nn.Module) -> None:
    """Biases 0; norms 1 and 0."""
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(module, NORMS):
            init.constant_(parameter, 1.0 if name == "weight" else 0.0)
        elif isinstance(module, MATRICES) and name == "bias":
            init.zeros_(parameter)


def _attention(module: nn.MultiheadAttention, std: float) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        (init.zeros_ if "bias" in name else partial(init.normal_, std=std))(parameter)


@dataclass(frozen=True)
class ActivationRow:
    """The output of one module, over all its elements and calls.

    Attributes:
        name: as in ``named_modules``.
        kind: its class.
        mean: of the output.
        rms: root of the mean square of the output.
        gain: ``rms`` of the output over that of the input; nan where the input is 0 or no float.
        zeros: share of elements that are 0.
        saturated: share of elements at the ends of a tanh or sigmoid, else 0.
        finite: no nan and no inf.
        zero_by_design: its weights are all 0.
    """

    name: str
    kind: str
    mean: float
    rms: float
    gain: float
    zeros: float
    saturated: float
    finite: bool
    zero_by_design: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})  mean {self.mean:.3g}  rms {self.rms:.3g}  gain {self.gain:.3g}  zeros {self.zeros:.0%}"


@dataclass(frozen=True)
class ActivationResult:
    """The outputs of all innermost modules that ran, in the order of their first calls.

    Attributes:
        rows: one for each module.
    """

    rows: tuple[ActivationRow, ...]

    @property
    def exploding(self) -> list[str]:
        """Modules whose output is 100 times larger than the first's."""
        return [row.name for row in self._sound if row.rms > GREW * self._sound[0].rms]

    @property
    def vanishing(self) -> list[str]:
        """Modules whose output is 100 times smaller than the first's, but for those with weights of 0."""
        return [row.name for row in self._sound if row.rms < self._sound[0].rms / GREW]

    @property
    def dead(self) -> list[str]:
        """Rectifiers that let next to nothing through."""
        return [row.name for row in self._sound if row.zeros > DEAD and row.kind in ("ReLU", "ReLU6")]

    @property
    def saturated(self) -> list[str]:
        """Modules of tanh and sigmoid, half of whose outputs are at the ends."""
        return [row.name for row in self.rows if row.saturated > 0.5]

    @property
    def non_finite(self) -> list[str]:
        """Modules with nan or inf in their output."""
        return [row.name for row in self.rows if not row.finite]

    @property
    def ok(self) -> bool:
        """Nothing of the kind."""
        return not (self.exploding or self.vanishing or self.dead or self.saturated or self.non_finite)

    @property
    def _sound(self) -> list[ActivationRow]:
        return [row for row in self.rows if row.finite and not row.zero_by_design]

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows))


def check_activations(model: nn.Module, batch: Any, loss_fn: LossFn) -> ActivationResult:
    """Run one forward pass, measure the output of every innermost module, and put everything back.

    With a scheme that suits its nonlinearity a deep network keeps the scale: the gain of a linear layer is about 1 for
    Xavier and tanh, and 1.4 for Kaiming before a ReLU, which takes it off again. Take standardised inputs.

    Args:
        model: fresh, in the mode in which it is trained; not compiled.
        batch: whatever ``loss_fn`` takes, on the model's device.
        loss_fn: ``loss_fn(model, batch) -> Tensor``; its value is not used. See :func:`supervised`.

    Raises:
        ValueError: no module without submodules was called.

    Source: D. Mishkin and J. Matas, All you need is a good init (2015), arXiv:1511.06422.
    """
    found: dict[str, ActivationRow] = {}
    leaves = [(name, module) for name, module in model.named_modules() if not any(True for _ in module.children())]
    with preserved(model):
        handles = [m.register_forward_hook(partial(_measure, found, name or "model")) for name, m in leaves]
        try:
            loss_fn(model, batch)
        finally:
            _remove(handles)
    if not found:
        raise ValueError("no module was called; loss_fn must call the model that was given to it")
    return ActivationResult(tuple(found.values()))


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _measure(found: dict[str, ActivationRow], name: str, module: nn.Module, args: Any, output: Any) -> None:
    output = output[0] if isinstance(output, tuple) and output else output
    if name in found or not isinstance(output, Tensor) or not output.is_floating_point() or not output.numel():
        return
    wide = output.detach().float()
    rms = float(wide.square().mean().sqrt())
    given = args[0] if args and isinstance(args[0], Tensor) and args[0].is_floating_point() else None
    before = math.nan if given is None else float(given.detach().float().square().mean().sqrt())
    weight = getattr(module, "weight", None)
    found[name] = ActivationRow(
        name,
        type(module).__name__,
        float(wide.mean()),
        rms,
        rms / before if before else math.nan,
        float((wide == 0).float().mean()),
        _ends(module, wide),
        bool(torch.isfinite(wide).all()),
        isinstance(weight, Tensor) and not bool(weight.any()),
    )


def _ends(module: nn.Module, output: Tensor) -> float:
    if not isinstance(module, (nn.Tanh, nn.Sigmoid)):
        return 0.0
    centred = output if isinstance(module, nn.Tanh) else 2 * output - 1
    return float((centred.abs() > SATURATED).float().mean())
