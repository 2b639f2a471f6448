"""Requests while a host stops, and when it has stopped: the API goes last, and never answers with a fault of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.service.api import create_app
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

REQUESTS = [
    *(("GET", path, None) for path in ("/api/leases", "/api/pipelines", "/api/lag", "/api/leases/bank/a", "/metrics")),
    *(("GET", path, None) for path in ("/health/live", "/api/leases/export", "/api/events?seconds=0")),
    ("POST", "/api/leases/bank/a/release", {}),
    ("POST", "/api/leases/bank/a/handoff", {"to": "host-a"}),
    ("PUT", "/api/leases/bank/a/continuation", {"to": "latest"}),
    ("POST", "/api/pipelines/bank/pause", {}),
]


@pytest.fixture(params=["memory", "sqlite"])
async def processor(request, tmp_path: Path) -> AsyncIterator[ProcessorCore]:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "leases.db")
    pipeline = PipelineParts(name="bank", feed=MemoryChangeFeed(["a"]), sink=MemoryOutputSink(MemoryDestination()))
    processor = ProcessorCore([pipeline], store, host="host-a")
    await processor.start()
    yield processor
    await processor.stop()


async def asked(client: httpx.AsyncClient) -> dict[tuple[str, str], int]:
    return {
        (method, path): (await client.request(method, path, json=body, headers={"if-match": '"1"'})).status_code
        for method, path, body in REQUESTS
    }


async def test_a_host_that_stops_and_one_that_has_stopped_answer_without_a_fault(processor: ProcessorCore) -> None:
    transport = httpx.ASGITransport(create_app(processor.view), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        stopping = asyncio.create_task(processor.stop())
        while not stopping.done():
            assert 500 not in (await asked(client)).values()
        processor.view._shared_s = 0  # past what readers share
        told = await asked(client)
        assert set(told.values()) <= {200, 503}, told
        assert 503 in told.values()
        assert (await client.get("/health/ready")).status_code == 503
