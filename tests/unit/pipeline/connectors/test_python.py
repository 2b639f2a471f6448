"""The sink `python`: the contract, the observer's life, cancellation, and what happens to a handler's errors."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, get_args

import pyarrow as pa
import pytest
from patience import PATIENCE_S, until_async

from leasehold.pipeline.connectors.python import PythonOutputSink, PythonWriter
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness, event_table
from leasehold.pipeline.errors import NotTrusted, SinkError, SinkRejected, SinkUnavailable
from leasehold.pipeline.handlers.changes import Context, HandlerLease
from leasehold.pipeline.sink import Claim, CloseReason, Output
from leasehold.pipeline.tracing import TraceContext


class AlwaysTrusted:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


class Recording:
    """A handler of `async def` methods that writes down what it is called with."""

    def __init__(self, calls: list[tuple[Any, ...]] | None = None) -> None:
        self.calls = [] if calls is None else calls

    async def open(self, context: Context) -> None:
        self.calls.append(("open", context))

    async def process(self, context: Context, table: pa.Table) -> None:
        self.calls.append(("process", context, table["sequence"].to_pylist()))

    async def close(self, context: Context, reason: CloseReason) -> None:
        self.calls.append(("close", context, reason))


class PlainRecording:
    """The same with plain methods."""

    def __init__(self, calls: list[tuple[Any, ...]] | None = None) -> None:
        self.calls = [] if calls is None else calls
        self.threads: set[threading.Thread] = set()

    def open(self, context: Context) -> None:
        self._called("open", context)

    def process(self, context: Context, table: pa.Table) -> None:
        self._called("process", context, table["sequence"].to_pylist())

    def close(self, context: Context, reason: CloseReason) -> None:
        self._called("close", context, reason)

    def _called(self, *call: Any) -> None:
        self.threads.add(threading.current_thread())
        self.calls.append(call)


class HandlerHarness(SinkHarness):
    def __init__(self, make: Callable[[list[tuple[Any, ...]]], Any]) -> None:
        self.partitions = ("a", "b")
        self.calls: list[tuple[Any, ...]] = []
        self._make = make

    async def sink(self) -> PythonOutputSink:
        return PythonOutputSink(lambda: self._make(self.calls))

    async def rows(self, partition: str) -> list[Row]:
        return [
            Row(number, call[1].position, call[1].to)
            for call in self.calls
            if call[0] == "process" and call[1].partition == partition
            for number in call[2]
        ]


class TestPythonSink(SinkContract):
    @pytest.fixture(params=[Recording, PlainRecording])
    def harness(self, request: pytest.FixtureRequest) -> SinkHarness:
        return HandlerHarness(request.param)


def claim() -> Claim:
    return Claim(
        pipeline="bank",
        partition="7",
        owner="host-a",
        epoch=4,
        generation=1,
        continuation="5",
        state="",
        compare=lambda a, b: int(a or 0) - int(b or 0),
    )


def output(start: int = 5, to: int = 7) -> Output:
    table = event_table("7", range(start + 1, to + 1))
    return Output(table=table, start=str(start), to=str(to), events=to - start)


async def writer_of(handler: Any) -> PythonWriter:
    return await PythonOutputSink(lambda: handler).open(claim())


async def test_a_handler_can_continue_the_trace_of_its_batch() -> None:
    handler = Recording()
    writer = await writer_of(handler)
    trace = TraceContext(f"00-{7:032x}-{1:016x}-01", "k=v")
    await writer.write(replace(output(5, 7), trace=trace), AlwaysTrusted())
    await writer.close("shutdown")
    assert [(call[0], call[1].trace) for call in handler.calls] == [("open", None), ("process", trace), ("close", None)]


@pytest.mark.parametrize("kind", [Recording, PlainRecording])
@pytest.mark.parametrize("reason", get_args(CloseReason))
async def test_a_handler_is_opened_given_batches_and_closed_with_the_reason(
    kind: type[Recording | PlainRecording], reason: CloseReason
) -> None:
    handler = kind()
    writer = await writer_of(handler)
    await writer.write(output(5, 7), AlwaysTrusted())
    await writer.write(output(7, 8), AlwaysTrusted())
    await writer.close(reason)

    def context(position: str, to: str | None = None) -> Context:
        lease = HandlerLease(pipeline="bank", partition="7", owner="host-a", epoch=4, generation=1)
        return Context(lease=lease, position=position, to=to)

    assert handler.calls == [
        ("open", context("5")),
        ("process", context("5", "7"), [6, 7]),
        ("process", context("7", "8"), [8]),
        ("close", context("8"), reason),
    ]


def test_the_close_reasons_are_the_five_of_the_protocol() -> None:
    assert get_args(CloseReason) == ("shutdown", "lost", "stolen", "gone", "failed")


async def test_there_is_one_handler_for_each_lease() -> None:
    made: list[Recording] = []

    def factory() -> Recording:
        made.append(Recording())
        return made[-1]

    sink = PythonOutputSink(factory)
    await sink.open(claim())
    await sink.open(claim())
    assert [len(handler.calls) for handler in made] == [1, 1]


async def test_a_batch_without_output_passes_the_handler_by() -> None:
    handler = Recording()
    writer = await writer_of(handler)
    empty = Output(table=event_table("7", []), start="5", to="9", events=4)
    await writer.write(empty, AlwaysTrusted())
    assert [call[0] for call in handler.calls] == ["open"]
    assert writer.position == "9"


async def test_plain_methods_run_in_one_thread_of_the_handlers_own_which_ends_with_it() -> None:
    handler = PlainRecording()
    writer = await writer_of(handler)
    await writer.write(output(), AlwaysTrusted())
    await writer.close("shutdown")
    (thread,) = handler.threads
    assert thread is not threading.main_thread()
    assert thread.daemon
    await until_async(lambda: not thread.is_alive())


@pytest.mark.parametrize("kind", [Recording, PlainRecording])
async def test_a_delivered_table_is_let_go_of(kind: type[Recording | PlainRecording]) -> None:
    writer = await writer_of(kind())
    delivered = output()
    table = weakref.ref(delivered.table)
    await writer.write(delivered, AlwaysTrusted())
    del delivered
    await until_async(lambda: table() is None)


async def test_a_plain_method_may_return_an_awaitable() -> None:
    class Returning(PlainRecording):
        def process(self, context: Context, table: pa.Table) -> Any:
            async def later() -> None:
                self.calls.append((threading.current_thread(),))

            return later()

    handler = Returning()
    writer = await writer_of(handler)
    await writer.write(output(), AlwaysTrusted())
    await writer.close("shutdown")
    assert handler.calls[1] == (threading.main_thread(),)


class Waiting(Recording):
    """Waits in `process` until it is cancelled, and then does `on_cancel`."""

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.cancelled = False
        self._on_cancel = on_cancel

    async def process(self, context: Context, table: pa.Table) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            self._on_cancel()


def raises_cancelled() -> None:
    raise asyncio.CancelledError


def raises_another_error() -> None:
    raise ValueError("cleaning up failed")


def swallows() -> None:
    return


@pytest.mark.parametrize("on_cancel", [raises_cancelled, raises_another_error, swallows])
async def test_a_lost_lease_cancels_an_async_handler_and_the_cancellation_goes_on(
    on_cancel: Callable[[], None],
) -> None:
    handler = Waiting(on_cancel)
    writer = await writer_of(handler)
    writing = asyncio.create_task(writer.write(output(), AlwaysTrusted()))
    await handler.started.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert handler.cancelled
    assert writer.position == "5"
    await writer.close("lost")
    assert handler.calls[-1] == ("close", handler.calls[0][1], "lost")


async def test_a_handler_that_cancels_itself_has_failed() -> None:
    class Cancels(Recording):
        async def process(self, context: Context, table: pa.Table) -> None:
            raise asyncio.CancelledError

    writer = await writer_of(Cancels())
    with pytest.raises(SinkRejected, match="CancelledError"):
        await writer.write(output(), AlwaysTrusted())


class Stuck(PlainRecording):
    """Does not return from `process` before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Event()
        self.let_go = threading.Event()

    def process(self, context: Context, table: pa.Table) -> None:
        self.started.set()
        self.let_go.wait(PATIENCE_S)
        self._called("process", context, table["sequence"].to_pylist())


