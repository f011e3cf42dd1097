"""Targets of losses that take 1 and -1 for yes and no, and make nothing of 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flatline.events import SignsMissing
from flatline.sensors.callers import caller
from flatline.sensors.loop import Loop
from flatline.sensors.models import readable

PLACES = {nn.CosineEmbeddingLoss: 2, nn.MarginRankingLoss: 2, nn.HingeEmbeddingLoss: 1, nn.SoftMarginLoss: 1}
MOST = 65_536  # targets of one batch


class SignsSensor:
    """Called with every module without parameters that the script itself calls on closely watched steps."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def before_lone(self, module: Any, args: Any) -> None:
        """One call of such a loss."""
        place = PLACES.get(type(module))
        if place is None or len(args) <= place or not torch.is_grad_enabled() or not self.loop.wants(SignsMissing):
            return
        target = args[place]
        if isinstance(target, torch.Tensor) and readable(target) and 1 < target.numel() <= MOST:
            known = [float(each) for each in torch.unique(target.detach())[:3].tolist()]
            zeros = int((target == 0).sum()) if known == [0.0, 1.0] else 0
            told = SignsMissing(
                step=self.loop.step, where=caller(), loss=type(module).__name__, zeros=zeros, targets=target.numel()
            )
            self.loop.emit(told)
