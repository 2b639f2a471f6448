"""One lease's way to a destination: takes output, sends requests meanwhile, and reports up to where all is acknowledged.

`RequestScheduler` decides what to send, and this module sends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pyarrow as pa

from leasehold.common.clock import Clock, LoopClock
from leasehold.pipeline.async_sink.json_rows import check_columns, json_row, sequence_of
from leasehold.pipeline.async_sink.rate_limiter import RateLimiting
from leasehold.pipeline.async_sink.request_entry import Convert, Destination, Failed, refused
from leasehold.pipeline.async_sink.request_scheduler import Request, RequestScheduler
from leasehold.pipeline.async_sink.request_writer import RequestWriter
from leasehold.pipeline.async_sink.stats import RequestStats
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import Ambiguous, SinkUnavailable
from leasehold.pipeline.imports import derived
from leasehold.pipeline.limits import AsyncLimits
from leasehold.pipeline.sink import Claim, CloseReason, Output, Sink
from leasehold.pipeline.values import VALUE_ERRORS


class AsyncWriter(RequestWriter[Request]):
    def __init__(
        self,
        destination: Destination,
        claim: Claim,
        *,
        convert: Convert,
        limits: AsyncLimits,
        clock: Clock,
        name: str,
        stats: RequestStats,
        limiter: RateLimiting | None = None,
        takes_whole: bool = False,
    ) -> None:
        self._desk = RequestScheduler(limits, claim.continuation, limiter=limiter, takes_whole=takes_whole)
        self._stats = stats
        stats.open(self._desk)
        super().__init__(claim, self._desk, clock=clock, name=name)
        self._destination = destination
        self._convert = convert
        self._limits = limits
        self._keys = IdempotencyKeys(claim.pipeline, claim.partition, None)

    async def close(self, reason: CloseReason) -> None:
        self._stats.close(self._desk)
        await super().close(reason)

    def _begin(self, output: Output) -> None:
        check_columns(output.table.schema, self._convert, self._name)
        self._keys = IdempotencyKeys(self._claim.pipeline, self._claim.partition, output.start)

    def _take(self, row: Mapping[str, Any], bytes: int, output: Output, now: float) -> None:
        key, sequence = self._keys.of(row), sequence_of(row)
        try:
            converted = self._convert(row, key)
        except VALUE_ERRORS as error:
            raise refused(f"{self._name} cannot take row {key}, which {error}", sequence) from error
        if converted is not None:
            self._desk.take(converted, key, now, sequence, output.trace)

    async def _request(self, request: Request) -> None:
        crash_point("before submit")
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                answer = await self._destination.submit(request.entries)
            crash_point("submitted")
        except SinkUnavailable as error:
            self._failed(request, str(error), error.retry_after_s)
        except Ambiguous as error:
            self._failed(request, str(error), error.retry_after_s, may_land=True)
        except TimeoutError:
            self._failed(request, f"no answer within {self._limits.request_timeout_s:g} s", may_land=True)
        except OSError as error:
            why = f"{type(error).__name__}: {error.strerror or 'no answer'}"
            self._failed(request, why, may_land=not isinstance(error, ConnectionRefusedError))
        else:
            self._answered(request, answer if isinstance(answer, Failed) else Failed(answer))

    def _answered(self, request: Request, failed: Failed) -> None:
        self._desk.answered(request, failed, self._clock.monotonic(), jitter=self._jitter())
        if len(failed.entries) < len(request.entries):
            self._report_recovered()
            self._changed.set()
        else:
            self._report_failing("every entry failed")

    def _failed(
        self, request: Request, why: str, retry_after_s: float | None = None, *, may_land: bool = False
    ) -> None:
        self._report_failing(why)
        now = self._clock.monotonic()
        self._desk.failed(request, now, retry_after_s=retry_after_s, jitter=self._jitter(), may_land=may_land)

    def _jitter(self) -> float:
        """0 to 1, different for each lease and failure: computed without a random generator, so that a run can be repeated."""
        claim = self._claim
        drawn = f"{claim.partition} {claim.owner} {claim.epoch} {self._desk.limiter.failures}"
        return 1 - crc32(drawn.encode()) / 2**32


class IdempotencyKeys:
    """The idempotency keys of one batch's rows, in order: (pipeline, partition, position, index). Pure.

    A repeated row has the same key, even if batches are cut elsewhere by then. So its position is its event's `sequence`, if the
    output has that column, and its index counts the rows of one sequence. Rows without one (of an aggregate, say) depend on how
    batches are cut: their position is where the batch starts, and their index counts the batch's rows.
    """

    def __init__(self, pipeline: str, partition: str, start: str | None) -> None:
        self._prefix = f"{_encoded(pipeline)}/{_encoded(partition)}/"
        self._start = _encoded(start or "")
        self._rows: dict[str, int] = {}

    def of(self, row: Mapping[str, Any]) -> str:
        sequence = row.get("sequence")
        position = self._start if sequence is None else _encoded(str(sequence))
        index = self._rows.get(position, 0)
        self._rows[position] = index + 1
        return f"{self._prefix}{position}/{index}"


def _encoded(part: str) -> str:
    return part if part.isdecimal() else quote(part, safe="")


# A sink from one method: `submit(entries) -> failed entries` gets batches, retries, back-pressure and positions.
#
#     class Rates(Destination):
#         async def submit(self, entries):
#             answer = await post([entry.value for entry in entries])
#             return [entry for entry, taken in zip(entries, answer) if not taken]
#
#     def sink(): return AsyncSink(Rates(), identity="rates")
#
# After Flink's FLIP-171. Rows are converted once; requests that fail are sent again, in order, at the rate that the destination
# takes. Everything is kept only in memory: what is not acknowledged when a host dies is read again from the feed. So every row
# arrives at least once. After a crash, at most `buffered_entries_max` rows and two batches arrive again, under the same keys
# (docs/sinks.md).


class AsyncSink(Sink):
    """identity: where entries go, without secrets. convert: what becomes of a row, by default bytes of JSON.
    takes_whole: the destination takes the entries of a request in their order, all of them or none. Then entries with the same
    order key may share a request; otherwise it has one of them. endpoint: for telemetry. limiter: the rate at which each
    partition begins, by default additive increase and multiplicative decrease.

    Raises ValueError if the limits contradict each other.
    """

    holds_position = False

    def __init__(
        self,
        destination: Destination,
        *,
        identity: str,
        convert: Convert | None = None,
        limits: AsyncLimits | None = None,
        clock: Clock | None = None,
        takes_whole: bool = False,
        endpoint: Endpoint | None = None,
        limiter: RateLimiting | None = None,
    ) -> None:
        self._destination = derived(destination, Destination)
        self._destination_endpoint = endpoint
        self._identity = identity
        self._convert = convert or json_row()
        self._limits = limits or AsyncLimits()
        self._clock = clock or LoopClock()
        self._takes_whole = takes_whole
        self._limiter = limiter
        self._stats = RequestStats()
        if problems := list(self._limits.problems()):
            raise ValueError("; ".join(problems))

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def endpoint(self) -> Endpoint:
        return super().endpoint if self._destination_endpoint is None else self._destination_endpoint

    @property
    def request_stats(self) -> RequestStats:
        return self._stats

    def claimed(self, state: str) -> str:
        return state

    async def prepare(self) -> None:
        await self._destination.prepare()

    @property
    def _name(self) -> str:
        return f"destination '{self._identity}'"

    async def check_columns(self, columns: pa.Schema) -> None:
        check_columns(columns, self._convert, self._name)

    async def open(self, claim: Claim) -> AsyncWriter:
        return AsyncWriter(
            self._destination,
            claim,
            convert=self._convert,
            limits=self._limits,
            clock=self._clock,
            name=self._name,
            takes_whole=self._takes_whole,
            limiter=self._limiter,
            stats=self._stats,
        )

    async def close(self) -> None:
        await self._destination.close()
