"""Why one batch may not be learned by heart, the likeliest first: what the other stages saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FAR = 1000.0  # times the configured rate, as where the sweep doubts it
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
    if isinstance(diverges, (int, float)) and configured >= diverges:
        yield f"the rate: the loss diverges from {diverges:.1e} on, and {configured:.1e} is set"
    elif configured * FAR < steepest:
        yield f"the rate: the loss falls fastest at {steepest:.1e}, and {configured:.1e} is set"


def _weights(answers: Answers) -> Iterator[str]:
    """Most of the model does not train."""
    rows = answers.get("look", {}).get("parameters", ())
    sizes = [(_size(row["shape"]), bool(row["trainable"] and row["optimizers"])) for row in rows]
    total, trained = sum(n for n, _ in sizes), sum(n for n, trains in sizes if trains)
    if total and 2 * trained < total:
        yield f"only {trained / total:.1%} of the weights train"


def _size(shape: Any) -> int:
    size = 1
    for length in shape:
        size *= int(length)
    return size


def _inputs(probe: Mapping[str, Any]) -> Iterator[str]:
    """The questions that were answered by a change of nothing."""
    for label, words in probe.get("lines", ()):
        if label == "inputs" and "does not reach the output" in str(words):
            yield f"what the model is given: {words}"
