"""The sink `python` with `parallel`: the contract, plain functions in threads, dead letters, and errors for wrong functions."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from patience import PATIENCE_S, until_async
from unit.pipeline.burials import NOW, Group, bodies, files_box, lines_box, log_box
from unit.pipeline.connectors.test_python import AlwaysTrusted, claim, output
from unit.pipeline.destinations import Trust

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors import handlers
from leasehold.pipeline.connectors.handlers import HandlerSink, ThreadPool
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness
from leasehold.pipeline.dead_letters import DeadLetters, LetterBox
from leasehold.pipeline.dead_letters.side_output_sink import WriterBesideBox
from leasehold.pipeline.errors import NotTrusted, OutputSuspected, SinkError, SinkRejected, SinkUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.handlers.events import Events
from leasehold.pipeline.limits import EVENT_COLUMNS, REPLAY, ParallelLimits
from leasehold.pipeline.sink import Claim, Output, Permit, SinkWriter

Event = Mapping[str, Any]
QUICK = ParallelLimits(max=4, window=8, attempts=2, backoff_s=0.001)


class HandlerHarness(SinkHarness):
    def __init__(self, is_async: bool) -> None:
        self.partitions = ("a", "b")
        self.handled: list[Event] = []
        self._is_async = is_async

    async def sink(self) -> HandlerSink:
        async def handle(event: Event) -> None:
            self.handled.append(event)

        return HandlerSink(handle if self._is_async else self.handled.append, key="partition", limits=QUICK)

    async def rows(self, partition: str) -> list[Row]:
        return [Row(event["sequence"]) for event in self.handled if event["partition"] == partition]


class TestHandlerSink(SinkContract):
    @pytest.fixture(params=[True, False])
    def harness(self, request: pytest.FixtureRequest) -> SinkHarness:
        return HandlerHarness(request.param)


def handles_one(event: Event) -> None: ...


async def handles_one_async(event: Event) -> None: ...


def test_columns_of_events_are_those_that_settings_know() -> None:
    assert tuple(EVENT_SCHEMA.names) == EVENT_COLUMNS


def generates(event: Event) -> Iterator[None]:
    yield


async def generates_async(event: Event) -> AsyncIterator[None]:
    yield


class Generates:
    def __call__(self, event: Event) -> Iterator[None]:
        yield


class Handles:
    async def __call__(self, event: Event) -> None: ...


@pytest.mark.parametrize(
    ("handler", "limits", "message"),
    [
        (Handles, {}, "is a class, and with `parallel` it has to be a function that takes one event"),
        (Handles, {"events_max": 5}, "a function that takes `Events` of one key"),
        (lambda: None, {}, "cannot be called with one argument"),
        (lambda a, b: None, {}, "cannot be called with one argument"),
        (generates, {}, r":generates' is a generator function: .* would count as processed: remove `yield` from it"),
        (generates_async, {"events_max": 5}, ":generates_async' is a generator function"),
        (partial(generates), {}, "is a generator function"),
        (Generates(), {}, "is a generator function"),
        (handles_one, {"timeout_s": 5.0}, "is a plain function, and `parallel.timeout_s` needs an `async def` one"),
        (handles_one, {"manual_ack": True, "events_max": 1}, "and `checkpoint_s: manual` needs an `async def` one"),
    ],
)
async def test_a_function_that_does_not_fit_is_refused(handler: Any, limits: dict[str, Any], message: str) -> None:
    with pytest.raises(SinkRejected, match=message):
        await HandlerSink(handler, key="key", limits=ParallelLimits(**limits)).prepare()


@pytest.mark.parametrize("handler", [handles_one, handles_one_async, Handles(), [].append])
async def test_functions_of_any_kind_are_taken(handler: Any) -> None:
    await HandlerSink(handler, key="key").prepare()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max": 0}, r"max \(0\) has to be 1 or more"),
        ({"attempts": 0}, r"attempts \(0\) has to be 1 or more"),
        ({"events_max": 0}, r"events_max \(0\) has to be 1 or more"),
        ({"backoff_s": -1.0}, r"backoff_s \(-1.0\) has to be 0 or more"),
        ({"timeout_s": 0.0}, r"timeout_s \(0\) has to be above 0"),
        ({"max": 8, "window": 7}, r"window \(7\) is below max \(8\)"),
        ({"manual_ack": True}, "manual acknowledgement needs `events_max`"),
    ],
)
def test_limits_that_cannot_work_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HandlerSink(handles_one, key="key", limits=ParallelLimits(**limits))


async def test_a_plain_function_runs_in_as_many_threads_as_may_run_side_by_side() -> None:
    together, threads = threading.Barrier(4), set[threading.Thread]()

    def handle(event: Event) -> None:
        threads.add(threading.current_thread())
        together.wait(PATIENCE_S)

    sink = HandlerSink(handle, key="sequence", limits=QUICK)
    writer = await sink.open(claim())
    await writer.write(output(0, 8), AlwaysTrusted())
    await writer.flush()
    await writer.close("shutdown")
    await sink.close()
    assert len(threads) == 4
    assert all(thread.daemon for thread in threads)
    await until_async(lambda: not any(thread.is_alive() for thread in threads))


async def test_all_partitions_share_the_threads_of_a_plain_function() -> None:
    running, most, lock, together = 0, 0, threading.Lock(), threading.Barrier(4)

    def handle(event: Event) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(PATIENCE_S)
        with lock:
            running -= 1

    sink = HandlerSink(handle, key="sequence", limits=QUICK)
    writers = [await sink.open(claim()) for _ in range(3)]
    await asyncio.gather(*(writer.write(output(0, 8), AlwaysTrusted()) for writer in writers))
    await asyncio.gather(*(writer.flush() for writer in writers))
    assert most == 4
    await sink.close()


async def test_closing_waits_for_plain_calls_that_run_and_makes_no_others() -> None:
    began, release, handled = threading.Semaphore(0), threading.Event(), list[int]()

    def handle(event: Event) -> None:
        began.release()
        release.wait(PATIENCE_S)
        handled.append(event["sequence"])

    sink = HandlerSink(handle, key="sequence", limits=ParallelLimits(max=2, window=8))
    first, second = await sink.open(claim()), await sink.open(claim())
    await first.write(output(0, 2), AlwaysTrusted())
    await asyncio.to_thread(lambda: [began.acquire(timeout=PATIENCE_S) for _ in range(2)])
    await second.write(output(2, 4), AlwaysTrusted())
    await asyncio.sleep(0)
    await second.close("lost")  # its calls wait for a thread
    closing = asyncio.create_task(first.close("lost"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    release.set()
    await closing
    assert sorted(handled) == [1, 2]
    await sink.close()


async def test_a_partition_is_not_opened_while_plain_calls_of_an_earlier_claim_run() -> None:
    began, release = threading.Event(), threading.Event()

    def handle(event: Event) -> None:
        began.set()
        release.wait(PATIENCE_S)

    sink = HandlerSink(handle, key="sequence", limits=ParallelLimits(max=2, window=8))
    first = await sink.open(claim())
    await first.write(output(0, 1), AlwaysTrusted())
    assert await asyncio.to_thread(began.wait, PATIENCE_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):  # as a worker does, which waits no longer
            await first.close("shutdown")
    with pytest.raises(
        SinkUnavailable, match="partition '7' is not opened, because calls of its earlier claim still run"
    ):
        await sink.open(claim())
    other = await sink.open(replace(claim(), partition="b"))
    release.set()
    await first._caller.wait_until_idle()
    second = await sink.open(claim())
    for writer in (second, other):
        await writer.close("shutdown")
    await sink.close()


async def test_a_partition_is_not_opened_while_cancelled_calls_of_an_earlier_claim_end() -> None:
    began, cancelled = asyncio.Event(), list[int]()

    async def handle(event: Event) -> None:
        while len(cancelled) < 2:  # as code that takes a cancellation for an error of its connection
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)

    sink = HandlerSink(handle, key="sequence", limits=ParallelLimits(max=2, window=8))
    first = await sink.open(claim())
    await first.write(output(0, 1), AlwaysTrusted())
    await began.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):  # as a worker does, which waits no longer
            await first.close("shutdown")
    with pytest.raises(SinkUnavailable, match=r"still run in this process \(1\).* They were cancelled"):
        await sink.open(claim())
    await until_async(lambda: not first._caller.end())
    await (await sink.open(claim())).close("shutdown")
    await sink.close()


async def test_a_thread_that_does_not_start_blames_no_event(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handled, starts = list[int](), iter([True, True])

    class Limited(threading.Thread):
        def start(self) -> None:
            if next(starts, False):
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(handlers, "Thread", Limited)
    sink = HandlerSink(
        lambda event: handled.append(event["sequence"]),
        key="sequence",
        limits=ParallelLimits(max=1, window=8, attempts=1, backoff_s=0.01),
    )
    writer = await sink.open(claim())
    await writer.write(output(0, 1), AlwaysTrusted())
    async with asyncio.timeout(PATIENCE_S):
        await writer.flush()
    assert (handled, next(starts, None)) == ([1], None)
    (said,) = [text for text in caplog.messages if "no thread starts" in text]
    assert "(can't start new thread): raise the limit of processes" in said
    await writer.close("shutdown")
    await sink.close()


async def test_a_call_that_waited_for_a_thread_is_not_made_without_trust() -> None:
    began, release, handled = threading.Event(), threading.Event(), list[int]()

    def handle(event: Event) -> None:
        began.set()
        release.wait(PATIENCE_S)
        handled.append(event["sequence"])

    sink, trust = HandlerSink(handle, key="sequence", limits=ParallelLimits(max=1, window=8)), Trust()
    first, second = await sink.open(claim()), await sink.open(claim())
    await first.write(output(0, 1), AlwaysTrusted())
    assert await asyncio.to_thread(began.wait, PATIENCE_S)
    await second.write(output(1, 2), trust)
    await until_async(lambda: sink._threads._free._waiters)
    trust.given.clear()
    release.set()
    await first.flush()
    await until_async(lambda: trust.given._waiters)  # type: ignore[attr-defined]
    assert handled == [1]
    trust.given.set()
    await second.flush()
    assert handled == [1, 2]
    for writer in (first, second):
        await writer.close("shutdown")
    await sink.close()


async def test_a_plain_function_that_returns_an_awaitable_is_refused() -> None:
    writer = await HandlerSink(lambda event: asyncio.sleep(0), key="sequence").open(claim())
    await writer.write(output(0, 1), AlwaysTrusted())
    with pytest.raises(SinkRejected, match="returned an awaitable: define the handler with `async def`"):
        await writer.flush()
    await writer.close("failed")


async def returns_a_coroutine(event: Event) -> Any:
    return handles_one_async(event)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (lambda event: generates(event), "returned a generator, whose code has not run: run it to its end"),
        (lambda event: generates_async(event), "returned a generator, whose code has not run: run it to its end"),
        (returns_a_coroutine, "returned an awaitable: define the handler with `async def`, and `await` what it calls"),
    ],
)
async def test_a_function_that_returns_code_which_has_not_run_is_refused(handler: Any, message: str) -> None:
    writer = await HandlerSink(handler, key="sequence").open(claim())
    await writer.write(output(0, 1), AlwaysTrusted())
    with pytest.raises(SinkRejected, match=message):
        await writer.flush()
    assert writer.acknowledged == 0
    await writer.close("failed")


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_that_raises_stop_iteration_fails_as_with_any_error(is_async: bool) -> None:
    calls = list[int]()

    def handle(event: Event) -> None:
        calls.append(event["sequence"])
        if len(calls) < 3:
            next(iter(()))

    async def handle_async(event: Event) -> None:
        handle(event)

    limits = ParallelLimits(max=1, attempts=3, backoff_s=0.001)
    sink = HandlerSink(handle_async if is_async else handle, key="partition", limits=limits)
    writer = await sink.open(claim())
    await writer.write(output(0, 2), AlwaysTrusted())
    async with asyncio.timeout(PATIENCE_S):
        await writer.flush()
    assert calls == [1, 1, 1, 2]
    await writer.close("shutdown")
    await sink.close()


async def test_a_plain_function_that_only_raises_stop_iteration_stops_its_partition_with_the_reason() -> None:
    sink = HandlerSink(lambda event: next(iter(())), key="sequence", limits=ParallelLimits(max=1, attempts=1))
    writer = await sink.open(claim())
    await writer.write(output(0, 1), AlwaysTrusted())
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(
            SinkRejected, match="RuntimeError: the function raised StopIteration, as `next` does at the end"
        ):
            await writer.flush()
        await writer.close("failed")
    await sink.close()


async def test_a_thread_is_free_again_though_nothing_waits_for_its_call() -> None:
    pool = ThreadPool(1, "test")
    await pool.wait_until_free()
    pool.start(lambda: next(iter(()))).cancel()
    async with asyncio.timeout(PATIENCE_S):
        await pool.wait_until_free()
        assert await pool.start(lambda: "made") == ("made", None)
    pool.stop()


async def test_threads_start_when_they_are_needed() -> None:
    pool = ThreadPool(8, "test")
    for _ in range(5):
        await pool.wait_until_free()
        await pool.start(lambda: None)
    assert pool._threads == 1
    pool.stop()


async def test_a_thread_that_nothing_waits_for_any_more_goes_to_the_next() -> None:
    pool = ThreadPool(1, "test")
    await pool.wait_until_free()
    waiting = [asyncio.create_task(pool.wait_until_free()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    pool.give_back()
    waiting[1].cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [True, True, False]


# Dead letters


class Failing:
    """Fails on bodies with a `?`. calls: how often each was handled."""

    def __init__(self) -> None:
        self.calls = Counter[bytes]()
        self.handled: list[bytes] = []

    async def __call__(self, event: Event) -> None:
        self.calls[event["body"]] += 1
        await asyncio.sleep(0)
        if b"?" in event["body"]:
            raise ValueError("no " + event["body"].decode())
        self.handled.append(event["body"])


def group_of(
    path: Path, handler: Any, *, share_max: float = 1.0, box_of: Callable[[Path], LetterBox] = log_box, **limits: Any
) -> Group:
    of = ParallelLimits(**{"max": 4, "window": 8, "attempts": 3, "backoff_s": 0.001, **limits})
    sink = HandlerSink(handler, key="key", limits=of)
    policy = DeadLetters(now=lambda: NOW, share_max=share_max, share_events=10)
    return Group(path, events_max=2, sink=sink, policy=policy, box_of=box_of)


def append(group: Group, text: str) -> None:
    """An event for each word, with its first letter as the key."""
    for body in bodies(text):
        group.feed.append("a", [body], key=body[:1].decode())


async def test_an_event_that_fails_too_often_is_a_dead_letter_and_so_are_the_next_of_its_key(tmp_path: Path) -> None:
    group = group_of(tmp_path, handler := Failing())
    append(group, "a1 b? c1 b2 a2 b3 c2")
    await group.run(7)
    assert sorted(handler.handled) == bodies("a1 a2 c1 c2")
    letters = sorted(await group.letters(), key=lambda kept: kept.letter.sequence)
    found = [(kept.letter.body, kept.letter.attempts, kept.letter.error) for kept in letters]
    unseen = "an earlier event of its key became a dead letter"
    assert found == [(b"b?", 3, "ValueError: no b?"), (b"b2", 0, unseen), (b"b3", 0, unseen)]
    assert group.counted == 3, "metrics and log count them"
    await group.beside.close()


async def test_without_a_time_to_be_parked_a_key_continues_behind_its_dead_letter(tmp_path: Path) -> None:
    group = group_of(tmp_path, handler := Failing(), park_s=0)
    append(group, "b? b2")
    await group.run(2)
    assert (handler.handled, await group.buried()) == (bodies("b2"), bodies("b?"))
    await group.beside.close()


async def test_of_several_events_in_a_call_only_the_one_that_fails_is_to_blame(tmp_path: Path) -> None:
    handled = list[bytes]()

    async def handle(events: Events) -> None:
        found = [event["body"] for event in events]
        if any(b"?" in body for body in found):
            raise ValueError("no")
        handled.extend(found)

    group = group_of(tmp_path, handle, events_max=4, park_s=0, window=16)
    append(group, "a1 a2 a? a3")
    await group.run(4)
    assert (handled, await group.buried()) == (bodies("a1 a2 a3"), bodies("a?"))
    await group.beside.close()


TOO_MANY = "more than 2 of the last 10 events could not be processed"


async def test_too_many_parked_events_stop_the_partition_and_it_stays_so(tmp_path: Path) -> None:
    group = group_of(tmp_path, Failing(), share_max=0.2, park_s=0, max=1)
    append(group, "a? b? c? d? e? f? g? h?")
    for _ in range(3):
        with pytest.raises(SinkError, match=TOO_MANY):
            await group.run(8)
        assert await group.buried() == bodies("a? b?")
    await group.beside.close()


async def test_parked_events_whose_letters_were_never_written_do_not_count_in_the_next_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(tmp_path, handler := Failing(), share_max=0.2, park_s=0, attempts=1)
    append(group, "a? b? c? d? e1 f1 g?")

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(WriterBesideBox, "_write_letters", hang)
        with pytest.raises(SinkError, match=TOO_MANY):
            await group.run(7)  # the calls run side by side, and the one that is too many ends the others
    assert await group.buried() == []
    group.sink._function = _correct(handler, set(bodies("a? b? c? d?")))  # type: ignore[union-attr]
    await group.run(7)
    assert await group.buried() == bodies("g?")
    await group.beside.close()


def _correct(handler: Failing, corrected: set[bytes]) -> Callable[[Event], Any]:
    async def handle(event: Event) -> None:
        if event["body"] not in corrected:
            await handler(event)

    return handle


async def test_a_retry_that_repeats_good_events_parks_no_more_of_the_bad_ones(tmp_path: Path) -> None:
    handler = Failing()
    group = group_of(tmp_path, handler, share_max=0.2, park_s=0, attempts=1, max=2, window=40)
    group.sink._function = _always_stuck(handler, b"s")  # type: ignore[union-attr]
    append(group, "s " + " ".join(f"{key}1" for key in "ghijklmnopqrtuvw") + " a? b? c? d?")
    for _ in range(3):
        with pytest.raises(SinkError, match=TOO_MANY):
            await group.run(21)
        assert await group.buried() == bodies("a? b?")
    assert handler.calls[b"w1"] == 3
    await group.beside.close()


async def test_what_was_processed_before_a_claim_lets_it_park_no_more(tmp_path: Path) -> None:
    group = group_of(tmp_path, Failing(), share_max=0.2, park_s=0, max=1)
    append(group, " ".join(f"a{n}" for n in range(20)))
    await group.run(20)
    append(group, "b? c? d?")
    with pytest.raises(SinkError, match=TOO_MANY):
        await group.run(23)
    assert await group.buried() == bodies("b? c?")
    await group.beside.close()


async def test_a_key_that_was_parked_does_not_stop_its_partition_for_good(tmp_path: Path) -> None:
    group = group_of(tmp_path, handler := Failing(), share_max=0.2, attempts=1)
    append(group, "a? a1 a2 a3")
    with pytest.raises(SinkError, match=TOO_MANY):
        await group.run(4)
    await group.run(4)
    assert (await group.buried(), handler.handled) == (bodies("a? a1"), bodies("a2 a3"))
    append(group, " ".join(f"b{n}" for n in range(10)) + " b?")
    await group.run(15)
    append(group, " ".join(f"c{n}" for n in range(10)) + " c? d1")
    await group.run(27)
    assert await group.buried() == bodies("a? a1 b? c?"), "what lies far behind no longer counts"
    await group.beside.close()


async def test_events_that_wait_for_trust_to_become_dead_letters_count_once(tmp_path: Path) -> None:
    group = group_of(tmp_path, Failing(), share_max=0.2, park_s=0, attempts=1)
    assert group.box.sink is not None
    open_letters, refused = group.box.sink.open, 0

    async def open_without_trust(of: Claim) -> SinkWriter:
        letters = await open_letters(of)
        write, tries = letters.write, 0

        async def write_at_the_third_try(output: Output, permit: Permit) -> None:
            nonlocal tries, refused
            tries += 1
            if tries % 3:
                refused += 1
                raise NotTrusted("no trust")
            await write(output, permit)

        letters.write = write_at_the_third_try  # type: ignore[method-assign]
        return letters

    group.box.sink.open = open_without_trust  # type: ignore[method-assign]
    append(group, "a? b1 c? d1")
    await group.run(4)
    assert sorted(await group.buried()) == bodies("a? c?")
    assert refused == 4
    await group.beside.close()


async def test_a_replay_may_park_all_of_its_events_again(tmp_path: Path) -> None:
    group = group_of(tmp_path, Failing(), share_max=0.0, park_s=0)
    group.pipeline += REPLAY
    append(group, "a? b? c?")
    await group.run(3)
    assert sorted(await group.buried()) == bodies("a? b? c?")
    await group.beside.close()


def transform_with(group: Group, rows_of: Callable[[pa.Table], pa.Table]) -> None:
    """rows_of: the output of a batch's events, in place of the events themselves."""

    async def apply(batch: Batch) -> pa.Table:
        return rows_of(batch.table)

    group.transform.yields_events = False
    group.transform.apply = apply  # type: ignore[method-assign]


