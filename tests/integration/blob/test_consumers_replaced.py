"""Consumers of an event hub over a BlobCheckpointStore, stopped in mid-stream and replaced by a host of ours."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.storage.blob.aio import BlobServiceClient
from click.testing import CliRunner

pytest.importorskip("pipeline.connectors.eventhubs.feed")  # the feed that goes on

from integration.eventhubs.clients import HUB, consumer
from plugins_eventhubs import EventHubs

from pipeline.connectors.log import LogFeed
from service import brought
from service.cli import main
from service.config import load
from service.wiring import processor_of

PARTITIONS = ("0", "1", "2", "3")
EACH = 400
CHECKPOINT_EVERY = 25
NAMES = map("consumers-{}".format, count())
Event = tuple[str, int]


class Consumers:
    """Two, who share the partitions, and checkpoint every few events."""

    def __init__(self, eventhubs: EventHubs, azurite: str, container: str) -> None:
        self._eventhubs = eventhubs
        self._azurite = azurite
        self._container = container
        self.processed: set[Event] = set()
        self._wanted = 0
        self._checkpointed: set[str] = set()
        self._running: list[asyncio.Task[None]] = []
        self._enough = asyncio.Event()

    async def process(self, events: int) -> None:
        """Until they have processed that many, and checkpointed in each partition."""
        self._wanted = events
        for _ in range(2):
            self._running.append(asyncio.create_task(self._consume()))
        async with asyncio.timeout(120):
            await self._enough.wait()

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def checkpoints(self) -> dict[str, int]:
        """The number of the last event that counts as processed, as the store has it."""
        async with self._store() as store, consumer(self._eventhubs) as client:
            namespace = client._address.hostname
            found = await store.list_checkpoints(namespace, HUB, "$Default")
        return {each["partition_id"]: each["sequence_number"] for each in found}

    def _store(self) -> BlobCheckpointStore:
        return BlobCheckpointStore.from_connection_string(self._azurite, self._container, api_version="2019-07-07")

    async def _consume(self) -> None:
        store = self._store()
        options = {"checkpoint_store": store, "load_balancing_interval": 0.5}
        async with store, consumer(self._eventhubs, **options) as client:
            await client.receive(self._on_event, starting_position="-1", prefetch=20)

    async def _on_event(self, context: Any, event: Any) -> None:
        partition, number = context.partition_id, event.sequence_number
        self.processed.add((partition, number))
        if number % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            await context.update_checkpoint(event)
            self._checkpointed.add(partition)
        if len(self.processed) >= self._wanted and self._checkpointed == set(PARTITIONS):
            self._enough.set()


async def test_nothing_is_lost_and_what_was_not_checkpointed_alone_comes_twice(
    eventhubs: EventHubs, azurite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brought, "CLAIM_S", 2.0)
    container, ours = next(NAMES), next(NAMES)
    async with BlobServiceClient.from_connection_string(azurite) as service:
        await service.create_container(container)
    for partition in PARTITIONS:
        eventhubs.control.append(HUB, partition, [f"{partition}-{number}" for number in range(EACH)])
    theirs = Consumers(eventhubs, azurite, container)
    await theirs.process(events=200)
    await theirs.stop()
    checkpoints = await theirs.checkpoints()
    assert set(checkpoints) == set(PARTITIONS)
    assert len(theirs.processed) < EACH * len(PARTITIONS), "they were to be stopped in mid-stream"
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"""
leases: {{type: blob, connection_string: "{azurite}", container: {ours}, duration_s: 3, renew_s: 0.6, balance_s: 0.3}}
pipelines:
  - name: orders
    feed: {{type: eventhubs, connection_string: "{eventhubs.connection_string}", event_hub: {HUB}, start: earliest}}
    sink: {{type: log, path: out}}
"""
    )
    line = [
        "leases",
        "import",
        str(file),
        "--pipeline",
        "orders",
        "--from",
        "checkpointstore",
        "--container",
        container,
    ]
    told = await asyncio.to_thread(CliRunner().invoke, main, [*line, "--apply"])
    assert (told.exit_code, "4 created, 0 moved, 0 unchanged, 0 refused: 4 written" in told.output) == (0, True), (
        told.output
    )
    processor = processor_of(load(file, os.environ), host="a", log=structlog.wrap_logger(None, processors=[_dropped]))
    await processor.start()
    async with asyncio.timeout(60):
        await processor.idle()
    await processor.stop()
    delivered = await numbers(tmp_path / "out")
    expected = {(name, n) for name, last in checkpoints.items() for n in range(last + 1, EACH)}
    assert delivered == Counter(expected)
    assert theirs.processed | set(delivered) == {(name, n) for name in PARTITIONS for n in range(EACH)}


async def numbers(path: Path) -> Counter[Event]:
    """(partition, number) of each event that was delivered, from its body."""
    feed, found = LogFeed(path), Counter[Event]()
    for partition in await feed.partitions():
        position, end = None, await feed.latest(partition.name)
        pages = feed.open(partition.name, None)
        while position != end:
            page = await anext(pages)
            for body in page.events.column("body").to_pylist():
                name, _, number = body.decode().partition("-")
                found[name, int(number)] += 1
            position = page.to
        await pages.aclose()
    await feed.close()
    return found


def _dropped(logger: object, level: str, event: Any) -> str:
    raise structlog.DropEvent
