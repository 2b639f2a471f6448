"""Checkpoints for other readers follow those of leases, and nothing that happens to them reaches the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from lab.simulation.group import Group, always, until
from lab.simulation.loop import VirtualClock

from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.limits import BatchLimits
from leasehold.service.api.metrics import Metrics
from leasehold.service.outside_checkpoints import AT_ONCE_MAX, FLUSH_TIMEOUT_S, CheckpointWriter, write_reset
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore
from leasehold.service.stats import Stats

ONE = BatchLimits(events_max=1)


class Blobs:
    """Checkpoint blobs in memory. written: (when, partition, position, generation). failing: raised by each write."""

    title = "checkpoint blob"

    def __init__(self, *, interval_s: float = 10.0) -> None:
        self.interval_s = interval_s
        self.written: list[tuple[float, str, str | None, int]] = []
        self.attempts: list[float] = []
        self.failing: Exception | None = None
        self.hangs = False
        self.outcome = "written"
        self.at_once = self.at_once_max = 0
        self.is_closed = False

    def name_of(self, partition: str) -> str:
        return f"bank/raw-event/$default/checkpoint/{partition}"

    async def write(self, partition: str, position: str | None, generation: int) -> Any:
        now = asyncio.get_running_loop().time()
        self.attempts.append(now)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await asyncio.sleep(3600 if self.hangs else 0.01)
        finally:
            self.at_once -= 1
        if self.failing is not None:
            raise self.failing
        self.written.append((now, partition, position, generation))
        return self.outcome

    async def close(self) -> None:
        self.is_closed = True

    @property
    def positions(self) -> dict[str, str | None]:
        return {partition: position for _, partition, position, _ in self.written}


class Desk:
    """A writer that runs, with its log."""

    def __init__(self, blobs: Blobs) -> None:
        self.log: list[dict[str, Any]] = []
        self.stats = Stats(VirtualClock())
        logger = Group("a").logger(self.log)
        self.writer = CheckpointWriter("bank", blobs, clock=VirtualClock(), log=logger, stats=self.stats)  # type: ignore[arg-type]
        self.task = asyncio.create_task(self.writer.run())

    def note(self, position: int, partition: str = "a", **how: bool) -> None:
        self.writer.note(Lease(pipeline="bank", partition=partition, continuation=f"{position}"), **how)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


@pytest.mark.virtual
async def test_the_newest_position_is_written_once_an_interval() -> None:
    blobs = Blobs(interval_s=10.0)
    desk = Desk(blobs)
    for number in range(300):
        desk.note(number)
        await asyncio.sleep(0.1)
    times = [at for at, *_ in blobs.written]
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [10, 10]
    await asyncio.sleep(10)
    assert blobs.positions == {"a": "299"}
    assert desk.stats.outside_checkpoints == {("bank", "written"): 4}
    await desk.stop()


@pytest.mark.virtual
async def test_a_release_is_written_at_once() -> None:
    blobs = Blobs(interval_s=1000.0)
    desk = Desk(blobs)
    desk.note(1)
    await asyncio.sleep(1)
    desk.note(2)
    await asyncio.sleep(1)
    assert blobs.positions == {"a": "1"}
    desk.note(3, now=True)
    await asyncio.sleep(1)
    assert blobs.positions == {"a": "3"}
    await desk.stop()


@pytest.mark.virtual
async def test_a_release_is_not_written_late_since_the_next_owner_may_be_ahead() -> None:
    blobs = Blobs()
    desk = Desk(blobs)
    blobs.failing = StoreUnavailable("away")
    desk.note(1, now=True)
    await asyncio.sleep(FLUSH_TIMEOUT_S - 1)
    tries = len(blobs.attempts)
    await asyncio.sleep(60)
    blobs.failing = None
    await asyncio.sleep(600)
    assert tries > 1
    assert blobs.written == []
    await desk.stop()


@pytest.mark.virtual
async def test_a_position_that_is_noted_while_a_write_begins_is_written() -> None:
    blobs = Blobs()
    desk = Desk(blobs)
    desk.note(1)
    asyncio.get_running_loop().call_soon(
        lambda: desk.note(2, now=True)
    )  # after the choice of what is due, before its task
    await asyncio.sleep(1)
    assert blobs.positions == {"a": "2"}
    await desk.stop()


@pytest.mark.virtual
async def test_many_partitions_are_a_few_requests_at_a_time() -> None:
    blobs = Blobs()
    desk = Desk(blobs)
    for number in range(100):
        desk.note(number, f"p{number}")
    await until(lambda: len(blobs.positions) == 100)
    assert blobs.at_once_max == AT_ONCE_MAX
    await desk.stop()


@pytest.mark.virtual
async def test_an_account_that_is_away_is_asked_less_and_less_and_reported() -> None:
    blobs = Blobs(interval_s=0.1)
    desk = Desk(blobs)
    blobs.failing = StoreUnavailable("Azure Storage answered 403")
    for number in range(600):
        desk.note(number)
        await asyncio.sleep(1)
    assert len(blobs.attempts) < 20
    warnings = [entry for entry in desk.log if entry["event"] == "writing checkpoint blobs failed"]
    assert 1 < len(warnings) < 15
    assert "403" in warnings[0]["error"]
    assert desk.stats.outside_checkpoints["bank", "failed"] == len(blobs.attempts)
    blobs.failing = None
    await until(lambda: blobs.positions == {"a": "599"}, within_s=61)
    assert [entry["event"] for entry in desk.log][-1] == "writing checkpoint blobs recovered"
    await desk.stop()


@pytest.mark.virtual
async def test_a_position_that_is_dropped_is_not_written_until_a_newer_one_is_noted() -> None:
    blobs = Blobs(interval_s=10.0)
    desk = Desk(blobs)
    desk.note(1)
    await asyncio.sleep(1)
    desk.note(2)
    desk.writer.drop("a")
    desk.writer.drop("b")
    await asyncio.sleep(30)
    await desk.writer.flush()
    assert blobs.positions == {"a": "1"}
    desk.note(3)
    await asyncio.sleep(1)
    assert blobs.positions == {"a": "3"}
    await desk.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_position_that_is_dropped_while_its_write_fails_is_not_written_again(is_cancelled: bool) -> None:
    blobs = Blobs()
    desk = Desk(blobs)
    blobs.hangs = True
    desk.note(1)
    await asyncio.sleep(1)
    desk.writer.drop("a")
    if is_cancelled:
        await desk.stop()
    await until(lambda: not blobs.at_once)
    blobs.hangs = False
    await asyncio.sleep(100)
    await desk.writer.flush()
    assert (len(blobs.attempts), blobs.positions) == (1, {})
    await desk.stop()


@pytest.mark.virtual
async def test_a_position_that_is_noted_behind_a_dropped_one_is_tried_again_if_its_write_fails() -> None:
    blobs = Blobs()
    desk = Desk(blobs)
    desk.writer.drop("a")
    blobs.failing = StoreUnavailable("Azure Storage answered 403")
    desk.note(1)
    await until(lambda: blobs.attempts)
    blobs.failing = None
    await until(lambda: blobs.positions == {"a": "1"})
    await desk.stop()


@pytest.mark.virtual
async def test_a_fault_of_the_sdk_does_not_end_the_writer() -> None:
    blobs = Blobs()
    desk = Desk(blobs)
    blobs.failing = RuntimeError("unexpected")
    desk.note(1)
    await asyncio.sleep(0.5)
    blobs.failing = None
    await until(lambda: blobs.positions == {"a": "1"})
    assert not desk.task.done()
    await desk.stop()


@pytest.mark.virtual
async def test_an_account_that_hangs_holds_up_nothing_but_itself() -> None:
    blobs = Blobs()
    desk = Desk(blobs)
    blobs.hangs = True
    desk.note(1)
    await asyncio.sleep(15)
    assert desk.log[0]["event"] == "writing checkpoint blobs failed"
    await desk.stop()
    began = asyncio.get_running_loop().time()
    await desk.writer.flush()
    assert asyncio.get_running_loop().time() - began == pytest.approx(FLUSH_TIMEOUT_S)
    assert desk.log[-1]["event"] == "checkpoint blobs are behind"


@pytest.mark.virtual
async def test_a_blob_that_counts_more_resets_is_reported_once() -> None:
    blobs = Blobs(interval_s=0.1)
    blobs.outcome = "outdated"
    desk = Desk(blobs)
    for number in range(50):
        desk.note(number)
        await asyncio.sleep(1)
    (report,) = desk.log
    assert report["event"] == "needs attention"
    assert "delete the checkpoint blob" in report["what"]
    await desk.stop()


# Hosts


@pytest.mark.virtual
async def test_a_host_writes_what_its_leases_have_and_at_a_stop_the_end() -> None:
    blobs = Blobs(interval_s=30.0)
    group = Group("ab", outside_checkpoints=blobs)
    running = await group.start("host-a")
    group.append("a", 7)
    await until(lambda: len(group.delivered("a")) == 7)
    assert all(position is None for position in blobs.positions.values())
    running.host.stop()
    await running.task
    assert (
        blobs.positions == {name: lease.continuation for name, lease in group.leases.items()} == {"a": "7", "b": None}
    )
    series = f'leasehold_outside_checkpoints_total{{outcome="written",pipeline="bank"}} {len(blobs.written)}.0'
    assert series in Metrics(running.host).text().decode()


@pytest.mark.virtual
async def test_a_blob_never_has_more_than_its_lease() -> None:
    blobs = Blobs(interval_s=0.0)
    group = Group("a", outside_checkpoints=blobs, limits=ONE, checkpoint_s=2.0)
    running = await group.start("host-a")
    for _ in range(100):
        group.append("a", 1)
        await asyncio.sleep(0.3)
        assert int(blobs.positions.get("a") or 0) <= int(group.leases["a"].continuation or 0)
    assert len({position for _, _, position, _ in blobs.written}) > 5
    running.host.stop()
    await running.task


@pytest.mark.virtual
async def test_the_next_owner_writes_what_a_killed_host_could_not() -> None:
    blobs = Blobs(interval_s=1000.0)
    group = Group("a", outside_checkpoints=blobs)
    first = await group.start("host-a")
    group.append("a", 3)
    await until(lambda: group.leases["a"].continuation == "3")
    await first.kill()
    assert blobs.positions == {"a": None}
    second = await group.start("host-b")
    await until(lambda: blobs.positions == {"a": "3"})
    second.host.stop()
    await second.task


@pytest.mark.virtual
async def test_a_lease_that_moves_is_written_by_its_former_owner() -> None:
    blobs, others = Blobs(interval_s=1000.0), Blobs(interval_s=1000.0)
    group = Group("ab", outside_checkpoints=blobs)
    first = await group.start("host-a")
    for name in "ab":
        group.append(name, 3)
    await until(lambda: {lease.continuation for lease in group.leases.values()} == {"3"})
    assert blobs.positions == {"a": None, "b": None}
    second = await group.start("host-b", outside_checkpoints=others)
    await until(group.is_balanced)
    await until(lambda: sorted(blobs.positions.values(), key=str) == ["3", None])
    for running in (first, second):
        running.host.stop()
        await running.task


@pytest.mark.virtual
@pytest.mark.parametrize("how", ["stolen", "released by an operator", "reset"])
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_an_owner_that_lost_its_lease_does_not_set_a_position_back(how: str, is_stopped: bool) -> None:
    """is_stopped: it finds that out only when it releases the lease."""
    blobs = Blobs(interval_s=1000.0)
    group, desk = Group("a"), Desk(blobs)
    tenure = await group.tenure()
    tenure.worker._checkpoint_writer = desk.writer
    group.append("a", 3)
    await until(lambda: group.leases["a"].continuation == "3")
    assert blobs.positions == {"a": None}
    changes: dict[str, Callable[[Lease], Lease]] = {
        "stolen": lambda lease: lease.acquired("host-b", "host-b-9", ""),
        "released by an operator": Lease.revoked,
        "reset": lambda lease: lease.reset("1"),
    }
    group.edit("a", changes[how])
    if is_stopped:
        tenure.worker.stop()
    else:
        await tenure.look()
    assert (await tenure.task).reason in (("shutdown",) if is_stopped else ("stolen", "lost"))
    await asyncio.sleep(1)
    await desk.writer.flush()
    assert blobs.positions == {"a": None}
    await desk.stop()


@pytest.mark.virtual
async def test_a_reset_is_written_with_its_generation() -> None:
    blobs = Blobs(interval_s=1.0)
    group = Group("a", outside_checkpoints=blobs)
    running = await group.start("host-a")
    group.append("a", 3)
    await until(lambda: blobs.positions == {"a": "3"})
    group.edit("a", lambda lease: lease.reset("1"))
    await until(lambda: (("a", "1", 1)) in [tuple(each[1:]) for each in blobs.written])
    running.host.stop()
    await running.task


@pytest.mark.virtual
@pytest.mark.parametrize("hangs", [True, False])
async def test_a_pipeline_works_as_if_the_account_were_there(hangs: bool) -> None:
    blobs = Blobs(interval_s=0.1)
    blobs.hangs, blobs.failing = hangs, None if hangs else StoreUnavailable("refused")
    group, plain = Group("ab", outside_checkpoints=blobs, limits=ONE), Group("ab", limits=ONE)
    took = []
    for each in (group, plain):
        running = await each.start("host-a")
        began = asyncio.get_running_loop().time()
        for _ in range(50):
            each.append("a", 1)
            each.append("b", 1)
        await until(lambda: len(each.delivered("a")) + len(each.delivered("b")) == 100)  # noqa: B023
        took.append(asyncio.get_running_loop().time() - began)
        assert not running.task.done()
        running.host.stop()
        await until(lambda: set(each.owners.values()) == {None}, within_s=1)  # noqa: B023
        await running.task
    assert took[0] == pytest.approx(took[1], abs=0.2)
    assert blobs.attempts
    await always(lambda: group.is_delivered() and plain.is_delivered(), for_s=0.1)


async def test_a_processor_closes_the_account_when_it_stops() -> None:
    blobs: Any = Blobs()
    sink = MemoryOutputSink(MemoryDestination())
    pipeline = PipelineParts(name="bank", feed=MemoryChangeFeed(["a"]), sink=sink, outside_checkpoints=blobs)
    processor = ProcessorCore([pipeline], MemoryStore(), host="host-a")
    await processor.start()
    await processor.stop()
    assert (blobs.positions, blobs.is_closed) == ({"a": None}, True)


# Operators


async def test_a_reset_without_hosts_is_written_or_says_why_not() -> None:
    blobs, lease = Blobs(), Lease(pipeline="bank", partition="a", continuation="1", generation=1)
    given: Any = blobs
    assert await write_reset(None, lease) is None
    assert await write_reset(given, lease) is None
    assert blobs.written[0][1:] == ("a", "1", 1)
    blobs.outcome = "unchanged"
    assert "was not changed" in str(await write_reset(given, replace(lease, continuation="2")))
    assert await write_reset(given, replace(lease, continuation=None)) is None  # there is no blob
    blobs.outcome = "outdated"
    assert "delete the checkpoint blob" in str(await write_reset(given, lease))
    blobs.failing = StoreUnavailable("Azure Storage answered 403")
    assert "answered 403" in str(await write_reset(given, lease))
