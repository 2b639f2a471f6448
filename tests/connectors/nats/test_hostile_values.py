"""Each hostile value is published to a stream exactly, refused with its row, or converted as docs/guarantees.md says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from connectors.nats.streams import Made
from connectors.nats.test_sink import Open, claim
from hostile import EVENTS, TIMES, check_cell, outcome, rows_of, rows_with

from leasehold.pipeline.sink import Output


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", EVENTS)
async def test_an_event_is_published_as_the_page_says(made: Made, value: str, times: int) -> None:
    name, given = EVENTS[value]

    async def write(table: pa.Table) -> Sequence[Any]:
        sink, feed = made.sink(), made.feed()
        try:
            writer = await sink.open(claim(1))
            await writer.write(Output(table=table, start=None, to="1", events=table.num_rows), Open())
            reader = feed.open("0", None)
            found: list[Any] = []
            while len(found) < table.num_rows:
                found += (await anext(reader)).events[name].to_pylist()
            await reader.aclose()
        finally:
            await sink.close()
            await feed.close()
        return found

    table = rows_with(given, times, name, **({} if name == "body" else {"body": b"x"}))
    check_cell(value, "`nats`", await outcome(write, table, name))


def test_the_page_names_every_hostile_value() -> None:
    assert rows_of("`nats`") == list(EVENTS)
