"""Two hosts over leases in blobs: they share, one is cut off and comes back, and nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from azure.storage.blob.aio import BlobServiceClient
from click.testing import CliRunner
from lab.servers.blob_wire import Wire, between
from patience import PATIENCE_S, rhythm, until_async
from plugins_cli import events_in

from leasehold.common.azure import storage_account_of
from leasehold.leases.document import decode_lease
from leasehold.leases.lease import Lease
from leasehold.leases.stores.blob import BlobContainerAddress, BlobStore, LeaseBlobContainer
from leasehold.service.cli.main import main
from leasehold.service.config.load import load
from leasehold.service.processor import ProcessorCore
from leasehold.service.wiring.build import processor_of

PARTITIONS = 4
EVERY = 12
"""Requests of a host, of which some meet a fault."""
CONTAINERS = map("hosts-{}".format, count())


class Group:
    """Files that are read, a log that is written, and the leases in between."""

    def __init__(self, folder: Path, azurite: str) -> None:
        self.folder = folder
        self.container = next(CONTAINERS)
        self.azurite = azurite
        self.written = 0
        (folder / "in").mkdir()

    def write(self, each: int) -> None:
        for number in range(PARTITIONS):
            with (self.folder / "in" / f"{number}.jsonl").open("a") as file:
                for _ in range(each):
                    self.written += 1
                    file.write(json.dumps({"number": self.written}) + "\n")

    def file(self, name: str, connection_string: str) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(
            textwrap.dedent(f"""
                leases: {{type: blob, connection_string: "{connection_string}", container: {self.container},
                          duration_s: 12, balance_s: 0.5, call_timeout_s: 4}}
                api: {{enabled: false}}
                pipelines:
                  - name: copy
                    feed: {{type: files, path: "in/*.jsonl", poll_interval_s: 0.05}}
                    sink: {{type: log, path: out}}
                """)
        )
        return path

    @asynccontextmanager
    async def host(self, name: str) -> AsyncIterator[tuple[ProcessorCore, Wire]]:
        async with between(self.azurite) as wire:
            settings = load(self.file(name, wire.connection_string), os.environ)
            processor = processor_of(settings, host=name, log=structlog.wrap_logger(None, processors=[_dropped]))
            await processor.start()
            try:
                yield processor, wire
            finally:
                wire.heal()
                await processor.stop()

    async def leases(self) -> list[Lease]:
        store = BlobStore(
            LeaseBlobContainer(
                storage_account_of(connection_string=self.azurite), BlobContainerAddress(container=self.container)
            )
        )
        try:
            return [decode_lease(each.id, each.body) for each in await store.list("copy/leases/")]
        finally:
            await store.close()

    async def owned(self, by: Mapping[str, int]) -> None:
        """Wait for these hosts to have so many leases each."""
        await until_async(lambda: self._is_owned(by))

    async def delivered(self) -> None:
        """Wait for as many events as were written."""
        await until_async(self._has_delivered)

    async def _is_owned(self, by: Mapping[str, int]) -> bool:
        return Counter(lease.owner for lease in await self.leases()) == by

    async def _has_delivered(self) -> bool:
        return (await self.numbers()).total() >= self.written

    async def numbers(self) -> Counter[int]:
        """What was delivered."""
        events = await asyncio.to_thread(events_in, self.folder / "out")
        return Counter(event["number"] for found in events.values() for event in found)


def _dropped(logger: object, level: str, event: Any) -> str:
    raise structlog.DropEvent


@pytest.fixture
def group(tmp_path: Path, azurite: str) -> Group:
    return Group(tmp_path, azurite)


async def test_a_host_that_is_cut_off_from_its_leases_loses_them_and_gets_its_share_back(group: Group) -> None:
    group.write(each=50)
    async with AsyncExitStack() as hosts:
        await hosts.enter_async_context(group.host("a"))
        _, wire = await hosts.enter_async_context(group.host("b"))
        await group.owned({"a": 2, "b": 2})
        epochs = {lease.partition: lease.epoch for lease in await group.leases()}
        group.write(each=50)
        wire.fault("cut")
        await group.owned({"a": 4})
        assert all(lease.epoch >= epochs[lease.partition] for lease in await group.leases())
        group.write(each=50)
        wire.heal()
        await group.owned({"a": 2, "b": 2})
        group.write(each=50)
        await group.delivered()
    assert await group.numbers() == Counter(range(1, group.written + 1))
    assert {lease.owner for lease in await group.leases()} == {None}


async def test_hosts_share_and_deliver_where_answers_are_lost_and_calls_throttled(group: Group) -> None:
    group.write(each=50)
    async with AsyncExitStack() as hosts:
        wires = [(await hosts.enter_async_context(group.host(name)))[1] for name in "ab"]
        storming = asyncio.create_task(_storm(wires))
        await group.owned({"a": 2, "b": 2})
        for _ in range(4):
            met = sum(wire.requests.total() for wire in wires)
            group.write(each=25)
            await until_async(lambda met=met: sum(wire.requests.total() for wire in wires) >= met + EVERY)
        storming.cancel()
        await group.delivered()
    assert await group.numbers() == Counter(range(1, group.written + 1))


async def _storm(wires: list[Wire]) -> None:
    """Of every few requests one is done and not answered, one is not done, and two are throttled, however slow they come."""
    met = dict.fromkeys(wires, -EVERY)
    async for _ in rhythm(0.05):
        for wire in wires:
            if wire.requests.total() >= met[wire] + EVERY:
                met[wire] = wire.requests.total()
                wire.fault("lose_reply", "set", times=1)
                wire.fault("cut", "*", times=1)
                wire.fault("fail", "*", status=503, code="ServerBusy", times=2)


async def test_commands_look_into_the_container_and_make_nothing(group: Group) -> None:
    async def told(*arguments: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, main, list(arguments))
        return result.exit_code, result.output

    group.write(each=1)
    file = str(group.file("look", group.azurite))
    code, output = await told("leases", "list", file)
    assert (code, f"no leases yet in blob container '{group.container}'" in output) == (1, True)
    async with BlobServiceClient.from_connection_string(group.azurite) as service:
        assert not await service.get_container_client(group.container).exists()
    async with group.host("a") as (processor, _), asyncio.timeout(PATIENCE_S):
        await processor.idle()
    code, output = await told("leases", "list", "--json", file)
    assert [lease["owner"] for lease in json.loads(output)] == [None] * PARTITIONS
    code, output = await told("check", "--probe", file)
    assert (code, f"leases: fine, {PARTITIONS} there" in output) == (0, True)