def counted(events: pa.Table) -> pa.Table:
    """SELECT key, max(sequence) AS sequence, count(*) AS events ... GROUP BY key"""
    found = Counter[str]()
    last = dict[str, Event]()
    for event in events.to_pylist():
        found[event["key"]] += 1
        last[event["key"]] = event
    rows = [{"key": key, "sequence": last[key]["sequence"], "events": found[key]} for key in found]
    return pa.Table.from_pylist(rows)


async def test_events_that_became_one_row_are_handled_or_dead_letters_each(tmp_path: Path) -> None:
    handled = Counter[str]()

    async def handle(row: Event) -> None:
        if row["key"] == "b":
            raise ValueError("no")
        handled[row["key"]] += row["events"]

    group = group_of(tmp_path, handle, window=16)
    group.events_max = 4
    transform_with(group, counted)
    append(group, "a1 b1 b2 b3")
    await group.run_on(4)
    assert (await group.buried(), set(handled)) == (bodies("b1 b2 b3"), {"a"})
    await group.beside.close()


async def test_a_row_of_several_events_that_can_be_handled_one_by_one_is_no_dead_letter(tmp_path: Path) -> None:
    handled = Counter[str]()

    async def handle(row: Event) -> None:
        if row["events"] > 1:
            raise ValueError("not more than one")
        handled[row["key"]] += row["events"]

    group = group_of(tmp_path, handle, window=16)
    group.events_max = 4
    transform_with(group, counted)
    append(group, "b1 b2 b3")
    await group.run_on(3)
    assert (await group.buried(), dict(handled)) == ([], {"b": 3})
    await group.beside.close()


