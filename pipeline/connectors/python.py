"""A handler of the user's own as the sink: the observer of the change feed processors.

    class Printer:
        async def open(self, context): ...                    # the lease was taken
        async def process(self, context, table): ...          # a batch; it is safe once this returns
        async def close(self, context, reason): ...           # the lease is released: shutdown, lost, stolen, gone or failed

There is one handler a lease, and its methods are called one at a time; `close` follows every `open` that returned. Batches
come at least once: after a crash or a stolen lease the last one is repeated, with the same (partition, position). A batch
without output does not come at all.

Methods may be plain functions. They run in a thread that belongs to the handler (the same one throughout), so they may
block. What an `async def` method awaits is cancelled when the lease is lost. A plain one cannot be cancelled: it runs on to
its end, beside the next owner's, and `close` waits for it. If the host does not wait as long, a plain `close` is still called
in its turn, and an `async def` one is skipped. No plain method keeps a process from exiting.

Raise SinkUnavailable to be given the batch again after a while. Anything else that is raised stops the partition.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar, cast

import pyarrow as pa

from leasehold.common.cancellation import await_shielded, heeding
from leasehold.pipeline.errors import NotImportable, SinkRejected, SinkUnavailable
from leasehold.pipeline.imports import imported
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter
from leasehold.pipeline.tracing import TraceContext
from leasehold.pipeline.values import checked

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContext:
    """What a handler is called for.

    - `pipeline`, `partition`, `owner`, `epoch`, `generation`: those of the lease.
    """

    pipeline: str
    partition: str
    owner: str
    epoch: int
    generation: int
    position: str | None
    """Up to where everything has been processed; the table of `process` holds what follows."""
    to: str | None = None
    """Up to where the table goes; None in `open` and `close`."""
    traceparent: str | None = None
    """In `process`, the trace context (W3C) of the delivery; None if traces are off."""
    tracestate: str | None = None


class Handler(Protocol):
    """Each method plain or `async def`."""

    def open(self, context: HandlerContext) -> Awaitable[None] | None: ...

    def process(self, context: HandlerContext, table: pa.Table) -> Awaitable[None] | None:
        """`table` is what the transform made of the batch; without a transform, EVENT_SCHEMA."""
        ...

    def close(self, context: HandlerContext, reason: CloseReason) -> Awaitable[None] | None: ...


class PythonSink(Sink):
    """`handler`: what makes a handler, called without arguments, or `module:factory` where that is found.

    The factory runs on the event loop; what takes time belongs in the handler's `open`.
    """

    holds_position = False

    def __init__(self, handler: str | Callable[[], Handler]) -> None:
        self._name = handler if isinstance(handler, str) else name_of(handler)
        self._factory = None if isinstance(handler, str) else handler

    @property
    def identity(self) -> str:
        return f"python:{self._name}"

    def claimed(self, state: str) -> str:
        return state

    async def prepare(self) -> None:
        if self._factory is None:
            thread = HandlerThread(f"import {self._name}")
            try:
                self._factory = await thread.call(partial(load, self._name))
            finally:
                thread.stop()

    async def open(self, claim: Claim) -> PythonWriter:
        assert self._factory is not None, "call prepare first"
        with _failing(f"handler '{self._name}' cannot be created"):
            handler = self._factory()
        for method in ("open", "process", "close"):
            if not callable(getattr(handler, method, None)):
                raise SinkRejected(f"'{self._name}' returned {type(handler).__name__} without the method '{method}'")
        writer = PythonWriter(self._name, handler, claim)
        await writer.open()
        return writer

    async def close(self) -> None:
        """Nothing is held."""


def load(path: str) -> Callable[[], Handler]:
    """The factory at `module:factory`. Raises SinkRejected."""
    try:
        factory = imported(path)
    except NotImportable as error:
        raise SinkRejected(f"sink handler {error}") from error
    if not callable(factory):
        raise SinkRejected(
            f"sink handler '{path}' is of type {type(factory).__name__}: name a function or class that makes a handler"
        )
    return cast(Callable[[], Handler], factory)


def name_of(factory: Callable[..., object]) -> str:
    return f"{factory.__module__}:{getattr(factory, '__qualname__', type(factory).__qualname__)}"


class PythonWriter(SinkWriter):
    """One handler that processes one lease."""

    position: str | None = None
    state: str = ""

    def __init__(self, name: str, handler: Handler, claim: Claim) -> None:
        self.position = claim.continuation
        self.state = claim.state
        self._name = name
        self._handler = handler
        self._claim = claim
        self._thread = HandlerThread(f"{name} {claim.partition}")

    async def open(self) -> None:
        try:
            await self._call("open", partial(self._handler.open, self._context()))
        except BaseException:
            self._thread.stop()
            raise

    async def write(self, output: Output, permit: Permit) -> None:
        permit.check()
        if output.table.num_rows:
            table = checked(output.table, f"handler '{self._name}'")
            await self._call("process", partial(self._handler.process, self._context(output.to, output.trace), table))
        self.position = output.to

    async def end(self, permit: Permit) -> None:
        """Nothing to do; `close` follows, with the reason "gone"."""

    async def close(self, reason: CloseReason) -> None:
        try:
            await self._call("close", partial(self._handler.close, self._context(), reason))
        finally:
            self._thread.stop()

    def _context(self, to: str | None = None, trace: TraceContext | None = None) -> HandlerContext:
        claim = self._claim
        return HandlerContext(
            pipeline=claim.pipeline,
            partition=claim.partition,
            owner=claim.owner,
            epoch=claim.epoch,
            generation=claim.generation,
            position=self.position,
            to=to,
            traceparent=None if trace is None else trace.parent,
            tracestate=None if trace is None else trace.state,
        )

    async def _call(self, method: str, call: Callable[[], Awaitable[None] | None]) -> None:
        failing = partial(
            _failing,
            f"handler '{self._name}' failed in '{method}' for partition '{self._claim.partition}' "
            f"behind position {self.position}",
        )
        if inspect.iscoroutinefunction(getattr(self._handler, method)):
            await self._thread.idle()
            awaitable = call()
        else:
            awaitable = await self._thread.call(partial(_guarded, call, failing))
        if awaitable is not None:
            await heeding(_await_handler(awaitable, failing))


@contextmanager
def _failing(what: str) -> Generator[None]:
    """Whatever a handler raises becomes a sink's error; an exit and an unrequested cancellation are failures, too."""
    try:
        yield
    except (SinkUnavailable, SinkRejected, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise SinkRejected(f"{what}: {type(error).__name__}: {error}") from error


Failing = Callable[[], AbstractContextManager[None]]


def _guarded(call: Callable[[], T], failing: Failing) -> T:
    with failing():
        return call()


async def _await_handler(awaitable: Awaitable[None], failing: Failing) -> None:
    with failing():
        await awaitable


class HandlerThread:
    """Makes one call after another, and starts with the first.

    A daemon, unlike the threads of an executor, so that a call that never returns does not keep the process from exiting.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._last: Future[Any] | None = None

    async def call(self, call: Callable[[], T]) -> T:
        """Cancelled, it leaves the call to run on, or to be made in its turn."""
        if self._last is None:
            Thread(target=self._run, name=self._name, daemon=True).start()
        future: Future[T] = Future()
        self._last = future
        self._calls.put(partial(_settle, future, call))
        return await await_shielded(asyncio.wrap_future(future))

    async def idle(self) -> None:
        """Until a call that was left to run on has returned."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([asyncio.wrap_future(self._last)])

    def stop(self) -> None:
        """The thread ends behind the calls that it was given."""
        self._calls.put(None)

    def _run(self) -> None:
        while self._made(self._calls.get()):
            pass

    def _made(self, settle: Callable[[], None] | None) -> bool:
        """A frame of its own: a thread that waits must not hold on to the last table."""
        if settle is not None:
            settle()
        return settle is not None


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
