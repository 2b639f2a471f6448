"""The embedded log as a broker of idempotent producers: the same port as Event Hubs, on files of this machine.

A producer's line has a name of its own, next to those of the leases. It continues at its level: attaching again with
the last number, or with the one before the last batch, settles a lost answer.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

from leasehold.pipeline.connectors.log.partition_file import (
    BLOCK_SCHEMA,
    LogError,
    LogMissing,
    LogUncertain,
    OutOfOrder,
    Outranked,
    ProducerEnded,
    encoded,
)
from leasehold.pipeline.connectors.log.producer_state import LeaseProducer, Producer
from leasehold.pipeline.connectors.log.store import Log, PartitionLog
from leasehold.pipeline.producer import (
    AttachRequest,
    HubProperties,
    Outcome,
    OutgoingEvent,
    PartitionProperties,
    ProducerPosition,
    PublishError,
    Reason,
    number_after,
)
from leasehold.pipeline.producer.errors import refused
from leasehold.pipeline.producer.event import PreparedEvent

T = TypeVar("T")
BYTES_MAX = 1024 * 1024
EVENT_BYTES = 16
"""What an event takes in addition: the offsets of its columns."""
THREADS = 4


class LogBroker:
    """A log's directory. Implements leasehold.pipeline.producer.Broker; the first attach creates a partition."""

    def __init__(
        self, path: str | os.PathLike[str], *, busy_timeout_s: float = 5.0, rng: random.Random | None = None
    ) -> None:
        self._log = Log(path, busy_timeout_s=busy_timeout_s)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="log-broker")
        self._rng = rng or random.SystemRandom()

    @property
    def name(self) -> str:
        return f"log '{self._log.path}'"

    @property
    def hub(self) -> str:
        return str(self._log.path)

    namespace = None

    @property
    def envelope_bytes(self) -> int:
        return 0

    def prepared(self, event: OutgoingEvent) -> PreparedEvent:
        properties = list(event.properties.items())
        if not all(isinstance(value, str | None) for _, value in properties):
            raise ValueError("the properties of a log's events are texts: turn them into texts")
        size = EVENT_BYTES + len(event.body) + sum(len(name) + len(str(value)) for name, value in properties)
        return PreparedEvent((event.body, tuple(properties)), size)

    async def attach(self, partition: str | None, asked: AttachRequest | None, *, idempotent: bool) -> LogLink:
        if partition is None:
            raise refused(f"{self.name} does not route: give a partition", reason=Reason.GENERAL_ERROR)
        wished = asked or AttachRequest(level=None)

        def attach() -> LogLink:
            self._log.prepare()
            log = self._log.partition(partition, new=True)
            line = self._producer_of(log, wished) if idempotent else None
            return LogLink(self._threads, log, line)

        return await run_on_thread(self._threads, attach)

    def _producer_of(self, log: PartitionLog, asked: AttachRequest) -> LeaseProducer:
        """Raises PublishError."""
        group = self._rng.getrandbits(62) if asked.group is None else asked.group
        held = log.line(_lease(group))
        level = asked.level if asked.level is not None else held.level if held else 0
        if held is None or level > held.level:
            producer = Producer(lease=_lease(group), generation=0, series=0, level=level, group=group)
            return log.attach(producer, asked.number or 0)[0]
        if level < held.level:
            raise refused(
                f"{self.name}, partition '{log.name}': group {group} is at level {held.level}, not {level}",
                reason=Reason.PRODUCER_DISCONNECTED,
            )
        if asked.number in (None, held.number) or asked.number == _before_last(held):
            return held
        raise refused(
            f"{self.name}, partition '{log.name}': group {group} is at number {held.number}, not {asked.number}",
            reason=Reason.INVALID_CLIENT_STATE,
        )

    async def read_hub(self) -> HubProperties:
        return HubProperties(
            name=str(self._log.path), partitions=tuple(await run_on_thread(self._threads, self._log.partitions))
        )

    async def read_partition(self, partition: str) -> PartitionProperties:
        extent = await run_on_thread(self._threads, lambda: self._log.partition(partition).extent())
        return PartitionProperties(
            partition=partition, first=extent.first, last=extent.end - 1, is_empty=extent.first == extent.end
        )

    async def close(self) -> None:
        await run_on_thread(self._threads, self._log.close)
        self._threads.shutdown(wait=False)


class LogLink:
    """Implements leasehold.pipeline.producer.ProducerLink. It holds nothing that can go stale."""

    is_usable = True
    bytes_max = BYTES_MAX

    def __init__(self, threads: ThreadPoolExecutor, log: PartitionLog, line: LeaseProducer | None) -> None:
        self.numbers = ProducerPosition(group=line.group, level=line.level, number=line.number) if line else None
        self._threads = threads
        self._log = log
        self._producer = line

    async def send(
        self, payloads: Sequence[Any], after: ProducerPosition | None, key: str | None, sending: Callable[[], None]
    ) -> None:
        def send() -> None:
            table = _table(payloads, key)
            if self._producer is None or after is None:
                sending()
                self._log.append(table)
            else:
                self._log.publish(self._producer, number_after(after.number), encoded(table), None, sending)

        await run_on_thread(self._threads, send)

    async def close(self) -> None:
        """Files belong to the broker."""


def _table(payloads: Sequence[Any], key: str | None) -> pa.Table:
    columns = {
        "body": [body for body, _ in payloads],
        "properties": [properties for _, properties in payloads],
        "key": [key] * len(payloads),
    }
    return pa.table([columns.get(name, [None] * len(payloads)) for name in BLOCK_SCHEMA.names], BLOCK_SCHEMA)


def _lease(group: int) -> str:
    """A name that no lease has: theirs contain a slash that is not the first character."""
    return f"/producer/{group}"


def _before_last(line: LeaseProducer) -> int | None:
    return None if line.batch_number is None else number_after(line.batch_number, -1)


async def run_on_thread(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """The result of `call` on a thread. Raises PublishError."""
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, call)
    except LogError as error:
        raise _refusal(error) from error


def _refusal(error: LogError) -> PublishError:
    if isinstance(error, Outranked):
        return refused(str(error), reason=Reason.PRODUCER_DISCONNECTED)
    if isinstance(error, OutOfOrder):
        return refused(str(error), reason=Reason.INVALID_CLIENT_STATE)
    if isinstance(error, ProducerEnded):
        return refused(str(error), reason=Reason.GENERAL_ERROR)
    if isinstance(error, LogMissing):
        return refused(str(error), reason=Reason.RESOURCE_NOT_FOUND)
    outcome = Outcome.UNKNOWN if isinstance(error, LogUncertain) else Outcome.FAILED
    return refused(str(error), reason=Reason.SERVICE_COMMUNICATION_PROBLEM, is_transient=True, outcome=outcome)
