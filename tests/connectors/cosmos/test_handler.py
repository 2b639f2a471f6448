"""What a handler learns of Cosmos DB beside the documents."""

from __future__ import annotations

from typing import Any

import pytest
from patience import until_async
from plugins_cosmos import Cosmos

from leasehold import Context, CosmosFeed, MemoryLeases, Pipeline, Processor

DOCUMENTS = 90


@pytest.mark.parametrize("parallel", [None, {"key": "partition", "max": 2, "events_max": 30}])
async def test_a_handler_gets_the_charge_and_the_session_token_of_what_it_is_called_with(
    cosmos: Cosmos, parallel: dict[str, Any] | None
) -> None:
    contexts: list[Context] = []
    seen: set[str] = set()

    async def on_changes(changes: list[dict[str, Any]], context: Context) -> None:
        contexts.append(context)
        seen.update(document["id"] for document in changes)

    async with cosmos.client() as client:
        database = await client.create_database("shop")
        container = await database.create_container("orders", {"paths": ["/customer"], "kind": "Hash"})  # type: ignore[arg-type]
        for number in range(DOCUMENTS):
            await container.create_item({"id": str(number), "customer": f"c{number}"})
        feed = CosmosFeed(
            endpoint=cosmos.endpoint, key=cosmos.key, database="shop", container="orders", page_items_max=10
        )  # type: ignore[arg-type]
        given = {} if parallel is None else {"parallel": parallel}
        pipeline = Pipeline("orders", feed=feed, handler=on_changes, batch_events_max=7, **given)
        async with Processor(pipeline, leases=MemoryLeases()):
            await until_async(lambda: len(seen) == DOCUMENTS)
        charges = [context.request_charge for context in contexts]
        assert all(context.session_token for context in contexts)
        assert any(charges)
        if parallel is None:
            # The emulator charges 1.5 for 10 documents, and what reads fewer costs less.
            assert DOCUMENTS / 10 <= sum(charge or 0.0 for charge in charges) <= 1.5 * (DOCUMENTS / 10 + 8)
        ranges = {context.partition: context.session_token for context in contexts}
        for context in contexts:
            assert (context.pipeline, context.epoch, context.owner != "") == ("orders", 1, True)
        document = await container.read_item("3", "c3", session_token=",".join(ranges.values()))  # type: ignore[arg-type]
        assert document["id"] == "3"
