"""A search over settings trains from one place again and again: what only some trials show may be tried on purpose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from flatline.findings import Finding, explains


class Trials:
    """Which trainings of a run are trials of one search, and what was found in which of them."""

    def __init__(self) -> None:
        self._search: dict[int, int] = {}  # by a training's key: that of the first from the same place
        self._varied: set[int] = set()  # of these first ones, those of trials that differ in their settings
        self._seen: defaultdict[str, set[int]] = defaultdict(set)  # by code: keys of the trainings it was told of
        self._hanging: set[str] = set()  # codes of rules whose findings hang on settings
        self._anew: set[str] = set()  # codes that were seen in trials alone until now

    def began(self, training: int, first: int, *, varied: bool) -> None:
        """Another training from the place of ``first``."""
        self._search[training] = self._search.setdefault(first, first)
        if varied:
            self._varied.add(self._search[first])

    def found(self, code: str, training: int, *, hangs_on_settings: bool) -> None:
        """A rule told something of a training, which other settings may change."""
        before = self._seen[code]
        if before and self._are_trials(before) and not self._are_trials({training}):
            self._anew.add(code)
        before.add(training)
        if hangs_on_settings:
            self._hanging.add(code)

    def is_new(self, code: str) -> bool:
        """What is told now is of a training that is no trial, and what was told before of trials: asked once."""
        new = code in self._anew
        self._anew.discard(code)
        return new

    def _are_trials(self, trainings: set[int]) -> bool:
        return {self._search.get(training) for training in trainings} <= self._varied

    def weighed(self, findings: Iterable[Finding]) -> list[Finding]:
        """What other trials are free of is a hint; what it brought about in its trial is not told."""
        known = list(findings)
        tried = [finding for finding in known if self._tried(finding)]
        told = [one for one in known if one not in tried and not any(self._explains(other, one) for other in tried)]
        return told + [self._hint(finding) for finding in tried]

    def _explains(self, tried: Finding, other: Finding) -> bool:
        """In the same trials, and in no other training."""
        return explains(tried, other) and self._seen[other.code] <= self._seen[tried.code]

    def _tried(self, finding: Finding) -> bool:
        shown = self._seen[finding.code]
        hangs = finding.code in self._hanging
        return hangs and self._are_trials(shown) and bool(self._beside(shown) - shown)

    def _beside(self, shown: set[int]) -> set[int]:
        """All trials of the searches that these belong to."""
        searches = {self._search[training] for training in shown}
        return {training for training, search in self._search.items() if search in searches}

    def _hint(self, finding: Finding) -> Finding:
        shown = self._seen[finding.code]
        evidence = {**finding.evidence, "trials": len(self._beside(shown)), "trials_that_show_it": len(shown)}
        return replace(finding, severity="hint", evidence=evidence)
