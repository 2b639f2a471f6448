"""Taps over the API: who may open one, where, how many, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import structlog
from patience import PATIENCE_S, until_async

from leasehold.leases.lease import Lease
from leasehold.pipeline.pump.tap import Tap
from leasehold.service.api import create_app
from leasehold.service.api import tap as module
from leasehold.service.api.auth import Access, Tokens
from leasehold.service.api.masking import Mask
from leasehold.service.api.rendering import Renderer
from leasehold.service.api.samples import Sampler
from leasehold.service.api.server import serve

READER, OPERATOR = "reader-" + "r" * 32, "operator-" + "o" * 32
TAP = "/api/tap/bank/a"


def parsed(text: str) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in text.split("\n\n") if block.startswith("event: ")]
    return [(name[7:], json.loads(data[6:])) for name, data in blocks]


@asynccontextmanager
async def asking(running, tmp_path: Path, mask: Mask | None, token: str = OPERATOR) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the host's API, over a socket."""
    for name, content in (("readers", READER), ("operators", f"alice {OPERATOR}")):
        (tmp_path / name).write_text(content)
    access = Access(readers=Tokens(tmp_path / "readers"), operators=Tokens(tmp_path / "operators", "api.operators"))
    app = create_app(running.view, access, log=structlog.get_logger(), tap_mask=mask)
    async with (
        serve(app, host="127.0.0.1", port=0, log=structlog.get_logger()) as port,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {token}"},
            timeout=PATIENCE_S,
            trust_env=False,
        ) as client,
    ):
        yield client


def watchers(running) -> int:
    return sum(len(worker.tap.watchers) for worker in running.host.workers.values())


async def test_a_tap_shows_masked_events_and_rows_and_ends_with_its_limit(start, tmp_path: Path) -> None:
    running = await start()
    async with asking(running, tmp_path, Mask(["account"])) as client:
        asked = asyncio.create_task(client.get(f"{TAP}?limit=4"))
        await until_async(lambda: watchers(running) == 1)
        running.feeds["bank"].append("a", [b'{"account": "DE12", "n": 1}', b'{"account": "DE12", "n": 2}'])
        answer = await asked
    events = parsed(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [name for name, _ in events] == ["ready", "input", "input", "output", "output", "left_out", "end"]
    assert (events[0][1]["host"], events[0][1]["epoch"]) == ("host-a", 1)
    assert events[1][1]["values"]["body"] == '{"account":"***","n":1}'
    assert events[3][1]["values"]["body"] == '{"account":"***","n":1}'
    assert "DE12" not in answer.text
    assert events[-1][1] == {"why": "limit", "shown": 4}
    await until_async(lambda: watchers(running) == 0)


async def test_a_tap_counts_what_it_leaves_out_and_the_work_goes_on(start, tmp_path: Path) -> None:
    running = await start()
    async with asking(running, tmp_path, Mask(())) as client:
        asked = asyncio.create_task(client.get(f"{TAP}?side=input&rows_per_s=2&seconds=4"))
        await until_async(lambda: watchers(running) == 1)
        running.feeds["bank"].append("a", [b"{}"] * 100)
        events = parsed((await asked).text)
    assert [name for name, _ in events].count("input") == 2
    assert ("left_out", {"input": 98, "output": 0}) in events
    assert events[-1] == ("end", {"why": "time", "shown": 2})
    await until_async(lambda: running.host.workers["bank", "a"].progress.events == 100)


async def test_a_tap_ends_when_the_host_gives_the_lease_up(start, tmp_path: Path) -> None:
    running = await start()
    async with asking(running, tmp_path, Mask(())) as client:
        asked = asyncio.create_task(client.get(TAP))
        await until_async(lambda: watchers(running) == 1)
        running.host.workers["bank", "a"].stop()
        events = parsed((await asked).text)
    assert events[-1] == ("end", {"why": "lease", "shown": 0})


async def test_a_client_that_leaves_is_forgotten(start, tmp_path: Path) -> None:
    running = await start()
    async with asking(running, tmp_path, Mask(())) as client:
        async with client.stream("GET", TAP):
            await until_async(lambda: watchers(running) == 1)
        await until_async(lambda: watchers(running) == 0)


@pytest.mark.parametrize(("token", "status"), [(READER, 403), ("w" * 40, 401)])
async def test_only_operators_may_tap(start, tmp_path: Path, token: str, status: int) -> None:
    running = await start()
    with structlog.testing.capture_logs() as logs:
        async with asking(running, tmp_path, Mask(()), token) as client:
            assert (await client.get(TAP)).status_code == status
    [line] = [each for each in logs if each["event"] == "operator action"]
    assert (line["action"], line["outcome"], line["partition"]) == ("tap", "denied", "a")
    assert not [each for each in logs if each["event"] == "tap opened"]


async def test_taps_are_off_unless_there_is_a_mask(start, tmp_path: Path) -> None:
    running = await start()
    async with asking(running, tmp_path, None) as client:
        answer = await client.get(TAP)
    assert answer.status_code == 409
    assert "api.tap_mask" in answer.json()["detail"]


async def test_another_host_names_the_owner(start, tmp_path: Path) -> None:
    running = await start(runs=False)
    await running.keeper.create(Lease(pipeline="bank", partition="a", owner="pod-2", incarnation="1", epoch=4))
    await running.keeper.create(Lease(pipeline="bank", partition="b"))
    async with asking(running, tmp_path, Mask(())) as client:
        other, free, missing, wrong = [
            await client.get(f"/api/tap/{path}") for path in ("bank/a", "bank/b", "bank/c", "books/a")
        ]
    assert (other.status_code, free.status_code, missing.status_code, wrong.status_code) == (409, 409, 404, 404)
    assert "belongs to host 'pod-2'" in other.json()["detail"]
    assert "kubectl exec pod-2 -- leasehold tap" in other.json()["detail"]
    assert "has no owner" in free.json()["detail"]


async def test_taps_are_bounded_and_one_that_ends_makes_room(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAPS_MAX", 1)
    running = await start()
    async with asking(running, tmp_path, Mask(())) as client:
        async with client.stream("GET", TAP):
            await until_async(lambda: watchers(running) == 1)
            refused = await client.get("/api/tap/bank/b")
        await until_async(lambda: watchers(running) == 0)
        assert (await client.get("/api/tap/bank/b?seconds=0")).status_code == 200
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "15")


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "rows_per_s=101", "seconds=301", "side=left", "x=1"])
async def test_what_is_out_of_bounds_is_refused(start, tmp_path: Path, query: str) -> None:
    running = await start(runs=False)
    async with asking(running, tmp_path, Mask(())) as client:
        assert (await client.get(f"{TAP}?{query}")).status_code == 422


