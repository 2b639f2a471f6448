"""Each hostile value is published to a topic exactly, refused with its row, or converted as docs/guarantees.md says."""

from __future__ import annotations

import pytest
from connectors.pulsar.topics import Topics
from hostile import EVENTS, TIMES, check_published, rows_of

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", EVENTS)
async def test_an_event_is_published_as_the_page_says(topics: Topics, value: str, times: int) -> None:
    await check_published(topics.sink(), topics.feed(), value, times, "`pulsar`")


def test_the_page_names_every_hostile_value() -> None:
    assert rows_of("`pulsar`") == list(EVENTS)
