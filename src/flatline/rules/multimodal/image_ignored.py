"""X5."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import InfluenceProbed
from flatline.findings import Finding
from flatline.rules import Rule


class ImageIgnored(Rule):
    """The model's output does not depend on the image.

    Symptom
    -------
    The loss falls to what the text alone allows, and stays there. Answers read well and fit any picture.

    Root cause
    ----------
    What the vision tower makes reaches the output nowhere: its result is not used, its tokens are cut off, masked out or
    written over, or a gate in front of them is zero and gets no gradient.

    Fix
    ---
    Follow the image's features to the first place where they should meet the text: is that tensor used, are its positions
    inside the attention mask, do the placeholders survive truncation?

    Example
    -------
    ::

        def forward(self, image, ids):
            seen = self.vision(image)
            return self.decoder(self.embed(ids))

    Use instead
    -----------
    ::

        def forward(self, image, ids):
            seen = self.project(self.vision(image))
            return self.decoder(torch.cat([seen, self.embed(ids)], 1))

    Healthy look-alikes
    -------------------
    A gate that begins at zero and opens: the question is put after the first steps. Images that are weak beside the text:
    only an output that does not change at all is told, in eval mode and as the script calls it. A batch whose images are
    equal is not judged, nor a model with a gate that a schedule still holds at zero.

    References
    ----------
    - Goyal et al., Making the V in VQA Matter, 2017, https://arxiv.org/abs/1612.00837
    """

    code = "X5"
    severity = "error"
    fix = (
        "follow the image's features to where they should meet the text: used, inside the attention mask, not cut off?"
    )

    nothing: float = 1e-6  # of the output's standard deviation: rounding (measured: exactly 0 where unused)

    def on_influence_probed(self, event: InfluenceProbed) -> Iterator[Finding]:
        """An image without effect beside an input that has one; of anything else it is a hint."""
        others = max((each.effect for each in event.inputs if each.kind != "image"), default=0.0)
        for each in event.inputs if others > self.nothing and not event.waiting else ():
            if each.effect > self.nothing or (each.kind != "image" and len(each.shape) < 2):
                continue
            image, shape = each.kind == "image", " × ".join(map(str, each.shape))
            what = f"the images of a batch exchanged for one another, the output of {event.model} does"
            other = f"{each.name} exchanged between the samples of a batch, the output of {event.model} does"
            yield self.finding(
                event,
                f"with {what if image else other} not change",
                severity="error" if image else "hint",
                cause=f"{each.name} ({shape}) reaches the output nowhere; "
                f"the other inputs move it by {others:.2g} standard deviations",
                key=each.name,
                effect=each.effect,
                effect_of_others=others,
            )
