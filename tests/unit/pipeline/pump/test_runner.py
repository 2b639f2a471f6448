"""One partition: three stages side by side, at most one unsettled batch, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

import pyarrow as pa
import pytest
from lab.simulation.group import until
from lab.simulation.loop import VirtualClock

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.errors import (
    Ambiguous,
    EngineUnavailable,
    FeedError,
    FeedUnavailable,
    Fenced,
    MalformedRecord,
    NotTrusted,
    PipelineError,
    PoisonEvent,
    PositionLost,
    TransformError,
)
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import PartitionEnded
from leasehold.pipeline.limits import BatchLimits, Budget
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.run_parts import DeliveredBatch, FailingEvents, ReadAhead, Reporting, Source
from leasehold.pipeline.pump.runner import Runner
from leasehold.pipeline.pump.tap import Tap
from leasehold.pipeline.sink import CloseReason, Output, Permit, SinkWriter
from leasehold.pipeline.tracing import NO_CONTEXTS, Contexts, TraceContext, TransformedBatch
from leasehold.pipeline.transform import Transform as TransformBase

PARENT = f"00-{7:032x}-{1:016x}-01"


class Trust:
    """A permit that can be taken away. checks: how often it was asked."""

    def __init__(self) -> None:
        self.given = asyncio.Event()
        self.given.set()

    def check(self) -> None:
        if not self.given.is_set():
            raise NotTrusted("no trust")

    async def wait_until_granted(self) -> None:
        await self.given.wait()


class Writer(SinkWriter):
    """Takes `takes_s` for a write. began, outputs: what was sent, and what has arrived."""

    position: str | None = None
    state = ""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s
        self.began: list[Output] = []
        self.outputs: list[Output] = []
        self.at_once = self.most_at_once = 0
        self.before_send: Callable[[], None] = lambda: None
        self.error: BaseException | None = None

    async def write(self, output: Output, permit: Permit) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.before_send()
            permit.check()
            self.began.append(output)
            await asyncio.sleep(self.takes_s)
            if self.error is not None:
                raise self.error
            self.outputs.append(output)
            self.position = output.to
        finally:
            self.at_once -= 1

    async def end(self, permit: Permit) -> None: ...

    async def close(self, reason: CloseReason) -> None: ...

    @property
    def numbers(self) -> list[int]:
        return [number for output in self.outputs for number in output.table["sequence"].to_pylist()]


class Transform(TransformBase):
    """Passes events on after `takes_s`; fails on the sequences in `poison`, and with `error` where there is one."""

    description = "slow"

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s
        self.poison: set[int] = set()
        self.error: BaseException | None = None
        self.batches: list[Batch] = []

    async def prepare(self) -> None: ...

    async def apply(self, batch: Batch) -> pa.Table:
        self.batches.append(batch)
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        for before, sequence in enumerate(batch.table["sequence"].to_pylist()):
            if sequence in self.poison:
                raise PoisonEvent(f"event {sequence}", before=before, sequence=sequence)
        return batch.table

    async def close(self) -> None: ...


class Scripted(MemoryChangeFeed):
    """Yields what it holds, then raises `error`, or ends where that is None."""

    error: BaseException | None = None
    is_closed = False

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        pages = super().open(partition, continuation)
        try:
            for _ in range(len(self._logs[partition].events)):
                yield await anext(pages)
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True
            await pages.aclose()


class Forgetful(MemoryChangeFeed):
    """Reads on where it was told to end, as over a client that catches its cancellation."""

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        pages = super().open(partition, continuation)
        first = await anext(pages)
        yield first
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            yield first


class Case:
    """A runner over a feed of one-event pages, and what it did."""

    def __init__(self, events: int = 0, *, feed: MemoryChangeFeed | None = None, **settings: Any) -> None:
        self.feed = feed or MemoryChangeFeed("a", page_events_max=1)
        self.append(events)
        self.writer, self.transform, self.trust = Writer(), Transform(), Trust()
        self.progress = Progress()
        self.budget = Budget()
        self.clock = VirtualClock()
        self.delivered: list[DeliveredBatch] = []
        self.stopping = asyncio.Event()
        self.settings = {"limits": BatchLimits(events_max=1), "buffer_bytes_max": 1 << 20, **settings}

    def append(self, events: int) -> None:
        self.feed.append("a", [b"x"] * events)

    async def kept(self, delivered: DeliveredBatch) -> None:
        self.delivered.append(delivered)

    def runner(self, **settings: Any) -> Runner:
        """settings: of its arguments, or of what they are made of."""
        given = {**self.settings, **settings}
        usual = {
            "source": Source(self.feed, "a", given.pop("epoch", 1)),
            "transform": self.transform,
            "writer": self.writer,
            "permit": self.trust,
            "read_ahead": ReadAhead(
                limits=given.pop("limits"),
                bytes_max=given.pop("buffer_bytes_max"),
                budget=given.pop("budget", self.budget),
                plan=given.pop("plan", None),
            ),
            "clock": self.clock,
            "reporting": Reporting(
                progress=self.progress, tap=given.pop("tap", Tap()), tracer=given.pop("tracer", None)
            ),
            "delivered": self.kept,
            "failing": FailingEvents(letters=given.pop("letters", None), refusals=given.pop("refusals", None)),
        }
        return Runner(**usual | given)

    def started(self) -> asyncio.Task[PartitionEnded | None]:
        return asyncio.create_task(self.runner().run(self.stopping))

    async def stopped(self, running: asyncio.Task[PartitionEnded | None]) -> None:
        self.stopping.set()
        assert await running is None
        assert_nothing_left()


def assert_nothing_left() -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.virtual
async def test_everything_is_delivered_once_in_order_and_told_before_the_next_is_sent() -> None:
    case = Case(20)
    sent_when_told: list[int] = []

    async def delivered(one: DeliveredBatch) -> None:
        await asyncio.sleep(0.5)
        sent_when_told.append(len(case.writer.began))

    running = asyncio.create_task(case.runner(delivered=delivered).run(case.stopping))
    await until(lambda: len(sent_when_told) == 20)
    assert case.writer.numbers == list(range(20))
    assert sent_when_told == list(range(1, 21))
    await case.stopped(running)


@pytest.mark.virtual
async def test_work_begins_where_the_sink_stands() -> None:
    case = Case(5)
    case.writer.position = "3"
    running = case.started()
    await until(lambda: case.writer.numbers == [3, 4])
    await case.stopped(running)


class Ranked(MemoryChangeFeed):
    """Tells readers by their epochs, and yields to a later one behind what it holds."""

    opened_as = 0

    async def open_as(self, epoch: int, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        self.opened_as = epoch
        async with aclosing(self.open(partition, continuation)) as pages:
            for _ in range(len(self._logs[partition].events)):
                yield await anext(pages)
        raise Fenced("a reader with a higher epoch has the partition", epoch=8)


@pytest.mark.virtual
async def test_a_feed_that_tells_readers_by_rank_is_opened_with_the_owners_epoch_and_its_fence_ends_the_run() -> None:
    case = Case(3, feed=(feed := Ranked("a", page_events_max=1)))
    with pytest.raises(Fenced):
        await case.runner(epoch=7).run(case.stopping)
    assert feed.opened_as == 7
    assert case.writer.numbers == [0, 1, 2]
    assert_nothing_left()


@pytest.mark.virtual
async def test_one_batch_is_transformed_while_the_one_before_is_delivered() -> None:
    case = Case(10)
    case.transform.takes_s = case.writer.takes_s = 1.0
    running = case.started()
    await until(lambda: len(case.writer.outputs) == 10)
    assert case.clock.monotonic() == pytest.approx(11, abs=0.1)
    assert case.writer.most_at_once == 1
    await case.stopped(running)


@pytest.mark.virtual
async def test_pages_are_read_ahead_while_a_batch_is_transformed() -> None:
    case = Case(1, limits=BatchLimits())
    case.transform.takes_s = 1.0
    running = case.started()
    await asyncio.sleep(0.5)
    case.append(7)
    await until(lambda: len(case.writer.outputs) == 2)
    assert [output.events for output in case.writer.outputs] == [1, 7]
    await case.stopped(running)


@pytest.mark.virtual
async def test_what_is_read_ahead_is_bounded_in_bytes() -> None:
    case = Case(200)
    size = (await anext(case.feed.open("a", None))).bytes
    case.settings["buffer_bytes_max"] = 10 * size
    case.trust.given.clear()
    runner = case.runner()
    running = asyncio.create_task(runner.run(case.stopping))
    await asyncio.sleep(60)
    assert 8 * size < runner._buffer.bytes <= 10 * size
    assert len(case.transform.batches) == 3  # one waits to be sent, one behind it, one to be put there
    case.trust.given.set()
    await until(lambda: case.writer.numbers == list(range(200)))
    await case.stopped(running)


@pytest.mark.virtual
async def test_a_stop_lets_the_batch_that_is_being_sent_finish_and_drops_what_is_behind_it() -> None:
    case = Case(10)
    case.writer.takes_s = 2.0
    running = case.started()
    await asyncio.sleep(1)
    await case.stopped(running)
    assert case.clock.monotonic() == 2
    assert case.writer.numbers == [0]
    assert len(case.delivered) == 1


@pytest.mark.virtual
async def test_a_feed_that_forgets_it_was_cancelled_holds_up_no_stop() -> None:
    case = Case(1, feed=Forgetful("a"))
    running = case.started()
    await until(lambda: case.delivered)
    async with asyncio.timeout(1):
        await case.stopped(running)


@pytest.mark.virtual
@pytest.mark.parametrize("busy", ["idle", "transforming", "without trust", "at once"])
async def test_a_stop_takes_no_time_where_nothing_is_being_sent(busy: str) -> None:
    case = Case(0 if busy == "idle" else 3)
    case.transform.takes_s = 500.0 if busy == "transforming" else 0.0
    if busy == "without trust":
        case.trust.given.clear()
    running = case.started()
    if busy != "at once":
        await asyncio.sleep(1)
    began = case.clock.monotonic()
    await case.stopped(running)
    assert case.clock.monotonic() == began
    assert case.writer.began == []


@pytest.mark.virtual
async def test_what_precedes_a_poison_event_is_delivered_before_the_error_is_raised() -> None:
    case = Case(10, limits=BatchLimits(events_max=10), feed=MemoryChangeFeed("a"))
    case.transform.poison = {4}
    with pytest.raises(PoisonEvent, match="event 4"):
        await case.started()
    assert case.writer.numbers == [0, 1, 2, 3]
    assert case.writer.position == "4"
    assert_nothing_left()


@pytest.mark.virtual
async def test_a_poison_event_that_comes_first_has_nothing_before_it() -> None:
    case = Case(2)
    case.transform.poison = {0}
    with pytest.raises(PoisonEvent):
        await case.started()
    assert case.writer.began == []


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FeedUnavailable("away"), FeedUnavailable),
        (MalformedRecord("line 7"), MalformedRecord),
        (ZeroDivisionError("a connector's fault"), PipelineError),
        (asyncio.CancelledError("nobody asked for it"), PipelineError),
        (None, PipelineError),
    ],
)
async def test_an_error_of_the_feed_is_raised_once_everything_before_it_is_delivered(
    error: BaseException | None, raised: type[Exception]
) -> None:
    feed = Scripted("a", page_events_max=1)
    feed.error = error
    case = Case(8, feed=feed)
    case.transform.takes_s = case.writer.takes_s = 1.0
    with pytest.raises(raised) as told:
        await case.started()
    assert type(told.value) is raised
    assert case.writer.numbers == list(range(8))
    assert feed.is_closed
    assert_nothing_left()


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (TransformError("no such column"), TransformError),
        (EngineUnavailable("the JVM died"), EngineUnavailable),
        (ZeroDivisionError("a fault"), PipelineError),
        (asyncio.CancelledError("of somebody else's job"), PipelineError),
    ],
)
async def test_an_error_of_the_transform_is_raised_once_everything_before_it_is_delivered(
    error: BaseException, raised: type[Exception]
) -> None:
    case = Case(3)
    case.writer.takes_s = 5.0
    running = case.started()
    await asyncio.sleep(1)
    case.append(1)
    case.transform.error = error
    with pytest.raises(raised) as told:
        await running
    assert type(told.value) is raised
    assert case.writer.numbers == [0, 1, 2]
    assert_nothing_left()


class Lagging(MemoryChangeFeed):
    """Yields the pages given, whatever was read before, as a lagging replica may."""

    pages: tuple[Page, ...] = ()

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        for page in self.pages:
            yield page
        await asyncio.Event().wait()


def lagging(*pages: Page) -> Lagging:
    feed = Lagging("a")
    feed.pages = pages
    return feed


def numbered(first: int, count: int, to: int) -> Page:
    return Page(event_table("a", range(first, first + count)), str(to))


@pytest.mark.virtual
@pytest.mark.parametrize("to", [4, 3])
async def test_a_page_that_ends_at_or_before_its_start_is_refused_and_what_came_before_is_delivered(to: int) -> None:
    case = Case(feed=lagging(numbered(0, 4, 4), numbered(2, 2, to)), limits=BatchLimits())
    with pytest.raises(FeedError) as refused:
        await case.started()
    assert type(refused.value) is FeedError
    for part in ("feed 'memory", "partition 'a'", "'4'", f"'{to}'", "set the lease to a position"):
        assert part in str(refused.value)
    assert case.writer.numbers == [0, 1, 2, 3]
    assert case.transform.batches[-1].to == "4"
    assert_nothing_left()


@pytest.mark.virtual
async def test_the_first_page_is_compared_with_where_the_sink_stands() -> None:
    case = Case(feed=lagging(numbered(3, 1, 4)))
    case.writer.position = "4"
    with pytest.raises(FeedError, match="which is not after it"):
        await case.started()
    assert case.transform.batches == case.writer.began == []


@pytest.mark.virtual
async def test_a_cut_inside_a_page_that_does_not_move_forward_is_refused() -> None:
    page = Page(event_table("a", range(1, 5)), "5", lambda n: "1")
    case = Case(feed=lagging(page), limits=BatchLimits(events_max=10))
    case.writer.position = "1"
    case.transform.poison = {3}
    with pytest.raises(FeedError, match="2 events read from '1' end at '1', which is not after it"):
        await case.started()
    assert case.writer.began == []


@pytest.mark.virtual
async def test_a_page_without_events_may_stay_where_it_is_and_not_fall_back() -> None:
    case = Case(feed=lagging(numbered(0, 2, 2), numbered(2, 0, 2), numbered(2, 1, 3), numbered(3, 0, 2)))
    with pytest.raises(FeedError, match="0 events read from '3' end at '2'"):
        await case.started()
    assert case.writer.numbers == [0, 1, 2]


@pytest.mark.virtual
async def test_positions_that_the_feed_cannot_compare_are_not_refused() -> None:
    """An event hub's offset alone, which only an operator or an import writes."""

    class Offsets(Lagging):
        def compare(self, a: str | None, b: str | None) -> int:
            if "@" in (a or ""):
                raise PositionLost("an offset alone has no order")
            return super().compare(a, b)

    feed = Offsets("a")
    feed.pages = (numbered(7, 1, 8),)
    case = Case(feed=feed)
    case.writer.position = "@70"
    running = case.started()
    await until(lambda: case.writer.numbers == [7])
    await case.stopped(running)


