"""The container that a lease store over blobs finds, makes, or may not make; and what else lies in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest
from azure.storage.blob.aio import BlobServiceClient
from lab.servers.blob_wire import Wire, between

from leasehold.common.azure import storage_account_of
from leasehold.leases.document import BODY_BYTES_MAX, decode_lease, encode_lease, lease_id
from leasehold.leases.errors import InvalidDocument, StoreConflict, StoreMissing, StoreUnavailable
from leasehold.leases.lease import Lease
from leasehold.leases.stores.blob import BlobContainerAddress, BlobStore, LeaseBlobContainer

ID = "pipeline/leases/7"
LARGE = json.dumps({"text": "".join(f"{n * 7919 % 104729:x}" for n in range(9000))})
REPEATED = json.dumps({"batches": [{"pipeline": "orders", "partition": str(n)} for n in range(300)]})
CONTAINERS = map("container-{}".format, count())


@pytest.fixture
async def wire(azurite: str) -> AsyncIterator[Wire]:
    async with between(azurite) as wire:
        yield wire


@pytest.fixture
def container() -> str:
    return next(CONTAINERS)


@pytest.fixture
async def open_store(wire: Wire, container: str) -> AsyncIterator[Callable[..., BlobStore]]:
    stores = []

    def opened(creates: bool = True, pages: int = 5000) -> BlobStore:
        account, place = (
            storage_account_of(connection_string=wire.connection_string),
            BlobContainerAddress(container=container, creates=creates),
        )
        stores.append(BlobStore(LeaseBlobContainer(account, place, call_timeout_s=60, page_blobs_max=pages)))
        return stores[-1]

    yield opened
    for store in stores:
        await store.close()


@pytest.fixture
def store(open_store: Callable[..., BlobStore]) -> BlobStore:
    return open_store()


@pytest.fixture
async def blobs(azurite: str, container: str) -> AsyncIterator[Any]:
    """The container, as somebody else comes to it."""
    async with BlobServiceClient.from_connection_string(azurite) as service:
        yield service.get_container_client(container)


async def test_a_container_that_nobody_made_is_made_by_the_first_call(store: BlobStore, wire: Wire) -> None:
    assert await store.list("") == []
    await store.create(ID, "{}")
    assert wire.requests["container"] == 1


async def test_a_container_that_nobody_made_is_missing_where_it_is_not_to_be_made(
    open_store: Callable[..., BlobStore], wire: Wire
) -> None:
    store = open_store(creates=False)
    for call in (store.list(""), store.read(ID)):
        with pytest.raises(StoreMissing, match="no host has run"):
            await call
    assert wire.requests["container"] == 0


async def test_of_many_hosts_that_find_no_container_each_comes_through(open_store: Callable[..., BlobStore]) -> None:
    stores = [open_store() for _ in range(8)]
    results = await asyncio.gather(*(store.create(ID, "{}") for store in stores), return_exceptions=True)
    assert sum(isinstance(result, str) for result in results) == 1
    assert sum(isinstance(result, StoreConflict) for result in results) == 7


async def test_a_host_that_died_behind_the_container_s_creation_left_all_in_order(store: BlobStore, wire: Wire) -> None:
    """Its answer was lost, and so was the host; whoever comes next finds a container and no document."""
    wire.fault("lose_reply", "container", times=1)
    with pytest.raises(StoreUnavailable):
        await store.create(ID, "{}")
    assert await store.create(ID, "{}")


async def test_a_container_that_may_not_be_made_is_named_with_what_to_do(store: BlobStore, wire: Wire) -> None:
    wire.fault("fail", "container", status=403, code="AuthorizationPermissionMismatch")
    with pytest.raises(
        StoreUnavailable, match=r"'container-\d+' does not exist and cannot be created.*Contributor.*create it"
    ):
        await store.list("")


async def test_a_container_that_was_removed_is_made_again(store: BlobStore, blobs: Any) -> None:
    etag = await store.create(ID, "{}")
    await blobs.delete_container()
    with pytest.raises(StoreMissing):
        await store.replace(ID, "{}", etag)
    await store.create(ID, "{}")
    assert len(await store.list("")) == 1


async def test_a_listing_goes_on_behind_its_first_page(open_store: Callable[..., BlobStore], wire: Wire) -> None:
    store = open_store(pages=3)
    names = [f"pipeline/leases/{n:02}" for n in range(10)]
    for name in names:
        await store.create(name, json.dumps({"name": name}))
    before = wire.requests["list"]
    listed = await store.list("pipeline/leases/")
    assert [stored.id for stored in listed] == names
    assert all(json.loads(stored.body) == {"name": stored.id} for stored in listed)
    assert wire.requests["list"] - before == 4
    wire.fault("fail", "list", status=503, code="ServerBusy", after=2, times=1)
    assert [stored.id for stored in await store.list("pipeline/leases/")] == names
    assert wire.requests["list"] - before == 4 + 5  # the page that was refused comes again, and none before it


async def test_one_listing_reads_all_leases_and_what_is_too_large_for_it_comes_behind(
    store: BlobStore, wire: Wire
) -> None:
    bodies = {
        "pipeline/leases/1": '{"tick":1}',
        "pipeline/leases/2": REPEATED,
        "pipeline/leases/3": LARGE,
        "pipeline/leases/4": json.dumps({"text": "Grüße, 世界  \u007f"}, ensure_ascii=False),
    }
    for name, body in bodies.items():
        await store.create(name, body)
    listings, reads = wire.requests["list"], wire.requests["read"]
    assert {each.id: json.loads(each.body) for each in await store.list("pipeline/leases/")} == {
        name: json.loads(body) for name, body in bodies.items()
    }
    assert (wire.requests["list"] - listings, wire.requests["read"] - reads) == (1, 1)


async def test_a_body_may_grow_and_shrink(store: BlobStore) -> None:
    etag = await store.create(ID, "{}")
    for body in (LARGE, REPEATED, LARGE, "{}", REPEATED, "{}", LARGE):
        etag = await store.replace(ID, body, etag)
        stored = await store.read(ID)
        assert (json.loads(stored.body), stored.etag) == (json.loads(body), etag)
        assert [json.loads(each.body) for each in await store.list(ID)] == [json.loads(body)]


async def test_a_large_document_that_goes_while_it_is_listed_is_left_out(store: BlobStore, wire: Wire) -> None:
    await store.create(ID, LARGE)
    await store.create("pipeline/leases/8", "{}")
    wire.fault("fail", "read", status=404, code="BlobNotFound")
    assert [stored.id for stored in await store.list("")] == ["pipeline/leases/8"]
    with pytest.raises(StoreMissing):
        await store.read(ID)


async def test_metadata_of_others_is_kept_by_every_write(store: BlobStore, blobs: Any) -> None:
    await store.create(ID, '{"tick":1}')
    blob = blobs.get_blob_client("pipeline/7")
    kept = (await blob.get_blob_properties()).metadata
    await blob.set_blob_metadata({**kept, "team": "billing"})
    for body in ('{"tick":2}', LARGE, '{"tick":3}'):
        [stored] = await store.list(ID)
        etag = await store.replace(ID, body, stored.etag)
        await store.replace(ID, body, etag)
        assert (await blob.get_blob_properties()).metadata["team"] == "billing"
    assert json.loads((await store.read(ID)).body) == {"tick": 3}


async def test_fields_that_nobody_knows_come_back_with_a_lease(store: BlobStore) -> None:
    lease = Lease(pipeline="orders", partition="a b/ü.", continuation="é  7", unknown={"later": {"deep": [1, None]}})
    name = lease_id(lease.pipeline, lease.partition)
    await store.create(name, encode_lease(lease))
    assert decode_lease(name, (await store.read(name)).body) == lease


async def test_a_blob_of_others_in_the_place_of_a_lease_is_unreadable_and_stays_as_it_is(
    store: BlobStore, blobs: Any
) -> None:
    """As an EventProcessorHost writes it, whose group has the pipeline's name."""
    await blobs.create_container()
    await blobs.upload_blob("orders/0", b'{"PartitionId":"0","Offset":"128"}')
    await blobs.upload_blob("orders.servicebus.windows.net/hub/group/checkpoint/0", b"", metadata={"offset": "7"})
    await store.create("orders/leases/1", "{}")
    listed = {stored.id: stored for stored in await store.list("orders/leases/")}
    assert set(listed) == {"orders/leases/0", "orders/leases/1"}
    with pytest.raises(InvalidDocument, match=r"blob 'orders/0' is not a document of Leasehold"):
        decode_lease("orders/leases/0", listed["orders/leases/0"].body)
    with pytest.raises(StoreConflict):
        await store.create("orders/leases/0", "{}")
    downloaded = await blobs.download_blob("orders/0")
    assert json.loads(await downloaded.readall())["Offset"] == "128"


