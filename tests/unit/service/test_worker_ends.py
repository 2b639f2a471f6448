"""How a worker ends: what it still does, what it no longer does, and what its sink is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from simulation.group import Fate, Group, Outlet, Request, Tenure, always, until
from simulation.loop import run_virtual

from leases.document import INTEGER_MAX, lease_id
from leases.lease import Child, Lease
from pipeline.batch import Batch, BatchLimits
from pipeline.connectors.python import HandlerContext, PythonSink
from pipeline.errors import MalformedRecord, PipelineError, SinkRejected, TransformError
from pipeline.sink import Claim, CloseReason, Permit
from pipeline.transform import Identity
from service.errors import BatchHung

ONE = BatchLimits(events_max=1)


class Handler:
    """Writes down what it is told. hangs_in: a method that never returns; error: what `process` raises."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []
        self.hangs_in = ""
        self.takes_s = 0.0
        self.error: Exception | None = None

    async def open(self, context: HandlerContext) -> None:
        await self._told("open", context.position)

    async def process(self, context: HandlerContext, table: pa.Table) -> None:
        await self._told("process", context.to)
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error

    async def close(self, context: HandlerContext, reason: CloseReason) -> None:
        await self._told("close", reason)

    async def _told(self, method: str, what: str | None) -> None:
        self.calls.append((method, what))
        if method == self.hangs_in:
            await asyncio.Event().wait()


def handled(handler: Handler, **settings: Any) -> Group:
    return Group("a", sink=lambda: PythonSink(lambda: handler), limits=ONE, **settings)


async def taken(group: Group, name: str = "host-b") -> None:
    """Somebody else takes the lease, whoever has it."""
    keeper = group.keeper(name, f"{name}-9")
    assert await keeper.take(await keeper.read("bank", "a"), str)


def assert_nothing_left() -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def at_work(group: Group) -> Tenure:
    tenure = await group.tenure()
    await asyncio.sleep(1)
    group.append("a", 3)
    await asyncio.sleep(1)
    return tenure


# What the sink is told


def test_a_stop_checkpoints_releases_and_tells_shutdown() -> None:
    async def main() -> None:
        handler = Handler()
        group = handled(handler)
        tenure = await at_work(group)
        tenure.worker.stop()
        outcome = await tenure.task
        assert (outcome.reason, outcome.error) == ("shutdown", None)
        assert handler.calls == [("open", None), *(("process", n) for n in "123"), ("close", "shutdown")]
        lease = group.leases["a"]
        assert (lease.owner, lease.incarnation, lease.continuation, lease.handoff_to) == (None, None, "3", None)
        assert_nothing_left()

    run_virtual(main())


def test_a_handoff_finishes_the_batch_in_hand_checkpoints_and_releases_to_who_asked() -> None:
    async def main() -> None:
        handler = Handler()
        group = handled(handler)
        tenure = await at_work(group)
        handler.takes_s = 5.0
        group.append("a", 2)
        await asyncio.sleep(1)
        keeper = group.keeper("host-b", "host-b-1")
        await keeper.ask(await keeper.read("bank", "a"))
        tenure.worker.owned.notice(await keeper.read("bank", "a"))
        began = asyncio.get_running_loop().time()
        assert (await tenure.task).reason == "shutdown"
        assert 3.5 < asyncio.get_running_loop().time() - began < 4.5
        lease = group.leases["a"]
        assert (lease.owner, lease.handoff_to, lease.continuation) == (None, "host-b", "4")
        assert handler.calls[-2:] == [("process", "4"), ("close", "shutdown")]

    run_virtual(main())


def test_a_request_for_handoff_is_found_at_the_next_renewal_too() -> None:
    async def main() -> None:
        group = Group("a")
        tenure = await at_work(group)
        keeper = group.keeper("host-b", "host-b-1")
        await keeper.ask(await keeper.read("bank", "a"))
        await until(tenure.task.done, within_s=group.timing.renew_s + 1)
        assert group.leases["a"].handoff_to == "host-b"

    run_virtual(main())


def test_a_request_that_was_there_before_the_worker_was_is_answered() -> None:
    async def main() -> None:
        group = Group("a")
        keeper = group.keeper("host-b", "host-b-1")
        asked = False

        def judge(request: Request) -> Fate:
            nonlocal asked
            if request.operation == "replace" and not asked:
                asked = True
                return Fate(ends="lost")
            if request.operation == "read" and asked and group.leases["a"].handoff_to is None:
                group.edit("a", lambda lease: lease.handoff_requested("host-b"))
            return Fate()

        group.weather.judge = judge
        tenure = await group.tenure()  # its take got no answer, and by the time it read again somebody had asked
        async with asyncio.timeout(5):
            assert (await tenure.task).reason == "shutdown"
        assert group.leases["a"].handoff_to == "host-b"
        await keeper.store.close()

    run_virtual(main())


