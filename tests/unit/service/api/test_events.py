"""Server-sent events: what has changed, to everybody who watches, and no more than that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import structlog
from patience import PATIENCE_S, until_async

from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.service.api import create_app
from leasehold.service.api import events as module
from leasehold.service.api.events import difference, rendered
from leasehold.service.api.server import serve


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.02)


def parsed(text: str) -> list[tuple[str, Any]]:
    blocks = [block for block in text.split("\n\n") if block.startswith("event: ")]
    return [(name[7:], json.loads(data[6:])) for name, data in (block.split("\n") for block in blocks)]


@asynccontextmanager
async def watching(running) -> AsyncIterator[asyncio.Queue[tuple[str, Any]]]:
    """What comes of one stream, over a socket."""
    came: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def watch(port: int) -> None:
        async with (
            httpx.AsyncClient(timeout=PATIENCE_S) as client,
            client.stream("GET", f"http://127.0.0.1:{port}/api/events") as answer,
        ):
            assert answer.headers["content-type"].startswith("text/event-stream")
            rest = ""
            async for text in answer.aiter_text():
                *whole, rest = (rest + text).split("\n\n")
                for event in parsed("\n\n".join([*whole, ""])):
                    came.put_nowait(event)

    async with serve(create_app(running.view), host="127.0.0.1", port=0, log=structlog.get_logger()) as port:
        task = asyncio.create_task(watch(port))
        try:
            yield came
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def next_of(came: asyncio.Queue[tuple[str, Any]], name: str) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            event, data = await came.get()
            if event == name:
                return data


async def test_a_lease_that_moves_is_seen_by_who_watches(start) -> None:
    running = await start(runs=False)
    for partition in ("a", "b"):
        await running.keeper.create(Lease(pipeline="bank", partition=partition))
    async with watching(running) as came:
        assert await next_of(came, "ready") == {}
        await running.keeper.take(await running.keeper.read("bank", "a"), lambda state: state)
        told = await next_of(came, "leases")
        assert [(item["partition"], item["owner"]) for item in told["items"]] == [("a", "host-a")]
        stored = await running.keeper.store.read("bank/leases/b")
        await running.keeper.store.delete(stored.id, stored.etag)
        assert (await next_of(came, "leases"))["gone"] == [{"pipeline": "bank", "partition": "b"}]


async def test_hosts_that_come_and_go_and_pipelines_that_are_paused_are_seen(start) -> None:
    running = await start("host-a")
    async with watching(running) as came:
        await next_of(came, "ready")
        other = await start("host-b", feeds=running.feeds)
        while "host-b" not in [host["name"] for host in (await next_of(came, "hosts"))["items"]]:
            pass
        async with running.client() as client:
            await client.post("/api/pipelines/bank/pause", json={})
        while (told := await next_of(came, "pipelines"))["items"][0]["paused"] is None:
            pass
        assert "paused by anyone" in told["items"][0]["paused"]
        other.host.stop()
        while "host-b" not in (await next_of(came, "hosts"))["gone"]:
            pass


async def test_a_container_that_is_away_is_told_once_and_then_everything_is_to_be_loaded_anew(start) -> None:
    class Fading(MemoryStore):
        is_away = False
        refused = 0

        async def list(self, prefix: str):
            if self.is_away:
                self.refused += 1
                raise StoreUnavailable("no route")
            return await super().list(prefix)

    store = Fading()
    running = await start(store=store, runs=False)
    async with watching(running) as came:
        await next_of(came, "ready")
        store.is_away = True
        assert "no route" in (await next_of(came, "away"))["detail"]
        await until_async(lambda: store.refused >= 5)
        store.is_away = False
        async with asyncio.timeout(PATIENCE_S):
            assert await came.get() == ("ready", {})


async def test_a_stream_ends_when_it_was_told_to_and_is_one_answer(start) -> None:
    running = await start(runs=False)
    async with running.client() as client:
        answer = await client.get("/api/events?seconds=0.1")
    assert answer.status_code == 200
    assert parsed(answer.text) == [("ready", {})]


@pytest.mark.parametrize("seconds", ["-1", "301", "NaN", "Infinity", "x", ""])
async def test_a_stream_that_lasts_for_no_sensible_time_is_refused(start, seconds: str) -> None:
    running = await start(runs=False)
    async with running.client() as client:
        assert (await client.get(f"/api/events?seconds={seconds}")).status_code == 422


async def test_streams_are_bounded_and_one_that_ends_makes_room(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 2)
    running = await start(runs=False)
    async with running.client() as client:
        answers = await asyncio.gather(*(client.get("/api/events?seconds=3") for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503]
        assert (await client.get("/api/events?seconds=0")).status_code == 200


async def test_what_has_not_changed_is_not_told(start) -> None:
    running = await start(runs=False, shared_s=0)
    for n in range(20):
        await running.keeper.create(Lease(pipeline="bank", partition=str(n)))
    before, after = await running.view.read_group(), await running.view.read_group()
    assert before is not after
    assert rendered(difference(before, after)) == b""
    owned = await running.keeper.take(await running.keeper.read("bank", "7"), lambda state: state)
    assert owned is not None
    for continuation in (None, "5"):
        if continuation is not None:
            await owned.checkpoint(continuation, "")
        after = await running.view.read_group()
        told = dict(parsed(rendered(difference(before, after)).decode()))
        assert [(item["partition"], item["continuation"]) for item in told["leases"]["items"]] == [("7", continuation)]
        before = after


async def test_a_hostile_name_begins_no_event_of_its_own(start) -> None:
    running = await start(runs=False, shared_s=0, partitions=["a"])
    before = await running.view.read_group()
    name = "a\n\nevent: leases\ndata: forged\r\u2028"
    await running.keeper.create(Lease(pipeline="bank", partition=name))
    text = rendered(difference(before, await running.view.read_group())).decode()
    events = parsed(text)
    assert [data["items"][0]["partition"] for kind, data in events if kind == "leases"] == [name]
    assert text.count("\nevent:") + 1 == len(events)