async def test_the_log_has_each_tap_at_its_start_and_at_its_end(start, tmp_path: Path) -> None:
    running = await start()
    with structlog.testing.capture_logs() as logs:
        async with asking(running, tmp_path, Mask(())) as client:
            async with client.stream("GET", f"{TAP}?side=input") as answer:
                await until_async(lambda: watchers(running) == 1)
                [opened] = [each for each in logs if each["event"] == "tap opened"]
                running.feeds["bank"].append("a", [b'{"n": "content"}'])
                async with aclosing(answer.aiter_lines()) as lines:
                    while await anext(lines) != "event: input":
                        pass
            await until_async(lambda: [each for each in logs if each["event"] == "operator action"])
    assert (opened["who"], opened["pipeline"], opened["partition"], opened["side"]) == ("alice", "bank", "a", "input")
    [done] = [each for each in logs if each["event"] == "operator action"]
    assert (done["action"], done["outcome"], done["who"]) == ("tap", "done", "alice")
    assert done["after"] == {"side": "input", "shown": 1, "left_out": 0}
    assert "content" not in str(logs)
    assert running.host.stats.actions == {("tap", "done"): 1}


@pytest.mark.virtual
@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_tap_whose_time_ends_while_its_client_reads_slowly_ends_in_order(spec_version: str) -> None:
    limits = module.TapFilter(seconds=2.0)
    monotonic = asyncio.get_running_loop().time
    sampler = Sampler(limits.limits, Mask(()), Renderer(monotonic), monotonic=monotonic, now=lambda: datetime.now(UTC))
    lease = Lease(pipeline="bank", partition="a", owner="host-a", epoch=4)
    worker = SimpleNamespace(owned=SimpleNamespace(lease=lease), tap=Tap())
    request = SimpleNamespace(state=SimpleNamespace())
    open_taps: set[module.TapStream] = set()
    stream = module.TapStream(request, worker, sampler, limits, open_taps)  # type: ignore[arg-type]
    sent = bytearray()
    is_over = False

    async def send(message: Any) -> None:
        nonlocal is_over
        if message["type"] == "http.response.body":
            sent.extend(message["body"])
            is_over = not message["more_body"]
            sampler._put("input", [b"event: input\ndata: {}\n\n"])  # so that something waits at any time
            await asyncio.sleep(1.5)

    scope = {"type": "http", "asgi": {"spec_version": spec_version}, "headers": []}
    async with asyncio.timeout(30):
        await stream(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
    named = parsed(sent.decode())
    assert [name for name, _ in named] == ["ready", "input", "input", "input", "left_out", "end"]
    assert named[-1] == ("end", {"why": "time", "shown": 3})
    assert is_over
    assert (open_taps, worker.tap.watchers) == (set(), ())