async def test_what_is_larger_than_a_document_is_not_read(store: BlobStore, blobs: Any, wire: Wire) -> None:
    await store.create(ID, LARGE)
    await blobs.upload_blob(
        "pipeline/7", b" " * (BODY_BYTES_MAX + 1), overwrite=True, metadata={"leasehold": "content"}
    )
    for stored in (await store.read(ID), *await store.list(ID)):
        with pytest.raises(InvalidDocument, match="larger than"):
            decode_lease(ID, stored.body)
    assert wire.requests["read"] == 0


async def test_a_document_whose_content_is_gone_stops_no_other(store: BlobStore, blobs: Any) -> None:
    await store.create("pipeline/leases/8", "{}")
    await blobs.upload_blob("pipeline/7", b"", metadata={"leasehold": "content"})
    listed = {stored.id: stored.body for stored in await store.list("pipeline/leases/")}
    assert listed.keys() == {ID, "pipeline/leases/8"}
    with pytest.raises(InvalidDocument, match="not JSON"):
        decode_lease(ID, listed[ID])


async def test_folders_of_an_account_that_has_them_are_no_documents(store: BlobStore, blobs: Any) -> None:
    await store.create("pipeline/leases/a", "{}")
    await blobs.upload_blob("pipeline/folder", b"", metadata={"hdi_isfolder": "true"})
    assert [stored.id for stored in await store.list("pipeline/leases/")] == ["pipeline/leases/a"]


async def test_documents_lie_where_people_look_for_them(store: BlobStore, blobs: Any) -> None:
    for name in ("orders/leases/7", "orders/leases/a%2Fb.csv", "orders/leases/v1.", "orders/info", "_hosts/host-a"):
        await store.create(name, '{"tick":1}')
    found = {blob.name: blob.metadata async for blob in blobs.list_blobs(include=["metadata"])}
    assert set(found) == {
        "orders/7",
        "orders/a~2Fb.csv",
        "orders/v1.!",
        "_leasehold/orders/info",
        "_leasehold/_hosts/host-a",
    }
    assert found["orders/7"] == {"leasehold": "json", "leasehold_0": '{"tick":1}'}
