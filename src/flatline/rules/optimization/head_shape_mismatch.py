"""O20."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flatline.events import (
    CheckpointFiltered,
    CheckpointLoaded,
    HeadLeftOut,
    LayersLeftBehind,
    ScriptCrashed,
    SourceParsed,
    beside,
)
from flatline.findings import Finding
from flatline.rules import Rule


class HeadShapeMismatch(Rule):
    """A checkpoint does not fit the model: it crashes, or leaves layers at random.

    Symptom
    -------
    "size mismatch for fc.weight" although ``strict=False`` was passed; or the load goes through and the pretrained
    model is no better than a fresh one.

    Root cause
    ----------
    ``strict=False`` forgives keys that are missing or unexpected. It does not forgive shapes; and it says nothing
    when a prefix ("module.") keeps every key from fitting, so that nothing at all is loaded, or when the head has
    another name than it had when it was saved. Or a filter that was to leave out the head leaves out more: ``"out" not in key``
    also drops ``blocks.0.fc_out``.

    Fix
    ---
    Drop the entries of the replaced head, strip the prefix, and look at what ``load_state_dict`` returns.

    Example
    -------
    ::

        model.load_state_dict(checkpoint, strict=False)

    Use instead
    -----------
    ::

        checkpoint = {k.removeprefix("module."): v for k, v in checkpoint.items() if not k.startswith("fc.")}
        missing, unexpected = model.load_state_dict(checkpoint, strict=False)
        assert all(k.startswith("fc.") for k in missing) and not unexpected

    Healthy look-alikes
    -------------------
    Only the replaced head is missing, also one of another task that has the same shapes; adapters alone are loaded, and
    the base model is complete; layers that are left out on purpose, and trained.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict
    """

    code = "O20"
    severity = "error"
    fix = "look at missing, unexpected = model.load_state_dict(…), and rename the checkpoint's keys until only the head is missing"
    head: int = 4  # tensors that a replaced head may have
    wide: float = 0.2  # share of the model's tensors that may be missing
    samples: int = 32  # targets from which on a head can be said to agree with them
    sure: float = 5.0  # standard deviations of its agreement above guessing: by chance 1 head in 3 million

    def __init__(self) -> None:
        self._told = False  # a load with holes

    def on_checkpoint_loaded(self, event: CheckpointLoaded) -> Iterator[Finding]:
        """A load that went through and left holes."""
        missing, unexpected = len(event.missing), len(event.unexpected)
        if event.strict or not missing or not event.tensors or not unexpected:
            return
        nothing = missing >= event.tensors
        if not nothing and (missing <= self.head or missing / event.tensors < self.wide or not event.prefix):
            return
        self._told = True
        change = _change(event.prefix, event.nested)
        yield self.finding(
            event,
            f"{event.tensors - missing} of the {event.tensors} tensors of {event.model} were loaded; {missing} keep their "
            f"random values (first {event.missing[0]}; the checkpoint has {event.unexpected[0]})",
            cause="strict=False hides that " + (change[0] if change else "the names do not fit"),
            fix=change[1] if change else self.fix,
            missing=missing,
            unexpected=unexpected,
            tensors=event.tensors,
        )

    def on_checkpoint_filtered(self, event: CheckpointFiltered) -> Iterator[Finding]:
        """A load of what fitted by name, beside what would have fitted under another one."""
        change = _change(event.renamed, "") or _other_sizes(event)
        if change is None or len(event.missing) <= self.head or len(event.missing) < self.wide * event.tensors:
            return
        yield self.finding(
            event,
            f"{event.tensors - len(event.missing)} of the {event.tensors} tensors of {event.model} came from the file; "
            f"{len(event.missing)} keep their random values (first {event.missing[0]}), and {len(event.left)} of the file went "
            f"nowhere (first {event.left[0]})",
            cause="the filter that keeps what fits hides that " + change[0],
            fix=change[1],
            key="filtered",
            missing=len(event.missing),
            left=len(event.left),
            tensors=event.tensors,
        )

    def on_head_left_out(self, event: HeadLeftOut) -> Iterator[Finding]:
        """A head at random, whose weights are in the checkpoint: with them in it, it answers as the targets ask."""
        guessing = min(max(event.commonest, event.agrees_now), 1 - 1 / max(1, event.samples))
        above = (
            (event.agrees - guessing) / (guessing * (1 - guessing) / max(1, event.samples)) ** 0.5 if guessing else 0
        )
        if self._told or event.samples < self.samples or above < self.sure or event.loss >= event.loss_now:
            return
        finding = self.finding(
            event,
            f"{event.head} of {event.model} keeps its random values, and the checkpoint has them under another name: with the "
            f"{event.tensors} tensors of {event.stored} in it, it answers {event.agrees:.0%} of the first {event.samples} targets "
            f"(loss {event.loss:.3g}), as it is {event.agrees_now:.0%} (loss {event.loss_now:.3g})",
            cause=f"the load left out without a word what does not fit by name: what the model calls {event.head} is "
            f"{event.stored} in the checkpoint",
            fix=f"{{k.replace({event.stored!r}, {event.head!r}, 1): v for k, v in checkpoint.items()}}, and strict=True",
            key="head",
            agrees=event.agrees,
            agrees_now=event.agrees_now,
            samples=event.samples,
        )
        yield replace(finding, consequences=("O19",))

    def on_layers_left_behind(self, event: LayersLeftBehind) -> Iterator[Finding]:
        """Layers that stay at random, and would have fitted."""
        count, first = len(event.layers), ", ".join(event.layers[:3]) + (", …" if len(event.layers) > 3 else "")
        yield self.finding(
            event,
            f"{count} layer{'s' if count > 1 else ''} of {event.model} ({first}) {'are' if count > 1 else 'is'} frozen with fresh "
            f"random weights: the load left out {event.missing} of its {event.tensors} tensors that {event.giver} has under the "
            "same names, in the same shapes",
            cause="what keeps the head out of the load keeps out more than the head, and strict=False hides it",
            fix='ask for the whole name of the head: {k: v for k, v in state.items() if not k.startswith("head.")}, and look at '
            "the missing keys that load_state_dict returns",
            severity="warning",
            key="left behind",
            layers=count,
            missing=event.missing,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A loose load whose result is dropped."""
        for fact in event.of("prefixed load"):
            yield self.finding_at(
                event,
                fact.where,
                f"no name fits: those of the checkpoint all begin with module.{beside(fact.other, fact.where)}, and those "
                f"of {fact.name} do not; {fact.text} leaves all of them out, and the model keeps its random values",
                severity="warning",
                cause="DataParallel and DistributedDataParallel put module. before every name, and strict=False hides that "
                "the names do not fit",
                fix='{k.removeprefix("module."): v for k, v in state.items()}, and strict=True',
            )
        for fact in event.of("unmatched load"):
            yield self.finding_at(
                event,
                fact.where,
                f"no name fits: the model that was saved{beside(fact.other, fact.where)} has no part under a name that "
                f"{fact.name} has; {fact.text} leaves all of them out, and the model keeps its random values",
                severity="warning",
                cause="the names in a checkpoint are those of the attributes that hold the layers, and strict=False hides "
                "that they do not fit",
                fix="load the part that both have, self.body.load_state_dict(...), or rename the keys; and strict=True",
            )
        for fact in event.of("loose load"):
            yield self.finding_at(
                event,
                fact.where,
                f"nobody looks at which tensors {fact.text} leaves out",
                severity="hint",
                cause="strict=False hides names that do not fit, and what is not loaded keeps its random values",
            )

    def on_script_crashed(self, event: ScriptCrashed) -> Iterator[Finding]:
        """Shapes that do not fit."""
        if "size mismatch for" not in event.message or "load_state_dict" not in event.functions:
            return
        keys = event.checkpoint_keys
        yield self.finding(
            event,
            f"{len(keys)} tensors of the checkpoint have another shape than the model's ({', '.join(keys[:3])})",
            cause="strict=False forgives missing and unexpected keys, never shapes",
            fix=f"drop them before loading: {{k: v for k, v in checkpoint.items() if not k.startswith({_heads(keys)})}}",
            key="crash",
            mismatched=len(keys),
        )


