"""A handler of the user's own as the sink: an observer, as in change feed processors. See `observers`.

    class Printing:
        async def open(self, context): ...                    # the lease was taken
        async def process(self, context, table): ...          # a batch; it counts as processed once this returns
        async def close(self, context, reason): ...           # the lease is released: shutdown, lost, stolen, gone or failed

There is one observer for each lease, and its methods are called one at a time; `close` follows every `open` that returned.
Batches are delivered at least once: after a crash or a stolen lease, the last one is repeated, with the same (partition,
position). For a batch without output, `process` is not called.

Methods may be plain functions. They run in a thread that belongs to the handler (always the same one), so they may block. What
an `async def` method awaits is cancelled when the lease is lost. A plain method cannot be cancelled: it runs to its end, at the
same time as the next owner's, and `close` waits for it. If the host does not wait that long, a plain `close` is still called in
its turn, and an `async def` one is skipped. No plain method keeps a process from exiting.

Raise SinkUnavailable to get the batch again after a while. Any other exception stops the partition.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from leasehold.common.cancellation import await_shielded, heeding
from leasehold.pipeline.errors import SinkRejected, SinkUnavailable
from leasehold.pipeline.handlers.changes import Context, HandlerLease, LeaseLost
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter
from leasehold.pipeline.values import checked

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Observing(Protocol):
    """Each method may be plain or `async def`."""

    def open(self, context: Context) -> Awaitable[None] | None: ...

    def process(self, context: Context, table: pa.Table) -> Awaitable[None] | None:
        """`table` is what the transform made of the batch; without a transform, EVENT_SCHEMA."""
        ...

    def close(self, context: Context, reason: CloseReason) -> Awaitable[None] | None: ...


IDENTITY = "python"
"""Positions belong to the pipeline's name and its feed: a handler may be renamed, moved and exchanged."""


