"""Why one batch may not be learned by heart, the likeliest first: what the other stages saw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

FAR = 1000.0  # times: a rate for fine-tuning may well be a hundredth of the steepest one
MOST = 4  # causes that are told
Answers = Mapping[str, Mapping[str, Any]]


def likely(answers: Answers) -> list[str]:
    """In words; nothing where the batch was learned, or nothing stands out."""
    if answers.get("memorise", {}).get("verdict") not in ("failed", "open"):
        return []
    found = (
        *_findings(answers),
        *_rate(answers.get("rates", {})),
        *_weights(answers),
        *_inputs(answers.get("probe", {})),
    )
    return list(dict.fromkeys(found))[:MOST]


def _findings(answers: Answers) -> Iterator[str]:
    """What is broken beyond doubt comes first, then what is likely."""
    every = [each for name, answer in answers.items() if name != "memorise" for each in answer.get("findings", ())]
    for severity in ("error", "warning"):
        yield from (f"{each['code']} {each['slug']}" for each in every if each["severity"] == severity)


def _rate(rates: Mapping[str, Any]) -> Iterator[str]:
    configured, steepest, diverges = (rates.get(name) for name in ("configured", "steepest", "diverges"))
    if not isinstance(configured, (int, float)) or not isinstance(steepest, (int, float)):
        return
    place = misplaced(configured, steepest, diverges)
    if place == "beyond":
        yield f"the rate: the loss diverges from {diverges:.1e} on, and {configured:.1e} is set"
    elif place == "below":
        yield f"the rate: the loss falls fastest at {steepest:.1e}, and {configured:.1e} is set"


def misplaced(configured: float, steepest: float, diverges: float | None) -> Literal["", "beyond", "below"]:
    """Where a rate lies in what was swept: in what diverged, or far below the steepest fall."""
    if diverges is not None and configured >= diverges:
        return "beyond"
    return "below" if configured * FAR < steepest else ""


def _weights(answers: Answers) -> Iterator[str]:
    """Most of the model does not train."""
    rows = answers.get("look", {}).get("parameters", ())
    sizes = [(math.prod(row["shape"]), bool(row["trainable"] and row["optimizers"])) for row in rows]
    total, trained = sum(n for n, _ in sizes), sum(n for n, trains in sizes if trains)
    if total and 2 * trained < total:
        yield f"only {trained / total:.1%} of the weights train"


def _inputs(probe: Mapping[str, Any]) -> Iterator[str]:
    """The questions that were answered by a change of nothing."""
    for label, words in probe.get("lines", ()):
        if label == "inputs" and "does not reach the output" in str(words):
            yield f"what the model is given: {words}"
