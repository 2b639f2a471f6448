from __future__ import annotations

from collections.abc import Iterator

import pytest
from connectors.pulsar.topics import Topics
from plugins_pulsar import PulsarMachine


@pytest.fixture
def topics(pulsar_server: PulsarMachine) -> Iterator[Topics]:
    """A new topic of four partitions."""
    topics = Topics(pulsar_server)
    pulsar_server.make_topic(topics.name, 4)
    yield topics
    topics.close()
