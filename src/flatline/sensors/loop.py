"""What the sensors know of the loop they watch: one tape per optimizer, and when to look closely."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flatline.events import BackwardFacts, ClipFacts, Event, GroupFacts, LossesRead, OptimizerFacts, Tick, Where
from flatline.sensors.patching import Patches

DENSE_STEPS = 5  # every one of the first steps is looked at closely: the wiring shows there
DENSE_LIMIT = 40  # and more of them while some optimizer has not stepped twice
SPREAD = 1.5  # later looks are this much further apart each time
EARLY = 30  # up to this step closer looks are taken whatever they cost
TAPE_LIMIT = 2_000
PATIENCE = 700_000_000  # nanoseconds of close looks that are always granted
PATIENCE_AGAIN = 400_000_000  # and so many more when another stage begins, which has steps of its own to be looked at
TOO_MUCH = 0.15  # share of the time that ends a close look in the middle of a step
SAMPLE_GAP = 16  # numbers are sampled twice in every sixteenth part of the steps so far
SAMPLE_GRANT = 150_000_000  # nanoseconds of sampling that are always granted
MANY_OPTIMIZERS = 4  # built in one process: folds, ensembles; more of them are looked at within the budget only
LEAD_PATIENCE = 8  # steps of other optimizers, before one of them leads
TIMED_EVERY = 128  # light steps
WATCHED_EVERY = 4, 32  # light steps, at first and at most
WATCHED_SHARE = 64  # in between, that part of the steps so far
STARVED = 2  # close looks that are taken because an optimizer finds no gradient any more
WATCHED = 8  # parameters whose requires_grad is compared then
DECOUPLED = ("AdamW", "NAdamW", "Lion", "Muon", "RAdamW", "AdaBelief", "StableAdamW", "Adan", "LAMB", "Lamb")
ADAPTIVE = ("Adam", "RMSprop", "Adagrad", "Adadelta", "Lion", "Adafactor", "LAMB", "Lamb", "Adan", "Rprop", "Muon")


def norm_of(norms: list[float]) -> float | None:
    """Of several vectors together, from the norm of each."""
    return math.hypot(*norms) if norms else None


@dataclass(slots=True)
class Window:
    """What happened to one optimizer's parameters since its previous step."""

    tape: list[Tick] = field(default_factory=list)
    backwards: list[BackwardFacts] = field(default_factory=list)
    clips: list[ClipFacts] = field(default_factory=list)
    norm: Any = None  # of the newest clip, while it lies on a device
    leftover: bool = False
    scaled: bool = False
    norms_after_backward: list[float] = field(default_factory=list)  # of the gradients of a few parameters
    hand_clip: ClipFacts | None = None  # of gradients that still carried the loss scale
    zero_where: Where | None = None
    fed: list[list[int]] = field(default_factory=list)  # of each backward that reached them: whose loss it was
    wiped: bool = False  # gradients were gone at the step, though nobody called zero_grad

    @property
    def norm_after_backward(self) -> float | None:
        """Of all these gradients together."""
        return norm_of(self.norms_after_backward)

    def tick(self, what: Tick) -> None:
        """Write on the tape."""
        if len(self.tape) < TAPE_LIMIT:
            self.tape.append(what)

    def last(self, what: Tick) -> int:
        """Its last place on the tape; -1 if it is not there."""
        return len(self.tape) - 1 - self.tape[::-1].index(what) if what in self.tape else -1

    def next(self) -> Window:
        """An empty window; this very one while nothing but its tape was written."""
        if self.backwards or self.clips or self.fed or self.leftover or self.scaled or self.norms_after_backward:
            return Window()
        self.tape.clear()
        return self

    def forget(self, key: int) -> None:
        """What the backwards gave was thrown away: their losses are others'."""
        for keys in self.fed:
            if key in keys:
                keys.remove(key)
        self.fed = []

    @property
    def fresh(self) -> bool:
        """No backward since the last step or the last zeroing."""
        for what in reversed(self.tape):
            if what in ("backward", "zero"):
                return what == "zero"
        return True


