"""``--on-nan``: sees the first loss or gradient that is not finite, ends the run there or does the step again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from flatline.events import GradientNotFinite, NonFiniteReplayed, Where
from flatline.sensors.callers import caller
from flatline.sensors.forensics import finite, parameter_names
from flatline.sensors.live import LiveSensors
from flatline.sensors.loop import OptimizerState
from flatline.sensors.models import has_compiled, readable
from flatline.sensors.patching import unseen_by_dynamo
from flatline.sensors.replay.indices import Indices
from flatline.sensors.replay.keeping import Ring
from flatline.sensors.replay.running import Again, Step
from flatline.sensors.replay.saving import save, three_lines
from flatline.sensors.replay.taping import Tape

BUDGET = 512 << 20  # bytes: of a tape, of the copy of a model, and of the last good weights
TRIES = 3  # steps that are done again, and that the script then left out by itself
NAMED = 4

Tensor = torch.Tensor


@dataclass(slots=True)
class Pending:
    """Gradients that were not finite after a backward; told if they go into the weights."""

    parameters: list[Tensor]
    total: int
    nan: bool
    where: Where | None
    told: bool  # of their loss already
    again: Again | None = None


class NonFiniteWatch:
    """Attach before the other sensors. ``end`` ends the run, ``tell`` says a line, ``folder`` is that of the record."""

    def __init__(
        self,
        sensors: LiveSensors,
        mode: Literal["stop", "replay"],
        *,
        end: Callable[[], None],
        tell: Callable[[str], None],
        folder: Callable[[], Path | None],
    ) -> None:
        self.sensors, self.loop, self.mode = sensors, sensors.loop, mode
        self.end, self.tell, self.folder = end, tell, folder
        self.tape = Tape(sensors.patches, BUDGET)
        self.ring = Ring(BUDGET)
        self.indices = Indices(sensors.patches)
        self.done = False
        self._tries = 0
        self._root: Tensor | None = None
        self._scaled = self._bad_loss = False
        self._pending: Pending | None = None
        self._told: set[str] = set()

    # ------------------------------------------------------------------ hooks

    def attach(self) -> None:
        """Stand before every backward, every step, and in replay before every call of a module."""
        from torch.optim import optimizer as module

        backward, patches = self.sensors.backward, self.sensors.patches
        backward.watch = self
        before, after = patches.guard(self.tape.close), patches.guard(self._stepped)

        def pre(optimizer: Any, args: Any, kwargs: Any) -> None:
            before()

        def post(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._pending is not None:
                after(optimizer)

        unseen_by_dynamo(pre, post)
        for handle in (module.register_optimizer_step_pre_hook(pre), module.register_optimizer_step_post_hook(post)):
            patches.on_undo(handle.remove)
        if self.mode == "replay":
            self._follow_modules()
            self.indices.attach()

    def _follow_modules(self) -> None:
        patches, tape = self.sensors.patches, self.tape

        def nested(*args: Any, **kwargs: Any) -> bool:
            return tape.inside or self.done or tape.elsewhere

        patches.around(nn.Module, "__call__", light=nested, before=self._enters, after=self._left, failed=self._failed)
        patches.on_undo(tape.close)

    def _enters(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if has_compiled() or type(module).__name__ == "OptimizedModule":
            self._give_up("models under torch.compile are not run again")
        elif not self.sensors.models.in_backward:  # a closure's, within a step, too
            self.tape.enters(module, args, kwargs)

    def _failed(self) -> None:
        if not self.tape.elsewhere:
            self.tape.leaves_off()

    def _left(self, result: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not self.tape.elsewhere:
            self.tape.left(result)

    def _give_up(self, why: str) -> None:
        self.tape.close()
        self.tape.clear()
        self.done = True
        self._note(why)

    def _note(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            self.tell(f"--on-nan replay: {why}")

    # ------------------------------------------------------------------ the loss

    def begins(self, root: Tensor, scaled: bool) -> None:
        """A backward begins; ``root`` is the loss, without the factor of a GradScaler."""
        if self.tape.elsewhere:
            return
        self.tape.close()
        self.tape.inside = False
        self._root, self._scaled, self._bad_loss = root, scaled, False
        pending, self._pending = self._pending, None
        if pending is not None and self.loop.stepping:  # a closure is called again: weights may have changed since
            for state in self.loop.states:
                self._judge(pending, state)

    def loss_is_bad(self, calm: bool) -> None:
        """It is not finite; ``calm``: a GradScaler may live through it."""
        self._bad_loss = self._bad_loss or not self.tape.elsewhere
        if not self.tape.elsewhere and self._root is not None and not calm and self._may_replay():
            self._emit(self._again(self._root))

    def loss_was_told(self, calm: bool, value: str, where: Where | None) -> None:
        """End the run, if that is asked for. Alone among several processes it would leave the others waiting."""
        if self.mode == "stop" and not calm and not self.tape.elsewhere and not _several():
            self._say_end(f"the loss is {value}", where)
            self.end()

    def _may_replay(self) -> bool:
        if self.mode != "replay" or self.done:
            return False
        if _several():
            self._give_up("a step of several processes is not done again by one of them")
        return not self.done

    # ------------------------------------------------------------------ the gradients

    def after_backward(self) -> None:
        """Gradients are looked at, in one wait for all."""
        if self.tape.elsewhere:
            return
        root, self._root = self._root, None
        if root is not None and (not self._bad_loss or (self.mode == "stop" and _several())) and not self._scaled:
            self._look(root)
        if self.tape.overflowed:
            self.tape.clear()

    def _look(self, root: Tensor) -> None:
        held = list({id(p): p for state in self.loop.states for p in state.parameters}.values())
        given = [p for p in held if p.grad is not None and readable(p.grad)]
        if not given or self.done:
            return
        if all_finite([_values(p.grad) for p in given]):
            self._keep_good(held)
            return
        bad = [p for p in given if not finite(_values(p.grad))]
        nan = any(bool(_values(p.grad).isnan().any()) for p in bad)
        self._pending = Pending(bad, len(held), nan, caller(), self._bad_loss)
        if self._may_replay():
            self._tries += 1
            self._pending.again = self._again(root)
            self.done = self._tries >= TRIES

    def _keep_good(self, held: list[Tensor]) -> None:
        if self.mode == "replay" and self.ring.due():
            why = self.ring.keep(self.loop.step, parameter_names(self.sensors.models), held)
            if why:
                self._note(why)

    def _stepped(self, optimizer: Any) -> None:
        """What the weights are after it decides: an optimizer may leave such a step out."""
        pending, state = self._pending, self.loop.optimizers.get(id(optimizer))
        if pending is None or state is None or self.tape.elsewhere:
            return
        if any(id(p) in state.ids for p in pending.parameters):
            self._pending = None
            self._judge(pending, state)

    def _judge(self, pending: Pending, state: OptimizerState) -> None:
        """Whether what this optimizer holds was ruined; if so, it is told."""
        mine = [p for p in pending.parameters if id(p) in state.ids]
        if all(finite(p) for p in mine):
            return
        if pending.again is not None:
            self._emit(pending.again)
        if not (pending.told or self.sensors.derivatives.found or self._known):
            self.loop.emit(self._event(pending, state))
        self._known = True
        if self.mode == "stop":
            self._say_end(f"gradients of {len(mine)} of {pending.total} parameters are not finite", pending.where)
            optimizers = self.sensors.optimizers
            optimizers.stop_after, optimizers.on_stop = 0, self.end

    _known = False

    def _event(self, pending: Pending, state: OptimizerState) -> GradientNotFinite:
        names = parameter_names(self.sensors.models)
        return GradientNotFinite(
            step=self.loop.step,
            where=pending.where,
            kind="nan" if pending.nan else "inf",
            parameters=tuple(names.get(id(p), "a parameter") for p in pending.parameters[:NAMED]),
            bad=len(pending.parameters),
            total=pending.total,
            dtype=str(pending.parameters[0].dtype).removeprefix("torch."),
            loss=self.loop.last_loss,
            optimizer=state.facts.name,
            lr=state.lr,
        )

    # ------------------------------------------------------------------ done again, told, kept

    def _again(self, root: Tensor) -> Again | None:
        if self.tape.overflowed:
            self._note("a step of so many calls is not done again")
        if not self.tape.happenings:
            return None
        labels = {key: model.label for key, model in self.sensors.models.models.copy().items()}
        started = time.perf_counter()
        again = Step(self.tape, root, labels, BUDGET).again()
        if again.why_not:
            self._note(f"the operation is not named: {again.why_not}")
        again.kept |= {"step": self.loop.step, "seconds": round(time.perf_counter() - started, 3)}
        return again

    def _emit(self, again: Again | None) -> None:
        if again is None:
            self._note("the step was not done again: no call of a module stands before its loss")
            return
        self.done = True
        self.tape.close()
        self.tape.clear()
        again.kept |= {"rows": list(again.rows), "indices": list(self.indices.of(again.rows, again.samples))}
        if again.found is not None and again.found.op.startswith("parameter "):
            again.kept |= self.ring.newest()
        file = self._save(again.kept)
        found = again.found
        where = Where(found.file, found.line) if found is not None and found.file else None
        self.loop.emit(
            NonFiniteReplayed(
                step=self.loop.step,
                where=where,
                operation=found.op if found is not None else "",
                kind=found.kind if found is not None else "nan",
                phase=found.phase if found is not None else "forward",
                module=again.module,
                code=found.code if found is not None else "",
                low=found.low + 0.0 if found is not None else float("nan"),  # -0 is 0
                high=found.high + 0.0 if found is not None else float("nan"),
                rows=again.rows,
                samples=again.samples,
                indices=tuple(again.kept["indices"]),
                exact=again.exact,
                file=str(file) if file is not None else "",
            )
        )

    def _save(self, kept: dict[str, Any]) -> Path | None:
        folder = self.folder()
        if folder is None:
            self._note("no record is kept, so the batch is not saved")
            return None
        try:
            path = save(folder, self.loop.step, self.sensors.rank(), kept)
        except (OSError, RuntimeError, AttributeError, TypeError) as error:  # a full disk; something pickle refuses
            self._note(f"the batch could not be saved: {type(error).__name__}: {error}")
            return None
        self.tell(f"the batch of step {self.loop.step} is kept; with your model, three lines run it again:")
        for line in three_lines(path, kept):
            self.tell(f"    {line}")
        return path

    def _say_end(self, what: str, where: Where | None) -> None:
        place = f", {where.file}:{where.line}" if where is not None else ""
        self.tell(f"--on-nan stop: the run ends at step {self.loop.step}{place}: {what}")


def _values(gradient: Any) -> Tensor:
    value: Tensor = gradient.detach()
    return value.coalesce().values() if value.is_sparse else value


def all_finite(tensors: list[Tensor]) -> bool:
    """One wait for all of a device: the largest element of each, which is nan where one is."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    found = [torch.stack(torch._foreach_norm(group, float("inf"))) for group in kinds.values()]
    return all(finite(each) for each in found)


def _several() -> bool:
    group = torch.distributed
    return bool(group.is_available() and group.is_initialized() and group.get_world_size() > 1)
