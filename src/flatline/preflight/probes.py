"""Questions put to a model on one batch. Each changes a part of the input, and looks where the output changes.

What is compared stands in the arithmetic of one shape, so that nothing but the model itself can carry a change from one
position or sample to another; only cutting off padding changes shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from flatline.events import (
    Event,
    FutureProbed,
    InfluenceFacts,
    InfluenceProbed,
    PaddingProbed,
    SamplesProbed,
    WeightsSevered,
    Where,
)
from flatline.preflight.hearing import Call, Loss, leaves
from flatline.preflight.padded import SHORTEST, Padding, padding_of
from flatline.preflight.trials import (
    SAME,
    Comparisons,
    MadeNan,
    Passed,
    Trial,
    Unprobed,
    evaluating,
    first_apart,
    input_kind,
    spread,
)

ODD = (5, 7, 3, 11)  # samples of a probe: a size that no other dimension has
NEXT = 0.98  # of the labels equal the next input: the model foretells
TOLD = 20  # of these labels are not the commonest one, nor what stands there already: else it may be chance
ORDERED = 0.8  # of the samples change with their order: a view in place of a transpose; capacities spare most
PARTS = 16  # of a model that are tried one by one
IGNORED = -100
TIME_FIRST = (nn.MultiheadAttention, nn.RNNBase, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.Transformer)


@dataclass
class Known:
    """What the steps so far have shown."""

    sizes: set[int] = field(default_factory=set)  # numbers of samples that the script drew
    padded: set[tuple[int, ...]] = field(default_factory=set)  # shapes of what was padded
    lengths: dict[tuple[int, int], set[int]] = field(default_factory=dict)  # model, place of an input
    asked: dict[int, set[int]] = field(default_factory=dict)  # model -> of what it returned, what had a gradient
    waiting: set[int] = field(default_factory=set)  # parameters whose rate is 0 now
    reached: set[int] = field(default_factory=set)  # parameters that got a gradient
    severed: dict[int, int] = field(default_factory=dict)  # those that did not; steps of their optimizer
    gathered: list[Tensor] = field(default_factory=list)  # labels by which scores were picked


class Probes:
    """One call of the script's and the losses of the same step."""

    def __init__(self, call: Call, losses: Sequence[Loss], step: int, known: Known | None = None) -> None:
        self.call, self.losses, self.step, self.known = call, losses, step, known or Known()
        self.targets = [*(loss.target for loss in losses), *self.known.gathered]
        self.name = type(call.module).__name__
        self.trial = Trial(call)

    def ask(self) -> Iterator[Event | str]:
        """The answers, and why there is none."""
        if not self.trial.inputs:
            yield f"{self.name} was given no tensor"
            return
        with evaluating(self.call.module):
            for question in (self.influences, self.samples, self.future, self.padding, self.severed):
                try:
                    if not self.trial.steady:
                        yield f"{self.name} makes something else of the same input, in eval mode, too"
                        return
                    yield question()
                except MadeNan:
                    yield f"{question.__name__}: {self.name} {MadeNan.said}"
                except Unprobed as why:
                    yield from (str(why),) if str(why) else ()
                except Exception as error:  # noqa: BLE001 - the user's model may refuse what is not its own input
                    yield f"{question.__name__}: {self.name} raised {type(error).__name__}"

    # ------------------------------------------------------------------ which inputs count

    def influences(self) -> InfluenceProbed:
        """Each input exchanged between samples; what has no effect in eval mode may have one as the script calls it."""
        found = []
        for at, (name, tensor) in enumerate(self.call.named):
            place = self.places[at]
            if place is None or tensor.dtype == torch.bool or self._is_target(tensor):
                continue
            other = tensor.index_select(place, _exchanged(self.rows).to(tensor.device))
            if torch.equal(other, tensor):
                continue
            inputs = (*self.trial.inputs[:at], other, *self.trial.inputs[at + 1 :])
            effect = self._effect(inputs)
            if effect <= SAME:
                with self.trial.as_called():
                    effect = max(effect, self._effect(inputs))
            found.append(InfluenceFacts(name=name, kind=input_kind(tensor), shape=tuple(tensor.shape), effect=effect))
        if not found:
            raise Unprobed("inputs: all are labels, or the same in every sample")
        return InfluenceProbed(
            step=self.step, where=self.call.where, model=self.name, inputs=tuple(found), waiting=self._waiting()
        )

    def _effect(self, inputs: tuple[Tensor, ...]) -> float:
        effects = self.trial.effect(self.trial.run(self.trial.inputs), self.trial.run(inputs))
        return max((float(each.max()) for each in effects if each.numel()), default=0.0)

    def _waiting(self) -> bool:
        """A gate that a schedule keeps shut: all zero, and so is its rate."""
        held = (p for p in self.call.module.parameters() if id(p) in self.known.waiting and p.requires_grad)
        return any(not bool(p.any()) for p in held)

    def _is_target(self, tensor: Tensor) -> bool:
        """Of a loss that the model computes itself."""
        targets = [target for target in self.targets if target.numel() == tensor.numel()]
        return any(torch.equal(target.reshape(-1), tensor.reshape(-1)) for target in targets)

    @cached_property
    def rows(self) -> int:
        """Samples of the batch: proven, or as many as there are targets, or else the first dimension of the first input."""
        if self.proven is not None:
            return self.proven
        first = self.trial.inputs[0]
        told = (loss.target.shape[0] for loss in self.losses if loss.target.dim() == 1)
        return next((count for count in told if count in first.shape[:2]), first.shape[0])

    @cached_property
    def proven(self) -> int | None:
        """So many samples: the labels run along the other dimension, or the script drew so many in no order."""
        for sequence in self.trial.inputs:
            if sequence.dim() > 1 and any(_labelled(sequence, target, 1) is not None for target in self.targets):
                return sequence.shape[0]
        first = self.trial.inputs[0].shape[:2]
        drawn = [size for size in first if size in self.known.sizes]
        return drawn[0] if len(drawn) == 1 else None

    @cached_property
    def places(self) -> tuple[int | None, ...]:
        """The dimension of every input that the samples stand in, one of the first two."""
        shapes = [list(tensor.shape[:2]) for tensor in self.trial.inputs]
        return tuple(shape.index(self.rows) if self.rows in shape else None for shape in shapes)

    # ------------------------------------------------------------------ do samples influence each other

    def samples(self) -> SamplesProbed:
        """All samples but one exchanged for others."""
        trial, count = self.trial, self._odd()
        stays = count // 2
        others = [*range(self.rows - stays, self.rows), stays, *range(count, 2 * count - stays - 1)]
        few, other = self._ordered(range(count)), self._ordered(others)
        base = trial.run(few)
        if self.trial.inputs[0].shape[:2].count(self.rows) > 1 and any(made.dim() > 2 for made in base):
            if self.proven is None:
                raise Unprobed("samples: two dimensions are as large as the batch")  # is the first one time?
        changes = _by_sample(trial.effect(base, trial.run(other)), count)[stays : stays + 1]
        culprit = None
        if bool((changes > SAME).any()):
            culprit = trial.culprit(few, other, lambda tensor: _sample(tensor, count, stays))
        return SamplesProbed(
            step=self.step,
            where=self._where(culprit),
            model=self.name,
            spread=spread(changes, culprit),
            reads_as_time=culprit is not None and _reads_as_time(culprit, count),
            order_matters=culprit is not None and self._order_matters(base, count),
            own_target=any(self._own(loss.target) for loss in self.losses),
            proven=self.proven is not None and not self._mixed_labels(),
        )

    def _own(self, target: Tensor) -> bool:
        """Every sample has its own, or several: of a flattened sequence."""
        several = target.dim() > 0 and target.shape[0] % self.rows == 0 and target.shape[0] > 0
        return several and bool((target != target.reshape(-1)[0]).any())

    def _mixed_labels(self) -> bool:
        """The labels of several samples are taken together: so the samples are meant to be, as in mixup."""
        soft = any(loss.name == "cross_entropy" and loss.target.is_floating_point() for loss in self.losses)
        return soft or any(
            one.numel() == other.numel() and not torch.equal(one.flatten(), other.flatten()) and _rearranged(one, other)
            for at, one in enumerate(self.targets)
            for other in self.targets[:at]
        )

    def _where(self, culprit: Passed | None) -> Where | None:
        """The line that runs the layer, or else the model."""
        return (culprit.where if culprit is not None else None) or self.call.where

    def _ordered(self, samples: Iterable[int]) -> tuple[Tensor, ...]:
        """The inputs of these samples, in this order."""
        order = torch.tensor(list(samples))
        return tuple(
            tensor if place is None else tensor.index_select(place, order.to(tensor.device))
            for tensor, place in zip(self.trial.inputs, self.places, strict=True)
        )

    def _order_matters(self, base: tuple[Tensor, ...], count: int) -> bool:
        """The same samples from back to front."""
        turned = self.trial.run(self._ordered(reversed(range(count))))
        again = [tuple(_turned(made, count, by_position=each) for made in turned) for each in (False, True)]
        changed = [_by_sample(self.trial.effect(base, each), count) > SAME for each in again]
        return min(float(each.float().mean()) for each in changed) >= ORDERED

    def _odd(self) -> int:
        """So many samples that no other dimension is as large."""
        inner = {
            size
            for tensor, place in zip(self.trial.inputs, self.places, strict=True)
            for at, size in enumerate(tensor.shape)
            if at != place
        }
        inner.update(size for made in self.trial.run(self.trial.inputs) for size in made.shape)
        found = next((count for count in ODD if 2 * count <= self.rows and count not in inner), None)
        if found is None:
            raise Unprobed("samples: the batch has too few")
        return found

    # ------------------------------------------------------------------ does a position see later ones

    def future(self) -> FutureProbed:
        """The second half of the sequences exchanged between samples."""
        asked = []
        for at, labelled, ahead in self._foretelling():
            sequence = self.trial.inputs[at]
            begin = sequence.shape[1] // 2
            other = torch.cat([sequence[:, :begin], sequence[:, begin:].roll(1, 0)], 1)
            inputs = (*self.trial.inputs[:at], other, *self.trial.inputs[at + 1 :])
            effects = self.trial.effect(self.trial.run(self.trial.inputs), self.trial.run(inputs))
            if any(float(effect.max()) > SAME for effect in effects if effect.dim() and effect.numel()):
                asked.append((sequence.shape[1], inputs, effects, labelled, ahead))  # else it is the labels themselves
        if not asked:
            raise Unprobed("future: no label is the next element of a sequence")
        shortest = [each for each in asked if each[0] == min(each[0] for each in asked)]
        if len({ahead for *_, ahead in shortest}) < len(shortest):
            raise Unprobed("future: several inputs hold the labels")
        return self._earlier(*shortest[0][1:])

    def _foretelling(self) -> Iterator[tuple[int, Tensor, int]]:
        """Inputs whose elements are the labels, which positions have one, and how many positions it lies ahead: 1 or 0."""
        for ahead in (1, 0):
            for at, sequence in enumerate(self.trial.inputs):
                long = sequence.dim() > 1 and sequence.shape[1] >= SHORTEST and self.places[at] == 0
                if not long or (ahead == 0 and input_kind(sequence) != "tokens"):
                    continue
                told = (_labelled(sequence, target, ahead) for target in self.targets)
                if (labelled := next((each for each in told if each is not None), None)) is not None:
                    yield at, labelled, ahead

    def _earlier(
        self, inputs: tuple[Tensor, ...], effects: tuple[Tensor, ...], labelled: Tensor, ahead: int
    ) -> FutureProbed:
        """What became of the first half."""
        rows, length = labelled.shape
        begin = length // 2
        grids = [grid for made in effects if (grid := _positions(made, rows, length)) is not None]
        if not grids:
            raise Unprobed("future: no output of the model belongs to a position")
        everywhere = torch.stack(grids).amax(0)
        changes = everywhere[:, :begin][labelled[:, :begin]]
        culprit, summary = None, False
        if bool((changes > SAME).any()):
            culprit, summary = self.trial.carried(
                self.trial.inputs, inputs, lambda tensor: _earlier(tensor, rows, length, begin)
            )
        return FutureProbed(
            step=self.step,
            where=self._where(culprit),
            model=self.name,
            length=length,
            begin=begin,
            next_token=ahead == 1,
            own_token=ahead == 0 and _reads_its_own(self.trial.inputs, inputs, everywhere),
            summary=summary,
            spread=spread(changes, culprit),
        )

    # ------------------------------------------------------------------ does padding count

    def padding(self) -> PaddingProbed:
        """The padding of one sequence cut off; of a model of one length only, other vectors put in its place."""
        found = self._padded()
        try:
            most, half, culprit = self._without(found)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            most, half, culprit = self._overwritten(found)
            overwritten = True
        else:
            overwritten = False
            if found.numbers and most > SAME:
                most = min(most, self._refilled(found))
        return PaddingProbed(
            step=self.step,
            where=self._where(culprit),
            model=self.name,
            length=self.trial.inputs[found.at].shape[1],
            padded=found.cut,
            overwritten=overwritten,
            spread=spread(torch.tensor([most]), culprit),
            half=half,
            proven=found.proven
            and (not overwritten or self._singled_out(found.at)),  # an empty slot may mean something
            recurrent=culprit is not None and isinstance(culprit.module, (nn.RNNBase, nn.RNNCellBase)),
        )

    def _without(self, found: Padding) -> tuple[float, float, Passed | None]:
        """Cut off; or a longer sequence put beside it, where the model cuts a batch to its longest row."""
        trial, row, cut = self.trial, found.row, found.cut
        rows, length = trial.inputs[found.at].shape[:2]
        alone = tuple(t[row : row + 1] if t.shape[0] == rows else t for t in trial.inputs)
        most, half = self._cut(alone, rows, length, cut), self._cut(alone, rows, length, cut // 2)
        if most > SAME:
            short = _trimmed(alone, length, cut)
            return most, half, trial.culprit(alone, short, lambda tensor: _kept(tensor, length, cut))
        if int(found.tail.min()) < cut and self.places[found.at] == 0:
            return self._beside(found)
        return most, half, None

    def _cut(self, alone: tuple[Tensor, ...], rows: int, length: int, cut: int) -> float:
        """The largest change of what is left, in standard deviations between the samples of the batch."""
        long, short = self.trial.run(alone), self.trial.run(_trimmed(alone, length, cut))
        return self._changed(rows, [_kept(made, length, cut) for made in long], short)

    def _beside(self, found: Padding) -> tuple[float, float, Passed | None]:
        """The same beside the longest row, and beside one of half as much more, in place of copies of itself."""
        count, row, tail = self._odd(), found.row, found.tail
        longest, middle = int(tail.argmin()), int((tail - (tail.min() + tail.max()) / 2).abs().argmin())
        own, long, some = (self._ordered([row] + [each] * (count - 1)) for each in (row, longest, middle))
        left = self.trial.inputs[found.at].shape[1] - found.cut

        def part(tensor: Tensor) -> Tensor | None:
            place = _place(tensor, count)  # None where samples are compared with each other, as in CLIP
            first = tensor.narrow(place, 0, 1) if place is not None else None
            return first[:, :left] if first is not None and first.dim() > 1 else first

        made = [[_none(part(each)) for each in self.trial.run(inputs)] for inputs in (own, long, some)]
        most, half = self._changed(self.rows, made[0], made[1]), self._changed(self.rows, made[1], made[2])
        return most, half, self.trial.culprit(own, long, part) if most > SAME else None

    def _overwritten(self, found: Padding) -> tuple[float, float, Passed | None]:
        """What an embedding makes of padding, exchanged for what it makes of another token; and of the second half of it alone."""
        trial, tokens = self.trial, self.trial.inputs[found.at]
        plain = [m for m in trial.module.modules() if isinstance(m, nn.Embedding) and m.padding_idx is None]
        if input_kind(tokens) != "tokens" or not plain:
            raise Unprobed("padding: the model takes sequences of one length only")
        length = tokens.shape[1]
        padded, further = found.where(length), found.where(length, found.tail // 2)

        def part(tensor: Tensor) -> Tensor | None:
            return (
                tensor[~padded] if tensor.shape[:2] == tokens.shape else tensor if length not in tensor.shape else None
            )

        whole = trial.run(trial.inputs)
        with _exchanging(plain, tokens, padded) as reached:
            other, passed = trial.run(trial.inputs), trial.watched(trial.inputs)
        with _exchanging(plain, tokens, further):
            some = trial.run(trial.inputs)
        if not reached:
            raise Unprobed("padding: the model takes sequences of one length only")
        made = [[_none(part(each)) for each in of] for of in (whole, other, some)]
        most, half = (self._changed(self.rows, made[0], each) for each in made[1:])
        return most, half, first_apart(trial.watched(trial.inputs), passed, part)[0] if most > SAME else None

    def _refilled(self, found: Padding) -> float:
        """What changes with another row's first numbers in place of the padding: cutting it off moves positions and sizes, too."""
        trial, sequence = self.trial, self.trial.inputs[found.at]
        padded = found.where(sequence.shape[1])
        where = padded.reshape(padded.shape + (1,) * (sequence.dim() - 2))
        other = torch.where(where, sequence[:, :1].roll(1, 0), sequence)
        inputs = (*trial.inputs[: found.at], other, *trial.inputs[found.at + 1 :])

        def part(tensor: Tensor) -> Tensor:
            return tensor[~padded] if tensor.shape[:2] == padded.shape else tensor

        made = [[part(each) for each in trial.run(given)] for given in (trial.inputs, inputs)]
        return self._changed(self.rows, made[0], made[1])

    def _changed(self, rows: int, one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
        """The largest change, in standard deviations between the samples of the batch."""
        changes = [
            float((a.float() - b.float()).abs().max() / scale)
            for (count, scale), a, b in zip(self._scales, one, other, strict=False)
            if count == rows and a.shape == b.shape and a.numel()
        ]
        if not changes:
            raise Unprobed("padding: no output can be compared without it")
        return max(changes)

    @cached_property
    def _scales(self) -> list[tuple[int | None, Tensor]]:
        """Of every output in eval mode: how many rows it has, and their standard deviation."""
        made = self.trial.run(self.trial.inputs)
        return [
            (each.shape[0] if each.dim() else None, each.float().std(0).mean().clamp(min=1e-12) if each.dim() else each)
            for each in made
        ]

    def _padded(self) -> Padding:
        """The input that is padded at its end."""
        known = {m.padding_idx for m in self.call.module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
        for at in range(len(self.trial.inputs)):
            lengths = self.known.lengths.get((id(self.call.module), at), set())
            found = padding_of(at, self.trial.inputs, known, self.known.padded, lengths)
            if found is not None:
                return found if found.proven else found._replace(proven=self._singled_out(at))
        raise Unprobed("padding: no sequence has any at its end")

    def _singled_out(self, at: int) -> bool:
        """The model compares its tokens with the very one that rows end with."""
        tokens = self.trial.inputs[at]
        with Comparisons(tokens) as heard:
            self.trial.run(self.trial.inputs)
        return int(tokens[:, -1].mode().values) in heard.values

    # ------------------------------------------------------------------ do weights count that get no gradient

    def severed(self) -> WeightsSevered:
        """Turns round the weights that no gradient came to: does what the loss is made of change?"""
        steps = self.known.severed
        asked = self.known.asked.get(id(self.call.module), set())
        weights = {id(weight) for weight in self.call.module.parameters()}
        grown = self.trial.grown(asked) if weights & steps.keys() and weights & self.known.reached and asked else set()
        before = self.trial.learning(asked) if grown else ()
        parts: list[str] = []
        tensors: list[Tensor] = []
        for name, module in self.call.module.named_modules():
            mine = [p for p in module.parameters(recurse=False) if id(p) in steps]
            if id(module) in grown and mine and len(parts) < PARTS and self._counts(mine, asked, before):
                parts.append(name)
                tensors += mine
        if not parts:
            raise Unprobed("")
        return WeightsSevered(
            step=self.step,
            where=self.call.where,
            model=self.name,
            parts=tuple(parts),
            tensors=len(tensors),
            steps=min(steps[id(p)] for p in tensors),
        )

    def _counts(self, weights: list[Tensor], asked: set[int], before: tuple[Tensor, ...]) -> bool:
        """Whether the output is another with these weights turned round."""
        for weight in weights:
            weight.neg_()
        after = self.trial.learning(asked)
        for weight in weights:
            weight.neg_()
        return any(float(each.max()) > SAME for each in self.trial.effect(before, after) if each.numel())


# --------------------------------------------------------------------------- parts of tensors


@contextmanager
def _exchanging(embeddings: list[nn.Embedding], tokens: Tensor, where: Tensor) -> Iterator[list[nn.Module]]:
    """What they make of these tokens there is what they make of another row's first one; told are those that it happened to."""
    reached: list[nn.Module] = []

    def heard(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not args or not torch.equal(args[0], tokens):
            return None
        reached.append(module)
        return torch.where(where[..., None], output[:, :1].roll(1, 0), output)

    handles = [embedding.register_forward_hook(heard) for embedding in embeddings]
    try:
        yield reached
    finally:
        for handle in handles:
            handle.remove()


def _none(tensor: Tensor | None) -> Tensor:
    return torch.empty(0) if tensor is None else tensor


def _exchanged(rows: int) -> Tensor:
    """Samples of the second half in place of the first: a mean over the batch shows it, too."""
    order = torch.arange(rows)
    order[: rows // 2] += rows - rows // 2
    return order


def _place(tensor: Tensor, count: int) -> int | None:
    """The dimension of so many samples; None where there is none, or two: each is compared with each, as in CLIP."""
    return tensor.shape.index(count) if tensor.shape.count(count) == 1 else None


def _by_sample(changes: tuple[Tensor, ...], count: int) -> Tensor:
    """The largest change of every sample."""
    known = [(change, place) for change in changes if (place := _place(change, count)) is not None]
    found = [change.movedim(place, 0).reshape(count, -1).amax(1) for change, place in known]
    for flat in (change for change in changes if _flattened(change, count)):
        # sample by sample, or position by position: where one of them shows no change, there is none
        by_sample, by_position = flat.reshape(count, -1).amax(1), flat.reshape(-1, count, *flat.shape[1:])
        found.append(torch.minimum(by_sample, by_position.transpose(0, 1).reshape(count, -1).amax(1)))
    if not found:
        raise Unprobed("samples: no output of the model belongs to one")
    return torch.stack(found).amax(0)


def _flattened(tensor: Tensor, count: int) -> bool:
    """Rows of all samples and positions."""
    several = tensor.dim() > 0 and tensor.shape[0] > count and tensor.shape[0] % count == 0
    return several and _place(tensor, count) is None


def _turned(made: Tensor, count: int, *, by_position: bool) -> Tensor:
    """The samples from back to front."""
    place = _place(made, count)
    if place is not None:
        return made.flip(place)
    if not _flattened(made, count):
        return made
    parts = made.reshape(-1, count, *made.shape[1:]) if by_position else made.reshape(count, -1, *made.shape[1:])
    return parts.flip(1 if by_position else 0).reshape(made.shape)


def _sample(tensor: Tensor, count: int, place: int) -> Tensor | None:
    """One sample, in whatever dimension the samples stand."""
    samples = _place(tensor, count)
    if samples is not None:
        return tensor.narrow(samples, place, 1)
    if tensor.dim() and tensor.shape[0] % count == 0 and tensor.shape[0]:
        return tensor.reshape(count, -1, *tensor.shape[1:])[place]
    return None


def _reads_as_time(passed: Passed, count: int) -> bool:
    """A layer of torch's that takes the first dimension for time, given samples there and something else beside them."""
    layer, given = passed.module, passed.given
    inner = getattr(layer, "self_attn", layer)
    if not isinstance(layer, TIME_FIRST) or getattr(inner, "batch_first", True) or not given:
        return False
    return given[0].dim() == 3 and given[0].shape[0] == count and given[0].shape[1] > 1


def _reads_its_own(before: tuple[Tensor, ...], after: tuple[Tensor, ...], changes: Tensor) -> bool:
    """Most rows' outputs change at the first position with another token: a model that shifts inside changes behind it."""
    differ = next(torch.ne(one, other) for one, other in zip(before, after, strict=True) if one is not other)
    rows = differ.any(1).nonzero().flatten()
    first = differ.int().argmax(1)[rows]
    return len(rows) > 0 and bool((changes[rows, first] > SAME).float().mean() > 1 / 2)


def _positions(made: Tensor, rows: int, length: int) -> Tensor | None:
    """The largest number of every position of every row: rows × length; None where there are none."""
    if made.dim() >= 2 and made.shape[:2] == (rows, length):
        return made.flatten(2).amax(2) if made.dim() > 2 else made
    if made.dim() == 3 and made.shape[0] == rows and made.shape[2] == length:  # scores before positions
        return made.amax(1)
    if made.dim() == 2 and made.shape[0] == rows * length:
        return made.amax(1).reshape(rows, length)
    return None


def _earlier(tensor: Tensor, rows: int, length: int, begin: int) -> Tensor | None:
    """The positions before ``begin``, in whatever dimension time is."""
    if tensor.dim() and tensor.shape[0] == rows * length:
        return tensor.reshape(rows, length, *tensor.shape[1:])[:, :begin]
    place = next((at for at in (1, 0, 2) if at < tensor.dim() and tensor.shape[at] == length), None)
    return tensor.narrow(place, 0, begin) if place is not None and tensor.dim() > 1 else None


def _trimmed(inputs: tuple[Tensor, ...], length: int, cut: int) -> tuple[Tensor, ...]:
    return tuple(_shortened(tensor, length, length - cut) for tensor in inputs)


def _shortened(tensor: Tensor, length: int, left: int) -> Tensor:
    """Sequences; and masks of attention, which end with positions × positions."""
    if tensor.dim() > 1 and tensor.shape[1] == length and not (tensor.dtype == torch.bool and tensor.dim() > 2):
        return tensor[:, :left]
    for at in range(1, tensor.dim()) if tensor.dim() > 2 else ():
        tensor = tensor.narrow(at, 0, left) if tensor.shape[at] == length else tensor
    return tensor


def _kept(tensor: Tensor, length: int, cut: int) -> Tensor:
    """Without the padding; of what is trimmed already, all."""
    place = next((at for at in (1, 0, 2) if at < tensor.dim() and tensor.shape[at] == length), None)
    return tensor if place is None else tensor.narrow(place, 0, length - cut)


def _labelled(sequence: Tensor, target: Tensor, ahead: int) -> Tensor | None:
    """Rows × length: which positions have the element so many positions on as their label; None if it is not so."""
    rows, length = sequence.shape[:2]
    if length <= ahead or not sequence.numel():
        return None
    for size in {length, length - ahead}:
        if target.numel() != rows * size * (sequence.numel() // (rows * length)):
            continue
        labels = target.reshape(rows, size, *sequence.shape[2:])
        here, there, told = sequence[:, : length - ahead], sequence[:, ahead:], labels[:, : length - ahead]
        known = (told != IGNORED).reshape(rows, length - ahead, -1).all(2)
        equal = told == there
        rare = (there != _commonest(sequence)) & ((there != here) if ahead else torch.ones_like(equal))
        telling = equal[rare & known.reshape(known.shape + (1,) * (rare.dim() - 2))]
        whole = equal.reshape(rows, length - ahead, -1).all(2)[known]
        if len(telling) < TOLD or min(float(telling.float().mean()), float(whole.float().mean())) < NEXT:
            continue
        return torch.cat([known, known.new_zeros(rows, ahead)], 1)
    return None


def _commonest(tensor: Tensor) -> float:
    return float(tensor.flatten().mode().values)


def _rearranged(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.flatten().sort().values, other.flatten().sort().values)


def labels_permuted(losses: Sequence[Loss], generator: torch.Generator) -> tuple[float, float] | None:
    """The last loss of the step, and the same scores' loss with the labels in another order."""
    for loss in reversed(losses):
        flat = loss.target.reshape(-1)
        order = torch.randperm(len(flat), generator=generator).to(flat.device)
        other = flat[order].reshape(loss.target.shape)
        if len(flat) > 1 and not torch.equal(other, loss.target) and not list(leaves(loss.kwargs)):
            with torch.no_grad():
                return float(loss.again(loss.target).mean()), float(loss.again(other).mean())
    return None
