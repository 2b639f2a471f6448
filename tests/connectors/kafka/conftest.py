from __future__ import annotations

import uuid

import pytest
from connectors.kafka.topics import Topics
from plugins_kafka import KafkaMachine


@pytest.fixture
def topics(kafka_server: KafkaMachine) -> Topics:
    """A new topic of four partitions."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    kafka_server.make_topic(name, 4)
    return Topics(machine=kafka_server, name=name)
