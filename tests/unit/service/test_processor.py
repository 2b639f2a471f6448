"""The embeddable face: started when work has begun, stopped once and for all, closed whatever failed."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest
from lab.simulation.group import HostClock, logger, until
from lab.simulation.weather import Container, Fate, Outlet, Request, Source, Weather
from patience import PATIENCE_S, until_async

from leasehold.leases.bootstrap import info_id
from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.errors import DuplicateHost, GroupMismatch
from leasehold.leases.lease import Lease
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import MemoryDestination
from leasehold.pipeline.errors import EngineUnavailable, SinkNotFound, SinkRejected, SinkUnavailable, TransformError
from leasehold.pipeline.transform import NoTransform
from leasehold.service.errors import StartFailed
from leasehold.service.notifications import LeaseAcquired, LeaseReleased, Notifications
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore


class Case:
    """A processor over parts that count how often they are prepared and closed."""

    def __init__(self) -> None:
        self.weather = Weather()
        self.store = Container(self.weather)
        self.feed = Source("ab")
        self.feed.weather = self.weather
        self.destination = MemoryDestination()
        self.sink = Outlet(self.destination, self.weather)
        self.transform = NoTransform()
        self.calls: list[str] = []
        self.errors: dict[str, BaseException] = {}
        self.log: list[dict[str, Any]] = []
        for name in ("store", "feed", "sink", "transform"):
            for method in ("prepare", "close"):
                self._counted(name, method)

    def _counted(self, name: str, method: str) -> None:
        part = getattr(self, name)
        if inspect.iscoroutinefunction(getattr(part, method, None)):

            async def called() -> None:
                self.calls.append(f"{name}.{method}")
                await asyncio.sleep(1)
                if (error := self.errors.get(f"{name}.{method}")) is not None:
                    raise error

            setattr(part, method, called)

    def processor(self, host: str = "host-a", *, on: Notifications | None = None, **settings: Any) -> ProcessorCore:
        pipeline = PipelineParts(name="bank", feed=self.feed, sink=self.sink, transform=self.transform, **settings)
        return ProcessorCore([pipeline], self.store, host=host, clock=HostClock(), log=logger(self.log), on=on)

    @property
    def closed(self) -> list[str]:
        return sorted(call for call in self.calls if call.endswith("close"))


ALL_CLOSED = ["feed.close", "sink.close", "store.close", "transform.close"]


def assert_nothing_left() -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.virtual
async def test_it_has_started_when_leases_are_worked_on_and_has_stopped_when_they_are_released() -> None:
    case = Case()
    processor = case.processor()
    await processor.start()
    assert sorted(processor.host.workers) == [("bank", "a"), ("bank", "b")]
    case.feed.append("a", [b"0"])
    await until(lambda: len(case.destination.commits) == 1)
    await processor.stop()
    await processor.wait_until_ended()
    stored = await case.store.list(lease_prefix("bank"))
    leases = sorted((decode_lease(each.id, each.body) for each in stored), key=lambda lease: lease.partition)
    assert [(lease.partition, lease.owner, lease.continuation) for lease in leases] == [
        ("a", None, "1"),
        ("b", None, None),
    ]
    assert case.closed == ALL_CLOSED
    assert_nothing_left()


@pytest.mark.virtual
async def test_it_logs_what_it_has_delivered_of_each_pipeline_when_it_stops() -> None:
    case = Case()
    processor = case.processor()
    await processor.start()
    case.feed.append("a", [b"0", b"1"])
    case.feed.append("b", [b"2"])
    await until(lambda: processor.stats.events["bank"] == 3)
    await processor.stop()
    (summary,) = [line for line in case.log if line["event"] == "pipeline summary"]
    assert (summary["pipeline"], summary["events"], summary["rows"], summary["dead_letters"]) == ("bank", 3, 3, 0)


@pytest.mark.virtual
async def test_while_it_waits_until_idle_it_logs_how_many_partitions_have_work_left() -> None:
    case = Case()
    processor = case.processor()
    await processor.keeper.create(Lease(pipeline="bank", partition="a"))
    case.feed.append("a", [b"0", b"1", b"2"])
    waiting = asyncio.create_task(processor.idle())
    await until(lambda: any(line["event"] == "not idle yet" for line in case.log))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    line = next(line for line in case.log if line["event"] == "not idle yet")
    assert (line["partitions_behind"], line["partitions_without_lease"], line["unknown"]) == (1, 1, 0)
    await processor.stop()


@pytest.mark.virtual
async def test_it_knows_whether_it_has_seen_another_host_at_work() -> None:
    case, other = Case(), Case()
    other.store = case.store
    first, second = case.processor("host-a"), other.processor("host-b")
    await first.start()
    await until(lambda: first.host.balancer.reader.host_scan is not None)
    assert not first.host.balancer.has_met_others
    await second.start()
    await until(lambda: first.host.balancer.has_met_others and second.host.balancer.has_met_others)
    await second.stop()
    await first.stop()
    assert first.host.balancer.has_met_others


@pytest.mark.virtual
async def test_stopping_twice_or_at_once_closes_everything_once() -> None:
    case = Case()
    processor = case.processor()
    await processor.start()
    await asyncio.gather(processor.stop(), processor.stop())
    await processor.stop()
    assert case.closed == ALL_CLOSED


@pytest.mark.virtual
async def test_what_was_never_started_can_be_stopped() -> None:
    case = Case()
    await case.processor().stop()
    assert case.closed == ALL_CLOSED


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("call", "error"),
    [("sink.prepare", SinkRejected("no such schema")), ("transform.prepare", TransformError("bad SQL"))],
)
async def test_a_part_that_is_not_ready_fails_the_start_and_everything_is_closed(call: str, error: Exception) -> None:
    case = Case()
    case.errors[call] = error
    with pytest.raises(StartFailed, match=str(error)):
        await case.processor().start()
    assert case.closed == ALL_CLOSED
    assert not case.store._documents
    assert_nothing_left()


@pytest.mark.virtual
async def test_a_sink_that_does_not_answer_once_is_asked_again() -> None:
    case = Case()
    case.errors["sink.prepare"] = SinkUnavailable("no answer in time")
    asyncio.get_running_loop().call_later(1.1, case.errors.clear)
    await (processor := case.processor()).start()
    assert case.calls.count("sink.prepare") == 2
    await processor.stop()


@pytest.mark.virtual
async def test_a_start_waits_for_a_sink_that_is_away_and_says_so() -> None:
    case = Case()
    case.errors["sink.prepare"] = SinkUnavailable("no answer in time")
    processor = case.processor()
    starting = asyncio.create_task(processor.start())
    await asyncio.sleep(600)
    assert not starting.done()
    assert not processor.view.health().is_ready
    waits = [entry for entry in case.log if entry["event"] == "waiting for a sink"]
    assert waits[0]["error"] == "no answer in time"
    assert 1 < len(waits) < 12
    assert 100 < case.calls.count("sink.prepare") < 200  # three attempts in a balance interval
    assert not case.store._documents
    case.errors.clear()
    await starting
    assert [entry["pipeline"] for entry in case.log if entry["event"] == "sink recovered"] == ["bank"]
    await processor.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("other", [{}, {"transform.prepare": TransformError("bad SQL")}])
async def test_a_start_does_not_wait_for_a_sink_whose_address_leads_nowhere_or_beside_another_problem(
    other: dict[str, Exception],
) -> None:
    case = Case()
    unavailable = SinkUnavailable if other else SinkNotFound
    case.errors |= {"sink.prepare": unavailable("no answer in time"), **other}
    with pytest.raises(StartFailed, match="no answer in time"):
        await case.processor().start()
    assert case.calls.count("sink.prepare") == 3
    assert case.closed == ALL_CLOSED


@pytest.mark.virtual
async def test_a_start_that_waits_for_a_sink_can_be_stopped() -> None:
    case = Case()
    case.errors["sink.prepare"] = SinkUnavailable("no answer in time")
    starting = asyncio.create_task(case.processor().start())
    await asyncio.sleep(60)
    starting.cancel()
    await asyncio.wait({starting}, timeout=10)
    assert starting.cancelled()
    assert case.closed == ALL_CLOSED
    assert case.log[-1]["event"] == "stopped before it was ready"
    assert_nothing_left()


@pytest.mark.virtual
async def test_everything_that_is_not_ready_is_told_at_once() -> None:
    case = Case()
    case.errors |= {"sink.prepare": SinkRejected("no schema"), "transform.prepare": TransformError("bad SQL")}
    with pytest.raises(StartFailed, match="2 problems\n  bad SQL\n  no schema"):
        await case.processor().start()


@pytest.mark.virtual
async def test_another_sinks_leases_fail_the_start_and_everything_is_closed() -> None:
    class Other(Outlet):
        identity = "elsewhere"

    first = Case()
    await (processor := first.processor()).start()
    await processor.stop()
    case = Case()
    case.store._documents = first.store._documents
    case.sink.__class__ = Other
    with pytest.raises(GroupMismatch):
        await case.processor().start()
    assert case.closed == ALL_CLOSED
    assert_nothing_left()


class SlowTransform(NoTransform):
    """As one that starts Spark."""

    waits_for = "Spark (local[2])"

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s

    async def prepare(self) -> None:
        await asyncio.sleep(self.takes_s)


@pytest.mark.virtual
async def test_another_sinks_leases_are_refused_before_spark_has_started() -> None:
    class Other(Outlet):
        identity = "elsewhere"

    first = Case()
    await (processor := first.processor()).start()
    await processor.stop()
    case = Case()
    case.store._documents = first.store._documents
    before = dict(case.store._documents)
    case.sink.__class__ = Other
    case.transform = SlowTransform(20)
    started = asyncio.get_running_loop().time()
    with pytest.raises(GroupMismatch):
        await case.processor().start()
    assert asyncio.get_running_loop().time() - started < 5
    assert case.store._documents == before
    assert_nothing_left()


@pytest.mark.virtual
@pytest.mark.parametrize("part", ["sink", "store"])
async def test_what_refuses_without_spark_is_reported_before_spark_has_started(part: str) -> None:
    case = Case()
    case.errors["sink.prepare"] = SinkRejected("no schema")
    if part == "store":
        case.errors.clear()
        case.weather.judge = lambda request: Fate(ends="refused")
    case.transform = SlowTransform(20)
    started = asyncio.get_running_loop().time()
    with pytest.raises(StartFailed):
        await case.processor().start()
    assert asyncio.get_running_loop().time() - started < 5
    assert_nothing_left()


@pytest.mark.virtual
async def test_problems_of_leases_and_sinks_are_reported_together() -> None:
    class Other(Outlet):
        identity = "elsewhere"

    first = Case()
    await (processor := first.processor()).start()
    await processor.stop()
    case = Case()
    case.store._documents = first.store._documents
    case.sink.__class__ = Other
    case.errors["sink.prepare"] = SinkRejected("no schema")
    with pytest.raises(StartFailed, match="2 problems\n  no schema\n  the leases of pipeline 'bank' belong to sink"):
        await case.processor().start()


@pytest.mark.virtual
async def test_a_group_that_cannot_be_read_fails_the_start() -> None:
    case = Case()
    await case.store.create(info_id("bank"), "no group")
    with pytest.raises(StartFailed, match="bank/info"):
        await case.processor().start()
    assert case.closed == ALL_CLOSED
    assert_nothing_left()


@pytest.mark.virtual
async def test_a_start_that_waits_for_spark_says_so_again_and_again() -> None:
    case = Case()
    case.transform = SlowTransform(25)
    await (processor := case.processor()).start()
    await processor.stop()
    waits = [(line["event"], line["waits_for"], line.get("seconds")) for line in case.log if "waits_for" in line]
    assert waits == [
        ("getting ready: Spark takes some seconds to start", "Spark (local[2])", None),
        ("still getting ready", "Spark (local[2])", 10),
        ("still getting ready", "Spark (local[2])", 20),
    ]


def away() -> Case:
    """Spark's server does not answer."""
    case = Case()
    case.transform = SlowTransform(0)
    for method in ("prepare", "close"):
        case._counted("transform", method)
    case.errors["transform.prepare"] = EngineUnavailable("'sc://spark' cannot be used: away", is_away=True)
    return case