@pytest.mark.virtual
async def test_an_end_that_is_no_position_is_refused() -> None:
    case = Case(feed=lagging(Page(event_table("a", range(4)), "beyond")))
    with pytest.raises(PositionLost, match="'beyond' is not a position"):
        await case.started()
    assert case.writer.began == []


@pytest.mark.virtual
async def test_an_ended_partition_is_delivered_to_its_end_and_then_told() -> None:
    case = Case(5)
    case.feed.split("a", ["b", "c"])
    case.writer.takes_s = 1.0
    ended = await case.started()
    assert ended is not None
    assert [child for child, _ in ended.children] == ["b", "c"]
    assert case.writer.numbers == list(range(5))
    assert_nothing_left()


@pytest.mark.virtual
async def test_an_error_of_the_sink_ends_the_run_with_nothing_sent_behind_it() -> None:
    case = Case(5)
    case.writer.error = Ambiguous("no answer")
    with pytest.raises(Ambiguous):
        await case.started()
    assert len(case.writer.began) == 1
    assert_nothing_left()


@pytest.mark.virtual
async def test_without_trust_nothing_is_sent_and_the_same_bytes_go_out_when_it_is_back() -> None:
    case = Case(3)
    case.trust.given.clear()
    running = case.started()
    await asyncio.sleep(100)
    assert case.writer.began == []
    case.trust.given.set()
    await until(lambda: case.writer.numbers == [0, 1, 2])
    await case.stopped(running)


