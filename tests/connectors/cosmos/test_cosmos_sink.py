"""The sink `cosmos` on the wire server and on one that nobody here wrote: contract, operations, 429 for single items, order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy
from plugins_cosmos import Cosmos
from writers import delivered, writing

from leasehold.common.azure import CosmosAccount
from leasehold.pipeline.connectors.cosmos import LIMITS, cosmos_sink
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness
from leasehold.pipeline.errors import SinkError, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import Output

DATABASE, CONTAINER = "bank", "accounts"
QUICK = replace(LIMITS, buffer_age_max_s=0.01, request_timeout_s=10.0)


@asynccontextmanager
async def made(endpoint: str, key: str, path: str = "/account") -> AsyncIterator[ContainerProxy]:
    from azure.cosmos.aio import CosmosClient

    async with CosmosClient(endpoint, key) as client:
        database = await client.create_database_if_not_exists(DATABASE)
        yield await database.create_container(CONTAINER, PartitionKey(path))
        await client.delete_database(DATABASE)


@pytest.fixture
async def container(cosmos: Cosmos) -> AsyncIterator[ContainerProxy]:
    async with made(cosmos.endpoint, cosmos.key) as proxy:
        yield proxy


async def sent(account: CosmosAccount, *columns: dict[str, list[Any]], **given: Any) -> None:
    """Each a batch."""
    batches = (
        Output(table=pa.table(each), start=str(number), to=str(number + 1), events=1)
        for number, each in enumerate(columns)
    )
    async with writing(cosmos_sink(account, DATABASE, CONTAINER, **{"limits": QUICK, **given})) as writer:
        await delivered(writer, *batches)


async def documents(proxy: ContainerProxy) -> dict[str, dict[str, Any]]:
    """Without what the service adds."""
    found = [item async for item in proxy.read_all_items()]
    return {item["id"]: {k: v for k, v in item.items() if not k.startswith("_")} for item in found}


class CosmosHarness(SinkHarness):
    def __init__(self, account: CosmosAccount, proxy: ContainerProxy, stack: AsyncExitStack) -> None:
        self.partitions = ("a", "b")
        self._account = account
        self._proxy = proxy
        self._stack = stack

    async def sink(self) -> Any:
        sink = cosmos_sink(self._account, DATABASE, CONTAINER, limits=QUICK)
        self._stack.push_async_callback(sink.close)
        await sink.prepare()
        return sink

    def table(self, partition: str, numbers: Any) -> pa.Table:
        return pa.table(
            {"account": [partition] * len(numbers), "id": [f"{partition}{n:03}" for n in numbers], "n": list(numbers)}
        )

    async def rows(self, partition: str) -> list[Row]:
        """Documents have no order; a row that came again has replaced itself."""
        found = await documents(self._proxy)
        return [Row(item["n"]) for _, item in sorted(found.items()) if item["account"] == partition]


class TestCosmosSink(SinkContract):
    @pytest.fixture(params=["the wire server", "cosmosdb-server"])
    async def harness(self, request: pytest.FixtureRequest, cosmos: Cosmos) -> AsyncIterator[SinkHarness]:
        is_ours = request.param == "the wire server"
        endpoint = cosmos.endpoint if is_ours else request.getfixturevalue("cosmosdb_server")
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(made(endpoint, cosmos.key))
            yield CosmosHarness(CosmosAccount(endpoint=endpoint, key=cosmos.key), proxy, stack)


def account_of(cosmos: Cosmos) -> CosmosAccount:
    return CosmosAccount(endpoint=cosmos.endpoint, key=cosmos.key)


async def test_rows_are_upserted_patched_and_deleted_in_their_order(cosmos: Cosmos, container: ContainerProxy) -> None:
    await sent(
        account_of(cosmos),
        {"id": ["a", "b", "c"], "account": ["x", "x", "y"], "n": [1, 2, 3], "operation": ["create", "upsert", None]},
        {"id": ["a", "a", "b", "d"], "account": ["x", "x", "x", "y"], "n": [5, 6, 0, 9]}
        | {"operation": ["upsert", "patch", "delete", "delete"]},
    )
    assert await documents(container) == {
        "a": {"id": "a", "account": "x", "n": 6},
        "c": {"id": "c", "account": "y", "n": 3},
    }


async def test_a_delete_and_an_upsert_that_come_again_change_nothing(cosmos: Cosmos, container: ContainerProxy) -> None:
    batch = {"id": ["a", "b", "b"], "account": ["x"] * 3, "n": [1, 2, 0], "operation": [None, None, "delete"]}
    for _ in range(2):
        await sent(account_of(cosmos), batch)
    assert await documents(container) == {"a": {"id": "a", "account": "x", "n": 1}}


async def test_bodies_are_documents(cosmos: Cosmos, container: ContainerProxy) -> None:
    bodies = [b'{"id": "a", "account": "x", "deep": {"list": [1, null]}}', b'{"account": "y"}']
    await sent(account_of(cosmos), {"sequence": [4, 5], "body": bodies}, content="body")
    assert await documents(container) == {
        "a": {"id": "a", "account": "x", "deep": {"list": [1, None]}},
        "bank:7:5:0": {"id": "bank:7:5:0", "account": "y"},
    }


async def test_single_items_that_are_throttled_or_lost_come_again_and_all_arrives(
    cosmos: Cosmos, container: ContainerProxy
) -> None:
    cosmos.control.fault("throttle", of="document.upsert", share=0.3, retry_after_ms=20)
    cosmos.control.fault("lose_reply", of="document.upsert", times=3)
    cosmos.control.fault("cut", of="document.upsert", times=3, after=20)
    numbers = list(range(150))
    ids = [f"d{n % 50}" for n in numbers]
    await sent(account_of(cosmos), {"id": ids, "account": ids, "n": numbers})
    found = await documents(container)
    assert {name: item["n"] for name, item in found.items()} == {f"d{n}": 100 + n for n in range(50)}
    statuses = [
        s for s in cosmos.control.statistics() if s["kind"] == "document.upsert" and s["container"] == CONTAINER
    ]
    assert statuses[0]["statuses"]["429"] > 10


@pytest.mark.parametrize(("status", "substatus"), [(408, 0), (449, 0), (410, 1002), (503, 0)])
async def test_what_may_succeed_later_is_written_again(
    cosmos: Cosmos, container: ContainerProxy, status: int, substatus: int
) -> None:
    cosmos.control.fault("fail", of="document.*", status=status, substatus=substatus, times=2)
    await sent(account_of(cosmos), {"id": ["a"], "account": ["x"]})
    assert await documents(container) == {"a": {"id": "a", "account": "x"}}


async def test_a_document_that_is_refused_is_named_with_what_to_do(cosmos: Cosmos, container: ContainerProxy) -> None:
    with pytest.raises(
        SinkRejected, match=r"refuses to patch document 'a' of entry bank/7/0/0 with 404 .*patch_missing"
    ):
        await sent(account_of(cosmos), {"id": ["a"], "account": ["x"], "n": [1], "operation": ["patch"]})
    await sent(
        account_of(cosmos),
        {"id": ["a"], "account": ["x"], "n": [1], "operation": ["patch"]},
        patch_missing="skip",
    )
    assert await documents(container) == {}


async def test_a_wrong_key_and_a_missing_container_are_told_before_any_row(cosmos: Cosmos) -> None:
    with pytest.raises(SinkError, match="check `database` and `container`"):
        await sent(account_of(cosmos), {"id": ["a"], "account": ["x"]})
    wrong = CosmosAccount(endpoint=cosmos.endpoint, key="c2VjcmV0")
    with pytest.raises(SinkError, match="check the key") as caught:
        await sent(wrong, {"id": ["a"], "account": ["x"]})
    assert "c2VjcmV0" not in str(caught.value)
    with pytest.raises(SinkUnavailable):
        await sent(CosmosAccount(endpoint="http://127.0.0.1:9", key="c2VjcmV0"), {"id": ["a"], "account": ["x"]})
