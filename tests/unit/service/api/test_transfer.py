"""Export and import by REST: leases that come back as they were, and what an import is not allowed to do."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from patience import until_async
from unit.leases.lease_documents import dotnet
from unit.service.problems import problem

from leasehold.leases.document import lease_id
from leasehold.leases.lease import Lease
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.service.api import middleware
from leasehold.service.group.migration import export_leases

HEADERS = {"content-type": "application/jsonl"}


@pytest.fixture
async def resting(start):
    running = await start(runs=False, feeds={"bank": MemoryChangeFeed(["a", "b"]), "view": MemoryChangeFeed(["a"])})
    running.feeds["bank"].append("a", [b"{}"] * 9)
    for pipeline, partition, at in (("bank", "a", "3"), ("bank", "b", None), ("view", "a", None)):
        await running.keeper.create(Lease(pipeline=pipeline, partition=partition, continuation=at, epoch=7))
    return running


@pytest.fixture
async def client(resting) -> AsyncIterator[httpx.AsyncClient]:
    async with resting.client() as client:
        yield client


async def imported(client: httpx.AsyncClient, text: str | bytes, **query: object) -> httpx.Response:
    params = {"pipeline": "bank", "from": "leasehold"} | {name: str(value) for name, value in query.items()}
    return await client.post("/api/leases/import", params=params, content=text, headers=HEADERS)


async def test_an_export_is_that_of_the_command(resting, client) -> None:
    answer = await client.get("/api/leases/export")
    assert answer.headers["content-type"] == "application/jsonl"
    lines, _ = await export_leases(resting.keeper, resting.view.pipelines.values())
    assert answer.text.splitlines() == lines
    one = (await client.get("/api/leases/export?pipeline=view")).text.splitlines()
    assert [json.loads(line).get("lease", {}).get("pipeline") for line in one] == [None, "view"]


async def test_what_cannot_be_read_is_missing_from_no_export_unasked(resting, client) -> None:
    await resting.keeper.store.create(lease_id("bank", "z"), "{")
    told = problem(await client.get("/api/leases/export"), 409)
    assert "bank/leases/z" in str(told["errors"])
    assert len((await client.get("/api/leases/export?skip_unreadable=true")).text.splitlines()) == 5


async def test_an_import_tells_and_with_apply_does(resting, client) -> None:
    text = (await client.get("/api/leases/export?pipeline=bank")).text
    stored = await resting.keeper.store.read(lease_id("bank", "a"))
    await resting.keeper.store.delete(stored.id, stored.etag)
    for apply in (False, True):
        report = (await imported(client, text, apply=apply)).json()
        assert (report["created"], report["unchanged"], report["refused"]) == (1, 1, 0)
        assert report["written"] == apply
        assert [(each["partition"], each["change"], each["to"]) for each in report["changes"]] == [
            ("a", "created", "3"),
            ("b", "unchanged", None),
        ]
    assert (await resting.keeper.read("bank", "a")).lease.continuation == "3"
    assert (await imported(client, text, apply=True)).json()["written"] == 0


async def test_nothing_moves_back_unless_it_is_forced(resting, client) -> None:
    text = (await client.get("/api/leases/export?pipeline=bank")).text
    seen = await resting.keeper.read("bank", "a")
    await resting.keeper.rewrite(seen, seen.lease.checkpointed("8", ""))
    assert (await imported(client, text)).json()["refused"] == 1
    told = problem(await imported(client, text, apply=True), 409)
    assert "nothing was written" in str(told["detail"])
    assert "it would move back" in str(told["detail"])
    moved = (await imported(client, text, apply=True, force=True)).json()
    assert (moved["moved"], moved["written"]) == (1, 1)
    assert (await resting.keeper.read("bank", "a")).lease.generation == 1


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", 422),
        ("{", 422),
        ("[]", 422),
        ("null\n", 422),
        ("[" * 10_000, 422),
        ('{"leasehold": 1, "leasehold": 1}', 422),
        ('{"leasehold": NaN}', 422),
        ('{"leasehold": 2, "pipeline": {}}', 422),
        ("\x00", 422),
        (b"\xff", 400),
    ],
)
async def test_an_input_that_is_none_is_refused_in_a_sentence(resting, client, text: str | bytes, status: int) -> None:
    problem(await imported(client, text, apply=True), status)


@pytest.mark.parametrize("source", ["dotnet", "java", "eventprocessorhost", "checkpointstore"])
async def test_without_an_input_there_has_to_be_something_in_the_container(client, source: str) -> None:
    told = problem(
        await client.post("/api/leases/import", params={"pipeline": "bank", "from": source}, headers=HEADERS), 422
    )
    assert "INPUT" in str(told["detail"])


async def test_documents_of_others_are_read_as_an_array_too(client) -> None:
    told = await imported(client, json.dumps([dotnet("0")]), **{"from": "dotnet"})
    assert told.status_code in (200, 422), told.text
    assert told.status_code == 422 or told.json()["changes"][0]["change"] == "refused"


async def test_as_much_as_an_import_may_hold_is_read_and_more_is_not(client) -> None:
    line = " " * middleware.IMPORT_BYTES_MAX
    problem(await imported(client, line), 422)
    problem(await imported(client, line + " "), 413)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 422),
        ("pipeline=bank", 422),
        ("pipeline=bank&from=elsewhere", 422),
        ("pipeline=nope&from=leasehold", 404),
        ("pipeline=bank&from=leasehold&apply=perhaps", 422),
        ("pipeline=bank&from=leasehold&applied=true", 422),
    ],
)
async def test_an_order_that_is_not_understood_is_refused(client, query: str, status: int) -> None:
    problem(await client.post(f"/api/leases/import?{query}", headers=HEADERS), status)


async def test_what_a_live_owner_works_on_is_taken_over_once_its_pipeline_is_paused(start) -> None:
    running = await start(partitions=["a"])
    running.feeds["bank"].append("a", [b"{}"] * 9)
    async with running.client() as client:
        await until_async(lambda: running.destination.commits)
        text = (await client.get("/api/leases/export?pipeline=bank")).text
        text = re.sub('"continuation":("[0-9]+"|null)', '"continuation":"2"', text)
        refused = (await imported(client, text, force=True)).json()
        assert "'host-a' owns it and is alive" in refused["changes"][0]["why"]
        await client.post("/api/pipelines/bank/pause", json={})
        await until_async(lambda: not running.host.workers)
        assert (await imported(client, text, force=True, apply=True)).json()["written"] == 1
    lease = (await running.keeper.read("bank", "a")).lease
    assert (lease.continuation, lease.generation, lease.owner) == ("2", 1, None)
