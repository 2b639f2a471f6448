"""Consumers of an event hub over a BlobCheckpointStore, two processes, ended in mid-stream and replaced by a host of ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.storage.blob.aio import BlobServiceClient
from click.testing import CliRunner
from patience import PATIENCE_S, until_async

pytest.importorskip("leasehold.pipeline.connectors.eventhubs.feed.feed")  # the feed that goes on

from connectors.eventhubs.clients import HUB, consumer
from plugins_cli import events_in
from plugins_eventhubs import EventHubs

from leasehold.service.cli.main import main
from leasehold.service.config.load import load
from leasehold.service.group import import_sources
from leasehold.service.wiring.build import processor_of

PARTITIONS = ("0", "1", "2", "3")
EACH = 500
CHECKPOINT_EVERY = 25
CONSUMER = Path(__file__).with_name("consumer.py")
NAMES = map("consumers-{}".format, count())
Event = tuple[str, int]


class Consumers:
    """Two processes, who share the partitions, and checkpoint every few events."""

    def __init__(self, eventhubs: EventHubs, azurite: str, container: str, folder: Path) -> None:
        self._eventhubs = eventhubs
        self._azurite = azurite
        self.container = container
        self._outs = [folder / f"consumer-{number}.txt" for number in range(2)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        line = [self._eventhubs.connection_string, HUB, self._azurite, self.container, str(CHECKPOINT_EVERY)]
        for path in self._outs:
            with path.open("wb") as out:
                self._processes.append(subprocess.Popen([sys.executable, str(CONSUMER), *line], stdout=out))

    def kill(self) -> None:
        """As a machine that is switched off: nothing is checkpointed or released any more."""
        for process in self._processes:
            process.kill()
            process.wait(timeout=PATIENCE_S)

    def processed(self) -> list[set[Event]]:
        """By each, as far as it has said so: of a line that is being written nothing."""
        said = [path.read_text().rpartition("\n")[0].splitlines() for path in self._outs]
        return [{(partition, int(number)) for partition, number in map(str.split, lines)} for lines in said]

    def counted(self) -> Counter[str]:
        """By partition."""
        return Counter(partition for partition, _ in set[Event]().union(*self.processed()))

    async def checkpoints(self) -> dict[str, int]:
        """The number of the last event that counts as processed, as the store has it."""
        store = BlobCheckpointStore.from_connection_string(self._azurite, self.container, api_version="2019-07-07")
        async with store, consumer(self._eventhubs) as client:
            found = await store.list_checkpoints(client._address.hostname, HUB, "$Default")
        return {each["partition_id"]: each["sequence_number"] for each in found}


def append(eventhubs: EventHubs, numbers: range) -> None:
    for partition in PARTITIONS:
        eventhubs.control.append(HUB, partition, [f"{partition}-{number}" for number in numbers])


@pytest.fixture
async def theirs(eventhubs: EventHubs, azurite: str, tmp_path: Path) -> AsyncIterator[Consumers]:
    container = next(NAMES)
    async with BlobServiceClient.from_connection_string(azurite) as service:
        await service.create_container(container)
    found = Consumers(eventhubs, azurite, container, tmp_path)
    yield found
    found.kill()


async def test_nothing_is_lost_and_what_was_not_checkpointed_alone_comes_twice(
    eventhubs: EventHubs, azurite: str, theirs: Consumers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_sources, "CLAIM_S", 2.0)  # they claim twice a second
    append(eventhubs, range(40))
    theirs.start()
    await until_async(lambda: all(theirs.processed()), "both have partitions")
    append(eventhubs, range(40, 400))
    await until_async(lambda: all(theirs.counted()[partition] > 60 for partition in PARTITIONS))
    theirs.kill()
    processed = set[Event]().union(*theirs.processed())
    checkpoints = await theirs.checkpoints()
    assert set(checkpoints) == set(PARTITIONS)
    assert len(processed) < 400 * len(PARTITIONS), "they were to be ended in mid-stream"
    append(eventhubs, range(400, EACH))
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"""
leases: {{type: blob, connection_string: "{azurite}", container: {next(NAMES)}, duration_s: 12,
  balance_s: 0.3, call_timeout_s: 4}}
pipelines:
  - name: orders
    feed: {{type: eventhubs, connection_string: "{eventhubs.connection_string}", event_hub: {HUB}, start: earliest}}
    sink: {{type: log, path: out}}
"""
    )
    line = ["leases", "import", str(file), "--pipeline", "orders", "--from", "checkpointstore"]
    told = await asyncio.to_thread(CliRunner().invoke, main, [*line, "--container", theirs.container, "--apply"])
    assert (told.exit_code, "4 created, 0 moved, 0 unchanged, 0 refused: 4 written" in told.output) == (0, True), (
        told.output
    )
    processor = processor_of(load(file, os.environ), host="a", log=structlog.wrap_logger(None, processors=[_dropped]))
    await processor.start()
    async with asyncio.timeout(PATIENCE_S):
        await processor.idle()
    await processor.stop()
    found = await asyncio.to_thread(events_in, tmp_path / "out", event_of)
    delivered = Counter(event for events in found.values() for event in events)
    assert delivered == Counter((name, n) for name, last in checkpoints.items() for n in range(last + 1, EACH))
    assert processed | set(delivered) == {(name, n) for name in PARTITIONS for n in range(EACH)}
    not_checkpointed = {(name, number) for name, number in processed if number > checkpoints[name]}
    assert processed & set(delivered) == not_checkpointed


def event_of(row: dict[str, Any]) -> Event:
    name, _, number = row["body"].decode().partition("-")
    return name, int(number)


def _dropped(logger: object, level: str, event: Any) -> str:
    raise structlog.DropEvent
