"""Leases that Event Hubs processors left in blobs, taken over by `leasehold leases import`.

Those of a BlobCheckpointStore are written by its own clients, those of the older EventProcessorHost by hand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore as AsyncBlobCheckpointStore
from azure.storage.blob.aio import BlobServiceClient
from click.testing import CliRunner
from patience import rhythm

from leasehold.common.azure import storage_account_of
from leasehold.leases.document import decode_lease
from leasehold.leases.lease import Lease
from leasehold.leases.stores.blob import BlobContainerAddress, BlobStore, LeaseBlobContainer
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.service.cli.main import main
from leasehold.service.group import import_sources

NAMESPACE, HUB, GROUP = "Bank.servicebus.windows.net", "Raw-Event", "$Default"
FOLDER = "bank.servicebus.windows.net/raw-event/$default"
NAMES = map("takeover-{}".format, count())
SETTINGS = """
leases: {leases}
pipelines:
  - name: orders
    feed: {{type: "connectors.blob.test_takeover:Hub"}}
    sink: {{type: python, handler: "connectors.blob.test_takeover:Hub"}}
"""
API = {"api_version": "2019-07-07"}


class Hub(MemoryChangeFeed):
    """A feed whose positions are those of an event hub."""

    identity = "eventhubs:bank/raw-event"

    def __init__(self) -> None:
        super().__init__(["0", "1"])

    def compare(self, a: str | None, b: str | None) -> int:
        return number_of(a) - number_of(b)


def number_of(position: str | None) -> int:
    if position is None:
        return -1
    number, _, offset = position.partition("@")
    return int(number or offset)


class Told(NamedTuple):
    code: int
    out: str


class Deployment:
    """A container that others have their leases in, and one of ours."""

    def __init__(self, azurite: str, folder: Path, blobs: Any) -> None:
        self.azurite = azurite
        self.blobs = blobs
        self.ours = next(NAMES)
        self.file = folder / "orders.yaml"
        self.keep_leases_in(self.ours)

    def keep_leases_in(self, container: str) -> None:
        self.ours = container
        place = f"{{type: blob, connection_string: '{self.azurite}', container: {container}"
        self.file.write_text(SETTINGS.format(leases=f"{place}, duration_s: 6, balance_s: 0.3, call_timeout_s: 3}}"))

    async def __call__(self, source: str, *options: str, input: str | None = None, **environment: str) -> Told:
        line = ["leases", "import", str(self.file), "--pipeline", "orders", "--from", source, *options]
        if input is not None:
            line.append("-")
        result = await asyncio.to_thread(CliRunner().invoke, main, line, input=input, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Told(result.exit_code, result.output)

    async def from_container(self, source: str, *options: str) -> Told:
        return await self(source, "--container", self.blobs.container_name, *options)

    async def leases(self) -> dict[str, Lease]:
        store = BlobStore(
            LeaseBlobContainer(
                storage_account_of(connection_string=self.azurite), BlobContainerAddress(container=self.ours)
            )
        )
        try:
            found = [decode_lease(each.id, each.body) for each in await store.list("orders/leases/")]
        finally:
            await store.close()
        return {lease.partition: lease for lease in found}

    async def places(self) -> dict[str, str | None]:
        return {name: lease.continuation for name, lease in (await self.leases()).items()}


@pytest.fixture
async def deployment(azurite: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with BlobServiceClient.from_connection_string(azurite) as service:
        yield Deployment(azurite, tmp_path, await service.create_container(next(NAMES)))


# --- a BlobCheckpointStore ---


class Store(NamedTuple):
    checkpoint: Callable[..., Any]
    claim: Callable[..., Any]


def of(partition: str, group: str = GROUP, **fields: Any) -> dict[str, Any]:
    names = {"fully_qualified_namespace": NAMESPACE, "eventhub_name": HUB, "consumer_group": group}
    return {**names, "partition_id": partition, **fields}


@pytest.fixture(params=["sync", "aio"])
async def store(request: pytest.FixtureRequest, deployment: Deployment) -> AsyncIterator[Store]:
    """The SDK's own client, as consumers use it."""
    name = deployment.blobs.container_name
    if request.param == "aio":
        async with AsyncBlobCheckpointStore.from_connection_string(deployment.azurite, name, **API) as client:
            yield Store(
                lambda p, n, **of_: client.update_checkpoint(of(p, offset=str(n * 100), sequence_number=n, **of_)),
                lambda p, owner: client.claim_ownership([of(p, owner_id=owner)]),
            )
        return
    with BlobCheckpointStore.from_connection_string(deployment.azurite, name, **API) as blocking:
        yield Store(
            lambda p, n, **of_: asyncio.to_thread(
                blocking.update_checkpoint, of(p, offset=str(n * 100), sequence_number=n, **of_)
            ),
            lambda p, owner: asyncio.to_thread(blocking.claim_ownership, [of(p, owner_id=owner)]),
        )


