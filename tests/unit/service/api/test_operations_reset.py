"""A lease's position set by REST: where to, over which version of the lease, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from unit.service.operated import LEASE, reset, taken
from unit.service.problems import problem

from leasehold.leases.document import encode_lease
from leasehold.leases.lease import Child, Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryFeed
from leasehold.pipeline.errors import FeedUnavailable, PositionLost


@pytest.fixture
async def resting(start):
    """A host that has not begun, over a lease with five events."""
    running = await start(runs=False, partitions=["a"])
    running.feeds["bank"].append("a", [b"{}"] * 5)
    await running.keeper.create(Lease(pipeline="bank", partition="a"))
    return running


@pytest.fixture
async def client(resting) -> AsyncIterator[httpx.AsyncClient]:
    async with resting.client() as client:
        yield client


@pytest.mark.parametrize(("to", "at"), [("earliest", None), ("latest", "5"), ("2", "2"), ("2026-01-31T12:00:00Z", "5")])
async def test_a_reset_begins_a_new_generation_where_it_is_told(resting, client, to: str, at: str | None) -> None:
    owned = await taken(resting)
    await owned.checkpoint("3", "")
    answer = await reset(client, to)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["before"]["continuation"], told["before"]["generation"]) == ("3", 0)
    assert (told["after"]["continuation"], told["after"]["generation"], told["after"]["owner"]) == (at, 1, None)
    found = await resting.keeper.read("bank", "a")
    assert (found.lease.continuation, found.lease.generation) == (at, 1)
    assert (await client.get(LEASE)).headers["etag"] == answer.headers["etag"]


async def test_a_reset_of_what_has_changed_since_is_refused_with_the_present_etag(resting, client) -> None:
    etag = (await client.get(LEASE)).headers["etag"]
    owned = await taken(resting)
    before = await resting.keeper.read("bank", "a")
    answer = await reset(client, "earliest", etag)
    assert "pause the pipeline first" in str(problem(answer, 412)["detail"])
    assert await resting.keeper.read("bank", "a") == before
    await owned.renew()
    assert (await reset(client, "earliest", answer.headers["etag"])).status_code == 412
    assert (await reset(client, "earliest")).status_code == 200


async def test_a_write_between_look_and_reset_is_not_lost(start) -> None:
    class Quick(MemoryStore):
        """Somebody writes right before each reset."""

        async def replace(self, id: str, body: str, etag: str) -> str:
            if "/leases/" in id:
                self._put(id, encode_lease(Lease(pipeline="bank", partition="a", tick=9)))
            return await super().replace(id, body, etag)

    running = await start(runs=False, store=Quick())
    await running.keeper.create(Lease(pipeline="bank", partition="a"))
    async with running.client() as client:
        problem(await reset(client, "latest"), 412)
    assert (await running.keeper.read("bank", "a")).lease.tick == 9


@pytest.mark.parametrize("etag", [None, "*", " * "])
async def test_a_reset_without_what_was_seen_is_refused(client, etag: str | None) -> None:
    headers = {} if etag is None else {"if-match": etag}
    answer = await client.put(f"{LEASE}/continuation", json={"to": "latest"}, headers=headers)
    assert "If-Match" in str(problem(answer, 428)["detail"])


@pytest.mark.parametrize("etag", ["", '"', "W/{}", "{}x", '"other"', ",,,", "x" * 10_000, '"%ff"', '"\xff"'])
async def test_odd_etags_are_no_leave_to_write(client, etag: str) -> None:
    present = (await client.get(LEASE)).headers["etag"]
    answer = await client.put(
        f"{LEASE}/continuation", json={"to": "latest"}, headers={"if-match": etag.format(present).encode("latin-1")}
    )
    problem(answer, 412)


async def test_an_etag_among_others_is_leave_enough_and_expiry_is_no_change_of_it(client) -> None:
    present = (await client.get(LEASE)).headers["etag"]
    assert (await reset(client, "latest", f'"other", {present[:-1]};expired"')).status_code == 200


@pytest.mark.parametrize("to", ["nowhere", "x" * 32_768, "\x00", "2026-01-31T12:00:00"])
async def test_a_position_that_the_feed_does_not_know_is_refused(resting, client, to: str) -> None:
    problem(await reset(client, to), 422)
    assert (await resting.keeper.read("bank", "a")).lease.generation == 0


async def test_a_feed_or_sink_that_does_not_answer_is_a_503_and_nothing_is_written(start) -> None:
    class Away(MemoryFeed):
        async def start_of(self, partition: str, start: object) -> str | None:
            raise FeedUnavailable("the broker is away")

    class Passed(MemoryFeed):
        async def start_of(self, partition: str, start: object) -> str | None:
            raise PositionLost("retention has passed it")

    running = await start(runs=False, feeds={"bank": Away(["a"]), "view": Passed(["a"])})
    for name in ("bank", "view"):
        await running.keeper.create(Lease(pipeline=name, partition="a"))
    async with running.client() as client:
        assert "the broker is away" in str(problem(await reset(client, "latest"), 503)["detail"])
        assert "retention" in str(problem(await reset(client, "latest", path="/api/leases/view/a"), 422)["detail"])


async def test_a_closed_lease_is_left_alone(resting, client) -> None:
    owned = await taken(resting)
    await owned.end("7", (Child("a1", "7"),))
    for answer in (
        await client.post(f"{LEASE}/release", json={}),
        await reset(client, "earliest"),
    ):
        assert "has ended" in str(problem(answer, 409)["detail"])


async def test_a_reset_is_noted_for_readers_of_checkpoint_blobs_while_the_pipeline_rests(resting, client) -> None:
    noted = []

    class Writer:
        def note(self, lease: Lease, *, now: bool) -> None:
            noted.append((lease.partition, lease.continuation, lease.generation, now))

    resting.host.checkpoint_writers["bank"] = Writer()
    assert (await reset(client, "2")).status_code == 200
    assert noted == [("a", "2", 1, True)]
