"""A claim's writer of a hub's partition: one batch at a time, with the hub's errors translated to those of a sink."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from leasehold.pipeline.connectors.eventhubs.broker import ENVELOPE_BYTES, size_of
from leasehold.pipeline.connectors.eventhubs.refusal import BUSY_S
from leasehold.pipeline.connectors.eventhubs.sink.bodies import bodies_of, size_max
from leasehold.pipeline.connectors.eventhubs.sink.producer_groups import CLOSED, Groups, above, group
from leasehold.pipeline.connectors.eventhubs.sink.sender import BYTES_MAX
from leasehold.pipeline.connectors.eventhubs.sink.tail import TailReading, Tails
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import (
    Ambiguous,
    FeedError,
    Fenced,
    OutputTooLarge,
    PipelineError,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.markers import Marker, Search
from leasehold.pipeline.producer import Outcome, PartitionProducer, ProducerState, PublishError, Reason
from leasehold.pipeline.producer.errors import ENDS_THE_PRODUCER
from leasehold.pipeline.publishing_writer import PublishingWriter, events_of, marker_of, outranked, published
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit

TAIL_S = 5.0
"""How old the tail may be before a batch is published: as old as a checkpoint may be. The next claim may have to read all events
after the tail, of all publishers."""
SMALL_EVENTS = 100
"""Up to this many events are encoded without a thread: a thread would take longer."""


class HubWriter(PublishingWriter):
    """producer: None if the partition has ended, or if its lease is of an earlier generation than the hub has seen.

    tail_s: how often, in seconds, the tail moves to the partition's end before a batch, or while the lease is idle.
    """

    def __init__(
        self,
        groups: Groups,
        claim: Claim,
        state: ProducerState,
        producer: PartitionProducer | None,
        target: str,
        *,
        position: str | None,
        tails: Tails,
        tail_s: float = TAIL_S,
    ) -> None:
        super().__init__(state, position=position, compare=claim.compare)
        self._tails = tails
        self._is_verified = False
        self._tail_s = tail_s
        self._is_settled = True
        self._groups = groups
        self._claim = claim
        self._producer = producer
        self._target = target

    async def _publish(self, output: Output, permit: Permit) -> ProducerState:
        if self._producer is None:
            raise SinkRejected(
                f"lease '{self._claim.partition}' has ended, and nothing more is taken from it; or it was reset, and an older"
                " document was restored since: then reset it once more"
            )
        if output.table.num_rows <= SMALL_EVENTS:
            bodies = self._bodies(output)
        else:
            bodies = await asyncio.to_thread(self._bodies, output)
        link = await self._ready(self._producer)
        size = ENVELOPE_BYTES + sum(map(size_of, bodies))
        if size > link.bytes_max:
            raise _too_large(output, size, link.bytes_max)
        self._move_tail(await self._tails.look(self._target, self._state.tail, age_max_s=self._tail_s))
        self._is_settled = False
        crash_point("before publish")
        try:
            await self._producer.publish(Bodies(bodies), permit.check)
        except PublishError as error:
            raise translated(error, self._state) from error
        crash_point("published")
        if not self._is_verified:
            await self._verify(marker_of(self._claim, self._state.level, output, len(bodies)))
        self._is_settled = True
        return published(self._state, len(bodies), self._state.tail + len(bodies))

    async def follow(self) -> None:
        """Move the tail to the partition's end, unless a batch is under way meanwhile."""
        end = await self._tails.look(self._target, self._state.tail, age_max_s=self._tail_s)
        if self._is_settled:
            self._move_tail(end)
            self.state = self._state.encoded()

    def _move_tail(self, end: int) -> None:
        """All that this lease has published is settled now, so nothing up to `end` is new to it."""
        self._state = replace(self._state, tail=max(self._state.tail, end))

    async def _verify(self, marker: Marker) -> None:
        """Find the claim's first batch in the partition: after a raise of the level, the service may take new events for known
        ones, which it acknowledges and discards. If a group does this twice, the lease continues with the next series of groups.
        """
        where, search = self._tails.named(self._target), Search(marker.lease, marker.generation, self._compare)
        reading = TailReading(search, self._state.tail, self._state.tail)
        try:
            await self._tails.read(self._target, reading)
        except (FeedError, Fenced, PublishError) as error:
            raise Ambiguous(f"the first batch of the claim cannot be verified: {error}") from error
        if search.newest == marker:
            self._is_verified = True
            return
        ours = group(self._claim, self._state)
        if ours in self._groups.discarding:
            message = f"{where} acknowledges what producer group {ours} publishes, and does not store it: the next group is used"
            raise outranked(message, self._state, (self._state.series + 1, 0))
        self._groups.discarding.add(ours)
        raise Ambiguous(f"{where} acknowledged the first batch of the claim, and has not stored it")

    def parts(self, output: Output) -> int:
        """How many parts the batch is cut into, by an estimate of its output's size that is never too small."""
        link_max = self._bytes_max
        marker = marker_of(self._claim, self._state.level, output, max(1, output.table.num_rows))
        size = size_max(output.table, marker, output.trace)
        return 1 if size <= link_max else -(-size * 5 // (link_max * 4))  # a quarter more, since events differ

    @property
    def place(self) -> str:
        """The hub's partition."""
        return self._target

    @property
    def _bytes_max(self) -> int:
        return self._producer.bytes_max if self._producer else BYTES_MAX

    async def _ready(self, producer: PartitionProducer) -> Any:
        try:
            return await producer.ensure_link()
        except PublishError as error:
            raise translated(error, self._state) from error

    def _bodies(self, output: Output) -> list[bytes]:
        events = events_of(output.table, "an event hub")
        return bodies_of(events, marker_of(self._claim, self._state.level, output, events.num_rows), output.trace)

    async def end(self, permit: Permit) -> None:
        """Close the group at the level above all claims. No other group follows it."""
        if self._producer is None:
            return
        try:
            ours = group(self._claim, self._state)
            if await self._groups.find_position(self._target, ours, self._state.level) is None:
                held = await self._groups.find_highest(self._target, ours)
                raise above(self._claim, self._state, (self._state.series, held.level))
            permit.check()
            await self._groups.close(self._target, ours)
        except PublishError as error:
            raise translated(error, self._state) from error

    async def close(self, reason: CloseReason) -> None:
        if self._producer is not None:
            await self._producer.close(CLOSED)


class Bodies:
    """A batch's encoded events. Implements leasehold.pipeline.producer's Contents."""

    key = None

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads

    def begin(self) -> None:
        """Nothing to check: the events are published once."""

    def keep(self, first: int | None) -> None:
        """The writer counts on its own."""

    def drop(self) -> None:
        """Nothing was changed."""


def translated(error: PublishError, state: ProducerState | None = None) -> PipelineError:
    """state: the writer's, if something was sent."""
    if error.reason in ENDS_THE_PRODUCER or error.reason is Reason.CLIENT_CLOSED:
        return Fenced(str(error), state=None if state is None else state.encoded())
    if error.outcome is Outcome.UNKNOWN:
        return Ambiguous(str(error))
    if error.is_transient or error.reason is Reason.QUOTA_EXCEEDED:
        return SinkUnavailable(str(error), retry_after_s=BUSY_S if error.reason is Reason.SERVICE_BUSY else None)
    return SinkRejected(str(error))


def _too_large(output: Output, size: int, bytes_max: int) -> PipelineError:
    return OutputTooLarge(
        f"the output of {output.events} events takes {size} bytes with its markers, and a batch of the hub at most {bytes_max}:"
        " lower the pipeline's batch_events_max or batch_bytes_max, or publish less in an event"
    )
