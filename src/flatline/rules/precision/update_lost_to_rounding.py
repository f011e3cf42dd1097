"""FP3."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import NumbersSampled, OptimizerStateSampled
from flatline.findings import Finding
from flatline.rules import Rule


class UpdateLostToRounding(Rule):
    """Weights in half precision do not move: the update is smaller than half a step between two numbers.

    Symptom
    -------
    The model was moved to bfloat16 or float16 as a whole. The loss falls at first and then stands still, a smaller
    learning rate makes it stand still earlier, and most weights are bit for bit what they were.

    Root cause
    ----------
    bfloat16 has 8 bits of precision: next to 1.0 comes 1.0078. An update of less than half of that is rounded away,
    at every step anew. Adam's updates are about as large as its learning rate, 1e-4 or less.

    Fix
    ---
    Keep the weights in float32 and compute in bfloat16 under ``torch.autocast``; or an optimizer with stochastic
    rounding or Kahan summation.

    Example
    -------
    ::

        model = Net().to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    Use instead
    -----------
    ::

        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).mean()

    Healthy look-alikes
    -------------------
    float32 weights; optimizers that round stochastically or carry the remainder; a learning rate of 0, a warm-up, or
    the end of a schedule; weights small enough for their updates.

    References
    ----------
    - https://arxiv.org/abs/2010.06192
    - https://docs.pytorch.org/docs/stable/amp.html
    """

    code = "FP3"
    severity = "warning"
    fix = (
        "keep the weights in float32 and compute in bfloat16: with torch.autocast(device, dtype=torch.bfloat16); or "
        "use an optimizer with stochastic rounding or Kahan summation"
    )
    consequences = ("O7", "O22")

    certain_after: int = 5  # looks in a row
    not_rising: int = 3  # of them, at a rate that rises no more
    not_before: int = 10  # steps of the optimizer: a warm-up begins with tiny updates
    share: float = 0.5  # of the updates that are not 0 are lost; measured 0 in float32, 0.99 at lr=2e-5 in bfloat16
    enough: int = 100  # sampled updates that are not 0
    high: float = 0.5  # of the peak learning rate: below it a schedule is near its end

    def __init__(self) -> None:
        self._looks: dict[int, int] = {}
        self._there: dict[int, int] = {}  # of these looks, since the rate rose last
        self._rate: dict[int, float] = {}
        self._early: dict[int, OptimizerStateSampled] = {}  # lost at all of its first steps, of which few are looked at

    def on_optimizer_state_sampled(self, event: OptimizerStateSampled) -> Iterator[Finding]:
        """Updates that are not 0 and leave their weight as it was, at a rate that is not on its way up or out."""
        key = event.optimizer.key
        rising = event.lr > self._rate.get(key, event.lr)
        self._rate[key] = event.lr
        enough = event.wanted >= self.enough and event.lost >= self.share * event.wanted
        counts = event.stock and enough and event.lr >= self.high * event.peak_lr > 0
        self._looks[key] = self._looks.get(key, 0) + 1 if counts else 0
        self._there[key] = self._there.get(key, 0) + 1 if counts and not rising else 0
        self._early.pop(key, None)
        if self._looks[key] < self.certain_after or self._there[key] < self.not_rising:
            return
        if event.index >= self.not_before:
            yield self._lost(event)
        elif event.optimizer.adaptive:
            self._early[key] = event

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """A later stage, looked at in its first steps only: Adam's updates do not grow, unless the rate does."""
        early = self._early.get(event.optimizer.key)
        if early is None or (event.lr == early.lr and event.index < self.not_before):
            return
        del self._early[event.optimizer.key]
        if event.lr == early.lr >= self.high * event.peak_lr:
            yield self._lost(early)

    def _lost(self, event: OptimizerStateSampled) -> Finding:
        share = event.lost / event.wanted
        return self.finding(
            event,
            f"{share:.0%} of the weights in {event.parameters} that {event.optimizer.name} wants to change stay bit for "
            f"bit the same, at each of the last {self.certain_after} steps looked at",
            cause=f"at lr={event.lr:g} their update is less than half the distance to the next {event.parameters} "
            "number, and is rounded away",
            key=str(event.optimizer.key),
            lost=event.lost,
            wanted=event.wanted,
            lr=event.lr,
            dtype=event.parameters,
        )