@pytest.mark.virtual
async def test_trust_that_ends_inside_the_sink_before_the_send_costs_only_time() -> None:
    case = Case(3)

    def lapses() -> None:
        case.writer.before_send = lambda: None
        case.trust.given.clear()

    case.writer.before_send = lapses
    running = case.started()
    await asyncio.sleep(10)
    assert case.writer.began == []
    case.trust.given.set()
    await until(lambda: case.writer.numbers == [0, 1, 2])
    assert len(case.transform.batches) == 3  # nothing was made again
    await case.stopped(running)


@pytest.mark.virtual
async def test_progress_tells_which_stage_works_since_when_and_waiting_is_no_work() -> None:
    case = Case()
    case.transform.takes_s, case.writer.takes_s = 2.0, 3.0
    running = case.started()
    await asyncio.sleep(10)
    assert (case.progress.busy, case.progress.is_idle) == ({}, True)
    case.append(1)
    await asyncio.sleep(1)
    assert case.progress.busy == {"transform": 10}
    await asyncio.sleep(2)
    assert (case.progress.busy, case.progress.is_idle) == ({"deliver": 12}, False)
    await asyncio.sleep(5)
    assert (case.progress.busy, case.progress.is_idle) == ({}, True)
    case.trust.given.clear()
    case.append(1)
    await asyncio.sleep(50)
    assert (case.progress.busy, case.progress.is_idle) == ({}, False)
    assert (case.progress.events, case.progress.batches) == (1, 1)
    await case.stopped(running)


