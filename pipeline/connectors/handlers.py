"""The sink `python` with `parallel`: your handler is called for many keys at the same time, and for each key in order.

    async def handle(event): ...        # one event, as a dict; it is processed once this returns
    async def handle(events): ...       # with `events_max`: `Events` of one key

An `async def` function runs on the event loop, and is cancelled when the lease is lost or its time is over. A plain function runs
in one of `max` threads that all partitions of the pipeline share. It cannot be cancelled: it runs to its end, at the same time as
calls of another host. `close` waits for it, and until it has ended, the same process does not open the partition again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, cast

from leasehold.common.cancellation import await_shielded, heeding
from leasehold.common.clock import Clock, LoopClock
from leasehold.pipeline.connectors.python import IDENTITY, HandlerThread, Report, Tracebacks, as_sink_errors, name_of
from leasehold.pipeline.errors import SinkRejected, SinkUnavailable
from leasehold.pipeline.handlers.stats import HandlerStats
from leasehold.pipeline.handlers.writer import HandlerCaller, HandlerWriter
from leasehold.pipeline.imports import is_async, is_generator
from leasehold.pipeline.limits import ParallelLimits
from leasehold.pipeline.sink import Claim, CloseReason, Sink

_log = logging.getLogger(__name__)
Function = Callable[[Any], Awaitable[None] | None]


async def do_nothing(*arguments: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ForLease:
    """What is called for one lease: `open` once, then `call` concurrently, then `close` with the reason and the position."""

    call: Function
    open: Callable[[], Awaitable[None]] = do_nothing
    close: Callable[[CloseReason, str | None], Awaitable[None]] = do_nothing


def _of_function(function: Function, claim: Claim, report: Report) -> ForLease:
    return ForLease(call=function)


class HandlerSink(Sink):
    """- `handler`: the function. `load`: finds it, in a thread, if `handler` is not given. `name`: for people.
    - `key`: the column whose values are the keys.
    - `for_lease`: makes what is called for one lease from the handler.
    - `ended`: called when the sink is closed.

    Raises ValueError if the limits contradict each other, and SinkRejected for a function that they do not fit.
    """

    holds_position = False

    def __init__(
        self,
        handler: Function | None = None,
        *,
        key: str,
        limits: ParallelLimits | None = None,
        clock: Clock | None = None,
        load: Callable[[], Function] | None = None,
        name: str | None = None,
        for_lease: Callable[[Any, Claim, Report], ForLease] = _of_function,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = limits or ParallelLimits()
        if problems := list(self._limits.problems()):
            raise ValueError("; ".join(problems))
        assert (handler is None) != (load is None)
        self._name = name or ("" if handler is None else name_of(handler))
        self._function = None if handler is None else checked(handler, self._name, self._limits)
        self._load, self._for_lease, self._ended = load, for_lease, ended
        self._key = key
        self._clock = clock or LoopClock()
        self._threads = ThreadPool(self._limits.max, self._name)
        self._stats = HandlerStats(self._clock)
        self._tracebacks = Tracebacks()
        self._callers: dict[tuple[str, str], Async | Plain] = {}
        """By pipeline and partition, the calls of the last claim."""

    @property
    def identity(self) -> str:
        return IDENTITY

    @property
    def handler_stats(self) -> HandlerStats:
        return self._stats

    def claimed(self, state: str) -> str:
        return state

    async def prepare(self) -> None:
        if self._function is None:
            thread = HandlerThread(f"import {self._name}")
            try:
                assert self._load is not None
                self._function = await thread.call(self._load)
            finally:
                thread.stop()

    async def open(self, claim: Claim) -> HandlerWriter:
        assert self._function is not None, "call prepare first"
        self._check_idle(claim)
        report = partial(self._tracebacks.log, (claim.pipeline, claim.partition))
        with as_sink_errors(f"handler '{self._name}' cannot be created", report):
            called = self._for_lease(self._function, claim, report)
        await called.open()
        return HandlerWriter(
            claim,
            self._caller(claim, called.call),
            close=called.close,
            report=report,
            key=self._key,
            limits=self._limits,
            clock=self._clock,
            name=f"handler '{self._name}'",
            stats=self._stats,
        )

    async def close(self) -> None:
        self._threads.stop()
        self._ended()

    def _caller(self, claim: Claim, function: Function) -> HandlerCaller:
        caller = Async(function) if is_async(function) else Plain(function, self._threads)
        self._callers[claim.pipeline, claim.partition] = caller
        return caller

    def _check_idle(self, claim: Claim) -> None:
        """Raises SinkUnavailable while calls of an earlier claim run: the same events would be handled at the same time."""
        key = claim.pipeline, claim.partition
        if key in self._callers and (left := self._callers[key].end()):
            raise SinkUnavailable(
                f"handler '{self._name}': partition '{claim.partition}' is not opened, because calls of its earlier claim still"
                f" run in this process ({left}), and events are handled again only after them. {self._callers[key].REMEDY}, or"
                " restart the host"
            )


def checked(found: object, name: str, limits: ParallelLimits) -> Function:
    """Raises SinkRejected if it is not a function, or does not fit the limits."""
    takes = "one event" if limits.events_max is None else "`Events` of one key"
    if inspect.isclass(found) or not callable(found):
        what = "a class" if inspect.isclass(found) else f"of type {type(found).__name__}"
        raise SinkRejected(
            f"sink handler '{name}' is {what}, and with `parallel` it has to be a function that takes {takes}: name such a"
            " function, or remove `parallel`"
        )
    if is_generator(found):
        raise SinkRejected(
            f"sink handler '{name}' is a generator function: calling it runs nothing, and its events would count as"
            " processed: remove `yield` from it"
        )
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise SinkRejected(
            f"sink handler '{name}' cannot be called with one argument ({error}): let it take {takes}"
        ) from error
    except ValueError:  # a builtin without a signature
        pass
    if not is_async(found):
        for option, is_set in (
            ("parallel.timeout_s", limits.timeout_s is not None),
            ("checkpoint_s: manual", limits.manual_ack),
        ):
            if is_set:
                raise SinkRejected(
                    f"sink handler '{name}' is a plain function, and `{option}` needs an `async def` one, because a"
                    " thread can neither be cancelled nor await: remove the setting, or define the handler with `async def`"
                )
    return cast(Function, found)


def refuse_unrun(answer: object) -> None:
    """Raises SinkRejected if a call returned code that has not run."""
    if inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        raise SinkRejected(
            "the function returned a generator, whose code has not run: run it to its end before you return"
        )
    if inspect.iscoroutine(answer):
        answer.close()
        raise SinkRejected(
            "the function returned an awaitable: define the handler with `async def`, and `await` what it calls"
        )


class Async:
    """Calls of an `async def` handler for one lease. Its writer cancels them, and waits until they have ended."""

    REMEDY = "They were cancelled: let the function end soon after a cancellation"

    def __init__(self, function: Function) -> None:
        self._function = function
        self._running: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def end(self) -> int:
        """How many calls still run although their writer is closed. They are cancelled again."""
        if not self._is_closed:
            return 0
        for task in self._running:
            task.cancel()
        return len(self._running)

    async def call(self, argument: Any, check: Callable[[], None]) -> None:
        check()
        task = asyncio.current_task()
        assert task is not None, "a writer makes each call in a task of its own"
        self._running.add(task)
        try:
            refuse_unrun(await heeding(cast(Awaitable[object], self._function(argument))))
        finally:
            self._running.discard(task)

    def close(self) -> None:
        self._is_closed = True

    async def wait_until_idle(self) -> None:
        """Does nothing, because the writer has waited."""


class Plain:
    """Calls of a plain handler for one lease."""

    REMEDY = "They cannot be ended: look at what the function waits for, give that a timeout"

    def __init__(self, function: Function, threads: ThreadPool) -> None:
        self._function = function
        self._threads = threads
        self._running: set[asyncio.Future[Outcome]] = set()
        self._is_closed = False

    def end(self) -> int:
        """How many calls still run although their writer is closed. Nothing can end them."""
        return len(self._running) if self._is_closed else 0

    async def call(self, argument: Any, check: Callable[[], None]) -> None:
        await self._threads.wait_until_free()
        try:
            check()
            running = self._threads.start(partial(self._function, argument))
        except BaseException:
            self._threads.give_back()
            raise
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        answer, error = await await_shielded(running)
        try:
            if isinstance(error, StopIteration):  # coroutines cannot raise it
                raise RuntimeError("the function raised StopIteration, as `next` does at the end") from error
            if error is not None:
                raise error
        finally:
            del error, running  # they would hold this frame, and so the event, until garbage is collected
        refuse_unrun(answer)
        if inspect.isawaitable(answer):
            raise SinkRejected("the plain function returned an awaitable: define the handler with `async def`")

    def close(self) -> None:
        self._is_closed = True

    async def wait_until_idle(self) -> None:
        if self._running:
            await asyncio.wait(self._running)


Outcome = tuple[object, BaseException | None]
"""What a call returned, and what it raised. A future cannot hold every exception: asyncio refuses StopIteration."""


class _Work(NamedTuple):
    call: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Outcome]


class ThreadPool:
    """At most threads_max threads, which start when they are needed. A caller has to own a thread before it starts a call.

    They are daemons, unlike the threads of an executor, so that a call that never returns does not keep the process from exiting.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        self._name = name
        self._threads = self._owned = 0
        self._free = asyncio.Semaphore(threads_max)
        self._calls: SimpleQueue[_Work | None] = SimpleQueue()
        self._is_short = False

    async def wait_until_free(self) -> None:
        """Return once the caller owns one of the threads. It owns it until `give_back`, or until its call has ended."""
        await self._free.acquire()
        self._owned += 1

    def give_back(self) -> None:
        self._owned -= 1
        self._free.release()

    def start(self, call: Callable[[], object]) -> asyncio.Future[Outcome]:
        """Make the call in a thread that the caller owns. After it the thread is free again, even if nothing waits for the call.

        Raises SinkUnavailable if the thread does not start; the caller still owns it.
        """
        loop = asyncio.get_running_loop()
        work = _Work(call, loop, loop.create_future())
        if self._owned > self._threads:
            try:
                Thread(target=self._run, name=f"{self._name} {self._threads + 1}", daemon=True).start()
            except RuntimeError as error:
                what = (
                    f"no thread starts for handler '{self._name}', which has {self._threads} ({error}): raise the limit of"
                    " processes (pids) of the container or the user, or lower `parallel.max`"
                )
                if not self._is_short:  # the writer reports only failures that last
                    _log.warning(what)
                self._is_short = True
                raise SinkUnavailable(what) from error
            self._threads += 1
            self._is_short = False
        self._calls.put(work)
        return work.outcome

    def stop(self) -> None:
        """The threads end after the calls that they were given."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _run(self) -> None:
        while self._made(self._calls.get()):
            pass

    def _made(self, work: _Work | None) -> bool:
        """A frame of its own: a waiting thread must not keep the last event in memory."""
        if work is None:
            return False
        outcome = _outcome(work.call)
        with suppress(RuntimeError):  # the loop is closed, and nothing waits for the call
            work.loop.call_soon_threadsafe(self._settle, work.outcome, outcome)
        return True

    def _settle(self, future: asyncio.Future[Outcome], outcome: Outcome) -> None:
        self.give_back()
        if not future.done():
            future.set_result(outcome)


def _outcome(call: Callable[[], object]) -> Outcome:
    try:
        return call(), None
    except BaseException as error:
        return None, error
