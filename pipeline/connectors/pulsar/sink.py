"""A Pulsar topic as a sink, exactly once, without transactions: a batch is one entry, with the position in a marker.

What carries the guarantee:

- A claim creates a producer that shuts out all others of its partition (ExclusiveWithFencing). Only then does it read the
  partition to its end: the lease's newest marker is the position. So a partition of the topic takes the output of only one lease.
- Each batch has a number, the sequence id of its entry. A broker with deduplication stores no number twice, even if the client
  sends the batch again after a lost connection.
- All producers of a lease have one name. The broker answers a new producer with the last number of that name, and the claim
  reads until it has seen that number. If the broker has forgotten the name, the claim relies on what it read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from threading import Event
from typing import TypeVar

import pulsar

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess, PulsarBroker
from leasehold.pipeline.connectors.pulsar.producer import Compression, ExclusiveProducer
from leasehold.pipeline.connectors.pulsar.tail import BEGINNING, SettledEntry, TailSearch, tail_of
from leasehold.pipeline.connectors.pulsar.writer import PulsarWriter, as_sink_error
from leasehold.pipeline.connectors.targets import target_of
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import Fenced, SinkNotFound, SinkRejected, SinkUnavailable
from leasehold.pipeline.markers import lease_of
from leasehold.pipeline.publishing_writer import newest
from leasehold.pipeline.sink import Claim, Sink

T = TypeVar("T")
MESSAGE_BYTES_MAX = 5 * 1024 * 1024
"""The largest message that brokers accept by default."""


class PulsarOutputSink(Sink):
    """topic: `TENANT/NAMESPACE/NAME`. A source partition goes to the topic's partition of the same name. If there is none, one
    is chosen once. No other source partition may go there.

    Output columns: as for the log. message_bytes_max: the limit of a batch, like the brokers' `maxMessageSize`.
    """

    holds_position = True

    def __init__(
        self,
        access: PulsarAccess,
        topic: str,
        *,
        compression: Compression = "none",
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        timeout_s: float = 20.0,
    ) -> None:
        self._broker = PulsarBroker(access, topic, timeout_s=timeout_s)
        self._compression = compression
        self._message_bytes_max = message_bytes_max
        self._topics: dict[str, str] = {}

    @property
    def identity(self) -> str:
        return f"pulsar:{self._broker.topic}"

    @property
    def endpoint(self) -> Endpoint:
        return self._broker.access.endpoint(self._broker.topic)

    def claimed(self, state: str) -> str:
        """The topic holds everything; the lease keeps where to start reading the topic's end."""
        return state

    async def prepare(self) -> None:
        try:
            self._topics = await self._broker.find_partitions()
        except pulsar.PulsarException as error:
            translated = as_sink_error(self._broker.topic, error)
            if isinstance(translated, SinkUnavailable) and await self._broker.access.are_nowhere():
                raise SinkNotFound(
                    f"Pulsar at {self._broker.access.servers}: no such host: look at `servers`"
                ) from error
            raise translated from error

    async def open(self, claim: Claim) -> PulsarWriter:
        before = tail_of(claim.state)
        target = await self._target(claim.partition, None if before is None else before.target)
        lease, has_left = lease_of(claim.pipeline, claim.partition), Event()
        producer = ExclusiveProducer(self._broker, self._topics[target], lease, self._compression)
        search = partial(
            TailSearch,
            self._broker,
            producer.topic,
            lease,
            before,
            generation=claim.generation,
            compare=claim.compare,
            report_progress=partial(asyncio.get_running_loop().call_soon_threadsafe, claim.report_progress),
        )
        try:
            known, found, number = await self._asked(
                producer.run(lambda: self._claim(claim, producer, search(), has_left))
            )
        except BaseException:
            has_left.set()
            producer.leave()
            raise
        marker = found.markers.newest
        return PulsarWriter(
            producer,
            claim,
            newest(claim, None if marker is None else marker.to),
            target=target,
            tail=SettledEntry(
                claim.generation, number, found.end or (BEGINNING if before is None else before.place), target
            ),
            number=max(0, number),  # the client takes 0 for no number
            is_numbered=known >= 0,
            message_bytes_max=self._message_bytes_max,
        )

    def _claim(
        self, claim: Claim, producer: ExclusiveProducer, search: TailSearch, has_left: Event
    ) -> tuple[int, TailSearch, int]:
        """An owner that is already known to be late must not fence the newer one, nor may a claim whose caller has left.

        Returns the number that the broker knows, what was found, and the last number of the lease.
        """
        try:
            search.read()
            search.admit(claim)
            if has_left.is_set():
                raise SinkUnavailable(f"topic '{producer.topic}': the claim was given up")
            known = producer.attach(fences=True)
            crash_point("producer attached")
            return known, search, search.read_up_to(known, claim)
        finally:
            search.close()

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        """It reads all that the partition still has, which may take a long time."""
        topic = self._topics[await self._target(partition, None)]

        def look() -> Standing | None:
            search = TailSearch(self._broker, topic, lease_of(pipeline, partition), None, generation=None)
            try:
                search.read()
            finally:
                search.close()
            found = search.markers
            return None if found.newest is None else Standing(found.later, found.newest.to)

        return await self._asked(self._broker.run(look))

    async def probe(self, pipeline: str, partition: str) -> None:
        await self._asked(self._broker.find_partitions())

    async def close(self) -> None:
        await self._broker.close()

    async def _target(self, partition: str, pinned: str | None) -> str:
        if (pinned or partition) not in self._topics:
            self._topics = await self._asked(self._broker.find_partitions())
        target = target_of(partition, list(self._topics), pinned)
        if target is None:
            raise SinkRejected(
                f"topic '{self._broker.topic}' has output of lease '{partition}' in partition {pinned}, and has"
                f" {len(self._topics)} partitions now: add partitions"
            )
        return target

    async def _asked(self, question: Awaitable[T]) -> T:
        try:
            return await question
        except pulsar.PulsarException as error:
            translated = as_sink_error(self._broker.topic, error)
            if isinstance(translated, Fenced):  # by a claim at the same moment
                raise SinkUnavailable(str(translated)) from error
            raise translated from error
