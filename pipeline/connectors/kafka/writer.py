"""A claim's way into a topic: transactions, one after the other, on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from leasehold.pipeline.connectors.kafka.cluster import FENCED, FORBIDDEN, NO_TOPIC, KafkaCluster
from leasehold.pipeline.connectors.kafka.held import Held, known
from leasehold.pipeline.connectors.kafka.reader import OPERATION
from leasehold.pipeline.connectors.kafka.transactions import Record, TooLarge, Transactions
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

T = TypeVar("T")


class KafkaWriter(SinkWriter):
    """If a cancelled write is not committed by then, it never will be, or the next `open` shows that it is."""

    def __init__(
        self,
        cluster: KafkaCluster,
        transactions: Transactions,
        thread: ThreadPoolExecutor,
        claim: Claim,
        held: Held,
        *,
        refresh_s: float,
    ) -> None:
        self._cluster = cluster
        self._transactions = transactions
        self._thread = thread
        self._claim = claim
        self._held = held
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

    async def commit_claim(self) -> None:
        """Raises as `write` does."""
        await self._commit([], lambda held: held, lambda: None)

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._claim.compare(output.start, self.position) == 0, "a write starts where the one before ended"
        if self._held.has_ended:
            raise SinkRejected(f"lease '{self._claim.partition}' has ended, and nothing more is taken from it")
        records = await self._run(partial(records_of, output))
        permit.check()
        crash_point("before transaction")
        try:
            with checked_until_cancelled(permit) as check:
                await self._commit(records, lambda held: replace(held, position=output.to), check)
        except TooLarge as error:
            raise self._too_large(output, error) from error
        crash_point("transaction committed")

    async def end(self, permit: Permit) -> None:
        permit.check()
        with checked_until_cancelled(permit) as check:
            await self._commit([], lambda held: replace(held, has_ended=True), check)

    async def follow(self) -> None:
        """Commit the position again, because the brokers forget what is old."""
        if asyncio.get_running_loop().time() - self._committed_at >= self._refresh_s:
            with suppress(PipelineError):
                await self._commit([], lambda held: held, lambda: None)

    async def close(self, reason: CloseReason) -> None:
        self._transactions.leave(self._thread)

    async def _commit(self, records: list[Record], change: Callable[[Held], Held], check: Callable[[], None]) -> None:
        def commit() -> None:
            held = change(self._held)
            self._transactions.commit(records, held.target, held.encoded(), check)
            self._held = held

        try:
            await self._run(commit)
        except KafkaException as error:
            raise as_sink_error(self._cluster, error) from error
        self._committed_at = asyncio.get_running_loop().time()

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _too_large(self, output: Output, error: TooLarge) -> OutputRefused:
        names = output.table.column_names
        sequences = sorted(output.table["sequence"].to_pylist()) if "sequence" in names else ()
        return OutputRefused(
            f"an event has {error.size} bytes, which is more than the topic takes: raise its `max.message.bytes`, or produce"
            " smaller output",
            sequences=sequences[error.index : error.index + 1],
        )


def records_of(output: Output) -> list[Record]:
    """Raises SinkRejected, OutputRefused."""
    events = events_of(output.table, "a topic")
    if output.trace is not None:
        events = traced(events, output.trace.properties)
    return [_record(row) for row in events.to_pylist()]


def _record(row: dict[str, Any]) -> Record:
    operation = [] if row["operation"] is None else [(OPERATION, row["operation"])]
    return Record(row["key"], row["body"], [*(row["properties"] or ()), *operation])


def as_sink_error(cluster: KafkaCluster, error: KafkaException) -> PipelineError:
    """For a transaction that is not committed, and for requests."""
    found, text = error.args[0], cluster.described(error)
    code = found.code()
    if code in FENCED:
        return Fenced(f"{text}: another owner has claimed the lease")
    if code in FORBIDDEN:
        return SinkRejected(
            f"{text}: look at user, password and certificates, and at the rights that docs/kafka.md lists"
        )
    if code in NO_TOPIC:
        return SinkNotFound(f"{text}: create the topic, or correct `topic`")
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):  # only if the limit could not be read
        return OutputRefused(f"{text}: raise `max.message.bytes` of the topic, or produce smaller output")
    if code == KafkaError.OFFSET_METADATA_TOO_LARGE:
        return SinkRejected(f"{text}: raise `offset.metadata.max.bytes` of the brokers: this feed has long positions")
    if found.retriable() or found.txn_requires_abort():
        return SinkUnavailable(text)
    return Ambiguous(text)
