"""What happens in a training run, as plain values.

A training loop, with every event at its place::

    optimizer = AdamW(model.parameters())          # OptimizerCreated
    scheduler = CosineAnnealingLR(optimizer, 100)
    model.load_state_dict(checkpoint)              # CheckpointLoaded, CheckpointFiltered, CheckpointLost, RandomFrozen,
                                                   # OptimizerBeganAnew, ScheduleBeganAnew, StateAliased
    for inputs, targets in loader:                 # PassEnded, when it begins again; AugmentedApart,
                                                   # CollatedApart, LoadersApart, RowsMispaired
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)   # ForwardObserved, ActivationsSampled
        loss.backward()                            # BackwardStarted, LossComputed, TargetsObserved, BackwardFinished,
                                                   # RecurrentGradientsSampled,
                                                   # FirstCrossEntropy, AttentionSampled, RecurrenceSampled, PrecisionObserved,
                                                   # OverflowHidden, WavesStacked,
                                                   # LossNotFinite, LossesKept, ScaledLossRead, BatchStoodOut, SignsMissing,
                                                   # MinorityObserved, AnswersBeyond, TargetsRanked
        clip_grad_norm_(model.parameters(), 1.0)   # with a GradScaler: ScalerObserved
        optimizer.step()                           # OptimizerStepped, ModesObserved, ParametersAudited, UnitsFollowed,
                                                   # NumbersSampled, GradientNotFinite, OptimizerStateSampled,
                                                   # NonFiniteReplayed,
                                                   # LossesRead, HistogramsTaken, ProjectionDrawn, DimensionsMixed
        writer.add_scalar("loss", loss, step)      # ScalarsLogged
        print(f"val loss {loss:.3f}")              # LinePrinted
        scheduler.step()                           # ScheduleObserved, RateRead, RateMisplaced, RateLost,
                                                   # RateRestored
    validate(model)                                # ValidationObserved, ItemsRedrawn
                                                   # now and then, and at the end: CurvesUpdated
                                                   # ScriptCrashed, StageNotReached, FlagOnModule, AdaptersNotMade, LoaderWaited,
                                                   # BodyNeverTrained, ValidationTold, RunEnded

Sensors make these from torch objects; rules and their tests see nothing else. Most events are made on
the first steps and then on sampled ones; the bookkeeping behind them counts every step. They are made without
the methods of dataclasses that nobody needs: half of the time of ``flatline explain`` went into making those.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's code."""

    file: str
    line: int
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. ``step`` counts optimizer steps from 1; 0 is before the first."""

    absent: ClassVar[str] = "it never happened"
    live: ClassVar[bool] = True  # a running script makes it; else it is read from files
    defect: ClassVar[bool] = False  # only a defect makes it: a run without it was checked all the same
    step: int = 0
    where: Where | None = None

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return f"{type(self).__name__}({values})"


# --------------------------------------------------------------------------- optimizers and parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One parameter group of an optimizer."""

    lr: float = 0.0
    weight_decay: float = 0.0
    tensors: int = 0
    small_tensors: int = 0  # norms, biases and other tensors with fewer than two dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """An optimizer: ``key`` tells two of them apart, ``name`` is its class."""

    key: int = 0
    name: str = "SGD"
    adaptive: bool = False  # divides by a running second moment, like Adam
    decoupled: bool = False  # weight decay applied to the weight, like AdamW
    groups: tuple[GroupFacts, ...] = ()
    steps: int = 0
    seen: bool = True  # every backward since it was built was looked at
    by_hand: bool = False  # no optimizer of torch: the loop changes its weights itself, and no setting is known
    own: bool = False  # its class is not torch's: what its settings do is not known
    where: Where | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OptimizerCreated(Event):
    """An optimizer was built, or first seen."""

    absent = "no torch optimizer was built"
    optimizer: OptimizerFacts = OptimizerFacts()


