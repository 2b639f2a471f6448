"""Each hostile value is published to a hub exactly, refused with its row, or converted as docs/guarantees.md says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from connectors.eventhubs.feeds import feed, pages
from connectors.eventhubs.test_letters import hub_box
from connectors.eventhubs.test_sink_faults import HUB, Lease, Permit, Sinks, sinks
from hostile import EVENTS, LETTERS, TIMES, check_cell, check_letters, outcome, rows_of, rows_with
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.markers import PREFIX
from leasehold.pipeline.sink import Output

__all__ = ["sinks"]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", EVENTS)
async def test_an_event_is_published_as_the_page_says(
    eventhubs: EventHubs, sinks: Sinks, value: str, times: int
) -> None:
    name, given = EVENTS[value]

    async def write(table: pa.Table) -> Sequence[Any]:
        writer = await Lease(sinks()).open()
        await writer.write(Output(table=table, start=None, to="1", events=table.num_rows), Permit())
        async with feed(eventhubs, HUB, limits=ReceiverLimits(trusts_properties=True)) as read:
            events = [event for page in await pages(read, table.num_rows) for event in page.events.to_pylist()]
        for event in events:
            event["properties"] = [pair for pair in event["properties"] or () if not pair[0].startswith(PREFIX)]
        return [event[name] for event in events]

    table = rows_with(given, times, name, **({} if name == "body" else {"body": b"x"}))
    check_cell(value, "`eventhubs`", await outcome(write, table, name))


async def test_events_come_back_from_their_letters_as_the_page_says(eventhubs: EventHubs) -> None:
    await check_letters(hub_box(eventhubs), "in `eventhubs`")


def test_the_page_names_every_hostile_value_and_no_other() -> None:
    assert rows_of("`eventhubs`") == list(EVENTS)
    assert rows_of("in `eventhubs`") == list(LETTERS)