def test_a_stolen_lease_sends_nothing_more_and_releases_nothing() -> None:
    async def main() -> None:
        handler = Handler()
        group = handled(handler)
        tenure = await at_work(group)
        await taken(group)
        tenure.worker.owned.notice(await group.keeper("x", "x").read("bank", "a"))
        group.append("a", 5)
        outcome = await tenure.task
        assert outcome.reason == "stolen"
        assert "host-b" in str(outcome.error)
        assert handler.calls[-2:] == [("process", "3"), ("close", "stolen")]
        assert group.leases["a"].owner == "host-b"

    run_virtual(main())


def test_the_batch_in_hand_is_cancelled_when_the_lease_is_stolen() -> None:
    async def main() -> None:
        handler = Handler()
        group = handled(handler)
        tenure = await at_work(group)
        handler.hangs_in = "process"
        group.append("a", 1)
        await asyncio.sleep(1)
        await taken(group)
        await until(tenure.task.done, within_s=group.timing.renew_s + 1)
        assert handler.calls[-1] == ("close", "stolen")
        assert_nothing_left()

    run_virtual(main())


@pytest.mark.parametrize("how", ["reset", "deleted", "spoilt", "revoked"])
def test_a_lease_that_is_gone_reset_or_revoked_is_lost(how: str) -> None:
    async def main() -> None:
        handler = Handler()
        group = handled(handler)
        tenure = await at_work(group)
        changes: dict[str, Callable[[], None]] = {
            "reset": lambda: group.edit("a", lambda lease: lease.reset("1")),
            "revoked": lambda: group.edit("a", Lease.revoked),
            "deleted": lambda: group.remove(lease_id("bank", "a")),
            "spoilt": lambda: group.put(lease_id("bank", "a"), "{"),
        }
        changes[how]()
        before = group.documents("bank/leases/")
        await until(tenure.task.done, within_s=group.timing.renew_s + 1)
        assert tenure.task.result().reason == "lost"
        assert handler.calls[-1] == ("close", "lost")
        assert group.documents("bank/leases/") == before  # not touched

    run_virtual(main())


def test_a_partition_that_has_ended_closes_its_lease_behind_its_last_event() -> None:
    async def main() -> None:
        handler = Handler()
        group = handled(handler)
        tenure = await at_work(group)
        group.append("a", 2)
        group.feed.split("a", ["b", "c"])
        assert (await tenure.task).reason == "gone"
        lease = group.leases["a"]
        assert (lease.closed, lease.owner, lease.continuation) == (True, None, "5")
        assert lease.children == (Child("b", None), Child("c", None))
        assert handler.calls[-2:] == [("process", "5"), ("close", "gone")]

    run_virtual(main())


@pytest.mark.parametrize("ends", ["refused", "lost", "ghost", "late"])
@pytest.mark.parametrize("where", ["store", "sink"])
def test_an_end_whose_answer_is_lost_is_ended_once_more(where: str, ends: str) -> None:
    async def main() -> None:
        group = Group("a", limits=ONE)
        tenure = await at_work(group)
        faults = [ends, ends]

        def judge(request: Request) -> Fate:
            if request.where == where and request.operation in ("replace", "write") and faults:
                return Fate(ends=faults.pop(), late_s=0.3)  # type: ignore[arg-type]
            return Fate()

        group.weather.judge = judge
        group.feed.split("a", ["b"])
        outcome = await tenure.task
        assert (outcome.reason, group.leases["a"].closed) == ("gone", True)
        assert ("bank", "a", 0) in group.destination._ended
        assert group.is_delivered()

    run_virtual(main())


def test_the_end_of_a_partition_waits_for_trust() -> None:
    async def main() -> None:
        group = Group("a", limits=ONE)
        tenure = await at_work(group)
        plain, checked = group.destination.end, list[bool]()

        class Lapsing(Outlet):
            async def open(self, claim: Claim) -> Any:
                writer = await super().open(claim)

                async def end(permit: Permit) -> None:
                    await asyncio.sleep(100 if not checked else 0)  # connecting, say
                    checked.append(tenure.worker.owned.is_trusted)
                    permit.check()
                    plain(claim)

                writer.end = end  # type: ignore[method-assign]
                return writer

        tenure.worker.stop()
        await tenure.task
        tenure = await group.tenure(sink=Lapsing(group.destination, group.weather))
        await asyncio.sleep(1)
        group.weather.down.add(("", "store"))
        group.feed.split("a", ["b"])
        await asyncio.sleep(120)
        group.weather.down.clear()
        assert (await tenure.task).reason == "gone"
        assert checked == [False, True]
        assert group.epochs["a"] == 2

    run_virtual(main())


@pytest.mark.parametrize("error", [SinkRejected("no such column"), ZeroDivisionError("a fault of the handler")])
def test_an_error_that_will_not_pass_releases_the_lease_behind_what_is_safe(error: Exception) -> None:
    async def main() -> None:
        handler = Handler()
        group = handled(handler)
        tenure = await at_work(group)
        handler.error = error
        group.append("a", 1)
        outcome = await tenure.task
        assert outcome.reason == "failed"
        assert str(error) in str(outcome.error)
        assert handler.calls[-2:] == [("process", "4"), ("close", "failed")]
        lease = group.leases["a"]
        assert (lease.owner, lease.continuation) == (None, "3")
        assert [entry["level"] for entry in tenure.said("lease let go")] == ["error"]

    run_virtual(main())


