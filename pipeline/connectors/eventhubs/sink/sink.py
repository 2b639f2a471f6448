"""An event hub as a sink, by Protocol F (pipeline/publishing_writer.py): every event carries its batch's marker, because
the hub keeps only events. The position is found by reading the partition's end.

A claim reads more than the last event if more was published than the lease knows of: after a crash, after a write whose answer
was lost, or by other publishers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount, is_consumer_group
from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker
from leasehold.pipeline.connectors.eventhubs.feed.receiver import try_attach
from leasehold.pipeline.connectors.eventhubs.sink.producer_groups import (
    CLOSED,
    Groups,
    Tail,
    group,
    tail_of,
    to_close,
)
from leasehold.pipeline.connectors.eventhubs.sink.tail import QUIET_S, TailReading, Tails
from leasehold.pipeline.connectors.eventhubs.sink.writer import TAIL_S, HubWriter, translated
from leasehold.pipeline.connectors.network import check_unresolvable
from leasehold.pipeline.connectors.targets import target_of
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import (
    FeedError,
    FeedUnavailable,
    Fenced,
    SinkNotFound,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.markers import Compare, Search, lease_of
from leasehold.pipeline.producer import (
    PartitionProducer,
    ProducerPosition,
    ProducerState,
    PublishError,
    RetryPolicy,
    claimed,
    decoded,
)
from leasehold.pipeline.publishing_writer import generation_lost, newest
from leasehold.pipeline.sink import Claim, Sink


class EventHubsOutputSink(Sink):
    """A source partition goes to the hub's partition of the same name. If there is none, one is chosen once.

    Output columns: as for the log.

    - `consumer_group`: in which the sink reads a partition's end; no reader with an epoch may use it.
    - `tail_s`: the most seconds of other publishers' events that a claim reads, in addition to those since the last
      checkpoint.
    - `quiet_s`: how many seconds a partition that seems empty may take to show an event.
    """

    holds_position = True

    def __init__(
        self,
        account: EventHubAccount,
        *,
        consumer_group: str,
        timeout_s: float = 20.0,
        tail_s: float = TAIL_S,
        quiet_s: float = QUIET_S,
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
        self._tail_s = tail_s
        policy = retry or RetryPolicy(retries_max=3, delay_s=0.1, delay_max_s=2.0, try_timeout_s=timeout_s)
        self._tails = Tails(self._broker, consumer_group, timeout_s=timeout_s, quiet_s=quiet_s)
        self._unfinished: dict[tuple[str, int | None, str], TailReading] = {}
        self._first: dict[tuple[str, int | None, str], int] = {}
        """The partition's end before the first claim of a lease, until one succeeds: the lease published nothing up to there."""
        self._groups = Groups(self._broker, policy, rng or random.SystemRandom())
        self._targets: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        return f"eventhubs:{self._account.name}"

    @property
    def endpoint(self) -> Endpoint:
        return self._account.endpoint

    def claimed(self, state: str) -> str:
        return claimed(state)

    async def prepare(self) -> None:
        """Find out now, not after a crash, whether the right to read in the consumer group is missing."""
        try:
            await self._look()
        except SinkUnavailable as error:
            account = self._broker.links.account
            if await check_unresolvable(account.host.partition(":")[0]):
                where = "`namespace`, or the connection string"
                raise SinkNotFound(f"{error}: the host {account.host} does not exist: look at {where}") from error
            raise

    async def _look(self) -> None:
        with self._in_our_words():
            self._targets = (await self._broker.read_hub()).partitions
            with suppress(FeedUnavailable):  # the group has as many readers as it may have: it can be read later
                await try_attach(self._broker.links, self._targets[0], self._consumer_group, self._timeout_s)

    async def open(self, claim: Claim) -> HubWriter:
        state = decoded(claim.state)
        with self._in_our_words():
            return await self._open(claim, state, await self._target(claim.partition, state))

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        """It reads all that the partition still has, which may take a long time."""
        with self._in_our_words():
            target = await self._target(partition, ProducerState())
            search, _ = await self._search(
                lease_of(pipeline, partition), None, target, Tail(behind=-1, is_binding=False)
            )
        return None if search.newest is None else Standing(search.later, search.newest.to)

    async def probe(self, pipeline: str, partition: str) -> None:
        with self._in_our_words():
            self._targets = (await self._broker.read_hub()).partitions

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except PublishError as error:
            raise translated(error) from error
        except FeedUnavailable as error:
            raise SinkUnavailable(str(error), retry_after_s=error.retry_after_s) from error
        except (FeedError, Fenced) as error:
            if isinstance(error, Fenced) and error.state is not None:
                raise
            raise SinkRejected(
                f"{error}. The sink reads the partition's end in the consumer group '{self._consumer_group}': give it one of"
                " its own (`consumer_group`), in which no receiver has an epoch"
            ) from error

    async def close(self) -> None:
        await self._broker.close()

    async def _open(self, claim: Claim, state: ProducerState, target: str) -> HubWriter:
        """Fence first, then read (R1)."""
        before = (await self._broker.read_extent(target)).last
        known = await self._groups.find_standing(claim, state, target)
        producer = await self._groups.attach(claim, state, target, known)
        try:
            return await self._begin(claim, state, target, known, before, producer)
        except BaseException:
            if producer is not None:
                await producer.close(CLOSED)
            raise

    async def _begin(
        self,
        claim: Claim,
        state: ProducerState,
        target: str,
        known: ProducerPosition,
        before: int,
        producer: PartitionProducer | None,
    ) -> HubWriter:
        """known, before: our group's numbers, and the partition's end before the attach or an older end."""
        for earlier in to_close(claim, state):
            await self._groups.close(target, earlier)
        lease, tail = lease_of(claim.pipeline, claim.partition), tail_of(claim, state, known, before)
        key = (lease, claim.generation, target)
        if tail.is_first:
            self._first.setdefault(key, tail.behind)
        elif key in self._first and not tail.is_binding:
            tail = replace(tail, behind=max(tail.behind, self._first[key]))
        search, end = await self._search(
            lease, claim.generation, target, tail, claim.report_progress, compare=claim.compare
        )
        self._first.pop(key, None)
        if search.later > claim.generation:
            raise generation_lost(claim, self._broker.name, search.later)
        return HubWriter(
            self._groups,
            claim,
            replace(
                state,
                group=group(claim, state),
                number=producer.numbers.number if producer and producer.numbers else known.number,
                tail=end,
                target=None if target == claim.partition else target,
            ),
            producer,
            target,
            position=newest(claim, search.newest.to if search.newest else None),
            tails=self._tails,
            tail_s=self._tail_s,
        )

    async def _target(self, partition: str, state: ProducerState) -> str:
        if (state.target or partition) not in self._targets:
            self._targets = (await self._broker.read_hub()).partitions
        target = target_of(partition, self._targets, state.target)
        if target is None:
            raise SinkRejected(
                f"{self._broker.name} has no partition '{state.target}', which lease '{partition}' publishes to: the hub"
                " was recreated with fewer. Reset the lease, and set the document's sinkState to an empty text"
            )
        return target

    async def _search(
        self,
        lease: str,
        generation: int | None,
        target: str,
        tail: Tail,
        report_progress: Callable[[], None] = lambda: None,
        compare: Compare = lambda a, b: 1,
    ) -> tuple[Search, int]:
        """Find the lease's newest marker after `tail.behind`, and the partition's end.

        After a failure, the next try continues from there.
        """
        key = (lease, generation, target)
        reading = self._unfinished.pop(key, None)
        if reading is None or not reading.covers(tail.behind):
            reading = TailReading(Search(lease, generation, compare), tail.behind, tail.behind)
        try:
            end = await self._tails.read(target, reading, is_binding=tail.is_binding, report_progress=report_progress)
        except BaseException:
            self._unfinished[key] = reading
            raise
        return reading.search, end
