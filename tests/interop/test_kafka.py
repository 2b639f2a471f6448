"""Spark's own Kafka source reads exactly what the sink `kafka` delivered, though owners died and froze within transactions."""

from __future__ import annotations

import signal

import pytest
from connectors.kafka.owners import POINTS, finished, is_stopped, writing
from connectors.kafka.topics import Topics, committed, make_topics
from interop.sql import Sql
from patience import until
from plugins_kafka import KafkaMachine

END = 16


@pytest.fixture
def topics(kafka_server: KafkaMachine) -> Topics:
    return make_topics(kafka_server)


def read(spark: Sql, topics: Topics, level: str) -> list[int]:
    """What Spark finds in partition 0, in its order."""
    view = f"{level}_{topics.name.replace('-', '_')}"
    options = {
        "kafka.bootstrap.servers": topics.machine.servers,
        "subscribe": topics.name,
        "kafka.isolation.level": level,
    }
    listed = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    spark(f"CREATE TEMPORARY VIEW {view} USING kafka OPTIONS ({listed})")
    found = spark(f"SELECT CAST(CAST(value AS STRING) AS INT) number FROM {view} WHERE partition = 0 ORDER BY offset")
    return [row["number"] for row in found]


async def test_spark_reads_each_event_once_whatever_step_owners_died_or_froze_at(spark: Sql, topics: Topics) -> None:
    for epoch, point in enumerate(POINTS, 1):
        code, said = finished(writing(topics, epoch, f"{point}:2", END))
        assert code == -signal.SIGKILL, said
    frozen = writing(topics, len(POINTS) + 1, "transaction filled:2:SIGSTOP", END)
    try:
        until(lambda: is_stopped(frozen) or frozen.poll() is not None, "the owner is frozen")
        code, said = finished(writing(topics, len(POINTS) + 2, None, END))
        assert code == 0, said
        frozen.send_signal(signal.SIGCONT)
        code, said = finished(frozen)
        assert (code, "Fenced" in said) == (1, True), said
    finally:
        frozen.kill()
    wanted = list(range(1, END + 1))
    assert [int(record.value or b"") for record in await committed(topics)] == wanted  # by now all readers may see all
    assert read(spark, topics, "read_committed") == wanted
    assert len(read(spark, topics, "read_uncommitted")) > END  # what was left open and aborted is in the topic
