"""Each hostile value becomes a document exactly, is refused with its row, or is converted as docs/guarantees.md says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from azure.cosmos.aio import ContainerProxy
from connectors.cosmos.test_cosmos_sink import CONTAINER, DATABASE, QUICK, account_of, container, sent
from hostile import COLUMNS, EXACT, IDS, TIMES, check_cell, outcome, rows_of, rows_with
from patience import PATIENCE_S
from plugins_cosmos import Cosmos
from writers import delivered, writing

from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed, cosmos_sink
from leasehold.pipeline.errors import OutputRefused
from leasehold.pipeline.sink import Output

__all__ = ["container"]


async def stored(proxy: ContainerProxy) -> list[dict[str, Any]]:
    return sorted([item async for item in proxy.read_all_items()], key=lambda item: int(item["sequence"]))


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", COLUMNS)
async def test_a_value_becomes_a_document_or_is_refused_as_the_page_says(
    cosmos: Cosmos, container: ContainerProxy, value: str, times: int
) -> None:
    async def write(table: pa.Table) -> Sequence[Any]:
        names = [f"d{number}" for number in range(table.num_rows)]
        table = table.append_column("id", pa.array(names)).append_column("account", pa.array(names))
        async with writing(cosmos_sink(account_of(cosmos), DATABASE, CONTAINER, limits=QUICK)) as writer:
            await delivered(writer, Output(table=table, start=None, to="1", events=table.num_rows))
        return [item["v"] for item in await stored(container)]

    check_cell(value, "`cosmos`", await outcome(write, rows_with(COLUMNS[value], times)))


@pytest.mark.parametrize("value", IDS)
async def test_an_id_becomes_a_document_that_can_be_deleted_or_is_refused_as_the_page_says(
    cosmos: Cosmos, container: ContainerProxy, value: str
) -> None:
    rows = pa.table({"sequence": [1, 2, 3], "account": ["x"] * 3, "id": ["good", IDS[value][0].as_py(), "better"]})

    async def write(table: pa.Table) -> Sequence[Any]:
        await sent(account_of(cosmos), table.to_pydict())
        return [item["id"] for item in await stored(container)]

    found = await outcome(write, rows, "id")
    check_cell(value, "`cosmos`", found)
    deletes = {**rows.to_pydict(), "operation": ["delete"] * 3}
    if found == EXACT:
        await sent(account_of(cosmos), deletes)
        assert await stored(container) == []
    else:
        with pytest.raises(OutputRefused):
            await sent(account_of(cosmos), deletes)


async def test_what_the_sdk_refuses_by_itself_is_refused_as_its_row_and_its_neighbours_are_written(
    cosmos: Cosmos, container: ContainerProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.pipeline.connectors.cosmos.point_operations._id", lambda document: document["id"])
    rows = {"sequence": [1, 2, 3], "account": ["x"] * 3, "id": ["good", "a\t", "better"]}
    with pytest.raises(OutputRefused, match=r"azure-cosmos refuses to upsert document 'a\\t'.*ValueError") as error:
        await sent(account_of(cosmos), rows)
    assert error.value.sequences == (2,)
    assert [item["id"] for item in await stored(container)] == ["good", "better"]


async def test_half_a_character_in_id_and_key_passes_the_emulator_and_the_feed(
    cosmos: Cosmos, container: ContainerProxy
) -> None:
    await container.upsert_item({"id": "a\ud83d", "account": "k\udc00", "n": 1})
    await container.upsert_item({"id": "b", "account": "k\udc00", "n": 2})
    assert [item["id"] async for item in container.read_all_items()] == ["a\ud83d", "b"]
    feed = CosmosChangeFeed(account_of(cosmos), DATABASE, CONTAINER)
    try:
        [place] = [each.name for each in await feed.partitions() if await feed.lag(each.name, None)]
        reader = feed.open(place, None)
        events: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(events) < 2:
                events += (await anext(reader)).events.to_pylist()
        await reader.aclose()
    finally:
        await feed.close()
    assert [(event["key"], dict(event["properties"])["id"]) for event in events] == [
        ("k\ufffd", "a\ufffd"),
        ("k\ufffd", "b"),
    ]
    assert [json.loads(event["body"])["id"] for event in events] == ["a\ud83d", "b"]


def test_the_page_names_every_hostile_value_and_no_other() -> None:
    assert rows_of("`cosmos`") == [*COLUMNS, *IDS]
