"""azure-storage-blob and @azure/storage-blob, on Azurite and on our emulator: both servers give the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import httpx
import pytest
from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.storage.blob import (
    AccountSasPermissions,
    BlobBlock,
    BlobClient,
    BlobLeaseClient,
    BlobPrefix,
    BlobSasPermissions,
    BlobServiceClient,
    ContainerClient,
    ContentSettings,
    ResourceTypes,
    generate_account_sas,
    generate_blob_sas,
)
from plugins_node import AZURITE_KEY, ON_BOTH, run_script

pytestmark = ON_BOTH

CONTAINERS = map("sdk-{}".format, count())
ACCOUNT = "devstoreaccount1"


def code_of(refused: pytest.ExceptionInfo[HttpResponseError]) -> str:
    """As the service names it, which is the value of the SDK's own name."""
    code = refused.value.error_code  # type: ignore[attr-defined]  # which the SDK of Blob Storage adds
    return str(getattr(code, "value", code))


@pytest.fixture
def service(azurite: str) -> Iterator[BlobServiceClient]:
    with BlobServiceClient.from_connection_string(azurite, retry_total=0) as service:
        yield service


@pytest.fixture
def container(service: BlobServiceClient) -> ContainerClient:
    return service.create_container(next(CONTAINERS))


def test_a_blob_is_read_as_it_was_written(container: ContainerClient) -> None:
    content = bytes(range(256)) * 40
    settings = ContentSettings(content_type="text/plain", cache_control="no-cache", content_language="en")
    put = container.upload_blob("a/b c?d#é+%20.txt", content, metadata={"Name": "a value"}, content_settings=settings)
    found = put.get_blob_properties()
    assert found.size == len(content)
    assert found.metadata == {"Name": "a value"}
    assert (found.content_settings.content_type, found.content_settings.cache_control) == ("text/plain", "no-cache")
    assert put.download_blob().readall() == content
    assert put.download_blob(offset=250, length=12).readall() == content[250:262]
    assert [blob.name for blob in container.list_blobs()] == ["a/b c?d#é+%20.txt"]
    put.set_http_headers(ContentSettings(content_type="text/csv"))
    assert put.get_blob_properties().content_settings.content_type == "text/csv"
    assert container.upload_blob("empty", b"").download_blob().readall() == b""


def test_conditions_protect_a_blob(container: ContainerClient) -> None:
    blob = container.upload_blob("a", b"one", metadata={"n": "1"})
    first = blob.get_blob_properties().etag
    with pytest.raises(ResourceExistsError) as existing:
        container.upload_blob("a", b"two")
    assert code_of(existing) == "BlobAlreadyExists"
    match = {"match_condition": MatchConditions.IfNotModified}
    second = blob.set_blob_metadata({"n": "2"}, etag=first, **match)["etag"]
    assert second != first
    for stale in (
        lambda: blob.set_blob_metadata({"n": "3"}, etag=first, **match),
        lambda: blob.upload_blob(b"two", overwrite=True, etag=first, **match),
        lambda: blob.delete_blob(etag=first, **match),
        lambda: blob.download_blob(etag=first, **match),
    ):
        with pytest.raises(ResourceModifiedError) as refused:
            stale()
        assert code_of(refused) == "ConditionNotMet"
    with pytest.raises(ResourceModifiedError) as unchanged:
        blob.get_blob_properties(etag=second, match_condition=MatchConditions.IfModified)
    assert (unchanged.value.status_code, code_of(unchanged)) == (304, "ConditionNotMet")
    assert blob.get_blob_properties().metadata == {"n": "2"}
    blob.delete_blob(etag=second, **match)
    with pytest.raises(ResourceNotFoundError) as missing:
        blob.get_blob_properties()
    assert code_of(missing) == "BlobNotFound"