Tick = Literal["zero", "forward", "backward", "unscale", "clip", "batch"]
Gradients = Literal["present", "zero", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFacts:
    """One call of ``clip_grad_norm_`` or ``clip_grad_value_``."""

    kind: Literal["norm", "value"] = "norm"
    threshold: float = 1.0
    norm: float | None = None  # total norm before clipping
    scaled: bool = False  # the gradients still carried the loss scale
    scale: float = 1.0
    where: Where | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardFacts:
    """One backward that reached the optimizer's parameters."""

    where: Where | None = None
    factor: float = 1.0  # product of the constants between the loss and the root, without the loss scale
    mean: bool = True  # the loss is a mean over its elements
    plain: bool = True  # one loss, not a weighted sum of several
    losses: tuple[str, ...] = ()
    reached: int = 0  # the same for backwards that reach the same parameters
    one_target: bool = False  # every sample had the same target, as for the real half of a discriminator's step
    whole: bool = False  # nothing but constants stands between the root and the one loss function of torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OptimizerStepped(Event):
    """``optimizer.step()`` ran. ``tape`` is what happened to its parameters since its previous step."""

    absent = "no optimizer stepped"
    optimizer: OptimizerFacts = OptimizerFacts()
    index: int = 1  # which step of this optimizer, from 1
    tape: tuple[Tick, ...] = ("zero", "forward", "backward")
    backwards: tuple[BackwardFacts, ...] = (BackwardFacts(),)
    clips: tuple[ClipFacts, ...] = ()
    gradients: Gradients = "present"
    leftover: bool = False  # gradients of before the previous step were still there and were added to
    closure: bool = False
    scaled: bool = False
    rescaled_by_hand: bool = False  # the gradients' norm changed between the last backward and the step
    clip_by_hand: ClipFacts | None = None  # they were shrunk to the norm that they had at the step looked at before
    zero_where: Where | None = None
    wiped_by_hand: bool = False  # the "zero" before the step was no call of zero_grad
    backward_ever: bool = True  # some backward reached its parameters before this step, or earlier

    @property
    def clips_in_place(self) -> list[ClipFacts]:
        """Clips after the first backward of the tape."""
        places = [place for place, tick in enumerate(self.tape) if tick == "clip"]
        if "backward" not in self.tape or len(places) != len(self.clips):
            return []
        first = self.tape.index("backward")
        return [clip for place, clip in zip(places, self.clips, strict=True) if place > first]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StepMissing(Event):
    """Gradients were computed and thrown away again and again, and the optimizer never stepped."""

    absent = "every backward was followed by a step"
    defect = True
    optimizer: OptimizerFacts = OptimizerFacts()
    cycles: int = 0
    zeroed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """One parameter of the watched models, after some steps."""

    name: str = "weight"
    shape: tuple[int, ...] = ()
    numel: int = 1
    dtype: str = "float32"
    trainable: bool = True
    optimizers: tuple[int, ...] = ()  # keys of the optimizers that hold it
    reached: bool = True  # by some loss
    has_gradient: bool = True
    moved: bool = True  # its bytes changed since it was first seen
    moved_at_step: bool = False  # its bytes changed inside an optimizer's step
    moved_frozen: bool = False  # they did while requires_grad was False
    gradient_zero: bool = False  # its gradient was exactly zero at every step seen
    gradient_zeroed: bool = False  # a gradient that was not zero after backward was zero at the step
    weight_decay: float = 0.0
    learning_rate: float = 0.0  # highest of the groups that hold it
    registered: bool = True  # found by model.parameters()
    after_optimizer: bool = False  # made after the newest optimizer was built
    loaded: bool = False  # came from a checkpoint, or was trained by another optimizer before
    trained_before: bool = False  # for long, by an optimizer that is gone, or idle since this one came
    ran: bool = True  # its module ran in the forward pass
    training: bool = True  # the mode of its root module
    cut: str = ""  # where the graph to the loss was cut, if it was
    cut_proven: bool = True  # by a shared storage or by the grad mode, not only by an input that starts anew
    kind: str = "Linear"  # class of its module
    norm: bool = False  # belongs to a normalisation layer
    zero: bool = False  # a frozen matrix in no optimizer, all of whose numbers are exactly zero
    drawn: bool = False  # of a group with a far lower rate than others: each number was drawn on its own
    model: str = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormLayerFacts:
    """A BatchNorm layer with running statistics."""

    name: str = "bn"
    frozen: bool = False  # its affine weights take no gradient, and never did
    training: bool = True
    drifted: float = 0.0  # largest relative change of running_mean and running_var since first seen
    statistic: Literal["running_mean", "running_var"] = "running_mean"  # the one that changed most
    copied: bool = False  # its weights move without an optimizer: an averaged copy
    ran: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ParametersAudited(Event):
    """Every parameter was looked at, after each optimizer had stepped twice."""

    absent = "no optimizer stepped twice"
    parameters: tuple[ParameterFacts, ...] = ()
    norms: tuple[NormLayerFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    stale: int = 0  # tensors held by an optimizer that no loss reached and no model owns
    held: int = 0  # tensors held by the optimizers, but for idle ones
    hollow: bool = False  # all optimizers that are not idle found no gradient at all when they last stepped
    twins: int = 0  # stale tensors (if hollow, held ones) with the shape of one that learns and that nobody holds
    idle: tuple[int, ...] = ()  # keys of optimizers that took no step since the one that stepped took its first
    astray: tuple[ParameterFacts, ...] = ()  # the stale ones whose module ran all the same
    opaque: bool = False  # part of the graph cannot be seen (reentrant checkpoint, compiled code)
    backward_where: Where | None = None

    def resumed(self) -> set[int]:
        """Keys of the optimizers that move only what was trained before: such a model may stand at its best."""
        trained = [each for each in self.parameters if each.trainable]
        begun = {key for each in trained if not (each.loaded or each.trained_before) for key in each.optimizers}
        return {key for each in trained for key in each.optimizers} - begun


# --------------------------------------------------------------------------- forward and modes


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """The first tensor that a model was called with."""

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    fingerprint: int = 0
    same_object: bool = False  # the very tensor of the previous call
    base_rows: int | None = None  # rows of the tensor that it is a slice of
    finite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInput:
    """What reached the first layer with weights."""

    layer: str = ""
    kind: str = "Linear"
    rms: float = 1.0
    low: float = 0.0
    high: float = 1.0
    normalised_next: bool = False  # the next module is a normalisation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ForwardObserved(Event):
    """A model that is being trained ran forward with gradients on."""

    absent = "no module ran forward with gradients"
    model: str = "model"
    training: bool = True
    inputs: InputFacts = InputFacts()
    first_layer: LayerInput | None = None
    dead: tuple[DeadFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFacts:
    """Units of one activation that were zero on every sample of the batch, or a sigmoid or tanh near its limits."""

    layer: str = ""
    kind: str = "ReLU"
    units: int = 0
    dead: int = 0
    samples: int = 0
    looks: int = 1  # the newest steps that are taken together: as few as give enough samples
    lasting: int | None = None  # units that were zero in all of them
    total: int = 0  # samples of all of them
    bias: float | None = None  # mean of what is added to the dead units' inputs
    first_bias: float | None = None  # of the same units, when first seen
    filled: float | None = None  # the one number that all of these biases were when first seen
    saturated: float = 0.0  # share of a hidden sigmoid's or tanh's numbers near its limits, least of those looks


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """What one module without children made in a forward pass, from a spread sample of its numbers."""

    layer: str = ""
    kind: str = "Linear"
    mean: float = 0.0
    std: float = 1.0
    zeros: float = 0.0  # share of exact zeros
    saturated: float = 0.0  # sigmoid and tanh: share within a hundredth of the ends
    signal: float | None = None  # of weighted ones: rms over units of their standard deviation over the batch
    weighted: bool = False  # a linear layer or a convolution
    gain: float | None = None  # rms of its weight × √fan_in at the start: 1 keeps the scale, √2 does so under ReLU
    fan_in: int = 0
    values: int | None = None  # BatchNorm on statistics of the batch: numbers that each channel's come from
    items: int = 0  # and of how many samples
    under: str = ""  # of a normalisation: the layer whose very output it was given


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ActivationsSampled(Event):
    """The activations of a model that is being trained, in the order of its forward pass."""

    absent = "no module ran forward with gradients"
    model: str = "model"
    untrained: bool = False  # no optimizer has stepped yet, nothing was loaded
    layers: tuple[LayerActivations, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DimensionsMixed(Event):
    """A module's forward views a tensor with its dimensions named in another order than it has."""

    absent = "no view names the dimensions of its tensor in another order"
    defect = True
    module: str = "Net"
    statement: str = "x.view(t, b, c)"
    order: str = "b, t, c"  # as the tensor has them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ProjectionDrawn(Event):
    """A module's forward draws a random matrix of a fixed size, multiplies its input by it, and takes cosine and sine."""

    absent = "no module draws random features in its forward"
    defect = True
    module: str = "FourierFeatures"
    statement: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsFacts:
    """A weight matrix, all of whose rows are equal, or all columns of a table."""

    name: str = ""
    units: int = 0  # rows
    columns: bool = False  # they are columns
    zero: bool = False  # every weight is
    gradient: float = 0.0  # norm


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsFollowed(Event):
    """The matrices of an optimizer whose units were copies of each other after its first step, and still are."""

    absent = "no weight matrix began with units that are copies of each other"
    defect = True
    steps: int = 0  # of the optimizer so far
    learning: bool = True  # some matrix of the optimizer has a gradient
    layers: tuple[UnitsFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModesObserved(Event):
    """The modes in which a model trained at this step."""

    absent = "no model with Dropout or BatchNorm trained"
    model: str = "model"
    training: bool = True
    sensitive: int = 0  # Dropout (p > 0) and BatchNorm layers that ran, deliberately frozen ones left out
    in_eval: int = 0  # those of them in eval mode
    examples: tuple[str, ...] = ()
    trained_before: bool = False  # earlier steps ran in train mode
    eval_where: Where | None = None  # the .eval() call behind it
    trainable: int = 1  # parameters of this model that the stepped optimizer updates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ValidationObserved(Event):
    """A model that is being trained ran forward without a backward: a validation pass."""

    absent = "no validation pass was seen"
    model: str = "model"
    training: bool = True
    grad_enabled: bool = False
    sensitive: int = 0  # Dropout and BatchNorm layers in train mode
    examples: tuple[str, ...] = ()
    forwards: int = 1  # consecutive forwards without a step between them
    same_input: bool = False  # the same tensor again: Monte-Carlo dropout
    other_loader: bool = False  # the batch came from a DataLoader that never feeds a backward
    own_data: bool = False  # over the first rows of what it learns from, as the source shows
    adversarial: bool = False  # its loss runs through a model of another optimizer
    averaged: bool = False  # an averaged copy, not the model in training
    recalibrated: bool = False  # its running statistics were reset just before, or BatchNorm averages all batches


# --------------------------------------------------------------------------- losses and backward

Feed = str  # what feeds a loss: "softmax", "mixture of softmaxes", "log_softmax", "sigmoid", "linear", … or "" when unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """The targets of a loss."""

    shape: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None
    ignored: int = 0  # positions with ignore_index
    total: int = 0
    row_sum_low: float | None = None  # class-probability targets: smallest and largest sum over classes
    row_sum_high: float | None = None
    padding_share: float = 0.0  # share of targets in the trailing run where the inputs are padding too
    padding_id: int | None = None
    padding_value: float | None = None  # the same of measured targets: what they are where the inputs are padding
    equals_input: bool = False  # the very tokens that the model was given, unshifted
    in_place: bool = False  # and what the embedding made of them was seen to go on at their own places
    bare_rows: int | None = None  # rows without any label, of a next-token loss
    rows: int = 0
    late: bool = False  # the labels of the other rows begin in their second half, at various places
    lone: int | None = None  # place of the one label of every row, where tokens begin to differ from row to row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LossComputed(Event):
    """One loss function found in the graph under a backward."""

    absent = "no loss function of torch was found in a graph"
    kind: str = "cross_entropy"
    fed_by: Feed = "linear"
    feed_where: str = ""  # the module that made it
    reduction: Literal["none", "mean", "sum"] = "mean"
    averaged: bool = False  # unreduced, and a plain mean over everything follows
    classes: int | None = None
    shape: tuple[int, ...] = ()
    feed_shape: tuple[int, ...] = ()  # shape before broadcasting
    broadcast: bool = False
    target: TargetFacts = TargetFacts()
    normalised: bool | None = None  # the log-probabilities of a row sum to one
    masked_mean: float = 0.0  # share of elements that a 0/1 mask zeroed before a plain mean
    wrong_and_saturated: float = 0.0  # share of probabilities exactly 0 or 1 on the wrong side
    value: float | None = None
    gradient_ratio: float | None = None  # gradient shrunk by this factor against raw scores
    factor: float = 1.0  # constant that the scores of a cross entropy are multiplied with; 0 if it cannot be read
    causal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FirstCrossEntropy(Event):
    """The cross entropy of an output layer that no step has touched and no checkpoint filled."""

    absent = "no cross entropy over a linear layer was seen before the first step"
    classes: int = 2
    value: float = 0.0  # mean over the scored targets, whatever the reduction, weights or smoothing
    targets: int = 0  # scored
    spread: float = 0.0  # standard deviation of the scores within a row
    layer: str = ""  # the output layer, "" for a tensor outside any module
    tied: str = ""  # the embedding that shares its weight
    factor: float = 1.0  # that the layer's outputs are multiplied with
    gain: float = 1.0  # rms of its weight × √fan_in, times that
    weight_std: float = 0.0
    fan_in: int = 0
    bias_std: float = 0.0
    input_rms: float | None = None  # of what reaches the output layer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BackwardStarted(Event):
    """A backward began."""

    absent = "no backward ran"
    has_graph: bool = True  # the root has a grad_fn
    is_leaf: bool = False  # the root is a leaf that asks for gradients itself
    reached: int = 1  # parameters that the graph reaches
    source_hint: str = ""  # the severing call in the user's source, if one stands there
    hint_where: Where | None = None
    optimizer_parameters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the first non-finite number came from."""

    kind: Literal["inputs", "targets", "weights", "operation", "unknown"] = "unknown"
    module: str = ""
    operation: str = ""
    detail: str = ""  # input range, or the tensor's name
    count: int = 0  # weights that are not finite
    total: int = 0  # of so many


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LossNotFinite(Event):
    """The loss that backward was called on is nan or inf."""

    absent = "every loss was finite"
    defect = True
    value: str = "nan"
    last_finite: float | None = None
    first_finite: float | None = None
    largest: float | None = None
    last_finite_step: int = 0
    origin: Origin = Origin()
    lr: float | None = None
    built_with: float | None = None  # rate that the optimizer was given, where a schedule has raised it until now
    optimizer: str = ""
    gradient_note: str = ""  # operations of its graph whose derivative at 0 is infinite
    data_note: str = ""  # where data within the script's reach are not finite, if weights broke between two samples
    scaled: bool = False  # a GradScaler stands by, and skips the step
    in_a_row: int = 1  # losses that were not finite, without a finite one between
    in_all: int = 1  # losses that were not finite, so far


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GradientNotFinite(Event):
    """Gradients with nan or inf went into an optimizer, and its weights are not finite now; the loss was finite."""

    absent = "every gradient that was looked at was finite"
    defect = True
    kind: Literal["nan", "inf"] = "nan"
    parameters: tuple[str, ...] = ()  # the first few, in the order of the optimizer
    bad: int = 1
    total: int = 1
    operation: str = ""  # whose derivative is infinite at what it was given
    module: str = ""
    detail: str = ""
    dtype: str = "float32"  # of the gradients
    loss: float | None = None
    optimizer: str = ""
    lr: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class NonFiniteReplayed(Event):
    """A step with a loss or gradients that are not finite was done again on a copy; ``where`` made the first nan or inf."""

    absent = "no step was done again"
    defect = True
    operation: str = ""  # "parameter NAME" and "batch" for what was bad before; "" if none stood out
    kind: Literal["nan", "inf"] = "nan"
    phase: Literal["forward", "backward"] = "forward"
    module: str = ""  # "" in the code between the model and the backward
    code: str = ""  # text of the line
    low: float = math.nan  # of the operation's inputs, as far as they are finite
    high: float = math.nan
    rows: tuple[int, ...] = ()  # samples of the batch, where not all of them
    samples: int = 0  # in the batch
    indices: tuple[int, ...] = ()  # of those samples in the data set
    exact: bool = True  # the same loss came out
    file: str = ""  # where the batch is kept

    @property
    def told(self) -> str:
        """In half a sentence."""
        line = f" ({os.path.basename(self.where.file)}:{self.where.line} `{self.code}`)" if self.where else ""
        samples = self._samples()
        if not self.operation:
            return ""
        if self.operation == "batch" or self.operation.startswith("parameter "):
            return f"the {self.operation} held {self.kind} from the start{samples}"
        layer = f"layer {self.module}" if self.module.isdecimal() else self.module
        place = f"{'the backward of ' if self.phase == 'backward' else ''}{layer or 'the code around the model'}"
        span = f", inputs from {self.low:.4g} to {self.high:.4g}" if self.low == self.low else ""
        inexact = "" if self.exact else ", with another loss than the first time"
        return f"done again on a copy{inexact}, {self.operation} made {self.kind} in {place}{line}{span}{samples}"

    def _samples(self) -> str:
        if not self.rows:
            return ""
        many = "s" if len(self.rows) > 1 else ""
        rows = ", ".join(map(str, self.rows))
        known = f", data set index {', '.join(map(str, self.indices))}" if self.indices else ""
        return f", sample{many} {rows} of {self.samples}{known}"

    @property
    def facts(self) -> dict[str, Any]:
        """As evidence, as far as they are known."""
        line = f"{self.where.file}:{self.where.line}" if self.where is not None else None
        facts = {
            "replayed_operation": self.operation or None,
            "replayed_module": self.module or None,
            "replayed_line": line,
            "input_low": self.low if self.low == self.low else None,
            "input_high": self.high if self.high == self.high else None,
            "samples": ", ".join(map(str, self.rows)) or None,
            "data_set_indices": ", ".join(map(str, self.indices)) or None,
            "batch_file": self.file or None,
        }
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScalerObserved(Event):
    """A GradScaler updated its scale. Told when it skipped a step, and on closely watched steps."""

    absent = "no GradScaler was used"
    scale: float = 65536.0
    first_scale: float = 65536.0
    updates: int = 1
    skipped: int = 0  # of all updates
    in_a_row: int = 0
    older: int = 0  # skipped of the 20 updates before the last 20
    newer: int = 0  # skipped of the last 20
    growth_interval: int = 2000
    begun: int = 1  # scalers that were new within the last 40 updates of this optimizer
    lately: int = 0  # of these 40 updates skipped, whichever scaler it was


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScaledLossRead(Event):
    """A number is read from what ``scaler.scale(loss)`` returned, or from the share of a loss in an accumulated step, as if it
    were the loss."""

    absent = "no number is read from a scaled loss"
    defect = True
    statement: str = ""
    scale: float = 65536.0
    backwards: int = 0  # of a step, by which the loss was divided; 0 where a GradScaler scaled it
    stops: str = ""  # the condition that ends the training by means of batches over the number of samples
    level: float = 0.0  # below which it does
    margin: float = 0.0  # by which such a mean has to come down, or the training ends


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PrecisionObserved(Event):
    """The dtypes that a backward ran in, and what was left of its float16 gradients."""

    absent = "no backward was looked at closely"
    dtype: str = "float32"  # the narrowest on the way from the loss to the parameters
    parameters: str = "float32"
    device: str = "cpu"
    capability: int = 0  # of the CUDA device, its first number
    tf32: bool = False
    scaled: bool = False  # by a GradScaler or by hand
    elements: int = 0  # of float16 gradients, sampled where there is no scale
    zeros: int = 0  # of them exactly 0
    coarse: int = 0  # not 0, and below the smallest normal number 6.1e-5
    lowest: int = 0  # of these the last few steps above 0, up to 2.4e-7
    anomaly_mode: bool = False
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WavesStacked(Event):
    """Sine layers that read what other sine layers made, before any training."""

    absent = "no sine layer read another one"
    phases: tuple[float, ...] = ()  # standard deviation of what each sine is taken of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OverflowHidden(Event):
    """A sum of squares was infinite in float16, and what was divided by it became 0."""

    absent = "no sum of squares overflowed float16 out of sight"
    defect = True
    place: str = ""  # the module that takes the root, or the layer that reads the zeros
    largest: float = 0.0  # number that was squared
    share: float = 0.0  # of the sums that are infinite, or of the samples that became 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OptimizerStateSampled(Event):
    """What an optimizer keeps beside its parameters, and what became of its update. Counts are of a sample."""

    absent = "no optimizer with a state was looked at closely"
    optimizer: OptimizerFacts = OptimizerFacts()
    index: int = 1
    stock: bool = True  # one of torch's own, whose arithmetic is known
    fused: bool = False  # computes in float32, whatever the state's dtype
    lr: float = 0.0
    peak_lr: float = 0.0
    parameters: str = "float32"  # the narrowest of its tensors
    state: str = ""  # dtype of the running mean of squared gradients, "" if there is none
    eps: float | None = None
    eps_stored: float | None = None  # eps rounded to that dtype
    squares: int = 0  # elements with a gradient that is not 0
    squares_zero: int = 0  # of them with a mean square of exactly 0
    wanted: int = 0  # elements of half precision whose update is not 0
    lost: int = 0  # of them unchanged to the bit, the update being less than half a step between two numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LossesKept(Event):
    """Graphs of earlier losses, or of what a model returned, are still alive."""

    absent = "no graph was followed"
    defect = True
    what: Literal["losses", "outputs"] = "losses"
    alive: int = 0
    seen: int = 0
    nodes: int = 0
    holder: str = ""  # the statement that keeps them


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFacts:
    """One attention in the graph under a loss."""

    layer: str = ""
    heads: tuple[float, ...] = ()  # entropy over ln(keys it may attend to), for each head
    keys: int = 0  # that a row may attend to, on average
    rows: int = 0  # looked at, those with too few keys left out
    spread: float | None = None  # standard deviation of the scores within a row, of fused attention
    projected: bool = False  # the scores are a product of what two linear layers made
    normalised: bool = False  # and these were brought to one length before (cosine attention, qk-norm)
    scale: float | None = None  # constants that this product is multiplied by; None if one of them is not known
    width: int = 0  # numbers of a query; 0 if not known
    gain: float | None = None  # of those two layers: rms of the weight × √fan_in, their geometric mean
    alone: float | None = None  # deviation of q·k within a row, where a bias is added to it; None where nothing is
    one_query: bool = False  # to each sample: the rows looked at are those of several samples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AttentionSampled(Event):
    """The attentions in the graph under a loss, in the order of the forward pass."""

    absent = "no attention was found in a graph"
    layers: tuple[AttentionFacts, ...] = ()
    loss: float | None = None  # of the step before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RecurrenceSampled(Event):
    """A weight is applied to its own result, position after position, as in a recurrent network written by hand."""

    absent = "no weight was applied to its own result"
    defect = True
    weight: str = ""  # "" for a tensor outside any module
    shape: tuple[int, ...] = ()
    positions: int = 0
    sizes: tuple[float, ...] = ()  # rms of the state, at positions spread evenly from the first to the last
    loss: float | None = None  # the first one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RecurrentGradientsSampled(Event):
    """The gradients that came to the positions at which a weight is applied to its own result."""

    absent = "no weight was applied to its own result"
    defect = True
    weight: str = ""  # "" for a tensor outside any module
    shape: tuple[int, ...] = ()
    positions: int = 0
    gradients: tuple[float, ...] = ()  # rms, at positions spread evenly from the first to the last


# --------------------------------------------------------------------------- schedules, data, numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScheduleObserved(Event):
    """How a scheduler and its optimizer advance beside each other."""

    absent = "no learning-rate scheduler was built"
    name: str = "StepLR"
    optimizer: int = 0
    calls: int = 0  # scheduler.step() calls
    position: int = 0  # where the schedule stands; more than its calls where it was resumed, or told a step
    optimizer_steps: int = 0
    backwards: int = 0
    calls_before_first_step: int = 0
    skipped_steps: int = 0  # steps skipped by a GradScaler
    horizon: int | None = None  # calls after which the schedule has run its course
    milestone: int | None = None  # the last one, of a schedule that has some
    spelled: str = ""  # the number of a LambdaLR's function that is its horizon, as "total=1500"
    gamma: float | None = None
    period: int | None = None  # calls between two decays
    epoch_length: int | None = None  # batches of the training DataLoader
    epochs: int = 0  # finished passes over it
    samples: int | None = None  # of all passes together, at the end of a run of whole passes
    first_lr: float = 0.0
    peak_lr: float = 0.0
    base_lr: float | None = None  # that the function of a LambdaLR is multiplied with
    highest_lr: float = 0.0  # since there is a schedule
    lr: float = 0.0
    steps_at_floor: int = 0  # optimizer steps since the rate fell under a thousandth of its peak
    ended: str = ""  # how the run ended, "" while it runs
    others_stepped: bool = False  # another scheduler of the same optimizer advances
    trainer: OptimizerFacts | None = None  # trains the parameters in place of the scheduler's own, which does not step
    trainer_lr: float = 0.0
    copied: bool = False  # or those of a model of the same shapes
    told: str = ""  # a setting that the loop tells as its rate, at the end
    told_where: Where | None = None
    built_where: Where | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RateRead(Event):
    """The user's code called ``get_lr()``, and it returned another rate than the optimizer's."""

    absent = "get_lr() was never called, or returned the rate in use"
    defect = True
    name: str = "StepLR"
    value: float = 0.0
    rate: float = 0.0  # of the optimizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RateRestored(Event):
    """``load_state_dict`` put the rate of a file in the place of the one that its optimizer was built with; nothing moves it."""

    absent = "no loaded state changed the rate of an optimizer"
    defect = True
    optimizer: OptimizerFacts = OptimizerFacts()
    built: float = 0.0
    rate: float = 0.0  # of the file, and of all steps since
    peak: float = 0.0  # of the training that the file is of, if a schedule noted one, or it was seen
    steps: int = 0  # at that rate so far
    told: str = ""  # the setting that is told as its rate
    once: bool = False  # told before the loop; all was seen until its end then


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RateMisplaced(Event):
    """A rate that moves, at one of torch's optimizers, in a place that it does not read."""

    absent = "no rate was written where the optimizer does not read it"
    defect = True
    optimizer: OptimizerFacts = OptimizerFacts()
    place: str = 'group["learning_rate"]'
    first: float = 0.0
    value: float = 0.0
    highest: float = 0.0
    lr: float = 0.0  # that is read, and stood still
    looks: int = 0  # at which the value was another one than before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RateLost(Event):
    """A rate that the loop works out as it goes, and that the optimizer never gets: its own stood still."""

    absent = "no rate was worked out beside the one in use"
    defect = True
    optimizer: OptimizerFacts = OptimizerFacts()
    text: str = ""  # of the statement that writes it to a copy, or its name
    copied: bool = True  # else it is only told
    attribute: bool = False  # of the optimizer, which nothing reads
    values: tuple[float, ...] = ()  # those seen, one after the other; empty where it has no name
    lr: float = 0.0  # that is in use


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchesServed(Event):
    """The batches that the last training steps learned from."""

    absent = "no DataLoader was iterated"
    fingerprints: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()  # fingerprints of the sample indices
    restarts: int = 0  # iterators made since the first step
    rebuilt: bool = False  # each of a new loader
    loader_length: int | None = None
    altered: bool = False  # all that models were called with at this step is the batch, as it is or with noise on it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PassEnded(Event):
    """A training DataLoader has been gone through, and is started again."""

    absent = "no DataLoader was gone through twice"
    loader: int = 0
    batches: int = 0
    length: int | None = None
    sampler: str = "SequentialSampler"
    sequential: bool = True  # it asked for its samples one after the other
    same_order: int = 1  # passes in a row, this one too, that asked for the same samples in the same order
    new_optimizers: int = 0  # that took their first step after the first of these passes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WorkersStarted(Event):
    """A training DataLoader hands its data set to several workers."""

    absent = "no training DataLoader with several workers was seen"
    workers: int = 2
    owner: str = ""  # the class that draws from a generator of its own, which every worker gets a copy of
    generator: str = ""  # its name
    kind: str = ""  # numpy.random.Generator, random.Random, …
    persistent: bool = False  # the workers live on from pass to pass
    seeding: str = ""  # the call in worker_init_fn that gives all of them one seed
    seeded: str = ""  # the generator that it seeds, and the data set draws from


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WorkersAlike(Event):
    """All workers of a training DataLoader gave the same batch, and then all of them the same other one."""

    absent = "no training DataLoader with several workers was seen"
    defect = True
    workers: int = 2
    owner: str = ""  # the class of the stream
    rows: int = 0  # of a batch
    asks: bool = False  # the class asks which worker it is in


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoaderWaited(Event):
    """How long a training loop waited for its batches. Told at the end."""

    absent = "no DataLoader fed enough steps to time it"
    steps: int = 0  # whose time was taken
    wait: float = 0.0  # seconds for a batch
    share: float = 0.0  # of the time of a step
    workers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SeedsObserved(Event):
    """Which random generators a run used, and which of them it seeded. Told at the end."""

    absent = "the run did not end"
    seeded: tuple[str, ...] = ()
    unseeded: tuple[str, ...] = ()  # drawn from, and never seeded while we looked
    benchmark: bool = False  # torch.backends.cudnn.benchmark
    deterministic: bool = False  # torch.backends.cudnn.deterministic
    strict: bool = False  # torch.use_deterministic_algorithms
    cuda: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchRepeated(Event):
    """A model was given the same numbers at every closely watched step, in a new tensor each time."""

    absent = "no batch was repeated"
    defect = True
    model: str = "model"
    rows: int = 0
    times: int = 0  # closely watched steps in a row
    seeding: str = ""  # the call in the user's loop that seeds a generator anew before samples are drawn
    lost: str = ""  # the statement that moves a window along, whose result nothing keeps
    statement: Where | None = None  # where either stands


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OrderDealtAgain(Event):
    """Batches made by hand come back bit for bit, and the source seeds a generator before it draws each pass's order."""

    absent = "no batches made by hand came back"
    defect = True
    model: str = "model"
    seeding: str = ""  # the call
    returns: int = 0  # looks at a batch that had been there before
    period: int = 0  # steps between any two of them, or a part of that


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OneBatchTaken(Event):
    """The run is over, and all that it learned from, at every close look, is the one batch that a loader gave."""

    absent = "more than one batch was learned from"
    defect = True
    model: str = "model"
    rows: int = 0
    length: int | None = None  # of the loader, in batches
    validations: int = 0  # steps after which a model ran without gradients, on other numbers; counted up to 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class InputsObserved(Event):
    """All tensors that a model in training was called with, at a closely watched step."""

    absent = "no module ran forward with gradients"
    model: str = "model"
    rows: int = 0  # samples in the batch
    features: int = 0  # numbers in a sample, of the first tensor
    equal_rows: bool = False  # every sample of the batch is the same, in every tensor
    content: int = 0  # the same for the same numbers
    floating: bool = True  # the first tensor holds no ids
    ids_alone: bool = False  # none of the tensors holds anything else
    ids: tuple[int, ...] = ()  # those of a batch that is one tensor of them, if they are one or two
    vocabulary: int = 0  # rows of the largest embedding that they may stand for
    loader: bool = False  # the batch came from a DataLoader
    own_items: bool = False  # of a data set of the user's, each asked for once: by a sampler of torch's


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFacts:
    """The class labels of one batch, in the batch's order."""

    count: int = 0
    histogram: tuple[tuple[int, int], ...] = ()  # (label, how often), by label
    runs: int = 0  # stretches of equal labels
    order: tuple[int, ...] = ()  # the label of each stretch; empty when there are many


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLabels:
    """The labels of the whole tensor that a batch's labels were cut from as a slice."""

    count: int = 0  # looked at, evenly spread
    distinct: int = 1
    runs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TargetsObserved(Event):
    """One loss over class labels, at a closely watched step: what was asked for, what the model answered."""

    absent = "no loss with class labels was found in a graph"
    stream: int = 0  # the same for losses of one place in the code, fed by one DataLoader
    kind: str = "cross_entropy"
    fed_by: Feed = "linear"
    classes: int = 2  # that the scores can tell apart
    dense: bool = False  # a class for each pixel or word of a sample: labels count samples, all of one class or not
    labels: LabelFacts = LabelFacts()
    answers: tuple[tuple[int, int], ...] = ()  # (class with the highest score, how often)
    surprise: float | None = None  # mean of -log p(label), in nats
    whole: WholeLabels | None = None
    loader: int = 0  # 0: the batch was made by hand
    passes: int = 0  # begun over that loader
    position: int = 0  # batch of that pass, from 1
    length: int | None = None
    jump: float = 1.0  # largest factor from one of the newest losses to the next, of those that matter


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TargetsRanked(Event):
    """One more batch of measured targets that rise row by row, or fall, as those of all batches looked at before."""

    absent = "no measured targets rise or fall from batch to batch"
    defect = True
    stream: int = 0  # the same for losses of one place in the code, fed by one DataLoader
    rising: bool = True
    alone: bool = True  # no input does the same
    passes: int = 1
    position: int = 1  # batch of that pass
    length: int = 1
    target: float = 0.0  # mean of the batch
    answer: float = 0.0  # of the model's, for the same rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScaledApart(Event):
    """What a model learned from and what it was validated on each have a mean of 0 and a deviation of 1, exactly."""

    absent = "training and validation inputs were not each scaled by themselves"
    defect = True
    train: str = ""  # the variable that holds the data
    validation: str = ""
    rows: int = 0
    validation_rows: int = 0
    groups: int = 0  # columns or channels that were compared


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpread:
    """What numbers a batch of images is made of."""

    means: tuple[float, ...] = (0.0,)  # of each channel
    deviations: tuple[float, ...] = (1.0,)
    low: float = 0.0
    high: float = 1.0
    lowest: float = 0.0  # share of the numbers that are the lowest one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ImagesCompared(Event):
    """A model that learns from images was validated on a batch of them."""

    absent = "no model that learns from images was validated"
    model: str = "model"
    train: tuple[ImageSpread, ...] = (ImageSpread(),)  # of the first batches that were learned from
    validation: ImageSpread = ImageSpread()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MissingTaught(Event):
    """A number that people write where one is missing stood among the targets, and the loss counted it."""

    absent = "no such number was among the targets"
    defect = True
    kind: str = ""  # of the loss
    code: float = 0.0
    times: int = 0  # in the batches looked at
    low: float = 0.0  # of all other targets
    high: float = 0.0
    loss: float = 0.0  # of the newest of these batches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MissingFed(Event):
    """A number that people write where one is missing is in a column of the inputs, far from others that lie close together."""

    absent = "no such number was in a column of the inputs"
    defect = True
    code: float = 0.0  # as it was before any scaling
    columns: tuple[int, ...] = ()
    value: float = 0.0  # of the code in the first of them, as the first layer is given it
    low: float = 0.0  # of all others there
    high: float = 0.0
    share: float = 0.0  # of the rows there, that hold the code


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchStoodOut(Event):
    """One batch held numbers far larger than those before and after it, and the loss jumped at it."""

    absent = "no batch stood out where the loss jumped"
    defect = True
    what: Literal["inputs", "targets"] = "inputs"
    largest: float = 0.0  # absolute value
    usual: float = 1.0  # largest of the other batches looked at
    least: float = 1.0  # of those batches, the smallest largest value
    batches: int = 0  # looked at before
    alike: int = 0  # and a few that were as far off as this one
    later: int = 0  # looked at after it, and as the others
    rows: tuple[int, ...] = ()  # the first few that are off
    off: int = 0  # rows that are off
    of: int = 1
    loss: float = 0.0
    usual_loss: float = 0.0  # median of those before
    loss_after: float | None = None
    lost: bool = False  # it was among the first ones, and no loss was finite soon after it
    place: tuple[int, int] | tuple[()] = ()  # batch of the pass, from 1, and how many it has


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AnswersBeyond(Event):
    """The loss jumped at an ordinary batch: the answers are farther off than all its targets lie apart."""

    absent = "no loss over measured targets jumped"
    defect = True
    off: float = 0.0  # root of the mean square
    low: float = 0.0  # least target of the batch
    high: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MinorityObserved(Event):
    """What a model makes of the rare classes, where one class has ten times as many labels as all others together."""

    absent = "no class was far more frequent than the others"
    defect = True
    classes: int = 2
    common: int = 0  # the frequent class
    labels: int = 0  # looked at, in the last three quarters of the steps
    rare: int = 0  # of them of other classes
    answered: int = 0  # samples for which another class had the highest score
    looks: int = 0  # batches
    first: int = 0  # step of the first of them
    ranking: float = 0.5  # chance that a rare sample is scored as the rarer one of two (AUC)
    surprise: float = 0.0  # mean of -log p(label)
    entropy: float = 0.0  # of the labels: the same for a model that knows only how frequent they are
    ended: bool = False  # the run is over
    decides: Where | None = None  # takes the class with the highest score, in a source that never ranks by scores
    by_means: float | None = None  # ranking, on samples it was not made from, by the difference of the classes' means


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClassesWeighed(Event):
    """What a loss weighs its classes with, and how many labels of each were seen."""

    absent = "no loss weighed its classes"
    weights: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PenaltySubtracted(Event):
    """Squares or norms stand in a loss with a negative sign: it has no minimum."""

    absent = "no loss subtracted a penalty"
    defect = True
    kind: Literal["weights", "normaliser"] = "weights"
    names: tuple[str, ...] = ()  # of the weights
    tensors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TermsWeighed(Event):
    """Numbers stand before terms of a loss, at one closely watched step."""

    absent = "no term of a loss was multiplied with a number"
    defect = True
    weights: tuple[float, ...] = ()  # in the order of the graph


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PairingProbed(Event):
    """How well simple rules tell the labels from the inputs, where the model itself is at chance."""

    absent = "every model told the labels better than by chance"
    defect = True
    rows: int = 0  # different samples
    classes: int = 2  # 0 in a regression
    by_means: float = 0.0  # share told by the nearest class mean, on samples that it did not learn from
    by_neighbours: float = 0.0  # and by the nearest neighbours
    by_line: float = 0.0  # in a regression: correlation of targets with a linear fit; by_neighbours is one, too
    commonest: float = 0.5  # share of the commonest class
    surprise: float = 0.0  # mean of the model's -log p(label) over the last close steps; the variance that it leaves
    entropy: float = 0.0  # of the labels: the same for a model that knows only their shares; 1 in a regression
    apart: tuple[tuple[Any, ...], tuple[Any, ...]] | None = (
        None  # samples of inputs and labels, of two loaders, in this step
    )
    permutation: str = ""  # the statement that puts the inputs or the labels, and not both, into random order
    permuted_where: Where | None = None
    left_sorted: str = ""  # the statement of a forward that puts its rows into an order in which they stay
    order: str = ""  # that under which the labels, or the inputs, are told by the nearest class mean
    by_order: float = 0.0  # in so large a share


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SamplesAlike(Event):
    """Samples of a model that is at chance are one and the same, or nearly so, and their targets are not."""

    absent = "the samples of each batch differ, or the model tells their targets"
    defect = True
    rows: int = 0  # looked at
    width: int = 0  # numbers in each
    batches: int = 0
    equal: float = 0.0  # share of them that are the same row, to the last bit
    value: float | None = None  # that each number of this row is
    left: float = 0.0  # share of the scatter of all targets that lies under these rows
    spread: float = 1.0  # largest standard deviation of a number, in its mean or in 1, if that is less
    common: float = 0.0  # rms of the means
    rms: float = 0.0  # of all numbers
    probed: int = 0  # different samples, on which simple rules were tried once they were standardised
    labels: bool = True  # classes, and no measured targets
    told: float = 0.0  # share that the better rule tells; a correlation of measured targets
    commonest: float = 1.0  # share of the commonest class


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PathsMispaired(Event):
    """A data set pairs files by their place in two lists, and their names tell of other numbers."""

    absent = "no data set pairs files of other numbers"
    defect = True
    first: str = "case1.npy"
    second: str = "case10_mask.npy"  # at the same place
    apart: int = 0  # pairs of other numbers
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RowsMispaired(Event):
    """The windows of a data set go through all of one array, and its items never leave the first rows of another, as long one."""

    absent = "no data set makes its items of other rows of two arrays"
    defect = True
    text: str = "self.labels[i]"  # the index that stops early
    inputs: str = "self.signal"
    labels: str = "self.labels"
    item: int = 0  # one of them
    first: int = 0  # row of the inputs at which it begins
    second: int = 0  # row of the labels
    rows: int = 0  # of both
    share: float = 0.0  # of the labels that is ever asked for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CollatedApart(Event):
    """A collate function puts the sequences of a batch into another order than the labels that a loss is given."""

    absent = "no collate function of the script's was seen"
    defect = True
    batches: int = 2
    rows: int = 64
    wrong: int = 48  # that carry another item's label


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoadersApart(Event):
    """Inputs come from one loader, the maps that they are compared with from another, which asks for other samples."""

    absent = "no loss compared batches of two loaders"
    defect = True
    inputs: tuple[Any, ...] = ()  # the first samples of both batches
    targets: tuple[Any, ...] = ()
    looks: int = 4  # steps at which they were others
    guessing: float = 0.0  # what the best constant answer costs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AugmentedApart(Event):
    """Items came again in a later pass, their image flipped or turned in one way, and their mask in another.

    Or both came again as parts of them, and the source calls one random transform for each.
    """

    absent = "no image and mask were seen turned apart"
    defect = True
    item: int = 0  # the first of them, an index of the data set
    image: str = "flipped left to right"  # since it was first seen
    mask: str = "left as it was"
    apart: int = 0  # items
    compared: int = 0
    statement: str = ""  # the two calls


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ItemsRedrawn(Event):
    """The first items of a validation pass are new ones in every pass, with the same targets."""

    absent = "no validation items changed from pass to pass"
    defect = True
    dataset: str = "Images"  # its class
    changed: int = 0  # of the first items, at least, from each pass to the next
    rows: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFacts:
    """A hook of the user's on the gradient of a parameter, which multiplies all of it by one factor."""

    name: str = ""
    where: Where | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNumbers:
    """Numbers of one parameter at a sampled step."""

    name: str = ""
    depth: int = 0  # order of first use in the forward pass
    weight_rms: float = 0.0
    gradient_rms: float = 0.0
    update_ratio: float | None = None  # change of the weights in this step over their size; None if they were zero
    weight_decay: float = 0.0
    momentum: float = 0.0  # of SGD: what the gradient and the decay add up to is 1 / (1 - momentum) of them
    matrix: bool = True  # two or more dimensions
    kind: str = "Linear"  # class of its module; "" if unknown
    learning_rate: float = 1e-3
    elements: int = 1
    kept: float | None = None  # cosine of the weights that this step found and those that the step before had left
    hook: HookFacts | None = None  # on its gradient
    scaled: float | None = None  # size of those found over size of those left
    taken: float | None = None  # off the absolute value of each of them alike, in between; 0 if not so


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class NumbersSampled(Event):
    """Norms of weights, gradients and updates of one optimizer at one step."""

    absent = "no step was sampled"
    optimizer: OptimizerFacts = OptimizerFacts()
    index: int = 1
    lr: float = 0.0
    layers: tuple[LayerNumbers, ...] = ()
    loss: float | None = None
    first_loss: float | None = None
    peak_lr: float = 0.0
    turn: float | None = None  # cosine between this update and that of the step before
    clips: tuple[ClipFacts, ...] = ()  # of its gradients, since its previous step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LossesRead(Event):
    """What one optimizer's backwards started from, and its rate, at every step since the last of these events."""

    absent = "no backward was followed by a step"
    optimizer: OptimizerFacts = OptimizerFacts()
    steps: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()  # of several backwards within one step, the mean
    rates: tuple[float, ...] = ()  # of the first group; nan where it lies on a device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScalarsLogged(Event):
    """The script logged numbers of its own, to TensorBoard, W&B or MLflow, or printed those of its validation."""

    absent = "the script logged no numbers"
    values: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LinePrinted(Event):
    """The script printed a line about its validation."""

    absent = "the script printed no line about validation"
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ValidationTold(Event):
    """What the script printed or logged of its validation loss, all of it, when the run is over."""

    absent = "no validation loss was logged or printed"
    losses: tuple[float, ...] = ()  # finite ones; of many, the medians of stretches


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramFacts:
    """How a sample of the numbers of one tensor lay."""

    name: str = ""
    low: float = 0.0
    high: float = 1.0
    counts: tuple[int, ...] = ()  # between low and high, in bins of one width


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HistogramsTaken(Event):
    """Histograms of weights, or of what the modules made, at a closely watched step."""

    absent = "nothing was recorded"
    what: Literal["weights", "activations"] = "weights"
    histograms: tuple[HistogramFacts, ...] = ()


# --------------------------------------------------------------------------- curves

Role = Literal[
    "train_loss", "val_loss", "learning_rate", "gradient_norm", "train_accuracy", "val_accuracy", "reward", "kl",
    "loss_scale", "clip_rate", "epoch", "",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One logged quantity over the steps. A long one is thinned: each point is then the median of its stretch."""

    name: str = "loss"  # as it was logged
    role: Role = "train_loss"  # what it was taken for; "" if unknown
    steps: tuple[float, ...] = ()
    values: tuple[float, ...] = ()  # finite ones only
    lows: tuple[float, ...] = ()  # smallest and largest of each stretch; empty where nothing was thinned
    highs: tuple[float, ...] = ()
    not_finite: tuple[float, ...] = ()  # steps at which nan or inf was logged, the first thousand
    count: int = 0  # points that were logged


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CurvesUpdated(Event):
    """The curves of one run, as far as they were logged, or read while its script goes on."""

    absent = "no curve was found"
    run: str = ""  # the run's name
    curves: tuple[Curve, ...] = ()
    classes: int | None = None  # of the classification, where it is known
    ended: bool = True
    source: str = ""  # the file that they were read from; "" for a running script
    note: str = ""  # why nothing was taken for the training loss


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedGroup:
    """Runs that differ in their seed only, as far as their names tell."""

    name: str = "ppo seed*"
    runs: tuple[str, ...] = ()
    quantity: str = "reward"
    finals: tuple[float, ...] = ()  # median of the last tenth of each run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunsCompared(Event):
    """Logs of several runs were read together."""

    absent = "there are no runs that differ in their seed only"
    live = False
    groups: tuple[SeedGroup, ...] = ()


# --------------------------------------------------------------------------- source code

SourceTickKind = Literal["zero", "backward", "unscale", "clip", "step", "schedule", "eval", "train", "opaque"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SourceTick:
    """A call in a loop's source that the state of training depends on. An opaque one may do anything."""

    kind: SourceTickKind = "backward"
    of: str = ""  # the optimizer or model: equal for one object, "" when it may be any
    name: str = ""  # as the source spells it
    where: Where | None = None
    always: bool = True  # under no condition within the loop
    scaled: bool = False  # through a GradScaler
    known: bool = False  # the object was followed to a class of torch
    fresh: bool = False  # the object is built anew in every turn
    trains: str = ""  # the model whose parameters an optimizer was given
    modes: str = ""  # a layer of the model that depends on its mode, as its source shows
    threshold: float | None = None
    mean: bool = False  # of a backward: its loss is the mean that torch's function returned, not divided by anything
    depth: int = 0  # loops between the one that is looked at and the call
    horizon: str = ""  # of a schedule: the source of its length
    length: float | None = None  # of a schedule: the same as a number, where it is one
    gamma: float | None = None  # of a schedule: the factor of every such length; 0 where there is no next one
    in_batches: bool = False  # of a schedule: its length counts what a loader serves
    over_data: bool = False  # the innermost loop around it goes through something else than numbers


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SourceMoment:
    """A tick on one way through a loop."""

    path: tuple[SourceTick, ...]
    at: int
    repeats: bool

    @property
    def tick(self) -> SourceTick:
        """The call itself."""
        return self.path[self.at]

    @property
    def optimizers(self) -> int:
        """How many step on this way."""
        return len({tick.of for tick in self.path if tick.kind == "step"})

    def last(self, *kinds: SourceTickKind, of: str | None = None, turn: bool = True) -> SourceTick | None:
        """The nearest tick before it of these kinds, or an opaque one; with ``turn`` in the turn before, too."""
        around = self.path[self.at + 1 :] if self.repeats and turn else ()
        return _nearest((*around, *self.path[: self.at])[::-1], kinds, of)

    def next(self, *kinds: SourceTickKind, of: str | None = None, turn: bool = True) -> SourceTick | None:
        """The nearest tick after it of these kinds, or an opaque one."""
        around = self.path[: self.at] if self.repeats and turn else ()
        return _nearest((*self.path[self.at + 1 :], *around), kinds, of)


def _nearest(path: tuple[SourceTick, ...], kinds: tuple[SourceTickKind, ...], of: str | None) -> SourceTick | None:
    for tick in path:
        if tick.kind == "opaque" or (tick.kind in kinds and (of is None or tick.of in (of, ""))):
            return tick
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SourceLoop:
    """A loop, or a function that may stand in one, as every way through it."""

    paths: tuple[tuple[SourceTick, ...], ...] = ()
    repeats: bool = True
    turns: str = ""  # the source of how often, where it is said
    count: float | None = None  # the same as a number, where it is one
    where: Where | None = None

    def moments(self, kind: SourceTickKind) -> tuple[tuple[SourceMoment, ...], ...]:
        """For each call of a kind: all ways that come by it."""
        found: dict[tuple[Where | None, str], list[SourceMoment]] = {}
        for path in self.paths:
            for at, tick in enumerate(path):
                if tick.kind == kind:
                    found.setdefault((tick.where, tick.of), []).append(SourceMoment(path, at, self.repeats))
        return tuple(map(tuple, found.values()))

    def has(self, kind: SourceTickKind) -> bool:
        """Whether a call of a kind is on any way."""
        return any(tick.kind == kind for path in self.paths for tick in path)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SourceLoss:
    """A call of a loss function of torch, and what its input was made by on every way to it."""

    kind: str = "cross_entropy"
    fed_by: str = ""  # softmax, log_softmax, sigmoid, linear; "" where it is not known
    feed: str = ""  # the source of that operation
    feed_where: Where | None = None
    where: Where | None = None


def beside(place: Where | None, near: Where | None) -> str:
    """`` (line 12)``, or `` (model.py:12)`` in another file; nothing for the same line."""
    if place is None or near is None or (place.file, place.line) == (near.file, near.line):
        return ""
    return f" (line {place.line})" if place.file == near.file else f" ({place.file}:{place.line})"


def line_of(place: Where | None) -> str:
    """Tells findings of one rule in a file apart."""
    return f"{place.file}:{place.line}" if place else ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SourceEdit:
    """Bytes of one line to be replaced so that the fact is gone, and nothing else changes."""

    line: int
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SourceFact:
    """Something else that the source shows."""

    kind: str = ""
    name: str = ""  # what it is about
    text: str = ""  # the source of it
    where: Where | None = None
    other: Where | None = None
    edit: SourceEdit | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SourceParsed(Event):
    """A file of source code, read together with the files of ours that it imports."""

    absent = "no source file was read"
    live = False
    file: str = ""
    losses: tuple[SourceLoss, ...] = ()
    loops: tuple[SourceLoop, ...] = ()
    facts: tuple[SourceFact, ...] = ()
    zeroes: tuple[Where, ...] = ()  # lines in these files that zero gradients, or seem to
    steps: bool = True  # something in these files is stepped, or seems to be

    def of(self, kind: str) -> tuple[SourceFact, ...]:
        """The facts of a kind."""
        return tuple(fact for fact in self.facts if fact.kind == kind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OneBatchTrained(Event):
    """``flatline preflight`` trained on one batch for ever, without dropout, weight decay and schedule."""

    absent = "no batch was served again and again: that is for flatline preflight"
    live = False
    losses: tuple[float, ...] = ()  # without the floor
    floor: float = 0.0  # entropy of soft or smoothed targets, in nats
    kind: str = ""  # of the loss
    rate: float = 0.0
    weights: int = 0  # that may change
    frozen: int = 0  # the others of the models
    guessing: float | None = None  # ln(classes) of a loss over classes
    targets: int = 0  # in the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a change of what a model is given, in one part of it, shows in another part of what it makes."""

    compared: int = 0  # positions, or samples, whose input stayed the same
    changed: int = 0  # of them, whose output did not
    effect: float = 0.0  # largest change, in standard deviations of the output
    layer: str = ""  # the first that was given the same there, and made something else
    kind: str = ""  # its class
    shape: tuple[int, ...] = ()  # of what it was given

    @property
    def place(self) -> str:
        """The layer, as a sentence names it."""
        return f"{self.layer} ({self.kind})" if self.layer else f"{self.kind or 'the model'} itself"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FutureProbed(Event):
    """``flatline preflight`` exchanged the later part of sequences, and looked at what is made of the earlier one."""

    absent = "no model of sequences was probed: that is for flatline preflight"
    live = False
    model: str = ""
    length: int = 0
    begin: int = 0  # position from which on the input was another
    next_token: bool = False  # the label of a position is the input of the next one
    own_token: bool = False  # or its own
    summary: bool = False  # what carries it has no positions: one vector of a whole sequence
    spread: Spread = Spread()  # over the positions before, where there is a label


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SamplesProbed(Event):
    """``flatline preflight`` exchanged all samples of a batch but one, in eval mode, and looked at what is made of that one."""

    absent = "no batch of samples was probed: that is for flatline preflight"
    live = False
    model: str = ""
    spread: Spread = Spread()  # of the one that stayed
    reads_as_time: bool = False  # the layer is torch's, and takes the first dimension for time
    order_matters: bool = False  # the same samples in another order get other outputs
    own_target: bool = False  # every sample has a target of its own
    proven: bool = (
        False  # they are samples: the script drew them in no order, or the labels run along the other dimension
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PaddedStateTaken(Event):
    """A model took the last state of a recurrent layer, which had read on through padding, and it hardly differed by sample."""

    absent = "no recurrent layer had read padding to its end"
    defect = True
    layer: str = ""
    kind: str = ""
    length: int = 0
    padded: int = 0  # positions at the end of a row, in the middle of those that were compared
    rows: int = 0  # of the batch, that end in padding
    of: int = 0
    left: float = 0.0  # spread between samples there, in that at their own last positions
    reached: float = math.inf  # gradient of the inputs at real positions, in that at the padding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PaddingProbed(Event):
    """``flatline preflight`` cut the padding off a sequence, or changed it, and looked at what is made of the rest."""

    absent = "no padded sequence was probed: that is for flatline preflight"
    live = False
    model: str = ""
    length: int = 0
    padded: int = 0  # positions that were cut off
    spread: Spread = Spread()  # effect: in standard deviations between samples
    half: float = 0.0  # effect with half of the padding cut off: more of the same
    recurrent: bool = False  # the layer has read on through the padding
    overwritten: bool = False  # not cut off: other vectors were put in its place
    proven: bool = False  # it is padding: the model or the script says so, or each batch is as long as its longest row


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceFacts:
    """One input of a model, exchanged between samples."""

    name: str = ""
    kind: Literal["image", "tokens", "numbers"] = "numbers"
    shape: tuple[int, ...] = ()
    effect: float = 0.0  # largest change of the output, in its standard deviations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class InfluenceProbed(Event):
    """``flatline preflight`` exchanged each input of a model, one at a time, between the samples of a batch."""

    absent = "no model with several inputs was probed: that is for flatline preflight"
    live = False
    model: str = ""
    inputs: tuple[InfluenceFacts, ...] = ()
    waiting: bool = False  # a gate is zero, and a schedule holds its rate at 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WeightsSevered(Event):
    """Weights that ``flatline preflight`` turned round, which changes the output, and to which no gradient has come.

    Nor does a gradient find a way from the output back to the data.
    """

    absent = "no weights without a gradient were probed: that is for flatline preflight"
    live = False
    defect = True
    model: str = ""
    parts: tuple[str, ...] = ()  # modules that hold them, ran, and returned something with a graph
    tensors: int = 0
    steps: int = 0  # of their optimizer, with a backward


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RatesSwept(Event):
    """``flatline preflight`` raised the learning rate from step to step, from 1e-7 to 10."""

    absent = "no rate was swept: that is for flatline preflight"
    live = False
    optimizer: str = "SGD"
    configured: float = 0.0  # the script's own
    steepest: float = 0.0  # where the loss fell fastest
    diverges: float | None = None  # from which on it rose beyond every bound
    factor: float | None = None  # the most that the function of a LambdaLR ever returns; None without one
    first_loss: float = 0.0
    lowest_loss: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OutputsUnused(Event):
    """Models were called with gradients on at every step, and no backward came to anything that they returned."""

    absent = "no model's output was followed: that is for flatline preflight"
    live = False
    defect = True
    models: tuple[str, ...] = ()
    steps: int = 0


# --------------------------------------------------------------------------- checkpoints and the end


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CheckpointLoaded(Event):
    """``load_state_dict`` returned."""

    absent = "no state dict was loaded"
    model: str = "model"
    strict: bool = True
    tensors: int = 0  # of the model
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    prefix: str = ""  # what makes the unexpected keys fit: "+net.", "-net.", "layers.>blocks."
    nested: str = ""  # the key under which the state dict lies that should have been given


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HeadLeftOut(Event):
    """A last layer got nothing from a checkpoint, and was tried with tensors of it that fit under another name."""

    absent = "no layer was left out that a checkpoint has under another name"
    model: str = "model"
    head: str = ""  # its path
    stored: str = ""  # the name of those tensors in the checkpoint
    tensors: int = 0
    samples: int = 0  # targets that it was tried on
    commonest: float = 1.0  # share of the commonest class among them
    agrees: float = 0.0  # share of the targets that it answers with those tensors in it
    agrees_now: float = 0.0  # and as it is
    loss: float = 0.0
    loss_now: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CheckpointFiltered(Event):
    """A state dict of a file's tensors and of the model's own was loaded: the script kept out what does not fit by name."""

    absent = "no part of a file was put into a model's own state dict"
    defect = True
    model: str = "model"
    tensors: int = 0  # of the model
    missing: tuple[str, ...] = ()  # that kept their own values
    left: tuple[str, ...] = ()  # tensors of the file that went nowhere
    renamed: str = "layers.>blocks."  # the first word of these, and of those that they would fit
    reshaped: tuple[str, ...] = ()  # of the missing ones, those that have another shape in the file
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of the first of these, in the model and in the file


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LayersLeftBehind(Event):
    """A model trains on top of frozen layers at random, which the model that its weights came from has under the same names."""

    absent = "no layer of another model was left behind"
    defect = True
    model: str = "model"
    giver: str = ""  # the class of the model that the weights came from
    layers: tuple[str, ...] = ()
    tensors: int = 0  # of the model
    missing: int = 0  # of them, that would have fitted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CheckpointLost(Event):
    """Weights of a checkpoint did not get into the model that trains, though a load went through."""

    absent = "every checkpoint reached its model"
    defect = True
    kind: Literal["own", "empty", "overwritten", "dropped", "merged"] = "own"
    model: str = "model"
    tensors: int = 0  # parameters of the model
    in_file: int = 0  # tensors in the file of which none was used
    read_where: Where | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StateAliased(Event):
    """A model was given a state dict of its own, which was kept without a copy: its tensors had gone on with the model."""

    absent = "no model was given a state dict of its own"
    defect = True
    model: str = "model"
    tensors: int = 0
    taken: int = 0  # steps of the run when it was made
    steps: int = 1  # that the model took since
    loaded: Where | None = None  # where it was given back


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScheduleBeganAnew(Event):
    """A resumed run took the count and the optimizer's state from a file; its schedule, of the whole run, is at its beginning."""

    absent = "no run was resumed with the state of its optimizer"
    defect = True
    counter: str = "epoch"  # key of the count
    count: int = 1
    schedule: str = "LambdaLR"
    length: int = 0  # in its own steps
    saved: bool = False  # its state lies in the file


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OptimizerBeganAnew(Event):
    """A run goes on from the count of a checkpoint, and its optimizer began anew: its state lies in the file, or nowhere."""

    absent = "no run was resumed without the state of its optimizer"
    defect = True
    key: str = ""  # in the file, of the optimizer's state; "" if it is not there
    others: tuple[str, ...] = ()  # keys of the states of generators and schedules, or of the weights alone
    schedule: str = ""  # of the whole run, that began anew, too; where weights are all that is in the file
    length: int = 0  # of that schedule
    counter: str = ""  # and of the count
    count: int = 0
    tensors: int = 0  # that need one
    optimizer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RandomFrozen(Event):
    """Layers that a checkpoint left out, or that came after the body's training, are frozen as they were built."""

    absent = "no new layer was frozen as it was built"
    defect = True
    model: str = "model"
    layers: tuple[str, ...] = ()
    source: Literal["checkpoint", "training"] = "checkpoint"  # of the other weights: a file, or an earlier optimizer
    loaded: int = 0  # parameters of the model that have theirs from there
    trains: int = 0  # parameters of the model that an optimizer updates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BodyNeverTrained(Event):
    """The run is over, and most of the model stayed frozen with the random numbers that its layers were built with."""

    absent = "what was frozen had been loaded or trained"
    defect = True
    optimizer: OptimizerFacts = OptimizerFacts()
    model: str = "model"
    matrices: int = 0  # that are frozen
    frozen: int = 0  # elements of the layers below the head
    trainable: int = 0  # of the head
    norms: int = 0  # frozen norms whose weights are ones and zeros
    replaced: bool = False  # the head was put in the place of another one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StageNotReached(Event):
    """The run is over, and what unfreezes layers stood under a condition that was never true."""

    absent = "no layers stayed frozen that the script unfreezes"
    defect = True
    frozen: int = 0  # elements of the trained models that are frozen
    trainable: int = 0
    condition: str = ""
    last: int = 0  # value of the loop's variable in its last round
    written: bool = True  # the number in the condition is a literal: nobody set it to switch the stage off
    words: tuple[str, ...] = ()  # instead: what the names of parameters were asked for, and none has
    # instead: another unit, a method nobody calls, an iterator, ``counted``, that the loop in line ``last`` used up
    why: Literal["", "percent", "samples", "uncalled", "rounds", "exhausted"] = ""
    low: float = 0.0  # what was seen in place of such a number; of rounds how many there were
    high: float = 0.0
    counted: str = ""  # what was taken for the number of the round
    parts: tuple[str, ...] = ()  # of the models, by their names


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UnfrozenNotHeld(Event):
    """Parameters that were frozen at first were unfrozen, get gradients, and stay what they are: no optimizer holds them."""

    absent = "nothing was unfrozen that no optimizer holds"
    defect = True
    names: tuple[str, ...] = ()
    elements: int = 0
    held: int = 0  # elements in the optimizer
    frozen_for: int = 0  # steps
    steps: int = 0  # since they were unfrozen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FlagOnModule(Event):
    """The run is over, and ``requires_grad`` is an attribute of a module whose parameters have the other value."""

    absent = "no module has a requires_grad of its own"
    defect = True
    module: str = ""
    flag: bool = True
    tensors: int = 0
    elements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AdaptersNotMade(Event):
    """The run is over, and a loop over the layers of a model that adds adapters to some of them came to none."""

    absent = "no adapters were looked for that were not made"
    defect = True
    adapter: str = ""  # their class, of which there was never an object
    function: str = ""  # that adds them, "" for the script itself
    targets: tuple[str, ...] = ()  # names of layers that it asks for; empty where it asks for their type only
    layers: tuple[str, ...] = ()  # names that there are
    frozen: int = 0  # elements of the trained models
    trainable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AdaptersUnused(Event):
    """The run is over, and adapters that were built for layers of its model never ran."""

    absent = "every adapter that an optimizer held took part"
    defect = True
    adapter: str = ""  # their class
    adapters: int = 0
    tensors: int = 0  # of theirs in the optimizer
    held: int = 0  # tensors in the optimizer
    layers: tuple[str, ...] = ()  # that they were built for, and that ran without them
    statement: str = ""  # that builds them and drops them, where no optimizer holds any of their tensors
    kept: bool = False  # the objects are still there at the end
    steps: int = 0  # of the optimizer, in none of which they got a gradient
    frozen: int = 0  # elements of the models that ran
    trainable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashTensor:
    """A tensor argument of the function that raised."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float | None = None
    high: float | None = None
    bad: str = ""  # the offending values and their positions
    requires_grad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SignsMissing(Event):
    """A loss that takes 1 for yes and -1 for no was called."""

    absent = "no loss over pairs was called as a module"
    loss: str = "CosineEmbeddingLoss"
    zeros: int = 0  # targets that are 0, where all others are 1
    targets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScriptCrashed(Event):
    """The script ended with an exception."""

    absent = "the script did not crash"
    defect = True
    error: str = "RuntimeError"
    message: str = ""
    functions: tuple[str, ...] = ()  # names of the frames, outermost first
    tensors: Mapping[str, CrashTensor] = field(default_factory=dict)
    ignore_index: int | None = None
    forward_without_grad: Where | None = None
    all_frozen: bool = False
    source_hint: str = ""
    hint_where: Where | None = None
    in_backward: bool = False
    checkpoint_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TrainingBegan(Event):
    """After one training another one: an optimizer of parameters that none had stepped on before."""

    absent = "the script trained once"
    key: int = 1  # of that optimizer
    again: bool = False  # it is built at the place of an earlier one: folds, trials
    search: int = 0  # key of the first one that was built under the same calls, as in a loop
    varied: bool = False  # and their settings are not all the same
    first_loss: float | None = None  # of the training that is over
    last_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TrainingsMixed(Event):
    """An optimizer of the training before goes on: the two are one."""

    absent = "no training went on beside another"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunEnded(Event):
    """The script is over."""

    absent = "the run did not end"
    how: Literal["finished", "crashed", "interrupted", "max-steps", "non-finite"] = "finished"
    loss: float | None = None  # the last finite one
    first_loss: float | None = None


def all_events() -> tuple[type[Event], ...]:
    """Every event of this module, in the order of a run."""
    return tuple(v for v in list(globals().values()) if isinstance(v, type) and issubclass(v, Event) and v is not Event)