class StandIn:
    """Weights that the script steps by hand, in the place of an optimizer. It keeps none of them alive."""

    def __init__(self, parameters: list[Any]) -> None:
        self._parameters = [weakref.ref(p) for p in parameters]

    def add(self, parameters: list[Any]) -> None:
        """More of them."""
        self._parameters += [weakref.ref(p) for p in parameters]

    @property
    def gone(self) -> bool:
        """Most of them are; a few may be alive as probes."""
        return 2 * sum(ref() is not None for ref in self._parameters) < len(self._parameters)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group without settings."""
        return [{"params": [p for ref in self._parameters if (p := ref()) is not None]}]


class OptimizerState:
    """One optimizer under watch."""

    def __init__(self, optimizer: Any, key: int, where: Where | None) -> None:
        self.key, self.where = key, where
        self.ref = weakref.ref(optimizer)
        self.by_hand = isinstance(optimizer, StandIn)
        self.touched = False  # gradients that a step by hand was taken with were changed after their backward
        self.norms: dict[str, list[Any]] = {}  # of those gradients, by device, while that step is measured
        self.born = 0
        self.steps = 0
        self.unseen_backwards = 0  # that were not looked at: what they reached is not known
        self.last_step = 0  # the run's step at its newest step
        self.skipped = 0
        self.backwards = 0
        self.window = Window()
        self.closure = False
        self.others_steps = 0  # of all optimizers, when gradients were last thrown away
        self.idle_cycles = 0  # zeroings that threw gradients away, with no step between
        self._next_watched = 0
        self._trainable: dict[int, bool] = {}
        self._starved = self._groups = 0
        self.rate: Any = None  # of its first group at its newest step
        self.probes: list[Any] = []  # a few parameters whose gradients tell whether a backward reached us
        self.signature = (0, 0)  # of the first probe's gradient, before the backward in progress
        self.stepped_with: list[tuple[int, int]] = []  # the same of all of them, as its newest step began
        self.closure_runs = 0, 0  # its newest step under close look, and how often the closure had run by then
        self.shrunk_to = 0.0  # norm of its gradients when they were last found to be shrunk by hand
        self.peak_lr = 0.0
        self.before: dict[str, Any] = {}  # parameters and some of their elements, while a sampled step is taken
        self.left: Any = None  # its newest sampled step, and what that did to some elements
        self.first_loss: float | None = None  # of the backwards that reached it
        self.last_loss: float | None = None
        self._count = -1
        self._ids: frozenset[int] = frozenset()

    @property
    def parameters(self) -> list[Any]:
        """The tensors it holds."""
        optimizer = self.ref()
        return [p for group in optimizer.param_groups for p in group["params"]] if optimizer is not None else []

    @property
    def ids(self) -> frozenset[int]:
        """Their identities, remembered until groups are added; none when it is gone."""
        optimizer = self.ref()
        if optimizer is None:
            return frozenset()  # and ``held`` stays
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count != self._count:
            self._count, self._ids = count, frozenset(id(p) for p in self.parameters)
        return self._ids

    def retire(self) -> None:
        """It is gone: keep no tensor of it."""
        self.probes, self.window, self.left, self.before = [], Window(), None, {}

    @property
    def held(self) -> frozenset[int]:
        """The identities that it held when last asked; of use when it is gone."""
        return self._ids

    def refrozen(self) -> bool:
        """Whether some parameter was frozen or unfrozen, or a group added. Looks at a few of them, in turn."""
        optimizer = self.ref()
        groups = optimizer.param_groups if optimizer is not None else [{"params": []}]
        group = groups[self._next_watched % len(groups)]["params"]
        self._next_watched += 1
        changed = len(groups) != (self._groups or len(groups))
        self._groups = len(groups)
        for at in range(min(WATCHED, len(group))):
            parameter = group[(self._next_watched * WATCHED + at) % len(group)]
            now = parameter.requires_grad
            changed = changed or self._trainable.get(id(parameter), now) is not now
            self._trainable[id(parameter)] = now
        return changed

    def starves(self) -> bool:
        """The gradients that tell of its backwards are gone after a step: told a few times."""
        gone = bool(self.probes) and all(p.grad is None for p in self.probes)
        self._starved += gone
        return gone and self._starved <= STARVED

    def learned_from(self, loss: float | None) -> None:
        """A backward from a loss of this value reached it."""
        if loss is not None and loss - loss == 0.0:
            self.last_loss = loss
            self.first_loss = loss if self.first_loss is None else self.first_loss

    @property
    def lr(self) -> float:
        """The rate of the first group that has one."""
        optimizer = self.ref()
        return float(optimizer.param_groups[0].get("lr", 0.0)) if optimizer is not None else 0.0

    @property
    def facts(self) -> OptimizerFacts:
        """What rules see of it."""
        optimizer = self.ref()
        name = type(optimizer).__name__ if optimizer is not None else "optimizer"
        name = "a step by hand" if self.by_hand else name
        groups = tuple(_group_facts(group) for group in optimizer.param_groups) if optimizer is not None else ()
        return OptimizerFacts(
            key=self.key,
            name=name,
            adaptive=any(known in name for known in ADAPTIVE),
            decoupled=_decoupled(optimizer, name),
            groups=groups,
            steps=self.steps,
            seen=not self.unseen_backwards,
            where=self.where,
            by_hand=self.by_hand,
            own=optimizer is not None and not type(optimizer).__module__.startswith("torch."),
        )


def _decoupled(optimizer: Any, name: str) -> bool:
    groups = getattr(optimizer, "param_groups", None) or [{}]
    return bool(groups[0].get("decoupled_weight_decay")) or name.endswith(DECOUPLED)


def _group_facts(group: dict[str, Any]) -> GroupFacts:
    decay = group.get("weight_decay", 0.0)
    return GroupFacts(
        lr=float(group.get("lr", 0.0)),
        weight_decay=float(decay) if isinstance(decay, (int, float)) else 0.0,
        tensors=len(group["params"]),
        small_tensors=sum(p.dim() < 2 for p in group["params"]),
    )


class Loop:
    """Shared by the sensors of one session."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        *,
        wants: Callable[[type[Event]], bool],
        budget: float,
        patches: Patches,
    ) -> None:
        self._emit, self._budget, self._patches = emit, budget, patches
        self._light_nanoseconds, self._timed_from = 0.0, 0
        self._next_timed = TIMED_EVERY
        self.wants = wants
        self.clock = 0  # counts parameters registered and optimizers built
        self.born: dict[int, int] = {}  # id of a parameter -> when it was registered
        self.started, self._processor_started = time.perf_counter_ns(), time.process_time_ns()
        self.steps = 0
        self.dense = True
        self.sampling = True  # the numbers of this step are taken; always on a step under close look
        self.sampled = 0  # steps under close look
        self.measured = 0  # other steps whose numbers were taken
        self.sampling_nanoseconds = 0
        self.audited = False
        self.optimizers: dict[int, OptimizerState] = {}
        self.retired: list[OptimizerState] = []
        self.on_dense: list[Callable[[bool], None]] = []
        self.on_watch: Callable[[], Any] = bool  # called beside ``refrozen``; does nothing yet
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self.last_loss_step = 0
        self.largest_loss = 0.0
        self._next_sample = DENSE_STEPS
        self._next_numbers = self._next_watch = 0
        self._first_of_pair = False
        self._dense_until = 0
        self._begun, self._granted = 0, SAMPLE_GRANT  # step at which the newest training began; nanoseconds for numbers
        self.begins: list[Callable[[], None]] = []  # called when another training begins
        self.lead: OptimizerState | None = None
        self.beside = 0  # steps of others since the lead's last one
        self.light = False  # an ordinary step, neither looked at closely nor timed
        self.built = False  # an optimizer of torch was seen: from then on no step is taken for one by hand
        self.by_hand = False  # steps by hand are counted: no step is light
        self.stepping = False  # inside an optimizer's step
        self.unsettled = False  # something of the models is to be cleaned up or judged at the coming step
        self.next_look = 0  # up to this step there is nothing to do but to count
        self._keys = 0
        self._patience: float = PATIENCE
        # what is read at every step, for those who want it: (step, loss, key of the optimizer), (step, rate, key)
        self.losses: list[tuple[int, float, int | list[int]]] | None = [] if wants(LossesRead) else None
        self.rates: list[tuple[int, Any, int]] | None = [] if wants(LossesRead) else None
        self.due = math.inf  # time at which these are handed on
        self.recording_nanoseconds = 0

    @property
    def step(self) -> int:
        """The optimizer step in progress, from 1."""
        return self.steps + 1

    def emit(self, event: Event) -> None:
        """Hand an event to the engine."""
        self._emit(event)

    @property
    def states(self) -> list[OptimizerState]:
        """Of the optimizers alive, as of now: one may be collected, or made in another thread, while they are read."""
        return list(self.optimizers.values())

    def optimizer(self, optimizer: Any, where: Where | None = None) -> OptimizerState:
        """The state kept for an optimizer, made when it is first seen."""
        state = self.optimizers.get(id(optimizer))
        if state is None or state.ref() is not optimizer:
            by_hand = isinstance(optimizer, StandIn)
            if not by_hand:
                self.drop_stand_in()
            self.built, self.by_hand = self.built or not by_hand, by_hand
            self._keys += 1
            self.clock += 1
            state = self.optimizers[id(optimizer)] = OptimizerState(optimizer, self._keys, where)
            state.born = self.clock
            weakref.finalize(optimizer, self._retire, id(optimizer)).atexit = False
            if self._keys <= MANY_OPTIMIZERS:
                self._patience = max(self._patience, self.spent + PATIENCE_AGAIN)
            self.look_closely()
        return state

    def drop_stand_in(self) -> None:
        """Steps by hand are not followed any more."""
        self.by_hand = False
        for identity, state in self.optimizers.copy().items():
            if state.by_hand:
                self.optimizers.pop(identity, None)
                state.retire()

    def _retire(self, identity: int) -> None:
        state = self.optimizers.pop(identity, None)
        if state is not None and state.by_hand:
            self.by_hand = False
        if state is not None and state.steps:
            state.retire()
            self.retired.append(state)

    def begin(self) -> None:
        """Another training begins: it is looked at as the first one was."""
        self.first_loss, self.largest_loss = None, 0.0
        self._begun = self._next_numbers = self._next_watch = self.steps
        self._granted += SAMPLE_GRANT
        self.look_closely()
        for callback in self.begins:
            callback()

    def look_closely(self) -> None:
        """Look at the coming steps closely, whatever the sampling says: something is new."""
        if self._keys > MANY_OPTIMIZERS and self.overhead > self._budget:
            return
        self._next_sample = min(self._next_sample, self.steps)
        self._dense_until = self.steps + DENSE_STEPS
        self._set_dense(True)

    def stepped(self, state: OptimizerState) -> None:
        """An optimizer stepped: advance the count, decide how closely to look at the next step."""
        if self._leads(state):
            self.steps += 1
            self.look_ahead(state)

    def look_ahead(self, state: OptimizerState) -> None:
        """A step was counted: decide how closely to look at the next one."""
        self._keep_time()
        if self.dense:
            self.sampled += 1
        elif self.sampling:
            self.measured += 1
        if not self.dense and self.steps >= self._next_watch:
            self.on_watch()
            if state.refrozen():
                self._dense_until = max(self._dense_until, self.steps + 2)
            if state.starves():
                self.look_closely()
        self._choose()
        self._choose_numbers()
        if self.steps >= self._next_watch:
            least, most = WATCHED_EVERY
            self._next_watch = self.steps + min(most, max(least, self._age // WATCHED_SHARE))
        self.next_look = min(self._next_sample, self._next_numbers, self._next_watch)

    def _choose_numbers(self) -> None:
        """Numbers are taken of pairs of steps, so that one update can be compared with the next."""
        second, due = self._first_of_pair, self.steps >= self._next_numbers
        self._first_of_pair = due and not second and self._affordable()
        if due and not second:
            self._next_numbers = self.steps + max(2, self._age // SAMPLE_GAP)
        self.sampling = self.dense or second or self._first_of_pair
        self._patches.timed = self._patches.timed or self.sampling
        self.light = not self._patches.timed and not self.by_hand

    @property
    def _age(self) -> int:
        """Steps of the newest training."""
        return self.steps - self._begun

    def _affordable(self) -> bool:
        """Half of the budget is for numbers."""
        return self.sampling_nanoseconds < self._granted + self.elapsed * self._budget / 2

    def _choose(self) -> None:
        """How closely to look at the next step."""
        waiting = not self.audited and self.steps < DENSE_LIMIT
        if self.steps < max(DENSE_STEPS, self._dense_until) or waiting:
            self._set_dense(True)
        elif self.steps >= self._next_sample:
            self._next_sample = max(self.steps + 3, self._begun + int(self._age * SPREAD))
            self._set_dense(self.overhead <= self._budget or self._age <= EARLY)
        else:
            self._set_dense(False)

    def note_rate(self, state: OptimizerState, step: int) -> None:
        """The rate that a step was taken with, where it is not that of the step before."""
        if self.rates is not None and (optimizer := state.ref()) is not None:
            rate = optimizer.param_groups[0].get("lr")
            if rate is not state.rate:
                state.rate = rate
                self.rates.append((step, rate, state.key))

    def catch_breath(self) -> None:
        """Stop looking closely within a step when that has cost far too much already."""
        if self.dense and self.spent > self._patience and self.overhead > TOO_MUCH:
            self._next_sample = max(self._next_sample, 2 * self.steps + 10)
            self._dense_until = 0
            self.audited = True
            self._set_dense(False)

    def _leads(self, state: OptimizerState) -> bool:
        """One optimizer's steps count as the run's, until it falls silent and another takes over."""
        if self.lead is not state:
            self.beside += 1
            if self.lead is not None and self.lead.ref() is not None and self.beside < LEAD_PATIENCE:
                return False
        self.lead, self.beside = state, 0
        return True

    def _set_dense(self, dense: bool) -> None:
        if dense != self.dense:
            self.dense = dense
            self.sampling = self.sampling or dense
            for callback in self.on_dense:
                callback(dense)
        self._patches.timed = self._patches.timed or dense
        self.light = not self._patches.timed and not self.by_hand

    def _keep_time(self) -> None:
        """Time is counted on closely watched steps, and on one light step in some; the other light ones cost the same."""
        patches = self._patches
        if not self.sampling and patches.timed:
            self._light_nanoseconds = patches.nanoseconds - self._timed_from
            patches.nanoseconds = self._timed_from
        elif not self.dense:
            self.sampling_nanoseconds += patches.nanoseconds - self._timed_from
        patches.timed = not self.sampling and self.steps >= self._next_timed  # what follows a sample is not light
        if patches.timed:
            self._next_timed = self.steps + TIMED_EVERY
        self._timed_from = patches.nanoseconds

    @property
    def spent(self) -> float:
        """Nanoseconds that flatline used so far."""
        light = self._light_nanoseconds * (self.steps - self.sampled - self.measured)
        return self._patches.nanoseconds + self.recording_nanoseconds + light

    @property
    def overhead(self) -> float:
        """flatline's own share of the time since the script's first torch call."""
        elapsed = self.elapsed
        return self.spent / elapsed if elapsed > 0 else 0.0

    @property
    def elapsed(self) -> int:
        """Nanoseconds that the script used since its first torch call; time that it only waited does not pay for looks."""
        return min(time.perf_counter_ns() - self.started, time.process_time_ns() - self._processor_started)