@pytest.mark.virtual
@pytest.mark.parametrize("takes_s", [0.0, 0.4])
async def test_wherever_it_is_cancelled_nothing_is_left_and_nothing_is_sent_afterwards(takes_s: float) -> None:
    ended_by_itself = False
    step = 0
    while not ended_by_itself:
        feed = Scripted("a", page_events_max=1)
        feed.error = FeedUnavailable("away")
        case = Case(2, feed=feed)
        case.transform.takes_s = case.writer.takes_s = takes_s
        running = case.started()
        for _ in range(step):
            await asyncio.sleep(0 if not takes_s else takes_s / 4)
        running.cancel()
        await asyncio.wait({running})
        assert_nothing_left()
        assert case.progress.busy == {}
        began = len(case.writer.began)
        await asyncio.sleep(10)
        assert len(case.writer.began) == began
        ended_by_itself = not running.cancelled()
        if ended_by_itself:
            assert isinstance(running.exception(), FeedUnavailable)
        step += 1
    assert step > 5


# Traces


class Tracer:
    """Gives each batch and each delivery a context of its own."""

    reads_contexts = True

    def __init__(self) -> None:
        self.begun: list[TransformedBatch] = []
        self.deliveries: list[str] = []

    def begin(self, batch: TransformedBatch) -> TraceContext | None:
        self.begun.append(batch)
        return TraceContext(f"process {batch.to}")

    def begin_delivery(self, to: str, place: str | None) -> TraceContext | None:
        self.deliveries.append(to)
        return TraceContext(f"deliver {to}")


