"""Checkpoint blobs on a real server: the SDK's store reads them, and its consumers continue exactly behind a host of ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from click.testing import CliRunner
from connectors.eventhubs.clients import HUB
from lab.servers import blob_wire
from patience import PATIENCE_S
from plugins_cli import events_in
from plugins_eventhubs import EventHubs

from leasehold.common.azure import storage_account_of
from leasehold.leases.errors import StoreAmbiguous, StoreUnavailable
from leasehold.leases.stores.blob import BlobContainerAddress, CheckpointBlobs, LeaseBlobContainer
from leasehold.service.cli.main import main
from leasehold.service.config.load import load
from leasehold.service.wiring.build import processor_of

NAMES = map("checkpoints-{}".format, count())
NAMESPACE, GROUP = "Bank.servicebus.windows.net", "$Default"
CONSUMER = Path(__file__).with_name("consumer.py")
PARTITIONS = ("0", "1", "2", "3")
AWAY = "DefaultEndpointsProtocol=http;AccountName=bank;AccountKey=YmFuaw==;BlobEndpoint=http://127.0.0.1:1/bank;"
"""An account that does not answer."""
API = {"api_version": "2019-07-07"}


@pytest.fixture
def name() -> str:
    return next(NAMES)


def blobs_at(connection_string: str, name: str) -> CheckpointBlobs:
    account = storage_account_of(connection_string=connection_string)
    container = LeaseBlobContainer(account, BlobContainerAddress(container=name), call_timeout_s=10.0)
    return CheckpointBlobs(container, f"{NAMESPACE}/{HUB}/{GROUP}", interval_s=1.0)


@pytest.fixture
async def blobs(azurite: str, name: str) -> AsyncIterator[CheckpointBlobs]:
    made = blobs_at(azurite, name)
    yield made
    await made.close()


async def as_the_sdk_has_them(azurite: str, name: str, namespace: str = NAMESPACE) -> dict[str, tuple[int, str]]:
    async with BlobCheckpointStore.from_connection_string(azurite, name, **API) as store:
        found = await store.list_checkpoints(namespace, HUB, GROUP)
    return {each["partition_id"]: (each["sequence_number"], each["offset"]) for each in found}


async def test_the_sdk_reads_what_was_written(azurite: str, name: str, blobs: CheckpointBlobs) -> None:
    await blobs.write("0", "41@4294967296", 0)  # creates the container
    await blobs.write("0", "42@4294967400", 0)
    await blobs.write("1", "7@100", 3)
    await blobs.write("2", "9@900", 0)
    await blobs.write("2", None, 1)
    expected = {"0": (42, "4294967400"), "1": (7, "100"), "2": (-1, "-1")}
    assert await as_the_sdk_has_them(azurite, name) == expected


async def test_a_checkpoint_of_the_sdk_is_never_moved_back(azurite: str, name: str, blobs: CheckpointBlobs) -> None:
    await blobs.write("0", "5@500", 2)
    async with BlobCheckpointStore.from_connection_string(azurite, name, **API) as store:
        for number in (6, 9):
            names = {"fully_qualified_namespace": NAMESPACE, "eventhub_name": HUB, "consumer_group": GROUP}
            await store.update_checkpoint(
                {**names, "partition_id": "0", "offset": f"{number}00", "sequence_number": number}
            )
    assert await blobs.write("0", "8@800", 2) == "unchanged"
    assert await as_the_sdk_has_them(azurite, name) == {"0": (9, "900")}
    assert await blobs.write("0", "3@300", 1) == "outdated"
    assert await blobs.write("0", "3@300", 3) == "written"
    assert await as_the_sdk_has_them(azurite, name) == {"0": (3, "300")}


async def test_an_answer_that_is_lost_leaves_the_blob_as_it_was_written(azurite: str, name: str) -> None:
    async with blob_wire.between(azurite) as wire:
        blobs = blobs_at(wire.connection_string, name)
        try:
            await blobs.write("0", "1@100", 0)
            wire.fault("lose_reply", "set", times=1)
            with pytest.raises(StoreAmbiguous):
                await blobs.write("0", "2@200", 0)
            assert await blobs.write("0", "2@200", 0) == "unchanged"
            assert await blobs.write("0", "3@300", 0) == "written"
        finally:
            await blobs.close()
    assert await as_the_sdk_has_them(azurite, name) == {"0": (3, "300")}


async def test_an_account_that_does_not_exist_is_an_error_that_names_it(name: str) -> None:
    blobs = blobs_at(AWAY, name)
    try:
        with pytest.raises(StoreUnavailable, match=f"blob container '{name}'"):
            await blobs.write("0", "1@100", 0)
    finally:
        await blobs.close()


# A host, and the SDK's consumer after it


class Bank:
    """A pipeline over the hub, whose host runs until nothing is left."""

    def __init__(self, eventhubs: EventHubs, azurite: str, checkpoints: str, folder: Path) -> None:
        self.eventhubs = eventhubs
        self._folder = folder
        self.file = folder / "bank.yaml"
        self.log: list[dict[str, Any]] = []
        self.file.write_text(
            f"""
