from __future__ import annotations

import pytest
from connectors.kafka.topics import Topics, make_topics
from plugins_kafka import KafkaMachine


@pytest.fixture
def topics(kafka_server: KafkaMachine) -> Topics:
    return make_topics(kafka_server)
