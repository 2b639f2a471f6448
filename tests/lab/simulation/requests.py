"""A destination of requests in memory for the real AsyncSink: it throttles, refuses a part of what it is given, and may carry out
late what it did not answer.

Each event is a version of one of three documents of its partition. The destination keeps the last version that it is given,
whichever it is: that must never be one before the newest that it has acknowledged to the same writer. A request is carried out
within one request timeout after its failure, as docs/guarantees.md asks of destinations. In half of the seeds it takes all of a
request or nothing, and a request holds several versions of a document.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from lab.simulation.process import current, incarnation
from lab.simulation.weather import Fate, Request, Weather, answered, host_of

from leasehold.pipeline.async_sink import AsyncSink, Converted, Destination, Entry, Failed
from leasehold.pipeline.async_sink.writer import AsyncWriter
from leasehold.pipeline.errors import Ambiguous, SinkUnavailable
from leasehold.pipeline.limits import AsyncLimits
from leasehold.pipeline.sink import Claim

if TYPE_CHECKING:
    from lab.simulation.world import World

DOCUMENTS = 3
ENTRY_BYTES = 64
RETRY_AFTER_S = 3.0
Tenure = tuple[str, str, int]
"""(partition, incarnation, number of the writer): what one writer sends keeps its order. An edited lease may repeat an epoch."""


class Endpoint:
    """What all hosts send to."""

    def __init__(self, world: World) -> None:
        setup = world.setup
        self.world = world
        self.limits = AsyncLimits(
            batch_entries_max=10,
            in_flight_max=4,
            buffered_entries_max=3 * max(10, setup.batch_events_max),
            request_timeout_s=setup.timing.patience_s / 6,
        )
        self.takes_whole = setup.seed % 2 == 0
        self.weather = _Bounded(world.weather, self.limits.request_timeout_s)
        self._rng = random.Random(f"{setup.seed} endpoint")
        self._acknowledged: dict[tuple[Tenure, int], int] = {}
        self.writers = count(1)

    def sink(self) -> AsyncSink:
        """One host's way here."""
        return _Sink(self)

    def is_busy(self) -> bool:
        return not self.world.skies.is_calm and self._rng.random() < self.world.setup.ill

    def busy_s(self) -> float:
        return RETRY_AFTER_S * self._rng.random()

    def apply(self, tenure: Tenure, generation: int, entries: Sequence[Entry]) -> Sequence[Entry]:
        """What has failed; all else is stored."""
        failed: Sequence[Entry] = ()
        if self.is_busy():
            failed = entries if self.takes_whole else self._rng.sample(entries, self._rng.randint(1, len(entries)))
        numbers = [entry.value for entry in entries if entry not in failed]
        onlooker = self.world.onlooker
        for document, number in {number % DOCUMENTS: number for number in numbers}.items():
            newest = self._acknowledged.get((tenure, document), -1)
            onlooker.check(number >= newest, "order", partial(_replaced, tenure, number, newest))
        if numbers:
            onlooker.arrives(tenure[0], generation, sorted(numbers))
        return failed

    def acknowledge(self, tenure: Tenure, entries: Sequence[Entry]) -> None:
        for entry in entries:
            key = tenure, entry.value % DOCUMENTS
            self._acknowledged[key] = max(self._acknowledged.get(key, -1), entry.value)


class _Sink(AsyncSink):
    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(
            _Nowhere(),
            identity="simulated",
            convert=converted,
            limits=endpoint.limits,
            takes_whole=endpoint.takes_whole,
        )
        self._endpoint = endpoint

    async def open(self, claim: Claim) -> AsyncWriter:
        endpoint = self._endpoint
        limits, batches = endpoint.limits, 2 * endpoint.world.setup.batch_events_max
        endpoint.world.onlooker.tried(claim.partition, limits.buffered_entries_max + batches)
        writer = await super().open(claim)
        writer._destination = _Line(endpoint, claim)
        return writer


class _Nowhere(Destination):
    async def submit(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        raise AssertionError("each claim has a destination of its own")


class _Line(Destination):
    """The destination, as one claim sees it."""

    def __init__(self, endpoint: Endpoint, claim: Claim) -> None:
        self._endpoint = endpoint
        self._claim = claim
        self._tenure = claim.partition, incarnation(), next(endpoint.writers)

    async def submit(self, entries: Sequence[Entry]) -> Failed:
        endpoint, claim = self._endpoint, self._claim
        onlooker = endpoint.world.onlooker
        onlooker.sends(self._tenure[1], claim.partition, (claim.epoch,), "requests, of which several are under way")
        if endpoint.is_busy():
            raise SinkUnavailable("429", retry_after_s=endpoint.busy_s())
        request = Request(host_of(current()), "sink", "write", claim.partition)
        call = partial(endpoint.apply, self._tenure, claim.generation, entries)
        is_answered = False
        try:
            failed = await answered(endpoint.weather, request, call, SinkUnavailable, Ambiguous)
            is_answered = True
        finally:
            if not is_answered:
                onlooker.tried(claim.partition, len(entries))
        endpoint.acknowledge(self._tenure, [entry for entry in entries if entry not in failed])
        return Failed(failed, retry_after_s=endpoint.busy_s() if failed else None)


class _Bounded(Weather):
    """Nothing is carried out later than one request timeout after it has failed."""

    def __init__(self, weather: Weather, timeout_s: float) -> None:
        self._weather = weather
        self._timeout_s = timeout_s

    def delay(self, request: Request, fate: Fate, call: Callable[[], object]) -> None:
        self._weather.delay(request, fate, call)

    def reaches(self, request: Request) -> None:
        self._weather.reaches(request)

    def fate(self, request: Request) -> Fate:
        fate = self._weather.fate(request)
        most = (1 if fate.ends == "late" else 2) * self._timeout_s
        return fate._replace(late_s=min(fate.late_s, 0.99 * most))


def converted(row: Mapping[str, Any], key: str) -> Converted:
    number = int(row["sequence"])
    return Converted(value=number, bytes=ENTRY_BYTES, order=str(number % DOCUMENTS))


def _replaced(tenure: Tenure, number: int, newest: int) -> str:
    return f"version {number} of a document of {tenure} replaces {newest}, which was acknowledged"
