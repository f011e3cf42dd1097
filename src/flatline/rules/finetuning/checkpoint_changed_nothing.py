"""F2."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CheckpointLost, StateAliased
from flatline.findings import Finding
from flatline.rules import Rule


class CheckpointChangedNothing(Rule):
    """A checkpoint was read, a load went through, and training starts from other weights.

    Symptom
    -------
    A pretrained or resumed model starts with the loss of a fresh one, and no error was raised.

    Root cause
    ----------
    Entries are picked by name from a checkpoint whose names do not fit, so that none are picked, and the model is
    given its own weights. Or they are put into the dictionary that ``state_dict()`` returned, which no model is given
    any more. Or an initialisation runs after the load. Or the state dict went into an object that was
    then replaced by a new one. Or the weights to go back to were kept by ``best = model.state_dict()``, which copies
    nothing: its tensors are the model's own, and change with every step.

    Fix
    ---
    Count the tensors that were picked and look at what ``load_state_dict`` returns. Build, initialise, load, train:
    in this order, with one object. Keep ``copy.deepcopy(model.state_dict())``.

    Example
    -------
    ::

        own = model.state_dict()
        own.update({k: v for k, v in checkpoint.items() if k in own})   # "module.…": none are
        model.load_state_dict(own)

    Use instead
    -----------
    ::

        checkpoint = {k.removeprefix("module."): v for k, v in checkpoint.items()}
        missing, unexpected = model.load_state_dict(checkpoint, strict=False)
        assert not unexpected and all(k.startswith("head.") for k in missing)

    Healthy look-alikes
    -------------------
    A new head, initialised after the load; a baseline that is measured before training from scratch; weights that
    are copied, averaged or perturbed by hand; teachers; snapshots of a model's own weights; folds and restarts, also
    those that restore the best weights of one fold before the next, from a copy.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict
    """

    code = "F2"
    severity = "warning"

    def on_checkpoint_lost(self, event: CheckpointLost) -> Iterator[Finding]:
        """What the sensors saw happen to the weights."""
        if event.kind in ("own", "empty"):
            yield self._nothing_picked(event)
        elif event.kind == "merged":
            yield self._merged(event)
        else:
            yield self._gone(event)

    def on_state_aliased(self, event: StateAliased) -> Iterator[Finding]:
        """Given back to the model that it is."""
        back = f" (line {event.loaded.line})" if event.loaded is not None else ""
        yield self.finding(
            event,
            f"the state dict that was taken at step {event.taken} is given back to {event.model}{back} {event.steps} steps later, "
            f"and changes nothing: all {event.tensors} tensors in it are the model's own, as they are now",
            severity="error",
            cause="state_dict() makes no copy: its tensors are the parameters themselves, and went on with every step; .detach() "
            "and .cpu() copy nothing here either",
            fix="keep copy.deepcopy(model.state_dict()), or {k: v.clone() for k, v in model.state_dict().items()}",
            key="alias",
            tensors=event.tensors,
            taken=event.taken,
            steps=event.steps,
        )

    def _nothing_picked(self, event: CheckpointLost) -> Finding:
        read = f" (read in line {event.read_where.line})" if event.read_where is not None else ""
        given = "its own weights" if event.kind == "own" else "an empty state dict"
        return self.finding(
            event,
            f"{event.model} was given {given}: none of the {event.in_file} tensors of the checkpoint{read} was loaded",
            severity="error",
            cause="the entries were picked by names that the checkpoint does not have",
            fix="compare list(checkpoint)[:3] with list(model.state_dict())[:3], and rename the checkpoint's keys",
            key=event.kind,
            in_file=event.in_file,
            tensors=event.tensors,
        )

    def _merged(self, event: CheckpointLost) -> Finding:
        read = f" (read in line {event.read_where.line})" if event.read_where is not None else ""
        source = f"the checkpoint{read} was" if event.in_file else "the weights of another model were"
        of_them = f"its {event.in_file} tensors is" if event.in_file else "them is"
        return self.finding(
            event,
            f"{source} put into the dictionary that {event.model}.state_dict() returned, and that dictionary is loaded "
            f"nowhere: none of {of_them} in the model that trains",
            severity="error",
            cause="state_dict() returns a dictionary of its own: new entries in it do not reach the model",
            fix="model.load_state_dict(…) with that dictionary, after it was filled",
            key=event.kind,
            in_file=event.in_file,
            tensors=event.tensors,
        )

    def _gone(self, event: CheckpointLost) -> Finding:
        over = event.kind == "overwritten"
        return self.finding(
            event,
            f"the weights loaded into {event.model} were overwritten before it ran: nothing of them is left in it"
            if over
            else f"the {event.model} that was loaded was dropped before it ran; a new one with other weights trains",
            cause="an initialisation came after the load" if over else "the model was built anew after the load",
            fix="initialise first, then load" if over else "load into the very object that is trained",
            key=event.kind,
            tensors=event.tensors,
        )
