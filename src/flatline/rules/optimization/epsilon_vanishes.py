"""O10."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import OptimizerStateSampled, SourceParsed
from flatline.findings import Finding
from flatline.rules import Rule


class EpsilonVanishes(Rule):
    """The optimizer's eps rounds to 0 in the dtype that it computes in.

    Symptom
    -------
    ``model.half()`` trains with SGD, and with Adam the weights are nan after the first step or two; or updates are
    huge where gradients are small.

    Root cause
    ----------
    Adam divides by sqrt(v) + eps. In float16 the smallest number is 6e-8, so that the default eps of 1e-8 is 0. The
    squares in v underflow as well, and the division is by 0.

    Fix
    ---
    Keep the parameters, and with them the optimizer's state, in float32 and use ``torch.autocast``; or bfloat16; or
    ``eps=1e-4``.

    Example
    -------
    ::

        model.half()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    Use instead
    -----------
    ::

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()

    Healthy look-alikes
    -------------------
    float32 parameters or master weights under autocast; bfloat16, which has the range of float32; an eps that
    float16 can hold; fused optimizers, which compute in float32.

    References
    ----------
    - https://github.com/pytorch/pytorch/issues/26218
    - https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    """

    code = "O10"
    severity = "warning"
    trial_dependent = True
    cause = "the optimizer divides by sqrt(v) + eps; with both 0 the update is inf or nan"
    fix = (
        "keep parameters in float32 and use torch.autocast for speed; or model.to(torch.bfloat16); or eps=1e-4, which "
        "float16 can hold"
    )
    consequences = ("N1", "N2", "FP1", "FP2", "FP3", "O7", "O22", "O28")

    def on_optimizer_state_sampled(self, event: OptimizerStateSampled) -> Iterator[Finding]:
        """An eps that is 0 once it is stored."""
        if event.stock and not event.fused and event.eps and event.eps_stored == 0.0:
            zeros = f"; v is exactly 0 for {event.squares_zero} of {event.squares} sampled gradients that are not 0"
            yield self.finding(
                event,
                f"eps={event.eps:g} of {event.optimizer.name} is 0 in {event.state}, in which it keeps its state"
                f"{zeros if event.squares_zero else ''}",
                where=event.optimizer.where,
                severity="error" if event.squares_zero else "warning",
                eps=event.eps,
                dtype=event.state,
            )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A model went through half() before its optimizer was built."""
        for fact in event.of("eps of zero"):
            line = fact.other.line if fact.other else 0
            yield self.finding_at(
                event,
                fact.where,
                f"eps={fact.text} of {fact.name} is 0 in float16, which half() made of the parameters (line {line})",
            )
