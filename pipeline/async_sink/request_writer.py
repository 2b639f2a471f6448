"""A writer that takes output, and delivers it in the background while later output is taken.

A scheduler, which is pure, decides what is due. One task starts what is due, and one for each request waits for its outcome.
`write` returns once the output is taken, and waits while there is no room. After the first fatal error no request becomes due,
and `write`, `flush` and `wait_for_progress` raise it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from leasehold.common.clock import Clock
from leasehold.pipeline.async_sink.json_rows import row_slices
from leasehold.pipeline.async_sink.scheduler import Scheduler
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import NotTrusted, PipelineError, SinkRejected
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, SinkWriter

_log = logging.getLogger(__name__)
SILENT_S_MAX = 5.0
"""A destination that accepts nothing for this long is reported."""
R = TypeVar("R")


class RequestWriter(SinkWriter, Generic[R]):
    state: str = ""

    def __init__(self, claim: Claim, scheduler: Scheduler[R], *, clock: Clock, name: str) -> None:
        self.state = claim.state
        self._claim = claim
        self._scheduler = scheduler
        self._clock = clock
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self._permit: Permit | None = None
        self._failure: BaseException | None = None
        self._failing_since: float | None = None
        self._is_reported = self._is_closed = False
        self._wake, self._changed = asyncio.Event(), asyncio.Event()

    @abstractmethod
    def _begin(self, output: Output) -> None:
        """Rows of this output follow. Raises SinkRejected, OutputRefused."""

    @abstractmethod
    def _take(self, row: Mapping[str, Any], bytes: int, output: Output, now: float) -> None:
        """bytes: the average size of the output's rows. Raises SinkRejected, OutputRefused."""

    @abstractmethod
    async def _request(self, request: R) -> None:
        """Carry out the request, and note its outcome. What this raises is fatal."""

    @property
    def position(self) -> str | None:
        return self._scheduler.position

    @property
    def acknowledged(self) -> int:
        return self._scheduler.acknowledged

    async def write(self, output: Output, permit: Permit) -> None:
        """Takes all of the output. If this is cancelled partway, the writer cannot be used again."""
        self._raise_failure()
        permit.check()
        self._send_with(permit)
        self._begin(output)
        row_bytes = output.table.nbytes // max(1, output.table.num_rows)
        for rows in row_slices(output.table, self._name):
            now = self._clock.monotonic()
            for row in rows:
                if not self._scheduler.has_room:
                    await self._room()
                    now = self._clock.monotonic()
                self._take(row, row_bytes, output, now)
            self._wake.set()
            await asyncio.sleep(0)
        self._scheduler.close(output.to)
        self._wake.set()

    async def wait_for_progress(self) -> None:
        """Returns once something was acknowledged since the last call. Raises what went wrong."""
        await self._changed.wait()
        self._changed.clear()
        self._raise_failure()

    async def flush(self) -> None:
        """Sends what was taken without waiting for more, and returns once all of it is acknowledged."""
        crash_point("before flush")
        self._scheduler.is_hurried = True
        self._wake.set()
        try:
            self._raise_failure()
            while not self._scheduler.is_settled:
                await self.wait_for_progress()
        finally:
            self._scheduler.is_hurried = False
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
        while not self._scheduler.has_room:
            self._wake.set()
            await self.wait_for_progress()

    def _send_with(self, permit: Permit) -> None:
        if self._permit is None:
            self._start(self._send(), "send")
        self._permit = permit

    async def _send(self) -> None:
        """Start whatever is due, each request as a task of its own, until the writer is closed or has failed."""
        while self._failure is None:
            self._wake.clear()
            due_in_s = self._scheduler.due_in_s(self._clock.monotonic())
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
        self._start(self._requests(self._scheduler.next(self._clock.monotonic())), "request")

    async def _requests(self, first: R) -> None:
        """Carry out one request, and at once each next one that is due after it: a destination that waits for us is slower."""
        assert self._permit is not None, "sending begins with the first write"
        request: R | None = first
        await self._permit.wait_until_granted()  # again: the process may have been stopped before this task began
        while request is not None:
            await self._request(request)
            request = self._due()
        self._wake.set()

    def _due(self) -> R | None:
        """The request to send now, if it may be sent without waiting for permission."""
        assert self._permit is not None, "sending begins with the first write"
        now = self._clock.monotonic()
        due_in_s = self._scheduler.due_in_s(now)
        if self._failure is not None or due_in_s is None or due_in_s > 0:
            return None
        try:
            self._permit.check()
        except NotTrusted:
            return None
        return self._scheduler.next(now)

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