async def test_checkpoints_become_leases_first_on_paper_and_then_for_good(deployment: Deployment, store: Store) -> None:
    for partition, number in (("0", 41), ("1", 7), ("10", 3)):
        await store.checkpoint(partition, number)
        await store.claim(partition, "")
    await store.claim("2", "")
    told = await deployment.from_container("checkpointstore")
    assert told.code == 0, told.out
    assert "3 created, 0 moved, 0 unchanged, 0 refused: nothing was written; use --apply to write" in told.out
    assert f"the leases are read from '{FOLDER}'" in told.out
    assert "partition '2' was never checkpointed, and begins at the feed's `start`" in told.out
    async with BlobServiceClient.from_connection_string(deployment.azurite) as service:
        assert not await service.get_container_client(deployment.ours).exists()
    told = await deployment.from_container("checkpointstore", "--apply")
    assert (told.code, "3 created, 0 moved, 0 unchanged, 0 refused: 3 written" in told.out) == (0, True), told.out
    assert await deployment.places() == {"0": "41@4100", "1": "7@700", "10": "3@300"}
    told = await deployment.from_container("checkpointstore", "--apply")
    assert "3 unchanged, 0 refused: 0 written" in told.out


async def test_a_later_checkpoint_moves_a_lease_and_an_earlier_one_is_refused_without_force(
    deployment: Deployment, store: Store
) -> None:
    await store.checkpoint("0", 41)
    await deployment.from_container("checkpointstore", "--apply")
    await store.checkpoint("0", 50)
    assert "1 moved" in (await deployment.from_container("checkpointstore", "--apply")).out
    assert (await deployment.leases())["0"].generation == 1
    await store.checkpoint("0", 45)  # a zombie: theirs go back without a condition
    told = await deployment.from_container("checkpointstore", "--apply")
    assert (told.code, "1 refused" in told.out, "move back" in " ".join(told.out.split())) == (1, True, True), told.out
    assert await deployment.places() == {"0": "50@5000"}
    assert (await deployment.from_container("checkpointstore", "--apply", "--force")).code == 0
    assert await deployment.places() == {"0": "45@4500"}


async def test_while_a_consumer_is_at_work_its_partition_is_refused(
    deployment: Deployment, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_sources, "CLAIM_S", 3.0)
    await store.checkpoint("0", 41)
    await store.checkpoint("1", 7)
    await store.claim("0", "d9f0")
    await store.claim("1", "gone")

    async def work() -> None:
        async for turn in rhythm(0.1):
            await store.checkpoint("0", 42 + turn)

    working = asyncio.create_task(work())
    told = await deployment.from_container("checkpointstore", "--apply")
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    assert told.code == 1
    assert "watching for up to 3 s whether 2 leases have live owners" in told.out
    assert f"'d9f0' is processing document '{FOLDER}/ownership/0'" in " ".join(told.out.split())
    assert "1 created, 0 moved, 0 unchanged, 1 refused: nothing is written" in told.out
    assert await deployment.leases() == {}


async def test_of_several_consumer_groups_one_is_chosen(deployment: Deployment, store: Store) -> None:
    await store.checkpoint("0", 41)
    await store.checkpoint("0", 7, group="Billing")
    told = await deployment.from_container("checkpointstore")
    assert (told.code, "there are leases in 2 folders" in told.out) == (1, True)
    prefix = f"{NAMESPACE}/{HUB}/Billing"
    assert (await deployment.from_container("checkpointstore", "--prefix", prefix, "--apply")).code == 0
    assert await deployment.places() == {"0": "7@700"}


async def test_an_export_of_the_blobs_does_as_well(deployment: Deployment, store: Store) -> None:
    await store.checkpoint("0", 41)
    await store.claim("0", "")
    listed = [
        {"name": blob.name, "metadata": blob.metadata, "properties": {"lastModified": blob.last_modified.isoformat()}}
        async for blob in deployment.blobs.list_blobs(include=["metadata"])
    ]
    told = await deployment("checkpointstore", "--apply", input=json.dumps(listed))
    assert told.code == 0, told.out
    assert await deployment.places() == {"0": "41@4100"}


# --- the older EventProcessorHost ---


async def hosted(deployment: Deployment, partition: str, number: int, folder: str = "$Default", **fields: Any) -> Any:
    content = {"Offset": str(number * 100), "SequenceNumber": number, "PartitionId": partition, "Owner": "host-1"}
    given = content | {"Token": "", "Epoch": 12} | fields
    return await deployment.blobs.upload_blob(f"{folder}/{partition}", json.dumps(given).encode(), overwrite=True)


async def test_leases_of_the_older_host_are_taken_over_with_their_epochs(deployment: Deployment) -> None:
    await hosted(deployment, "0", 41)
    await hosted(deployment, "1", 7)
    await hosted(deployment, "2", 0, Offset=None)
    await deployment.blobs.upload_blob("$Default/eventhub.info", b"")
    told = await deployment.from_container("eventprocessorhost", "--apply")
    assert (told.code, "2 created, 0 moved, 0 unchanged, 0 refused: 2 written" in told.out) == (0, True), told.out
    assert "partition '2' was never checkpointed" in told.out
    assert {name: (lease.continuation, lease.epoch) for name, lease in (await deployment.leases()).items()} == {
        "0": ("41@4100", 12),
        "1": ("7@700", 12),
    }