@pytest.mark.virtual
async def test_a_start_waits_for_spark_that_is_away_with_a_line_every_ten_seconds() -> None:
    case = away()
    processor = case.processor()
    starting = asyncio.create_task(processor.start())
    await asyncio.sleep(600)
    assert not starting.done()
    assert not processor.view.health().is_ready
    waits = [line for line in case.log if line["event"] == "waiting for Spark"]
    assert [(line["seconds"], line["error"], line["waits_for"]) for line in waits] == [
        (seconds, "'sc://spark' cannot be used: away", "Spark (local[2])") for seconds in range(10, 600, 10)
    ]
    assert not [line for line in case.log if line["event"] == "still getting ready"]
    assert not case.store._documents
    case.errors.clear()
    await starting
    assert processor.view.health().is_ready
    await processor.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("other", ["a sink", "another transform", "Spark itself"])
async def test_a_start_does_not_wait_for_spark_if_waiting_changes_nothing(other: str) -> None:
    case = away()
    if other == "a sink":
        case.errors["sink.prepare"] = SinkRejected("no schema")
    else:
        wrong = EngineUnavailable("older") if other == "Spark itself" else TransformError("bad SQL")
        asyncio.get_running_loop().call_later(60, case.errors.__setitem__, "transform.prepare", wrong)
    with pytest.raises(StartFailed, match=r"no schema|bad SQL|older"):
        await case.processor().start()
    assert case.closed == ALL_CLOSED
    assert_nothing_left()