class Failing(Identity):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def apply(self, batch: Batch) -> pa.Table:
        raise self.error


@pytest.mark.parametrize("error", [TransformError("bad SQL"), MalformedRecord("line 7"), KeyError("x")])
def test_every_error_of_a_transform_is_told(error: Exception) -> None:
    async def main() -> None:
        group = Group("a")
        group.append("a", 1)
        tenure = await group.tenure(transform=Failing(error))
        outcome = await tenure.task
        assert (outcome.reason, group.leases["a"].owner) == ("failed", None)
        assert str(error) in str(outcome.error)

    run_virtual(main())


def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    async def main() -> None:
        group = Group("a")

        class Odd(Outlet):
            async def open(self, claim: Claim) -> Any:
                raise asyncio.CancelledError

        tenure = await group.tenure(sink=Odd(group.destination, group.weather))
        outcome = await tenure.task
        assert (outcome.reason, type(outcome.error), group.leases["a"].owner) == ("failed", PipelineError, None)

    run_virtual(main())


# Hanging


@pytest.mark.parametrize("method", ["open", "process"])
def test_a_handler_that_hangs_is_cancelled_and_its_lease_released(method: str) -> None:
    async def main() -> None:
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
        assert_nothing_left()

    run_virtual(main())


def test_work_that_takes_long_but_gets_on_is_left_alone() -> None:
    async def main() -> None:
        handler = Handler()
        handler.takes_s = 25.0
        group = handled(handler, batch_timeout_s=30.0)
        group.append("a", 40)
        tenure = await group.tenure()
        await until(lambda: ("process", "40") in handler.calls, within_s=2000)
        assert not tenure.task.done()
        tenure.worker.stop()
        await tenure.task

    run_virtual(main())


def test_waiting_for_trust_is_not_hanging() -> None:
    async def main() -> None:
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

    run_virtual(main())


def test_work_that_swallows_its_cancellation_keeps_neither_the_worker_nor_the_lease() -> None:
    class Stubborn(Identity):
        is_through = False

        async def apply(self, batch: Batch) -> pa.Table:
            while not self.is_through:
                try:
                    await asyncio.sleep(50)
                except asyncio.CancelledError:
                    continue
            return batch.table

    async def main() -> None:
        stubborn, group = Stubborn(), Group("a", batch_timeout_s=30.0)
        group.append("a", 1)
        tenure = await group.tenure(transform=stubborn)
        assert await until(tenure.task.done) < 40
        assert group.leases["a"].owner is None
        stubborn.is_through = True
        await asyncio.sleep(100)
        assert group.delivered("a") == []

    run_virtual(main())


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


@pytest.mark.parametrize("error", [RuntimeError("a fault of the sink"), None])
def test_a_sink_that_cannot_be_closed_costs_neither_checkpoint_nor_release(error: Exception | None) -> None:
    async def main() -> None:
        group = Group("a", checkpoint_s=500.0)
        sink = Unclosable(group.destination, group.weather)
        sink.error = error
        tenure = await group.tenure(sink=sink)
        group.append("a", 3)
        await until(group.is_delivered)
        tenure.worker.stop()
        assert (await tenure.task).reason == "shutdown"
        assert (group.leases["a"].owner, group.leases["a"].continuation) == (None, "3")

    run_virtual(main())


def test_a_lease_whose_document_is_used_up_ends_alone() -> None:
    async def main() -> None:
        group = Group("a")
        await group.keeper("x", "x").create(Lease(pipeline="bank", partition="a"))
        group.edit("a", lambda lease: replace(lease, tick=INTEGER_MAX - 1))
        tenure = await group.tenure()
        group.append("a", 3)
        await until(tenure.task.done)
        assert tenure.task.result().reason == "failed"
        assert "tick" in str(tenure.task.result().error)

    run_virtual(main())


def test_without_the_container_a_stop_ends_all_the_same_and_the_lease_expires() -> None:
    async def main() -> None:
        group = Group("a")
        tenure = await at_work(group)
        group.append("a", 1)
        group.weather.down.add(("", "store"))
        tenure.worker.stop()
        async with asyncio.timeout(11):
            assert (await tenure.task).reason == "shutdown"
        assert group.leases["a"].owner == "host-a"
        assert_nothing_left()

    run_virtual(main())


# Cancelled


@pytest.mark.parametrize("twice", [False, True])
def test_wherever_it_is_cancelled_nothing_is_left_nothing_is_sent_and_the_lease_is_free(twice: bool) -> None:
    async def main() -> None:
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
            assert_nothing_left()
            if not twice:
                lease = group.leases["a"]
                assert lease.owner is None
                assert int(lease.continuation or 0) <= len(group.delivered("a"))
            await asyncio.sleep(100)
            assert len(group.weather.requests) == requests
            is_over = not tenure.task.cancelled()
            step += 1
        assert step > 20

    run_virtual(main())


def test_a_cancelled_write_may_arrive_and_then_counts_once() -> None:
    async def main() -> None:
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

    run_virtual(main())
