"""All sensors of a live run, attached together and taken off together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatline.events import Event, RunEnded, StepMissing
from flatline.sensors.activations import ActivationSensor
from flatline.sensors.attention import AttentionSensor
from flatline.sensors.audit import AuditSensor
from flatline.sensors.backward import BackwardSensor
from flatline.sensors.bare_layers import BareLayers
from flatline.sensors.by_hand import HandStepSensor
from flatline.sensors.callers import caller
from flatline.sensors.checkpoints import CheckpointSensor
from flatline.sensors.class_weights import ClassWeights
from flatline.sensors.clipping import ClipSensor
from flatline.sensors.coded_inputs import CodedInputs
from flatline.sensors.crashes import CrashSensor
from flatline.sensors.data import DataSensor
from flatline.sensors.derivatives import DerivativeSensor
from flatline.sensors.divided_loss import DividedLosses
from flatline.sensors.forwards import ForwardSensor
from flatline.sensors.hidden_overflows import HiddenOverflows
from flatline.sensors.hooked import GradientHooks
from flatline.sensors.left_out_heads import LeftOutHeads
from flatline.sensors.lifecycle import LifecycleSensor
from flatline.sensors.logged import LoggedSensor
from flatline.sensors.loop import Loop
from flatline.sensors.lost_rates import LostRates
from flatline.sensors.models import ModelSensor
from flatline.sensors.never_trained import NeverTrained
from flatline.sensors.numbers import NumbersSensor
from flatline.sensors.optimizers import OptimizerSensor
from flatline.sensors.own_state import OwnStateSensor
from flatline.sensors.padded_states import PaddedStates
from flatline.sensors.patching import Patches
from flatline.sensors.penalties import Penalties
from flatline.sensors.precision import PrecisionSensor
from flatline.sensors.printed import PrintedSensor
from flatline.sensors.recording import RecordingSensor
from flatline.sensors.recurrence import RecurrenceSensor
from flatline.sensors.restored_rates import RestoredRates
from flatline.sensors.schedules import ScheduleSensor
from flatline.sensors.seeds import SeedSensor
from flatline.sensors.shifts import ShiftSensor
from flatline.sensors.signs import SignsSensor
from flatline.sensors.symmetry import SymmetrySensor
from flatline.sensors.told_rates import MisplacedRates
from flatline.sensors.unused_adapters import UnusedAdapters
from flatline.sensors.waves import WaveSensor
from flatline.sensors.weighed_terms import WeighedTerms

NEVER = 20  # backwards without a step, where other optimizers step: a critic may train some times more often
Broken = Callable[[str, Exception], None]


class LiveSensors:
    """Needs torch to be imported. ``attach`` puts the sensors on, ``finish`` tells the last facts, ``detach`` undoes."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        *,
        wants: Callable[[type[Event]], bool],
        budget: float,
        on_broken: Broken,
    ) -> None:
        self.patches = Patches(on_broken=on_broken)
        self.loop = loop = Loop(emit, wants=wants, budget=budget, patches=self.patches)
        self.models = ModelSensor(loop, self.patches)
        self.optimizers = OptimizerSensor(loop, self.patches)
        self.backward = BackwardSensor(loop, self.patches, self.models)
        self.hooks = GradientHooks(self.patches)
        self.numbers = NumbersSensor(loop, self.models, self.hooks)
        self.audit = AuditSensor(loop, self.models, self.backward, self.numbers)
        self.activations = ActivationSensor(loop, self.models, self.audit)
        self.bare_layers = BareLayers(loop, self.models, self.audit)
        self.waves = WaveSensor(loop, self.audit)
        self.attention = AttentionSensor(loop, self.models)
        self.recurrence = RecurrenceSensor(loop, self.patches, self.models)
        self.clipping = ClipSensor(loop, self.patches, self.backward)
        self.class_weights = ClassWeights(loop)
        self.penalties = Penalties(loop, self.models)
        self.overflows = HiddenOverflows(loop, self.models)
        self.weighed = WeighedTerms(loop)
        self.precision = PrecisionSensor(loop, self.patches, self.backward)
        self.symmetry = SymmetrySensor(loop, self.models, self.audit)
        self.derivatives = DerivativeSensor(loop, self.models, self.backward, self.audit)
        self.schedules = ScheduleSensor(loop, self.patches)
        self.data = DataSensor(loop, self.patches, self.models)
        self.seeds = SeedSensor(loop, self.patches)
        self.checkpoints = CheckpointSensor(loop, self.patches, self.audit)
        self.own_state = OwnStateSensor(loop, self.patches)
        self.lifecycle = LifecycleSensor(loop, self.patches, self.models, self.own_state)
        self.left_out = LeftOutHeads(loop, self.lifecycle)
        self.crashes = CrashSensor(loop, self.models)
        self.logged = LoggedSensor(loop, self.patches)
        self.printed = PrintedSensor(loop, self.patches)
        self.recording = RecordingSensor(loop, self.patches, self.models)
        self.misplaced = MisplacedRates(loop)
        self.by_hand = HandStepSensor(
            loop, self.backward, self.models, self.optimizers, self.numbers, self.audit, self.data, self.recording
        )
        self.unused_adapters = UnusedAdapters(loop, self.models)
        self.lost_rates = LostRates(loop)
        self.divided = DividedLosses(loop)
        self.restored = RestoredRates(loop, self.patches, self.schedules)
        self.never_trained = NeverTrained(loop, self.models, self.audit)
        self.shifts = ShiftSensor()
        self.padded_states = PaddedStates(loop, self.patches)

    def attach(self) -> None:
        """Put every sensor on; one that cannot be put on is told about and left off."""
        self._connect()
        self._expect_hooks()
        everyone = (
            self.models, self.optimizers, self.backward, self.clipping, self.schedules, self.data, self.checkpoints,
            self.lifecycle, self.seeds, self.precision, self.logged, self.printed, self.restored,
            self.own_state,
        )  # fmt: skip
        for sensor in everyone:
            self.patches.guard_inner(sensor.attach)()

    def _connect(self) -> None:
        guard = self.patches.guard_inner
        self._connect_graph()
        self.optimizers.before_step.append(guard(self.audit.before_step))
        self.optimizers.before_step.append(guard(self.derivatives.before_step))
        self.optimizers.thrown_away = self.derivatives.thrown_away
        self.optimizers.before_sample.append(guard(self.precision.before_step))
        self.optimizers.before_sample.append(guard(self.numbers.before_step))
        self.optimizers.after_sample.append(guard(self.numbers.after_step))
        self.optimizers.after_sample.append(guard(self.precision.after_step))
        self.optimizers.after_sample.append(guard(self.misplaced.after_step))
        self.optimizers.after_sample.append(guard(self.unused_adapters.after_step))
        self.optimizers.after_sample.append(guard(self.lost_rates.after_step))
        self.optimizers.after_sample.append(guard(self.restored.after_step))
        self.optimizers.after_sample.append(guard(self.padded_states.after_step))
        self.optimizers.after_sample.append(guard(self.never_trained.after_step))
        self.optimizers.after_sample.append(guard(self.backward.annealed.after_step))
        self.optimizers.after_sample.append(guard(self.weighed.again.after_step))
        self.backward.outliers.position = self.data.place
        self.data.losses = self.backward.outliers.recent
        self.models.on_leave.append(guard(self.activations.after_module))
        self.models.on_leave.append(guard(self.backward.kept.after_module))
        self.models.on_evaluated = guard(self.backward.kept.evaluated)
        self.models.on_enter.append(guard(self.lifecycle.entered))
        self.models.on_lone.append(guard(SignsSensor(self.loop).before_lone))
        self.checkpoints.on_loaded.append(guard(self.lifecycle.loaded))
        self.checkpoints.on_loaded.append(guard(self.own_state.loaded))
        self.checkpoints.on_loaded.append(guard(self.left_out.loaded))
        self.models.on_leave.append(guard(self.left_out.after_module))
        self.optimizers.before_step.append(guard(self.lifecycle.before_step))
        self.optimizers.before_step.append(guard(self.logged.before_step))
        self.optimizers.before_step.append(guard(self.never_trained.before_step))
        self.models.on_leave.append(guard(self.recording.after_module))
        self.models.on_leave.append(guard(self.shifts.after_module))
        self.models.on_leave.append(guard(self.overflows.after_module))
        self.models.on_leave.append(guard(self.padded_states.after_module))
        self.backward.on_backward.append(guard(self.padded_states.after_backward))
        self.optimizers.after_step.append(guard(self.recording.after_step))
        self.optimizers.hand_on = self.patches.guard(self.recording.hand_on)
        self.backward.fed, self.backward.fed_lightly = guard(self._fed), self.data.after_backward
        self.backward.begins, self.backward.ended = guard(self.by_hand.begins), guard(self.by_hand.ended)
        self.schedules.epoch_length, self.schedules.epochs = self.data.epoch_length, self.data.epochs
        self.schedules.samples = self.data.samples
        resuming = self.lifecycle.resuming
        resuming.schedules, resuming.batches = self.schedules.known, self.data.epoch_length
        self.optimizers.in_backward = lambda: self.models.in_backward
        self.optimizers.light_step = guard(self._light_step)
        self.optimizers.after_step += [
            guard(self._modes),
            guard(self.rank),
            guard(self.divided.after_step),
            guard(self.audit.after_step),
            guard(self.symmetry.after_step),
            guard(ForwardSensor(self.loop, self.models).after_step),
            guard(self.derivatives.after_step),
            guard(self.data.after_step),
            guard(self.schedules.after_step),
        ]

    def _connect_graph(self) -> None:
        """What looks at a graph before its backward runs, and at what is left of it."""
        guard = self.patches.guard_inner
        self.backward.on_backward.append(guard(self.audit.after_backward))
        self.backward.on_graph.append(guard(self.hooks.before_backward))
        self.backward.on_backward.append(guard(self.hooks.after_backward))
        self.backward.on_graph.append(guard(self.precision.before_backward))
        self.backward.on_graph.append(guard(self.derivatives.before_backward))
        self.backward.on_graph.append(guard(self.backward.outliers.after_graph))
        self.backward.on_graph.append(guard(CodedInputs(self.loop).after_graph))
        self.backward.on_backward.append(guard(self.precision.after_backward))
        self.backward.on_graph.append(guard(self.activations.after_graph))
        self.backward.on_graph.append(guard(self.bare_layers.after_graph))
        self.backward.on_graph.append(guard(self.waves.after_graph))
        self.backward.on_graph.append(guard(self.attention.after_graph))
        self.backward.on_graph.append(guard(self.recurrence.after_graph))
        self.backward.on_backward.append(guard(self.recurrence.after_backward))
        self.backward.on_graph.append(guard(self.class_weights.after_graph))
        self.backward.on_graph.append(guard(self.penalties.after_graph))
        self.backward.on_graph.append(guard(self.weighed.after_graph))
        self.backward.on_graph.append(guard(self.overflows.after_graph))
        self.backward.on_graph.append(guard(self.left_out.after_graph))

    def _expect_hooks(self) -> None:
        """No warning of torch about hooks that are ours; the filter's comment makes it one of our own to take off."""
        about = f"(?#{id(self)})Using `torch.compile\\(module\\)` when there are global hooks"
        warnings.filterwarnings("ignore", message=about)

        def take_off() -> None:
            filters: Any = warnings.filters
            filters[:] = [entry for entry in filters if getattr(entry[1], "pattern", None) != about]

        self.patches.on_undo(take_off)

    def rank(self, *_: Any) -> int | None:
        """This process's rank, asked for while its group exists."""
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            self._rank = group.get_rank()
        return self._rank

    _rank: int | None = None

    def _fed(self) -> None:
        self.data.after_backward()
        self.backward.outliers.after_backward()
        if self.backward.watch is not None:
            self.backward.watch.after_backward()

    def _modes(self, state: Any, where: Any) -> None:
        self.models.observe_modes(state, where)

    def _light_step(self, state: Any) -> None:
        """What is done at every step, whether it is looked at closely or not."""
        if self.models.asleep() and not self.loop.dense:
            self.models.observe_modes(state, caller())
        self.models.forget_step()

    def introduce(self, objects: Sequence[object]) -> None:
        """Learn of models and optimizers that exist already."""
        for thing in objects:
            self.patches.guard(self.models.introduce if hasattr(thing, "forward") else self.loop.optimizer)(thing)

    def hand_on(self, then: Callable[[], float]) -> None:
        """From now on hand on what is read at every step, and call ``then``, which says when to do so again."""
        self.recording.then, self.loop.due = then, 0.0

    def stop_after(self, steps: int, action: Callable[[], None]) -> None:
        """Call ``action``, which may raise, after so many optimizer steps."""
        self.optimizers.stop_after, self.optimizers.on_stop = steps, action

    def finish(self, how: Any, error: BaseException | None) -> None:
        """Tell what is known only at the end."""
        guard = self.patches.guard
        guard(self.by_hand.finish)()
        guard(self.backward.flush)()
        guard(self.recording.finish)()
        guard(self.precision.finish)(how)
        guard(self.backward.outliers.finish)()
        guard(self.backward.imbalance.finish)()
        guard(self.data.finish)()
        guard(self.numbers.flush)()
        guard(self.lost_rates.finish)()
        guard(self.restored.finish)()
        guard(self.padded_states.finish)()
        guard(self.never_trained.finish)()
        if error is not None and how == "crashed":
            guard(lambda: self.loop.emit(self.crashes.read(error)))()
        guard(lambda: self.schedules.tell(ended=how))()
        guard(lambda: self._never_stepped(how))()
        guard(self.lifecycle.finish)(how)
        guard(self.unused_adapters.finish)(how)
        guard(self.seeds.tell)()
        loop = self.loop
        loop.emit(RunEnded(step=loop.steps, how=how, loss=loop.last_loss, first_loss=loop.first_loss))

    def _never_stepped(self, how: str) -> None:
        for state in self.loop.states:
            alone = not any(other.steps for other in self.loop.states)
            enough = state.backwards >= (2 if alone else NEVER) and not state.steps and not state.skipped
            if how == "finished" and enough and not self.audit.moved_by_hand(state):
                zeroed = state.idle_cycles > 0
                self.loop.emit(
                    StepMissing(
                        step=self.loop.steps,
                        where=self.backward.where,
                        optimizer=state.facts,
                        cycles=state.backwards,
                        zeroed=zeroed,
                    )
                )

    def detach(self) -> None:
        """Take every hook and patch off."""
        self.patches.undo()
