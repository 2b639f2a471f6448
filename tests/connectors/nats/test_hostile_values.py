"""Each hostile value is published to a stream exactly, refused with its row, or converted as docs/guarantees.md says."""

from __future__ import annotations

import pytest
from connectors.nats.streams import Made
from hostile import EVENTS, TIMES, check_published, rows_of


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", EVENTS)
async def test_an_event_is_published_as_the_page_says(made: Made, value: str, times: int) -> None:
    await check_published(made.sink(), made.feed(), value, times, "`nats`")


def test_the_page_names_every_hostile_value() -> None:
    assert rows_of("`nats`") == list(EVENTS)
