"""M1."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LossesKept, SourceFact, SourceParsed
from flatline.findings import Finding
from flatline.rules import Rule


class LossGraphKept(Rule):
    """Losses are kept with their graphs, step after step.

    Symptom
    -------
    Memory grows a little at every step, until the process is killed or CUDA runs out of memory hours later. Steps
    become slower.

    Root cause
    ----------
    A loss tensor holds the graph that made it. ``total += loss`` and ``losses.append(loss)`` keep all of these
    graphs alive.

    Fix
    ---
    Keep the number: ``loss.item()``, or ``loss.detach()`` if it should stay on the device.

    Example
    -------
    ::

        total += loss

    Use instead
    -----------
    ::

        total += loss.item()

    Healthy look-alikes
    -------------------
    Losses that are summed before a single backward; a graph that is retained for the next step or two.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    """

    code = "M1"
    severity = "error"
    cause = "a loss tensor holds the graph that made it, so the graph of every step stays in memory"

    no_graph = "compute what is only looked at under torch.no_grad(), and keep loss.item(), not the loss"

    large: int = 200  # nodes of a graph; a small one takes long to fill the memory: a warning

    def on_losses_kept(self, event: LossesKept) -> Iterator[Finding]:
        """Graphs of earlier steps are still alive."""
        holder = f"; `{event.holder}` keeps them" if event.holder else ""
        fix = f"write .item() (or .detach()) after the loss in `{event.holder}`" if event.holder else ""
        passes = "losses" if event.what == "losses" else "forward passes looked at in this line"
        yield self.finding(
            event,
            f"the graphs of {event.alive} of the last {event.seen} {passes} are still alive, "
            f"{event.nodes} nodes each{holder}",
            severity=self.severity if event.nodes >= self.large else "warning",
            fix=fix
            or (self.no_graph if event.what == "outputs" else "")
            or "find what holds the loss (a total, a list, a meter) and give it loss.item(); "
            "a state carried to the next step needs h = h.detach()",
            alive=event.alive,
            seen=event.seen,
            nodes=event.nodes,
            holder=event.holder or None,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A loss that has a graph is added to, or put into, something that outlives the step."""
        for fact in event.of("kept"):
            number = f"keep the number: {fact.name}.item(), or {fact.name}.detach() to stay on the device"
            yield self._in_source(event, fact, fix=number)
        for fact in event.of("kept output"):
            cause = "backward() is over by then: the graphs are of no use, and stay in memory as long as the list"
            yield self._in_source(event, fact, cause=cause, fix=f"keep {fact.name}.detach()")

    def _in_source(self, event: SourceParsed, fact: SourceFact, **told: str) -> Finding:
        return self.finding_at(
            event,
            fact.where,
            f"`{fact.text}` keeps {fact.name} of every step, together with its graph",
            severity="warning",
            **told,
        )
