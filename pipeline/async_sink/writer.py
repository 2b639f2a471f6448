"""One lease's way to a destination: takes output, sends requests meanwhile, and reports how far all is acknowledged.

`RequestScheduler` decides what to send, and this module sends it. `write` returns once the output is taken, and waits while there
is no room. One task sends what is due, and one for each request waits for its answer. The first fatal error ends them all, and
is raised by whichever method is called then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote
from zlib import crc32

from leasehold.common.clock import Clock, LoopClock
from pipeline.async_sink.request_entry import (
    Convert,
    Destination,
    Failed,
    json_row,
    refused,
    row_slices,
)
from pipeline.async_sink.request_scheduler import Request, RequestScheduler
from pipeline.crash_point import crash_point
from pipeline.errors import Ambiguous, NotTrusted, PipelineError, SinkRejected, SinkUnavailable
from pipeline.imports import adopt
from pipeline.limits import AsyncLimits
from pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter
from pipeline.tracing import Endpoint, TraceContext

_log = logging.getLogger(__name__)
SILENT_S_MAX = 5.0
"""After this time without acceptance, a destination is reported."""


class AsyncWriter(SinkWriter):
    state: str = ""

    def __init__(
        self,
        destination: Destination,
        claim: Claim,
        *,
        convert: Convert,
        limits: AsyncLimits,
        clock: Clock,
        name: str,
        takes_whole: bool = False,
    ) -> None:
        self.state = claim.state
        self._destination = destination
        self._claim = claim
        self._convert = convert
        self._limits = limits
        self._clock = clock
        self._name = name
        self._desk = RequestScheduler(limits, claim.continuation, takes_whole=takes_whole)
        self._tasks: set[asyncio.Task[None]] = set()
        self._permit: Permit | None = None
        self._failure: BaseException | None = None
        self._failing_since: float | None = None
        self._is_reported = self._is_closed = False
        self._wake, self._changed = asyncio.Event(), asyncio.Event()

    @property
    def position(self) -> str | None:
        return self._desk.position

    @property
    def acknowledged(self) -> int:
        return self._desk.acknowledged

    async def write(self, output: Output, permit: Permit) -> None:
        """Takes all of it. If cancelled partway, this writer cannot be used again."""
        self._raise_failure()
        permit.check()
        self._send_with(permit)
        keys = IdempotencyKeys(self._claim.pipeline, self._claim.partition, output.start)
        for rows in row_slices(output.table):
            now = self._clock.monotonic()
            for row in rows:
                if not self._desk.has_room:
                    await self._room()
                    now = self._clock.monotonic()
                self._take(row, keys.of(row), now, output.trace)
            self._wake.set()
            await asyncio.sleep(0)
        self._desk.close(output.to)
        self._wake.set()

    async def wait_for_progress(self) -> None:
        """Returns once something was acknowledged since the last call. Raises what went wrong."""
        await self._changed.wait()
        self._changed.clear()
        self._raise_failure()

    async def flush(self) -> None:
        """Sends what is there without waiting for more, and returns once all is acknowledged."""
        crash_point("before flush")
        self._desk.is_hurried = True
        self._wake.set()
        try:
            self._raise_failure()
            while not self._desk.is_settled:
                await self.wait_for_progress()
        finally:
            self._desk.is_hurried = False
        crash_point("flushed")

    async def end(self, permit: Permit) -> None:
        """Nothing to do: the caller has flushed, and a destination knows no partitions."""

    async def close(self, reason: CloseReason) -> None:
        """What is not acknowledged now will be read again."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _room(self) -> None:
        while not self._desk.has_room:
            self._wake.set()
            await self.wait_for_progress()

    def _take(self, row: Mapping[str, Any], key: str, now: float, trace: TraceContext | None) -> None:
        found = row.get("sequence")
        sequence = found if isinstance(found, int) else None
        try:
            converted = self._convert(row, key)
        except ValueError as error:
            raise refused(f"{self._name} cannot take row {key}, which {error}", sequence) from error
        if converted is not None:
            self._desk.take(converted, key, now, sequence, trace)

    def _send_with(self, permit: Permit) -> None:
        if self._permit is None:
            self._start(self._send(), "send")
        self._permit = permit

    async def _send(self) -> None:
        """Whatever is due, each request as a task of its own, for as long as this writer lives."""
        while self._failure is None:
            self._wake.clear()
            due_in_s = self._desk.due_in_s(self._clock.monotonic())
            if due_in_s is not None and due_in_s <= 0:
                await self._launch()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(due_in_s):
                        await self._wake.wait()

    async def _launch(self) -> None:
        """Wait for permission to send. After a wait, compute again what is due."""
        assert self._permit is not None, "sending begins with the first write"
        try:
            self._permit.check()
        except NotTrusted:
            await self._permit.wait_until_granted()
            return
        self._start(self._requests(self._desk.next(self._clock.monotonic())), "request")

    async def _requests(self, first: Request) -> None:
        """One, and at once the next that its answer has made due: a destination that waits for us is a slower one."""
        assert self._permit is not None, "sending begins with the first write"
        request: Request | None = first
        await self._permit.wait_until_granted()  # again: the process may have been stopped until this task began
        while request is not None:
            await self._request(request)
            request = self._due()
        self._wake.set()

    def _due(self) -> Request | None:
        """The request to send now, if it may be sent without waiting for permission."""
        assert self._permit is not None, "sending begins with the first write"
        now = self._clock.monotonic()
        due_in_s = self._desk.due_in_s(now)
        if self._failure is not None or due_in_s is None or due_in_s > 0:
            return None
        try:
            self._permit.check()
        except NotTrusted:
            return None
        return self._desk.next(now)

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
        """0 to 1, another one for each lease and failure: drawn without a generator, so that a run can be repeated."""
        claim = self._claim
        drawn = f"{claim.partition} {claim.owner} {claim.epoch} {self._desk.limiter.failures}"
        return 1 - crc32(drawn.encode()) / 2**32

    def _report_failing(self, why: str) -> None:
        """Reports an outage while waiting for its end. An occasional throttled request is not reported."""
        now = self._clock.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if not self._is_reported and now - self._failing_since >= SILENT_S_MAX:
            self._is_reported = True
            text = "%s accepts nothing %s; it is tried again until it does: %s"
            _log.warning(text, self._name, self._subject, why, extra=self._fields)

    def _report_recovered(self) -> None:
        if self._is_reported:
            _log.warning("%s accepts entries again %s", self._name, self._subject, extra=self._fields)
        self._failing_since, self._is_reported = None, False

    @property
    def _fields(self) -> dict[str, object]:
        claim = self._claim
        return {"pipeline": claim.pipeline, "partition": claim.partition, "epoch": claim.epoch}

    @property
    def _subject(self) -> str:
        return f"for partition '{self._claim.partition}' of pipeline '{self._claim.pipeline}'"

    def _start(self, work: Coroutine[Any, Any, None], doing: str) -> None:
        task = asyncio.create_task(work, name=f"{doing} {self._claim.partition}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._is_closed:
            return
        error = asyncio.CancelledError("by something that it called") if task.cancelled() else task.exception()
        if error is not None and self._failure is None:
            self._failure = error if isinstance(error, PipelineError) else self._unexpected(error)
            self._changed.set()
            self._wake.set()

    def _unexpected(self, error: BaseException) -> SinkRejected:
        wrapped = SinkRejected(
            f"{self._name} failed unexpectedly for partition '{self._claim.partition}': {type(error).__name__}: {error}"
        )
        wrapped.__cause__ = error
        return wrapped

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._changed.set()  # for the next caller
            raise self._failure


class IdempotencyKeys:
    """The idempotency keys of one batch's rows, in order: (pipeline, partition, position, index). Pure.

    A repeated row has the same key, though batches may be cut elsewhere then. So its position is its event's `sequence`,
    if the output has that column, and its index counts the rows of one sequence. Rows without one (of an aggregate, say) depend
    on how batches are cut: their position is where the batch starts, and their index counts the batch's rows.
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


# A sink of one method: `submit(entries) -> failed entries` gets batches, retries, back-pressure and positions.
#
#     class Rates(Destination):
#         async def submit(self, entries):
#             answer = await post([entry.value for entry in entries])
#             return [entry for entry, taken in zip(entries, answer) if not taken]
#
#     def sink(): return AsyncSink(Rates(), identity="rates")
#
# After Flink's FLIP-171. Rows are converted once; requests that fail are sent again, in order, at the rate that the destination
# takes. Nothing is kept but in memory: what is not acknowledged when a host dies is read again from the feed. So every row
# comes at least once, and after a crash at most `buffered_entries_max` and two batches of them again, under the same keys
# (docs/sinks.md).


class AsyncSink(Sink):
    """identity: where entries go, without secrets. convert: what becomes of a row, by default bytes of JSON.
    takes_whole: the destination takes the entries of a request in their order, all of them or none. Then entries with the same
    order key share requests; without it, a request has one of them. endpoint: for telemetry.

    Raises ValueError where the limits contradict each other.
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
    ) -> None:
        self._destination = adopt(destination, Destination)
        self._destination_endpoint = endpoint
        self._identity = identity
        self._convert = convert or json_row()
        self._limits = limits or AsyncLimits()
        self._clock = clock or LoopClock()
        self._takes_whole = takes_whole
        if problems := list(self._limits.problems()):
            raise ValueError("; ".join(problems))

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def endpoint(self) -> Endpoint:
        return super().endpoint if self._destination_endpoint is None else self._destination_endpoint

    def claimed(self, state: str) -> str:
        return state

    async def prepare(self) -> None:
        await self._destination.prepare()

    async def open(self, claim: Claim) -> AsyncWriter:
        return AsyncWriter(
            self._destination,
            claim,
            convert=self._convert,
            limits=self._limits,
            clock=self._clock,
            name=f"destination '{self._identity}'",
            takes_whole=self._takes_whole,
        )

    async def close(self) -> None:
        await self._destination.close()
