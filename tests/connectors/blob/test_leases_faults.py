"""What a lease store over blobs says when the wire, the service or the settings fail: done, not done, or perhaps."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trustme
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.storage.blob.aio import BlobServiceClient
from lab.servers.blob_wire import Wire, between
from patience import PATIENCE_S

from leasehold.common.azure import storage_account_of
from leasehold.leases.errors import RETRY_AFTER_MAX_S, StoreAmbiguous, StoreConflict, StoreMissing, StoreUnavailable
from leasehold.leases.stores.blob import BlobContainerAddress, BlobStore, LeaseBlobContainer, account
from leasehold.leases.stores.blob.account import _REMEDIES

ID = "pipeline/leases/7"
LARGE = json.dumps({"text": "".join(f"{n * 7919 % 104729:x}" for n in range(9000))})
CONTAINERS = map("faults-{}".format, count())


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

    def opened(timeout_s: float = PATIENCE_S, creates: bool = True, pages: int = 5000, **account: Any) -> BlobStore:
        reached = storage_account_of(**(account or {"connection_string": wire.connection_string}))
        place = BlobContainerAddress(container=container, creates=creates)
        stores.append(BlobStore(LeaseBlobContainer(reached, place, call_timeout_s=timeout_s, page_blobs_max=pages)))
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


# --- a lost answer ---


@pytest.mark.parametrize(("body", "kind"), [('{"tick":2}', "set"), (LARGE, "put")])
async def test_a_write_whose_answer_is_lost_is_sent_once_and_perhaps_done(
    store: BlobStore, wire: Wire, body: str, kind: str
) -> None:
    """On a connection that was used before, where the SDK and what it stands on would send it again."""
    etag = await store.create(ID, '{"tick":1}')
    for do, expected in (("cut", '{"tick":1}'), ("lose_reply", body)):
        before = wire.requests[kind]
        wire.fault(do, kind, times=1)  # type: ignore[arg-type]  # one of those
        with pytest.raises(StoreAmbiguous):
            await store.replace(ID, body, etag)
        assert wire.requests[kind] == before + 1
        assert json.loads((await store.read(ID)).body) == json.loads(expected)


async def test_a_creation_and_a_deletion_are_sent_once_too(store: BlobStore, wire: Wire) -> None:
    await store.create(ID + "1", "{}")
    before = wire.requests["create"]
    wire.fault("lose_reply", "create", times=1)
    with pytest.raises(StoreAmbiguous):
        await store.create(ID, "{}")
    stored = await store.read(ID)
    wire.fault("lose_reply", "delete", times=1)
    with pytest.raises(StoreAmbiguous):
        await store.delete(ID, stored.etag)
    with pytest.raises(StoreMissing):
        await store.read(ID)
    assert (wire.requests["create"] - before, wire.requests["delete"]) == (1, 1)


@pytest.mark.parametrize("do", ["cut", "lose_reply", "truncate"])
async def test_a_read_that_breaks_off_is_not_done(store: BlobStore, wire: Wire, do: Any) -> None:
    await store.create(ID, LARGE)
    for kind, read in (("list", lambda: store.list("")), ("read", lambda: store.read(ID))):
        wire.fault(do, kind)
        with pytest.raises(StoreUnavailable):
            await read()
        wire.heal()
        assert await read()


async def test_a_write_that_nobody_answers_is_over_in_time(
    open_store: Callable[..., BlobStore], store: BlobStore, wire: Wire
) -> None:
    etag = await store.create(ID, "{}")
    wire.fault("hold", "set")
    impatient = open_store(timeout_s=4)
    with pytest.raises(StoreAmbiguous):
        await impatient.replace(ID, '{"tick":2}', etag)
    await wire.release()


# --- answers ---


@pytest.mark.parametrize(
    ("status", "code"), [(500, "InternalError"), (500, "OperationTimedOut"), (503, ""), (502, ""), (408, "")]
)
async def test_a_service_in_trouble_may_have_written_and_has_not_read(
    store: BlobStore, wire: Wire, status: int, code: str
) -> None:
    etag = await store.create(ID, "{}")
    before = wire.requests.total()
    wire.fault("fail", status=status, code=code)
    for write in (store.create(ID + "1", "{}"), store.replace(ID, "{}", etag), store.delete(ID, etag)):
        with pytest.raises(StoreAmbiguous, match=str(status)):
            await write
    for read in (store.read(ID), store.list("pipeline/leases/")):
        with pytest.raises(StoreUnavailable, match=str(status)):
            await read
    assert wire.requests.total() == before + 5


BUSY = [(503, "ServerBusy"), (429, "TooManyRequests"), (429, "")]


@pytest.mark.parametrize(("status", "code"), BUSY)
async def test_a_throttled_call_is_tried_again_while_the_caller_waits(
    store: BlobStore, wire: Wire, status: int, code: str
) -> None:
    etag = await store.create(ID, "{}")
    wire.fault("fail", "set", status=status, code=code, headers={"Retry-After": "0"}, times=3)
    assert await store.replace(ID, "{}", etag) != etag
    assert wire.requests["set"] == 4
    wire.fault("fail", "list", status=status, code=code, times=2)
    assert len(await store.list("")) == 1


@pytest.mark.parametrize(("status", "code"), BUSY)
async def test_a_call_throttled_for_longer_than_it_may_take_is_not_done_and_says_when_to_come_again(
    store: BlobStore, wire: Wire, status: int, code: str
) -> None:
    etag = await store.create(ID, "{}")
    wire.fault("fail", status=status, code=code, headers={"Retry-After": "120"})
    for call in (store.replace(ID, "{}", etag), store.read(ID), store.list("")):
        with pytest.raises(StoreUnavailable, match="throttled") as caught:
            await call
        assert caught.value.retry_after_s == RETRY_AFTER_MAX_S, "120 s are more than any pause"
    assert wire.requests["set"] == 1


async def test_throttling_without_an_end_is_over_in_time(
    open_store: Callable[..., BlobStore], store: BlobStore, wire: Wire
) -> None:
    etag = await store.create(ID, "{}")
    wire.fault("fail", "set", status=503, code="ServerBusy")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreUnavailable):
            await open_store(timeout_s=0.4).replace(ID, "{}", etag)


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        (403, "AuthorizationPermissionMismatch", "Storage Blob Data Contributor"),
        (403, "AuthorizationFailure", "firewall"),
        (403, "", "firewall"),
        (401, "", "key"),
        (412, "LeaseIdMissing", "break it"),
        (409, "BlobImmutableDueToPolicy", "another container"),
        (409, "ContainerBeingDeleted", "try again later"),
        (409, "AccountIsDisabled", "enable"),
        (400, "InvalidMetadata", "400"),
        (413, "RequestBodyTooLarge", "413"),
    ],
)
async def test_what_is_refused_for_good_is_not_done_and_says_what_to_do(
    store: BlobStore, wire: Wire, status: int, code: str, why: str
) -> None:
    etag = await store.create(ID, "{}")
    wire.fault("fail", status=status, code=code)
    for call in (store.replace(ID, "{}", etag), store.create(ID, "{}"), store.delete(ID, etag)):
        with pytest.raises(StoreUnavailable, match=why):
            await call
    assert len(_REMEDIES) > 5


async def test_a_blob_that_is_gone_is_missing_however_the_condition_is_answered(
    store: BlobStore, wire: Wire, blobs: Any
) -> None:
    """Put Blob with If-Match is answered with 412 where nothing is there to match."""
    etag = await store.create(ID, "{}")
    await blobs.delete_blob("pipeline/7")
    wire.fault("fail", "put", status=412, code="ConditionNotMet")
    wire.fault("fail", "set", status=412, code="ConditionNotMet")
    for body in ("{}", LARGE):
        with pytest.raises(StoreMissing):
            await store.replace(ID, body, etag)


async def test_a_conflict_stays_one_where_nobody_can_look_afterwards(store: BlobStore, wire: Wire) -> None:
    etag = await store.create(ID, "{}")
    await store.replace(ID, '{"tick":1}', etag)
    wire.fault("fail", "look", status=500)
    with pytest.raises(StoreConflict):
        await store.replace(ID, "{}", etag)


# --- the way to the account ---


async def test_a_wrong_key_is_said_to_be_wrong_and_nothing_was_done(
    open_store: Callable[..., BlobStore], wire: Wire
) -> None:
    store = open_store(account_url=wire.account_url, key="d3Jvbmc=")
    with pytest.raises(StoreUnavailable, match="look at the key") as caught:
        await store.create(ID, "{}")
    assert "d3Jvbmc=" not in str(caught.value)


async def test_an_account_that_is_not_there_has_done_nothing(open_store: Callable[..., BlobStore]) -> None:
    store = open_store(account_url="http://127.0.0.1:9/account", key="a2V5")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.create(ID, "{}")


@pytest.fixture
async def over_tls(azurite: str, tmp_path: Path) -> AsyncIterator[tuple[Wire, Path]]:
    """The way to the account with a certificate of an authority that nobody knows, and its file."""
    authority, server = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with between(azurite, server) as wire:
        yield wire, tmp_path / "ca.pem"


async def test_the_certificate_of_a_server_on_this_machine_is_verified_too(
    open_store: Callable[..., BlobStore], over_tls: tuple[Wire, Path]
) -> None:
    wire, ca_file = over_tls
    await open_store(connection_string=wire.connection_string, ca_file=ca_file).create(ID, "{}")
    with pytest.raises(StoreUnavailable, match=r"certificate.*ca_file"):
        await open_store(connection_string=wire.connection_string).read(ID)


async def test_who_has_no_key_comes_as_whom_azure_identity_finds(
    open_store: Callable[..., BlobStore], over_tls: tuple[Wire, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Somebody:
        async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            assert scopes == ("https://storage.azure.com/.default",)
            return AccessToken("token-of-somebody", 4_000_000_000)

        async def close(self) -> None: ...

    wire, ca_file = over_tls
    wire.fault("fail", status=403, code="AuthorizationPermissionMismatch")
    monkeypatch.setattr(account, "credential_of", lambda client_id: Somebody())
    store = open_store(account_url=wire.account_url, identity="default", ca_file=ca_file)
    with pytest.raises(StoreUnavailable, match="Storage Blob Data Contributor"):
        await store.create(ID, "{}")
    assert wire.authorizations == ["Bearer token-of-somebody"]


async def test_who_is_nobody_is_told(
    open_store: Callable[..., BlobStore], over_tls: tuple[Wire, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody:
        async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            raise ClientAuthenticationError("no credential found")

        async def close(self) -> None: ...

    wire, ca_file = over_tls
    monkeypatch.setattr(account, "credential_of", lambda client_id: Nobody())
    store = open_store(account_url=wire.account_url, identity="default", ca_file=ca_file)
    with pytest.raises(StoreUnavailable, match=r"no Azure credentials found.*run `az login`, or set `key`"):
        await store.create(ID, "{}")
    assert wire.requests.total() == 0


async def test_every_request_carries_its_condition(store: BlobStore, wire: Wire, blobs: Any) -> None:
    """Kinds of requests are told apart by their conditions: a write without one would be seen as such."""
    etag = await store.create(ID, "{}")
    etag = await store.replace(ID, LARGE, etag)
    etag = await store.replace(ID, "{}", etag)
    await store.delete(ID, etag)
    assert {kind: wire.requests[kind] for kind in ("create", "put", "set", "delete")} == {
        "create": 2,  # the first one met no container
        "put": 1,
        "set": 1,
        "delete": 1,
    }
    assert wire.conditions == ["If-None-Match", "If-None-Match", "If-Match", "If-Match", "If-Match"]


async def test_who_we_are_is_found_out_once_however_often_a_caller_loses_patience() -> None:
    from leasehold.leases.stores.azure import PatientCredential

    asked, found = 0, asyncio.Event()

    class Slow:
        async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            nonlocal asked
            asked += 1
            await found.wait()
            return AccessToken("token", 4_000_000_000)

        async def close(self) -> None: ...

    credential = PatientCredential(Slow())
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await credential.get_token("storage")
    found.set()
    assert (await credential.get_token("storage")).token == "token"
    assert asked == 1
    found.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await credential.get_token("storage")
    await credential.close()


def test_a_ca_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    account = storage_account_of(connection_string="AccountName=a;AccountKey=a2V5", ca_file=tmp_path / "missing.pem")
    with pytest.raises(ValueError, match=r"missing\.pem"):
        LeaseBlobContainer(account, BlobContainerAddress(container="leases"))


async def test_no_secret_is_shown(store: BlobStore) -> None:
    account = storage_account_of(account_url="https://a.blob.core.windows.net", key="c2VjcmV0")
    container = LeaseBlobContainer(account, BlobContainerAddress(container="leases"))
    assert "c2VjcmV0" not in f"{account!r} {container!r} {vars(container)!r} {store!r}"
