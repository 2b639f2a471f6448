"""What this project uses of azure-cosmos, each part by itself: should a new version move one, this says which.

See docs/decisions/0007-a-merged-range-keeps-its-leases.md, "How the change feed is asked".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from connectors.cosmos.bank import Bank, banked
from plugins_cosmos import Cosmos, running

from leasehold.common.azure import CosmosAccount
from leasehold.pipeline.connectors.cosmos.change_feed_request import Ask
from leasehold.pipeline.connectors.cosmos.client import CosmosContainer
from leasehold.pipeline.connectors.cosmos.ranges import RangeSection, span_of
from leasehold.pipeline.errors import FeedError, FeedUnavailable, PositionLost


@pytest.fixture
async def bank(cosmos: Cosmos) -> AsyncIterator[Bank]:
    async with banked(cosmos) as bank:
        yield bank


def of(bank: Bank, *, key: str | None = None, container: str = Bank.name, timeout_s: float = 10.0) -> CosmosContainer:
    return CosmosContainer(
        CosmosAccount(endpoint=bank.cosmos.endpoint, key=key or bank.cosmos.key), "bank", container, timeout_s=timeout_s
    )


def ask(range_id: str = "0", after: str | None = None, **more: Any) -> Ask:
    return Ask(**{"place": RangeSection(range_id), "after": after, "items_max": 10, "mode": "latest", **more})


class Spy:
    """Hooks that only look."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.statuses: list[int] = []

    def sent(self, request: Any) -> None:
        self.urls.append(request.http_request.url)
        request.http_request.headers["A-IM"] = "Incremental Feed"
        request.http_request.headers["x-ms-documentdb-partitionkeyrangeid"] = "0"

    def came(self, response: Any) -> None:
        self.statuses.append(response.http_response.status_code)


async def test_sdk_reading_all_documents_is_one_get_of_docs_that_takes_hooks(bank: Bank) -> None:
    spy = Spy()
    items = bank.container.read_all_items(max_item_count=3, raw_request_hook=spy.sent, raw_response_hook=spy.came)
    await anext(items.by_page(), None)
    last = spy.urls[-1].partition("?")[0].rstrip("/")
    assert last.endswith("/docs"), f"read_all_items asks for {spy.urls}"
    assert len([url for url in spy.urls if "/docs" in url]) == 1, "read_all_items makes other requests than before"
    assert spy.statuses[-1] == 304, "what raw_request_hook adds does not reach the wire: the change feed was not asked"


async def test_sdk_headers_of_the_hook_go_beside_the_signature_and_the_page_size(bank: Bank) -> None:
    kept: dict[str, str] = {}

    def sent(request: Any) -> None:
        if request.http_request.url.rstrip("/").endswith("/docs"):
            kept.update({name.lower(): value for name, value in request.http_request.headers.items()})

    await anext(bank.container.read_all_items(max_item_count=3, raw_request_hook=sent).by_page(), None)
    assert kept["x-ms-max-item-count"] == "3"
    assert "authorization" in kept
    assert "x-ms-cosmos-intended-collection-rid" in kept, "a container that was made again would not be noticed"


async def test_sdk_an_error_of_the_response_hook_passes_every_retry(bank: Bank) -> None:
    class Mine(Exception):
        pass

    came = 0

    def hook(response: Any) -> None:
        nonlocal came
        if response.http_request.url.rstrip("/").endswith("/docs"):
            came += 1
            raise Mine

    bank.cosmos.control.fault("throttle", "documents.list", retry_after_ms=1)
    with pytest.raises(Mine):
        await anext(bank.container.read_all_items(raw_response_hook=hook).by_page(), None)
    assert came == 1


async def test_sdk_the_private_reading_of_ranges_tells_ids_bounds_and_parents(bank: Bank) -> None:
    bank.cosmos.control.split(bank.name, "0")
    connection = bank.container.client_connection
    assert hasattr(connection, "_ReadPartitionKeyRanges"), "azure-cosmos has moved _ReadPartitionKeyRanges"
    found = [each async for each in connection._ReadPartitionKeyRanges(bank.container.container_link)]
    assert {"id", "minInclusive", "maxExclusive", "parents"} <= set(found[-1])


# What is made of them