class StuckWithAsyncClose(Stuck):
    async def close(self, context: Context, reason: CloseReason) -> None:  # type: ignore[override]  # the point of it
        self._called("close", context, reason)


@pytest.fixture(params=[Stuck, StuckWithAsyncClose])
async def stuck(request: pytest.FixtureRequest) -> AsyncIterator[Stuck]:
    handler = request.param()
    yield handler
    handler.let_go.set()


async def lost(writer: PythonWriter, handler: Stuck) -> None:
    writing = asyncio.create_task(writer.write(output(), AlwaysTrusted()))
    await until_async(handler.started.is_set)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


async def test_a_plain_process_that_outlives_its_lease_is_not_waited_for_but_by_close(stuck: Stuck) -> None:
    writer = await writer_of(stuck)
    await lost(writer, stuck)
    closing = asyncio.create_task(writer.close("lost"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    stuck.let_go.set()
    async with asyncio.timeout(PATIENCE_S):
        await closing
    assert [call[0] for call in stuck.calls] == ["open", "process", "close"]


async def test_a_plain_close_comes_in_its_turn_even_if_the_host_lost_patience() -> None:
    handler = Stuck()
    writer = await writer_of(handler)
    await lost(writer, handler)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await writer.close("failed")
    handler.let_go.set()
    await until_async(lambda: handler.calls[-1][0] == "close")


class Fails(Recording):
    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__()
        self._method = method
        self._error = error

    def _maybe(self, method: str) -> None:
        if method == self._method:
            raise self._error

    async def open(self, context: Context) -> None:
        self._maybe("open")

    async def process(self, context: Context, table: pa.Table) -> None:
        self._maybe("process")

    async def close(self, context: Context, reason: CloseReason) -> None:
        self._maybe("close")


class PlainFails(Fails):
    def open(self, context: Context) -> None:  # type: ignore[override]  # the point of it
        self._maybe("open")

    def process(self, context: Context, table: pa.Table) -> None:  # type: ignore[override]  # the point of it
        self._maybe("process")

    def close(self, context: Context, reason: CloseReason) -> None:  # type: ignore[override]  # the point of it
        self._maybe("close")


async def life_of(handler: Any) -> None:
    writer = await writer_of(handler)
    try:
        await writer.write(output(), AlwaysTrusted())
    finally:
        await writer.close("failed")


@pytest.mark.parametrize("kind", [Fails, PlainFails])
@pytest.mark.parametrize("method", ["open", "process", "close"])
@pytest.mark.parametrize(
    "error", [ValueError("no such account"), StopIteration(), SystemExit(3), KeyboardInterrupt(3)], ids=repr
)
async def test_an_error_of_a_handler_is_a_rejection_that_names_it_and_keeps_the_cause(
    kind: type[Fails], method: str, error: BaseException
) -> None:
    with pytest.raises(SinkRejected) as rejected:
        await life_of(kind(method, error))
    for part in ("writer_of", method, "'7'", "position 5" if method != "close" else "position 7", type(error).__name__):
        assert part in str(rejected.value)
    cause = rejected.value.__cause__
    assert cause is error or (cause is not None and cause.__cause__ is error)  # a coroutine wraps StopIteration


@pytest.mark.parametrize("kind", [Fails, PlainFails])
@pytest.mark.parametrize("error", [SinkUnavailable("later", retry_after_s=3), SinkRejected("never")], ids=repr)
async def test_a_handler_may_say_itself_whether_to_try_again(kind: type[Fails], error: SinkError) -> None:
    with pytest.raises(SinkError) as raised:
        await life_of(kind("process", error))
    assert raised.value is error


async def test_a_batch_that_failed_can_be_written_again() -> None:
    class Flaky(Recording):
        async def process(self, context: Context, table: pa.Table) -> None:
            await super().process(context, table)
            if len(self.calls) == 2:
                raise SinkUnavailable("busy")

    handler = Flaky()
    writer = await writer_of(handler)
    with pytest.raises(SinkUnavailable):
        await writer.write(output(), AlwaysTrusted())
    assert writer.position == "5"
    await writer.write(output(), AlwaysTrusted())
    assert handler.calls[1] == handler.calls[2]


async def test_an_observer_is_loaded_in_a_thread_before_any_work() -> None:
    threads: list[threading.Thread] = []

    def load() -> Callable[[], Recording]:
        threads.append(threading.current_thread())
        return Recording

    sink = PythonOutputSink(load=load, name="bank:Handler")
    assert sink.identity == "python"
    await sink.prepare()
    await (await sink.open(claim())).close("shutdown")
    assert threads
    assert threading.current_thread() not in threads


async def test_a_factory_that_fails_is_refused_by_the_handler_s_name() -> None:
    def fails() -> Recording:
        raise ValueError("no password")

    with pytest.raises(SinkRejected, match="'bank:fails' cannot be created: ValueError: no password"):
        await PythonOutputSink(fails, name="bank:fails").open(claim())


class TakenAway(AlwaysTrusted):
    """A permit that may be taken away."""

    is_given = True

    def check(self) -> None:
        if not self.is_given:
            raise NotTrusted("no trust")


async def test_an_output_that_waited_for_acknowledgements_until_trust_had_ended_is_not_processed() -> None:
    calls: list[tuple[Any, ...]] = []
    writer = await PythonOutputSink(lambda: Recording(calls), manual_max=1).open(claim())
    permit = TakenAway()
    await writer.write(output(5, 6), permit)
    waiting = asyncio.create_task(writer.write(output(6, 7), permit))
    await asyncio.sleep(0)
    permit.is_given = False
    (_, context, _) = calls[-1]
    await context.lease.acknowledge(6)
    with pytest.raises(NotTrusted):
        await waiting
    assert [call[2] for call in calls if call[0] == "process"] == [[6]]
    permit.is_given = True
    await writer.write(output(6, 7), permit)
    await calls[-1][1].lease.acknowledge(7)
    assert ([call[2] for call in calls if call[0] == "process"], writer.position) == ([[6], [7]], "7")
    await writer.close("shutdown")


@pytest.mark.parametrize("sequence", [-1, 5, 8, 10**6])
async def test_a_sequence_that_the_handler_was_not_called_with_covers_nothing(sequence: int) -> None:
    calls: list[tuple[Any, ...]] = []
    writer = await PythonOutputSink(lambda: Recording(calls), manual_max=9).open(claim())
    await writer.write(output(5, 7), AlwaysTrusted())
    (_, context, given) = calls[-1]
    assert given == [6, 7]
    with pytest.raises(SinkRejected, match=rf"sequence {sequence} is not one of a change .* called with \(6 to 7\)"):
        await context.lease.acknowledge(sequence)
    await writer.write(output(7, 9), AlwaysTrusted())
    assert writer.position == "5"
    await context.lease.acknowledge(7)
    assert writer.position == "7"
    await writer.close("shutdown")
