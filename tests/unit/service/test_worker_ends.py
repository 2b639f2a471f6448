"""How a worker ends: what it still does, what it no longer does, and what its sink is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from lab.simulation.group import Group, Tenure, until
from lab.simulation.handler import Handler, handled
from lab.simulation.weather import Fate, Outlet, Request

from leasehold.leases.document import lease_id
from leasehold.leases.lease import Child, Lease
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import MalformedRecord, PipelineError, SinkRejected, TransformError
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.sink import Claim, Permit
from leasehold.pipeline.transform import NoTransform

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


# What the sink is told


@pytest.mark.virtual
async def test_a_stop_checkpoints_releases_and_closes_the_sink_with_shutdown() -> None:
    handler = Handler()
    group = handled(handler)
    tenure = await at_work(group)
    tenure.worker.stop()
    outcome = await tenure.task
    assert (outcome.reason, outcome.error) == ("shutdown", None)
    assert handler.calls == [("open", None), *(("process", n) for n in "123"), ("close", "shutdown")]
    [let_go] = tenure.said("lease released")
    assert (let_go["reason"], "to" in let_go) == ("released", False)
    lease = group.leases["a"]
    assert (lease.owner, lease.incarnation, lease.continuation, lease.handoff_to) == (None, None, "3", None)
    await assert_nothing_left(tenure)


@pytest.mark.virtual
async def test_a_handoff_finishes_the_batch_in_hand_checkpoints_and_is_logged_as_handed_over() -> None:
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
    [let_go] = tenure.said("lease released")
    assert (let_go["reason"], let_go["to"]) == ("handed_over", "host-b")
    assert handler.calls[-2:] == [("process", "4"), ("close", "shutdown")]


@pytest.mark.virtual
async def test_a_request_for_handoff_is_found_when_the_leases_are_read() -> None:
    group = Group("a")
    tenure = await at_work(group)
    keeper = group.keeper("host-b", "host-b-1")
    await keeper.ask(await keeper.read("bank", "a"))
    await tenure.look()
    await until(tenure.task.done, within_s=1)
    assert group.leases["a"].handoff_to == "host-b"


@pytest.mark.virtual
async def test_a_request_that_was_there_before_the_worker_was_is_answered() -> None:
    group = Group("a")
    keeper = group.keeper("host-b", "host-b-1")
    asked = False

    def judge(request: Request) -> Fate:
        nonlocal asked
        if request.operation == "replace" and "/leases/" in request.id and not asked:
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


@pytest.mark.virtual
async def test_a_stolen_lease_sends_nothing_more_and_releases_nothing() -> None:
    handler = Handler()
    group = handled(handler)
    tenure = await at_work(group)
    taken(group)
    tenure.worker.owned.notice(await group.keeper("x", "x").read("bank", "a"))
    group.append("a", 5)
    outcome = await tenure.task
    assert outcome.reason == "stolen"
    assert "host-b" in str(outcome.error)
    assert handler.calls[-2:] == [("process", "3"), ("close", "stolen")]
    assert group.leases["a"].owner == "host-b"


@pytest.mark.virtual
async def test_the_batch_in_hand_is_cancelled_when_the_lease_is_stolen() -> None:
    handler = Handler()
    group = handled(handler)
    tenure = await at_work(group)
    handler.hangs_in = "process"
    group.append("a", 1)
    await asyncio.sleep(1)
    taken(group)
    await tenure.look()
    await until(tenure.task.done, within_s=1)
    assert handler.calls[-1] == ("close", "stolen")
    await assert_nothing_left(tenure)


@pytest.mark.virtual
@pytest.mark.parametrize("how", ["reset", "deleted", "spoilt", "revoked"])
async def test_a_lease_that_is_gone_reset_or_revoked_is_lost(how: str) -> None:
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
    await tenure.look()
    await until(tenure.task.done, within_s=1)
    assert tenure.task.result().reason == "lost"
    assert handler.calls[-1] == ("close", "lost")
    assert group.documents("bank/leases/") == before  # not touched


@pytest.mark.virtual
async def test_a_partition_that_has_ended_closes_its_lease_behind_its_last_event() -> None:
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


@pytest.mark.virtual
@pytest.mark.parametrize("ends", ["refused", "lost", "ghost", "late"])
@pytest.mark.parametrize("where", ["store", "sink"])
async def test_an_end_whose_answer_is_lost_is_ended_once_more(where: str, ends: str) -> None:
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


@pytest.mark.virtual
async def test_the_end_of_a_partition_waits_for_trust() -> None:
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


@pytest.mark.virtual
@pytest.mark.parametrize("error", [SinkRejected("no such column"), ZeroDivisionError("a fault of the handler")])
async def test_an_error_that_will_not_pass_releases_the_lease_behind_what_is_safe(error: Exception) -> None:
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
    assert [entry["level"] for entry in tenure.said("lease released")] == ["error"]


class Failing(NoTransform):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def apply(self, batch: Batch) -> pa.Table:
        raise self.error


@pytest.mark.virtual
@pytest.mark.parametrize("error", [TransformError("bad SQL"), MalformedRecord("line 7"), KeyError("x")])
async def test_every_error_of_a_transform_is_told(error: Exception) -> None:
    group = Group("a")
    group.append("a", 1)
    tenure = await group.tenure(transform=Failing(error))
    outcome = await tenure.task
    assert (outcome.reason, group.leases["a"].owner) == ("failed", None)
    assert str(error) in str(outcome.error)


@pytest.mark.virtual
async def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    group = Group("a")

    class Odd(Outlet):
        async def open(self, claim: Claim) -> Any:
            raise asyncio.CancelledError

    tenure = await group.tenure(sink=Odd(group.destination, group.weather))
    outcome = await tenure.task
    assert (outcome.reason, type(outcome.error), group.leases["a"].owner) == ("failed", PipelineError, None)