async def test_a_page_comes_raw_with_its_etag_and_how_far_the_range_has_come(bank: Bank) -> None:
    account = bank.account_in("0")
    for _ in range(3):
        await bank.create(account)
    container = of(bank)
    answer = await container.read_changes(ask(items_max=2))
    assert (answer.status, answer.etag, answer.session) == (200, '"2"', "0:0#3#1=-1")
    assert answer.body.startswith(b"{")
    assert (await container.read_changes(ask(after='"3"'))).status == 304
    await container.close()


async def test_a_part_of_a_range_is_asked_for_by_its_bounds(bank: Bank) -> None:
    first, second = bank.cosmos.control.ranges(bank.name)[:2]
    await bank.create(bank.account(first.min, first.max))
    await bank.create(bank.account(second.min, second.max))
    merged = bank.cosmos.control.merge(bank.name, first.id, second.id)
    container = of(bank)
    for part in (first, second):
        answer = await container.read_changes(ask(place=RangeSection(merged.id, span_of(f"{part.min}-{part.max}"))))
        assert answer.body.count(b'"_rid"') == 2  # the list's own, and one document's
    await container.close()


async def test_ranges_are_told_with_their_parents(bank: Bank) -> None:
    left, right = bank.cosmos.control.split(bank.name, "2")
    container = of(bank)
    found = {each.id: each for each in await container.list_ranges()}
    assert set(found) == {"0", "1", "3", left.id, right.id}
    assert (found[left.id].parents, tuple(found[left.id].span)) == (("2",), (left.min, left.max))
    await container.close()


async def test_gone_throttled_and_refused_are_answers_and_the_sdk_does_not_retry_them(bank: Bank) -> None:
    bank.cosmos.control.split(bank.name, "0")
    container = of(bank)
    gone = await container.read_changes(ask("0"))
    assert (gone.status, gone.substatus) == (410, 1002)
    bank.cosmos.control.statistics(clear=True)
    bank.cosmos.control.fault("throttle", "feed.*", retry_after_ms=70_000)
    throttled = await container.read_changes(ask("1"))
    assert (throttled.status, throttled.retry_after_s) == (429, 70.0)
    bank.cosmos.control.heal()
    for status in (408, 413, 449, 400):
        bank.cosmos.control.fault("fail", "feed.*", status=status)
        assert (await container.read_changes(ask("1"))).status == status
        bank.cosmos.control.heal()
    assert bank.cosmos.control.requests("feed.latest") == 5
    await container.close()


async def test_an_answer_that_does_not_come_in_time_counts_as_408(bank: Bank) -> None:
    container = of(bank, timeout_s=3)
    await container.list_ranges()
    bank.cosmos.control.fault("delay", "feed.*", delay_s=6)
    assert (await container.read_changes(ask())).status == 408
    bank.cosmos.control.fault("delay", "ranges.*", delay_s=6)
    with pytest.raises(FeedUnavailable, match="no answer within 3 s"):
        await container.list_ranges()
    await container.close()


async def test_a_connection_that_drops_is_unavailable_and_the_next_request_has_a_new_one(bank: Bank) -> None:
    container = of(bank)
    await container.read_changes(ask())
    fault = bank.cosmos.control.fault("cut", "feed.*")
    with pytest.raises(FeedUnavailable, match="cannot be reached"):
        await container.read_changes(ask())
    bank.cosmos.control.heal(fault)
    assert (await container.read_changes(ask())).status == 304
    await container.close()


async def test_an_account_that_nobody_listens_for_is_unavailable(bank: Bank) -> None:
    for scheme in ("http", "https"):
        account = CosmosAccount(endpoint=f"{scheme}://127.0.0.1:9/", key=bank.cosmos.key, ca_file=Path(bank.cosmos.ca))
        container = CosmosContainer(account, "bank", "x", timeout_s=10)
        said = r"127\.0\.0\.1:9/bank/x cannot be reached: Cannot connect to host 127\.0\.0\.1:9 \["
        with pytest.raises(FeedUnavailable, match=said):
            await container.read_changes(ask())
        await container.close()


async def test_a_wrong_key_is_told_without_showing_it(bank: Bank) -> None:
    container = of(bank, key="d3Jvbmc=")
    for call in (container.read_changes(ask()), container.list_ranges()):
        with pytest.raises(FeedError, match=r"401.*check the key") as caught:
            await call
        assert not isinstance(caught.value, FeedUnavailable)
        assert "d3Jvbmc" not in str(caught.value)
    await container.close()