leases: {{type: blob, connection_string: "{azurite}", container: {next(NAMES)}, duration_s: 12,
  balance_s: 0.3, call_timeout_s: 5}}
pipelines:
  - name: bank
    feed:
      type: eventhubs
      connection_string: "{eventhubs.connection_string}"
      event_hub: {HUB}
      checkpoint_blobs: {{{checkpoints}, interval_s: 0.2}}
    sink: {{type: log, path: out}}
"""
        )

    def append(self, numbers: range) -> None:
        for partition in PARTITIONS:
            self.eventhubs.control.append(HUB, partition, [f"{partition}-{number}" for number in numbers])

    async def drain(self) -> None:
        log = structlog.wrap_logger(None, processors=[self._kept])
        processor = processor_of(load(self.file, os.environ), host="host-a", log=log)
        await processor.start()
        async with asyncio.timeout(PATIENCE_S):
            await processor.idle()
        await processor.stop()

    async def run(self, *line: str) -> None:
        told = await asyncio.to_thread(CliRunner().invoke, main, list(line))
        assert told.exit_code == 0, told.output

    async def delivered(self) -> list[str]:
        found = await asyncio.to_thread(events_in, self._folder / "out", lambda row: row["body"].decode())
        return sorted(body for bodies in found.values() for body in bodies)

    def _kept(self, logger: object, level: str, event: dict[str, Any]) -> str:
        self.log.append({**event, "level": level})
        raise structlog.DropEvent


def numbered(*numbers: range) -> list[str]:
    return sorted(f"{partition}-{number}" for partition in PARTITIONS for each in numbers for number in each)


def consumed(eventhubs: EventHubs, azurite: str, container: str, events: int) -> list[str]:
    """The next events of the SDK's consumer, a process that checkpoints each of them."""
    line = [eventhubs.connection_string, HUB, azurite, container, "1"]
    with subprocess.Popen([sys.executable, str(CONSUMER), *line], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            return sorted("-".join(process.stdout.readline().split()) for _ in range(events))
        finally:
            process.kill()


async def test_a_consumer_of_the_sdk_continues_exactly_behind_a_host(
    eventhubs: EventHubs, azurite: str, name: str, tmp_path: Path
) -> None:
    bank = Bank(eventhubs, azurite, f'connection_string: "{azurite}", container: {name}', tmp_path)
    bank.append(range(20))
    await bank.drain()
    namespace = f"{eventhubs.host}:{eventhubs.port}"
    found = await as_the_sdk_has_them(azurite, name, namespace)
    assert {partition: sequence for partition, (sequence, _) in found.items()} == dict.fromkeys(PARTITIONS, 19)
    bank.append(range(20, 30))
    events = 10 * len(PARTITIONS)
    assert await asyncio.to_thread(consumed, eventhubs, azurite, name, events) == numbered(range(20, 30))
    assert await bank.delivered() == numbered(range(20))


async def test_a_reset_while_no_host_runs_is_seen_by_other_readers(
    eventhubs: EventHubs, azurite: str, name: str, tmp_path: Path
) -> None:
    bank = Bank(eventhubs, azurite, f'connection_string: "{azurite}", container: {name}', tmp_path)
    bank.append(range(5))
    await bank.drain()
    await bank.run("leases", "reset", str(bank.file), "bank", "0", "--to", "earliest", "--yes")
    namespace = f"{eventhubs.host}:{eventhubs.port}"
    assert (await as_the_sdk_has_them(azurite, name, namespace))["0"] == (-1, "-1")
    await bank.drain()
    assert (await as_the_sdk_has_them(azurite, name, namespace))["0"][0] == 4


async def test_a_probe_counts_the_checkpoints_or_says_why_not(
    eventhubs: EventHubs, azurite: str, name: str, tmp_path: Path
) -> None:
    found = []
    for account in (azurite, AWAY):
        bank = Bank(eventhubs, azurite, f'connection_string: "{account}", container: {name}', tmp_path)
        told = await asyncio.to_thread(CliRunner().invoke, main, ["check", str(bank.file), "--probe"])
        found.append([line for line in told.output.splitlines() if "checkpoint blobs" in line])
    assert found[0] == ["bank: checkpoint blobs: fine, 0 there"]
    ((refused,),) = found[1:]
    assert refused.startswith("bank: checkpoint blobs: FAILED: listing ")


async def test_an_account_that_is_away_costs_a_warning(eventhubs: EventHubs, azurite: str, tmp_path: Path) -> None:
    bank = Bank(eventhubs, azurite, f'connection_string: "{AWAY}", container: away', tmp_path)
    bank.append(range(20))
    await bank.drain()
    assert await bank.delivered() == numbered(range(20))
    warnings = {entry["event"] for entry in bank.log if entry["level"] == "warning"}
    assert {"writing checkpoint blobs failed", "checkpoint blobs are behind"} <= warnings