def _heads(keys: tuple[str, ...]) -> str:
    """The modules of these keys, as the argument of startswith; a key without a module stands for itself."""
    heads = tuple(dict.fromkeys(key.rpartition(".")[0] + "." if "." in key else key for key in keys))
    return repr(heads[0]) if len(heads) == 1 else repr(heads[:3])


def _change(prefix: str, nested: str) -> tuple[str, str] | None:
    if nested:
        return f"the weights lie one level deeper, under {nested!r}", f"model.load_state_dict(checkpoint[{nested!r}])"
    if not prefix:
        return None
    old, _, new = prefix.partition(">")
    if new:
        return (
            f"the names do not fit: what the model calls {new!r} is {old!r} in the checkpoint",
            f"{{k.replace({old!r}, {new!r}, 1): v for k, v in checkpoint.items()}}",
        )
    name = prefix[1:]
    if prefix[0] == "-":
        return (
            f"the names do not fit: the checkpoint's keys begin with {name!r}",
            f"{{k.removeprefix({name!r}): v for k, v in checkpoint.items()}}",
        )
    return (
        f"the names do not fit: the model's keys begin with {name!r}",
        f"{{{name!r} + k: v for k, v in checkpoint.items()}}",
    )


def _other_sizes(event: CheckpointFiltered) -> tuple[str, str] | None:
    """Layers of the same names and of other shapes."""
    if not event.reshaped:
        return None
    here, there = (list(shape) for shape in event.shapes)
    what = f"{len(event.reshaped)} tensors have another shape there: {event.reshaped[0]} is {here} here, {there} in the file"
    return what, "build the model with the sizes that it was saved with; leave only the head out, by its name"
