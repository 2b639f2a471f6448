"""Each hostile value is published to a topic exactly, refused with its row, or converted as docs/guarantees.md says."""

from __future__ import annotations

import pytest
from connectors.kafka.topics import Topics
from hostile import EVENTS, TIMES, check_published, rows_of

from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.connectors.kafka.reader import ReadingLimits
from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", EVENTS)
async def test_an_event_is_published_as_the_page_says(topics: Topics, value: str, times: int) -> None:
    sink = KafkaOutputSink(topics.access, topics.name)
    feed = KafkaChangeFeed(topics.access, topics.name, limits=ReadingLimits(trusts_headers=True))
    await check_published(sink, feed, value, times, "`kafka`")


def test_the_page_names_every_hostile_value() -> None:
    assert rows_of("`kafka`") == list(EVENTS)