class Bearing(MemoryChangeFeed):
    """Its first event bears a context."""

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        async for page in super().open(partition, continuation):
            pairs = [("traceparent", PARENT)] if page.to == "1" else None
            place = page.events.schema.get_field_index("properties")
            field = page.events.schema.field(place)
            yield Page(page.events.set_column(place, field, pa.array([pairs], field.type)), page.to)


@pytest.mark.virtual
async def test_output_is_sent_with_the_context_of_its_delivery() -> None:
    case, tracer = Case(2, feed=Bearing("a", page_events_max=1)), Tracer()
    running = asyncio.create_task(case.runner(tracer=tracer).run(case.stopping))
    await until(lambda: len(case.writer.outputs) == 2)
    assert [output.trace for output in case.writer.outputs] == [TraceContext("deliver 1"), TraceContext("deliver 2")]
    assert [(batch.start, batch.to, batch.events, batch.rows) for batch in tracer.begun] == [
        (None, "1", 1, 1),
        ("1", "2", 1, 1),
    ]
    assert [batch.contexts for batch in tracer.begun] == [Contexts((TraceContext(PARENT),), are_one=True), NO_CONTEXTS]
    await case.stopped(running)


@pytest.mark.virtual
async def test_output_that_waits_for_trust_keeps_its_context() -> None:
    case, tracer = Case(1), Tracer()
    case.writer.before_send = lambda: (
        case.trust.given.clear() if not case.writer.began and case.clock.monotonic() < 1 else None
    )
    running = asyncio.create_task(case.runner(tracer=tracer).run(case.stopping))
    await asyncio.sleep(2)
    assert case.writer.outputs == []
    case.trust.given.set()
    await until(lambda: case.writer.outputs)
    assert tracer.deliveries == ["1"], "identical bytes go out when trust is back"
    await case.stopped(running)


@pytest.mark.virtual
async def test_properties_are_not_looked_at_unless_contexts_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    case, tracer = Case(1), Tracer()
    tracer.reads_contexts = False
    monkeypatch.setattr("leasehold.pipeline.pump.transforming.contexts_in", None)
    running = asyncio.create_task(case.runner(tracer=tracer).run(case.stopping))
    await until(lambda: case.writer.outputs)
    await case.stopped(running)