TRIPLED = pa.schema([("sequence", pa.int64()), ("key", pa.string()), ("body", pa.binary()), ("part", pa.int64())])


def tripled(events: pa.Table) -> pa.Table:
    """SELECT sequence, key, explode(array(0, 1, 2)) AS part ..."""
    rows = [(event["sequence"], event["key"], event["body"], n) for event in events.to_pylist() for n in range(3)]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), TRIPLED.types, strict=False)]
    return pa.Table.from_arrays(columns, schema=TRIPLED) if rows else TRIPLED.empty_table()


async def test_an_event_of_several_rows_becomes_one_dead_letter(tmp_path: Path) -> None:
    handled = set[tuple[bytes, int]]()

    async def handle(row: Event) -> None:
        if b"?" in row["body"] and row["part"] > 0:
            raise ValueError("no")
        handled.add((row["body"], row["part"]))

    group = group_of(tmp_path, handle, window=32)
    transform_with(group, tripled)
    append(group, "a? b1 c? d1")
    await group.run_on(4)
    assert (await group.buried(), group.counted) == (bodies("a? c?"), 2)
    assert {(body, part) for body in bodies("b1 d1") for part in range(3)} <= handled
    await group.beside.close()


async def test_an_event_of_several_rows_is_no_dead_letter_while_some_of_them_are_handled(tmp_path: Path) -> None:
    """Otherwise a host that dies then leaves those rows to no one: the next owner leaves out the event."""
    calls, may_end = Counter[int](), asyncio.Event()

    async def handle(row: Event) -> None:
        calls[row["part"]] += 1
        if row["part"] == 2 and not may_end.is_set():
            raise ValueError("no")
        if row["part"] == 0:
            await may_end.wait()

    group = group_of(tmp_path, handle, attempts=1)
    transform_with(group, lambda events: tripled(events).append_column("line", pa.array(["x", "y", "z"])))
    group.sink._key = "line"  # type: ignore[union-attr]
    append(group, "a")
    with pytest.raises(OutputSuspected):
        await group.run(1)
    assert (await group.buried(), calls[0]) == ([], 1)
    may_end.set()
    await group.run(1)
    assert (await group.buried(), set(calls), calls[0]) == ([], {0, 1, 2}, 2)
    await group.beside.close()


