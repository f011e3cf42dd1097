"""S2."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import SourceParsed, WorkersAlike, WorkersStarted, beside
from flatline.findings import Finding
from flatline.rules import Rule

UNDONE = (
    "torch has already seeded the global generators of each worker, with a number of its own in each epoch; the constant "
    "undoes it"
)
LEFT_OUT = (
    "leave worker_init_fn out; or seed from torch.initial_seed() % 2**32, which differs for each worker and epoch"
)


class EqualStreamsInWorkers(Rule):
    """Every worker of a DataLoader draws the same random numbers.

    Symptom
    -------
    None that a loss shows. There is less augmentation than it seems: samples of different workers are cropped, flipped and
    noised alike, and without persistent workers every epoch repeats the one before.

    Root cause
    ----------
    torch seeds the global generators of torch, random and numpy in each worker. A generator of the data set's own,
    ``self.rng``, is copied with the data set, in one and the same state, into every worker and again in every epoch;
    a ``worker_init_fn`` that seeds the global ones leaves it as it is. And one that seeds them with a constant undoes what
    torch did.

    Fix
    ---
    Draw from the global generators, or seed the own one in each worker from ``torch.initial_seed()``, which differs for each
    worker and each epoch. Split a stream: ``islice(samples, info.id, None, info.num_workers)``.

    Example
    -------
    ::

        class Noisy(Dataset):
            def __init__(self):
                self.rng = np.random.default_rng(0)

            def __getitem__(self, index):
                return self.x[index] + self.rng.normal(size=8)

    Use instead
    -----------
    ::

        def init(worker_id):
            dataset = get_worker_info().dataset
            dataset.rng = np.random.default_rng(torch.initial_seed() % 2**32)

        DataLoader(Noisy(), num_workers=4, worker_init_fn=init)

    Healthy look-alikes
    -------------------
    ``np.random.rand()`` in a worker, which torch seeds; a generator made for each index, or seeded in
    ``worker_init_fn`` with the worker's number; one worker or none; a loader that is not trained on; a stream that
    gives one and the same batch for ever, to measure its speed.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/data.html#randomness-in-multi-process-data-loading
    - https://docs.pytorch.org/docs/stable/notes/randomness.html#dataloader
    """

    code = "S2"
    severity = "warning"
    cause = (
        "torch seeds the global generators in each worker; a generator of the data set's own is copied into every worker "
        "in one and the same state"
    )
    fix = (
        "seed it in each worker: worker_init_fn=lambda _: setattr(get_worker_info().dataset, 'rng', "
        "np.random.default_rng(torch.initial_seed() % 2**32)); or draw from the global generators"
    )

    workers_needed: int = 2  # one worker has nobody to be equal to

    def __init__(self) -> None:
        self._told = False  # what they share

    def on_workers_started(self, event: WorkersStarted) -> Iterator[Finding]:
        """A generator in a training data set that is handed to workers, or a seed that all of them are given."""
        if event.workers < self.workers_needed:
            return
        self._told = self._told or bool(event.seeding or event.generator)
        if event.seeding:
            yield self._seeded(event)
        if not event.generator:
            return
        epochs = "" if event.persistent else ", and the same again in every epoch"
        yield self.finding(
            event,
            f"{event.owner} draws from its own {event.kind}, {event.generator}, and each of the {event.workers} workers gets "
            f"a copy of it in the same state: they draw the same numbers{epochs}",
            workers=event.workers,
            generator=event.generator,
            persistent=event.persistent,
        )

    def on_workers_alike(self, event: WorkersAlike) -> Iterator[Finding]:
        """A stream that every worker serves whole, or draws with one and the same seed."""
        if self._told:
            return  # the generator that they share says why
        yield self.finding(
            event,
            f"each of the {event.workers} workers serves the same stream of {event.owner}: their first batches of {event.rows} "
            "samples are one and the same, and so are their second ones",
            cause="the seed, or the part of the data, that a worker takes is the same in all of them, though it asks for its info"
            if event.asks
            else "a data set is copied whole into each worker, and a stream has no sampler that would split it among them",
            fix="let both depend on its number: seed + info.id, and islice(samples, info.id, None, info.num_workers)"
            if event.asks
            else "info = torch.utils.data.get_worker_info(), and in it islice(samples, info.id, None, info.num_workers)",
            key="alike",
            workers=event.workers,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A seed in ``worker_init_fn`` that is the same in every worker, for a data set that draws from what it seeds."""
        for fact in event.of("equal streams"):
            yield self.finding_at(
                event,
                fact.where,
                f"`{fact.text}` gives each worker of the DataLoader{beside(fact.other, fact.where)} the same seed, and the data "
                f"set draws from {fact.name}: they draw the same numbers",
                cause=UNDONE,
                fix=LEFT_OUT,
            )
        for fact in (*event.of("copied training stream"), *event.of("copied stream")):
            yield self.finding_at(
                event,
                fact.where,
                f"each worker of the DataLoader{beside(fact.other, fact.where)} begins with a copy of {fact.name}, which "
                f"`{fact.text}` made: they draw the same numbers",
                severity="hint" if fact.kind == "copied stream" else self.severity,
                cause="a data set is copied into each worker with the generators that it holds, in the state that they are in",
                fix="make the generator in the worker, from torch.initial_seed(), or draw from torch, which seeds each worker",
            )

    def _seeded(self, event: WorkersStarted) -> Finding:
        return self.finding(
            event,
            f"`{event.seeding}` in worker_init_fn gives each of the {event.workers} workers the same seed, and the data set draws "
            f"from {event.seeded}: they draw the same numbers{'' if event.persistent else ', and the same again in every epoch'}",
            cause=UNDONE,
            fix=LEFT_OUT,
            key="seeded",
            workers=event.workers,
            seeding=event.seeding,
        )
