"""A claim's way into a topic: transactions, one after the other; and what goes wrong, in a sink's words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from leasehold.pipeline.connectors.held import Held
from leasehold.pipeline.connectors.kafka.cluster import FORBIDDEN, NO_TOPIC, KafkaCluster
from leasehold.pipeline.connectors.kafka.kept import known
from leasehold.pipeline.connectors.kafka.reader import OPERATION
from leasehold.pipeline.connectors.kafka.transactions import Record, Transactions
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import (
    Ambiguous,
    Fenced,
    OutputRefused,
    PipelineError,
    SinkNotFound,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.publishing_writer import events_of, traced
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, SinkWriter, checked_until_cancelled


class KafkaWriter(SinkWriter):
    """If a cancelled write is not committed by then, it never will be, or the next `open` shows that it is."""

    def __init__(
        self,
        cluster: KafkaCluster,
        transactions: Transactions,
        claim: Claim,
        held: Held,
        group: bytes,
        refresh_s: float,
    ) -> None:
        self._cluster = cluster
        self._transactions = transactions
        self._claim = claim
        self._held = held
        self._group = group
        self._refresh_s = refresh_s
        self._committed_at = 0.0

    @property
    def position(self) -> str | None:
        return self._held.position

    @property
    def state(self) -> str:
        return known(self._claim.generation)

    @property
    def place(self) -> str | None:
        return str(self._held.target)

    async def commit_position(self) -> None:
        """As it is. Raises as `write` does."""
        await self._commit([], lambda held: held, lambda: None)

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._claim.compare(output.start, self.position) == 0, "a write starts where the one before ended"
        if self._held.has_ended:
            raise SinkRejected(f"lease '{self._claim.partition}' has ended, and nothing more is taken from it")
        records = await self._transactions.run(partial(records_of, output))
        permit.check()
        crash_point("before transaction")
        with checked_until_cancelled(permit) as check:
            await self._commit(records, lambda held: replace(held, position=output.to), check)
        crash_point("transaction committed")

    async def end(self, permit: Permit) -> None:
        permit.check()
        with checked_until_cancelled(permit) as check:
            await self._commit([], lambda held: replace(held, has_ended=True), check)

    async def follow(self) -> None:
        """Commit the position again, because the brokers forget what is old."""
        if asyncio.get_running_loop().time() - self._committed_at >= self._refresh_s:
            with suppress(PipelineError):
                await self.commit_position()

    async def close(self, reason: CloseReason) -> None:
        self._transactions.leave()

    async def _commit(self, records: list[Record], change: Callable[[Held], Held], check: Callable[[], None]) -> None:
        def commit() -> None:
            held = change(self._held)
            self._transactions.commit(records, held.target, held.encoded(), self._group, check)
            self._held = held

        try:
            await self._transactions.run(commit)
        except KafkaException as error:
            raise as_sink_error(self._cluster, error) from error
        self._committed_at = asyncio.get_running_loop().time()


def records_of(output: Output) -> list[Record]:
    """Raises SinkRejected, OutputRefused."""
    events = events_of(output.table, "a topic")
    if output.trace is not None:
        events = traced(events, output.trace.properties)
    return [_record(row) for row in events.to_pylist()]


def _record(row: dict[str, Any]) -> Record:
    operation = [] if row["operation"] is None else [(OPERATION, row["operation"])]
    return Record(row["key"], row["body"], [*(row["properties"] or ()), *operation])


FENCED = frozenset(
    (
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    )
)
MEANINGS: tuple[tuple[frozenset[int], type[PipelineError], str], ...] = (
    (FENCED, Fenced, "another owner has claimed the lease, or a batch took longer than `transaction_timeout_s`"),
    (FORBIDDEN, SinkRejected, "look at user, password and certificates, and at the rights that docs/kafka.md lists"),
    (NO_TOPIC, SinkNotFound, "create the topic, or correct `topic`"),
    (
        frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)),
        OutputRefused,
        "raise `max.message.bytes` of the topic, or produce smaller output",
    ),
    (
        frozenset((KafkaError.OFFSET_METADATA_TOO_LARGE,)),
        SinkRejected,
        "raise `offset.metadata.max.bytes` of the brokers: this feed has long positions",
    ),
    (
        frozenset((KafkaError.INVALID_TRANSACTION_TIMEOUT,)),
        SinkRejected,
        "lower `transaction_timeout_s` of the sink, or raise `transaction.max.timeout.ms` of the brokers",
    ),
)


def as_sink_error(cluster: KafkaCluster, error: KafkaException) -> PipelineError:
    """For a transaction that is not committed, and for requests."""
    found, text = error.args[0], cluster.described(error)
    for codes, meaning, remedy in MEANINGS:
        if found.code() in codes:
            return meaning(f"{text}: {remedy}")
    return SinkUnavailable(text) if found.retriable() or found.txn_requires_abort() else Ambiguous(text)
