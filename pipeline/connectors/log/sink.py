"""The embedded log as a sink, by Protocol F (pipeline/publishing_writer.py).

A batch is one atomic append. Because the log keeps batches whole, a batch's marker is stored once, with the batch. The newest
marker of each lease is kept for good, so that a position outlives the retention of the events.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.log.partition_file import (
    LogError,
    LogMissing,
    LogUnavailable,
    LogUncertain,
    OutOfOrder,
    Outranked,
    ProducerEnded,
    encoded,
)
from leasehold.pipeline.connectors.log.producer_state import LeaseProducer, Producer
from leasehold.pipeline.connectors.log.store import Log, PartitionLog, Retention
from leasehold.pipeline.connectors.network import is_of_path
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.endpoint import Endpoint, endpoint_of
from leasehold.pipeline.errors import Fenced, OutputTooLarge, PipelineError, SinkRejected, SinkUnavailable
from leasehold.pipeline.markers import lease_of
from leasehold.pipeline.producer import ProducerState, claimed, decoded, group_of, number_after
from leasehold.pipeline.publishing_writer import (
    PublishingWriter,
    events_of,
    generation_lost,
    marker_of,
    newest,
    outranked,
    published,
    traced,
)
from leasehold.pipeline.sink import (
    Claim,
    CloseReason,
    Output,
    Permit,
    Sink,
    checked_until_cancelled,
    settle,
    to_write_again,
)

T = TypeVar("T")
WRITING_THREADS = 4


class LogOutputSink(Sink):
    """One source partition goes to the log partition of the same name.

    Output columns: `body` (STRING or BINARY); `key`, `operation` (STRING) and `properties` (MAP<STRING, STRING>) if wanted.
    Rows are sorted by `sequence` if that column exists. retention_s, retention_bytes: what each partition keeps; None for all.
    batch_bytes_max: the largest output of one batch, uncompressed. `Permit.check` is called on a thread too.
    """

    holds_position = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention_s: float | None = None,
        retention_bytes: int | None = None,
        batch_bytes_max: int = 64 * 1024 * 1024,
        busy_timeout_s: float = 5.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        retention = Retention(age_s=retention_s, bytes_max=retention_bytes)
        self._log = Log(path, retention=retention, busy_timeout_s=busy_timeout_s, now=now)
        self._batch_bytes_max = batch_bytes_max
        self._threads = ThreadPoolExecutor(WRITING_THREADS, thread_name_prefix="log-sink")

    @property
    def identity(self) -> str:
        return f"log:{self._log.path}"

    @property
    def endpoint(self) -> Endpoint:
        return endpoint_of(self.identity, "messaging")

    def claimed(self, state: str) -> str:
        return claimed(state)

    async def prepare(self) -> None:
        try:
            await _on_thread(self._threads, self._log.prepare)
        except SinkUnavailable as error:
            if error.__cause__ is not None and is_of_path(error.__cause__.__cause__):
                raise SinkRejected(str(error)) from error
            raise

    async def open(self, claim: Claim) -> LogWriter:
        state = decoded(claim.state)
        producer = Producer(
            lease=lease_of(claim.pipeline, claim.partition),
            generation=claim.generation,
            series=state.series,
            level=state.level,
            group=group_of(claim.pipeline, claim.partition, claim.generation, state.series),
        )
        log, line, end = await _on_thread(self._threads, lambda: self._attached(claim, producer, state))
        if state.group == producer.group and state.tail >= end:
            raise SinkRejected(
                f"log '{self._log.path}', partition '{claim.partition}' ends at {end - 1}, and this lease has seen it end at"
                f" {state.tail}: it was deleted or restored, and output is lost. Restore the log, or {to_write_again(claim)}"
            )
        state = replace(state, group=producer.group, number=line.number, tail=end - 1)
        return LogWriter(
            self._threads,
            log,
            producer,
            state,
            claim,
            position=newest(claim, line.position),
            batch_bytes_max=self._batch_bytes_max,
        )

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        line = await _on_thread(self._threads, lambda: self._producer_of(partition, lease_of(pipeline, partition)))
        return None if line is None else Standing(line.generation, line.position)

    async def close(self) -> None:
        await _on_thread(self._threads, self._log.close)
        self._threads.shutdown(wait=False)

    def _producer_of(self, partition: str, lease: str) -> LeaseProducer | None:
        try:
            return self._log.partition(partition).line(lease)
        except LogMissing:
            return None

    def _attached(
        self, claim: Claim, producer: Producer, state: ProducerState
    ) -> tuple[PartitionLog, LeaseProducer, int]:
        log = self._log.partition(claim.partition, new=True)
        try:
            return log, *log.attach(producer)
        except Outranked as error:
            raise _refusal(error, claim, state) from error


class LogWriter(PublishingWriter):
    """If a cancelled write is not yet committed, it never will be; if it is, the next `open` shows it."""

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        log: PartitionLog,
        producer: Producer,
        state: ProducerState,
        claim: Claim,
        *,
        position: str | None,
        batch_bytes_max: int,
    ) -> None:
        super().__init__(state, position=position, compare=claim.compare)
        self._threads = threads
        self._log = log
        self._producer = producer
        self._claim = claim
        self._batch_bytes_max = batch_bytes_max

    async def _publish(self, output: Output, permit: Permit) -> ProducerState:
        return await self._send(permit, lambda check: self._published(output, check))

    async def end(self, permit: Permit) -> None:
        permit.check()
        await self._send(permit, lambda check: self._log.end(self._producer, check))

    async def close(self, reason: CloseReason) -> None:
        """Nothing is held: files belong to the sink."""

    async def _send(self, permit: Permit, send: Callable[[Callable[[], None]], T]) -> T:
        """Run `send` on a thread. It has to call its argument right before it commits."""
        with checked_until_cancelled(permit) as check:
            return await _on_thread(self._threads, lambda: self._send_translated(send, check))

    def _send_translated(self, send: Callable[[Callable[[], None]], T], check: Callable[[], None]) -> T:
        try:
            return send(check)
        except Outranked as error:
            raise _refusal(error, self._claim, self._state) from error
        except OutOfOrder as error:
            raise Fenced(str(error)) from error
        except ProducerEnded as error:
            raise SinkRejected(str(error)) from error

    def _published(self, output: Output, check: Callable[[], None]) -> ProducerState:
        events = events_of(output.table, "a log")
        if events.nbytes > self._batch_bytes_max:
            raise OutputTooLarge(
                f"the output of {output.events} events takes {events.nbytes} bytes, and one append takes at most"
                f" {self._batch_bytes_max}: lower the pipeline's batch_events_max or batch_bytes_max, or produce less output"
                " per event"
            )
        batch = encoded(events if output.trace is None else traced(events, output.trace.properties))
        marker = marker_of(self._claim, self._producer.level, output, batch.events)
        number = number_after(self._state.number)

        def append() -> int:
            crash_point("before append")
            first = self._log.publish(self._producer, number, batch, marker, check)
            crash_point("appended")
            return first

        first = settle(append, failed=LogUnavailable, uncertain=LogUncertain)
        return published(self._state, batch.events, first + batch.events - 1)


async def _on_thread(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """Make a call on a thread. Raises SinkUnavailable if it may be tried again, also for an attach or end of unknown outcome."""
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, call)
    except LogError as error:
        raise SinkUnavailable(str(error)) from error


def _refusal(error: Outranked, claim: Claim, state: ProducerState) -> PipelineError:
    """Fenced, with the state to claim from; or the error of a lost generation, which no later claim can win back."""
    if error.held is None:
        return Fenced(str(error))
    generation, *held = error.held
    if generation > claim.generation and held < [state.series, state.level]:
        return generation_lost(claim, "the log", generation)
    return outranked(str(error), state, error.held[1:])
