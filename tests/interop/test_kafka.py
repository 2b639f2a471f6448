"""Spark's own Kafka source reads exactly what the sink `kafka` delivered, and KEDA's scaler the lag that the feed commits."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from connectors.kafka.owners import POINTS, writing
from connectors.kafka.topics import Topics, committed, make_topics
from interop.bench import Bench
from interop.sql import Sql
from owners import finished, is_stopped
from patience import until, until_async
from plugins_kafka import KafkaMachine
from plugins_pg import Postgres

from leasehold.service.group.actions import pause_pipeline, resume_pipeline

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"
END, GROUP = 16, "euros"
PARTITIONS = range(4)
ALL = len(PARTITIONS)


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


class Committing(Bench):
    """The pipeline over a topic, with the trigger that docs/kafka.md shows for its group."""

    def __init__(self, topics: Topics, postgres: Postgres, folder: Path) -> None:
        self._topics = topics
        feed = {"type": "kafka", "servers": "${KAFKA}", "topic": topics.name, "group": GROUP, "commits": True}
        leases = {"type": "postgres", "dsn": "${LEASES}"}
        env = {"KAFKA": topics.machine.servers, "LEASES": postgres.dsn}
        super().__init__("none", leases, feed, env, folder)

    @property
    def trigger(self) -> dict[str, Any]:
        [shown] = re.findall(r"```yaml\n(triggers:.*?)```", PAGE.read_text(), re.DOTALL)
        [found] = yaml.safe_load(shown)["triggers"]
        own = {"bootstrapServers": self._topics.machine.servers, "consumerGroup": GROUP, "topic": self._topics.name}
        return {**found, "metadata": {**found["metadata"], **own}}

    def append(self, numbers: range) -> None:
        for partition in PARTITIONS:
            self._topics.produce(partition, [b"%d-%d" % (partition, number) for number in numbers])


@pytest.fixture
def committing(topics: Topics, postgres: Postgres, tmp_path: Path) -> Committing:
    return Committing(topics, postgres, tmp_path)


async def test_keda_sees_the_true_lag_of_a_topic_from_zero_to_zero(go: str, committing: Committing) -> None:
    assert await committing.lag(go) == 0  # an empty topic, and no group yet
    committing.append(range(10))
    assert await committing.lag(go) == 10 * ALL  # no pod has ever run: the first one starts
    await committing.drain()
    assert await committing.lag(go) == 0  # the last pod stops
    committing.append(range(10, 17))
    assert await committing.lag(go) == 7 * ALL  # from zero
    async with committing.host() as host:
        await committing.until_lag(go, 0)
        await pause_pipeline(host.keeper, "bank", by="a test", at="2026-01-31T12:00:00Z")
        await until_async(lambda: not host.host.workers)
        committing.append(range(17, 20))
        assert await committing.lag(go) == 3 * ALL
        await resume_pipeline(host.keeper, "bank", by="a test", at="2026-01-31T12:01:00Z")
        await committing.until_lag(go, 0)
    assert len(await committing.delivered()) == 20 * ALL


async def test_keda_does_not_count_the_ends_of_transactions_for_ever(
    go: str, committing: Committing, topics: Topics
) -> None:
    producer = topics.transactional()
    for body in (b"1", b"2"):
        producer.begin_transaction()
        topics.produce(0, [body], by=producer)
        producer.commit_transaction()
    assert await committing.lag(go) == 4  # two events, and two ends
    await committing.drain()
    assert await committing.lag(go) == 0


async def test_a_reset_of_a_topic_while_no_pod_runs_starts_one(go: str, committing: Committing) -> None:
    committing.append(range(10))
    await committing.drain()
    await committing.run("leases", "reset", str(committing.file), "bank", "--all", "--to", "earliest", "--yes")
    assert await committing.lag(go) == 10 * ALL
    await committing.drain()
    assert await committing.lag(go) == 0
