"""An event hub as a sink, by Protocol F (pipeline/publishing.py): every event bears its batch's marker, since the hub keeps
events alone, and the position is found by reading the partition's end.

That is read where a claim finds more published than the lease knows of: after a crash, or a write whose answer was lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.connectors.eventhubs.account import Account, is_consumer_group
from pipeline.connectors.eventhubs.broker import ENVELOPE_BYTES, EventHubsBroker, size_of
from pipeline.connectors.eventhubs.claiming import CLOSING_LEVEL, Tail, group, tail_of, target_of, to_close
from pipeline.connectors.eventhubs.hub import GROUP
from pipeline.connectors.eventhubs.output import bodies_of, size_max
from pipeline.connectors.eventhubs.sender import BYTES_MAX
from pipeline.connectors.eventhubs.tail import searched
from pipeline.crash_point import crash_point
from pipeline.errors import (
    Ambiguous,
    FeedError,
    FeedUnavailable,
    Fenced,
    OutputTooLarge,
    PipelineError,
    SinkRejected,
    SinkUnavailable,
)
from pipeline.markers import Search, lease_of
from pipeline.producer import (
    NUMBER_MAX,
    Asked,
    Numbers,
    Outcome,
    PartitionProducer,
    ProducerState,
    PublishError,
    Reason,
    RetryPolicy,
    claimed,
    decoded,
)
from pipeline.producer.errors import ENDS_THE_PRODUCER
from pipeline.published import events_of
from pipeline.publishing import PublishingWriter, generation_lost, marker_of, newest, outranked, published
from pipeline.sink import Claim, CloseReason, Output, Permit

SMALL_EVENTS = 100
"""What is encoded at once: going to a thread and back would take longer."""


class EventHubsSink:
    """A source partition goes to the hub's partition of its name, or else to one that is chosen once.

    Output columns: as for the log. consumer_group: to read a partition's end in; nobody may read in it with an epoch.
    """

    holds_position = True

    def __init__(
        self,
        account: Account,
        *,
        consumer_group: str = GROUP,
        timeout_s: float = 20.0,
        retry: RetryPolicy | None = None,
        credential: Any = None,
        rng: random.Random | None = None,
    ) -> None:
        if not is_consumer_group(consumer_group):
            raise ValueError("`consumer_group` must be the name of one, like $Default")
        self._account = account
        self._broker = EventHubsBroker(account, credential=credential, timeout_s=timeout_s)
        self._consumer_group = consumer_group
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy(retries_max=3, delay_s=0.1, delay_max_s=2.0, try_timeout_s=timeout_s)
        self._rng = rng or random.SystemRandom()
        self._targets: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        return f"eventhubs:{self._account.name}"

    def claimed(self, state: str) -> str:
        return claimed(state)

    async def prepare(self) -> None:
        try:
            self._targets = (await self._broker.hub()).partitions
        except PublishError as error:
            raise translated(error) from error

    async def open(self, claim: Claim) -> HubWriter:
        state = decoded(claim.state)
        try:
            return await self._opened(claim, state, await self._target(claim, state))
        except PublishError as error:
            raise translated(error) from error
        except FeedUnavailable as error:
            raise SinkUnavailable(str(error), retry_after_s=error.retry_after_s) from error
        except (FeedError, Fenced) as error:
            if isinstance(error, Fenced) and error.state is not None:
                raise
            raise SinkRejected(
                f"{error}. The sink reads the partition's end in the consumer group '{self._consumer_group}': give it one of"
                " its own (`consumer_group`), which nobody reads with an epoch"
            ) from error

    async def close(self) -> None:
        await self._broker.close()

    # A claim

    async def _opened(self, claim: Claim, state: ProducerState, target: str) -> HubWriter:
        """Fence first, read then (R1)."""
        before = (await self._broker.extent(target)).last
        known = await self._standing(target, group(claim, state))
        producer = await self._attached(claim, state, target, known)
        for earlier in to_close(claim, state):
            await self._close_group(target, earlier)
        extent = await self._broker.extent(target)
        tail = tail_of(claim, state, known, before, extent.last)
        if tail.is_binding and state.tail > extent.last:
            raise SinkRejected(
                f"{self._broker.name}, partition '{target}' ends at {extent.last}, and this lease has seen it end at"
                f" {state.tail}: the hub was deleted and made again, and output is lost. Reset the lease"
            )
        search = await self._searched(claim, target, tail, extent.first)
        return HubWriter(
            self,
            claim,
            replace(
                state,
                group=group(claim, state),
                number=producer.numbers.number if producer and producer.numbers else known.number,
                tail=extent.last,
                target=None if target == claim.partition else target,
            ),
            producer,
            target,
            position=newest(claim, search.newest.to if search.newest else None),
        )

    async def _target(self, claim: Claim, state: ProducerState) -> str:
        if (state.target or claim.partition) not in self._targets:
            self._targets = (await self._broker.hub()).partitions
        target = target_of(claim.partition, self._targets, state.target)
        if target is None:
            raise SinkRejected(
                f"{self._broker.name} has no partition '{state.target}', which lease '{claim.partition}' publishes to: the hub"
                " was made again with fewer. Reset the lease, and set the document's sinkState to an empty text"
            )
        return target

    async def _standing(self, target: str, of: int) -> Numbers:
        """What the service knows of a group; number and level 0 where it knows none. Nothing is fenced by the question."""
        asking = PartitionProducer(self._broker, target, asked=Asked(group=of, level=None), retry=self._retry)
        try:
            await asking.ready()
            assert asking.numbers is not None
            return asking.numbers
        finally:
            await asking.close(CLOSED)

    async def _attached(
        self, claim: Claim, state: ProducerState, target: str, known: Numbers
    ) -> PartitionProducer | None:
        """None where our group is closed for good. Raises Fenced, PublishError."""
        if known.level >= CLOSING_LEVEL:
            following = await self._standing(target, group(claim, state, series=state.series + 1))
            if following.level:
                raise self._outranked(claim, state, (state.series + 1, following.level))
            return None
        if known.level >= state.level:
            raise self._outranked(claim, state, (state.series, known.level))
        asked = Asked(group=known.group, level=state.level, number=self._rng.randint(0, NUMBER_MAX))
        producer = PartitionProducer(self._broker, target, asked=asked, strict=True, retry=self._retry)
        try:
            await producer.ready()
        except PublishError as error:
            await producer.close(CLOSED)
            if error.reason not in ENDS_THE_PRODUCER:
                raise
            raise self._outranked(claim, state, (state.series, state.level)) from error
        return producer

    def _outranked(self, claim: Claim, state: ProducerState, held: tuple[int, int]) -> Fenced:
        lease = lease_of(claim.pipeline, claim.partition)
        message = (
            f"lease '{lease}' is claimed at level {held[1]} (series {held[0]}), and level {state.level} (series {state.series})"
            " does not outrank it: stop, or claim above"
        )
        return outranked(message, state, held)

    async def _close_group(self, target: str, of: int) -> None:
        closing = PartitionProducer(self._broker, target, asked=Asked(group=of, level=CLOSING_LEVEL), retry=self._retry)
        try:
            await closing.ready()
        finally:
            await closing.close(CLOSED)

    async def _searched(self, claim: Claim, target: str, tail: Tail, first: int) -> Search:
        """Raises FeedError, SinkRejected."""
        search = Search(lease_of(claim.pipeline, claim.partition), claim.generation)
        if tail.is_cut(first):
            raise SinkRejected(
                f"{self._broker.name}, partition '{target}' begins at {first} by now, and what this lease published behind"
                f" {tail.behind} is forgotten: nobody can tell how far it got. Look at what arrived, then reset the lease"
            )
        if not tail.is_empty and first <= tail.end:
            await searched(
                self._broker.links,
                target,
                self._consumer_group,
                search,
                behind=max(tail.behind, first - 1),
                end=tail.end,
                timeout_s=self._timeout_s,
            )
        if search.later > claim.generation:
            raise generation_lost(claim, self._broker.name, search.later)
        return search


class HubWriter(PublishingWriter):
    """producer: None where the partition has ended, or its lease is of an earlier generation than the hub has seen."""

    def __init__(
        self,
        sink: EventHubsSink,
        claim: Claim,
        state: ProducerState,
        producer: PartitionProducer | None,
        target: str,
        *,
        position: str | None,
    ) -> None:
        super().__init__(state, position=position, compare=claim.compare)
        self._sink = sink
        self._claim = claim
        self._producer = producer
        self._target = target

    async def _publish(self, output: Output, permit: Permit) -> ProducerState:
        if self._producer is None:
            raise SinkRejected(
                f"lease '{self._claim.partition}' has ended, and nothing more is taken from it; or it was reset and its document"
                " put back since: then reset it once more"
            )
        if output.table.num_rows <= SMALL_EVENTS:
            bodies = self._bodies(output)
        else:
            bodies = await asyncio.to_thread(self._bodies, output)
        link = await self._ready(self._producer)
        size = ENVELOPE_BYTES + sum(map(size_of, bodies))
        if size > link.bytes_max:
            raise _too_large(output, size, link.bytes_max)
        crash_point("before publish")
        try:
            await self._producer.publish(Bodies(bodies), permit.check)
        except PublishError as error:
            raise translated(error, self._state) from error
        crash_point("published")
        return published(self._state, len(bodies), self._state.tail + len(bodies))

    def parts(self, output: Output) -> int:
        """By a size that is never too small; what is refused in the end is what cannot be cut."""
        link_max = self._bytes_max
        size = size_max(output.table, marker_of(self._claim, self._state.level, output, max(1, output.table.num_rows)))
        return 1 if size <= link_max else -(-size * 5 // (link_max * 4))  # a quarter more, since events differ

    @property
    def _bytes_max(self) -> int:
        return self._producer.bytes_max if self._producer else BYTES_MAX

    async def _ready(self, producer: PartitionProducer) -> Any:
        try:
            return await producer.ready()
        except PublishError as error:
            raise translated(error, self._state) from error

    def _bodies(self, output: Output) -> list[bytes]:
        events = events_of(output.table, "an event hub")
        return bodies_of(events, marker_of(self._claim, self._state.level, output, events.num_rows))

    async def end(self, permit: Permit) -> None:
        """The level above all claims closes the group, and no other follows it."""
        if self._producer is None:
            return
        try:
            standing = await self._sink._standing(self._target, group(self._claim, self._state))
            if standing.level > self._state.level:
                held = (self._state.series, standing.level)
                raise self._sink._outranked(self._claim, self._state, held)
            permit.check()
            await self._sink._close_group(self._target, standing.group)
        except PublishError as error:
            raise translated(error, self._state) from error

    async def close(self, reason: CloseReason) -> None:
        if self._producer is not None:
            await self._producer.close(CLOSED)


class Bodies:
    """A batch's encoded events. Implements pipeline.producer's Contents."""

    key = None

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads

    def begin(self) -> None:
        """They are published once."""

    def keep(self, first: int | None) -> None:
        """The writer counts by itself."""

    def drop(self) -> None:
        """Nothing was changed."""


CLOSED = PublishError("the writer is closed: claim the partition again", reason=Reason.CLIENT_CLOSED)


def translated(error: PublishError, state: ProducerState | None = None) -> PipelineError:
    """state: of the writer, where something was sent."""
    if error.reason in ENDS_THE_PRODUCER or error.reason is Reason.CLIENT_CLOSED:
        return Fenced(str(error), state=None if state is None else state.encoded())
    if error.outcome is Outcome.UNKNOWN:
        return Ambiguous(str(error))
    if error.is_transient or error.reason is Reason.QUOTA_EXCEEDED:
        return SinkUnavailable(str(error))
    return SinkRejected(str(error))


def _too_large(output: Output, size: int, bytes_max: int) -> PipelineError:
    return OutputTooLarge(
        f"the output of {output.events} events takes {size} bytes with its markers, and a batch of the hub at most {bytes_max}:"
        " lower the pipeline's batch_events_max or batch_bytes_max, or publish less in an event"
    )