@pytest.mark.parametrize("columns", [["key", "body"], ["sequence", "key", "body"]])
async def test_a_transform_may_drop_events_and_their_sequences(tmp_path: Path, columns: list[str]) -> None:
    group = group_of(tmp_path, handler := Failing(), park_s=0)
    transform_with(group, lambda events: events.filter(pc.not_equal(events["key"], "x")).select(columns))
    append(group, "x1 a? a2 x2 x3 b?")
    await group.run_on(6)
    assert (sorted(set(handler.handled)), await group.buried()) == (bodies("a2"), bodies("a? b?"))
    await group.beside.close()


async def test_a_sequence_that_is_a_column_of_another_kind_names_no_event(tmp_path: Path) -> None:
    group = group_of(tmp_path, handler := Failing(), park_s=0)
    lists = [{"n": 1}, {"n": 0}]
    transform_with(
        group,
        lambda events: events.select(["key", "body"]).append_column("sequence", [lists[: events.num_rows]]),
    )
    append(group, "a? b1")
    await group.run_on(2)
    assert (set(handler.handled), await group.buried()) == (set(bodies("b1")), bodies("a?"))
    await group.beside.close()


async def test_events_that_pass_as_they_were_park_their_key_though_others_are_dropped(tmp_path: Path) -> None:
    group = group_of(tmp_path, handler := Failing())
    transform_with(group, lambda events: events.filter(pc.not_equal(events["key"], "x")))
    append(group, "x1 b? b2 x2")
    await group.run(4)
    assert (handler.handled, await group.buried()) == ([], bodies("b? b2"))
    await group.beside.close()


