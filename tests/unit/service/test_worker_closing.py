"""Ending when something hangs, fails to close, or is cancelled: nothing is left behind, nothing is sent afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from lab.simulation.group import Group, Tenure, always, until
from lab.simulation.handler import Handler, handled
from lab.simulation.weather import Fate, Outlet

from leasehold.leases.document import INTEGER_MAX
from leasehold.leases.lease import Lease
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit
from leasehold.pipeline.transform import NoTransform
from leasehold.service.errors import BatchHung
from leasehold.service.shutdown import CLOSING_TIMEOUT_S

ONE = BatchLimits(events_max=1)


def taken(group: Group, name: str = "host-b") -> None:
    """Another host takes the lease, whoever has it."""
    group.edit("a", lambda lease: lease.acquired(name, f"{name}-9", ""))


async def assert_nothing_left(tenure: Tenure) -> None:
    await tenure.end_beats()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def at_work(group: Group) -> Tenure:
    tenure = await group.tenure()
    await asyncio.sleep(1)
    group.append("a", 3)
    await asyncio.sleep(1)
    return tenure


# Hanging


@pytest.mark.virtual
@pytest.mark.parametrize("method", ["open", "process"])
async def test_a_handler_that_hangs_is_cancelled_and_its_lease_released(method: str) -> None:
    handler = Handler()
    handler.hangs_in = method
    group = handled(handler, batch_timeout_s=30.0)
    group.append("a", 1)
    tenure = await group.tenure()
    took = await until(tenure.task.done)
    assert 30 <= took < 34
    outcome = tenure.task.result()
    assert (outcome.reason, type(outcome.error)) == ("failed", BatchHung)
    assert group.leases["a"].owner is None
    await assert_nothing_left(tenure)


@pytest.mark.virtual
async def test_what_a_sink_waits_for_excuses_no_transform() -> None:
    class Waiting(Outlet):
        async def open(self, claim: Claim) -> Any:
            writer = await super().open(claim)
            write = writer.write

            async def wait_first(output: Output, permit: Permit) -> None:
                claim.report_wait(3600.0)
                await asyncio.sleep(70)
                await write(output, permit)

            writer.write = wait_first
            return writer

    class Stuck(NoTransform):
        async def apply(self, batch: Batch) -> pa.Table:
            if batch.start is not None:
                await asyncio.sleep(10_000)
            return batch.table

    group = Group("a", batch_timeout_s=30.0, limits=ONE)
    tenure = await group.tenure(sink=Waiting(group.destination, group.weather), transform=Stuck())
    group.append("a", 1)
    await until(lambda: group.delivered("a") == [0])
    group.append("a", 1)
    assert 30 <= await until(tenure.task.done, within_s=100) < 64
    assert isinstance(tenure.task.result().error, BatchHung)


@pytest.mark.virtual
async def test_work_that_takes_long_but_gets_on_is_left_alone() -> None:
    handler = Handler()
    handler.takes_s = 25.0
    group = handled(handler, batch_timeout_s=30.0)
    group.append("a", 40)
    tenure = await group.tenure()
    await until(lambda: ("process", "40") in handler.calls, within_s=2000)
    assert not tenure.task.done()
    tenure.worker.stop()
    await tenure.task


@pytest.mark.virtual
@pytest.mark.parametrize("advances", [True, False])
async def test_a_sink_that_takes_long_to_open_is_left_alone_if_it_reports_progress(advances: bool) -> None:
    class Slow(Outlet):
        async def open(self, claim: Claim) -> Any:
            for _ in range(33):
                await asyncio.sleep(10)
                if advances:
                    claim.report_progress()
            return await super().open(claim)

    group = Group("a", batch_timeout_s=300.0)
    group.append("a", 3)
    tenure = await group.tenure(sink=Slow(group.destination, group.weather))
    if advances:
        await until(group.is_delivered, within_s=400)
        tenure.worker.stop()
        await tenure.task
    else:
        await until(tenure.task.done, within_s=400)
        assert isinstance(tenure.task.result().error, BatchHung)


@pytest.mark.virtual
async def test_waiting_for_trust_is_not_hanging() -> None:
    group = Group("a", batch_timeout_s=30.0)
    tenure = await group.tenure()
    group.weather.down.add(("", "store"))
    await asyncio.sleep(60)
    group.append("a", 1)
    await always(lambda: not tenure.task.done(), 300)
    group.weather.down.clear()
    await until(group.is_delivered)
    tenure.worker.stop()
    await tenure.task


@pytest.mark.virtual
async def test_work_that_swallows_its_cancellation_keeps_neither_the_worker_nor_the_lease() -> None:
    class Stubborn(NoTransform):
        is_through = False

        async def apply(self, batch: Batch) -> pa.Table:
            while not self.is_through:
                try:
                    await asyncio.sleep(50)
                except asyncio.CancelledError:
                    continue
            return batch.table

    stubborn, group = Stubborn(), Group("a", batch_timeout_s=30.0)
    group.append("a", 1)
    tenure = await group.tenure(transform=stubborn)
    assert await until(tenure.task.done) < 40
    assert group.leases["a"].owner is None
    stubborn.is_through = True
    await asyncio.sleep(100)
    assert group.delivered("a") == []


@pytest.mark.virtual
async def test_a_sink_that_swallows_its_cancellation_ends_when_it_is_through() -> None:
    class Stubborn(Outlet):
        is_through = False

        async def open(self, claim: Claim) -> Any:
            writer = await super().open(claim)

            async def write(output: Output, permit: Permit) -> None:
                while not self.is_through:
                    try:
                        await asyncio.sleep(50)
                    except asyncio.CancelledError:
                        continue

            writer.write = write  # type: ignore[method-assign]
            return writer

    group = Group("a", batch_timeout_s=30.0, limits=ONE)
    group.append("a", 2)
    stubborn = Stubborn(group.destination, group.weather)
    tenure = await group.tenure(sink=stubborn)
    assert await until(tenure.task.done) < 40
    stubborn.is_through = True
    await asyncio.sleep(100)
    await assert_nothing_left(tenure)


# Closing, whatever fails


class Unclosable(Outlet):
    error: Exception | None = RuntimeError("a fault of the sink")

    async def open(self, claim: Claim) -> Any:
        writer = await super().open(claim)

        async def close(reason: CloseReason) -> None:
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()

        writer.close = close  # type: ignore[method-assign]
        return writer


@pytest.mark.virtual
async def test_a_container_that_is_away_for_a_moment_costs_neither_checkpoint_nor_release() -> None:
    group = Group("a", checkpoint_s=500.0)
    tenure = await at_work(group)
    group.append("a", 2)
    await asyncio.sleep(0.1)
    group.weather.down.add(("", "store"))
    tenure.worker.stop()
    await asyncio.sleep(2)
    assert not tenure.task.done()
    group.weather.down.clear()
    await tenure.task
    assert (group.leases["a"].owner, group.leases["a"].continuation) == (None, "5")
    await assert_nothing_left(tenure)


@pytest.mark.virtual
async def test_a_container_that_stays_away_keeps_no_worker_from_ending() -> None:
    group = Group("a", checkpoint_s=500.0)
    tenure = await at_work(group)
    group.weather.down.add(("", "store"))
    tenure.worker.stop()
    assert await until(tenure.task.done) <= 2 * CLOSING_TIMEOUT_S + 1
    await assert_nothing_left(tenure)


@pytest.mark.virtual
@pytest.mark.parametrize("error", [RuntimeError("a fault of the sink"), asyncio.CancelledError("by its client"), None])
async def test_a_sink_that_cannot_be_closed_costs_neither_checkpoint_nor_release(error: BaseException | None) -> None:
    group = Group("a", checkpoint_s=500.0)
    sink = Unclosable(group.destination, group.weather)
    sink.error = error
    tenure = await group.tenure(sink=sink)
    group.append("a", 3)
    await until(group.is_delivered)
    tenure.worker.stop()
    assert (await tenure.task).reason == "shutdown"
    assert (group.leases["a"].owner, group.leases["a"].continuation) == (None, "3")


@pytest.mark.virtual
async def test_a_lease_whose_document_is_used_up_ends_alone() -> None:
    group = Group("a")
    await group.keeper("x", "x").create(Lease(pipeline="bank", partition="a"))
    group.edit("a", lambda lease: replace(lease, tick=INTEGER_MAX - 1))
    tenure = await group.tenure()
    group.append("a", 3)
    await until(tenure.task.done)
    assert tenure.task.result().reason == "failed"
    assert "tick" in str(tenure.task.result().error)


@pytest.mark.virtual
async def test_without_the_container_a_stop_ends_all_the_same_and_the_lease_expires() -> None:
    group = Group("a")
    tenure = await at_work(group)
    group.append("a", 1)
    group.weather.down.add(("", "store"))
    tenure.worker.stop()
    async with asyncio.timeout(11):
        assert (await tenure.task).reason == "shutdown"
    assert group.leases["a"].owner == "host-a"
    await assert_nothing_left(tenure)


# Cancelled


@pytest.mark.virtual
@pytest.mark.parametrize("twice", [False, True])
async def test_wherever_it_is_cancelled_nothing_is_left_nothing_is_sent_and_the_lease_is_free(twice: bool) -> None:
    step, is_over = 0, False
    while not is_over:
        group = Group("a", limits=ONE, checkpoint_s=0.02)
        group.append("a", 2)
        tenure = await group.tenure()
        tenure.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        stopping = asyncio.get_running_loop().call_later(0.04, tenure.worker.stop)
        await asyncio.sleep(step * 0.0013)
        tenure.task.cancel()
        if twice:
            await asyncio.sleep(0.003)
            tenure.task.cancel()
        await asyncio.wait({tenure.task})
        stopping.cancel()
        requests = len(group.weather.requests)
        await asyncio.sleep(0.01)  # what is on its way arrives
        await assert_nothing_left(tenure)
        if not twice:
            lease = group.leases["a"]
            assert lease.owner is None
            assert int(lease.continuation or 0) <= len(group.delivered("a"))
        await asyncio.sleep(100)
        assert len(group.weather.requests) == requests
        is_over = not tenure.task.cancelled()
        step += 1
    assert step > 20


@pytest.mark.virtual
async def test_a_cancelled_write_may_arrive_and_then_counts_once() -> None:
    group = Group("a", limits=ONE)
    tenure = await group.tenure()
    await asyncio.sleep(1)
    group.weather.judge = lambda request: Fate(late_s=3.0 if request.where == "sink" else 0.005)
    group.append("a", 3)
    await asyncio.sleep(1)
    tenure.task.cancel()
    await asyncio.wait({tenure.task})
    group.weather.judge = lambda request: Fate()
    heir = await group.tenure(name="host-b")
    await until(group.is_delivered)
    await asyncio.sleep(5)
    assert group.is_delivered()
    heir.worker.stop()
    await heir.task