@pytest.mark.virtual
async def test_a_start_that_waits_for_spark_can_be_stopped() -> None:
    case = away()
    starting = asyncio.create_task(case.processor().start())
    await asyncio.sleep(60)
    starting.cancel()
    await asyncio.wait({starting}, timeout=10)
    assert starting.cancelled()
    assert case.closed == ALL_CLOSED
    assert_nothing_left()


@pytest.mark.virtual
async def test_a_start_without_spark_does_not_mention_it() -> None:
    case = Case()
    await (processor := case.processor()).start()
    await processor.stop()
    assert not [line for line in case.log if "Spark" in str(line)]


@pytest.mark.virtual
@pytest.mark.parametrize("after_s", [0.5, 1.005, 1.02, 1.03, 1.05, 1.07, 1.1, 1.12])
async def test_a_start_that_is_given_up_leaves_nothing_behind(after_s: float) -> None:
    case = Case()
    case.weather.judge = lambda request: Fate(late_s=0.011)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after_s):
            await case.processor().start()
    assert case.closed == ALL_CLOSED
    await asyncio.sleep(0.1)  # requests on their way arrive
    assert_nothing_left()


@pytest.mark.virtual
async def test_a_start_while_the_container_goes_away_can_be_given_up() -> None:
    case = Case()
    listed = 0

    def judge(request: Request) -> Fate:
        nonlocal listed
        listed += request.operation == "list"
        return Fate(ends="ok" if listed < 2 and request.operation == "list" else "refused")

    case.weather.judge = judge
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100):
            await case.processor().start()
    assert case.closed == ALL_CLOSED
    assert_nothing_left()


