"""A feed and a sink that live in this process: for trying things out, for tests, and for simulations.

Both keep the whole contract. Everything that a process would send to a real system goes through one method, `_request`; override
it for late, lost or refused requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

import pyarrow as pa

from leasehold.common.standing import Standing
from leasehold.pipeline.errors import FeedError, Fenced, PositionLost, SinkRejected
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, PartitionEnded, Start
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Event:
    sequence: int
    enqueued_time: datetime
    key: str | None
    body: bytes | None

    @property
    def bytes(self) -> int:
        return len(self.body or b"") + len(self.key or "")


class _Log:
    """One partition. A position is the number of events that were ever appended before it, including trimmed ones."""

    def __init__(self) -> None:
        self.parents: list[str] = []
        self.children: tuple[tuple[str, str | None], ...] | None = None
        self.events: list[_Event] = []
        self.first = 0
        self.changed = asyncio.Event()

    @property
    def end(self) -> int:
        return self.first + len(self.events)

    def behind(self, index: int) -> list[_Event]:
        return self.events[index - self.first :]

    def notify(self) -> None:
        """Wake all readers that wait now; later ones wait for the next change."""
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryChangeFeed(ChangeFeed):
    """Partitions as lists. `append`, `split` and `trim` belong on the event loop that reads."""

    def __init__(
        self,
        partitions: Iterable[str],
        *,
        name: str = "memory",
        page_events_max: int = 1000,
        page_bytes_max: int = 1024 * 1024,
    ) -> None:
        self._name = name
        self._page_events_max = page_events_max
        self._page_bytes_max = page_bytes_max
        self._logs = {partition: _Log() for partition in partitions}

    @property
    def identity(self) -> str:
        return f"memory:{self._name}"

    def append(
        self, partition: str, bodies: Iterable[bytes | None], *, key: str | None = None, at: datetime = EPOCH
    ) -> None:
        """Add events, enqueued at `at` (aware)."""
        log = self._log(partition)
        assert log.children is None, f"partition '{partition}' has ended"
        log.events += [_Event(sequence, at, key, body) for sequence, body in enumerate(bodies, log.end)]
        log.notify()

    def split(self, partition: str, children: Sequence[str]) -> None:
        """End a partition; its children begin empty. Splitting several into one common child is a merge."""
        log = self._log(partition)
        for child in children:
            self._logs.setdefault(child, _Log()).parents.append(partition)
        log.children = tuple((child, None) for child in children)
        log.notify()

    def trim(self, partition: str, to: str) -> None:
        """Forget events before the position `to`, as retention does."""
        log = self._log(partition)
        cut = self._index(partition, to)
        log.events, log.first = log.behind(cut), cut

    async def partitions(self) -> list[FeedPartition]:
        """All partitions, also ended ones, because they can still be read."""
        return await self._request(
            lambda: [FeedPartition(name, tuple(log.parents)) for name, log in sorted(self._logs.items())]
        )

    async def start_of(self, partition: str, start: Start) -> str | None:
        return await self._request(lambda: self._start_of(partition, start))

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        log, index = self._log(partition), self._index(partition, continuation)
        while True:
            changed = log.changed  # taken before the look, or a change right after it would be missed
            page = await self._request(partial(self._page, partition, index))
            if page is None:
                await changed.wait()
            else:
                index += page.events.num_rows
                yield page

    async def latest(self, partition: str) -> str | None:
        return await self._request(lambda: _position(self._log(partition).end))

    async def lag(self, partition: str, continuation: str | None) -> int:
        return await self._request(lambda: self._log(partition).end - self._index(partition, continuation))

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        return await self._request(lambda: self._enqueued_time(partition, continuation))

    def compare(self, a: str | None, b: str | None) -> int:
        return _sequence_in(a) - _sequence_in(b)

    async def close(self) -> None:
        """There is nothing to close."""

    async def _request(self, request: Callable[[], T]) -> T:
        """The way to the source and back, for subclasses that simulate failures."""
        return request()

    def _log(self, partition: str) -> _Log:
        if partition not in self._logs:
            raise FeedError(f"feed '{self.identity}' has no partition '{partition}': it has {sorted(self._logs)}")
        return self._logs[partition]

    def _index(self, partition: str, continuation: str | None) -> int:
        log, number = self._log(partition), _sequence_in(continuation)
        if continuation is None:
            return log.first
        if not log.first <= number <= log.end:
            raise PositionLost(
                f"partition '{partition}' holds the positions {log.first} to {log.end}, and {number} is none of them: "
                "set a new position for its lease"
            )
        return number

    def _start_of(self, partition: str, start: Start) -> str | None:
        log = self._log(partition)
        if start == "earliest":
            return None
        if start == "latest":
            return _position(log.end)
        return _position(next((e.sequence for e in log.events if e.enqueued_time >= start), log.end))

    def _enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        waiting = self._log(partition).behind(self._index(partition, continuation))
        return waiting[0].enqueued_time if waiting else None

    def _page(self, partition: str, index: int) -> Page | None:
        """The page that begins at `index`; None if there are no events yet. Raises PartitionEnded."""
        log = self._log(partition)
        if index < log.first:
            raise PositionLost(f"partition '{partition}' was trimmed to {log.first} while it was read at {index}")
        events = self._limited(log.behind(index))
        if events:
            return Page(_table(partition, events), str(index + len(events)), lambda n: str(index + n))
        if log.children is not None:
            raise PartitionEnded(partition, log.children)
        return None

    def _limited(self, events: list[_Event]) -> list[_Event]:
        held = 0

        def fits(event: _Event) -> bool:
            nonlocal held
            held += event.bytes
            return held <= self._page_bytes_max or held == event.bytes

        return list(takewhile(fits, events[: self._page_events_max]))


def _position(number: int) -> str | None:
    return str(number) if number else None


def _sequence_in(position: str | None) -> int:
    if position is None:
        return 0
    if not (position.isascii() and position.isdecimal() and len(position) < 19 and position[0] != "0"):
        raise PositionLost(f"{position[:100]!r} is not a position of a memory feed: set a new one for the lease")
    return int(position)


def _table(partition: str, events: Sequence[_Event]) -> pa.Table:
    rows = [
        {
            "partition": partition,
            "sequence": event.sequence,
            "offset": str(event.sequence),
            "enqueued_time": event.enqueued_time,
            "key": event.key,
            "body": event.body,
        }
        for event in events
    ]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


@dataclass(frozen=True, slots=True)
class Commit:
    """An output that a destination has taken, and the claim of its writer."""

    claim: Claim
    output: Output


class MemoryDestination:
    """What the sinks of several simulated processes share: output, positions and the newest epochs.

    commits: all output that it has taken, in order of arrival.
    """

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self._epochs: dict[tuple[str, str], int] = {}
        self._positions: dict[tuple[str, str, int], str | None] = {}
        self._ended: set[tuple[str, str, int]] = set()

    def rows(self, partition: str) -> list[dict[str, Any]]:
        """The rows of all output that was taken for `partition`, from any pipeline."""
        return [
            row
            for commit in self.commits
            if commit.claim.partition == partition
            for row in commit.output.table.to_pylist()
        ]

    def claim(self, claim: Claim) -> str | None:
        """Fence earlier epochs, and return the position. Raises Fenced."""
        self._admit(claim, newer=True)
        self._epochs[claim.pipeline, claim.partition] = claim.epoch
        return self._positions.setdefault(_key_of(claim), claim.continuation)

    def commit(self, claim: Claim, output: Output) -> None:
        """Raises Fenced, SinkRejected."""
        self._admit(claim)
        place = _key_of(claim)
        if place in self._ended:
            raise SinkRejected(f"partition '{claim.partition}' of pipeline '{claim.pipeline}' has ended in the sink")
        if claim.compare(self._positions[place], output.start) != 0:
            raise Fenced(
                f"partition '{claim.partition}' is at {self._positions[place]}, but the output starts after "
                f"{output.start}: read the position again",
                epoch=claim.epoch,
            )
        self.commits.append(Commit(claim, output))
        self._positions[place] = output.to

    def standing(self, pipeline: str, partition: str) -> Standing | None:
        held = {place[2]: at for place, at in self._positions.items() if place[:2] == (pipeline, partition)}
        return Standing(max(held), held[max(held)]) if held else None

    def end(self, claim: Claim) -> None:
        """Raises Fenced."""
        self._admit(claim)
        self._ended.add(_key_of(claim))

    def _admit(self, claim: Claim, *, newer: bool = False) -> None:
        epoch = self._epochs.get((claim.pipeline, claim.partition), 0)
        if claim.epoch < epoch or (claim.epoch > epoch and not newer):
            raise Fenced(
                f"partition '{claim.partition}' of pipeline '{claim.pipeline}' is claimed with epoch {epoch}, "
                f"but '{claim.owner}' has epoch {claim.epoch}",
                epoch=epoch,
            )


def _key_of(claim: Claim) -> tuple[str, str, int]:
    return claim.pipeline, claim.partition, claim.generation


class MemoryOutputSink(Sink):
    """One process's way to a destination. Output and position are taken in one step, and earlier epochs are refused."""

    holds_position = True

    def __init__(self, destination: MemoryDestination | None = None) -> None:
        self.destination = destination or MemoryDestination()

    @property
    def identity(self) -> str:
        return "memory"

    def claimed(self, state: str) -> str:
        return state

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def open(self, claim: Claim) -> MemoryWriter:
        position = await self._request(lambda: self.destination.claim(claim))
        return MemoryWriter(self.destination, claim, position, self._request)

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        return await self._request(lambda: self.destination.standing(pipeline, partition))

    async def close(self) -> None:
        """There is nothing to close."""

    async def _request(self, request: Callable[[], T]) -> T:
        """The way to the destination and back, for subclasses that simulate failures."""
        return request()


class MemoryWriter(SinkWriter):
    position: str | None = None
    state: str = ""

    def __init__(
        self,
        destination: MemoryDestination,
        claim: Claim,
        position: str | None,
        request: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self.position = position
        self.state = claim.state
        self._destination = destination
        self._claim = claim
        self._request = request

    async def write(self, output: Output, permit: Permit) -> None:
        permit.check()
        await self._request(lambda: self._destination.commit(self._claim, output))
        self.position = output.to

    async def end(self, permit: Permit) -> None:
        permit.check()
        await self._request(lambda: self._destination.end(self._claim))

    async def close(self, reason: CloseReason) -> None:
        """There is nothing to close."""