async def test_a_row_whose_event_is_not_known_is_handled_though_its_key_is_parked(tmp_path: Path) -> None:
    group = group_of(tmp_path, handler := Failing())

    def rows_of(events: pa.Table) -> pa.Table:
        return events.filter(pc.not_equal(events["key"], "x")).select(["sequence", "key", "body"])

    transform_with(group, rows_of)
    append(group, "b? b2 x1 b3")
    await group.run(4)
    buried = await group.buried()
    assert b"b3" in handler.handled
    assert sorted(handler.handled + buried) == bodies("b2 b3 b?")
    await group.beside.close()


async def test_a_dead_letter_is_the_event_and_not_what_the_transform_made_of_it(tmp_path: Path) -> None:
    group = group_of(tmp_path, Failing())
    transform_with(
        group, lambda events: events.select(["sequence", "body"]).append_column("key", [["z"] * len(events)])
    )
    append(group, "a1 b?")
    await group.run(2)
    (kept,) = await group.letters()
    assert (kept.letter.body, kept.letter.sequence, kept.letter.key) == (b"b?", 1, "b")
    await group.beside.close()


async def test_letters_are_written_once_though_a_host_dies_before_the_position_passes_them(tmp_path: Path) -> None:
    group = group_of(tmp_path, handler := Failing(), park_s=0)
    append(group, "a1 b? c1 d? e1 f1")
    group.sink._function = _once_stuck(handler, b"c1")  # type: ignore[union-attr]
    running = asyncio.create_task(group.run(6))

    async def has_come_so_far() -> bool:
        return handler.calls[b"c1"] > 0 and len(await group.buried()) == 2

    await until_async(has_come_so_far)
    running.cancel()
    await asyncio.wait({running})
    assert set(await group.buried()) == set(bodies("b? d?"))
    tried = handler.calls.copy()
    await group.run(6)
    assert sorted(await group.buried()) == bodies("b? d?")
    assert set(handler.handled) == set(bodies("a1 c1 e1 f1"))
    assert (handler.calls[b"d?"], tried[b"d?"]) == (3, 3), "its letter is there: it is not handled again"
    await group.beside.close()