async def test_an_identity_signs_in_place_of_a_key(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    token = bank.cosmos.token

    class Credential:
        def __init__(self, **chosen: object) -> None:
            asked.append(chosen)

        async def get_token(self, *scopes: str, **more: object) -> AccessToken:
            return AccessToken(token, 2**40)

        async def close(self) -> None:
            asked.append("closed")

        async def __aenter__(self) -> Credential:
            return self

        async def __aexit__(self, *error: object) -> None:
            """Closed by whoever made it."""

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", Credential)
    account = CosmosAccount(endpoint=bank.cosmos.https, identity="11-22")  # a token is not sent without TLS
    container = CosmosContainer(account, "bank", bank.name, timeout_s=10)
    assert (await container.read_changes(ask())).status == 304
    assert len(await container.list_ranges()) == 4
    await container.close()
    assert asked == [{"managed_identity_client_id": "11-22"}, "closed"]
    token = "somebody else's"
    with pytest.raises(FeedError, match="401"):
        await (other := CosmosContainer(account, "bank", bank.name, timeout_s=10)).read_changes(ask())
    await other.close()


async def test_nobody_to_be_is_told_with_what_to_look_at(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)

    class Nobody:
        async def get_token(self, *scopes: str, **more: object) -> AccessToken:
            raise ClientAuthenticationError("no\nidentity")

        async def close(self) -> None:
            """Nothing is held."""

        async def __aenter__(self) -> Nobody:
            return self

        async def __aexit__(self, *error: object) -> None:
            """Nothing is held."""

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", Nobody)
    container = CosmosContainer(CosmosAccount(endpoint=bank.cosmos.https), "bank", bank.name, timeout_s=10)
    with pytest.raises(FeedError, match=r"finds no credentials \(no identity\): check `identity`") as caught:
        await container.read_changes(ask())
    assert not isinstance(caught.value, FeedUnavailable)
    await container.close()


async def test_a_container_that_is_not_there_is_told_with_what_to_do(bank: Bank) -> None:
    container = of(bank, container="elsewhere")
    for call in (container.read_changes(ask()), container.list_ranges(), container.read_key_paths()):
        with pytest.raises(FeedError, match=r"404.*check `database` and `container`") as caught:
            await call
        assert not isinstance(caught.value, FeedUnavailable)
    await container.close()


async def test_a_container_that_was_made_again_is_not_taken_for_the_old_one(bank: Bank) -> None:
    container, feed = of(bank), bank.feed()
    await container.read_changes(ask())
    position = await feed.start_of("0", "latest")
    async with bank.cosmos.client() as client:
        database = client.get_database_client("bank")
        await database.delete_container(bank.name)
        await database.create_container(bank.name, {"paths": ["/account"], "kind": "Hash"})  # type: ignore[arg-type]
    with pytest.raises(PositionLost, match="deleted and created again"):
        await anext(feed.open("0", position))
    await container.close()
    await feed.close()


async def test_the_partition_key_is_learnt_from_the_container(bank: Bank) -> None:
    container = of(bank)
    assert await container.read_key_paths() == ("/account",)
    await container.close()


async def test_over_tls_it_trusts_whom_a_ca_file_names_and_nobody_else(bank: Bank, tmp_path: Path) -> None:
    cosmos = bank.cosmos

    def trusting(ca_file: str) -> CosmosContainer:
        account = CosmosAccount(endpoint=cosmos.https, key=cosmos.key, ca_file=Path(ca_file))
        return CosmosContainer(account, "bank", Bank.name, timeout_s=10.0)

    container = trusting(cosmos.ca)
    assert len(await container.list_ranges()) == 4
    assert (await container.read_changes(ask())).status in (200, 304)
    await container.close()
    with running("--ranges", "1") as other:
        stranger = trusting(other.ca)
        with pytest.raises(
            FeedUnavailable, match=r"cannot be reached: Cannot connect to host \S+ \[SSLCertVerificationError"
        ):
            await stranger.read_rid()
        await stranger.close()


async def test_a_wrong_key_is_reported_after_one_request(bank: Bank) -> None:
    """The SDK would repeat it for seconds."""
    container = of(bank, key="d3Jvbmc=")
    with pytest.raises(FeedError, match=r"401.*check the key"):
        await container.read_rid()
    assert bank.cosmos.control.answered("account.read", 401) == 1
    await container.close()
