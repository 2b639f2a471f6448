"""What operators do by REST: release, handoff, pause, resume; and what each answers to what it cannot do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import quote

import httpx
import pytest
from patience import until_async
from unit.service.operated import LEASE, reset, taken
from unit.service.problems import problem

from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.errors import StoreAmbiguous, StoreUnavailable
from leasehold.leases.host_record import HostRecord, encode_host, host_id
from leasehold.leases.lease import Lease
from leasehold.leases.pause_orders import control_id
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed


@pytest.fixture
async def resting(start):
    """A host that has not begun, over two pipelines with some leases, beside a record of another host."""
    running = await start(runs=False, feeds={"bank": MemoryChangeFeed(["a", "b"]), "view": MemoryChangeFeed(["a"])})
    running.feeds["bank"].append("a", [b"{}"] * 5)
    for pipeline, partition in (("bank", "a"), ("bank", "b"), ("view", "a")):
        await running.keeper.create(Lease(pipeline=pipeline, partition=partition))
    for name, pipelines, draining in (("host-b", ("bank", "view"), False), ("host-c", ("bank",), True)):
        record = HostRecord(
            name=name,
            incarnation="1",
            pipelines=pipelines,
            draining=draining,
        )
        await running.keeper.store.create(host_id(name), encode_host(record))
    return running


@pytest.fixture
async def client(resting) -> AsyncIterator[httpx.AsyncClient]:
    async with resting.client() as client:
        yield client


# Release


async def test_a_release_takes_the_lease_from_its_owner_and_keeps_its_position(resting, client) -> None:
    owned = await taken(resting)
    await owned.checkpoint("3", "")
    answer = await client.post(f"{LEASE}/release", json={})
    assert answer.status_code == 200
    told = answer.json()
    assert told["changed"]
    assert (told["before"]["owner"], told["after"]["owner"]) == ("host-a", None)
    found = await resting.keeper.read("bank", "a")
    assert (found.lease.owner, found.lease.continuation, found.lease.tick) == (None, "3", owned.lease.tick)
    again = await client.get(LEASE)
    assert again.json()["state"] == "available"
    assert again.headers["etag"] == answer.headers["etag"]


async def test_a_release_of_what_nobody_owns_changes_nothing(resting, client) -> None:
    before = await resting.keeper.read("bank", "a")
    answer = (await client.post(f"{LEASE}/release", json={})).json()
    assert not answer["changed"]
    assert answer["before"] == answer["after"]
    assert await resting.keeper.read("bank", "a") == before


async def test_a_release_comes_through_although_the_owner_writes_meanwhile(start) -> None:
    class Busy(MemoryStore):
        renewals = 3

        async def read(self, id: str):
            stored = await super().read(id)
            if self.renewals and "/leases/" in id:
                self.renewals -= 1
                self._put(id, stored.body)
            return stored

    running = await start(runs=False, store=Busy())
    await running.keeper.create(Lease(pipeline="bank", partition="a", owner="host-z", incarnation="1"))
    async with running.client() as client:
        assert (await client.post(f"{LEASE}/release", json={})).json()["changed"]


# Handoff


async def test_a_handoff_is_asked_for_on_behalf_of_a_host(resting, client) -> None:
    owned = await taken(resting)
    answer = (await client.post(f"{LEASE}/handoff", json={"to": "host-b"})).json()
    assert (answer["after"]["owner"], answer["after"]["handoff_to"]) == ("host-a", "host-b")
    assert answer["after"]["state"] == "handing_over"
    found = await resting.keeper.read("bank", "a")
    assert found.lease == replace(owned.lease, handoff_to="host-b")
    assert not (await client.post(f"{LEASE}/handoff", json={"to": "host-b"})).json()["changed"]


@pytest.mark.parametrize(
    ("pipeline", "to", "why"),
    [
        ("bank", "host-z", "there is no host 'host-z'; there are: host-b, host-c"),
        ("bank", "host-c", "host 'host-c' is draining"),
        ("bank", "\r\nset-cookie: x", "there is no host"),
    ],
)
async def test_a_handoff_to_a_host_that_would_not_come_is_refused(client, pipeline: str, to: str, why: str) -> None:
    answer = await client.post(f"/api/leases/{pipeline}/a/handoff", json={"to": to})
    assert why in str(problem(answer, 409)["detail"])


async def test_a_handoff_to_a_host_without_the_pipeline_is_refused(resting, client) -> None:
    record = HostRecord(name="host-d", incarnation="1", pipelines=("view",))
    await resting.keeper.store.create(host_id("host-d"), encode_host(record))
    told = problem(await client.post(f"{LEASE}/handoff", json={"to": "host-d"}), 409)
    assert told["detail"] == "host 'host-d' does not run pipeline 'bank': name one that does"


async def test_a_lease_moves_to_the_host_that_is_named(start) -> None:
    a = await start("host-a")
    await start("host-b", feeds=a.feeds)
    async with a.client() as client:

        async def owners() -> list[str]:
            items = (await client.get("/api/leases")).json()["items"]
            return sorted(f"{item['owner']}" for item in items)

        async def are_shared() -> bool:
            return await owners() == ["host-a", "host-b"]

        await until_async(are_shared)
        items = (await client.get("/api/leases?owner=host-a")).json()["items"]
        path = f"/api/leases/bank/{items[0]['partition']}"
        epoch = items[0]["epoch"]
        assert (await client.post(f"{path}/handoff", json={"to": "host-b"})).json()["changed"]

        async def has_moved() -> bool:
            return (await client.get(path)).json()["epoch"] > epoch

        await until_async(has_moved)
        assert ("released", "bank") in {(move, name) for name, move in a.host.stats.moves}
        await until_async(are_shared)


# Pause


async def test_a_pipeline_is_paused_and_resumed_and_whoever_asks_is_told(client) -> None:
    paused = (await client.post("/api/pipelines/bank/pause", json={})).json()
    order = {"pipeline": "bank", "by": "anyone", "at": "2026-01-31T12:00:00Z"}
    assert paused == {"changed": True, "paused": True, **order}
    told = (await client.get("/api/pipelines")).json()["items"]
    assert [item["paused"] is None for item in told] == [False, True]
    assert "paused by anyone" in told[0]["paused"]
    assert not (await client.post("/api/pipelines/bank/pause", json={})).json()["changed"]
    assert (await client.post("/api/pipelines/bank/resume", json={})).json() == {
        "changed": True,
        "paused": False,
        **order,
    }
    assert {item["paused"] for item in (await client.get("/api/pipelines")).json()["items"]} == {None}


async def test_to_resume_what_was_never_paused_changes_nothing(resting, client) -> None:
    answer = (await client.post("/api/pipelines/bank/resume", json={})).json()
    assert not answer["changed"]
    assert await resting.keeper.store.list("_control/") == []


async def test_an_order_that_cannot_be_read_is_told_and_written_anew(resting, client) -> None:
    await resting.keeper.store.create(control_id("bank"), '{"version": 1')
    told = (await client.get("/api/pipelines")).json()
    assert "_control/bank" in told["items"][0]["paused"]
    assert "_control/bank" in told["problems"][0]
    assert (await client.post("/api/pipelines/bank/resume", json={})).json()["changed"]
    assert (await client.get("/api/pipelines")).json()["problems"] == []


async def test_a_running_group_rests_at_once_and_goes_on(start) -> None:
    running = await start()
    async with running.client() as client:
        await until_async(lambda: len(running.host.workers) == 2)
        await client.post("/api/pipelines/bank/pause", json={})
        await until_async(lambda: not running.host.workers)
        running.feeds["bank"].append("a", [b"{}"] * 3)
        assert (await client.get("/api/leases?state=available")).json()["total"] == 2
        assert running.destination.commits == []
        await client.post("/api/pipelines/bank/resume", json={})
        await until_async(lambda: running.destination.commits)


async def test_who_waits_until_all_is_done_is_told_of_a_pause_and_does_not_wait_for_ever(resting, client) -> None:
    await client.post("/api/pipelines/bank/pause", json={})
    look = await resting.view.read_backlog()
    assert look.failed.keys() == {("bank", "a"), ("bank", "b")}
    assert "resume" in look.failed["bank", "a"]
    assert not look.behind


# What is not there


@pytest.mark.parametrize(
    "partition", ["nope", "\x00", "a\r\nb", "..", "../../_hosts/host-b", "x" * 5_000, "/", "a/release"]
)
async def test_actions_on_what_is_not_there_are_a_404(client, partition: str) -> None:
    path = "/api/leases/bank/" + quote(partition, safe="").replace(".", "%2E")
    problem(await client.post(f"{path}/release", json={}), 404)
    problem(await client.post(f"{path}/handoff", json={"to": "host-b"}), 404)
    problem(await reset(client, "latest", '"1"', path), 404)


@pytest.mark.parametrize("name", ["nope", "_hosts", "..%2fbank", "bank%0d%0a", "x" * 5_000, "%ff"])
async def test_a_pipeline_that_is_not_there_is_a_404(resting, client, name: str) -> None:
    for action in ("pause", "resume"):
        problem(await client.post(f"/api/pipelines/{name}/{action}", json={}), 404)
    assert await resting.keeper.store.list("_control/") == []


@pytest.mark.parametrize("partition", ["a/release", "a/b", "continuation", "export", "müß 🎈"])
async def test_any_text_can_be_a_partition_that_is_acted_on(start, partition: str) -> None:
    running = await start(runs=False, partitions=[partition])
    await running.keeper.create(Lease(pipeline="bank", partition=partition, owner="z", incarnation="1"))
    async with running.client() as client:
        path = "/api/leases/bank/" + quote(partition, safe="")
        assert (await client.post(f"{path}/release", json={})).json()["changed"]
        assert (await reset(client, "earliest", path=path)).json()["after"]["partition"] == partition


async def test_a_lease_that_cannot_be_read_is_told_with_its_remedy(resting, client) -> None:
    await resting.keeper.store.create(lease_id("bank", "z"), "{")
    told = problem(await client.post("/api/leases/bank/z/release", json={}), 404)
    assert "leasehold leases reset FILE bank z" in str(told["detail"])


@pytest.mark.parametrize(
    ("error", "said"),
    [(StoreUnavailable("no route"), "no route"), (StoreAmbiguous("too late"), "check before you repeat")],
)
async def test_a_container_that_fails_in_the_middle_is_a_503(start, error: Exception, said: str) -> None:
    class Failing(MemoryStore):
        async def replace(self, id: str, body: str, etag: str) -> str:
            raise error

        create = replace

    running = await start(runs=False, store=Failing())
    running.keeper.store._store._store._store._put(
        lease_id("bank", "a"), encode_lease(Lease(pipeline="bank", partition="a", owner="z", incarnation="1"))
    )
    async with running.client() as client:
        for answer in (
            await client.post(f"{LEASE}/release", json={}),
            await reset(client, "latest"),
        ):
            assert said in str(problem(answer, 503)["detail"])
            assert answer.headers["retry-after"] == "1"