async def test_a_lease_that_a_host_holds_is_refused_until_it_lets_go(deployment: Deployment) -> None:
    blob = await hosted(deployment, "0", 41)
    held = await blob.acquire_lease(lease_duration=15)
    told = await deployment.from_container("eventprocessorhost", "--apply")
    assert (told.code, "'host-1' is processing document '$Default/0'" in " ".join(told.out.split())) == (1, True), (
        told.out
    )
    await held.release()
    assert (await deployment.from_container("eventprocessorhost", "--apply")).code == 0
    assert await deployment.places() == {"0": "41@4100"}


async def export_to_hosts(deployment: Deployment, container: str) -> Told:
    line = ["leases", "export", str(deployment.file), "--pipeline", "orders", "--to", "eventprocessorhost"]
    result = await asyncio.to_thread(
        CliRunner().invoke, main, [*line, "--prefix", "$Default", "--container", container]
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Told(result.exit_code, result.output)


async def test_leases_go_back_to_the_older_host(deployment: Deployment) -> None:
    name = deployment.blobs.container_name
    deployment.keep_leases_in(deployment.ours)
    await hosted(deployment, "0", 41)
    await hosted(deployment, "1", 7)
    assert (await deployment.from_container("eventprocessorhost", "--apply")).code == 0
    await hosted(deployment, "0", 3)  # as if our hosts had worked on since
    await deployment.blobs.delete_blob("$Default/1")
    told = await export_to_hosts(deployment, name)
    assert (told.code, told.out) == (0, f"2 blobs written to {name}/$Default\n")
    stored = [json.loads(await (await deployment.blobs.download_blob(f"$Default/{n}")).readall()) for n in "01"]
    assert [(each["Offset"], each["SequenceNumber"], each["Epoch"]) for each in stored] == [
        ("4100", 41, 12),
        ("700", 7, 12),
    ]
    assert "2 unchanged" in (await deployment.from_container("eventprocessorhost")).out


async def test_a_blob_of_a_running_host_is_not_overwritten(deployment: Deployment) -> None:
    blob = await hosted(deployment, "0", 41)
    assert (await deployment.from_container("eventprocessorhost", "--apply")).code == 0
    await blob.acquire_lease(lease_duration=15)
    told = await export_to_hosts(deployment, deployment.blobs.container_name)
    assert (told.code, "blob '$Default/0' is leased by a running host: stop it" in told.out) == (1, True), told.out
    told = await export_to_hosts(deployment, "nothing-there")
    assert (told.code, "'nothing-there' does not exist: create it" in told.out) == (1, True), told.out


# --- where the old blobs are ---


async def test_without_a_container_the_one_of_the_leases_is_read(deployment: Deployment) -> None:
    deployment.keep_leases_in(deployment.blobs.container_name)
    await hosted(deployment, "0", 41)
    assert (await deployment("eventprocessorhost", "--apply")).code == 0
    assert await deployment.places() == {"0": "41@4100"}
    assert "1 unchanged" in (await deployment("eventprocessorhost")).out


async def test_the_account_may_be_another_one_told_by_the_environment(deployment: Deployment, tmp_path: Path) -> None:
    await hosted(deployment, "0", 41)
    deployment.file.write_text(SETTINGS.format(leases=f"{{path: {tmp_path}/leases.db}}"))
    told = await deployment.from_container("eventprocessorhost")
    assert (told.code, "name an INPUT, or the blob container" in told.out) == (1, True)
    name = deployment.blobs.container_name
    environment = {"LEASEHOLD_IMPORT_CONNECTION_STRING": deployment.azurite}
    told = await deployment("eventprocessorhost", "--container", name, "--apply", **environment)
    assert (told.code, "1 written" in told.out) == (0, True), told.out
    told = await deployment("eventprocessorhost", **environment)
    assert (told.code, "--container: name the one with the old leases" in told.out) == (2, True)


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        (("--container", "nothing-there"), 1, "'nothing-there' does not exist: name the container with the old leases"),
        (("--container", "Not A Name", "--account-url", "ftp://x"), 2, "must be an address"),
        (("--prefix", "nowhere"), 1, "holds no leases of that kind in 'nowhere'"),
    ],
)
async def test_what_leads_nowhere_is_told(
    deployment: Deployment, options: tuple[str, ...], code: int, why: str
) -> None:
    await hosted(deployment, "0", 41)
    container = () if "--container" in options else ("--container", deployment.blobs.container_name)
    told = await deployment("eventprocessorhost", *container, *options)
    assert (told.code, why in " ".join(told.out.split())) == (code, True), told.out


async def test_a_container_is_named_for_blobs_alone(deployment: Deployment) -> None:
    told = await deployment("dotnet", "--container", "old")
    assert (told.code, "say where blobs are" in told.out) == (2, True)
    told = await deployment("checkpointstore", "--container", "old", input="[]")
    assert (told.code, "say where blobs are" in told.out) == (2, True)