class PythonOutputSink(Sink):
    """- `factory`: makes an observer; called without arguments on the event loop.
    - `load`: finds the factory, in a thread, if `factory` is not given.
    - `name`: of the handler, for people.
    - `manual_max`: the most events that wait for an acknowledgement. Positions then follow the observer's acknowledgements.
    - `ended`: called when the sink is closed.
    """

    holds_position = False

    def __init__(
        self,
        factory: Callable[[], Observing] | None = None,
        *,
        load: Callable[[], Callable[[], Observing]] | None = None,
        name: str | None = None,
        manual_max: int | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        assert (factory is None) != (load is None)
        self._factory, self._load = factory, load
        self._name = name or ("" if factory is None else name_of(factory))
        self._manual_max = manual_max
        self._ended = ended
        self._tracebacks = Tracebacks()

    @property
    def identity(self) -> str:
        return IDENTITY

    def claimed(self, state: str) -> str:
        return state

    async def prepare(self) -> None:
        if self._factory is None:
            thread = HandlerThread(f"import {self._name}")
            try:
                assert self._load is not None
                self._factory = await thread.call(self._load)
            finally:
                thread.stop()

    async def open(self, claim: Claim) -> PythonWriter:
        assert self._factory is not None, "call prepare first"
        with as_sink_errors(f"handler '{self._name}' cannot be created"):
            handler = self._factory()
        for method in ("open", "process", "close"):
            if not callable(getattr(handler, method, None)):
                raise SinkRejected(f"'{self._name}' returned {type(handler).__name__} without the method '{method}'")
        report = partial(self._tracebacks.log, (claim.pipeline, claim.partition))
        if self._manual_max is None:
            writer = PythonWriter(self._name, handler, claim, report)
        else:
            writer = ManualWriter(self._name, handler, claim, report, open_max=self._manual_max)
        await writer.open()
        return writer

    async def close(self) -> None:
        self._ended()


class Tracebacks:
    """Logs the traceback of a failing handler once, until a call succeeds, or another failure follows."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], str] = {}
        """By pipeline and partition."""

    def log(self, lease: tuple[str, str], what: str, error: BaseException | None) -> None:
        """error: None if a call has succeeded."""
        if error is None:
            self._logged.pop(lease, None)
        elif self._logged.get(lease) != (text := f"{type(error).__name__}: {error}"):
            self._logged[lease] = text
            fields = {"pipeline": lease[0], "partition": lease[1]}
            _log.error("%s", what, exc_info=error, extra=fields)


Report = Callable[[str, BaseException | None], None]


def name_of(factory: Callable[..., object]) -> str:
    return f"{factory.__module__}:{getattr(factory, '__qualname__', type(factory).__qualname__)}"


class PythonWriter(SinkWriter):
    """One handler that processes one lease."""

    position: str | None = None
    state: str = ""

    def __init__(self, name: str, handler: Observing, claim: Claim, report: Report = lambda what, error: None) -> None:
        self.position = claim.continuation
        self.state = claim.state
        self._name = name
        self._handler = handler
        self._claim = claim
        self._report = report
        self._thread = HandlerThread(f"{name} {claim.partition}")

    async def open(self) -> None:
        try:
            await self._call("open", partial(self._handler.open, self._context()))
        except BaseException:
            self._thread.stop()
            raise

    async def write(self, output: Output, permit: Permit) -> None:
        await self._thread.idle()
        permit.check()
        if output.table.num_rows:
            table = checked(output.table, f"handler '{self._name}'")
            await self._call("process", partial(self._handler.process, self._context(output), table))
        self.position = output.to

    async def end(self, permit: Permit) -> None:
        """Nothing to do; `close` follows, with the reason "gone"."""

    async def close(self, reason: CloseReason) -> None:
        self._is_closed = True
        try:
            await self._call("close", partial(self._handler.close, self._context(), reason))
        finally:
            self._thread.stop()

    def _context(self, output: Output | None = None) -> Context:
        lease = HandlerLease.of(self._claim, acknowledge=self._acknowledge, is_released=lambda: self._is_closed)
        if output is None:
            return Context(lease=lease, position=self.position)
        return Context(lease=lease, position=self.position, to=output.to, trace=output.trace, receipt=output.receipt)

    _acknowledge: Callable[[int], Awaitable[None]] | None = None
    _is_closed = False

    async def _call(self, method: str, call: Callable[[], Awaitable[None] | None]) -> None:
        what = (
            f"handler '{self._name}' failed in '{method}' for partition '{self._claim.partition}' "
            f"after position {self.position}"
        )
        failing = partial(as_sink_errors, what, self._report)
        if inspect.iscoroutinefunction(getattr(self._handler, method)):
            await self._thread.idle()
            awaitable = call()
        else:
            awaitable = await self._thread.call(partial(_guarded, call, failing))
        if awaitable is not None:
            await heeding(_await_handler(awaitable, failing))
        if method == "process":
            self._report("", None)


class ManualWriter(PythonWriter):
    """Its position follows what the handler acknowledges, in whole batches. open_max: reading pauses at this many unacknowledged
    events."""

    def __init__(self, name: str, handler: Observing, claim: Claim, report: Report, *, open_max: int) -> None:
        super().__init__(name, handler, claim, report)
        self._open_max = open_max
        self._open: deque[tuple[int | None, int, str]] = deque()
        """The last sequence, the number of events and the end of each batch that is not fully acknowledged."""
        self._up_to: int | None = None
        self._given: tuple[int, int] | None = None
        """The first and the last sequence with which the handler was called."""
        self._count = 0
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._acknowledge = self._acknowledge_from_anywhere

    @property
    def acknowledged(self) -> int:
        return self._count

    async def write(self, output: Output, permit: Permit) -> None:
        rows = output.table.num_rows
        if rows and "sequence" not in output.table.column_names:
            raise SinkRejected(
                f"handler '{self._name}': the output has no column 'sequence', by which changes are acknowledged: select it, or"
                " remove `checkpoint_s: manual`"
            )
        while self._open and sum(count for _, count, _ in self._open) + rows > self._open_max:
            await self.wait_for_progress()
        await self._thread.idle()
        permit.check()  # not earlier: either wait may have taken longer than trust lasts
        sequences = output.table["sequence"].to_pylist() if rows else []
        self._open.append((max(sequences, default=None), rows, output.to))
        self._move()
        if rows:
            self._given = (min(sequences) if self._given is None else self._given[0], max(sequences))
            await self._call("process", partial(self._handler.process, self._context(output), output.table))

    async def wait_for_progress(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def flush(self) -> None:
        while self._open:
            await self.wait_for_progress()

    async def _acknowledge_from_anywhere(self, sequence: int) -> None:
        """Raises LeaseLost."""
        if self._is_closed or asyncio.get_running_loop() is self._loop:
            self._acknowledge_here(sequence)
            return
        done: Future[None] = Future()
        self._loop.call_soon_threadsafe(_settle, done, partial(self._acknowledge_here, sequence))
        await asyncio.wrap_future(done)

    def _acknowledge_here(self, sequence: int) -> None:
        if self._is_closed:
            raise LeaseLost(
                f"partition '{self._claim.partition}' of pipeline '{self._claim.pipeline}' is released or lost: its next owner"
                f" gets the changes after position {self.position}"
            )
        if self._given is None or not self._given[0] <= sequence <= self._given[1]:
            given = "none yet" if self._given is None else f"{self._given[0]} to {self._given[1]}"
            raise SinkRejected(
                f"handler '{self._name}': sequence {sequence} is not one of a change of partition '{self._claim.partition}' that"
                f" the handler was called with ({given}): checkpoint a change of the same call or of an earlier one"
            )
        self._up_to = sequence if self._up_to is None else max(sequence, self._up_to)
        self._move()

    def _move(self) -> None:
        while self._open:
            last, count, to = self._open[0]
            if last is not None and (self._up_to is None or last > self._up_to):
                break
            self._open.popleft()
            self.position = to
            self._count += count
            self._changed.set()


@contextmanager
def as_sink_errors(what: str, report: Report = lambda what, error: None) -> Generator[None]:
    """Turn whatever a handler raises into a sink's error; an exit, an interrupt and an unrequested cancellation are failures,
    too."""
    try:
        yield
    except (SinkUnavailable, SinkRejected, GeneratorExit):
        raise
    except BaseException as error:
        if not isinstance(error, asyncio.CancelledError):
            report(what, error)
        raise SinkRejected(f"{what}: {type(error).__name__}: {error}") from error


Failing = Callable[[], AbstractContextManager[None]]


def _guarded(call: Callable[[], T], failing: Failing) -> T:
    with failing():
        return call()


async def _await_handler(awaitable: Awaitable[None], failing: Failing) -> None:
    with failing():
        await awaitable


class HandlerThread:
    """A thread that makes one call after another, and starts with the first.

    A daemon, unlike the threads of an executor, so that a call that never returns does not keep the process from exiting.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._last: Future[Any] | None = None

    async def call(self, call: Callable[[], T]) -> T:
        """The result of the call. If this is cancelled, the call still runs to its end, or is made in its turn."""
        if self._last is None:
            Thread(target=self._run, name=self._name, daemon=True).start()
        future: Future[T] = Future()
        self._last = future
        self._calls.put(partial(_settle, future, call))
        return await await_shielded(asyncio.wrap_future(future))

    async def idle(self) -> None:
        """Wait until a call whose caller was cancelled has returned."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([asyncio.wrap_future(self._last)])

    def stop(self) -> None:
        """The thread ends after the calls that it was given."""
        self._calls.put(None)

    def _run(self) -> None:
        while self._made(self._calls.get()):
            pass

    def _made(self, settle: Callable[[], None] | None) -> bool:
        """A frame of its own: a waiting thread must not keep the last table in memory."""
        if settle is not None:
            settle()
        return settle is not None


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
