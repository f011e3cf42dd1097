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
    only an output that does not change at all is told. A batch whose images are equal is not judged.

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
        """An image without effect beside an input that has one."""
        others = max((each.effect for each in event.inputs if each.kind != "image"), default=0.0)
        for image in event.inputs:
            if image.kind == "image" and image.effect <= self.nothing and others > self.nothing:
                yield self.finding(
                    event,
                    f"with the images of a batch exchanged for one another, the output of {event.model} does not change",
                    cause=f"{image.name} ({' × '.join(map(str, image.shape))}) reaches the output nowhere; "
                    f"the other inputs move it by {others:.2g} standard deviations",
                    key=image.name,
                    effect=image.effect,
                    effect_of_others=others,
                )
