"""An operator closes the lease of a partition that is done: what is allowed, what the group makes of it, what REST answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import structlog
from patience import until_async
from unit.service.operated import LEASE, reset, taken
from unit.service.problems import problem

from leasehold.leases.document import lease_id
from leasehold.leases.errors import OwnershipLost, StoreConflict, StoreMissing
from leasehold.leases.lease import Child, Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.errors import FeedUnavailable
from leasehold.pipeline.feed import FeedPartition
from leasehold.service.errors import NotNow
from leasehold.service.group.actions import ClosedLease, close_lease, describe, list_partitions


class Files(MemoryChangeFeed):
    """Partitions come to an end without a word, as files do, and can be moved away."""

    partitions_finish = True

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.away: set[str] = set()
        self.hidden: dict[str, str] = {}

    async def partitions(self) -> list[FeedPartition]:
        return [each for each in await super().partitions() if each.name not in self.away]

    @property
    def passed_over(self) -> dict[str, str]:
        return self.hidden

    async def lag(self, partition: str, continuation: str | None) -> int:
        if partition in self.away:
            raise FeedUnavailable(f"no file '{partition}'")
        return await super().lag(partition, continuation)


@pytest.fixture
def files() -> Files:
    feed = Files(["a", "b"])
    feed.append("a", [b"{}"] * 5)
    return feed


def delivering(running) -> Callable[[], Awaitable[bool]]:
    """Whether all five events of a are delivered."""

    async def is_so() -> bool:
        try:
            return (await running.keeper.read("bank", "a")).lease.continuation == "5"
        except StoreMissing:  # the host has not created the lease yet
            return False

    return is_so


@pytest.fixture
async def resting(start, files):
    """A host that has not begun. All five events of a are delivered; b is empty."""
    running = await start(runs=False, feeds={"bank": files})
    await running.keeper.create(Lease(pipeline="bank", partition="a", continuation="5"))
    await running.keeper.create(Lease(pipeline="bank", partition="b"))
    return running


@pytest.fixture
async def client(resting) -> AsyncIterator[httpx.AsyncClient]:
    async with resting.client() as client:
        yield client


async def closed(running, partition: str = "a", **options: bool) -> ClosedLease:
    pipeline = running.view.pipelines["bank"]
    return await close_lease(running.keeper, pipeline, partition, await list_partitions(pipeline), **options)


def line(done: ClosedLease) -> str:
    return describe(done, cleared_after_s=20.0)


async def test_a_partition_that_is_delivered_is_closed_where_it_stands(resting) -> None:
    done = await closed(resting)
    lease = (await resting.keeper.read("bank", "a")).lease
    assert (lease.closed, lease.tombstone, lease.continuation, lease.owner) == (True, True, "5", None)
    assert line(done) == "lease 'a' of pipeline 'bank' closed at '5': 0 events left; it may be archived"


async def test_the_owner_loses_a_closed_lease_at_its_next_write_and_no_later(resting) -> None:
    owned = await taken(resting)
    done = await closed(resting)
    assert line(done).endswith("; 'host-a' loses it at its next write")
    assert (done.change.after.lease.epoch, done.change.after.lease.tick) == (owned.lease.epoch, owned.lease.tick)
    with pytest.raises(OwnershipLost, match="is now closed"):
        await owned.checkpoint("6", "")
    assert (await resting.keeper.read("bank", "a")).lease == done.change.after.lease


async def test_events_that_are_left_keep_a_lease_open_unless_they_are_to_be_skipped(resting, files) -> None:
    files.append("a", [b"{}"] * 2)
    with pytest.raises(NotNow, match=r"'a' of pipeline 'bank' stays open: 2 events are left.*--skip-rest"):
        await closed(resting)
    assert not (await resting.keeper.read("bank", "a")).lease.closed
    done = await closed(resting, skip_rest=True)
    assert line(done) == "lease 'a' of pipeline 'bank' closed at '5': 2 events are skipped"


async def test_what_the_sink_has_beyond_the_lease_is_not_left(start, files) -> None:
    destination = MemoryDestination()
    destination._positions["bank", "a", 0] = "5"
    sink = MemoryOutputSink(destination)
    running = await start(runs=False, feeds={"bank": files}, sinks={"bank": sink})
    await running.keeper.create(Lease(pipeline="bank", partition="a", continuation="3"))
    done = await closed(running)
    assert done.change.after.lease.continuation == "5"


async def test_a_sinks_position_of_an_earlier_generation_says_nothing_of_what_is_left(start, files) -> None:
    destination = MemoryDestination()
    destination._positions["bank", "a", 0] = "5"
    running = await start(runs=False, feeds={"bank": files}, sinks={"bank": MemoryOutputSink(destination)})
    await running.keeper.create(Lease(pipeline="bank", partition="a", continuation="3", generation=1))
    with pytest.raises(NotNow, match="2 events are left"):
        await closed(running)


async def test_a_partition_that_is_gone_is_closed_although_nobody_knows_what_was_left(resting, files) -> None:
    files.away.add("a")
    said = line(await closed(resting))
    assert said.startswith("lease 'a' of pipeline 'bank' closed at '5': the feed no longer lists it")
    assert "unknown" in said


async def test_an_unknown_rest_of_a_partition_that_is_there_keeps_it_open(resting, files) -> None:
    async def lag(partition: str, continuation: str | None) -> int:
        raise FeedUnavailable("the disk is away")

    files.lag = lag  # type: ignore[method-assign]
    with pytest.raises(NotNow, match=r"how many events are left is unknown \(the disk is away\)"):
        await closed(resting)
    assert "an unknown number of events is skipped" in line(await closed(resting, skip_rest=True))


@pytest.mark.parametrize("skip_rest", [False, True])
async def test_a_partition_that_can_get_events_at_any_time_stays_open(start, skip_rest: bool) -> None:
    running = await start(runs=False, feeds={"bank": MemoryChangeFeed(["a"])})
    await running.keeper.create(Lease(pipeline="bank", partition="a"))
    with pytest.raises(NotNow, match=r"partition 'a' of pipeline 'bank' still exists.*pause the pipeline"):
        await closed(running, skip_rest=skip_rest)


async def test_a_lease_without_its_partition_is_closed_for_any_feed_and_leaves_no_tombstone(start) -> None:
    running = await start(runs=False, feeds={"bank": MemoryChangeFeed(["b"])})
    await running.keeper.create(Lease(pipeline="bank", partition="a", continuation="5"))
    lease = (await closed(running)).change.after.lease
    assert (lease.closed, lease.tombstone) == (True, False)


async def test_a_lease_that_is_closed_already_stays_as_it_is(resting) -> None:
    first = await closed(resting)
    again = await closed(resting)
    assert not again.change.is_change
    assert again.change.after == first.change.after
    assert line(again) == "lease 'a' of pipeline 'bank' was closed already, at '5'"


async def test_a_tombstone_can_be_given_up_later(resting) -> None:
    await closed(resting)
    again = await closed(resting, forget=True)
    assert line(again).endswith(
        "was closed already, at '5'; hosts delete its document 20 s after the partition has gone"
    )
    assert not (await resting.keeper.read("bank", "a")).lease.tombstone
    assert not (await closed(resting)).change.is_change  # and is not set up again


async def test_a_parent_that_was_split_is_said_to_have_ended(resting) -> None:
    await resting.keeper.create(
        Lease(pipeline="bank", partition="p", closed=True, children=(Child("a", "1"), Child("b", "1")))
    )
    with pytest.raises(NotNow, match="has ended, and 'a', 'b' continue it"):
        await closed(resting, "p")


async def test_a_close_comes_through_although_the_owner_writes_meanwhile_and_counts_again(start, files) -> None:
    class Busy(MemoryStore):
        writes = 3

        async def replace(self, id: str, body: str, etag: str) -> str:
            if self.writes and "/leases/" in id:
                self.writes -= 1
                files.append("a", [b"{}"] * (self.writes == 0))
                raise StoreConflict("somebody else was quicker")
            return await super().replace(id, body, etag)

    running = await start(runs=False, store=Busy(), feeds={"bank": files})
    await running.keeper.create(Lease(pipeline="bank", partition="a", continuation="5", owner="z", incarnation="1"))
    with pytest.raises(NotNow, match="1 event is left"):
        await closed(running)
    assert (await closed(running, skip_rest=True)).change.is_change


# The group


async def test_nobody_reads_a_closed_partition_and_its_lag_counts_no_more(start, files) -> None:
    running = await start(feeds={"bank": files})

    await until_async(delivering(running))
    await until_async(lambda: ("bank", "a") in running.host.workers)
    await closed(running)
    await until_async(lambda: ("bank", "a") not in running.host.workers)
    files.append("a", [b"{}"] * 3)
    running.view.forget()
    await until_async(
        lambda: (
            ("bank", "a") in running.host.balancer.reader.scan.seen
            and running.host.balancer.reader.scan.seen["bank", "a"].lease.closed
        )
    )
    assert ("bank", "a") not in running.host.workers
    assert [one.partition for one in (await running.view.read_lag(0.0)).partitions] == ["b"]
    assert (await running.view.read_backlog()).is_done


async def test_a_group_whose_file_is_gone_becomes_idle_once_its_lease_is_closed(resting, files) -> None:
    files.away.add("a")
    assert not (await resting.view.read_backlog()).is_done
    await closed(resting)
    look = await resting.view.read_backlog()
    assert (look.is_done, look.failed, look.held) == (True, {}, {})


async def test_a_file_that_comes_back_under_a_closed_name_is_not_read_and_is_warned_of_once(start, files) -> None:
    with structlog.testing.capture_logs() as logs:

        def warnings() -> list[str]:
            return [entry["what"] for entry in logs if "an operator closed" in str(entry.get("what"))]

        running = await start(feeds={"bank": files})
        await until_async(lambda: ("bank", "a") in running.host.workers)

        await until_async(delivering(running))
        await closed(running)
        await rounds(running, 3)
        assert warnings() == []  # it is closed first and moved away then: no surprise
        files.away.add("a")
        await rounds(running, 3)
        files.away.clear()
        await until_async(warnings)
        await rounds(running, 3)
        assert len(warnings()) == 1
        since_the_close, from_the_beginning = warnings()[0].split("To read it from its beginning")
        assert "`leasehold leases reset FILE bank a --to 5 --yes`" in since_the_close
        assert "`leasehold leases reset FILE bank a --to earliest --yes`" in from_the_beginning
        await until_async(lambda: ("bank", "a") not in running.host.workers)


async def rounds(running, count: int) -> None:
    """Until the host has read the leases so many times more, and the last time has been acted on."""
    for _ in range(count):
        before = running.host.balancer.reader.scan
        running.host.wake()
        await until_async(lambda seen=before: running.host.balancer.reader.scan is not seen)


# REST


async def test_by_rest_a_lease_is_closed_and_the_answer_says_what_was_done(resting, client) -> None:
    await taken(resting)
    answer = await client.post(f"{LEASE}/close", json={})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["changed"], body["left"]) == (True, 0)
    assert (body["before"]["state"], body["after"]["state"], body["after"]["owner"]) == ("owned", "closed", None)
    assert body["told"].startswith("lease 'a' of pipeline 'bank' closed at '5': 0 events left")
    found = await client.get(LEASE)
    assert (found.json()["state"], found.json()["tombstone"]) == ("closed", True)
    assert found.headers["etag"] == answer.headers["etag"]
    assert resting.host.stats.actions == {("close", "done"): 1}
    again = (await client.post(f"{LEASE}/close", json={})).json()
    assert (again["changed"], again["left"]) == (False, None)


async def test_by_rest_a_close_that_would_lose_events_is_refused(resting, client, files) -> None:
    files.append("a", [b"{}"])
    assert "1 event is left" in str(problem(await client.post(f"{LEASE}/close", json={}), 409)["detail"])
    assert (await client.post(f"{LEASE}/close", json={"skip_rest": True, "forget": True})).json()["changed"]
    assert not (await resting.keeper.read("bank", "a")).lease.tombstone
    problem(await client.post("/api/leases/bank/nope/close", json={}), 404)
    problem(await client.post(f"{LEASE}/close", json={"skip": True}), 422)


async def test_by_rest_a_feed_that_does_not_answer_is_a_503_and_nothing_is_closed(resting, client, files) -> None:
    async def away() -> list[FeedPartition]:
        raise FeedUnavailable("the directory is away")

    files.partitions = away  # type: ignore[method-assign]
    problem(await client.post(f"{LEASE}/close", json={}), 503)
    assert not (await resting.keeper.read("bank", "a")).lease.closed


@pytest.mark.parametrize("action", ["release", "handoff"])
async def test_what_else_operators_do_to_a_closed_lease_is_refused_with_the_way_out(client, action: str) -> None:
    await client.post(f"{LEASE}/close", json={})
    body = {"to": "host-a"} if action == "handoff" else {}
    detail = str(problem(await client.post(f"{LEASE}/{action}", json=body), 409)["detail"])
    if action == "release":
        assert detail == "lease 'a' of pipeline 'bank' is closed, by an operator: a reset opens it again"


async def test_a_reset_opens_a_closed_lease_in_a_new_generation_and_hosts_read_it(start, files) -> None:
    running = await start(feeds={"bank": files})

    await until_async(delivered := delivering(running))
    await closed(running)
    async with running.client() as client:
        after = (await reset(client, "earliest")).json()["after"]
    assert (after["state"], after["generation"], after["continuation"]) == ("available", 1, None)
    await until_async(delivered)
    assert not (await running.keeper.read("bank", "a")).lease.closed


async def test_a_stale_host_cannot_take_what_was_closed_meanwhile(resting) -> None:
    seen = await resting.keeper.read("bank", "a")
    await closed(resting)
    assert await resting.keeper.take(seen, lambda state: state) is None


async def test_an_unreadable_lease_is_not_closed(resting) -> None:
    store: MemoryStore = resting.keeper.store
    stored = await store.read(lease_id("bank", "a"))
    await store.replace(stored.id, "{}", stored.etag)
    with pytest.raises(Exception, match="field 'version'"):
        await closed(resting)


@pytest.mark.parametrize("forget", [False, True])
async def test_a_lease_whose_partition_may_be_hidden_stays_as_it_is(resting, files, forget: bool) -> None:
    if forget:
        await closed(resting)
    files.away, files.hidden = {"a"}, {"/in": "the directory cannot be listed"}
    with pytest.raises(
        NotNow, match=r"its partition may be hidden, because the feed passes over '/in' \(the directory"
    ):
        await closed(resting, forget=forget)
    assert (await resting.keeper.read("bank", "a")).lease.tombstone is forget
    assert (await closed(resting, "b")).change.is_change
    assert (await closed(resting, forget=forget, skip_rest=True)).change.is_change