async def test_an_event_beside_a_buried_one_becomes_a_dead_letter_without_a_search(tmp_path: Path) -> None:
    group = group_of(tmp_path, handler := Failing(), park_s=0)
    transform_with(group, lambda events: events.append_column("line", pa.array(["x"] * events.num_rows)))
    append(group, "a? b?")
    group.sink._function = _once_stuck(handler, b"a?")  # type: ignore[union-attr]
    running = asyncio.create_task(group.run(2))
    await until_async(group.buried)
    running.cancel()
    await asyncio.wait({running})
    await group.run(2)
    assert sorted(await group.buried()) == bodies("a? b?")
    await group.beside.close()


def _once_stuck(handler: Failing, body: bytes) -> Callable[[Event], Any]:
    async def handle(event: Event) -> None:
        if event["body"] == body and not handler.calls[body]:
            handler.calls[body] += 1
            await asyncio.Event().wait()
        await handler(event)

    return handle


def _always_stuck(handler: Failing, body: bytes) -> Callable[[Event], Any]:
    async def handle(event: Event) -> None:
        if event["body"] == body:
            await asyncio.Event().wait()
        await handler(event)

    return handle


@pytest.mark.parametrize("box_of", [log_box, files_box, lines_box])
async def test_letters_of_an_earlier_batch_may_come_after_those_of_a_later_one(
    tmp_path: Path, box_of: Callable[[Path], LetterBox]
) -> None:
    late, handled = asyncio.Event(), list[bytes]()

    async def handle(event: Event) -> None:
        if event["body"] == b"stuck" and not late.is_set():
            await asyncio.Event().wait()
        if event["body"] == b"early?":
            await until_async(group.buried)
        if event["body"].endswith(b"?"):
            raise ValueError("no")
        handled.append(event["body"])

    group = group_of(tmp_path, handle, box_of=box_of, attempts=1)
    append(group, "stuck early? b late? c d")
    running = asyncio.create_task(group.run(6))

    async def are_buried() -> bool:
        return len(await group.buried()) == 2

    await until_async(are_buried)
    running.cancel()
    await asyncio.wait({running})
    late.set()
    await group.run(6)
    assert sorted(await group.buried()) == bodies("early? late?")
    assert set(handled) == set(bodies("stuck b c d"))
    await group.beside.close()
