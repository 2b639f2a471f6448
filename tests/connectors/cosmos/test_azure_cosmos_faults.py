"""Faults of the wire server, as azure-cosmos (synchronous) meets them: each happens as it was ordered, and no other does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ServiceResponseError
from azure.cosmos import ContainerProxy, CosmosClient, PartitionKey, _retry_utility
from azure.cosmos.exceptions import CosmosHttpResponseError, CosmosResourceNotFoundError
from patience import until
from plugins_cosmos import Cosmos

ONE = {"id": "1", "account": "a"}


@pytest.fixture
def tx(cosmos: Cosmos) -> Iterator[ContainerProxy]:
    """A client that does not try again of itself where it may be told so."""
    with CosmosClient(cosmos.endpoint, cosmos.key, retry_total=0, retry_connect=0, retry_read=0) as client:
        yield client.create_database("bank").create_container("tx", PartitionKey("/account"))


def versions(cosmos: Cosmos) -> int:
    return len(cosmos.control.versions("tx"))


def test_documents_queries_and_feeds_are_there_for_the_synchronous_client_too(
    tx: ContainerProxy, cosmos: Cosmos
) -> None:
    for n in range(20):
        tx.create_item({"id": f"d{n}", "account": f"a{n}", "n": n})
    cosmos.control.split("tx", "1")
    assert [
        one["n"] for one in tx.query_items("SELECT c.n FROM c ORDER BY c.n", enable_cross_partition_query=True)
    ] == list(range(20))
    found = [one["id"] for one in tx.query_items_change_feed(start_time="Beginning", max_item_count=3)]
    assert sorted(found) == sorted(f"d{n}" for n in range(20))
    assert len(list(tx.read_all_items(max_item_count=6))) == 20


def test_throttled_requests_wait_as_long_as_they_are_told(
    tx: ContainerProxy, cosmos: Cosmos, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(_retry_utility, "time", SimpleNamespace(time=time.time, sleep=pauses.append))
    cosmos.control.fault("throttle", "document.create", container="tx", times=2, retry_after_ms=200)
    tx.create_item(ONE)
    assert pauses == [0.2, 0.2]
    assert [fault["taken"] for fault in cosmos.control.faults()] == [2]
    counted = next(count for count in cosmos.control.statistics() if count["kind"] == "document.create")
    assert counted["statuses"] == {"201": 1, "429": 2}


def test_a_throttled_request_names_its_reason(tx: ContainerProxy, cosmos: Cosmos) -> None:
    cosmos.control.fault("throttle", retry_after_ms=0)
    with pytest.raises(CosmosHttpResponseError) as caught:
        tx.create_item(ONE)
    assert (caught.value.status_code, caught.value.sub_status) == (429, 3200)
    cosmos.control.heal()
    tx.create_item(ONE)


@pytest.mark.parametrize(("status", "substatus"), [(449, 0), (403, 5300), (400, 0)])
def test_a_request_fails_with_what_was_ordered_and_does_nothing(
    tx: ContainerProxy, cosmos: Cosmos, status: int, substatus: int
) -> None:
    cosmos.control.fault("fail", "document.create", status=status, substatus=substatus)
    with pytest.raises(CosmosHttpResponseError) as caught:
        tx.create_item(ONE)
    assert (caught.value.status_code, caught.value.sub_status or 0) == (status, substatus)
    assert versions(cosmos) == 0


def test_a_lost_reply_is_an_error_of_a_write_that_was_done(tx: ContainerProxy, cosmos: Cosmos) -> None:
    cosmos.control.fault("lose_reply", "document.create", times=1)
    with pytest.raises(AzureError):
        tx.create_item(ONE)
    assert versions(cosmos) == 1


def test_a_cut_is_an_error_of_a_write_that_was_not_done(tx: ContainerProxy, cosmos: Cosmos) -> None:
    cosmos.control.fault("cut", "document.create")
    with pytest.raises(AzureError):
        tx.create_item(ONE)
    assert versions(cosmos) == 0
    counted = next(count for count in cosmos.control.statistics() if count["kind"] == "document.create")
    assert set(counted["statuses"]) == {"0"}


def test_connections_that_break_are_made_anew(tx: ContainerProxy, cosmos: Cosmos) -> None:
    tx.create_item(ONE)
    assert cosmos.control.disconnect() >= 1
    with suppress(ServiceResponseError):  # where the end of its connection has not come to the client yet
        tx.read_item("1", "a")
    assert tx.read_item("1", "a")["id"] == "1"


def test_a_fault_of_large_pages_spares_small_ones(tx: ContainerProxy, cosmos: Cosmos) -> None:
    tx.create_item(ONE)
    cosmos.control.fault("fail", "feed.*", page_min=10, status=400)
    with pytest.raises(CosmosHttpResponseError):
        list(tx.query_items_change_feed(start_time="Beginning", max_item_count=10))
    assert len(list(tx.query_items_change_feed(start_time="Beginning", max_item_count=9))) == 1


def test_a_delayed_write_is_done_after_its_client_has_given_up(tx: ContainerProxy, cosmos: Cosmos) -> None:
    cosmos.control.fault("delay", "document.create", times=1, delay_s=10)
    with pytest.raises(AzureError):
        tx.create_item(ONE, read_timeout=1)
    assert versions(cosmos) == 0
    until(lambda: versions(cosmos) == 1)


def test_a_fault_of_one_range_or_document_leaves_the_others_alone(tx: ContainerProxy, cosmos: Cosmos) -> None:
    tx.create_item(ONE)
    holder = next(one for one in cosmos.control.ranges("tx") if one.documents)
    other = next(one for one in cosmos.control.ranges("tx") if not one.documents)
    cosmos.control.fault("fail", "document.*", range_id=other.id, status=400)
    cosmos.control.fault("fail", "document.*", id="2", status=400)
    tx.read_item("1", "a")
    cosmos.control.fault("fail", "document.*", range_id=holder.id, status=400)
    with pytest.raises(CosmosHttpResponseError):
        tx.read_item("1", "a")


def test_what_it_cannot_do_it_says(tx: ContainerProxy, cosmos: Cosmos) -> None:
    with pytest.raises(ValueError, match="not a fault"):
        cosmos.control.fault("explode")
    with pytest.raises(ValueError, match="has been split or merged"):
        cosmos.control.split("tx", "17")
    with pytest.raises(ValueError, match="not neighbors"):
        cosmos.control.merge("tx", "0", "2")
    with pytest.raises(ValueError, match="no container"):
        cosmos.control.split("nothing", "0")


def test_a_wrong_key_is_refused(cosmos: Cosmos) -> None:
    with pytest.raises(CosmosHttpResponseError) as caught:
        CosmosClient(cosmos.endpoint, "d3Jvbmc=")
    assert caught.value.status_code == 401


class Credential:
    """As azure-identity gives one."""

    def __init__(self, token: str) -> None:
        self._token = token

    def get_token(self, *_scopes: str, **_more: Any) -> AccessToken:
        return AccessToken(self._token, int(time.time()) + 3600)


@pytest.mark.filterwarnings(
    "ignore::urllib3.exceptions.InsecureRequestWarning"
)  # the SDK verifies no machine of its own
def test_an_access_token_opens_the_account_over_https(cosmos: Cosmos) -> None:
    with CosmosClient(cosmos.https, Credential(cosmos.token)) as client:
        client.create_database("bank")
        with pytest.raises(CosmosResourceNotFoundError):
            client.get_database_client("other").read()
    with pytest.raises(CosmosHttpResponseError):
        CosmosClient(cosmos.https, Credential("stolen"))