def test_blocks_appear_when_they_are_committed(container: ContainerClient) -> None:
    blob = container.get_blob_client("large")
    for name in ("b", "a", "u"):
        blob.stage_block(name, name.encode() * 100)
    with pytest.raises(HttpResponseError) as unlike:
        blob.stage_block("longer", b"ids of a blob have one length")
    assert code_of(unlike) == "InvalidBlobOrBlock"
    assert not blob.exists()
    committed, staged = blob.get_block_list("all")
    assert (len(committed), sorted(block.size for block in staged)) == (0, [100, 100, 100])
    blob.commit_block_list([BlobBlock("a"), BlobBlock("b"), BlobBlock("a")], metadata={"k": "v"})
    assert blob.download_blob(offset=90, length=120).readall() == b"a" * 10 + b"b" * 100 + b"a" * 10
    assert blob.get_blob_properties().metadata == {"k": "v"}
    assert blob.get_block_list("all")[1] == []
    with pytest.raises(HttpResponseError) as refused:
        blob.commit_block_list([BlobBlock("u")])
    assert code_of(refused) == "InvalidBlockList"
    assert blob.get_blob_properties().size == 300


def test_an_append_blob_grows_at_the_expected_position(container: ContainerClient) -> None:
    blob = container.get_blob_client("log")
    blob.create_append_blob()
    assert blob.append_block(b"one", appendpos_condition=0)["blob_append_offset"] == "0"
    with pytest.raises(HttpResponseError) as refused:
        blob.append_block(b"two", appendpos_condition=0)
    assert code_of(refused) == "AppendPositionConditionNotMet"
    assert blob.append_block(b"two", appendpos_condition=3)["blob_committed_block_count"] == 2
    assert blob.download_blob().readall() == b"onetwo"


def test_a_lease_excludes_other_writers(container: ContainerClient) -> None:
    blob = container.upload_blob("a", b"one")
    lease = blob.acquire_lease(15)
    found = blob.get_blob_properties().lease
    assert (found.status, found.state, found.duration) == ("locked", "leased", "fixed")
    with pytest.raises(ResourceExistsError) as taken:
        blob.acquire_lease(15)
    assert code_of(taken) == "LeaseAlreadyPresent"
    for write in (
        lambda: blob.upload_blob(b"two", overwrite=True),
        blob.delete_blob,
        lambda: blob.set_blob_metadata({"n": "0"}),
    ):
        with pytest.raises(HttpResponseError) as refused:
            write()
        assert code_of(refused) == "LeaseIdMissing"
    blob.upload_blob(b"two", overwrite=True, lease=lease)
    lease.renew()
    lease.change("c0ffee00-0000-4000-8000-000000000000")
    blob.set_blob_metadata({"n": "1"}, lease=lease)
    lease.release()
    blob.upload_blob(b"three", overwrite=True)
    with pytest.raises(HttpResponseError) as gone:
        BlobLeaseClient(blob, "c0ffee00-0000-4000-8000-000000000000").renew()
    assert code_of(gone) == "LeaseIdMismatchWithLeaseOperation"
    endless = blob.acquire_lease(-1)
    endless.break_lease(0)
    assert blob.get_blob_properties().lease.state == "broken"
    blob.set_blob_metadata({"n": "2"})
    assert blob.get_blob_properties().lease.state == "available"
    blob.delete_blob()


def test_listings_have_folders_pages_and_metadata(container: ContainerClient) -> None:
    for name in ("a/1", "a/2", "b", "c/1", "c/d/2", "é"):
        container.upload_blob(name, name.encode(), metadata={"n": "x & <y>"})
    walked = sorted((one.name, isinstance(one, BlobPrefix)) for one in container.walk_blobs())
    assert walked == [("a/", True), ("b", False), ("c/", True), ("é", False)]
    assert sorted(one.name for one in container.walk_blobs(name_starts_with="c/")) == ["c/1", "c/d/"]
    pages = [[blob.name for blob in page] for page in container.list_blobs(results_per_page=4).by_page()]
    assert pages == [["a/1", "a/2", "b", "c/1"], ["c/d/2", "é"]]
    found = list(container.list_blobs(name_starts_with="a/", include=["metadata"]))
    assert [(blob.size, blob.metadata) for blob in found] == [(3, {"n": "x & <y>"})] * 2
    assert found[0].etag is not None
    assert found[0].etag.strip('"') == container.get_blob_client("a/1").get_blob_properties().etag.strip('"')