@pytest.mark.virtual
async def test_a_part_that_cannot_be_closed_keeps_no_other_from_it_and_is_told() -> None:
    case = Case()
    case.errors["feed.close"] = RuntimeError("stuck file")
    processor = case.processor()
    await processor.start()
    await processor.stop()
    assert case.closed == ALL_CLOSED
    assert [entry["error"] for entry in case.log if entry["event"] == "closing failed"] == ["RuntimeError: stuck file"]


@pytest.mark.virtual
async def test_a_namesake_ends_it_and_who_waits_learns_it() -> None:
    case, other = Case(), Case()
    other.store = case.store
    earlier = case.processor()
    await earlier.start()
    later = other.processor()
    await later.start()
    with pytest.raises(DuplicateHost):
        await earlier.wait_until_ended()
    await earlier.stop()
    await later.stop()


def test_intervals_that_do_not_fit_and_names_used_twice_are_refused_with_their_remedies() -> None:
    case = Case()
    pipeline = PipelineParts(name="bank", feed=case.feed, sink=case.sink)
    with pytest.raises(ValueError, match=r"duration_s is 0, and must be above 0.*two pipelines are named 'bank'"):
        ProcessorCore([pipeline, pipeline], case.store, host="a", timing=Timing(duration_s=0.0))


# Notifications


@pytest.mark.virtual
async def test_what_would_miss_events_is_refused_before_anything_is_made() -> None:
    class Misspelt(Notifications):
        async def on_lease_aquired(self, event: LeaseAcquired) -> None: ...

    case = Case()
    for on, why in ((Misspelt(), "on_lease_acquired"), (Notifications, "is a class"), (print, "does not derive")):
        with pytest.raises(TypeError, match=why):
            ProcessorCore([], case.store, host="host-a", clock=HostClock(), on=on)  # type: ignore[arg-type]


@pytest.mark.virtual
async def test_a_program_is_notified_until_the_last_lease_is_released() -> None:
    events: list[tuple[str, str]] = []

    class Kept(Notifications):
        async def on_lease_acquired(self, event: LeaseAcquired) -> None:
            events.append(("acquired", event.partition))

        async def on_lease_released(self, event: LeaseReleased) -> None:
            await asyncio.sleep(0.5)
            events.append(("released", event.partition))

    case = Case()
    processor = case.processor(on=Kept())
    await processor.start()
    await processor.stop()
    assert sorted(events) == [("acquired", "a"), ("acquired", "b"), ("released", "a"), ("released", "b")]
    assert processor.stats.notifications == {"delivered": 4}
    assert_nothing_left()


async def test_a_plain_callback_that_blocks_for_ever_holds_up_neither_work_nor_stop() -> None:
    released = threading.Event()

    class Blocked(Notifications):
        def on_lease_acquired(self, event: LeaseAcquired) -> None:
            released.wait()

    case = Case()
    processor = ProcessorCore(
        [PipelineParts(name="bank", feed=case.feed, sink=case.sink)],
        case.store,
        host="host-a",
        timing=Timing(),
        log=logger(case.log),
        on=Blocked(),
    )
    try:
        await processor.start()
        case.feed.append("a", [b"0"])
        await until_async(lambda: case.destination.commits)
        async with asyncio.timeout(PATIENCE_S):
            await processor.stop()
    finally:
        released.set()
    stored = await case.store.list(lease_prefix("bank"))
    assert {decode_lease(each.id, each.body).owner for each in stored} == {None}
    (dropped,) = [line for line in case.log if line["event"] == "notifications dropped"]
    assert (dropped["waits_for"], dropped["count"]) == ("on_lease_acquired", 2)
