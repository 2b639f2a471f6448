"""What a lease store over Cosmos DB says when the wire, the service or the settings fail: done, not done, or perhaps."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from patience import PATIENCE_S, until_async
from plugins_cosmos import Cosmos

from leasehold.common.azure import CosmosAccount, cosmos_account_of
from leasehold.leases.errors import RETRY_AFTER_MAX_S, StoreAmbiguous, StoreMissing, StoreUnavailable
from leasehold.leases.store import TimedStore
from leasehold.leases.stores.azure import RetryBudget
from leasehold.leases.stores.cosmos import CosmosContainerAddress, CosmosStore, LeaseContainer, container

ID = "pipeline/leases/7"
PLACE = CosmosContainerAddress(database="bank", container="leases")


@pytest.fixture
def account(cosmos: Cosmos) -> CosmosAccount:
    return CosmosAccount(endpoint=cosmos.endpoint, key=cosmos.key)


@pytest.fixture
async def open_store(account: CosmosAccount) -> AsyncIterator[Callable[..., CosmosStore]]:
    stores = []

    def opened(of: CosmosAccount = account, place: CosmosContainerAddress = PLACE) -> CosmosStore:
        stores.append(CosmosStore(LeaseContainer(of, place, call_timeout_s=PATIENCE_S)))
        return stores[-1]

    yield opened
    for store in stores:
        await store.close()


@pytest.fixture
async def store(open_store: Callable[..., CosmosStore]) -> CosmosStore:
    return open_store()


async def test_a_write_whose_answer_is_lost_is_sent_once_and_perhaps_done(store: CosmosStore, cosmos: Cosmos) -> None:
    """On a connection that was used before, where the SDK and what it stands on would send it again."""
    etag = await store.create(ID, '{"tick":1}')
    for do, tick in (("cut", 1), ("lose_reply", 2)):
        before = cosmos.control.requests("document.replace")
        cosmos.control.fault(do, "document.replace", times=1)
        with pytest.raises(StoreAmbiguous):
            await store.replace(ID, '{"tick":2}', etag)
        assert cosmos.control.requests("document.replace") == before + 1
        assert (await store.read(ID)).body == f'{{"tick":{tick}}}'


async def test_a_creation_and_a_deletion_are_sent_once_too(store: CosmosStore, cosmos: Cosmos) -> None:
    await store.create(ID + "1", "{}")
    cosmos.control.fault("lose_reply", "document.create", times=1)
    with pytest.raises(StoreAmbiguous):
        await store.create(ID, "{}")
    stored = await store.read(ID)
    cosmos.control.fault("lose_reply", "document.delete", times=1)
    with pytest.raises(StoreAmbiguous):
        await store.delete(ID, stored.etag)
    with pytest.raises(StoreMissing):
        await store.read(ID)
    assert (cosmos.control.requests("document.create"), cosmos.control.requests("document.delete")) == (2, 1)


async def test_a_read_that_is_cut_is_not_done(store: CosmosStore, cosmos: Cosmos) -> None:
    await store.create(ID, "{}")
    cosmos.control.fault("cut", "document.read", times=1)
    with pytest.raises(StoreUnavailable):
        await store.read(ID)
    assert await store.read(ID)


@pytest.mark.parametrize(("status", "substatus"), [(408, 0), (410, 1002), (500, 0), (503, 0)])
async def test_a_service_in_trouble_may_have_written_and_has_not_read(
    store: CosmosStore, cosmos: Cosmos, status: int, substatus: int
) -> None:
    etag = await store.create(ID, "{}")
    cosmos.control.fault("fail", "document*", status=status, substatus=substatus)
    for write in (store.create(ID + "1", "{}"), store.replace(ID, "{}", etag), store.delete(ID, etag)):
        with pytest.raises(StoreAmbiguous, match=str(status)):
            await write
    assert [cosmos.control.requests(f"document.{do}") for do in ("create", "replace", "delete")] == [2, 1, 1]
    for read in (store.read(ID), store.list("")):
        with pytest.raises(StoreUnavailable, match=str(status)):
            await read


@pytest.mark.parametrize(("status", "substatus"), [(404, 1002), (404, 1003)])
async def test_a_404_that_is_not_about_the_document_does_not_say_that_it_is_missing(
    store: CosmosStore, cosmos: Cosmos, status: int, substatus: int
) -> None:
    etag = await store.create(ID, "{}")
    cosmos.control.fault("fail", "document.*", status=status, substatus=substatus)
    for call in (store.read(ID), store.replace(ID, "{}", etag)):
        with pytest.raises(StoreUnavailable):
            await call
    cosmos.control.heal()
    assert await store.read(ID)


async def test_a_throttled_call_is_tried_again_while_the_caller_waits(store: CosmosStore, cosmos: Cosmos) -> None:
    etag = await store.create(ID, "{}")
    cosmos.control.fault("throttle", "document*", retry_after_ms=20, times=3)
    assert await store.replace(ID, "{}", etag) != etag
    cosmos.control.fault("throttle", "document*", retry_after_ms=20, times=3)
    assert len(await store.list("")) == 1


async def test_a_call_throttled_for_longer_than_it_may_take_is_not_done_and_says_when_to_come_again(
    store: CosmosStore, cosmos: Cosmos
) -> None:
    etag = await store.create(ID, "{}")
    cosmos.control.fault("throttle", "document*", retry_after_ms=120_000)
    for call in (store.replace(ID, "{}", etag), store.read(ID), store.list("")):
        with pytest.raises(StoreUnavailable, match="429") as caught:
            await call
        assert caught.value.retry_after_s == RETRY_AFTER_MAX_S, "120 s are more than any pause"
    assert cosmos.control.requests("document.replace") == 1


async def test_a_listing_repeats_the_page_that_was_refused_and_none_before_it(
    store: CosmosStore, cosmos: Cosmos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "PAGE_ITEMS_MAX", 2)
    for n in range(20):
        await store.create(f"{ID}{n:02}", "{}")
    whole = await store.list("pipeline/leases/")
    calm = cosmos.control.requests("documents.query")
    cosmos.control.fault("throttle", "documents.query", after=5, times=3, retry_after_ms=1)
    assert await store.list("pipeline/leases/") == whole
    assert cosmos.control.requests("documents.query") == 2 * calm + 3


async def test_while_everything_is_refused_a_call_is_one_request(store: CosmosStore, cosmos: Cosmos) -> None:
    """Those who call back off themselves. Once requests succeed again, some may be repeated again."""
    etag = await store.create(ID, "{}")
    cosmos.control.fault("throttle", "document*", retry_after_ms=1)
    for _ in range(30):
        with pytest.raises(StoreUnavailable, match="429"):
            await store.list("")
    assert cosmos.control.requests("documents.query") <= 30 + RetryBudget.FULL
    cosmos.control.heal()
    for _ in range(20):
        etag = await store.replace(ID, "{}", etag)
    cosmos.control.fault("throttle", "document.replace", retry_after_ms=1, times=1)
    assert await store.replace(ID, "{}", etag) != etag


async def test_what_the_service_asks_to_try_again_is_tried_again(store: CosmosStore, cosmos: Cosmos) -> None:
    etag = await store.create(ID, "{}")
    cosmos.control.fault("fail", "document.replace", status=449, times=4)
    assert await store.replace(ID, "{}", etag) != etag
    cosmos.control.fault("fail", "document.replace", status=449)
    impatient = CosmosStore(LeaseContainer(account_of(cosmos), PLACE, call_timeout_s=4.0))
    with pytest.raises(StoreUnavailable, match="449"):
        await impatient.replace(ID, "{}", etag)
    await impatient.close()


def account_of(cosmos: Cosmos) -> CosmosAccount:
    return CosmosAccount(endpoint=cosmos.endpoint, key=cosmos.key)


async def test_a_wrong_key_is_said_to_be_wrong_and_nothing_was_done(
    open_store: Callable[..., CosmosStore], account: CosmosAccount
) -> None:
    store = open_store(replace(account, key="d3Jvbmc="))
    with pytest.raises(StoreUnavailable, match=r"401.*key"):
        await store.create(ID, "{}")


async def test_a_wrong_key_is_reported_after_one_request(account: CosmosAccount, cosmos: Cosmos) -> None:
    """The SDK would repeat it for seconds, and calls with little time would end before."""
    store = TimedStore(CosmosStore(LeaseContainer(replace(account, key="d3Jvbmc="), PLACE, call_timeout_s=10.0)), 10.0)
    for calls in (1, 2):
        with pytest.raises(StoreUnavailable, match=r"401.*key"):
            await store.list("")
        assert cosmos.control.answered("account.read", 401) == calls
    await store.close()


async def test_an_opening_that_takes_its_time_is_told_as_such_and_its_failure_to_who_comes_next(
    account: CosmosAccount, cosmos: Cosmos, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert container.OPENING_SHARE < 1, "the opening must end before the call, which here has much more time"
    monkeypatch.setattr(container, "OPENING_SHARE", 0.05)
    cosmos.control.fault("fail", "database.create", status=403)
    cosmos.control.fault("delay", "*", delay_s=0.35)  # each request; they are three or more
    leases = LeaseContainer(account, PLACE, call_timeout_s=10.0)
    store = TimedStore(CosmosStore(leases), 10.0)
    with pytest.raises(StoreUnavailable, match=r"opening .* takes longer than 10 s"):
        await store.list("")
    await until_async(lambda: leases._refused is not None)
    with pytest.raises(StoreUnavailable, match="cannot be created"):
        await store.list("")
    await store.close()


async def test_an_account_that_is_not_there_has_done_nothing(open_store: Callable[..., CosmosStore]) -> None:
    for scheme in ("http", "https"):
        store = open_store(CosmosAccount(endpoint=f"{scheme}://127.0.0.1:9/", key="a2V5"))
        with pytest.raises(StoreUnavailable, match=r"reached \(Cannot connect to host 127\.0\.0\.1:9 \[.*endpoint"):
            await store.create(ID, "{}")


async def test_the_certificate_of_a_server_on_this_machine_is_verified_too(
    open_store: Callable[..., CosmosStore], cosmos: Cosmos
) -> None:
    trusting = CosmosAccount(endpoint=cosmos.https, key=cosmos.key, ca_file=Path(cosmos.ca))
    await open_store(trusting).create(ID, "{}")
    for endpoint in (cosmos.https, cosmos.https.replace("127.0.0.1", "localhost")):
        with pytest.raises(StoreUnavailable, match=r"certificate.*ca_file"):
            await open_store(replace(trusting, endpoint=endpoint, ca_file=None)).read(ID)


async def test_who_has_no_key_comes_as_whom_azure_identity_finds(
    open_store: Callable[..., CosmosStore], cosmos: Cosmos, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Somebody:
        async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            return AccessToken(cosmos.token, 4_000_000_000)

        async def close(self) -> None: ...

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", Somebody)
    await open_store(CosmosAccount(endpoint=cosmos.https, ca_file=Path(cosmos.ca))).create(ID, "{}")
    assert len(await open_store().list("")) == 1


async def test_a_container_that_nobody_made_is_missing_where_it_is_not_to_be_made(
    open_store: Callable[..., CosmosStore], cosmos: Cosmos
) -> None:
    store = open_store(place=CosmosContainerAddress(database="bank", container="leases", creates=False))
    with pytest.raises(StoreMissing, match="no host has run"):
        await store.list("")
    assert cosmos.control.requests("container.create") == 0


async def test_a_container_made_by_somebody_else_meanwhile_is_taken(
    open_store: Callable[..., CosmosStore], cosmos: Cosmos
) -> None:
    await open_store().list("")
    cosmos.control.fault("fail", "container.read", status=404, times=1)
    cosmos.control.fault("fail", "database.read", status=404, times=1)
    assert await open_store().list("") == []


async def test_a_container_that_may_not_be_made_is_named_with_what_to_do(
    open_store: Callable[..., CosmosStore], cosmos: Cosmos
) -> None:
    cosmos.control.fault("fail", "*.create", status=403)
    with pytest.raises(StoreUnavailable, match=r"bank/leases.*cannot be created.*no data role.*partition key /id"):
        await open_store().list("")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"partition_key": {"paths": ["/owner"], "kind": "Hash"}}, "partition key.*/owner"),
        ({"partition_key": {"paths": ["/id"], "kind": "Hash"}, "default_ttl": 60}, "time to live"),
    ],
)
async def test_a_container_that_does_not_do_for_leases_is_refused(
    open_store: Callable[..., CosmosStore], cosmos: Cosmos, options: dict[str, Any], why: str
) -> None:
    async with cosmos.client() as client:
        database = await client.create_database("bank")
        await database.create_container("leases", **options)
    with pytest.raises(StoreUnavailable, match=why):
        await open_store().list("")


@pytest.mark.parametrize("level", ["Eventual", "ConsistentPrefix"])
async def test_an_account_of_weak_consistency_is_refused(
    open_store: Callable[..., CosmosStore], cosmos: Cosmos, level: str
) -> None:
    cosmos.control.consistency(level)
    with pytest.raises(
        StoreUnavailable, match=f"default consistency {level}, and leases need Session.*raise the account's"
    ):
        await open_store().list("")
    assert cosmos.control.requests("container.create") == 0


@pytest.mark.parametrize("level", ["Session", "BoundedStaleness", "Strong"])
async def test_an_account_of_stronger_consistency_does(
    open_store: Callable[..., CosmosStore], cosmos: Cosmos, level: str
) -> None:
    cosmos.control.consistency(level)
    assert await open_store().list("") == []


async def test_an_opening_that_takes_longer_than_a_caller_waits_is_there_for_the_next(
    store: CosmosStore, cosmos: Cosmos
) -> None:
    cosmos.control.fault("delay", "container.read", delay_s=1)
    for _ in range(100):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await store.list("")
                break
    assert cosmos.control.requests("container.read") <= 3  # made, and read again; not begun anew by every caller


async def test_an_opening_that_nobody_waits_for_any_more_is_given_up_with_the_store(
    open_store: Callable[..., CosmosStore], cosmos: Cosmos
) -> None:
    cosmos.control.fault("delay", "account.read", delay_s=30)
    store = open_store()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await store.list("")
    await store.close()


async def test_a_container_that_was_removed_is_made_again(store: CosmosStore, cosmos: Cosmos) -> None:
    etag = await store.create(ID, "{}")
    async with cosmos.client() as client:
        await client.get_database_client("bank").delete_container("leases")
    with pytest.raises(StoreUnavailable):
        await store.replace(ID, "{}", etag)
    await store.create(ID, "{}")
    assert len(await store.list("")) == 1


async def test_no_secret_is_shown(account: CosmosAccount, store: CosmosStore) -> None:
    container = LeaseContainer(account, PLACE)
    shown = f"{account!r} {container!r} {store!r} {vars(container)!r}"
    assert account.key is not None
    assert account.key not in shown


@pytest.mark.parametrize("key", ["not base64!", "YQ", "ключ"])
def test_a_key_that_is_none_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="base64") as caught:
        cosmos_account_of(endpoint="http://localhost", key=key)
    assert key not in str(caught.value)


def test_a_ca_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("missing.pem", "empty.pem"):
        (tmp_path / "empty.pem").touch()
        with pytest.raises(ValueError, match=name):
            LeaseContainer(CosmosAccount(endpoint="https://localhost", ca_file=tmp_path / name), PLACE)