def test_containers_are_created_once_and_listed(service: BlobServiceClient) -> None:
    name = next(CONTAINERS)
    made = service.create_container(name, metadata={"owner": "me"})
    with pytest.raises(ResourceExistsError) as refused:
        service.create_container(name)
    assert code_of(refused) == "ContainerAlreadyExists"
    assert made.get_container_properties().metadata == {"owner": "me"}
    assert [each.name for each in service.list_containers(name_starts_with=name)] == [name]
    made.upload_blob("a", b"one")
    made.delete_container()
    with pytest.raises(ResourceNotFoundError) as missing:
        made.upload_blob("a", b"one")
    assert code_of(missing) == "ContainerNotFound"
    with pytest.raises(HttpResponseError, match="InvalidResourceName"):
        service.create_container("Not_A_Name")


def test_a_shared_access_signature_permits_what_it_names(container: ContainerClient) -> None:
    blob = container.upload_blob("a/é b", b"one")
    soon = datetime.now(UTC) + timedelta(minutes=5)
    own = (ACCOUNT, container.container_name, "a/é b")
    read = generate_blob_sas(*own, account_key=AZURITE_KEY, permission=BlobSasPermissions(read=True), expiry=soon)
    shared = BlobClient.from_blob_url(f"{blob.url}?{read}", retry_total=0)
    assert shared.download_blob().readall() == b"one"
    with pytest.raises(HttpResponseError) as refused:
        shared.delete_blob()
    assert refused.value.status_code == 403
    past = datetime.now(UTC) - timedelta(minutes=5)
    late = generate_blob_sas(*own, account_key=AZURITE_KEY, permission="r", expiry=past)
    assert httpx.get(f"{blob.url}?{late}", trust_env=False).status_code == 403
    forged = httpx.get(f"{blob.url}?{read}x", trust_env=False)
    assert forged.status_code == 403
    every = generate_account_sas(
        ACCOUNT, AZURITE_KEY, ResourceTypes(object=True), AccountSasPermissions(read=True, write=True), soon
    )
    BlobClient.from_blob_url(f"{blob.url}?{every}").upload_blob(b"two", overwrite=True)
    assert blob.download_blob().readall() == b"two"


def test_a_signature_that_permits_to_create_replaces_nothing_and_stages_nothing(container: ContainerClient) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    own = (ACCOUNT, container.container_name, "a")
    create = generate_blob_sas(*own, account_key=AZURITE_KEY, permission=BlobSasPermissions(create=True), expiry=soon)
    shared = BlobClient.from_blob_url(f"{container.url}/a?{create}", retry_total=0)
    with pytest.raises(HttpResponseError) as staged:
        shared.stage_block("0", b"one")
    assert staged.value.status_code == 403
    shared.upload_blob(b"one")
    with pytest.raises(HttpResponseError) as refused:
        shared.upload_blob(b"two", overwrite=True)
    assert refused.value.status_code == 403
    assert container.download_blob("a").readall() == b"one"


@pytest.mark.parametrize("key", ["d3Jvbmc=", None])
def test_without_the_key_nothing_is_answered(azurite: str, container: ContainerClient, key: str | None) -> None:
    account = container.url.rsplit("/", 1)[0]
    with (
        BlobServiceClient(account, credential=key, retry_total=0) as stranger,
        pytest.raises(HttpResponseError) as refused,
    ):
        stranger.get_container_client(container.container_name).upload_blob("a", b"one")
    assert refused.value.status_code in (401, 403, 404)


def test_the_client_of_node_sees_the_same(azurite: str) -> None:
    assert run_script("blob_basics.mjs", azurite) == {
        "again": "409 BlobAlreadyExists",
        "stale": "412 ConditionNotMet",
        "beyond": "416 InvalidRange",
        "raced": "412 AppendPositionConditionNotMet",
        "leased": "412 LeaseIdMissing",
        "taken": "409 LeaseAlreadyPresent",
        "renewed": True,
        "before": False,
        "range": "1122",
        "blocks": [1000, 1000],
        "listed": [["folder/a file é", 4], ["large", 2000], ["log", 8]],
        "pages": [["folder/"], ["large"], ["log"]],
        "shared": "one two ",
        "denied": 403,
        "names": [True],
        "metadata": {"n": "2"},
        "type": "text/plain",
        "log": "one two ",
        "copy": "free",
        "missing": False,
        "deleted": 0,
        "gone": "404 BlobNotFound",
        "whole": 0,
        "noContainer": "404 undefined",
    }
